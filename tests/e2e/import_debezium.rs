//! `walrelay import-debezium`: from files, from a stand-in for Kafka Connect, and with the slot as
//! Debezium leaves it.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;
use walrelay_testkit::{Authority, Committed, History, HttpServer, Issued, Producer, SlotWatch};

use crate::rig::{
    NOWHERE, PATIENCE, Relay, Rig, assert_has, assert_lacks, command_with, create_slot, done, ends,
    said, unique, walrelay,
};

/// Kafka Connect's REST interface for the connector `outbox`, which is `{"name", "config", …}`.
/// With an authorization, which is `Basic …`, clients must log in; with a certificate, it is used
/// for TLS.
pub(crate) fn connect(
    connector: String,
    authorization: Option<&'static str>,
    certificate: Option<&Issued>,
) -> HttpServer {
    HttpServer::start(None, certificate, move |request| {
        let allowed = authorization.is_none() || authorization == request.header("authorization");
        let (status, body) = match request.line.as_str() {
            _ if !allowed => ("401 Unauthorized", String::new()),
            "GET /connectors/outbox" => ("200 OK", connector.clone()),
            "GET /connectors/outbox/config" => {
                let json: Value = serde_json::from_str(&connector).expect("a connector");
                ("200 OK", json["config"].to_string())
            }
            "GET /moved" => (
                "307 Temporary Redirect\r\nLocation: /connectors/outbox",
                String::new(),
            ),
            _ => (
                "404 Not Found",
                "{\"error_code\":404,\"message\":\"Connector not found\"}".to_owned(),
            ),
        };
        let head = format!("{status}\r\nContent-Type: application/json");
        Some((head, body))
    })
}

/// A connector as Kafka Connect returns it, with a password that must not show up anywhere.
pub(crate) fn connector(more: &str) -> String {
    format!(
        r#"{{"name": "outbox", "config": {{
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "tasks.max": "1", "plugin.name": "pgoutput",
            "database.hostname": "127.0.0.1", "database.port": "5432",
            "database.user": "postgres", "database.password": "hunter2",
            "database.dbname": "postgres", "topic.prefix": "srv",
            "publication.autocreate.mode": "filtered",
            "table.include.list": "public\\.outbox",
            "heartbeat.interval.ms": "10000", "extended.headers.enabled": "false",
            "transforms": "outbox",
            "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter"{more}
        }}, "tasks": [{{"connector": "outbox", "task": 0}}], "type": "source"}}"#
    )
}

fn run(args: &[&str]) -> Output {
    let mut command = walrelay(&["import-debezium"]);
    command.args(args).output().expect("walrelay runs")
}

/// Both streams of a command that has ended with this code. The password must not be there.
#[track_caller]
fn texts(output: &Output, code: i32) -> (String, String) {
    assert_lacks(&said(output), &["hunter2"]);
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{out}{err}");
    (out, err)
}

/// Runs the import, which must end with this code; returns both streams.
#[track_caller]
fn import(args: &[&str], code: i32) -> (String, String) {
    texts(&run(args), code)
}

/// A directory with the files of a test.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(TempDir::new().expect("a directory"))
    }

    fn path(&self, name: &str) -> String {
        let path = self.0.path().join(name);
        path.into_os_string().into_string().expect("text")
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        fs::write(&path, text).expect("written");
        path
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).expect("the file")
    }
}

/// Asserts that `walrelay check --offline` accepts the configuration.
#[track_caller]
fn checked(config: &str) {
    let mut command = command_with("check --offline", Path::new(config), &[]);
    for (name, value) in [
        ("PGPASSWORD", "x"),
        ("PG_PASSWORD", "x"),
        ("KAFKA_BOOTSTRAP_SERVERS", "localhost:9092"),
    ] {
        command.env(name, value);
    }
    done(&command.output().expect("walrelay runs"));
}

