//! Tests of the sink of Redis against real servers and scripted ones, in one binary: each binary is linked for itself.

mod answers;
mod cluster;
mod dead_letters;
mod position;
mod refusals;
mod sentinel;
mod server_ids;
mod support;
