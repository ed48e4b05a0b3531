//! Rows that are marked as sent, or as dead letters, and deleted, and events without rows, while faults happen.

use std::collections::BTreeSet;

use walrelay_testkit::{emit_in_batches, eventually};

use crate::context::{Context, Ragged};
use crate::outcome::Outcome;
use crate::rig::{PATIENCE, Relay, ends};

/// Marks rows as sent, and deletes those that are older than 10 s.
const CHANGES: &str = "source.snapshot = \"unsent\"\nsource.snapshot_where = \"sent_at IS NULL\"\n\
     source.snapshot_order = [\"created_at\"]\nsource.mark_sent = \"sent_at = now()\"\nprune.keep = \"10s\"";

/// The publication loses the table for a while, in one of three ways, or the slot is moved by SQL,
/// between relays that are killed at random moments: a row that is not in Kafka is neither marked nor deleted.
pub(crate) fn unpublished(ctx: &mut Context) -> Outcome {
    ctx.outbox();
    let db = ctx.db();
    db.batch(
        "ALTER TABLE outbox ADD sent_at timestamptz, \
         ADD created_at timestamptz DEFAULT now() - random() * interval '20 s'",
    );
    let config = ctx.config().set(CHANGES);
    let mut relay = ctx.streaming(&config);
    let load = ctx.load();
    let killed = |ctx: &mut Context, mut relay: Relay| {
        for _ in 0..3 {
            ctx.wait_rows(&load, 200..2_000);
            relay.kill();
            relay = ctx.start(&config);
        }
        relay
    };
    relay = killed(ctx, relay);
    relay.streaming();
    // It marks and deletes: at the end of a slow run all marked rows may be deleted.
    let count = |rows: &str| db.value::<i64>(&format!("SELECT count(*) FROM outbox {rows}"));
    eventually(PATIENCE, || {
        let written = load.written().rows as i64;
        count("WHERE sent_at IS NOT NULL") > 0 && count("") < written
    });
    let out = format!("ALTER PUBLICATION {} DROP TABLE outbox", ctx.name);
    let back = format!("ALTER PUBLICATION {} ADD TABLE outbox", ctx.name);
    let stops_by = match ctx.rng.u32(..4) {
        // One transaction, beside others.
        0 => {
            db.batch(&format!(
                "BEGIN; {out}; INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) SELECT \
                 gen_random_uuid(), 'order', 'out', 'T', '{{}}' FROM generate_series(1, 100); {back}; COMMIT"
            ));
            relay.kill();
            "publication-changed"
        }
        // Under the stream, which ends when the relay notices.
        1 => {
            db.batch(&out);
            ctx.wait_rows(&load, 100..1_000);
            db.batch(&back);
            relay.kill();
            "publication-changed"
        }
        // While no relay runs.
        2 => {
            relay.kill();
            ctx.wait_rows(&load, 100..1_000);
            let advance = format!(
                "SELECT pg_replication_slot_advance('{}', pg_current_wal_lsn())",
                ctx.name
            );
            // The server frees the slot once it notices that the relay is gone.
            eventually(PATIENCE, || db.try_batch(&advance).is_ok());
            "slot-passed-over"
        }
        _ => {
            relay.kill();
            db.batch(&out);
            ctx.wait_rows(&load, 100..1_000);
            db.batch(&back);
            "publication-changed"
        }
    };
    ends(&mut ctx.start(&config), 78, stops_by);
    relay = ctx.start_with(&config, |command| {
        command.arg("--accept-gap");
    });
    relay.streaming();
    relay = killed(ctx, relay);
    relay.streaming();
    load.stop();
    ctx.caught_up();
    relay.ends_well();

    let ids = |rows: &str| -> BTreeSet<String> {
        let sql = format!("SELECT id::text FROM outbox {rows}");
        db.column(&sql, &[]).into_iter().collect()
    };
    let (unmarked, present) = (ids("WHERE sent_at IS NULL"), ids(""));
    let records = ctx.records(0);
    let sent: BTreeSet<&str> = records.iter().filter_map(|of| of.id.as_deref()).collect();
    let logged = ctx.committed_by_the_log();
    let all = logged.len();
    // An event is in Kafka, or its row is left as it was.
    let is_left = |id: &str| !sent.contains(id) && unmarked.contains(id);
    let committed: Vec<_> = logged.into_iter().filter(|row| !is_left(&row.id)).collect();
    let mut commits = ctx.commit_log().ids();
    commits.retain(|row| !is_left(&row.id));
    let left = all - committed.len();
    ctx.judge_records(&committed, &commits, &records, Ragged::Allowed)
        .expect(left > 0, || "no row was left out".to_owned())
        .expect(present.len() < all, || "no row was deleted".to_owned())
}

