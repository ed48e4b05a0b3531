//! Debezium Server, which `scripts/test-debezium.sh` fetches.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use walrelay_throwaway::Postgres;

/// Returns properties that make Debezium Server read `slot` for the table and publication `table`,
/// and send to these brokers. `others` follow.
pub fn debezium_properties(
    postgres: &Postgres,
    brokers: &str,
    slot: &str,
    table: &str,
    others: &str,
) -> String {
    let port = postgres.port();
    let password = postgres.superuser_password();
    let serializer = "org.apache.kafka.common.serialization.StringSerializer";
    format!(
        "debezium.source.connector.class=io.debezium.connector.postgresql.PostgresConnector\n\
         debezium.source.plugin.name=pgoutput\n\
         debezium.source.database.hostname=127.0.0.1\n\
         debezium.source.database.port={port}\n\
         debezium.source.database.user=postgres\n\
         debezium.source.database.password={password}\n\
         debezium.source.database.dbname=postgres\n\
         debezium.source.topic.prefix=srv\n\
         debezium.source.slot.name={slot}\n\
         debezium.source.publication.name={table}\n\
         debezium.source.table.include.list=public.{table}\n\
         debezium.source.snapshot.mode=no_data\n\
         debezium.source.offset.storage.file.filename=offsets.dat\n\
         debezium.source.extended.headers.enabled=false\n\
         debezium.sink.type=kafka\n\
         debezium.sink.kafka.producer.bootstrap.servers={brokers}\n\
         debezium.sink.kafka.producer.key.serializer={serializer}\n\
         debezium.sink.kafka.producer.value.serializer={serializer}\n\
         quarkus.http.port=0\n\
         quarkus.log.console.json=false\n\
         {others}"
    )
}

/// Returns the command that runs Debezium Server in this directory with these properties and JVM
/// options.
#[track_caller]
pub fn debezium_server(dir: &Path, properties: &str, options: &[&str]) -> Command {
    let home = variable("WALRELAY_TEST_DEBEZIUM");
    let config = dir.join("config");
    fs::create_dir_all(&config).expect("a directory");
    let file = config.join("application.properties");
    fs::write(file, properties).expect("the properties are written");
    let runner = fs::read_dir(&home)
        .expect("Debezium Server")
        .map(|entry| entry.expect("an entry").path())
        .find(|path| path.to_string_lossy().ends_with("runner.jar"))
        .expect("debezium-server-dist-…-runner.jar");
    let mut command = Command::new(variable("WALRELAY_TEST_JAVA"));
    command
        .current_dir(dir)
        .args(options)
        .arg("-cp")
        .arg(format!("{}:{}/lib/*", runner.display(), home.display()))
        .arg("io.debezium.server.Main");
    command
}

fn variable(name: &str) -> PathBuf {
    let value = env::var_os(name);
    let value = value.unwrap_or_else(|| {
        panic!("{name} is not set: make test-debezium and BENCH_PEERS=1 make bench set it")
    });
    value.into()
}
