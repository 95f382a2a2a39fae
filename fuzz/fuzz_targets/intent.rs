//! libFuzzer's way into the target `intent`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| headpond_fuzz::intent::run(data));
