//! The sink keeps the promises of every sink over HTTP/2.

use crate::support::Server;
use walrelay_http_sink::HttpVersion;
use walrelay_testkit::conformance;

conformance!(Server::start(HttpVersion::Two));
