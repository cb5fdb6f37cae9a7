#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| headrow_fuzz::halves(data));
