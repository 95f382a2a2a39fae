//! libFuzzer's way into the target `image`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| headpond_fuzz::image::run(data));
