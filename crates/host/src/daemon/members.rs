//! Cache devices that come and go while the pool is served.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Mutex;
use std::time::Instant;

use headpond_engine::io::{BLOCK, Command, CommandError, CommandId, Device};
use headpond_engine::status::{MemberStatus, VolumeStatus};
use headpond_engine::{StartError, Status};
use headpond_format::MAX_MEMBERS;
use serde_json::{Value, json};

use super::service::{PATIENCE, Progress, TELL, ended, seconds_left};
use super::status::is_somebody;
use super::{Shared, lock};
use crate::claim::Claim;
use crate::control::{AddMember, Fault, FaultKind};
use crate::pool::create::random;
use crate::pool::join::{self, Joining, Served};
use crate::pool::{DiscardDirty, PoolError};
use crate::report::cache_device;
use crate::runtime::Given;

/// How far whoever adds or removes a cache device is.
#[derive(Clone, Copy)]
pub(super) enum Change {
    /// Nothing of the pool is changed yet.
    Prepares,
    /// The engine is at it.
    Runs(CommandId),
}

impl Change {
    /// What the engine is at.
    pub(super) fn id(self) -> Option<CommandId> {
        match self {
            Change::Prepares => None,
            Change::Runs(id) => Some(id),
        }
    }
}

/// The right to add or remove a cache device, until it is dropped. Numbers, and the devices that the engine has by them, are changed by
/// nobody else.
struct Right<'a>(&'a Mutex<Option<Change>>);

impl Right<'_> {
    fn take(changing: &Mutex<Option<Change>>) -> Result<Right<'_>, CommandError> {
        let mut change = lock(changing);
        if change.is_some() {
            return Err(CommandError::MembersBusy);
        }
        *change = Some(Change::Prepares);
        Ok(Right(changing))
    }

    fn runs(&self, id: CommandId) {
        *lock(self.0) = Some(Change::Runs(id));
    }
}

impl Drop for Right<'_> {
    fn drop(&mut self) {
        *lock(self.0) = None;
    }
}

