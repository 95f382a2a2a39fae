//! Processes at work: each has lanes, each lane does one thing after the other as its script says.

use super::front::{Call, Front};
use crate::bench::measure::{Reached, Series};
use crate::models::SECOND;
use crate::target::Target;
use crate::world::Violation;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// The next thing that a lane does.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// Time that its program takes before.
    pub think_ns: u64,
    /// What it asks.
    pub call: Call,
    /// The operation that began with an earlier turn, or this one, ends with the answer and moved so many bytes.
    pub ends: Option<u64>,
}

/// What a process does.
pub trait Script {
    /// The next turn of a lane; none: it has done its work.
    fn next(&mut self, lane: usize) -> Option<Turn>;
}

/// A process of a client.
pub struct Process {
    /// What it is measured with.
    pub group: usize,
    /// The client whose link it uses.
    pub client: usize,
    /// How many of its requests may be under way.
    pub lanes: usize,
    /// What it does.
    pub script: Box<dyn Script>,
}

struct Lane {
    process: usize,
    number: usize,
    begun: u64,
    next: Option<Turn>,
}

/// Processes on a server.
pub struct Driver<T> {
    /// The server.
    pub front: Front<T>,
    processes: Vec<Process>,
    lanes: Vec<Lane>,
    under: BTreeMap<u64, usize>,
    thinking: BinaryHeap<Reverse<(u64, usize)>>,
    groups: usize,
    /// Groups that ask no more.
    stopped: Vec<bool>,
    series: Vec<Series>,
    window: u64,
}

impl<T: Target> Driver<T> {
    /// The processes begin.
    pub fn begin(front: Front<T>, processes: Vec<Process>) -> Self {
        let groups = processes.iter().map(|p| p.group + 1).max().unwrap_or(0);
        let now = front.now();
        let mut driver = Self {
            front,
            processes: Vec::new(),
            lanes: Vec::new(),
            under: BTreeMap::new(),
            thinking: BinaryHeap::new(),
            groups,
            stopped: vec![false; groups],
            series: vec![Series::default(); groups],
            window: now,
        };
        driver.join(processes);
        driver
    }

    /// More processes begin.
    pub fn join(&mut self, processes: Vec<Process>) {
        for process in processes {
            let (n, lanes) = (self.processes.len(), process.lanes);
            self.groups = self.groups.max(process.group + 1);
            self.stopped.resize(self.groups, false);
            self.series.resize(self.groups, Series::default());
            self.processes.push(process);
            for number in 0..lanes {
                let now = self.front.now();
                self.lanes.push(Lane { process: n, number, begun: now, next: None });
                self.turn(self.lanes.len() - 1, true);
            }
        }
    }

    /// A group asks no more once what it has under way has ended.
    pub fn stop(&mut self, group: usize) {
        self.stopped[group] = true;
    }

    /// Whether every script has come to its end.
    #[must_use]
    pub fn ended(&self) -> bool {
        self.under.is_empty() && self.thinking.is_empty()
    }

    fn turn(&mut self, lane: usize, begins: bool) {
        let process = &mut self.processes[self.lanes[lane].process];
        if begins && self.stopped[process.group] {
            return;
        }
        let Some(turn) = process.script.next(self.lanes[lane].number) else { return };
        let now = self.front.now();
        if begins {
            self.lanes[lane].begun = now;
        }
        self.lanes[lane].next = Some(turn);
        if turn.think_ns == 0 {
            self.ask(lane);
        } else {
            self.thinking.push(Reverse((now + turn.think_ns, lane)));
        }
    }

    fn ask(&mut self, lane: usize) {
        let Some(turn) = self.lanes[lane].next else { return };
        let id = self.front.send(self.processes[self.lanes[lane].process].client, turn.call);
        self.under.insert(id, lane);
    }

    /// Lets the processes work for so many nanoseconds, or until all have ended; what each group reached in that time.
    ///
    /// # Errors
    /// Something happened that must not.
    pub fn run(&mut self, ns: u64) -> Result<Vec<Reached>, Violation> {
        self.window = self.front.now();
        self.series = vec![Series::default(); self.groups];
        let end = self.window + ns;
        while self.front.now() < end && !self.ended() {
            let next = self.thinking.peek().map_or(u64::MAX, |Reverse((at, _))| *at);
            self.front.step(next.min(end))?;
            let now = self.front.now();
            while let Some(Reverse((_, lane))) = self.thinking.peek().copied().filter(|Reverse((at, _))| *at <= now) {
                self.thinking.pop();
                self.ask(lane);
            }
            for id in self.front.returned() {
                let Some(lane) = self.under.remove(&id) else { continue };
                let ends = self.lanes[lane].next.take().and_then(|t| t.ends);
                if let Some(bytes) = ends {
                    let group = self.processes[self.lanes[lane].process].group;
                    let began = self.lanes[lane].begun;
                    self.series[group].note(now - self.window, now - began, bytes, false);
                }
                self.turn(lane, ends.is_some());
            }
        }
        let took = (self.front.now() - self.window).max(1);
        Ok(std::mem::take(&mut self.series).into_iter().map(|s| s.reached(took)).collect())
    }

    /// Lets so many seconds pass in which nobody asks for anything.
    ///
    /// # Errors
    /// Something happened that must not.
    pub fn idle(&mut self, seconds: u64) -> Result<(), Violation> {
        let end = self.front.now() + seconds * SECOND;
        while self.front.now() < end {
            self.front.step(end)?;
        }
        Ok(())
    }

    /// As [`Driver::run`], in whole seconds.
    ///
    /// # Errors
    /// Something happened that must not.
    pub fn seconds(&mut self, seconds: u64) -> Result<Vec<Reached>, Violation> {
        self.run(seconds * SECOND)
    }
}
