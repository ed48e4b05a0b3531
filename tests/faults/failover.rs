//! The primary dies, and a standby is promoted in its place.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use walrelay_lsn::Lsn;
use walrelay_testkit::{Cut, Db, History, Running, Standby, Workload, check, eventually};
use walrelay_throwaway::Postgres;

use crate::context::{Context, Ragged};
use crate::outcome::Outcome;
use crate::rig::{PATIENCE, ends};

/// Whether the primary's walsenders hold back WAL that the standby does not have yet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Guard {
    /// `synchronized_standby_slots`: what was relayed survives the primary.
    On,
    Off,
}

/// A primary with the failover slots of the relay and of the test, and a standby with copies of
/// them.
fn pair(ctx: &mut Context, guard: Guard) -> Standby {
    ctx.own_postgres(&[]);
    ctx.outbox_for_failover();
    if guard == Guard::On {
        let set = ctx
            .postgres
            .change_setting("synchronized_standby_slots", Standby::NAME);
        set.expect("a setting is written");
    }
    let standby = Standby::start(
        &ctx.postgres,
        &[
            ("sync_replication_slots", "on"),
            // The standby has no standby of its own, and would wait for one after its promotion.
            ("synchronized_standby_slots", ""),
        ],
    );
    // Wait before anything is written: a new slot that is copied at once need not advance first.
    standby.wait_slot_synced(&format!("judge_{}", ctx.name));
    standby
}

fn load(ctx: &mut Context, url: &str) -> Running {
    let seed = ctx.rng.u64(..);
    let load = Workload::new(url).writers(6).rate(1_500.0).seed(seed);
    load.start()
}

/// Kills the primary under load, once the standby has a copy of the relay's slot.
fn lose_primary(ctx: &mut Context, standby: &Standby, load: &Running) {
    ctx.wait_rows(load, 300..600);
    standby.wait_slot_synced(&ctx.name);
    ctx.wait_rows(load, 300..1_000);
    ctx.fault_begins();
    ctx.postgres.kill().expect("the primary is killed");
}

/// Promotes the standby, which becomes the scenario's Postgres. Returns the position at which its
/// timeline begins.
fn promote(ctx: &mut Context, standby: Standby) -> Lsn {
    let parted = standby.promote();
    ctx.move_to(standby.server, parted);
    ctx.fault_ends();
    parted
}

/// Ends the load and checks. Requests of the producer that was discarded may be processed between
/// others.
fn judge(ctx: &mut Context, load: Running) -> Outcome {
    ctx.wait_rows(&load, 500..800);
    load.stop();
    ctx.judge(Ragged::Allowed)
}

/// The relay finds the promoted standby in its list of hosts and continues with the copy of its
/// slot.
pub(crate) fn synced(ctx: &mut Context) -> Outcome {
    let standby = pair(ctx, Guard::On);
    let url = standby.url_of_both(&ctx.postgres, &ctx.name);
    let relay = ctx.streaming(&ctx.config().url(&url).set("source.create = false"));
    let load = load(ctx, &url);
    lose_primary(ctx, &standby, &load);
    promote(ctx, standby);
    let outcome = judge(ctx, load);
    let streams = relay.streams();
    let (code, log) = relay.terminate();
    outcome
        .expect(streams == 2, || format!("{streams} streams instead of two"))
        .expect(code == Some(0), || log)
}

/// The relay dies with the primary, and starts after the promotion of the standby, which may have the
/// slot's position and an older note of it.
pub(crate) fn relay_too(ctx: &mut Context) -> Outcome {
    let standby = pair(ctx, Guard::On);
    let url = standby.url_of_both(&ctx.postgres, &ctx.name);
    let config = ctx.config().url(&url);
    let first = ctx.streaming(&config);
    let load = load(ctx, &url);
    lose_primary(ctx, &standby, &load);
    first.kill();
    promote(ctx, standby);
    let _second = ctx.streaming(&config);
    judge(ctx, load)
}

/// The relay knows one address, which moves: first to the standby, which is promoted later.
pub(crate) fn moved_address(ctx: &mut Context) -> Outcome {
    let standby = pair(ctx, Guard::On);
    let (proxy, url) = ctx.proxy();
    let relay = ctx.streaming(&ctx.config().url(&url).set("source.create = false"));
    let load = load(ctx, &standby.url_of_both(&ctx.postgres, &ctx.name));
    lose_primary(ctx, &standby, &load);
    proxy.lead_to(("127.0.0.1", standby.server.port()));
    // A standby has the slot, but nobody can read it there. The relay must not stop for that.
    relay.says("trying again");
    let met = proxy.accepted();
    eventually(PATIENCE, || proxy.accepted() >= met + 4);
    promote(ctx, standby);
    let outcome = judge(ctx, load);
    let (code, log) = relay.terminate();
    outcome.expect(code == Some(0), || log)
}

