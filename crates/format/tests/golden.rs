//! The media format, held fast: fixed examples of every structure, byte for byte as they were when they were committed.
//!
//! A change of these files is a change of the format, and needs a new version number. `UPDATE_GOLDEN=1 cargo test
//! --package headpond-format` writes them anew.

use headpond_format::*;
use std::path::Path;

const KEY: u64 = 0x0123_4567_89ab_cdef;

fn golden(name: &str, bytes: &[u8]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, bytes).unwrap();
    }
    let kept = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    if let Some(at) = kept.iter().zip(bytes).position(|(a, b)| a != b) {
        panic!("{name} differs from byte {at} on: the media format has changed");
    }
    assert_eq!(kept.len(), bytes.len(), "{name} has another length: the media format has changed");
}

fn superblock() -> Superblock {
    let layout = Layout::plan(64 << 20, 256 << 10, 16).unwrap();
    let other = Layout::plan(96 << 20, 256 << 10, 16).unwrap();
    Superblock {
        pool: *b"golden pool id..",
        name: "pond".into(),
        key: KEY,
        member: 1,
        epoch: 7,
        agreed: 7,
        sequence: 1234,
        copies: 2,
        unit: 4096,
        witness: true,
        left: 0,
        owner: *b"an owner, unused",
        fence: 3,
        members: vec![
            MemberEntry { id: [0xa1; 16], state: MemberState::Out, layout },
            MemberEntry { id: [0xb2; 16], state: MemberState::InSync, layout: other },
        ],
        volumes: vec![
            VolumeEntry {
                number: 0,
                id: [0xc3; 16],
                name: "home".into(),
                sectors: 7_814_037_168,
                phase: 7,
                mode: Mode::WriteBack,
                intent_first: 0,
                intent_pages: 4,
                backing: "serial-1234".into(),
                doubts: Doubts::default(),
            },
            VolumeEntry {
                number: 5,
                id: [0xd4; 16],
                name: "scratch".into(),
                sectors: 2048,
                phase: 0,
                mode: Mode::PassThrough,
                intent_first: 4,
                intent_pages: 1,
                backing: String::new(),
                doubts: Doubts::default(),
            },
        ],
        checkpoint: CheckpointPointer { sequence: 55, area: 1, pages: 9, members: vec![0, 1], version: 1 << 40, generation: 99 },
    }
}

fn record() -> Record {
    let at = RecordPlace { segment: 17, generation: 0x1_0000_0002, offset: 24 };
    let entry = |kind, first, sectors, block, count, sum, offset| Entry {
        kind,
        first,
        sectors,
        block,
        count,
        version: 0x00ab_cdef_0123_4567 + block,
        sum,
        offset,
    };
    Record {
        place: at,
        sectors: 14,
        entries: vec![
            entry(EntryKind::Dirty, 0, 8, 1000, 1, 0x1111_2222_3333_4444, 25),
            entry(EntryKind::Clean, 3, 5, 1001, 1, 0x5555_6666_7777_8888, 33),
            entry(EntryKind::Zeroes, 1, 2, 1002, 1, 0, 24),
            entry(EntryKind::MarkClean, 0, 8, 5000, 4096, 0, 24),
            entry(EntryKind::Forget, 7, 1, 6000, 1, 0, 24),
        ],
    }
}

fn segment() -> SegmentHeader {
    SegmentHeader {
        segment: 17,
        generation: 0x1_0000_0002,
        class: Class::Mirrored,
        volume: 5,
        copies: [Place { member: 0, slot: 12 }, Place { member: 1, slot: 0x0102_0304 }],
    }
}

fn single() -> SegmentHeader {
    SegmentHeader { class: Class::Single, copies: [Place { member: 1, slot: 3 }, Place::NONE], ..segment() }
}

fn intent() -> IntentPage {
    let mut page = IntentPage { sequence: 77, ..IntentPage::empty(3, 5) };
    page.intent[0] = 0b1000_0001;
    page.intent[2015] = 0x80;
    page.dirty[1] = 0x0f;
    page
}

