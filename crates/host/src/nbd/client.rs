//! An NBD client on a Unix socket: many requests outstanding from one thread.
//!
//! [`Client::begin`] sends a request and does not wait for its reply; [`Client::next`] waits for whichever is
//! finished next. While a request is being sent replies are taken in, so that neither side ever waits for the other
//! to read. A server that says nothing for too long is given up.
//!
//! What a client does not know after an error is whether the requests outstanding had an effect: each sector of
//! their writes may be old or new.

use super::protocol::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::{HashMap, VecDeque};
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// The most requests that a client has outstanding.
pub const MAX_OUTSTANDING: usize = 128;
/// The most payload that a client has outstanding, in bytes; one request may exceed it alone.
pub const MAX_OUTSTANDING_BYTES: usize = 64 << 20;

/// Bytes taken from the socket at a time, where they are not the data of a read.
const CHUNK: usize = 16 << 10;
/// Between two attempts to reach a server that is not there yet.
const RETRY: Duration = Duration::from_millis(20);

/// What an export said of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Export {
    /// In bytes.
    pub size: u64,
    /// Transmission flags, see [`transmission`].
    pub flags: u16,
    /// All offsets and lengths are multiples of this many bytes.
    pub min_block: u32,
    /// The longest read or write, in bytes; at most [`MAX_REQUEST`].
    pub max_request: u32,
}

/// What to ask of an export. Ranges are in bytes.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the fields are described once, above")]
pub enum Request<'a> {
    /// Bring a range.
    Read { offset: u64, len: u32 },
    /// Put these bytes there; durable before the reply with `fua`.
    Write { offset: u64, data: &'a [u8], fua: bool },
    /// Make durable all that was answered before.
    Flush,
    /// Forget a range.
    Trim { offset: u64, len: u32 },
    /// Make a range read as zeroes.
    WriteZeroes { offset: u64, len: u32 },
}

/// A finished request.
#[derive(Debug)]
pub struct Done {
    /// Which, as [`Client::begin`] named it.
    pub cookie: u64,
    /// The data of a read, nothing for others; or the error's number in the protocol, that of Linux.
    pub result: Result<Vec<u8>, u32>,
}

/// Why a connection is of no use, or a request makes no sense.
#[derive(thiserror::Error, Debug)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum ClientError {
    #[error("cannot reach an NBD server at {0}: {1}; see that it runs and serves this path")]
    Connect(PathBuf, #[source] io::Error),
    #[error("the server does not know an export {0:?}; see what it serves")]
    NoSuchExport(String),
    #[error("the other end does not speak NBD as it should: {0}")]
    Protocol(&'static str),
    #[error("the server closed the connection")]
    Closed,
    #[error("the server said nothing for {0:?}")]
    Silent(Duration),
    #[error("the request is not one that the export takes: {0}")]
    Invalid(&'static str),
    #[error("the request failed with error {0} at the server")]
    Failed(u32),
    #[error("the connection broke: {0}")]
    Io(#[source] io::Error),
}

impl From<io::Error> for ClientError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => ClientError::Closed,
            _ => ClientError::Io(error),
        }
    }
}

/// A request whose reply is still to come.
struct Waiting {
    /// Bytes that follow a good reply.
    reads: usize,
    /// Bytes that count against the limit.
    bytes: usize,
}

/// The data of a read that is coming in.
struct Arriving {
    cookie: u64,
    data: Vec<u8>,
    filled: usize,
}

/// A connection to one export.
pub struct Client {
    stream: UnixStream,
    export: Export,
    silence: Duration,
    waiting: HashMap<u64, Waiting>,
    waiting_bytes: usize,
    next_cookie: u64,
    /// What came and is not understood yet: less than one reply's header, but while it is being worked through.
    input: Vec<u8>,
    arriving: Option<Arriving>,
    done: VecDeque<Done>,
}

