//! Tests of the sink of NATS against real servers and scripted ones, in one binary: each binary is linked for itself.

mod answers;
mod cluster;
mod dead_letters;
mod displaced;
mod exclusive_stream;
mod refusals;
mod repeats;
mod stream;
mod support;
