//! SIGTERM and SIGINT as something to wait for.
//!
//! `unsafe` because signal masks have no safe wrapper in the libraries used here.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::time::Duration;

/// SIGTERM and SIGINT, held back from every thread that is started after this was made.
pub struct Signals {
    set: libc::sigset_t,
}

impl Signals {
    /// Holds them back from this thread and those it will start; to be called before there are others.
    pub fn hold() -> io::Result<Signals> {
        Signals::hold_all(&[libc::SIGTERM, libc::SIGINT])
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
            0 => Ok(Signals { set }),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// Whether one of them came within `limit`.
    pub fn wait(&self, limit: Duration) -> bool {
        let limit = libc::timespec { tv_sec: limit.as_secs() as _, tv_nsec: limit.subsec_nanos() as _ };
        // SAFETY: reads the set and the limit, which outlive the call, and writes nothing.
        unsafe { libc::sigtimedwait(&self.set, ptr::null_mut(), &limit) > 0 }
    }
}
