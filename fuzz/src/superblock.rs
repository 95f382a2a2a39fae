//! Superblocks and witness records from bytes, and elections over sets of them.

use crate::input::Input;
use crate::mend::{change_some, length_at, mend};
use headpond_engine::create::{PoolPlan, newest_superblock, newest_witness, plan};
use headpond_engine::election::{Election, WitnessVote, elect};
use headpond_format::{InSync, MemberState, SUPERBLOCK_BYTES, Superblock, WITNESS_BYTES, WitnessRecord};

/// The key of the examples.
pub const KEY: u64 = 0x0123_4567_89ab_cdef;

const EXAMPLE: &[u8] = include_bytes!("../../crates/format/tests/golden/superblock.bin");
const WITNESS: &[u8] = include_bytes!("../../crates/format/tests/golden/witness.bin");
/// Bytes of each device of the pool.
const BYTES: u64 = 4 << 20;

/// Decodes a superblock and a witness record, and holds an election among three devices, each of whose four superblocks the
/// input may change.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let how = input.u8();
    if how == 255 {
        decode(input.rest());
        return;
    }
    let mut bytes = EXAMPLE.to_vec();
    change_superblock(&mut bytes, &mut input);
    decode(&bytes);
    let mut bytes = WITNESS.to_vec();
    change_some(&mut bytes, &mut input);
    mend(&mut bytes, 0, WITNESS_BYTES as usize);
    if let Ok(w) = WitnessRecord::decode(&bytes) {
        assert_eq!(WitnessRecord::decode(&w.encode()), Ok(w));
    }
    election(how, &mut input);
}

fn change_superblock(bytes: &mut [u8], input: &mut Input<'_>) {
    change_some(bytes, input);
    let len = length_at(bytes, 20);
    mend(bytes, 0, len);
}

fn decode(bytes: &[u8]) {
    let Ok(s) = Superblock::decode(bytes) else { return };
    let again = s.encode();
    assert!(again.len() as u64 <= SUPERBLOCK_BYTES);
    assert_eq!(Superblock::decode(&again).as_ref(), Ok(&s));
    sense(&s);
}

/// What a start relies on without asking again.
pub fn sense(s: &Superblock) {
    assert!(usize::from(s.member) < s.members.len());
    for m in &s.members {
        let l = m.layout;
        assert!(l.slots() > 0, "no room for a segment: {l:?}");
        let end = l.slot(l.slots() - 1) + l.segment_bytes;
        assert!(end <= l.superblock(2) && l.superblock(3) + SUPERBLOCK_BYTES <= l.size, "a slot goes beyond: {l:?}");
        assert!(l.intent(l.intent_pages, 0) <= l.checkpoint(0) && l.checkpoint(1) + l.checkpoint_bytes <= l.slot(0));
        assert!([l.checkpoint(0), l.checkpoint(1), l.slot(0), l.segment_bytes].iter().all(|at| at % 4096 == 0));
        assert!(l.segment_bytes == s.members[0].layout.segment_bytes && l.intent_pages == s.members[0].layout.intent_pages);
    }
    let mut taken: Vec<(u32, u32)> = Vec::new();
    for v in &s.volumes {
        let end = v.intent_first.checked_add(v.intent_pages).expect("a volume's pages have an end");
        assert!(end <= s.members[0].layout.intent_pages, "pages beyond the intent map");
        assert!(taken.iter().all(|(a, b)| *b <= v.intent_first || end <= *a), "two volumes share a page");
        taken.push((v.intent_first, end));
        assert_eq!(s.volumes.iter().filter(|o| o.number == v.number).count(), 1, "two volumes have one number");
    }
    assert!(s.checkpoint.area < 2);
}

/// A pool of three, on which each superblock and the witness may be changed, old, or missing.
fn election(how: u8, input: &mut Input<'_>) {
    let pool = PoolPlan {
        name: "fuzz".into(),
        id: [7; 16],
        key: KEY,
        copies: 2,
        unit: 512,
        segment_bytes: 64 << 10,
        intent_pages: 4,
        witness: how & 1 == 0,
        members: (0..3).map(|m| ([m + 1; 16], BYTES)).collect(),
    };
    let (superblock, _) = plan(&pool).expect("this pool can be made");
    let mut found = Vec::new();
    for member in 0..3u8 {
        let what = input.u8();
        if what & 7 == 7 {
            continue;
        }
        let mut slots: Vec<Vec<u8>> = Vec::new();
        for slot in 0..2 {
            let mut s = superblock.clone();
            s.member = member;
            s.epoch += u64::from(what >> 3 & 3);
            s.sequence += u64::from(what >> 5) + slot;
            if what & 7 > 4 {
                s.members[usize::from(what) % 3].state = MemberState::Out;
            }
            let mut bytes = s.encode();
            if what & 1 == 1 {
                change_superblock(&mut bytes, input);
            }
            slots.push(bytes);
        }
        let slots: Vec<&[u8]> = slots.iter().map(Vec::as_slice).collect();
        if let Ok(s) = newest_superblock(&slots)
            && s.members[usize::from(s.member)].layout.size <= BYTES
        {
            found.push(s);
        }
    }
    let record = WitnessRecord {
        pool: [7; 16],
        epoch: u64::from(input.u8() % 6),
        in_sync: InSync { numbers: u64::from(input.u8()), devices: 0 },
    };
    let mut bytes = record.encode();
    if how & 2 == 2 {
        change_some(&mut bytes, input);
        mend(&mut bytes, 0, WITNESS_BYTES as usize);
    }
    let vote = match how & 5 {
        0 => newest_witness(&[&bytes, &bytes], [7; 16]).map_or(WitnessVote::Missing, WitnessVote::Found),
        4 => WitnessVote::Missing,
        _ => WitnessVote::None,
    };
    match elect(&found, vote) {
        Ok(election) => check(&election, &found),
        Err(refusal) => assert!(!refusal.to_string().is_empty()),
    }
}

/// Whoever was elected was there, and whoever is called present is.
pub fn check(election: &Election, found: &[Superblock]) {
    let e = &election.superblock;
    sense(e);
    assert!(found.contains(e), "nobody had the superblock that was elected");
    assert!(!election.present.is_empty());
    for m in &election.present {
        let entry = &e.members[usize::from(*m)];
        assert_eq!(entry.state, MemberState::InSync);
        let own = found.iter().find(|s| s.member == *m).expect("a member that is present was found");
        assert_eq!(own.members[usize::from(*m)].id, entry.id);
        assert_eq!(own.members[usize::from(*m)].layout, entry.layout, "a member with another layout than its own");
    }
    let all = election.present.iter().chain(&election.missing);
    let in_sync = e.members.iter().filter(|m| m.state == MemberState::InSync).count();
    assert_eq!(all.count(), in_sync);
}

/// The examples, whole, changed, and as raw bytes.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let raw = |bytes: &[u8]| [&[255], &bytes[..400]].concat();
    vec![
        vec![0],
        vec![1],
        vec![4, 0, 0, 0, 0, 0, 0, 0, 0x28, 0x07, 0x47],
        vec![2, 0, 3, 64, 20, 0, 3, 32, 5, 1, 1, 3, 64, 3, 3, 72, 4],
        raw(EXAMPLE),
        raw(WITNESS),
    ]
}
