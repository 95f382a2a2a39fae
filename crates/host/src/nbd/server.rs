//! The NBD server: a Unix socket, and two threads for each connection.
//!
//! One thread reads requests and hands them to the [`Backend`]; the other writes replies in the order
//! in which they are finished, many at a time where there are many. What a connection can have
//! outstanding is bounded from the request's arrival until its reply is written, so a client that
//! does not read its replies stops being read. Of what a client has sent that hung up, no change is begun any more; what was begun may
//! be under way for a while, and a change of the same place over another connection is begun when it has ended. A third thread waits for
//! that, and the connection is read on.

use super::protocol::{Errno, Replies};
use super::session::{ExportInfo, Kind, Request, Session, Wants};
use crate::fuse::mark_io_flusher;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::collections::{HashMap, VecDeque};
use std::fs;
use std::io::{self, BufRead, BufReader, IoSlice, Read, Write};
use std::net::Shutdown;
use std::ops::Range;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, SendError, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle, Scope};
use std::time::{Duration, Instant};

/// What stands behind the server. Its methods are called from the threads of all connections.
pub trait Backend: Send + Sync + 'static {
    /// Room for the payload of a write.
    type Space: AsMut<[u8]> + Send;
    /// Data that was read.
    type Data: AsRef<[u8]> + Send + 'static;

    /// The exports that a client which connects now may choose from.
    fn exports(&self) -> Vec<ExportInfo>;

    /// Room for exactly `len` bytes, at most [`MAX_REQUEST`](super::protocol::MAX_REQUEST).
    fn alloc(&self, len: usize) -> Self::Space;

    /// Begins a command on the export with this [`ExportInfo::id`]. The connection reads no further
    /// until this returns; commands begun and not finished have no order among themselves. It may be
    /// an export that was offered once and is no more.
    fn submit(&self, export: usize, command: Command<Self::Space>, done: Completion<Self::Data>);
}

/// What a client wants done. Ranges are in bytes, aligned and within the export; only the ranges of
/// `Trim` and `WriteZeroes` may be longer than the longest request. With `fua` the effect is durable
/// before the command is finished.
#[derive(Debug)]
#[expect(missing_docs, reason = "the fields are described once, above")]
pub enum Command<S> {
    /// Finish with buffers that have `len` bytes together.
    Read { offset: u64, len: u32 },
    /// Finish with no buffers, as all that follow.
    Write { offset: u64, data: S, fua: bool },
    /// Make all that was finished before durable.
    Flush,
    /// The content is no longer needed.
    Trim { offset: u64, len: u32, fua: bool },
    /// The range reads as zeroes afterwards.
    WriteZeroes { offset: u64, len: u32, fua: bool },
}

/// The duty to answer one command, from any thread. Dropped without an answer it answers
/// [`Errno::Io`], so that each command is answered exactly once.
pub struct Completion<D>(Option<Pending<D>>);

struct Pending<D> {
    to: Sender<Reply<D>>,
    replies: Replies,
    request: Request,
    permit: Permit,
    /// If the command changes something.
    _change: Option<Change>,
}

impl<D: AsRef<[u8]>> Completion<D> {
    /// Answers. A read that brings another length than was asked for is answered [`Errno::Io`]: the
    /// client could not tell where the next reply begins.
    pub fn finish(mut self, result: Result<Vec<D>, Errno>) {
        let Some(Pending { to, replies, request, permit, .. }) = self.0.take() else {
            return;
        };
        let Request { cookie, kind, offset, length, .. } = request;
        let (header, data) = match result {
            Err(errno) => (replies.error(cookie, errno), Vec::new()),
            Ok(_) if kind != Kind::Read => (replies.done(cookie), Vec::new()),
            Ok(data) => {
                let len: usize = data.iter().map(|part| part.as_ref().len()).sum();
                if len == length as usize {
                    (replies.data(cookie, offset, length), data)
                } else {
                    tracing::error!(
                        offset,
                        length,
                        got = len,
                        "a read brought the wrong length; its client gets EIO. Report it, with this line"
                    );
                    (replies.error(cookie, Errno::Io), Vec::new())
                }
            }
        };
        // Fails only when the writer is gone, and with it the client.
        let _ = to.send(Reply { header, data, _permit: permit });
    }
}