impl Client {
    /// Connects and chooses an export. A server that says nothing for as long as `silence`, now or while requests
    /// are outstanding, counts as dead.
    pub fn connect(path: &Path, export: &str, silence: Duration) -> Result<Client, ClientError> {
        if export.len() > MAX_NAME {
            return Err(ClientError::NoSuchExport(export.to_owned()));
        }
        let failed = |error| ClientError::Connect(path.to_owned(), error);
        let mut stream = UnixStream::connect(path).map_err(failed)?;
        stream.set_read_timeout(Some(silence))?;
        stream.set_write_timeout(Some(silence))?;
        let export = handshake(&mut stream, export).map_err(|error| match error {
            ClientError::Io(error) if error.kind() == ErrorKind::WouldBlock => ClientError::Silent(silence),
            error => error,
        })?;
        stream.set_nonblocking(true)?;
        Ok(Client {
            stream,
            export,
            silence,
            waiting: HashMap::new(),
            waiting_bytes: 0,
            next_cookie: 0,
            input: Vec::new(),
            arriving: None,
            done: VecDeque::new(),
        })
    }

    /// As [`Client::connect`], but tries again for as long as `patience` while nobody is there: for a server that is
    /// being started, or started again.
    pub fn connect_within(path: &Path, export: &str, silence: Duration, patience: Duration) -> Result<Client, ClientError> {
        let until = Instant::now() + patience;
        loop {
            match Client::connect(path, export, silence) {
                // A server that is just going down accepts and closes; one that starts may not know the export yet.
                Err(ClientError::Connect(..) | ClientError::Closed | ClientError::NoSuchExport(_)) if Instant::now() < until => {
                    thread::sleep(RETRY);
                }
                result => return result,
            }
        }
    }

    /// What the export said of itself.
    pub fn export(&self) -> Export {
        self.export
    }

    /// How many requests were begun and not handed back by [`Client::next`].
    pub fn outstanding(&self) -> usize {
        self.waiting.len() + self.done.len()
    }

