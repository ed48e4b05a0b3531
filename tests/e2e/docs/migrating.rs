//! MIGRATING-FROM-DEBEZIUM.md: its commands and its SQL, with servers that stand for Debezium's.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use walrelay_lab::servers::end_with_owner;
use walrelay_testkit::{Db, SlotWatch, eventually};

use super::{block, succeeded, with};
use crate::import_debezium::{Answers, Rest, StandIn, connector};
use crate::rig::{PATIENCE, Relay, Rig, walrelay};

const DOCUMENT: &str = "docs/MIGRATING-FROM-DEBEZIUM.md";

/// Lines for a shell, where `walrelay` is the binary that is tested.
fn shell(script: &str, folder: &Path, password: &str) -> Output {
    let binary = Path::new(env!("CARGO_BIN_EXE_walrelay"));
    let mut path: OsString = binary.parent().expect("a folder").into();
    path.push(":");
    path.push(env::var_os("PATH").unwrap_or_default());
    end_with_owner(&mut Command::new("sh"))
        .expect("a shell")
        .args(["-euc", script])
        .current_dir(folder)
        .env("PATH", path)
        .env("PGPASSWORD", password)
        .env_remove("WALRELAY_CONFIG")
        .env("NO_COLOR", "1")
        .output()
        .expect("a shell")
}

/// A rig with a stand-in for Debezium, and in its folder what the import reads.
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

    fn connector(&self) -> String {
        let replacement = format!(
            ",\"transforms.outbox.route.topic.replacement\": \"{}${{routedByValue}}\"",
            self.rig.prefix
        );
        connector(&replacement).replace("5432", &self.rig.postgres.port().to_string())
    }

    fn folder(&self) -> std::path::PathBuf {
        self.rig
            .path("walrelay.toml")
            .parent()
            .expect("a folder")
            .to_owned()
    }

    fn shell(&self, script: &str) -> Output {
        shell(
            script,
            &self.folder(),
            self.rig.postgres.superuser_password(),
        )
    }

    fn import(&self) {
        fs::write(self.rig.path("connector.json"), self.connector()).expect("written");
        let script = block(DOCUMENT, "import-file");
        let (first, _) = script.split_once('\n').expect("two commands");
        succeeded(&self.shell(first));
    }

    /// The relay as the document starts it.
    fn start(&self) -> Relay {
        let script = block(DOCUMENT, "start");
        let arguments: Vec<&str> = script
            .strip_prefix("walrelay ")
            .expect("a command")
            .split_whitespace()
            .collect();
        let mut command = walrelay(&arguments);
        command
            .args(["--set", "log.format=json"])
            .current_dir(self.folder())
            .env("PGPASSWORD", self.rig.postgres.superuser_password());
        let relay = Relay::spawn(&mut command, &self.rig.path("relay.log"));
        relay.streaming();
        relay
    }

    /// Replaces a line of the configuration.
    fn edit(&self, key: &str, line: &str) {
        let path = self.rig.path("walrelay.toml");
        let config = fs::read_to_string(&path).expect("the configuration");
        let lines = config.lines().map(|old| {
            if old.starts_with(&format!("{key} = ")) {
                line
            } else {
                old
            }
        });
        let edited: Vec<&str> = lines.collect();
        assert!(edited.contains(&line), "no {key} in {config}");
        fs::write(&path, edited.join("\n")).expect("written");
    }
}

/// Everything has arrived, and nothing is wrong but for so many repeats.
#[track_caller]
fn arrived(rig: &Rig, slot: &str, committed: usize, repeats: usize) {
    let slot = SlotWatch::new(&rig.postgres.url(), slot);
    slot.wait_until(slot.wal_end(), PATIENCE);
    let verdict = rig.verdict();
    verdict.assert_clean();
    assert_eq!(
        (verdict.committed, verdict.duplicates),
        (committed, repeats),
        "{verdict}"
    );
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

    let rest = Rest::start(Answers {
        connector: migration.connector(),
        authorization: None,
        certificate: None,
    });
    let import = block(DOCUMENT, "import");
    let connect = format!("http://127.0.0.1:{}", rest.port());
    succeeded(&migration.shell(&with(&import, "http://connect:8083", &connect)));
    let check = succeeded(&migration.shell(&block(DOCUMENT, "check")));
    assert!(check.contains(" 0 fail\n"), "{check}");

    let db = Db::connect(&rig.postgres.url());
    let rows = db.query(
        &block(DOCUMENT, "stopped").replace("confirmed_flush_lsn", "1"),
        &[],
    );
    assert!(!rows[0].get::<_, bool>(0), "nobody reads the slot");
    debezium.commit(7);
    let relay = migration.start();
    arrived(rig, "debezium", 9, 3);
    eventually(PATIENCE, || {
        db.text(&block(DOCUMENT, "moves")).as_deref() == Some("0 bytes")
    });
    relay.ends_well();
}