fn segments_page() -> Page {
    let entry = |segment, class, copies, replay_from| SegmentEntry {
        segment,
        generation: 1000 + u64::from(segment),
        class,
        volume: 5,
        copies,
        replay_from,
    };
    let two = [Place { member: 0, slot: 1 }, Place { member: 1, slot: 2 }];
    let one = [Place::NONE, Place { member: 1, slot: 9 }];
    let list = vec![entry(1, Class::Mirrored, two, u32::MAX), entry(2, Class::Single, one, 48)];
    Page { sequence: 55, index: 0, body: PageBody::Segments(list) }
}

fn pieces_page() -> Page {
    let piece = |block, span, live| PieceEntry {
        block,
        version: 900 + block,
        sum: 0xfeed_0000_0000_0000 | block,
        segment: 1,
        offset: 40,
        live,
        span,
    };
    // All eight sectors dirty; sectors 2 to 4 clean, of which 3 is covered by something newer; zeroes in sector 7.
    let list = vec![piece(10, 0b0111_1000, 0xff), piece(11, 0b0001_0010, 0b0001_0100), piece(12, 0b1100_0111, 0x80)];
    Page { sequence: 55, index: 4, body: PageBody::Pieces(5, list) }
}

fn witness() -> WitnessRecord {
    WitnessRecord { pool: *b"golden pool id..", epoch: 7, in_sync: InSync { numbers: 0b10, devices: 0 } }
}

#[test]
fn a_superblock_is_written_as_it_always_was() {
    let bytes = superblock().encode();
    golden("superblock.bin", &bytes);
    assert_eq!(Superblock::decode(&bytes).unwrap(), superblock());
    let raised = Superblock { agreed: 5, ..superblock() };
    golden("superblock-raised.bin", &raised.encode());
    assert_eq!(Superblock::decode(&raised.encode()).unwrap(), raised);
    let mut doubted = superblock();
    doubted.volumes[0].doubts = Doubts { uncertain: false, untold: true, unkept: true };
    doubted.volumes[1].doubts = Doubts { uncertain: true, untold: false, unkept: false };
    golden("superblock-doubted.bin", &doubted.encode());
    assert_eq!(Superblock::decode(&doubted.encode()).unwrap(), doubted);
    // Slots are read whole; what follows the structure in one does not matter.
    let mut slot = bytes;
    slot.resize(SUPERBLOCK_BYTES as usize, 0x5a);
    assert_eq!(Superblock::decode(&slot).unwrap(), superblock());
}

#[test]
fn a_record_is_written_as_it_always_was() {
    for unit in [512, 4096] {
        let bytes = record().encode_header(KEY, unit);
        golden(&format!("record-{unit}.bin"), &bytes);
        assert_eq!(Record::peek_len(&bytes), Some(bytes.len()));
        assert_eq!(Record::decode(KEY, &bytes, record().place).unwrap(), record());
    }
}

#[test]
fn a_segment_header_is_written_as_it_always_was() {
    for (name, header) in [("segment-mirrored.bin", segment()), ("segment-single.bin", single())] {
        let bytes = header.encode(KEY, 512);
        golden(name, &bytes);
        assert_eq!(SegmentHeader::decode(KEY, &bytes).unwrap(), header);
    }
    assert_eq!(SegmentHeader::decode(KEY, &segment().encode(KEY, 4096)).unwrap(), segment());
    // Of a version that did not know of it: no segment is durable.
    assert_eq!(Durable::of_header(&segment().encode(KEY, 512)), Durable::default());
}

#[test]
fn what_a_segment_header_says_of_others_is_written_as_it_always_was() {
    let durable = Durable { from: 100, below: 1 << 40, but: vec![101, 0x1_0000_0001] };
    let bytes = segment().encode_with(KEY, 512, &durable);
    golden("segment-durable.bin", &bytes);
    assert_eq!((SegmentHeader::decode(KEY, &bytes).unwrap(), Durable::of_header(&bytes)), (segment(), durable.clone()));
    let of = [99, 100, 101, 102, 0x1_0000_0001, (1 << 40) - 1, 1 << 40];
    assert_eq!(of.map(|generation| durable.has(generation)), [false, true, false, true, false, true, false]);
    for unit in [512, 4096] {
        let full = Durable { but: (0..Durable::most(unit) as u64).collect(), ..durable.clone() };
        let bytes = segment().encode_with(KEY, unit, &full);
        assert_eq!((bytes.len(), Durable::of_header(&bytes)), (unit, full));
        let mut senseless = bytes;
        senseless[80..88].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(Durable::of_header(&senseless), Durable::default());
    }
}

