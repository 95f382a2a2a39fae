//! Decisions without I/O: each from a table of inputs to a table of outputs.

pub mod ahead;
pub mod around;
pub mod bands;
pub mod compact;
pub mod credit;
pub mod demand;
pub mod destage;
pub mod endurance;
pub mod evict;
pub mod gain;
pub mod gather;
pub mod ghost;
pub mod image;
pub mod lanes;
pub mod leisure;
pub mod pace;
pub mod pins;
pub mod reclaim;
pub mod route;
pub mod shares;
pub mod silence;
pub mod streams;
pub mod synchronous;
pub mod through;
pub mod unread;
pub mod window;
