//! One io_uring: entries in, completions out, and a bell that other threads may ring.
//!
//! `unsafe` because an entry names memory and a file by number, and the kernel uses both until it completes:
//! whoever pushes one answers for them.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};
use rustix::event::{EventfdFlags, eventfd};

/// The bell's mark among completions; callers number theirs from zero.
const BELL: u64 = u64::MAX;

/// The bit that marks what is not the ring's owner's own, but a guest's in it.
pub const GUEST: u64 = 1 << 63;

/// How long a kernel that takes no entries is left to end what it has.
const SOON: Duration = Duration::from_millis(1);

/// To hand over completions (`io_uring_enter(2)`).
const GET_EVENTS: u32 = 1;

struct Bell {
    fd: OwnedFd,
    rung: AtomicBool,
}

/// Interrupts [`Ring::wait`] from any thread.
#[derive(Clone)]
pub struct Waker(Arc<Bell>);

impl Waker {
    /// Makes the current or the next wait return. Calls made before it does are one.
    pub fn wake(&self) {
        if !self.0.rung.swap(true, Ordering::AcqRel) {
            // It fails only when the counter is full, and then the bell rings already.
            let _ = rustix::io::write(&self.0.fd, &1u64.to_ne_bytes());
        }
    }
}

/// An io_uring, used by the thread that made it (the kernel saves locks when it may rely on that).
pub struct Ring {
    uring: IoUring,
    bell: Arc<Bell>,
    listening: bool,
    /// What was taken off to make room, for the next [`Ring::reap`].
    early: Vec<(u64, i32)>,
    one_thread: PhantomData<*const ()>,
}

impl Ring {
    /// A ring of at least `entries` entries, and as many completions, rounded up to powers of two.
    pub fn new(entries: u32, completions: u32) -> io::Result<Ring> {
        let sized = || {
            let mut builder = IoUring::builder();
            builder.setup_cqsize(completions.max(2 * entries)).setup_clamp();
            builder
        };
        // Completions are worked on only inside our own calls: from Linux 6.1; without that where it is older.
        let newer = sized().setup_single_issuer().setup_defer_taskrun().setup_submit_all().build(entries);
        let uring = newer.or_else(|error| match error.raw_os_error() {
            Some(libc::EINVAL) => sized().build(entries),
            _ => Err(error),
        })?;
        if !uring.params().is_feature_ext_arg() {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "this kernel's io_uring cannot wait with a time limit; Linux 5.11 is the first that can",
            ));
        }
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let bell = Arc::new(Bell { fd, rung: AtomicBool::new(false) });
        Ok(Ring { uring, bell, listening: false, early: Vec::new(), one_thread: PhantomData })
    }

    /// What interrupts this ring's waits.
    pub fn waker(&self) -> Waker {
        Waker(Arc::clone(&self.bell))
    }

    /// Queues an entry, with a number of the caller's as user data; the next [`Ring::wait`] submits it.
    ///
    /// # Safety
    ///
    /// The memory and the file that the entry names stay valid, and the memory unused by others if the kernel
    /// writes to it, until its completion was reaped; if the ring is dropped before that, for ever.
    pub unsafe fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        // SAFETY: the caller's promise.
        while unsafe { self.uring.submission().push(entry) }.is_err() {
            self.make_room()?;
        }
        Ok(())
    }

    /// Has the kernel take what is queued, or some of it.
    fn make_room(&mut self) -> io::Result<()> {
        let Err(error) = self.uring.submit() else { return Ok(()) };
        if !is_for_now(&error) {
            return Err(error);
        }
        // It is short of memory, or has too much that ended: it takes more when what it has ends, and is taken off.
        self.enter(Some(SOON))?;
        self.early.extend(self.uring.completion().map(|ended| (ended.user_data(), ended.result())));
        Ok(())
    }

    /// Queues entries that are linked, so that they get to the kernel together.
    ///
    /// # Safety
    ///
    /// As of [`Ring::push`], for each.
    pub unsafe fn push_linked(&mut self, entries: &[squeue::Entry]) -> io::Result<()> {
        // SAFETY: the caller's promise.
        while unsafe { self.uring.submission().push_multiple(entries) }.is_err() {
            self.make_room()?;
        }
        Ok(())
    }

    /// Makes a table of so many places for buffers of the kernel's; once.
    pub fn make_places(&self, places: u32) -> io::Result<()> {
        self.uring.submitter().register_buffers_sparse(places)
    }

    /// Lets the kernel have up to so many threads for what would block, each made when there is no other one for it.
    pub fn allow_workers(&self, most: u32) -> io::Result<()> {
        // The others are for what may wait for ever by its nature, as on a socket.
        self.uring.submitter().register_iowq_max_workers(&mut [most, 0])
    }

    /// Submits what is queued and returns when there is a completion, when the bell rang, or after `timeout`
    /// (`None`: no limit). It may return early, too.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        if !self.listening {
            let entry = opcode::PollAdd::new(Fd(self.bell.fd.as_raw_fd()), libc::POLLIN as u32);
            // SAFETY: names no memory; the kernel holds the eventfd itself while it polls.
            unsafe { self.push(&entry.build().user_data(BELL))? };
            self.listening = true;
        }
        self.enter(if self.early.is_empty() { timeout } else { Some(Duration::ZERO) })
    }

    /// Submits what is queued and waits for a completion, but no longer than that.
    fn enter(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let limit = timeout.map(Timespec::from);
        let args = match &limit {
            Some(limit) => SubmitArgs::new().timespec(limit),
            None => SubmitArgs::new(),
        };
        match self.uring.submitter().submit_with_args(1, &args) {
            Ok(_) => Ok(()),
            // Time is up, or a signal came.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ETIME | libc::EINTR)) => Ok(()),
            Err(error) if is_for_now(&error) => self.take_in(timeout.map_or(SOON, |timeout| timeout.min(SOON))),
            Err(error) => Err(error),
        }
    }

    /// Has the kernel hand over what has ended; if that is nothing, waits so long. A call that cannot submit does not come to that, and what ended
    /// has the memory that the next one needs.
    fn take_in(&mut self, pause: Duration) -> io::Result<()> {
        // SAFETY: it submits nothing, and names no memory.
        let taken = unsafe { self.uring.submitter().enter::<libc::sigset_t>(0, 0, GET_EVENTS, None) };
        match taken {
            Err(error) if !is_for_now(&error) => return Err(error),
            _ => {}
        }
        if self.uring.completion().is_empty() {
            std::thread::sleep(pause);
        }
        Ok(())
    }

    /// Appends the completions that are there, as (user data, result), and says whether the bell rang.
    pub fn reap(&mut self, to: &mut Vec<(u64, i32)>) -> bool {
        let mut rung = false;
        let ended = self.uring.completion().map(|ended| (ended.user_data(), ended.result()));
        for (number, result) in self.early.drain(..).chain(ended) {
            match number {
                BELL => rung = true,
                number => to.push((number, result)),
            }
        }
        if rung {
            self.listening = false;
            let _ = rustix::io::read(&self.bell.fd, &mut [0u8; 8]);
            // Only now may the next call write again: whatever came before is for the caller to see.
            self.bell.rung.swap(false, Ordering::AcqRel);
        }
        rung
    }
}

