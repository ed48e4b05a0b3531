#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| walrelay_walsender::fuzzing::connection_strings(bytes));
