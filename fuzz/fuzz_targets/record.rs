//! libFuzzer's way into the target `record`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| headpond_fuzz::record::run(data));
