//! Tests of the sink of RabbitMQ against real servers and scripted ones, in one binary: each binary is linked for itself.

mod classic;
mod exchanges;
mod existing;
mod quorum;
mod streams;
mod support;
mod topics;