#[test]
fn a_file_becomes_a_configuration() {
    let folder = Folder::new();
    let connector = folder.write("connector.json", &connector(""));
    let config = folder.path("walrelay.toml");
    let arguments = [connector.as_str(), "--output-file", &config];
    let (out, report) = import(&arguments, 0);
    assert_eq!(out, "");
    let parts = [
        "taken over     database.hostname -> source.url\n",
        "no effect      heartbeat.interval.ms: not needed",
    ];
    assert_has(&report, &parts);
    let mode = fs::metadata(&config)
        .expect("the file")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    checked(&config);

    // An existing file is overwritten only with `--force`.
    let written = folder.read("walrelay.toml");
    folder.write("walrelay.toml", "mine");
    import(&arguments, 64);
    assert_eq!(folder.read("walrelay.toml"), "mine");
    import(&[&arguments[..], &["--force"]].concat(), 0);
    assert_eq!(folder.read("walrelay.toml"), written);
    let left: Vec<_> = fs::read_dir(folder.0.path())
        .expect("the directory")
        .collect();
    assert_eq!(left.len(), 2, "{left:?}");

    // `--with-secrets` includes the password.
    let with = run(&[&connector, "--with-secrets"]);
    let toml = String::from_utf8(with.stdout).expect("text");
    assert_has(&toml, &["postgres://postgres:hunter2@127.0.0.1:5432/"]);
    assert_lacks(&String::from_utf8_lossy(&with.stderr), &["hunter2"]);
}

