//! Changes of a structure's fields, and its checksum made right again: without that hardly any change would get past it.

use crate::input::Input;
use headpond_format::checksum;

/// Numbers at which something may turn.
const NUMBERS: [u64; 24] = [
    0,
    1,
    2,
    7,
    8,
    9,
    31,
    32,
    63,
    64,
    0x7f,
    0x80,
    0xff,
    0x100,
    0x7fff,
    0xffff,
    0x1_0000,
    (1 << 28) - 1,
    1 << 31,
    u32::MAX as u64,
    1 << 40,
    1 << 56,
    1 << 63,
    u64::MAX,
];

/// Changes one field, at an offset and of a width that the input says.
pub fn change(bytes: &mut [u8], input: &mut Input<'_>) {
    if bytes.is_empty() {
        return;
    }
    let how = input.u8();
    // Most fields are at the front.
    let at = if how & 0x10 == 0 { usize::from(input.u8()) } else { usize::from(input.u16()) } % bytes.len();
    let width = (1usize << (how & 3)).min(bytes.len() - at);
    let field = &mut bytes[at..at + width];
    let mut word = [0; 8];
    word[..width].copy_from_slice(field);
    let old = u64::from_le_bytes(word);
    let new = match how >> 2 & 3 {
        0 => NUMBERS[usize::from(input.u8()) % NUMBERS.len()],
        1 => old.wrapping_add(input.u8() as i8 as u64),
        2 => old ^ 1 << (input.u8() % 64),
        _ => {
            let mut literal = [0; 8];
            literal[..width].iter_mut().for_each(|b| *b = input.u8());
            u64::from_le_bytes(literal)
        }
    };
    field.copy_from_slice(&new.to_le_bytes()[..width]);
}

/// Changes one to four fields, as the input says.
pub fn change_some(bytes: &mut [u8], input: &mut Input<'_>) {
    for _ in 0..=input.u8() % 4 {
        change(bytes, input);
    }
}

/// Puts the right checksum into bytes 8 to 15, over the first `len` bytes: where every structure has it.
pub fn mend(bytes: &mut [u8], key: u64, len: usize) {
    let len = len.min(bytes.len());
    if len < 16 {
        return;
    }
    bytes[8..16].fill(0);
    let sum = checksum(key, &bytes[..len]);
    bytes[8..16].copy_from_slice(&sum.to_le_bytes());
}

/// The four bytes at `at` as a length.
#[must_use]
pub fn length_at(bytes: &[u8], at: usize) -> usize {
    bytes.get(at..at + 4).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]) as usize)
}

/// An example with a few fields changed and mended, of `len` bytes under the checksum; or, where the input's first byte is
/// 255, the rest of the input as it is.
#[must_use]
pub fn structure(input: &mut Input<'_>, examples: &[&[u8]], key: u64, len: impl Fn(&[u8]) -> usize) -> Vec<u8> {
    let which = input.u8();
    if which == 255 {
        return input.rest().to_vec();
    }
    let mut bytes = examples[usize::from(which) % examples.len()].to_vec();
    change_some(&mut bytes, input);
    let covered = len(&bytes);
    mend(&mut bytes, key, covered);
    bytes
}
