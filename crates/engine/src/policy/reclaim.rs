//! When a checkpoint is worth its writes for the space that it frees.

/// What the decision rests on.
#[derive(Clone, Copy, Debug)]
pub struct Emptied {
    /// Percent of what may be dirty that is taken, emptied segments included.
    pub dirty_percent: u32,
    /// Segments that take this space though nothing in them is dirty: a checkpoint frees them.
    pub emptied: u64,
    /// Segments that take it.
    pub taken: u64,
}

/// Whether to take a checkpoint for the segments it would free: where space is wanted, and it frees enough of them.
///
/// An image costs 64 bytes for each cached block, on both copies together; with at least an eighth of the taken space
/// freed each time that is a twentieth of what was written meanwhile, or less.
#[must_use]
pub fn checkpoint_pays(e: &Emptied) -> bool {
    e.dirty_percent >= 40 && e.emptied > 0 && e.emptied * 8 >= e.taken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_is_taken_where_space_is_wanted_and_much_is_freed() {
        let pays = |dirty_percent, emptied, taken| checkpoint_pays(&Emptied { dirty_percent, emptied, taken });
        assert!(pays(60, 20, 100) && pays(100, 1, 8));
        assert!(!pays(10, 20, 100), "nobody wants the space");
        assert!(!pays(60, 5, 100), "too little");
        assert!(!pays(60, 0, 0));
    }
}
