//! libFuzzer's way into the target `operations`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| headpond_fuzz::operations::run(data));
