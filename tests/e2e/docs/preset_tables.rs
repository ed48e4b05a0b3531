//! docs/start/presets.md: the tables that `walrelay init --preset` makes, and their marks.

use std::fs;

use super::block;
use crate::rig::{Rig, assert_has, output_with, said, stdout};

const DOCUMENT: &str = "docs/start/presets.md";

/// A preset with the block of its configuration.
struct Made {
    major: u32,
    block: &'static str,
    table: &'static str,
    /// Columns and values of an event. `PREFIX` is the prefix of the test's topics.
    insert: &'static str,
    /// An SQL condition for a marked row.
    marked: &'static str,
    /// The condition of the index of unsent rows, as the catalogs have it.
    unsent: &'static str,
}

/// `init --preset` makes the table as its script does, its rows are marked, and no table is changed that
/// exists.
fn makes(made: &Made) {
    let rig = Rig::new(made.major);
    let db = rig.db();
    let prefix = rig.prefix.trim_end_matches('.').to_owned();
    let config = rig.path("preset.toml");
    let url = format!("[source]\nurl = \"{}\"", rig.postgres.url());
    let text = block(DOCUMENT, made.block).replace("[source]", &url);
    let kafka = format!(
        "[sink.kafka]\n\"bootstrap.servers\" = \"{}\"",
        rig.bootstrap
    );
    let mut text = format!("{text}\n[log]\nformat = \"json\"\n\n{kafka}\n");
    let preset = text.split("preset = \"").nth(1);
    let preset = preset.and_then(|rest| rest.split('"').next());
    let preset = preset.unwrap_or("debezium").to_owned();
    if preset == "debezium" {
        text += "[router.debezium]\n\"route.topic.replacement\" = \"${routedByValue}\"\n";
    }
    fs::write(&config, text).expect("the configuration is written");

    let script = stdout(&output_with("init --dry-run --preset", &config, &[&preset]));
    let done = stdout(&output_with("init --preset", &config, &[&preset]));
    assert_has(&done, &[&format!("created table public.{}", made.table)]);
    let of_table = |sql: &str| db.text(&sql.replace("TABLE", made.table));
    let shape = || {
        let indexes = "SELECT string_agg(indexdef, ';' ORDER BY indexdef) FROM pg_indexes WHERE tablename = 'TABLE'";
        let columns = "SELECT string_agg(column_name || data_type || coalesce(column_default, ''), ',' \
                       ORDER BY ordinal_position) FROM information_schema.columns WHERE table_name = 'TABLE'";
        (of_table(indexes).expect("indexes"), of_table(columns))
    };
    let first = shape();
    assert_has(&first.0, &["_at);", made.unsent]);
    // The script changes nothing here, and makes the same.
    db.batch(&script);
    assert_eq!(shape(), first);
    db.batch(&format!(
        "DROP TABLE {}; DROP PUBLICATION walrelay",
        made.table
    ));
    db.batch(&script);
    assert_eq!(shape(), first);

    // The publication exists, so the relay cannot know that no polling relay works.
    let relay = rig.start_with(&config, &["--accept-gap"]);
    relay.streaming();
    let insert = made.insert.replace("PREFIX", &prefix);
    db.batch(&format!("INSERT INTO {} {insert}", made.table));
    rig.caught_up();
    let marked = format!("SELECT ({})::text FROM TABLE", made.marked);
    assert_eq!(of_table(&marked).as_deref(), Some("true"));
    relay.ends_well();
    assert_eq!(rig.records_in(&prefix, 0).len(), 1);

    db.batch(&format!("ALTER TABLE {} ADD mine int", made.table));
    let before = shape();
    let again = stdout(&output_with("init --preset", &config, &[&preset]));
    let note = format!(
        "note: table public.{} exists, and is left as it is",
        made.table
    );
    assert_has(&again, &[&note]);
    assert_eq!(shape(), before);
}

#[test]
fn init_makes_a_table_of_preset_events_outbox() {
    makes(&Made {
        major: 14,
        block: "made-events-outbox",
        table: "events_outbox",
        insert: "(aggregate_id, type, payload) VALUES (gen_random_uuid(), 'PREFIXorder.placed', '{}')",
        marked: "status = 'SENT' AND sent_at = updated_at",
        unsent: "WHERE (status <> 'SENT'::text)",
    });
}

