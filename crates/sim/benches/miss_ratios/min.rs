//! Belady's MIN: the fewest misses that any policy can have, one that refuses to cache a block included.
//!
//! L. Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 5(2), 1966. Not a
//! `Policy`, for it knows the future.

use std::collections::{BinaryHeap, HashMap, HashSet};

/// Which accesses hit.
pub fn hits(accesses: &[u64], capacity: usize) -> Vec<bool> {
    let mut next_use = vec![usize::MAX; accesses.len()];
    let mut seen = HashMap::new();
    for (i, &block) in accesses.iter().enumerate().rev() {
        next_use[i] = seen.insert(block, i).unwrap_or(usize::MAX);
    }
    let mut held = HashSet::new();
    // By next use. An entry of a block that was hit since stays, with a use that has passed: it is below all others,
    // so it is never the one evicted.
    let mut heap = BinaryHeap::new();
    let mut hits = Vec::with_capacity(accesses.len());
    for (&block, &next) in accesses.iter().zip(&next_use) {
        hits.push(held.remove(&block));
        if next == usize::MAX {
            continue;
        }
        held.insert(block);
        heap.push((next, block));
        if held.len() > capacity {
            let (_, victim) = heap.pop().expect("each block held has an entry");
            held.remove(&victim);
        }
    }
    hits
}

pub fn check() {
    // 3 comes later than 1 and 2, so it is not kept.
    let expected = [false, false, false, true, true, false, true];
    assert_eq!(hits(&[1, 2, 3, 1, 2, 3, 2], 2), expected);
}
