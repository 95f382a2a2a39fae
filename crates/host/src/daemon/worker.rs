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

/// Does this with each of several, at once. That for which no thread is to be had is done by the caller, once all others have begun.
pub(super) fn at_once<T: Copy + Send>(several: &[T], body: impl Fn(T) + Sync) {
    let body = &body;
    thread::scope(|scope| {
        let begun = |one: &T| {
            let one = *one;
            thread::Builder::new().spawn_scoped(scope, move || body(one)).is_ok()
        };
        let left: Vec<T> = several.iter().filter(|one| !begun(one)).copied().collect();
        left.into_iter().for_each(body);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exhausted::{is_exhausted, step};
    use std::collections::BTreeMap;
    use std::sync::Mutex;

    /// From now on this thread makes no others.
    fn have_no_threads() {
        is_exhausted(&[
            step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
            step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, 0, libc::SYS_clone3 as u32),
            step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_clone as u32),
        ]);
    }

    /// A stop panicked for want of a thread, and the pool was not stopped.
    #[test]
    fn what_is_done_at_once_is_done_also_where_no_thread_is_to_be_had() {
        let all = |is_short: bool| {
            let done = Mutex::new(BTreeMap::new());
            if is_short {
                have_no_threads();
            }
            at_once(&[1, 2, 3], |one| _ = done.lock().unwrap().insert(one, thread::current().id()));
            done.into_inner().unwrap()
        };
        for is_short in [false, true] {
            let (here, done) = thread::spawn(move || (thread::current().id(), all(is_short))).join().unwrap();
            assert!(done.keys().eq(&[1, 2, 3]));
            assert!(done.values().all(|thread| (*thread == here) == is_short));
        }
    }
}
