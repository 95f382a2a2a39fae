//! The end of a process that cannot go on.

use std::fmt::Display;
use std::io::{self, Write};
use std::process;

/// Says why, and ends the process, as by a kill.
pub(crate) fn abort(why: impl Display) -> ! {
    // `eprintln!` panics where nobody reads it any more: the thread would end, and its process go on without it.
    let _ = writeln!(io::stderr(), "headpond: {why}");
    process::abort()
}
