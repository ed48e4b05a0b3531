//! What passes a fence, or undoes a switch, and must not: messages, updates, a crash, another slot.

use std::thread;

use walrelay_testkit::{Db, eventually, rng};

use super::{FENCED, Rig, killed, moved_to_a_lower_log, numbers, replicated, step, subscribe};
use crate::docs::block;
use crate::rig::{
    PATIENCE, SLOT, assert_has, assert_lacks, create_slot, done, edit, ends, insert, output_with,
    refused, said,
};

/// The new server has a slot from before the rows that the subscription copies. Postgres writes the position of an
/// advanced slot at the next checkpoint: after a crash before that the rows would be sent again.
#[test]
fn a_crash_after_the_switch_sends_no_copied_row_again() {
    let mut rng = rng("moves::fences::a_crash_after_the_switch_sends_no_copied_row_again");
    let (old, new, from, to) = replicated(16, 17, |_| String::new());
    let relay = old.streaming(&from);
    done(&step(&to, "prepare"));
    subscribe(&old, &new);
    for number in 0..5 {
        insert(&old.db(), number);
    }
    let copied = || new.db().value::<i64>("SELECT count(*) FROM outbox") == 5;
    eventually(PATIENCE, copied);
    done(&step(&from, "drain --yes"));
    relay.ends_well();
    let switch = format!("switch --yes --from {}", from.display());
    killed(&mut rng, &to, &switch);
    let slot =
        "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = 'walrelay'";
    let before = new.db().text(slot);
    new.postgres.kill().expect("it is killed");
    new.postgres.start_again().expect("it starts again");
    assert_eq!(new.db().text(slot), before, "the slot's position");
    let second = new.streaming(&to);
    insert(&new.db(), 5);
    new.caught_up();
    second.ends_well();
    assert_eq!(numbers(&old, 6), [0, 1, 2, 3, 4, 5]);
}

const EMIT: &str = "SELECT outbox.emit('order', 'key', '{\"number\": 0}')";
const EMIT_ALL: &str = "SELECT outbox.emit_all('[{\"aggregate\": \"order\", \"key\": \"key\", \"payload\": {\"number\": 1}}]')";

/// A message writes no row, but its function writes to a table without rows.
#[test]
fn a_message_is_refused_by_the_fence() {
    let rig = Rig::with_outbox(18);
    let config = rig.config_and("\n[source.messages]\nprefix = \"outbox\"\n");
    done(&output_with("init", &config, &[]));
    let relay = rig.streaming(&config);
    let db = rig.db();
    let writer = rig.db();
    writer.batch(&format!("BEGIN; {EMIT}"));
    // A snapshot from before the fence does not show it.
    let late = rig.db();
    late.batch("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM outbox");
    let drain = thread::spawn({
        let config = config.clone();
        move || step(&config, "drain --yes")
    });
    let waits = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = 'outbox.emit_gate'::regclass)";
    eventually(PATIENCE, || db.value::<bool>(waits));
    writer.batch("COMMIT");
    done(&drain.join().expect("it ends"));
    for emit in [EMIT, EMIT_ALL] {
        for session in [&db, &late] {
            let error = session.try_batch(emit).expect_err("it is fenced");
            assert_eq!(error.code().expect("a code").code(), FENCED);
            late.batch(
                "ROLLBACK; BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM outbox",
            );
        }
    }
    late.batch("ROLLBACK");
    assert_has(
        &done(&step(&config, "plan")),
        &["refused by the fence", "drained"],
    );
    done(&step(&config, "abort --yes"));
    db.batch(EMIT_ALL);
    rig.caught_up();
    assert_eq!(numbers(&rig, 2), [0, 1]);

    // A message past the function: it is named, wherever it is in the log.
    done(&step(&config, "drain --yes"));
    relay.ends_well();
    db.batch("CREATE TABLE filler (text text)");
    db.batch("INSERT INTO filler SELECT repeat('x', 1000) FROM generate_series(1, 75000)");
    let verify = || {
        let from = format!("verify --from {}", config.display());
        said(&step(&config, &from))
    };
    assert_has(
        &verify(),
        &["ok     no event waits in the old server's slot"],
    );
    db.batch("SELECT pg_logical_emit_message(true, 'outbox', '{}')");
    assert_has(&verify(), &["WRONG  events wait in the old server's slot"]);

    // The functions of a former version write to no table.
    done(&step(&config, "abort --yes"));
    db.batch("DROP FUNCTION outbox.emit_all");
    refused(
        &step(&config, "drain --yes"),
        64,
        &["[move-messages]", "--emitters-stopped"],
    );
}

