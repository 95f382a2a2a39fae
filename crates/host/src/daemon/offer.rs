//! Volumes made reachable by a front end, and taken away again; and what an earlier life has left of them.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use headpond_engine::status::VolumeStatus;
use headpond_format::VolumeEntry;

use super::{Attended, Export, Frontend, LAST_FLUSHED, Shape, Shared, Slot, lock, run_folder};
use crate::backing::HasDisk;
use crate::frontend::{FuseVolume, UblkVolume};
use crate::nbd::session::ExportInfo;
use crate::report::Advice;
use crate::{fuse, names, ublk};

impl Shared {
    /// Offers every volume that the engine serves; for some of them a device is ready.
    pub(super) fn offer_all(&self, mut ready: BTreeMap<u16, ublk::Device>) {
        let Some(status) = self.handle.status() else { return };
        for volume in &status.volumes {
            if volume.serving {
                self.offer(volume, ready.remove(&volume.number));
            }
            self.look_for_left_over(volume);
        }
    }

    /// Makes a volume reachable. What does not go as wished is kept as the volume's problem.
    pub(super) fn offer(&self, volume: &VolumeStatus, ready: Option<ublk::Device>) {
        let number = volume.number;
        let (name, shape) = match lock(&self.volumes).get(&number) {
            Some(Slot { name, shape: Some(shape), .. }) => (name.clone(), shape.clone()),
            _ => return,
        };
        // What is made as the daemon lets go of all would be nobody's to take away.
        {
            let mut offers = lock(&self.offers);
            if offers.are_over {
                return;
            }
            offers.under_way += 1;
        }
        // Not under the lock: whoever looks at a new block device asks the volume's own threads.
        let (export, place, problem) = match &self.frontend {
            Frontend::None => (None, None, None),
            Frontend::Nbd { socket, volumes, .. } => {
                volumes.offer(number, nbd_export(&name, &shape));
                (None, Some(format!("nbd+unix:///{name}?socket={}", socket.display())), None)
            }
            Frontend::Fuse { folder } => match self.loop_device(volume, &shape, folder) {
                Ok(export) => offered(Export::Loop(export)),
                Err(error) => {
                    let wrong = format!("Volume {name} is at work but has no block device: {error}.");
                    let next = "Put that right and restart, or serve with --frontend nbd.".into();
                    (None, None, Some(Advice { wrong, next }))
                }
            },
            Frontend::Ublk(attended) => match self.ublk_device(volume, &shape, *attended, ready) {
                Ok(device) => offered(Export::Ublk(Box::new(device))),
                Err(error) => {
                    let wrong = format!("Volume {name} is at work but has no block device: {error}.");
                    (None, None, Some(Advice { wrong, next: format!("{}.", error.next()) }))
                }
            },
        };
        self.set_out(number, export, place, problem);
        lock(&self.offers).under_way -= 1;
    }

    /// Notes how a volume is reachable from now on; or takes that away at once, if the daemon has let go of the others meanwhile.
    fn set_out(&self, number: u16, export: Option<Export>, place: Option<String>, problem: Option<Advice>) {
        let are_over = {
            let mut volumes = lock(&self.volumes);
            if let Some(slot) = volumes.get_mut(&number) {
                (slot.export, slot.place, slot.problem) = (export, place, problem);
            }
            // Not later: whoever lets go of all says so before he looks for what there is.
            lock(&self.offers).are_over
        };
        if are_over {
            self.withdraw_at_the_end(number, LAST_FLUSHED, Instant::now());
        }
    }

    fn loop_device(&self, volume: &VolumeStatus, shape: &Shape, folder: &Path) -> Result<fuse::Export, fuse::Error> {
        let (number, id, name, phase, has_disk) = (volume.number, volume.id, &volume.name, volume.phase, volume.has_disk());
        let volume = FuseVolume::new(self.handle.clone(), number, shape.size);
        let options = fuse::Options {
            block_size: shape.block,
            read_ahead_kb: Some(shape.read_ahead_kb),
            // What is below a file cannot always be told: a disk counts as one that rotates.
            rotational: shape.rotational || has_disk,
            phase,
            discards: shape.discards,
            ..fuse::Options::new(folder.join(name), name)
        };
        let left = lock(&self.left).remove(&id);
        let export = match left {
            Some(left) => fuse::Export::adopt(&options, left, volume)?,
            None => fuse::Export::start(&options, volume)?,
        };
        export.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
        Ok(export)
    }

