//! Requests by tag: what the kernel asks, and that each is answered exactly once.
//!
//! A request that is never answered hangs its client, and later the kernel's control of all ublk devices. So the
//! duty to answer is a value, [`Held`]: it comes into being when a request arrives, cannot be copied, and an
//! answer takes it. [`Completion`] carries it through the engine, and answers with an I/O error when it is
//! dropped on the way.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use headpond_engine::io::{Reply, RequestError, SECTOR};

use super::abi::{Descriptor, op};
use super::flushing::Flushes;
use super::queue::Message;
use crate::buf::HostBuf;
use crate::ring::Waker;

/// What a request asks for, in sectors of 512 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Io {
    /// Read.
    Read {
        /// The first.
        sector: u64,
        /// How many.
        sectors: u32,
    },
    /// Write.
    Write {
        /// The first.
        sector: u64,
        /// How many.
        sectors: u32,
        /// Durable before the answer.
        fua: bool,
    },
    /// Make durable what was acknowledged.
    Flush,
    /// Forget.
    Discard {
        /// The first.
        sector: u64,
        /// How many.
        sectors: u32,
    },
    /// Make zero.
    WriteZeroes {
        /// The first.
        sector: u64,
        /// How many.
        sectors: u32,
        /// Durable before the answer.
        fua: bool,
    },
}

/// Why a request is not even tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotUnderstood;

impl Io {
    /// Reads a descriptor. One that makes no sense, which no kernel sends, is refused.
    pub fn decode(found: &Descriptor) -> Result<Io, NotUnderstood> {
        let (sector, sectors, fua) = (found.start_sector, found.nr_sectors, found.op_flags & op::FUA != 0);
        let io = match found.op_flags & 0xff {
            op::READ => Io::Read { sector, sectors },
            op::WRITE => Io::Write { sector, sectors, fua },
            op::FLUSH => return Ok(Io::Flush),
            op::DISCARD => Io::Discard { sector, sectors },
            op::WRITE_ZEROES => Io::WriteZeroes { sector, sectors, fua },
            _ => return Err(NotUnderstood),
        };
        if sectors == 0 { Err(NotUnderstood) } else { Ok(io) }
    }

    /// Bytes of payload.
    pub fn payload(self) -> usize {
        match self {
            Io::Read { sectors, .. } | Io::Write { sectors, .. } => sectors as usize * SECTOR as usize,
            Io::Flush | Io::Discard { .. } | Io::WriteZeroes { .. } => 0,
        }
    }

    /// What success is to the kernel: all bytes of a read or write, never fewer, as it would ask for the rest; else 0.
    pub fn success(self) -> i32 {
        self.payload() as i32
    }
}

/// A request that is ours to answer.
#[derive(Debug)]
#[must_use = "a request that is not answered hangs its client"]
pub struct Held {
    tag: u16,
    /// If it is a client's flush: what is noted of its answer.
    flushes: Option<Arc<Flushes>>,
}

impl Held {
    fn new(tag: u16) -> Held {
        Held { tag, flushes: None }
    }

    /// Its tag.
    pub fn tag(&self) -> u16 {
        self.tag
    }

    /// It is a client's flush, whose answer is noted there.
    pub(super) fn is_noted_by(&mut self, flushes: &Arc<Flushes>) {
        self.flushes = Some(Arc::clone(flushes));
    }

    /// The answer to give when the volume gives this one. To be asked in the order in which the volume answers; once more changes nothing.
    pub(super) fn answer(&mut self, reply: Reply<HostBuf>) -> Reply<HostBuf> {
        match self.flushes.take() {
            Some(flushes) if !flushes.answer(reply.is_ok()) => Err(RequestError::Io),
            _ => reply,
        }
    }
}

/// Where a tag is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// Never fetched.
    Idle,
    /// In the kernel, waiting for a request.
    Kernel,
    /// With us: a request is being served.
    Ours,
    /// Taken back by the kernel, as the device is going away, or refused.
    Gone,
}

/// The tags of one queue.
#[derive(Debug)]
pub struct Tags {
    places: Vec<Place>,
    gone: usize,
}

