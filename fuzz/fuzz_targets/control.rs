//! libFuzzer's way into the target `control`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| headpond_fuzz::control::run(data));
