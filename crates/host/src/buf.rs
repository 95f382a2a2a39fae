//! Payload memory: aligned for direct I/O, shared by reference count, recycled.
//!
//! `unsafe` because the kernel must be given addresses, and because memory aligned to 4 KiB has to be
//! allocated by hand. All memory here is initialised from its first moment (zeroed by the allocator, later
//! holding what was in it before), so that handing it out as bytes is sound whoever filled it.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::borrow::Cow;
use std::cmp::Reverse;
use std::convert::Infallible;
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::lent::Lent;
use headpond_engine::io::Buf;
use twox_hash::xxhash3_64::Hasher;

/// Alignment of every buffer's first byte, in bytes: enough for direct I/O to any device.
pub const ALIGN: usize = 4096;

/// Memory is recycled in powers of two from [`ALIGN`] to this, in bytes; larger pieces come from the allocator, but while there is a
/// [`LargeKept`].
const LARGEST_CLASS: usize = 1 << 20;
const CLASSES: usize = (LARGEST_CLASS / ALIGN).trailing_zeros() as usize + 1;

/// Idle memory kept per size class, in bytes; with nine classes at most 72 MiB in all.
const IDLE_PER_CLASS: usize = 8 << 20;

/// Length of the memory that all short runs of zeroes share, in bytes.
pub(crate) const SHARED_ZEROES: usize = LARGEST_CLASS;

/// Idle memory by class. Buffers are often made on one thread and dropped on another, hence no thread-locals.
static IDLE: [Mutex<Vec<Memory>>; CLASSES] = [const { Mutex::new(Vec::new()) }; CLASSES];

/// Larger pieces that are kept for use again: a start reads two segments at once, of each two copies.
const LARGE_KEPT: usize = 4;

static LARGE: Mutex<Large> = Mutex::new(Large { wanted: 0, idle: Vec::new() });

/// Idle memory of no class, the largest first, and how many want it kept.
struct Large {
    wanted: usize,
    idle: Vec<Memory>,
}

impl Large {
    /// The smallest piece that is kept of those that do, and whether any are to be kept. Where all are too small they go: no more
    /// than are used at once are ever there.
    fn take(&mut self, len: usize) -> (Option<Memory>, bool) {
        let fits = self.idle.iter().rposition(|memory| memory.capacity >= len);
        if fits.is_none() {
            self.idle.clear();
        }
        (fits.map(|at| self.idle.remove(at)), self.wanted > 0)
    }

    /// Keeps the largest: they do for whoever wants less.
    fn give(&mut self, memory: Memory) {
        if self.wanted > 0 {
            self.idle.push(memory);
            self.idle.sort_unstable_by_key(|memory| Reverse(memory.capacity));
            self.idle.truncate(LARGE_KEPT);
        }
    }
}

fn large() -> MutexGuard<'static, Large> {
    LARGE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// While one of these is there, larger pieces are recycled too. For a start, which reads one segment after the other: to have memory
/// cleared for each of them took most of its time. Later there are few, and what is idle is given back.
pub(crate) struct LargeKept(());

impl LargeKept {
    pub fn new() -> LargeKept {
        large().wanted += 1;
        LargeKept(())
    }
}

impl Drop for LargeKept {
    fn drop(&mut self) {
        let mut large = large();
        large.wanted -= 1;
        if large.wanted == 0 {
            large.idle = Vec::new();
        }
    }
}

/// A piece of memory that nobody else owns.
struct Memory {
    start: NonNull<u8>,
    capacity: usize,
}

// SAFETY: `Memory` owns what it points at, and gives access to it only through `&self` and `&mut self`.
unsafe impl Send for Memory {}
// SAFETY: as above; there is no interior mutability.
unsafe impl Sync for Memory {}

/// The size class that holds `len` bytes, if there is one.
fn class_of(len: usize) -> Option<usize> {
    let capacity = len.max(ALIGN).next_power_of_two();
    (capacity <= LARGEST_CLASS).then(|| (capacity / ALIGN).trailing_zeros() as usize)
}

fn layout(capacity: usize) -> Layout {
    Layout::from_size_align(capacity, ALIGN).expect("a buffer is smaller than the address space")
}

impl Memory {
    /// Fresh memory, all zeroes.
    fn zeroed(len: usize) -> Memory {
        let capacity = match class_of(len) {
            Some(class) => ALIGN << class,
            None => len.next_multiple_of(ALIGN),
        };
        let layout = layout(capacity);
        // SAFETY: the capacity is at least `ALIGN`, so the layout is not empty.
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout));
        Memory { start, capacity }
    }

    /// Memory with anything in it.
    fn any(len: usize) -> Memory {
        let Some(class) = class_of(len) else {
            let (kept, wanted) = large().take(len);
            // New is one that does for whoever wants a little more next.
            return kept.unwrap_or_else(|| Memory::zeroed(if wanted { len.next_power_of_two() } else { len }));
        };
        let idle = IDLE[class].lock().unwrap_or_else(PoisonError::into_inner).pop();
        idle.unwrap_or_else(|| Memory::zeroed(len))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this very layout, and owned.
        unsafe { dealloc(self.start.as_ptr(), layout(self.capacity)) }
    }
}

/// Memory in use; goes back to the idle lists at its end.
struct Shared(Option<Memory>);

impl Shared {
    fn memory(&self) -> &Memory {
        self.0.as_ref().expect("taken only at drop")
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let Some(memory) = self.0.take() else { return };
        let Some(class) = class_of(memory.capacity) else {
            large().give(memory);
            return;
        };
        let mut idle = IDLE[class].lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() * memory.capacity < IDLE_PER_CLASS {
            idle.push(memory);
        }
    }
}

