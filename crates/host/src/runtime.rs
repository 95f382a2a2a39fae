//! The thread that owns an engine and its devices.
//!
//! Clients' requests and commands come in through a channel, whose senders ring the bell of the thread's ring;
//! device completions come in through the ring; the engine's timers are the ring's time limits. What the engine
//! wants done goes out: to the devices, or to whoever waits for the reply.
//!
//! Where there are few processors the thread attends to queues of ublk devices as well: their requests come in through the
//! same ring, and their answers go out through it.
//!
//! A panic in this thread ends the process, before anybody is answered with an error. Every client would wait for ever otherwise, and what is on
//! the devices is made for being found after a death at any moment.

use std::collections::HashMap;
use std::mem;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use headpond_engine::election::Election;
use headpond_engine::io::{Command, CommandError, CommandId, Device, Effect, Reply, Request, RequestId};
use headpond_engine::{Engine, Settings, Starting, Status};

use crate::beside::{Door, LINES, Registry, nanos};
use crate::buf::{HostBuf, LargeKept};
use crate::claim::Claim;
use crate::device::load::{Loads, Owed};
use crate::device::modelled::Pace;
use crate::device::{Devices, DevicesError};
use crate::fuse::mark_io_flusher;
use crate::last_words::{abort, or_abort};
use crate::requests::{Op, Table};
use crate::ring::Waker;
use crate::ublk::attendants::{Asked, Asker, Attendants};
use crate::ublk::queue::Unattended;

/// Operations in the kernel at a time, of each device: as many as a sweep and the clients of several volumes want from one.
const DEPTH: u32 = 256;

/// Pieces looked at in one go for lost ones: a moment's work, as clients wait for its end.
const LOOKS_AT: usize = 1 << 14;

/// How long the end of a runtime, or of a queue's thread, waits for what devices owe: a step of theirs takes no longer, if they answer at all.
pub(crate) const OWED: Duration = Duration::from_secs(5);

/// The start of the engine is a command, too: the first.
const START: CommandId = CommandId(0);

/// A device for the engine.
pub struct Given {
    /// The name by which the engine knows it.
    pub device: Device,
    /// The claim, which carries the I/O.
    pub claim: Claim,
    /// The model that it is to be as slow as.
    pub pace: Option<Box<dyn Pace + Send>>,
}

/// What a runtime starts with.
pub struct Setup {
    /// The engine's settings.
    pub settings: Settings,
    /// Which superblock counts, and who is there.
    pub election: Election,
    /// Members, witness and backing devices.
    pub devices: Vec<Given>,
}

/// Lost runs of sectors, and where to go on.
type LostPage = (Vec<Range<u64>>, Option<u64>);

/// Who waits for the reply to a request.
enum ReplyTo {
    Caller(Box<dyn FnOnce(Reply<HostBuf>) + Send>),
    Queue(Asker),
}

enum Message {
    Request { volume: u16, request: Request<HostBuf>, since: Option<Instant>, reply: ReplyTo },
    Adopt { volume: u16, queue: Unattended },
    LetOthersFind(u16),
    Command { id: CommandId, command: Command, end: Sender<Result<(), CommandError>> },
    Add(Given),
    Remove(Device),
    Measure(Device, Sender<std::io::Result<u64>>),
    Starting(Sender<Option<Starting>>),
    Status(Sender<Status>),
    Snapshot(Sender<Snapshot>),
    Pinned(u16, Sender<Vec<Range<u64>>>),
    Lost { volume: u16, from: u64, to: Sender<LostPage> },
    End,
}

/// All counters of one moment.
pub struct Snapshot {
    /// Nanoseconds since the runtime's start.
    pub at_ns: u64,
    /// How the engine stands.
    pub status: Status,
    /// What its devices were asked to do.
    pub loads: Loads,
    /// What devices owe that were removed.
    pub removed: Owed,
    /// What requests there were.
    pub requests: Table,
}

/// Reaches the runtime from any thread.
#[derive(Clone)]
pub struct Handle {
    inbox: Sender<Message>,
    waker: Waker,
    next_command: Arc<AtomicU64>,
    registry: Arc<Registry>,
}

impl Handle {
    /// A client's request; `reply` is called on the runtime's thread and must not block. If the runtime has ended,
    /// `reply` is dropped, which answers for it.
    pub fn request(&self, volume: u16, request: Request<HostBuf>, reply: impl FnOnce(Reply<HostBuf>) + Send + 'static) {
        self.request_begun(volume, request, None, reply);
    }

