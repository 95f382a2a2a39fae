//! How many clients the control socket has at a time, and that long commands keep nobody from asking.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use headpond_format::MAX_VOLUMES;
use serde_json::Value;

use super::{Call, Fault, Service};
use crate::lock::lock;

/// Clients at a time, but for those whose call takes long.
pub(super) const CLIENTS: usize = 32;
/// Calls at a time that take long, also of clients that have gone since: for each volume a command and a preload, and what is of the whole pool, or
/// waits for its turn.
const LONG_CALLS: usize = 2 * MAX_VOLUMES + CLIENTS;

/// Those of one socket.
pub(super) struct Clients {
    asking: Arc<Places>,
    long_calls: Arc<Places>,
}

impl Clients {
    pub(super) fn new() -> Clients {
        Clients { asking: Places::new(CLIENTS), long_calls: Places::new(LONG_CALLS) }
    }

    /// One more, for whom the service is asked; `None` if there are too many.
    pub(super) fn admit<S>(&self, service: &Arc<S>) -> Option<OfClient<S>> {
        let place = Mutex::new(self.asking.take()?);
        Some(OfClient { service: service.clone(), asking: self.asking.clone(), long_calls: self.long_calls.clone(), place })
    }
}

/// How many there may be at a time.
struct Places {
    taken: AtomicUsize,
    most: usize,
}

impl Places {
    fn new(most: usize) -> Arc<Places> {
        Arc::new(Places { taken: AtomicUsize::new(0), most })
    }

    fn take(self: &Arc<Places>) -> Option<Place> {
        let one_more = |taken| (taken < self.most).then_some(taken + 1);
        self.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more).ok()?;
        Some(Place(self.clone()))
    }
}

/// One of them, until dropped.
struct Place(Arc<Places>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The service for one client, which has a place among the others but while a call of it takes long: such calls have places of their own, or
/// as many of them as there are clients would keep everybody from asking, and from cancelling one.
pub(super) struct OfClient<S> {
    service: Arc<S>,
    asking: Arc<Places>,
    long_calls: Arc<Places>,
    place: Mutex<Place>,
}

impl<S: Service> Service for OfClient<S> {
    fn call(&self, call: Call, progress: &mut dyn FnMut(Value)) -> Result<Value, Fault> {
        if !call.may_take_long() {
            return self.service.call(call, progress);
        }
        match self.long_calls.take() {
            Some(place) => *lock(&self.place) = place,
            // It keeps its place among the clients: the daemon is to end.
            None if call == Call::Stop => {}
            None => return Err(too_many_long_calls()),
        }
        let result = self.service.call(call, progress);
        // Where there is none left among the clients it is answered all the same, and asks on from where it is.
        if let Some(place) = self.asking.take() {
            *lock(&self.place) = place;
        }
        result
    }
}

fn too_many_long_calls() -> Fault {
    Fault::failed(format!(
        "{LONG_CALLS} commands that take long are under way, also of whoever has gone since. Nothing was done. `headpond status` shows how the volumes \
         stand. Wait for some of them to end, or end one with `headpond detach NAME --cancel`, then try again."
    ))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::sync::Condvar;
    use std::thread;
    use std::time::{Duration, Instant};

    use serde_json::json;

    use super::super::{Server, call, frame_of};
    use super::*;

    /// Counts what it was told to destage, and does so when the test lets it.
    #[derive(Default)]
    struct Busy {
        begun: AtomicUsize,
        goes_on: Mutex<bool>,
        changed: Condvar,
    }

    impl Service for Busy {
        fn call(&self, call: Call, _: &mut dyn FnMut(Value)) -> Result<Value, Fault> {
            if let Call::Destage { .. } = call {
                self.begun.fetch_add(1, Ordering::AcqRel);
                let _ended = self.changed.wait_while(lock(&self.goes_on), |goes_on| !*goes_on);
            }
            Ok(json!({}))
        }
    }

    /// Who began to flush 32 of many volumes at once, and left, left nobody able to ask how they stood, to cancel one, or to stop the daemon: each
    /// connection was closed until one of the flushes had ended. Found by reading.
    #[test]
    fn commands_that_take_long_keep_nobody_from_asking_and_cancelling_however_many_there_are() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let busy = Arc::new(Busy::default());
        let _server = Server::start(&path, busy.clone()).unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        for n in 0..LONG_CALLS {
            let (method, parameters) = Call::Destage { name: format!("v{n}"), deadline_seconds: None }.frame();
            let frame = json!({ "method": format!("org.headpond.{method}"), "parameters": parameters });
            let client = UnixStream::connect(&path).unwrap();
            (&client).write_all(&frame_of(&frame)).unwrap();
            while busy.begun.load(Ordering::Acquire) <= n {
                assert!(Instant::now() < until, "the command number {n} is not begun");
                thread::sleep(Duration::from_millis(1));
            }
        }
        for short in [Call::Status, Call::Cancel { name: "v0".into() }, Call::Stop] {
            call(&path, &short, |_| ()).unwrap_or_else(|error| panic!("{short:?}: {error}"));
        }
        let one_more = Call::Destage { name: "w".into(), deadline_seconds: None };
        let refused = call(&path, &one_more, |_| ()).unwrap_err().to_string();
        assert!(refused.contains("Nothing was done") && refused.contains("--cancel"), "{refused}");
        *lock(&busy.goes_on) = true;
        busy.changed.notify_all();
        while call(&path, &one_more, |_| ()).is_err() {
            assert!(Instant::now() < until, "they do not end");
            thread::sleep(Duration::from_millis(20));
        }
    }
}
