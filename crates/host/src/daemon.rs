//! The daemon: one pool, its volumes, their front ends, and the control socket, started and stopped in order.

use std::collections::BTreeMap;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use headpond_engine::io::{Command, CommandError, CommandId, SECTOR};
use headpond_engine::{Settings, Starting};
use headpond_format::Superblock;
use serde::{Deserialize, Serialize};

use crate::backing::{HasDisk, Spec};
use crate::claim::Claim;
use crate::control;
use crate::device::DevicesError;
use crate::device::facts::Facts;
use crate::events::Journal;
use crate::frontend::NbdVolumes;
use crate::huge_pages::Keeper;
use crate::lock::lock;
use crate::nbd::server::{Connections, ListenError};
use crate::pool::{self, PoolError};
use crate::report::Advice;
use crate::runtime::{Handle, Runtime, Setup};
use crate::soon::Soon;
use crate::state::{Pins, Places, Scrubbed, Shares, State};
use crate::succession::{Estate, Present};
use crate::{fuse, metrics, names, nbd, silence, ublk};

pub use foresight::would_start;

use members::same_file;
use worker::{Worker, at_once};

mod diskless;
mod disks;
mod foresight;
mod frontend;
mod grow;
pub(crate) mod inside;
mod late;
mod lost;
mod members;
mod offer;
mod own;
mod preload;
mod scrub;
mod service;
mod shares;
mod start;
mod status;
mod watch;
mod worker;

/// How clients reach volumes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Choice {
    /// The best that this host has: ublk, else FUSE with a loop device, both as root; else NBD.
    Auto,
    /// A ublk device.
    Ublk,
    /// A loop device over FUSE.
    Fuse,
    /// An NBD socket.
    Nbd,
    /// Not at all.
    None,
}

impl Choice {
    /// As people write it.
    fn name(self) -> &'static str {
        match self {
            Choice::Auto => "auto",
            Choice::Ublk => "ublk",
            Choice::Fuse => "fuse",
            Choice::Nbd => "nbd",
            Choice::None => "none",
        }
    }
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
    /// Who attends to the queues of each ublk device; `None`: by the number of processors.
    pub queues: Option<ublk::Queues>,
    /// Whether new ublk devices lend clients' memory to the disk, where the kernel can.
    pub zero_copy: bool,
    /// Volumes whose block device, left by an earlier daemon, is not taken over but removed.
    pub give_up: Vec<String>,
    /// Where backing devices are, by volume, if not where they were last.
    pub backings: BTreeMap<String, Spec>,
    /// The same by the configuration, which is there for longer than a volume may be: what it says of others is passed over, with a warning.
    pub configured: BTreeMap<String, Spec>,
    /// Where metrics are served over HTTP; `None`: nowhere.
    pub metrics: Option<SocketAddr>,
    /// When everything that the cache holds is read, and how fast.
    pub scrub: Scrubs,
    /// The engine's settings.
    pub settings: Settings,
    /// How long to wait for devices that a killed predecessor may still be writing to.
    pub patience: Duration,
}

impl Options {
    /// Nobody is reached, and all else is as where nothing is said of it.
    #[must_use]
    pub fn new(devices: Vec<PathBuf>, state: PathBuf) -> Self {
        Self {
            devices,
            state,
            socket: None,
            frontend: Choice::None,
            nbd: None,
            queues: None,
            zero_copy: true,
            give_up: Vec::new(),
            backings: BTreeMap::new(),
            configured: BTreeMap::new(),
            metrics: None,
            scrub: Scrubs::default(),
            settings: Settings::default(),
            patience: Duration::from_secs(30),
        }
    }
}

/// Scrubs that nobody asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scrubs {
    /// From one's end to the next one; zero: never.
    pub every: Duration,
    /// The most that is read in a second; zero: as fast as the cache devices answer.
    pub bytes_per_second: u64,
}

impl Default for Scrubs {
    /// Once a week, at 32 MiB/s: a TB in nine hours, a few percent of what an SSD reads.
    fn default() -> Self {
        Self { every: Duration::from_secs(7 * 86400), bytes_per_second: 32 << 20 }
    }
}