/// The database has one `outbox.emit`, and it writes the prefix of one relay.
#[test]
fn the_gate_of_another_relay_stays_open() {
    let rig = Rig::with_outbox(17);
    let shop = rig.config_and("\n[source.messages]\nprefix = \"outbox\"\n");
    done(&output_with("init", &shop, &[]));
    let config = rig.config_and("\n[source.messages]\nprefix = \"audit\"\n");
    for key in ["slot", "publication"] {
        edit(
            &config,
            "[source]\n",
            &format!("[source]\n{key} = \"audit\"\n"),
        );
    }
    done(&output_with("init", &config, &[]));
    for line in ["drain --yes", "prepare"] {
        let refusal = refused(
            &step(&config, line),
            64,
            &["[move-messages]", "--emitters-stopped"],
        );
        // It would take the events of the other relay.
        assert_lacks(&refusal, &["init --dry-run"]);
    }
    let db = rig.db();
    done(&step(&config, "prepare --emitters-stopped"));
    db.batch(EMIT);
    let error = db.try_batch("INSERT INTO outbox DEFAULT VALUES");
    let error = error.expect_err("the table is fenced");
    assert_eq!(error.code().expect("a code").code(), FENCED);
}

/// The configuration that lifts a fence may be another one than that which raised it.
#[test]
fn a_gate_is_opened_without_messages_and_one_that_was_made_later_needs_no_fence() {
    let rig = Rig::with_outbox(17);
    let messages = "[source.messages]\nprefix = \"outbox\"\n";
    let config = rig.config_and(&format!("\n{messages}"));
    done(&output_with("init", &config, &[]));
    let db = rig.db();
    done(&step(&config, "prepare"));
    let error = db.try_batch(EMIT).expect_err("it is fenced");
    assert_eq!(error.code().expect("a code").code(), FENCED);
    // As on a copy of a drained server.
    let drained = "UPDATE walrelay_state.move SET system = '7', state = 'drained', barrier = '0/1'";
    db.batch(drained);
    edit(&config, messages, "");
    let dry = done(&step(&config, "abort --dry-run"));
    assert_has(&dry, &["\"outbox\".\"emit_gate\"", "\"public\".\"outbox\""]);
    done(&step(&config, "switch --yes"));
    db.batch(EMIT);

    // Fenced without the gate.
    edit(&config, "[log]\n", &format!("{messages}\n[log]\n"));
    db.batch("DELETE FROM walrelay_state.move; DROP SCHEMA outbox CASCADE");
    done(&step(&config, "prepare --emitters-stopped"));
    db.batch(drained);
    done(&output_with("init", &config, &[]));
    done(&step(&config, "switch --yes"));
    db.batch(EMIT);
}

