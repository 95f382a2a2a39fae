//! What the experiments of the NFS server run on: disks and SSDs, given or modelled, a pool and its daemon, and for each way to the
//! data a file system that the kernel's server exports and its client mounts, over loopback.
//!
//! It leaves nothing running, mounted or served, and no pool on a device.

use super::fio::{self, JobFile, Rates};
use super::given::{COUNT, DISK_BYTES, Given, SSD_BYTES};
use super::modelled::{Model, Wanted};
use super::nfs_server::{Server, forget};
use super::rig::{Modelled, create_pool};
use crate::commands::targets::Targets;
use crate::demo::{Daemon, FileSystem, Folder, Frontend, Mounted};
use anyhow::{Context, Result, bail};
use headpond_engine::Settings;
use headpond_host::control::{AddMember, Attach, Call};
use headpond_host::pool::destroy;
use headpond_host::report::{Report, Volume};
use headpond_host::state::State;
use headpond_sim::experiments::outcome::Who;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// How long the server may take to let go of a file system that it has served.
const LETTING_GO: Duration = Duration::from_secs(60);
/// Bytes of the file system in memory by which the path over NFS is measured alone.
const MEMORY: u64 = 160 << 20;

/// What is to be set up.
pub struct Plan<'a> {
    /// Who is measured.
    pub whos: &'a [Who],
    /// Bytes of each SSD of the pool, where it is to be less than all of it.
    pub ssd: Option<u64>,
}

/// One file system, exported and mounted.
struct Way {
    /// None of those who are measured, where it is memory.
    who: Option<Who>,
    local: PathBuf,
    point: PathBuf,
    served: Option<Mounted>,
    client: Option<Mounted>,
}

/// A part of a device, which is one by itself. It goes when it is dropped.
struct Part(String);

impl Part {
    fn of(device: &Path, bytes: u64, name: String) -> Result<(Part, PathBuf)> {
        let table = format!("0 {} linear {} 0", bytes / 512, device.display());
        let made = Command::new("dmsetup").args(["create", &name, "--table", &table]).stdin(Stdio::null()).output()?;
        if !made.status.success() {
            bail!("no part of {} can be had: {}", device.display(), String::from_utf8_lossy(&made.stderr).trim());
        }
        let path = Path::new("/dev/mapper").join(&name);
        Ok((Part(name), path))
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // It fails when something still holds it, which the next run is told.
        let _ = Command::new("dmsetup").args(["remove", "--retry", &self.0]).stdin(Stdio::null()).output();
    }
}

/// All of it. The order of the fields is that in which they go.
pub struct NfsRig<'a> {
    stop: &'a AtomicBool,
    ways: Vec<Way>,
    server: Option<Server>,
    daemon: Option<Daemon>,
    /// The SSDs that are the pool's at the beginning, and those that are not.
    pool: Vec<PathBuf>,
    spare: Vec<PathBuf>,
    parts: Vec<Part>,
    modelled: Option<Modelled>,
    folder: Folder,
}

fn name(who: Who) -> &'static str {
    match who {
        Who::Bare => "bare",
        Who::Front => "front",
        Who::Through => "through",
        Who::Ssds => "ssd",
        _ => "back",
    }
}