/// The standby lags and nothing holds WAL back: the relay has delivered and confirmed rows that the
/// promoted standby never had. The new primary writes other transactions at the same positions, and
/// all of them must be delivered: what was enqueued on the old timeline says nothing about the new
/// one.
pub(crate) fn diverged(ctx: &mut Context) -> Outcome {
    let standby = pair(ctx, Guard::Off);
    let url = standby.url_of_both(&ctx.postgres, &ctx.name);
    let _relay = ctx.streaming(&ctx.config().url(&url).set("source.create = false"));
    let load = load(ctx, &url);
    ctx.wait_rows(&load, 300..600);
    standby.wait_slot_synced(&ctx.name);
    let relayed = lag(ctx, &standby, &load);
    ctx.fault_begins();
    ctx.postgres.kill().expect("the primary is killed");
    standby.link.cut(Cut::Reset);
    let parted = promote(ctx, standby);
    assert!(parted < relayed, "the standby did not lag");
    let slot = ctx.slot();
    eventually(PATIENCE, || slot.wal_end() > relayed);
    ctx.wait_rows(&load, 300..600);
    load.stop();
    ctx.caught_up();

    let committed = ctx.committed("outbox");
    let ids: BTreeSet<&str> = committed.iter().map(|row| &*row.id).collect();
    let commits = ctx.commit_log().ids();
    let again = commits
        .iter()
        .filter(|row| row.commit >= parted && row.commit < relayed)
        .count();
    let (records, undone): (Vec<_>, Vec<_>) = ctx
        .records(committed.len())
        .into_iter()
        .partition(|record| record.id.as_deref().is_some_and(|id| ids.contains(id)));
    ctx.judge_records(&committed, &commits, &records, Ragged::Allowed)
        .expect(again > 0, || {
            "no row lies where the other timeline was relayed: it shows nothing".into()
        })
        .expect(!undone.is_empty(), || {
            "nothing was relayed that the standby lacked: it shows nothing".into()
        })
}

/// Cuts the standby off until the relay has confirmed WAL that the standby does not have. Returns
/// the confirmed position.
fn lag(ctx: &mut Context, standby: &Standby, load: &Running) -> Lsn {
    let slot = ctx.slot();
    standby.link.stall();
    ctx.wait_rows(load, 100..200);
    let lacking = slot.wal_end();
    ctx.wait_rows(load, 800..1_200);
    slot.wait_until(lacking, PATIENCE);
    slot.confirmed()
}

/// The relay reads a slot of the standby itself, which is promoted while it streams. No row is
/// missing, and the relay's knowledge of the old timeline must not stop it when it reconnects or
/// restarts.
pub(crate) fn promoted_under_the_stream(ctx: &mut Context) -> Outcome {
    ctx.own_postgres(&[]);
    ctx.database();
    ctx.workload().create_tables();
    ctx.create_publication();
    let standby = Standby::start(&ctx.postgres, &[("hot_standby_feedback", "on")]);
    let server = &standby.server;
    let url = server.url_for("postgres", Some(server.superuser_password()), &ctx.name);
    create_slot_of_standby(ctx, &url);
    let state_file = ctx.dir.join("state");
    let config = ctx.config().url(&url).set(&format!(
        "source.create = false\nsource.state_file = \"{}\"",
        state_file.display()
    ));
    let first = ctx.streaming(&config);
    let both = standby.url_of_both(&ctx.postgres, &ctx.name);
    let load = load(ctx, &both);
    ctx.wait_rows(&load, 300..600);
    ctx.postgres.kill().expect("the primary is killed");
    let parted = standby.promote();
    ctx.postgres = Arc::new(standby.server);
    let slot = ctx.slot();
    eventually(PATIENCE, || slot.wal_end() > parted);
    ctx.wait_rows(&load, 300..600);
    ctx.caught_up();
    assert_eq!(first.streams(), 1, "the stream lived on: {}", first.log());
    ctx.fault_begins();
    ctx.terminate_walsender();
    ctx.fault_ends();
    eventually(PATIENCE, || first.streams() == 2);
    ctx.wait_rows(&load, 300..600);
    ctx.caught_up();
    first.ends_well();
    let second = ctx.streaming(&config);
    ctx.wait_rows(&load, 300..600);
    load.stop();
    ctx.caught_up();
    second.ends_well();
    let committed = ctx.committed("outbox");
    let verdict = check(&committed, &ctx.records(committed.len()));
    Outcome::from_verdict(&verdict, None, false).nothing_repeated()
}