/// A slot of the same name is another relay's if it is of another database.
#[test]
fn a_slot_of_another_relay_is_not_replaced() {
    let rig = Rig::with_outbox(17);
    let config = rig.config();
    done(&output_with("init", &config, &[]));
    let db = rig.db();
    let drop = "SELECT pg_drop_replication_slot('walrelay')";
    db.batch(drop);
    db.batch("CREATE DATABASE other");
    let other = Db::connect(&rig.postgres.url().replace("@/postgres?", "@/other?"));
    let found = || db.text("SELECT slot_type || coalesce(database, '') FROM pg_replication_slots");
    for (create, kind) in [
        (
            "pg_create_logical_replication_slot('walrelay', 'pgoutput')",
            "logicalother",
        ),
        (
            "pg_create_physical_replication_slot('walrelay')",
            "physical",
        ),
    ] {
        other.batch(&format!("SELECT {create}"));
        refused(
            &step(&config, "prepare"),
            78,
            &["[move-slot]", "not of this outbox"],
        );
        assert_eq!(found().as_deref(), Some(kind));
        other.batch(drop);
    }
    done(&step(&config, "prepare"));
    // As on a copy of a drained server.
    db.batch("UPDATE walrelay_state.move SET system = '7', state = 'drained', barrier = '0/1'");
    other.batch("SELECT pg_create_logical_replication_slot('walrelay', 'pgoutput')");
    refused(&step(&config, "switch --yes"), 78, &["[move-slot]"]);
    assert_eq!(found().as_deref(), Some("logicalother"));
    other.batch(drop);
    done(&step(&config, "switch --yes"));
    assert_eq!(found().as_deref(), Some("logicalpostgres"));
}

/// A former `outbox.emit` locks no gate.
#[test]
fn a_drain_waits_for_a_message_that_passed_no_gate() {
    let rig = Rig::with_outbox(17);
    let config = rig.config_and("\n[source.messages]\nprefix = \"outbox\"\n");
    done(&output_with("init", &config, &[]));
    let relay = rig.streaming(&config);
    let writer = rig.db();
    writer.batch(
        "BEGIN; SELECT pg_logical_emit_message(true, 'outbox', \
         '{\"id\": \"1\", \"aggregate\": \"order\", \"key\": \"key\", \"payload\": {\"number\": 0}}')",
    );
    let refusal = [
        "[move-locked]",
        "may have written messages",
        "the fence is lifted",
    ];
    refused(&step(&config, "drain --yes --patience 1s"), 75, &refusal);
    writer.batch("COMMIT");
    done(&step(&config, "drain --yes"));
    relay.ends_well();
    assert_eq!(numbers(&rig, 1), [0]);
}

/// Marks are updates, so no fence refuses those.
#[test]
fn updates_that_make_events_are_named() {
    let rig = Rig::with_outbox(17);
    let config = rig.config();
    done(&output_with("init", &config, &[]));
    let db = rig.db();
    db.batch(
        "ALTER PUBLICATION walrelay SET TABLE outbox WHERE (aggregatetype <> 'draft'); \
         ALTER PUBLICATION walrelay SET (publish = 'insert, update')",
    );
    for line in ["drain --yes", "prepare"] {
        let named = ["[move-publication]", "SET (publish = 'insert')"];
        refused(&step(&config, line), 78, &named);
    }
    assert_has(
        &done(&step(&config, "plan")),
        &["In the way", "carries updates"],
    );
    // A filter of another table makes no event of the outbox.
    db.batch(
        "CREATE TABLE other (id int PRIMARY KEY); \
         ALTER PUBLICATION walrelay SET TABLE outbox, other WHERE (id > 0)",
    );
    assert_lacks(&said(&step(&config, "plan")), &["carries updates"]);
    db.batch("ALTER PUBLICATION walrelay SET TABLE outbox");
    db.batch("ALTER PUBLICATION walrelay SET (publish = 'insert')");
    let relay = rig.streaming(&config);
    done(&step(&config, "drain --yes"));
    relay.ends_well();
}

/// The destination has positions of the former slot.
#[test]
fn a_slot_of_another_name_goes_on_above_the_positions_of_the_former_one() {
    let rigs = (Rig::with_outbox(17), Rig::with_outbox(15));
    let test =
        "moves::fences::a_slot_of_another_name_goes_on_above_the_positions_of_the_former_one";
    let (old, new, to, written) = moved_to_a_lower_log(test, rigs, |_| String::new());
    assert_eq!(new.db().text(EPOCHS).as_deref(), Some("walrelay 1"));
    edit(&to, "[source]\n", "[source]\nslot = \"renamed\"\n");
    done(&output_with("init", &to, &[]));
    let relay = new.streaming(&to);
    insert(&new.db(), 0);
    let all = written.iter().sum::<u32>() + 1;
    let records = old.records(usize::try_from(all).expect("few"));
    let last = records
        .iter()
        .find(|record| record.key_text() == "key")
        .expect("the new row");
    let position = last.header("walrelay-position").expect("a position");
    assert!(position.starts_with("01"), "{position}");
    relay.ends_well();
}