/// Why a daemon does not start.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum StartError {
    #[error("The folder {path} cannot be used: {source}. Nothing was changed. Name another one")]
    Folder { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Pool(#[from] PoolError),
    #[error(transparent)]
    Name(#[from] names::Unfit),
    #[error("There is no volume {name} on pool {pool}. Nothing was changed. Its volumes are: {volumes}. Name one of them")]
    NoVolume { name: String, pool: String, volumes: String },
    #[error(
        "Volume {name} has no backing device: what it holds is on the cache devices alone, and it is served without one. Nothing was \
         changed. Leave out --backing {name}=..."
    )]
    NoDisk { name: String },
    #[error(transparent)]
    Devices(#[from] DevicesError),
    #[error(transparent)]
    Engine(CommandError),
    #[error(
        "The start was ended before the pool was up. What was acknowledged is on the cache devices, as it was; nothing is served. Start \
         the daemon again"
    )]
    Ended,
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error(
        "Metrics cannot be served at {address}: {source}. Choose another address with --metrics, or `listen` under [metrics] in the configuration, or \
         leave it out; the packaged service has no network without its metrics.conf"
    )]
    Metrics { address: SocketAddr, source: std::io::Error },
    #[error("There are no ublk devices on this host: {0}. Nothing was changed. Serve with --frontend fuse or nbd")]
    NoUblk(String),
    #[error(
        "Volumes have ublk devices that an earlier daemon left, or may have: {devices}. There are no others to be made on this host now ({why}), and \
         volumes that were reached in another way would be mounted while what their clients wrote waits there, to be written later. Nothing was \
         changed. Put that right, and they go on; or unmount what is on them, and serve with --frontend fuse or nbd"
    )]
    WaitingUblk { devices: String, why: String },
    #[error(
        "Volumes are reached by {before}, and would be by {after}: what clients have open now would fail, or wait for ever. Leave the front \
         end as it is; or unmount, stop the daemon, and start it again"
    )]
    OtherFrontend { before: &'static str, after: &'static str },
    #[error(
        "The state folder is {before}, and would be {after}: the pool's witness, and where the disks of volumes are, would be missed, and volumes \
         might not be served. Name the folder that is in use; or stop the daemon, move what is in it, and start it again"
    )]
    OtherState { before: PathBuf, after: PathBuf },
    #[error(
        "The control socket is {before}, and would be {after}: who asks the daemon where it is now would find nobody. Name the one that is in use; or \
         stop the daemon and start it again"
    )]
    OtherSocket { before: PathBuf, after: PathBuf },
    #[error(
        "The backing device of volume {name} is {before}; it would be {after}, which leads to another one, or to none, and the volume would not be \
         served. Name the one that is in use, or leave it out: it is looked for where it was last"
    )]
    OtherDisk { name: String, before: Spec, after: Spec },
    #[error("{wrong}. {next}")]
    GiveUp { wrong: String, next: String },
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
    metrics: Option<metrics::Server>,
    watch: Option<Worker>,
    late: Option<Worker>,
    schedule: Option<Worker>,
    huge_pages: Option<Keeper>,
}

/// What the threads of the control socket see.
struct Shared {
    handle: Handle,
    pool: [u8; 16],
    name: String,
    /// Intent pages that the pool can have, the same for its whole life.
    intent_pages: u32,
    /// The most pieces that maps may hold, by the settings; 0: no such bound.
    max_pieces: u64,
    state: State,
    frontend: Frontend,
    /// Where it listens.
    present: Present,
    places: Mutex<Places>,
    /// What of it is in the state folder: written in the order of its changes, while who only looks at it does not wait for the disk.
    written: Mutex<Places>,
    volumes: Mutex<BTreeMap<u16, Slot>>,
    /// Whether they are made reachable yet.
    offers: Mutex<Offers>,
    /// One volume comes or goes at a time.
    changing: Mutex<()>,
    /// What whoever has that is doing.
    under_way: Mutex<String>,
    /// Whether a cache device is being added or removed.
    changing_members: Mutex<Option<members::Change>>,
    /// The scrub that is under way.
    scrubbing: Mutex<Option<CommandId>>,
    scrubbed: Mutex<Scrubbed>,
    /// The preload that is under way on each volume.
    preloading: Mutex<BTreeMap<u16, CommandId>>,
    /// What is pinned, as it is remembered.
    pins: Mutex<Pins>,
    /// What of the pool volumes are sure of, and may have, as it is remembered.
    shares: Mutex<Shares>,
    /// Members that are out of date: kept from everybody else.
    stale: Mutex<Vec<Claim>>,
    /// What is lost of each volume.
    lost: Mutex<BTreeMap<u16, lost::OfVolume>>,
    events: Arc<Journal>,
    /// Where devices are is written beside who found that.
    writing_places: Arc<Soon>,
    /// What is lost is written beside who looks for it.
    writing_lost: Arc<Soon>,
    stopping: Stopping,
    /// Volumes that an earlier life of this process has left, by their ids, until they are offered again, or are no more.
    left: Mutex<BTreeMap<[u8; 16], fuse::Left>>,
    /// How long nobody answered while it took over from that one.
    pause: Mutex<Option<Duration>>,
    /// Why its metrics are not served that should be.
    no_metrics: Mutex<Option<Advice>>,
    /// Devices in use that are left to the kernel when this process ends.
    parked: Mutex<Vec<ublk::Device>>,
}

