//! Real devices under the engine: its operations go into one io_uring, their ends come out.
//!
//! An operation is done in as many steps as the kernel makes of it. Short transfers are continued, interrupted
//! ones repeated, those that there is no memory for as well, for a while, and ranges that a device cannot zero by itself are written with zeroes.
//!
//! `unsafe` because entries in the ring name memory. The rule that makes them sound: an operation sits in
//! `Devices::ops`, with its buffers and its open file, from before it is pushed until its completion was reaped,
//! and `Devices` does not go away before.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::rc::Rc;
use std::slice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use headpond_engine::io::{Buf, Device, DeviceError, DeviceOp, DeviceResult, IoId, Reach};
use io_uring::types::{Fd, FsyncFlags};
use io_uring::{opcode, squeue};

use crate::buf::{HostBuf, SHARED_ZEROES};
use crate::claim::Claim;
use crate::lent::{self, Places};
use crate::ring::{GUEST, Ring, Waker};

pub mod facts;
pub mod load;
pub mod modelled;

use facts::{Facts, Kind};
use load::{Load, Loads, Owed};
use modelled::{Held, Pace, PaceKind};

/// Pieces in one vectored write. The kernel takes 1,024; a write of more is copied together first.
const MOST_PIECES: usize = 512;
/// Bytes moved by one step; the kernel's own limit is just below 2 GiB.
const TRANSFER_STEP: u64 = 1 << 30;
/// Bytes zeroed or discarded by one step, so that none keeps a device, or the end of the daemon, waiting for long.
const ZERO_STEP: u64 = 1 << 30;
/// How long an end waits for what devices owe before it says so.
const TELL: Duration = Duration::from_secs(1);
/// A device that has refused what clients lend so many times in a row is not asked again.
const MOST_REFUSALS: u8 = 16;
/// Completions that the ring has room for, for each step that one device may have in the kernel: so many devices may have as many there. The
/// kernel keeps what is more until there is room.
const DEVICES_AT_ONCE: u32 = 16;
/// Threads in which the kernel does what would block: it makes as many as do. Flushes and zeroing go there, and what a device's own queue has no
/// room for. Usually there are four for each processor, which a few silent disks would hold, and nothing would be flushed any more.
const MOST_WORKERS: u32 = 1 << 14;
/// How long the kernel is left alone that has no memory for a step, before it is asked again.
const PAUSE: Duration = Duration::from_millis(10);
/// How often in all it is asked again in one operation: for five seconds, and more. A cache device that takes ten is given up.
const MOST_PAUSES: u16 = 500;
/// Bytes zeroed by one step where zeroes must be written.
const WRITTEN_ZEROES_STEP: u64 = 16 * SHARED_ZEROES as u64;

/// Why the devices as a whole cannot go on. What one device answers comes with its completion instead.
#[derive(Debug, thiserror::Error)]
pub enum DevicesError {
    /// There is no io_uring to be had.
    #[error(
        "no io_uring could be set up: {0}. Headpond does all its I/O by it. Check that the kernel is 5.11 or newer, \
         that the sysctl kernel.io_uring_disabled is 0, that no container policy forbids it, and the limits on memory"
    )]
    Setup(#[source] io::Error),
    /// The ring stopped working.
    #[error(
        "io_uring refused to work: {0}. No device can be reached any more. \
         What is in flight may still take effect; restart the daemon"
    )]
    Ring(#[source] io::Error),
}

/// The end of an operation.
pub type Completion = (IoId, DeviceResult<HostBuf>);

/// A way to make a range read as zeroes, by `fallocate` mode. The kernel does these for block devices as well
/// (as write-zeroes with and without unmapping); unlike BLKDISCARD, all of them promise zeroes. Clients of a disk that
/// cannot are offered no discards ([`Facts::discards`]).
#[derive(Clone, Copy)]
#[repr(u8)]
enum Zeroing {
    /// Gives the space back.
    Punch = 1,
    /// Keeps the space.
    Convert = 2,
}

impl Zeroing {
    fn mode(self) -> i32 {
        libc::FALLOC_FL_KEEP_SIZE
            | match self {
                Zeroing::Punch => libc::FALLOC_FL_PUNCH_HOLE,
                Zeroing::Convert => libc::FALLOC_FL_ZERO_RANGE,
            }
    }
}

/// A device in use.
struct Open {
    device: Device,
    shared: Arc<Shared>,
    /// Its size in bytes, as it was last looked at.
    size: Cell<u64>,
    /// Bits of the `Zeroing`s that it turned out not to have.
    lacks: Cell<u8>,
    /// How often in a row it did not take what clients lend.
    refusals: Cell<u8>,
    /// Its model's place in `Devices::held`, if it has one.
    pace: Option<usize>,
    /// Slots of its operations whose next step is still to be pushed, in order.
    queue: RefCell<VecDeque<usize>>,
    /// Steps that the kernel has.
    in_kernel: Cell<usize>,
}

/// What threads have of a device in common that do I/O on it, each by [`Devices`] of its own.
pub struct Shared {
    claim: Claim,
    /// What all of them ask of it.
    load: Mutex<Load>,
}

impl Shared {
    /// By which path the device was claimed.
    pub fn path(&self) -> &Path {
        self.claim.path()
    }

