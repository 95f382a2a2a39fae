//! The end of a process that cannot go on.

use std::cell::Cell;
use std::fmt::Display;
use std::io::{self, Write};
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::process;
use std::sync::Once;

/// Says why, and ends the process, as by a kill.
pub(crate) fn abort(why: impl Display) -> ! {
    // `eprintln!` panics where nobody reads it any more: the thread would end, and its process go on without it.
    let _ = writeln!(io::stderr(), "headpond: {why}");
    process::abort()
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
            says(panic);
            if let Some(why) = WHY.get() {
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
