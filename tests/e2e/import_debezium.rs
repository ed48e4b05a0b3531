//! `walrelay import-debezium`: from files, from a server that stands for Kafka Connect, and the slot
//! as Debezium leaves it.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rustls::{ServerConnection, StreamOwned};
use tempfile::TempDir;
use walrelay_testkit::{Authority, Committed, Db, History, Issued, SlotWatch, eventually};

use crate::rig::{PATIENCE, Relay, Rig, walrelay};

/// Kafka Connect's REST interface, as far as one connector goes. Dropped, it ends.
pub(crate) struct Rest {
    address: SocketAddr,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// What it answers.
pub(crate) struct Answers {
    /// `{"name", "config", …}`, of the connector `outbox`.
    pub(crate) connector: String,
    /// `Basic …`, if somebody must log in.
    pub(crate) authorization: Option<&'static str>,
    /// Speaks TLS with this certificate.
    pub(crate) certificate: Option<Issued>,
}

impl Rest {
    pub(crate) fn start(answers: Answers) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let ends = Arc::new(AtomicBool::new(false));
        let tls = answers.certificate.as_ref().map(Issued::server_config);
        let thread = thread::spawn({
            let ends = Arc::clone(&ends);
            move || {
                for stream in listener.incoming() {
                    if ends.load(Ordering::SeqCst) {
                        return;
                    }
                    let stream = stream.expect("a connection");
                    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
                    match &tls {
                        Some(tls) => {
                            let connection =
                                ServerConnection::new(Arc::clone(tls)).expect("a connection");
                            serve(StreamOwned::new(connection, stream), &answers);
                        }
                        None => serve(stream, &answers),
                    }
                }
            }
        });
        Self {
            address,
            ends,
            thread: Some(thread),
        }
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }
}

impl Drop for Rest {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::SeqCst);
        // Wakes it up.
        let _ = std::net::TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || thread::panicking(), "the server failed");
        }
    }
}

/// One request. A client that does not go through with it, as one that refuses the certificate, is
/// none of the server's business.
fn serve(mut stream: impl Read + Write, answers: &Answers) {
    let mut reader = BufReader::new(&mut stream);
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        match reader.read_line(&mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) if line.trim_end().is_empty() => break,
            Ok(_) => head.push(line.trim_end().to_owned()),
        }
    }
    let request = head.first().map_or("", String::as_str);
    let authorization = head.iter().find_map(|line| {
        line.strip_prefix("authorization: ")
            .or(line.strip_prefix("Authorization: "))
    });
    let allowed = answers.authorization.is_none() || answers.authorization == authorization;
    let (status, body) = match request {
        _ if !allowed => ("401 Unauthorized", String::new()),
        "GET /connectors/outbox HTTP/1.1" => ("200 OK", answers.connector.clone()),
        "GET /connectors/outbox/config HTTP/1.1" => {
            let json: serde_json::Value =
                serde_json::from_str(&answers.connector).expect("a connector");
            ("200 OK", json["config"].to_string())
        }
        "GET /moved HTTP/1.1" => (
            "307 Temporary Redirect\r\nLocation: /connectors/outbox",
            String::new(),
        ),
        _ => (
            "404 Not Found",
            "{\"error_code\":404,\"message\":\"Connector not found\"}".to_owned(),
        ),
    };
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    );
    let _ = stream
        .write_all(answer.as_bytes())
        .and_then(|()| stream.flush());
}

/// A connector as Kafka Connect gives it; it has a password that must not be seen again.
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
    walrelay(&["import-debezium"])
        .args(args)
        .output()
        .expect("walrelay runs")
}

/// Both streams, free of the password.
#[track_caller]
fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(
        !out.contains("hunter2") && !err.contains("hunter2"),
        "{out}{err}"
    );
    (out, err)
}

