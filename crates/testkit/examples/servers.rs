//! Runs a command beside a Postgres and a Kafka broker of its own, which end with it:
//!
//! ```text
//! cargo run -p walrelay-testkit --example servers -- 17 sh -c 'psql "$WALRELAY_EXAMPLE_POSTGRES"'
//! ```
//!
//! The first argument is the major version of Postgres. The database has the SQL of `migrations/` for
//! services and consumers. `WALRELAY_EXAMPLE_KAFKA` has the brokers' addresses. For
//! `scripts/test-examples.sh`.

use std::process::{Command, ExitCode};
use std::{env, fs};

use walrelay_testkit::{Db, Kafka, servers};

fn main() -> ExitCode {
    let mut arguments = env::args().skip(1);
    let major = arguments.next().and_then(|major| major.parse().ok());
    let (Some(major), Some(program)) = (major, arguments.next()) else {
        eprintln!("usage: servers MAJOR COMMAND [ARGUMENT…]");
        return ExitCode::from(64);
    };
    let postgres = servers::postgres(major);
    let db = Db::connect(&postgres.url());
    for script in ["0002_emit", "0004_processed_events", "0005_uuidv7"] {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../migrations");
        let script = format!("{folder}/{script}.sql");
        db.batch(&fs::read_to_string(script).expect("the migration"));
    }
    let kafka = Kafka::builder().start();
    let status = Command::new(program)
        .args(arguments)
        .env("WALRELAY_EXAMPLE_POSTGRES", postgres.url())
        .env("WALRELAY_EXAMPLE_KAFKA", kafka.bootstrap_servers())
        .status()
        .expect("the command runs");
    status.code().map_or(ExitCode::FAILURE, |code| {
        ExitCode::from(u8::try_from(code).unwrap_or(1))
    })
}
