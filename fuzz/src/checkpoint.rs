//! Pages of checkpoints from bytes.

use crate::input::Input;
use crate::mend::{length_at, structure};
use crate::superblock::KEY;
use headpond_format::{Page, PageBody};

const SEGMENTS: &[u8] = include_bytes!("../../crates/format/tests/golden/checkpoint-segments.bin");
const PIECES: &[u8] = include_bytes!("../../crates/format/tests/golden/checkpoint-pieces.bin");

/// Decodes a page, in the place of either example; one that is taken makes sense, and is written as it was read.
pub fn run(data: &[u8]) {
    let bytes = structure(&mut Input::new(data), &[SEGMENTS, PIECES], KEY, |b| length_at(b, 4));
    for index in [0, 4] {
        let Ok(page) = Page::decode(KEY, &bytes, 55, index) else { continue };
        if let PageBody::Pieces(_, pieces) = &page.body {
            for p in pieces {
                let (first, sectors) = (u32::from(p.span & 7), u32::from(p.span >> 3 & 7) + 1);
                let written = (1u32 << sectors) - 1 << first;
                assert!(u32::from(p.live) & !written == 0, "a piece has sectors that were not written with it: {p:?}");
            }
        }
        assert_eq!(Page::decode(KEY, &page.encode(KEY), 55, index), Ok(page));
    }
}

/// The examples.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let raw = |page: &[u8]| [&[255], &page[..256]].concat();
    vec![vec![0], vec![1], vec![1, 0, 0, 94, 3], raw(SEGMENTS), raw(PIECES)]
}