    /// The same, of a request that was begun elsewhere `since` then, if it was: from then on it has taken time.
    pub fn request_begun(
        &self,
        volume: u16,
        request: Request<HostBuf>,
        since: Option<Instant>,
        reply: impl FnOnce(Reply<HostBuf>) + Send + 'static,
    ) {
        self.send(Message::Request { volume, request, since, reply: ReplyTo::Caller(Box::new(reply)) });
    }

    /// Lets the runtime's thread attend to a queue of a volume; what interrupts its waits.
    pub fn adopt(&self, volume: u16, queue: Unattended) -> Waker {
        self.send(Message::Adopt { volume, queue });
        self.waker.clone()
    }

    /// Where threads that attend to a volume's queues learn what they may read by themselves.
    pub fn door(&self, volume: u16) -> Door {
        Door { registry: Arc::clone(&self.registry), handle: self.clone(), volume }
    }

    /// Has the engine leave for others to find what it reads of a volume, once that is served; the registry has it then.
    pub fn let_others_find(&self, volume: u16) {
        self.send(Message::LetOthersFind(volume));
    }

    /// Begins a command.
    pub fn begin(&self, command: Command) -> Running {
        let id = CommandId(self.next_command.fetch_add(1, Ordering::Relaxed));
        let (end, ended) = mpsc::channel();
        self.send(Message::Command { id, command, end });
        Running { id, ended }
    }

    /// Gives the engine another device; commands begun afterwards find it.
    pub fn add(&self, given: Given) {
        self.send(Message::Add(given));
    }

    /// Takes a device away; its claim ends with its last operation.
    pub fn remove(&self, device: Device) {
        self.send(Message::Remove(device));
    }

    /// The size of a device as it is now, in bytes; from now on the engine may use all of it. `None` if the runtime has ended.
    pub fn measure(&self, device: Device) -> Option<std::io::Result<u64>> {
        let (to, size) = mpsc::channel();
        self.send(Message::Measure(device, to));
        size.recv().ok()
    }

    /// How far the start is, while that is known.
    pub fn starting(&self) -> Option<Starting> {
        let (to, starting) = mpsc::channel();
        self.send(Message::Starting(to));
        starting.recv().ok().flatten()
    }

    /// How everything stands; `None` if the runtime has ended.
    pub fn status(&self) -> Option<Status> {
        let (to, status) = mpsc::channel();
        self.send(Message::Status(to));
        status.recv().ok()
    }

    /// All counters, of one moment; `None` if the runtime has ended.
    pub fn snapshot(&self) -> Option<Snapshot> {
        let (to, snapshot) = mpsc::channel();
        self.send(Message::Snapshot(to));
        snapshot.recv().ok()
    }

    /// What is pinned on a volume, in sectors; nothing if the runtime has ended.
    pub fn pinned(&self, volume: u16) -> Vec<Range<u64>> {
        let (to, pinned) = mpsc::channel();
        self.send(Message::Pinned(volume, to));
        pinned.recv().unwrap_or_default()
    }

    /// Some of what is lost of a volume, from a block on, and the block to go on from, if there may be more; see
    /// [`Engine::lost`]. `None` if the runtime has ended.
    pub fn lost(&self, volume: u16, from: u64) -> Option<LostPage> {
        let (to, lost) = mpsc::channel();
        self.send(Message::Lost { volume, from, to });
        lost.recv().ok()
    }

    fn send(&self, message: Message) {
        // Fails when the runtime has ended; what the message holds answers by being dropped.
        let _ = self.inbox.send(message);
        self.waker.wake();
    }
}

/// A command on its way.
pub struct Running {
    /// Its name, for cancelling it.
    pub id: CommandId,
    ended: Receiver<Result<(), CommandError>>,
}

impl Running {
    /// Its end if it comes within `limit`. A command that the runtime's end cut off was cancelled.
    pub fn wait(&self, limit: Duration) -> Option<Result<(), CommandError>> {
        match self.ended.recv_timeout(limit) {
            Ok(result) => Some(result),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Err(CommandError::Cancelled)),
        }
    }

    /// Its end, however long it takes.
    pub fn end(&self) -> Result<(), CommandError> {
        self.ended.recv().unwrap_or(Err(CommandError::Cancelled))
    }
}

