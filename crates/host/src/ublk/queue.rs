//! One queue of a ublk device: a thread with a ring of its own, on which requests come and are answered.
//!
//! The kernel takes a queue's commands from one thread alone. That thread copies payload, too: a write's from the
//! kernel's pages into the buffer that goes to the engine and to the devices, a read's from the engine's buffers into
//! the kernel's pages. Nothing else copies a byte. The engine answers on its own thread, by a message and a bell.
//!
//! `unsafe` because descriptors are in memory that the kernel writes, and because commands go into the ring.

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use headpond_engine::io::{Buf, Reply, Request, RequestError};
use io_uring::opcode;
use io_uring::types::Fd;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::abi::{self, Descriptor, IoCommand};
use super::tags::{Completion, Event, Held, Io, Tags};
use crate::buf::HostBuf;
use crate::fuse::mark_io_flusher;
use crate::ring::{Ring, Waker};

/// Buffers written to the kernel by one call; its limit is 1,024.
const GATHER: usize = 1000;

/// What serves a volume.
pub trait Backend: Send + Sync + 'static {
    /// Starts on a request and returns soon.
    fn submit(&self, request: Request<HostBuf>, done: Completion);
}

/// What a queue's thread is told.
#[derive(Debug)]
pub enum Message {
    /// Attend to a device from now on.
    Attend(Arc<OwnedFd>),
    /// The answer to a request.
    Answer(Held, Reply<HostBuf>),
    /// Take no more requests, and answer those that were taken; and tell when that is so.
    Park(Sender<()>),
    /// Do nothing any more.
    Freeze,
    /// Let go of the device, and end. What is not answered is asked of the next daemon.
    Leave,
}

