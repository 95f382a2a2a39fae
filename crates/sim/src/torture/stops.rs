//! The daemon is told to end while requests are under way, and a crash comes in the middle of that, or after it.

use super::Run;
use crate::world::Violation;
use headpond_engine::Command;

impl Run {
    /// As an upgrade and `headpond stop` do it: sweeps are told to rest, perhaps, while clients go on; then no request is taken any more, and
    /// those under way end. Where that has ended well all that was acknowledged is durable, though no client has asked for it.
    pub(super) fn end_in_the_middle(&mut self, life: u64) -> Result<(), Violation> {
        if self.rng.one_in(2) {
            self.world.command(Command::Quiesce);
            let budget = self.rng.within(1, self.plan.operations);
            self.load(life, budget)?;
        }
        let stop = self.world.command(Command::Stop);
        let last = self.world.operations + self.rng.within(1, 8 * self.plan.operations);
        while self.world.command_result(stop).is_none() && self.world.operations < last {
            if let Some(v) = self.world.violation.take() {
                return Err(v);
            }
            if !self.world.step() {
                return Err(Violation(format!("a stop does not end: {}", self.describe())));
            }
        }
        match self.world.command_result(stop) {
            Some(Ok(())) if self.has_requests() => {
                return Err(Violation("a stop has ended, and requests are under way".into()));
            }
            Some(Ok(())) if !self.world.errors_allowed && self.world.failing.is_empty() => {
                self.world.note("ALL THAT WAS ACKNOWLEDGED IS DURABLE");
                self.world.all_is_durable();
            }
            Some(Err(e)) if !self.world.errors_allowed && self.world.failing.is_empty() => {
                return Err(Violation(format!("a stop failed: {e}")));
            }
            _ => {}
        }
        self.world.violation.take().map_or(Ok(()), Err)
    }

    /// Who reads beside the engine is not counted.
    fn has_requests(&self) -> bool {
        self.world.engine.as_ref().is_some_and(|e| e.status().volumes.iter().any(|v| v.requests > 0))
    }
}
