//! The named regressions: stories of lost data, each told as a scene.
//!
//! Each fails on an engine with that very mistake: `cargo xtask planted --named` plants them one at a time, and
//! `xtask/src/named` says which mistake belongs to which scene.

mod abandon;
mod around;
mod bands;
mod beside;
mod diskless;
mod doubts;
mod durability;
mod endurance;
mod evict;
mod gain;
mod growing;
mod hazards;
mod holes;
mod leaving;
mod lent;
mod loading;
mod moves;
mod numbers;
mod passing;
mod peers;
mod preload;
mod reads;
mod room;
mod shares;
mod silence;
mod slow;
mod starts;
mod steps;
mod sweeps;
mod synchronous;
mod witness;
