#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| walrelay_event_router::fuzzing::header_columns(bytes));
