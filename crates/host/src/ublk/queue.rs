//! One queue of a ublk device, and who attends to it: a thread of its own, or the one that serves the volume.
//!
//! A thread of its own has a ring of its own, on which requests come and are answered. The engine gets them, and answers, by a
//! message and a bell: that costs wake-ups, and payload is copied beside the engine's work. Where there is no processor for
//! that, the engine's thread attends itself (`attendants.rs`).

use std::io;
use std::mem;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use headpond_engine::io::{Reply, Request};

use super::attending::{Attending, Place};
use super::flushing::Flushes;
use super::tags::{Completion, Event, Held};
use crate::beside::{Door, Ended, Reader};
use crate::buf::HostBuf;
use crate::fuse::mark_io_flusher;
use crate::last_words::or_abort;
use crate::ring::{GUEST, Waker};

/// What serves a volume.
pub trait Backend: Send + Sync + 'static {
    /// Starts on a request and returns soon. It was begun `since` then, if that is not now.
    fn submit(&self, request: Request<HostBuf>, since: Option<Instant>, done: Completion);

    /// Lets the thread that serves attend to a queue itself: requests of that one are not submitted. What interrupts that
    /// thread's waits.
    fn adopt(&self, queue: Unattended) -> Waker;

    /// What threads of queues may read by themselves, if anything.
    fn door(&self) -> Option<Door>;
}

/// Who attends to the queues of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Queues {
    /// The thread that serves the volume attends to the only one.
    Served,
    /// So many, each with a thread of its own.
    Threads(u16),
}

impl Queues {
    /// What suits a computer with so many processors. Up to two are busy with the engine and its clients: there a message to
    /// another thread costs a request more than the copy that this thread would take off the engine's. Of more, as many copy
    /// beside the engine as there are, and at most four.
    pub fn suiting(processors: usize) -> Queues {
        match processors {
            0..=2 => Queues::Served,
            more => Queues::Threads(more.min(4) as u16),
        }
    }

    /// What suits this computer.
    pub fn suiting_here() -> Queues {
        Queues::suiting(thread::available_parallelism().map_or(1, usize::from))
    }

    /// How many a new device has.
    pub(super) fn number(self) -> u16 {
        match self {
            Queues::Served => 1,
            Queues::Threads(number) => number.max(1),
        }
    }
}

/// What whoever attends to a queue is told.
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

/// A queue that nobody attends to yet, for whoever is to.
pub struct Unattended {
    pub(super) place: Place,
    pub(super) messages: Receiver<Message>,
    /// Tells that all tags are fetched, or why not; dropped at the end.
    pub(super) attends: Sender<io::Result<()>>,
    /// Those of all queues of the device.
    pub(super) flushes: Arc<Flushes>,
}

/// A queue, from outside.
pub struct Queue {
    inbox: Sender<Message>,
    waker: Waker,
    attended: Receiver<io::Result<()>>,
    thread: Option<OwnThread>,
}

/// A thread of a queue's own, from outside.
struct OwnThread {
    thread: JoinHandle<()>,
    /// Hung up when it ends.
    ends: Receiver<()>,
}

impl Queue {
    /// Finds somebody who will attend to it; there is no device yet.
    pub fn prepare<B: Backend>(by: Queues, place: Place, backend: Arc<B>, flushes: Arc<Flushes>) -> io::Result<Queue> {
        let (inbox, messages) = mpsc::channel();
        let (attends, attended) = mpsc::channel();
        let queue = Unattended { place, messages, attends, flushes };
        let (waker, thread) = match by {
            Queues::Served => (backend.adopt(queue), None),
            Queues::Threads(_) => {
                let (waker, thread) = start_thread(queue, backend, inbox.clone())?;
                (waker, Some(thread))
            }
        };
        Ok(Queue { inbox, waker, attended, thread })
    }

    /// Has a device attended to; [`Queue::is_attending`] waits until it is.
    pub fn attend(&self, device: Arc<OwnedFd>) {
        self.tell(Message::Attend(device));
    }

    /// Waits until all its tags are fetched.
    pub fn is_attending(&self) -> io::Result<()> {
        self.attended.recv().unwrap_or_else(|_| Err(io::Error::other("the thread of a queue ended")))
    }