/// What is the same of all ublk devices of a daemon.
#[derive(Clone, Copy)]
struct Attended {
    queues: ublk::Queues,
    lends: bool,
    patience: Duration,
}

/// How the volumes of this daemon are reached.
enum Frontend {
    Ublk(Attended),
    Fuse { folder: PathBuf },
    Nbd { socket: PathBuf, volumes: Arc<NbdVolumes>, connections: Connections },
    None,
}

/// A volume beside the engine.
struct Slot {
    name: String,
    spec: Option<Spec>,
    shape: Option<Shape>,
    export: Option<Export>,
    /// Where clients find it.
    place: Option<String>,
    problem: Option<Advice>,
    /// A long command that runs on it.
    running: Option<CommandId>,
    /// What keeps others from changing it.
    busy: Option<Busy>,
}

impl Slot {
    /// Of a volume that is offered nowhere yet, and on which nothing runs.
    fn new(name: String, spec: Option<Spec>, shape: Option<Shape>) -> Slot {
        Slot { name, spec, shape, export: None, place: None, problem: None, running: None, busy: None }
    }
}

/// What is done with a volume beside changes of others.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Busy {
    /// Its disk is there, and the engine is looking at it.
    Comes,
    /// It is being thrown away.
    Goes,
}

/// The block device of a volume.
enum Export {
    Ublk(Box<ublk::Device>),
    Loop(fuse::Export),
}

impl Export {
    fn path(&self) -> PathBuf {
        match self {
            Export::Ublk(device) => device.path(),
            Export::Loop(export) => export.device(),
        }
    }

    /// Removes it; fails, and changes nothing, while it is in use, or if a last flush of it does not end within `limit`.
    fn stop(&mut self, limit: Duration) -> Result<(), String> {
        match self {
            Export::Ublk(device) => device.stop(limit).map_err(|error| format!("{error}. {}", error.next())),
            Export::Loop(export) => export.stop().map_err(|error| match error.is_in_use() {
                true => error.to_string(),
                false => format!("{error}. Look at the kernel's log, then try again"),
            }),
        }
    }

    /// The same as the daemon ends: a last flush that fails is no reason to keep it.
    fn end(&mut self, limit: Duration) -> Result<(), String> {
        match self {
            Export::Ublk(device) => device.end(limit).map_err(|error| format!("{error}. {}", error.next())),
            Export::Loop(_) => self.stop(limit),
        }
    }
}

/// Whether volumes are made reachable, which takes a while for each.
#[derive(Default)]
struct Offers {
    /// So many just now.
    under_way: usize,
    /// None is any more, as the daemon lets go of all.
    are_over: bool,
}

/// What front ends show of a volume.
#[derive(Clone, Debug)]
struct Shape {
    size: u64,
    block: u32,
    optimal_io: u32,
    rotational: bool,
    read_ahead_kb: u32,
    /// Whether discards are offered.
    discards: bool,
}

