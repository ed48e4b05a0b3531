//! Events without a table: `outbox.emit`, and what it puts into the log.

use std::time::Duration;

use walrelay_testkit::{Db, Delivered, History, eventually};
use walrelay_throwaway::cache_dir;

use crate::rig::{PATIENCE, Rig, ends, output};

const MESSAGES: &str = "\n[source.messages]\nprefix = \"outbox\"\n";

impl Rig {
    /// The configuration of most tests, without a table.
    fn tableless(&self, more: &str) -> std::path::PathBuf {
        let config = self.config_with(&self.postgres.url(), &format!("{MESSAGES}{more}"));
        let text = std::fs::read_to_string(&config).expect("the configuration");
        let text = text.replace("tables = [\"public.outbox\"]\n", "");
        std::fs::write(&config, text).expect("the configuration");
        config
    }

    fn delivered(&self, distinct: usize) -> Vec<Delivered> {
        let mut records = History::records(&self.bootstrap, &self.prefix, distinct, PATIENCE);
        records.sort_by_key(|record| (record.topic.clone(), record.partition, record.offset));
        records
    }
}

fn init(config: &std::path::Path) -> String {
    let output = output(&["init", "--config", config.to_str().expect("text")]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    String::from_utf8(output.stdout).expect("text")
}

fn text(bytes: Option<&Vec<u8>>) -> &str {
    bytes.map_or("(null)", |bytes| str::from_utf8(bytes).expect("text"))
}

/// Half of the events are rows and half are messages, of the same transactions and keys; the truth is
/// a table that the relay does not know.
fn twenty_thousand_events(major: u32) {
    let rig = Rig::new(major);
    let db = Db::connect(&rig.postgres.url());
    let workload = rig.workload().table("public.events");
    workload.create_tables();
    let config = rig.config_with(&rig.postgres.url(), MESSAGES);
    assert!(init(&config).contains("created function outbox.emit"));
    db.batch(
        "CREATE FUNCTION publish() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         IF get_byte(uuid_send(NEW.id), 15) % 2 = 0 THEN \
           INSERT INTO public.outbox VALUES (NEW.*); \
         ELSE \
           PERFORM outbox.emit(NEW.aggregatetype, NEW.aggregateid, NEW.payload, \
                               type => NEW.type, id => NEW.id); \
         END IF; RETURN NULL; END $$; \
         CREATE TRIGGER publish AFTER INSERT ON public.events \
           FOR EACH ROW EXECUTE FUNCTION publish()",
    );
    let mut relay = rig.streaming(&config);
    let load = workload
        .rows(20_000)
        .rate(4_000.0)
        .seed(u64::from(major))
        .start();
    for round in 1..=5_u64 {
        eventually(PATIENCE, || load.written().rows >= 3_000 * round);
        relay.kill();
        relay = rig.start(&config);
        relay.streaming();
    }
    let written = load.wait();
    assert!(
        written.rolled_back > 50 && written.savepoints > 50,
        "a tame workload: {written:?}"
    );
    rig.caught_up();
    let history = History::collect(
        &rig.postgres.url(),
        "public.events",
        &rig.bootstrap,
        &rig.prefix,
        PATIENCE,
    );
    let verdict = history.check();
    let rows = db.query("SELECT count(*) FROM public.outbox", &[])[0].get::<_, i64>(0);
    eprintln!("Postgres {major}, {rows} rows, the rest messages, SIGKILL x5: {verdict}");
    verdict.assert_clean_but_for_ragged();
    assert!(verdict.committed >= 20_000);
    let committed = verdict.committed as i64;
    assert!(
        (committed / 3..committed * 2 / 3).contains(&rows),
        "{rows} of {committed} are rows"
    );
    relay.ends_well();
}

#[test]
fn of_20_000_events_half_of_them_rows_on_postgres_15() {
    twenty_thousand_events(15);
}

#[test]
fn of_20_000_events_half_of_them_rows_on_postgres_18() {
    twenty_thousand_events(18);
}

/// `outbox.emit` by a role that may do nothing else, on a database without an outbox table.
fn without_a_table(major: u32) {
    let rig = Rig::new(major);
    let config = rig.tableless("");
    let said = init(&config);
    for created in [
        "created function outbox.emit",
        "created publication",
        "created slot",
    ] {
        assert!(said.contains(created), "{said}");
    }
    assert!(!said.contains("table"), "{said}");
    assert_eq!(init(&config), "everything is there already\n");
    let check = output(&["check", "--config", config.to_str().expect("text")]);
    assert!(
        check.status.success(),
        "{}",
        String::from_utf8_lossy(&check.stderr)
    );

    let db = Db::connect(&rig.postgres.url());
    let relay = rig.streaming(&config);
    db.batch("CREATE ROLE service");
    db.batch("SET ROLE service");
    let emit = |arguments: &str| {
        let rows = db.query(&format!("SELECT outbox.emit({arguments})::text"), &[]);
        rows[0].get::<_, String>(0)
    };
    let made = emit("'order', 'k', '{\"b\": 1, \"a\": [null, 1.50, \"ä😀\"]}'");
    let given = "7a1b0c5e-0000-4000-8000-000000000001";
    let topic = format!("{}orders.v1", rig.prefix);
    let named = emit(&format!(
        "topic => '{topic}', key => 'k', id => '{given}', type => 'OrderPlaced', \
         headers => '{{\"trace\": \"t\", \"n\": 1.50, \"none\": null}}'"
    ));
    assert_eq!(named, given);
    // What is rolled back never was; what is rolled back to a savepoint neither.
    db.batch("BEGIN; SELECT outbox.emit('order', 'k', '{\"number\": 0}'); ROLLBACK");
    db.batch(
        "BEGIN; SAVEPOINT s; SELECT outbox.emit('order', 'k', '{\"number\": 0}'); \
         ROLLBACK TO s; SELECT outbox.emit('order', 'k', '\"kept\"', NULL); COMMIT",
    );
    // Others' messages are theirs.
    db.batch("SELECT pg_logical_emit_message(true, 'other', 'x')");
    db.batch("SELECT pg_logical_emit_message(false, 'other', 'x')");
    for refused in [
        "'order', topic => 'x'",
        "key => 'k'",
        "topic => ''",
        "'order', 'k', headers => '[1]'",
        "'order', 'k', headers => '{\"a\": {\"b\": 1}}'",
        "'order', 'k', headers => '{\"a\": []}'",
    ] {
        let error = db.try_batch(&format!("SELECT outbox.emit({refused})"));
        let error = error.expect_err(refused);
        let code = error.code().map(|code| code.code().to_owned());
        assert_eq!(code.as_deref(), Some("22023"), "{refused}: {error:?}");
    }
    rig.caught_up();
    let records = rig.delivered(3);
    assert_eq!(records.len(), 3, "{records:?}");
    let [first, kept, with_topic] = &records[..] else {
        panic!("{records:?}")
    };
    assert_eq!(first.topic, format!("{}order", rig.prefix));
    assert_eq!(first.id.as_deref(), Some(&*made));
    assert_eq!(text(first.key.as_ref()), "k");
    assert_eq!(
        text(first.payload.as_ref()),
        "{\"a\": [null, 1.50, \"ä😀\"], \"b\": 1}"
    );
    assert_eq!(text(kept.payload.as_ref()), "\"kept\"");
    assert_eq!(
        (&kept.topic, kept.partition),
        (&first.topic, first.partition)
    );
    assert_eq!(with_topic.topic, topic);
    assert_eq!(text(with_topic.payload.as_ref()), "(null)");
    let headers: Vec<String> = with_topic
        .headers
        .iter()
        .map(|(name, value)| format!("{name}={}", text(value.as_ref())))
        .collect();
    assert_eq!(headers[0], format!("id={given}"));
    // jsonb orders by length.
    assert_eq!(headers[1..], ["n=1.50", "none=(null)", "trace=t"]);
    relay.ends_well();
}

#[test]
fn need_no_table_on_postgres_15() {
    without_a_table(15);
}

#[test]
fn need_no_table_on_postgres_18() {
    without_a_table(18);
}

/// The versions between, where they are there: `make test` fetches two only.
#[test]
fn need_no_table_on_other_versions() {
    for major in [14, 16, 17] {
        if cache_dir().join(format!("postgres-{major}")).is_dir() {
            without_a_table(major);
        } else {
            eprintln!("Postgres {major} is not there: not tested");
        }
    }
}

/// A database whose encoding is not UTF-8: the content is, all the same.
#[test]
fn are_utf_8_in_a_database_that_is_not() {
    let rig = Rig::new(15);
    let db = Db::connect(&rig.postgres.url());
    db.batch(
        "CREATE DATABASE latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0",
    );
    let url = rig.postgres.url().replace("@/postgres?", "@/latin?");
    let config = rig.tableless("");
    let text_of = std::fs::read_to_string(&config).expect("the configuration");
    std::fs::write(&config, text_of.replace(&rig.postgres.url(), &url)).expect("written");
    init(&config);
    let relay = rig.streaming(&config);
    Db::connect(&url).batch("SELECT outbox.emit('order', 'Zürich', '{\"ort\": \"Genève\"}')");
    let records = rig.delivered(1);
    assert_eq!(text(records[0].key.as_ref()), "Zürich");
    assert_eq!(text(records[0].payload.as_ref()), "{\"ort\": \"Genève\"}");
    drop(relay);
}

/// A message that is no event stops the relay, or becomes a letter with its whole content; what lies
/// around it arrives either way.
#[test]
fn that_are_none_meet_the_policy() {
    let rig = Rig::new(15);
    let config = rig.tableless("");
    init(&config);
    let db = Db::connect(&rig.postgres.url());
    let emit = |number: u32| {
        db.batch(&format!(
            "SELECT outbox.emit('order', 'k', '{{\"number\": {number}}}')"
        ));
    };
    emit(1);
    db.batch("SELECT pg_logical_emit_message(true, 'outbox', '{\"secret-value\": 1}')");
    emit(2);
    db.batch("SELECT pg_logical_emit_message(false, 'outbox', '{\"aggregate\": \"order\"}')");
    emit(3);
    let mut relay = rig.start(&config);
    ends(&mut relay, 65, "message");
    assert!(!relay.log().contains("secret-value"), "{}", relay.log());
    assert_eq!(
        rig.delivered(1).len(),
        1,
        "what came before is there, and no more"
    );

    let letters = format!("{}letters", rig.prefix);
    let arguments = [
        "--set",
        "poison.undecodable=dead-letter",
        "--set",
        &format!("poison.topic={letters}"),
    ];
    let mut relay = rig.start_with(&config, &arguments);
    ends(&mut relay, 65, "message-not-transactional");
    // The letter has no id.
    let records = rig.delivered(2);
    let values: Vec<(&str, &str)> = records
        .iter()
        .map(|record| {
            (
                &record.topic[rig.prefix.len()..],
                text(record.payload.as_ref()),
            )
        })
        .collect();
    assert_eq!(
        values,
        [
            ("letters", "{\"secret-value\": 1}"),
            ("order", "{\"number\": 1}"),
            ("order", "{\"number\": 2}"),
        ]
    );

    let arguments = [&arguments[..], &["--set", "poison.unroutable=skip"]].concat();
    let relay = rig.start_with(&config, &arguments);
    relay.says("skipped an event that cannot be delivered");
    rig.caught_up();
    assert_eq!(rig.delivered(3).len(), 4);
    let log = relay.ends_well();
    assert!(log.contains("\"skipped\":1"), "{log}");
}

/// Messages of others, and none at all, pin no WAL.
#[test]
fn of_others_pin_no_wal() {
    let rig = Rig::new(15);
    let config = rig.tableless("");
    init(&config);
    let relay = rig.streaming(&config);
    let db = Db::connect(&rig.postgres.url());
    for _ in 0..20 {
        db.batch("SELECT pg_logical_emit_message(n % 2 = 0, 'other', repeat('x', 100000)) FROM generate_series(1, 10) n");
    }
    let slot = rig.slot();
    slot.wait_until(slot.wal_end(), Duration::from_secs(30));
    let log = relay.ends_well();
    assert!(log.contains("\"records\":0"), "{log}");
}