/// What happened to a tag.
#[derive(Debug)]
pub enum Event {
    /// A request came.
    Request(Held),
    /// The kernel took the tag back.
    Gone,
    /// The kernel refused our command, with this error number.
    Refused(i32),
}

impl Tags {
    /// As many as the queue is deep.
    pub fn new(depth: u16) -> Tags {
        Tags { places: vec![Place::Idle; usize::from(depth)], gone: 0 }
    }

    /// The first command of each tag is on its way to the kernel.
    pub fn fetch(&mut self) -> impl Iterator<Item = u16> + use<> {
        assert!(self.places.iter().all(|place| *place == Place::Idle), "a tag is fetched once");
        self.places.fill(Place::Kernel);
        0..self.places.len() as u16
    }

    /// The kernel has completed the command of a tag.
    pub fn completed(&mut self, tag: u16, result: i32) -> Event {
        let place = &mut self.places[usize::from(tag)];
        assert_eq!(*place, Place::Kernel, "the kernel completed a command of tag {tag} that it did not have");
        match result {
            0 => {
                *place = Place::Ours;
                Event::Request(Held::new(tag))
            }
            error if -error == libc::ENODEV => {
                *place = Place::Gone;
                self.gone += 1;
                Event::Gone
            }
            error => {
                *place = Place::Gone;
                self.gone += 1;
                Event::Refused(-error)
            }
        }
    }

    /// A request is answered; the tag it was, to be committed now.
    pub fn answered(&mut self, held: Held) -> u16 {
        let place = &mut self.places[usize::from(held.tag)];
        assert_eq!(*place, Place::Ours, "tag {} is answered while it is not ours", held.tag);
        *place = Place::Kernel;
        held.tag
    }

    /// Whether the kernel has none of them, nor have we.
    pub fn all_gone(&self) -> bool {
        self.gone == self.places.len()
    }
}

/// The duty to answer one request, from any thread. Dropped without an answer, it answers with an I/O error.
pub struct Completion {
    held: Option<Held>,
    answers: Sender<Message>,
    waker: Waker,
}

impl Completion {
    pub(super) fn new(held: Held, answers: Sender<Message>, waker: Waker) -> Completion {
        Completion { held: Some(held), answers, waker }
    }

    /// Answers. A read takes buffers of the length asked for in total; other requests take none. Does not block.
    pub fn finish(mut self, reply: Reply<HostBuf>) {
        self.send(reply);
    }

