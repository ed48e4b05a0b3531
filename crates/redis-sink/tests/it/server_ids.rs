//! The conformance suite, against a real server, with ids that the server makes.

use crate::support::Server;
use walrelay_redis_sink::Ids;
use walrelay_testkit::conformance;

conformance!(Server::start(Ids::Server));
