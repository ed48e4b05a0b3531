//! docs/start/debezium.md: its commands and its SQL, with stand-ins for Debezium's servers.

use std::fs;
use std::path::Path;
use std::process::Output;

use walrelay_testkit::eventually;

use super::{arguments, block, shell, with};
use crate::import_debezium::{StandIn, arrived, connect, connector, connector_of, start_imported};
use crate::rig::{PATIENCE, Relay, Rig, assert_has, psql, stdout};

const DOCUMENT: &str = "docs/start/debezium.md";

/// Runs lines in a shell in this folder.
fn run(script: &str, folder: &Path, password: &str) -> Output {
    let mut command = shell(script);
    command.current_dir(folder).env("PGPASSWORD", password);
    command.output().expect("a shell")
}

/// Servers with a stand-in for Debezium, and a folder with the files that the import reads.
struct Migration {
    rig: Rig,
}

impl Migration {
    fn new(major: u32) -> Self {
        let rig = Rig::new(major);
        let worker = format!("bootstrap.servers={}\ngroup.id=connect\n", rig.bootstrap);
        fs::write(rig.path("connect-distributed.properties"), worker).expect("written");
        Self { rig }
    }

    fn shell(&self, script: &str) -> Output {
        let password = self.rig.postgres.superuser_password();
        run(script, self.rig.folder(), password)
    }

    fn import(&self) {
        let connector = connector_of(&self.rig, "");
        fs::write(self.rig.path("connector.json"), connector).expect("written");
        let script = block(DOCUMENT, "import-file");
        let (first, _) = script.split_once('\n').expect("two commands");
        stdout(&self.shell(first));
    }

    fn check(&self) -> Output {
        self.shell(&block(DOCUMENT, "check"))
    }

    /// Starts the relay as the document does.
    fn start(&self) -> Relay {
        let relay = start_imported(&self.rig, &arguments(&block(DOCUMENT, "start")));
        relay.streaming();
        relay
    }

    /// Replaces a line of the configuration.
    fn edit(&self, key: &str, line: &str) {
        let path = self.rig.path("walrelay.toml");
        let config = fs::read_to_string(&path).expect("the configuration");
        let lines = config.lines().map(|old| {
            let is_old = old.starts_with(&format!("{key} = "));
            if is_old { line } else { old }
        });
        let edited: Vec<&str> = lines.collect();
        assert!(edited.contains(&line), "no {key} in {config}");
        fs::write(&path, edited.join("\n")).expect("written");
    }
}

#[test]
fn the_six_steps() {
    let migration = Migration::new(18);
    let rig = &migration.rig;
    let mut debezium = StandIn::new(rig);
    debezium.commit(1);
    debezium.commit(4);
    debezium.relay();
    debezium.confirm_all_but_the_last();

    let rest = connect(connector_of(rig, ""), None, None);
    let import = block(DOCUMENT, "import");
    stdout(&migration.shell(&with(&import, "http://connect:8083", &rest.url())));
    assert_has(&stdout(&migration.check()), &[" 0 fail\n"]);

    let db = rig.db();
    let stopped = block(DOCUMENT, "stopped").replace("confirmed_flush_lsn", "1");
    assert!(!db.value::<bool>(&stopped), "nobody reads the slot");
    debezium.commit(7);
    let relay = migration.start();
    arrived(rig, "debezium", 9, 3);
    eventually(PATIENCE, || {
        db.text(&block(DOCUMENT, "moves")).as_deref() == Some("0 bytes")
    });
    relay.ends_well();
}

