//! A small deterministic executor: request paths are written as async functions and read top to bottom.
//!
//! Nothing here knows a thread or a waker. Whoever waits leaves the number of its task with what it waits for;
//! what ends the wait puts that number into the ready queue. The order of everything follows from the order of inputs.

use crate::io::{Buf, Device, DeviceError, DeviceOp, DeviceResult, Effect, IoId};
use crate::marks::{Mark, Marks};
use crate::policy::endurance::Written;
use crate::policy::silence::{Answers, Moment};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};

/// How long a start, a checkpoint and a stop wait for a disk that answers nothing, before they go on without, in nanoseconds: its volume waits, and no
/// other.
pub(crate) const DISK_PATIENCE_NS: u64 = 10_000_000_000;

type Task = Pin<Box<dyn Future<Output = ()>>>;

enum IoState<B> {
    Waiting { task: Option<usize>, device: Device, since: Moment },
    Done(DeviceResult<B>),
}

/// Low bits of an operation's number that say its place in the table. Requests, and what each may have under way, are bounded far below
/// that.
const PLACE_BITS: u32 = 24;

/// Device operations in flight. The number of one is how many came before it, and its place: found without a search,
/// and not given again in twelve days of a million a second.
struct Ios<B> {
    places: Vec<Option<(u64, IoState<B>)>>,
    free: Vec<usize>,
    next: u64,
}

impl<B> Ios<B> {
    fn insert(&mut self, state: IoState<B>) -> u64 {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        assert!(place >> PLACE_BITS == 0, "more device operations are in flight than there are numbers for");
        let id = self.next << PLACE_BITS | place as u64;
        self.next += 1;
        self.places[place] = Some((id, state));
        id
    }

    fn place(id: u64) -> usize {
        (id & ((1 << PLACE_BITS) - 1)) as usize
    }

    fn get_mut(&mut self, id: u64) -> Option<&mut IoState<B>> {
        self.places.get_mut(Self::place(id))?.as_mut().filter(|(known, _)| *known == id).map(|(_, state)| state)
    }

    fn remove(&mut self, id: u64) -> Option<IoState<B>> {
        self.get_mut(id)?;
        self.free.push(Self::place(id));
        self.places[Self::place(id)].take().map(|(_, state)| state)
    }
}

/// Tasks, device operations in flight, timers, and the effects that wait to be taken.
pub(crate) struct Exec<B> {
    tasks: RefCell<Vec<Option<Task>>>,
    free: RefCell<Vec<usize>>,
    ready: RefCell<VecDeque<usize>>,
    current: Cell<usize>,
    ios: RefCell<Ios<B>>,
    effects: RefCell<VecDeque<Effect<B>>>,
    /// When cache devices have answered, by the time of [`Exec::attended`].
    answers: RefCell<Answers>,
    now: Cell<u64>,
    /// Time in which answers were listened for.
    attended: Cell<u64>,
    /// What passes at most between two looks at the clock of somebody who listens.
    longest_turn: Cell<u64>,
    /// Cache devices that were given up since they were silent, while it is of interest.
    silent: RefCell<Option<BTreeSet<u8>>>,
    /// When each volume's disk last answered, by the time of [`Exec::attended`].
    disks_heard: RefCell<BTreeMap<u16, u64>>,
    /// Operations of the witness that were given up and have not ended.
    witness_owes: RefCell<BTreeSet<u64>>,
    timers: RefCell<BTreeMap<(u64, u64), usize>>,
    next_timer: Cell<u64>,
    pub marks: Marks,
    /// What the cache devices are written, by whomever.
    pub written: RefCell<Written>,
}

