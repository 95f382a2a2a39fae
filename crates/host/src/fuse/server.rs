//! Threads that read the kernel's requests, hand them to a [`Backend`], and the [`Completion`]s that answer.

use std::io::IoSlice;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use headpond_engine::io::{Reply, Request, RequestError, SECTOR};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl;

use super::Error;
use super::export::Options;
use super::protocol::{self, Hole, Io, REQUEST_MAX, SingleFile, Step};
use crate::last_words::or_abort;

const FUSE_DEV_IOC_CLONE: ioctl::Opcode = ioctl::opcode::read::<u32>(229, 0);
/// How long the kernel is left alone that cannot hand over a request, short of memory perhaps.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
/// The most buffers of one reply; the kernel's limit on a vector is 1024.
const GATHER: usize = 1000;

/// What serves the volume.
pub trait Backend: Send + Sync + 'static {
    /// Memory with the content of a write or a read in it.
    type Buf: AsRef<[u8]> + Send + 'static;

    /// The size of the volume in bytes, a multiple of 512; asked once, at the start. See [`Server::grow`].
    fn size(&self) -> u64;

    /// A buffer of its own with a copy of the payload of a write, at most 1 MiB.
    fn buffer(&self, payload: &[u8]) -> Self::Buf;

    /// Starts on a request and returns soon. The volume's end is not passed by any of them.
    fn submit(&self, request: Request<Self::Buf>, done: Completion);
}

/// The duty to answer one request, from any thread. Dropped without an answer, it answers EIO.
#[derive(Debug)]
pub struct Completion {
    /// The descriptor that the request was read from: the kernel takes the answer only there.
    device: Arc<OwnedFd>,
    unique: u64,
    expects: Expects,
    answered: bool,
    /// If it was cut into several requests of the volume: all of them. The last to end answers.
    parts: Option<Arc<Parts>>,
}

/// The requests that one of the kernel's was cut into.
#[derive(Debug)]
struct Parts {
    /// How many have not ended, and how those have that have.
    state: Mutex<(usize, Result<(), RequestError>)>,
}

impl Parts {
    /// One has ended like this; how all have, if it was the last.
    fn ended(&self, result: Result<(), RequestError>) -> Option<Result<(), RequestError>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.0 -= 1;
        state.1 = state.1.and(result);
        (state.0 == 0).then_some(state.1)
    }
}

#[derive(Debug, Clone, Copy)]
enum Expects {
    Data(u32),
    Written(u32),
    Nothing,
}

impl Completion {
    /// Answers. A read takes buffers of the length asked for in total; other requests take none.
    pub fn finish<B: AsRef<[u8]>>(mut self, reply: Reply<B>) {
        self.end(reply);
    }

    fn end<B: AsRef<[u8]>>(&mut self, reply: Reply<B>) {
        let reply = match self.parts.take() {
            None => reply,
            Some(parts) => match parts.ended(reply.map(drop)) {
                Some(all) => all.map(|()| Vec::new()),
                None => {
                    self.answered = true;
                    return;
                }
            },
        };
        let len = |bufs: &[B]| bufs.iter().map(|b| b.as_ref().len()).sum::<usize>();
        match (reply, self.expects) {
            (Ok(bufs), Expects::Data(expected)) if len(&bufs) == expected as usize => self.send_data(&bufs),
            (Ok(bufs), Expects::Data(expected)) => {
                tracing::error!(
                    "read of {expected} bytes was answered with {}; the client gets EIO. Report it, with this line",
                    len(&bufs)
                );
                self.send_error(Errno::IO);
            }
            (Ok(_), Expects::Written(len)) => self.send(&protocol::written(self.unique, len)),
            (Ok(_), Expects::Nothing) => self.send(&protocol::done(self.unique)),
            (Err(RequestError::Io), _) => self.send_error(Errno::IO),
            (Err(RequestError::OutOfRange), _) => self.send_error(Errno::INVAL),
            (Err(RequestError::NotServed), _) => self.send_error(Errno::NXIO),
        }
    }