impl Shared {
    /// Takes a device into the pool; ends when all dirty data has its copies.
    pub(super) fn add_member(&self, new: &AddMember, progress: Progress<'_>) -> Result<Value, Fault> {
        let path = std::path::absolute(&new.path).unwrap_or_else(|_| PathBuf::from(&new.path));
        let discard_dirty = new.discard_dirty.as_deref().map(DiscardDirty::from_str).transpose();
        let discard_dirty = discard_dirty.map_err(|error| {
            let message = format!(
                "What is dirty and may be lost was not understood: {error}. Nothing was changed. Name it as it was shown."
            );
            Fault { kind: FaultKind::Invalid, message, errno: None }
        })?;
        let not_added = |error: CommandError| Fault::failed(format!("{} was not added: {error}", path.display()));
        // Before a number is chosen: another one that is being added would get the same.
        let right = self.change_members(not_added)?;
        let status = self.handle.status().ok_or_else(ended)?;
        self.not_own(&path)?;
        let refused = |error: PoolError| {
            if error.protects_data() { Fault::refused(error.to_string()) } else { Fault::failed(error.to_string()) }
        };
        join::ask(&path).map_err(refused)?;
        let own = self.left_at(&path, &status);
        let named = new.in_place_of.map(|number| of_one_that_left(number, &status)).transpose()?;
        let member = named.or(own).unwrap_or_else(|| free_number(&status));
        // What the engine would refuse is, before the device is changed.
        if usize::from(member) >= MAX_MEMBERS {
            return Err(not_added(CommandError::MemberTaken));
        }
        if status.stalled {
            return Err(not_added(CommandError::NoMembers));
        }
        if let Some(page) = status.loading.and_then(|loading| loading.lost_page) {
            return Err(not_added(CommandError::Start(StartError::CheckpointLost { page })));
        }
        self.look_for_losses(false);
        let had_left = self.let_go_of_left(&path, own);
        let joining = Joining { path: &path, force: new.force, discard_dirty: discard_dirty.as_ref() };
        let served = Served {
            status: &status,
            intent_pages: self.intent_pages,
            max_pieces: self.max_pieces,
            lacks_data: self.lacks_data(&status),
            state: &self.state,
        };
        let claim = join::ready(&joining, &served, PATIENCE).map_err(|error| {
            if had_left {
                // It is as it was, and so is who keeps it.
                lock(&self.stale).extend(Claim::take(&path, PATIENCE));
            }
            refused(error)
        })?;
        let id = random().map_err(|error| Fault::failed(format!("No identity could be drawn: {error}. Try again.")))?;
        let bytes = claim.facts().size;
        let note = join::note(claim.facts(), &status);
        // Before it is the pool's: a start after a crash is to find it, and until all is copied hours may pass. Should it not be the pool's by
        // then, that is seen from the device.
        let last = lock(&self.places).members.get(&member).cloned();
        self.remember(|places| drop(places.members.insert(member, path.clone())));
        self.handle.add(Given { device: Device::Member(member), claim, pace: None });
        let lacking = |status: &Status| status.lacking_copies;
        let end = self.change_member(&right, Command::AddMember { member, id, bytes }, lacking, progress);
        let now = self.handle.status();
        let taken = now.as_ref().and_then(|status| status.members.iter().find(|m| m.id == id));
        let joined = taken.is_some_and(|taken| taken.in_sync);
        // It is the pool's: kept from others, and known by its place, as each that leaves.
        let has_left = taken.is_some_and(|taken| !taken.in_sync);
        if taken.is_none() {
            self.handle.remove(Device::Member(member));
        }
        // The engine may have ended after it was taken: then the next start sees what it is.
        if taken.is_none() && now.is_some() {
            self.remember(|places| match last {
                Some(last) => drop(places.members.insert(member, last)),
                None => drop(places.members.remove(&member)),
            });
        }
        let is_known = now.is_some();
        let lacking = now.map_or(0, |status| status.lacking_copies) * BLOCK;
        match end {
            Err(CommandError::Cancelled) if joined => {}
            _ if has_left => return Err(left_again(&path, &self.gone_since(&status))),
            Err(_) if !is_known => return Err(not_known(&path)),
            Err(error) if !joined => return Err(cleared_in_vain(&path, &error)),
            end => end.map_err(not_added)?,
        }
        Ok(json!({
            "pool": self.name, "member": member, "path": path, "bytes": bytes, "lacking_bytes": lacking, "note": note,
        }))
    }

    /// The cache devices that were in sync and are not any more, for people.
    fn gone_since(&self, before: &Status) -> Vec<String> {
        let Some(now) = self.handle.status() else { return Vec::new() };
        let places = lock(&self.places).members.clone();
        let stays = |id: [u8; 16]| now.members.iter().any(|member| member.id == id && member.in_sync);
        let gone = before.members.iter().filter(|member| member.in_sync && !stays(member.id));
        gone.map(|m| cache_device(m.number, places.get(&m.number).and_then(|path| path.to_str()))).collect()
    }

    /// Whether data of a volume may be missing: then what is on a cache device that has left may be all there is.
    pub(super) fn lacks_data(&self, status: &Status) -> bool {
        let lost = lock(&self.lost);
        let has_lost = |volume: &VolumeStatus| match lost.get(&volume.number) {
            Some(known) => known.bytes > 0 || known.losses != volume.losses,
            // It was not looked yet what an earlier life has lost.
            None => volume.dirty_blocks > 0,
        };
        let is_out = || status.members.iter().any(|member| !member.in_sync && is_somebody(member));
        status.volumes.iter().any(|volume| volume.refused || has_lost(volume))
            // It is not known yet what is missing.
            || status.loading.is_some() && is_out()
    }

    /// The number of the cache device at a path that has left since the start, if it may come back: while the pool is stalled none joins, and
    /// what is on one that has left may be all there is.
    fn left_at(&self, path: &Path, status: &Status) -> Option<u8> {
        let places = lock(&self.places).members.clone();
        let is_there = |number: u8| places.get(&number).is_some_and(|place| same_file(place, path));
        let left = status.members.iter().find(|member| !member.in_sync && is_somebody(member) && is_there(member.number));
        left.filter(|_| !status.stalled).map(|member| member.number)
    }

