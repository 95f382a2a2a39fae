//! That the map says of each sector who came last there, and counts what it has.

use super::*;
use headpond_format::Class;

fn world() -> (Map, Segments, u32) {
    let mut segments = Segments::default();
    segments.add_member(0, 8);
    segments.add_member(1, 8);
    let n = segments.open(1, Class::Mirrored, 0, false, 2, &[]).unwrap();
    (Map::default(), segments, n)
}

/// Numbers below what is asked for, the same each time.
fn dice() -> impl FnMut(u64) -> u64 {
    let mut state = 1u64;
    move |n| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % n
    }
}

fn piece(version: u64, segment: u32, first: u8, count: u8, dirty: bool) -> Piece {
    Piece::new(version, version * 7, segment, version as u16, first, count, dirty, false)
}

#[test]
fn a_late_older_piece_does_not_hide_a_newer_one() {
    let (mut map, mut segments, n) = world();
    map.insert(&mut segments, 5, piece(9, n, 2, 3, true));
    assert!(map.insert(&mut segments, 5, piece(4, n, 0, 8, true)));
    let mut seen = Vec::new();
    map.each(5, |p| seen.push((p.version(), p.live)));
    seen.sort_unstable();
    assert_eq!(seen, [(4, 0b1110_0011), (9, 0b0001_1100)]);
    assert!(!map.insert(&mut segments, 5, piece(3, n, 2, 3, true)));
    assert_eq!((segments.live, segments.dirty, map.extra_pieces()), (2, 2, 1));
}

#[test]
fn what_is_cached_in_a_row_is_counted_from_either_end() {
    let (mut map, mut segments, n) = world();
    let there = |block: u64| block != 60 && block != 200 && (10..333).contains(&block);
    for block in (0..400).filter(|b| there(*b)) {
        map.insert(&mut segments, block, piece(block + 1, n, 0, 8, block % 3 == 0));
    }
    for from in 0..400 {
        for most in [0, 1, 5, 64, 130, 1000] {
            let behind = (from..from + most).take_while(|b| there(*b)).count() as u64;
            let before = (from.saturating_sub(most)..from).rev().take_while(|b| there(*b)).count() as u64;
            assert_eq!((map.cached_from(from, most), map.cached_before(from, most)), (behind, before), "{from} {most}");
        }
    }
}

#[test]
fn fragments_that_fill_a_block_replace_what_they_cover() {
    let (mut map, mut segments, n) = world();
    map.insert(&mut segments, 63, piece(1, n, 0, 8, false));
    for i in 0..8 {
        map.insert(&mut segments, 63, piece(2 + u64::from(i), n, i, 1, true));
    }
    let mut versions = Vec::new();
    map.each(63, |p| versions.push(p.version()));
    assert_eq!(versions.len(), 8);
    map.insert(&mut segments, 63, piece(20, n, 0, 8, true));
    assert_eq!((map.extra_pieces(), segments.live, map.blocks()), (0, 1, 1));
    map.mark_clean(&mut segments, 63, 19);
    assert!(map.any_dirty(0..64));
    map.mark_clean(&mut segments, 63, 20);
    assert!(!map.any_dirty(0..64) && map.any(63..64) && !map.any(64..128));
    map.forget(&mut segments, 63, 0xff, 21);
    assert_eq!((segments.live, map.blocks()), (0, 0));
}

/// What the map has to say, kept as simply as can be: who holds each sector, and whether it is dirty.
#[derive(Default)]
struct Model(BTreeMap<u64, Piece>);

impl Model {
    fn sectors(block: u64, mask: Mask) -> impl Iterator<Item = u64> {
        bits(u64::from(mask)).map(move |s| block * BLOCK_SECTORS + s)
    }

    fn insert(&mut self, block: u64, piece: Piece) {
        for s in Self::sectors(block, piece.live) {
            if self.0.get(&s).is_none_or(|old| old.version() <= piece.version()) {
                self.0.insert(s, piece);
            }
        }
    }

