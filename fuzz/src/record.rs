//! Segment headers and streams of records from bytes.

use crate::input::Input;
use crate::mend::{change_some, length_at, mend, structure};
use crate::superblock::KEY;
use headpond_format::{Entry, EntryKind, Record, RecordPlace, SegmentHeader};

const HEADERS: [&[u8]; 2] = [
    include_bytes!("../../crates/format/tests/golden/segment-mirrored.bin"),
    include_bytes!("../../crates/format/tests/golden/segment-single.bin"),
];
/// The segment that the stream is in.
const SEGMENT: u32 = 17;
const GENERATION: u64 = 0x1_0000_0002;
/// Sectors of the stream.
const SECTORS: u32 = 96;

/// Decodes a segment's header, then a stream of records, as a start does: each unit is tried, and where a record is whole
/// the next one is looked for behind it.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let header = structure(&mut input.clone(), &HEADERS, KEY, <[u8]>::len);
    if let Ok(h) = SegmentHeader::decode(KEY, &header) {
        assert_eq!(SegmentHeader::decode(KEY, &h.encode(KEY, 512)), Ok(h));
    }
    let stream = stream(&mut input);
    let mut at = 0;
    while at < SECTORS {
        let place = RecordPlace { segment: SEGMENT, generation: GENERATION, offset: at };
        let rest = &stream[at as usize * 512..];
        match Record::decode(KEY, rest, place) {
            Ok(record) => {
                check(&record, rest);
                at = at.saturating_add(record.sectors.max(1));
            }
            Err(_) => at += 1,
        }
    }
}

fn check(record: &Record, from: &[u8]) {
    assert!(record.entries.len() <= Record::MAX_ENTRIES);
    assert!(Record::peek_len(from).is_some_and(|len| len <= from.len()));
    for e in &record.entries {
        assert!(e.sectors > 0 && e.first + e.sectors <= 8, "a run goes beyond its block: {e:?}");
        let end = record.place.offset + record.sectors;
        assert!(!e.kind.has_data() || e.offset + u32::from(e.sectors) <= end, "data is beyond its record: {e:?}");
    }
    let again = Record::decode(KEY, &record.encode_header(KEY, 512), record.place);
    assert_eq!(again.as_ref(), Ok(record));
}

/// Three records, each changed and mended as the input says, one behind the other.
fn stream(input: &mut Input<'_>) -> Vec<u8> {
    let mut out = vec![0; SECTORS as usize * 512];
    if input.u8() == 255 {
        let raw = input.rest();
        let len = raw.len().min(out.len());
        out[..len].copy_from_slice(&raw[..len]);
        return out;
    }
    let mut at = 0;
    for n in 0..3 {
        let place = RecordPlace { segment: SEGMENT, generation: GENERATION, offset: at };
        let mut bytes = example(place, n).encode_header(KEY, 512);
        change_some(&mut bytes, input);
        let len = length_at(&bytes, 4);
        mend(&mut bytes, KEY, len);
        let sector = at as usize * 512;
        let len = bytes.len().min(out.len() - sector);
        out[sector..sector + len].copy_from_slice(&bytes[..len]);
        at += 14;
    }
    out
}

fn example(place: RecordPlace, n: u64) -> Record {
    let mut at = place.offset + 1;
    let mut entry = |kind: EntryKind, first, sectors, count| {
        let has_data = kind.has_data();
        let offset = if has_data { at } else { place.offset };
        at += if has_data { u32::from(sectors) } else { 0 };
        Entry { kind, first, sectors, block: 1000 + n, count, version: 0x00ab_cdef + n, sum: n * 77, offset }
    };
    let entries = vec![
        entry(EntryKind::Dirty, 0, 8, 1),
        entry(EntryKind::Clean, 3, 5, 1),
        entry(EntryKind::Zeroes, 1, 2, 1),
        entry(EntryKind::MarkClean, 0, 8, 4096),
        entry(EntryKind::Forget, 7, 1, 1),
    ];
    Record { place, sectors: 14, entries }
}

/// The records as they are, some changed, and a stream of raw bytes.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let place = RecordPlace { segment: SEGMENT, generation: GENERATION, offset: 0 };
    let raw = [&[255][..], &example(place, 0).encode_header(KEY, 512)].concat();
    vec![vec![0], vec![1], vec![0, 0, 2, 32, 5, 1, 2, 36, 1, 0, 0x0c, 66, 9], raw]
}