    fn load(&self) -> MutexGuard<'_, Load> {
        self.load.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open {
    fn new(device: Device, shared: Arc<Shared>, pace: Option<usize>) -> Open {
        let (lacks, refusals, size) = (Cell::new(0), Cell::new(0), Cell::new(shared.claim.facts().size));
        Open { device, shared, size, lacks, refusals, pace, queue: RefCell::default(), in_kernel: Cell::new(0) }
    }

    /// The first way to zero that this device may have; `None`: zeroes must be written.
    fn zeroing(&self, discard: bool) -> Option<Zeroing> {
        let ways: &[Zeroing] = match (discard, self.shared.claim.facts().kind) {
            (true, _) => &[Zeroing::Punch, Zeroing::Convert],
            (false, Kind::File) => &[Zeroing::Convert, Zeroing::Punch],
            (false, Kind::Block) => &[Zeroing::Convert],
        };
        ways.iter().copied().find(|way| self.lacks.get() & *way as u8 == 0)
    }

    /// Whether it has a volatile cache, and can write past it by itself. The kernel would flush the whole cache after each write of
    /// a device that cannot, and a file system's file would have its metadata written: as it should be for a write that is to be
    /// durable, and not for one that only has no business in that cache.
    fn writes_through(&self) -> bool {
        let facts = self.shared.claim.facts();
        facts.volatile_cache && facts.forced_unit_access
    }

    /// Whether it is worth trying to have it read into what clients lend, and write from there: a block device, which takes what lies
    /// anywhere, and computes nothing of what may change meanwhile.
    fn takes_lent(&self) -> bool {
        let facts = self.shared.claim.facts();
        facts.kind == Kind::Block && !facts.stable_writes && self.refusals.get() < MOST_REFUSALS
    }

    /// Whether direct I/O takes this buffer from where it is.
    fn takes(&self, buf: &HostBuf) -> bool {
        let facts = self.shared.claim.facts();
        buf.address().addr().is_multiple_of(facts.memory_alignment as usize)
            && buf.len().is_multiple_of(facts.logical_block as usize)
    }
}

/// Memory to be written, piece by piece; the buffers live beside it.
#[derive(Default)]
struct Pieces {
    list: Vec<libc::iovec>,
    first: usize,
}

impl Pieces {
    fn add(&mut self, buf: &HostBuf, len: usize) {
        self.list.push(libc::iovec { iov_base: buf.address().cast(), iov_len: len });
    }

    /// Takes off what was written.
    fn advance(&mut self, mut bytes: usize) {
        while bytes > 0 {
            let piece = &mut self.list[self.first];
            let step = bytes.min(piece.iov_len);
            piece.iov_base = piece.iov_base.wrapping_byte_add(step);
            piece.iov_len -= step;
            bytes -= step;
            self.first += usize::from(piece.iov_len == 0);
        }
    }
}

enum Work {
    Read(HostBuf),
    /// Into or from what a client lends.
    Lent {
        buf: HostBuf,
        writes: bool,
        through: bool,
    },
    Write {
        /// Never read here: it keeps the memory that `pieces` names.
        _bufs: Vec<HostBuf>,
        pieces: Pieces,
        /// Past the device's volatile cache.
        through: bool,
    },
    Flush,
    Zero {
        discard: bool,
        /// How the step in the kernel does it.
        way: Option<Zeroing>,
        /// For that step, if it writes: parts of the zeroes that all share, which are never freed.
        pieces: Pieces,
    },
}

/// A model, and the device that it holds back.
struct Paced {
    held: Held<DeviceResult<HostBuf>>,
    shared: Arc<Shared>,
}

/// An operation on its way.
struct Op {
    io: IoId,
    open: Rc<Open>,
    work: Work,
    offset: u64,
    len: u64,
    done: u64,
    /// When it was submitted.
    since: u64,
    /// How often the kernel had no memory for it.
    pauses: u16,
}

impl Op {
    /// Bytes that the next step zeroes.
    fn zero_step(&self, way: Option<Zeroing>) -> u64 {
        let most = if way.is_some() { ZERO_STEP } else { WRITTEN_ZEROES_STEP };
        (self.len - self.done).min(most)
    }

    /// Does with a copy what cannot be done with what a client lends.
    fn copy(&mut self) -> Result<(), DeviceError> {
        let Work::Lent { buf, writes, through } = &self.work else { return Ok(()) };
        self.work = match writes {
            false => Work::Read(HostBuf::to_be_filled(buf.len())),
            true => gathered(&self.open, vec![buf.owned().ok_or(DeviceError::Failed)?], buf.len(), *through),
        };
        self.done = 0;
        Ok(())
    }

    /// The entry for the next step. What a client lends is at that place in the ring's table.
    fn entry(&mut self, place: u16) -> squeue::Entry {
        let fd = Fd(self.open.shared.claim.as_fd().as_raw_fd());
        let at = self.offset + self.done;
        let left = self.len - self.done;
        let write = |pieces: &Pieces, through: bool| {
            // The kernel makes one request of both, with forced unit access, or flushes after it where the device knows no such.
            let flags = if through { libc::RWF_DSYNC } else { 0 };
            let rest = &pieces.list[pieces.first..];
            match rest {
                [one] => {
                    let len = (one.iov_len as u64).min(TRANSFER_STEP) as u32;
                    opcode::Write::new(fd, one.iov_base.cast(), len).offset(at).rw_flags(flags).build()
                }
                _ => opcode::Writev::new(fd, rest.as_ptr(), rest.len() as u32).offset(at).rw_flags(flags).build(),
            }
        };
        if let Work::Zero { discard, .. } = self.work {
            let way = self.open.zeroing(discard);
            let step = self.zero_step(way);
            let mut pieces = Pieces::default();
            if way.is_none() {
                let zeroes = HostBuf::zeroes(SHARED_ZEROES);
                let mut left = step as usize;
                while left > 0 {
                    pieces.add(&zeroes, left.min(SHARED_ZEROES));
                    left -= left.min(SHARED_ZEROES);
                }
            }
            self.work = Work::Zero { discard, way, pieces };
        }
        match &self.work {
            Work::Read(buf) => {
                let to = buf.address().wrapping_add(self.done as usize);
                opcode::Read::new(fd, to, left.min(TRANSFER_STEP) as u32).offset(at).build()
            }
            Work::Write { pieces, through, .. } => write(pieces, *through),
            Work::Lent { buf, writes, through } => {
                // In the table of buffers an address is a number of bytes from the beginning.
                let from = buf.lender().map_or(0, |(_, start)| start) + self.done as usize;
                let (address, len) = (std::ptr::without_provenance_mut(from), left.min(TRANSFER_STEP) as u32);
                match writes {
                    true => {
                        let flags = if *through { libc::RWF_DSYNC } else { 0 };
                        opcode::WriteFixed::new(fd, address, len, place).offset(at).rw_flags(flags).build()
                    }
                    false => opcode::ReadFixed::new(fd, address, len, place).offset(at).build(),
                }
            }
            Work::Zero { way: None, pieces, .. } => write(pieces, false),
            Work::Flush => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
            Work::Zero { way: Some(way), .. } => {
                opcode::Fallocate::new(fd, self.zero_step(Some(*way))).offset(at).mode(way.mode()).build()
            }
        }
    }

