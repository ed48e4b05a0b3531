#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| walrelay_walsender::fuzzing::frames_do_not_depend_on_reads(bytes));
