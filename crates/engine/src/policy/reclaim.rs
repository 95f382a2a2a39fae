//! When a checkpoint is worth its writes: for the space that it frees, and for what a start need not read.

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

/// Bytes appended to the log for each cached piece before the next image. It takes 64 of each, on both copies together: an eighth of
/// what was appended in single segments, a sixteenth where that is mirrored.
const APPENDED_FOR_A_PIECE: u64 = 512;

/// Whether to take a checkpoint for what was appended since the last one, in bytes: the `usual` amount, which bounds what a start reads
/// of the log; and more where the image is large. A start that loads a large one takes longer for that than for this.
#[must_use]
pub fn checkpoint_is_due(appended: u64, usual: u64, pieces: u64) -> bool {
    appended >= usual.max(pieces.saturating_mul(APPENDED_FOR_A_PIECE))
}

/// Whether an image of `pieces` is worth what it frees, where nobody lacks that yet: `bytes` of segments, of each copy. What little
/// is cached otherwise says nothing of it, since the image has all that is.
#[must_use]
pub fn image_pays(bytes: u64, pieces: u64) -> bool {
    bytes >= pieces.saturating_mul(APPENDED_FOR_A_PIECE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_takes_no_more_than_an_eighth_of_what_was_appended() {
        let (usual, tib) = (1 << 30, 1 << 28);
        assert!(checkpoint_is_due(usual, usual, 1000) && !checkpoint_is_due(usual - 1, usual, 1000));
        assert!(!checkpoint_is_due(100 << 30, usual, tib) && checkpoint_is_due(128 << 30, usual, tib));
    }

    #[test]
    fn an_image_takes_no_more_than_an_eighth_of_what_it_frees() {
        let pieces = 1 << 20;
        assert!(image_pays(8 * 64 * pieces, pieces) && !image_pays(8 * 64 * pieces - 1, pieces));
        assert!(image_pays(0, 0) && !image_pays(1 << 40, u64::MAX));
    }

    #[test]
    fn a_checkpoint_is_taken_where_space_is_wanted_and_much_is_freed() {
        let pays = |dirty_percent, emptied, taken| checkpoint_pays(&Emptied { dirty_percent, emptied, taken });
        assert!(pays(60, 20, 100) && pays(100, 1, 8));
        assert!(!pays(10, 20, 100), "nobody wants the space");
        assert!(!pays(60, 5, 100), "too little");
        assert!(!pays(60, 0, 0));
    }
}