/// Makes the records of all moves those of a drained server whose log ended high above this one's, as on a copy of it.
fn as_a_copy(db: &Db) {
    db.batch("UPDATE walrelay_state.move SET system = '7', state = 'drained', barrier = 'F/0'");
}

const EPOCHS: &str =
    "SELECT string_agg(slot || ' ' || epoch, ', ' ORDER BY slot) FROM walrelay_state.epoch";

/// A slot that is dropped leaves its epoch. That of another relay is lower than the positions of this destination.
#[test]
fn a_recreated_slot_goes_on_above_every_position_of_the_database() {
    let rig = Rig::with_outbox(17);
    let config = rig.config();
    edit(
        &config,
        "[router.debezium]",
        "[router]\nposition_header = \"walrelay-position\"\n\n[router.debezium]",
    );
    let as_slot = |slot: &str| format!("--set=source.slot={slot}");
    let others = ["dropped", "forgotten", "recreated", "renamed", "unnoted"];
    for slot in others {
        done(&output_with("init", &config, &[&as_slot(slot)]));
    }
    done(&step(&config, "prepare"));
    let db = rig.db();
    as_a_copy(&db);
    done(&step(&config, "switch --yes"));
    let epochs = || db.text(EPOCHS).expect("there are some");
    assert_eq!(
        epochs(),
        "dropped 0, forgotten 0, recreated 0, renamed 0, unnoted 0, walrelay 1",
        "slots that exist keep theirs"
    );
    let mut last = String::new();
    let mut goes_on = |slot: &str, number: u32| {
        let relay = rig.start_with(&config, &[&as_slot(slot)]);
        relay.streaming();
        insert(&db, number);
        let records = rig.records(usize::try_from(number).expect("few") + 1);
        let records = records.iter();
        let newest = records.filter_map(|record| record.header("walrelay-position"));
        let newest = newest.max().expect("a position").to_owned();
        assert!(newest > last, "{slot}: {newest} after {last}");
        last = newest;
        relay.ends_well();
    };
    goes_on(SLOT, 0);
    // On the same server under the same name, with the row of the former slot.
    done(&output_with(
        &format!("slots drop {SLOT}"),
        &config,
        &["--yes", "--no-bookmark"],
    ));
    done(&output_with("init", &config, &[]));
    goes_on(SLOT, 1);
    // Dropped and created by another client: the note shows that, or there is none.
    let recreate = |slot: &str| {
        db.batch(&format!("SELECT pg_drop_replication_slot('{slot}')"));
        create_slot(&db, slot);
    };
    recreate("recreated");
    let recreated = as_slot("recreated");
    ends(
        &mut rig.start_with(&config, &[&recreated]),
        78,
        "slot-passed-over",
    );
    let accept = rig.start_with(&config, &[&recreated, "--accept-gap"]);
    accept.streaming();
    accept.ends_well();
    goes_on("recreated", 2);
    recreate("unnoted");
    db.batch("SELECT setval('walrelay_state.\"position:unnoted\"', 1, false)");
    goes_on("unnoted", 3);
    recreate("unnoted");
    db.batch("DROP SEQUENCE walrelay_state.\"position:unnoted\"");
    db.batch("UPDATE walrelay_state.epoch SET epoch = 0 WHERE slot = 'unnoted'");
    goes_on("unnoted", 4);
    // Dropped by walrelay, and created by hand.
    let dropping = ["--yes", &as_slot("dropped")];
    let dropped = done(&output_with("slots drop dropped", &config, &dropping));
    assert_has(&dropped, &["bookmark dropped", "run walrelay resend"]);
    // Its events have another epoch than those of the next slot of the name.
    let folder = rig.folder().display();
    let replay = format!("replay --from dropped --dry-run --state-dir {folder}");
    refused(
        &output_with(&replay, &config, &[&as_slot("dropped")]),
        64,
        &["[before-move]", "walrelay resend"],
    );
    assert_eq!(
        epochs(),
        "dropped 1, forgotten 0, recreated 1, renamed 0, unnoted 1, walrelay 1",
        "the row of a dropped slot"
    );
    create_slot(&db, "dropped");
    goes_on("dropped", 4);
    // Dropped by hand, and created by init, and by the relay.
    for slot in ["forgotten", "renamed"] {
        db.batch(&format!("SELECT pg_drop_replication_slot('{slot}')"));
    }
    done(&output_with("init", &config, &[&as_slot("forgotten")]));
    goes_on("forgotten", 5);
    let accept = rig.start_with(&config, &[&as_slot("renamed"), "--accept-gap"]);
    accept.streaming();
    accept.ends_well();
    goes_on("renamed", 6);
    assert_eq!(
        epochs(),
        "dropped 1, forgotten 1, recreated 1, renamed 1, unnoted 1, walrelay 1"
    );
}