/// Events in batches, single messages and rows of one transaction: the relay is killed at random moments.
pub(crate) fn batches(ctx: &mut Context, times: u32) -> Outcome {
    ctx.outbox();
    emit_in_batches(&ctx.db(), "public.outbox", "public.sent");
    let config = ctx
        .config()
        .set("source.tables = [\"public.sent\"]\nsource.messages.prefix = \"outbox\"");
    let mut relay = ctx.streaming(&config);
    let load = ctx.load();
    for _ in 0..times {
        ctx.wait_rows(&load, 20..400);
        relay.kill();
        ctx.fault_now();
        relay = ctx.start(&config);
    }
    ctx.wait_rows(&load, 200..300);
    load.stop();
    let outcome = ctx.judge(Ragged::Allowed);
    relay.ends_well();
    let (all, rows) = (
        outcome.committed,
        ctx.db().value::<i64>("SELECT count(*) FROM public.sent"),
    );
    outcome.expect((rows as usize) < all / 2, || {
        format!("{rows} of {all} are rows")
    })
}

/// Marks rows as sent, and those of dead letters as such.
const DEAD: &str = "source.snapshot = \"unsent\"\nsource.snapshot_where = \"status <> 'SENT'\"\n\
     source.snapshot_order = [\"created_at\"]\nsource.mark_sent = \"status = 'SENT'\"\n\
     source.mark_dead = \"status = 'DEAD', attempts = {attempts}, last_error = {error}\"\n\
     poison.unroutable = \"dead-letter\"\n";

/// Rows whose events become dead letters, between rows of the load, while the relay is killed at random moments: at
/// the end exactly these rows have the mark of a dead letter, and each other row that of a sent one.
pub(crate) fn dead_letters(ctx: &mut Context, kills: u32) -> Outcome {
    ctx.outbox();
    let db = ctx.db();
    db.batch(
        "ALTER TABLE outbox ADD status text NOT NULL DEFAULT 'PENDING', ADD attempts int, ADD last_error text, \
         ADD created_at timestamptz DEFAULT now()",
    );
    let topic = format!("poison.topic = \"dead.{}\"", ctx.name);
    let config = ctx.config().set(DEAD).set(&topic);
    let mut relay = ctx.streaming(&config);
    let load = ctx.load();
    ctx.wait_topics(&load);
    for _ in 0..kills {
        for _ in 0..ctx.rng.u32(2..5) {
            // No topic has such a name.
            db.batch(
                "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) SELECT gen_random_uuid(), \
                 'no topic', 'dead', 'T', '{}' FROM generate_series(1, 3)",
            );
            ctx.wait_rows(&load, 1..100);
        }
        ctx.fault_begins();
        relay.kill();
        ctx.fault_ends();
        relay = ctx.start(&config);
    }
    relay.streaming();
    load.stop();
    ctx.caught_up();
    let count = |rows: &str| db.value::<i64>(&format!("SELECT count(*) FROM outbox {rows}"));
    eventually(PATIENCE, || count("WHERE status = 'PENDING'") == 0);
    relay.ends_well();

    let ids = |rows: &str| -> BTreeSet<String> {
        let sql = format!("SELECT id::text FROM outbox {rows}");
        db.column(&sql, &[]).into_iter().collect()
    };
    let poison = ids("WHERE aggregatetype = 'no topic'");
    let dead = ids("WHERE status = 'DEAD' AND attempts > 0 AND last_error <> ''");
    let again = count("WHERE attempts > 1");
    let sent = ids("WHERE status = 'SENT'");
    let mut committed = ctx.committed_by_the_log();
    committed.retain(|row| !poison.contains(&row.id));
    let mut commits = ctx.commit_log().ids();
    commits.retain(|row| !poison.contains(&row.id));
    let records = ctx.records(committed.len());
    let delivered: BTreeSet<String> = records.iter().filter_map(|of| of.id.clone()).collect();
    ctx.judge_records(&committed, &commits, &records, Ragged::Allowed)
        .expect(dead == poison, || {
            let (dead, all) = (dead.len(), poison.len());
            format!("{dead} rows have the mark of a dead letter, {all} events are dead letters")
        })
        .expect(sent == delivered, || {
            format!(
                "{} rows are marked, {} were sent",
                sent.len(),
                delivered.len()
            )
        })
        .expect(!poison.is_empty() && again <= poison.len() as i64, || {
            "no event became a dead letter".to_owned()
        })
}