/// An engine at work. Dropped, it ends as it is: [`Command::Stop`] comes before a clean end.
pub struct Runtime {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
    /// Hung up when the thread has let go of all devices.
    let_go: Receiver<()>,
}

impl Runtime {
    /// Starts the thread, and the engine in it; the second value tells when the engine is up.
    ///
    /// # Errors
    /// There is no io_uring to be had.
    pub fn start(setup: Setup) -> Result<(Runtime, Running), DevicesError> {
        let (inbox, messages) = mpsc::channel();
        let (end, ended) = mpsc::channel();
        let (up, is_up) = mpsc::channel();
        let (has_devices, let_go) = mpsc::channel();
        let thread = thread::Builder::new().name("engine".into()).spawn(move || {
            let _has_devices: Sender<()> = has_devices;
            let body = || {
                let mut devices = match Devices::new(DEPTH) {
                    Ok(devices) => devices,
                    Err(error) => return drop(up.send(Err(error))),
                };
                mark_io_flusher();
                let backings = setup.devices.iter().filter_map(|given| match given.device {
                    Device::Backing(number) => Some(number),
                    _ => None,
                });
                let backings: Vec<u16> = backings.collect();
                let registry = Arc::new(Registry::new(devices.origin()));
                setup.devices.into_iter().for_each(|given| add(&mut devices, &registry, given));
                let _ = up.send(Ok((devices.waker(), Arc::clone(&registry))));
                let mut thread = Thread {
                    engine: Engine::start(0, setup.settings, setup.election, &backings, START),
                    devices,
                    registry,
                    attendants: Attendants::default(),
                    guests: Vec::new(),
                    origin: Instant::now(),
                    replies: HashMap::new(),
                    requests: Table::default(),
                    next_request: 0,
                    commands: HashMap::from([(START.0, end)]),
                    starting: Some(LargeKept::new()),
                };
                // Whoever asks something from here on is told that nobody answers, and does not wait for what devices owe.
                thread.run(messages);
            };
            or_abort(
                "the engine panicked; the process ends. What was acknowledged is on the cache devices. Start the daemon again.",
                body,
            );
        });
        let thread = thread.map_err(DevicesError::Setup)?;
        let (waker, registry) = is_up.recv().map_err(|_| DevicesError::Setup(std::io::Error::other("its thread ended")))??;
        let handle = Handle { inbox, waker, next_command: Arc::new(AtomicU64::new(START.0 + 1)), registry };
        Ok((Runtime { handle, thread: Some(thread), let_go }, Running { id: START, ended }))
    }

    /// How to reach it.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for Runtime {
    /// Waits for the device operations that the kernel has: the claims must outlive them. One that a device never ends is not waited for
    /// longer than others take: the thread keeps what there is of it, until it ends after all or the process does.
    fn drop(&mut self) {
        self.handle.send(Message::End);
        let owed = matches!(self.let_go.recv_timeout(OWED), Err(RecvTimeoutError::Timeout));
        if let Some(thread) = self.thread.take().filter(|_| !owed) {
            let _ = thread.join();
        }
    }
}

fn add(devices: &mut Devices, registry: &Registry, given: Given) {
    match given.pace {
        Some(pace) => devices.add_paced(given.device, given.claim, pace),
        None => devices.add(given.device, given.claim),
    }
    registry.set_device(given.device, devices.share(given.device));
}

/// A request on its way.
struct Waiting {
    reply: ReplyTo,
    /// What it asks for, and its bytes.
    asks: (Op, u64),
    since: u64,
}

struct Thread {
    engine: Engine<HostBuf>,
    devices: Devices,
    registry: Arc<Registry>,
    /// After `devices`, whose ring has their commands.
    attendants: Attendants,
    /// What ended of these commands; empty between turns.
    guests: Vec<(u64, i32)>,
    origin: Instant,
    replies: HashMap<u64, Waiting>,
    requests: Table,
    next_request: u64,
    commands: HashMap<u64, Sender<Result<(), CommandError>>>,
    /// Until the start has ended.
    starting: Option<LargeKept>,
}

