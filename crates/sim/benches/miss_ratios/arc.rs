//! ARC, from N. Megiddo and D. Modha, "ARC: A Self-Tuning, Low Overhead Replacement Cache", FAST 2003, figure 4.
//!
//! Names are the paper's: t1 holds blocks seen once of late, t2 those seen at least twice; b1 and b2 remember what each
//! of them evicted; p is the size that t1 should have.

use super::Policy;
use crate::queue::Queue;

pub struct Arc {
    capacity: usize,
    p: f64,
    t1: Queue,
    t2: Queue,
    b1: Queue,
    b2: Queue,
}

impl Arc {
    pub fn new(capacity: usize) -> Self {
        Self { capacity, p: 0.0, t1: Queue::new(), t2: Queue::new(), b1: Queue::new(), b2: Queue::new() }
    }
    /// The paper's REPLACE: evicts from t1 or t2, as p says, and remembers what.
    fn replace(&mut self, in_b2: bool) {
        let t1 = self.t1.len() as f64;
        if self.t1.len() > 0 && (t1 > self.p || in_b2 && t1 == self.p) {
            self.b1.push(self.t1.pop().expect("t1 is not empty"));
        } else {
            self.b2.push(self.t2.pop().expect("a full cache with nothing to take from t1 has a t2"));
        }
    }
}

impl Policy for Arc {
    fn access(&mut self, block: u64) -> bool {
        let c = self.capacity;
        // Case I: a hit.
        if self.t1.remove(block) {
            self.t2.push(block);
            return true;
        }
        if self.t2.touch(block) {
            return true;
        }
        let (b1, b2) = (self.b1.len() as f64, self.b2.len() as f64);
        if self.b1.contains(block) {
            // Case II: t1 was too small.
            self.p = (self.p + (b2 / b1).max(1.0)).min(c as f64);
            self.replace(false);
            self.b1.remove(block);
            self.t2.push(block);
        } else if self.b2.contains(block) {
            // Case III: t2 was too small.
            self.p = (self.p - (b1 / b2).max(1.0)).max(0.0);
            self.replace(true);
            self.b2.remove(block);
            self.t2.push(block);
        } else {
            // Case IV: never seen, or forgotten.
            let l1 = self.t1.len() + self.b1.len();
            let all = l1 + self.t2.len() + self.b2.len();
            if l1 == c {
                if self.t1.len() < c {
                    self.b1.pop();
                    self.replace(false);
                } else {
                    self.t1.pop();
                }
            } else if all >= c {
                if all == 2 * c {
                    self.b2.pop();
                }
                self.replace(false);
            }
            self.t1.push(block);
        }
        false
    }
    fn held(&self) -> usize {
        self.t1.len() + self.t2.len()
    }
}

pub fn check() {
    // 1 is in t2, so the scan 2, 3, 4 passes through t1 alone. Then 3, remembered in b1, raises p to 1 and evicts 1
    // from t2, for t1 is no longer above its size; 1, found in b2, lowers p to 0 and evicts 4 from t1.
    let mut arc = Arc::new(2);
    for (block, hit, p) in [
        (1, false, 0.0),
        (1, true, 0.0),
        (2, false, 0.0),
        (3, false, 0.0),
        (4, false, 0.0),
        (1, true, 0.0),
        (3, false, 1.0),
        (1, false, 0.0),
        (4, false, 1.0),
    ] {
        assert_eq!((arc.access(block), arc.p), (hit, p), "block {block}");
    }
}
