//! A thread beside the daemon, which is not waited for without a limit: what it asks may answer nothing.

use std::io;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

/// A thread that is to end when this is dropped.
pub(super) struct Worker {
    /// Hung up, the thread is to end.
    end: Sender<()>,
    /// Hung up when it has.
    ended: Receiver<()>,
}

impl Worker {
    /// Begins it: `body` is to return soon after what it is given is hung up.
    pub(super) fn start(name: &str, body: impl FnOnce(Receiver<()>) + Send + 'static) -> io::Result<Worker> {
        let (end, is_to_end) = mpsc::channel();
        let (is_there, ended) = mpsc::channel::<()>();
        let body = move || {
            body(is_to_end);
            drop(is_there);
        };
        thread::Builder::new().name(name.into()).spawn(body)?;
        Ok(Worker { end, ended })
    }

    /// Tells several to end, and waits for that, but for all of them no longer than `limit`.
    pub(super) fn end(workers: impl IntoIterator<Item = Worker>, limit: Duration) {
        let until = Instant::now() + limit;
        let tell = |Worker { end, ended }| {
            drop(end);
            ended
        };
        // All of them before the first is waited for.
        let are_told: Vec<Receiver<()>> = workers.into_iter().map(tell).collect();
        for ended in are_told {
            let _ = ended.recv_timeout(until.saturating_duration_since(Instant::now()));
        }
    }
}