/// A queue's thread, from outside.
pub struct Queue {
    inbox: Sender<Message>,
    waker: Waker,
    attended: Receiver<io::Result<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Queue {
    /// Starts the thread and makes its ring; it attends to no device yet.
    pub fn prepare<B: Backend>(number: u16, depth: u16, backend: Arc<B>, flushes: Arc<AtomicU64>) -> io::Result<Queue> {
        let (inbox, messages) = mpsc::channel();
        let (attends, attended) = mpsc::channel();
        let (up, is_up) = mpsc::channel();
        let answers = inbox.clone();
        let thread = thread::Builder::new().name(format!("ublk-{number}")).spawn(move || {
            let body = || {
                mark_io_flusher();
                let ring = match Ring::new(u32::from(depth) * 2) {
                    Ok(ring) => ring,
                    Err(error) => return drop(up.send(Err(error))),
                };
                let _ = up.send(Ok(ring.waker()));
                let Ok(Message::Attend(device)) = messages.recv() else { return };
                let attending = Attending::start(number, depth, ring, device, backend, messages, answers, flushes);
                match attending {
                    Ok(attending) => {
                        let _ = attends.send(Ok(()));
                        attending.run();
                    }
                    Err(error) => drop(attends.send(Err(error))),
                }
            };
            if catch_unwind(AssertUnwindSafe(body)).is_err() {
                // Its clients would wait for ever. The kernel keeps what they ask for the next daemon.
                eprintln!(
                    "headpond: a thread that serves a ublk queue panicked; the process ends. What was acknowledged is on the \
                     cache devices, and what was not waits in the kernel. Start the daemon again."
                );
                std::process::abort();
            }
        })?;
        let waker = is_up.recv().map_err(|_| io::Error::other("the thread of a queue ended"))??;
        Ok(Queue { inbox, waker, attended, thread: Some(thread) })
    }

    /// Lets it attend to a device; [`Queue::is_attending`] waits until it does.
    pub fn attend(&self, device: Arc<OwnedFd>) {
        let _ = self.inbox.send(Message::Attend(device));
    }

    /// Waits until all its tags are fetched.
    pub fn is_attending(&self) -> io::Result<()> {
        self.attended.recv().unwrap_or_else(|_| Err(io::Error::other("the thread of a queue ended")))
    }

    /// Lets go of the device: the kernel keeps it, and all that is not answered.
    pub fn leave(&self) {
        let _ = self.inbox.send(Message::Leave);
        self.waker.wake();
    }

    /// Takes no more requests: they wait in the kernel. Those that were taken are answered as before. What this returns has
    /// something to receive, or is closed, when the backend gets no more of them.
    pub fn park(&self) -> Receiver<()> {
        let (parked, is_parked) = mpsc::channel();
        let _ = self.inbox.send(Message::Park(parked));
        self.waker.wake();
        is_parked
    }

    /// Does nothing any more, for as long as the process runs this program: the thread, its ring and its commands end
    /// together, as when the process is killed.
    pub fn freeze(&self) {
        let _ = self.inbox.send(Message::Freeze);
        self.waker.wake();
    }

    /// Waits for the thread, after [`Queue::leave`], or after the device was stopped.
    pub fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The descriptors of a queue, as the kernel shares them.
struct Descriptors {
    start: NonNull<Descriptor>,
    bytes: usize,
    depth: u16,
}

impl Descriptors {
    fn map(device: &OwnedFd, queue: u16, depth: u16) -> io::Result<Descriptors> {
        let (offset, bytes) = abi::descriptors_at(queue, depth, rustix::param::page_size());
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let start = unsafe { mmap(std::ptr::null_mut(), bytes, ProtFlags::READ, flags, device, offset)? };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Descriptors { start, bytes, depth })
    }

    /// That of a request that is ours, so that the kernel does not change it.
    fn of(&self, held: &Held) -> Descriptor {
        assert!(held.tag() < self.depth);
        // SAFETY: within the mapping, which holds `depth` descriptors and is aligned to pages. Integers only. Volatile,
        // since the kernel wrote it after an earlier read.
        unsafe { self.start.add(usize::from(held.tag())).read_volatile() }
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: mapped in `map` with this length, and nothing refers to it any more: `of` copies.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// A queue at work.
struct Attending<B> {
    number: u16,
    /// Before `device`: while the ring is there, the kernel may have commands of ours.
    ring: Ring,
    descriptors: Descriptors,
    device: Arc<OwnedFd>,
    tags: Tags,
    /// What is being served, by tag.
    ios: Vec<Io>,
    backend: Arc<B>,
    messages: Receiver<Message>,
    answers: Sender<Message>,
    flushes: Arc<AtomicU64>,
    told_to_leave: bool,
}

impl<B: Backend> Attending<B> {
    /// Fetches all tags. When this is done on all queues, the device can be started.
    #[expect(clippy::too_many_arguments, reason = "handed on from the one place that has them")]
    fn start(
        number: u16,
        depth: u16,
        ring: Ring,
        device: Arc<OwnedFd>,
        backend: Arc<B>,
        messages: Receiver<Message>,
        answers: Sender<Message>,
        flushes: Arc<AtomicU64>,
    ) -> io::Result<Attending<B>> {
        let descriptors = Descriptors::map(&device, number, depth)?;
        let ios = vec![Io::Flush; usize::from(depth)];
        let tags = Tags::new(depth);
        let told_to_leave = false;
        let mut this =
            Attending { number, ring, descriptors, device, tags, ios, backend, messages, answers, flushes, told_to_leave };
        for tag in this.tags.fetch() {
            this.command(abi::io::FETCH_REQ, tag, 0)?;
        }
        this.ring.wait(Some(Duration::ZERO))?;
        // No request can be there before the device is started: what completes now was refused.
        let mut refused = Vec::new();
        this.ring.reap(&mut refused);
        match refused.iter().find(|(_, result)| *result < 0) {
            Some((_, result)) => Err(io::Error::from_raw_os_error(-result)),
            None => {
                for (tag, result) in refused {
                    this.completed(tag as u16, result);
                }
                Ok(this)
            }
        }
    }

    fn run(mut self) {
        let mut completed = Vec::new();
        while !self.told_to_leave && !self.tags.all_gone() {
            if let Err(error) = self.ring.wait(None) {
                panic!("the ring of queue {} refused to wait: {error}", self.number);
            }
            self.ring.reap(&mut completed);
            for (tag, result) in completed.drain(..) {
                self.completed(tag as u16, result);
            }
            while let Ok(message) = self.messages.try_recv() {
                match message {
                    Message::Answer(held, reply) => self.answer(held, reply),
                    Message::Park(parked) => {
                        let _ = parked.send(());
                        self.only_answer();
                    }
                    Message::Leave => self.told_to_leave = true,
                    Message::Freeze => freeze(),
                    Message::Attend(_) => {}
                }
            }
        }
    }

    /// Takes no request off the ring any more, and answers those that were taken, until it is told to do nothing at all.
    fn only_answer(&mut self) {
        while let Ok(message) = self.messages.recv() {
            match message {
                Message::Answer(held, reply) => self.answer(held, reply),
                Message::Freeze => freeze(),
                Message::Leave => {
                    self.told_to_leave = true;
                    return;
                }
                Message::Park(parked) => {
                    let _ = parked.send(());
                }
                Message::Attend(_) => {}
            }
            // Tells the kernel of the answer.
            if let Err(error) = self.ring.wait(Some(Duration::ZERO)) {
                panic!("the ring of queue {} refused to wait: {error}", self.number);
            }
        }
    }

    fn completed(&mut self, tag: u16, result: i32) {
        match self.tags.completed(tag, result) {
            Event::Request(held) => self.request(held),
            Event::Gone => {}
            // Nothing that this daemon does can answer that request any more; the next one can.
            Event::Refused(errno) => panic!(
                "the kernel refused a command of tag {tag} in queue {}: {}",
                self.number,
                io::Error::from_raw_os_error(errno)
            ),
        }
    }

    /// Takes a request to the engine, with a write's payload.
    fn request(&mut self, held: Held) {
        let descriptor = self.descriptors.of(&held);
        let Ok(io) = Io::decode(&descriptor) else {
            tracing::error!(
                ?descriptor,
                "the kernel sent a request that is not understood; its client gets EIO. Report it, with this line"
            );
            self.commit(held, -libc::EIO);
            return;
        };
        self.ios[usize::from(held.tag())] = io;
        let request = match io {
            Io::Read { sector, sectors } => Request::Read { sector, sectors },
            Io::Write { sector, fua, .. } => match self.take_payload(&held, io.payload()) {
                Ok(data) => Request::Write { sector, data, fua },
                Err(error) => {
                    tracing::error!(
                        "the payload of a write at sector {sector} could not be taken: {error}; its client gets EIO. Look at the kernel's log"
                    );
                    self.commit(held, -libc::EIO);
                    return;
                }
            },
            Io::Flush => {
                self.flushes.fetch_add(1, Ordering::Relaxed);
                Request::Flush
            }
            Io::Discard { sector, sectors } => Request::Discard { sector, sectors: u64::from(sectors) },
            Io::WriteZeroes { sector, sectors, fua } => Request::WriteZeroes { sector, sectors: u64::from(sectors), fua },
        };
        let done = Completion::new(held, self.answers.clone(), self.ring.waker());
        self.backend.submit(request, done);
    }

    /// Answers a request, with a read's payload.
    fn answer(&mut self, held: Held, reply: Reply<HostBuf>) {
        let io = self.ios[usize::from(held.tag())];
        let result = match (reply, io) {
            (Ok(bufs), Io::Read { sector, .. }) => match self.give_payload(&held, io.payload(), &bufs) {
                Ok(()) => io.success(),
                Err(error) => {
                    tracing::error!(
                        "the payload of a read at sector {sector} was not taken: {error}; its client gets EIO. Look at the kernel's log"
                    );
                    -libc::EIO
                }
            },
            (Ok(_), io) => io.success(),
            (Err(RequestError::Io | RequestError::OutOfRange | RequestError::NotServed), _) => -libc::EIO,
        };
        self.commit(held, result);
    }

    fn commit(&mut self, held: Held, result: i32) {
        let tag = self.tags.answered(held);
        if let Err(error) = self.command(abi::io::COMMIT_AND_FETCH_REQ, tag, result) {
            panic!("the ring of queue {} refused an entry: {error}", self.number);
        }
    }

    fn command(&mut self, op: u32, tag: u16, result: i32) -> io::Result<()> {
        let command = IoCommand { q_id: self.number, tag, result, addr: 0 };
        let entry = opcode::UringCmd16::new(Fd(self.device.as_raw_fd()), op).cmd(command.to_bytes()).build();
        // SAFETY: the entry names no memory, and the file is open for longer than the ring.
        unsafe { self.ring.push(&entry.user_data(u64::from(tag))) }
    }

    fn take_payload(&self, held: &Held, len: usize) -> io::Result<HostBuf> {
        HostBuf::try_filled_by(len, |bytes| {
            let mut done = 0;
            while done < len {
                let at = abi::payload_at(self.number, held.tag(), done);
                done += moved(rustix::io::pread(&*self.device, &mut bytes[done..], at))?;
            }
            Ok(())
        })
    }

    fn give_payload(&self, held: &Held, len: usize, bufs: &[HostBuf]) -> io::Result<()> {
        let given: usize = bufs.iter().map(Buf::len).sum();
        if given != len {
            return Err(io::Error::other(format!("{given} bytes for a request of {len}")));
        }
        let mut done = 0;
        let mut slices = Vec::with_capacity(bufs.len().min(GATHER));
        for bufs in bufs.chunks(GATHER) {
            slices.clear();
            slices.extend(bufs.iter().map(|buf| IoSlice::new(buf.as_slice())));
            let mut rest = &mut slices[..];
            while !rest.is_empty() {
                let at = abi::payload_at(self.number, held.tag(), done);
                let step = moved(rustix::io::pwritev(&*self.device, rest, at))?;
                done += step;
                IoSlice::advance_slices(&mut rest, step);
            }
        }
        Ok(())
    }
}

/// Until the process ends, or runs another program.
fn freeze() -> ! {
    loop {
        thread::park();
    }
}

/// Bytes moved by one step; 0 is an error, as the kernel has no more for us.
fn moved(result: rustix::io::Result<usize>) -> io::Result<usize> {
    match result {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(bytes) => Ok(bytes),
        Err(Errno::INTR | Errno::AGAIN) => Ok(0),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headpond_engine::io::SECTOR;

    #[test]
    fn a_step_that_moves_nothing_ends_the_copy_and_one_that_was_interrupted_is_repeated() {
        assert_eq!(moved(Ok(512)).unwrap(), 512);
        assert_eq!(moved(Err(Errno::INTR)).unwrap(), 0);
        assert_eq!(moved(Ok(0)).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert!(moved(Err(Errno::INVAL)).is_err());
    }

    #[test]
    fn the_payload_of_each_tag_has_room_for_the_largest_request() {
        assert!(u64::from(super::super::attributes::MAX_IO) <= 1 << abi::TAG_SHIFT);
        assert!(u64::from(abi::MAX_DEPTH) <= 1 << (abi::QUEUE_SHIFT - abi::TAG_SHIFT));
        assert_eq!(SECTOR, 512);
    }
}
