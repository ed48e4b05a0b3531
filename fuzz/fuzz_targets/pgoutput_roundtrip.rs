//! A decoded message must encode to the same bytes again.
#![no_main]

libfuzzer_sys::fuzz_target!(
    |body: &[u8]| walrelay_pgoutput::fuzzing::encodes_what_it_decoded(body)
);
