//! Commands to `/dev/ublk-control`, one at a time and each with a limit in time.
//!
//! `unsafe` because a command names memory of ours. That memory is on the heap and belongs to the command; where
//! the kernel does not come back in time it is left to it for ever, together with the ring.

use std::fmt::Debug;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};
use rustix::fs::{Mode, OFlags};

use super::abi::{self, ControlCommand, DeviceInfo, Params, control};

/// How long a command may take that only asks or notes something.
const QUICK: Duration = Duration::from_secs(10);
/// How long making a device may take. On kernels in which it fails (6.18.4, 6.18.5) it never ends.
const ADD: Duration = Duration::from_secs(30);
/// How long a start, a stop, or the end of a takeover may take: requests are answered meanwhile.
const LONG: Duration = Duration::from_secs(60);

/// Memory that the kernel may fill: integers in the kernel's layout.
///
/// # Safety
/// All bit patterns are values, and there is no padding.
unsafe trait Plain: Copy + Default + Debug + 'static {}
// SAFETY: integers only; the sizes in `abi` leave no room for padding.
unsafe impl Plain for DeviceInfo {}
// SAFETY: as above.
unsafe impl Plain for Params {}
// SAFETY: an integer.
unsafe impl Plain for u64 {}

/// The control device, open.
pub struct Control {
    /// `None`: a command did not come back, and the ring is not to be touched any more.
    ring: Option<IoUring<squeue::Entry128, cqueue::Entry>>,
    device: OwnedFd,
}

impl Control {
    /// Opens it.
    ///
    /// # Errors
    /// `NotFound` where the kernel has no ublk, or has not loaded it; other errors where this process may not use it.
    pub fn open() -> io::Result<Control> {
        let device = rustix::fs::open(abi::CONTROL, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let ring = IoUring::builder().build(4)?;
        Ok(Control { ring: Some(ring), device })
    }

    /// What the driver can do.
    pub fn features(&mut self) -> io::Result<u64> {
        self.exchange(control::GET_FEATURES, u32::MAX, 0, QUICK)
    }

    /// A device; `None` if there is none with this number.
    pub fn info(&mut self, id: u32) -> io::Result<Option<DeviceInfo>> {
        match self.exchange(control::GET_DEV_INFO, id, DeviceInfo::default(), QUICK) {
            Ok(info) => Ok(Some(info)),
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes a device; what the kernel made of the wish comes back.
    pub fn add(&mut self, wish: DeviceInfo) -> io::Result<DeviceInfo> {
        self.exchange(control::ADD_DEV, wish.dev_id, wish, ADD)
    }

    /// Sets the parameters of a device that was not started yet.
    pub fn set_params(&mut self, id: u32, params: Params) -> io::Result<()> {
        self.exchange(control::SET_PARAMS, id, params, QUICK).map(drop)
    }

    /// The parameters of a device.
    pub fn params(&mut self, id: u32) -> io::Result<Params> {
        let empty = Params { len: size_of::<Params>() as u32, ..Params::default() };
        self.exchange(control::GET_PARAMS, id, empty, QUICK)
    }

    /// Offers a device to clients. All tags of all queues must have been fetched, and be served: the kernel reads its
    /// partition table.
    pub fn start(&mut self, id: u32) -> io::Result<()> {
        self.uninterrupted(control::START_DEV, id, pid(), LONG)
    }

    /// Takes a device from its clients; what they ask and have asked is answered before, by us.
    pub fn stop(&mut self, id: u32) -> io::Result<()> {
        self.uninterrupted(control::STOP_DEV, id, 0, LONG)
    }

    /// Removes a device. Its queues must have ended, and its character device be closed. The number is free when the last
    /// user has closed the block device, which is not waited for.
    pub fn delete(&mut self, id: u32) -> io::Result<()> {
        match self.uninterrupted(control::DEL_DEV_ASYNC, id, 0, QUICK) {
            // Before Linux 6.9.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL)) => {
                self.uninterrupted(control::DEL_DEV, id, 0, QUICK)
            }
            result => result,
        }
    }

    /// Changes the size of a device that is in use, in sectors of 512 bytes; udev is told by the kernel.
    pub fn update_size(&mut self, id: u32, sectors: u64) -> io::Result<()> {
        self.uninterrupted(control::UPDATE_SIZE, id, sectors, QUICK)
    }

    /// Begins to take over a device.
    pub fn start_recovery(&mut self, id: u32) -> io::Result<()> {
        self.uninterrupted(control::START_USER_RECOVERY, id, 0, QUICK)
    }

    /// Lets its I/O go on.
    pub fn end_recovery(&mut self, id: u32) -> io::Result<()> {
        self.uninterrupted(control::END_USER_RECOVERY, id, pid(), LONG)
    }

    /// A command without memory; again if a signal came between.
    fn uninterrupted(&mut self, op: u32, id: u32, data: u64, limit: Duration) -> io::Result<()> {
        loop {
            let command = ControlCommand { dev_id: id, queue_id: u16::MAX, data, ..ControlCommand::default() };
            match self.run(op, command, limit) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }

    /// A command that takes a value and leaves one in its place.
    fn exchange<T: Plain>(&mut self, op: u32, id: u32, value: T, limit: Duration) -> io::Result<T> {
        let memory = Box::into_raw(Box::new(value));
        let command = ControlCommand {
            dev_id: id,
            queue_id: u16::MAX,
            len: size_of::<T>() as u16,
            addr: memory.expose_provenance() as u64,
            ..ControlCommand::default()
        };
        let result = self.run(op, command, limit);
        if self.ring.is_none() {
            // The kernel may still write there: it is left alone.
            return result.map(|()| value);
        }
        // SAFETY: made above by `Box::into_raw`, given to nobody but the kernel, and the command has ended. Whatever
        // the kernel wrote is a value of the type, which is what `Plain` says.
        let value = unsafe { *Box::from_raw(memory) };
        result.map(|()| value)
    }

    fn run(&mut self, op: u32, command: ControlCommand, limit: Duration) -> io::Result<()> {
        let stuck = || io::Error::new(io::ErrorKind::TimedOut, "the kernel does not answer; see its log for an oops");
        let Some(ring) = &mut self.ring else { return Err(stuck()) };
        let entry = opcode::UringCmd80::new(Fd(self.device.as_raw_fd()), op).cmd(command.to_bytes()).build();
        // SAFETY: what the command names is on the heap and stays there until the command has ended, as does the device.
        unsafe { ring.submission().push(&entry) }.map_err(io::Error::other)?;
        let until = Instant::now() + limit;
        loop {
            let left = Timespec::from(until.saturating_duration_since(Instant::now()));
            let waited = ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&left));
            if let Some(completion) = ring.completion().next() {
                return match completion.result() {
                    result if result < 0 => Err(io::Error::from_raw_os_error(-result)),
                    _ => Ok(()),
                };
            }
            let error = match waited {
                Err(error) if !matches!(error.raw_os_error(), Some(libc::ETIME | libc::EINTR | libc::EAGAIN)) => error,
                _ if Instant::now() < until => continue,
                _ => stuck(),
            };
            std::mem::forget(self.ring.take());
            return Err(error);
        }
    }
}

fn pid() -> u64 {
    u64::from(std::process::id())
}