    fn send(&mut self, reply: Reply<HostBuf>) {
        let Some(mut held) = self.held.take() else { return };
        // Here, and not where it is told to the kernel: answers of several queues overtake each other on the way.
        let reply = held.answer(reply);
        // It fails when the queue has let go of the device: then the kernel asks its next daemon.
        if self.answers.send(Message::Answer(held, reply)).is_ok() {
            self.waker.wake();
        }
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        if self.held.is_some() {
            self.send(Err(RequestError::Io));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::Ring;
    use std::sync::mpsc;

    fn decoded(op_flags: u32, nr_sectors: u32) -> Result<Io, NotUnderstood> {
        Io::decode(&Descriptor { op_flags, nr_sectors, start_sector: 9, addr: 0 })
    }

    #[test]
    fn descriptors_are_read_with_their_flags() {
        let other = 1 << 8 | 1 << 11 | 1 << 15;
        assert_eq!(decoded(other, 8), Ok(Io::Read { sector: 9, sectors: 8 }));
        assert_eq!(decoded(1, 8), Ok(Io::Write { sector: 9, sectors: 8, fua: false }));
        assert_eq!(decoded(1 | op::FUA | other, 1), Ok(Io::Write { sector: 9, sectors: 1, fua: true }));
        assert_eq!(decoded(2 | op::FUA, 0), Ok(Io::Flush));
        assert_eq!(decoded(3, 1 << 21), Ok(Io::Discard { sector: 9, sectors: 1 << 21 }));
        assert_eq!(decoded(5 | 1 << 15, 3), Ok(Io::WriteZeroes { sector: 9, sectors: 3, fua: false }));
        for (op, sectors) in [(4, 8), (6, 8), (0xff, 8), (0, 0), (1, 0), (3, 0), (5, 0)] {
            assert_eq!(decoded(op, sectors), Err(NotUnderstood), "operation {op}, {sectors} sectors");
        }
    }

    #[test]
    fn success_of_a_write_is_never_zero_and_of_a_discard_never_a_part() {
        assert_eq!(decoded(1, 1).unwrap().success(), 512);
        assert_eq!(decoded(0, 2048).unwrap().success(), 1 << 20);
        assert_eq!(decoded(3, 2048).unwrap().success(), 0);
        assert_eq!(decoded(5, 2048).unwrap().success(), 0);
        assert_eq!(decoded(2, 0).unwrap().success(), 0);
    }

    #[test]
    fn a_tag_goes_to_the_kernel_comes_back_with_a_request_and_is_answered_once() {
        let mut tags = Tags::new(2);
        assert_eq!(tags.fetch().collect::<Vec<_>>(), [0, 1]);
        for _ in 0..3 {
            let Event::Request(held) = tags.completed(1, 0) else { panic!("a request") };
            assert_eq!(held.tag(), 1);
            assert_eq!(tags.answered(held), 1);
        }
        assert!(matches!(tags.completed(0, -libc::EINVAL), Event::Refused(libc::EINVAL)));
    }

    #[test]
    fn a_queue_has_ended_when_the_kernel_has_taken_every_tag_back() {
        let mut tags = Tags::new(2);
        let _ = tags.fetch();
        let Event::Request(held) = tags.completed(0, 0) else { panic!("a request") };
        assert!(matches!(tags.completed(1, -libc::ENODEV), Event::Gone));
        assert!(!tags.all_gone());
        tags.answered(held);
        assert!(matches!(tags.completed(0, -libc::ENODEV), Event::Gone));
        assert!(tags.all_gone());
    }

    #[test]
    #[should_panic(expected = "did not have")]
    fn a_command_that_completes_twice_is_noticed() {
        let mut tags = Tags::new(1);
        let _ = tags.fetch();
        let _held = tags.completed(0, 0);
        let _again = tags.completed(0, 0);
    }

    /// Each queue has a thread, and the answer that the volume gave first may be told to the kernel last.
    #[test]
    fn of_a_failure_that_a_trial_has_heard_the_flush_that_the_volume_answers_next_hears_whichever_queue_it_is_of() {
        let (ring, flushes) = (Ring::new(2, 4).unwrap(), Arc::new(Flushes::default()));
        flushes.begin_trial();
        let (answers, messages): (Vec<_>, Vec<_>) = (0..2).map(|_| mpsc::channel()).unzip();
        let under_way = answers.into_iter().map(|answers| {
            let mut held = Held::new(0);
            held.is_noted_by(&flushes);
            Completion::new(held, answers, ring.waker())
        });
        let replies = [Err(RequestError::Io), Ok(Vec::new())];
        under_way.collect::<Vec<_>>().into_iter().zip(replies).for_each(|(flush, reply)| flush.finish(reply));
        for messages in messages.iter().rev() {
            assert!(matches!(messages.recv(), Ok(Message::Answer(_, Err(RequestError::Io)))));
        }
        assert!(flushes.answer(true));
    }

    #[test]
    fn an_answer_that_is_dropped_is_an_error_and_one_that_is_given_comes_once() {
        let ring = Ring::new(2, 4).unwrap();
        let (answers, messages) = mpsc::channel();
        let completion = |tag| Completion::new(Held::new(tag), answers.clone(), ring.waker());
        drop(completion(3));
        completion(4).finish(Ok(Vec::new()));
        let got: Vec<_> = messages.try_iter().collect();
        assert!(matches!(&got[0], Message::Answer(Held { tag: 3, .. }, Err(RequestError::Io))));
        assert!(matches!(&got[1], Message::Answer(Held { tag: 4, .. }, Ok(bufs)) if bufs.is_empty()));
        assert_eq!(got.len(), 2);
        // A queue that has let go takes none, and nobody minds.
        drop(messages);
        drop(completion(5));
    }
}
