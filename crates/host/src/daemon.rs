//! The daemon: one pool, its volumes, their front ends, and the control socket, started and stopped in order.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use headpond_engine::Settings;
use headpond_engine::io::{Command, CommandError, CommandId, SECTOR};
use headpond_format::{Mode, VolumeEntry};

use crate::backing::{Backing, BackingError, Spec};
use crate::claim::Claim;
use crate::control;
use crate::device::DevicesError;
use crate::device::facts::Facts;
use crate::frontend::{FuseVolume, NbdVolumes};
use crate::nbd::server::{Limits, ListenError};
use crate::nbd::session::ExportInfo;
use crate::pool::{self, PoolError};
use crate::report::Advice;
use crate::runtime::{Given, Handle, Runtime, Setup};
use crate::state::{Places, State};
use crate::{fuse, nbd};

mod service;
mod status;

/// How clients reach volumes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Choice {
    /// The best that this host has: FUSE with a loop device as root, else NBD.
    Auto,
    /// A loop device over FUSE.
    Fuse,
    /// An NBD socket.
    Nbd,
    /// Not at all.
    None,
}

/// What a daemon is to do.
#[derive(Clone, Debug)]
pub struct Options {
    /// The devices of the pool.
    pub devices: Vec<PathBuf>,
    /// The state folder.
    pub state: PathBuf,
    /// The control socket; `None`: by the pool's name.
    pub socket: Option<PathBuf>,
    /// How clients reach volumes.
    pub frontend: Choice,
    /// The NBD socket; `None`: beside the control socket.
    pub nbd: Option<PathBuf>,
    /// Where backing devices are, by volume, if not where they were last.
    pub backings: BTreeMap<String, Spec>,
    /// The engine's settings.
    pub settings: Settings,
    /// How long to wait for devices that a killed predecessor may still be writing to.
    pub patience: Duration,
}