    /// Lets go of a cache device that has left, as it may come back now: it is kept from others, by the engine where it has left since the start.
    /// Whether it was kept. One that was not there at the start is not, and what is at its path by now may be somebody else's.
    fn let_go_of_left(&self, path: &Path, number: Option<u8>) -> bool {
        let has = |number: &u8| self.handle.snapshot().is_some_and(|it| it.loads.contains_key(&Device::Member(*number)));
        let number = number.filter(has);
        // The engine asks nothing of it any more.
        number.into_iter().for_each(|number| self.handle.remove(Device::Member(number)));
        let mut stale = lock(&self.stale);
        let before = stale.len();
        stale.retain(|claim| !same_file(claim.path(), path));
        number.is_some() || stale.len() < before
    }

    /// Empties a cache device and takes it out of the pool; one that has left by itself is waited for no longer.
    pub(super) fn remove_member(&self, name: &str, progress: Progress<'_>) -> Result<Value, Fault> {
        let not_removed =
            |name: &dyn Display, error: CommandError| Fault::failed(format!("Cache device {name} was not removed: {error}"));
        let right = self.change_members(|error| not_removed(&name, error))?;
        let status = self.handle.status().ok_or_else(ended)?;
        let (member, had_left) = self.member(name, &status)?;
        let dirty = move |status: &Status| status.members.iter().find(|m| m.number == member).map_or(0, |m| m.dirty);
        self.change_member(&right, Command::RemoveMember { member }, dirty, progress).map_err(|error| match error {
            CommandError::Cancelled if !self.goes_on() => not_emptied(member),
            error => not_removed(&member, error),
        })?;
        self.handle.remove(Device::Member(member));
        let path = lock(&self.places).members.get(&member).cloned();
        self.remember(|places| drop(places.members.remove(&member)));
        // One that had left may have been kept from others.
        lock(&self.stale).retain(|claim| path.as_ref().is_none_or(|path| !same_file(claim.path(), path)));
        Ok(json!({ "pool": self.name, "member": member, "path": path, "had_left": had_left }))
    }

    /// The right to add or remove a cache device: one at a time, and none from the moment on at which the daemon ends, or another program is to
    /// go on in its place.
    fn change_members(&self, busy: impl FnOnce(CommandError) -> Fault) -> Result<Right<'_>, Fault> {
        let right = Right::take(&self.changing_members).map_err(busy)?;
        // Looked at last, as an upgrade looks last whether anybody has the right.
        if self.goes_on() { Ok(right) } else { Err(ended()) }
    }

    /// Refuses an upgrade while a cache device is being added or removed. The pool would come through it as through a crash; but nobody would
    /// tell whoever began it what came of it, and a device that was to be removed would stay.
    pub(super) fn members_stay(&self) -> Result<(), Fault> {
        if lock(&self.changing_members).is_none() {
            return Ok(());
        }
        Err(Fault::failed(
            "A cache device is being added or removed. Nothing was changed, and the daemon goes on as it was. Wait until that has ended, or end \
             it with `headpond pool add --cancel`, and upgrade then.",
        ))
    }

    /// The number of a cache device, by that or by its path, and whether it has left.
    fn member(&self, name: &str, status: &Status) -> Result<(u8, bool), Fault> {
        let places = lock(&self.places).members.clone();
        let named = |number: u8| {
            let place = places.get(&number);
            name == number.to_string() || place.is_some_and(|place| same_file(place, Path::new(name)))
        };
        let in_sync = status.members.iter().find(|member| member.in_sync && named(member.number));
        let left = || status.members.iter().find(|member| !member.in_sync && is_somebody(member) && named(member.number));
        in_sync.or_else(left).map(|member| (member.number, !member.in_sync)).ok_or_else(|| {
            let all = status.members.iter().filter(|member| member.in_sync).map(|member| {
                let place = places.get(&member.number).map(|place| format!(" ({})", place.display())).unwrap_or_default();
                format!("{}{place}", member.number)
            });
            Fault::failed(format!(
                "Pool {} has no cache device {name} in sync. Nothing was changed. Name one that it has: {}.",
                status.pool,
                all.collect::<Vec<_>>().join(", ")
            ))
        })
    }

    /// Runs a command on the pool's members, and tells how many bytes there are left to copy, and how long it may take.
    fn change_member(
        &self,
        right: &Right<'_>,
        command: Command,
        left: impl Fn(&Status) -> u64,
        progress: Progress<'_>,
    ) -> Result<(), CommandError> {
        let Some(running) = self.begin_noted(command, |id| right.runs(id)) else { return Err(CommandError::Cancelled) };
        let begun = Instant::now();
        let mut at_first = 0;
        loop {
            if let Some(result) = running.wait(TELL) {
                return result;
            }
            let Some(left) = self.handle.status().map(|status| left(&status)) else { return Err(CommandError::Cancelled) };
            at_first = left.max(at_first);
            progress(json!({ "dirty_bytes": left * BLOCK, "seconds_left": seconds_left(begun, at_first - left, left) }));
        }
    }

    /// Ends the change of members that is under way; whoever began it is told.
    pub(super) fn cancel_members(&self) -> Result<Value, Fault> {
        let change = *lock(&self.changing_members);
        let id = match change {
            Some(Change::Runs(id)) => id,
            Some(Change::Prepares) => {
                return Err(Fault::failed(
                    "A cache device is being looked at yet, to be added or removed. Nothing was cancelled. Try again in a moment.",
                ));
            }
            None => {
                return Err(Fault::failed(
                    "No cache device is being added or removed. Nothing was changed. `headpond pool add` and `headpond pool remove` begin it.",
                ));
            }
        };
        self.handle.begin(Command::Cancel(id)).end().map_err(|error| Fault::failed(error.to_string()))?;
        Ok(json!({}))
    }
}

