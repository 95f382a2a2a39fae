//! Flushes of one device, shared: whoever asks gets a flush that is issued after he asked (R6, R9).

use crate::exec::{Exec, Signal, SignalWait, Slot};
use crate::io::{Buf, Device, DeviceError, DeviceOp};
use crate::marks::Mark;
use alloc::rc::Rc;
use core::cell::{Cell, RefCell};

type Outcome<B> = Rc<Slot<Result<(), DeviceError>, B>>;

/// What has to come before all that a device had completed at some time is durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Due {
    /// The flush that covers it, in the order in which they are issued.
    flush: u64,
    /// Flushes that had failed by then.
    failures: u64,
}

/// The flushes of one device.
pub(crate) struct Flusher<B: Buf> {
    device: Device,
    exec: Rc<Exec<B>>,
    /// Whether writes have completed since the last flush was issued. True after a start: what a dead daemon wrote is
    /// not known to be durable (R14).
    unflushed: Cell<bool>,
    /// Flushes that failed. Whoever wants to know that his writes are durable compares it with what it was before them:
    /// a later flush that ends well says nothing of what a failed one should have covered (R9).
    failures: Cell<u64>,
    /// Writes of clients, acknowledged and nowhere else, have completed since the last flush was issued. True after a
    /// start, for a dead daemon's.
    owes: Cell<bool>,
    /// Such writes may have been covered by a flush that failed, and no client has been told.
    lost: Cell<bool>,
    /// How often that has come to be.
    to_be_told: Cell<u64>,
    /// Writes of clients that are on this device alone, and were acknowledged; and how many had been when it came to be last.
    acknowledged: Cell<u64>,
    lost_at: Cell<u64>,
    /// A flush has failed, or a client has been told of it.
    news: Signal<B>,
    in_flight: RefCell<Option<Outcome<B>>>,
    /// When that was issued.
    issued: Cell<u64>,
    /// Flushes issued so far, and the last of them that ended well.
    issues: Cell<u64>,
    ended_well: Cell<u64>,
    /// The one in flight covers such writes.
    in_flight_owed: Cell<bool>,
    next: RefCell<Option<Outcome<B>>>,
    /// Somebody wants the next one now.
    hurried: Cell<bool>,
}

impl<B: Buf> Flusher<B> {
    pub fn new(exec: &Rc<Exec<B>>, device: Device) -> Rc<Self> {
        Self::after(exec, device, false)
    }

    /// As [`Flusher::new`], where a flush failed before the last start, and no client has been told.
    pub fn after(exec: &Rc<Exec<B>>, device: Device, lost: bool) -> Rc<Self> {
        Rc::new(Self {
            device,
            exec: exec.clone(),
            unflushed: Cell::new(true),
            failures: Cell::new(0),
            owes: Cell::new(true),
            lost: Cell::new(lost),
            to_be_told: Cell::new(0),
            acknowledged: Cell::new(0),
            lost_at: Cell::new(0),
            news: Signal::new(exec),
            in_flight: RefCell::new(None),
            issued: Cell::new(0),
            issues: Cell::new(0),
            ended_well: Cell::new(0),
            in_flight_owed: Cell::new(false),
            next: RefCell::new(None),
            hurried: Cell::new(false),
        })
    }

    /// A write to the device has completed, and is not durable by itself ([`Reach::Durable`](crate::io::Reach)). To be said before the
    /// write is acknowledged to anybody.
    pub fn wrote(&self) {
        self.unflushed.set(true);
    }

    /// As [`Flusher::wrote`], for a client's write that is on this device alone.
    pub fn wrote_for_client(&self) {
        self.unflushed.set(true);
        self.owes.set(true);
    }

    /// Whether it has writes of clients that are nowhere else, and not flushed.
    pub fn owes(&self) -> bool {
        self.owes.get()
    }

    /// Flushes that have failed so far.
    pub fn failures(&self) -> u64 {
        self.failures.get()
    }

    /// A client's write that began when there were `failures` is about to be acknowledged: if a flush has failed since,
    /// the next FLUSH must not say that this one is durable.
    pub fn acknowledging(&self, failures: u64) {
        self.acknowledged.set(self.acknowledged.get() + 1);
        if self.failures.get() != failures {
            self.exec.marks.set(Mark::FlushFailedMeanwhile);
        }
        if self.failures.get() != failures {
            self.lose();
        }
    }

