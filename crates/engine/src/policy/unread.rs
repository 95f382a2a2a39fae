//! What of a checkpoint's image is not read yet, by address: which page is to be read for a request, and what is known when it is.
//!
//! The pages of an image are in order of address, and where one begins only itself tells. So a request's page is searched for: a page
//! of a gap is read, and parts it. Where its place is guessed by the address, as in a telephone book, a dozen pages lead to any
//! address of a large image; that no guess leaves more than 7 of 8 pages bounds them where addresses are spread unevenly. No page is
//! read in vain: each has to be read once.

use alloc::vec::Vec;
use core::ops::Range;

/// Where in a pool: a volume, and a block of it.
pub type Key = (u16, u64);

/// Before it everything is.
const END: Key = (u16::MAX, u64::MAX);
/// At least this part of a gap's pages is on the smaller side of the page that parts it.
const LEAST_PART: u32 = 8;

fn next((volume, block): Key) -> Key {
    (volume, block + 1)
}

/// Addresses of which nothing is known, and the pages that tell.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Gap {
    keys: Range<Key>,
    pages: Range<u32>,
}

/// What is not read yet.
#[derive(Clone, Debug)]
pub struct Unread {
    /// In order of address, and of pages.
    gaps: Vec<Gap>,
    /// Where the last volume ends.
    end: Key,
}

impl Unread {
    /// All of an image whose pages with pieces are these; no volume has an address from `end` on.
    #[must_use]
    pub fn new(pages: Range<u32>, end: Key) -> Self {
        let all = Gap { keys: (0, 0)..END, pages };
        Self { gaps: Vec::from_iter(Some(all).filter(|gap| !gap.pages.is_empty())), end }
    }