    /// Takes the kernel's answer to a step: the end of the operation, or `None` if there is more to do.
    fn step(&mut self, result: i32) -> Option<Result<(), DeviceError>> {
        if result < 0 {
            return self.failed(-result).map(Err);
        }
        let block = u64::from(self.open.shared.claim.facts().logical_block);
        match &mut self.work {
            Work::Flush => return Some(Ok(())),
            Work::Zero { way: way @ Some(_), .. } => {
                let way = *way;
                self.done += self.zero_step(way);
            }
            Work::Read(_) | Work::Write { .. } | Work::Lent { .. } | Work::Zero { .. } => {
                let mut moved = result as u64;
                if self.done + moved < self.len {
                    // Where direct I/O stops within a block, the block is done again.
                    moved -= moved % block;
                }
                if moved == 0 {
                    tracing::error!(
                        io = self.io.0,
                        "{}: the content ends before the device should. Look at the device: somebody has made it shorter",
                        self.name()
                    );
                    return Some(Err(DeviceError::Failed));
                }
                self.done += moved;
                if let Work::Write { pieces, .. } = &mut self.work {
                    pieces.advance(moved as usize);
                }
            }
        }
        (self.done == self.len).then_some(Ok(()))
    }

    /// Whether the kernel had no memory for a step, which says nothing of the device and may be over in a moment. What is to be durable is not
    /// tried again: of writes that were lost a file system tells one flush, which may be the one that failed. So with all that has forced access, as
    /// the kernel may have failed in what it does to flush behind the write: what is destaged so stays dirty, and its turn comes again.
    fn lacks_memory(&mut self, result: i32) -> bool {
        let is_harmless = match self.work {
            Work::Read(_) | Work::Zero { .. } => true,
            Work::Write { through, .. } | Work::Lent { through, .. } => !through,
            Work::Flush => false,
        };
        let again = result == -libc::ENOMEM && is_harmless && self.pauses < MOST_PAUSES;
        self.pauses += u16::from(again);
        again
    }

    /// What an error number means here; `None`: try again, perhaps in another way.
    fn failed(&mut self, errno: i32) -> Option<DeviceError> {
        match (errno, &self.work) {
            (libc::EINTR | libc::EAGAIN, _) => None,
            (libc::EOPNOTSUPP | libc::ENOSYS, Work::Zero { way: Some(way), .. }) => {
                self.open.lacks.set(self.open.lacks.get() | *way as u8);
                None
            }
            (libc::ENODEV | libc::ENXIO, _) => Some(DeviceError::Gone),
            // Not to be had for the ring, or not where the device wants memory to be: with a copy it is as any other.
            (libc::ECANCELED | libc::EFAULT | libc::EINVAL | libc::EOPNOTSUPP, Work::Lent { .. }) => {
                self.open.refusals.set(self.open.refusals.get().saturating_add(1));
                if self.open.refusals.get() == MOST_REFUSALS {
                    let (name, error) = (self.name(), io::Error::from_raw_os_error(errno));
                    tracing::warn!(
                        "{name}: does not take payload from where clients have it ({error}). It is copied from now on: nothing needs to be done. Set zero_copy = false to keep it from being tried"
                    );
                }
                self.copy().err()
            }
            _ => {
                let error = io::Error::from_raw_os_error(errno);
                let what = match self.work {
                    Work::Read(_) | Work::Lent { writes: false, .. } => "read",
                    Work::Write { .. } | Work::Lent { writes: true, .. } => "write",
                    Work::Flush => "flush",
                    Work::Zero { .. } => "zeroing",
                };
                let (name, offset, len) = (self.name(), self.offset, self.len);
                tracing::error!(
                    io = self.io.0,
                    "{name}: {what} of {len} bytes at {offset} failed: {error}. Look at the kernel's log, and at `headpond status`"
                );
                Some(DeviceError::Failed)
            }
        }
    }