    /// How many writes of clients that are on this device alone were acknowledged so far.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged.get()
    }

    /// What was acknowledged may be lost: clients are to be told.
    fn lose(&self) {
        self.lost_at.set(self.acknowledged.get());
        self.to_be_told.set(self.to_be_told.get() + 1);
        self.lost.set(true);
        self.news.notify();
    }

    /// How often clients had to be told that acknowledged writes may be lost. Of what comes under a FLUSH each of several must tell, whichever of them
    /// was the one that took it ([`Flusher::take_lost`]).
    pub fn to_be_told(&self) -> u64 {
        self.to_be_told.get()
    }

    /// Whether acknowledged writes of clients may be lost, which is told once: by a FLUSH that began when so many had been `acknowledged`, unless
    /// what may be lost came later. Then the next one says it, too.
    pub fn take_lost(&self, acknowledged: u64) -> bool {
        if !self.lost.get() {
            return false;
        }
        if self.lost_at.get() > acknowledged {
            self.exec.marks.set(Mark::FailedFlushToldAgain);
            return true;
        }
        self.lost.set(false);
        self.news.notify();
        true
    }

    /// The same, and nobody is told.
    pub fn is_lost(&self) -> bool {
        self.lost.get()
    }

    /// Whoever waits for news looks again.
    pub fn tell(&self) {
        self.news.notify();
    }

    /// Ends when a flush fails from now on, or somebody is told of one.
    pub fn news(&self) -> SignalWait<'_, B> {
        self.news.wait()
    }

    /// As [`Flusher::news`], and at a time at the latest.
    pub async fn news_until(&self, at: u64) {
        self.news.wait_until(at).await;
    }

    /// As [`Flusher::flush`], for writes that began when there were `failures`: none may have failed since.
    pub async fn flush_since(self: &Rc<Self>, failures: u64) -> Result<(), DeviceError> {
        self.end_since(self.request(), failures).await
    }

    /// The same of one that was requested before.
    pub async fn end_since(&self, requested: Outcome<B>, failures: u64) -> Result<(), DeviceError> {
        requested.get().await?;
        if self.failures.get() == failures { Ok(()) } else { Err(DeviceError::Failed) }
    }

    /// What must come before all that has completed by now is durable.
    pub fn due(&self) -> Due {
        Due { flush: self.issues.get() + u64::from(self.unflushed.get()), failures: self.failures.get() }
    }

    /// Whether it has come. Where a flush has failed since it never will (R9).
    pub fn has_come(&self, due: Due) -> bool {
        self.ended_well.get() >= due.flush && self.failures.get() == due.failures
    }

    /// Whether a flush has been under way for so long, in nanoseconds.
    pub fn is_silent_for(&self, limit: u64) -> bool {
        self.in_flight.borrow().is_some() && self.exec.now() - self.issued.get() >= limit
    }

    /// Asks for all writes completed so far to be durable. The flush is under way whether or not it is awaited.
    pub fn request(self: &Rc<Self>) -> Outcome<B> {
        if !self.unflushed.get() {
            if let Some(current) = self.in_flight.borrow().as_ref() {
                return current.clone();
            }
            let done = Slot::new(&self.exec);
            done.set(Ok(()));
            return done;
        }
        let slot = self.the_next();
        self.hurry(&slot);
        slot
    }

    /// As [`Flusher::request`], by the flush that somebody else asks for before `until` has come, or else by one of its own then.
    pub fn request_after(self: &Rc<Self>, until: impl Future<Output = ()> + 'static) -> Outcome<B> {
        if !self.unflushed.get() {
            return self.request();
        }
        let slot = self.the_next();
        let (this, awaited) = (self.clone(), slot.clone());
        self.exec.spawn(async move {
            until.await;
            this.hurry(&awaited);
        });
        slot
    }

    fn the_next(&self) -> Outcome<B> {
        self.next.borrow_mut().get_or_insert_with(|| Slot::new(&self.exec)).clone()
    }

    /// Has the next flush issued as soon as none is in flight, if it is still this one.
    fn hurry(self: &Rc<Self>, slot: &Outcome<B>) {
        if !self.next.borrow().as_ref().is_some_and(|next| Rc::ptr_eq(next, slot)) {
            return;
        }
        self.hurried.set(true);
        if self.in_flight.borrow().is_none() {
            self.issue();
        }
    }

    /// Asks for all writes of clients that were acknowledged and are on this device alone to be durable. What else was
    /// written, by destage, is in the cache as well: no client waits for it, or is told if it fails.
    pub fn request_owed(self: &Rc<Self>) -> Outcome<B> {
        if self.owes.get() {
            return self.request();
        }
        if let Some(current) = self.in_flight.borrow().as_ref().filter(|_| self.in_flight_owed.get()) {
            return current.clone();
        }
        let done = Slot::new(&self.exec);
        done.set(Ok(()));
        done
    }

    /// As [`Flusher::request`], and waits for it.
    pub async fn flush(self: &Rc<Self>) -> Result<(), DeviceError> {
        self.request().get().await
    }

    fn issue(self: &Rc<Self>) {
        if !self.hurried.take() {
            return;
        }
        let Some(slot) = self.next.borrow_mut().take() else { return };
        *self.in_flight.borrow_mut() = Some(slot.clone());
        self.issued.set(self.exec.now());
        let number = self.issues.get() + 1;
        self.issues.set(number);
        self.unflushed.set(false);
        let owed = self.owes.take();
        self.in_flight_owed.set(owed);
        let wait = self.exec.io(self.device, DeviceOp::Flush);
        let this = self.clone();
        self.exec.spawn(async move {
            let result = wait.await.map(|_| ());
            if result.is_err() {
                this.exec.marks.set(if owed { Mark::OwedFlushFails } else { Mark::FlushFails });
                // Nothing is known to be durable that was not before.
                this.unflushed.set(true);
                this.failures.set(this.failures.get() + 1);
                // Nor is what was acknowledged while it was under way: the device may have had it before it flushed.
                if owed || this.owes.get() {
                    this.lose();
                } else {
                    this.news.notify();
                }
            } else {
                this.ended_well.set(number);
            }
            *this.in_flight.borrow_mut() = None;
            slot.set(result);
            this.issue();
        });
    }
}