impl<B: Buf> Exec<B> {
    pub fn new(now: u64) -> Self {
        Self {
            tasks: RefCell::default(),
            free: RefCell::default(),
            ready: RefCell::default(),
            current: Cell::new(usize::MAX),
            ios: RefCell::new(Ios { places: Vec::new(), free: Vec::new(), next: 0 }),
            effects: RefCell::new(VecDeque::new()),
            answers: RefCell::new(Answers::new(now)),
            now: Cell::new(now),
            attended: Cell::new(now),
            longest_turn: Cell::new(u64::MAX),
            silent: RefCell::default(),
            disks_heard: RefCell::default(),
            witness_owes: RefCell::default(),
            timers: RefCell::default(),
            next_timer: Cell::new(0),
            marks: Marks::default(),
            written: RefCell::default(),
        }
    }

    /// Now, in nanoseconds since some beginning.
    pub fn now(&self) -> u64 {
        self.now.get()
    }

    pub fn advance(&self, now: u64) {
        let before = self.now.replace(self.now.get().max(now));
        self.attended.set(self.attended.get() + (self.now.get() - before).min(self.longest_turn.get()));
        loop {
            let mut timers = self.timers.borrow_mut();
            match timers.first_key_value() {
                Some((&(at, n), &task)) if at <= self.now.get() => {
                    timers.remove(&(at, n));
                    self.wake(task);
                }
                _ => break,
            }
        }
    }

    /// The time in which answers were listened for, in nanoseconds: a clock that stands still while this thread is busy for long, or is
    /// stopped with its process or its machine. What devices have answered meanwhile is heard only afterwards, and what is
    /// submitted in a long turn begins behind it: by the clock on the wall both would look silent.
    pub fn attended(&self) -> u64 {
        self.attended.get()
    }

    /// From now on, or no longer, nothing more is asked of a cache device that was given up as silent: a start leaves none out before it
    /// ends, and would wait for each of thousands of reads again.
    pub fn asks_no_silent_ones(&self, so_it_is: bool) {
        *self.silent.borrow_mut() = so_it_is.then(BTreeSet::new);
    }

    pub fn is_silent(&self, device: Device) -> bool {
        let Device::Member(member) = device else { return false };
        self.silent.borrow().as_ref().is_some_and(|silent| silent.contains(&member))
    }

    /// Somebody who listens looks at the clock as often as `turn` from now on, and gives up after `limit`; in nanoseconds.
    pub fn listens_every(&self, turn: u64, limit: u64) {
        self.longest_turn.set(turn);
        self.answers.borrow_mut().limit(limit);
    }

