//! The primary dies, and a standby is promoted in its place.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use walrelay_lab::servers::Postgres;
use walrelay_lsn::Lsn;
use walrelay_testkit::{
    ChaosProxy, Cut, Db, History, Running, Standby, Workload, check, eventually,
};

use crate::context::{Config, Context, Ragged};
use crate::outcome::Outcome;
use crate::rig::{PATIENCE, Relay};

/// Whether the primary's walsenders hold back what the standby does not have yet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Guard {
    /// `synchronized_standby_slots`: what is relayed survives the primary.
    On,
    Off,
}

/// A primary with failover slots, the relay's and the judge's, and a standby that keeps copies.
fn pair(ctx: &mut Context, guard: Guard) -> Standby {
    ctx.own_postgres(|builder| builder);
    ctx.outbox_for_failover();
    if guard == Guard::On {
        let set = ctx
            .postgres
            .change_setting("synchronized_standby_slots", Standby::NAME);
        set.expect("a setting is written");
    }
    let standby = Standby::of(
        &ctx.postgres,
        &[
            ("sync_replication_slots", "on"),
            // It has no standby of its own, and would wait for one once it is promoted.
            ("synchronized_standby_slots", ""),
        ],
    );
    // Before anything is written: a slot that is copied as it was made need not advance first.
    standby.wait_slot_synced(&format!("judge_{}", ctx.name));
    standby
}

fn load(ctx: &mut Context, url: &str) -> Running {
    let seed = ctx.rng.u64(..);
    let load = Workload::new(url).writers(6).rate(1_500.0).seed(seed);
    load.start()
}

fn relay(ctx: &Context, config: &Config) -> Relay {
    let relay = ctx.start(config);
    relay.streaming();
    relay
}

/// Ends the load and judges. Requests of the producer that was thrown away may fall in between.
fn judge(ctx: &mut Context, load: Running) -> Outcome {
    ctx.more(&load, 500..800);
    load.stop();
    ctx.judge(Ragged::Allowed)
}

/// The relay finds the promoted standby in its list of hosts and goes on from the copy of its slot.
pub(crate) fn synced(ctx: &mut Context) -> Outcome {
    let standby = pair(ctx, Guard::On);
    let url = standby.url_of_both(&ctx.postgres, &ctx.name);
    let relay = relay(ctx, &ctx.config().url(url.clone()).source("create = false"));
    let load = load(ctx, &url);
    ctx.more(&load, 300..600);
    standby.wait_slot_synced(&ctx.name);
    ctx.more(&load, 300..1_000);
    ctx.struck();
    ctx.postgres.kill().expect("the primary is killed");
    let parted = standby.promote();
    ctx.move_to(standby.into_server(), parted);
    ctx.over();
    let outcome = judge(ctx, load);
    let streams = relay.streams();
    let (code, log) = relay.terminate();
    outcome
        .expect(streams == 2, || format!("{streams} streams instead of two"))
        .expect(code == Some(0), || log)
}

/// The relay dies with the primary, and starts when the standby was promoted.
pub(crate) fn relay_too(ctx: &mut Context) -> Outcome {
    let standby = pair(ctx, Guard::On);
    let url = standby.url_of_both(&ctx.postgres, &ctx.name);
    let config = ctx.config().url(url.clone()).source("create = false");
    let first = relay(ctx, &config);
    let load = load(ctx, &url);
    ctx.more(&load, 300..600);
    standby.wait_slot_synced(&ctx.name);
    ctx.more(&load, 300..1_000);
    ctx.struck();
    ctx.postgres.kill().expect("the primary is killed");
    first.kill();
    let parted = standby.promote();
    ctx.move_to(standby.into_server(), parted);
    ctx.over();
    let _second = relay(ctx, &config);
    judge(ctx, load)
}