    fn name(&self) -> String {
        format!("{} ({})", self.open.device, self.open.shared.claim.path().display())
    }
}

/// The devices of one thread, on one ring.
pub struct Devices {
    ring: Ring,
    places: Places,
    table: BTreeMap<Device, Rc<Open>>,
    /// By slot: what was accepted and not yet finished by the kernel.
    ops: Vec<Option<Op>>,
    free: Vec<usize>,
    /// Whose queues may go on: something was queued there, or has ended.
    waiting: VecDeque<Rc<Open>>,
    /// Slots of operations for which there was no memory, and when each is tried again; in that order.
    pausing: VecDeque<(u64, usize)>,
    /// Steps that the kernel has.
    in_kernel: usize,
    /// How many of one device it may have.
    depth: usize,
    /// Ends that nobody was told of yet.
    ready: Vec<Completion>,
    held: Vec<Paced>,
    /// When something was last heard of the kernel: near enough to now for what is submitted next.
    heard: u64,
    reaped: Vec<(u64, i32)>,
    /// What guests of the ring were not told yet.
    guests: Vec<(u64, i32)>,
    origin: Instant,
}

impl Devices {
    /// No devices yet, on a ring with at most `depth` (at least one) steps of each device in the kernel at a time. What is more of one waits in
    /// the order of submission, and keeps nobody else waiting: one that does not answer holds what was asked of it, and nothing else.
    pub fn new(depth: u32) -> Result<Devices, DevicesError> {
        Devices::since(depth, Instant::now())
    }

    /// The same for one more thread that does I/O on devices which others have, too: [`Devices::origin`] of theirs says since when times
    /// count.
    pub fn since(depth: u32, origin: Instant) -> Result<Devices, DevicesError> {
        // One entry more, for the bell. What guests push goes to the kernel by itself when there is no room.
        let ring = Ring::new(depth + 1, (depth + 1).saturating_mul(DEVICES_AT_ONCE)).map_err(DevicesError::Setup)?;
        // Linux 5.15; before it there are as many as there are.
        let _ = ring.allow_workers(MOST_WORKERS);
        Ok(Devices {
            places: Places::of(&ring),
            ring,
            table: BTreeMap::new(),
            ops: Vec::new(),
            free: Vec::new(),
            waiting: VecDeque::new(),
            pausing: VecDeque::new(),
            in_kernel: 0,
            depth: depth.max(1) as usize,
            ready: Vec::new(),
            held: Vec::new(),
            heard: 0,
            reaped: Vec::new(),
            guests: Vec::new(),
            origin,
        })
    }

    /// Since when its times count.
    pub fn origin(&self) -> Instant {
        self.origin
    }

    /// Serves a claimed device under this name, in place of any that had it before.
    pub fn add(&mut self, device: Device, claim: Claim) {
        self.insert(device, Arc::new(Shared { claim, load: Mutex::default() }), None);
    }

    /// As [`Devices::add`], at the pace of a model: no completion comes earlier than the model says.
    pub fn add_paced(&mut self, device: Device, claim: Claim, pace: Box<dyn Pace>) {
        let shared = Arc::new(Shared { claim, load: Mutex::default() });
        self.held.push(Paced { held: Held::new(pace), shared: Arc::clone(&shared) });
        self.insert(device, shared, Some(self.held.len() - 1));
    }

    /// Serves a device that another thread has, too.
    pub fn add_shared(&mut self, device: Device, shared: Arc<Shared>) {
        self.insert(device, shared, None);
    }

    /// What another thread needs to do I/O on a device as well; not of one that has the pace of a model, which is to see all of it.
    pub fn share(&self, device: Device) -> Option<Arc<Shared>> {
        self.table.get(&device).filter(|open| open.pace.is_none()).map(|open| Arc::clone(&open.shared))
    }

    fn insert(&mut self, device: Device, shared: Arc<Shared>, pace: Option<usize>) {
        shared.load().advance(nanos(self.origin.elapsed()));
        self.table.insert(device, Rc::new(Open::new(device, shared, pace)));
    }

    /// Forgets a device: what is in flight ends as it would have, what comes later is answered `Gone`. Its claim
    /// is released when the last of its operations has ended.
    pub fn remove(&mut self, device: Device) {
        self.table.remove(&device);
    }

    /// The facts of a device, if there is one of this name.
    pub fn facts(&self, device: Device) -> Option<&Facts> {
        self.table.get(&device).map(|open| open.shared.claim.facts())
    }

    /// The size of a device as it is now, in bytes, for operations from now on. A smaller one than it had is not believed
    /// before it fails: what is in flight was begun under the larger one.
    pub fn measure(&self, device: Device) -> io::Result<u64> {
        let open = self.table.get(&device).ok_or(io::ErrorKind::NotFound)?;
        let size = open.shared.claim.measure()?;
        open.size.set(open.size.get().max(size));
        Ok(size)
    }

    /// What each device was asked to do since it was added; and of those that were removed what they owe: it keeps the claim on them.
    pub fn loads(&self) -> (Loads, Owed) {
        let now = nanos(self.origin.elapsed());
        let load = |open: &Rc<Open>| {
            let mut load = open.shared.load();
            load.advance(now);
            load.oldest_ns = 0;
            *load
        };
        let mut loads: Loads = self.table.iter().map(|(device, open)| (*device, load(open))).collect();
        let mut removed = Owed::new();
        for op in self.ops.iter().flatten() {
            let owed_ns = now.saturating_sub(op.since);
            let is_there = self.table.get(&op.open.device).is_some_and(|open| Rc::ptr_eq(open, &op.open));
            match loads.get_mut(&op.open.device).filter(|_| is_there) {
                Some(load) => load.oldest_ns = load.oldest_ns.max(owed_ns),
                None => removed.push((op.open.shared.path().to_owned(), owed_ns)),
            }
        }
        (loads, removed)
    }

    /// What other threads interrupt [`Devices::wait`] with.
    pub fn waker(&self) -> Waker {
        self.ring.waker()
    }

    /// The ring, for guests: what they push has [`GUEST`] in its number, and counts for nothing here. The next
    /// [`Devices::wait`] submits it.
    pub fn ring(&mut self) -> &mut Ring {
        &mut self.ring
    }

