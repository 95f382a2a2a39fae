//! Queues of ublk devices that a thread attends to beside its other work: the engine's, on the ring that its devices are on.
//!
//! Requests come out of the very wait that device operations end in, and answers go to the kernel by the call that begins the
//! next wait. What a queue's owner asks for ([`Message`]) is looked at once in each turn of the thread; a bell begins one.
//!
//! The kernel has commands of a queue until its device is stopped, or the process ends. So one that was left or frozen stays here,
//! deaf, with its file open: what the kernel asks of it is asked of the next daemon again.

use std::io;
use std::sync::mpsc::TryRecvError;

use headpond_engine::io::{Reply, Request};

use super::attending::Attending;
use super::queue::{Message, Unattended};
use super::tags::{Event, Held};
use crate::buf::HostBuf;
use crate::ring::{GUEST, Ring};

/// Bits of a command's number that are its tag; above are the attendant's place, and the mark of a guest.
const TAG_BITS: u32 = 16;

/// All queues that one thread attends to. To be dropped after the ring.
#[derive(Default)]
pub struct Attendants(Vec<Option<Attendant>>);

struct Attendant {
    volume: u16,
    /// From when there is a device.
    attending: Option<Attending>,
    /// Until the kernel had its first commands for one wait: whether it has refused none of them.
    fetched: Option<io::Result<()>>,
    /// Takes no requests any more.
    parked: bool,
    /// `None`: it is deaf. Dropped last, which tells the queue's owner that all is over.
    queue: Option<Unattended>,
}

/// Who is to be answered.
pub struct Asker {
    place: usize,
    held: Held,
}

/// What a client asks.
pub struct Asked {
    /// Of this volume.
    pub volume: u16,
    /// This.
    pub request: Request<HostBuf>,
    /// Who is to be answered.
    pub asker: Asker,
}

impl Attendants {
    /// One more queue, of a volume.
    pub fn adopt(&mut self, volume: u16, queue: Unattended) {
        let new = Some(Attendant { volume, attending: None, fetched: None, parked: false, queue: Some(queue) });
        match self.0.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = new,
            None => self.0.push(new),
        }
    }

    /// Takes in the end of a command, by its number in the ring: what a client asks, if it brought that.
    pub fn completed(&mut self, number: u64, result: i32, ring: &mut Ring) -> Option<Asked> {
        let (place, tag) = (((number & !GUEST) >> TAG_BITS) as usize, number as u16);
        let found = self.0.get_mut(place).and_then(Option::as_mut).expect("who has commands in the ring is there");
        let attending = found.attending.as_mut().expect("who has commands in the ring attends");
        let takes = found.queue.is_some() && !found.parked;
        match attending.completed(tag, result) {
            Event::Request(held) if takes => {
                let (held, request) = attending.take(held, ring)?;
                Some(Asked { volume: found.volume, request, asker: Asker { place, held } })
            }
            Event::Refused(errno) if takes => {
                let Some(fetched) = &mut found.fetched else { attending.cannot_go_on(errno) };
                *fetched = Err(io::Error::from_raw_os_error(errno));
                None
            }
            // The next daemon is asked again.
            Event::Request(_) | Event::Refused(_) | Event::Gone => None,
        }
    }

    /// Answers a request; the ring's next wait tells the kernel.
    pub fn answer(&mut self, Asker { place, held }: Asker, reply: Reply<HostBuf>, ring: &mut Ring) {
        let found = self.0[place].as_mut().expect("who is to be answered is there");
        if let (Some(attending), Some(_)) = (&mut found.attending, &found.queue) {
            attending.answer(held, reply, ring);
        }
    }

    /// Does what the queues' owners want done. To be called when all that a wait brought was taken in.
    pub fn obey(&mut self, ring: &mut Ring) {
        for (number, place) in self.0.iter_mut().enumerate() {
            let Some(attendant) = place else { continue };
            attendant.tell_whether_fetched();
            attendant.obey(GUEST | (number as u64) << TAG_BITS, ring);
            if attendant.is_over() {
                *place = None;
            }
        }
    }

    /// Whether somebody waits to hear what the kernel says to first commands: the next wait must not be long.
    pub fn are_fetching(&self) -> bool {
        self.0.iter().flatten().any(|attendant| attendant.fetched.is_some())
    }
}

impl Attendant {
    fn tell_whether_fetched(&mut self) {
        let (Some(fetched), Some(queue)) = (self.fetched.take(), &self.queue) else { return };
        let refused = fetched.is_err();
        let _ = queue.attends.send(fetched);
        if refused {
            self.queue = None;
        }
    }

