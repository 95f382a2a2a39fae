//! Payload that stays where its client has it: pages of a request to a ublk device, which another device reads into or writes from.
//!
//! The kernel has them between a request's coming and its answer. A ring can use them meanwhile, once they are in its table of buffers
//! ([`Places`]); an entry then names them by their place there, and where in them by a number of bytes. Whoever wants to look at them copies
//! them first ([`Lent::copy`]).
//!
//! An entry that uses them goes into the ring between two others, linked with it: the one that registers them, and the one that takes them
//! out of the table again. Where the first fails, the others are cancelled. The kernel answers the client only when nothing uses its
//! pages any more, whenever the answer was given.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use io_uring::opcode;
use io_uring::squeue::{Entry, Flags};
use io_uring::types::Fd;
use rustix::io::Errno;

use crate::buf::HostBuf;
use crate::ring::Ring;
use crate::ublk::abi::{self, IoCommand};

/// The bit that marks the ends of registering and taking out among a ring's completions.
pub const MARK: u64 = 1 << 62;
/// Beside it: what was to be registered.
const REGISTERS: u64 = 1 << 61;

/// Pages of this many requests are in a ring's table at a time, at most; what comes beside them is copied.
const PLACES: u16 = 256;

/// The pages of one request.
pub struct Lent {
    device: Arc<OwnedFd>,
    queue: u16,
    tag: u16,
}

impl Lent {
    /// Those of the request with this tag, which is ours to answer.
    pub fn new(device: Arc<OwnedFd>, queue: u16, tag: u16) -> Lent {
        Lent { device, queue, tag }
    }

    /// Whether they are this request's.
    pub fn is_of(&self, queue: u16, tag: u16) -> bool {
        (self.queue, self.tag) == (queue, tag)
    }

    /// A copy of a part, of which the client wants written. An error where the request is not with us any more.
    pub fn copy(&self, part: Range<usize>) -> io::Result<HostBuf> {
        HostBuf::try_filled_by(part.len(), |bytes| {
            let mut done = 0;
            while done < bytes.len() {
                let at = abi::payload_at(self.queue, self.tag, part.start + done);
                done += moved(rustix::io::pread(&*self.device, &mut bytes[done..], at))?;
            }
            Ok(())
        })
    }

    /// An entry that uses these pages by their place in the table, between the two that put them there and take them out.
    pub fn around(&self, uses: Entry, place: u16) -> [Entry; 3] {
        let command = |op, mark| {
            let command = IoCommand { q_id: self.queue, tag: self.tag, result: 0, addr: u64::from(place) };
            let entry = opcode::UringCmd16::new(Fd(self.device.as_raw_fd()), op).cmd(command.to_bytes()).build();
            entry.user_data(MARK | mark | u64::from(place))
        };
        // What is in the table is taken out of it whatever becomes of its use.
        [
            command(abi::io::REGISTER_IO_BUF, REGISTERS).flags(Flags::IO_LINK),
            uses.flags(Flags::IO_HARDLINK),
            command(abi::io::UNREGISTER_IO_BUF, 0),
        ]
    }
}

/// Which places of a ring's table are free.
pub struct Places {
    free: Vec<u16>,
}

impl Places {
    /// Makes a table. Where the kernel has none for us there are no places.
    pub fn of(ring: &Ring) -> Places {
        let there = ring.make_places(u32::from(PLACES)).is_ok();
        Places { free: if there { (0..PLACES).collect() } else { Vec::new() } }
    }

    /// A free one, which is given back by [`Places::ended`].
    pub fn take(&mut self) -> Option<u16> {
        self.free.pop()
    }

    /// Takes in the end of registering or taking out, by its number in the ring.
    pub fn ended(&mut self, number: u64, result: i32) {
        if number & REGISTERS != 0 {
            return;
        }
        // Cancelled, as nothing was registered, or not there any more: its device is gone.
        if result < 0 && ![libc::ECANCELED, libc::EINVAL, libc::ENODEV].contains(&-result) {
            let error = io::Error::from_raw_os_error(-result);
            tracing::warn!(
                "a place for clients' memory is lost: the kernel does not take out what is there ({error}). More is copied, and no data is touched. Set zero_copy = false if this comes again"
            );
            return;
        }
        self.free.push(number as u16);
    }
}

/// Bytes moved by one step between such pages and our memory; 0 is an error, as the kernel has no more for us.
pub fn moved(result: rustix::io::Result<usize>) -> io::Result<usize> {
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
    use std::fs::File;

    #[test]
    fn a_step_that_moves_nothing_ends_the_copy_and_one_that_was_interrupted_is_repeated() {
        assert_eq!(moved(Ok(512)).unwrap(), 512);
        assert_eq!(moved(Err(Errno::INTR)).unwrap(), 0);
        assert_eq!(moved(Ok(0)).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert!(moved(Err(Errno::INVAL)).is_err());
    }

    #[test]
    fn a_place_is_free_again_when_what_was_there_is_out_or_was_never_in() {
        let mut places = Places { free: vec![3] };
        let place = places.take().unwrap();
        assert_eq!((place, places.take()), (3, None));
        places.ended(MARK | REGISTERS | 3, 0);
        assert_eq!(places.take(), None);
        places.ended(MARK | 3, 0);
        assert_eq!(places.take(), Some(3));
        places.ended(MARK | REGISTERS | 3, -libc::EINVAL);
        places.ended(MARK | 3, -libc::ECANCELED);
        assert_eq!(places.take(), Some(3));
        places.ended(MARK | 3, -libc::EBUSY);
        assert_eq!(places.take(), None);
    }

    /// With a file that knows nothing of requests: the use is cancelled, so that whoever wanted it copies.
    #[test]
    fn what_cannot_be_registered_is_not_used() {
        let mut ring = Ring::new(8, 16).unwrap();
        let mut places = Places::of(&ring);
        let Some(place) = places.take() else { return };
        let lent = Lent::new(Arc::new(File::open("/dev/zero").unwrap().into()), 0, 5);
        assert!(lent.is_of(0, 5) && !lent.is_of(1, 5));
        let entries = lent.around(opcode::Nop::new().build().user_data(77), place);
        // SAFETY: they name no memory, and the file is open until they have ended.
        unsafe { ring.push_linked(&entries).unwrap() };
        let mut ended = Vec::new();
        while ended.len() < 3 {
            ring.wait(None).unwrap();
            ring.reap(&mut ended);
        }
        let used = ended.iter().find(|(number, _)| *number == 77).unwrap();
        assert_eq!(used.1, -libc::ECANCELED);
        let free = places.free.len();
        ended.iter().filter(|(number, _)| number & MARK != 0).for_each(|(number, result)| places.ended(*number, *result));
        assert_eq!(places.free.len(), free + 1);
    }
}
