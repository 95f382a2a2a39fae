//! How many pieces the maps may hold, so that a checkpoint has room for all of them.
//!
//! Of an image's pages all but the last of each volume are full. But it is made while everything goes on: what is named behind the
//! walk and goes, and comes again before it, is in it twice, so that some room is left for that. Where it did not do, more is
//! left from then on, for as long as the engine lives. Clean pieces can be let go at any time; what is dirty, or stays for good,
//! has only the half that is there with fewer cache devices too.

use headpond_format::Page;

/// What checkpoint areas have room for, in parts of all that they could hold.
const PARTS: u64 = 16;
/// As many pieces as the smallest areas have room for.
const LEAST: u64 = 1024;

/// The checkpoint areas of a pool, and what is in an image beside pieces.
#[derive(Clone, Copy, Debug)]
pub struct Areas {
    /// Pages that an image may have, each of them on two cache devices if there are two.
    pub pages: u64,
    /// Segments, which are in a table of their own.
    pub segments: u64,
    /// Volumes, each of which ends with a page that is not full.
    pub volumes: u64,
    /// Images that did not fit, in the life of the engine.
    pub overflows: u64,
}

/// Pieces for which there is room also where one of three cache devices leaves, or two of four: half of all.
#[must_use]
pub fn sure(areas: &Areas) -> u64 {
    (areas.pages.saturating_sub(1) * Page::PIECES as u64 / 2).max(LEAST)
}

/// The most pieces that the maps may hold, clean ones counted.
#[must_use]
pub fn most(areas: &Areas) -> u64 {
    let table = areas.segments.div_ceil(Page::SEGMENTS as u64);
    let full = areas.pages.saturating_sub(1 + table + areas.volumes) * Page::PIECES as u64;
    let parts = (PARTS - 1).saturating_sub(areas.overflows);
    (full * parts / PARTS).max(sure(areas))
}

#[cfg(test)]
mod tests {
    use super::*;
    use headpond_format::{Layout, PAGE_BYTES};

    fn areas(bytes: u64) -> (Areas, Layout) {
        let layout = Layout::plan(bytes, 4 << 20, 16).unwrap();
        // Two cache devices, each with a copy of every page.
        let pages = layout.checkpoint_bytes / PAGE_BYTES as u64;
        (Areas { pages, segments: 2 * u64::from(layout.slots()), volumes: 1, overflows: 0 }, layout)
    }

    #[test]
    fn clean_blocks_may_take_nine_tenths_of_two_cache_devices() {
        for bytes in [512 << 20, 8 << 30, 1 << 40] {
            let blocks = 2 * bytes / 4096;
            let most = most(&areas(bytes).0);
            assert!(most * 10 >= blocks * 9 && most < blocks, "{most} of {blocks}");
        }
    }

    #[test]
    fn an_image_of_the_most_pieces_has_room_for_more() {
        for bytes in [64 << 20, 512 << 20, 8 << 30, 1 << 40] {
            let (areas, _) = areas(bytes);
            let pages =
                most(&areas).div_ceil(Page::PIECES as u64) + areas.segments.div_ceil(Page::SEGMENTS as u64) + areas.volumes;
            assert!(pages < areas.pages, "{pages} of {}", areas.pages);
        }
    }

    #[test]
    fn each_image_that_did_not_fit_makes_the_next_smaller_down_to_what_is_sure() {
        let (areas, _) = areas(8 << 30);
        let after = |overflows| most(&Areas { overflows, ..areas });
        assert!((0..7).all(|n| after(n + 1) < after(n)));
        assert_eq!([after(8), after(100)], [sure(&areas); 2]);
    }

    #[test]
    fn with_few_pages_the_half_remains() {
        let few = Areas { pages: 5, segments: 20_000, volumes: 4, overflows: 0 };
        assert_eq!(most(&few), sure(&few));
    }
}