impl Thread {
    fn run(&mut self, messages: Receiver<Message>) {
        let mut done = Vec::new();
        loop {
            self.engine.advance(self.now());
            for (io, result) in done.drain(..) {
                self.engine.complete(io, result);
            }
            self.pump();
            // All that wait are taken before the engine goes on: they may share an append.
            for message in messages.try_iter() {
                match message {
                    Message::End => return self.registry.end(),
                    message => self.take(message),
                }
            }
            self.attend();
            self.pump();
            let now = self.now();
            let limit = self.engine.next_timer().map(|at| Duration::from_nanos(at.saturating_sub(now)));
            let limit = if self.attendants.are_fetching() { Some(Duration::ZERO) } else { limit };
            if let Err(error) = self.devices.wait(limit, &mut done) {
                abort(error);
            }
        }
    }

    fn now(&self) -> u64 {
        nanos(self.origin.elapsed())
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Request { volume, request, since, reply } => self.request(volume, request, since, reply),
            Message::Adopt { volume, queue } => self.attendants.adopt(volume, queue),
            Message::Command { id, command, end } => {
                self.commands.insert(id.0, end);
                self.engine.command(id, command);
            }
            Message::LetOthersFind(volume) => {
                if let Some(table) = self.engine.lookaside(volume, LINES) {
                    self.registry.set_table(volume, table);
                }
            }
            Message::Add(given) => add(&mut self.devices, &self.registry, given),
            Message::Remove(device) => {
                self.registry.set_device(device, None);
                self.devices.remove(device);
                if let Device::Backing(volume) = device {
                    self.registry.forget(volume);
                    self.requests.forget(volume);
                }
            }
            // Whoever asked may have left, here and below.
            Message::Measure(device, to) => drop(to.send(self.devices.measure(device))),
            Message::Starting(to) => drop(to.send(self.engine.starting())),
            Message::Status(to) => drop(to.send(self.engine.status())),
            Message::Snapshot(to) => {
                let mut requests = self.requests.clone();
                self.registry.add_requests(&mut requests);
                let (mut loads, mut removed) = self.devices.loads();
                self.registry.add_owed(&mut loads, &mut removed);
                let snapshot = Snapshot { at_ns: self.now(), status: self.engine.status(), loads, removed, requests };
                drop(to.send(snapshot));
            }
            Message::Pinned(volume, to) => drop(to.send(self.engine.pinned(volume))),
            Message::Lost { volume, from, to } => drop(to.send(self.engine.lost(volume, from, LOOKS_AT))),
            Message::End => unreachable!("taken by the loop"),
        }
    }

    fn request(&mut self, volume: u16, request: Request<HostBuf>, since: Option<Instant>, reply: ReplyTo) {
        let since = since.map_or_else(|| self.now(), |since| nanos(since.saturating_duration_since(self.origin)));
        let id = self.next_request;
        self.next_request += 1;
        self.replies.insert(id, Waiting { reply, asks: Op::of(&request), since });
        self.engine.request(volume, RequestId(id), request);
    }

    /// Takes what clients ask of the queues that this thread attends to, and then does what the queues' owners want.
    fn attend(&mut self) {
        let mut ended = mem::take(&mut self.guests);
        self.devices.reap_guests(&mut ended);
        for (number, result) in ended.drain(..) {
            let asked = self.attendants.completed(number, result, self.devices.ring());
            if let Some(Asked { volume, request, asker }) = asked {
                self.request(volume, request, None, ReplyTo::Queue(asker));
            }
        }
        self.guests = ended;
        self.attendants.obey(self.devices.ring());
    }

    /// Does what the engine wants done.
    fn pump(&mut self) {
        while let Some(effect) = self.engine.poll() {
            match effect {
                Effect::Submit { io, device, op } => self.devices.submit(io, device, op),
                Effect::Reply { volume, id, fate, result } => {
                    let Waiting { reply, asks, since } = self.replies.remove(&id.0).expect("a request is answered once");
                    let took = self.now().saturating_sub(since);
                    self.requests.add(volume, asks, fate, took);
                    match reply {
                        ReplyTo::Caller(reply) => reply(result),
                        ReplyTo::Queue(asker) => self.attendants.answer(asker, result, self.devices.ring()),
                    }
                }
                Effect::Done { id, result } => {
                    if id == START {
                        self.starting = None;
                    }
                    if let Some(end) = self.commands.remove(&id.0) {
                        let _ = end.send(result);
                    }
                }
            }
        }
    }
}