impl Shape {
    /// That of a volume of `sectors`, which may be fewer than its backing device has.
    fn of(facts: &Facts, sectors: u64) -> Shape {
        Shape {
            size: sectors * SECTOR,
            block: facts.logical_block,
            optimal_io: facts.optimal_io,
            rotational: facts.rotational,
            read_ahead_kb: facts.read_ahead_kb,
            discards: facts.discards,
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
    /// Another program is to go on.
    Succeeded(PathBuf),
    Stopped(Result<(), String>),
}

/// Is told how far a start is, and says whether it is to go on.
pub type GoesOn<'a> = &'a mut dyn FnMut(Option<Starting>) -> bool;

/// How often it is told.
const LOOK: Duration = Duration::from_millis(100);
/// How often it is looked whether something has come that usually takes no longer.
const SOON: Duration = Duration::from_millis(20);

/// How long a start that is refused when the engine is up already waits for it to end.
const STOP: Duration = Duration::from_secs(60);

/// How long a daemon that hands over waits for its sweeps to end, and for NBD clients; and one that ends for a scrub.
const QUIESCE: Duration = Duration::from_secs(5);
/// How long it waits for requests to be answered: longer than a cache device that hangs is waited for.
const ANSWERED: Duration = Duration::from_secs(30);
/// How long the last flush of a block device may take: longer than a disk needs that answers at all.
const FLUSHED: Duration = Duration::from_secs(30);
/// How long those of all block devices together may take as the daemon ends: the engine flushes their volumes once more.
const LAST_FLUSHED: Duration = Duration::from_secs(10);
/// How long a daemon that ends waits for a change of a volume, and for users of a loop device, however long it may take in all.
const LONG: Duration = Duration::from_secs(60);
/// How long a disk may take to answer whoever takes over: clients of all volumes wait meanwhile. One that takes longer comes late.
const ASKED: Duration = Duration::from_secs(2);

/// Makes this process ready to serve in the way that [`Daemon::start`] will choose: to be called before it has other threads. What is to be said of
/// that, in lines of the log.
pub fn prepare_process(options: &Options, estate: &Estate) -> Vec<String> {
    let fuse_is_open = !estate.fuse.is_empty();
    // By a thread that ends: whoever asks the driver has a worker of the kernel's from then on, which is a thread as well, and stays where it was made.
    let asks = thread::Builder::new().name("chooses".into());
    let chosen = thread::scope(|scope| {
        let asked = asks.spawn_scoped(scope, || frontend::chosen(options, fuse_is_open)).ok()?;
        // What is wrong with it the start says.
        asked.join().ok()?.ok()
    });
    match chosen {
        Some(chosen) if chosen.choice == Choice::Ublk => ublk::prepare_process(),
        _ => Vec::new(),
    }
}

impl Daemon {
    /// Claims everything, starts the engine, and serves all volumes whose disks are there and are the right ones; others as soon
    /// as they come. `estate` is what an earlier life of this process has left.
    ///
    /// A process that is to serve block devices is made ready for them before: [`prepare_process`].
    ///
    /// Until the engine is up `goes_on` is told how far that is, as far as it is known, ten times a second; if it says no the start ends.
    pub fn start(options: Options, estate: Estate, goes_on: GoesOn<'_>) -> Result<Daemon, StartError> {
        Daemon::start_listening(options, estate, true, goes_on)
    }

    /// The same, with a control socket or without one.
    fn start_listening(options: Options, mut estate: Estate, listen: bool, goes_on: GoesOn<'_>) -> Result<Daemon, StartError> {
        let chosen = frontend::chosen(&options, !estate.fuse.is_empty())?;
        let choice = chosen.choice;
        pool::create::are_text(&options.devices)?;
        let state = state_folder(&options)?;
        // Whoever goes on without what is missing has looked for it.
        let open = match options.settings.without_missing {
            true => pool::open(&options.devices, &state, options.patience)?,
            false => pool::open_with_remembered(&options.devices, &state, options.patience)?,
        };
        let superblock = open.election.superblock.clone();
        let known_places = state.places(&superblock.pool);
        let mut places = start::places_of(&open, &known_places);
        are_its_volumes(&options, &superblock)?;
        // What takes over from another program has reached its clients in this way.
        if estate.pause().is_none() {
            chosen.may_stand_in(&superblock, &known_places.ublk)?;
        }
        start::warn_of_nobodys_disks(&options, &superblock);
        let (socket, front) = reached_at(&options, &superblock, choice, listen)?;
        if listen {
            foresight::has_its_socket(&socket)?;
        }
        let limit = if estate.pause().is_some() { ASKED } else { silence::LIMIT };
        let (volumes, disks) = start::disks(&options, &superblock, &mut places, limit);
        let devices = open.devices.into_iter().chain(disks).collect();
        tracing::info!("all devices are claimed");

        let setup = Setup { settings: options.settings.clone(), election: open.election, devices };
        let (runtime, started) = Runtime::start(setup)?;
        let handle = runtime.handle().clone();
        let attended = Attended {
            queues: options.queues.unwrap_or_else(ublk::Queues::suiting_here),
            lends: options.zero_copy,
            patience: options.patience,
        };
        let ready = match choice {
            Choice::Ublk => start::prepared(&options, &superblock, &volumes, &places, &handle, attended),
            _ => BTreeMap::new(),
        };
        let events = Arc::new(Journal::open(state.events(&superblock.pool)));
        loop {
            if !goes_on(handle.starting()) {
                return Err(StartError::Ended);
            }
            if let Some(result) = started.wait(LOOK) {
                break result.map_err(StartError::Engine)?;
            }
        }
        tracing::info!("the engine is up");
        let front = start::give_up(&options, &superblock).and_then(|()| start::front_end(choice, front, attended, &handle));
        let (frontend, nbd) = front.inspect_err(|_| {
            // A start that ends now was no crash.
            let _ = runtime.handle().begin(Command::Stop).wait(STOP);
        })?;
        let present = start::present(&options, &state, listen.then_some(&socket), &frontend);
        let scrubbed = state.scrubbed(&superblock.pool);
        let pins = state.pins(&superblock.pool);
        let shares = state.shares(&superblock.pool);
        let shared = Arc::new(Shared {
            handle,
            pool: superblock.pool,
            name: superblock.name.clone(),
            intent_pages: superblock.members.first().map_or(0, |member| member.layout.intent_pages),
            max_pieces: options.settings.max_pieces,
            state,
            frontend,
            present,
            places: Mutex::new(places),
            written: Mutex::new(known_places),
            volumes: Mutex::new(volumes),
            offers: Mutex::default(),
            changing: Mutex::default(),
            under_way: Mutex::default(),
            changing_members: Mutex::default(),
            scrubbing: Mutex::default(),
            scrubbed: Mutex::new(scrubbed),
            preloading: Mutex::default(),
            pins: Mutex::new(pins),
            shares: Mutex::new(shares),
            stale: Mutex::new(open.stale),
            lost: Mutex::default(),
            events,
            writing_places: Arc::default(),
            writing_lost: Arc::default(),
            stopping: Stopping::default(),
            left: Mutex::new(std::mem::take(&mut estate.fuse)),
            pause: Mutex::default(),
            parked: Mutex::default(),
            no_metrics: Mutex::default(),
        });
        shared.end_what_nobody_takes_over(&superblock.volumes);
        shared.offer_all(ready);
        // From here on clients are answered.
        let pause = estate.pause();
        shared.share_again();
        shared.pin_again();
        *lock(&shared.pause) = pause;
        shared.events.add(watch::of_start(&shared.events, &shared.name));
        if let Some(pause) = pause {
            shared.events.add(watch::of_succession(&shared.name, pause));
        }
        let huge_pages = Keeper::start();
        let late = shared.look_for_late(&superblock.volumes);
        let schedule = shared.schedule(options.scrub);
        let mut daemon = Daemon { shared, runtime, nbd, control: None, metrics: None, watch: None, late, schedule, huge_pages };
        if listen {
            match control::Server::start(&socket, daemon.shared.clone()) {
                Ok(control) => daemon.control = Some(control),
                Err(error) => {
                    let _ = daemon.stop(STOP);
                    return Err(error.into());
                }
            }
        }
        daemon.metrics = options.metrics.and_then(|address| serve_metrics(address, &daemon.shared));
        // What is wrong by now it tells of as a problem at the start.
        daemon.watch = daemon.shared.watch();
        daemon.shared.write_places_soon();
        Ok(daemon)
    }

    /// Where its metrics are, if they are served.
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().and_then(metrics::Server::address)
    }

    /// Waits until somebody asks the daemon to end, looking at `signal` from time to time; the program that is to go on in its
    /// place, if that was asked for.
    pub fn wait(&self, mut signal: impl FnMut() -> bool) -> Option<PathBuf> {
        while !signal() {
            match &*lock(&self.shared.stopping.state) {
                StopState::Running => {}
                StopState::Succeeded(program) => return Some(program.clone()),
                StopState::Wanted | StopState::Stopped(_) => return None,
            }
        }
        None
    }

    /// Those that work beside it, to be ended.
    fn workers(&mut self) -> impl Iterator<Item = Worker> {
        [self.schedule.take(), self.watch.take(), self.late.take()].into_iter().flatten()
    }

    /// Takes no more requests, answers those that were taken, and ends without a last checkpoint: who starts next, at once,
    /// finds all that was acknowledged. Block devices stay; what is asked of them waits. This process is to run another
    /// program then, or its own once more: threads of ublk devices are there until it does.
    pub fn hand_over(mut self) -> Estate {
        let handle = self.runtime.handle().clone();
        Worker::end(self.workers(), QUIESCE);
        drop(self.huge_pages.take());
        self.shared.end_changes(Instant::now() + QUIESCE);
        // The next program looks into the state folder, and no thread of this one goes on in it.
        self.shared.wait_until_written(QUIESCE);
        // While clients are served yet: the disk need not be waited for later.
        let _ = handle.begin(Command::Quiesce).wait(QUIESCE);
        let mut estate = Estate::new();
        if let Some(nbd) = self.nbd.take() {
            nbd.shutdown(QUIESCE);
        }
        lock(&self.shared.offers).are_over = true;
        let exports: Vec<(u16, Export)> =
            lock(&self.shared.volumes).iter_mut().filter_map(|(number, slot)| Some((*number, slot.export.take()?))).collect();
        let ids = handle.status().map(|status| status.volumes.iter().map(|volume| (volume.number, volume.id)).collect());
        let ids: BTreeMap<u16, [u8; 16]> = ids.unwrap_or_default();
        // Those whose disk has not come since the last time wait on.
        estate.fuse.append(&mut lock(&self.shared.left));
        if let Frontend::Ublk { .. } = self.shared.frontend {
            // What is not answered yet the successor is asked again, as after a kill: nobody waits for it here.
            for (_, export) in exports {
                if let Export::Ublk(device) = export {
                    device.freeze();
                }
            }
            std::mem::forget(self);
            return estate;
        }
        for (number, export) in exports {
            let (Export::Loop(export), Some(id)) = (export, ids.get(&number)) else { continue };
            match export.leave() {
                Ok(left) => drop(estate.fuse.insert(*id, left)),
                Err(error) => {
                    tracing::error!("volume {number} could not be passed on: {error}. Detach and attach it, and mount it again");
                }
            }
        }
        // Whoever asked is answered before the engine goes.
        let until = Instant::now() + ANSWERED;
        while handle.status().is_some_and(|status| status.volumes.iter().any(|volume| volume.requests > 0)) {
            if Instant::now() > until {
                tracing::error!(
                    "requests are not answered within {} s: whoever asked gets errors. Look at the kernel's log for the devices",
                    ANSWERED.as_secs()
                );
                break;
            }
            thread::sleep(Duration::from_millis(1));
        }
        drop(self.metrics.take());
        drop(self.control.take());
        // A client's thread may be there yet, and keep the rest.
        lock(&self.shared.stale).clear();
        estate
    }

    /// Ends cleanly within `limit`: front ends first, then the engine, whose last checkpoint makes the next start warm.
    ///
    /// # Errors
    /// What did not end in time, in words. Nothing that was acknowledged is lost by it.
    pub fn stop(mut self, limit: Duration) -> Result<(), String> {
        let until = Instant::now() + limit;
        let left = || until.saturating_duration_since(Instant::now());
        self.shared.begin_to_stop();
        Worker::end(self.workers(), QUIESCE.min(left() / 4));
        let is_quiet = self.shared.end_changes(Instant::now() + LONG.min(left() / 2));
        if let Some(nbd) = self.nbd.take() {
            let cut = nbd.shutdown(left().min(Duration::from_secs(5)));
            if cut > 0 {
                tracing::warn!(
                    "{cut} NBD connections were cut off with requests outstanding. Close connections before a daemon is stopped"
                );
            }
        }
        drop(self.metrics.take());
        drop(self.huge_pages.take());
        self.shared.withdraw_block_devices(until);
        let stopped = self.runtime.handle().begin(Command::Stop).wait(left());
        let result = match stopped {
            Some(result) => result.map_err(|error| error.to_string()),
            None => Err(format!(
                "The engine did not end within {} s. Nothing that was acknowledged is lost; the next start takes a little \
                 longer. Give it more time with --stop-within",
                limit.as_secs()
            )),
        };
        // What the end of the engine does to requests that it still has, clients are not to hear.
        // Looked at first: whoever makes one parks it before he is done.
        let is_ublk = matches!(self.shared.frontend, Frontend::Ublk { .. });
        let is_made = lock(&self.shared.offers).under_way > 0 || is_ublk && !is_quiet;
        let parked: Vec<ublk::Device> = lock(&self.shared.parked).drain(..).collect();
        let some_stay = !parked.is_empty() || is_made;
        if is_made {
            // One that is being made yet, or taken away by whoever was cut off, ends with the process as well.
            std::mem::forget(self.shared.clone());
        }
        parked.into_iter().for_each(ublk::Device::freeze);
        if result.is_ok() {
            // Whoever asked for the end may keep the rest.
            lock(&self.shared.stale).clear();
        }
        *lock(&self.shared.stopping.state) = StopState::Stopped(result.clone());
        self.shared.stopping.changed.notify_all();
        // Its threads hold what they need; those that wait for the end have it now.
        drop(self.control.take());
        // Before the devices are let go of, as whoever starts next looks for it; and behind the answer, as the state folder's disk may be silent.
        if result.is_ok() {
            self.shared.events.add(watch::of_stop(&self.shared.name));
        }
        self.shared.wait_until_written(QUIESCE);
        if result.is_err() || some_stay {
            // The kernel may have requests that never end; waiting for them is for the kernel. And where a device stays, its
            // commands may be in the engine's ring, which is to end with the process.
            std::mem::forget(self.runtime);
        }
        result
    }
}

/// The state folder, made if it is missing.
fn state_folder(options: &Options) -> Result<State, StartError> {
    State::open(&options.state).map_err(|source| StartError::Folder { path: options.state.clone(), source })
}

/// The control socket, whose folder is made if it is missing and something listens, and the NBD socket or the folder of mounts.
fn reached_at(
    options: &Options,
    superblock: &Superblock,
    choice: Choice,
    listen: bool,
) -> Result<(PathBuf, PathBuf), StartError> {
    let socket = match &options.socket {
        Some(socket) => socket.clone(),
        None if listen => run_folder().join(format!("{}.sock", names::fits_a_path(&superblock.name)?)),
        None => run_folder().join("none"),
    };
    let beside = socket.parent().unwrap_or(Path::new("/")).to_owned();
    let front = match (choice, &options.nbd) {
        (Choice::Nbd | Choice::Auto, Some(nbd)) => nbd.clone(),
        (Choice::Nbd | Choice::Auto, None) => beside.join(format!("{}.nbd", names::fits_a_path(&superblock.name)?)),
        (Choice::Fuse, _) => beside.join(names::fits_a_path(&superblock.name)?),
        (Choice::Ublk | Choice::None, _) => PathBuf::new(),
    };
    if listen {
        fs::create_dir_all(&beside).map_err(|source| StartError::Folder { path: beside, source })?;
    }
    Ok((socket, front))
}

/// Refuses names that are none of a pool's volumes, or of one that has no backing device, where there should be one.
fn are_its_volumes(options: &Options, superblock: &Superblock) -> Result<(), StartError> {
    let volume = |name: &String| superblock.volumes.iter().find(|volume| volume.name == *name);
    if let Some(name) = options.backings.keys().chain(&options.give_up).find(|name| volume(name).is_none()) {
        let names: Vec<&str> = superblock.volumes.iter().map(|volume| volume.name.as_str()).collect();
        let volumes = if names.is_empty() { "none".into() } else { names.join(", ") };
        return Err(StartError::NoVolume { name: name.clone(), pool: superblock.name.clone(), volumes });
    }
    match options.backings.keys().find(|name| volume(name).is_some_and(|volume| !volume.has_disk())) {
        Some(name) => Err(StartError::NoDisk { name: name.clone() }),
        None => Ok(()),
    }
}

/// Listens for who wants metrics; says so where others than this host can read them.
fn listen_for_metrics(address: SocketAddr) -> Result<TcpListener, StartError> {
    if !address.ip().is_loopback() {
        tracing::warn!(
            "metrics are served at {address}, to whoever reaches it: names of volumes and devices, and how much they are used. \
             Choose a loopback address unless that is meant"
        );
    }
    TcpListener::bind(address).map_err(|source| StartError::Metrics { address, source })
}

/// Serves metrics; where that cannot be, says so: a pool is not kept from its clients for figures.
fn serve_metrics(address: SocketAddr, shared: &Arc<Shared>) -> Option<metrics::Server> {
    let of = shared.clone();
    let source = move || {
        let snapshot = of.handle.snapshot()?;
        metrics::render(&of.report_of(&snapshot), &snapshot.requests).ok()
    };
    let serve = |listener| metrics::Server::start(listener, Arc::new(source));
    match listen_for_metrics(address).and_then(|it| serve(it).map_err(|source| StartError::Metrics { address, source })) {
        Ok(server) => Some(server),
        Err(error) => {
            let advice = Advice {
                wrong: format!("The pool is served, but without its metrics. {error}."),
                next: "Put that right, and restart; clients are served as they are until then.".into(),
            };
            tracing::warn!("{} {}", advice.wrong, advice.next);
            *lock(&shared.no_metrics) = Some(advice);
            None
        }
    }
}

impl Shared {
    /// From now on no volume comes, goes or changes.
    fn begin_to_stop(&self) {
        let mut state = lock(&self.stopping.state);
        if matches!(*state, StopState::Running) {
            *state = StopState::Wanted;
        }
    }

