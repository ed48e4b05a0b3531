//! A move that is not finished, or not complete: each view names its state, and both ways on.

use walrelay_testkit::eventually;

use super::{numbers, replicated, step, subscribe};
use crate::endpoint::{address, at, status};
use crate::rig::{
    PATIENCE, SLOT, assert_has, assert_lacks, done, edit, insert, output_with, refused, said,
};

const TITLE: &str = "The outbox is being moved to another server";

#[test]
fn a_switch_that_is_not_finished_is_named_with_both_ways_on() {
    let (old, new, from, to) = replicated(17, 18, |_| String::new());
    for config in [&from, &to] {
        let listen = "[http]\nlisten = \"127.0.0.1:0\"\n\n[source]\n";
        edit(config, "[source]\n", listen);
    }
    let relay = old.streaming(&from);
    let page = address(&relay);
    let problems = || status(page)["problems"].to_string();
    eventually(PATIENCE, || status(page)["slot"].is_object());
    assert_lacks(&problems(), &[TITLE]);
    done(&step(&to, "prepare"));
    done(&step(&from, "drain --yes"));

    // The old server, whose services are refused: its page, by the relay and without it.
    eventually(PATIENCE, || status(page)["moved"]["state"] == "drained");
    assert_has(&problems(), &[TITLE]);
    let drained = [
        "the outbox is being moved (drained since 20",
        "inserts into it fail here",
        "run walrelay move switch on the new server",
        "walrelay move abort lifts the fence",
    ];
    assert_has(&problems(), &drained);
    let shown = || said(&output_with("status", &from, &["--exit-code"]));
    let by_relay = said(&output_with("status", &from, &[&at(page)]));
    assert_has(&by_relay, &drained);
    relay.ends_well();
    assert_has(&shown(), &drained);
    let drop = format!("slots drop {SLOT} --no-bookmark");
    done(&output_with(&drop, &from, &["--yes"]));
    let without_slot = shown();
    assert_has(&without_slot, &drained);
    // A slot that init created would begin behind events of nobody.
    assert_lacks(&without_slot, &["walrelay init"]);
    assert_has(&said(&output_with("check", &from, &[])), &drained);

    // The new server, whose relay waits.
    let prepared = [
        "the outbox of slot walrelay is being moved (prepared)",
        "walrelay move switch --from here",
        "walrelay move abort on both servers",
    ];
    let second = new.start(&to);
    second.says("was not switched to");
    let page = address(&second);
    eventually(PATIENCE, || {
        let waits = status(page)["problems"].to_string();
        prepared.iter().all(|part| waits.contains(part))
    });
    assert_has(&said(&output_with("check", &to, &[])), &prepared);
    second.ends_well();
    let shown = said(&output_with("status", &to, &["--exit-code"]));
    assert_has(&shown, &prepared[1..]);
    assert_lacks(&shown, &["start walrelay run"]);

    // Given up: nothing is shown.
    done(&step(&from, "abort --yes"));
    let shown = said(&output_with("status", &from, &[]));
    assert_lacks(&shown, &["being moved"]);
}

