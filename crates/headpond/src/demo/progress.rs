//! A line per step on the terminal: how long it has been, how long it will be, what is done, what came of it.

use std::time::{Duration, Instant};

/// What is to be done, and how far it is.
pub struct Progress {
    begun: Instant,
    /// Names of steps in order, and how long each is thought to take.
    planned: Vec<(String, Duration)>,
    next: usize,
}

impl Progress {
    /// Begins.
    pub fn new(planned: Vec<(String, Duration)>) -> Progress {
        Progress { begun: Instant::now(), planned, next: 0 }
    }

    /// The next step begins.
    pub fn step(&mut self) {
        let left: Duration = self.planned.iter().skip(self.next).map(|(_, time)| *time).sum();
        let name = self.planned.get(self.next).map_or("", |(name, _)| name.as_str());
        eprint!("[{:>3} s, about {:>3} s left]  {name:<44}", self.begun.elapsed().as_secs(), left.as_secs());
        self.next += 1;
    }

    /// More is to be done than was thought: it comes next.
    pub fn insert(&mut self, steps: Vec<(String, Duration)>) {
        self.planned.splice(self.next..self.next, steps);
    }

    /// What came of it.
    pub fn done(&self, what: &str) {
        eprintln!("  {what}");
    }

    /// How long it has been.
    pub fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }
}
