use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::{Value, json};
use walrelay_testkit::{Db, Delivered};

use crate::rig::{Rig, assert_has, assert_lacks, command_with, ends, output_with, said, stdout};

const ID: &str = "018f5a3e-7c1d-7b1a-9c55-0123456789ab";

/// A table, its preset, and the configuration.
struct Case {
    rig: Rig,
    table: &'static str,
    /// Prefix of the topics of this test. It has no dots, because presets split types at dots.
    prefix: String,
    config: PathBuf,
}

impl Case {
    fn new(major: u32, table: &'static str, columns: &str, router: &str) -> Self {
        let rig = Rig::new(major);
        let db = rig.db();
        db.batch(&format!("CREATE TABLE {table} ({columns})"));
        let prefix = rig.prefix.trim_end_matches('.').to_owned();
        let config = rig.path("preset.toml");
        let text = format!(
            "[source]\nurl = \"{}\"\ntables = [\"public.{table}\"]\n\n{}\n\n\
             [log]\nformat = \"json\"\n\n[sink.kafka]\n\"bootstrap.servers\" = \"{}\"\n",
            rig.postgres.url(),
            router.replace("PREFIX", &prefix),
            rig.bootstrap
        );
        fs::write(&config, text).expect("the configuration is written");
        Self {
            rig,
            table,
            prefix,
            config,
        }
    }

    fn db(&self) -> Db {
        self.rig.db()
    }

    /// Runs `check`, inserts by `sql` while a relay runs, and returns the records in the order of
    /// their values. `PREFIX` is replaced in both statements. `after` is what the table's poller
    /// does later, which must cause no event.
    fn delivered(&self, sql: &str, after: &str) -> Vec<Delivered> {
        let check = output_with("check", &self.config, &[]);
        let fine = format!("the rows of public.{} can be routed", self.table);
        assert_has(&stdout(&check), &[&fine]);

        let relay = self.rig.streaming(&self.config);
        let db = self.db();
        for statement in [sql, after] {
            db.batch(&statement.replace("PREFIX", &self.prefix));
        }
        self.rig.caught_up();
        relay.ends_well();
        // Everything is confirmed, so no further records will come.
        let mut records = self.rig.records_in(&self.prefix, 0);
        records.sort_by(|a, b| a.payload.cmp(&b.payload));
        records
    }

    /// The row with this id as a file for `walrelay route`, with the types of the table.
    fn row_file(&self, id: &str) -> PathBuf {
        let db = self.db();
        let columns = db.query(
            "SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute \
             WHERE attrelid = $1::text::regclass AND attnum > 0 AND NOT attisdropped",
            &[&self.table],
        );
        let mut row = serde_json::Map::new();
        let mut types = serde_json::Map::new();
        for column in columns {
            let (name, of_type): (String, String) = (column.get(0), column.get(1));
            let sql = format!("SELECT {name}::text FROM {} WHERE id = '{id}'", self.table);
            row.insert(name.clone(), db.text(&sql).into());
            types.insert(name, of_type.into());
        }
        row.insert("$types".to_owned(), types.into());
        let path = self.rig.path("row.json");
        fs::write(&path, Value::from(row).to_string()).expect("written");
        path
    }

    /// Asserts that `walrelay route` shows the record that arrived.
    fn assert_shown(&self, id: &str, record: &Delivered) {
        let file = self.row_file(id);
        let shown = routed(&self.config, &file);
        assert_eq!(shown["topic"], record.topic);
        assert_eq!(shown["key"], text(record.key.as_ref()));
        assert_eq!(shown["value"], text(record.payload.as_ref()));
        let headers: Vec<Value> = record
            .headers
            .iter()
            .map(|(name, value)| json!([name, text(value.as_ref())]))
            .collect();
        assert_eq!(shown["headers"], Value::from(headers));
    }
}

fn text(bytes: Option<&Vec<u8>>) -> Value {
    bytes.map_or(Value::Null, |bytes| {
        String::from_utf8(bytes.clone()).expect("text").into()
    })
}

fn routed(config: &Path, row: &Path) -> Value {
    let row = row.to_str().expect("text");
    let output = output_with("route --output json", config, &["--row", row]);
    serde_json::from_str(&stdout(&output)).expect("a line of JSON")
}

fn header(name: &str, value: &str) -> (String, Option<Vec<u8>>) {
    (name.to_owned(), Some(value.as_bytes().to_vec()))
}