    /// Whether volumes may come, go and change.
    fn goes_on(&self) -> bool {
        matches!(*lock(&self.stopping.state), StopState::Running)
    }

    /// Waits until no volume is coming or going any more, and nothing long runs; what does is cancelled first, as it may want hours. A block device
    /// that is being taken away is nobody's meanwhile: it is gone then, or back with its volume, to be let go of as the others are. Whether it is.
    fn end_changes(&self, until: Instant) -> bool {
        loop {
            let running = self.running();
            running.iter().for_each(|id| drop(self.handle.begin(Command::Cancel(*id))));
            let is_quiet = !matches!(self.changing.try_lock(), Err(TryLockError::WouldBlock));
            if is_quiet && running.is_empty() {
                return true;
            }
            if Instant::now() >= until {
                let what = if is_quiet { "What was cancelled".into() } else { lock(&self.under_way).clone() };
                tracing::warn!("{what} takes too long to wait for, and is cut off. `headpond status` tells what came of it");
                return is_quiet;
            }
            thread::sleep(LOOK);
        }
    }

    /// The long commands that run on volumes, and the change of members. Once the daemon ends none is begun.
    fn running(&self) -> Vec<CommandId> {
        let on_volumes = lock(&self.volumes).values().filter_map(|slot| slot.running).collect::<Vec<_>>();
        let of_members = lock(&self.changing_members).and_then(members::Change::id);
        on_volumes.into_iter().chain(of_members).collect()
    }

