//! What loads are run on for real: a disk, two SSDs, and a daemon that serves the disk as a volume. Modelled devices, unless others are
//! given. It leaves nothing running or bound, whatever happens while it stands.

use crate::demo::{Daemon, Folder, Frontend};
use crate::experiments::real::given::look;
use crate::experiments::real::modelled::{Model, Wanted as Kind};
use crate::experiments::real::rig::{Modelled, create_pool};
use anyhow::{Context, Result, bail};
use headpond_host::control::{Attach, Call, Runs};
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

/// The volume's name.
const VOLUME: &str = "bench";
/// Bytes of a modelled disk, which is in memory as far as it is written.
const DISK: u64 = 4 << 30;
/// Bytes of a modelled SSD.
const SSD: u64 = 1 << 30;
/// What a disk and an SSD that are given have at least, in bytes.
const LEAST: [u64; 2] = [DISK, SSD];
/// Memory that modelled devices take at most, and some for what uses them, in bytes.
const MEMORY: u64 = DISK + 2 * SSD + (1 << 30);

/// The way of clients to the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// The disk itself.
    Bare,
    /// Behind the front end, in pass-through.
    Front,
    /// Cached.
    Back,
}

/// The devices that it is to stand on.
#[derive(Clone, Debug)]
pub enum Wanted {
    /// Models of a nearline disk and of two SSDs of 12,000 requests a second.
    Modelled,
    /// These, which are overwritten.
    Given {
        /// The disk.
        disk: PathBuf,
        /// The SSDs.
        ssds: [PathBuf; 2],
    },
}

impl Wanted {
    /// Looks at devices that were given, and changes nothing. What is on them; an error says what is wrong with which.
    pub fn look(&self) -> Result<Vec<String>, String> {
        let Wanted::Given { disk, ssds } = self else { return Ok(Vec::new()) };
        if ssds[0] == ssds[1] || ssds.contains(disk) {
            return Err("a device was given twice".into());
        }
        [(disk, LEAST[0]), (&ssds[0], LEAST[1]), (&ssds[1], LEAST[1])]
            .into_iter()
            .map(|(path, least)| look(path, least))
            .collect()
    }

    /// In words.
    pub fn name(&self) -> String {
        match self {
            Wanted::Modelled => "a modelled disk of 7200 rpm, the front of one of 8 TiB, and two modelled SSDs of 12,000 requests and 500 MB a second".into(),
            Wanted::Given { disk, ssds: [a, b] } => format!("{}, cached on {} and {}", disk.display(), a.display(), b.display()),
        }
    }
}

/// The stand. The order of the fields is that in which they go.
pub struct Stand<'a> {
    daemon: Option<Daemon>,
    /// The volume's mode, and its device, while it is attached.
    attached: Option<(String, PathBuf)>,
    disk: PathBuf,
    disk_bytes: u64,
    /// Bytes of the smaller SSD.
    ssd_bytes: u64,
    /// How clients reach the volume.
    pub frontend: Frontend,
    stop: &'a AtomicBool,
    _modelled: Option<Modelled>,
    _folder: Folder,
}