    fn send_data<B: AsRef<[u8]>>(&mut self, bufs: &[B]) {
        let len = bufs.iter().map(|b| b.as_ref().len()).sum();
        let header = protocol::header(self.unique, len);
        let (gathered, scattered) = bufs.split_at(bufs.len().min(GATHER));
        // A megabyte in single sectors is more buffers than the kernel takes; then the last are copied.
        let rest: Vec<u8> = scattered.iter().flat_map(|b| b.as_ref()).copied().collect();
        let mut slices = Vec::with_capacity(gathered.len() + 2);
        slices.push(IoSlice::new(&header));
        slices.extend(gathered.iter().map(|b| IoSlice::new(b.as_ref())));
        slices.push(IoSlice::new(&rest));
        self.answered = true;
        let sent = rustix::io::writev(&*self.device, &slices);
        if let Err(e) = sent
            && is_worth_a_word(e)
        {
            tracing::error!(
                "the kernel did not take the answer to a read of {len} bytes: {e}; the client gets EIO. Look at the kernel's log"
            );
            self.send_error(Errno::IO);
        }
    }

    fn send_error(&mut self, errno: Errno) {
        self.send(&protocol::error(self.unique, errno));
    }

    fn send(&mut self, reply: &[u8]) {
        self.answered = true;
        send(&self.device, reply);
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        if !self.answered {
            tracing::error!("a request was dropped without an answer; the client gets EIO. Report it, with this line");
            self.end::<&[u8]>(Err(RequestError::Io));
        }
    }
}

fn send(device: &OwnedFd, reply: &[u8]) {
    if let Err(e) = rustix::io::write(device, reply)
        && is_worth_a_word(e)
    {
        tracing::error!("the kernel did not take an answer: {e}; its client may wait for ever. Restart the daemon");
    }
}

/// Not so if the file system was unmounted, or the request given up, while it was being served.
fn is_worth_a_word(e: Errno) -> bool {
    !matches!(e, Errno::NOENT | Errno::NODEV | Errno::PERM | Errno::CONNABORTED | Errno::NOTCONN)
}

/// The threads that serve a mount; they end when it is unmounted, or are told to.
#[derive(Debug)]
pub struct Server {
    threads: Vec<JoinHandle<()>>,
    end: Arc<End>,
    /// Of the file, in bytes.
    size: Arc<AtomicU64>,
}

/// Tells the threads to end.
#[derive(Debug)]
struct End {
    wanted: AtomicBool,
    /// Readable when it is wanted: wakes who waits for a request.
    bell: OwnedFd,
}

impl Server {
    /// Starts to serve the requests read from `device`, which is mounted for the volume of these options, with at least one thread.
    pub fn start<B: Backend>(device: BorrowedFd<'_>, options: &Options, backend: Arc<B>) -> Result<Server, Error> {
        let Options { phase, discards, .. } = *options;
        let file = SingleFile { name: options.name.clone(), size: backend.size(), phase, discards };
        let size = Arc::new(AtomicU64::new(file.size));
        let bell = eventfd(0, EventfdFlags::CLOEXEC).map_err(|e| Error::new("cannot make an event for FUSE", e))?;
        let end = Arc::new(End { wanted: AtomicBool::new(false), bell });
        let mut server = Server { threads: Vec::new(), end, size };
        for number in 0..options.threads.max(1) {
            let device = Arc::new(clone(device)?);
            let (mut file, size, backend, end) = (file.clone(), server.size.clone(), backend.clone(), server.end.clone());
            let thread = std::thread::Builder::new()
                .name(format!("fuse-{number}"))
                .spawn(move || {
                    let body = || serve(&device, &mut file, &size, &*backend, &end);
                    // Who waits for the others would wait for ever: with its process the mount ends.
                    or_abort(
                        "a thread that serves FUSE panicked; the process ends. What was acknowledged is on the cache devices. Start the \
                         daemon again.",
                        body,
                    );
                })
                .map_err(|e| Error::new("cannot start a thread for FUSE", e))?;
            server.threads.push(thread);
        }
        Ok(server)
    }

