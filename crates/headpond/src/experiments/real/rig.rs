//! What the experiments run on: modelled disks and SSDs, a pool and its daemon, a file system on each of the three ways to a disk.
//!
//! It leaves nothing running, mounted or bound, whatever happens while it stands.

use super::fio::{self, JobFile, Rates};
use super::modelled::{Model, Wanted};
use super::processors::Busy;
use super::tools;
use crate::demo::{Daemon, FileSystem, Folder, Frontend, Mounted};
use anyhow::{Context, Result, bail};
use headpond_host::control::{Attach, Call};
use headpond_host::fuse::{loopdev, mount};
use headpond_host::pool::{NewPool, create};
use headpond_host::report::{Report, Volume};
use headpond_host::state::State;
use headpond_sim::experiments::outcome::Who;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

/// The pool's name.
const POOL: &str = "experiments";
/// How long the modelled devices may take to be gone.
const ENDING: Duration = Duration::from_secs(15);

/// What is to be set up.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Bytes of each disk. They are holes until something is written there.
    pub disk: u64,
    /// Bytes of each of the two SSDs.
    pub ssd: u64,
    /// What they are models of.
    pub ssds: Model,
    /// Disks of each of those who are measured.
    pub disks: usize,
    /// Who is measured.
    pub whos: Vec<Who>,
    /// Options of the mount.
    pub options: &'static [&'static str],
}

impl Plan {
    /// One disk each, and SSDs larger than all that is written.
    pub fn usual() -> Plan {
        Plan {
            disk: 4 << 30,
            ssd: 1 << 30,
            ssds: Model::Ssd,
            disks: 1,
            whos: vec![Who::Bare, Who::Front, Who::Back],
            options: &[],
        }
    }
}

/// The modelled devices, served by a process of their own.
pub struct Modelled {
    child: Child,
    /// It ends when this is closed.
    input: Option<ChildStdin>,
}

impl Modelled {
    /// Starts the process, which serves these devices; where each is, by its name.
    pub fn start(folder: &Path, wanted: &[Wanted]) -> Result<(Modelled, BTreeMap<String, PathBuf>)> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("modelled-devices").arg(folder).args(wanted.iter().map(Wanted::to_string));
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("the modelled devices cannot be started")?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let modelled = Modelled { child, input };
        let mut places = BTreeMap::new();
        for line in BufReader::new(output.context("the modelled devices have no output")?).lines().take(wanted.len()) {
            let line = line?;
            let (name, place) = line.split_once(' ').context("the modelled devices said something else")?;
            places.insert(name.to_owned(), PathBuf::from(place));
        }
        if places.len() < wanted.len() {
            bail!("the modelled devices could not be set up; look above for why");
        }
        Ok((modelled, places))
    }
}

