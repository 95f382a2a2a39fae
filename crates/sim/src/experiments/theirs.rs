//! Simple models of the published caches, to see whether the models of the hardware are fair: behind the same clients, server and array they
//! must land near what was published of them.
//!
//! They know no data and no crashes, and nothing of their insides is published: each has one or two times that were set so that a
//! published figure comes out, and the other figures are then its own. Destage is left out where the runs that were published fit into the cache.

use super::array::{Array, ArrayParams};
use super::pair::Pair;
use crate::models::ssd::SsdParams;
use crate::models::{Access, Kind, MICROSECOND, SECOND, TimingModel};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// Which cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Published {
    /// Fluid Cache, write-back: every write goes to both SSDs in pages of 64 KiB, one commit after the other.
    /// 97 us for a commit give 6.4 times the bare disks' random writes; the rate of streams follows.
    FluidWriteBack,
    /// Fluid Cache, write-through: every write goes to the disks and, in order, to one of the SSDs.
    FluidWriteThrough,
    /// NXD: requests of 1 MiB and more go past the cache; smaller ones are served by the mirrored SSDs, one commit or
    /// lookup after the other, in the times given, in nanoseconds.
    Nxd {
        /// Of a write.
        commit_ns: u64,
        /// Of a read.
        lookup_ns: u64,
    },
}

const PAGE: u64 = 64 << 10;
const FLUID_COMMIT_NS: u64 = 97 * MICROSECOND;
const NXD_BYPASS: u64 = 1 << 20;

/// A published cache before an array.
pub struct Theirs {
    kind: Published,
    array: Array,
    pair: Pair,
    /// What was to be read later is in the cache.
    warm: bool,
    write_rate: u64,
    turn: u64,
    /// Parts of a request that are still to end.
    left: BTreeMap<u64, u32>,
    own: BinaryHeap<Reverse<(u64, u64)>>,
    scratch: Vec<u64>,
}

impl Theirs {
    /// A cache that holds what will be read, or, if not `warm`, nothing.
    #[must_use]
    pub fn new(kind: Published, array: &ArrayParams, ssd: &SsdParams, warm: bool) -> Self {
        Self {
            kind,
            array: Array::new(array),
            pair: Pair::new(ssd),
            warm,
            write_rate: ssd.write.bytes_per_s,
            turn: 0,
            left: BTreeMap::new(),
            own: BinaryHeap::new(),
            scratch: Vec::new(),
        }
    }

    /// Work that is done one after the other.
    fn in_turn(&mut self, now: u64, id: u64, ns: u64) {
        self.turn = self.turn.max(now) + ns;
        self.own.push(Reverse((self.turn, id)));
    }

    fn part_ended(&mut self, id: u64, done: &mut Vec<u64>) {
        let Some(left) = self.left.get_mut(&id) else { return };
        *left -= 1;
        if *left == 0 {
            self.left.remove(&id);
            done.push(id);
        }
    }
}

impl TimingModel for Theirs {
    fn submit(&mut self, now: u64, id: u64, op: Access) {
        let copy = (u128::from(op.len) * u128::from(SECOND) / u128::from(self.write_rate)) as u64;
        let parts = match (self.kind, op.kind) {
            (_, Kind::Flush | Kind::Discard | Kind::WriteZeroes) => {
                self.own.push(Reverse((now, id)));
                1
            }
            (Published::Nxd { .. }, _) if op.len >= NXD_BYPASS => {
                self.array.submit(now, id, op);
                1
            }
            (Published::Nxd { lookup_ns, .. }, Kind::Read) if self.warm => {
                self.in_turn(now, id, lookup_ns);
                self.pair.submit(now, id, op);
                2
            }
            (Published::Nxd { commit_ns, .. }, Kind::Write | Kind::WriteThrough | Kind::WriteDurable) => {
                self.in_turn(now, id, commit_ns);
                self.pair.submit(now, id, op);
                2
            }
            (_, Kind::Read) if self.warm => {
                self.pair.submit(now, id, op);
                1
            }
            (_, Kind::Read) => {
                self.array.submit(now, id, op);
                1
            }
            (Published::FluidWriteThrough, Kind::Write | Kind::WriteThrough | Kind::WriteDurable) => {
                self.in_turn(now, id, copy);
                self.array.submit(now, id, op);
                2
            }
            (_, Kind::Write | Kind::WriteThrough | Kind::WriteDurable) => {
                self.in_turn(now, id, op.len.div_ceil(PAGE) * FLUID_COMMIT_NS + copy);
                1
            }
        };
        self.left.insert(id, parts);
    }

    fn next_completion(&self) -> Option<u64> {
        let own = self.own.peek().map(|Reverse((at, _))| *at);
        [own, self.array.next_completion(), self.pair.next_completion()].into_iter().flatten().min()
    }

    fn advance(&mut self, now: u64, done: &mut Vec<u64>) {
        let mut ended = std::mem::take(&mut self.scratch);
        self.array.advance(now, &mut ended);
        self.pair.advance(now, &mut ended);
        while let Some(Reverse((_, id))) = self.own.peek().copied().filter(|Reverse((at, _))| *at <= now) {
            self.own.pop();
            ended.push(id);
        }
        for id in ended.drain(..) {
            self.part_ended(id, done);
        }
        self.scratch = ended;
    }
}
