//! What the control socket can ask of a daemon.

use std::path::{Path, PathBuf};
use std::process;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use headpond_engine::io::{BLOCK, Command, CommandError, CommandId, Device, NewVolume};
use headpond_engine::status::VolumeStatus;
use headpond_engine::{Status, create};
use headpond_format::{MAX_VOLUMES, Mode};
use serde_json::{Value, json};

use super::{Busy, Choice, FLUSHED, Frontend, LOOK, SOON, Shape, Shared, Slot, StopState, Stopping, lock, watch};
use crate::backing::{Backing, BackingError, Spec};
use crate::claim::ClaimError;
use crate::control::{Attach, Call, Fault, Service};
use crate::pool::create::random;
use crate::report::Advice;
use crate::runtime::Running;
use crate::state::hex;
use crate::succession::Present;
use crate::{silence, succession};

/// How long a device may be held by somebody when it is attached: udev looks at new devices for moments.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);
/// How long a device may leave an operation unanswered when the daemon is to hand over.
const UNANSWERED: Duration = Duration::from_secs(5);
/// How long a program may take to say whether it could take over.
const TRIED: Duration = Duration::from_secs(60);
/// How long one change of a volume waits for another one's end.
const TURN: Duration = Duration::from_secs(10);
/// How often progress is told.
pub(super) const TELL: Duration = Duration::from_millis(500);

/// How many seconds what is left takes, by how long what is done took since `begun`; `None` while nothing is.
pub(super) fn seconds_left(begun: Instant, done: u64, left: u64) -> Option<f64> {
    (done > 0).then(|| (begun.elapsed().as_secs_f64() * left as f64 / done as f64).ceil())
}

pub(super) type Progress<'a> = &'a mut dyn FnMut(Value);

/// Until when a long command is to have ended, as whoever asked for it has said.
#[derive(Clone, Copy)]
struct Limit {
    seconds: u64,
    since: Instant,
}

impl Limit {
    fn of(seconds: Option<u64>) -> Option<Limit> {
        seconds.map(|seconds| Limit { seconds, since: Instant::now() })
    }

    fn rest(self) -> Duration {
        Duration::from_secs(self.seconds).saturating_sub(self.since.elapsed())
    }
}

impl Service for Shared {
    fn call(&self, call: Call, progress: Progress<'_>) -> Result<Value, Fault> {
        match call {
            Call::Status => self.report().map(|report| json!(report)).ok_or_else(ended),
            Call::Histograms => self.histograms().map(|histograms| json!(histograms)).ok_or_else(ended),
            // The last two tell whoever follows that what he knew was of other events.
            Call::Events { from } => {
                Ok(json!({ "events": self.events.from(from), "next": self.events.next(), "id": hex(&self.pool) }))
            }
            Call::Attach(new) => self.attach(&new),
            Call::CreateVolume(new) => self.create_volume(&new),
            Call::DeleteVolume { name, throw_away } => self.delete_volume(&name, throw_away, &mut || true),
            Call::Detach { name, throw_away: true, .. } => self.abandon(&name),
            Call::Detach { name, give_up_lost, deadline_seconds, .. } => {
                self.detach(&name, give_up_lost, deadline_seconds, progress)
            }
            Call::SetMode { name, mode, deadline_seconds } => {
                let mode = Mode::named(&mode).ok_or_else(|| no_mode(&mode))?;
                let volume = self.volume_with_disk(&name)?;
                let command = Command::SetMode { volume: volume.number, mode };
                self.long(&volume, command, Limit::of(deadline_seconds), progress)?.map_err(|error| failed(&volume, &error))?;
                Ok(json!({ "pool": self.name, "mode": mode.name() }))
            }
            Call::Destage { name, deadline_seconds } => {
                let volume = self.volume_with_disk(&name)?;
                let command = Command::Destage { volume: volume.number };
                self.long(&volume, command, Limit::of(deadline_seconds), progress)?.map_err(|error| failed(&volume, &error))?;
                Ok(json!({}))
            }
            Call::Checkpoint => {
                self.handle.begin(Command::Checkpoint).end().map_err(|error| Fault::failed(error.to_string()))?;
                Ok(json!({}))
            }
            Call::Cancel { name } => self.cancel(&name),
            Call::AddMember(new) => self.add_member(&new, progress),
            Call::RemoveMember { member } => self.remove_member(&member, progress),
            Call::CancelMembers => self.cancel_members(),
            Call::Scrub { bytes_per_second } => self.scrub(bytes_per_second, progress),
            Call::CancelScrub => self.cancel_scrub(),
            Call::Preload(runs) => self.preload(&runs, progress),
            Call::CancelPreload { name } => self.cancel_preload(&name),
            Call::Pin(runs) => self.pin(&runs, true),
            Call::Unpin(runs) => self.pin(&runs, false),
            Call::Pinned { name } => self.pinned(&name),
            Call::Share { name, min, max } => self.share(&name, min, max),
            Call::Grow(wish) => self.grow(&wish),
            Call::Stop => self.want_stop(),
            Call::Upgrade { program, cut } => self.upgrade(&program, cut),
        }
    }
}

