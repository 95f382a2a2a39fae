//! Clients at work on a target: closed loops ask again when answered, bursts come when it is their time.

use super::clients::{Clients, Generator, Pace};
use super::measure::{Reached, Series};
use crate::models::SECOND;
use crate::target::{Answer, Ask, Target};
use crate::world::Violation;
use std::collections::BTreeMap;

/// A request under way.
struct Under {
    group: usize,
    begun: u64,
    bytes: u64,
    /// It is a write that a flush is to follow.
    flush_next: bool,
}

/// How long a phase takes.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// At most, in nanoseconds.
    pub ns: u64,
    /// It ends after a second already if there were this many answers by then: what no disk limits is steady sooner.
    pub answers: usize,
}

/// Several groups of clients on one target.
pub struct Driver {
    generators: Vec<Generator>,
    next_burst: Vec<u64>,
    under: BTreeMap<u64, Under>,
    /// Who asks again when nothing is committed any more, by group.
    held: Vec<usize>,
}

impl Driver {
    /// The clients begin: closed loops ask at once.
    pub fn begin(clients: &[Clients], seed: u64, target: &mut impl Target) -> Self {
        let seed = |n: usize| seed.wrapping_add(n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let generators: Vec<_> = clients.iter().enumerate().map(|(n, c)| Generator::new(c.clone(), seed(n))).collect();
        let mut driver =
            Self { next_burst: vec![target.now(); generators.len()], generators, under: BTreeMap::new(), held: Vec::new() };
        for (group, asking) in clients.iter().enumerate() {
            if let Pace::Closed(depth) = asking.pace {
                (0..depth).for_each(|_| driver.ask(group, target));
            }
        }
        driver
    }

    fn ask(&mut self, group: usize, target: &mut impl Target) {
        let generator = &mut self.generators[group];
        let ask = generator.ask();
        let (bytes, flush_next) = match ask {
            Ask::Write { sectors, .. } => (sectors * 512, generator.clients().flushed),
            Ask::Read { sectors, .. } => (sectors * 512, false),
            Ask::Flush => (0, false),
        };
        let begun = target.now();
        let id = target.send(0, ask);
        self.under.insert(id, Under { group, begun, bytes, flush_next });
    }

    /// Deals with an answer. `asks`: closed loops ask again.
    fn answered(&mut self, answer: Answer, asks: bool, target: &mut impl Target) -> Option<(Under, bool)> {
        let under = self.under.remove(&answer.id)?;
        if under.flush_next && !answer.failed {
            let id = target.send(0, Ask::Flush);
            self.under.insert(id, Under { flush_next: false, ..under });
            return None;
        }
        if asks && matches!(self.generators[under.group].clients().pace, Pace::Closed(_)) {
            self.held.push(under.group);
        }
        if asks && !self.under.values().any(|u| self.generators[u.group].clients().commits) {
            std::mem::take(&mut self.held).into_iter().for_each(|group| self.ask(group, target));
        }
        Some((under, answer.failed))
    }

    fn bursts(&mut self, target: &mut impl Target) -> u64 {
        let mut next = u64::MAX;
        for group in 0..self.generators.len() {
            let Pace::Bursts { requests, every_ns } = self.generators[group].clients().pace else { continue };
            if self.next_burst[group] <= target.now() {
                self.next_burst[group] += every_ns;
                (0..requests).for_each(|_| self.ask(group, target));
            }
            next = next.min(self.next_burst[group]);
        }
        next
    }

    /// Works for a span and returns what each group reached in it.
    ///
    /// # Errors
    /// Something happened that must not.
    pub fn run<T: Target>(&mut self, target: &mut T, span: Span) -> Result<Vec<Reached>, Violation> {
        let begun = target.now();
        let mut series = vec![Series::default(); self.generators.len()];
        let mut answers = 0;
        loop {
            let now = target.now();
            let early = answers >= span.answers && now - begun >= SECOND;
            if now - begun >= span.ns || early {
                return Ok(series.into_iter().map(|s| s.reached(now - begun)).collect());
            }
            let next = self.bursts(target);
            target.step(next.min(begun + span.ns))?;
            for answer in target.answers() {
                let now = target.now();
                if let Some((under, failed)) = self.answered(answer, true, target) {
                    answers += 1;
                    series[under.group].note(now - begun, now - under.begun, under.bytes, failed);
                }
            }
        }
    }

    /// Asks no more, and waits for the answers still to come.
    ///
    /// # Errors
    /// Something happened that must not.
    pub fn end(&mut self, target: &mut impl Target) -> Result<(), Violation> {
        while !self.under.is_empty() {
            target.step(u64::MAX)?;
            for answer in target.answers() {
                self.answered(answer, false, target);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::clients::Pattern;
    use super::*;
    use crate::models::MILLISECOND;

    /// Answers after a millisecond, a flush after fifty; and keeps when what was sent.
    #[derive(Default)]
    struct Fixed {
        now: u64,
        sent: Vec<(u64, Ask)>,
        due: BTreeMap<(u64, u64), u64>,
        ended: Vec<Answer>,
    }

    impl Target for Fixed {
        fn now(&self) -> u64 {
            self.now
        }

        fn send(&mut self, _: u16, ask: Ask) -> u64 {
            let id = self.sent.len() as u64;
            let took = if matches!(ask, Ask::Flush) { 50 * MILLISECOND } else { MILLISECOND };
            self.sent.push((self.now, ask));
            self.due.insert((self.now + took, id), took);
            id
        }

        fn step(&mut self, limit: u64) -> Result<bool, Violation> {
            let next = self.due.first_key_value().map_or(u64::MAX, |(k, _)| k.0);
            self.now = next.min(limit);
            while let Some(e) = self.due.first_entry().filter(|e| e.key().0 <= self.now) {
                let ((_, id), took_ns) = e.remove_entry();
                self.ended.push(Answer { id, took_ns, failed: false });
            }
            Ok(next <= limit)
        }

        fn answers(&mut self) -> Vec<Answer> {
            std::mem::take(&mut self.ended)
        }
    }

    #[test]
    fn nobody_asks_anew_while_something_is_committed() {
        let readers = Clients {
            name: "readers",
            pattern: Pattern::Random,
            sizes: vec![4096],
            skew: 0,
            reads: 100,
            region: 0..1 << 30,
            pace: Pace::Closed(4),
            flushed: false,
            commits: false,
        };
        let pace = Pace::Bursts { requests: 1, every_ns: 200 * MILLISECOND };
        let journal = Clients { name: "journal", reads: 0, pace, flushed: true, commits: true, ..readers.clone() };
        let mut target = Fixed::default();
        let mut driver = Driver::begin(&[readers, journal], 1, &mut target);
        driver.run(&mut target, Span { ns: 1000 * MILLISECOND, answers: usize::MAX }).unwrap();
        let begun: Vec<u64> = target.sent.iter().filter(|(_, a)| matches!(a, Ask::Write { .. })).map(|s| s.0).collect();
        assert_eq!(begun.len(), 5);
        let reads: Vec<u64> = target.sent.iter().filter(|(_, a)| matches!(a, Ask::Read { .. })).map(|s| s.0).collect();
        for at in begun {
            let held = at + MILLISECOND..at + 51 * MILLISECOND;
            assert!(!reads.iter().any(|t| *t > at && held.contains(t)), "reads while something is committed at {at}");
            assert_eq!(reads.iter().filter(|t| **t == held.end).count(), 4, "all four go on after it");
        }
    }
}
