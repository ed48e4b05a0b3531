#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| walrelay::config::fuzzing::configurations(bytes));