impl Drop for Modelled {
    fn drop(&mut self) {
        self.input = None;
        let until = Instant::now() + ENDING;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < until {
            thread::sleep(Duration::from_millis(10));
        }
        // Fails if it has ended, which is as well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// All of it. The order of the fields is that in which they go.
pub struct Rig<'a> {
    plan: Plan,
    stop: &'a AtomicBool,
    /// The block device of each disk of each who, and its file system.
    devices: BTreeMap<(Who, usize), PathBuf>,
    mounted: BTreeMap<(Who, usize), Mounted>,
    daemon: Option<Daemon>,
    busy: Busy,
    _modelled: Modelled,
    folder: Folder,
}

fn volume(who: Who, disk: usize) -> String {
    match who {
        Who::Bare => format!("bare{disk}"),
        Who::Front => format!("front{disk}"),
        _ => format!("back{disk}"),
    }
}

/// Makes the pool of these devices, whatever is on them, with its state in `path`.
pub fn create_pool(path: &Path, devices: &[PathBuf]) -> Result<()> {
    let new = NewPool {
        name: POOL.into(),
        devices: devices.to_vec(),
        copies: 2,
        segment_bytes: 0,
        unit: None,
        force: true,
        discard_dirty: None,
    };
    create(&new, &State::open(&path.join("state"))?)?;
    Ok(())
}

impl<'a> Rig<'a> {
    /// Sets it up in a folder that does not exist yet, with an empty file system on every way.
    pub fn set_up(path: &Path, plan: Plan, system: FileSystem, stop: &'a AtomicBool) -> Result<Rig<'a>> {
        let folder = Folder::make(path, false)?;
        let ways: Vec<(Who, usize)> = plan.whos.iter().flat_map(|who| (0..plan.disks).map(|n| (*who, n))).collect();
        let disk = |way: &(Who, usize)| Wanted { name: volume(way.0, way.1), kind: Model::Disk, bytes: plan.disk };
        let ssds = ["ssd0", "ssd1"].map(|name| Wanted { name: name.into(), kind: plan.ssds, bytes: plan.ssd });
        let wanted: Vec<Wanted> = ways.iter().map(disk).chain(ssds.clone()).collect();
        let (modelled, places) = Modelled::start(&path.join("modelled"), &wanted)?;
        let place = |name: &str| places.get(name).cloned().with_context(|| format!("there is no modelled {name}"));
        let ssds = ssds.iter().map(|it| place(&it.name)).collect::<Result<Vec<PathBuf>>>()?;
        let (devices, mounted, busy) = (BTreeMap::new(), BTreeMap::new(), Busy::default());
        let mut rig = Rig { plan, stop, devices, mounted, daemon: None, busy, _modelled: modelled, folder };
        create_pool(path, &ssds)?;
        let daemon = rig.daemon.insert(Daemon::start(path, &ssds, Frontend::Fuse)?);
        for (who, n) in &ways {
            let spec = place(&volume(*who, *n))?;
            let mode = match who {
                Who::Bare => {
                    rig.devices.insert((*who, *n), spec);
                    continue;
                }
                Who::Front => "pass-through",
                _ => "write-back",
            };
            let attach = Attach { name: volume(*who, *n), spec: spec.display().to_string(), mode: mode.into(), phase: None };
            daemon.call(&Call::Attach(attach))?;
        }
        for it in daemon.report()?.volumes {
            let way = ways.iter().find(|(who, n)| volume(*who, *n) == it.name);
            if let (Some(way), Some(place)) = (way, it.place) {
                rig.devices.insert(*way, place.into());
            }
        }
        for (way, device) in rig.devices.clone() {
            system.make(&device)?;
            rig.mount(way, rig.plan.options)?;
        }
        Ok(rig)
    }

    /// Where a file system is mounted.
    pub fn point(&self, who: Who, disk: usize) -> PathBuf {
        self.path().join("mnt").join(volume(who, disk))
    }

    /// The folder for files of tools.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Who is measured.
    pub fn whos(&self) -> Vec<Who> {
        self.plan.whos.clone()
    }

    fn mount(&mut self, way: (Who, usize), options: &[&str]) -> Result<()> {
        let device = self.devices.get(&way).with_context(|| format!("{} has no block device", volume(way.0, way.1)))?;
        let mounted = Mounted::new(device, &self.point(way.0, way.1), options)?;
        self.mounted.insert(way, mounted);
        Ok(())
    }

    /// Unmounts the first file system and mounts it again, so that the kernel's own cache of it is empty.
    pub fn remount(&mut self, who: Who) -> Result<()> {
        self.remount_with(who, self.plan.options)
    }

    /// The same, with other options of the mount than the plan's.
    pub fn remount_with(&mut self, who: Who, options: &[&str]) -> Result<()> {
        if let Some(mounted) = self.mounted.remove(&(who, 0)) {
            mounted.unmount()?;
        }
        self.mount((who, 0), options)
    }

    /// Runs sections of a job on one's file system; `values` are beside `DIR`, which is set to it.
    pub fn fio(&self, who: Who, disk: usize, job: JobFile, sections: &[&str], values: &[(&str, String)]) -> Result<Rates> {
        let mut all = vec![("DIR", self.point(who, disk).display().to_string())];
        all.extend(values.iter().cloned());
        let what = format!(
            "{} {}",
            sections.join(" and "),
            values.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
        );
        self.busy.note(&what, who, || fio::run(job, sections, &all, self.path(), self.stop))
    }

    /// How busy the processors are with each of those who are measured.
    pub fn busy(&self) -> &Busy {
        &self.busy
    }

    /// Runs a tool.
    pub fn run(&self, command: &mut Command) -> Result<String> {
        tools::run(command, &self.path().join("tool.log"), self.stop)
    }

    fn daemon(&self) -> Result<&Daemon> {
        self.daemon.as_ref().context("no daemon runs")
    }

    /// Has all that is dirty written down, in the cache and in the disk's own: what is measured next begins with an empty dirty set, on
    /// all ways alike. What a disk still holds of the measurement before is written again for nothing.
    pub fn settle(&self, who: Who) -> Result<()> {
        for n in 0..self.plan.disks {
            if who == Who::Back {
                self.daemon()?.call(&Call::Destage { name: volume(who, n), deadline_seconds: None })?;
            }
            if let Some(device) = self.devices.get(&(who, n)) {
                let flushed = File::open(device).and_then(|it| it.sync_all());
                flushed.with_context(|| format!("{} did not flush its cache", device.display()))?;
            }
        }
        Ok(())
    }

    /// How the pool stands.
    pub fn report(&self) -> Result<Report> {
        self.daemon()?.report()
    }

    /// What became of the requests of the first cached volume since the daemon's start.
    pub fn cached(&self) -> Result<Volume> {
        let name = volume(Who::Back, 0);
        self.report()?.volumes.into_iter().find(|it| it.name == name).context("there is no cached volume")
    }
}

impl Drop for Rig<'_> {
    fn drop(&mut self) {
        // First what is mounted, while somebody answers it.
        self.mounted.clear();
        let served: Vec<String> = self.devices.keys().map(|(who, n)| volume(*who, *n)).collect();
        if let Some(daemon) = self.daemon.take()
            && let Err(error) = daemon.stop()
        {
            eprintln!(
                "The daemon was killed, as it did not end cleanly: {error:#}. What it left is cleared up; nothing needs to be done"
            );
            for name in served {
                let point = self.path().join(POOL).join(&name);
                if matches!(mount::look(&point), Ok(mount::Found::Dead)) {
                    let _ = loopdev::detach_left_over(&point.join(&name));
                    let _ = mount::clear_dead(&point);
                }
            }
        }
    }
}