    /// The file has so many bytes for all requests that are read from now on. The kernel is told when it asks.
    pub fn grow(&self, size: u64) {
        self.size.store(size, Ordering::Release);
    }

    /// Takes no more requests. Those that were taken are answered as before; those that were not wait in the kernel for
    /// whoever reads from the mount's descriptor next, or are no more if it was unmounted.
    pub fn leave(&mut self) {
        self.end.wanted.store(true, Ordering::Release);
        // The counter of an event takes far more than one.
        let _ = rustix::io::write(&self.end.bell, &1u64.to_ne_bytes());
        for thread in self.threads.drain(..) {
            // One that panics ends the process.
            let _ = thread.join();
        }
    }
}

/// Another descriptor for the same mount, with a queue of its own for requests being served.
fn clone(device: BorrowedFd<'_>) -> Result<OwnedFd, Error> {
    let cloned = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())
        .map_err(|e| Error::new("cannot open /dev/fuse once more", e))?;
    let original = device.as_raw_fd() as u32;
    // SAFETY: FUSE_DEV_IOC_CLONE reads a 32-bit descriptor, which the setter owns meanwhile.
    unsafe { ioctl::ioctl(&cloned, ioctl::Setter::<FUSE_DEV_IOC_CLONE, u32>::new(original)) }
        .map_err(|e| Error::new("cannot clone the descriptor of the FUSE mount", e))?;
    Ok(cloned)
}

/// Keeps the kernel from waiting for writeback, hence for this daemon, when the calling thread needs
/// memory. For each thread on the way of a request; a failure is logged and makes no difference otherwise.
pub fn mark_io_flusher() {
    if let Err(e) = rustix::process::configure_io_flusher_behavior(true) {
        tracing::warn!(
            "cannot mark a thread as I/O flusher: {e}; without it the volume may deadlock when memory \
             is short; give the daemon CAP_SYS_RESOURCE"
        );
    }
}

fn serve<B: Backend>(device: &Arc<OwnedFd>, file: &mut SingleFile, size: &AtomicU64, backend: &B, end: &End) {
    mark_io_flusher();
    // Page-aligned, which lets the kernel copy whole pages.
    let mut memory = vec![0; REQUEST_MAX + 4096];
    let start = memory.as_ptr().align_offset(4096);
    let memory = &mut memory[start..start + REQUEST_MAX];
    let mut told = false;
    while !end.wanted.load(Ordering::Acquire) {
        let len = match rustix::io::read(&**device, &mut *memory) {
            Ok(len) => len,
            // NOENT: the request was given up while it was being read.
            Err(Errno::INTR | Errno::NOENT) => continue,
            Err(Errno::AGAIN) => {
                let mut ready = [PollFd::new(&**device, PollFlags::IN), PollFd::new(&end.bell, PollFlags::IN)];
                // What went wrong, reading tells.
                let _ = poll(&mut ready, None);
                continue;
            }
            // Unmounted, or aborted by somebody.
            Err(Errno::NODEV | Errno::CONNABORTED) => return,
            // Who served no more for that would have clients wait for ever.
            Err(e) => {
                if !told {
                    tracing::error!(
                        "cannot read requests from /dev/fuse: {e}; it is tried again. Clients wait meanwhile, but for whoever asked for what was \
                         being copied, who gets an I/O error. Look at the kernel's log, and for free memory"
                    );
                    told = true;
                }
                let _ = poll(&mut [PollFd::new(&end.bell, PollFlags::IN)], Some(&PAUSE));
                continue;
            }
        };
        file.size = size.load(Ordering::Acquire);
        match file.step(&memory[..len]) {
            Step::Ignore => {}
            Step::Reply(reply) => send(device, &reply),
            Step::Punch { unique, hole } => {
                let requests: Vec<_> = punch(&hole).collect();
                let parts = Arc::new(Parts { state: Mutex::new((requests.len(), Ok(()))) });
                for request in requests {
                    let (device, parts) = (device.clone(), Some(parts.clone()));
                    let done = Completion { device, unique, expects: Expects::Nothing, answered: false, parts };
                    backend.submit(request, done);
                }
            }
            Step::Io { unique, io } => {
                let (request, expects) = translate(io, backend);
                let done = Completion { device: device.clone(), unique, expects, answered: false, parts: None };
                backend.submit(request, done);
            }
        }
    }
}