/// `walrelay check --offline` has nothing against it.
#[track_caller]
fn checked(config: &Path) {
    let output = walrelay(&["check", "--offline", "--config"])
        .arg(config)
        .env("PGPASSWORD", "x")
        .env("KAFKA_BOOTSTRAP_SERVERS", "localhost:9092")
        .output()
        .expect("walrelay runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn a_file_becomes_a_configuration() {
    let dir = TempDir::new().expect("a directory");
    let path = |name: &str| dir.path().join(name).to_str().expect("text").to_owned();
    fs::write(path("connector.json"), connector("")).expect("written");
    let arguments = [
        &path("connector.json"),
        "--output-file",
        &path("walrelay.toml"),
    ];
    let first = run(&arguments);
    let (out, report) = texts(&first);
    assert_eq!(first.status.code(), Some(0), "{report}");
    assert_eq!(out, "");
    assert!(
        report.contains("taken over     database.hostname -> source.url\n"),
        "{report}"
    );
    assert!(
        report.contains("no effect      heartbeat.interval.ms: not needed"),
        "{report}"
    );
    let mode = fs::metadata(path("walrelay.toml"))
        .expect("the file")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    checked(Path::new(&path("walrelay.toml")));

    // Not a second time, unless it is meant.
    let written = fs::read_to_string(path("walrelay.toml")).expect("the file");
    fs::write(path("walrelay.toml"), "mine").expect("written");
    let second = run(&arguments);
    assert_eq!(second.status.code(), Some(64), "{}", texts(&second).1);
    assert_eq!(
        fs::read_to_string(path("walrelay.toml")).expect("the file"),
        "mine"
    );
    let forced = [&arguments[..], &["--force"]].concat();
    assert_eq!(run(&forced).status.code(), Some(0));
    assert_eq!(
        fs::read_to_string(path("walrelay.toml")).expect("the file"),
        written
    );
    let left: Vec<_> = fs::read_dir(dir.path()).expect("the directory").collect();
    assert_eq!(left.len(), 2, "{left:?}");

    // Somebody may want the password.
    let with = run(&[&path("connector.json"), "--with-secrets"]);
    let toml = String::from_utf8(with.stdout).expect("text");
    assert!(
        toml.contains("postgres://postgres:hunter2@127.0.0.1:5432/"),
        "{toml}"
    );
    assert!(!String::from_utf8_lossy(&with.stderr).contains("hunter2"));
}

#[test]
fn standard_input_and_a_report_for_programs() {
    let dir = TempDir::new().expect("a directory");
    let report = dir.path().join("report.json");
    let mut child = walrelay(&["import-debezium", "-", "--output", "json", "--report"])
        .arg(&report)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("walrelay runs");
    let mut stdin = child.stdin.take().expect("its standard input");
    stdin.write_all(connector("").as_bytes()).expect("it reads");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    let (toml, errors) = texts(&output);
    assert_eq!((output.status.code(), errors.as_str()), (Some(0), ""));
    let config = dir.path().join("walrelay.toml");
    fs::write(&config, toml).expect("written");
    checked(&config);

    let text = fs::read_to_string(&report).expect("the report");
    assert!(!text.contains("hunter2"), "{text}");
    let report: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let input: serde_json::Value = serde_json::from_str(&connector("")).expect("JSON");
    let mut reported: Vec<&str> = report["settings"]
        .as_array()
        .expect("settings")
        .iter()
        .map(|row| row["key"].as_str().expect("a key"))
        .collect();
    let mut keys: Vec<&str> = input["config"]
        .as_object()
        .expect("settings")
        .keys()
        .map(String::as_str)
        .collect();
    keys.extend(["tasks", "type"]);
    reported.sort_unstable();
    keys.sort_unstable();
    assert_eq!(reported, keys, "each key once");
}

#[test]
fn application_properties_of_debezium_server() {
    let dir = TempDir::new().expect("a directory");
    let file = dir.path().join("application.properties");
    fs::write(
        &file,
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
    )
    .expect("written");
    let output = run(&[file.to_str().expect("text")]);
    let (toml, report) = texts(&output);
    assert_eq!(output.status.code(), Some(0), "{report}");
    for line in [
        "url = \"postgres://cdc:${PG_PASSWORD}@db/app\"\n",
        "tables = [\"public.outbox\", \"app.outbox\"]\n",
        "\"route.topic.replacement\" = \"outbox.event.${routedByValue}\"\n",
        "slot = \"debezium\"",
    ] {
        assert!(toml.contains(line), "{line}: {toml}");
    }
    assert!(
        report.contains("taken over     debezium.source.database.user (line 5)"),
        "{report}"
    );
    let config = dir.path().join("walrelay.toml");
    fs::write(&config, toml).expect("written");
    let output = walrelay(&["check", "--offline", "--config"])
        .arg(&config)
        .env("PG_PASSWORD", "x")
        .output()
        .expect("walrelay runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn kafka_connects_rest_interface() {
    let rest = Rest::start(Answers {
        connector: connector(""),
        // api:s3/cret
        authorization: Some("Basic YXBpOnMzL2NyZXQ="),
        certificate: None,
    });
    let url = |login: &str, path: &str| format!("http://{login}127.0.0.1:{}{path}", rest.port());
    let whole = run(&[&url("api:s3%2Fcret@", "/connectors/outbox")]);
    let (toml, report) = texts(&whole);
    assert_eq!(whole.status.code(), Some(0), "{report}");
    assert!(
        toml.contains("from the connector outbox of Kafka Connect"),
        "{toml}"
    );
    let bare = run(&[&url("api:s3%2Fcret@", "/connectors/outbox/config")]);
    assert_eq!(bare.status.code(), Some(0), "{}", texts(&bare).1);
    let body = |toml: &str| toml.split_once("\n[").map(|(_, body)| body.to_owned());
    assert_eq!(body(&texts(&bare).0), body(&toml));

    for (login, path, code, words) in [
        ("", "/connectors/outbox", 77, "status 401"),
        ("api:wr0ng@", "/connectors/outbox", 77, "status 401"),
        ("api:s3%2Fcret@", "/connectors/other", 69, "status 404"),
        // It could lead anywhere.
        ("api:s3%2Fcret@", "/moved", 69, "status 307"),
        ("api:s3/cret@", "/connectors/outbox", 64, "cannot be read"),
    ] {
        let output = run(&[&url(login, path)]);
        let (out, error) = texts(&output);
        assert_eq!(output.status.code(), Some(code), "{error}");
        assert!(
            error.contains(words) && error.contains("[import-input]"),
            "{error}"
        );
        assert!(
            !error.contains("cret") && !error.contains("wr0ng"),
            "{error}"
        );
        assert_eq!(out, "");
    }
    let nobody = run(&["http://127.0.0.1:9/connectors/outbox"]);
    assert_eq!(nobody.status.code(), Some(69), "{}", texts(&nobody).1);
}

#[test]
fn kafka_connect_over_tls() {
    let authority = Authority::new("import-debezium");
    let rest = Rest::start(Answers {
        connector: connector(""),
        authorization: None,
        certificate: Some(authority.server("localhost")),
    });
    let dir = TempDir::new().expect("a directory");
    let roots = dir.path().join("roots.pem");
    fs::write(&roots, authority.pem()).expect("written");
    let import = |host: &str, trusted: bool| {
        let url = format!("https://{host}:{}/connectors/outbox", rest.port());
        let mut command: Command = walrelay(&["import-debezium", &url]);
        let other = dir.path().join("other.pem");
        fs::write(&other, Authority::new("another").pem()).expect("written");
        let roots = if trusted { &roots } else { &other };
        command
            .env("SSL_CERT_FILE", roots)
            .env_remove("SSL_CERT_DIR");
        command.output().expect("walrelay runs")
    };
    let output = import("localhost", true);
    assert_eq!(output.status.code(), Some(0), "{}", texts(&output).1);
    for output in [import("localhost", false), import("127.0.0.1", true)] {
        let (_, error) = texts(&output);
        assert_eq!(output.status.code(), Some(69), "{error}");
        assert!(error.to_lowercase().contains("certificate"), "{error}");
    }
}

#[test]
fn what_would_change_records_is_refused() {
    let dir = TempDir::new().expect("a directory");
    let file = dir.path().join("connector.json");
    let predicate = ",\"transforms.outbox.predicate\": \"p\", \"predicates\": \"p\", \
        \"predicates.p.type\": \"x.Y\"";
    fs::write(&file, connector(predicate)).expect("written");
    let file = file.to_str().expect("text");
    let output = run(&[file]);
    let (out, error) = texts(&output);
    assert_eq!(
        (output.status.code(), out.as_str()),
        (Some(78), ""),
        "{error}"
    );
    assert!(
        error.contains("NOT SUPPORTED  transforms.outbox.predicate: "),
        "{error}"
    );
    assert!(error.contains("[import-unsupported]"), "{error}");
    let output = run(&[file, "--partial"]);
    let (out, error) = texts(&output);
    assert_eq!(output.status.code(), Some(0), "{error}");
    assert!(out.contains("#   transforms.outbox.predicate\n"), "{out}");

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
        let path = dir.path().join("other");
        fs::write(&path, text).expect("written");
        let output = run(&[path.to_str().expect("text")]);
        let (out, error) = texts(&output);
        assert_eq!(
            (output.status.code(), out.as_str()),
            (Some(78), ""),
            "{error}"
        );
        assert!(
            error.contains(&format!("[{id}]")) && error.contains(words),
            "{error}"
        );
    }
    let missing = run(&["/nonexistent/connector.json"]);
    assert_eq!(missing.status.code(), Some(69), "{}", texts(&missing).1);
}

/// What Debezium has sent, and what its slot says, when it stops: everything is with the broker, and
/// the last transaction is not confirmed.
pub(crate) struct StandIn<'a> {
    rig: &'a Rig,
    producer: BaseProducer,
    sent: usize,
    /// Where the log ended before the last transaction.
    before_last: Option<String>,
}

