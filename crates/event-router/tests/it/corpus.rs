//! Runs the committed corpora through the functions of the fuzz targets.

use walrelay_event_router::fuzzing;

#[path = "../../../../fuzz/run_corpus.rs"]
mod run_corpus;
use run_corpus::run;

#[test]
fn avro_value() {
    run("avro_value", fuzzing::avro);
}

#[test]
fn header_columns() {
    run("header_columns", fuzzing::header_columns);
}

#[test]
fn message_content() {
    run("message_content", fuzzing::messages);
}

#[test]
fn template() {
    run("template", fuzzing::templates);
}

#[test]
fn topic_template() {
    run("topic_template", fuzzing::topic_templates);
}
