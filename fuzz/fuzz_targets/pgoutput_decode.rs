//! Any bytes through the decoder, then through everything that can be walked.
#![no_main]

libfuzzer_sys::fuzz_target!(|body: &[u8]| walrelay_pgoutput::fuzzing::decodes_without_panic(body));