/// Why a daemon does not start.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum StartError {
    #[error("The folder {path} cannot be used: {source}. Nothing was changed. Name another one")]
    Folder { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Pool(#[from] PoolError),
    #[error("There is no volume {name} on pool {pool}. Nothing was changed. Its volumes are: {volumes}")]
    NoVolume { name: String, pool: String, volumes: String },
    #[error(transparent)]
    Devices(#[from] DevicesError),
    #[error(transparent)]
    Engine(CommandError),
    #[error(transparent)]
    Listen(#[from] ListenError),
}

/// The folder of the sockets: `/run/headpond` for root; for others in `$XDG_RUNTIME_DIR`, or in the state folder.
pub fn run_folder() -> PathBuf {
    if rustix::process::geteuid().is_root() {
        return "/run/headpond".into();
    }
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(folder) => Path::new(&folder).join("headpond"),
        None => State::default_path().join("run"),
    }
}

/// A pool being served.
pub struct Daemon {
    shared: Arc<Shared>,
    runtime: Runtime,
    nbd: Option<nbd::server::Server>,
    control: Option<control::Server>,
    /// Members that are out of date: kept from everybody else.
    _stale: Vec<Claim>,
}

/// What the threads of the control socket see.
struct Shared {
    handle: Handle,
    pool: [u8; 16],
    state: State,
    frontend: Frontend,
    places: Mutex<Places>,
    volumes: Mutex<BTreeMap<u16, Slot>>,
    /// One volume comes or goes at a time.
    changing: Mutex<()>,
    stopping: Stopping,
}

/// How the volumes of this daemon are reached.
enum Frontend {
    Fuse { folder: PathBuf },
    Nbd { socket: PathBuf, volumes: Arc<NbdVolumes> },
    None,
}

/// A volume beside the engine.
struct Slot {
    name: String,
    spec: Option<Spec>,
    shape: Option<Shape>,
    export: Option<fuse::Export>,
    /// Where clients find it.
    place: Option<String>,
    problem: Option<Advice>,
    /// A long command that runs on it.
    running: Option<CommandId>,
}

/// What front ends show of a backing device.
#[derive(Clone, Debug)]
struct Shape {
    size: u64,
    block: u32,
    optimal_io: u32,
    rotational: bool,
    read_ahead_kb: u32,
}

impl Shape {
    fn of(facts: &Facts) -> Shape {
        Shape {
            size: facts.size,
            block: facts.logical_block,
            optimal_io: facts.optimal_io,
            rotational: facts.rotational,
            read_ahead_kb: facts.read_ahead_kb,
        }
    }
}

/// A wish to end, and how it ended.
#[derive(Default)]
struct Stopping {
    state: Mutex<StopState>,
    changed: Condvar,
}

#[derive(Clone, Default)]
enum StopState {
    #[default]
    Running,
    Wanted,
    Stopped(Result<(), String>),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Daemon {
    /// Claims everything, starts the engine, and serves all volumes whose disks are there and are the right ones.
    pub fn start(options: Options) -> Result<Daemon, StartError> {
        let folder = |path: &Path| {
            let path = path.to_owned();
            |source| StartError::Folder { path, source }
        };
        let state = State::open(&options.state).map_err(folder(&options.state))?;
        let open = pool::open(&options.devices, &state, options.patience)?;
        let superblock = open.election.superblock.clone();
        let mut places = state.places(&superblock.pool);
        for given in &open.devices {
            if let headpond_engine::Device::Member(number) = given.device {
                let path = std::path::absolute(given.claim.path()).unwrap_or_else(|_| given.claim.path().to_owned());
                places.members.insert(number, path);
            }
        }
        let known = |name: &String| superblock.volumes.iter().any(|volume| volume.name == *name);
        if let Some(name) = options.backings.keys().find(|name| !known(name)) {
            let names: Vec<&str> = superblock.volumes.iter().map(|volume| volume.name.as_str()).collect();
            let volumes = if names.is_empty() { "none".into() } else { names.join(", ") };
            return Err(StartError::NoVolume { name: name.clone(), pool: superblock.name, volumes });
        }
        let socket = options.socket.unwrap_or_else(|| run_folder().join(format!("{}.sock", superblock.name)));
        let beside = socket.parent().unwrap_or(Path::new("/")).to_owned();
        fs::create_dir_all(&beside).map_err(folder(&beside))?;

        let mut devices = open.devices;
        let mut volumes = BTreeMap::new();
        for volume in &superblock.volumes {
            let named = options.backings.get(&volume.name).cloned();
            let spec = named.or_else(|| places.volumes.get(&volume.name).map(|text| Spec::new(text)));
            let (slot, given) = find_backing(volume, spec, options.patience);
            if let Some(spec) = slot.spec.as_ref().filter(|_| given.is_some()) {
                places.volumes.insert(volume.name.clone(), spec.to_string());
            }
            devices.extend(given);
            volumes.insert(volume.number, slot);
        }
        let setup = Setup { settings: options.settings, election: open.election, devices };
        let (runtime, started) = Runtime::start(setup)?;
        started.end().map_err(StartError::Engine)?;
        if let Err(error) = state.remember(&superblock.pool, &places) {
            tracing::warn!("cannot remember where the devices are: {error}; the next start may need --backing");
        }

        let handle = runtime.handle().clone();
        let (frontend, nbd) = match choose(options.frontend, options.nbd.is_some()) {
            Choice::Nbd | Choice::Auto => {
                let socket = options.nbd.unwrap_or_else(|| beside.join(format!("{}.nbd", superblock.name)));
                let socket = std::path::absolute(&socket).unwrap_or(socket);
                let volumes = NbdVolumes::new(handle.clone());
                let server = nbd::server::Server::start(&socket, volumes.clone(), Limits::default())?;
                (Frontend::Nbd { socket, volumes }, Some(server))
            }
            Choice::Fuse => (Frontend::Fuse { folder: beside.join(&superblock.name) }, None),
            Choice::None => (Frontend::None, None),
        };
        let shared = Arc::new(Shared {
            handle,
            pool: superblock.pool,
            state,
            frontend,
            places: Mutex::new(places),
            volumes: Mutex::new(volumes),
            changing: Mutex::default(),
            stopping: Stopping::default(),
        });
        shared.offer_all();
        let control = Some(control::Server::start(&socket, shared.clone())?);
        Ok(Daemon { shared, runtime, nbd, control, _stale: open.stale })
    }

    /// Waits until somebody asks the daemon to end, looking at `signal` from time to time.
    pub fn wait(&self, mut signal: impl FnMut() -> bool) {
        while !signal() && matches!(*lock(&self.shared.stopping.state), StopState::Running) {}
    }

    /// Ends cleanly within `limit`: front ends first, then the engine, whose last checkpoint makes the next start warm.
    ///
    /// # Errors
    /// What did not end in time, in words. Nothing that was acknowledged is lost by it.
    pub fn stop(mut self, limit: Duration) -> Result<(), String> {
        let until = Instant::now() + limit;
        let left = || until.saturating_duration_since(Instant::now());
        if let Some(nbd) = self.nbd.take() {
            let cut = nbd.shutdown(left().min(Duration::from_secs(5)));
            if cut > 0 {
                tracing::warn!("{cut} NBD connections were cut off with requests outstanding");
            }
        }
        self.shared.withdraw_loop_devices(until);
        let stopped = self.runtime.handle().begin(Command::Stop).wait(left());
        let result = match stopped {
            Some(result) => result.map_err(|error| error.to_string()),
            None => Err(format!(
                "The engine did not end within {} s. Nothing that was acknowledged is lost; the next start takes a little \
                 longer. Give it more time with --stop-within",
                limit.as_secs()
            )),
        };
        *lock(&self.shared.stopping.state) = StopState::Stopped(result.clone());
        self.shared.stopping.changed.notify_all();
        // Its threads hold what they need; those that wait for the end have it now.
        drop(self.control.take());
        if result.is_err() {
            // The kernel may have requests that never end; waiting for them is for the kernel.
            std::mem::forget(self.runtime);
        }
        result
    }
}

/// What `auto` means here. (ublk, where the kernel has it, will come first.)
fn choose(choice: Choice, nbd_socket: bool) -> Choice {
    let fuse = || {
        let there = |path| Path::new(path).exists();
        rustix::process::geteuid().is_root() && there("/dev/fuse") && there("/dev/loop-control")
    };
    match choice {
        Choice::Auto if nbd_socket || !fuse() => Choice::Nbd,
        Choice::Auto => Choice::Fuse,
        choice => choice,
    }
}

/// Claims the disk of a volume of the pool and makes sure that it is the one that the volume was made on.
fn find_backing(volume: &VolumeEntry, spec: Option<Spec>, patience: Duration) -> (Slot, Option<Given>) {
    let (name, number) = (volume.name.clone(), volume.number);
    let mut slot = Slot { name, spec, shape: None, export: None, place: None, problem: None, running: None };
    let Some(spec) = &slot.spec else {
        let wrong = format!("Volume {} is not served: it is not known where its backing device is.", slot.name);
        let next = format!("Restart with --backing {}=PATH.", slot.name);
        slot.problem = Some(Advice { wrong, next });
        return (slot, None);
    };
    match Backing::open(spec, patience).map_err(Mismatch::Open).and_then(|backing| same_disk(volume, backing)) {
        Ok(backing) => {
            slot.shape = Some(Shape::of(&backing.facts()));
            (slot, Some(backing.give(number)))
        }
        Err(error) => {
            let wrong = format!("Volume {} is not served: {error}.", slot.name);
            let next = format!(
                "What is cached stays as it is. Bring the right device back and restart, with --backing {}=PATH if its path has \
                 changed.",
                slot.name
            );
            slot.problem = Some(Advice { wrong, next });
            (slot, None)
        }
    }
}

/// Why a device is not the disk of a volume.
#[derive(Debug, thiserror::Error)]
enum Mismatch {
    #[error(transparent)]
    Open(BackingError),
    #[error("{path} is another device ({found}) than the one that the volume was made on ({expected})")]
    Identity { path: PathBuf, found: String, expected: String },
    #[error("{path} has {found} bytes, and the volume {expected}")]
    Size { path: PathBuf, found: u64, expected: u64 },
}

fn same_disk(volume: &VolumeEntry, backing: Backing) -> Result<Backing, Mismatch> {
    let (path, found) = (|| backing.path().to_owned(), backing.identity());
    if found != volume.backing {
        return Err(Mismatch::Identity { path: path(), found, expected: volume.backing.clone() });
    }
    if backing.sectors() != volume.sectors {
        let (found, expected) = (backing.sectors() * SECTOR, volume.sectors * SECTOR);
        return Err(Mismatch::Size { path: path(), found, expected });
    }
    Ok(backing)
}

impl Shared {
    /// Offers every volume that the engine serves.
    fn offer_all(&self) {
        let Some(status) = self.handle.status() else { return };
        for volume in status.volumes.iter().filter(|volume| volume.serving) {
            self.offer(volume.number);
        }
    }

    /// Makes a volume reachable. What does not go as wished is kept as the volume's problem.
    fn offer(&self, number: u16) {
        let (name, shape) = match lock(&self.volumes).get(&number) {
            Some(Slot { name, shape: Some(shape), .. }) => (name.clone(), shape.clone()),
            _ => return,
        };
        // Not under the lock: a mount asks the volume's own threads.
        let (export, place, problem) = match &self.frontend {
            Frontend::None => (None, None, None),
            Frontend::Nbd { socket, volumes } => {
                volumes.offer(ExportInfo {
                    description: format!("Headpond volume {name}"),
                    min_block: shape.block,
                    preferred_block: shape.optimal_io.clamp(4096, 1 << 20).next_power_of_two(),
                    rotational: shape.rotational,
                    ..ExportInfo::new(usize::from(number), name.clone(), shape.size)
                });
                (None, Some(format!("nbd+unix:///{name}?socket={}", socket.display())), None)
            }
            Frontend::Fuse { folder } => match self.export(number, &name, &shape, folder) {
                Ok(export) => {
                    let place = export.device().display().to_string();
                    (Some(export), Some(place), None)
                }
                Err(error) => {
                    let wrong = format!("Volume {name} is at work but has no block device: {error}.");
                    let next = "Put that right and restart, or serve with --frontend nbd.".into();
                    (None, None, Some(Advice { wrong, next }))
                }
            },
        };
        if let Some(slot) = lock(&self.volumes).get_mut(&number) {
            (slot.export, slot.place, slot.problem) = (export, place, problem);
        }
    }

    fn export(&self, number: u16, name: &str, shape: &Shape, folder: &Path) -> Result<fuse::Export, fuse::Error> {
        let volume = FuseVolume::new(self.handle.clone(), number, shape.size);
        let options = fuse::Options {
            block_size: shape.block,
            read_ahead_kb: Some(shape.read_ahead_kb),
            ..fuse::Options::new(folder.join(name), name)
        };
        let export = fuse::Export::start(&options, volume)?;
        export.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
        Ok(export)
    }

    /// Makes a volume unreachable; fails, and changes nothing, while its loop device is in use.
    fn withdraw(&self, number: u16) -> Result<(), fuse::Error> {
        let export = lock(&self.volumes).get_mut(&number).and_then(|slot| slot.export.take());
        if let Some(mut export) = export
            && let Err(error) = export.stop()
        {
            if let Some(slot) = lock(&self.volumes).get_mut(&number) {
                slot.export = Some(export);
            }
            return Err(error);
        }
        if let Frontend::Nbd { volumes, .. } = &self.frontend {
            volumes.withdraw(usize::from(number));
        }
        if let Some(slot) = lock(&self.volumes).get_mut(&number) {
            slot.place = None;
        }
        Ok(())
    }

    /// Lets go of all loop devices. Those in use are served on for half of the time that is left; then they go as well.
    fn withdraw_loop_devices(&self, until: Instant) {
        let patience = Instant::now() + until.saturating_duration_since(Instant::now()) / 2;
        let numbers: Vec<u16> = lock(&self.volumes).keys().copied().collect();
        for number in numbers {
            while let Err(error) = self.withdraw(number) {
                if Instant::now() >= patience {
                    tracing::error!("{error}; it is taken away all the same: its users get I/O errors");
                    let export = lock(&self.volumes).get_mut(&number).and_then(|slot| slot.export.take());
                    drop(export);
                    break;
                }
                tracing::warn!("{error}; waiting for it");
                thread::sleep(Duration::from_millis(500));
            }
        }
    }
}

/// The mode with this name.
pub fn mode_named(name: &str) -> Option<Mode> {
    [Mode::WriteBack, Mode::WriteThrough, Mode::WriteAround, Mode::PassThrough].into_iter().find(|mode| mode.name() == name)
}