    pub fn next_timer(&self) -> Option<u64> {
        self.timers.borrow().first_key_value().map(|((at, _), _)| *at)
    }

    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        let task: Task = Box::pin(task);
        let id = match self.free.borrow_mut().pop() {
            Some(id) => {
                self.tasks.borrow_mut()[id] = Some(task);
                id
            }
            None => {
                let mut tasks = self.tasks.borrow_mut();
                tasks.push(Some(task));
                tasks.len() - 1
            }
        };
        self.wake(id);
    }

    /// The same of a client's request. What most requests do not come to is in boxes of its own, so that the task is small enough for an
    /// allocator to find again at once what the one before gave back: of glibc's a thread keeps blocks up to 1,032 bytes. Where a handle to
    /// a buffer takes more than 32, as in the simulator, it may be larger.
    pub fn spawn_small<T: Future<Output = ()> + 'static>(&self, task: T) {
        const { assert!(size_of::<T>() <= 1032 || size_of::<B>() > 32, "a request's task is too large") };
        self.spawn(task);
    }

    fn wake(&self, task: usize) {
        self.ready.borrow_mut().push_back(task);
    }

    /// Runs until nobody is ready.
    pub fn run(&self) {
        loop {
            let Some(id) = self.ready.borrow_mut().pop_front() else { break };
            // A task that has ended may have been woken twice; its number may be somebody else's by now, who is then
            // polled once for nothing.
            let Some(mut task) = self.tasks.borrow_mut()[id].take() else { continue };
            let outer = self.current.replace(id);
            let done = task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
            self.current.set(outer);
            if done {
                self.free.borrow_mut().push(id);
            } else {
                self.tasks.borrow_mut()[id] = Some(task);
            }
        }
    }

    pub fn take_effect(&self) -> Option<Effect<B>> {
        self.effects.borrow_mut().pop_front()
    }

    pub fn effect(&self, effect: Effect<B>) {
        self.effects.borrow_mut().push_back(effect);
    }

    /// Submits a device operation; it runs whether or not its end is awaited.
    pub fn io(self: &Rc<Self>, device: Device, op: DeviceOp<B>) -> IoWait<B> {
        if self.is_silent(device) {
            let id = self.ios.borrow_mut().insert(IoState::Done(Err(DeviceError::TimedOut)));
            return IoWait { exec: self.clone(), id };
        }
        if let (Device::Member(member), DeviceOp::Write { bufs, .. }) = (device, &op) {
            let bytes = bufs.iter().map(|b| b.len() as u64).sum();
            self.written.borrow_mut().note(member, self.now(), bytes);
        }
        let since = self.answers.borrow().moment(self.attended());
        let id = self.ios.borrow_mut().insert(IoState::Waiting { task: None, device, since });
        self.effect(Effect::Submit { io: IoId(id), device, op });
        IoWait { exec: self.clone(), id }
    }

    /// The end of a device operation. One that nobody waits for any more is forgotten.
    pub fn complete(&self, io: IoId, result: DeviceResult<B>) {
        self.witness_owes.borrow_mut().remove(&io.0);
        let mut ios = self.ios.borrow_mut();
        let Some(state) = ios.get_mut(io.0).filter(|s| matches!(s, IoState::Waiting { .. })) else { return };
        let is_good = result.is_ok();
        if let IoState::Waiting { task, device, .. } = core::mem::replace(state, IoState::Done(result)) {
            match device {
                Device::Member(member) if is_good => self.answers.borrow_mut().hear(member, self.attended()),
                Device::Backing(volume) => _ = self.disks_heard.borrow_mut().insert(volume, self.attended()),
                _ => {}
            }
            if let Some(task) = task {
                self.wake(task);
            }
        }
    }

    /// Ends what a cache device owes, as if it were gone: its number is to be another's, whom none of that concerns.
    pub fn disown(&self, member: u8) {
        let mut ios = self.ios.borrow_mut();
        for (_, state) in ios.places.iter_mut().flatten() {
            let IoState::Waiting { task, device: Device::Member(of), .. } = state else { continue };
            if *of != member {
                continue;
            }
            self.marks.set(Mark::PredecessorOwes);
            let task = *task;
            *state = IoState::Done(Err(DeviceError::Gone));
            if let Some(task) = task {
                self.wake(task);
            }
        }
    }

    /// Whether a cache device has answered lately.
    pub fn is_heard(&self, member: u8) -> bool {
        self.answers.borrow().has_answered_lately(member, self.attended())
    }

    /// Cache devices that owe an answer for longer than that, in nanoseconds, as bits.
    pub fn owing(&self, longer_than: u64) -> u64 {
        let (ios, answers) = (self.ios.borrow(), self.answers.borrow());
        let late = |state: &IoState<B>| match state {
            IoState::Waiting { device: Device::Member(member), since, .. } => {
                (answers.moment(self.attended()).listened_since(*since) >= longer_than).then_some(1u64 << member)
            }
            _ => None,
        };
        ios.places.iter().flatten().filter_map(|(_, state)| late(state)).fold(0, |bits, bit| bits | bit)
    }

    /// Gives up on what cache devices and the witness owe an answer for, where a device has been silent for `limit` nanoseconds: see
    /// [`Answers::is_in_vain`]. A cache device that is needed is waited for. What is given up may still take effect.
    pub fn give_up(&self, limit: u64, is_needed: impl Fn(u8) -> bool) {
        let mut ios = self.ios.borrow_mut();
        let answers = self.answers.borrow();
        let now = self.attended();
        // In the order in which they began.
        let mut all: Vec<&mut (u64, IoState<B>)> = ios.places.iter_mut().flatten().collect();
        all.sort_unstable_by_key(|(id, _)| *id);
        // A start that cannot reach what it needs ends, and changes nothing.
        let starts = self.silent.borrow().is_some();
        let mut needed: BTreeMap<u8, bool> = BTreeMap::new();
        for (id, state) in all {
            let IoState::Waiting { task, device, since } = state else { continue };
            let (task, device, since) = (*task, *device, *since);
            let is_in_vain = match device {
                Device::Backing(_) => false,
                Device::Witness => answers.moment(now).listened_since(since) > limit,
                Device::Member(member) => answers.is_in_vain(member, since, now),
            };
            if !is_in_vain {
                continue;
            }
            if let Device::Member(member) = device {
                if *needed.entry(member).or_insert_with(|| !starts && is_needed(member)) {
                    self.marks.set(Mark::NeededIsWaitedFor);
                    continue;
                }
                if let Some(all) = self.silent.borrow_mut().as_mut() {
                    all.insert(member);
                }
            } else {
                self.witness_owes.borrow_mut().insert(*id);
            }
            self.marks.set(Mark::DeviceGivenUp);
            *state = IoState::Done(Err(DeviceError::TimedOut));
            if let Some(task) = task {
                self.wake(task);
            }
        }
    }

    /// Whether a volume's disk has owed an answer for so long, in nanoseconds, and given none to anything since.
    pub fn is_disk_silent(&self, volume: u16, limit: u64) -> bool {
        let (now, heard) = (self.attended(), self.disks_heard.borrow().get(&volume).copied());
        let (ios, answers) = (self.ios.borrow(), self.answers.borrow());
        let owes = |state: &IoState<B>| {
            matches!(state, IoState::Waiting { device: Device::Backing(of), since, .. }
                if *of == volume && answers.moment(now).listened_since(*since) >= limit)
        };
        heard.is_none_or(|heard| now - heard >= limit) && ios.places.iter().flatten().any(|(_, state)| owes(state))
    }

    /// Whether anything that the witness was asked, and was given up, may still take effect.
    pub fn witness_owes(&self) -> bool {
        !self.witness_owes.borrow().is_empty()
    }

    pub fn sleep_until(self: &Rc<Self>, at: u64) -> Sleep<B> {
        Sleep { exec: self.clone(), at, timer: None }
    }

    pub fn sleep(self: &Rc<Self>, nanoseconds: u64) -> Sleep<B> {
        self.sleep_until(self.now().saturating_add(nanoseconds))
    }

    /// Tasks that are alive.
    pub fn tasks(&self) -> usize {
        self.tasks.borrow().iter().flatten().count()
    }

    /// Forgets all tasks: the engine ends here.
    pub fn clear(&self) {
        let tasks = core::mem::take(&mut *self.tasks.borrow_mut());
        drop(tasks);
    }
}