    /// Whether all is read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.gaps.is_empty()
    }

    /// The pages that are not read, in order.
    pub fn pages(&self) -> impl Iterator<Item = u32> + '_ {
        self.gaps.iter().flat_map(|gap| gap.pages.clone())
    }

    /// Whether all there is of an address is known.
    #[must_use]
    pub fn is_known(&self, key: Key) -> bool {
        let at = self.gaps.partition_point(|gap| gap.keys.end <= key);
        self.gaps.get(at).is_none_or(|gap| key < gap.keys.start)
    }

    /// A page to read on the way to knowing all of a range of addresses; `None` if it is known.
    #[must_use]
    pub fn page_for(&self, keys: &Range<Key>) -> Option<u32> {
        let at = self.gaps.partition_point(|gap| gap.keys.end <= keys.start);
        let gap = self.gaps.get(at).filter(|gap| gap.keys.start < keys.end)?;
        let (key, pages) = (keys.start.max(gap.keys.start), gap.pages.end - gap.pages.start);
        let part = (pages / LEAST_PART).max(1);
        let (first, end) = (gap.keys.start, gap.keys.end.min(self.end));
        let guess = match first.0 == end.0 && key.0 == end.0 {
            // Its place among the blocks of the gap, as a part of the pages.
            true => {
                let (before, blocks) = (u128::from(key.1 - first.1), u128::from(end.1.saturating_sub(first.1).max(1)));
                (before * u128::from(pages) / blocks).min(u128::from(pages)) as u32
            }
            false => pages / 2,
        };
        Some(gap.pages.start + guess.clamp(part.min(pages - 1), pages - part))
    }

    /// A page was read whose pieces are of the addresses from `first` to `last`, or nothing is known of whose they are. It is the last of
    /// its volume if `ends_volume`; else the next page may have more of `last`, as the one before may have of `first`. What is known from
    /// now on; `None` if a page of an image cannot be there.
    pub fn read(&mut self, page: u32, first: Key, last: Key, ends_volume: bool) -> Option<Range<Key>> {
        let at = self.gaps.partition_point(|gap| gap.pages.end <= page);
        let gap = self.gaps.get(at).filter(|gap| gap.pages.contains(&page))?.clone();
        let has_left = gap.pages.start < page;
        let has_right = page + 1 < gap.pages.end;
        let from = if has_left { next(first) } else { gap.keys.start };
        let to = match (has_right, ends_volume) {
            (true, true) => next(last),
            (true, false) => last,
            (false, _) => gap.keys.end,
        };
        // One that is full has more than one block in it.
        let in_order = gap.keys.start <= first && first <= last && last < gap.keys.end && from <= to;
        if !in_order {
            return None;
        }
        let left = Gap { keys: gap.keys.start..from, pages: gap.pages.start..page };
        let right = Gap { keys: to..gap.keys.end, pages: page + 1..gap.pages.end };
        self.gaps.splice(at..=at, [left, right].into_iter().filter(|gap| !gap.pages.is_empty()));
        Some(from..to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use alloc::vec;

    /// Pages of an image: the keys of the pieces on each.
    fn image(volumes: &[(u16, &[u64])], on_a_page: usize) -> Vec<Vec<Key>> {
        let mut pages = Vec::new();
        for (volume, blocks) in volumes {
            pages.extend(blocks.chunks(on_a_page).map(|some| some.iter().map(|b| (*volume, *b)).collect::<Vec<_>>()));
        }
        pages
    }

    fn numbers(seed: u64) -> impl FnMut(u64) -> u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        move |below| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        }
    }

    /// Whatever is asked for in whatever order, and however blocks of several pieces straddle pages: a range is known once all its
    /// pieces were read, each address becomes known once, and no page is read twice.
    #[test]
    fn an_address_is_known_once_all_its_pieces_were_read_and_not_before() {
        for seed in 1..400 {
            let mut below = numbers(seed);
            let on_a_page = 9 + below(8) as usize;
            let volumes: Vec<(u16, Vec<u64>)> = (0..1 + below(3) as u16)
                .map(|v| {
                    let (mut at, mut blocks) = (below(50), Vec::new());
                    for _ in 0..below(300) {
                        at += 1 + below(4) * below(20);
                        // As many pieces as a block may have.
                        (0..=below(3) * below(3)).for_each(|_| blocks.push(at));
                    }
                    (v * 3, blocks)
                })
                .collect();
            let of: Vec<(u16, &[u64])> = volumes.iter().map(|(v, b)| (*v, &b[..])).collect();
            let pages = image(&of, on_a_page);
            let mut unread = Unread::new(7..7 + pages.len() as u32, (below(7) as u16, below(3000)));
            let mut left: BTreeMap<Key, u32> = BTreeMap::new();
            pages.iter().flatten().for_each(|key| *left.entry(*key).or_default() += 1);
            let mut known: Vec<Range<Key>> = Vec::new();
            let mut seen = vec![false; pages.len()];
            while !unread.is_empty() {
                let key = (below(8) as u16, below(3000));
                let keys = key..(key.0, key.1 + 1 + below(40));
                let page = match below(3) {
                    0 => unread.pages().next(),
                    _ => unread.page_for(&keys),
                };
                let Some(page) = page else {
                    assert!(left.range(keys).next().is_none(), "seed {seed}");
                    continue;
                };
                let of = &pages[(page - 7) as usize];
                assert!(!core::mem::replace(&mut seen[(page - 7) as usize], true), "seed {seed}: page {page} twice");
                for key in of {
                    let pieces = left.get_mut(key).unwrap();
                    *pieces -= 1;
                    if *pieces == 0 {
                        left.remove(key);
                    }
                }
                let range = unread.read(page, of[0], of[of.len() - 1], of.len() < on_a_page).unwrap();
                assert!(left.range(range.clone()).next().is_none(), "seed {seed}: {range:?} is not known");
                assert!(known.iter().all(|k| range.end <= k.start || k.end <= range.start), "seed {seed}: {range:?} twice");
                assert!(range.is_empty() || unread.is_known(range.start) && unread.page_for(&range).is_none());
                known.push(range);
            }
            assert!(seen.iter().all(|seen| *seen), "seed {seed}");
            known.sort_unstable_by_key(|k| k.start);
            known.retain(|k| !k.is_empty());
            let ends = known.windows(2).all(|w| w[0].end == w[1].start);
            assert!(pages.is_empty() || ends && known[0].start == (0, 0) && known[known.len() - 1].end == END, "seed {seed}");
        }
    }

    #[test]
    fn a_dozen_pages_lead_to_any_address_of_a_tib() {
        let pages = 131_072u64;
        let reads = |key: u64, first_of: &dyn Fn(u64) -> u64| {
            let mut unread = Unread::new(0..pages as u32, (0, first_of(pages)));
            let keys = (0, key)..(0, key + 1);
            let mut reads = 0;
            while let Some(page) = unread.page_for(&keys) {
                let page_from = |page: u64| first_of(page);
                unread.read(page, (0, page_from(page.into())), (0, page_from(u64::from(page) + 1) - 1), false).unwrap();
                reads += 1;
            }
            reads
        };
        let even = |page: u64| page * 8192;
        let most = (0..1000).map(|n| reads(n * 1_073_741, &even)).max().unwrap();
        assert!(most <= 12, "{most}");
        // Nearly all of it in one place.
        let uneven = |page: u64| if page < 100 { page * 1_000_000_000 } else { 100_000_000_000 + page * 2046 };
        let most = (0..1000).map(|n| reads(n * 100_400_000, &uneven)).max().unwrap();
        assert!(most <= 60, "{most}");
    }

    #[test]
    fn a_page_that_cannot_be_where_it_is_changes_nothing() {
        let mut unread = Unread::new(1..4, (0, 1000));
        unread.read(2, (0, 100), (0, 200), false).unwrap();
        let before = unread.gaps.clone();
        assert_eq!(unread.read(1, (0, 10), (0, 101), false), None);
        assert_eq!(unread.read(3, (0, 199), (0, 300), true), None);
        assert_eq!(unread.read(2, (0, 100), (0, 200), false), None);
        assert_eq!(unread.gaps, before);
        assert_eq!(unread.read(1, (0, 10), (0, 100), false), Some((0, 0)..(0, 101)));
    }
}