impl<D> Drop for Completion<D> {
    fn drop(&mut self) {
        if let Some(Pending { to, replies, request, permit, .. }) = self.0.take() {
            tracing::error!(
                offset = request.offset,
                "a request was dropped without an answer; its client gets EIO. Report it, with this line"
            );
            let header = replies.error(request.cookie, Errno::Io);
            let _ = to.send(Reply { header, data: Vec::new(), _permit: permit });
        }
    }
}

/// What the server allows its clients.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at a time; more are closed at once. Those whose clients have gone do not count.
    pub connections: usize,
    /// Connections to one export whose clients have gone, and are owed answers, as by a disk that has fallen silent. Where there are so many, no new
    /// one to that export is taken.
    pub gone: usize,
    /// Time from connecting to having chosen an export.
    pub handshake: Duration,
    /// Requests outstanding on one connection.
    pub requests: usize,
    /// Bytes of payload outstanding on one connection; one request may exceed it alone.
    pub bytes: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        let handshake = Duration::from_secs(10);
        Limits { connections: 64, gone: 32, handshake, requests: 128, bytes: 64 << 20 }
    }
}

/// Why the server could not start.
#[derive(thiserror::Error, Debug)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum ListenError {
    #[error("{0} is in use: another process serves there; stop it, or choose another path")]
    InUse(PathBuf),
    #[error("{0} exists and is not a socket; move it away, or choose another path")]
    NotASocket(PathBuf),
    #[error(
        "cannot listen on {0}: {1}; see that its directory exists and can be written to, and that the path is at most 107 bytes long"
    )]
    Io(PathBuf, #[source] io::Error),
}

/// A running server. Dropped, it accepts no more clients and lets those it has finish by themselves.
pub struct Server {
    path: PathBuf,
    /// Device and inode of the socket file, so as to remove no other.
    file: (u64, u64),
    listener: Arc<UnixListener>,
    accepting: Option<JoinHandle<()>>,
    registry: Arc<Registry>,
}

impl Server {
    /// Listens on `path`, for its owner only (mode 0600). A socket file on which nobody answers is
    /// replaced. Two servers that start at the same moment could both take a file for abandoned; the
    /// pool's claim keeps that from happening.
    pub fn start<B: Backend>(path: &Path, backend: Arc<B>, limits: Limits) -> Result<Server, ListenError> {
        let failed = |error: io::Error| ListenError::Io(path.to_owned(), error);
        let listener = Arc::new(listen(path)?);
        let file = fs::symlink_metadata(path).map(|it| (it.dev(), it.ino())).map_err(failed)?;
        let registry = Arc::new(Registry::default());
        let (listens, registers) = (listener.clone(), registry.clone());
        let accepting = thread::Builder::new()
            .name("nbd-accept".into())
            .spawn(move || accept(&listens, &registers, &backend, limits))
            .map_err(failed)?;
        let accepting = Some(accepting);
        Ok(Server { path: path.to_owned(), file, listener, accepting, registry })
    }

    /// The connections that it has.
    pub fn connections(&self) -> Connections {
        Connections(self.registry.clone())
    }

    /// Takes no more requests, waits up to `grace` for the replies to those it has, and closes.
    /// Returns how many connections had to be cut off with replies outstanding.
    pub fn shutdown(mut self, grace: Duration) -> usize {
        self.stop();
        let mut open = self.registry.lock();
        open.streams.values().for_each(Connected::read_no_more);
        let until = Instant::now() + grace;
        while !open.streams.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.registry.ended.wait_timeout(open, left);
            open = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        open.streams.values().for_each(|connected| {
            let _ = connected.stream.shutdown(Shutdown::Both);
        });
        open.streams.len()
    }

