//! Events without a table: `outbox.emit`, and the messages that it writes into the WAL.

use std::path::{Path, PathBuf};

use walrelay_testkit::{Db, Delivered, History, Verdict, Workload, eventually};
use walrelay_throwaway::cache_dir;

use crate::rig::{PATIENCE, Relay, Rig, assert_has, assert_lacks, edit, ends, output_with, stdout};

const MESSAGES: &str = "\n[source.messages]\nprefix = \"outbox\"\n";

impl Rig {
    /// The usual configuration without a table.
    fn tableless(&self, more: &str) -> PathBuf {
        let config = self.config_and(&format!("{MESSAGES}{more}"));
        edit(&config, "tables = [\"public.outbox\"]\n", "");
        config
    }

    fn delivered(&self, distinct: usize) -> Vec<Delivered> {
        let mut records = self.records(distinct);
        records.sort_by_key(|record| (record.topic.clone(), record.partition, record.offset));
        records
    }
}

fn init(config: &Path) -> String {
    stdout(&output_with("init", config, &[]))
}

/// Runs a load into `public.events`, and kills the relay five times, each time after so many more rows. Returns the
/// last relay, the verdict, and the number of rows in `public.outbox`: the other events have none.
pub(crate) fn through_sigkill(
    rig: &Rig,
    config: &Path,
    workload: &Workload,
    rows_of_a_round: u64,
) -> (Relay, Verdict, i64) {
    let mut relay = rig.streaming(config);
    let load = workload.start();
    for round in 1..=5_u64 {
        eventually(PATIENCE, || load.written().rows >= rows_of_a_round * round);
        relay.kill();
        relay = rig.streaming(config);
    }
    let written = load.wait();
    let some = rows_of_a_round / 60;
    assert!(
        written.rolled_back > some && written.savepoints > some,
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
    let rows = rig.db().value("SELECT count(*) FROM public.outbox");
    (relay, history.check(), rows)
}

/// Half of the events are rows and half are messages, in the same transactions and of the same
/// keys. The check uses a table that the relay does not know.
fn twenty_thousand_events(major: u32) {
    let rig = Rig::new(major);
    let db = rig.db();
    let workload = rig.workload().table("public.events");
    workload.create_tables();
    let config = rig.config_and(MESSAGES);
    assert_has(&init(&config), &["created function outbox.emit"]);
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
    let workload = workload.rows(20_000).rate(4_000.0);
    let (relay, verdict, rows) =
        through_sigkill(&rig, &config, &workload.seed(u64::from(major)), 3_000);
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

tests! {
    fn twenty_thousand_events_half_of_them_rows_arrive_on_postgres_15() { twenty_thousand_events(15) }
    fn twenty_thousand_events_half_of_them_rows_arrive_on_postgres_18() { twenty_thousand_events(18) }
}

/// `outbox.emit` by a role without other privileges, in a database without an outbox table.
fn without_a_table(major: u32) {
    let rig = Rig::new(major);
    let config = rig.tableless("");
    let said = init(&config);
    let parts = [
        "created function outbox.emit",
        "created publication",
        "created slot",
    ];
    assert_has(&said, &parts);
    assert_lacks(&said, &["table"]);
    assert_eq!(init(&config), "everything is there already\n");
    stdout(&output_with("check", &config, &[]));

    let db = rig.db();
    let relay = rig.streaming(&config);
    db.batch("CREATE ROLE service");
    db.batch("SET ROLE service");
    let emit =
        |arguments: &str| db.value::<String>(&format!("SELECT outbox.emit({arguments})::text"));
    let made = emit("'order', 'k', '{\"b\": 1, \"a\": [null, 1.50, \"ä😀\"]}'");
    let given = "7a1b0c5e-0000-4000-8000-000000000001";
    let topic = format!("{}orders.v1", rig.prefix);
    let named = emit(&format!(
        "topic => '{topic}', key => 'k', id => '{given}', type => 'OrderPlaced', \
         headers => '{{\"trace\": \"t\", \"n\": 1.50, \"none\": null}}'"
    ));
    assert_eq!(named, given);
    // Events that are rolled back, also to a savepoint, must not arrive.
    db.batch("BEGIN; SELECT outbox.emit('order', 'k', '{\"number\": 0}'); ROLLBACK");
    db.batch(
        "BEGIN; SAVEPOINT s; SELECT outbox.emit('order', 'k', '{\"number\": 0}'); \
         ROLLBACK TO s; SELECT outbox.emit('order', 'k', '\"kept\"', NULL); COMMIT",
    );
    // Messages with another prefix are ignored.
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
    assert_eq!(first.key_text(), "k");
    let value = "{\"a\": [null, 1.50, \"ä😀\"], \"b\": 1}";
    assert_eq!(first.value_text(), value);
    assert_eq!(kept.value_text(), "\"kept\"");
    assert_eq!(
        (&kept.topic, kept.partition),
        (&first.topic, first.partition)
    );
    assert_eq!(with_topic.topic, topic);
    assert_eq!(with_topic.payload, None);
    let headers = with_topic.headers.iter().map(|(name, _)| {
        let value = with_topic.header(name).unwrap_or("(null)");
        format!("{name}={value}")
    });
    let headers: Vec<String> = headers.collect();
    assert_eq!(headers[0], format!("id={given}"));
    // jsonb orders members by length of their names.
    assert_eq!(headers[1..], ["n=1.50", "none=(null)", "trace=t"]);
    relay.ends_well();
}

tests! {
    fn messages_need_no_table_on_postgres_15() { without_a_table(15) }
    fn messages_need_no_table_on_postgres_18() { without_a_table(18) }
}

/// The versions in between, if they are installed: `make test` fetches only two.
#[test]
fn messages_need_no_table_on_other_versions() {
    for major in [14, 16, 17] {
        if cache_dir().join(format!("postgres-{major}")).is_dir() {
            without_a_table(major);
        } else {
            eprintln!("Postgres {major} is not there: not tested");
        }
    }
}

/// In a database with another encoding than UTF-8 the content is UTF-8 all the same.
#[test]
fn messages_are_utf_8_in_a_database_that_is_not() {
    let rig = Rig::new(15);
    let db = rig.db();
    db.batch(
        "CREATE DATABASE latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0",
    );
    let url = rig.postgres.url().replace("@/postgres?", "@/latin?");
    let config = rig.tableless("");
    edit(&config, &rig.postgres.url(), &url);
    init(&config);
    let relay = rig.streaming(&config);
    Db::connect(&url).batch("SELECT outbox.emit('order', 'Zürich', '{\"ort\": \"Genève\"}')");
    let records = rig.delivered(1);
    let event = (records[0].key_text(), records[0].value_text());
    assert_eq!(event, ("Zürich", "{\"ort\": \"Genève\"}"));
    drop(relay);
}

/// A message that is no event stops the relay, or becomes a dead letter with its whole content. The
/// events around it arrive either way.
#[test]
fn messages_that_are_no_events_meet_the_policy() {
    let rig = Rig::new(15);
    let dead_letters = format!("{}dead-letters", rig.prefix);
    // The relay waits only for a few seconds for records in flight before it ends with an error.
    for topic in [&dead_letters, &format!("{}order", rig.prefix)] {
        rig.kafka().create_topic(topic, 1, &[]);
    }
    let config = rig.tableless("");
    init(&config);
    let db = rig.db();
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
    let log = ends(&mut rig.start(&config), 65, "message");
    assert_lacks(&log, &["secret-value"]);
    let before = rig.delivered(1).len();
    assert_eq!(before, 1, "what came before is there, and no more");

    let arguments = [
        "--set",
        "poison.undecodable=dead-letter",
        "--set",
        &format!("poison.topic={dead_letters}"),
    ];
    let mut relay = rig.start_with(&config, &arguments);
    ends(&mut relay, 65, "message-not-transactional");
    // The dead letter has no id.
    let records = rig.delivered(2);
    let values = records
        .iter()
        .map(|record| (&record.topic[rig.prefix.len()..], record.value_text()));
    let values: Vec<(&str, &str)> = values.collect();
    assert_eq!(
        values,
        [
            ("dead-letters", "{\"secret-value\": 1}"),
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
    assert_has(&log, &["\"skipped\":1"]);
}

/// Messages with other prefixes pin no WAL, nor does their absence.
#[test]
fn messages_of_others_pin_no_wal() {
    let rig = Rig::new(15);
    let config = rig.tableless("");
    init(&config);
    let relay = rig.streaming(&config);
    let db = rig.db();
    for _ in 0..20 {
        db.batch("SELECT pg_logical_emit_message(n % 2 = 0, 'other', repeat('x', 100000)) FROM generate_series(1, 10) n");
    }
    let slot = rig.slot();
    slot.wait_until(slot.wal_end(), PATIENCE);
    let log = relay.ends_well();
    assert_has(&log, &["\"records\":0"]);
}

/// `init` creates the gate of both functions, also if one of them is there already and every table is published.
#[test]
fn a_gate_is_made_beside_a_former_function_and_published_without_harm() {
    let rig = Rig::new(15);
    let config = rig.tableless("");
    let db = rig.db();
    db.batch(
        "CREATE PUBLICATION walrelay FOR ALL TABLES WITH (publish = 'insert'); CREATE SCHEMA outbox; \
         CREATE FUNCTION outbox.emit(text, text, jsonb, jsonb, text, text, uuid) RETURNS uuid LANGUAGE sql \
         AS 'SELECT $7'",
    );
    let parts = ["created function outbox.emit_all", "left as it is"];
    assert_has(&init(&config), &parts);
    let relay = rig.streaming(&config);
    db.batch("SELECT outbox.emit_all('[{\"aggregate\": \"order\", \"payload\": 1}]')");
    assert_eq!(rig.delivered(1).len(), 1);
    let error = db.try_batch("INSERT INTO outbox.emit_gate DEFAULT VALUES");
    let error = error.expect_err("the gate has no rows");
    let state = error.code().expect("a code");
    assert_eq!(state.code(), "23514");
    relay.ends_well();
}
