//! The pieces of one block while they change.

use super::piece::Piece;
use crate::io::BLOCK_SECTORS;
use core::ops::{Deref, DerefMut};

/// As many as a block may have: each has a live sector of eight, and one more comes in.
#[derive(Clone)]
pub(super) struct Few {
    pieces: [Piece; BLOCK_SECTORS as usize + 1],
    len: usize,
}

impl Default for Few {
    fn default() -> Self {
        Self { pieces: [Piece::new(0, 0, 0, 0, 0, 1, false, false); BLOCK_SECTORS as usize + 1], len: 0 }
    }
}

impl Few {
    pub(super) fn push(&mut self, piece: Piece) {
        self.pieces[self.len] = piece;
        self.len += 1;
    }

    pub(super) fn retain(&mut self, keep: impl Fn(&Piece) -> bool) {
        let mut kept = 0;
        for n in 0..self.len {
            if keep(&self.pieces[n]) {
                self.pieces[kept] = self.pieces[n];
                kept += 1;
            }
        }
        self.len = kept;
    }
}

impl Deref for Few {
    type Target = [Piece];
    fn deref(&self) -> &[Piece] {
        &self.pieces[..self.len]
    }
}

impl DerefMut for Few {
    fn deref_mut(&mut self) -> &mut [Piece] {
        &mut self.pieces[..self.len]
    }
}