    fn check(&self, map: &Map, segments: &Segments, range: Range<u64>) {
        let mut found: BTreeMap<u64, Piece> = BTreeMap::new();
        let mut pieces: BTreeMap<u64, u64> = BTreeMap::new();
        let mut dirty = Vec::new();
        map.each_in(range.clone(), |block, p| {
            *pieces.entry(block).or_default() += 1;
            if p.dirty() && dirty.last() != Some(&block) {
                dirty.push(block);
            }
            for s in Self::sectors(block, p.live) {
                // All but what is live of it is as it was put in.
                let mut put_in = *p;
                put_in.live = self.0.get(&s).map_or(0, |m| m.live);
                assert!(found.insert(s, put_in).is_none(), "two pieces live in sector {s}");
            }
        });
        assert_eq!(found, self.0);
        for block in range.clone() {
            let mut count = 0;
            map.each(block, |_| count += 1);
            assert_eq!(count, pieces.get(&block).copied().unwrap_or(0));
            assert_eq!(map.any(block..block + 1), count > 0);
            assert_eq!(map.any_dirty(block..block + 1), dirty.contains(&block));
        }
        let mut out = Vec::new();
        map.dirty_from(range.start, range.end, usize::MAX, &mut out);
        assert_eq!(out, dirty);
        let sum: u64 = pieces.values().sum();
        assert_eq!((map.blocks(), map.extra_pieces()), (pieces.len() as u64, sum - pieces.len() as u64));
        assert_eq!((segments.live, map.dirty_blocks()), (sum, dirty.len() as u64));
        let spans = map.spans.values();
        let groups: Vec<_> = spans.clone().flat_map(|s| s.iter(u64::MAX).map(|(_, group)| group)).collect();
        assert_eq!(map.room_groups, spans.map(Some64::room).sum::<u64>());
        let leaves: Vec<&Leaf> = groups.iter().flat_map(|g| g.iter(u64::MAX).map(|(_, leaf)| leaf)).collect();
        assert!(leaves.iter().all(|l| l.present() != 0 && l.rows.there & l.aside == 0));
        assert_eq!(map.room_leaves, groups.iter().map(|g| g.room()).sum::<u64>());
        assert_eq!(map.room_rows, leaves.iter().map(|l| l.rows.room()).sum::<u64>());
    }
}

#[test]
fn what_is_loaded_in_order_is_as_if_it_had_been_named_piece_by_piece() {
    let mut below = dice();
    for round in 0..200u64 {
        let ((mut loaded, mut segments, n), (mut named, mut of_named, _)) = (world(), world());
        let (range, mut model) = (GROUP - 200..GROUP + 200, Model::default());
        let mut pieces: Vec<(u64, Piece)> = Vec::new();
        let blocks: Vec<u64> = range.clone().filter(|_| below(4) > 0).collect();
        for block in blocks {
            // In every other round all are whole, and none is there twice: what an image says of that is not taken on trust.
            let parts = match below(60) * (round % 2) {
                1 | 2 => [(0, 3), (3, 5)].to_vec(),
                3 => [(0, 8), (0, 8)].to_vec(),
                _ => [(0, 8)].to_vec(),
            };
            let dirty = below(2) == 0;
            for (first, count) in parts {
                pieces.push((block, piece(block + 1, n, first, count, dirty)));
            }
        }
        if round % 7 == 6 {
            pieces.reverse();
        }
        let mut rest = &pieces[..];
        while !rest.is_empty() {
            let (some, others) = rest.split_at(1 + below(rest.len() as u64) as usize);
            loaded.load(&mut segments, some);
            rest = others;
        }
        for (block, piece) in &pieces {
            named.insert(&mut of_named, *block, *piece);
            model.insert(*block, *piece);
        }
        model.check(&loaded, &segments, range.clone());
        assert_eq!((loaded.memory(), segments.live, segments.dirty), (named.memory(), of_named.live, of_named.dirty));
        let blocks = |of: &Segments| of.get(n).map(|s| s.blocks.to_vec());
        assert_eq!(blocks(&segments), blocks(&of_named));
    }
}

