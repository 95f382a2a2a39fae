//! Backing devices that were not there at the start, or answered nothing: looked for again, and served when they come.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use headpond_engine::io::{Command, CommandError, Device};
use headpond_format::VolumeEntry;
use rustix::fs::FileType;

use super::disks::{Mismatch, open_disk, problem_with};
use super::worker::Worker;
use super::{Busy, Shape, Shared, lock, watch};
use crate::backing::{Backing, BackingError, HasDisk, Spec};
use crate::claim::ClaimError;
use crate::device::facts;
use crate::events::News;
use crate::report::Advice;
use crate::runtime::Running;

/// How often it is looked.
const LOOK: Duration = Duration::from_secs(3);
/// How long one that has come is waited for while the engine looks at it, until others have their turn.
const SOON: Duration = Duration::from_millis(100);
/// How long one may take to answer until the next look.
const ASKED: Duration = Duration::from_millis(500);

/// A volume without its backing device.
struct Missing {
    volume: VolumeEntry,
    spec: Spec,
    /// What was there in its place last.
    not: Option<Sight>,
    /// It is there, and the engine looks at it: how that ends, and what clients are to see of it. Nobody waits long for that, as a disk may have
    /// answered so far and no further.
    coming: Option<(Running, Shape)>,
}

/// What can be seen of a device or file without opening it: its node, and its size. What is the same as before is not tried
/// again. Opening a device for writing keeps others out for a moment, and udev looks at it anew afterwards.
#[derive(PartialEq, Eq)]
struct Sight {
    node: (u64, u64, u64),
    size: String,
    changed: (i64, u32),
}

impl Sight {
    fn of(path: &Path) -> Option<Sight> {
        let it = facts::look(path).ok()?;
        let size = match facts::kind(&it) {
            // A loop device, or one of the network, is there before it leads anywhere.
            FileType::BlockDevice => fs::read_to_string(facts::sysfs(facts::number(&it)).join("size")).unwrap_or_default(),
            _ => it.stx_size.to_string(),
        };
        let node = (facts::number_below(&it), it.stx_ino, facts::number(&it));
        Some(Sight { node, size, changed: (it.stx_ctime.tv_sec, it.stx_ctime.tv_nsec) })
    }
}

impl Shared {
    /// A thread that looks for the backing devices of volumes that have none, until all are there; `None` where nothing is missing. `volumes` are
    /// all of the pool's at the start.
    pub(super) fn look_for_late(self: &Arc<Shared>, volumes: &[VolumeEntry]) -> Option<Worker> {
        let mut missing: BTreeMap<u16, Missing> = {
            let slots = lock(&self.volumes);
            let missing = |volume: &VolumeEntry| {
                let slot = slots.get(&volume.number).filter(|slot| slot.shape.is_none())?;
                Some((volume.number, Missing { volume: volume.clone(), spec: slot.spec.clone()?, not: None, coming: None }))
            };
            volumes.iter().filter_map(missing).collect()
        };
        let mut silent = self.silent_disks();
        if missing.is_empty() && silent.is_empty() {
            return None;
        }
        let shared: Weak<Shared> = Arc::downgrade(self);
        let body = move |ended: Receiver<()>| {
            let mut looked = Instant::now();
            while !(missing.is_empty() && silent.is_empty()) {
                let pause = if missing.values().any(|missing| missing.coming.is_some()) { Duration::ZERO } else { LOOK };
                let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(pause) else { return };
                let Some(shared) = shared.upgrade() else { return };
                let looks = looked.elapsed() >= LOOK;
                if looks {
                    looked = Instant::now();
                }
                // Each may take its time.
                let goes_on = || matches!(ended.try_recv(), Err(TryRecvError::Empty));
                missing.retain(|_, missing| {
                    let is_done = match missing.coming {
                        Some(_) => shared.has_come(missing),
                        None => looks && goes_on() && shared.look_for(missing),
                    };
                    !is_done
                });
                silent.retain(|number| !looks || !shared.offer_late(*number));
            }
        };
        Worker::start("late-disks", body)
            .inspect_err(|error| {
                tracing::warn!(
                    "no thread that looks for missing backing devices: {error}; restart the daemon when they are there"
                );
            })
            .ok()
    }

    /// The volumes whose disks are there, and have not answered the engine by the end of the start: it goes on asking them.
    fn silent_disks(&self) -> BTreeSet<u16> {
        let Some(status) = self.handle.status() else { return BTreeSet::new() };
        let mut slots = lock(&self.volumes);
        let mut silent = BTreeSet::new();
        for volume in status.volumes.iter().filter(|volume| volume.has_disk() && !volume.serving && !volume.refused) {
            let Some(slot) = slots.get_mut(&volume.number).filter(|slot| slot.shape.is_some()) else { continue };
            let disk = slot.spec.as_ref().map(ToString::to_string).unwrap_or_default();
            slot.problem = Some(Advice {
                wrong: format!("Volume {} is not served yet: its backing device, {disk}, does not answer.", volume.name),
                next: "What is cached stays as it is, and the volume is served as soon as it answers. Look at the kernel's log, and at \
                       the way to the device."
                    .into(),
            });
            slot.busy = Some(Busy::Comes);
            silent.insert(volume.number);
        }
        silent
    }

