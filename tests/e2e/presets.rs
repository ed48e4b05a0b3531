use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::{Value, json};
use walrelay_testkit::{Db, Delivered, History, SlotWatch};

use crate::rig::{PATIENCE, Rig, output, said, walrelay};

const ID: &str = "018f5a3e-7c1d-7b1a-9c55-0123456789ab";

/// A table, its preset, and what `walrelay` is told of it.
struct Case {
    rig: Rig,
    table: &'static str,
    /// Topics of this test begin so; no dots, for presets take types apart at dots.
    prefix: String,
    config: PathBuf,
}

impl Case {
    fn new(major: u32, table: &'static str, columns: &str, router: &str) -> Self {
        let rig = Rig::new(major);
        let db = Db::connect(&rig.postgres.url());
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
        Db::connect(&self.rig.postgres.url())
    }

    fn config(&self) -> &str {
        self.config.to_str().expect("text")
    }

    /// What `sql` inserts, with `PREFIX` put in, goes through the relay; the records, in the order
    /// of their values. Whatever the table's poller does afterwards, `after`, is nobody's event.
    fn delivered(&self, sql: &str, after: &str) -> Vec<Delivered> {
        let check = output(&["check", "--config", self.config()]);
        let said = String::from_utf8_lossy(&check.stdout);
        let fine = format!("the rows of public.{} can be routed", self.table);
        assert!(check.status.success() && said.contains(&fine), "{check:?}");

        let relay = self.rig.streaming(&self.config);
        let db = self.db();
        for statement in [sql, after] {
            db.batch(&statement.replace("PREFIX", &self.prefix));
        }
        let slot = SlotWatch::new(&self.rig.postgres.url(), "walrelay");
        slot.wait_until(slot.wal_end(), PATIENCE);
        relay.ends_well();
        // Everything is confirmed: what is there by now is all that there will be.
        let mut records = History::records(&self.rig.bootstrap, &self.prefix, 0, PATIENCE);
        records.sort_by(|a, b| a.payload.cmp(&b.payload));
        records
    }

    /// The row of an id as a file for `walrelay route`, with the types that the table has.
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

    /// `walrelay route` shows what arrived.
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
    let [config, row] = [config, row].map(|path| path.to_str().expect("text"));
    let output = output(&[
        "route", "--config", config, "--row", row, "--output", "json",
    ]);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).expect("a line of JSON")
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
    let topics = [
        format!("{}order", case.prefix),
        format!("{}payment", case.prefix),
    ];
    for ((record, number), topic) in records.iter().zip(1..).zip(topics) {
        assert_eq!(record.topic, topic);
        assert_eq!(text(record.key.as_ref()), ID);
        assert_eq!(record.headers, [header("event_id", &number.to_string())]);
    }
    assert_eq!(text(records[0].payload.as_ref()), "{\"a\": 1}");
    assert_eq!(text(records[1].payload.as_ref()), "{\"b\": 2}");
    case.assert_shown("1", &records[0]);
}

/// In the shape with a status that pollers turn.
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
    assert_eq!(text(record.key.as_ref()), "order-1");
    assert_eq!(text(record.payload.as_ref()), "{\"a\": 1}");
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
    assert_eq!(text(record.key.as_ref()), "o \"1\"");
    let headers = [
        header("event-type", "OrderPlaced"),
        header("aggregate-id", "o \"1\""),
    ];
    assert_eq!(record.headers, headers);
    let payload = record.payload.as_deref().expect("a value");
    let expected = format!(
        "{{\"event_id\":\"{ID}\",\"event_type\":\"OrderPlaced\",\"aggregate_type\":\"{}Order\",\
         \"aggregate_id\":\"o \\\"1\\\"\",\"payload\":{{\"total\": 12.50}},\"metadata\":null,\
         \"timestamp\":",
        case.prefix
    );
    let payload = std::str::from_utf8(payload).expect("text");
    let timestamp = payload
        .strip_prefix(&expected)
        .unwrap_or_else(|| panic!("{payload}"));
    // In the offset of the server's TimeZone.
    assert!(timestamp.starts_with("\"2026-01-0"), "{timestamp}");
    assert!(
        timestamp.contains('T') && timestamp.contains(".678"),
        "{timestamp}"
    );
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
    assert_eq!(text(first.key.as_ref()), "c-7");
    assert_eq!(first.created, Some(1_767_323_045_678));
    assert_eq!(
        first.headers,
        [
            header("tenant", "acme"),
            ("raw".to_owned(), Some(vec![0, 0xff]))
        ]
    );
    assert_eq!(
        text(first.payload.as_ref()),
        "{\"id\":1,\"name\":\"É\",\"body\":{\"who\": {\"name\": \"é\"}},\"version\":2,\
             \"meta\":{\"tenant\":\"acme\"}}"
    );
    assert_eq!(
        (&*second.topic, second.partition),
        (&*format!("{}rest", case.prefix), 1)
    );
    assert_eq!(text(second.key.as_ref()), "c-none");
    assert_eq!(second.headers, [("raw".to_owned(), None)]);
    assert_eq!(
        text(second.payload.as_ref()),
        "{\"id\":2,\"name\":null,\"body\":null,\"version\":2,\"meta\":{\"tenant\":null}}"
    );
}

