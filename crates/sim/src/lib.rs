//! A deterministic world in which the engine is proved: virtual time, devices with volatile caches that lose their own
//! random part of what was not flushed, clients, faults, and checkers that know what may be read.
//!
//! Everything follows from a seed: the same seed gives the same run, to the bit.

pub mod bench;
pub mod buf;
pub mod device;
pub mod exhaustive;
pub mod experiments;
pub mod modelled;
pub mod models;
pub mod oracle;
pub mod parallel;
pub mod plain;
pub mod replay;
pub mod rng;
pub mod scene;
pub mod shrink;
pub mod sickness;
pub mod swarm;
pub mod target;
pub mod torture;
pub mod world;

pub use buf::SimBuf;
pub use swarm::Swarm;
pub use torture::{Outcome, Plan, Summary, run_seed};
