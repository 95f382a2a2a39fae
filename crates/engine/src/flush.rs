//! Flushes of one device, shared: whoever asks gets a flush that is issued after he asked (R6, R9).

use crate::exec::{Exec, Slot};
use crate::io::{Buf, Device, DeviceError, DeviceOp};
use alloc::rc::Rc;
use core::cell::{Cell, RefCell};

type Outcome<B> = Rc<Slot<Result<(), DeviceError>, B>>;

/// The flushes of one device.
pub(crate) struct Flusher<B: Buf> {
    device: Device,
    exec: Rc<Exec<B>>,
    /// Whether writes have completed since the last flush was issued. True after a start: what a dead daemon wrote is
    /// not known to be durable (R14).
    unflushed: Cell<bool>,
    in_flight: RefCell<Option<Outcome<B>>>,
    next: RefCell<Option<Outcome<B>>>,
}

impl<B: Buf> Flusher<B> {
    pub fn new(exec: &Rc<Exec<B>>, device: Device) -> Rc<Self> {
        Rc::new(Self {
            device,
            exec: exec.clone(),
            unflushed: Cell::new(true),
            in_flight: RefCell::new(None),
            next: RefCell::new(None),
        })
    }

    /// A write to the device has completed. To be said before the write is acknowledged to anybody.
    pub fn wrote(&self) {
        self.unflushed.set(true);
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
        let mut next = self.next.borrow_mut();
        let slot = next.get_or_insert_with(|| Slot::new(&self.exec)).clone();
        drop(next);
        if self.in_flight.borrow().is_none() {
            self.issue();
        }
        slot
    }

    /// As [`Flusher::request`], and waits for it.
    pub async fn flush(self: &Rc<Self>) -> Result<(), DeviceError> {
        self.request().get().await
    }

    fn issue(self: &Rc<Self>) {
        let Some(slot) = self.next.borrow_mut().take() else { return };
        *self.in_flight.borrow_mut() = Some(slot.clone());
        self.unflushed.set(false);
        let wait = self.exec.io(self.device, DeviceOp::Flush);
        let this = self.clone();
        self.exec.spawn(async move {
            let result = wait.await.map(|_| ());
            if result.is_err() {
                // Nothing is known to be durable that was not before.
                this.unflushed.set(true);
            }
            *this.in_flight.borrow_mut() = None;
            slot.set(result);
            this.issue();
        });
    }
}