#[test]
fn an_intent_page_is_written_as_it_always_was() {
    let bytes = intent().encode(KEY);
    golden("intent.bin", &bytes);
    assert_eq!(IntentPage::decode(KEY, &bytes, 3).unwrap(), intent());
}

#[test]
fn checkpoint_pages_are_written_as_they_always_were() {
    for (name, page) in [("checkpoint-segments.bin", segments_page()), ("checkpoint-pieces.bin", pieces_page())] {
        let bytes = page.encode(KEY);
        golden(name, &bytes);
        assert_eq!(Page::decode(KEY, &bytes, page.sequence, page.index).unwrap(), page);
    }
}

#[test]
fn a_witness_record_is_written_as_it_always_was() {
    let bytes = witness().encode();
    golden("witness.bin", &bytes);
    assert_eq!(WitnessRecord::decode(&bytes).unwrap(), witness());
    let devices = WitnessRecord { in_sync: InSync::of([(1, [0xb2; 16])].into_iter()), ..witness() };
    golden("witness-devices.bin", &devices.encode());
    assert_eq!(WitnessRecord::decode(&devices.encode()).unwrap(), devices);
}

#[test]
fn a_structure_found_in_another_place_or_of_another_pool_is_not_taken() {
    let bytes = record().encode_header(KEY, 512);
    let place = record().place;
    for wrong in [
        RecordPlace { segment: 18, ..place },
        RecordPlace { generation: place.generation + 1, ..place },
        RecordPlace { offset: place.offset + 1, ..place },
    ] {
        assert_eq!(Record::decode(KEY, &bytes, wrong), Err(DecodeError::Foreign));
    }
    assert_eq!(Record::decode(KEY + 1, &bytes, place), Err(DecodeError::Checksum));
    assert_eq!(SegmentHeader::decode(KEY + 1, &segment().encode(KEY, 512)), Err(DecodeError::Checksum));
    assert_eq!(IntentPage::decode(KEY, &intent().encode(KEY), 4), Err(DecodeError::Foreign));
    assert_eq!(IntentPage::decode(KEY + 1, &intent().encode(KEY), 3), Err(DecodeError::Checksum));
    let page = pieces_page();
    assert_eq!(Page::decode(KEY, &page.encode(KEY), 54, 4), Err(DecodeError::Foreign));
    assert_eq!(Page::decode(KEY, &page.encode(KEY), 55, 5), Err(DecodeError::Foreign));
    assert_eq!(Page::decode(KEY + 1, &page.encode(KEY), 55, 4), Err(DecodeError::Checksum));
}

#[test]
fn what_a_newer_headpond_wrote_is_refused_and_named() {
    let mut bytes = superblock().encode();
    bytes[16] = 2;
    mend(&mut bytes, 0);
    assert_eq!(Superblock::decode(&bytes), Err(DecodeError::Newer(2)));
    let mut bytes = superblock().encode();
    bytes[24 + 5] = 1;
    mend(&mut bytes, 0);
    assert_eq!(Superblock::decode(&bytes), Err(DecodeError::Newer(1 << 40)));
    let mut bytes = witness().encode();
    bytes[4] = 9;
    mend(&mut bytes, 0);
    assert_eq!(WitnessRecord::decode(&bytes), Err(DecodeError::Newer(9)));
}

// Sizes that other places rely on.
const _: () = {
    assert!(SUPERBLOCK_BYTES == 65_536 && PAGE_BYTES == 65_536 && INTENT_PAGE_BYTES == 4096 && WITNESS_BYTES == 4096);
    assert!(REGION_SECTORS == 131_072 && REGIONS_PER_PAGE == 16_128);
    assert!(Page::PIECES == 2046 && Page::SEGMENTS == 2046);
    assert!(SegmentHeader::BYTES == 64 && Record::MAX_ENTRIES == 512);
    assert!(FORMAT_VERSION == 1 && INCOMPAT_KNOWN == 0 && MAX_MEMBERS == 32 && MAX_VOLUMES == 64 && WITNESS_SLOTS == 2);
};

