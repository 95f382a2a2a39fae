//! The end of a process that cannot go on.

use std::cell::Cell;
use std::fmt::Display;
use std::io::{self, Write};
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::process;
use std::sync::Once;
use std::thread;
use std::time::Duration;

/// How long it may take to say them.
const PATIENCE: Duration = Duration::from_secs(1);

/// Says why, and ends the process, as by a kill.
pub(crate) fn abort(why: impl Display) -> ! {
    abort_soon();
    // `eprintln!` panics where nobody reads it any more: the thread would end, and its process go on without it.
    let _ = writeln!(io::stderr(), "headpond: {why}");
    process::abort()
}

/// Ends it whether they can be said or not: whoever reads standard error may be there and not read.
fn abort_soon() {
    let waits = || {
        thread::sleep(PATIENCE);
        process::abort();
    };
    let _ = thread::Builder::new().name("last-words".into()).spawn(waits);
}

thread_local! {
    /// Why the process ends where this thread panics, if it does.
    static WHY: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// Does what a thread is for. If that panics the process ends, and before the thread lets go of anything: what it drops would answer clients with an
/// error, who are to wait for the next daemon instead, and would wait for what devices owe.
pub(crate) fn or_abort(why: &'static str, body: impl FnOnce()) {
    static IS_HOOKED: Once = Once::new();
    IS_HOOKED.call_once(|| {
        let says = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            let why = WHY.get();
            if why.is_some() {
                abort_soon();
            }
            says(panic);
            if let Some(why) = why {
                abort(why);
            }
        }));
    });
    WHY.set(Some(why));
    // A program that we are embedded in may have put a hook of its own in the place of ours.
    if catch_unwind(AssertUnwindSafe(body)).is_err() {
        abort(why);
    }
    WHY.set(None);
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Stdio};
    use std::time::Instant;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// Writes to standard error, a pipe, for as long as it has room.
    fn fill() {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        while poll(&mut [PollFd::new(&io::stderr(), PollFlags::OUT)], Some(&now)).unwrap() > 0 {
            rustix::io::write(io::stderr(), &[b'x'; 4096]).unwrap();
        }
    }

    /// Where whoever reads standard error was there and did not read, a thread that panicked waited in its last words, and its clients for it: the
    /// next daemon, to which they were to go on, was not started. Found by reading.
    #[test]
    fn a_process_that_cannot_go_on_ends_though_nobody_reads_why() {
        const CHILD: &str = "HEADPOND_TEST_LAST_WORDS";
        if std::env::var_os(CHILD).is_some() {
            let no_core = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
            rustix::process::setrlimit(rustix::process::Resource::Core, no_core).unwrap();
            fill();
            return or_abort("it cannot go on", || panic!("as by a mistake"));
        }
        let (_unread, writer) = io::pipe().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap());
        let test = "last_words::tests::a_process_that_cannot_go_on_ends_though_nobody_reads_why";
        child.args([test, "--exact", "--nocapture"]).env(CHILD, "1").stdout(Stdio::null()).stderr(writer);
        let (mut child, until) = (child.spawn().unwrap(), Instant::now() + LONG);
        while child.try_wait().unwrap().is_none() && Instant::now() < until {
            thread::sleep(Duration::from_millis(20));
        }
        let _ = child.kill();
        let ended = child.wait().unwrap();
        assert_eq!(ended.signal(), Some(libc::SIGABRT), "{ended}");
    }
}
