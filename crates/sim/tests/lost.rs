//! Dirty data whose copies are all gone is named, to the sector.

use std::collections::BTreeSet;
use std::ops::Range;

use headpond_engine::Device;
use headpond_sim::scene::{Scene, Stage};

/// What the engine names as lost, in order, looking at so many pieces at once.
fn lost(s: &Scene, most: usize) -> Vec<Range<u64>> {
    let engine = s.world.engine.as_ref().expect("a daemon lives");
    let (mut all, mut from) = (Vec::new(), Some(0));
    while let Some(at) = from {
        let page;
        (page, from) = engine.lost(0, at, most);
        all.extend(page);
    }
    all.sort_unstable_by_key(|r| r.start);
    all
}

fn sectors(ranges: &[Range<u64>]) -> BTreeSet<u64> {
    ranges.iter().cloned().flatten().collect()
}

#[test]
fn what_two_of_four_cache_devices_took_with_them_is_named_to_the_sector() {
    for phase in [0, 3] {
        let mut s = Scene::new("lost while the daemon lives", Stage { members: 4, phase, ..Stage::default() });
        // Clean, and then dirty: whole blocks, and parts of one; the volume's first and last sectors.
        s.write(64_000, 8);
        s.destage();
        let end = s.stage.sectors;
        let written = [0..8, 640..648, 1283..1285, 1286..1287, end - 3..end];
        for r in &written {
            s.write(r.start, r.end - r.start);
        }
        s.write_zeroes(128_000, 16);
        s.flush();
        assert!(lost(&s, 1000).is_empty() && s.status().volumes[0].losses == 0);
        let dead: Vec<Device> = s.copies(0).into_iter().map(|(device, _)| device).collect();
        let gone = |s: &Scene, sector: u64| s.copies(sector).iter().all(|(device, _)| dead.contains(device));
        let expected: BTreeSet<u64> = sectors(&written).into_iter().filter(|sector| gone(&s, *sector)).collect();
        assert!(expected.len() > 8, "little is lost: {expected:?}");
        dead.iter().for_each(|device| s.set_dead(*device, true));
        // An append finds out that they are gone.
        s.write(8000, 8);
        s.rest();
        assert!(s.status().volumes[0].losses > 0);
        for most in [1, 1000] {
            let ranges = lost(&s, most);
            assert_eq!(sectors(&ranges), expected);
            assert_eq!(ranges.iter().map(|r| r.end - r.start).sum::<u64>(), expected.len() as u64, "named twice: {ranges:?}");
        }
        // Those fail, and no others.
        for sector in sectors(&written) {
            s.world.errors_allowed = expected.contains(&sector);
            let read = s.world.read(0, sector, 1);
            assert_eq!(s.answer_to(read), !expected.contains(&sector), "sector {sector}");
        }
        s.world.errors_allowed = false;
        for (sector, count) in [(64_000, 8), (128_000, 16), (8000, 8)] {
            s.read(sector, count);
        }
        // Written anew it is lost no more.
        for r in &written {
            s.write(r.start, r.end - r.start);
        }
        assert!(lost(&s, 1000).is_empty());
        s.read_all();
    }
}