    /// Lets go of the device: the kernel keeps it, and all that is not answered. A thread that also serves the volume takes and
    /// answers nothing of it any more; the kernel has its commands until the process ends, and gives the device to nobody before.
    pub fn leave(&self) {
        self.tell(Message::Leave);
    }

    /// Takes no more requests: they wait in the kernel. Those that were taken are answered as before. What this returns has
    /// something to receive, or is closed, when the backend gets no more of them.
    pub fn park(&self) -> Receiver<()> {
        let (parked, is_parked) = mpsc::channel();
        self.tell(Message::Park(parked));
        is_parked
    }

    /// Does nothing any more, for as long as the process runs this program: the thread, its ring and its commands end
    /// together, as when the process is killed.
    pub fn freeze(&self) {
        self.tell(Message::Freeze);
    }

    /// Waits until nobody attends to it any more, after [`Queue::leave`], or after the device was stopped; `until` a moment at the latest. A
    /// cache device may owe a read to a thread of the queue's own, which ends when that is answered, or with the process. Where the
    /// device was stopped such a thread has let go of it; where it was left, the kernel has the queue's commands for as long.
    pub fn join(&mut self, until: Instant) {
        let left = || until.saturating_duration_since(Instant::now());
        while self.attended.recv_timeout(left()).is_ok() {}
        if let Some(OwnThread { thread, ends }) = self.thread.take()
            && ends.recv_timeout(left()) == Err(RecvTimeoutError::Disconnected)
        {
            let _ = thread.join();
        }
    }

    fn tell(&self, message: Message) {
        // Fails when nobody attends to it any more.
        let _ = self.inbox.send(message);
        self.waker.wake();
    }
}

/// Starts a thread for a queue, with a ring; what interrupts its waits.
fn start_thread<B: Backend>(queue: Unattended, backend: Arc<B>, answers: Sender<Message>) -> io::Result<(Waker, OwnThread)> {
    let (up, is_up) = mpsc::channel();
    let (is_there, ends) = mpsc::channel();
    let thread = thread::Builder::new().name(format!("ublk-{}", queue.place.number)).spawn(move || {
        let _is_there: Sender<()> = is_there;
        let body = || {
            mark_io_flusher();
            let reader = match Reader::new(u32::from(queue.place.depth) * 2, backend.door()) {
                Ok(reader) => reader,
                Err(error) => return drop(up.send(Err(error))),
            };
            let _ = up.send(Ok(reader.waker()));
            let Ok(Message::Attend(device)) = queue.messages.recv() else { return };
            match Own::start(queue, reader, device, backend, answers) {
                Ok(own) => own.run(),
                Err((error, queue)) => drop(queue.attends.send(Err(error))),
            }
        };
        // Its clients would wait for ever. The kernel keeps what they ask for the next daemon.
        or_abort(
            "a thread that serves a ublk queue panicked; the process ends. What was acknowledged is on the cache devices, and what was \
             not waits in the kernel. Start the daemon again.",
            body,
        );
    })?;
    let waker = is_up.recv().map_err(|_| io::Error::other("the thread of a queue ended"))??;
    Ok((waker, OwnThread { thread, ends }))
}

/// A queue with a thread of its own.
struct Own<B> {
    /// Before `attending`: while its ring is there, the kernel may have commands of ours.
    reader: Reader<Held>,
    attending: Attending,
    queue: Unattended,
    backend: Arc<B>,
    answers: Sender<Message>,
    /// What ended of the queue's commands; empty between turns.
    ended: Vec<(u64, i32)>,
    told_to_leave: bool,
}

impl<B: Backend> Own<B> {
    /// Fetches all tags. When this is done on all queues, the device can be started.
    fn start(
        queue: Unattended,
        mut reader: Reader<Held>,
        device: Arc<OwnedFd>,
        backend: Arc<B>,
        answers: Sender<Message>,
    ) -> Result<Own<B>, (io::Error, Unattended)> {
        let attending = match Attending::start(queue.place, device, queue.flushes.clone(), GUEST, reader.ring()) {
            Ok(attending) => attending,
            Err(error) => return Err((error, queue)),
        };
        let mut own = Own { reader, attending, queue, backend, answers, ended: Vec::new(), told_to_leave: false };
        own.wait(Some(Duration::ZERO));
        if let Some((_, result)) = own.ended.iter().find(|(_, result)| *result < 0) {
            let error = io::Error::from_raw_os_error(-result);
            return Err((error, own.queue));
        }
        own.take();
        Ok(own)
    }