/// A subscription skips a transaction, so two rows never arrive.
#[test]
fn rows_that_a_subscription_has_skipped_are_named_with_their_ids() {
    let (old, new, from, to) = replicated(17, 16, |_| String::new());
    let relay = old.streaming(&from);
    done(&step(&to, "prepare"));
    subscribe(&old, &new);
    let rows = |rows: i64| {
        let count = || new.db().value::<i64>("SELECT count(*) FROM outbox");
        eventually(PATIENCE, || count() == rows);
    };
    insert(&old.db(), 0);
    rows(1);
    // Until then another process applies the rows.
    let ready = "SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel";
    eventually(PATIENCE, || new.db().value::<bool>(ready));
    // As a trigger, or a session that deletes rows of the new server.
    new.db().batch(
        "CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; \
         CREATE TRIGGER skip BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION skip(); \
         ALTER TABLE outbox ENABLE ALWAYS TRIGGER skip",
    );
    let lost = "SELECT id::text FROM outbox WHERE (payload ->> 'number')::int IN (1, 2) ORDER BY 1";
    insert(&old.db(), 1);
    insert(&old.db(), 2);
    let lost: Vec<String> = old.db().column(lost, &[]);
    let confirmed = "SELECT bool_and(confirmed_flush_lsn >= pg_current_wal_lsn()) FROM pg_replication_slots \
                     WHERE slot_name = 'green'";
    let confirmed = || old.db().value::<bool>(confirmed);
    eventually(PATIENCE, confirmed);
    new.db().batch("DROP TRIGGER skip ON outbox");
    insert(&old.db(), 3);
    rows(2);
    old.db()
        .batch("ALTER PUBLICATION green SET (publish = 'insert')");
    done(&step(&from, "drain --yes"));
    relay.ends_well();

    let switch = format!("switch --yes --from {}", from.display());
    let named = [
        "[move-rows]",
        "rows of the old server's public.outbox that are missing here: 2, for example",
        &lost[0],
        &lost[1],
        "SET session_replication_role = replica",
    ];
    for more in ["", " --dry-run"] {
        refused(&step(&to, &format!("{switch}{more}")), 78, &named);
    }
    // The old relay prunes, which is not replicated: as many rows are there as here.
    let pruned = "DELETE FROM outbox WHERE (payload ->> 'number')::int IN (0, 3)";
    old.db().batch(pruned);
    let pruning = old.path("pruning.toml");
    std::fs::copy(&from, &pruning).expect("copied");
    let prune = "[prune]\nkeep = \"7d\"\nbefore_slot = true\n\n[log]\n";
    edit(&pruning, "[log]\n", prune);
    let by_pruning = format!("--from {}", pruning.display());
    let switched = step(&to, &format!("switch --yes {by_pruning}"));
    refused(&switched, 78, &named);
    // A relay's role may not have the right to read its outbox.
    old.db()
        .batch("CREATE ROLE relay LOGIN REPLICATION PASSWORD 'relay'");
    let denied = old.path("denied.toml");
    std::fs::copy(&from, &denied).expect("copied");
    let url = old.url_as("relay", "relay", "postgres");
    edit(&denied, &old.postgres.url(), &url);
    let by_role = format!("--from {}", denied.display());
    let dry_run = step(&to, &format!("switch --dry-run {by_role}"));
    let notice =
        "rows are not compared with those of the old server: a role may not read public.outbox";
    assert_has(&said(&dry_run), &[notice]);
    done(&dry_run);

    // The remedy, for one of both. The other one is not needed.
    let row = "SELECT row_to_json(outbox)::text FROM outbox WHERE id::text = $1";
    let row: Vec<String> = old.db().column(row, &[&lost[0]]);
    let db = new.db();
    db.batch("SET session_replication_role = replica");
    db.query(
        "INSERT INTO outbox SELECT * FROM json_populate_record(NULL::outbox, $1::text::json)",
        &[&row[0]],
    );
    // More rows here than there.
    refused(&step(&to, &switch), 78, &["missing here: 1", &lost[1]]);
    done(&step(&to, &format!("{switch} --rows-arrived")));
    let second = new.streaming(&to);
    insert(&new.db(), 4);
    new.caught_up();
    assert_eq!(numbers(&old, 5), [0, 1, 2, 3, 4], "each event once");

    let verify = format!("verify --from {}", from.display());
    let verified = step(&to, &verify);
    let text = said(&verified);
    let wrong = [
        "WRONG  rows of the old server's public.outbox that are missing here: 1",
        &lost[1],
    ];
    assert_has(&text, &wrong);
    assert_eq!(verified.status.code(), Some(1), "{text}");
    let not_compared = "ok     public.outbox is not compared with the old server's:";
    let text = said(&step(&to, &format!("verify {by_role}")));
    assert_has(&text, &[not_compared, "a role may not read it"]);
    let prunes = ["--set=prune.keep=\"7d\"", "--set=prune.before_slot=true"];
    let text = done(&output_with(&format!("move {verify}"), &to, &prunes));
    assert_has(&text, &[not_compared, "[prune] deletes rows here"]);
    old.db()
        .query("DELETE FROM outbox WHERE id::text = $1", &[&lost[1]]);
    let text = done(&step(&to, &format!("verify {by_pruning}")));
    assert_has(&text, &["rows that were pruned there are not compared"]);
    second.ends_well();
}