/// Where the bytes of a buffer are.
#[derive(Clone)]
enum Whose {
    Ours(Arc<Shared>),
    Lent(Arc<Lent>),
}

/// A run of bytes in aligned memory; a clone or a slice shares the memory. Or a run of bytes that stay where a client lends them: these have
/// no address, and to look at them panics.
#[derive(Clone)]
pub struct HostBuf {
    whose: Whose,
    start: usize,
    len: usize,
}

impl HostBuf {
    fn over(memory: Memory, len: usize) -> HostBuf {
        HostBuf { whose: Whose::Ours(Arc::new(Shared(Some(memory)))), start: 0, len }
    }

    /// All that a client lends with a request, in bytes.
    pub fn lent(lent: Lent, len: usize) -> HostBuf {
        HostBuf { whose: Whose::Lent(Arc::new(lent)), start: 0, len }
    }

    /// Whose pages these are, if they are lent, and where in them it begins.
    pub fn lender(&self) -> Option<(&Lent, usize)> {
        match &self.whose {
            Whose::Lent(lent) => Some((lent, self.start)),
            Whose::Ours(_) => None,
        }
    }

    fn memory(&self) -> &Arc<Shared> {
        match &self.whose {
            Whose::Ours(memory) => memory,
            Whose::Lent(_) => panic!("what a client lends is looked at without a copy"),
        }
    }

    /// A buffer of `len` bytes that is going to be overwritten. It holds old content of this process until then.
    pub(crate) fn to_be_filled(len: usize) -> HostBuf {
        HostBuf::over(Memory::any(len), len)
    }

    /// A buffer of `len` bytes written by `fill`, which must write all of them: they hold old content before.
    pub fn filled_by(len: usize, fill: impl FnOnce(&mut [u8])) -> HostBuf {
        let filled = HostBuf::try_filled_by(len, |bytes| {
            fill(bytes);
            Ok::<(), Infallible>(())
        });
        match filled {
            Ok(buf) => buf,
            Err(never) => match never {},
        }
    }

    /// As [`HostBuf::filled_by`], for a `fill` that can fail (reading from a socket); its error is handed on.
    pub fn try_filled_by<E>(len: usize, fill: impl FnOnce(&mut [u8]) -> Result<(), E>) -> Result<HostBuf, E> {
        let mut buf = HostBuf::to_be_filled(len);
        fill(buf.get_mut().expect("a new buffer is not shared"))?;
        Ok(buf)
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `start..start + len` is within the memory (see `slice`), which is initialised and lives as
        // long as `self`; it is written only through `get_mut`, or by the kernel while a `Devices` holds
        // the only handle and lends it to nobody.
        unsafe { std::slice::from_raw_parts(self.address(), self.len) }
    }

    /// The bytes, to be changed; `None` while another handle to the same memory exists.
    pub fn get_mut(&mut self) -> Option<&mut [u8]> {
        let Whose::Ours(memory) = &mut self.whose else { return None };
        let start = Arc::get_mut(memory)?.memory().start;
        // SAFETY: within the memory and initialised, as above; `Arc::get_mut` proved that no other handle
        // exists, and `self` is borrowed mutably for as long as the slice lives.
        Some(unsafe { std::slice::from_raw_parts_mut(start.as_ptr().add(self.start), self.len) })
    }

    /// Where the first byte is, for the kernel.
    pub(crate) fn address(&self) -> *mut u8 {
        self.memory().memory().start.as_ptr().wrapping_add(self.start)
    }
}

impl Buf for HostBuf {
    fn from_bytes(bytes: &[u8]) -> HostBuf {
        HostBuf::filled_by(bytes.len(), |to| to.copy_from_slice(bytes))
    }

    fn zeroes(len: usize) -> HostBuf {
        static ZEROES: OnceLock<HostBuf> = OnceLock::new();
        if len > SHARED_ZEROES {
            return HostBuf::over(Memory::zeroed(len), len);
        }
        // The static keeps a handle for ever, so `get_mut` never succeeds on what is handed out here.
        ZEROES.get_or_init(|| HostBuf::over(Memory::zeroed(SHARED_ZEROES), SHARED_ZEROES)).slice(0..len)
    }

    fn len(&self) -> usize {
        self.len
    }

    fn slice(&self, range: Range<usize>) -> HostBuf {
        assert!(range.start <= range.end && range.end <= self.len, "slice {range:?} of a buffer of {} bytes", self.len);
        HostBuf { whose: self.whose.clone(), start: self.start + range.start, len: range.len() }
    }

    fn checksum(&self, seed: u64) -> u64 {
        Hasher::oneshot_with_seed(seed, self.as_slice())
    }

    fn to_bytes(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(self.as_slice())
    }

    fn join(parts: &[HostBuf]) -> HostBuf {
        let len = parts.iter().map(Buf::len).sum();
        HostBuf::filled_by(len, |mut to| {
            for part in parts {
                let (head, tail) = to.split_at_mut(part.len());
                head.copy_from_slice(part.as_slice());
                to = tail;
            }
        })
    }

    fn owned(&self) -> Option<HostBuf> {
        let Some((lent, start)) = self.lender() else { return Some(self.clone()) };
        match lent.copy(start..start + self.len) {
            Ok(copy) => Some(copy),
            Err(error) => {
                tracing::error!(
                    "the payload of a write could not be taken: {error}; its client gets EIO. Look at the kernel's log"
                );
                None
            }
        }
    }
}

impl AsRef<[u8]> for HostBuf {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl fmt::Debug for HostBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Payload belongs to clients: it is not shown, in logs least of all.
        write!(f, "HostBuf({} bytes)", self.len)
    }
}