    fn stop(&mut self) {
        let Some(accepting) = self.accepting.take() else {
            return;
        };
        self.registry.lock().stopping = true;
        // Wakes the thread from its accept.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        let _ = accepting.join();
        if fs::symlink_metadata(&self.path).is_ok_and(|it| (it.dev(), it.ino()) == self.file) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

pub(crate) fn listen(path: &Path) -> Result<UnixListener, ListenError> {
    let failed = |error: rustix::io::Errno| ListenError::Io(path.to_owned(), error.into());
    let address = SocketAddrUnix::new(path).map_err(failed)?;
    let socket = |flags| rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(failed);
    if let Ok(file) = fs::symlink_metadata(path) {
        // Asked first, as to connect to a plain file fails just as with an abandoned socket.
        if !file.file_type().is_socket() {
            return Err(ListenError::NotASocket(path.to_owned()));
        }
        // Does not wait: a server that hangs is still there, and its queue may be full.
        let probe = socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        match rustix::net::connect(&probe, &address) {
            Ok(()) | Err(rustix::io::Errno::AGAIN) => {
                return Err(ListenError::InUse(path.to_owned()));
            }
            Err(rustix::io::Errno::CONNREFUSED) => rustix::fs::unlink(path).map_err(failed)?,
            Err(error) => return Err(failed(error)),
        }
    }
    let socket = socket(SocketFlags::CLOEXEC)?;
    // Linux gives the file the socket's own mode, less the umask. So there is no moment at which the
    // file exists and is open to others, and the umask, which all threads share, is left alone.
    rustix::fs::fchmod(&socket, rustix::fs::Mode::from_raw_mode(0o600)).map_err(failed)?;
    rustix::net::bind(&socket, &address).map_err(failed)?;
    rustix::net::listen(&socket, 64).map_err(failed)?;
    Ok(socket.into())
}

/// Whether [`listen`] would succeed by now; nothing is left there.
pub(crate) fn may_listen(path: &Path) -> Result<(), ListenError> {
    listen(path).map(|listener| {
        drop(listener);
        let _ = fs::remove_file(path);
    })
}

/// The connections of a server.
pub struct Connections(Arc<Registry>);

impl Connections {
    /// Closes those that have chosen this export, once what has arrived over them is answered; how many there are. The export
    /// is not offered any more.
    pub fn close(&self, export: usize) -> usize {
        let open = self.0.lock();
        open.streams.values().filter(|it| it.export == Some(export)).map(Connected::read_no_more).count()
    }
}

/// The connections that are open.
#[derive(Default)]
struct Registry {
    open: Mutex<Open>,
    /// A connection has, or a change of one whose client is gone.
    ended: Condvar,
}

#[derive(Default)]
struct Open {
    streams: HashMap<u64, Connected>,
    next: u64,
    stopping: bool,
    /// Who waits for the end of a change.
    waiting: usize,
}

struct Connected {
    stream: Arc<UnixStream>,
    /// From the end of the handshake on.
    export: Option<usize>,
    /// Ranges in bytes that are to be changed by what is under way.
    changes: Vec<Range<u64>>,
    /// The same of what waits to be begun, in the order in which it came.
    waits: VecDeque<Range<u64>>,
}

impl Connected {
    /// Its reader comes to an end after what has already arrived.
    fn read_no_more(&self) {
        // Fails if the client is gone.
        let _ = self.stream.shutdown(Shutdown::Read);
    }

    /// Whether a change of this range is under way.
    fn changes(&self, range: &Range<u64>) -> bool {
        self.changes.iter().any(|other| overlap(other, range))
    }

    /// Whether a change of this range waits.
    fn waits(&self, range: &Range<u64>) -> bool {
        self.waits.iter().any(|other| overlap(other, range))
    }
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

impl Open {
    /// Whether there are as many connections as there may be. One that is owed an answer outlives its client, by a silent disk for ever, and is its
    /// export's matter: clients of others are not to be sent away for it.
    fn is_full(&self, limits: Limits) -> bool {
        let is_here = |it: &&Connected| it.export.is_none() || !is_gone(&it.stream);
        self.streams.len() >= limits.connections && self.streams.values().filter(is_here).count() >= limits.connections
    }
}

impl Registry {
    /// What a client that connects now may choose from, and which of it is full.
    fn offered(&self, exports: Vec<ExportInfo>, limits: Limits) -> Vec<ExportInfo> {
        let chosen = |it: &Connected| Some((it.export?, it.stream.clone()));
        let all: Vec<(usize, Arc<UnixStream>)> = self.lock().streams.values().filter_map(chosen).collect();
        let gone: Vec<usize> = all.iter().filter(|(_, stream)| is_gone(stream)).map(|(export, _)| *export).collect();
        let is_full = |id: usize| gone.iter().filter(|export| **export == id).count() >= limits.gone;
        exports.into_iter().map(|info| ExportInfo { is_full: is_full(info.id), ..info }).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes a connection off the registry however its thread ends.
struct Registered {
    registry: Arc<Registry>,
    id: u64,
    stream: Arc<UnixStream>,
}

impl Registered {
    /// The connection has chosen.
    fn chose(&self, export: usize) {
        if let Some(connected) = self.registry.lock().streams.get_mut(&self.id) {
            connected.export = Some(export);
        }
    }

    /// Begins a change, if none is in its way; else it is to wait, and those of the same range that come after it.
    fn change(&self, export: usize, range: Range<u64>) -> Option<Change> {
        let mut open = self.registry.lock();
        let is_in_the_way = self.is_in_the_way(&open, export, &range);
        let own = open.streams.get_mut(&self.id)?;
        if is_in_the_way || own.waits(&range) {
            own.waits.push_back(range);
            return None;
        }
        own.changes.push(range.clone());
        Some(Change { registry: self.registry.clone(), id: self.id, range })
    }

    /// Begins the one that waits for longest, once none is in its way. It counts as one that waits until [`Registered::begun`].
    fn wait(&self, export: usize, range: Range<u64>) -> Change {
        let mut open = self.registry.lock();
        open.waiting += 1;
        let is_in_the_way = |open: &mut Open| self.is_in_the_way(open, export, &range);
        open = self.registry.ended.wait_while(open, is_in_the_way).unwrap_or_else(PoisonError::into_inner);
        open.waiting -= 1;
        if let Some(own) = open.streams.get_mut(&self.id) {
            own.changes.push(range.clone());
        }
        Change { registry: self.registry.clone(), id: self.id, range }
    }

    /// The one that waited for longest is with the backend.
    fn begun(&self) {
        if let Some(own) = self.registry.lock().streams.get_mut(&self.id) {
            own.waits.pop_front();
        }
    }

    /// Whether a change of this range has to wait. One whose client is gone ends first: that client has sent it again, perhaps over this
    /// connection, and perhaps newer data behind it, which it would undo if it were done after that was acknowledged. It may wait in the engine
    /// for a while before it takes effect. Of others, which are polled only where their changes overlap, nobody waits for anything.
    fn is_in_the_way(&self, open: &Open, export: usize, range: &Range<u64>) -> bool {
        let mut others = open.streams.iter().filter(|(id, it)| **id != self.id && it.export == Some(export));
        others.any(|(_, it)| it.changes(range) && is_gone(&it.stream))
    }
}

/// A change that is under way, until dropped.
struct Change {
    registry: Arc<Registry>,
    id: u64,
    range: Range<u64>,
}

impl Drop for Change {
    fn drop(&mut self) {
        let mut open = self.registry.lock();
        if let Some(connected) = open.streams.get_mut(&self.id)
            && let Some(at) = connected.changes.iter().position(|range| *range == self.range)
        {
            connected.changes.swap_remove(at);
        }
        // It is the engine's thread that is here, for each write.
        if open.waiting > 0 {
            self.registry.ended.notify_all();
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.registry.lock().streams.remove(&self.id);
        self.registry.ended.notify_all();
    }
}

fn accept<B: Backend>(listener: &UnixListener, registry: &Arc<Registry>, backend: &Arc<B>, limits: Limits) {
    // A client may be this host's own kernel. The threads of connections come from this one, and are marked with it.
    mark_io_flusher();
    loop {
        let accepted = listener.accept();
        let mut open = registry.lock();
        if open.stopping {
            return;
        }
        let stream = match accepted {
            Ok((stream, _)) => Arc::new(stream),
            Err(error) => {
                drop(open);
                tracing::warn!(%error, "cannot accept an NBD client. Look at the limit of open files, if it comes again");
                // Out of descriptors or memory: to try at once would only burn time.
                thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        if open.is_full(limits) {
            tracing::warn!(limits.connections, "too many NBD connections; closed the newest. Close some that are not needed");
            continue;
        }
        let id = open.next;
        open.next += 1;
        let connected = Connected { stream: stream.clone(), export: None, changes: Vec::new(), waits: VecDeque::new() };
        open.streams.insert(id, connected);
        drop(open);
        let registered = Registered { registry: registry.clone(), id, stream };
        let backend = backend.clone();
        let spawned =
            thread::Builder::new().name(format!("nbd-read-{id}")).spawn(move || match serve(&registered, &*backend, limits) {
                Ok(()) => tracing::debug!(id, "NBD connection ended"),
                Err(error) => tracing::info!(id, %error, "NBD connection ended"),
            });
        if let Err(error) = spawned {
            tracing::warn!(%error, "no thread for an NBD client; closed its connection. Look at the limits of threads and memory");
        }
    }
}

/// A stream on which nothing waits beyond a moment, if one is set.
struct Timed<'a> {
    stream: &'a UnixStream,
    until: Option<Instant>,
}

impl Timed<'_> {
    fn arm(&self) -> io::Result<()> {
        let Some(until) = self.until else {
            return Ok(());
        };
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "no handshake within the limit"));
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.set_write_timeout(Some(left))
    }

    fn disarm(&mut self) -> io::Result<()> {
        self.until = None;
        self.stream.set_read_timeout(None)?;
        self.stream.set_write_timeout(None)
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.arm()?;
        let mut stream = self.stream;
        stream.read(buf)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.arm()?;
        let mut stream = self.stream;
        stream.write(buf)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn serve<B: Backend>(registered: &Registered, backend: &B, limits: Limits) -> io::Result<()> {
    let stream = &*registered.stream;
    let until = Some(Instant::now() + limits.handshake);
    // Large enough to take in many small requests at once; longer payloads go around it.
    let mut reader = BufReader::with_capacity(64 << 10, Timed { stream, until });
    let mut session = Session::new(registered.registry.offered(backend.exports(), limits));
    let export = loop {
        if let Some(full) = session.take_refused() {
            tracing::warn!(
                limits.gone,
                "export {}: refused a new NBD connection, as it owes answers over too many whose clients have gone. They end when its disk answers: look \
                 at the kernel's log for that",
                full.name
            );
        }
        reader.get_mut().write_all(&session.take_output())?;
        if let Some(export) = session.export() {
            let id = export.id;
            registered.chose(id);
            // The list that the client chose from may be older than the export's end.
            if !backend.exports().iter().any(|offered| offered.id == id) {
                return Ok(());
            }
            break id;
        }
        let Wants::Bytes(_) = session.wants() else {
            return Ok(());
        };
        if !feed(&mut reader, &mut session)?.0 {
            return Ok(());
        }
    };
    reader.get_mut().disarm()?;
    let (to, replies) = mpsc::channel();
    thread::scope(|scope| {
        thread::Builder::new().name("nbd-write".into()).spawn_scoped(scope, move || write_replies(stream, &replies))?;
        // The writer ends when this sender and those of all commands outstanding are gone.
        let beginner = Arc::new(Beginner { registered, export, backend, replies: session.replies(), to });
        read_requests(&mut reader, &mut session, limits, Asking { scope, beginner, late: None })
    })
}

/// Gives the session what has arrived; false at the end of the stream.
fn feed(reader: &mut impl BufRead, session: &mut Session) -> io::Result<(bool, Option<Request>)> {
    let bytes = reader.fill_buf()?;
    let more = !bytes.is_empty();
    let (taken, request) = session.input(bytes);
    reader.consume(taken);
    Ok((more, request))
}

/// Whether nobody is at the other end any more: the client has closed it both ways, or this side has, as a reply could not be written.
///
/// What the client sent before is there to be read nevertheless. It was told of nothing of that as done, and may have sent it again over
/// another connection, and newer writes behind it, which were acknowledged: to do it now would undo those. `NBD_CMD_DISC` behind it makes no
/// difference: who wants its requests done waits for the replies, or until the server closes the connection. A client that only sends no
/// more (`SHUT_WR`) is there, and so is one that is only not read any more ([`Connected::read_no_more`]).
fn is_gone(stream: &UnixStream) -> bool {
    let mut fds = [PollFd::new(stream, PollFlags::empty())];
    let polled = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    polled.is_ok() && fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

/// A request that was read, and its room.
type Asked<B> = (Request, Command<<B as Backend>::Space>, Permit);

/// Hands what one client asks for to the backend.
struct Beginner<'a, B: Backend> {
    registered: &'a Registered,
    export: usize,
    backend: &'a B,
    replies: Replies,
    to: Sender<Reply<B::Data>>,
}

impl<B: Backend> Beginner<'_, B> {
    /// False: the client is gone, and nothing was done.
    fn begin(&self, (request, command, permit): Asked<B>, change: Option<Change>) -> bool {
        // Looked at last, when all that is waited for is over, and when the change is noted: whoever finds the client gone finds all that was begun
        // for it. What waits in the engine, others wait for. A read may as well be done; a FLUSH would be told what a client is owed, and nobody would hear.
        if (change.is_some() || request.kind == Kind::Flush) && is_gone(&self.registered.stream) {
            tracing::debug!(offset = request.offset, "an NBD client left before its write or flush was begun, which is not done");
            return false;
        }
        let pending = Pending { to: self.to.clone(), replies: self.replies, request, permit, _change: change };
        self.backend.submit(self.export, command, Completion(Some(pending)));
        true
    }

    /// The same of the change that waits for longest, once it may be begun.
    fn begin_late(&self, asked: Asked<B>) -> bool {
        let change = self.registered.wait(self.export, changed(&asked.0));
        let begun = self.begin(asked, Some(change));
        self.registered.begun();
        begun
    }
}

/// The bytes that a request changes.
fn changed(request: &Request) -> Range<u64> {
    request.offset..request.offset + u64::from(request.length)
}

/// What one client asks for, in the order in which it comes; but changes that wait for the end of others keep nothing else waiting.
struct Asking<'scope, 'env, B: Backend> {
    scope: &'scope Scope<'scope, 'env>,
    beginner: Arc<Beginner<'env, B>>,
    /// To the thread that waits with changes, once there is one.
    late: Option<Sender<Asked<B>>>,
}

impl<B: Backend> Asking<'_, '_, B> {
    /// False: the client is gone, and nothing was done.
    fn ask(&mut self, asked: Asked<B>) -> bool {
        let Beginner { registered, export, .. } = *self.beginner;
        match asked.0.kind {
            Kind::Read | Kind::Flush => self.beginner.begin(asked, None),
            Kind::Write | Kind::Trim | Kind::WriteZeroes => match registered.change(export, changed(&asked.0)) {
                Some(change) => self.beginner.begin(asked, Some(change)),
                None => self.wait(asked),
            },
        }
    }

    /// Has a change begun when it may be.
    fn wait(&mut self, asked: Asked<B>) -> bool {
        let late = self.late.get_or_insert_with(|| {
            let (late, all) = mpsc::channel();
            let beginner = Arc::clone(&self.beginner);
            let body = move || _ = all.into_iter().all(|asked| beginner.begin_late(asked));
            if let Err(error) = thread::Builder::new().name("nbd-wait".into()).spawn_scoped(self.scope, body) {
                tracing::warn!(
                    %error,
                    "no thread for what an NBD client changes while an earlier client's change of the same place is under way: all that it asks \
                     for waits as well. Look at the limits of threads and memory"
                );
            }
            late
        });
        match late.send(asked) {
            Ok(()) => true,
            Err(SendError(asked)) => self.beginner.begin_late(asked),
        }
    }
}

fn read_requests<B: Backend>(
    reader: &mut impl BufRead,
    session: &mut Session,
    limits: Limits,
    mut asking: Asking<'_, '_, B>,
) -> io::Result<()> {
    let window = Arc::new(Window { limits, outstanding: Mutex::default(), freed: Condvar::new() });
    loop {
        match session.wants() {
            Wants::Nothing => return Ok(()),
            Wants::Bytes(_) => {
                let (more, request) = feed(reader, session)?;
                if !more {
                    return Ok(());
                }
                if let Some(request) = request {
                    let Request { kind, offset, length: len, fua, .. } = request;
                    let (command, bytes) = match kind {
                        Kind::Read => (Command::Read { offset, len }, len as usize),
                        Kind::Trim => (Command::Trim { offset, len, fua }, 0),
                        Kind::WriteZeroes => (Command::WriteZeroes { offset, len, fua }, 0),
                        Kind::Flush => (Command::Flush, 0),
                        Kind::Write => unreachable!("a write waits for its payload"),
                    };
                    if !asking.ask((request, command, window.acquire(bytes))) {
                        return Ok(());
                    }
                }
            }
            Wants::Payload(request) => {
                let Request { offset, length, fua, .. } = request;
                let permit = window.acquire(length as usize);
                let mut data = asking.beginner.backend.alloc(length as usize);
                let room = data.as_mut().get_mut(..length as usize);
                reader.read_exact(room.ok_or(io::Error::other("no room for a payload"))?)?;
                session.payload_taken();
                if !asking.ask((request, Command::Write { offset, data, fua }, permit)) {
                    return Ok(());
                }
            }
            Wants::Skip(left) => {
                let len = reader.fill_buf()?.len().min(left as usize);
                if len == 0 {
                    return Ok(());
                }
                reader.consume(len);
                session.skipped(len as u32);
            }
        }
        let header = session.take_output();
        if !header.is_empty() {
            let reply = Reply { header, data: Vec::new(), _permit: window.acquire(0) };
            let _ = asking.beginner.to.send(reply);
        }
    }
}

/// What one connection has outstanding.
struct Window {
    limits: Limits,
    /// Requests, and bytes of their payload.
    outstanding: Mutex<(usize, usize)>,
    freed: Condvar,
}

impl Window {
    /// Waits until there is room for a request with this much payload.
    fn acquire(self: &Arc<Window>, bytes: usize) -> Permit {
        let full = |&mut (requests, held): &mut (usize, usize)| {
            requests >= self.limits.requests.max(1) || (held > 0 && held.saturating_add(bytes) > self.limits.bytes)
        };
        let now = self.outstanding.lock().unwrap_or_else(PoisonError::into_inner);
        let mut now = self.freed.wait_while(now, full).unwrap_or_else(PoisonError::into_inner);
        now.0 += 1;
        now.1 += bytes;
        Permit { window: self.clone(), bytes }
    }
}

/// The room that one request takes up in its connection's window, until dropped.
struct Permit {
    window: Arc<Window>,
    bytes: usize,
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut now = self.window.outstanding.lock().unwrap_or_else(PoisonError::into_inner);
        now.0 -= 1;
        now.1 -= self.bytes;
        self.window.freed.notify_one();
    }
}

struct Reply<D> {
    header: Vec<u8>,
    data: Vec<D>,
    _permit: Permit,
}

fn write_replies<D: AsRef<[u8]>>(stream: &UnixStream, replies: &Receiver<Reply<D>>) {
    /// Replies in one system call: enough to make its cost small, few enough to free them soon.
    const BATCH: usize = 32;
    let mut broken = false;
    let mut batch = Vec::with_capacity(BATCH);
    while let Ok(first) = replies.recv() {
        batch.push(first);
        batch.extend(replies.try_iter().take(BATCH - 1));
        if !broken && let Err(error) = write_batch(stream, &batch) {
            tracing::debug!(%error, "an NBD client left without its replies");
            // The reader is to stop as well; what is outstanding is still taken in, and thrown away.
            broken = true;
            let _ = stream.shutdown(Shutdown::Both);
        }
        batch.clear();
    }
}

fn write_batch<D: AsRef<[u8]>>(mut stream: &UnixStream, batch: &[Reply<D>]) -> io::Result<()> {
    let slices = batch.iter().flat_map(|reply| {
        let data = reply.data.iter().map(AsRef::as_ref);
        std::iter::once(&reply.header[..]).chain(data).map(IoSlice::new)
    });
    let mut slices: Vec<IoSlice> = slices.filter(|slice| !slice.is_empty()).collect();
    let mut left = &mut slices[..];
    while !left.is_empty() {
        match stream.write_vectored(left) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut left, written),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
