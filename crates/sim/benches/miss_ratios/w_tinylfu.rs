//! W-TinyLFU, from G. Einziger, R. Friedman and B. Manes, "TinyLFU: A Highly Efficient Cache Admission Policy", ACM
//! Transactions on Storage 13(4), 2017.
//!
//! An LRU window of 1 % before a segmented LRU whose protected segment has 80 % of it. A block that leaves the window
//! is admitted if it was accessed more often than the block it would evict. The doorkeeper, which saves
//! memory, is left out.

use super::{Policy, check_hits};
use crate::queue::Queue;

/// How often each block was accessed of late: a count-min sketch of four rows with counters of four bits.
struct Sketch {
    rows: [Vec<u8>; 4],
    accesses: usize,
    sample: usize,
}

impl Sketch {
    fn new(capacity: usize) -> Self {
        // The paper leaves the width open; 16 counters for each cached block, over the rows, is what Caffeine has.
        let width = 4 * capacity.next_power_of_two();
        Self { rows: std::array::from_fn(|_| vec![0; width]), accesses: 0, sample: 10 * capacity }
    }
    fn cell(&self, row: usize, block: u64) -> usize {
        // SplitMix64, each row with a seed of its own.
        let mut z = block.wrapping_add((row as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) as usize & (self.rows[row].len() - 1)
    }
    fn count(&mut self, block: u64) {
        for row in 0..4 {
            let cell = self.cell(row, block);
            self.rows[row][cell] = (self.rows[row][cell] + 1).min(15);
        }
        self.accesses += 1;
        if self.accesses == self.sample {
            self.rows.iter_mut().flatten().for_each(|counter| *counter /= 2);
            self.accesses /= 2;
        }
    }
    fn estimate(&self, block: u64) -> u8 {
        (0..4).map(|row| self.rows[row][self.cell(row, block)]).min().unwrap_or(0)
    }
}

pub struct WTinyLfu {
    window_capacity: usize,
    main_capacity: usize,
    protected_capacity: usize,
    sketch: Sketch,
    window: Queue,
    probation: Queue,
    protected: Queue,
}

impl WTinyLfu {
    pub fn new(capacity: usize) -> Self {
        let window_capacity = (capacity / 100).max(1);
        let main_capacity = capacity - window_capacity;
        Self {
            window_capacity,
            main_capacity,
            protected_capacity: main_capacity * 80 / 100,
            sketch: Sketch::new(capacity),
            window: Queue::new(),
            probation: Queue::new(),
            protected: Queue::new(),
        }
    }
    /// Lets a block from the window into the main cache, if there is room or its victim is worth less.
    fn admit(&mut self, candidate: u64) {
        if self.probation.len() + self.protected.len() >= self.main_capacity {
            let Some(victim) = self.probation.oldest().or(self.protected.oldest()) else { return };
            if self.sketch.estimate(candidate) <= self.sketch.estimate(victim) {
                return;
            }
            if !self.probation.remove(victim) {
                self.protected.remove(victim);
            }
        }
        self.probation.push(candidate);
    }
}

impl Policy for WTinyLfu {
    fn access(&mut self, block: u64) -> bool {
        self.sketch.count(block);
        if self.window.touch(block) || self.protected.touch(block) {
            return true;
        }
        if self.probation.remove(block) {
            self.protected.push(block);
            if self.protected.len() > self.protected_capacity {
                self.probation.push(self.protected.pop().expect("it holds the block just pushed"));
            }
            return true;
        }
        self.window.push(block);
        if self.window.len() > self.window_capacity {
            let candidate = self.window.pop().expect("it is above its capacity");
            self.admit(candidate);
        }
        false
    }
    fn held(&self) -> usize {
        self.window.len() + self.probation.len() + self.protected.len()
    }
}

pub fn check() {
    // One place in the window, two in main. 1 and 2 get into the empty main; 3, 4, 5 come once each and are not
    // admitted. 6 comes four times, more often than 2, the block on probation: when 7 pushes it out, it takes 2's place.
    check_hits(WTinyLfu::new(3), &[1, 1, 2, 2, 3, 1, 4, 5, 2, 1, 6, 6, 6, 6, 7, 6, 1, 2], ".h.h.h..hh.hhh.hh.");

    let mut sketch = Sketch::new(4);
    (0..39).for_each(|_| sketch.count(7));
    assert_eq!(sketch.estimate(7), 15, "four bits");
    sketch.count(7);
    assert_eq!((sketch.estimate(7), sketch.accesses), (7, 20), "halved at ten times the capacity");
}