/// The number of a cache device in whose place another one is to be put.
///
/// # Errors
/// It has not left: that is another command's.
fn of_one_that_left(number: u8, status: &Status) -> Result<u8, Fault> {
    let left = |member: &&MemberStatus| member.number == number && !member.in_sync && is_somebody(member);
    status.members.iter().find(left).map(|member| member.number).ok_or_else(|| {
        Fault::failed(format!(
            "Pool {} has no cache device {number} that has left. Nothing was changed. `headpond status` lists its cache devices.",
            status.pool
        ))
    })
}

/// The number for a new cache device: that of one that has left, which is succeeded, and waited for no longer; else one that is nobody's.
fn free_number(status: &Status) -> u8 {
    let mut free: Vec<&MemberStatus> = status.members.iter().filter(|member| !member.in_sync).collect();
    free.sort_by_key(|member| !is_somebody(member));
    free.first().map_or(status.members.len() as u8, |member| member.number)
}

/// A cache device that was to be removed when the daemon's end came.
fn not_emptied(member: u8) -> Fault {
    Fault::failed(format!(
        "Cache device {member} was not removed, as the daemon ends, or another program goes on in its place. It is the pool's as before, and what is on \
         it is needed: keep it. Nothing is lost. Ask for the same again when the pool is served."
    ))
}

/// A device of which the engine did not say any more whether it has taken it. It may hold copies already.
fn not_known(path: &Path) -> Fault {
    let path = path.display();
    Fault::failed(format!(
        "Whether {path} was added is not known: the daemon ended before that was said. What was on it before is gone; of the pool nothing is lost. \
         `headpond pool list {path}` shows whether it is a cache device of the pool by now: if so, keep it, and the next start takes it \
         too; else add it again when the daemon runs."
    ))
}

/// A device that was taken, and has left before all had its copies; `others` are cache devices that have left since as well.
fn left_again(path: &Path, others: &[String]) -> Fault {
    let why = match others {
        [] => ": it failed. No other cache device was taken out for it".to_owned(),
        others => format!(", and so has {}: one of them failed, and may have taken the other along", others.join(" and ")),
    };
    Fault::failed(format!(
        "{} has joined the pool, and has left it again{why}. What was on it before is gone. Look at the kernel's log, and add another device. \
         `headpond status` says how the pool stands, and whether anything is missing.",
        path.display()
    ))
}

