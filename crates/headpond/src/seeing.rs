//! What a daemon did between two moments, from the differences of its counters, and how that is shown.

pub mod bars;
pub mod kinds;
pub mod rates;
