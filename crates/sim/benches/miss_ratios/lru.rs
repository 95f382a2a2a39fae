//! LRU: evict the block whose last access is longest ago.

use super::{Policy, check_hits};
use crate::queue::Queue;

pub struct Lru {
    capacity: usize,
    blocks: Queue,
}

impl Lru {
    pub fn new(capacity: usize) -> Self {
        Self { capacity, blocks: Queue::new() }
    }
}

impl Policy for Lru {
    fn access(&mut self, block: u64) -> bool {
        if self.blocks.touch(block) {
            return true;
        }
        if self.blocks.len() == self.capacity {
            self.blocks.pop();
        }
        self.blocks.push(block);
        false
    }
    fn held(&self) -> usize {
        self.blocks.len()
    }
}

pub fn check() {
    // The hit on 1 saves it from 3, which evicts 2.
    check_hits(Lru::new(2), &[1, 2, 1, 3, 1, 2], "..h.h.");
}
