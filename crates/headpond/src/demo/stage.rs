//! What the demo plays on: a disk, two SSDs, the daemon, and what is mounted. It leaves nothing running or mounted.

use super::daemon::{Daemon, Frontend, nbd_socket};
use super::filesystem::{FileSystem, Mounted};
use super::target::Place;
use anyhow::{Context, Result, bail};
use headpond_engine::io::Buf;
use headpond_host::buf::HostBuf;
use headpond_host::control::{Attach, Call};
use headpond_host::fuse::{loopdev, mount};
use headpond_host::pool::{NewPool, PoolError, create, destroy};
use headpond_host::report::Report;
use headpond_host::state::State;
use rustix::fs::OFlags;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The name of the pool and of the volume.
const NAME: &str = "demo";
/// Requests that a file on a file system has at a time: those of all loads.
const FILE_DEPTH: usize = 32;

/// The devices.
#[derive(Clone, Debug)]
pub struct Devices {
    /// The rotating disk.
    pub disk: PathBuf,
    /// Whether it is a file at the pace of a model.
    pub modelled: bool,
    /// The SSDs.
    pub ssds: Vec<PathBuf>,
}

/// How loads reach the volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Front {
    /// As an NBD export.
    Nbd,
    /// As a file on a file system on a loop device.
    File(FileSystem),
}

/// A folder that goes with all that is in it, unless it is to be kept.
pub struct Folder {
    path: PathBuf,
    keep: bool,
}

impl Folder {
    /// Makes it; it must not exist.
    pub fn make(path: &Path, keep: bool) -> Result<Folder> {
        let parent = path.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(parent)
            .and_then(|()| fs::create_dir(path))
            .with_context(|| format!("{} cannot be made", path.display()))?;
        Ok(Folder { path: path.to_owned(), keep })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.keep {
            eprintln!("All that was made stays in {}", self.path.display());
        } else if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!("{} cannot be removed: {error}", self.path.display());
        }
    }
}

/// All of it. Dropped, everything is ended and unmounted.
pub struct Stage {
    folder: PathBuf,
    devices: Devices,
    front: Front,
    mounted: Option<Mounted>,
    daemon: Option<Daemon>,
}

impl Stage {
    /// Makes a pool of the SSDs and attaches the disk to it, in pass-through. Both are overwritten. What the daemon needs beside
    /// them is kept in `folder`.
    pub fn set_up(folder: &Path, devices: Devices, front: Front) -> Result<Stage> {
        let mut stage = Stage { folder: folder.to_owned(), devices, front, mounted: None, daemon: None };
        let state = State::open(&stage.folder.join("state"))?;
        let new = NewPool {
            name: NAME.into(),
            devices: stage.devices.ssds.clone(),
            copies: 2,
            segment_bytes: 0,
            unit: None,
            force: true,
            discard_dirty: None,
        };
        create(&new, &state)?;
        let frontend = stage.frontend();
        let daemon = stage.daemon.insert(Daemon::start(folder, &stage.devices.ssds, frontend)?);
        let model = if stage.devices.modelled { "modelled:" } else { "" };
        let spec = format!("{model}{}", stage.devices.disk.display());
        daemon.call(&Call::Attach(Attach { name: NAME.into(), spec, mode: "pass-through".into(), phase: None }))?;
        if let Front::File(system) = front {
            system.make(&stage.loop_device()?)?;
            stage.mount()?;
        }
        Ok(stage)
    }

    fn frontend(&self) -> Frontend {
        match self.front {
            Front::Nbd => Frontend::Nbd,
            Front::File(_) => Frontend::Fuse,
        }
    }

    fn daemon(&self) -> Result<&Daemon> {
        self.daemon.as_ref().context("no daemon runs")
    }

    /// Where loads go.
    pub fn place(&self) -> Place {
        match self.front {
            Front::Nbd => Place::Nbd { socket: nbd_socket(&self.folder), export: NAME.into() },
            Front::File(_) => Place::File { path: self.load_file(), depth: FILE_DEPTH },
        }
    }

    /// The file that loads go to, on the mounted file system.
    pub fn load_file(&self) -> PathBuf {
        self.mount_point().join("load")
    }

    /// Where the file system is mounted.
    pub fn mount_point(&self) -> PathBuf {
        self.folder.join("mnt")
    }

    /// The devices.
    pub fn devices(&self) -> &Devices {
        &self.devices
    }

    /// How everything stands.
    pub fn report(&self) -> Result<Report> {
        self.daemon()?.report()
    }

    /// Switches the volume's mode.
    pub fn mode(&self, mode: &str) -> Result<()> {
        self.daemon()?.call(&Call::SetMode { name: NAME.into(), mode: mode.into(), deadline_seconds: None }).map(drop)
    }

    /// Writes all that is dirty to the disk.
    pub fn destage(&self) -> Result<()> {
        self.daemon()?.call(&Call::Destage { name: NAME.into(), deadline_seconds: None }).map(drop)
    }

