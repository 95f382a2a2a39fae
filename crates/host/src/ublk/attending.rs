//! What is known of one queue of a ublk device while somebody attends to it: its tags, and what is served by each.
//!
//! Its commands go into the ring of whichever thread attends to it, which the kernel wants to be one and the same for as long
//! as it does. That thread copies payload, too: a write's from the kernel's pages into the buffer that goes to the engine and to
//! the devices, a read's from the engine's buffers into the kernel's pages. Nothing else copies a byte. Where the kernel can
//! (`lending.rs`), what is likely to go past the cache is not copied: the engine gets the kernel's pages, as memory that is lent.
//!
//! `unsafe` because descriptors are in memory that the kernel writes, and because commands go into the ring.

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use headpond_engine::io::{Buf, Reply, Request, RequestError};
use io_uring::opcode;
use io_uring::types::Fd;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::abi::{self, Descriptor, IoCommand};
use super::flushing::{Flushes, Whose};
use super::lending::Lending;
use super::tags::{Event, Held, Io, Tags};
use crate::buf::HostBuf;
use crate::lent::{Lent, moved};
use crate::ring::Ring;

/// Buffers written to the kernel by one call; its limit is 1,024.
const GATHER: usize = 1000;

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

/// A queue at work. It must outlive the ring that it is started with, or be kept until [`Attending::is_over`].
pub struct Attending {
    number: u16,
    descriptors: Descriptors,
    device: Arc<OwnedFd>,
    tags: Tags,
    /// What is being served, by tag.
    ios: Vec<Io>,
    lending: Lending,
    flushes: Arc<Flushes>,
    mark: u64,
}

/// Which queue of a device this is.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Its number.
    pub number: u16,
    /// Its requests at a time.
    pub depth: u16,
    /// Whether the device lends clients' memory.
    pub lends: bool,
}

impl Attending {
    /// Asks for the first request of each tag. No request can be there before the device is started: what completes until then
    /// was refused. A command's number in the ring is `mark`, whose lowest 16 bits are 0, and the tag.
    pub fn start(
        Place { number, depth, lends }: Place,
        device: Arc<OwnedFd>,
        flushes: Arc<Flushes>,
        mark: u64,
        ring: &mut Ring,
    ) -> io::Result<Attending> {
        let descriptors = Descriptors::map(&device, number, depth)?;
        let ios = vec![Io::Flush; usize::from(depth)];
        let lending = Lending::new(lends);
        let mut this = Attending { number, descriptors, device, tags: Tags::new(depth), ios, lending, flushes, mark };
        for tag in this.tags.fetch() {
            this.command(abi::io::FETCH_REQ, tag, 0, ring);
        }
        Ok(this)
    }

    /// Takes in the end of a command.
    pub fn completed(&mut self, tag: u16, result: i32) -> Event {
        self.tags.completed(tag, result)
    }

    /// Nothing that this daemon does can answer that request any more; the next one can.
    pub fn cannot_go_on(&self, errno: i32) -> ! {
        panic!("the kernel refused a command of queue {}: {}", self.number, io::Error::from_raw_os_error(errno));
    }

    /// Whether the kernel has none of its commands any more, nor is anything to be answered.
    pub fn is_over(&self) -> bool {
        self.tags.all_gone()
    }

    /// What a request asks for, with a write's payload; `None`: it is answered already, as it was to show that it comes, or with an
    /// error.
    pub fn take(&mut self, mut held: Held, ring: &mut Ring) -> Option<(Held, Request<HostBuf>)> {
        let descriptor = self.descriptors.of(&held);
        let Ok(io) = Io::decode(&descriptor) else {
            tracing::error!(
                ?descriptor,
                "the kernel sent a request that is not understood; its client gets EIO. Report it, with this line"
            );
            self.commit(held, -libc::EIO, ring);
            return None;
        };
        self.ios[usize::from(held.tag())] = io;
        if matches!(io, Io::Write { .. } | Io::Discard { .. } | Io::WriteZeroes { .. }) {
            self.flushes.wrote();
        }
        let request = match io {
            Io::Read { sector, sectors } => {
                let into = self.lending.read(io.payload()).then(|| self.lent(&held, io.payload()));
                Request::Read { sector, sectors, into }
            }
            Io::Write { sector, fua, .. } if self.lending.write(sector, io.payload()) => {
                Request::Write { sector, data: self.lent(&held, io.payload()), fua }
            }
            Io::Write { sector, fua, .. } => match self.take_payload(&held, io.payload()) {
                Ok(data) => Request::Write { sector, data, fua },
                Err(error) => {
                    tracing::error!(
                        "the payload of a write at sector {sector} could not be taken: {error}; its client gets EIO. Look at the kernel's log"
                    );
                    self.commit(held, -libc::EIO, ring);
                    return None;
                }
            },
            Io::Flush => match self.flushes.one_more() {
                Whose::Clients => {
                    held.is_noted_by(&self.flushes);
                    Request::Flush
                }
                Whose::Own => Request::OwnFlush,
                Whose::Try => {
                    self.commit(held, io.success(), ring);
                    return None;
                }
            },
            Io::Discard { sector, sectors } => Request::Discard { sector, sectors: u64::from(sectors) },
            Io::WriteZeroes { sector, sectors, fua } => Request::WriteZeroes { sector, sectors: u64::from(sectors), fua },
        };
        Some((held, request))
    }

