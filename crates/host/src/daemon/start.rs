//! The steps of a start, in the order in which [`Daemon::start`](super::Daemon::start) takes them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use headpond_engine::Device;
use headpond_format::Superblock;

use super::disks::find_all;
use super::members::same_file;
use super::offer::ublk_options;
use super::{Attended, Choice, Frontend, Options, Slot, StartError};
use crate::backing::{HasDisk, Spec};
use crate::frontend::{NbdVolumes, UblkVolume};
use crate::nbd::server::{Limits, Server};
use crate::pool::OpenPool;
use crate::runtime::{Given, Handle};
use crate::state::{Places, State};
use crate::succession::Present;
use crate::ublk;

/// Where a pool's devices were last, and its cache devices are now.
pub(super) fn places_of(open: &OpenPool, known: &Places) -> Places {
    let mut places = known.clone();
    for given in &open.devices {
        if let Device::Member(number) = given.device {
            let path = std::path::absolute(given.claim.path()).unwrap_or_else(|_| given.claim.path().to_owned());
            // Whoever was there before is not.
            places.members.retain(|_, place| !same_file(place, &path));
            places.members.insert(number, path);
        }
    }
    places
}

/// Warns of disks in the configuration that are no volume's.
pub(super) fn warn_of_nobodys_disks(options: &Options, superblock: &Superblock) {
    for name in options.configured.keys() {
        let what = match superblock.volumes.iter().find(|volume| volume.name == *name) {
            Some(volume) if volume.has_disk() => continue,
            Some(_) => "has none: what it holds is on the cache devices alone",
            None => "is not the pool's, or is not any more",
        };
        tracing::warn!("the configuration names the backing device of volume {name}, which {what}. Take it out of [backing]");
    }
}

/// Claims the disks of all volumes, each if it answers within `limit`, and notes where they are.
pub(super) fn disks(
    options: &Options,
    superblock: &Superblock,
    places: &mut Places,
    limit: Duration,
) -> (BTreeMap<u16, Slot>, Vec<Given>) {
    let (mut volumes, mut devices, mut wanted) = (BTreeMap::new(), Vec::new(), Vec::new());
    for volume in &superblock.volumes {
        if !volume.has_disk() {
            volumes.insert(volume.number, Slot::without_disk(volume.name.clone(), volume.sectors));
            continue;
        }
        let named = options.backings.get(&volume.name).or_else(|| options.configured.get(&volume.name)).cloned();
        let last = places.volumes.get(&volume.name).map(|text| Spec::new(text));
        let spec = named.or_else(|| last.clone()).map(|spec| spec.after(last.as_ref()));
        wanted.push((volume, spec));
    }
    for (volume, slot, given) in find_all(wanted, limit, options.patience) {
        if let Some(spec) = slot.spec.as_ref().filter(|_| given.is_some()) {
            places.volumes.insert(volume.name.clone(), spec.to_string());
        }
        devices.extend(given);
        volumes.insert(volume.number, slot);
    }
    (volumes, devices)
}

/// The ublk devices of volumes, as far as they can be made ready beside the engine's start: clients of a daemon that was killed wait.
pub(super) fn prepared(
    options: &Options,
    superblock: &Superblock,
    volumes: &BTreeMap<u16, Slot>,
    places: &Places,
    handle: &Handle,
    attended: Attended,
) -> BTreeMap<u16, ublk::Device> {
    let mut ready = BTreeMap::new();
    for volume in superblock.volumes.iter().filter(|volume| !options.give_up.contains(&volume.name)) {
        let Some(Slot { shape: Some(shape), .. }) = volumes.get(&volume.number) else { continue };
        let wish = places.ublk.get(&volume.name).copied();
        let mark = ublk::mark(&superblock.pool, &volume.id);
        let of_device = ublk_options(mark, shape, volume.phase, wish, attended);
        // What goes wrong here goes wrong again when the volume is offered, and is told then.
        if let Ok(device) = ublk::Device::prepare(&of_device, UblkVolume::new(handle.clone(), volume.number)) {
            ready.insert(volume.number, device);
        }
    }
    ready
}

/// Removes the block devices that are not to be taken over.
pub(super) fn give_up(options: &Options, superblock: &Superblock) -> Result<(), StartError> {
    for volume in superblock.volumes.iter().filter(|volume| options.give_up.contains(&volume.name)) {
        let removed = ublk::remove(ublk::mark(&superblock.pool, &volume.id))
            .map_err(|error| StartError::GiveUp { wrong: error.to_string(), next: error.next().into() })?;
        if let Some(path) = removed {
            tracing::warn!(
                "{} of volume {} was given up: the I/O that waited there failed. Unmount what was on it",
                path.display(),
                volume.name
            );
        }
    }
    Ok(())
}

/// How volumes are reached: `front` is the NBD socket, or the folder of mounts.
pub(super) fn front_end(
    choice: Choice,
    front: PathBuf,
    attended: Attended,
    handle: &Handle,
) -> Result<(Frontend, Option<Server>), StartError> {
    Ok(match choice {
        Choice::Ublk => (Frontend::Ublk(attended), None),
        Choice::Nbd | Choice::Auto => {
            let socket = std::path::absolute(&front).unwrap_or(front);
            let volumes = NbdVolumes::new(handle.clone());
            let server = Server::start(&socket, volumes.clone(), Limits::default())?;
            (Frontend::Nbd { socket, volumes, connections: server.connections() }, Some(server))
        }
        Choice::Fuse => (Frontend::Fuse { folder: front }, None),
        Choice::None => (Frontend::None, None),
    })
}

/// Where it listens; `control` is its socket, if it has one.
pub(super) fn present(options: &Options, state: &State, control: Option<&Path>, frontend: &Frontend) -> Present {
    let mut sockets: Vec<PathBuf> = control.map(Path::to_owned).into_iter().collect();
    if let Frontend::Nbd { socket, .. } = frontend {
        sockets.push(socket.clone());
    }
    Present {
        frontend: None,
        metrics: options.metrics,
        sockets,
        control: control.map(Path::to_owned),
        state: Some(state.path().to_owned()),
        disks: BTreeMap::new(),
    }
}
