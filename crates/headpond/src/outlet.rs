//! The way to standard error, for which a thread of its own waits, and nobody else.
//!
//! Whoever reads it may be there and not read: a terminal that was stopped, or a journal that waits for its own disk, which may be a volume of
//! the pool. The engine's thread says what happened as others do, and would serve nobody until that is read.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Bytes that may wait to be written: thousands of lines.
const ROOM: usize = 1 << 20;
/// How long whoever is about to end waits for what is not written yet.
const PATIENCE: Duration = Duration::from_secs(2);

/// Takes lines at once, and writes them in their order as fast as they are read. What has no room is left out, counted, and told of where it
/// would have been.
pub struct Outlet {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    lines: VecDeque<Vec<u8>>,
    /// All of theirs.
    bytes: usize,
    /// Lines that had no room, and those behind them.
    left_out: u64,
    /// Whether the thread has nothing to do.
    is_idle: bool,
}

impl Outlet {
    /// That of this process.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub fn start() -> io::Result<Arc<Outlet>> {
        Outlet::start_with(Unlocked, |left_out| {
            tracing::warn!(
                left_out,
                "{left_out} lines of the log were left out here: whoever reads standard error is too slow. The daemon has gone on without, and no data is \
                 touched by it. `headpond events` has what happened; look at what reads the log"
            );
        })
    }

    /// `tell` says how many were left out, by this outlet.
    fn start_with(to: impl Write + Send + 'static, tell: impl Fn(u64) + Send + 'static) -> io::Result<Arc<Outlet>> {
        let outlet = Arc::new(Outlet { waiting: Mutex::default(), changed: Condvar::new() });
        let writes = outlet.clone();
        thread::Builder::new().name("log".into()).spawn(move || writes.write_all_that_comes(to, tell))?;
        Ok(outlet)
    }

    /// Says something that is no line of the log.
    pub fn say(&self, text: &str) {
        self.take(text.as_bytes());
    }

    /// Waits until all is written, for two seconds at most: whoever does not read is not waited for at an end.
    pub fn settle(&self) {
        let _ = self.changed.wait_timeout_while(self.lock(), PATIENCE, |waiting| !waiting.is_idle);
    }

    fn take(&self, line: &[u8]) {
        let mut waiting = self.lock();
        waiting.is_idle = false;
        // Once there was no room for one there is none for any until that is told, or it would be told for each, and nobody knew where.
        if waiting.left_out > 0 || waiting.bytes + line.len() > ROOM {
            waiting.left_out += 1;
        } else {
            waiting.bytes += line.len();
            waiting.lines.push_back(line.to_vec());
        }
        self.changed.notify_all();
    }

    fn write_all_that_comes(&self, mut to: impl Write, tell: impl Fn(u64)) {
        loop {
            match self.next() {
                // Where whoever read it has gone, nobody misses it.
                Next::Line(line) => drop(to.write_all(&line)),
                Next::LeftOut(lines) => tell(lines),
            }
        }
    }

    /// Waits for what is to be written next.
    fn next(&self) -> Next {
        let mut waiting = self.lock();
        loop {
            if let Some(line) = waiting.lines.pop_front() {
                waiting.bytes -= line.len();
                return Next::Line(line);
            }
            if waiting.left_out > 0 {
                return Next::LeftOut(std::mem::take(&mut waiting.left_out));
            }
            waiting.is_idle = true;
            self.changed.notify_all();
            waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Next {
    Line(Vec<u8>),
    LeftOut(u64),
}

/// A line comes in one piece.
impl Write for &Outlet {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.take(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Standard error without its lock, which whoever says the last words of the process would wait for.
struct Unlocked;

impl Write for Unlocked {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::io::write(io::stderr(), bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Instant;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// Writes go on as far as the test lets them.
    struct Gate {
        goes: mpsc::Receiver<()>,
        written: mpsc::Sender<String>,
    }

    impl Write for Gate {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.goes.recv();
            let _ = self.written.send(String::from_utf8(bytes.to_vec()).unwrap());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// An outlet, whose writes go on when the sender does or is gone, and what was written, and left out.
    fn gated() -> (Arc<Outlet>, mpsc::Sender<()>, mpsc::Receiver<String>) {
        let ((go, goes), (written, reads)) = (mpsc::channel(), mpsc::channel());
        let left_out = written.clone();
        let tell = move |lines| drop(left_out.send(format!("{lines} left out")));
        (Outlet::start_with(Gate { goes, written }, tell).unwrap(), go, reads)
    }

    #[test]
    fn nobody_who_says_something_waits_and_what_had_no_room_is_told_of_in_its_place() {
        let (outlet, go, reads) = gated();
        let long = "x".repeat(ROOM / 4);
        outlet.say("first");
        // It is being written.
        while !outlet.lock().lines.is_empty() {
            thread::yield_now();
        }
        // No more than four have room; the last would have, and comes behind them.
        (0..7).for_each(|_| outlet.say(&long));
        outlet.say("short");
        let begun = Instant::now();
        outlet.settle();
        assert!(begun.elapsed() >= PATIENCE, "it has been waited for");
        drop(go);
        assert_eq!(reads.recv_timeout(LONG).unwrap(), "first");
        (0..4).for_each(|_| assert_eq!(reads.recv_timeout(LONG).unwrap(), long));
        assert_eq!(reads.recv_timeout(LONG).unwrap(), "4 left out");
        outlet.say("again");
        assert_eq!(reads.recv_timeout(LONG).unwrap(), "again");
    }

    #[test]
    fn whoever_ends_leaves_nothing_unwritten_that_is_read() {
        let (outlet, go, reads) = gated();
        drop(go);
        for n in 0..100 {
            outlet.say(&n.to_string());
        }
        while !outlet.lock().is_idle {
            outlet.settle();
        }
        let written: Vec<String> = reads.try_iter().collect();
        assert_eq!(written, (0..100).map(|n| n.to_string()).collect::<Vec<_>>());
    }
}