    fn obey(&mut self, mark: u64, ring: &mut Ring) {
        while let Some(queue) = &self.queue {
            match queue.messages.try_recv() {
                Ok(Message::Attend(device)) => match Attending::start(queue.place, device, queue.flushes.clone(), mark, ring) {
                    Ok(attending) => (self.attending, self.fetched) = (Some(attending), Some(Ok(()))),
                    Err(error) => {
                        let _ = queue.attends.send(Err(error));
                        self.queue = None;
                    }
                },
                Ok(Message::Park(parked)) => {
                    self.parked = true;
                    let _ = parked.send(());
                }
                Ok(Message::Freeze | Message::Leave) | Err(TryRecvError::Disconnected) => self.queue = None,
                Ok(Message::Answer(..)) => unreachable!("answers go to threads of queues"),
                Err(TryRecvError::Empty) => return,
            }
        }
    }

    fn is_over(&self) -> bool {
        self.attending.as_ref().map_or(self.queue.is_none(), Attending::is_over)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::{Arc, Mutex};
    use std::time::{Duration, Instant};

    use super::super::attending::Place;
    use super::super::queue::{Backend, Queue, Queues};
    use super::super::tags::Completion;
    use super::*;
    use crate::beside::Door;
    use crate::ring::Waker;
    use crate::runtime::OWED;

    /// What has a thread that attends, which is the test's own.
    struct Served {
        waker: Waker,
        queues: Mutex<Vec<Unattended>>,
    }

    impl Backend for Served {
        fn submit(&self, _: Request<HostBuf>, _: Option<Instant>, _: Completion) {
            unreachable!("requests of an adopted queue are not submitted");
        }

        fn adopt(&self, queue: Unattended) -> Waker {
            self.queues.lock().unwrap().push(queue);
            self.waker.clone()
        }

        fn door(&self) -> Option<Door> {
            None
        }
    }

    fn adopted(attendants: &mut Attendants, ring: &Ring, depth: u16) -> Queue {
        let served = Arc::new(Served { waker: ring.waker(), queues: Mutex::default() });
        let place = Place { number: 0, depth, lends: false };
        let queue = Queue::prepare(Queues::Served, place, served.clone(), Arc::default()).unwrap();
        attendants.adopt(3, served.queues.lock().unwrap().pop().unwrap());
        queue
    }

    #[test]
    fn whoever_made_a_queue_hears_that_its_first_commands_were_refused_and_its_place_is_free_again() {
        let (mut attendants, mut ring) = (Attendants::default(), Ring::new(8, 16).unwrap());
        let mut other = adopted(&mut attendants, &ring, 4);
        let mut queue = adopted(&mut attendants, &ring, 4);
        attendants.obey(&mut ring);
        assert!(!attendants.are_fetching());
        // It can be mapped as descriptors are, and takes no commands.
        queue.attend(Arc::new(File::open("/dev/zero").unwrap().into()));
        attendants.obey(&mut ring);
        assert!(attendants.are_fetching());
        ring.wait(Some(Duration::ZERO)).unwrap();
        let mut ended = Vec::new();
        ring.reap(&mut ended);
        assert_eq!(ended.len(), 4);
        for (number, result) in ended {
            assert!(number & GUEST != 0 && result < 0);
            assert!(attendants.completed(number, result, &mut ring).is_none());
        }
        attendants.obey(&mut ring);
        assert!(!attendants.are_fetching());
        queue.is_attending().unwrap_err();
        queue.join(Instant::now() + OWED);
        assert!(attendants.0[0].is_some() && attendants.0[1].is_none());
        other.leave();
        attendants.obey(&mut ring);
        other.join(Instant::now() + OWED);
        let _third = adopted(&mut attendants, &ring, 4);
        assert!(attendants.0[0].is_some() && attendants.0.len() == 2);
    }

    #[test]
    fn a_queue_that_is_parked_or_left_before_it_has_a_device_is_nobodys_burden() {
        let (mut attendants, mut ring) = (Attendants::default(), Ring::new(8, 16).unwrap());
        let queue = adopted(&mut attendants, &ring, 4);
        let parked = queue.park();
        attendants.obey(&mut ring);
        parked.recv().unwrap();
        drop(queue);
        attendants.obey(&mut ring);
        assert!(attendants.0[0].is_none());
        // A thread that ends with a queue still adopted keeps nobody waiting.
        let mut queue = adopted(&mut attendants, &ring, 4);
        drop(attendants);
        queue.join(Instant::now() + OWED);
        queue.is_attending().unwrap_err();
    }
}