/// Names alone do not tell: the type of a column can be wrong too.
#[test]
fn check_compiles_the_routes_for_the_table() {
    let case = Case::new(
        15,
        "events",
        "id bigint PRIMARY KEY, kind text, n int, twice int GENERATED ALWAYS AS (n * 2) STORED",
        "[router]\npreset = \"custom\"\n[router.route]\ntopic = \"{kind}\"\n\
         [router.route.value]\nn = \"{n | default('none')}\"",
    );
    let offline = output(&["check", "--offline", "--config", case.config()]);
    assert!(offline.status.success(), "{offline:?}");
    let check = |set: &str| {
        let output = output(&["check", "--config", case.config(), "--set", set]);
        (output.status.code(), said(&output))
    };
    let (code, said) = check("log.level=info");
    assert_eq!(code, Some(78), "{said}");
    assert!(said.contains("[column-missing]"), "{said}");
    assert!(
        said.contains("the default of column \"n\" of table public.events"),
        "{said}"
    );
    // The server never sends it.
    let (code, said) = check("router.route.value={twice}");
    assert_eq!(code, Some(78), "{said}");
    assert!(
        said.contains("has no column \"twice\" for the value"),
        "{said}"
    );
    let (code, said) = check("router.route.value={n}");
    assert_eq!(code, Some(0), "{said}");
}

/// Without any server.
#[test]
fn route_shows_what_a_row_would_become() {
    let rig = Rig::without_broker(15);
    let config = rig.config_with("postgres://nobody@127.0.0.1:9/nowhere", "");
    let config = config.to_str().expect("text");
    let row = rig.path("row.json");
    let run = |args: &[&str], text: &str| {
        fs::write(&row, text).expect("written");
        let row = row.to_str().expect("text");
        let output = output(&[&["route", "--config", config, "--row", row], args].concat());
        let [out, error] =
            [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).expect("text"));
        (output.status.code(), out, error)
    };
    let good = r#"{"id": "7", "aggregatetype": "Order", "aggregateid": "o-1", "type": "T",
                   "payload": {"a":  1.50}}"#;
    let (code, out, error) = run(&[], good);
    assert_eq!((code, &*error), (Some(0), ""));
    let expected = format!(
        "topic:     {}Order\npartition: (by the key)\ntimestamp: (time of production)\n\
         key:       o-1\nheader:    id: 7\nvalue:     {{\"a\":  1.50}}\n",
        rig.prefix
    );
    assert_eq!(out, expected);

    // From standard input, by another preset.
    let args = [
        "route", "--row", "-", "--config", config, "--output", "json",
    ];
    let set = ["--set", "router.preset=events_outbox"];
    let text = fs::read_to_string(config).expect("the configuration");
    let (before, rest) = text.split_once("[router.debezium]").expect("a section");
    let (_, after) = rest.split_once("[log]").expect("a section");
    fs::write(config, format!("{before}[log]{after}")).expect("written");
    let mut child = walrelay(&[&args[..], &set].concat())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("walrelay runs");
    let stdin = child.stdin.take();
    let row_of_events =
        br#"{"id": 17, "aggregate_id": null, "type": "order.placed", "payload": []}"#;
    stdin
        .expect("a pipe")
        .write_all(row_of_events)
        .expect("written");
    let done = child.wait_with_output().expect("an end");
    assert_eq!(
        serde_json::from_slice::<Value>(&done.stdout).expect("a line"),
        json!({"topic": "order", "partition": null, "timestamp_ms": null, "key": null,
               "value": "[]", "headers": [["event_id", "17"]]})
    );

    // A row that cannot be routed: its class, and what would become of it. No value is told.
    let bad = r#"{"id": "s3cret", "aggregatetype": null, "aggregateid": "s3cret", "type": "T", "payload": "s3cret"}"#;
    let (code, out, error) = run(&[], bad);
    assert_eq!((code, &*out), (Some(65), ""), "{error}");
    assert!(
        error.contains("[unroutable]") && error.contains("\"aggregatetype\""),
        "{error}"
    );
    assert!(error.contains("unroutable = \"halt\""), "{error}");
    assert!(!error.contains("s3cret"), "{error}");
    let skip = ["--output", "json", "--set", "poison.unroutable=dead-letter"];
    let (code, out, error) = run(&skip, bad);
    assert_eq!(code, Some(65), "{error}");
    let told: Value = serde_json::from_str(&out).expect("a line");
    assert_eq!(
        (&told["class"], &told["policy"]),
        (&json!("unroutable"), &json!("dead-letter"))
    );

    // Files that are no rows, and rows that are not the table's.
    let (code, _, error) = run(&[], "{\"id\": s3cret}");
    assert_eq!(code, Some(64), "{error}");
    assert!(
        error.contains("[row-file]") && error.contains("line 1, column 8"),
        "{error}"
    );
    assert!(!error.contains("s3cret"), "{error}");
    let (code, _, error) = run(&["--type", "id=uuidd"], good);
    assert_eq!(code, Some(64), "{error}");
    assert!(error.contains("did you mean \"uuid\"?"), "{error}");
    let (code, _, error) = run(&[], "{\"id\": \"7\"}");
    assert_eq!(code, Some(78), "{error}");
    assert!(error.contains("[column-missing]"), "{error}");
}