#[test]
fn events_outbox() {
    let case = Case::new(
        15,
        "events_outbox",
        "id bigserial PRIMARY KEY, aggregate_id uuid NOT NULL, type text NOT NULL, \
         payload jsonb NOT NULL, created_at timestamptz NOT NULL DEFAULT now(), \
         dispatched_at timestamptz",
        "[router]\npreset = \"events_outbox\"",
    );
    let records = case.delivered(
        &format!(
            "INSERT INTO events_outbox (aggregate_id, type, payload) VALUES \
             ('{ID}', 'PREFIXorder.placed', '{{\"a\": 1}}'), ('{ID}', 'PREFIXpayment', '{{\"b\":2}}')"
        ),
        "UPDATE events_outbox SET dispatched_at = now(); DELETE FROM events_outbox WHERE id = 2",
    );
    assert_eq!(records.len(), 2, "{records:?}");
    let topics = ["order", "payment"].map(|name| format!("{}{name}", case.prefix));
    for ((record, number), topic) in records.iter().zip(1..).zip(topics) {
        assert_eq!(record.topic, topic);
        assert_eq!(record.key_text(), ID);
        assert_eq!(record.headers, [header("event_id", &number.to_string())]);
    }
    assert_eq!(records[0].value_text(), "{\"a\": 1}");
    assert_eq!(records[1].value_text(), "{\"b\": 2}");
    case.assert_shown("1", &records[0]);
}

/// A table with a status that pollers update.
#[test]
fn outbox_events() {
    let case = Case::new(
        18,
        "outbox",
        "id uuid PRIMARY KEY, aggregate_id text NOT NULL, event_type text NOT NULL, \
         payload jsonb NOT NULL, status varchar(20) NOT NULL DEFAULT 'PENDING', \
         attempts int NOT NULL DEFAULT 0, created_at timestamptz NOT NULL DEFAULT now(), \
         updated_at timestamptz, sent_at timestamptz",
        "[router]\npreset = \"outbox_events\"",
    );
    let records = case.delivered(
        &format!(
            "INSERT INTO outbox (id, aggregate_id, event_type, payload) \
             VALUES ('{ID}', 'order-1', 'PREFIXorder.placed', '{{\"a\": 1}}')"
        ),
        "UPDATE outbox SET status = 'PROCESSING', attempts = 1; \
         UPDATE outbox SET status = 'SENT', sent_at = now()",
    );
    let [record] = records.as_slice() else {
        panic!("{records:?}")
    };
    assert_eq!(record.topic, format!("{}order", case.prefix));
    assert_eq!(record.key_text(), "order-1");
    assert_eq!(record.value_text(), "{\"a\": 1}");
    assert_eq!(record.headers, [header("x-outbox-event-id", ID)]);
    case.assert_shown(ID, record);
}

#[test]
fn outbox() {
    let case = Case::new(
        18,
        "outbox",
        "id uuid PRIMARY KEY, aggregate_type text NOT NULL, aggregate_id text NOT NULL, \
         event_type text NOT NULL, payload jsonb NOT NULL, metadata jsonb, \
         created_at timestamptz NOT NULL, processed boolean NOT NULL DEFAULT false",
        "[router]\npreset = \"outbox\"",
    );
    let records = case.delivered(
        &format!(
            "INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload, metadata, created_at) \
             VALUES ('{ID}', 'PREFIXOrder', 'o \"1\"', 'OrderPlaced', '{{\"total\": 12.50}}', NULL, \
                     '2026-01-02 03:04:05.678+00')"
        ),
        "UPDATE outbox SET processed = true",
    );
    let [record] = records.as_slice() else {
        panic!("{records:?}")
    };
    assert_eq!(record.topic, format!("{}order.events", case.prefix));
    assert_eq!(record.key_text(), "o \"1\"");
    let headers = [
        header("event-type", "OrderPlaced"),
        header("aggregate-id", "o \"1\""),
    ];
    assert_eq!(record.headers, headers);
    let expected = format!(
        "{{\"event_id\":\"{ID}\",\"event_type\":\"OrderPlaced\",\"aggregate_type\":\"{}Order\",\
         \"aggregate_id\":\"o \\\"1\\\"\",\"payload\":{{\"total\": 12.50}},\"metadata\":null,\
         \"timestamp\":",
        case.prefix
    );
    let timestamp = record.value_text().strip_prefix(&expected);
    let timestamp = timestamp.unwrap_or_else(|| panic!("{record:?}"));
    // In the time zone of the server.
    assert!(timestamp.starts_with("\"2026-01-0"), "{timestamp}");
    assert_has(timestamp, &["T", ".678"]);
    case.assert_shown(ID, record);
}