/// Both other ways to import, and what comes of it.
#[test]
fn the_configuration_is_what_the_import_writes() {
    let dir = tempfile::TempDir::new().expect("a directory");
    let path = |name: &str| dir.path().join(name);
    let json = connector(
        ", \"header.converter\": \"org.apache.kafka.connect.storage.SimpleHeaderConverter\"",
    );
    let json = with(&json, "127.0.0.1", "db");
    let json = with(
        &json,
        "\"database.user\": \"postgres\"",
        "\"database.user\": \"cdc\"",
    );
    let json = with(
        &json,
        "\"database.dbname\": \"postgres\"",
        "\"database.dbname\": \"app\"",
    );
    fs::write(path("connector.json"), json).expect("written");
    let worker = "bootstrap.servers=broker:9092\n";
    fs::write(path("connect-distributed.properties"), worker).expect("written");
    let (first, second) = {
        let script = block(DOCUMENT, "import-file");
        let (first, second) = script.split_once('\n').expect("two commands");
        (first.to_owned(), second.to_owned())
    };
    succeeded(&shell(&first, dir.path(), ""));
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
    succeeded(&shell(&second, dir.path(), ""));
    let report = fs::read_to_string(path("report.txt")).expect("the report");
    assert!(report.contains("10 setting(s): "), "{report}");
    let written = fs::read_to_string(path("walrelay.toml")).expect("the configuration");
    assert!(
        written.contains("${DEBEZIUM_SOURCE_DATABASE_HOSTNAME}"),
        "{written}"
    );
}

#[test]
fn a_publication_for_all_tables_is_replaced() {
    let migration = Migration::new(15);
    let rig = &migration.rig;
    let mut debezium = StandIn::new(rig);
    let db = Db::connect(&rig.postgres.url());
    db.batch("DROP PUBLICATION dbz_publication; CREATE PUBLICATION dbz_publication FOR ALL TABLES");
    debezium.commit(1);
    migration.import();
    let check = migration.shell(&block(DOCUMENT, "check"));
    let error = String::from_utf8_lossy(&check.stdout).into_owned();
    assert!(error.contains("[publication-foreign-table]"), "{error}");

    let script = block(DOCUMENT, "publication");
    let (create, position) = script.split_once('\n').expect("two statements");
    db.batch(create);
    let position = position
        .trim_end_matches(';')
        .replace("lsn()", "lsn()::text");
    let position = db.text(&position).expect("a position");
    let wait = with(&block(DOCUMENT, "publication-wait"), "0/0", &position);
    let go_on = || db.query(&wait, &[])[0].get::<_, bool>(0);
    assert!(!go_on());
    debezium.commit(4);
    debezium.commit(7);
    debezium.relay();
    debezium.confirm_all_but_the_last();
    assert!(go_on());

    migration.edit("publication", "publication = \"outbox\"");
    succeeded(&migration.shell(&block(DOCUMENT, "check")));
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
    let db = Db::connect(&rig.postgres.url());
    db.batch(
        "SELECT pg_drop_replication_slot('debezium'); \
         SELECT pg_create_logical_replication_slot('debezium', 'test_decoding')",
    );
    debezium.commit(1);
    migration.import();
    let check = migration.shell(&block(DOCUMENT, "check"));
    let error = String::from_utf8_lossy(&check.stdout).into_owned();
    assert!(error.contains("[slot-plugin]"), "{error}");

    super::psql(&db, &block(DOCUMENT, "slot"));
    // Debezium goes on for a while, and is stopped.
    debezium.commit(4);
    debezium.relay();
    migration.edit("slot", "slot = \"outbox\"");
    migration.edit("publication", "publication = \"outbox\"");
    succeeded(&migration.shell(&block(DOCUMENT, "check")));
    let relay = migration.start();
    debezium.commit(7);
    // What was committed since the new slot was made, and sent by Debezium.
    arrived(rig, "outbox", 9, 3);
    db.batch(&block(DOCUMENT, "slot-drop"));
    relay.ends_well();
}