/// A start has the log in the map before the image that the log came after.
#[test]
fn what_is_loaded_under_what_came_later_is_as_if_it_had_come_first() {
    let mut below = dice();
    for _ in 0..200 {
        let ((mut later, mut segments, n), (mut first, mut of_first, _)) = (world(), world());
        let range = GROUP - 100..GROUP + 100;
        let mut pieces = |most: u64| {
            let mut all: Vec<(u64, Piece)> = Vec::new();
            for block in range.clone() {
                for version in 0..below(most) {
                    let (first, count) = if below(2) == 0 { (0, 8) } else { (below(4) as u8, below(4) as u8 + 1) };
                    // Some in the same version, as what was moved is.
                    all.push((block, piece(block * 8 + version + below(3), n, first, count, below(2) == 0)));
                }
            }
            all
        };
        let log = pieces(4);
        let (mut walked, mut of_walked, _) = world();
        pieces(3).iter().for_each(|(block, piece)| _ = walked.insert(&mut of_walked, *block, *piece));
        let mut image: Vec<(u64, Piece)> = Vec::new();
        walked.each_in(range.clone(), |block, piece| image.push((block, *piece)));
        image.iter().chain(&log).for_each(|(block, piece)| _ = first.insert(&mut of_first, *block, *piece));
        log.iter().for_each(|(block, piece)| _ = later.insert(&mut segments, *block, *piece));
        image.chunks(1 + below(50) as usize).for_each(|some| later.load(&mut segments, some));
        let by_sector = |map: &Map| {
            let mut all = BTreeMap::new();
            let said = |p: &Piece| (p.version(), p.offset, p.first(), p.dirty());
            map.each_in(range.clone(), |block, p| all.extend(Model::sectors(block, p.live).map(|s| (s, said(p)))));
            all
        };
        assert!(by_sector(&later) == by_sector(&first));
        assert_eq!(later.dirty_blocks(), first.dirty_blocks());
    }
}

#[test]
fn any_sequence_of_changes_leaves_who_came_last_in_each_sector() {
    let mut below = dice();
    for _ in 0..60 {
        let (mut map, mut segments, n) = world();
        let mut model = Model::default();
        // About the end of a leaf, or of a group of them.
        let range = [GROUP - 40..GROUP + 40, 30..100][below(2) as usize].clone();
        for turn in 0..300 {
            let block = range.start + below(range.end - range.start);
            let version = if below(8) == 0 { below(turn + 1) + 1 } else { turn + 1 } | below(2) << 55;
            let (first, count) = if below(2) == 0 { (0, 8) } else { (below(4) as u8, below(4) as u8 + 1) };
            match below(8) {
                0 => {
                    let sectors = mask(first, count);
                    map.forget(&mut segments, block, sectors, version);
                    model.0.retain(|s, p| s / 8 != block || sectors >> (s % 8) & 1 == 0 || p.version() >= version);
                }
                1 => {
                    map.mark_clean(&mut segments, block, version);
                    let cleaned = |s: &u64, p: &Piece| s / 8 == block && p.version() <= version && p.dirty();
                    model.0.retain(|s, p| !(cleaned(s, p) && p.zeroes()));
                    model.0.iter_mut().filter(|(s, p)| cleaned(s, p)).for_each(|(_, p)| p.set_clean());
                }
                2 => {
                    map.drop_clean(&mut segments, block, |p| p.sum % 2 == 0);
                    model.0.retain(|s, p| s / 8 != block || p.dirty() || p.sum % 2 != 0);
                }
                _ => {
                    let segment = [n, n, n, 0xff_ffff, 1 << 24, u32::MAX][below(6) as usize];
                    let offset = [0, 8, 0x1234, u16::MAX - 7, u16::MAX][below(5) as usize];
                    let sum = below(u64::MAX) << 33 | below(u64::MAX);
                    let piece = Piece::new(version, sum, segment, offset, first, count, below(2) == 0, below(4) == 0);
                    map.insert(&mut segments, block, piece);
                    model.insert(block, piece);
                }
            }
        }
        model.check(&map, &segments, range.clone());
        for block in range.clone() {
            map.forget(&mut segments, block, Mask::MAX, u64::MAX);
        }
        assert_eq!((map.memory(), map.blocks(), segments.live, segments.dirty), (0, 0, 0, 0));
    }
}

#[test]
fn dirty_blocks_come_in_order_of_address() {
    let (mut map, mut segments, n) = world();
    for b in [700, 3, 64, 65, 4096, 12] {
        map.insert(&mut segments, b, piece(b + 1, n, 0, 8, true));
    }
    let mut out = Vec::new();
    map.dirty_from(4, 4096, 10, &mut out);
    assert_eq!(out, [12, 64, 65, 700]);
}