/// The two other ways to import, and their results.
#[test]
fn the_configuration_is_what_the_import_writes() {
    let dir = tempfile::TempDir::new().expect("a directory");
    let path = |name: &str| dir.path().join(name);
    let json = connector(
        ", \"header.converter\": \"org.apache.kafka.connect.storage.SimpleHeaderConverter\"",
    );
    let json = with(&json, "127.0.0.1", "db");
    let json = with(&json, "user\": \"postgres\"", "user\": \"cdc\"");
    let json = with(&json, "dbname\": \"postgres\"", "dbname\": \"app\"");
    fs::write(path("connector.json"), json).expect("written");
    let worker = "bootstrap.servers=broker:9092\n";
    fs::write(path("connect-distributed.properties"), worker).expect("written");
    let script = block(DOCUMENT, "import-file");
    let (first, second) = script.split_once('\n').expect("two commands");
    stdout(&run(first, dir.path(), ""));
    let written = fs::read_to_string(path("walrelay.toml")).expect("the configuration");
    let (_, body) = written.split_once("\n\n").expect("a heading");
    assert_eq!(body.trim_end(), block(DOCUMENT, "configuration"));

    fs::create_dir(path("config")).expect("a folder");
    let properties = "debezium.source.connector.class=PostgresConnector\n\
        debezium.source.plugin.name=pgoutput\ndebezium.source.table.include.list=public.outbox\n\
        debezium.source.extended.headers.enabled=false\n\
        debezium.transforms=outbox\n\
        debezium.transforms.outbox.type=io.debezium.transforms.outbox.EventRouter\n\
        debezium.format.key=simplestring\ndebezium.format.value=simplestring\n\
        debezium.format.header.class=org.apache.kafka.connect.storage.SimpleHeaderConverter\n\
        debezium.sink.type=kafka\n";
    fs::write(path("config/application.properties"), properties).expect("written");
    stdout(&run(second, dir.path(), ""));
    let report = fs::read_to_string(path("report.txt")).expect("the report");
    assert_has(&report, &["10 setting(s): "]);
    let written = fs::read_to_string(path("walrelay.toml")).expect("the configuration");
    assert_has(&written, &["${DEBEZIUM_SOURCE_DATABASE_HOSTNAME}"]);
}

#[test]
fn a_publication_for_all_tables_is_replaced() {
    let migration = Migration::new(15);
    let rig = &migration.rig;
    let mut debezium = StandIn::new(rig);
    let db = rig.db();
    db.batch("DROP PUBLICATION dbz_publication; CREATE PUBLICATION dbz_publication FOR ALL TABLES");
    debezium.commit(1);
    migration.import();
    let found = String::from_utf8_lossy(&migration.check().stdout).into_owned();
    assert_has(&found, &["[publication-foreign-table]"]);

    let script = block(DOCUMENT, "publication");
    let (create, position) = script.split_once('\n').expect("two statements");
    db.batch(create);
    let position = position
        .trim_end_matches(';')
        .replace("lsn()", "lsn()::text");
    let position = db.text(&position).expect("a position");
    let wait = with(&block(DOCUMENT, "publication-wait"), "0/0", &position);
    let go_on = || db.value::<bool>(&wait);
    assert!(!go_on());
    debezium.commit(4);
    debezium.commit(7);
    debezium.relay();
    debezium.confirm_all_but_the_last();
    assert!(go_on());

    migration.edit("publication", "publication = \"outbox\"");
    stdout(&migration.check());
    let relay = migration.start();
    debezium.commit(10);
    arrived(rig, "debezium", 12, 3);
    relay.ends_well();
}

#[test]
fn a_slot_of_another_plugin_is_left() {
    let migration = Migration::new(15);
    let rig = &migration.rig;
    let mut debezium = StandIn::new(rig);
    let db = rig.db();
    db.batch(
        "SELECT pg_drop_replication_slot('debezium'); \
         SELECT pg_create_logical_replication_slot('debezium', 'test_decoding')",
    );
    debezium.commit(1);
    migration.import();
    let found = String::from_utf8_lossy(&migration.check().stdout).into_owned();
    assert_has(&found, &["[slot-plugin]"]);

    psql(&db, &block(DOCUMENT, "slot"));
    // Debezium continues for a while, and is stopped.
    debezium.commit(4);
    debezium.relay();
    migration.edit("slot", "slot = \"outbox\"");
    migration.edit("publication", "publication = \"outbox\"");
    stdout(&migration.check());
    let relay = migration.start();
    debezium.commit(7);
    // The repeats are the rows that were committed after the creation of the new slot and sent by
    // Debezium.
    arrived(rig, "outbox", 9, 3);
    db.batch(&block(DOCUMENT, "slot-drop"));
    relay.ends_well();
}
