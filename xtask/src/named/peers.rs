//! How caches before this one lost data: P1 to P39.

use super::Told;
use crate::mistakes::Mistake;

/// The scenes of `crates/sim/tests/named/peers.rs`.
pub const TOLD: &[Told] = &[("peers::p11_bypass_fill_race", "a fill begun beside a write under way")];

/// What is told in another place, or cannot happen here: why.
pub const ELSEWHERE: &[(usize, &str)] = &[];

/// Mistakes of peers that no other list has.
pub const MISTAKES: &[Mistake] = &[];
