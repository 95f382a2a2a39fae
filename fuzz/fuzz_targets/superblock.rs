//! libFuzzer's way into the target `superblock`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| headpond_fuzz::superblock::run(data));