impl<'a> Stand<'a> {
    /// Why modelled devices cannot be had here, if so.
    pub fn missing() -> Option<String> {
        let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
        let there = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok()).map(|kib| kib << 10);
        there.filter(|there| *there < MEMORY).map(|there| {
            format!(
                "the modelled devices are in memory and need {} GiB of it, of which {:.1} are free",
                MEMORY >> 30,
                there as f64 / f64::from(1 << 30)
            )
        })
    }

    /// Sets it up in a folder that does not exist yet.
    pub fn set_up(path: &Path, wanted: &Wanted, stop: &'a AtomicBool) -> Result<Stand<'a>> {
        let folder = Folder::make(path, false)?;
        let (modelled, disk, ssds) = match wanted {
            Wanted::Given { disk, ssds } => (None, disk.clone(), ssds.to_vec()),
            Wanted::Modelled => {
                let of = |name: &str, kind, bytes| Kind { name: name.into(), kind, bytes };
                let all = [of("disk", Model::Disk, DISK), of("ssd0", Model::Ssd, SSD), of("ssd1", Model::Ssd, SSD)];
                let (modelled, places) = Modelled::start(&path.join("modelled"), &all)?;
                let place = |name: &str| places.get(name).cloned().with_context(|| format!("there is no modelled {name}"));
                (Some(modelled), place("disk")?, vec![place("ssd0")?, place("ssd1")?])
            }
        };
        let bytes_of = |path: &PathBuf| {
            let bytes = File::open(path).and_then(|mut it| it.seek(SeekFrom::End(0)));
            bytes.with_context(|| format!("{} cannot be opened", path.display()))
        };
        let disk_bytes = bytes_of(&disk)?;
        let ssd_bytes = bytes_of(&ssds[0])?.min(bytes_of(&ssds[1])?);
        create_pool(path, &ssds)?;
        let frontend = Frontend::of_kernel();
        let daemon = Some(Daemon::start(path, &ssds, frontend)?);
        Ok(Stand { daemon, attached: None, disk, disk_bytes, ssd_bytes, frontend, stop, _modelled: modelled, _folder: folder })
    }

    /// The disk's size.
    pub fn disk_bytes(&self) -> u64 {
        self.disk_bytes
    }

    /// What may be brought into the cache at once, in bytes: half of what both SSDs hold, less what is theirs.
    pub fn preloads(&self) -> u64 {
        self.ssd_bytes / 16 * 15
    }

    /// What ends a load.
    pub fn stop(&self) -> &'a AtomicBool {
        self.stop
    }

    fn call(&self, call: &Call) -> Result<()> {
        self.daemon.as_ref().context("no daemon runs")?.call(call).map(drop)
    }

    /// Makes a way ready: nothing dirty anywhere, and in the cache what `warm` says, in bytes of the volume, and nothing else. The device
    /// for clients.
    pub fn ready(&mut self, way: Way, mode: &str, warm: &[[u64; 2]]) -> Result<PathBuf> {
        match way {
            Way::Bare => self.detach()?,
            // What is dirty is written down, and the rest let go.
            Way::Front | Way::Back => self.switch("pass-through")?,
        }
        if way == Way::Back {
            self.switch(mode)?;
            if !warm.is_empty() {
                self.call(&Call::Preload(Runs { name: VOLUME.into(), runs: warm.to_vec() }))?;
            }
        }
        self.settle()?;
        match (way, &self.attached) {
            (Way::Bare, _) => Ok(self.disk.clone()),
            (_, Some((_, place))) => Ok(place.clone()),
            (_, None) => bail!("the volume is not attached"),
        }
    }

    /// Has all that the disk has in its own cache written down.
    pub fn settle(&self) -> Result<()> {
        let place = self.attached.as_ref().map_or(&self.disk, |(_, place)| place);
        let flushed = File::open(place).and_then(|it| it.sync_all());
        flushed.with_context(|| format!("{} did not flush its cache", place.display()))
    }

    fn switch(&mut self, mode: &str) -> Result<()> {
        match &mut self.attached {
            Some((now, _)) if now == mode => return Ok(()),
            Some((now, _)) => {
                *now = mode.into();
                return self.call(&Call::SetMode { name: VOLUME.into(), mode: mode.into(), deadline_seconds: None });
            }
            None => {}
        }
        let spec = self.disk.display().to_string();
        self.call(&Call::Attach(Attach { name: VOLUME.into(), spec, mode: mode.into(), phase: None }))?;
        let report = self.daemon.as_ref().context("no daemon runs")?.report()?;
        let place = report.volumes.into_iter().find(|it| it.name == VOLUME).and_then(|it| it.place);
        self.attached = Some((mode.into(), place.context("the volume has no block device")?.into()));
        Ok(())
    }

    fn detach(&mut self) -> Result<()> {
        if self.attached.take().is_some() {
            let name = VOLUME.into();
            self.call(&Call::Detach { name, give_up_lost: false, throw_away: false, deadline_seconds: None })?;
        }
        Ok(())
    }
}

impl Drop for Stand<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.detach() {
            eprintln!("The volume was not detached: {error:#}. The daemon is ended all the same");
        }
        if let Some(Err(error)) = self.daemon.take().map(Daemon::stop) {
            eprintln!("The daemon was killed, as it did not end cleanly: {error:#}");
        }
    }
}
