//! Runs the committed corpus of the fuzz targets through their functions.

use walrelay_walsender::fuzzing;

#[path = "../../../../fuzz/run_corpus.rs"]
mod run_corpus;
use run_corpus::run;

#[test]
fn walsender_framing() {
    run("walsender_framing", fuzzing::frames_do_not_depend_on_reads);
}

#[test]
fn walsender_server() {
    run("walsender_server", fuzzing::servers_may_say_anything);
}

#[test]
fn connection_string() {
    run("connection_string", fuzzing::connection_strings);
}

#[test]
fn password_file() {
    run("password_file", fuzzing::password_files);
}
