//! libFuzzer's way into the target `nbd`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| headpond_fuzz::nbd::run(data));