impl<'a> StandIn<'a> {
    pub(crate) fn new(rig: &'a Rig) -> Self {
        rig.workload().create_tables();
        let db = Db::connect(&rig.postgres.url());
        // As PostgresReplicationConnection makes them, publication.autocreate.mode=filtered.
        db.batch("CREATE PUBLICATION \"dbz_publication\" FOR TABLE public.outbox");
        db.batch("SELECT pg_create_logical_replication_slot('debezium', 'pgoutput')");
        let producer: BaseProducer = ClientConfig::new()
            .set("bootstrap.servers", &rig.bootstrap)
            .set("partitioner", "murmur2_random")
            .create()
            .expect("a producer");
        Self {
            rig,
            producer,
            sent: 0,
            before_last: None,
        }
    }

    /// Sends what was committed since, as the outbox event router does.
    pub(crate) fn relay(&mut self) {
        let mut rows: Vec<Committed> =
            History::committed(&self.rig.postgres.url(), "public.outbox", &self.rig.prefix);
        rows.sort_by_key(|row| row.number);
        for row in &rows[self.sent..] {
            let headers = OwnedHeaders::new().insert(Header {
                key: "id",
                value: Some(&row.id),
            });
            let record = BaseRecord::to(&row.topic)
                .key(row.key.as_deref().unwrap_or_default())
                .payload(row.payload.as_deref().unwrap_or_default())
                .headers(headers);
            self.producer
                .send(record)
                .map_err(|(error, _)| error)
                .expect("it takes it");
        }
        self.sent = rows.len();
        eventually(PATIENCE, || {
            self.producer.poll(Duration::from_millis(50));
            self.producer.in_flight_count() == 0
        });
    }