/// What all of these end with, in their order; they go on beside each other.
pub(crate) async fn all<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    let mut under_way: Vec<_> = futures.into_iter().map(|f| (Box::pin(f), None)).collect();
    core::future::poll_fn(|cx| {
        let mut has_all = true;
        for (future, ended) in under_way.iter_mut().filter(|(_, ended)| ended.is_none()) {
            match future.as_mut().poll(cx) {
                Poll::Ready(value) => *ended = Some(value),
                Poll::Pending => has_all = false,
            }
        }
        if has_all { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    under_way.into_iter().filter_map(|(_, ended)| ended).collect()
}

/// Waits for the end of a device operation.
pub(crate) struct IoWait<B: Buf> {
    exec: Rc<Exec<B>>,
    id: u64,
}

impl<B: Buf> Future for IoWait<B> {
    type Output = DeviceResult<B>;
    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        let mut ios = self.exec.ios.borrow_mut();
        match ios.get_mut(self.id) {
            Some(IoState::Waiting { task, .. }) => {
                *task = Some(self.exec.current.get());
                Poll::Pending
            }
            Some(IoState::Done(_)) => match ios.remove(self.id) {
                Some(IoState::Done(result)) => Poll::Ready(result),
                _ => Poll::Ready(Err(DeviceError::Gone)),
            },
            None => Poll::Ready(Err(DeviceError::Gone)),
        }
    }
}

impl<B: Buf> Drop for IoWait<B> {
    fn drop(&mut self) {
        self.exec.ios.borrow_mut().remove(self.id);
    }
}

/// Waits for a time.
pub(crate) struct Sleep<B: Buf> {
    exec: Rc<Exec<B>>,
    at: u64,
    timer: Option<u64>,
}

impl<B: Buf> Future for Sleep<B> {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if self.exec.now() >= self.at {
            return Poll::Ready(());
        }
        if self.timer.is_none() {
            let n = self.exec.next_timer.get();
            self.exec.next_timer.set(n + 1);
            self.exec.timers.borrow_mut().insert((self.at, n), self.exec.current.get());
            self.timer = Some(n);
        }
        Poll::Pending
    }
}

