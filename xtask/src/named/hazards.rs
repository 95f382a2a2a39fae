//! The sequences that break a design like ours: H1 to H20.

use super::Told;
use crate::mistakes::Mistake;

/// The scenes of `crates/sim/tests/named/hazards.rs`.
pub const TOLD: &[Told] = &[("hazards::h1_superseded_is_not_dead", "a superseded segment reused too early")];

/// What is told in another place, or cannot happen here: why.
pub const ELSEWHERE: &[(usize, &str)] = &[];

/// Mistakes that no other list has.
pub const MISTAKES: &[Mistake] = &[];
