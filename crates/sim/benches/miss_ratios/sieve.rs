//! SIEVE, from Y. Zhang et al., "SIEVE is Simpler than LRU: an Efficient Turn-Key Eviction Algorithm for Web Caches",
//! NSDI 2024, algorithm 1.

use super::{Policy, check_hits};
use crate::queue::Queue;
use std::collections::HashMap;

pub struct Sieve {
    capacity: usize,
    blocks: Queue,
    visited: HashMap<u64, bool>,
    /// Where the search for a victim goes on, from old to new; at the oldest block if nowhere.
    hand: Option<u64>,
}

impl Sieve {
    pub fn new(capacity: usize) -> Self {
        Self { capacity, blocks: Queue::new(), visited: HashMap::new(), hand: None }
    }
    fn evict(&mut self) {
        loop {
            let block = self.hand.or(self.blocks.oldest()).expect("a full cache has an oldest block");
            self.hand = self.blocks.newer(block);
            if self.visited.insert(block, false) == Some(false) {
                self.blocks.remove(block);
                self.visited.remove(&block);
                return;
            }
        }
    }
}

impl Policy for Sieve {
    fn access(&mut self, block: u64) -> bool {
        if let Some(visited) = self.visited.get_mut(&block) {
            *visited = true;
            return true;
        }
        if self.blocks.len() == self.capacity {
            self.evict();
        }
        self.blocks.push(block);
        self.visited.insert(block, false);
        false
    }
    fn held(&self) -> usize {
        self.blocks.len()
    }
}

pub fn check() {
    // 4 evicts 2, for 1 was visited, and the hand goes on to 3: 5 evicts it. The second 3 passes the visited 4 and evicts
    // 5, the newest. 6 starts again at 1, visited since the hand was there, and evicts 4; FIFO with a second chance,
    // which has asked both, would evict 1.
    check_hits(Sieve::new(3), &[1, 2, 3, 1, 4, 5, 1, 4, 3, 6, 1, 4], "...h..hh..h.");
}
