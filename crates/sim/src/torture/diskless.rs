//! A volume without a backing device beside the others: journals of what is on disks elsewhere. It is made, written, deleted
//! and made again.

use super::Run;
use super::grows::Size;
use crate::oracle::Oracle;
use crate::scene::{DISKLESS, diskless};
use crate::world::Violation;
use headpond_engine::{Command, CommandError, NewVolume, StartError};

impl Run {
    /// All volumes that clients use.
    pub(super) fn volumes(&self) -> Vec<u16> {
        self.attached.iter().copied().chain(self.diskless.then_some(DISKLESS)).collect()
    }

    /// Asks for it to be made; it has nothing on it at first.
    pub(super) fn create_diskless(&mut self) -> u64 {
        let sectors = self.plan.diskless_sectors;
        self.world.oracles.insert(DISKLESS, Oracle::zeroed());
        self.sizes.insert(DISKLESS, Size::of(sectors));
        self.lives_of_it += 1;
        self.world.command(Command::Attach(NewVolume { id: [50 + self.lives_of_it; 16], ..diskless(sectors) }))
    }

    /// It is deleted under load, with what is on it; or made. A crash may come meanwhile: then it is there whole, or not at all.
    pub(super) fn create_or_delete(&mut self, life: u64) -> Result<(), Violation> {
        let deletes = std::mem::replace(&mut self.diskless, false);
        let id = if deletes { self.world.command(Command::Abandon { volume: DISKLESS }) } else { self.create_diskless() };
        let last = self.world.operations + self.rng.within(1, 4 * self.plan.operations);
        while self.world.command_result(id).is_none() {
            if self.world.operations >= last {
                self.crash();
                return self.recover();
            }
            self.load(life, 1)?;
        }
        match self.world.command_result(id) {
            Some(Ok(())) => self.diskless = !deletes,
            // Others have grown into its place in the intent map meanwhile; or fewer cache devices are left.
            Some(Err(CommandError::TooLarge)) if self.plan.grows && !deletes => {}
            Some(Err(CommandError::NoRoom { .. })) if self.may_shrink() && !deletes => {}
            Some(Err(e)) if !self.world.errors_allowed => {
                let how = if deletes { "deleted" } else { "made" };
                return Err(Violation(format!("the volume without a disk was not {how}: {e}")));
            }
            _ => {}
        }
        self.world.violation.take().map_or(Ok(()), Err)
    }

    /// The pool may have fewer cache devices than at first.
    fn may_shrink(&self) -> bool {
        self.plan.joins || self.plan.lose_member || self.plan.bad_slots || self.plan.fails_once
    }

    /// At a run's end it is deleted, if it is there.
    pub(super) fn delete_diskless(&mut self) -> Result<(), Violation> {
        if !std::mem::replace(&mut self.diskless, false) {
            return Ok(());
        }
        match self.end_of(Command::Abandon { volume: DISKLESS }, "the deletion of the volume without a disk")? {
            Ok(()) => Ok(()),
            // Both had what tells what there is.
            Err(CommandError::Start(StartError::CheckpointLost { .. })) if self.second_lost => Ok(()),
            Err(e) => Err(Violation(format!("the volume without a disk was not deleted: {e}"))),
        }
    }

    /// One client's next request to it.
    pub(super) fn request_to_diskless(&mut self) -> u64 {
        let size = self.sectors(DISKLESS);
        let longest = if self.rng.one_in(8) { size } else { self.plan.longest.min(size) };
        let sectors = if self.rng.one_in(2) { *self.rng.pick(&[1, 2, 8, 8, 8, 16]) } else { self.rng.within(1, longest) };
        let mut sector = self.rng.below(size - sectors + 1);
        if self.rng.one_in(2) {
            sector = sector / 8 * 8;
        }
        let fua = self.rng.one_in(4);
        match self.rng.below(20) {
            0..=9 => self.world.write(DISKLESS, sector, sectors, fua),
            10..=14 => self.world.read(DISKLESS, sector, sectors as u32),
            15 | 16 => self.world.flush(DISKLESS),
            17 | 18 => self.world.discard(DISKLESS, sector, sectors, 0),
            _ => self.world.write_zeroes(DISKLESS, sector, sectors, fua),
        }
    }
}
