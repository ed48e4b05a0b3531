//! Tests of the pipeline, its core and its state machine by the interface of the crate, in one binary: each binary is
//! linked for itself.

mod core;
mod dead_letters;
mod machine;
mod messages;
mod pipeline;
mod support;