pub(super) fn ended() -> Fault {
    Fault::failed("The daemon is ending. What was acknowledged is safe. Start it again with `headpond serve`.")
}

/// What the engine says of a command on a volume.
pub(super) fn failed(volume: &VolumeStatus, error: &CommandError) -> Fault {
    Fault::failed(format!("Volume {}: {error}", volume.name))
}

fn no_mode(name: &str) -> Fault {
    Fault::failed(format!(
        "There is no mode {name:?}. Nothing was changed. Choose one of write-back, write-through, write-around and pass-through."
    ))
}

/// A device that keeps another program from taking over.
fn unanswered(what: &str, age: Duration) -> Fault {
    Fault::refused(format!(
        "{what} has left something unanswered for {} s. Nothing was changed, and the daemon goes on as it was: another program could not get \
         hold of that device now, and volumes might not be served. Look at the kernel's log for it, and upgrade when it answers again, or \
         when the kernel has given it up; that a device was removed from the pool does not end what it owes.",
        age.as_secs()
    ))
}

/// What can be a volume's name.
pub(super) fn is_a_name(name: &str) -> Result<(), Fault> {
    if !create::is_a_name(name) {
        return Err(Fault::failed(format!(
            "{name:?} is not a name for a volume. Nothing was changed. Use 1 to 64 letters, digits, '-', '_' and '.', the first \
             of which is no '.'."
        ))
        .with(libc::EINVAL));
    }
    Ok(())
}