#[test]
fn init_makes_a_table_of_preset_outbox_events_with_ids_in_order_of_time() {
    makes(&Made {
        major: 17,
        block: "made-outbox-events",
        table: "outbox_events",
        insert: "(aggregate_id, event_type, payload) VALUES ('o-1', 'PREFIXorder.placed', '{}')",
        marked: "dispatched_at IS NOT NULL AND id::text LIKE '________-____-7%'",
        unsent: "WHERE (dispatched_at IS NULL)",
    });
}

#[test]
fn init_makes_a_table_of_preset_outbox() {
    makes(&Made {
        major: 18,
        block: "made-outbox",
        table: "outbox",
        insert: "(aggregate_type, aggregate_id, event_type, payload) VALUES ('PREFIXOrder', 'o-1', 'T', '{}')",
        marked: "processed_at IS NOT NULL",
        unsent: "WHERE (processed_at IS NULL)",
    });
}

#[test]
fn init_makes_a_table_of_preset_debezium() {
    makes(&Made {
        major: 16,
        block: "made-debezium",
        table: "outbox",
        insert: "(aggregatetype, aggregateid, type, payload) VALUES ('PREFIXorder', 'o-1', 'T', '{}')",
        marked: "sent_at IS NOT NULL",
        unsent: "WHERE (sent_at IS NULL)",
    });
}

/// A table that the route cannot read is not made.
#[test]
fn init_makes_no_table_that_the_configuration_does_not_fit() {
    let rig = Rig::without_broker(15);
    let config = rig.config_with(&rig.postgres.url(), "");
    let set = "source.tables=[\"public.made\"]";
    let output = output_with("init --preset outbox", &config, &["--set", set]);
    assert_eq!(output.status.code(), Some(64));
    assert_has(
        &said(&output),
        &[
            "[init-preset]",
            "aggregateid, aggregatetype",
            "preset = \"outbox\"",
        ],
    );
    let made = rig.db().text("SELECT to_regclass('public.made')::text");
    assert_eq!(made, None);
}

#[test]
fn the_command_of_the_page_prints_the_table() {
    let rig = Rig::without_broker(15);
    let line = block(DOCUMENT, "made-init");
    let line = line.strip_prefix("walrelay ").expect("a command");
    let config = rig.path("preset.toml");
    let text = block(DOCUMENT, "made-outbox-events");
    let text = text.replace(
        "[source]",
        "[source]\nurl = \"postgres://relay@127.0.0.1:9/app\"",
    );
    let text = format!("{text}\n[sink.kafka]\n\"bootstrap.servers\" = \"127.0.0.1:9\"\n");
    fs::write(&config, text).expect("the configuration is written");
    let script = stdout(&output_with(line, &config, &[]));
    assert_has(&script, &["CREATE TABLE \"public\".\"outbox_events\" ("]);
}

#[test]
fn init_makes_the_columns_that_mark_dead_sets() {
    let rig = Rig::without_broker(18);
    let config = rig.path("preset.toml");
    let text = block("docs/operate/dead-letters.md", "mark-dead");
    let source = format!(
        "[source]\nurl = \"{}\"\ntables = [\"made\"]",
        rig.postgres.url()
    );
    let text = text.replace("[source]", &source);
    let text = format!("{text}\n[sink.kafka]\n\"bootstrap.servers\" = \"127.0.0.1:9\"\n");
    fs::write(&config, text).expect("the configuration is written");
    stdout(&output_with("init --preset debezium", &config, &[]));
    let db = rig.db();
    db.batch(
        "INSERT INTO made (aggregatetype, aggregateid, type) VALUES ('order', 'o-1', 'T'); \
         UPDATE made SET status = 'DEAD_LETTER', attempts = 2, last_error = 'x', failed_at = now()",
    );
    let stored = db.text("SELECT to_regclass('walrelay_state.dead')::text");
    assert_eq!(stored.as_deref(), Some("walrelay_state.dead"));
}
