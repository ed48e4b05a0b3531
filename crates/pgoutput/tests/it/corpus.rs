//! Runs the committed corpus of the fuzz targets through the functions of the targets.

use walrelay_pgoutput::fuzzing;

#[path = "../../../../fuzz/run_corpus.rs"]
mod run_corpus;
use run_corpus::run;

#[test]
fn pgoutput_decode() {
    run("pgoutput_decode", fuzzing::decodes_without_panic);
}

#[test]
fn pgoutput_roundtrip() {
    run("pgoutput_roundtrip", fuzzing::encodes_what_it_decoded);
}