impl<'a> NfsRig<'a> {
    /// Sets it up in a folder that does not exist yet, with an empty file system on every way.
    pub fn set_up(
        path: &Path,
        given: Option<&Given>,
        plan: &Plan<'_>,
        system: FileSystem,
        stop: &'a AtomicBool,
    ) -> Result<NfsRig<'a>> {
        let folder = Folder::make(path, false)?;
        let (given, modelled, frontend) = match given {
            Some(given) => (given.clone(), None, Frontend::of_kernel()),
            None => {
                let (given, modelled) = model(path, plan)?;
                (given, Some(modelled), Frontend::Fuse)
            }
        };
        let (pool, spare) = given.ssds.split_at(2);
        let mut rig = NfsRig {
            stop,
            ways: Vec::new(),
            server: None,
            daemon: None,
            pool: pool.to_vec(),
            spare: spare.to_vec(),
            parts: Vec::new(),
            modelled,
            folder,
        };
        if let Some(bytes) = plan.ssd.filter(|_| rig.modelled.is_none()) {
            for (n, ssd) in rig.pool.iter_mut().enumerate() {
                let (part, path) = Part::of(ssd, bytes, format!("headpond-{}-{n}", std::process::id()))?;
                rig.parts.push(part);
                *ssd = path;
            }
        }
        create_pool(path, &rig.pool)?;
        rig.daemon = Some(Daemon::start(path, &rig.pool, frontend)?);
        rig.server = Some(Server::start(path)?);
        for who in plan.whos {
            let devices: Vec<PathBuf> = match who {
                Who::Ssds => rig.spare.clone(),
                Who::Bare => vec![given.disks[0].clone()],
                Who::Front => vec![given.disks[1].clone()],
                Who::Through => vec![given.disks[3].clone()],
                _ => vec![given.disks[2].clone()],
            };
            for (n, device) in devices.iter().enumerate() {
                rig.add(*who, n, device, system)?;
            }
        }
        Ok(rig)
    }

    /// Attaches a device if it is to be reached by the daemon, and makes, exports and mounts a file system.
    fn add(&mut self, who: Who, n: usize, device: &Path, system: FileSystem) -> Result<()> {
        let name = format!("{}{n}", name(who));
        let mode = match who {
            Who::Bare => None,
            // The SSDs alone are behind the same front end, as nothing could be as fast as they are without it.
            Who::Front | Who::Ssds => Some("pass-through"),
            Who::Through => Some("write-through"),
            _ => Some("write-back"),
        };
        let device = match mode {
            None => device.to_owned(),
            Some(mode) => {
                let spec = device.display().to_string();
                self.call(&Call::Attach(Attach { name: name.clone(), spec, mode: mode.into(), phase: None }))?;
                let volume = self.volume(&name)?;
                volume.place.with_context(|| format!("the volume {name} has no block device"))?.into()
            }
        };
        system.make(&device)?;
        let (local, point) = (self.path().join("srv").join(&name), self.path().join("mnt").join(&name));
        let served = Mounted::new(&device, &local, &[])?;
        self.export(Way { who: Some(who), local, point, served: Some(served), client: None })
    }

    /// It is kept before anything can fail: then it is unmounted whatever happens.
    fn export(&mut self, way: Way) -> Result<()> {
        let number = self.ways.len();
        let client = self.server()?.serve(&way.local, number, &way.point);
        self.ways.push(way);
        self.ways[number].client = Some(client?);
        Ok(())
    }

    /// The same export and mount of memory alone, which says what all of this can do at most.
    pub fn memory(&mut self) -> Result<String> {
        let (local, point) = (self.path().join("srv/memory"), self.path().join("mnt/memory"));
        let served = Mounted::new(Path::new("memory"), &local, &["-t", "tmpfs", "-o", &format!("size={MEMORY}")])?;
        let shown = point.display().to_string();
        self.export(Way { who: None, local, point, served: Some(served), client: None })?;
        Ok(shown)
    }

    /// The folder for files of tools.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    fn server(&self) -> Result<&Server> {
        self.server.as_ref().context("no NFS server runs")
    }

    fn call(&self, call: &Call) -> Result<serde_json::Value> {
        self.daemon.as_ref().context("no daemon runs")?.call(call)
    }

    fn volume(&self, name: &str) -> Result<Volume> {
        let report = self.report()?;
        report.volumes.into_iter().find(|it| it.name == name).with_context(|| format!("there is no volume {name}"))
    }

    /// How the cached volume stands.
    pub fn cached(&self) -> Result<Volume> {
        self.volume("back0")
    }

    fn report(&self) -> Result<Report> {
        self.daemon.as_ref().context("no daemon runs")?.report()
    }

    /// How much of the space for dirty data is taken, in percent.
    pub fn dirty_percent(&self) -> Result<u32> {
        Ok(self.report()?.dirty_percent)
    }

    /// Bytes of the space for dirty data, each copy counted once, by the pool's segments and the default settings.
    pub fn space_for_dirty(&self) -> Result<u64> {
        let report = self.report()?;
        let share = u64::from(Settings::default().dirty_percent);
        Ok(report.segments * report.segment_bytes / u64::from(report.copies.max(1)) * share / 100)
    }

    /// Where clients find one's files; of several file systems fio gives each client the next.
    pub fn folders(&self, who: Who) -> String {
        let of = self.ways.iter().filter(|way| way.who == Some(who));
        of.map(|way| way.point.display().to_string()).collect::<Vec<_>>().join(":")
    }

    /// The same folders where the server has them: files are laid out there, as that takes a fraction of the time.
    pub fn locals(&self, folders: &str) -> String {
        let local =
            |point: &str| self.ways.iter().find(|way| way.point.as_os_str() == point).map(|way| way.local.display().to_string());
        folders.split(':').filter_map(local).collect::<Vec<_>>().join(":")
    }

    /// Seconds of a processor that the daemon has taken so far.
    pub fn daemon_seconds(&self) -> Result<f64> {
        let daemon = self.daemon.as_ref().context("no daemon runs")?;
        let text = std::fs::read_to_string(format!("/proc/{}/stat", daemon.process()))?;
        // After the name, which may have anything in it: user and system time are the 12th and 13th, in hundredths.
        let fields = text.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().skip(11).take(2);
        Ok(fields.filter_map(|it| it.parse::<f64>().ok()).sum::<f64>() / 100.0)
    }

    /// Runs sections of a job on one's file system, `values` beside `DIR`.
    pub fn fio(&self, folders: &str, job: JobFile, sections: &[&str], values: &[(&str, String)]) -> Result<Rates> {
        let mut all = vec![("DIR", folders.to_owned())];
        all.extend(values.iter().cloned());
        fio::run(job, sections, &all, self.path(), self.stop)
    }

    /// Writes down what is dirty where there is a cache, and has the server forget its files.
    pub fn settle(&self, who: Who) -> Result<()> {
        forget()?;
        if matches!(who, Who::Back | Who::Through) {
            self.call(&Call::Destage { name: format!("{}0", name(who)), deadline_seconds: None })?;
        }
        Ok(())
    }

    /// Has the cache bring all files of the cached volume. How many bytes it had no room for.
    pub fn preload(&self) -> Result<u64> {
        forget()?;
        let report = self.report()?;
        let local = self.ways.iter().find(|way| way.who == Some(Who::Back)).context("nothing is cached")?;
        let mut left_out = 0;
        // One by one: all of them together may be more than the half of the cache that one call may bring.
        for file in std::fs::read_dir(&local.local)? {
            let targets = Targets::of(&report, &[file?.path().display().to_string()], false)?;
            for runs in targets.calls() {
                left_out += self.call(&Call::Preload(runs))?["left_out_bytes"].as_u64().unwrap_or(0);
            }
        }
        Ok(left_out)
    }

    /// Removes all files that clients see of one's.
    pub fn clear(&self, who: Who) -> Result<()> {
        for way in self.ways.iter().filter(|way| way.who == Some(who)) {
            for entry in std::fs::read_dir(&way.point)?.flatten().filter(|it| it.path().is_file()) {
                std::fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    /// Makes the cache cold as it was published: switched off, which writes down what is dirty, each SSD taken out of the pool and
    /// put back, switched on again. The volume stays mounted, exported and in use; a third SSD stands in, as a pool of two would
    /// not let one of them go.
    pub fn cool(&self) -> Result<()> {
        let mode = |mode: &str| Call::SetMode { name: "back0".into(), mode: mode.into(), deadline_seconds: None };
        let shown = |path: &PathBuf| path.display().to_string();
        let add = |path: &PathBuf| {
            Call::AddMember(AddMember { path: shown(path), force: true, discard_dirty: None, in_place_of: None })
        };
        let remove = |path: &PathBuf| Call::RemoveMember { member: shown(path) };
        let stand_in = self.spare.first().context("there is no third SSD")?;
        self.call(&mode("pass-through"))?;
        self.call(&add(stand_in))?;
        for ssd in &self.pool {
            self.call(&remove(ssd))?;
            self.call(&add(ssd))?;
        }
        self.call(&remove(stand_in))?;
        self.call(&mode("write-back"))?;
        Ok(())
    }

    /// Unmounts everything, and frees the devices.
    fn take_down(&mut self) -> Result<()> {
        for way in self.ways.iter_mut().rev() {
            way.client.take().map_or(Ok(()), Mounted::unmount)?;
            if let Some(server) = &self.server {
                server.withdraw(&way.local)?;
            }
            way.served.take().map_or(Ok(()), |it| it.unmount_within(LETTING_GO))?;
        }
        self.server = None;
        for volume in self.daemon.as_ref().map(Daemon::report).transpose()?.into_iter().flat_map(|it| it.volumes) {
            self.call(&Call::Detach { name: volume.name, give_up_lost: false, throw_away: false, deadline_seconds: None })?;
        }
        self.daemon.take().map_or(Ok(()), Daemon::stop)?;
        destroy(&self.pool, None, &State::open(&self.path().join("state"))?)?;
        Ok(())
    }
}

impl Drop for NfsRig<'_> {
    fn drop(&mut self) {
        let taken = self.take_down();
        if let Err(error) = taken {
            eprintln!(
                "What was set up could not be taken down in order: {error:#}. What is left of it is ended; see `mount`, and free the SSDs \
                 with `headpond pool destroy` before they are used again"
            );
        }
        self.ways.clear();
    }
}

/// Modelled devices in place of given ones.
fn model(path: &Path, plan: &Plan<'_>) -> Result<(Given, Modelled)> {
    let wanted = |kind: Model, name: &str, bytes: &dyn Fn(usize) -> u64| -> Vec<Wanted> {
        (0..COUNT).map(|n| Wanted { name: format!("{name}{n}"), kind, bytes: bytes(n) }).collect()
    };
    let disks = wanted(Model::Disk, "disk", &|_| DISK_BYTES);
    let ssds = wanted(Model::Ssd, "ssd", &|n| plan.ssd.filter(|_| n < 2).unwrap_or(SSD_BYTES));
    let (modelled, places) = Modelled::start(&path.join("modelled"), &[&disks[..], &ssds[..]].concat())?;
    let places_of = |all: &[Wanted]| {
        let place = |it: &Wanted| places.get(&it.name).cloned().with_context(|| format!("there is no modelled {}", it.name));
        all.iter().map(place).collect::<Result<Vec<PathBuf>>>()
    };
    Ok((Given { disks: places_of(&disks)?, ssds: places_of(&ssds)?, slower: 1 }, modelled))
}
