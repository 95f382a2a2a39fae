//! The control socket: JSON objects, each ended by a zero byte, over a Unix socket, in the manner of Varlink.
//!
//! A call is `{"method": "org.headpond.Status", "parameters": {}}`, with `"more": true` if progress is wanted. The
//! answer is `{"parameters": {...}}`, or `{"error": "org.headpond.Refused", "parameters": {"message": "..."}}`; before
//! it, if they were wanted, come answers with `"continues": true`. Fields that are not known are an error.
//!
//! The socket is its owner's alone (mode 0600), and each client's user is asked of the kernel besides.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::nbd::server::{ListenError, listen};
use clients::Clients;

mod clients;

/// The longest frame in either direction that is read, in bytes.
pub const LIMIT: usize = 64 << 10;
/// Replies carry a line for each volume and member, or all histograms, and may be longer.
const REPLY_LIMIT: usize = 8 << 20;
/// How long a client is waited for that does not read its answer, or does not ask: there are only so many at a time.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a client may ask.
#[derive(Clone, PartialEq, Debug)]
#[expect(missing_docs, reason = "the fields are those of the command line")]
pub enum Call {
    /// How everything stands.
    Status,
    /// How long requests took, and how large they were.
    Histograms,
    /// What happened, from an event's number on.
    Events { from: u64 },
    /// Make a device a volume of the pool.
    Attach(Attach),
    /// Destage a volume and let go of it.
    Detach {
        /// The volume.
        name: String,
        /// Also where dirty data has lost all its copies.
        give_up_lost: bool,
        /// Of one that is not served: throw away what the cache has of it.
        throw_away: bool,
        /// Give up after so long.
        deadline_seconds: Option<u64>,
    },
    /// Switch a volume's mode.
    SetMode {
        /// The volume.
        name: String,
        /// The mode's name.
        mode: String,
        /// Give up after so long.
        deadline_seconds: Option<u64>,
    },
    /// Destage all that is dirty on a volume now.
    Destage {
        /// The volume.
        name: String,
        /// Give up after so long.
        deadline_seconds: Option<u64>,
    },
    /// Take a checkpoint now.
    Checkpoint,
    /// End the daemon cleanly.
    Stop,
    /// Let another program go on in the daemon's place.
    Upgrade {
        /// Its path.
        program: String,
        /// Also where connections of NBD clients are cut by it.
        cut: bool,
    },
    /// End the long command that runs on a volume.
    Cancel { name: String },
    /// Take a device into the pool.
    AddMember(AddMember),
    /// Take a cache device out of the pool, by its number or path.
    RemoveMember { member: String },
    /// End the change of members that is under way.
    CancelMembers,
    /// Read every copy of everything that the cache holds, and mend what is damaged.
    Scrub {
        /// The most that is read in a second; zero: as fast as the cache devices answer.
        bytes_per_second: u64,
    },
    /// End the scrub that is under way.
    CancelScrub,
    /// Read what is missing of these runs of a volume's bytes into the cache.
    Preload(Runs),
    /// End the preload that is under way on a volume.
    CancelPreload { name: String },
    /// Keep these runs of a volume's bytes in the cache.
    Pin(Runs),
    /// Keep them no longer.
    Unpin(Runs),
    /// What is pinned on a volume.
    Pinned { name: String },
    /// What of the pool's segments a volume is sure of, and may have at most, in percent; what is not named stays.
    Share {
        /// The volume.
        name: String,
        /// What it is sure of.
        min: Option<u8>,
        /// The most that it takes.
        max: Option<u8>,
    },
    /// Let a volume have the size that its backing device has come to have; one without a backing device, the size named.
    Grow(Grow),
    /// Make a volume without a backing device.
    CreateVolume(CreateVolume),
    /// Delete one, with what is on it.
    DeleteVolume {
        /// The volume.
        name: String,
        /// Without this it is only told what would be lost.
        throw_away: bool,
    },
}

/// The parameters of `AddMember`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddMember {
    /// The device's path.
    pub path: String,
    /// Overwrite what is on it, but for dirty data of a pool.
    #[serde(default)]
    pub force: bool,
    /// Lose what is dirty on the pool of this identity in this epoch, too: as [`crate::pool::DiscardDirty`] is written.
    #[serde(default)]
    pub discard_dirty: Option<String>,
    /// Put it in the place of the cache device with this number, which has left; chosen if not given.
    #[serde(default)]
    pub in_place_of: Option<u8>,
}