#[test]
fn standard_input_and_a_report_for_programs() {
    let folder = Folder::new();
    let mut child = walrelay(&["import-debezium", "-", "--output", "json", "--report"])
        .arg(folder.path("report.json"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("walrelay runs");
    let mut stdin = child.stdin.take().expect("its standard input");
    stdin.write_all(connector("").as_bytes()).expect("it reads");
    drop(stdin);
    let (toml, errors) = texts(&child.wait_with_output().expect("it ends"), 0);
    assert_eq!(errors, "");
    checked(&folder.write("walrelay.toml", &toml));

    let text = folder.read("report.json");
    assert_lacks(&text, &["hunter2"]);
    let report: Value = serde_json::from_str(&text).expect("JSON");
    let input: Value = serde_json::from_str(&connector("")).expect("JSON");
    let reported = report["settings"].as_array().expect("settings").iter();
    let mut reported: Vec<&str> = reported
        .map(|row| row["key"].as_str().expect("a key"))
        .collect();
    let keys = input["config"].as_object().expect("settings").keys();
    let mut keys: Vec<&str> = keys.map(String::as_str).collect();
    keys.extend(["tasks", "type"]);
    reported.sort_unstable();
    keys.sort_unstable();
    assert_eq!(reported, keys, "each key once");
}

#[test]
fn application_properties_of_debezium_server() {
    let folder = Folder::new();
    let file = folder.write(
        "application.properties",
        "# comment\n\
         debezium.source.connector.class=io.debezium.connector.postgresql.PostgresConnector\n\
         debezium.source.plugin.name = pgoutput\n\
         debezium.source.database.hostname: db\n\
         debezium.source.database.user cdc\n\
         debezium.source.database.password=${PG_PASSWORD}\n\
         debezium.source.database.dbname=app\n\
         debezium.source.topic.prefix=app\n\
         debezium.source.publication.autocreate.mode=disabled\n\
         debezium.source.extended.headers.enabled=false\n\
         debezium.source.table.include.list=public.outbox,\\\n    app.outbox\n\
         debezium.transforms=outbox\n\
         debezium.transforms.outbox.type=io.debezium.transforms.outbox.EventRouter\n\
         debezium.transforms.outbox.route.topic.replacement=outbox.event.$${routedByValue}\n\
         debezium.format.key=simplestring\n\
         debezium.format.value=simplestring\n\
         debezium.format.header.class=org.apache.kafka.connect.storage.SimpleHeaderConverter\n\
         debezium.sink.type=kafka\n\
         debezium.sink.kafka.producer.bootstrap.servers=broker:9092\n",
    );
    let (toml, report) = import(&[&file], 0);
    let lines = [
        "url = \"postgres://cdc:${PG_PASSWORD}@db/app\"\n",
        "tables = [\"public.outbox\", \"app.outbox\"]\n",
        "\"route.topic.replacement\" = \"outbox.event.${routedByValue}\"\n",
        "slot = \"debezium\"",
    ];
    assert_has(&toml, &lines);
    let parts = ["taken over     debezium.source.database.user (line 5)"];
    assert_has(&report, &parts);
    checked(&folder.write("walrelay.toml", &toml));
}

#[test]
fn kafka_connects_rest_interface() {
    // api:s3/cret
    let login = "Basic YXBpOnMzL2NyZXQ=";
    let rest = connect(connector(""), Some(login), None);
    let url = |login: &str, path: &str| format!("http://{login}127.0.0.1:{}{path}", rest.port());
    let (whole, _) = import(&[&url("api:s3%2Fcret@", "/connectors/outbox")], 0);
    assert_has(&whole, &["from the connector outbox of Kafka Connect"]);
    let (bare, _) = import(&[&url("api:s3%2Fcret@", "/connectors/outbox/config")], 0);
    let body = |toml: &str| toml.split_once("\n[").map(|(_, body)| body.to_owned());
    assert_eq!(body(&bare), body(&whole));

    for (login, path, code, words) in [
        ("", "/connectors/outbox", 77, "status 401"),
        ("api:wr0ng@", "/connectors/outbox", 77, "status 401"),
        ("api:s3%2Fcret@", "/connectors/other", 69, "status 404"),
        // Redirections are not followed: they could lead anywhere.
        ("api:s3%2Fcret@", "/moved", 69, "status 307"),
        ("api:s3/cret@", "/connectors/outbox", 64, "cannot be read"),
    ] {
        let (out, error) = import(&[&url(login, path)], code);
        assert_has(&error, &[words, "[import-input]"]);
        assert_lacks(&error, &["cret", "wr0ng"]);
        assert_eq!(out, "");
    }
    import(&[&format!("http://{NOWHERE}/connectors/outbox")], 69);
}

#[test]
fn kafka_connect_over_tls() {
    let authority = Authority::new("import-debezium");
    let certificate = authority.server("localhost");
    let rest = connect(connector(""), None, Some(&certificate));
    let folder = Folder::new();
    let roots = folder.write("roots.pem", &authority.pem());
    let other = folder.write("other.pem", &Authority::new("another").pem());
    for (host, roots, code) in [
        ("localhost", &roots, 0),
        ("localhost", &other, 69),
        ("127.0.0.1", &roots, 69),
    ] {
        let url = format!("https://{host}:{}/connectors/outbox", rest.port());
        let mut command = walrelay(&["import-debezium", &url]);
        command
            .env("SSL_CERT_FILE", roots)
            .env_remove("SSL_CERT_DIR");
        let (_, error) = texts(&command.output().expect("walrelay runs"), code);
        if code != 0 {
            assert_has(&error.to_lowercase(), &["certificate"]);
        }
    }
}

#[test]
fn what_would_change_records_is_refused() {
    let folder = Folder::new();
    let predicate = ",\"transforms.outbox.predicate\": \"p\", \"predicates\": \"p\", \
        \"predicates.p.type\": \"x.Y\"";
    let file = folder.write("connector.json", &connector(predicate));
    let (out, error) = import(&[&file], 78);
    assert_eq!(out, "");
    let parts = [
        "NOT SUPPORTED  transforms.outbox.predicate: ",
        "[import-unsupported]",
    ];
    assert_has(&error, &parts);
    let (out, _) = import(&[&file, "--partial"], 0);
    assert_has(&out, &["#   transforms.outbox.predicate\n"]);

    for (text, id, words) in [
        ("{\"a\": hunter2", "import-syntax", "not valid JSON"),
        ("a=\\u12 hunter2", "import-syntax", "line 1"),
        ("", "import-syntax", "no settings"),
        (
            "{\"connector.class\": \"x.MySqlConnector\"}",
            "import-refused",
            "connector for Postgres",
        ),
    ] {
        let (out, error) = import(&[&folder.write("other", text)], 78);
        assert_eq!(out, "");
        assert_has(&error, &[&format!("[{id}]"), words]);
    }
    import(&["/nonexistent/connector.json"], 69);
}

/// A stand-in for a Debezium that was stopped: it has sent everything, and its slot has not
/// confirmed the last transaction.
pub(crate) struct StandIn<'a> {
    rig: &'a Rig,
    producer: Producer,
    sent: usize,
    /// End of the WAL before the last transaction.
    before_last: Option<String>,
}

impl<'a> StandIn<'a> {
    pub(crate) fn new(rig: &'a Rig) -> Self {
        rig.workload().create_tables();
        let db = rig.db();
        // Like PostgresReplicationConnection with publication.autocreate.mode=filtered.
        db.batch("CREATE PUBLICATION \"dbz_publication\" FOR TABLE public.outbox");
        create_slot(&db, "debezium");
        Self {
            rig,
            producer: Producer::new(&rig.bootstrap),
            sent: 0,
            before_last: None,
        }
    }

    /// Sends the rows committed since the last call, as the outbox event router does.
    pub(crate) fn relay(&mut self) {
        let mut rows: Vec<Committed> =
            History::committed(&self.rig.postgres.url(), "public.outbox", &self.rig.prefix);
        rows.sort_by_key(|row| row.number);
        self.producer.send_rows(&rows[self.sent..]);
        self.sent = rows.len();
        assert!(self.producer.delivers(PATIENCE));
    }

    /// Moves the slot to the begin of the last transaction: Debezium confirms a transaction when it
    /// has received the next.
    pub(crate) fn confirm_all_but_the_last(&self) {
        let db = self.rig.db();
        let confirmed = self.before_last.as_deref().expect("two transactions");
        db.batch(&format!(
            "SELECT pg_replication_slot_advance('debezium', '{confirmed}')"
        ));
    }

    /// Commits a transaction of three rows of one key.
    pub(crate) fn commit(&mut self, from: u32) {
        let values: Vec<String> = (from..from + 3)
            .map(|n| format!("(gen_random_uuid(), 'order', 'key', 'T', '{{\"number\": {n}}}')"))
            .collect();
        let db = self.rig.db();
        self.before_last = db.text("SELECT pg_current_wal_insert_lsn()::text");
        db.batch(&format!("INSERT INTO outbox VALUES {}", values.join(", ")));
    }
}

/// Starts the relay of an imported configuration, with the password that it lacks.
pub(crate) fn start_imported(rig: &Rig, arguments: &[&str]) -> Relay {
    let mut command = walrelay(arguments);
    command
        .args(["--set", "log.format=json"])
        .current_dir(rig.folder())
        .env("PGPASSWORD", rig.postgres.superuser_password());
    Relay::spawn(&mut command, &rig.path(&format!("relay-{}.log", unique())))
}

/// Asserts that everything arrives through this slot, with this number of repeats.
#[track_caller]
pub(crate) fn arrived(rig: &Rig, slot: &str, committed: usize, repeats: usize) {
    let slot = SlotWatch::new(&rig.postgres.url(), slot);
    slot.wait_until(slot.wal_end(), PATIENCE);
    rig.verdict().assert_counts(committed, repeats);
}

/// A connector for the servers of the rig.
pub(crate) fn connector_of(rig: &Rig, more: &str) -> String {
    let replacement = format!(
        ",\"transforms.outbox.route.topic.replacement\": \"{}${{routedByValue}}\"{more}",
        rig.prefix
    );
    connector(&replacement).replace("5432", &rig.postgres.port().to_string())
}

/// The hand-over of docs/start/debezium.md: nothing is lost, and exactly the rows that
/// Debezium had not confirmed are repeated. `make test-debezium` does the same with a real
/// Debezium.
#[test]
fn the_slot_of_debezium_is_taken_over() {
    let rig = Rig::new(15);
    let mut debezium = StandIn::new(&rig);
    let db = rig.db();
    debezium.commit(1);
    debezium.commit(4);
    debezium.commit(7);
    debezium.relay();
    debezium.confirm_all_but_the_last();
    // Debezium is stopped; the application is not.
    debezium.commit(10);

    let bootstrap = format!(
        ", \"producer.override.bootstrap.servers\": \"{}\"",
        rig.bootstrap
    );
    let file = rig.path("connector.json");
    fs::write(&file, connector_of(&rig, &bootstrap)).expect("written");
    let config = rig.path("walrelay.toml");
    let path = |path: &Path| path.to_str().expect("text").to_owned();
    import(&[&path(&file), "-o", &path(&config)], 0);

    let run = ["run", "--config", "walrelay.toml"];
    let relay = start_imported(&rig, &run);
    relay.streaming();
    debezium.commit(13);
    arrived(&rig, "debezium", 15, 3);
    relay.ends_well();

    // A missing slot is not silently created again.
    SlotWatch::new(&rig.postgres.url(), "debezium").wait_inactive(PATIENCE);
    db.batch("SELECT pg_drop_replication_slot('debezium')");
    ends(&mut start_imported(&rig, &run), 78, "slot-missing");
}