    /// Kills the daemon. What was mounted is of no use any more, and stays until [`Stage::restart`].
    pub fn kill(&mut self) -> Result<()> {
        self.daemon.as_mut().context("no daemon runs")?.kill()?;
        self.daemon = None;
        Ok(())
    }

    /// Starts the daemon again with these of the SSDs, checks the file system and mounts it. Returns how long the daemon took.
    pub fn restart(&mut self, ssds: &[PathBuf]) -> Result<Duration> {
        if let Some(mounted) = self.mounted.take() {
            mounted.unmount()?;
        }
        let frontend = self.frontend();
        let daemon = self.daemon.insert(Daemon::start(&self.folder, ssds, frontend)?);
        let took = daemon.started_in;
        if let Front::File(system) = self.front {
            system.check(&self.loop_device()?, &self.mount_point())?;
            self.mount()?;
        }
        Ok(took)
    }

    fn mount(&mut self) -> Result<()> {
        self.mounted = Some(Mounted::new(&self.loop_device()?, &self.mount_point(), &[])?);
        Ok(())
    }

    /// The volume's block device.
    fn loop_device(&self) -> Result<PathBuf> {
        let report = self.report()?;
        let place = report.volumes.first().and_then(|volume| volume.place.clone());
        match place {
            Some(place) if place.starts_with("/dev/") => Ok(place.into()),
            place => bail!("the volume has no block device, but {place:?}"),
        }
    }

    /// Unmounts, detaches the volume, and ends the daemon: from now on the disk is alone.
    pub fn detach(&mut self) -> Result<()> {
        if let Some(mounted) = self.mounted.take() {
            mounted.unmount()?;
        }
        self.daemon()?.call(&Call::Detach {
            name: NAME.into(),
            give_up_lost: false,
            throw_away: false,
            deadline_seconds: None,
        })?;
        self.daemon.take().context("no daemon runs")?.stop()
    }

    /// Makes the SSDs plain devices again, after the detach. The one that was taken away still believes that it has data
    /// that the disk lacks; it is told which pool's data that is, and may be lost.
    pub fn free_ssds(&self) -> Result<()> {
        let state = State::open(&self.folder.join("state"))?;
        for ssd in &self.devices.ssds {
            let one = std::slice::from_ref(ssd);
            match destroy(one, None, &state) {
                Err(PoolError::Dirty { id, epoch, .. }) => {
                    let permit = format!("{id}:{epoch}").parse().map_err(anyhow::Error::msg)?;
                    destroy(one, Some(&permit), &state)?
                }
                result => result?,
            };
        }
        Ok(())
    }

    /// The disk alone: where loads would be found on it, with what has to stay mounted meanwhile.
    pub fn disk_alone(&self) -> Result<(Place, Option<Mounted>)> {
        match self.front {
            Front::Nbd => Ok((Place::File { path: self.devices.disk.clone(), depth: FILE_DEPTH }, None)),
            Front::File(_) => {
                let options: &[&str] = if self.devices.modelled { &["-o", "loop"] } else { &[] };
                let mounted = Mounted::new(&self.devices.disk, &self.mount_point(), options)?;
                Ok((Place::File { path: self.load_file(), depth: FILE_DEPTH }, Some(mounted)))
            }
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // First what is mounted, while somebody answers it.
        self.mounted = None;
        self.daemon = None;
        // What a killed daemon leaves: a dead mount beside the control socket, and a loop device bound to the file in it.
        let point = self.folder.join(NAME).join(NAME);
        if matches!(mount::look(&point), Ok(mount::Found::Dead)) {
            let _ = loopdev::detach_left_over(&point.join(NAME));
            let _ = mount::clear_dead(&point);
        }
    }
}

/// Makes a file of this size whose space is taken from `from` on for `length` bytes.
pub fn make_file(path: &Path, size: u64, taken: &[(u64, u64)]) -> Result<()> {
    let file = File::create(path).with_context(|| format!("{} cannot be made", path.display()))?;
    file.set_len(size)?;
    for (from, length) in taken {
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), *from, *length)
            .with_context(|| format!("there is no room for {}; choose another folder with --dir", path.display()))?;
    }
    Ok(())
}

/// Writes zeroes over a file for as long as `patience`. Space that was taken and never written costs a note in the file
/// system's journal with each first write, which no SSD would.
pub fn write_once(path: &Path, patience: Duration) -> Result<()> {
    const STEP: u64 = 4 << 20;
    let begun = Instant::now();
    let file = File::options().write(true).custom_flags(OFlags::DIRECT.bits() as i32).open(path)?;
    let zeroes = HostBuf::zeroes(STEP as usize);
    let steps = file.metadata()?.len() / STEP;
    for step in (0..steps).take_while(|_| begun.elapsed() < patience) {
        file.write_all_at(zeroes.as_slice(), step * STEP)?;
    }
    Ok(())
}