/// The parameters of `CreateVolume`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateVolume {
    /// The volume's name.
    pub name: String,
    /// Its size; rounded up to whole blocks of 4 KiB.
    pub bytes: u64,
}

/// The parameters of `Grow`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grow {
    /// The volume's name.
    pub name: String,
    /// Its new size; all that the backing device has if not given. Has to be given where there is none.
    #[serde(default)]
    pub bytes: Option<u64>,
}

/// Runs of a volume's bytes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Runs {
    /// The volume's name.
    pub name: String,
    /// Where each begins, and its length; at most [`Runs::MOST`] of them.
    pub runs: Vec<[u64; 2]>,
}

impl Runs {
    /// As many as a frame takes.
    pub const MOST: usize = 1400;
}

/// The parameters of `Attach`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attach {
    /// The volume's name.
    pub name: String,
    /// Its backing device.
    pub spec: String,
    /// Its mode.
    pub mode: String,
    /// Where its grid of blocks begins; by its partition table if not given.
    #[serde(default)]
    pub phase: Option<u8>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Name {
    name: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Share {
    name: String,
    min: Option<u8>,
    max: Option<u8>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FromNumber {
    #[serde(default)]
    from: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Detach {
    name: String,
    #[serde(default)]
    give_up_lost: bool,
    #[serde(default)]
    throw_away: bool,
    #[serde(default)]
    deadline_seconds: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DeleteVolume {
    name: String,
    #[serde(default)]
    throw_away: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Destage {
    name: String,
    #[serde(default)]
    deadline_seconds: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RemoveMember {
    member: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Upgrade {
    program: String,
    #[serde(default)]
    cut: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Scrub {
    bytes_per_second: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NameAndMode {
    name: String,
    mode: String,
    #[serde(default)]
    deadline_seconds: Option<u64>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

/// A call as it is on the wire.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Frame {
    method: String,
    #[serde(default = "no_parameters")]
    parameters: Value,
    #[serde(default)]
    more: bool,
}

fn no_parameters() -> Value {
    json!({})
}

#[derive(Deserialize)]
struct ReplyFrame {
    #[serde(default = "no_parameters")]
    parameters: Value,
    #[serde(default)]
    continues: bool,
    error: Option<String>,
}

/// How long a daemon may take to tell what it knows: it waits for no device for that.
pub const AT_ONCE: Duration = Duration::from_secs(10);

impl Call {
    /// Whether it changes nothing, and takes no time.
    #[must_use]
    pub fn only_asks(&self) -> bool {
        matches!(self, Call::Status | Call::Histograms | Call::Events { .. } | Call::Pinned { .. })
    }

    /// Whether it may go on for as long as a disk takes, or for ever.
    fn may_take_long(&self) -> bool {
        let cancels = matches!(self, Call::Cancel { .. } | Call::CancelMembers | Call::CancelScrub | Call::CancelPreload { .. });
        !self.only_asks() && !cancels
    }

    /// Its name, and its parameters as far as they say anything: a daemon of an older version refuses what it does not know, and need not know
    /// what nobody asked for.
    fn frame(&self) -> (&'static str, Value) {
        let (method, mut parameters) = match self {
            Call::Status => ("Status", json!({})),
            Call::Histograms => ("Histograms", json!({})),
            Call::Events { from } => ("Events", json!({ "from": from })),
            Call::Attach(attach) => ("Attach", json!(attach)),
            Call::Detach { name, give_up_lost, throw_away, deadline_seconds: deadline } => {
                let what =
                    json!({ "name": name, "give_up_lost": give_up_lost, "throw_away": throw_away, "deadline_seconds": deadline });
                ("Detach", what)
            }
            Call::SetMode { name, mode, deadline_seconds: deadline } => {
                ("SetMode", json!({ "name": name, "mode": mode, "deadline_seconds": deadline }))
            }
            Call::Destage { name, deadline_seconds } => {
                ("Destage", json!({ "name": name, "deadline_seconds": deadline_seconds }))
            }
            Call::Checkpoint => ("Checkpoint", json!({})),
            Call::Stop => ("Stop", json!({})),
            Call::Upgrade { program, cut } => ("Upgrade", json!({ "program": program, "cut": cut })),
            Call::Cancel { name } => ("Cancel", json!({ "name": name })),
            Call::AddMember(new) => ("AddMember", json!(new)),
            Call::RemoveMember { member } => ("RemoveMember", json!({ "member": member })),
            Call::CancelMembers => ("CancelMembers", json!({})),
            Call::Scrub { bytes_per_second } => ("Scrub", json!({ "bytes_per_second": bytes_per_second })),
            Call::CancelScrub => ("CancelScrub", json!({})),
            Call::Preload(runs) => ("Preload", json!(runs)),
            Call::CancelPreload { name } => ("CancelPreload", json!({ "name": name })),
            Call::Pin(runs) => ("Pin", json!(runs)),
            Call::Unpin(runs) => ("Unpin", json!(runs)),
            Call::Pinned { name } => ("Pinned", json!({ "name": name })),
            Call::Share { name, min, max } => ("Share", json!({ "name": name, "min": min, "max": max })),
            Call::Grow(grow) => ("Grow", json!(grow)),
            Call::CreateVolume(new) => ("CreateVolume", json!(new)),
            Call::DeleteVolume { name, throw_away } => ("DeleteVolume", json!({ "name": name, "throw_away": throw_away })),
        };
        let says_something = |value: &Value| !value.is_null() && *value != json!(false);
        parameters.as_object_mut().into_iter().for_each(|fields| fields.retain(|_, value| says_something(value)));
        (method, parameters)
    }

    fn parse(bytes: &[u8]) -> Result<(Call, bool), Fault> {
        fn get<T: serde::de::DeserializeOwned>(parameters: Value) -> Result<T, Fault> {
            serde_json::from_value(parameters).map_err(|error| Fault::invalid(&error))
        }
        let Frame { method, parameters, more } = serde_json::from_slice(bytes).map_err(|error| Fault::invalid(&error))?;
        let none = |call, parameters| get::<Nothing>(parameters).map(|Nothing {}| call);
        let call = match method.strip_prefix("org.headpond.").unwrap_or_default() {
            "Status" => none(Call::Status, parameters)?,
            "Histograms" => none(Call::Histograms, parameters)?,
            "Events" => Call::Events { from: get::<FromNumber>(parameters)?.from },
            "Attach" => Call::Attach(get(parameters)?),
            "Detach" => {
                let Detach { name, give_up_lost, throw_away, deadline_seconds } = get(parameters)?;
                Call::Detach { name, give_up_lost, throw_away, deadline_seconds }
            }
            "SetMode" => {
                let NameAndMode { name, mode, deadline_seconds } = get(parameters)?;
                Call::SetMode { name, mode, deadline_seconds }
            }
            "Destage" => {
                let Destage { name, deadline_seconds } = get(parameters)?;
                Call::Destage { name, deadline_seconds }
            }
            "Checkpoint" => none(Call::Checkpoint, parameters)?,
            "Stop" => none(Call::Stop, parameters)?,
            "Upgrade" => {
                let Upgrade { program, cut } = get(parameters)?;
                Call::Upgrade { program, cut }
            }
            "Cancel" => Call::Cancel { name: get::<Name>(parameters)?.name },
            "AddMember" => Call::AddMember(get(parameters)?),
            "RemoveMember" => Call::RemoveMember { member: get::<RemoveMember>(parameters)?.member },
            "CancelMembers" => none(Call::CancelMembers, parameters)?,
            "Scrub" => Call::Scrub { bytes_per_second: get::<Scrub>(parameters)?.bytes_per_second },
            "CancelScrub" => none(Call::CancelScrub, parameters)?,
            "Preload" => Call::Preload(get(parameters)?),
            "CancelPreload" => Call::CancelPreload { name: get::<Name>(parameters)?.name },
            "Pin" => Call::Pin(get(parameters)?),
            "Unpin" => Call::Unpin(get(parameters)?),
            "Pinned" => Call::Pinned { name: get::<Name>(parameters)?.name },
            "Share" => {
                let Share { name, min, max } = get(parameters)?;
                Call::Share { name, min, max }
            }
            "Grow" => Call::Grow(get(parameters)?),
            "CreateVolume" => Call::CreateVolume(get(parameters)?),
            "DeleteVolume" => {
                let DeleteVolume { name, throw_away } = get(parameters)?;
                Call::DeleteVolume { name, throw_away }
            }
            _ => {
                let message = format!("There is no method {method:?}. Nothing was done. Use a command of the daemon's version.");
                return Err(Fault { kind: FaultKind::Invalid, message, errno: None });
            }
        };
        Ok((call, more))
    }
}

/// What kind of failure a call ended in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultKind {
    /// It was tried and failed.
    Failed,
    /// It was not tried, since data could be lost.
    Refused,
    /// The call makes no sense.
    Invalid,
}

/// Why a call did not do what it should.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message}")]
pub struct Fault {
    /// What kind it is.
    pub kind: FaultKind,
    /// What happened, what it means for the data, what to do next.
    pub message: String,
    /// The error number that says more than the kind, for programs that have the pool inside; it does not go over the socket.
    pub errno: Option<i32>,
}

const FAULTS: [(FaultKind, &str); 3] = [
    (FaultKind::Failed, "org.headpond.Failed"),
    (FaultKind::Refused, "org.headpond.Refused"),
    (FaultKind::Invalid, "org.varlink.service.InvalidParameter"),
];

impl Fault {
    /// It was tried and failed.
    pub fn failed(message: impl Into<String>) -> Fault {
        Fault { kind: FaultKind::Failed, message: message.into(), errno: None }
    }

    /// It was not tried, since data could be lost.
    pub fn refused(message: impl Into<String>) -> Fault {
        Fault { kind: FaultKind::Refused, message: message.into(), errno: None }
    }

    /// The same, with an error number.
    pub fn with(self, errno: i32) -> Fault {
        Fault { errno: Some(errno), ..self }
    }

    fn invalid(error: &serde_json::Error) -> Fault {
        let message = format!("The call was not understood: {error}. Nothing was done. Use a command of the daemon's version.");
        Fault { kind: FaultKind::Invalid, message, errno: None }
    }

    fn name(&self) -> &'static str {
        FAULTS.iter().find(|(kind, _)| *kind == self.kind).map_or("", |(_, name)| name)
    }

    fn named(name: &str, message: String) -> Fault {
        let kind = FAULTS.iter().find(|(_, known)| *known == name).map_or(FaultKind::Failed, |(kind, _)| *kind);
        Fault { kind, message, errno: None }
    }
}

/// What is behind the socket. Called from one thread per client.
pub trait Service: Send + Sync + 'static {
    /// Does what was asked; `progress` is called from time to time with how far it is, and does not wait for the client.
    fn call(&self, call: Call, progress: &mut dyn FnMut(Value)) -> Result<Value, Fault>;
}

/// A socket being served. Dropped, it takes no more clients, and those it has end with their next call.
pub struct Server {
    path: PathBuf,
    file: (u64, u64),
    listener: Arc<UnixListener>,
    stopping: Arc<AtomicBool>,
    accepting: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens on `path`.
    pub fn start(path: &Path, service: Arc<impl Service>) -> Result<Server, ListenError> {
        Server::start_with(path, service, PATIENCE)
    }

    fn start_with(path: &Path, service: Arc<impl Service>, patience: Duration) -> Result<Server, ListenError> {
        let failed = |error: io::Error| ListenError::Io(path.to_owned(), error);
        let listener = Arc::new(listen(path)?);
        let file = fs::symlink_metadata(path).map(|it| (it.dev(), it.ino())).map_err(failed)?;
        let stopping = Arc::new(AtomicBool::new(false));
        let (listens, stops) = (listener.clone(), stopping.clone());
        let accepting = thread::Builder::new()
            .name("control".into())
            .spawn(move || accept(&listens, &stops, &service, patience))
            .map_err(failed)?;
        Ok(Server { path: path.to_owned(), file, listener, stopping, accepting: Some(accepting) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Release);
        // Wakes the thread from its accept.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
        if fs::symlink_metadata(&self.path).is_ok_and(|it| (it.dev(), it.ino()) == self.file) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn accept(listener: &UnixListener, stopping: &AtomicBool, service: &Arc<impl Service>, patience: Duration) {
    let clients = Clients::new();
    loop {
        let accepted = listener.accept();
        if stopping.load(Ordering::Acquire) {
            return;
        }
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a control client. Look at the limit of open files, if it comes again");
                thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        let Some(service) = clients.admit(service).filter(|_| is_ours(&stream)) else {
            tracing::warn!(
                "closed a control connection: of another user, or one too many. Ask as root or as the daemon's user, a few at once"
            );
            continue;
        };
        let spawned = thread::Builder::new().name("control-client".into()).spawn(move || {
            let asked = stream.set_read_timeout(Some(patience));
            let mut line = Line::new(&stream, patience);
            if let Err(error) = asked.and_then(|()| converse(&mut BufReader::new(&stream), &mut line, &service)) {
                tracing::debug!(%error, "a control connection ended");
            }
        });
        if let Err(error) = spawned {
            tracing::warn!(%error, "no thread for a control client; closed its connection. Look at the limits of threads and memory");
        }
    }
}

/// Whether the client is the daemon's own user, or root.
fn is_ours(stream: &UnixStream) -> bool {
    socket_peercred(stream).is_ok_and(|peer| peer.uid.is_root() || peer.uid == rustix::process::geteuid())
}

/// Where a client hears what became of its calls.
pub trait Ear {
    /// Tells it how far a call is, if it can hear that without being waited for: whoever is at work has locks that others wait
    /// for, and a time limit of its own.
    fn tell(&mut self, frame: Vec<u8>);

    /// Tells it the end.
    ///
    /// # Errors
    /// It is gone, or does not listen.
    fn answer(&mut self, frame: Vec<u8>) -> io::Result<()>;
}

/// One that hears everything at once.
impl Ear for Vec<u8> {
    fn tell(&mut self, frame: Vec<u8>) {
        self.extend(frame);
    }

    fn answer(&mut self, frame: Vec<u8>) -> io::Result<()> {
        self.extend(frame);
        Ok(())
    }
}

/// A client at the other end of a socket. It may have been stopped by its terminal, with the socket full.
struct Line<'a> {
    stream: &'a UnixStream,
    patience: Duration,
    /// What of a frame the socket had no room for yet.
    rest: Vec<u8>,
}

impl<'a> Line<'a> {
    fn new(stream: &'a UnixStream, patience: Duration) -> Line<'a> {
        Line { stream, patience, rest: Vec::new() }
    }

    fn send_what_fits(&mut self) -> rustix::io::Result<()> {
        while !self.rest.is_empty() {
            let sent = rustix::net::send(self.stream, &self.rest, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
            self.rest.drain(..sent);
        }
        Ok(())
    }
}

impl Ear for Line<'_> {
    fn tell(&mut self, frame: Vec<u8>) {
        // Of a client that is gone the answer tells; it does not end what it began.
        if self.send_what_fits().is_ok() {
            self.rest = frame;
            let _ = self.send_what_fits();
        }
    }

    fn answer(&mut self, frame: Vec<u8>) -> io::Result<()> {
        self.rest.extend(frame);
        let until = Instant::now() + self.patience;
        while !self.rest.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read its answer"));
            }
            self.stream.set_write_timeout(Some(left))?;
            let mut stream = self.stream;
            match stream.write(&self.rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => drop(self.rest.drain(..sent)),
                Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Answers a client's calls until its stream ends, or is no stream of frames.
pub fn converse(reader: &mut impl BufRead, client: &mut impl Ear, service: &impl Service) -> io::Result<()> {
    while let Some(frame) = read_frame(reader, LIMIT)? {
        let result = match Call::parse(&frame) {
            Ok((call, more)) => service.call(call, &mut |progress| {
                if more {
                    client.tell(frame_of(&json!({ "parameters": progress, "continues": true })));
                }
            }),
            Err(fault) => Err(fault),
        };
        let reply = match result {
            Ok(parameters) => json!({ "parameters": parameters }),
            Err(fault) => json!({ "error": fault.name(), "parameters": { "message": fault.message } }),
        };
        client.answer(frame_of(&reply))?;
    }
    Ok(())
}

/// A frame without its end; `None` at the end of the stream.
fn read_frame(reader: &mut impl BufRead, limit: usize) -> io::Result<Option<Vec<u8>>> {
    let mut frame = Vec::new();
    loop {
        let bytes = reader.fill_buf()?;
        if bytes.is_empty() {
            return if frame.is_empty() { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
        }
        let end = bytes.iter().position(|byte| *byte == 0);
        let taken = end.unwrap_or(bytes.len());
        if frame.len() + taken > limit {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a frame is longer than the limit"));
        }
        frame.extend_from_slice(&bytes[..taken]);
        reader.consume(taken + usize::from(end.is_some()));
        if end.is_some() {
            return Ok(Some(frame));
        }
    }
}

fn frame_of(value: &Value) -> Vec<u8> {
    let mut bytes = value.to_string().into_bytes();
    bytes.push(0);
    bytes
}

/// Why a call got no answer, or not the one wished for.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum CallError {
    #[error(
        "No daemon answers at {0}. Nothing was done. Where a service is to serve the pool, `systemctl status headpond@NAME` and `journalctl -u \
         headpond@NAME` say why it does not; else start it with `headpond serve`, or name the socket of one that runs with --socket or --pool"
    )]
    NotRunning(PathBuf),
    #[error(
        "No daemon runs here: there is no socket in {0}. Nothing was done. Where a service is to serve the pool, `systemctl status headpond@NAME` \
         and `journalctl -u headpond@NAME` say why it does not (NAME is that of its file in /etc/headpond); else start it with `headpond serve`, \
         or name the socket of one that runs with --socket"
    )]
    NoneRuns(PathBuf),
    #[error(
        "The daemon at {0} could not be asked: its socket is its user's alone. Nothing was done. Run the command as root, or as the user whose \
         daemon it is"
    )]
    Denied(PathBuf),
    #[error(
        "The daemon at {path} has not answered within {seconds} s, though it is asked for nothing that takes time: it may be stopped, or the kernel \
         may hold it. Nothing was changed. Look at its process and at the kernel's log, then try again"
    )]
    Silent { path: PathBuf, seconds: u64 },
    #[error("The daemon at {0} did not answer: {1}. Whether it did what was asked is not known; `headpond status` shows it")]
    Broken(PathBuf, #[source] io::Error),
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// Asks the daemon at `path`, and waits for its answer: for no longer than [`AT_ONCE`] where it only tells what it knows.
pub fn call(path: &Path, call: &Call, progress: impl FnMut(Value)) -> Result<Value, CallError> {
    call_within(path, call, call.only_asks().then_some(AT_ONCE), progress)
}

/// The same with another time limit, or none, on the daemon's silence.
pub fn call_within(
    path: &Path,
    call: &Call,
    limit: Option<Duration>,
    mut progress: impl FnMut(Value),
) -> Result<Value, CallError> {
    let is_over = |error: &io::Error| matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut);
    let silent = || CallError::Silent { path: path.to_owned(), seconds: limit.unwrap_or_default().as_secs() };
    let broken = |error| if is_over(&error) { silent() } else { CallError::Broken(path.to_owned(), error) };
    let stream = connect(path, limit);
    let stream = stream.map_err(|error| if is_over(&error) { silent() } else { not_connected(path, error) })?;
    let (method, parameters) = call.frame();
    let frame = Frame { method: format!("org.headpond.{method}"), parameters, more: true };
    (&mut &stream).write_all(&frame_of(&json!(frame))).map_err(broken)?;
    let mut reader = BufReader::new(&stream);
    loop {
        let frame = read_frame(&mut reader, REPLY_LIMIT).map_err(broken)?;
        let frame = frame.ok_or_else(|| broken(io::ErrorKind::UnexpectedEof.into()))?;
        let reply: ReplyFrame = serde_json::from_slice(&frame).map_err(|error| broken(error.into()))?;
        match reply {
            ReplyFrame { error: Some(name), parameters, .. } => {
                let message =
                    parameters["message"].as_str().unwrap_or("The daemon does not say why. Look at its log.").to_owned();
                return Err(Fault::named(&name, message).into());
            }
            ReplyFrame { continues: true, parameters, .. } => progress(parameters),
            ReplyFrame { parameters, .. } => return Ok(parameters),
        }
    }
}

/// Connects. One that is stopped has others wait for that too, once enough of them do.
fn connect(path: &Path, limit: Option<Duration>) -> io::Result<UnixStream> {
    let limit = limit.map(|limit| limit.max(Duration::from_millis(1)));
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    for timeout in [Timeout::Send, Timeout::Recv] {
        set_socket_timeout(&socket, timeout, limit)?;
    }
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

/// Whether somebody listens at a socket, as far as this can be seen by who may not ask him.
pub fn is_there(path: &Path) -> bool {
    !UnixStream::connect(path).is_err_and(|error| matches!(not_connected(path, error), CallError::NotRunning(_)))
}

fn not_connected(path: &Path, error: io::Error) -> CallError {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => CallError::NotRunning(path.to_owned()),
        io::ErrorKind::PermissionDenied => CallError::Denied(path.to_owned()),
        _ => CallError::Broken(path.to_owned(), error),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, mpsc};

    use super::clients::CLIENTS;
    use super::*;

    struct Echo;

    impl Service for Echo {
        fn call(&self, call: Call, progress: &mut dyn FnMut(Value)) -> Result<Value, Fault> {
            match call {
                Call::Destage { name, .. } => {
                    progress(json!({ "dirty_bytes": 1 }));
                    Ok(json!({ "name": name }))
                }
                Call::Stop => Err(Fault::refused("no")),
                call => Ok(json!({ "call": format!("{call:?}") })),
            }
        }
    }

    fn served() -> (tempfile::TempDir, PathBuf, Server) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let server = Server::start(&path, Arc::new(Echo)).unwrap();
        (dir, path, server)
    }

    #[test]
    fn calls_answers_progress_and_faults_come_through() {
        let (_dir, path, server) = served();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let mut seen = Vec::new();
        let answer = call(&path, &Call::Destage { name: "v".into(), deadline_seconds: None }, |it| seen.push(it)).unwrap();
        assert_eq!((answer, seen), (json!({ "name": "v" }), vec![json!({ "dirty_bytes": 1 })]));
        let attach = Attach { name: "a".into(), spec: "/b".into(), mode: "write-back".into(), phase: Some(7) };
        let answer = call(&path, &Call::Attach(attach.clone()), |_| ()).unwrap();
        assert_eq!(answer["call"], format!("{:?}", Call::Attach(attach)));
        let new = Call::CreateVolume(CreateVolume { name: "j".into(), bytes: 4096 });
        for sent in [new, Call::DeleteVolume { name: "j".into(), throw_away: true }] {
            assert_eq!(call(&path, &sent, |_| ()).unwrap()["call"], format!("{sent:?}"));
        }
        let refused = call(&path, &Call::Stop, |_| ()).unwrap_err();
        assert!(matches!(refused, CallError::Fault(Fault { kind: FaultKind::Refused, message, .. }) if message == "no"));
        drop(server);
        assert!(matches!(call(&path, &Call::Status, |_| ()), Err(CallError::NotRunning(_))));
    }

    /// A plain addition was refused by each daemon that had been started before the program was updated: it named a field of which that knew nothing.
    #[test]
    fn a_call_names_no_more_than_what_is_asked_for() {
        let add_as = |force, discard_dirty, in_place_of| {
            Call::AddMember(AddMember { path: "/a".into(), force, discard_dirty, in_place_of })
        };
        let add = |force, discard_dirty| add_as(force, discard_dirty, None);
        let detach =
            |give_up_lost, deadline_seconds| Call::Detach { name: "v".into(), give_up_lost, throw_away: false, deadline_seconds };
        for (call, parameters) in [
            (add(false, None), json!({ "path": "/a" })),
            (add(true, Some("x:1".into())), json!({ "path": "/a", "force": true, "discard_dirty": "x:1" })),
            (add_as(false, None, Some(0)), json!({ "path": "/a", "in_place_of": 0 })),
            (detach(false, None), json!({ "name": "v" })),
            (detach(true, Some(0)), json!({ "name": "v", "give_up_lost": true, "deadline_seconds": 0 })),
            (Call::Grow(Grow { name: "v".into(), bytes: None }), json!({ "name": "v" })),
            (Call::Share { name: "v".into(), min: Some(0), max: None }, json!({ "name": "v", "min": 0 })),
            (Call::Scrub { bytes_per_second: 0 }, json!({ "bytes_per_second": 0 })),
        ] {
            let (method, sent) = call.frame();
            assert_eq!(sent, parameters);
            let frame = json!({ "method": format!("org.headpond.{method}"), "parameters": sent }).to_string();
            assert_eq!(Call::parse(frame.as_bytes()).unwrap(), (call, false));
        }
    }

    /// Tells more than a socket holds, and says when it is done.
    struct Talkative(Mutex<mpsc::Sender<()>>);

    impl Service for Talkative {
        fn call(&self, _: Call, progress: &mut dyn FnMut(Value)) -> Result<Value, Fault> {
            (0..20_000).for_each(|n| progress(json!({ "dirty_bytes": n, "seconds_left": "x".repeat(100) })));
            let _ = self.0.lock().unwrap().send(());
            Ok(json!({ "bytes": 7 }))
        }
    }

    /// Progress was written in the midst of the call: a `headpond detach --deadline 10m` that was stopped by Ctrl-Z filled the
    /// socket in minutes, and from then on nobody looked at its time limit, and every other attach and detach waited for it.
    #[test]
    fn a_client_that_does_not_read_holds_nothing_up_and_hears_the_end_when_it_reads_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let (done, is_done) = mpsc::channel();
        let _server = Server::start(&path, Arc::new(Talkative(Mutex::new(done)))).unwrap();
        let stopped = UnixStream::connect(&path).unwrap();
        stopped.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        (&stopped).write_all(b"{\"method\":\"org.headpond.Checkpoint\",\"more\":true}\0").unwrap();
        is_done.recv_timeout(Duration::from_secs(20)).expect("the call goes on to its end, whether it is heard or not");
        let (mut reader, mut told) = (BufReader::new(&stopped), 0);
        let end = loop {
            let frame: Value = serde_json::from_slice(&read_frame(&mut reader, LIMIT).unwrap().unwrap()).unwrap();
            if frame.get("continues").is_none() {
                break frame;
            }
            // What had no room is left out as whole frames, at the end.
            assert_eq!(frame["parameters"]["dirty_bytes"], told);
            told += 1;
        };
        assert_eq!(end["parameters"]["bytes"], 7);
        assert!((1..20_000).contains(&told), "{told}");
    }

    /// `headpond status --wait 5s` waited for ever, and nobody could leave `headpond top`.
    #[test]
    fn a_daemon_that_is_stopped_is_not_waited_for_without_end_however_many_have_asked_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        // It accepts nobody.
        let _listener = listen(&path).unwrap();
        for n in 0..80 {
            let asked = call_within(&path, &Call::Status, Some(Duration::from_millis(20)), |_| ());
            assert!(matches!(asked, Err(CallError::Silent { .. })), "{n}: {asked:?}");
        }
    }

    /// It was said that the daemon may have done what it was asked.
    #[test]
    fn who_may_not_connect_is_told_that_nothing_was_asked() {
        let said = not_connected(Path::new("/run/x"), io::Error::from_raw_os_error(libc::EACCES)).to_string();
        assert!(said.contains("Nothing was done") && said.contains("as root"), "{said}");
    }

    /// Nobody else was answered any more.
    #[test]
    fn clients_that_say_nothing_are_sent_away_in_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let _server = Server::start_with(&path, Arc::new(Echo), Duration::from_millis(200)).unwrap();
        let _silent: Vec<UnixStream> = (0..CLIENTS).map(|_| UnixStream::connect(&path).unwrap()).collect();
        let until = Instant::now() + Duration::from_secs(20);
        while call(&path, &Call::Status, |_| ()).is_err() {
            assert!(Instant::now() < until, "nobody is answered");
            thread::sleep(Duration::from_millis(20));
        }
    }

    #[test]
    fn an_answer_is_not_waited_for_without_end() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut line = Line::new(&ours, Duration::from_millis(200));
        let begun = Instant::now();
        let error = line.answer(vec![b' '; REPLY_LIMIT]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(begun.elapsed() >= Duration::from_millis(200));
        drop(theirs);
    }

    #[test]
    fn what_is_not_understood_is_refused_and_the_next_call_answered() {
        let (_dir, path, _server) = served();
        let mut stream = UnixStream::connect(&path).unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        for bad in [
            r#"{"method":"org.headpond.Status","parameters":{"x":1}}"#,
            r#"{"method":"org.headpond.Status","other":1}"#,
            r#"{"method":"org.headpond.Format","parameters":{}}"#,
            r#"{"method":"org.headpond.Detach","parameters":{}}"#,
            r#"[1]"#,
            "{",
        ] {
            stream.write_all(bad.as_bytes()).unwrap();
            stream.write_all(&[0]).unwrap();
            let reply = read_frame(&mut reader, LIMIT).unwrap().unwrap();
            let reply: Value = serde_json::from_slice(&reply).unwrap();
            assert_eq!(reply["error"], "org.varlink.service.InvalidParameter", "{bad}");
        }
        stream.write_all(b"{\"method\":\"org.headpond.Checkpoint\"}\0").unwrap();
        let reply = read_frame(&mut reader, LIMIT).unwrap().unwrap();
        assert!(String::from_utf8(reply).unwrap().contains("Checkpoint"));
        // A frame without an end is cut off at the limit.
        let _ = stream.write_all(&vec![b' '; LIMIT + 4096]);
        assert!(!matches!(read_frame(&mut reader, LIMIT), Ok(Some(_))));
    }
}
