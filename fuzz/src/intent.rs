//! Pages of the intent map from bytes.

use crate::input::Input;
use crate::mend::structure;
use crate::superblock::KEY;
use headpond_format::{INTENT_PAGE_BYTES, IntentPage};

const EXAMPLE: &[u8] = include_bytes!("../../crates/format/tests/golden/intent.bin");

/// Decodes a page; one that is taken is written as it was read.
pub fn run(data: &[u8]) {
    let bytes = structure(&mut Input::new(data), &[EXAMPLE], KEY, |_| INTENT_PAGE_BYTES);
    if let Ok(page) = IntentPage::decode(KEY, &bytes, 3) {
        assert_eq!(IntentPage::decode(KEY, &page.encode(KEY), 3), Ok(page));
    }
}

/// The example, and nothing.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    vec![vec![0], vec![0, 1, 0x10, 24, 5, 0x1f, 64, 0, 9], [&[255], EXAMPLE].concat()]
}