#[test]
fn one_of_ones_own() {
    let case = Case::new(
        15,
        "events",
        "id bigint PRIMARY KEY, kind text, customer int, shard int NOT NULL, body jsonb, raw bytea, \
         at timestamptz NOT NULL, tenant text",
        "[router]\npreset = \"custom\"\n[router.route]\nid = \"id\"\n\
         topic = \"PREFIX{kind | lookup('kinds', 'rest')}\"\nkey = \"c-{customer | default('none')}\"\n\
         partition = \"{shard}\"\ntimestamp = \"{at}\"\n\
         [router.route.headers]\ntenant = \"{tenant | optional}\"\nraw = \"{raw}\"\n\
         [router.route.value]\nid = \"{id}\"\nname = \"{body | json('who', 'name') | upper}\"\n\
         body = \"{body}\"\nversion = 2\n[router.route.value.meta]\ntenant = \"{tenant}\"\n\
         [router.lookup.kinds]\n\"order.placed\" = \".orders\"",
    );
    case.rig
        .kafka()
        .create_topic(&format!("{}.orders", case.prefix), 3, &[]);
    let records = case.delivered(
        "INSERT INTO events VALUES \
         (1, 'order.placed', 7, 2, '{\"who\": {\"name\": \"é\"}}', '\\x00ff', '2026-01-02 03:04:05.678+00', 'acme'), \
         (2, 'other', NULL, 1, NULL, NULL, '2026-01-02 03:04:05.678+00', NULL)",
        "UPDATE events SET tenant = 'x'",
    );
    let [first, second] = records.as_slice() else {
        panic!("{records:?}")
    };
    assert_eq!(
        (&*first.topic, first.partition),
        (&*format!("{}.orders", case.prefix), 2)
    );
    assert_eq!(first.key_text(), "c-7");
    assert_eq!(first.created, Some(1_767_323_045_678));
    assert_eq!(
        first.headers,
        [
            header("tenant", "acme"),
            ("raw".to_owned(), Some(vec![0, 0xff]))
        ]
    );
    assert_eq!(
        first.value_text(),
        "{\"id\":1,\"name\":\"É\",\"body\":{\"who\": {\"name\": \"é\"}},\"version\":2,\
             \"meta\":{\"tenant\":\"acme\"}}"
    );
    assert_eq!(
        (&*second.topic, second.partition),
        (&*format!("{}rest", case.prefix), 1)
    );
    assert_eq!(second.key_text(), "c-none");
    assert_eq!(second.headers, [("raw".to_owned(), None)]);
    assert_eq!(
        second.value_text(),
        "{\"id\":2,\"name\":null,\"body\":null,\"version\":2,\"meta\":{\"tenant\":null}}"
    );
}

/// Names of columns are not enough: the type of a column can be wrong too.
#[test]
fn check_compiles_the_routes_for_the_table() {
    let case = Case::new(
        15,
        "events",
        "id bigint PRIMARY KEY, kind text, n int, twice int GENERATED ALWAYS AS (n * 2) STORED",
        "[router]\npreset = \"custom\"\n[router.route]\ntopic = \"{kind}\"\n\
         [router.route.value]\nn = \"{n | default('none')}\"",
    );
    stdout(&output_with("check --offline", &case.config, &[]));
    let check = |set: &str, code: i32| {
        let output = output_with("check", &case.config, &["--set", set]);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        said(&output)
    };
    let said = check("log.level=info", 78);
    assert_has(&said, &["[column-missing]"]);
    let parts = ["the default of column \"n\" of table public.events"];
    assert_has(&said, &parts);
    // The server never sends generated columns.
    let said = check("router.route.value={twice}", 78);
    let parts = [
        "[column-generated]",
        "column twice of table public.events is generated",
    ];
    assert_has(&said, &parts);
    check("router.route.value={n}", 0);
}

