//! Decodes any bytes, then reads every value, column and relation.
#![no_main]

libfuzzer_sys::fuzz_target!(|body: &[u8]| walrelay_pgoutput::fuzzing::decodes_without_panic(body));