    /// Sends a request, and returns the name that its end will have. Waits for earlier requests only while there are
    /// [`MAX_OUTSTANDING`] or they hold [`MAX_OUTSTANDING_BYTES`].
    pub fn begin(&mut self, request: Request<'_>) -> Result<u64, ClientError> {
        let (kind, flags, offset, length, data) = match request {
            Request::Read { offset, len } => (command::READ, 0, offset, len, &[][..]),
            Request::Write { offset, data, fua } => {
                let len = u32::try_from(data.len()).map_err(|_| ClientError::Invalid("too long"))?;
                (command::WRITE, if fua { command::FLAG_FUA } else { 0 }, offset, len, data)
            }
            Request::Flush => (command::FLUSH, 0, 0, 0, &[][..]),
            Request::Trim { offset, len } => (command::TRIM, 0, offset, len, &[][..]),
            Request::WriteZeroes { offset, len } => (command::WRITE_ZEROES, 0, offset, len, &[][..]),
        };
        self.check(kind, offset, length)?;
        let bytes = if matches!(kind, command::READ | command::WRITE) { length as usize } else { 0 };
        let full = |this: &Client| {
            this.waiting.len() >= MAX_OUTSTANDING
                || (this.waiting_bytes > 0 && this.waiting_bytes + bytes > MAX_OUTSTANDING_BYTES)
        };
        while full(self) {
            self.wait(PollFlags::IN)?;
            self.receive()?;
        }
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        self.waiting.insert(cookie, Waiting { reads: if kind == command::READ { bytes } else { 0 }, bytes });
        self.waiting_bytes += bytes;
        let mut header = [0; REQUEST_LEN];
        header[0..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        header[4..6].copy_from_slice(&flags.to_be_bytes());
        header[6..8].copy_from_slice(&kind.to_be_bytes());
        header[8..16].copy_from_slice(&cookie.to_be_bytes());
        header[16..24].copy_from_slice(&offset.to_be_bytes());
        header[24..28].copy_from_slice(&length.to_be_bytes());
        self.send(&header, data)?;
        Ok(cookie)
    }

    /// The request that is finished next, in the order of the replies; `None` if none is outstanding.
    #[expect(clippy::should_implement_trait, reason = "it fails, and goes on after `None` when more was begun")]
    pub fn next(&mut self) -> Result<Option<Done>, ClientError> {
        while self.done.is_empty() && !self.waiting.is_empty() {
            self.wait(PollFlags::IN)?;
            self.receive()?;
        }
        Ok(self.done.pop_front())
    }

    /// Does one request, while no other is outstanding, and returns the data of a read.
    pub fn call(&mut self, request: Request<'_>) -> Result<Vec<u8>, ClientError> {
        if self.outstanding() > 0 {
            return Err(ClientError::Invalid("others are outstanding"));
        }
        self.begin(request)?;
        match self.next()? {
            Some(done) => done.result.map_err(ClientError::Failed),
            None => Err(ClientError::Closed),
        }
    }

    /// Tells the server that no more will come, and leaves.
    pub fn disconnect(mut self) -> Result<(), ClientError> {
        let mut header = [0; REQUEST_LEN];
        header[0..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        header[6..8].copy_from_slice(&command::DISC.to_be_bytes());
        self.send(&header, &[])
    }

    fn check(&self, kind: u16, offset: u64, length: u32) -> Result<(), ClientError> {
        if kind == command::FLUSH {
            return Ok(());
        }
        if length == 0 || offset.checked_add(u64::from(length)).is_none_or(|end| end > self.export.size) {
            return Err(ClientError::Invalid("not within the export"));
        }
        if matches!(kind, command::READ | command::WRITE) && length > self.export.max_request {
            return Err(ClientError::Invalid("too long"));
        }
        let block = u64::from(self.export.min_block);
        if !offset.is_multiple_of(block) || !u64::from(length).is_multiple_of(block) {
            return Err(ClientError::Invalid("not in whole blocks"));
        }
        Ok(())
    }

    /// Waits until the socket can be read or, if asked for, written.
    fn wait(&self, interest: PollFlags) -> Result<PollFlags, ClientError> {
        let limit = Timespec { tv_sec: self.silence.as_secs() as i64, tv_nsec: i64::from(self.silence.subsec_nanos()) };
        let mut fds = [PollFd::new(&self.stream, interest)];
        loop {
            match poll(&mut fds, Some(&limit)) {
                Ok(0) => return Err(ClientError::Silent(self.silence)),
                Ok(_) => return Ok(fds[0].revents()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(ClientError::Io(error.into())),
            }
        }
    }

    fn send(&mut self, header: &[u8], data: &[u8]) -> Result<(), ClientError> {
        let mut slices = [IoSlice::new(header), IoSlice::new(data)];
        let mut left = &mut slices[..if data.is_empty() { 1 } else { 2 }];
        while !left.is_empty() {
            match (&self.stream).write_vectored(left) {
                Ok(0) => return Err(ClientError::Closed),
                Ok(written) => IoSlice::advance_slices(&mut left, written),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if self.wait(PollFlags::IN | PollFlags::OUT)?.contains(PollFlags::IN) {
                        self.receive()?;
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Takes in what has come, without waiting for more than a first piece.
    fn receive(&mut self) -> Result<(), ClientError> {
        if let Some(arriving) = &mut self.arriving {
            let room = &mut arriving.data[arriving.filled..];
            arriving.filled += match (&self.stream).read(room) {
                Ok(0) => return Err(ClientError::Closed),
                Ok(read) => read,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => 0,
                Err(error) => return Err(error.into()),
            };
            self.arrived();
            return Ok(());
        }
        let mut chunk = [0; CHUNK];
        match (&self.stream).read(&mut chunk) {
            Ok(0) => return Err(ClientError::Closed),
            Ok(read) => self.input.extend_from_slice(&chunk[..read]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error.into()),
        }
        let input = std::mem::take(&mut self.input);
        let mut at = Cursor(&input);
        while self.arriving.is_none() && at.0.len() >= SIMPLE_REPLY_LEN {
            self.reply(&mut at)?;
        }
        self.input = at.0.to_vec();
        Ok(())
    }

    /// Understands one reply, of which the whole header is there, and as much of its data as is.
    fn reply(&mut self, at: &mut Cursor<'_>) -> Result<(), ClientError> {
        let short = ClientError::Protocol("a reply that is too short");
        let (Some(magic), Some(error), Some(cookie)) = (at.u32(), at.u32(), at.u64()) else {
            return Err(short);
        };
        if magic != SIMPLE_MAGIC {
            return Err(ClientError::Protocol("something else than a reply came"));
        }
        let Some(&Waiting { reads, bytes }) = self.waiting.get(&cookie) else {
            return Err(ClientError::Protocol("a reply to a request that is not outstanding"));
        };
        if error != 0 {
            self.waiting.remove(&cookie);
            self.waiting_bytes -= bytes;
            self.done.push_back(Done { cookie, result: Err(error) });
            return Ok(());
        }
        let here = at.bytes(reads.min(at.0.len())).ok_or(short)?;
        let mut data = vec![0; reads];
        data[..here.len()].copy_from_slice(here);
        self.arriving = Some(Arriving { cookie, data, filled: here.len() });
        self.arrived();
        Ok(())
    }

    /// Finishes the request whose data came last, if all of it is here.
    fn arrived(&mut self) {
        if let Some(Arriving { cookie, data, .. }) = self.arriving.take_if(|it| it.filled == it.data.len()) {
            if let Some(waiting) = self.waiting.remove(&cookie) {
                self.waiting_bytes -= waiting.bytes;
            }
            self.done.push_back(Done { cookie, result: Ok(data) });
        }
    }
}

/// Newstyle, fixed, with `GO`, simple replies.
fn handshake(stream: &mut UnixStream, name: &str) -> Result<Export, ClientError> {
    let (magic, option, flags) = (word64(stream)?, word64(stream)?, word16(stream)?);
    if magic != MAGIC || option != OPTION_MAGIC || flags & FIXED_NEWSTYLE == 0 {
        return Err(ClientError::Protocol("its greeting is not that of a newstyle server"));
    }
    let mut out = Vec::new();
    out.extend(u32::from(FIXED_NEWSTYLE | (flags & NO_ZEROES)).to_be_bytes());
    out.extend(OPTION_MAGIC.to_be_bytes());
    out.extend(option::GO.to_be_bytes());
    // The name's length, the name, how many kinds of information are asked for, and which.
    out.extend((4 + name.len() as u32 + 2 + 2).to_be_bytes());
    out.extend((name.len() as u32).to_be_bytes());
    out.extend(name.as_bytes());
    out.extend(1u16.to_be_bytes());
    out.extend(info::BLOCK_SIZE.to_be_bytes());
    stream.write_all(&out)?;
    let mut export = Export { size: 0, flags: 0, min_block: 512, max_request: MAX_REQUEST };
    loop {
        let (magic, asked, kind, length) = (word64(stream)?, word32(stream)?, word32(stream)?, word32(stream)?);
        if magic != OPTION_REPLY_MAGIC || asked != option::GO || length > MAX_OPTION {
            return Err(ClientError::Protocol("not an answer to the choice of an export"));
        }
        let mut data = vec![0; length as usize];
        stream.read_exact(&mut data)?;
        match kind {
            option_reply::ACK if export.flags & transmission::HAS_FLAGS != 0 => return Ok(export),
            option_reply::ACK => return Err(ClientError::Protocol("an export of unknown size")),
            option_reply::INFO => information(&data, &mut export).ok_or(ClientError::Protocol("information cut short"))?,
            option_reply::ERR_UNKNOWN => return Err(ClientError::NoSuchExport(name.to_owned())),
            _ => return Err(ClientError::Protocol("the choice of an export is refused")),
        }
    }
}

/// Takes in one piece of information; kinds that are not known are passed over.
fn information(data: &[u8], export: &mut Export) -> Option<()> {
    let mut at = Cursor(data);
    match at.u16()? {
        info::EXPORT => (export.size, export.flags) = (at.u64()?, at.u16()?),
        info::BLOCK_SIZE => {
            let (min, _preferred, max) = (at.u32()?, at.u32()?, at.u32()?);
            (export.min_block, export.max_request) = (min.max(1), max.min(MAX_REQUEST));
        }
        _ => {}
    }
    Some(())
}

fn word16(stream: &mut UnixStream) -> io::Result<u16> {
    let mut bytes = [0; 2];
    stream.read_exact(&mut bytes).map(|()| u16::from_be_bytes(bytes))
}

fn word32(stream: &mut UnixStream) -> io::Result<u32> {
    let mut bytes = [0; 4];
    stream.read_exact(&mut bytes).map(|()| u32::from_be_bytes(bytes))
}

fn word64(stream: &mut UnixStream) -> io::Result<u64> {
    let mut bytes = [0; 8];
    stream.read_exact(&mut bytes).map(|()| u64::from_be_bytes(bytes))
}