#[test]
fn others_find_of_a_block_what_the_map_says_of_it_or_nothing() {
    const BLOCKS: u64 = 100;
    let (mut map, mut segments, n) = world();
    let mut below = dice();
    map.lookaside_or(|| Lookaside::new(1, 1, 0, u64::MAX, 32));
    let mut found = 0;
    for version in 1..4000 {
        let block = below(BLOCKS);
        let first = below(8) as u8;
        match below(6) {
            0 | 1 => drop(map.insert(&mut segments, block, piece(version, n, 0, 8, below(2) == 0))),
            2 => drop(map.insert(&mut segments, block, piece(version, n, first, 1 + below(8 - u64::from(first)) as u8, true))),
            3 => map.forget(&mut segments, block, mask(first, 1), version),
            4 => map.drop_clean(&mut segments, block, |_| true),
            _ => map.mark_clean(&mut segments, block, version),
        }
        let (block, mut whole) = (below(BLOCKS), None);
        map.each(block, |p| whole = Some(*p).filter(|p| p.live == Mask::MAX && p.sectors() == 8));
        if let Some(piece) = whole {
            map.let_others_find(block, &piece, [Some((0, piece.version() * 512)), None]);
        }
        for block in 0..BLOCKS {
            let Some(it) = map.lookaside().and_then(|table| table.find(block * 8, 8)) else { continue };
            let mut versions = Vec::new();
            map.each(block, |p| versions.push(Some((0, p.version() * 512))));
            assert_eq!(versions, [it.places[0]], "block {block} after {version}");
            found += 1;
        }
    }
    assert!(found > 10_000, "{found}");
}

#[test]
fn what_others_found_was_asked_for_once_more() {
    let (mut map, mut segments, n) = world();
    map.lookaside_or(|| Lookaside::new(1, 1, 0, u64::MAX, 1));
    for block in [5, 9] {
        map.insert(&mut segments, block, piece(block, n, 0, 8, false));
        map.ask(&(block..block + 1));
    }
    let find = |map: &Map, block: u64| map.lookaside().and_then(|table| table.find(block * 8, 8)).is_some();
    map.let_others_find(5, &piece(5, n, 0, 8, false), [Some((0, 0)), None]);
    assert_eq!(map.asked(5), 1);
    assert!(find(&map, 5));
    assert_eq!((map.asked(5), map.asked(9)), (2, 1));
    // Also where another takes its place before anybody has looked.
    map.cool(5);
    assert!(find(&map, 5));
    map.let_others_find(9, &piece(9, n, 0, 8, false), [Some((0, 0)), None]);
    assert!(!find(&map, 5));
    assert_eq!((map.asked(5), map.asked(9)), (2, 1));
}

/// Who lets go of all of a volume goes over it in turns, and misses nothing; who throws it away leaves nothing counted anywhere.
#[test]
fn all_blocks_are_found_in_turns_and_forgotten_at_once() {
    let (mut map, mut segments, n) = world();
    let mut there: Vec<u64> = (0..300).map(|i| i * i * 977 % (1 << 22)).collect();
    for block in &there {
        map.insert(&mut segments, *block, piece(block + 1, n, 0, 8, block % 3 == 0));
        map.insert(&mut segments, *block, piece(block + 2, n, (block % 8) as u8, 1, block % 5 == 0));
    }
    there.sort_unstable();
    there.dedup();
    for most in [1, 7, 1000] {
        let (mut from, mut found) = (0, Vec::new());
        loop {
            let some = map.first_from(from, most);
            let Some(last) = some.last() else { break };
            assert!(some.len() < most + LEAF as usize);
            from = last + 1;
            found.extend(some);
        }
        assert_eq!(found, there, "{most} at a time");
    }
    map.forget_all(&mut segments);
    assert_eq!((map.blocks(), map.dirty_blocks(), map.extra_pieces()), (0, 0, 0));
    assert_eq!((segments.live, segments.dirty, segments.get(n).map(|s| s.live)), (0, 0, Some(0)));
}

#[test]
fn blocks_of_ranges_are_those_that_are_in_one_of_them() {
    let ranges = [500..515, 600..600, 640..700, 760..900];
    let bits = of_ranges(&(512..768), &ranges);
    for block in 512..768 {
        let is_in = ranges.iter().any(|range| range.contains(&block));
        assert_eq!(bits[(block - 512) as usize / 64] >> (block % 64) & 1 == 1, is_in, "{block}");
    }
}
