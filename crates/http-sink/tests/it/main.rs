//! Tests of the sink of HTTP against real servers and scripted ones, in one binary: each binary is linked for itself.

mod faults;
mod http1;
mod http2;
mod proxy;
mod support;
