//! Volumes that grow under load, a little or beyond the pages of the intent map that they have.

use super::Run;
use crate::world::Violation;
use headpond_engine::format::{REGION_SECTORS, REGIONS_PER_PAGE};
use headpond_engine::{Command, CommandError, Device};

/// How large a volume is, in sectors.
#[derive(Clone, Copy)]
pub(super) struct Size {
    /// What it was told to be, and is.
    told: u64,
    /// What it may be beside that: the command, and the size.
    asked: Option<(u64, u64)>,
}

impl Size {
    /// One that was told to have so many.
    pub(super) fn of(told: u64) -> Self {
        Self { told, asked: None }
    }
}

impl Run {
    /// Sectors of a volume that requests may reach.
    pub(super) fn sectors(&self, volume: u16) -> u64 {
        self.sizes.get(&volume).map_or(self.plan.sectors, |s| s.told)
    }

    /// Now and then a volume is to be larger, or is asked for what it cannot be. What comes of it is looked at later.
    pub(super) fn grow(&mut self) -> Result<(), Violation> {
        self.note_grown()?;
        if !self.rng.one_in(if self.plan.small { 20 } else { 100 }) {
            return Ok(());
        }
        let volume = *self.rng.pick(&self.attached);
        let told = self.sectors(volume);
        // Nor does one grow whose disk is not there.
        if self.sizes.get(&volume).is_some_and(|s| s.asked.is_some())
            || self.world.failing.contains(&volume) && self.plan.disk_late
        {
            return Ok(());
        }
        let page = REGION_SECTORS * u64::from(REGIONS_PER_PAGE);
        let sectors = match self.rng.below(6) {
            0 | 1 => told + self.rng.within(1, 64),
            2 => told + self.rng.within(1, 2 * REGION_SECTORS),
            // As large as its pages allow, and beyond.
            3 => (told + 8).next_multiple_of(page) - 8,
            4 => (told + 8).next_multiple_of(page) + self.rng.within(1, 2 * REGION_SECTORS),
            _ => told - self.rng.below(16),
        };
        if let Some(d) = self.world.devices.get_mut(&Device::Backing(volume)) {
            d.size = d.size.max(sectors * 512);
        }
        let id = self.world.command(Command::Grow { volume, sectors });
        self.sizes.insert(volume, Size { told, asked: Some((id, sectors)) });
        self.note_grown()
    }

    /// Sizes that hold by now.
    fn note_grown(&mut self) -> Result<(), Violation> {
        for (volume, size) in &mut self.sizes {
            let Some((id, sectors)) = size.asked else { continue };
            match self.world.command_result(id) {
                None => continue,
                Some(Ok(())) if sectors <= size.told => {
                    return Err(Violation(format!("volume {volume} of {} sectors was made {sectors}", size.told)));
                }
                Some(Ok(())) => {
                    *size = Size { told: sectors, asked: None };
                    self.outcome.totals.grown += 1;
                }
                Some(Err(CommandError::NotLarger { .. })) if sectors <= size.told => size.asked = None,
                Some(Err(CommandError::TooLarge)) if sectors > size.told => size.asked = None,
                // Nobody decides any more, and what was written may be found at the next start all the same.
                Some(Err(CommandError::NoMembers)) if self.plan.witness_away || self.second_lost => continue,
                Some(Err(_)) if self.second_lost => size.asked = None,
                Some(Err(e)) => return Err(Violation(format!("volume {volume} does not grow to {sectors} sectors: {e}"))),
            }
        }
        Ok(())
    }

    /// After a start a volume is as large as it was told to be, or as it was being made.
    pub(super) fn check_sizes(&mut self) -> Result<(), Violation> {
        self.note_grown()?;
        let Some(status) = self.world.engine.as_ref().map(headpond_engine::Engine::status) else { return Ok(()) };
        for v in status.volumes {
            let told = self.sectors(v.number);
            let asked = self.sizes.get(&v.number).and_then(|s| s.asked).map(|(_, sectors)| sectors).filter(|s| *s > told);
            if v.sectors != told && Some(v.sectors) != asked {
                let of = format!("volume {} has {} sectors after a start", v.number, v.sectors);
                return Err(Violation(format!("{of}, and was told to have {told}, or {asked:?}")));
            }
            self.sizes.insert(v.number, Size { told: v.sectors, asked: None });
        }
        // A detach waits for a grow that is under way: of volumes that are not there nothing is asked.
        self.sizes.values_mut().for_each(|s| s.asked = None);
        Ok(())
    }
}