    /// Answers a request, with a read's payload. The ring's next wait tells the kernel.
    pub fn answer(&mut self, mut held: Held, reply: Reply<HostBuf>, ring: &mut Ring) {
        let io = self.ios[usize::from(held.tag())];
        let result = match (held.answer(reply), io) {
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
        self.commit(held, result, ring);
    }

    fn commit(&mut self, held: Held, result: i32, ring: &mut Ring) {
        let tag = self.tags.answered(held);
        self.command(abi::io::COMMIT_AND_FETCH_REQ, tag, result, ring);
    }

    fn command(&mut self, op: u32, tag: u16, result: i32, ring: &mut Ring) {
        let command = IoCommand { q_id: self.number, tag, result, addr: 0 };
        let entry = opcode::UringCmd16::new(Fd(self.device.as_raw_fd()), op).cmd(command.to_bytes()).build();
        // SAFETY: the entry names no memory, and the file is open for as long as we are there, which is until the command has
        // completed, or for longer than the ring.
        if let Err(error) = unsafe { ring.push(&entry.user_data(self.mark | u64::from(tag))) } {
            panic!("the ring of queue {} refused an entry: {error}", self.number);
        }
    }

    fn pages(&self, held: &Held) -> Lent {
        Lent::new(Arc::clone(&self.device), self.number, held.tag())
    }

    fn lent(&self, held: &Held, len: usize) -> HostBuf {
        HostBuf::lent(self.pages(held), len)
    }

    fn take_payload(&self, held: &Held, len: usize) -> io::Result<HostBuf> {
        self.pages(held).copy(0..len)
    }

    fn give_payload(&self, held: &Held, len: usize, bufs: &[HostBuf]) -> io::Result<()> {
        let given: usize = bufs.iter().map(Buf::len).sum();
        if given != len {
            return Err(io::Error::other(format!("{given} bytes for a request of {len}")));
        }
        let mut done = 0;
        let mut slices = Vec::with_capacity(bufs.len().min(GATHER));
        // What was read into the client's memory is there already; what lies between is copied beside it.
        for bufs in bufs.chunk_by(|a, b| a.lender().is_none() && b.lender().is_none()) {
            if let Some((lent, start)) = bufs[0].lender() {
                if !lent.is_of(self.number, held.tag()) || start != done {
                    return Err(io::Error::other("what was read is in another place of the client's memory"));
                }
                done += bufs[0].len();
                continue;
            }
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
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::time::Duration;

    use super::*;
    use crate::ring::GUEST;
    use headpond_engine::io::SECTOR;

    /// A queue of a file, which has descriptors and payload where a device has them; its first commands are refused.
    struct Rig {
        file: Arc<OwnedFd>,
        ring: Ring,
        attending: Attending,
        flushes: Arc<Flushes>,
    }

    impl Rig {
        fn new() -> Rig {
            let file = tempfile::tempfile().unwrap();
            file.set_len(abi::payload_at(1, 0, 0)).unwrap();
            let (file, mut ring, flushes) = (Arc::new(file.into()), Ring::new(8, 16).unwrap(), Arc::new(Flushes::default()));
            let place = Place { number: 0, depth: 1, lends: false };
            let attending = Attending::start(place, Arc::clone(&file), flushes.clone(), GUEST, &mut ring).unwrap();
            let mut rig = Rig { file, ring, attending, flushes };
            assert_eq!(rig.commands(), 1);
            rig
        }

        /// How many commands the kernel has had since this was asked last.
        fn commands(&mut self) -> usize {
            self.ring.wait(Some(Duration::ZERO)).unwrap();
            let mut ended = Vec::new();
            self.ring.reap(&mut ended);
            ended.len()
        }

        /// Asks for this of the first sector: what the volume is asked for then.
        fn begin(&mut self, op: u32) -> Option<(Held, Request<HostBuf>)> {
            let mut descriptor = [0; size_of::<Descriptor>()];
            descriptor[..4].copy_from_slice(&op.to_ne_bytes());
            descriptor[4..8].copy_from_slice(&1u32.to_ne_bytes());
            File::from(self.file.try_clone().unwrap()).write_all_at(&descriptor, 0).unwrap();
            let Event::Request(held) = self.attending.completed(0, 0) else { unreachable!("the kernel has the tag") };
            self.attending.take(held, &mut self.ring)
        }

        /// What the volume is asked for when this is asked for of the first sector. It is answered.
        fn ask(&mut self, op: u32) -> Option<Request<HostBuf>> {
            let request = self.begin(op).map(|(held, request)| {
                self.attending.answer(held, Ok(Vec::new()), &mut self.ring);
                request
            });
            assert_eq!(self.commands(), 1, "it is not answered once");
            request
        }

        /// Whether a flush is told that it went well, of which the volume says this.
        fn flushes(&mut self, reply: Reply<HostBuf>) -> bool {
            let (mut held, _) = self.begin(abi::op::FLUSH).expect("it is no try");
            let told = held.answer(reply);
            let went_well = told.is_ok();
            self.attending.answer(held, told, &mut self.ring);
            assert_eq!(self.commands(), 1, "it is not answered once");
            went_well
        }

        /// Whether the volume is asked for a client's flush.
        fn passes_on_a_flush(&mut self) -> bool {
            matches!(self.ask(abi::op::FLUSH), Some(Request::Flush))
        }

        /// Whether it is asked for one that is not a client's.
        fn passes_on_its_own(&mut self) -> bool {
            matches!(self.ask(abi::op::FLUSH), Some(Request::OwnFlush))
        }
    }

    /// The flush that shows whether flushes arrive, and the last one of a device, were a client's to the volume. After a flush of its disk had
    /// failed they got the error that a client was to get, which nobody was told then; and the volume had no block device, or kept it. Later the
    /// last one was answered without the volume, and so was each of somebody who had opened the device meanwhile: he was told that his writes
    /// are durable, and nothing was flushed.
    #[test]
    fn the_daemons_own_flushes_are_not_a_clients_and_whoever_else_flushes_then_has_all_flushed() {
        let mut rig = Rig::new();
        rig.flushes.begin_trial();
        assert!(rig.ask(abi::op::FLUSH).is_none());
        rig.flushes.end_tries();
        assert!(rig.passes_on_a_flush());
        rig.flushes.set_own(true);
        // What is in the page cache comes first.
        assert!(matches!(rig.ask(abi::op::WRITE), Some(Request::Write { .. })));
        assert!(rig.passes_on_its_own());
        assert!(rig.passes_on_its_own());
        rig.flushes.set_own(false);
        assert!(rig.passes_on_a_flush());
        assert_eq!(rig.flushes.came(), 5);
    }

    /// Who mounts a device as soon as he sees it may have written before that is known.
    #[test]
    fn a_flush_that_comes_after_a_write_is_no_try() {
        for op in [abi::op::WRITE, abi::op::DISCARD, abi::op::WRITE_ZEROES] {
            let mut rig = Rig::new();
            rig.flushes.begin_trial();
            rig.ask(abi::op::READ);
            assert!(rig.ask(abi::op::FLUSH).is_none());
            rig.ask(op);
            assert!(rig.passes_on_a_flush(), "{op}");
        }
    }

    /// Such a flush may be the `dd` of the trial. Of a failed flush of the disk the volume told that one, whose error nobody looked at; and the file
    /// system whose writes were lost was told that all is well.
    #[test]
    fn a_failure_that_the_trial_of_a_device_may_have_heard_alone_is_told_to_the_next_who_flushes() {
        let (well, lost) = (|| Ok(Vec::new()), || Err(RequestError::Io));
        for ends_first in [true, false] {
            let mut rig = Rig::new();
            rig.flushes.begin_trial();
            rig.ask(abi::op::WRITE);
            assert!(rig.flushes(well()));
            assert!(!rig.flushes(lost()));
            if ends_first {
                rig.flushes.end_tries();
                rig.flushes.end_trial(false);
            }
            // The daemon's own, of its end, is not who is to hear it.
            rig.flushes.set_own(true);
            assert!(rig.flushes(well()));
            rig.flushes.set_own(false);
            assert!(!rig.flushes(well()));
            assert!(rig.flushes(well()));
        }
        // Where `dd` has ended well a client has heard it.
        let mut rig = Rig::new();
        rig.flushes.begin_trial();
        rig.ask(abi::op::WRITE);
        assert!(!rig.flushes(lost()));
        rig.flushes.end_trial(true);
        assert!(rig.flushes(well()));
        // Nor is anything told twice once the trial is over.
        assert!(!rig.flushes(lost()));
        assert!(rig.flushes(well()));
    }

    #[test]
    fn the_payload_of_each_tag_has_room_for_the_largest_request() {
        assert!(u64::from(super::super::attributes::MAX_IO) <= 1 << abi::TAG_SHIFT);
        assert!(u64::from(abi::MAX_DEPTH) <= 1 << (abi::QUEUE_SHIFT - abi::TAG_SHIFT));
        assert_eq!(SECTOR, 512);
    }
}