/// The copy has the positions of all its relays as they were: only the first switch raises the highest epoch.
#[test]
fn relays_that_move_together_get_the_same_epoch() {
    let rig = Rig::with_outbox(16);
    let config = rig.config();
    done(&output_with("init", &config, &[]));
    let slots = [SLOT, "second", "third"];
    let step = |line: &str, slot: &str| {
        done(&output_with(
            &format!("move {line}"),
            &config,
            &[&format!("--set=source.slot={slot}")],
        ))
    };
    for slot in slots {
        step("prepare", slot);
    }
    let db = rig.db();
    db.batch("SELECT pg_drop_replication_slot('walrelay')");
    as_a_copy(&db);
    for slot in slots {
        assert_has(&step("switch --yes", slot), &["with epoch 1"]);
    }
    assert_eq!(
        db.text(EPOCHS).as_deref(),
        Some("second 1, third 1, walrelay 1")
    );
}

/// As on a managed server: the tables have one owner, the schema of the relay another one.
#[test]
fn a_role_that_owns_only_the_tables_is_told_what_to_grant() {
    let rig = Rig::with_outbox(17);
    let db = rig.db();
    db.batch(
        "CREATE ROLE app LOGIN REPLICATION PASSWORD 'app'; CREATE ROLE relay LOGIN REPLICATION PASSWORD 'relay'; \
         ALTER TABLE outbox OWNER TO app",
    );
    let config = rig.config();
    done(&output_with("init", &config, &["--role", "relay"]));
    let url = |role| rig.url_as(role, role, "postgres");
    edit(&config, &rig.postgres.url(), &url("relay"));
    let relay = rig.streaming(&config);
    insert(&db, 0);
    let step = |line: &str| {
        output_with(
            &format!("move {line}"),
            &config,
            &["--admin-url", &url("app")],
        )
    };
    let refusal = refused(
        &step("drain --yes"),
        77,
        &["[privilege]", "nothing was changed"],
    );
    let grants = block("docs/how-to/move.md", "move-rights");
    for grant in grants.lines() {
        let grant = grant.trim_end_matches(';').replace("TO app", "TO ROLE");
        assert_has(&refusal, &[&grant]);
    }
    db.batch(&grants);
    done(&step("drain --yes"));
    assert_has(&done(&step("plan")), &["drained", "Nothing is in the way"]);
    relay.ends_well();
    // A copy of it: its record names another server.
    db.batch("UPDATE walrelay_state.move SET system = '7'");
    done(&step("switch --yes"));
    let relay = rig.streaming(&config);
    insert(&db, 1);
    rig.caught_up();
    assert_eq!(numbers(&rig, 2), [0, 1]);
    relay.ends_well();
}