    /// Lets go of all block devices, all at once: what one of them waits for the others do not. A ublk device in use is left to the kernel, which
    /// holds its I/O back until the next start. A loop device in use is served on for half of the time that is left, but no longer than [`LONG`];
    /// then it goes as well.
    fn withdraw_block_devices(&self, until: Instant) {
        let left = until.saturating_duration_since(Instant::now());
        // The engine needs some of the time as well.
        let (flushed, in_use) = (LAST_FLUSHED.min(left / 2), Instant::now() + LONG.min(left / 2));
        // From here on whoever makes one takes it away himself.
        lock(&self.offers).are_over = true;
        let is_there = |slot: &Slot| slot.export.is_some();
        let (devices, others): (Vec<_>, Vec<_>) =
            lock(&self.volumes).iter().map(|(number, slot)| (*number, is_there(slot))).partition(|it| it.1);
        at_once(&devices, |(number, _)| self.withdraw_at_the_end(number, flushed, in_use));
        others.into_iter().for_each(|(number, _)| self.withdraw_at_the_end(number, flushed, in_use));
        let left: Vec<[u8; 16]> = lock(&self.left).keys().copied().collect();
        left.iter().for_each(|id| self.end_left(id));
    }

    /// Lets go of the block device of a volume; a flush of it may take as long as `flushed`, and users of a loop device are waited for until `in_use`.
    fn withdraw_at_the_end(&self, number: u16, flushed: Duration, in_use: Instant) {
        while let Err(error) = self.withdraw(number, |export| export.end(flushed)) {
            let take = || lock(&self.volumes).get_mut(&number).and_then(|slot| slot.export.take());
            if let Frontend::Ublk { .. } = self.frontend {
                tracing::warn!("{error}. It stays, and its I/O waits until `headpond serve` is started again");
                if let Some(Export::Ublk(device)) = take() {
                    device.park();
                    lock(&self.parked).push(*device);
                }
                return;
            }
            if Instant::now() >= in_use {
                tracing::error!(
                    "{error}; it is taken away all the same: its users get I/O errors. Unmount volumes before a daemon is stopped"
                );
                drop(take());
                return;
            }
            tracing::warn!("{error}; waiting for it");
            thread::sleep(Duration::from_millis(500));
        }
    }

