//! The cache engine of Headpond.
//!
//! Requests and device completions go in, device operations and replies come out.
//! The engine knows no operating system, no clock, no threads and no randomness of its own:
//! the same lines run over io_uring in production and under virtual time in the simulator.
#![no_std]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

extern crate alloc;

mod ahead;
mod around;
mod bounds;
mod cancel;
mod checkpoint;
mod comparison;
mod core;
mod destage;
mod disk_use;
mod diskless;
mod doubts;
mod durability;
mod engine;
mod evict;
mod exec;
mod fetch;
mod fills;
mod flush;
mod flusher;
mod grow;
mod headers;
mod image;
mod intent;
mod joining;
mod left_behind;
mod loading;
mod log;
pub mod lookaside;
pub mod marks;
mod membership;
mod patience;
mod preload;
mod ranges;
mod read;
mod recovery;
mod scrub;
mod shares;
mod silence;
mod space;
mod start;
mod stop;
mod volumes;
mod watched;
mod write;

pub mod blocks;
pub mod create;
pub mod election;
pub mod io;
pub mod map;
pub mod policy;
pub mod segments;
pub mod settings;
pub mod stats;
pub mod status;

pub use engine::Engine;
pub use headpond_format as format;
pub use io::*;
pub use marks::{Mark, MarkSet};
pub use preload::Preload;
pub use recovery::StartError;
pub use scrub::Scrub;
pub use settings::{Degraded, Settings};
pub use status::{Loading, Starting, Status};
