//! Runs a command beside a Postgres and a Kafka broker of its own, which end with it:
//!
//! ```text
//! cargo run -p walrelay-testkit --example servers -- 17 sh -c 'psql "$WALRELAY_EXAMPLE_POSTGRES"'
//! ```
//!
//! The first argument is the major version of Postgres. The database has the SQL of `migrations/` for
//! services and consumers. `WALRELAY_EXAMPLE_KAFKA` has the brokers' addresses. For
//! `scripts/test-examples.sh`.

use std::error::Error;
use std::process::{Command, ExitCode};
use std::{env, fs};

use walrelay_testkit::{Db, Kafka, servers};

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let major = arguments.next().and_then(|major| major.parse().ok());
    let (Some(major), Some(program)) = (major, arguments.next()) else {
        return Err("usage: servers MAJOR COMMAND [ARGUMENT…]".into());
    };
    let postgres = servers::postgres(major);
    let db = Db::connect(&postgres.url());
    for script in ["0002_emit", "0004_processed_events", "0005_uuidv7"] {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../migrations");
        let script = format!("{folder}/{script}.sql");
        db.batch(&fs::read_to_string(script)?);
    }
    let kafka = Kafka::builder().start();
    let status = Command::new(program)
        .args(arguments)
        .env("WALRELAY_EXAMPLE_POSTGRES", postgres.url_tcp())
        .env("WALRELAY_EXAMPLE_KAFKA", kafka.bootstrap_servers())
        .status()?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}
