//! Headpond's own: the engine's policy modules (`policy/evict.rs`, `policy/ghost.rs`) over segments that hold nothing but numbers.
//!
//! A cache has 64 segments, or as many as it has blocks. What is written over stays in its place here; in the engine it moves to
//! the log of dirty data, and comes back to probation when it is clean.

use super::{Policy, check_hits};
use headpond_engine::policy::evict::{LOOKS, Queue, gives_way, is_kept, stays};
use headpond_engine::policy::ghost::Ghost;
use std::collections::{HashMap, VecDeque};

const SEGMENTS: usize = 64;
const QUEUES: [Queue; 2] = [Queue::Probation, Queue::Main];

/// A block's segment, and how often it was asked for since it came there, up to two; a round in the main queue takes off one.
struct Place {
    segment: usize,
    asked: u8,
}

pub struct Headpond {
    capacity: usize,
    /// Blocks in a segment.
    size: usize,
    places: HashMap<u64, Place>,
    /// Blocks of each segment, as they came.
    segments: HashMap<usize, Vec<u64>>,
    sealed: [VecDeque<usize>; 2],
    open: [Option<usize>; 2],
    opened: usize,
    ghost: Ghost,
}

impl Headpond {
    pub fn new(capacity: usize) -> Self {
        let mut ghost = Ghost::default();
        ghost.fit(capacity as u64);
        Self {
            capacity,
            size: (capacity / SEGMENTS).max(1),
            places: HashMap::new(),
            segments: HashMap::new(),
            sealed: [VecDeque::new(), VecDeque::new()],
            open: [None, None],
            opened: 0,
            ghost,
        }
    }

    /// The segment of a queue that has room for a block; evicts for one, of which a part may come to the same queue.
    fn room_in(&mut self, queue: Queue) -> usize {
        loop {
            match self.open[queue as usize] {
                Some(n) if self.segments[&n].len() < self.size => return n,
                Some(full) => {
                    self.sealed[queue as usize].push_back(full);
                    self.open[queue as usize] = None;
                }
                None if (self.segments.len() + 1) * self.size <= self.capacity => {
                    self.opened += 1;
                    self.open[queue as usize] = Some(self.opened);
                    self.segments.insert(self.opened, Vec::new());
                }
                None => {
                    if !self.evict() {
                        // A cache of so few segments has all that it holds in the other queue's open one.
                        let others = QUEUES.iter().find_map(|q| self.open[*q as usize].take());
                        others.into_iter().for_each(|other| self.drop_segment(other));
                    }
                }
            }
        }
    }

    fn put(&mut self, block: u64, queue: Queue, asked: u8) {
        let segment = self.room_in(queue);
        self.segments.entry(segment).or_default().push(block);
        self.places.insert(block, Place { segment, asked });
    }

    /// What of a segment is kept when it leaves a queue.
    fn kept(&self, segment: usize, queue: Queue) -> Vec<u64> {
        let is_kept = |b: &u64| self.places.get(b).is_some_and(|p| p.segment == segment && is_kept(queue, p.asked));
        self.segments[&segment].iter().copied().filter(is_kept).collect()
    }

    fn evict(&mut self) -> bool {
        let Some(queue) = gives_way(self.sealed[0].len(), self.sealed[1].len()) else { return false };
        let looks = if queue == Queue::Main { LOOKS.min(self.sealed[1].len()) } else { 0 };
        let mut coolest = None;
        for _ in 0..looks {
            let Some(segment) = self.sealed[1].pop_front() else { break };
            let hot = self.kept(segment, Queue::Main);
            if !stays(hot.len() as u32, self.size as u32) {
                self.let_go(segment, Queue::Main);
                return true;
            }
            for block in &hot {
                self.places.entry(*block).and_modify(|p| p.asked -= 1);
            }
            self.sealed[1].push_back(segment);
            if coolest.is_none_or(|(least, _)| hot.len() < least) {
                coolest = Some((hot.len(), segment));
            }
        }
        match (coolest, queue) {
            (Some((_, segment)), _) => {
                // Most of it would have to be written again: all of it goes.
                self.sealed[1].retain(|n| *n != segment);
                self.drop_segment(segment);
            }
            (None, queue) => match self.sealed[queue as usize].pop_front() {
                Some(segment) => self.let_go(segment, queue),
                None => return false,
            },
        }
        true
    }

    /// Lets go of a segment; what is kept of it goes to the main queue.
    fn let_go(&mut self, segment: usize, queue: Queue) {
        let kept = self.kept(segment, queue);
        let kept: Vec<_> = kept.into_iter().filter_map(|block| Some((block, self.places.remove(&block)?.asked))).collect();
        self.drop_segment(segment);
        for (block, asked) in kept {
            self.put(block, Queue::Main, if queue == Queue::Main { asked - 1 } else { 0 });
        }
    }

    fn drop_segment(&mut self, segment: usize) {
        for block in self.segments.remove(&segment).unwrap_or_default() {
            if self.places.get(&block).is_some_and(|p| p.segment == segment) {
                self.places.remove(&block);
                self.ghost.remember(0, block);
            }
        }
    }
}

impl Policy for Headpond {
    fn access(&mut self, block: u64) -> bool {
        if let Some(place) = self.places.get_mut(&block) {
            place.asked = (place.asked + 1).min(2);
            return true;
        }
        let queue = if self.ghost.take(0, block) { Queue::Main } else { Queue::Probation };
        self.put(block, queue, 0);
        false
    }
    fn held(&self) -> usize {
        self.places.len()
    }
}

pub fn check() {
    // 1 was asked for twice more on probation and goes to the main queue, where the scan does not reach it; 2 goes, is remembered,
    // and comes back there.
    check_hits(Headpond::new(4), &[1, 1, 1, 2, 3, 4, 5, 6, 1, 2, 7, 8, 9, 1, 2], ".hh.....h....hh");
}
