//! Headpond on Linux: the only crate with `unsafe`.
//!
//! Programs that want a pool inside themselves use [`embed`]; from C, what `include/headpond.h` declares.

pub mod backing;
pub mod beside;
pub mod buf;
pub mod capi;
pub mod claim;
pub mod control;
pub mod daemon;
pub mod device;
pub mod embed;
pub mod events;
#[cfg(test)]
mod exhausted;
pub mod extents;
pub mod frontend;
pub mod fuse;
pub mod histogram;
pub mod huge_pages;
pub mod journal;
mod last_words;
pub mod lent;
mod lock;
pub mod metrics;
pub mod names;
pub mod nbd;
pub mod offline;
pub mod pool;
pub mod report;
pub mod requests;
pub mod ring;
pub mod runtime;
pub mod signals;
pub mod silence;
mod soon;
pub mod state;
pub mod succession;
pub mod ublk;

// The disk of other tests that answers nothing, which knows this crate by its name.
#[cfg(test)]
extern crate self as headpond_host;
#[cfg(test)]
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../../headpond/tests/common/silent.rs"]
mod silent;
