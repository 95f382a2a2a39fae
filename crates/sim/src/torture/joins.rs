//! Cache devices that are added and removed under load, and lost when all that is dirty has its copies again.

use super::Run;
use crate::device::SimDevice;
use crate::world::Violation;
use headpond_engine::{Command, CommandError, CommandId, Device};

impl Run {
    /// Cache devices come and go, while clients are at work; a crash may come meanwhile. After one is lost that may go on in the same life.
    pub(super) fn change_members(&mut self, life: u64) -> Result<(), Violation> {
        loop {
            let ended = self.change_one(life)?;
            if !ended || !self.lose_one_of_the_whole() || self.rng.one_in(2) {
                return self.world.violation.take().map_or(Ok(()), Err);
            }
            let budget = self.rng.within(1, self.plan.operations);
            self.load(life, budget)?;
        }
    }

    /// A cache device comes or goes; whether that has ended before a crash came.
    fn change_one(&mut self, life: u64) -> Result<bool, Violation> {
        let Some(status) = self.world.engine.as_ref().map(headpond_engine::Engine::status) else { return Ok(false) };
        let in_sync: Vec<u8> = status.members.iter().filter(|m| m.in_sync).map(|m| m.number).collect();
        let adds = in_sync.len() <= usize::from(status.copies) || in_sync.len() < 5 && self.rng.one_in(2);
        let (command, member) = if adds {
            // The number of one that has left, or one that nobody had.
            let left: Vec<u8> = status.members.iter().filter(|m| !m.in_sync).map(|m| m.number).collect();
            let member = if !left.is_empty() && self.rng.one_in(2) { *self.rng.pick(&left) } else { status.members.len() as u8 };
            self.plug_in(member, &left);
            self.added += 1;
            let bytes = self.world.devices.get(&Device::Member(member)).map_or(0, |d| d.size);
            (Command::AddMember { member, id: [100 + self.added; 16], bytes }, member)
        } else {
            let member = *self.rng.pick(&in_sync);
            (Command::RemoveMember { member }, member)
        };
        self.world.note(&format!("CACHE DEVICE {member} IS TO BE {}", if adds { "ADDED" } else { "REMOVED" }));
        self.may_be_out.insert(member);
        let id = self.world.command(command);
        let limit = self.rng.within(1, 8 * self.plan.operations + 400);
        let last = self.world.operations + limit;
        let cancels = self.rng.one_in(8);
        while self.world.command_result(id).is_none() {
            if self.world.operations >= last && cancels {
                self.world.command(Command::Cancel(CommandId(id)));
                self.wait_for(id, "a command that was cancelled")?.ok();
                break;
            }
            if self.world.operations >= last {
                self.crash();
                self.recover()?;
                return Ok(false);
            }
            self.load(life, 1)?;
        }
        match self.world.command_result(id) {
            Some(Ok(())) if adds => {
                let lacking = self.world.engine.as_ref().map_or(0, |e| e.status().lacking_copies);
                self.world.copies_lacking &= lacking > 0;
                self.may_be_out.remove(&member);
                self.outcome.totals.members_added += 1;
            }
            Some(Ok(())) => {
                // Nothing on it is needed any more, not even at the next start.
                self.set_dead(Device::Member(member), true);
                self.outcome.totals.members_removed += 1;
            }
            Some(Err(CommandError::Cancelled)) if cancels => {}
            Some(Err(CommandError::TooFewMembers)) if !adds => {}
            // It was lost before anybody knew: so it has left.
            Some(Err(CommandError::CopiesLacking)) if !adds && self.world.copies_lacking => {}
            Some(Err(CommandError::NoRoomWithout)) if !adds && self.diskless => {}
            Some(Err(e)) => {
                return Err(Violation(format!("cache device {member} was not {}: {e}", if adds { "added" } else { "removed" })));
            }
            None => {}
        }
        Ok(true)
    }

    /// Those that have left, or were lost, may be there again at a start as they were when they went, also beside those that have their
    /// numbers now.
    pub(super) fn some_come_back(&mut self) {
        if !self.plan.joins || !self.rng.one_in(3) {
            return;
        }
        let back: Vec<Device> = self.world.devices.iter().filter(|(_, d)| d.dead).map(|(device, _)| *device).collect();
        for device in back {
            self.set_dead(device, false);
            // What nobody acknowledged was appended without it, if it was lost a moment ago.
            self.world.to_be_mended = true;
            self.world.note(&format!("{} IS BACK", device.to_string().to_uppercase()));
        }
    }

    /// A device for a new member: a new one, or one that had left and still has on it what it had then.
    fn plug_in(&mut self, member: u8, left: &[u8]) {
        let known: Vec<u8> = left.iter().copied().filter(|m| self.world.devices.contains_key(&Device::Member(*m))).collect();
        let stale = (!known.is_empty() && self.rng.one_in(2)).then(|| *self.rng.pick(&known));
        stale.iter().chain([&member]).for_each(|m| self.world.end_all_of(Device::Member(*m)));
        let mut device = match stale.and_then(|m| self.world.devices.remove(&Device::Member(m))) {
            Some(device) => device,
            None => {
                let bytes = self.plan.member_bytes + self.rng.below(4) * self.plan.segment_bytes;
                SimDevice::new(bytes, None).slower(self.plan.slowness(300 + u64::from(self.added)))
            }
        };
        (device.dead, device.protected) = (false, self.plan.protected);
        // Whoever had the number is kept, with what is on it.
        let before = self.world.devices.insert(Device::Member(member), device);
        self.world.apart.extend(before);
    }

    /// One of the cache devices in sync is lost, half the time, where all has its copies and another one is left. Whether.
    fn lose_one_of_the_whole(&mut self) -> bool {
        let Some(status) = self.world.engine.as_ref().map(headpond_engine::Engine::status) else { return false };
        let in_sync: Vec<u8> = status.members.iter().filter(|m| m.in_sync).map(|m| m.number).collect();
        if self.world.copies_lacking || status.copies < 2 || in_sync.len() < 2 || status.lacking_copies > 0 || self.rng.one_in(2)
        {
            return false;
        }
        let member = *self.rng.pick(&in_sync);
        self.set_dead(Device::Member(member), true);
        self.may_be_out.insert(member);
        self.world.note(&format!("CACHE DEVICE {member} IS LOST"));
        self.outcome.totals.members_lost += 1;
        self.world.copies_lacking = true;
        true
    }
}