/// What the volume is to do to have a hole: nothing of it overlaps, so that it may be done in any order.
fn punch<B>(hole: &Hole) -> impl Iterator<Item = Request<B>> {
    let Hole { head, blocks, tail } = hole.clone();
    let parts = [(head, false), (blocks, true), (tail, false)].into_iter().filter(|(range, _)| !range.is_empty());
    parts.map(|(range, discards)| {
        let (sector, sectors) = (range.start / SECTOR, (range.end - range.start) / SECTOR);
        match discards {
            true => Request::Discard { sector, sectors },
            false => Request::WriteZeroes { sector, sectors, fua: false },
        }
    })
}

fn translate<B: Backend>(io: Io<'_>, backend: &B) -> (Request<B::Buf>, Expects) {
    match io {
        Io::Read { offset, len } => {
            (Request::Read { sector: offset / SECTOR, sectors: len / SECTOR as u32, into: None }, Expects::Data(len))
        }
        Io::Write { offset, data, durable } => (
            Request::Write { sector: offset / SECTOR, data: backend.buffer(data), fua: durable },
            Expects::Written(data.len() as u32),
        ),
        Io::Flush => (Request::Flush, Expects::Nothing),
        Io::WriteZeroes { offset, len } => {
            (Request::WriteZeroes { sector: offset / SECTOR, sectors: len / SECTOR, fua: false }, Expects::Nothing)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::time::Duration;

    struct Nothing;

    impl Backend for Nothing {
        type Buf = Vec<u8>;

        fn size(&self) -> u64 {
            1 << 20
        }

        fn buffer(&self, payload: &[u8]) -> Vec<u8> {
            payload.to_vec()
        }

        fn submit(&self, _: Request<Vec<u8>>, done: Completion) {
            done.finish(Ok(Vec::<Vec<u8>>::new()));
        }
    }

    /// Two moments without memory, and nobody read requests any more: clients waited for ever. A socket stands for the mount's descriptor: of
    /// what nobody took the next read tells, once, and what comes then is one request for each read.
    #[test]
    fn a_thread_that_cannot_read_for_a_moment_serves_on() {
        let here = ("127.0.0.1", 0);
        let (kernel, device) = (UdpSocket::bind(here).unwrap(), UdpSocket::bind(here).unwrap());
        let address = kernel.local_addr().unwrap();
        device.connect(address).unwrap();
        device.set_nonblocking(true).unwrap();
        drop(kernel);
        device.send(b"nobody takes it").unwrap();
        let kernel = UdpSocket::bind(address).unwrap();
        kernel.connect(device.local_addr().unwrap()).unwrap();
        kernel.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        // FUSE_INIT of protocol 7.45, with the number 7.
        let words = [104u32, 26, 7, 0, 0, 0, 0, 0, 0, 0, 7, 45, 0, u32::MAX];
        let mut request: Vec<u8> = words.into_iter().flat_map(u32::to_ne_bytes).collect();
        request.resize(104, 0);
        kernel.send(&request).unwrap();
        let bell = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let end = Arc::new(End { wanted: AtomicBool::new(false), bell });
        let serving = std::thread::spawn({
            let (device, end) = (Arc::new(OwnedFd::from(device)), end.clone());
            let mut file = SingleFile { name: "volume".into(), size: 1 << 20, phase: 0, discards: true };
            move || serve(&device, &mut file, &AtomicU64::new(1 << 20), &Nothing, &end)
        });
        let mut reply = [0; 4096];
        let answered = kernel.recv(&mut reply);
        end.wanted.store(true, Ordering::Release);
        rustix::io::write(&end.bell, &1u64.to_ne_bytes()).unwrap();
        serving.join().unwrap();
        answered.unwrap();
        assert_eq!(reply[8..16], 7u64.to_ne_bytes());
    }
}