    fn ublk_device(
        &self,
        volume: &VolumeStatus,
        shape: &Shape,
        attended: Attended,
        ready: Option<ublk::Device>,
    ) -> Result<ublk::Device, ublk::Error> {
        let (mark, wish) = (ublk::mark(&self.pool, &volume.id), lock(&self.places).ublk.get(&volume.name).copied());
        if let Err(error) = names::note(&run_folder(), mark, &self.name, &volume.name) {
            tracing::warn!("volume {} gets no name under /dev/headpond: {error}. Make room in /run", volume.name);
        }
        let options = ublk_options(mark, shape, volume.phase, wish, attended);
        let backend = UblkVolume::new(self.handle.clone(), volume.number);
        let device = match ready {
            Some(ready) => ready.serve(&options, backend)?,
            None => ublk::Device::start(&options, backend)?,
        };
        device.warnings().iter().for_each(|warning| tracing::warn!("{warning}. {}", warning.next()));
        // Written with what is remembered next: it is a wish, and clients wait.
        lock(&self.places).ublk.insert(volume.name.clone(), device.id());
        Ok(device)
    }

    /// Ends what an earlier life of this process has left, and this one will not come to serve: its volume is not the pool's any
    /// more, or volumes are reached in another way now. Whose disk is only missing waits for it.
    pub(super) fn end_what_nobody_takes_over(&self, volumes: &[VolumeEntry]) {
        let is_waited_for =
            |id: &[u8; 16]| matches!(self.frontend, Frontend::Fuse { .. }) && volumes.iter().any(|volume| volume.id == *id);
        let ids: Vec<[u8; 16]> = lock(&self.left).keys().filter(|id| !is_waited_for(id)).copied().collect();
        ids.iter().for_each(|id| self.end_left(id));
    }

    /// Ends the loop device of a volume that an earlier life of this process has left, and that nobody serves: whatever is attached next
    /// is another volume, and not what its users wrote to.
    pub(super) fn end_left(&self, id: &[u8; 16]) {
        let Some(left) = lock(&self.left).remove(id) else { return };
        tracing::warn!(
            "/dev/loop{} ({}), served before the upgrade, is ended: the I/O that waited there failed, and so does what its users ask for \
             now. What was acknowledged is where it was. Unmount what was on it",
            left.device,
            left.file.display()
        );
        left.end();
    }

    /// Removes the ublk device of a volume that is no more, if an earlier daemon has left one: nobody could name it any more.
    pub(super) fn end_left_over(&self, volume: &VolumeStatus) {
        let name = &volume.name;
        match ublk::remove(ublk::mark(&self.pool, &volume.id)) {
            Ok(None) => {}
            Ok(Some(path)) => tracing::warn!(
                "{} of volume {name}, left by an earlier daemon, is ended: the I/O that waited there failed. Unmount what was on it",
                path.display()
            ),
            Err(error) => {
                tracing::warn!(
                    "volume {name} is no more, but its block device, left by an earlier daemon, is: {error}. {}",
                    error.next()
                );
            }
        }
    }

    /// Says so where a device of a volume waits in the kernel that this daemon does not serve.
    pub(super) fn look_for_left_over(&self, volume: &VolumeStatus) {
        let mut volumes = lock(&self.volumes);
        let Some(slot) = volumes.get_mut(&volume.number) else { return };
        if matches!(slot.export, Some(Export::Ublk(_))) || slot.problem.is_some() && volume.serving {
            return;
        }
        let Some(left) = ublk::left_over(ublk::mark(&self.pool, &volume.id)) else { return };
        let (name, path) = (&volume.name, left.path());
        let waits = format!("{} of volume {name}, left by an earlier daemon, waits: its I/O is not answered.", path.display());
        slot.problem = Some(match slot.problem.take() {
            Some(Advice { wrong, next }) => Advice { wrong: format!("{wrong} {waits}"), next },
            None => {
                let goes_on = match (volume.serving, matches!(self.frontend, Frontend::Ublk(_))) {
                    (true, _) => "Restart with --frontend ublk, and it goes on",
                    (false, true) => "It goes on when the volume is served again",
                    (false, false) => "It goes on when the volume is served again, with --frontend ublk",
                };
                Advice { wrong: waits, next: format!("{goes_on}. Restart with --give-up {name} to end that I/O with errors.") }
            }
        });
    }

    /// Makes a volume unreachable; fails, and changes nothing, where `stop` does not take its block device away.
    pub(super) fn withdraw(&self, number: u16, stop: impl FnOnce(&mut Export) -> Result<(), String>) -> Result<(), String> {
        let export = lock(&self.volumes).get_mut(&number).and_then(|slot| slot.export.take());
        if let Some(mut export) = export
            && let Err(error) = stop(&mut export)
        {
            if let Some(slot) = lock(&self.volumes).get_mut(&number) {
                slot.export = Some(export);
            }
            return Err(error);
        }
        if let Frontend::Nbd { volumes, .. } = &self.frontend {
            volumes.withdraw(number);
        }
        if let Some(slot) = lock(&self.volumes).get_mut(&number) {
            slot.place = None;
        }
        Ok(())
    }