/// Runs without any server.
#[test]
fn route_shows_what_a_row_would_become() {
    let rig = Rig::without_broker(15);
    let config = rig.config_with("postgres://nobody@127.0.0.1:9/nowhere", "");
    let row = rig.path("row.json");
    let run = |more: &str, text: &str, code: i32| {
        fs::write(&row, text).expect("written");
        let line = format!("route --row {} {more}", row.display());
        let output = output_with(&line, &config, &[]);
        let streams = [output.stdout, output.stderr];
        let [out, error] = streams.map(|bytes| String::from_utf8(bytes).expect("text"));
        assert_eq!(output.status.code(), Some(code), "{error}");
        (out, error)
    };
    let good = r#"{"id": "7", "aggregatetype": "Order", "aggregateid": "o-1", "type": "T",
                   "payload": {"a":  1.50}}"#;
    let (out, error) = run("", good, 0);
    assert_eq!(error, "");
    let expected = format!(
        "topic:     {}Order\npartition: (by the key)\ntimestamp: (time of production)\n\
         key:       o-1\nheader:    id: 7\nvalue:     {{\"a\":  1.50}}\n",
        rig.prefix
    );
    assert_eq!(out, expected);

    // A row from standard input, with another preset.
    let text = fs::read_to_string(&config).expect("the configuration");
    let (before, rest) = text.split_once("[router.debezium]").expect("a section");
    let (_, after) = rest.split_once("[log]").expect("a section");
    fs::write(&config, format!("{before}[log]{after}")).expect("written");
    let line = "route --row - --output json --set router.preset=events_outbox";
    let mut child = command_with(line, &config, &[])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("walrelay runs");
    let row_of_events =
        br#"{"id": 17, "aggregate_id": null, "type": "order.placed", "payload": []}"#;
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(row_of_events).expect("written");
    drop(stdin);
    let done = child.wait_with_output().expect("an end");
    assert_eq!(
        serde_json::from_slice::<Value>(&done.stdout).expect("a line"),
        json!({"topic": "order", "partition": null, "timestamp_ms": null, "key": null,
               "value": "[]", "headers": [["event_id", "17"]]})
    );

    // For a row that cannot be routed, the command prints its class and what the policy would do,
    // but no value.
    let bad = r#"{"id": "s3cret", "aggregatetype": null, "aggregateid": "s3cret", "type": "T", "payload": "s3cret"}"#;
    let (out, error) = run("", bad, 65);
    assert_eq!(out, "");
    let parts = ["[unroutable]", "\"aggregatetype\"", "unroutable = \"halt\""];
    assert_has(&error, &parts);
    assert_lacks(&error, &["s3cret"]);
    let skip = "--output json --set poison.unroutable=dead-letter";
    let (out, _) = run(skip, bad, 65);
    let told: Value = serde_json::from_str(&out).expect("a line");
    assert_eq!(told["class"], "unroutable");
    assert_eq!(told["policy"], "dead-letter");

    // Files that are no rows, and rows that do not fit the table.
    let (_, error) = run("", "{\"id\": s3cret}", 64);
    assert_has(&error, &["[row-file]", "line 1, column 8"]);
    assert_lacks(&error, &["s3cret"]);
    let (_, error) = run("--type id=uuidd", good, 64);
    assert_has(&error, &["did you mean \"uuid\"?"]);
    let (_, error) = run("", "{\"id\": \"7\"}", 78);
    assert_has(&error, &["[column-missing]"]);
}