impl Shared {
    /// The right to have a volume come, go or change, which `what` says: one at a time, and none while the daemon ends. It is not waited for
    /// longer than a change usually takes: who has it may be waiting for a disk that never answers.
    pub(super) fn change(&self, what: String) -> Result<MutexGuard<'_, ()>, Fault> {
        self.change_within(what, TURN)
    }

    /// The same, waited for no longer than `limit`.
    fn change_within(&self, what: String, limit: Duration) -> Result<MutexGuard<'_, ()>, Fault> {
        let until = Instant::now() + limit;
        let changing = loop {
            match self.changing.try_lock() {
                Ok(changing) => break changing,
                Err(TryLockError::Poisoned(changing)) => break changing.into_inner(),
                Err(TryLockError::WouldBlock) if !self.goes_on() => return Err(ended()),
                Err(TryLockError::WouldBlock) if Instant::now() < until => thread::sleep(SOON),
                Err(TryLockError::WouldBlock) => {
                    return Err(Fault::failed(format!(
                        "{} is under way, and one volume comes, goes or changes at a time. Nothing was changed. Wait for the end of that and try \
                         again; a detach that takes too long ends with `headpond detach NAME --cancel`. If it is a disk that does not answer, look \
                         at the kernel's log.",
                        lock(&self.under_way)
                    )));
                }
            }
        };
        if !self.goes_on() {
            return Err(ended());
        }
        *lock(&self.under_way) = what;
        Ok(changing)
    }

    pub(super) fn volume(&self, name: &str) -> Result<VolumeStatus, Fault> {
        let status = self.handle.status().ok_or_else(ended)?;
        status.volume(name).cloned().ok_or_else(|| {
            let names: Vec<&str> = status.volumes.iter().map(|volume| volume.name.as_str()).collect();
            let names = if names.is_empty() { "none".into() } else { names.join(", ") };
            Fault::failed(format!(
                "There is no volume {name} on pool {}. Nothing was changed. Its volumes are: {names}. Name one of them.",
                status.pool
            ))
        })
    }

    fn attach(&self, new: &Attach) -> Result<Value, Fault> {
        let mode = Mode::named(&new.mode).ok_or_else(|| no_mode(&new.mode))?;
        is_a_name(&new.name)?;
        let spec = Spec::new(&new.spec);
        let refused = |error: BackingError| match error {
            BackingError::Claim(ClaimError::Open { ref source, .. } | ClaimError::Unfit { ref source, .. }) => {
                Fault::failed(format!("{error}.")).with(source.raw_os_error().unwrap_or(libc::EINVAL))
            }
            BackingError::Silent { .. } => Fault::failed(format!("{error}.")),
            // It is somebody's.
            error => Fault::refused(format!("{error}.")),
        };
        // Nobody else waits for it yet.
        Backing::ask(&spec, silence::LIMIT).map_err(refused)?;
        let _changing = self.change(format!("Attaching volume {}", new.name))?;
        let number = self.number_for(&new.name)?;
        self.not_own(spec.path())?;
        let backing = Backing::open(&spec, PATIENCE).map_err(refused)?;
        let io = |error: std::io::Error| {
            Fault::failed(format!(
                "{} cannot be read: {error}. Nothing was changed. Look at the kernel's log.",
                spec.path().display()
            ))
        };
        let phase = match new.phase {
            Some(phase) => phase,
            None => backing.phase().map_err(io)?,
        };
        let sectors = backing.sectors();
        let shape = Shape::of(&backing.facts(), sectors);
        if phase > 7 || phase != 0 && shape.block > 512 {
            return Err(Fault::failed(format!(
                "A phase of {phase} does not fit {}, whose blocks have {} bytes. Nothing was changed. Give 0 to 7, or auto; 0 where \
                 blocks are larger than 512 bytes.",
                spec.path().display(),
                shape.block
            )));
        }
        let volume = NewVolume {
            number,
            id: random().map_err(io)?,
            name: new.name.clone(),
            sectors,
            phase,
            mode,
            backing: backing.identity(),
        };
        // Before it is the pool's: a start after a crash is to find it.
        self.remember_durably(|places| drop(places.volumes.insert(new.name.clone(), spec.to_string()))).map_err(|error| {
            Fault::failed(format!(
                "{} was not attached: where its disk is cannot be noted in the state folder, and the next start would not find it: {error}. Nothing \
                 was changed. Make room there, or put that folder right, then try again.",
                new.name
            ))
        })?;
        self.handle.add(backing.give(number));
        if let Err(error) = self.handle.begin(Command::Attach(volume)).end() {
            self.handle.remove(Device::Backing(number));
            let name = &new.name;
            // Else a cache device may know the volume, and a start that finds it is to find its disk. Of none this says nothing.
            let is_as_before = matches!(
                error,
                CommandError::NameTaken | CommandError::BackingTaken | CommandError::TooManyVolumes | CommandError::TooLarge
            );
            if is_as_before {
                self.remember(|places| drop(places.volumes.remove(name)));
                return Err(Fault::failed(format!("{name} was not attached: {error} {spec} is as it was.")));
            }
            return Err(Fault::failed(format!(
                "{name} was not attached: {error} {spec} is as it was. A cache device may have taken the volume in all the same: the next start \
                 of the pool serves it then, which `headpond status` says; `headpond detach {name}` lets go of it."
            )));
        }
        let (name, bytes) = (new.name.clone(), shape.size);
        let slot = Slot::new(name.clone(), Some(spec.clone()), Some(shape));
        let (place, problem) = self.offer_new(number, &name, slot);
        // Its block device has a number since.
        self.remember(|_| ());
        Ok(json!({
            "pool": self.name, "number": number, "bytes": bytes, "phase": phase, "place": place, "problem": problem,
        }))
    }

    /// A number that no volume has, for a new one of this name, which none has either. Nobody is connected to what had it.
    pub(super) fn number_for(&self, name: &str) -> Result<u16, Fault> {
        let status = self.handle.status().ok_or_else(ended)?;
        if status.volume(name).is_some() {
            return Err(Fault::failed(format!(
                "There is a volume {name} on pool {} already. Nothing was changed. Choose another name, or detach that volume first.",
                status.pool
            ))
            .with(libc::EEXIST));
        }
        let number = (0..MAX_VOLUMES as u16).find(|number| status.volumes.iter().all(|volume| volume.number != *number));
        let number = number.ok_or_else(|| Fault::failed(CommandError::TooManyVolumes.to_string()))?;
        // Where a detach failed after the engine had let go of the volume, they were not sent away.
        self.end_connections(number);
        // Its namesake may have gone while nobody served the pool, or at the moment of a crash.
        self.forget_wishes(name);
        Ok(number)
    }

    /// Makes a volume reachable that the engine has come to serve: where it is, and what does not go as wished.
    pub(super) fn offer_new(&self, number: u16, name: &str, slot: Slot) -> (Option<String>, Option<Advice>) {
        lock(&self.volumes).insert(number, slot);
        if let Some(volume) = self.handle.status().and_then(|status| status.volume(name).cloned()) {
            self.offer(&volume, None);
        }
        let volumes = lock(&self.volumes);
        volumes.get(&number).map_or((None, None), |slot| (slot.place.clone(), slot.problem.clone()))
    }

    /// Destages a volume and lets go of it; one whose block device is in use is refused at once.
    fn detach(
        &self,
        name: &str,
        give_up_lost: bool,
        deadline_seconds: Option<u64>,
        progress: Progress<'_>,
    ) -> Result<Value, Fault> {
        // What comes before the engine has its share of the time.
        let limit = Limit::of(deadline_seconds);
        let within = |most: Duration| limit.map_or(most, |limit| limit.rest().min(most));
        let _changing = self.change_within(format!("Detaching volume {name}"), within(TURN))?;
        let volume = self.volume_with_disk(name)?;
        let number = volume.number;
        if !volume.serving {
            return Err(Fault::refused(CommandError::NotServed.to_string()));
        }
        // Before its block device goes.
        lock(&self.volumes).get(&number).map_or(Ok(()), is_free)?;
        self.withdraw(number, |export| export.stop(within(FLUSHED)))
            .map_err(|error| Fault::refused(format!("Volume {name} was not detached, and nothing was changed: {error}.")))?;
        let mut long = |give_up_lost| self.long(&volume, Command::Detach { volume: number, give_up_lost }, limit, &mut *progress);
        // Only if something is lost that is given up, and then how much is known.
        let (end, given_up) = match long(false) {
            Ok(Err(CommandError::Lost { blocks })) if give_up_lost => (long(true), blocks * BLOCK),
            end => (end, 0),
        };
        let end = end.and_then(|end| end.map_err(|error| failed(&volume, &error)));
        if let Err(fault) = end.or_else(|fault| self.is_off(&volume, fault)) {
            self.offer_again(&volume);
            return Err(fault);
        }
        self.forget(&volume);
        self.events.add(watch::of_detached(name, given_up));
        Ok(json!({ "pool": self.name, "bytes": volume.sectors * 512, "given_up_bytes": given_up }))
    }

    /// Makes a volume reachable again that could not be taken off, if the engine serves it yet. Nobody had it; and an end that has cancelled this
    /// is about to take it away.
    pub(super) fn offer_again(&self, volume: &VolumeStatus) {
        let now = self.handle.status().filter(|_| self.goes_on()).and_then(|status| status.volume(&volume.name).cloned());
        if let Some(now) = now.filter(|now| now.id == volume.id && now.serving) {
            self.offer(&now, None);
        }
    }

    /// Waits until all that is cached is known, so that what is told of it is not too little; or it is known that it will not be.
    ///
    /// # Errors
    /// The daemon ends, or `goes_on` says no, which is asked from time to time.
    pub(super) fn wait_for_the_map(&self, goes_on: &mut dyn FnMut() -> bool) -> Result<(), Fault> {
        let is_read = |status: Status| status.loading.is_some_and(|loading| loading.lost_page.is_none());
        while self.goes_on() && self.handle.status().is_some_and(is_read) {
            if !goes_on() {
                return Err(Fault::failed(
                    "What the pool holds is still being read. Nothing was changed. `headpond status` says how far that is; try again then.",
                ));
            }
            thread::sleep(LOOK);
        }
        if self.goes_on() { Ok(()) } else { Err(ended()) }
    }

    /// Lets go of a volume that is not served, with all that the cache has of it.
    fn abandon(&self, name: &str) -> Result<Value, Fault> {
        let _changing = self.change(format!("Throwing away volume {name}"))?;
        self.wait_for_the_map(&mut || true)?;
        let volume = self.volume_with_disk(name)?;
        if let Some(slot) = lock(&self.volumes).get_mut(&volume.number) {
            is_free(slot)?;
            // Its disk is not looked for meanwhile.
            slot.busy = Some(Busy::Goes);
        }
        let end = self.handle.begin(Command::Abandon { volume: volume.number }).end();
        if let Err(fault) = end.or_else(|error| self.is_off(&volume, failed(&volume, &error))) {
            self.is_free_again(volume.number);
            return Err(fault);
        }
        self.forget(&volume);
        let thrown_away = volume.dirty_blocks * BLOCK;
        let what = format!(
            "Volume {name} was taken off the pool without being written to its disk; {thrown_away} bytes that were not there were thrown away."
        );
        self.events.add(watch::of_abandoned(what));
        Ok(json!({ "pool": self.name, "bytes": volume.sectors * 512, "thrown_away_bytes": thrown_away }))
    }

    /// Whether the engine has let go of a volume, though what took it off ended with a failure: no superblock names it, and what failed is the
    /// checkpoint behind that.
    ///
    /// # Errors
    /// It has not.
    pub(super) fn is_off(&self, volume: &VolumeStatus, fault: Fault) -> Result<(), Fault> {
        match self.handle.status() {
            Some(status) if status.volumes.iter().all(|other| other.id != volume.id) => {
                let name = &volume.name;
                tracing::warn!(
                    "volume {name} is off the pool; what else had failed: {fault} `headpond status` says how the pool stands"
                );
                Ok(())
            }
            _ => Err(fault),
        }
    }

    /// A volume is not the pool's any more: neither is its disk, nor what was known of it.
    pub(super) fn forget(&self, volume: &VolumeStatus) {
        let (number, name) = (volume.number, &volume.name);
        self.end_connections(number);
        self.end_left(&volume.id);
        self.end_left_over(volume);
        self.handle.remove(Device::Backing(number));
        lock(&self.volumes).remove(&number);
        self.remember(|places| {
            places.volumes.remove(name);
            places.ublk.remove(name);
        });
        self.forget_wishes(name);
    }

    /// What was pinned of a volume, and its share of the pool, are not those of another volume that comes to have its name.
    fn forget_wishes(&self, name: &str) {
        self.remember_pins(|pins| drop(pins.remove(name)));
        self.forget_share(name);
    }

    /// Ends the long command that runs on a volume; that one's own client is told.
    fn cancel(&self, name: &str) -> Result<Value, Fault> {
        let running = lock(&self.volumes).values().find(|slot| slot.name == name).and_then(|slot| slot.running);
        let id = running.ok_or_else(|| {
            let under_way = lock(&self.under_way).clone();
            let is_under_way = matches!(self.changing.try_lock(), Err(TryLockError::WouldBlock));
            if is_under_way && ["Detaching", "Deleting"].iter().any(|it| under_way == format!("{it} volume {name}")) {
                return Fault::failed(format!(
                    "{under_way} is under way, at a step that is not cancelled: its block device may be flushed yet, and taken away. Nothing was \
                     changed. Wait for up to {} s, and try again.",
                    FLUSHED.as_secs()
                ));
            }
            if is_under_way && under_way.ends_with(&format!(" volume {name}")) {
                return Fault::failed(format!(
                    "{under_way} is under way, which cannot be cancelled. Nothing was changed. Wait for its end; `headpond status` shows what came of \
                     it. If it takes long, look at the kernel's log for the disk."
                ));
            }
            Fault::failed(format!(
                "Nothing that could be cancelled is under way on volume {name}. Nothing was changed. \
                 Ask `headpond status` how it stands."
            ))
        })?;
        self.handle.begin(Command::Cancel(id)).end().map_err(|error| Fault::failed(error.to_string()))?;
        Ok(json!({}))
    }

    /// Lets another program go on in this process. It is tried first whether that understands the daemon's command line, and the
    /// pool; the answer comes before the daemon's main thread hands over.
    fn upgrade(&self, program: &str, cut: bool) -> Result<Value, Fault> {
        let _changing = self.change("An upgrade".into())?;
        if let Frontend::Nbd { .. } = &self.frontend
            && !cut
        {
            return Err(Fault::refused(
                "Volumes are served over NBD, whose connections would be cut. Nothing was changed. Use --cut if all clients connect again \
                 by themselves.",
            ));
        }
        self.members_stay()?;
        self.all_answer()?;
        self.state_answers()?;
        let program = PathBuf::from(program);
        let tried = tried(&program, &self.present(), || self.goes_on()).map_err(|error| {
            Fault::failed(format!(
                "{} cannot be run: {error}. The daemon goes on as it was. Name a program that can.",
                program.display()
            ))
        })?;
        if !self.goes_on() {
            return Err(ended());
        }
        let Some(tried) = tried else {
            return Err(Fault::refused(format!(
                "{} was tried, and has not said within {} s whether it could serve this pool: one of the devices that it was told of may answer \
                 nothing. The daemon goes on as it was. Look at the kernel's log, and take such a device out of the command line or the \
                 configuration.",
                program.display(),
                TRIED.as_secs()
            )));
        };
        if !tried.status.success() {
            let said = String::from_utf8_lossy(&tried.stderr);
            return Err(Fault::failed(format!(
                "{} would not serve this pool: {}. The daemon goes on as it was. Use another version, or mend what it says; what is wrong on the \
                 daemon's own command line takes a restart with another one.",
                program.display(),
                said.trim().trim_end_matches('.')
            )));
        }
        let version = succession::introduced(&String::from_utf8_lossy(&tried.stdout))
            .map_err(|what| Fault::failed(format!("{} {what}.", program.display())))?;
        // What has to be replayed is little then.
        self.handle.begin(Command::Checkpoint).end().map_err(|error| Fault::failed(error.to_string()))?;
        self.all_answer()?;
        // Whoever takes over looks for it. Where the state folder's disk is silent the daemon serves on.
        self.events.add(watch::of_hand_over(&self.name, &program));
        if let Err(fault) = self.state_answers().and_then(|()| self.succeeded_by(&program)) {
            // A daemon that dies later has not handed over. Of one that ends that is told already.
            if self.goes_on() {
                self.events.add(watch::of_no_hand_over(&self.name, &program, &fault));
            }
            return Err(fault);
        }
        Ok(json!({ "program": program, "version": version }))
    }

    /// Asks the daemon's main thread to hand over to another program.
    fn succeeded_by(&self, program: &Path) -> Result<(), Fault> {
        let mut state = lock(&self.stopping.state);
        if !matches!(*state, StopState::Running) {
            return Err(ended());
        }
        self.members_stay()?;
        *state = StopState::Succeeded(program.to_owned());
        Ok(())
    }

    /// What a program is told that is asked whether it could take over.
    fn present(&self) -> Present {
        let volumes = lock(&self.volumes);
        let in_use = !lock(&self.left).is_empty() || volumes.values().any(|slot| slot.place.is_some());
        let disk = |slot: &Slot| Some((slot.name.clone(), slot.spec.as_ref().filter(|_| slot.shape.is_some())?.to_string()));
        let disks = volumes.values().filter_map(disk).collect();
        let frontend = match self.frontend {
            Frontend::Ublk(_) => Choice::Ublk,
            Frontend::Fuse { .. } => Choice::Fuse,
            Frontend::Nbd { .. } => Choice::Nbd,
            Frontend::None => Choice::None,
        };
        Present { frontend: in_use.then_some(frontend), disks, ..self.present.clone() }
    }

    /// Refuses an upgrade while a device leaves something unanswered: what the kernel has of it keeps the claim on it, and whoever takes
    /// over would wait for that claim, and start without the device, or not at all. One may have fallen silent a moment ago: what all of them owe
    /// now is waited for, while clients are served.
    fn all_answer(&self) -> Result<(), Fault> {
        let since = Instant::now();
        loop {
            // What was asked for after this is younger.
            let waited = since.elapsed();
            match self.owed_for(waited)? {
                None => return Ok(()),
                Some((what, age)) if age >= UNANSWERED => return Err(unanswered(&what, age)),
                Some(_) if !self.goes_on() => return Err(ended()),
                Some(_) => thread::sleep(SOON),
            }
        }
    }

    /// The device that owes something for at least so long, and longest, for people; and how long.
    fn owed_for(&self, least: Duration) -> Result<Option<(String, Duration)>, Fault> {
        let snapshot = self.handle.snapshot().ok_or_else(ended)?;
        let in_use = snapshot.loads.iter().map(|(device, load)| (self.name_of(*device), load.oldest_ns));
        let removed = snapshot.removed.iter().map(|(path, ns)| (format!("{}, which was removed,", path.display()), *ns));
        let owed = in_use.chain(removed).map(|(what, ns)| (what, Duration::from_nanos(ns)));
        Ok(owed.filter(|(_, age)| !age.is_zero() && *age >= least).max_by_key(|(_, age)| *age))
    }

    /// Refuses an upgrade while somebody waits for the state folder's disk: no other program can be run in this process until he need not.
    fn state_answers(&self) -> Result<(), Fault> {
        if self.wait_until_written(UNANSWERED) {
            return Ok(());
        }
        Err(Fault::refused(format!(
            "The disk of the state folder, {}, has left something unanswered for {} s. Nothing was changed, and the daemon goes on as it was. \
             Look at the kernel's log for it, and upgrade when it answers again.",
            self.state.path().display(),
            UNANSWERED.as_secs()
        )))
    }

    /// A device that is in use, for people.
    fn name_of(&self, device: Device) -> String {
        match device {
            Device::Member(number) => {
                let path = lock(&self.places).members.get(&number).map(|path| format!(", {},", path.display()));
                format!("Cache device {number}{}", path.unwrap_or_default())
            }
            Device::Witness => "The witness in the state folder".into(),
            Device::Backing(number) => match lock(&self.volumes).get(&number) {
                Some(Slot { name, spec: Some(spec), .. }) => format!("The disk of volume {name}, {spec},"),
                _ => device.to_string(),
            },
        }
    }

    /// Asks the daemon's main thread to end, and waits until the engine has.
    fn want_stop(&self) -> Result<Value, Fault> {
        self.begin_to_stop();
        self.stopping.end().map(|()| json!({}))
    }

    /// Runs a command that may take long, and tells how far it is: bytes dirty, and seconds left by the rate so far. It is
    /// cancelled when its time is over. What the engine says of it otherwise.
    fn long(
        &self,
        volume: &VolumeStatus,
        command: Command,
        limit: Option<Limit>,
        progress: Progress<'_>,
    ) -> Result<Result<(), CommandError>, Fault> {
        let switches = if let Command::SetMode { mode, .. } = &command { Some(mode.name()) } else { None };
        let running = self.begin_on(volume.number, command)?;
        let begun = Instant::now();
        let at_first = volume.dirty_blocks;
        // How much is left, and how many seconds that takes at the rate so far.
        let left = || {
            let status = self.handle.status()?;
            let left = status.volume(&volume.name).map_or(0, |volume| volume.dirty_blocks);
            Some((left * BLOCK, seconds_left(begun, at_first.saturating_sub(left), left)))
        };
        let mut over = None;
        let result = loop {
            let rest = limit.filter(|_| over.is_none()).map(|limit| limit.rest());
            if let Some(result) = running.wait(rest.map_or(TELL, |rest| rest.min(TELL))) {
                break result;
            }
            let (bytes, seconds) = left().ok_or_else(ended)?;
            if rest.is_some_and(|rest| rest <= TELL) && limit.is_some_and(|limit| limit.rest().is_zero()) {
                over = Some((bytes, seconds));
                self.handle.begin(Command::Cancel(running.id));
            }
            progress(json!({ "dirty_bytes": bytes, "seconds_left": seconds }));
        };
        // The engine is asked before the end goes on without this.
        let is_cut = matches!(result, Err(CommandError::Cancelled)) && over.is_none() && !self.goes_on();
        let cut = is_cut.then(|| self.cut_short(&volume.name, switches.is_some()));
        self.ended_on(volume.number);
        if let Some(cut) = cut {
            return Err(cut);
        }
        match (result, over, limit) {
            (Err(CommandError::Cancelled), Some((bytes, seconds)), Some(Limit { seconds: given, .. })) => {
                let (name, more) =
                    (&volume.name, seconds.map_or("an unknown time".into(), |seconds| format!("about {seconds} s")));
                Err(Fault::failed(match switches {
                    // The switch itself comes before what is dirty is waited for.
                    Some(mode) => format!(
                        "Volume {name}: it is in mode {mode} now, and new writes follow it; but the {given} s given were over with {bytes} bytes of \
                         earlier ones not on the disk yet. At the rate so far they would have taken {more} more. Nothing is lost: the cache keeps \
                         them, and writes them down while clients leave the disk idle. Wait for the rest with `headpond flush {name}`, and keep \
                         the cache devices until then."
                    ),
                    None => format!(
                        "Volume {name}: the {given} s given were over with {bytes} bytes not on the disk yet. At the rate so far they would have \
                         taken {more} more. Nothing is lost, and the volume is served on. Give it more time, or write less to it meanwhile."
                    ),
                }))
            }
            (result, ..) => Ok(result),
        }
    }

    /// What whoever asked for a long command is told that the daemon's end has cancelled.
    fn cut_short(&self, name: &str, is_switched: bool) -> Fault {
        let Some(now) = self.handle.status().and_then(|status| status.volume(name).cloned()) else { return ended() };
        let (why, then) = match &*lock(&self.stopping.state) {
            StopState::Succeeded(program) => {
                (format!("{} goes on in the daemon's place", program.display()), "Wait until that serves the pool")
            }
            _ => ("the daemon is ending".into(), "Start it again with `headpond serve`"),
        };
        let mode = if is_switched { format!(" It is in mode {} now, and stays in it.", now.mode.name()) } else { String::new() };
        let bytes = now.dirty_blocks * BLOCK;
        Fault::failed(format!(
            "Volume {name}: cancelled, as {why}, with {bytes} bytes not on the disk yet.{mode} Nothing is lost: what is dirty is safe on the cache \
             devices, which have to be kept until then. {then}. Ask for the same again then."
        ))
    }

    /// Begins a command on a volume, and notes it, so that it can be cancelled: one at a time. It is not begun before that is sure: the
    /// engine might have done it by the time that it hears of the refusal.
    fn begin_on(&self, number: u16, command: Command) -> Result<Running, Fault> {
        let mut volumes = lock(&self.volumes);
        if let Some(slot) = volumes.get(&number) {
            is_free(slot)?;
        }
        let note = |id| {
            if let Some(slot) = volumes.get_mut(&number) {
                slot.running = Some(id);
            }
        };
        self.begin_noted(command, note).ok_or_else(ended)
    }

    /// Begins a command that may take long, and has it noted; `None` where the daemon ends. Whoever ends it cancels what is noted by then, and so
    /// none begins behind him.
    pub(super) fn begin_noted(&self, command: Command, note: impl FnOnce(CommandId)) -> Option<Running> {
        let state = lock(&self.stopping.state);
        if !matches!(*state, StopState::Running) {
            return None;
        }
        let running = self.handle.begin(command);
        note(running.id);
        Some(running)
    }

    /// Others may change a volume again.
    pub(super) fn is_free_again(&self, number: u16) {
        if let Some(slot) = lock(&self.volumes).get_mut(&number) {
            slot.busy = None;
        }
    }

    /// What was begun on a volume has ended.
    fn ended_on(&self, number: u16) {
        if let Some(slot) = lock(&self.volumes).get_mut(&number) {
            slot.running = None;
        }
    }
}