/// Creates a slot on a standby. That needs a snapshot of running transactions in the WAL, which the
/// primary writes now and then, or on request.
fn create_slot_of_standby(ctx: &Context, url: &str) {
    let (url, name) = (url.to_owned(), ctx.name.clone());
    let made = std::thread::spawn(move || {
        Db::connect(&url).query(
            "SELECT FROM pg_create_logical_replication_slot($1, 'pgoutput')",
            &[&name],
        );
    });
    let db = ctx.db();
    eventually(PATIENCE, || {
        db.batch("SELECT pg_log_standby_snapshot()");
        made.is_finished()
    });
    made.join().expect("the slot is made");
}

/// The promoted standby has no copy of the slot. The relay stops and names the lost range. It
/// creates no slot by itself, nor does a relay that is started then.
pub(crate) fn without_slot(ctx: &mut Context) -> Outcome {
    ctx.own_postgres(&[]);
    ctx.outbox();
    let standby = Standby::start(&ctx.postgres, &[]);
    let url = standby.url_of_both(&ctx.postgres, &ctx.name);
    // `create = true` is the default.
    let config = ctx.config().url(&url);
    let mut relay = ctx.streaming(&config);
    let load = load(ctx, &url);
    ctx.wait_rows(&load, 500..1_000);
    let relayed = lag(ctx, &standby, &load);
    ctx.fault_begins();
    let primary: Arc<Postgres> = Arc::clone(&ctx.postgres);
    primary.kill().expect("the primary is killed");
    standby.link.cut(Cut::Reset);
    let parted = standby.promote();
    assert!(parted < relayed, "the standby did not lag");
    let log = ends(&mut relay, 65, "slot-gone");
    ctx.wait_rows(&load, 300..600);
    load.stop();
    ends(&mut ctx.start(&config), 78, "slot-missing");
    let promoted = Db::connect(&standby.server.url());
    let slots = promoted.text("SELECT string_agg(slot_name, ' ') FROM pg_replication_slots");
    assert_eq!(slots, None, "a slot was made");

    let (from, to) = range(&log);
    // The former primary, which no client reaches any more, still knows where each row was
    // committed.
    primary.start_again().expect("the former primary starts");
    let commits = ctx.commit_log().ids();
    let at: BTreeMap<&str, Lsn> = commits.iter().map(|row| (&*row.id, row.commit)).collect();
    let server = standby.server;
    let url = server.url_for("postgres", Some(server.superuser_password()), &ctx.name);
    let mut survived = History::committed(&url, "public.outbox", &ctx.prefix);
    let ids: BTreeSet<String> = survived.iter().map(|row| row.id.clone()).collect();
    // The relay has ended, so no further records will come.
    let mut records = ctx.records(0);
    records.retain(|record| record.id.as_ref().is_some_and(|id| ids.contains(id)));
    let delivered: BTreeSet<&str> = records.iter().filter_map(|r| r.id.as_deref()).collect();
    // Rows in the range may be missing. The range begins no later than the position at which the
    // timelines part: later positions have another meaning now.
    let all = survived.len();
    survived.retain(|row| {
        let old = at.get(&*row.id).is_some_and(|commit| *commit < from);
        old || delivered.contains(&*row.id)
    });
    let gone = all - survived.len();
    // Nothing is claimed about rows that did not survive, and rows in the range.
    let judged: BTreeSet<&str> = survived.iter().map(|row| &*row.id).collect();
    let mut commits = commits.clone();
    commits.retain(|row| judged.contains(&*row.id));
    ctx.judge_records(&survived, &commits, &records, Ragged::No)
        .expect(from <= parted, || {
            format!("the range begins at {from}, and the logs part at {parted}")
        })
        .expect(to >= parted, || {
            format!("the range ends at {to}, and the logs part at {parted}")
        })
        .expect(gone > 0, || {
            "nothing was in the range: it shows nothing".into()
        })
}

/// The range that the error names: "… from 0/1 to 0/2 …".
fn range(log: &str) -> (Lsn, Lsn) {
    let words: Vec<&str> = log
        .lines()
        .filter(|line| line.contains("committed from"))
        .flat_map(str::split_whitespace)
        .collect();
    let found = words.windows(4).find_map(|four| match four {
        ["from", from, "to", to] => Some((from.parse().ok()?, to.parse().ok()?)),
        _ => None,
    });
    found.unwrap_or_else(|| panic!("no range is named: {log}"))
}