impl<B: Buf> Drop for Sleep<B> {
    fn drop(&mut self) {
        // Whoever was woken by something else sleeps no more.
        if let Some(n) = self.timer {
            self.exec.timers.borrow_mut().remove(&(self.at, n));
        }
    }
}

/// Something that tasks wait for to change. A wait ends with the next [`Signal::notify`]; whoever waits looks at
/// the condition again.
pub(crate) struct Signal<B> {
    exec: Rc<Exec<B>>,
    round: Cell<u64>,
    waiting: RefCell<Vec<usize>>,
}

impl<B: Buf> Signal<B> {
    pub fn new(exec: &Rc<Exec<B>>) -> Self {
        Self { exec: exec.clone(), round: Cell::new(0), waiting: RefCell::default() }
    }

    pub fn notify(&self) {
        self.round.set(self.round.get() + 1);
        for task in self.waiting.borrow_mut().drain(..) {
            self.exec.wake(task);
        }
    }

    pub fn wait(&self) -> SignalWait<'_, B> {
        SignalWait { signal: self, round: self.round.get() }
    }

    /// Waits for the next notify or for a time, whichever is first.
    pub async fn wait_until(&self, at: u64) {
        let mut sleep = self.exec.sleep_until(at);
        let mut wait = self.wait();
        core::future::poll_fn(|cx| {
            if Pin::new(&mut wait).poll(cx).is_ready() || Pin::new(&mut sleep).poll(cx).is_ready() {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }
}

/// Waits for a [`Signal`].
pub(crate) struct SignalWait<'a, B> {
    signal: &'a Signal<B>,
    round: u64,
}

impl<B: Buf> Future for SignalWait<'_, B> {
    type Output = ();
    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if self.signal.round.get() != self.round {
            return Poll::Ready(());
        }
        let task = self.signal.exec.current.get();
        let mut waiting = self.signal.waiting.borrow_mut();
        if !waiting.contains(&task) {
            waiting.push(task);
        }
        Poll::Pending
    }
}

/// A value that one task leaves for others.
pub(crate) struct Slot<T, B> {
    value: RefCell<Option<T>>,
    signal: Signal<B>,
}

impl<T: Clone, B: Buf> Slot<T, B> {
    pub fn new(exec: &Rc<Exec<B>>) -> Rc<Self> {
        Rc::new(Self { value: RefCell::new(None), signal: Signal::new(exec) })
    }

    pub fn set(&self, value: T) {
        *self.value.borrow_mut() = Some(value);
        self.signal.notify();
    }

    pub async fn get(&self) -> T {
        loop {
            let wait = self.signal.wait();
            let value = self.value.borrow().clone();
            match value {
                Some(value) => return value,
                None => wait.await,
            }
        }
    }

    /// The value, if it is left before a time has come.
    pub async fn get_until(&self, at: u64) -> Option<T> {
        loop {
            let value = self.value.borrow().clone();
            if value.is_some() || self.signal.exec.now() >= at {
                return value;
            }
            self.signal.wait_until(at).await;
        }
    }
}
