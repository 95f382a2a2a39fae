//! SIGTERM and SIGINT as something to wait for, and SIGHUP as that or as nothing.
//!
//! `unsafe` because signal masks have no safe wrapper in the libraries used here.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Once;
use std::time::{Duration, Instant};

/// SIGTERM and SIGINT, held back from every thread that is started after this was made.
pub struct Signals {
    set: libc::sigset_t,
    /// Where SIGHUP is no wish to end: whether that has been said.
    outlasts: Option<Once>,
}

impl Signals {
    /// Holds them back from this thread and those it will start; to be called before there are others.
    pub fn hold() -> io::Result<Signals> {
        Signals::hold_all(&[libc::SIGTERM, libc::SIGINT])
    }

    /// The same for whoever serves others, and is not to go with a terminal, nor by who asks daemons in this way to read their configuration
    /// again: SIGHUP ends nothing, also between this program and the one that it becomes. That it came is said once.
    pub fn hold_and_outlast_hangups() -> io::Result<Signals> {
        let held = Signals::hold_with_hangup()?;
        // SAFETY: no handler is named. Held back it still comes to who waits for it; where nobody holds it back it is nothing.
        match unsafe { libc::signal(libc::SIGHUP, libc::SIG_IGN) } {
            libc::SIG_ERR => Err(io::Error::last_os_error()),
            _ => Ok(Signals { outlasts: Some(Once::new()), ..held }),
        }
    }

    /// The same with SIGHUP, for whoever must leave its terminal as it was.
    pub fn hold_with_hangup() -> io::Result<Signals> {
        Signals::hold_all(&[libc::SIGTERM, libc::SIGINT, libc::SIGHUP])
    }

    fn hold_all(signals: &[libc::c_int]) -> io::Result<Signals> {
        let mut set = MaybeUninit::uninit();
        // SAFETY: `sigemptyset` initialises the set, the other calls only read and change it or this thread's mask.
        let (set, result) = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            let mut set = set.assume_init();
            for signal in signals {
                libc::sigaddset(&mut set, *signal);
            }
            let result = libc::pthread_sigmask(libc::SIG_BLOCK, &set, ptr::null_mut());
            (set, result)
        };
        match result {
            0 => Ok(Signals { set, outlasts: None }),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// Whether one of them came within `limit`.
    pub fn wait(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        loop {
            match (self.came(until.saturating_duration_since(Instant::now())), &self.outlasts) {
                (Some(libc::SIGHUP), Some(said)) => said.call_once(say_that_it_goes_on),
                (came, _) => return came.is_some(),
            }
        }
    }

    /// The one that came first within `limit`.
    fn came(&self, limit: Duration) -> Option<libc::c_int> {
        let limit = libc::timespec { tv_sec: limit.as_secs() as _, tv_nsec: limit.subsec_nanos() as _ };
        // SAFETY: reads the set and the limit, which outlive the call, and writes nothing.
        let came = unsafe { libc::sigtimedwait(&self.set, ptr::null_mut(), &limit) };
        (came > 0).then_some(came)
    }
}

fn say_that_it_goes_on() {
    tracing::warn!(
        "SIGHUP came, and changes nothing: the daemon serves on, with the configuration that it has, and what it logs is in no file of its own. \
         Restart it to have it read another configuration, and send it no SIGHUP when logs are rotated. This is said once"
    );
}