/// A signal came, the kernel is short of memory, or it wants completions taken off first.
fn is_for_now(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exhausted::{is_exhausted, step};
    use std::thread;

    /// From now on the kernel has no memory for a call of this thread where any of `bits` of its argument number `argument` is set, or none is.
    fn have_no_memory(argument: u32, bits: u32, set: bool) {
        let (jt, jf) = if set { (0, 1) } else { (1, 0) };
        is_exhausted(&[
            step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
            step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 3, libc::SYS_io_uring_enter as u32),
            step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 16 + argument * 8),
            step(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, jt, jf, bits),
        ]);
    }

    /// Arguments of `io_uring_enter(2)`.
    const TO_SUBMIT: u32 = 1;
    const FLAGS: u32 = 3;

    /// It ended the daemon.
    #[test]
    fn entries_that_the_kernel_has_no_memory_for_are_submitted_when_it_has() {
        let ends = thread::spawn(|| {
            let mut ring = Ring::new(4, 8).unwrap();
            have_no_memory(FLAGS, GET_EVENTS, false);
            for number in 0..100 {
                // SAFETY: it names no memory.
                unsafe { ring.push(&opcode::Nop::new().build().user_data(number)) }.unwrap();
            }
            let mut ended = Vec::new();
            while ended.len() < 100 {
                ring.wait(None).unwrap();
                ring.reap(&mut ended);
            }
            ended.sort_unstable();
            ended
        });
        assert!(ends.join().unwrap().into_iter().eq((0..100).map(|number| (number, 0))));
    }

    /// What had ended was handed over only by a call that could submit: nobody was answered until there was memory.
    #[test]
    fn what_ends_is_handed_over_while_the_kernel_has_no_memory_for_more() {
        let (reader, writer) = io::pipe().unwrap();
        let ends = thread::spawn(move || {
            let mut ring = Ring::new(4, 8).unwrap();
            let mut byte = [0u8];
            let read = opcode::Read::new(Fd(reader.as_raw_fd()), byte.as_mut_ptr(), 1).build().user_data(7);
            // SAFETY: the byte and the pipe are there until it has ended, which is waited for.
            unsafe { ring.push(&read) }.unwrap();
            ring.wait(Some(Duration::ZERO)).unwrap();
            have_no_memory(TO_SUBMIT, u32::MAX, true);
            // SAFETY: it names no memory.
            unsafe { ring.push(&opcode::Nop::new().build().user_data(8)) }.unwrap();
            rustix::io::write(&writer, b"x").unwrap();
            let until = std::time::Instant::now() + Duration::from_secs(30);
            let mut ended = Vec::new();
            while ended.is_empty() && std::time::Instant::now() < until {
                ring.wait(Some(Duration::from_millis(10))).unwrap();
                ring.reap(&mut ended);
            }
            if ended.is_empty() {
                // The kernel may write to it yet.
                std::mem::forget(ring);
                loop {
                    thread::park();
                }
            }
            (ended, byte)
        });
        let until = std::time::Instant::now() + Duration::from_secs(60);
        while !ends.is_finished() {
            assert!(std::time::Instant::now() < until, "nothing is handed over");
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(ends.join().unwrap(), (vec![(7, 1)], *b"x"));
    }
}