/// A device that the engine did not take, after all that could be seen before was in order, and its ends had been cleared.
fn cleared_in_vain(path: &Path, error: &CommandError) -> Fault {
    let error = match error {
        CommandError::MemberSmall { least } => {
            format!("It is too small for what the pool holds by now. Use one of {least} bytes or more.")
        }
        CommandError::NoMembers => "Too few cache devices and votes answer by now. `headpond status` says what to do.".into(),
        error => error.to_string(),
    };
    Fault::failed(format!(
        "{} was not added: {error} Its beginning and its end are cleared: what was on it is gone. The pool's other devices are as they were.",
        path.display()
    ))
}

pub(super) fn same_file(a: &Path, b: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().or_else(|_| std::path::absolute(path)).ok();
    real(a).is_some() && real(a) == real(b)
}

#[cfg(test)]
mod tests {
    use super::super::{Choice, Daemon, Options};
    use super::*;
    use crate::control::{Call, Service};
    use crate::embed::{self, Mode, Pool};
    use crate::succession::Estate;
    use headpond_engine::Settings;
    use std::fs::{self, File};
    use std::thread;
    use std::time::Duration;

    const LONG: Duration = Duration::from_secs(60);

    /// It was cancelled by nobody: the engine, which was to end, went on with it, and with the sweeps that it wanted, for the time that a stop has. Nor
    /// was what came during the stop refused. Found by reading.
    #[test]
    fn the_removal_of_a_cache_device_is_cancelled_by_a_stop_and_nothing_long_begins_during_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let ssds = ["ssd0", "ssd1", "ssd2"].map(path);
        for (name, mib) in [("ssd0", 64), ("ssd1", 64), ("ssd2", 128), ("disk", 1 << 10)] {
            File::create_new(path(name)).unwrap().set_len(mib << 20).unwrap();
        }
        Pool::create("tank", &ssds, &path("state")).unwrap();
        let settings = Settings { route: false, ..Settings::default() };
        let pool = Pool::open_with(embed::Options { settings, ..embed::Options::new(&ssds, &path("state")) }).unwrap();
        let slow = PathBuf::from(format!("modelled:{}", path("disk").display()));
        let volume = pool.attach("home", &slow, Mode::WriteBack).unwrap();
        // More than the others have room for.
        (0..5000).for_each(|n| volume.write(n * 7919 % 5000 * (50 << 12), &[7; 16384]).unwrap());
        drop(volume);
        pool.close(LONG).unwrap();
        // None of it can be written to the disk.
        fs::rename(path("disk"), path("away")).unwrap();
        let options =
            Options { socket: Some(path("socket")), frontend: Choice::None, ..Options::new(ssds.to_vec(), path("state")) };
        let daemon = Daemon::start(options, Estate::default(), &mut |_| true).unwrap();
        let shared = daemon.shared.clone();
        let running = || !shared.running().is_empty();
        thread::scope(|scope| {
            let removal = scope.spawn(|| shared.remove_member("2", &mut |_| ()));
            while !running() {
                assert!(!removal.is_finished(), "the test wants it to take long: {:?}", removal.join());
                thread::sleep(Duration::from_millis(1));
            }
            shared.begin_to_stop();
            assert!(shared.end_changes(Instant::now() + LONG) && !running(), "it goes on");
            let fault = removal.join().unwrap().unwrap_err();
            assert!(fault.to_string().contains("Cache device 2 was not removed, as the daemon ends"), "{fault}");
        });
        let flush = Call::Destage { name: "home".into(), deadline_seconds: None };
        let fault = shared.call(flush, &mut |_| ()).unwrap_err();
        assert!(fault.to_string().contains("The daemon is ending"), "{fault}");
        daemon.stop(LONG).unwrap();
    }

    /// The new one was said to have failed, and no other to have left, where an older one had failed and taken it along.
    #[test]
    fn of_a_device_that_left_with_another_one_it_is_not_said_that_it_failed_alone() {
        let alone = left_again(Path::new("/new"), &[]).message;
        assert!(alone.contains("/new has joined the pool, and has left it again: it failed. No other"), "{alone}");
        let both = left_again(Path::new("/new"), &["cache device 0 (/a)".into()]).message;
        assert!(both.contains("has left it again, and so has cache device 0 (/a): one of them failed"), "{both}");
        assert!(!both.contains("No other") && !both.contains("it failed"), "{both}");
    }
}