#[test]
fn the_largest_superblock_fits_its_slot() {
    let mut s = superblock();
    s.name = "n".repeat(64);
    s.members = vec![s.members[0].clone(); MAX_MEMBERS];
    s.members.iter_mut().for_each(|m| m.layout = Layout::plan(64 << 20, 256 << 10, MAX_VOLUMES as u32).unwrap());
    let (name, backing) = ("v".repeat(64), "b".repeat(256));
    let volume = |n: u16| VolumeEntry {
        number: n,
        name: name.clone(),
        backing: backing.clone(),
        sectors: 2048,
        intent_first: u32::from(n),
        intent_pages: 1,
        ..s.volumes[0].clone()
    };
    s.volumes = (0..MAX_VOLUMES as u16).map(volume).collect();
    s.checkpoint.members = (0..MAX_MEMBERS as u8).collect();
    let bytes = s.encode();
    assert!(bytes.len() as u64 <= SUPERBLOCK_BYTES, "{} bytes", bytes.len());
    assert_eq!(Superblock::decode(&bytes).unwrap(), s);
}

/// Fuzzing found that a start panics, allocates gigabytes, or writes beyond a device on each of these, checksums right.
#[test]
fn a_superblock_that_makes_no_sense_is_not_taken_whatever_its_checksum() {
    let refused = |what: &str, change: &dyn Fn(&mut Superblock)| {
        let mut s = superblock();
        change(&mut s);
        assert!(matches!(Superblock::decode(&s.encode()), Err(DecodeError::Invalid(_))), "{what}");
    };
    refused("areas of parts of sectors", &|s| s.members[0].layout.checkpoint_bytes += 1);
    refused("no room for a segment", &|s| s.members[0].layout.checkpoint_bytes = s.members[0].layout.size / 2 / 65_536 * 65_536);
    refused("an intent map over the superblocks", &|s| s.members.iter_mut().for_each(|m| m.layout.intent_pages = 8191));
    refused("another segment size than the first's", &|s| s.members[1].layout.segment_bytes *= 2);
    refused("another intent map than the first's", &|s| s.members[1].layout.intent_pages -= 1);
    refused("an epoch that cannot grow", &|s| s.epoch = u64::MAX);
    refused("a sequence that cannot grow", &|s| s.sequence = 1 << 40);
    refused("a third area", &|s| s.checkpoint.area = 2);
    refused("a version that no entry may have", &|s| s.checkpoint.version = 1 << 56);
    refused("a generation that cannot grow", &|s| s.checkpoint.generation = u64::MAX);
    refused("pages without end", &|s| s.volumes[1].intent_pages = u32::MAX);
    refused("pages beyond the map", &|s| s.volumes[1].intent_first = 16);
    refused("fewer pages than the volume has regions", &|s| s.volumes[0].intent_pages = 3);
    refused("two volumes on one page", &|s| s.volumes[1].intent_first = 3);
    refused("two volumes of one number", &|s| s.volumes[1].number = 0);
}

/// Fuzzing found that reading such a piece panics: sectors before its first one were cut out of its data.
#[test]
fn a_piece_with_sectors_that_were_not_written_with_it_is_not_taken() {
    for (span, live) in [(0, 7), (0x12, 0x02), (0x12, 0x20), (0x3a, 0xff)] {
        let mut page = pieces_page();
        if let PageBody::Pieces(_, list) = &mut page.body {
            (list[0].span, list[0].live) = (span, live);
        }
        assert_eq!(Page::decode(KEY, &page.encode(KEY), 55, 4), Err(DecodeError::Invalid("a piece")));
    }
}

/// Fuzzing found that the slot of such a segment is given to two others later; and that a generation must be able to grow.
#[test]
fn a_segment_with_both_copies_on_one_member_or_a_generation_without_successor_is_not_taken() {
    let one = Place { member: 1, slot: 3 };
    for bad in [SegmentHeader { copies: [one; 2], ..segment() }, SegmentHeader { generation: u64::MAX, ..segment() }] {
        assert!(matches!(SegmentHeader::decode(KEY, &bad.encode(KEY, 512)), Err(DecodeError::Invalid(_))));
    }
    let bad = IntentPage { sequence: u64::MAX, ..intent() };
    assert!(matches!(IntentPage::decode(KEY, &bad.encode(KEY), 3), Err(DecodeError::Invalid(_))));
}

