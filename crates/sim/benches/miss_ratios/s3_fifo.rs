//! S3-FIFO, from J. Yang et al., "FIFO Queues are All You Need for Cache Eviction", SOSP 2023, algorithm 1.
//!
//! The small queue has a tenth of the cache; the ghost queue remembers as many blocks as the main queue holds; counters
//! end at 3; a block goes from small to main when its counter is above 1, and its counter is cleared on the way.
//! Later versions of the authors' own code (libCacheSim) let blocks into main while the cache fills; the paper does not.

use super::{Policy, check_hits};
use crate::queue::Queue;
use std::collections::HashMap;

pub struct S3Fifo {
    capacity: usize,
    small_capacity: usize,
    small: Queue,
    main: Queue,
    ghost: Queue,
    /// Hits since the block came into its queue, of the blocks in small and main.
    freq: HashMap<u64, u8>,
}

impl S3Fifo {
    pub fn new(capacity: usize) -> Self {
        let small_capacity = (capacity / 10).max(1);
        Self { capacity, small_capacity, small: Queue::new(), main: Queue::new(), ghost: Queue::new(), freq: HashMap::new() }
    }
    fn main_capacity(&self) -> usize {
        self.capacity - self.small_capacity
    }
    fn evict(&mut self) {
        if self.small.len() >= self.small_capacity { self.evict_small() } else { self.evict_main() }
    }
    fn evict_small(&mut self) {
        while let Some(block) = self.small.pop() {
            if self.freq[&block] > 1 {
                self.freq.insert(block, 0);
                self.main.push(block);
                if self.main.len() > self.main_capacity() {
                    self.evict_main();
                }
                continue;
            }
            self.freq.remove(&block);
            self.ghost.push(block);
            if self.ghost.len() > self.main_capacity() {
                self.ghost.pop();
            }
            return;
        }
    }
    fn evict_main(&mut self) {
        while let Some(block) = self.main.pop() {
            match self.freq[&block] {
                0 => {
                    self.freq.remove(&block);
                    return;
                }
                freq => {
                    self.freq.insert(block, freq - 1);
                    self.main.push(block);
                }
            }
        }
    }
}

impl Policy for S3Fifo {
    fn access(&mut self, block: u64) -> bool {
        if let Some(freq) = self.freq.get_mut(&block) {
            *freq = (*freq + 1).min(3);
            return true;
        }
        while self.held() >= self.capacity {
            self.evict();
        }
        if self.ghost.remove(block) {
            self.main.push(block);
        } else {
            self.small.push(block);
        }
        self.freq.insert(block, 0);
        false
    }
    fn held(&self) -> usize {
        self.small.len() + self.main.len()
    }
}

pub fn check() {
    // Small has one place and main two. 1 has two hits and goes to main, 2 has one and goes to the ghosts; it comes
    // back into main, where the scan 5, 6 does not reach it.
    check_hits(S3Fifo::new(3), &[1, 1, 1, 2, 2, 3, 4, 2, 5, 6, 1, 2, 3], ".hh.h.....hh.");
}