/// Runs without any server.
#[test]
fn route_shows_the_destination_of_every_sink() {
    let rig = Rig::without_broker(15);
    let row = rig.path("row.json");
    let text = r#"{"id": 7, "aggregate_id": "o 1", "event_type": "order.placed", "payload": {}}"#;
    fs::write(&row, text).expect("written");
    let config = rig.path("sinks.toml");
    let routed = |sink: &str, more: &str, code: i32| {
        let text = format!(
            "[source]\nurl = \"postgres://nobody@127.0.0.1:9/nowhere\"\ntables = [\"public.outbox\"]\n\
             [router]\npreset = \"outbox_events\"\n[router.route]\ntopic = \"{{event_type}}\"\n{sink}\n"
        );
        fs::write(&config, text).expect("written");
        let row = row.to_str().expect("text");
        let output = output_with(&format!("route {more}"), &config, &["--row", row]);
        assert_eq!(output.status.code(), Some(code), "{sink}: {output:?}");
        (
            String::from_utf8(output.stdout).expect("text"),
            String::from_utf8(output.stderr).expect("text"),
        )
    };
    for (sink, lines, member) in [
        (
            "[sink]\nkind = \"stdout\"",
            "topic:     order.placed\n",
            Value::Null,
        ),
        (
            "[sink]\nkind = \"http\"\n[sink.http]\nurl = \"https://h:8443/{topic}/{aggregate_id}?t={id}\"",
            "topic:     order.placed\nURL:       https://h:8443/order.placed/o%201?t=7\n",
            json!({"topic": "order.placed", "url": "https://h:8443/order.placed/o%201?t=7"}),
        ),
        (
            "[sink]\nkind = \"rabbitmq\"\n[sink.rabbitmq]\nhosts = [\"r\"]\nusername = \"u\"\npassword = \"p\"\n\
             exchange = \"events\"\nrouting_key = \"{event_type}.{id}\"",
            "exchange:  events\nrouting key: order.placed.7\n",
            json!({"exchange": "events", "routing_key": "order.placed.7"}),
        ),
        (
            "[sink]\nkind = \"nats\"\n[sink.nats]\nhosts = [\"n\"]\nsubject = \"events.{id}\"",
            "subject:   events.7\n",
            json!({"subject": "events.7"}),
        ),
        (
            "[sink]\nkind = \"redis\"\n[sink.redis]\nhosts = [\"r\"]",
            "stream:    order.placed\n",
            json!({"stream": "order.placed"}),
        ),
    ] {
        let (out, _) = routed(sink, "", 0);
        assert!(out.starts_with(&format!("{lines}partition:")), "{out}");
        let (out, _) = routed(sink, "--output json", 0);
        let line: Value = serde_json::from_str(&out).expect("a line");
        assert_eq!(line["destination"], member, "{out}");
    }
    // A record without a destination is poison, as `run` would find.
    let dots = "[sink]\nkind = \"http\"\n[sink.http]\nurl = \"https://h/{payload | json('none') | default('..')}\"";
    let (out, error) = routed(dots, "", 65);
    assert_eq!(out, "");
    assert_has(
        &error,
        &["[unroutable]", "leads elsewhere", "unroutable = \"halt\""],
    );
}

