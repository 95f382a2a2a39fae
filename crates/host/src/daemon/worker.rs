//! A thread beside the daemon, which is not waited for without a limit: what it asks may answer nothing.

use std::io;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

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

    /// Tells it to end, and waits for that, but no longer than `limit`.
    pub(super) fn end(self, limit: Duration) {
        drop(self.end);
        let _ = self.ended.recv_timeout(limit);
    }
}
