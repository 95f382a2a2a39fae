//! What stands between callers and a volume's number, which may be another volume's later.
//!
//! Whoever passes is counted until it has its answer; a closed gate lets nobody pass.

use std::collections::BTreeMap;
use std::sync::mpsc::{self, Sender};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use headpond_engine::io::{Reply, Request};

use crate::buf::HostBuf;
use crate::runtime::Handle;

/// Why nobody passes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Closed {
    /// The pool is closed.
    Pool,
    /// The volume is detached, or is being detached.
    Volume,
}

type Answer = Result<Reply<HostBuf>, Closed>;

pub(super) struct Gate {
    handle: Handle,
    volume: u16,
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    closed: Option<Closed>,
    next: u64,
    /// Whoever waits for an answer.
    waiting: BTreeMap<u64, Sender<Answer>>,
}

/// Answers when it is dropped, if nobody did: the engine has ended.
struct Promise(Sender<Answer>);

impl Promise {
    fn keep(self, reply: Reply<HostBuf>) {
        let _ = self.0.send(Ok(reply));
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        // Whoever has its answer has left, and hears no second one.
        let _ = self.0.send(Err(Closed::Pool));
    }
}

impl Gate {
    pub fn new(handle: Handle, volume: u16) -> Gate {
        Gate { handle, volume, state: Mutex::default(), changed: Condvar::new() }
    }

    pub fn is_closed(&self) -> bool {
        self.lock().closed.is_some()
    }

    /// One request and its answer, if the gate is open.
    pub fn ask(&self, request: Request<HostBuf>) -> Answer {
        let (sender, answer) = mpsc::channel();
        let ticket = {
            let mut state = self.lock();
            if let Some(why) = state.closed {
                return Err(why);
            }
            state.next += 1;
            let ticket = state.next;
            state.waiting.insert(ticket, sender.clone());
            ticket
        };
        let promise = Promise(sender);
        self.handle.request(self.volume, request, |reply| promise.keep(reply));
        let answer = answer.recv().unwrap_or(Err(Closed::Pool));
        let mut state = self.lock();
        state.waiting.remove(&ticket);
        if state.closed.is_some() && state.waiting.is_empty() {
            self.changed.notify_all();
        }
        answer
    }

    /// Lets nobody pass any more; fails if nobody does already.
    pub fn close(&self) -> Result<(), Closed> {
        let mut state = self.lock();
        if let Some(why) = state.closed {
            return Err(why);
        }
        state.closed = Some(Closed::Volume);
        Ok(())
    }

    /// Lets nobody pass any more, ever.
    pub fn close_for_good(&self) {
        self.lock().closed = Some(Closed::Pool);
    }

    /// Waits for those who have passed; whether all of them have their answers in time.
    pub fn wait_until_empty(&self, until: Instant) -> bool {
        let mut state = self.lock();
        while !state.waiting.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Lets callers pass again after [`Gate::close`].
    pub fn reopen(&self) {
        let mut state = self.lock();
        if state.closed == Some(Closed::Volume) {
            state.closed = None;
        }
    }

    /// Sends away whoever still waits: no answer will come.
    pub fn abandon(&self) {
        for waiting in self.lock().waiting.values() {
            let _ = waiting.send(Err(Closed::Pool));
        }
    }

    fn lock(&self) -> MutexGuard<'_, GateState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