    /// A number is no volume's any more: who still has a connection to that one is answered with errors, and sent away. (The
    /// threads of its block device ended before it was detached.)
    pub(super) fn end_connections(&self, number: u16) {
        let Frontend::Nbd { volumes, connections, .. } = &self.frontend else { return };
        let closed = volumes.end(number).map_or(0, |export| connections.close(export));
        if closed > 0 {
            tracing::info!("closed {closed} NBD connections to a volume that is no more");
        }
    }
}

/// How a volume is to be offered over NBD.
pub(super) fn nbd_export(name: &str, shape: &Shape) -> ExportInfo {
    ExportInfo {
        description: format!("Headpond volume {name}"),
        min_block: shape.block,
        preferred_block: shape.optimal_io.clamp(4096, 1 << 20).next_power_of_two(),
        rotational: shape.rotational,
        trim: shape.discards,
        // Its number is whoever's that offers it.
        ..ExportInfo::new(0, name.to_owned(), shape.size)
    }
}

/// How a volume's ublk device is to be.
pub(super) fn ublk_options(mark: u64, shape: &Shape, phase: u8, wish: Option<u32>, attended: Attended) -> ublk::Options {
    let shape = ublk::Shape {
        size: shape.size,
        logical_block: shape.block,
        optimal_io: shape.optimal_io,
        rotational: shape.rotational,
        read_ahead_kb: shape.read_ahead_kb,
        discards: shape.discards,
        phase,
    };
    let Attended { queues, lends, patience } = attended;
    ublk::Options { mark, shape, lends, queues, wish, patience }
}

/// A block device that clients can use.
fn offered(export: Export) -> (Option<Export>, Option<String>, Option<Advice>) {
    let place = export.path().display().to_string();
    (Some(export), Some(place), None)
}

#[cfg(test)]
mod tests {
    use super::super::{Choice, Daemon, FLUSHED, Options};
    use super::*;
    use crate::embed::{Mode, Pool};
    use crate::succession::Estate;
    use std::fs::File;
    use std::time::Duration;

    /// A disk that came as the daemon ended had its volume's block device made after all had been taken away: it stayed, with nobody to answer,
    /// and the ring of the engine that had attended to it was closed under it.
    #[test]
    fn a_block_device_that_is_made_while_the_daemon_lets_go_of_all_does_not_stay() {
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() || !Path::new("/dev/loop-control").exists() {
            println!("skipped: it takes root, /dev/fuse and loop devices");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let ssds = ["ssd0", "ssd1"].map(path);
        for name in ["ssd0", "ssd1", "disk"] {
            File::create_new(path(name)).unwrap().set_len(64 << 20).unwrap();
        }
        Pool::create("tank", &ssds, &path("state")).unwrap();
        let pool = Pool::open(&ssds, &path("state")).unwrap();
        drop(pool.attach("home", &path("disk"), Mode::WriteBack).unwrap());
        pool.close(Duration::from_secs(60)).unwrap();
        let options =
            Options { socket: Some(path("socket")), frontend: Choice::Fuse, ..Options::new(ssds.to_vec(), path("state")) };
        let daemon = Daemon::start(options, Estate::default(), &mut |_| true).unwrap();
        let shared = &daemon.shared;
        let volume = shared.handle.status().unwrap().volume("home").unwrap().clone();
        let shape = lock(&shared.volumes)[&volume.number].shape.clone().unwrap();
        let has_none = || {
            let slots = lock(&shared.volumes);
            slots[&volume.number].export.is_none() && slots[&volume.number].place.is_none()
        };
        shared.withdraw(volume.number, |export| export.stop(FLUSHED)).unwrap();
        let Frontend::Fuse { folder } = &shared.frontend else { unreachable!("it was chosen") };
        let export = shared.loop_device(&volume, &shape, folder).unwrap();
        let loop_of = Path::new("/sys/block").join(export.device().file_name().unwrap()).join("loop");
        assert!(loop_of.exists());
        shared.begin_to_stop();
        shared.withdraw_block_devices(Instant::now() + FLUSHED);
        let (export, place, problem) = offered(Export::Loop(export));
        shared.set_out(volume.number, export, place, problem);
        assert!(has_none() && !loop_of.exists());
        // Nor is one begun.
        shared.offer(&volume, None);
        assert!(has_none());
        daemon.stop(FLUSHED).unwrap();
    }
}