    fn run(mut self) {
        let _ = self.queue.attends.send(Ok(()));
        while !self.told_to_leave && !self.attending.is_over() {
            self.wait(None);
            self.take();
            self.give();
            while let Ok(message) = self.queue.messages.try_recv() {
                match message {
                    Message::Answer(held, reply) => self.attending.answer(held, reply, self.reader.ring()),
                    Message::Park(parked) => {
                        self.end_reading();
                        let _ = parked.send(());
                        self.only_answer();
                    }
                    Message::Leave => self.told_to_leave = true,
                    Message::Freeze => freeze(),
                    Message::Attend(_) => {}
                }
            }
        }
        self.end();
    }

    /// Lets go of all. A cache device may owe the ring a read, for which the reader waits: whoever stopped the device is to wait for the
    /// queue alone.
    fn end(self) {
        if self.attending.is_over() {
            // None of the queue's commands is in the ring any more.
            let Own { reader, attending, queue, .. } = self;
            drop((attending, queue));
            drop(reader);
        }
    }

    /// Takes no request off the ring any more, and answers those that were taken, until it is told to do nothing at all.
    fn only_answer(&mut self) {
        while let Ok(message) = self.queue.messages.recv() {
            match message {
                Message::Answer(held, reply) => self.attending.answer(held, reply, self.reader.ring()),
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
            self.wait(Some(Duration::ZERO));
        }
    }

    fn wait(&mut self, limit: Option<Duration>) {
        if let Err(error) = self.reader.wait(limit, &mut self.ended) {
            panic!("the ring of queue {} refused to wait: {error}", self.queue.place.number);
        }
    }

    /// Takes what clients ask: what can be read here is, and all else is the backend's.
    fn take(&mut self) {
        let mut ended = mem::take(&mut self.ended);
        for (number, result) in ended.drain(..) {
            match self.attending.completed(number as u16, result) {
                Event::Request(held) => {
                    let Some((held, request)) = self.attending.take(held, self.reader.ring()) else { continue };
                    if let Err(held) = self.reader.begin(&request, held) {
                        self.submit(held, request, None);
                    }
                }
                Event::Gone => {}
                Event::Refused(errno) => self.attending.cannot_go_on(errno),
            }
        }
        self.ended = ended;
    }

    /// Answers what was read here.
    fn give(&mut self) {
        for ended in self.reader.ended() {
            match ended {
                Ended::Read(held, data) => self.attending.answer(held, Ok(vec![data]), self.reader.ring()),
                Ended::Ask(held, request, since) => self.submit(held, request, Some(since)),
            }
        }
    }

    /// Waits for what is being read here. No request is taken meanwhile: the kernel asks the next daemon.
    fn end_reading(&mut self) {
        while !self.reader.is_idle() {
            self.wait(None);
            self.give();
        }
    }

    fn submit(&self, held: Held, request: Request<HostBuf>, since: Option<Instant>) {
        self.backend.submit(request, since, Completion::new(held, self.answers.clone(), self.reader.waker()));
    }
}

/// Until the process ends, or runs another program.
fn freeze() -> ! {
    loop {
        thread::park();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::Claim;
    use crate::runtime::OWED;
    use crate::silent;
    use std::fs::File;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Stdio};

    struct Nobody;

    impl Backend for Nobody {
        fn submit(&self, _: Request<HostBuf>, _: Option<Instant>, _: Completion) {
            unreachable!("there are no requests");
        }

        fn adopt(&self, _: Unattended) -> Waker {
            unreachable!("its queues have threads");
        }

        fn door(&self) -> Option<Door> {
            None
        }
    }

    /// The thread waited for the read before it let go of the queue, and whoever stopped the device for the thread: a detach, or the daemon's
    /// end, without a limit.
    #[test]
    fn who_stops_a_device_does_not_wait_for_what_a_cache_device_owes_the_thread_of_a_queue() {
        let folder = tempfile::tempdir().unwrap();
        let Some(disk) = silent::Disk::new(&folder.path().join("mount"), 16 << 20) else { return };
        let claim = Claim::take(&disk.path(), Duration::from_secs(5)).unwrap();
        disk.fall_silent();
        // It can be mapped as descriptors are, and takes no commands.
        let device: Arc<OwnedFd> = Arc::new(File::open("/dev/zero").unwrap().into());
        let is_open = Arc::downgrade(&device);
        let place = Place { number: 0, depth: 4, lends: false };
        let (inbox, messages) = mpsc::channel();
        let (attends, attended) = mpsc::channel();
        let (up, is_up) = mpsc::channel();
        let (is_there, ends) = mpsc::channel();
        let answers = inbox.clone();
        let thread = thread::spawn(move || {
            let _is_there: Sender<()> = is_there;
            let mut reader = Reader::owed_by(claim);
            up.send(reader.waker()).unwrap();
            let queue = Unattended { place, messages, attends, flushes: Arc::default() };
            let attending = Attending::start(place, device, queue.flushes.clone(), GUEST, reader.ring()).unwrap();
            let (backend, ended) = (Arc::new(Nobody), Vec::new());
            let mut own = Own { reader, attending, queue, backend, answers, ended, told_to_leave: false };
            // As if the device had been stopped.
            while !own.attending.is_over() {
                own.wait(Some(Duration::from_secs(1)));
                own.ended.drain(..).for_each(|(tag, _)| _ = own.attending.completed(tag as u16, -libc::ENODEV));
            }
            own.run();
        });
        let mut queue = Queue { inbox, waker: is_up.recv().unwrap(), attended, thread: Some(OwnThread { thread, ends }) };
        queue.is_attending().unwrap();
        let (told, joined) = mpsc::channel();
        thread::spawn(move || {
            queue.join(Instant::now() + OWED);
            let _ = told.send(());
        });
        let joined = joined.recv_timeout(OWED * 6);
        let is_open = is_open.upgrade().is_some();
        disk.speak();
        assert_eq!((joined, is_open), (Ok(()), false));
    }

    struct Panics;

    impl Backend for Panics {
        fn submit(&self, _: Request<HostBuf>, _: Option<Instant>, _: Completion) {
            unreachable!("there are no requests");
        }

        fn adopt(&self, _: Unattended) -> Waker {
            unreachable!("its queues have threads");
        }

        fn door(&self) -> Option<Door> {
            panic!("as by a mistake");
        }
    }

    /// The last words of such a thread panicked themselves where their reader was gone: it ended, and its process did not. Clients waited for ever.
    #[test]
    fn a_thread_that_panics_ends_the_process_also_where_nobody_reads_what_it_says() {
        const CHILD: &str = "HEADPOND_TEST_PANICS";
        if std::env::var_os(CHILD).is_some() {
            rustix::process::setrlimit(
                rustix::process::Resource::Core,
                rustix::process::Rlimit { current: Some(0), maximum: Some(0) },
            )
            .unwrap();
            let place = Place { number: 0, depth: 4, lends: false };
            let _ = Queue::prepare(Queues::Threads(1), place, Arc::new(Panics), Arc::default());
            return;
        }
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let test = "ublk::queue::tests::a_thread_that_panics_ends_the_process_also_where_nobody_reads_what_it_says";
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args([test, "--exact", "--nocapture"]).env(CHILD, "1").stdout(Stdio::null()).stderr(writer);
        let ended = child.status().unwrap();
        assert_eq!(ended.signal(), Some(libc::SIGABRT), "{ended}");
    }

    #[test]
    fn the_thread_that_serves_attends_to_the_only_queue_where_no_processor_is_left_for_others() {
        for processors in 0..=2 {
            assert_eq!(Queues::suiting(processors), Queues::Served);
        }
        assert_eq!(Queues::suiting(3), Queues::Threads(3));
        assert_eq!(Queues::suiting(64), Queues::Threads(4));
        assert_eq!((Queues::Served.number(), Queues::Threads(3).number()), (1, 3));
    }
}