    /// Changes what is remembered of the pool's places.
    fn remember(&self, change: impl FnOnce(&mut Places)) {
        let mut written = lock(&self.written);
        let now = {
            let mut places = lock(&self.places);
            change(&mut places);
            places.clone()
        };
        if now == *written {
            return;
        }
        match self.state.remember(&self.pool, &now) {
            Ok(()) => *written = now,
            Err(error) => warn_of_unknown_places(&error, now.members != written.members),
        }
    }

    /// The same, or nothing is changed.
    ///
    /// # Errors
    /// It cannot be written.
    fn remember_durably(&self, change: impl Fn(&mut Places)) -> std::io::Result<()> {
        let mut written = lock(&self.written);
        let mut now = lock(&self.places).clone();
        change(&mut now);
        self.state.remember(&self.pool, &now)?;
        *written = now;
        change(&mut lock(&self.places));
        Ok(())
    }

    /// Writes down where devices are, if that was not noted before, beside whoever has found them: the state folder's disk may be silent.
    fn write_places_soon(self: &Arc<Shared>) {
        let shared = Arc::clone(self);
        self.writing_places.ask("places", move || shared.remember(|_| ()));
    }

    /// Whether something is being written to the state folder that whoever ends or hands over has to wait for.
    fn is_state_being_written(&self) -> bool {
        let is_locked = || matches!(self.written.try_lock(), Err(TryLockError::WouldBlock));
        self.events.is_written() || self.writing_places.is_under_way() || self.writing_lost.is_under_way() || is_locked()
    }

    /// Waits until all of that is there, but no longer than `limit`: whether it is.
    fn wait_until_written(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        while self.is_state_being_written() {
            if Instant::now() >= until {
                return false;
            }
            thread::sleep(SOON);
        }
        true
    }
}

/// Where devices are could not be written: what that means, and whether for cache devices.
fn warn_of_unknown_places(error: &std::io::Error, of_members: bool) {
    let next = match of_members {
        true => {
            "the next start finds a cache device alone that is named: name all that the pool has now in `headpond serve`, or in `devices`"
        }
        false => "the next start may need --backing",
    };
    tracing::warn!("cannot remember where the devices are: {error}. Make room in the state folder; else {next}");
}