    /// Moves the slot up to where the last transaction begins: Debezium confirms each when it has
    /// seen the next.
    pub(crate) fn confirm_all_but_the_last(&self) {
        let db = Db::connect(&self.rig.postgres.url());
        let confirmed = self.before_last.as_deref().expect("two transactions");
        db.batch(&format!(
            "SELECT pg_replication_slot_advance('debezium', '{confirmed}')"
        ));
    }

    /// A transaction of three rows of one key.
    pub(crate) fn commit(&mut self, from: u32) {
        let values: Vec<String> = (from..from + 3)
            .map(|n| format!("(gen_random_uuid(), 'order', 'key', 'T', '{{\"number\": {n}}}')"))
            .collect();
        let db = Db::connect(&self.rig.postgres.url());
        self.before_last = db.text("SELECT pg_current_wal_insert_lsn()::text");
        db.batch(&format!("INSERT INTO outbox VALUES {}", values.join(", ")));
    }
}

/// The hand-over of docs/MIGRATING-FROM-DEBEZIUM.md: nothing is lost, and exactly what Debezium had not
/// confirmed is repeated. `make test-debezium` does the same with a real one.
#[test]
fn the_slot_of_debezium_is_taken_over() {
    let rig = Rig::new(15);
    let mut debezium = StandIn::new(&rig);
    let db = Db::connect(&rig.postgres.url());
    debezium.commit(1);
    debezium.commit(4);
    debezium.commit(7);
    debezium.relay();
    debezium.confirm_all_but_the_last();
    // Debezium is stopped; the application is not.
    debezium.commit(10);

    let port = rig.postgres.port().to_string();
    let replacement = format!(
        ",\"transforms.outbox.route.topic.replacement\": \"{}${{routedByValue}}\", \
         \"producer.override.bootstrap.servers\": \"{}\"",
        rig.prefix, rig.bootstrap
    );
    let text = connector(&replacement).replace("5432", &port);
    let file = rig.path("connector.json");
    fs::write(&file, text).expect("written");
    let config = rig.path("walrelay.toml");
    let arguments = [
        file.to_str().expect("text"),
        "-o",
        config.to_str().expect("text"),
    ];
    let output = run(&arguments);
    assert_eq!(output.status.code(), Some(0), "{}", texts(&output).1);

    let mut command = Relay::command(&config);
    command
        .args(["--set", "log.format=json"])
        .env("PGPASSWORD", rig.postgres.superuser_password());
    let relay = Relay::spawn(&mut command, &rig.path("relay.log"));
    relay.streaming();
    debezium.commit(13);
    let slot = SlotWatch::new(&rig.postgres.url(), "debezium");
    slot.wait_until(slot.wal_end(), PATIENCE);

    let verdict = rig.verdict();
    verdict.assert_clean();
    assert_eq!(
        (verdict.committed, verdict.duplicates),
        (15, 3),
        "{verdict}"
    );
    relay.ends_well();

    // A slot that is gone is not made anew behind somebody's back.
    eventually(Duration::from_secs(60), || {
        slot.read().is_some_and(|slot| slot.active_pid.is_none())
    });
    db.batch("SELECT pg_drop_replication_slot('debezium')");
    let mut command = Relay::command(&config);
    command.env("PGPASSWORD", rig.postgres.superuser_password());
    let mut relay = Relay::spawn(&mut command, &rig.path("relay-2.log"));
    assert_eq!(relay.ended().code(), Some(78), "{}", relay.log());
    assert!(relay.log().contains("[slot-missing]"), "{}", relay.log());
}
