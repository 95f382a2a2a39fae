//! Two SSDs without a cache before them: what they deliver by themselves.

use crate::models::ssd::SsdParams;
use crate::models::{Access, Kind, Ssd, TimingModel};
use std::collections::BTreeMap;

/// Reads go to one of the two in turn, all else to both.
pub struct Pair {
    ssds: [Ssd; 2],
    turn: usize,
    left: BTreeMap<u64, u32>,
    scratch: Vec<u64>,
}

impl Pair {
    /// Two equal SSDs at rest.
    #[must_use]
    pub fn new(params: &SsdParams) -> Self {
        Self { ssds: [Ssd::new(params), Ssd::new(params)], turn: 0, left: BTreeMap::new(), scratch: Vec::new() }
    }
}

impl TimingModel for Pair {
    fn submit(&mut self, now: u64, id: u64, op: Access) {
        if op.kind == Kind::Read {
            self.turn = 1 - self.turn;
            self.left.insert(id, 1);
            self.ssds[self.turn].submit(now, id, op);
        } else {
            self.left.insert(id, 2);
            self.ssds.iter_mut().for_each(|s| s.submit(now, id, op));
        }
    }

    fn next_completion(&self) -> Option<u64> {
        self.ssds.iter().filter_map(Ssd::next_completion).min()
    }

    fn advance(&mut self, now: u64, done: &mut Vec<u64>) {
        for ssd in &mut self.ssds {
            ssd.advance(now, &mut self.scratch);
        }
        for id in self.scratch.drain(..) {
            let Some(left) = self.left.get_mut(&id) else { continue };
            *left -= 1;
            if *left == 0 {
                self.left.remove(&id);
                done.push(id);
            }
        }
    }
}
