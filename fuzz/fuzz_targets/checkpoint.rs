//! libFuzzer's way into the target `checkpoint`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| headpond_fuzz::checkpoint::run(data));