    /// Appends the completions of what guests have pushed, as [`Ring::reap`] does.
    pub fn reap_guests(&mut self, to: &mut Vec<(u64, i32)>) {
        to.append(&mut self.guests);
    }

    /// How many operations were submitted and not yet handed back.
    pub fn in_flight(&self) -> usize {
        let held: usize = self.held.iter().map(|paced| paced.held.held_back()).sum();
        self.ops.len() - self.free.len() + held + self.ready.len()
    }

    /// Accepts an operation; the next [`Devices::wait`] starts it.
    ///
    /// One that is empty, or not on the device's blocks, or not within the device, ends in `Failed` and is
    /// not tried. Writes never make a file longer.
    pub fn submit(&mut self, io: IoId, device: Device, op: DeviceOp<HostBuf>) {
        let Some(open) = self.table.get(&device).map(Rc::clone) else {
            self.ready.push((io, Err(DeviceError::Gone)));
            return;
        };
        let (kind, offset, len) = match &op {
            DeviceOp::Read { offset, len, .. } => (PaceKind::Read, *offset, u64::from(*len)),
            DeviceOp::Write { offset, bufs, reach } => {
                let kind = match reach {
                    Reach::Cache => PaceKind::Write,
                    Reach::PastCache => PaceKind::WriteThrough,
                    Reach::Durable => PaceKind::WriteDurable,
                };
                (kind, *offset, bufs.iter().map(|buf| buf.len() as u64).sum())
            }
            DeviceOp::Flush => (PaceKind::Flush, 0, 0),
            DeviceOp::Discard { offset, len } => (PaceKind::Discard, *offset, *len),
            DeviceOp::WriteZeroes { offset, len } => (PaceKind::WriteZeroes, *offset, *len),
        };
        let facts = open.shared.claim.facts();
        let block = u64::from(facts.logical_block);
        let aligned = offset.is_multiple_of(block) && len.is_multiple_of(block) && len > 0;
        let inside = offset.checked_add(len).is_some_and(|end| end <= open.size.get());
        if kind != PaceKind::Flush && !(aligned && inside) {
            let (path, size) = (open.shared.claim.path().display(), open.size.get());
            tracing::error!(
                io = io.0,
                "{device} ({path}): refused {kind:?} of {len} bytes at {offset}: the device has {size} bytes in blocks of {block}. Report it, with this line"
            );
            self.ready.push((io, Err(DeviceError::Failed)));
            return;
        }
        let work = match op {
            DeviceOp::Read { into: Some(buf), .. } if buf.lender().is_some() && open.takes_lent() => {
                Work::Lent { buf, writes: false, through: false }
            }
            DeviceOp::Read { len, .. } => Work::Read(HostBuf::to_be_filled(len as usize)),
            DeviceOp::Write { bufs, reach, .. } => {
                let through = reach == Reach::Durable || reach == Reach::PastCache && open.writes_through();
                match &bufs[..] {
                    [buf] if buf.lender().is_some() && open.takes_lent() => {
                        Work::Lent { buf: buf.clone(), writes: true, through }
                    }
                    bufs if bufs.iter().any(|buf| buf.lender().is_some()) => {
                        let Some(bufs) = bufs.iter().map(Buf::owned).collect() else {
                            self.ready.push((io, Err(DeviceError::Failed)));
                            return;
                        };
                        gathered(&open, bufs, len as usize, through)
                    }
                    _ => gathered(&open, bufs, len as usize, through),
                }
            }
            DeviceOp::Flush => Work::Flush,
            DeviceOp::Discard { .. } => Work::Zero { discard: true, way: None, pieces: Pieces::default() },
            DeviceOp::WriteZeroes { .. } => Work::Zero { discard: false, way: None, pieces: Pieces::default() },
        };
        if let Some(at) = open.pace {
            self.held[at].held.submit(nanos(self.origin.elapsed()), io.0, kind, offset, len);
        }
        open.shared.load().begin(self.heard, kind, len);
        let slot = self.free.pop().unwrap_or_else(|| {
            self.ops.push(None);
            self.ops.len() - 1
        });
        self.ops[slot] = Some(Op { io, open, work, offset, len, done: 0, since: self.heard, pauses: 0 });
        self.enqueue(slot);
    }

    /// Has an operation's next step wait for its turn, behind others of its device.
    fn enqueue(&mut self, slot: usize) {
        let op = self.ops[slot].as_ref().expect("what is queued is in its slot");
        op.open.queue.borrow_mut().push_back(slot);
        self.waiting.push_back(Rc::clone(&op.open));
    }

    /// Starts what was submitted, and appends to `done` what has ended. Returns when there is something, also of a guest's, when
    /// a [`Waker`] was used, or after `timeout` (`None`: no limit; zero: does not block). Signals do not end it.
    pub fn wait(&mut self, timeout: Option<Duration>, done: &mut Vec<Completion>) -> Result<(), DevicesError> {
        let deadline = timeout.map(|timeout| self.origin.elapsed().saturating_add(timeout));
        let mut woken = false;
        loop {
            self.enqueue_rested();
            self.push_queued().map_err(DevicesError::Ring)?;
            let rested = self.pausing.front().map(|(until, _)| *until);
            let due = self.held.iter().filter_map(|paced| paced.held.next_due()).chain(rested).min().map(Duration::from_nanos);
            let until = if self.ready.is_empty() { deadline.into_iter().chain(due).min() } else { Some(Duration::ZERO) };
            let limit = until.map(|until| until.saturating_sub(self.origin.elapsed()));
            self.ring.wait(limit).map_err(DevicesError::Ring)?;
            let now = self.origin.elapsed();
            self.heard = nanos(now);
            woken |= self.reap();
            for Paced { held, shared } in &mut self.held {
                held.release(nanos(now), |io, result| {
                    shared.load().end(nanos(now), result.is_err());
                    self.ready.push((IoId(io), result));
                });
            }
            let ended = !self.ready.is_empty() || !self.guests.is_empty();
            if ended || woken || deadline.is_some_and(|deadline| deadline <= now) {
                done.append(&mut self.ready);
                return Ok(());
            }
        }
    }

