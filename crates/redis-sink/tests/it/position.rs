//! The conformance suite, against a real server, with positions as the ids of entries.

use crate::support::Server;
use walrelay_redis_sink::Ids;
use walrelay_testkit::conformance;

conformance!(Server::start(Ids::Position));
