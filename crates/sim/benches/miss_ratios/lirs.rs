//! LIRS, from S. Jiang and X. Zhang, "LIRS: An Efficient Low Inter-reference Recency Set Replacement Policy to Improve
//! Buffer Cache Performance", SIGMETRICS 2002.
//!
//! One percent of the cache, at least one block, is for resident HIR blocks; the rest is for LIR blocks. The paper's
//! stack S has no bound of its own; here it remembers at most `GHOSTS` times the capacity of non-resident blocks and
//! forgets the one evicted longest ago. The bound matters, either way: none is best for all
//! traces.

use super::{Policy, check_hits};
use crate::queue::Queue;
use std::collections::HashMap;

const GHOSTS: usize = 2;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Status {
    Lir,
    ResidentHir,
    NonResidentHir,
}

pub struct Lirs {
    capacity: usize,
    hir_capacity: usize,
    lirs: usize,
    /// All blocks that are resident or in the stack.
    status: HashMap<u64, Status>,
    /// The paper's S. Its oldest block is LIR.
    stack: Queue,
    /// The paper's Q: the resident HIR blocks.
    residents: Queue,
    non_residents: Queue,
}

impl Lirs {
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity,
            hir_capacity: (capacity / 100).max(1),
            lirs: 0,
            status: HashMap::new(),
            stack: Queue::new(),
            residents: Queue::new(),
            non_residents: Queue::new(),
        }
    }
    /// Makes an HIR block that is in the stack LIR, and the oldest LIR block HIR in its place.
    fn promote(&mut self, block: u64) {
        self.stack.touch(block);
        self.status.insert(block, Status::Lir);
        self.prune();
        let oldest = self.stack.pop().expect("the promoted block, if no other");
        self.status.insert(oldest, Status::ResidentHir);
        self.residents.push(oldest);
        self.prune();
    }
    /// Forgets the recency of HIR blocks older than every LIR block: were they accessed now, they would stay HIR.
    fn prune(&mut self) {
        while let Some(oldest) = self.stack.oldest() {
            match self.status[&oldest] {
                Status::Lir => return,
                Status::ResidentHir => _ = self.stack.pop(),
                Status::NonResidentHir => self.forget(oldest),
            }
        }
    }
    fn forget(&mut self, non_resident: u64) {
        self.stack.remove(non_resident);
        self.non_residents.remove(non_resident);
        self.status.remove(&non_resident);
    }
    fn evict(&mut self) {
        let victim = self.residents.pop().expect("there is room for a resident HIR block");
        if !self.stack.contains(victim) {
            self.status.remove(&victim);
            return;
        }
        self.status.insert(victim, Status::NonResidentHir);
        self.non_residents.push(victim);
    }
    fn bound(&mut self) {
        while self.non_residents.len() > GHOSTS * self.capacity {
            self.forget(self.non_residents.oldest().expect("there are some"));
        }
    }
}

impl Policy for Lirs {
    fn access(&mut self, block: u64) -> bool {
        match self.status.get(&block).copied() {
            Some(Status::Lir) => {
                self.stack.touch(block);
                self.prune();
                return true;
            }
            Some(Status::ResidentHir) => {
                if self.stack.contains(block) {
                    self.residents.remove(block);
                    self.promote(block);
                } else {
                    self.stack.push(block);
                    self.residents.touch(block);
                }
                return true;
            }
            Some(Status::NonResidentHir) => {
                self.non_residents.remove(block);
                self.evict();
                self.promote(block);
            }
            None if self.lirs < self.capacity - self.hir_capacity => {
                // The first blocks are LIR, until there are as many as there may be.
                self.lirs += 1;
                self.stack.push(block);
                self.status.insert(block, Status::Lir);
            }
            None => {
                if self.residents.len() == self.hir_capacity {
                    self.evict();
                }
                self.stack.push(block);
                self.status.insert(block, Status::ResidentHir);
                self.residents.push(block);
            }
        }
        self.bound();
        false
    }
    fn held(&self) -> usize {
        self.lirs + self.residents.len()
    }
}

pub fn check() {
    // 1 and 2 are LIR, and 3, 4, 5 take turns in the one HIR place. The second 4 is still in the stack, so it becomes
    // LIR, and 1, the oldest LIR block, HIR: out of the stack, as are 3 and 5, now older than all LIR blocks. So the hit
    // on 1 does not make it LIR, and 5 evicts it.
    check_hits(Lirs::new(3), &[1, 2, 3, 4, 5, 2, 4, 2, 4, 1, 5, 1], ".....h.hhh..");
}