    /// Lets what there was no memory for be tried again when its pause is over.
    fn enqueue_rested(&mut self) {
        while let Some((until, slot)) = self.pausing.front().copied()
            && until <= nanos(self.origin.elapsed())
        {
            self.pausing.pop_front();
            self.enqueue(slot);
        }
    }

    fn push_queued(&mut self) -> io::Result<()> {
        while let Some(open) = self.waiting.pop_front() {
            while open.in_kernel.get() < self.depth {
                let Some(slot) = open.queue.borrow_mut().pop_front() else { break };
                self.push(slot)?;
            }
        }
        Ok(())
    }

    /// Has the kernel begin an operation's next step.
    fn push(&mut self, slot: usize) -> io::Result<()> {
        let op = self.ops[slot].as_mut().expect("a queued slot holds an operation");
        let place = if let Work::Lent { .. } = op.work { self.places.take() } else { None };
        if place.is_none()
            && let Err(error) = op.copy()
        {
            self.finish(slot, Err(error));
            return Ok(());
        }
        let entry = op.entry(place.unwrap_or_default()).user_data(slot as u64);
        let entries = match (&op.work, place) {
            (Work::Lent { buf, .. }, Some(place)) => buf.lender().map(|(lent, _)| lent.around(entry.clone(), place)),
            _ => None,
        };
        let entries = entries.as_ref().map_or(slice::from_ref(&entry), |linked| &linked[..]);
        // SAFETY: buffers, list of pieces and open file belong to the operation, which stays in its slot and is
        // not touched until its completion was reaped, nor are these moved when the slots are; at drop we wait
        // for it or leak it. Memory of a read has no other handle yet; memory of a write is only read. What a client lends
        // is the kernel's, and lives as long as the kernel uses it. The file of its device is looked up when an entry is begun
        // (before Linux 5.18, when it is taken): by the last of three, too, it is open, as the client's request is held
        // until that has run, and a queue keeps its device open while there is a request.
        unsafe { self.ring.push_linked(entries)? };
        op.open.in_kernel.update(|steps| steps + 1);
        self.in_kernel += 1;
        Ok(())
    }

    /// Takes completions off the ring; whether the bell rang.
    fn reap(&mut self) -> bool {
        let mut reaped = mem::take(&mut self.reaped);
        let rung = self.ring.reap(&mut reaped);
        for (number, result) in reaped.drain(..) {
            if number & GUEST != 0 {
                self.guests.push((number, result));
                continue;
            }
            if number & lent::MARK != 0 {
                self.places.ended(number, result);
                continue;
            }
            self.ended(number as usize, result);
        }
        self.reaped = reaped;
        rung
    }

    /// Takes in the end of a step of the operation in this slot.
    fn ended(&mut self, slot: usize, result: i32) {
        self.in_kernel -= 1;
        let op = self.ops[slot].as_mut().expect("what completes is in its slot");
        op.open.in_kernel.update(|steps| steps - 1);
        if !op.open.queue.borrow().is_empty() {
            self.waiting.push_back(Rc::clone(&op.open));
        }
        if op.lacks_memory(result) {
            self.pausing.push_back((self.heard + nanos(PAUSE), slot));
            return;
        }
        match op.step(result) {
            None => self.enqueue(slot),
            Some(result) => self.finish(slot, result),
        }
    }

