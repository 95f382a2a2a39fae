//! What goes wrong with volumes' disks: they fail for a while, come late, are exchanged, or have sectors that die.

use super::{BASE, FIRST_DISK, Run};
use crate::device::SimDevice;
use crate::models::MILLISECOND;
use crate::oracle::Oracle;
use crate::rng::Rng;
use crate::world::Violation;
use headpond_engine::{Command, Device};

/// So soon it is written down that a flush has failed, in nanoseconds: behind a superblock that is being written, some device of which takes
/// four hundred times as long as others.
const WRITTEN_DOWN: u64 = 400 * MILLISECOND;

impl Run {
    /// As [`Run::crash`]. A daemon that is killed in the moment in which a flush fails has not written that down, and the next one knows nothing of it: there
    /// the power goes as well, since a disk keeps what it answers until then. Beside a cache device that is lost the moment lasts until that is out, and where the
    /// others are no majority it is not written down at all; and the one that is lost now may have heard of it alone, or one that comes back alone has not.
    pub(super) fn crash_beside_a_failing_disk(&mut self) {
        let moment = WRITTEN_DOWN * self.plan.most_slowness();
        let since = if self.lost.is_some() { 0 } else { self.world.now.saturating_sub(moment) };
        let failed = self.world.failed_since(since);
        self.crash();
        self.disk_fails(0);
        let changes = self.plan.swap_members || self.plan.lose_with_crash;
        let is_written = !changes && failed.is_subset(&self.world.untold_by_superblock());
        if !failed.is_empty() && !is_written {
            self.world.cut_power();
        }
    }

    /// The disk fails one operation in so many; 0 none.
    pub(super) fn disk_fails(&mut self, rate: u64) {
        self.world.failing = (rate > 0).then_some(0).into_iter().collect();
        if let Some(d) = self.world.devices.get_mut(&Device::Backing(0)) {
            (d.fail_writes, d.fail_reads, d.fail_flushes) = (rate, rate * 2, rate.div_ceil(2));
        }
    }

    /// At the next start the disk of a volume is not there, perhaps.
    pub(super) fn disk_is_late(&mut self) -> Option<u16> {
        if !self.plan.disk_late || !self.rng.one_in(2) {
            return None;
        }
        let volume = *self.rng.pick(&self.attached);
        self.set_dead(Device::Backing(volume), true);
        self.world.failing.insert(volume);
        self.world.note(&format!("THE DISK OF VOLUME {volume} IS NOT THERE"));
        Some(volume)
    }

    /// It comes while others are served, and then its volume is served, with all that it had.
    pub(super) fn disk_comes(&mut self, volume: u16, life: u64) -> Result<(), Violation> {
        if self.volumes().len() > 1 {
            let budget = self.rng.within(1, self.plan.operations);
            self.load(life, budget)?;
        }
        self.set_dead(Device::Backing(volume), false);
        if self.attached.contains(&volume) {
            self.world.note(&format!("THE DISK OF VOLUME {volume} COMES"));
            let id = self.world.command(Command::BackingCame { volume });
            self.finish(id, "the coming of a disk")?;
        }
        self.world.failing.remove(&volume);
        self.check_start(false)
    }

    /// Clients rest, perhaps, and all that they wrote is on the disks, and no image knows it otherwise: one of these, which may be exchanged while the
    /// daemon is away.
    pub(super) fn disk_to_exchange(&mut self) -> Result<Option<u16>, Violation> {
        if !self.plan.exchanges || !self.rng.one_in(3) {
            return Ok(None);
        }
        self.requests_end()?;
        self.end_commands()?;
        for volume in self.attached.clone() {
            let id = self.world.command(Command::Destage { volume });
            self.finish(id, "a destage at rest")?;
        }
        let id = self.world.command(Command::Checkpoint);
        self.finish(id, "a checkpoint at rest")?;
        Ok(Some(*self.rng.pick(&self.attached)))
    }

    /// Nothing of what was written to a volume is on its disk any more.
    pub(super) fn exchange_disk(&mut self, volume: u16) {
        let Some(disk) = self.world.devices.get_mut(&Device::Backing(volume)) else { return };
        self.outcome.totals.exchanged += 1;
        let base = BASE + (u64::from(volume) << 40) + (self.outcome.totals.exchanged << 32);
        *disk = SimDevice::new(disk.size, Some(base)).slower(self.plan.slowness(FIRST_DISK + u64::from(volume)));
        self.world.oracles.insert(volume, Oracle::new(base));
        self.world.note(&format!("THE DISK OF VOLUME {volume} IS ANOTHER ONE"));
    }

    /// A few sectors of the first disk, where clients are, can neither be read nor written from now on.
    pub(super) fn sectors_die(&mut self) {
        if !self.plan.dead_sectors {
            return;
        }
        let mut own = Rng::new(self.plan.seed ^ 0xdead);
        if let Some(d) = self.world.devices.get_mut(&Device::Backing(0)) {
            for _ in 0..own.within(1, 8) {
                d.dead_sectors.insert(own.below(self.plan.hot_sectors), ());
            }
        }
    }
}