impl Stopping {
    /// Waits until the daemon has ended.
    ///
    /// # Errors
    /// It did not do so in time; or it does not end, as another program is going on in its place.
    fn end(&self) -> Result<(), Fault> {
        let mut state = lock(&self.state);
        loop {
            match &*state {
                StopState::Stopped(result) => return result.clone().map_err(Fault::failed),
                StopState::Succeeded(program) => {
                    return Err(Fault::failed(format!(
                        "{} is just taking over from this daemon, and goes on with its volumes. Nothing was stopped. Ask again, which then stops \
                         that one.",
                        program.display()
                    )));
                }
                StopState::Running | StopState::Wanted => {}
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// What a program says when it is told to try the command line of this daemon; nothing if it does not end in time, or `goes_on` says no. It may
/// wait for a device in the kernel, where nothing ends it: then nobody waits for it.
fn tried(program: &Path, present: &Present, goes_on: impl Fn() -> bool) -> std::io::Result<Option<process::Output>> {
    let mut command = process::Command::new(program);
    let (variable, told) = present.told();
    // Behind "serve": what comes after a "--" would be a device.
    let mut own = std::env::args_os().skip(1);
    command.args(own.next()).arg("--try").args(own).env(variable, told);
    let piped = process::Stdio::piped;
    let child = command.stdin(process::Stdio::null()).stdout(piped()).stderr(piped()).spawn()?;
    let pid = rustix::process::Pid::from_child(&child);
    let (told, end) = mpsc::channel();
    thread::Builder::new().name("upgrade-try".into()).spawn(move || told.send(child.wait_with_output()))?;
    let until = Instant::now() + TRIED;
    while goes_on() && Instant::now() < until {
        match end.recv_timeout(LOOK) {
            Ok(output) => return output.map(Some),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    Ok(None)
}

/// Whether nothing runs on a volume.
pub(super) fn is_free(slot: &Slot) -> Result<(), Fault> {
    let name = &slot.name;
    match (slot.running, slot.busy) {
        (None, None) => Ok(()),
        (Some(_), _) => Err(Fault::failed(format!(
            "Another command is under way on volume {name}. Nothing was changed. Wait for it, or cancel it with `headpond detach {name} --cancel`."
        ))),
        (None, Some(Busy::Comes)) => Err(Fault::failed(format!(
            "The disk of volume {name} is there, and is being looked at. Nothing was changed. Wait until `headpond status` says that the volume is \
             served, or why it is not; if that takes long, look at the kernel's log, and at the way to the disk."
        ))),
        (None, Some(Busy::Goes)) => Err(Fault::failed(format!(
            "Volume {name} is being thrown away. Nothing was changed. Wait for the end of that; `headpond status` says what there is then."
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    /// It waited for an end that did not come, until the other program cut the connection.
    #[test]
    fn who_stops_a_daemon_that_hands_over_is_told_so_and_does_not_wait() {
        let stopping =
            Arc::new(Stopping { state: Mutex::new(StopState::Succeeded("/usr/bin/headpond".into())), ..Stopping::default() });
        let (told, end) = mpsc::channel();
        thread::spawn(move || told.send(stopping.end()));
        let fault = end.recv_timeout(Duration::from_secs(30)).unwrap().unwrap_err();
        assert!(fault.to_string().contains("/usr/bin/headpond is just taking over"), "{fault}");
    }
}