    /// Offers such a volume once the engine serves it; whether it need not be looked at any more.
    fn offer_late(&self, number: u16) -> bool {
        let Some(status) = self.handle.status() else { return true };
        let Some(volume) = status.volumes.iter().find(|volume| volume.number == number) else { return true };
        if !volume.serving && !volume.refused {
            return false;
        }
        if !self.goes_on() {
            return true;
        }
        let spec = lock(&self.volumes).get_mut(&number).and_then(|slot| {
            slot.problem = None;
            slot.spec.clone()
        });
        if volume.serving {
            self.offer(volume, None);
            self.look_for_left_over(volume);
        }
        self.is_free_again(number);
        if let Some(spec) = spec {
            let news = if volume.serving { watch::of_late_disk } else { watch::of_refused_disk };
            self.events.add(news(&volume.name, &spec));
        }
        true
    }

    /// Looks whether a volume's disk is there, and has the engine look at it then. Whether it need not be looked for any more, as there is no such
    /// volume any more. What becomes of other volumes meanwhile does not matter; this one is kept from being changed.
    fn look_for(self: &Arc<Shared>, missing: &mut Missing) -> bool {
        let Missing { volume, spec, not, coming } = missing;
        let Some(sight) = Sight::of(spec.path()) else {
            *not = None;
            return false;
        };
        if not.as_ref() == Some(&sight) {
            return false;
        }
        // A silent one is asked on, and waited for by nobody.
        if let Err(error) = Backing::ask(spec, ASKED) {
            if let Some(slot) = lock(&self.volumes).get_mut(&volume.number).filter(|slot| slot.name == volume.name) {
                slot.problem = Some(problem_with(&volume.name, &Mismatch::Open(error)));
            }
            return false;
        }
        // It may have been thrown away meanwhile; its number may be another volume's, whose disk is not to be replaced.
        match lock(&self.volumes).get_mut(&volume.number) {
            Some(slot) if slot.name == volume.name && slot.shape.is_none() => match slot.busy {
                None => slot.busy = Some(Busy::Comes),
                Some(_) => return false,
            },
            _ => return true,
        }
        let backing = match open_disk(volume, spec, Duration::ZERO) {
            Ok(backing) => backing,
            Err(error) => {
                // Who holds it may let go without a sign.
                *not = Some(sight).filter(|_| !error.may_pass());
                if let Some(slot) = lock(&self.volumes).get_mut(&volume.number) {
                    (slot.problem, slot.busy) = (Some(problem_with(&volume.name, &error)), None);
                }
                return false;
            }
        };
        if !self.goes_on() {
            return false;
        }
        let shape = Shape::of(&backing.facts(), volume.sectors);
        self.handle.add(backing.give(volume.number));
        *coming = Some((self.handle.begin(Command::BackingCame { volume: volume.number }), shape));
        if let Some(slot) = lock(&self.volumes).get_mut(&volume.number) {
            slot.problem = Some(Advice {
                wrong: format!("Volume {} is not served yet: its backing device, {spec}, has come, and is being looked at.", volume.name),
                next: "What is cached stays as it is, and the volume is served as soon as the device has answered. Look at the kernel's log, and \
                       at the way to the device, if that takes long."
                    .into(),
            });
        }
        self.has_come(missing)
    }

    /// Whether the engine has looked at a disk that has come: the volume is served then, or refused.
    fn has_come(self: &Arc<Shared>, missing: &Missing) -> bool {
        let Missing { volume, spec, coming: Some((running, shape)), .. } = missing else { return false };
        let Some(result) = running.wait(SOON) else { return false };
        let news = self.take_in(volume, spec, shape, result);
        self.is_free_again(volume.number);
        news.into_iter().for_each(|news| self.events.add(news));
        true
    }

    /// What is to be told of it then.
    fn take_in(
        self: &Arc<Shared>,
        volume: &VolumeEntry,
        spec: &Spec,
        shape: &Shape,
        result: Result<(), CommandError>,
    ) -> Option<News> {
        if let Err(error) = &result
            && *error != CommandError::Refused
        {
            // The daemon ends.
            tracing::info!("volume {} is not served: {error}", volume.name);
            self.handle.remove(Device::Backing(volume.number));
            return None;
        }
        if !self.goes_on() {
            // It would be taken away at once.
            return None;
        }
        if let Some(slot) = lock(&self.volumes).get_mut(&volume.number) {
            (slot.shape, slot.problem) = (Some(shape.clone()), None);
        }
        if result.is_err() {
            // As at a start, it stays claimed.
            return Some(watch::of_refused_disk(&volume.name, spec));
        }
        if let Some(status) = self.handle.status()
            && let Some(now) = status.volume(&volume.name)
        {
            self.offer(now, None);
            self.look_for_left_over(now);
        }
        // Other disks are looked for by the same thread.
        lock(&self.places).volumes.insert(volume.name.clone(), spec.to_string());
        self.write_places_soon();
        Some(watch::of_late_disk(&volume.name, spec))
    }
}

impl Mismatch {
    /// Whether it may be otherwise the next time, though the device looks the same.
    fn may_pass(&self) -> bool {
        matches!(self, Mismatch::Open(BackingError::Claim(ClaimError::Held { .. } | ClaimError::Open { .. })))
    }
}