/// Headers of any names from a column of JSON, from one of `hstore`, and from two arrays, in a snapshot
/// and from the log; those of the route win.
#[test]
fn headers_come_from_columns() {
    let rig = Rig::new(15);
    let db = rig.db();
    db.batch(
        "CREATE EXTENSION hstore; \
         CREATE TABLE outbox (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, payload jsonb, j jsonb, h hstore, \
         names text[], texts text[])",
    );
    let insert = r#"INSERT INTO outbox (payload, j, h, names, texts) VALUES ('{}',
        '{"trace": "00-\"1\"", "n": 2.50, "none": null, "deep": {"a": [1]}, "id": "forged"}',
        'trace=>"00-\"1\"", n=>2.50, none=>NULL, id=>forged',
        ARRAY['trace', 'n', 'none', 'id'], ARRAY['00-"1"', '2.50', NULL, 'forged'])"#;
    let texts = [
        ("n", Some("2.50")),
        ("none", None),
        ("trace", Some("00-\"1\"")),
    ];
    let deep = [&[("deep", Some(r#"{"a": [1]}"#))], &texts[..]].concat();
    for (from, slot, expected) in [
        ("\"j\"", "one", &deep[..]),
        ("\"h\"", "two", &texts),
        ("[\"names\", \"texts\"]", "three", &texts),
    ] {
        let topic = format!("{}{slot}", rig.prefix);
        let config = rig.path("headers.toml");
        let text = format!(
            "[source]\nurl = \"{}\"\ntables = [\"public.outbox\"]\nsnapshot = \"initial\"\nslot = \"{slot}\"\n\
             publication = \"{slot}\"\n\n[router]\npreset = \"custom\"\nheaders_from = {from}\n\
             [router.route]\nid = \"id\"\ntopic = \"{topic}\"\nvalue = \"{{payload}}\"\n\
             [router.route.headers]\nid = \"{{id}}\"\n\n[log]\nformat = \"json\"\n\n\
             [sink.kafka]\n\"bootstrap.servers\" = \"{}\"\n",
            rig.postgres.url(),
            rig.bootstrap
        );
        fs::write(&config, text).expect("the configuration is written");
        db.batch("TRUNCATE outbox");
        db.batch(insert);
        stdout(&output_with("check", &config, &[]));
        let relay = rig.start(&config);
        relay.streaming();
        db.batch(insert);
        let records = rig.records_in(&topic, 2);
        relay.ends_well();
        assert_eq!(records.len(), 2);
        for record in records {
            let (id, more) = record.headers.split_first().expect("a header");
            assert_eq!(id.0, "id");
            assert_ne!(id.1.as_deref(), Some(&b"forged"[..]));
            let mut more: Vec<(&str, Option<&str>)> = more
                .iter()
                .map(|(name, value)| {
                    let text = |bytes| std::str::from_utf8(bytes).expect("text");
                    (&**name, value.as_deref().map(text))
                })
                .collect();
            more.sort_unstable();
            assert_eq!(more, expected, "{from}");
        }
    }

    // A row whose headers cannot be read is poison, and no text of the row is logged.
    let config = rig.path("headers.toml");
    let mut relay = rig.streaming(&config);
    db.batch("INSERT INTO outbox (payload, names, texts) VALUES ('{}', '{s3cret,b}', '{1}')");
    let said = ends(&mut relay, 65, "undecodable");
    assert_has(
        &said,
        &["texts", "has not as many items as the array of the names"],
    );
    assert_lacks(&said, &["s3cret"]);
}

/// Domains are written as the types below them, to any depth, in the snapshot and from the log; and JSON in
/// `bytea` is read.
#[test]
fn domains_and_json_in_bytes_are_read_as_their_types() {
    let rig = Rig::new(18);
    let db = rig.db();
    db.batch(
        "CREATE DOMAIN jb AS jsonb; CREATE DOMAIN by AS bytea; CREATE DOMAIN bo AS boolean; CREATE DOMAIN nu AS int; \
         CREATE DOMAIN deep AS nu; CREATE DOMAIN ts AS timestamptz; \
         CREATE TABLE outbox (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, payload jb, raw by, ok bo, n deep, \
         at ts, data bytea)",
    );
    let insert = "INSERT INTO outbox (payload, raw, ok, n, at, data) VALUES \
                  ('{\"n\":1}', '\\x00ff', true, 7, '2026-01-02 03:04:05+00', convert_to('{\"order\":\"o-1\"}', 'UTF8'))";
    db.batch(insert);
    let topic = format!("{}t", rig.prefix);
    let config = rig.path("domains.toml");
    let text = format!(
        "[source]\nurl = \"{}\"\ntables = [\"public.outbox\"]\nsnapshot = \"initial\"\n\n[router]\npreset = \"custom\"\n\
         [router.route]\nid = \"id\"\ntopic = \"{topic}\"\nkey = \"{{data | json('order')}}\"\n[router.route.value]\n\
         payload = \"{{payload}}\"\nraw = \"{{raw}}\"\nok = \"{{ok}}\"\nn = \"{{n}}\"\nat = \"{{at}}\"\n\n\
         [log]\nformat = \"json\"\n\n[sink.kafka]\n\"bootstrap.servers\" = \"{}\"\n",
        rig.postgres.url(),
        rig.bootstrap
    );
    fs::write(&config, text).expect("the configuration is written");
    stdout(&output_with("check", &config, &[]));
    let relay = rig.start(&config);
    relay.streaming();
    db.batch(insert);
    rig.caught_up();
    relay.ends_well();
    // Everything is confirmed, and the records have no header with an id.
    let records = rig.records_in(&topic, 0);
    let expected = json!({
        "payload": {"n": 1}, "raw": "AP8=", "ok": true, "n": 7, "at": "2026-01-02T03:04:05Z"
    });
    assert_eq!(records.len(), 2);
    for record in records {
        assert_eq!(record.key.as_deref(), Some(&b"o-1"[..]));
        let value: Value =
            serde_json::from_slice(record.payload.as_ref().expect("a value")).expect("JSON");
        assert_eq!(value, expected);
    }

    // Bytes that are no JSON have the id of their policy, and a remedy for the content.
    let mut relay = rig.streaming(&config);
    db.batch("INSERT INTO outbox (data) VALUES ('s3cret')");
    let said = ends(&mut relay, 65, "undecodable");
    assert_has(
        &said,
        &[
            "is not JSON",
            "[poison] undecodable",
            "write another content into the column",
        ],
    );
    assert_lacks(&said, &["s3cret", "NOT NULL"]);
}