    fn finish(&mut self, slot: usize, result: Result<(), DeviceError>) {
        let op = self.ops[slot].take().expect("what ends is in its slot");
        self.free.push(slot);
        if let (Ok(()), Work::Lent { .. }) = (&result, &op.work) {
            op.open.refusals.set(0);
            op.open.shared.load().lent(op.len);
        }
        let result = result.map(|()| match op.work {
            Work::Read(buf) => Some(buf),
            Work::Lent { buf, writes: false, .. } => Some(buf),
            _ => None,
        });
        let result = match op.open.pace {
            Some(at) => self.held[at].held.arrived(op.io.0, result),
            None => Some(result),
        };
        if let Some(result) = result {
            op.open.shared.load().end(self.heard, result.is_err());
            self.ready.push((op.io, result));
        }
    }
}

/// A write of these buffers as they are, or of one copy where the kernel would not take them so.
fn gathered(open: &Open, mut bufs: Vec<HostBuf>, len: usize, through: bool) -> Work {
    if bufs.len() > MOST_PIECES || !bufs.iter().all(|buf| open.takes(buf)) {
        bufs = vec![HostBuf::filled_by(len, |mut to| {
            for buf in &bufs {
                let (here, rest) = to.split_at_mut(buf.len());
                here.copy_from_slice(buf.as_slice());
                to = rest;
            }
        })];
    }
    let mut pieces = Pieces::default();
    for buf in &bufs {
        pieces.add(buf, buf.len());
    }
    Work::Write { _bufs: bufs, pieces, through }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Drop for Devices {
    /// Waits for what the kernel has. It may write to the buffers until then, and the claims must outlive it. Whoever ends the thread
    /// that this happens in waits for the thread only for some seconds.
    fn drop(&mut self) {
        let begun = Instant::now();
        let mut told = false;
        // Those that owe nothing are let go of at once: others have the rest.
        self.table.clear();
        while self.in_kernel > 0 {
            if !told && begun.elapsed() >= TELL {
                told = true;
                let owing = self.ops.iter().flatten().filter(|op| op.open.in_kernel.get() > 0);
                let owing: BTreeSet<String> = owing.map(Op::name).collect();
                tracing::warn!(
                    "not answered yet by {}: what was asked there is waited for some seconds more, and then left to the kernel, which keeps the device \
                     from others until that ends. Look at the kernel's log",
                    Vec::from_iter(owing).join(", ")
                );
            }
            if let Err(error) = self.ring.wait(if told { None } else { Some(TELL) }) {
                tracing::error!(
                    "io_uring refused to wait for I/O in flight: {error}; its buffers and claims are kept. Restart the daemon"
                );
                mem::forget(mem::take(&mut self.ops));
                return;
            }
            self.ring.reap(&mut self.reaped);
            for (number, _) in self.reaped.drain(..).filter(|(number, _)| number & (GUEST | lent::MARK) == 0) {
                self.in_kernel -= 1;
                let op = self.ops[number as usize].take().expect("what completes is in its slot");
                op.open.in_kernel.update(|steps| steps - 1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_cannot_zero_by_itself_is_written_with_zeroes_in_several_steps() {
        const LEN: usize = 40 << 20;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("device");
        std::fs::write(&path, vec![0x5A; LEN]).unwrap();
        let mut devices = Devices::new(4).unwrap();
        let device = Device::Witness;
        devices.add(device, Claim::take(&path, Duration::ZERO).unwrap());
        devices.table[&device].lacks.set(Zeroing::Punch as u8 | Zeroing::Convert as u8);
        let (offset, len) = (4096, WRITTEN_ZEROES_STEP * 2 + 4096);
        devices.submit(IoId(0), device, DeviceOp::WriteZeroes { offset, len });
        let mut done = Vec::new();
        devices.wait(None, &mut done).unwrap();
        assert!(matches!(done[..], [(IoId(0), Ok(None))]));
        let zeroes = 4096..4096 + len as usize;
        let content = std::fs::read(&path).unwrap();
        assert!((0..LEN).all(|at| content[at] == if zeroes.contains(&at) { 0 } else { 0x5A }));
    }

    /// A kernel that does not lend after all, or a disk that wants memory to lie elsewhere: what was to go without a copy is copied, and a
    /// device that never takes it is not asked for ever. `/dev/zero` stands for a client that lends zeroes and whose pages cannot be registered.
    #[test]
    fn what_a_device_does_not_take_from_where_a_client_has_it_is_copied() {
        const LEN: usize = 64 << 10;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("device");
        std::fs::write(&path, vec![0x5A; 1 << 20]).unwrap();
        let mut devices = Devices::new(4).unwrap();
        let device = Device::Backing(0);
        devices.add(device, Claim::take(&path, Duration::ZERO).unwrap());
        let zeroes = Arc::new(std::fs::File::open("/dev/zero").unwrap().into());
        let lent = |tag| HostBuf::lent(lent::Lent::new(Arc::clone(&zeroes), 0, tag), LEN);
        let mut done = Vec::new();
        // A file is not even tried.
        let write = DeviceOp::Write { offset: 0, bufs: vec![lent(1)], reach: Reach::Cache };
        devices.submit(IoId(0), device, write);
        devices.submit(IoId(1), device, DeviceOp::Read { offset: 512 << 10, len: LEN as u32, into: Some(lent(2)) });
        while done.len() < 2 {
            devices.wait(None, &mut done).unwrap();
        }
        assert_eq!(devices.table[&device].refusals.get(), 0);
        // As if it were a disk.
        for (n, writes) in [(2, true), (3, false)] {
            let (open, buf) = (Rc::clone(&devices.table[&device]), lent(n as u16));
            let work = Work::Lent { buf, writes, through: false };
            let offset = if writes { 256 << 10 } else { 512 << 10 };
            devices.ops.push(Some(Op { io: IoId(n), open, work, offset, len: LEN as u64, done: 0, since: 0, pauses: 0 }));
            devices.enqueue(devices.ops.len() - 1);
        }
        while done.len() < 4 {
            devices.wait(None, &mut done).unwrap();
        }
        for (io, result) in &done {
            match (io.0, result) {
                (0 | 2, Ok(None)) => {}
                (1 | 3, Ok(Some(read))) => assert!(read.as_slice().iter().all(|byte| *byte == 0x5A)),
                other => panic!("{other:?}"),
            }
        }
        let content = std::fs::read(&path).unwrap();
        assert!((0..1 << 20).all(|at| content[at] == if at % (256 << 10) < LEN && at < 512 << 10 { 0 } else { 0x5A }));
        // Without a table of the kernel's there is no place, and nothing to be refused.
        let tried = devices.places.take().is_some();
        assert_eq!(devices.table[&device].refusals.get(), if tried { 2 } else { 0 });
    }

    /// A moment without memory was the device's failure: a cache device left, and a client of the disk got an error.
    #[test]
    fn what_the_kernel_has_no_memory_for_is_tried_again_for_some_seconds_but_nothing_that_is_to_be_durable() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("device");
        std::fs::write(&path, vec![0x5A; 1 << 20]).unwrap();
        let mut devices = Devices::new(4).unwrap();
        devices.add(Device::Witness, Claim::take(&path, Duration::ZERO).unwrap());
        let write = |reach| DeviceOp::Write { offset: 0, bufs: vec![HostBuf::from_bytes(&[0x5A; 4096])], reach };
        // Has the kernel do it, and takes its answer for another one.
        let end = |devices: &mut Devices, op, result| {
            devices.submit(IoId(7), Device::Witness, op);
            devices.push_queued().unwrap();
            let mut ended = Vec::new();
            while ended.is_empty() {
                devices.ring.wait(None).unwrap();
                devices.ring.reap(&mut ended);
            }
            devices.heard = nanos(devices.origin.elapsed());
            devices.ended(ended[0].0 as usize, result);
        };
        let mut done = Vec::new();
        for op in [DeviceOp::Read { offset: 0, len: 4096, into: None }, write(Reach::Cache)] {
            let begun = Instant::now();
            end(&mut devices, op, -libc::ENOMEM);
            devices.wait(None, &mut done).unwrap();
            assert!(begun.elapsed() >= PAUSE);
            match done.pop() {
                Some((IoId(7), Ok(read))) => assert!(read.is_none_or(|read| read.as_slice() == [0x5A; 4096])),
                other => panic!("{other:?}"),
            }
        }
        for op in [DeviceOp::Flush, write(Reach::Durable)] {
            end(&mut devices, op, -libc::ENOMEM);
            devices.wait(None, &mut done).unwrap();
            assert!(matches!(done.pop(), Some((IoId(7), Err(DeviceError::Failed)))));
        }
        // Not for ever.
        devices.submit(IoId(8), Device::Witness, DeviceOp::Read { offset: 0, len: 4096, into: None });
        let op = devices.ops.iter_mut().flatten().next().unwrap();
        assert_eq!((0..=MOST_PAUSES).filter(|_| op.lacks_memory(-libc::ENOMEM)).count(), usize::from(MOST_PAUSES));
        assert_eq!(op.step(-libc::ENOMEM), Some(Err(DeviceError::Failed)));
    }

    #[test]
    fn what_a_guest_of_the_ring_pushes_ends_for_the_guest_and_does_not_count_as_an_operation() {
        let push = |devices: &mut Devices, number| {
            let entry = opcode::Nop::new().build().user_data(GUEST | number);
            // SAFETY: names neither memory nor a file.
            unsafe { devices.ring().push(&entry).unwrap() };
        };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("device");
        std::fs::write(&path, vec![0; 1 << 20]).unwrap();
        let mut devices = Devices::new(1).unwrap();
        devices.add(Device::Witness, Claim::take(&path, Duration::ZERO).unwrap());
        let (mut done, mut ended) = (Vec::new(), Vec::new());
        push(&mut devices, 7);
        assert_eq!(devices.in_flight(), 0);
        devices.wait(None, &mut done).unwrap();
        devices.reap_guests(&mut ended);
        assert_eq!((ended.as_slice(), done.len()), ([(GUEST | 7, 0)].as_slice(), 0));
        // More of them than the ring has room for, beside operations that wait for their turn: all end.
        ended.clear();
        for io in 0..20 {
            devices.submit(IoId(io), Device::Witness, DeviceOp::Read { offset: 0, len: 4096, into: None });
            push(&mut devices, io);
        }
        while done.len() < 20 || ended.len() < 20 {
            devices.wait(Some(Duration::from_secs(10)), &mut done).unwrap();
            devices.reap_guests(&mut ended);
        }
        assert_eq!((done.len(), ended.len()), (20, 20));
        // Nor does the end wait for what a guest has in the kernel for ever.
        let (reader, _writer) = std::io::pipe().unwrap();
        let entry = opcode::PollAdd::new(Fd(reader.as_raw_fd()), libc::POLLIN as u32).build().user_data(GUEST);
        // SAFETY: names no memory; the kernel holds the pipe itself while it polls.
        unsafe { devices.ring().push(&entry).unwrap() };
        devices.submit(IoId(0), Device::Witness, DeviceOp::Read { offset: 0, len: 4096, into: None });
        devices.wait(None, &mut done).unwrap();
        drop(devices);
    }

    #[test]
    fn a_short_transfer_goes_on_at_the_block_where_it_stopped_and_errors_say_what_they_mean() {
        let file = tempfile::NamedTempFile::new_in(std::env::temp_dir()).unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let claim = Claim::take(file.path(), Duration::ZERO).unwrap();
        let shared = Arc::new(Shared { claim, load: Mutex::default() });
        let open = Rc::new(Open::new(Device::Witness, shared, None));
        let bufs: Vec<HostBuf> = (1..4).map(|byte| HostBuf::from_bytes(&[byte; 8192])).collect();
        let second = bufs[1].address();
        let work = gathered(&open, bufs, 3 * 8192, false);
        let mut op = Op { io: IoId(0), open, work, offset: 0, len: 3 * 8192, done: 0, since: 0, pauses: 0 };
        assert_eq!(op.step(8192 + 4096 + 100), None);
        let Work::Write { pieces, .. } = &op.work else { panic!("it was a write") };
        let next = &pieces.list[pieces.first];
        assert_eq!((op.done, pieces.first), (8192 + 4096, 1));
        assert_eq!((next.iov_base.cast(), next.iov_len), (second.wrapping_add(4096), 4096));
        assert_eq!(op.step(-libc::EINTR), None);
        assert_eq!(op.step(-libc::EAGAIN), None);
        assert_eq!(op.step(-libc::EIO), Some(Err(DeviceError::Failed)));
        assert_eq!(op.step(-libc::ENODEV), Some(Err(DeviceError::Gone)));
        assert_eq!(op.step(0), Some(Err(DeviceError::Failed)), "the end of the content");
        assert_eq!(op.step(4096 + 8192), Some(Ok(())));
    }
}
