//! What is written to the state folder beside whoever wants that: its disk may be silent, and then others are not to wait for it.

use std::sync::{Arc, Mutex};
use std::thread;

use crate::lock::lock;

type Work = Box<dyn FnOnce() + Send>;

/// Work of one kind, of which the newest is what counts. A thread does it, which is there for as long as there is something to do.
#[derive(Default)]
pub(crate) struct Soon(Mutex<Turn>);

#[derive(Default)]
struct Turn {
    is_under_way: bool,
    /// What is done when that has ended.
    next: Option<Work>,
}

impl Soon {
    /// Has this done soon, by a thread of this name. While something is done already it comes after that, in the place of what was to come then.
    /// Where no thread is to be had, whoever asks does it.
    pub(crate) fn ask(self: &Arc<Self>, name: &str, work: impl FnOnce() + Send + 'static) {
        {
            let mut turn = lock(&self.0);
            turn.next = Some(Box::new(work));
            if std::mem::replace(&mut turn.is_under_way, true) {
                return;
            }
        }
        let soon = Arc::clone(self);
        if thread::Builder::new().name(name.into()).spawn(move || soon.work()).is_err() {
            self.work();
        }
    }

    /// Whether something is yet to be done, or is being done.
    pub(crate) fn is_under_way(&self) -> bool {
        lock(&self.0).is_under_way
    }

    fn work(&self) {
        while let Some(work) = self.next() {
            work();
        }
    }

    fn next(&self) -> Option<Work> {
        let mut turn = lock(&self.0);
        let next = turn.next.take();
        turn.is_under_way = next.is_some();
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    /// Each that came would have had a thread of its own, and all of them would have waited for the disk.
    #[test]
    fn while_something_is_done_the_newest_waits_and_what_it_replaces_is_not_done() {
        const LONG: Duration = Duration::from_secs(60);
        let soon = Arc::new(Soon::default());
        let (answers, silent) = mpsc::channel::<()>();
        let (tell, told) = mpsc::channel();
        let first = tell.clone();
        soon.ask("first", move || {
            first.send((1, thread::current().id())).unwrap();
            silent.recv_timeout(LONG).unwrap();
        });
        let (one, thread_of_it) = told.recv_timeout(LONG).unwrap();
        for n in [2, 3] {
            let tell = tell.clone();
            soon.ask("other", move || tell.send((n, thread::current().id())).unwrap());
        }
        assert!(one == 1 && soon.is_under_way() && told.try_recv().is_err());
        answers.send(()).unwrap();
        assert_eq!(told.recv_timeout(LONG).unwrap(), (3, thread_of_it));
        drop(tell);
        // The second was let go of, and nothing is left that could tell more.
        assert_eq!(told.recv_timeout(LONG), Err(mpsc::RecvTimeoutError::Disconnected));
        let until = std::time::Instant::now() + LONG;
        while soon.is_under_way() {
            assert!(std::time::Instant::now() < until);
        }
    }
}
