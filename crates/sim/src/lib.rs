//! A deterministic world in which the engine is proved: virtual time, devices with volatile caches that lose their own
//! random part of what was not flushed, clients, faults, and checkers that know what may be read.
//!
//! Everything follows from a seed: the same seed gives the same run, to the bit.
//!
//! The feature `loads`, on by default, is all that seeds and scenes do without: whoever plants mistakes builds the engine
//! into this crate a hundred times over.

#[cfg(feature = "loads")]
pub mod bench;
pub mod buf;
pub mod device;
#[cfg(feature = "loads")]
pub mod exhaustive;
#[cfg(feature = "loads")]
pub mod experiments;
#[cfg(feature = "loads")]
pub mod modelled;
pub mod models;
pub mod oracle;
#[cfg(feature = "loads")]
pub mod parallel;
#[cfg(feature = "loads")]
pub mod plain;
#[cfg(feature = "loads")]
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
pub use torture::{Outcome, Plan, Summary};