#[test]
fn full_pages_fit_their_place() {
    let mut page = pieces_page();
    if let PageBody::Pieces(_, list) = &mut page.body {
        list.resize(Page::PIECES, list[0]);
    }
    assert!(page.encode(KEY).len() <= PAGE_BYTES);
    let mut page = segments_page();
    if let PageBody::Segments(list) = &mut page.body {
        list.resize(Page::SEGMENTS, list[0]);
    }
    assert!(page.encode(KEY).len() <= PAGE_BYTES);
}

/// XorShift64*.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

/// Puts the right checksum into bytes 8 to 15, as every structure has it: over the length that the structure has.
fn mend(bytes: &mut [u8], key: u64) {
    bytes[8..16].fill(0);
    let sum = checksum(key, bytes);
    bytes[8..16].copy_from_slice(&sum.to_le_bytes());
}

/// Hands bytes to every decoder; whether any took them.
fn decode_all(bytes: &[u8]) -> bool {
    let place = record().place;
    let mut taken = Superblock::decode(bytes).is_ok();
    taken |= SegmentHeader::decode(KEY, bytes).is_ok();
    taken |= Record::decode(KEY, bytes, place).is_ok();
    taken |= IntentPage::decode(KEY, bytes, 3).is_ok();
    taken |= Page::decode(KEY, bytes, 55, 4).is_ok();
    taken |= Page::decode(KEY, bytes, 55, 0).is_ok();
    taken |= WitnessRecord::decode(bytes).is_ok();
    taken |= Record::peek_len(bytes).is_some_and(|n| n > 1 << 20);
    taken
}

/// Every example, with the key of its checksum.
fn examples() -> Vec<(Vec<u8>, u64)> {
    vec![
        (superblock().encode(), 0),
        (record().encode_header(KEY, 512), KEY),
        (record().encode_header(KEY, 4096), KEY),
        (segment().encode(KEY, 512), KEY),
        (intent().encode(KEY), KEY),
        (segments_page().encode(KEY), KEY),
        (pieces_page().encode(KEY), KEY),
        (witness().encode(), 0),
    ]
}

#[test]
fn random_bytes_are_taken_for_nothing() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for _ in 0..20_000 {
        let len = random.below(9000);
        let mut bytes: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
        // Half of them begin as something of ours does.
        let (example, _) = &examples()[random.below(8)];
        let front = random.below(2) * random.below(example.len().min(bytes.len() + 1));
        bytes[..front].copy_from_slice(&example[..front]);
        assert!(!decode_all(&bytes));
    }
}

#[test]
fn a_flipped_bit_anywhere_is_noticed() {
    for (example, _) in examples() {
        for bit in (0..example.len() * 8).step_by(7) {
            let mut bytes = example.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(!decode_all(&bytes), "bit {bit}");
        }
    }
}

#[test]
fn a_structure_cut_short_is_not_taken() {
    for (example, _) in examples() {
        for len in (0..example.len()).step_by(13) {
            assert!(!decode_all(&example[..len]), "{len} of {} bytes", example.len());
        }
    }
}

#[test]
fn fields_without_sense_under_a_right_checksum_are_an_error_and_no_panic() {
    let mut random = Random(0xdead_beef_cafe_f00d);
    let examples = examples();
    for _ in 0..100_000 {
        let (example, key) = &examples[random.below(examples.len())];
        let mut bytes = example.clone();
        for _ in 0..=random.below(6) {
            // Most fields are at the front.
            let at = if random.below(4) > 0 { random.below(256) } else { random.below(bytes.len()) };
            bytes[at.min(example.len() - 1)] = *[0, 1, 0x7f, 0x80, 0xff, random.next() as u8].get(random.below(6)).unwrap();
        }
        mend(&mut bytes, *key);
        decode_all(&bytes);
    }
}
