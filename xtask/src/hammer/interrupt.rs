//! Ctrl-C and SIGTERM: everything ends soon, and is cleaned up on the way out.

use anyhow::{Result, bail};
use headpond_host::signals::Signals;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
static WATCHED: OnceLock<()> = OnceLock::new();

/// Waits for signals in a thread of its own; to be called before there are others.
pub fn watch() -> Result<()> {
    if WATCHED.set(()).is_ok() {
        let signals = Signals::hold()?;
        thread::spawn(move || {
            while !signals.wait(Duration::from_secs(1)) {}
            INTERRUPTED.store(true, Ordering::SeqCst);
            eprintln!("interrupted: ending what runs, and cleaning up");
        });
    }
    Ok(())
}

/// Whether somebody wants an end.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::SeqCst)
}

/// Fails if somebody wants an end.
pub fn check() -> Result<()> {
    if interrupted() {
        bail!("interrupted");
    }
    Ok(())
}

/// Sleeps, but not through an interruption.
pub fn sleep(length: Duration) -> Result<()> {
    let until = Instant::now() + length;
    loop {
        check()?;
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        thread::sleep(left.min(Duration::from_millis(50)));
    }
}