/// The relay knows one address, and that moves: first to the standby as such, then the standby is
/// promoted.
pub(crate) fn moved_address(ctx: &mut Context) -> Outcome {
    let standby = pair(ctx, Guard::On);
    let proxy = ChaosProxy::start(("127.0.0.1", ctx.postgres.port()));
    let url = ctx.url_at(proxy.port());
    let relay = relay(ctx, &ctx.config().url(url.clone()).source("create = false"));
    let load = load(ctx, &standby.url_of_both(&ctx.postgres, &ctx.name));
    ctx.more(&load, 300..600);
    standby.wait_slot_synced(&ctx.name);
    ctx.more(&load, 300..1_000);
    ctx.struck();
    ctx.postgres.kill().expect("the primary is killed");
    proxy.lead_to(("127.0.0.1", standby.server().port()));
    // A standby that has the slot, and gives it to nobody: not a reason to stop.
    relay.says("trying again");
    let met = proxy.accepted();
    eventually(PATIENCE, || proxy.accepted() >= met + 4);
    let parted = standby.promote();
    ctx.move_to(standby.into_server(), parted);
    ctx.over();
    let outcome = judge(ctx, load);
    let (code, log) = relay.terminate();
    outcome.expect(code == Some(0), || log)
}

/// The standby lags, and nothing guards it: the relay has delivered and confirmed what the promoted
/// standby never had. The new primary writes other transactions at the same positions, and all of
/// them must be delivered: what was handed over on the old timeline says nothing of the new one.
pub(crate) fn diverged(ctx: &mut Context) -> Outcome {
    let standby = pair(ctx, Guard::Off);
    let url = standby.url_of_both(&ctx.postgres, &ctx.name);
    let _relay = relay(ctx, &ctx.config().url(url.clone()).source("create = false"));
    let load = load(ctx, &url);
    ctx.more(&load, 300..600);
    standby.wait_slot_synced(&ctx.name);
    let relayed = lag(ctx, &standby, &load);
    ctx.struck();
    ctx.postgres.kill().expect("the primary is killed");
    standby.link().cut(Cut::Reset);
    let parted = standby.promote();
    assert!(parted < relayed, "the standby did not lag");
    ctx.move_to(standby.into_server(), parted);
    ctx.over();
    let slot = ctx.slot();
    eventually(PATIENCE, || slot.wal_end() > relayed);
    ctx.more(&load, 300..600);
    load.stop();
    ctx.caught_up();

    let committed = History::committed(&ctx.url(), "public.outbox", &ctx.prefix);
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

/// Cuts the standby off until the relay has confirmed what the standby does not have, and gives the
/// position.
fn lag(ctx: &mut Context, standby: &Standby, load: &Running) -> Lsn {
    let slot = ctx.slot();
    standby.link().stall();
    ctx.more(load, 100..200);
    let lacking = slot.wal_end();
    ctx.more(load, 800..1_200);
    slot.wait_until(lacking, PATIENCE);
    slot.read().expect("the slot").confirmed_flush
}

/// The relay reads a slot of the standby itself, which is promoted under the stream: nothing is missing, and
/// nothing that is known of the old timeline may stop the relay when it connects again, or starts again.
pub(crate) fn promoted_under_the_stream(ctx: &mut Context) -> Outcome {
    ctx.own_postgres(|builder| builder);
    ctx.database();
    ctx.workload().create_tables();
    let name = ctx.name.clone();
    ctx.db().batch(&format!(
        "CREATE PUBLICATION {name} FOR TABLE outbox WITH (publish = 'insert')"
    ));
    let standby = Standby::of(&ctx.postgres, &[("hot_standby_feedback", "on")]);
    let server = standby.server();
    let url = server.url_for("postgres", Some(server.superuser_password()), &name);
    create_slot_of_standby(ctx, &url);
    let state_file = ctx.dir.join("state");
    let config = ctx.config().url(url).source("create = false");
    let config = config.source(&format!("state_file = \"{}\"", state_file.display()));
    let first = relay(ctx, &config);
    let both = standby.url_of_both(&ctx.postgres, &name);
    let load = load(ctx, &both);
    ctx.more(&load, 300..600);
    ctx.postgres.kill().expect("the primary is killed");
    let parted = standby.promote();
    ctx.postgres = Arc::new(standby.into_server());
    let slot = ctx.slot();
    eventually(PATIENCE, || slot.wal_end() > parted);
    ctx.more(&load, 300..600);
    ctx.caught_up();
    assert_eq!(first.streams(), 1, "the stream lived on: {}", first.log());
    let walsender = slot.wait_active(PATIENCE);
    ctx.struck();
    ctx.db()
        .batch(&format!("SELECT pg_terminate_backend({walsender})"));
    ctx.over();
    eventually(PATIENCE, || first.streams() == 2);
    ctx.more(&load, 300..600);
    ctx.caught_up();
    first.ends_well();
    let second = relay(ctx, &config);
    ctx.more(&load, 300..600);
    load.stop();
    ctx.caught_up();
    second.ends_well();
    let committed = History::committed(&ctx.url(), "public.outbox", &ctx.prefix);
    let verdict = check(&committed, &ctx.records(committed.len()));
    Outcome::of(&verdict, None, false).nothing_repeated()
}

/// A standby makes a slot when it has replayed a snapshot of running transactions, which the primary writes now
/// and then, or when it is asked to.
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

/// The promoted standby has no copy of the slot. The relay stops and names the range that is gone; it
/// makes no slot of its own accord, nor does one that is started.
pub(crate) fn without_slot(ctx: &mut Context) -> Outcome {
    ctx.own_postgres(|builder| builder);
    ctx.outbox();
    let standby = Standby::of(&ctx.postgres, &[]);
    let url = standby.url_of_both(&ctx.postgres, &ctx.name);
    // With `create = true`, which is the default.
    let config = ctx.config().url(url.clone());
    let mut relay = relay(ctx, &config);
    let load = load(ctx, &url);
    ctx.more(&load, 500..1_000);
    let relayed = lag(ctx, &standby, &load);
    ctx.struck();
    let primary: Arc<Postgres> = Arc::clone(&ctx.postgres);
    primary.kill().expect("the primary is killed");
    standby.link().cut(Cut::Reset);
    let parted = standby.promote();
    assert!(parted < relayed, "the standby did not lag");
    let code = relay.ended().code();
    let log = relay.log();
    assert_eq!(code, Some(65), "{log}");
    assert!(log.contains("[slot-gone]"), "{log}");
    ctx.more(&load, 300..600);
    load.stop();
    let mut again = ctx.start(&config);
    let code = again.ended().code();
    let words = again.log();
    assert_eq!(code, Some(78), "{words}");
    assert!(words.contains("[slot-missing]"), "{words}");
    let promoted = Db::connect(&standby.server().url());
    let slots = promoted.text("SELECT string_agg(slot_name, ' ') FROM pg_replication_slots");
    assert_eq!(slots, None, "a slot was made");

    let (from, to) = range(&log);
    // The former primary, whom nobody reaches any more, still knows where each row was committed.
    primary.start_again().expect("the former primary starts");
    let commits = ctx.commit_log().ids();
    let at: BTreeMap<&str, Lsn> = commits.iter().map(|row| (&*row.id, row.commit)).collect();
    let server = standby.server();
    let url = server.url_for("postgres", Some(server.superuser_password()), &ctx.name);
    let mut survived = History::committed(&url, "public.outbox", &ctx.prefix);
    let ids: BTreeSet<String> = survived.iter().map(|row| row.id.clone()).collect();
    let bootstrap = ctx.kafka.bootstrap_servers();
    let limit = Duration::from_secs(3);
    let mut records = History::records(&bootstrap, &ctx.prefix, usize::MAX, limit);
    records.retain(|record| record.id.as_ref().is_some_and(|id| ids.contains(id)));
    let delivered: BTreeSet<&str> = records.iter().filter_map(|r| r.id.as_deref()).collect();
    // What is in the range may be missing. It begins no later than the logs part, as every position
    // beyond is another's now.
    let all = survived.len();
    survived.retain(|row| {
        let old = at.get(&*row.id).is_some_and(|commit| *commit < from);
        old || delivered.contains(&*row.id)
    });
    let gone = all - survived.len();
    // Of rows that did not survive, and of those in the range, nothing is claimed.
    let judged: BTreeSet<&str> = survived.iter().map(|row| &*row.id).collect();
    let commits: Vec<_> = commits
        .iter()
        .filter(|row| judged.contains(&*row.id))
        .cloned()
        .collect();
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

/// The range of an error: "… from 0/1 to 0/2 …".
fn range(log: &str) -> (Lsn, Lsn) {
    let words: Vec<&str> = log
        .lines()
        .filter(|line| line.contains("was committed from"))
        .flat_map(str::split_whitespace)
        .collect();
    let found = words.windows(4).find_map(|four| match four {
        ["from", from, "to", to] => Some((from.parse().ok()?, to.parse().ok()?)),
        _ => None,
    });
    found.unwrap_or_else(|| panic!("no range is named: {log}"))
}
