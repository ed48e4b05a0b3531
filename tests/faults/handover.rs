//! Two relays on one slot that change places again and again.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use walrelay_testkit::{
    ChaosProxy, Committed, Cut, Delivered, History, SlotWatch, check, eventually, eventually_some,
};

use crate::context::{Config, Context, Ragged};
use crate::outcome::Outcome;
use crate::rig::{PATIENCE, Relay};

/// One of the two: a relay, the proxy by which it reaches Postgres, and its configuration.
struct Seat {
    proxy: ChaosProxy,
    config: Config,
    relay: Relay,
}

impl Seat {
    fn new(ctx: &Context, name: &str, change: &impl Fn(Config) -> Config) -> Self {
        let proxy = ChaosProxy::start(("127.0.0.1", ctx.postgres.port()));
        let mut config = change(ctx.config().url(ctx.url_at(proxy.port())));
        config.path = ctx.dir.join(format!("{name}.toml"));
        let relay = ctx.start(&config);
        Self {
            proxy,
            config,
            relay,
        }
    }

    fn start_again(&mut self, ctx: &Context) {
        self.relay = ctx.start(&self.config);
    }

    /// Waits until it has found this process at the slot.
    fn waits_for(&self, walsender: i64) {
        self.relay
            .says(&format!("is being read by server process {walsender}"));
    }
}

/// How a relay loses the slot.
#[derive(Debug, Clone, Copy)]
enum Loss {
    /// Its connections to Postgres are reset, and new ones are refused until the other one has the slot.
    Cut,
    /// They fall silent, and speak again when the other one has the slot.
    Stall,
    Sigterm,
    Sigkill,
    /// It is stopped by SIGSTOP, and goes on when the other one has the slot.
    Sigstop,
}

const LOSSES: [Loss; 5] = [
    Loss::Cut,
    Loss::Stall,
    Loss::Sigterm,
    Loss::Sigkill,
    Loss::Sigstop,
];

/// Looks all the time who reads the slot: for how long nobody did, each time that it changed hands.
struct Gaps {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Vec<Duration>>>,
}

impl Gaps {
    fn watch(slot: SlotWatch) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let thread = thread::spawn({
            let stop = Arc::clone(&stop);
            move || {
                let mut gaps = Vec::new();
                let mut free_since = None;
                while !stop.load(Ordering::SeqCst) {
                    let active = slot.read().and_then(|slot| slot.active_pid).is_some();
                    match (active, free_since) {
                        (false, None) => free_since = Some(Instant::now()),
                        (true, Some(since)) => {
                            gaps.push(since.elapsed());
                            free_since = None;
                        }
                        _ => {}
                    }
                    thread::sleep(Duration::from_millis(5));
                }
                gaps
            }
        });
        Self {
            stop,
            thread: Some(thread),
        }
    }

    fn end(mut self) -> Vec<Duration> {
        self.stop.store(true, Ordering::SeqCst);
        let thread = self.thread.take().expect("it runs");
        thread.join().expect("the watch of the slot")
    }
}

impl Drop for Gaps {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
    }
}

/// So many times the relay that streams loses the slot to the other one, in a random order of ways, under
/// load. Nobody ends but who is asked to; who comes back goes on.
pub(crate) fn in_turns(ctx: &mut Context, rounds: usize, shared_file: bool) -> Outcome {
    ctx.outbox();
    let state_file = ctx.dir.join("state");
    let change = |config: Config| {
        let config = config
            .source("receive_timeout = \"1s\"")
            .source("wal_sender_timeout = \"1s\"")
            .more("[delivery]\nbackoff_max = \"500ms\"");
        if shared_file {
            config.source(&format!("state_file = \"{}\"", state_file.display()))
        } else {
            config
        }
    };
    let mut seats = [Seat::new(ctx, "first", &change), {
        let slot = ctx.slot();
        slot.wait_active(PATIENCE);
        Seat::new(ctx, "second", &change)
    }];
    let load = ctx.load();
    let slot = ctx.slot();
    let watch = Gaps::watch(ctx.slot());
    let reader = || slot.read().and_then(|slot| slot.active_pid);
    let mut order: Vec<Loss> = LOSSES.iter().copied().cycle().take(rounds).collect();
    ctx.rng.shuffle(&mut order);
    let mut active = 0;
    for loss in order {
        let walsender = eventually_some(PATIENCE, reader);
        seats[1 - active].waits_for(i64::from(walsender));
        ctx.more(&load, 50..300);
        let seat = &mut seats[active];
        match loss {
            Loss::Cut => {
                seat.proxy.refuse(true);
                seat.proxy.cut(Cut::Reset);
            }
            Loss::Stall => seat.proxy.stall(),
            Loss::Sigterm => {
                seat.relay.signal("-TERM");
                let status = seat.relay.ended();
                assert_eq!(status.code(), Some(0), "{}", seat.relay.log());
            }
            Loss::Sigkill => {
                seat.relay.signal("-KILL");
                seat.relay.ended();
            }
            Loss::Sigstop => seat.relay.signal("-STOP"),
        }
        eventually(PATIENCE, || reader().is_some_and(|pid| pid != walsender));
        ctx.more(&load, 50..300);
        match loss {
            Loss::Cut => seat.proxy.refuse(false),
            Loss::Stall => seat.proxy.resume(),
            Loss::Sigterm | Loss::Sigkill => seat.start_again(ctx),
            Loss::Sigstop => seat.relay.signal("-CONT"),
        }
        active = 1 - active;
    }
    ctx.more(&load, 200..400);
    load.stop();
    let mut gaps = watch.end();
    let outcome = ctx.judge(Ragged::Allowed);
    for seat in seats {
        seat.relay.ends_well();
    }
    gaps.sort();
    let median = gaps.get(gaps.len().saturating_sub(1) / 2).copied();
    println!(
        "  handed over {rounds} times; the slot was free for {median:?} (median), {:?} at most",
        gaps.last()
    );
    outcome.expect(
        median.is_some_and(|median| median < Duration::from_secs(1)),
        || format!("the slot was free for {median:?}, the median of {gaps:?}"),
    )
}

/// A key in its topic.
type Place<'a> = (&'a str, Option<&'a [u8]>);

/// What a displaced relay delivered after the relay that took over had delivered later events.
#[derive(Debug, Default)]
struct Late {
    /// Keys whose last record is not their latest event.
    stale_keys: usize,
    /// Repeats that leave events out: each is a stretch of late records, or its end.
    ragged: usize,
}

impl Late {
    fn of(committed: &[Committed], records: &[Delivered]) -> Self {
        let numbers: HashMap<&str, i64> = committed.iter().map(|r| (&*r.id, r.number)).collect();
        let mut latest: HashMap<Place<'_>, i64> = HashMap::new();
        for row in committed {
            let number = latest.entry((&row.topic, row.key.as_deref())).or_default();
            *number = row.number.max(*number);
        }
        let mut last: HashMap<Place<'_>, (i64, i64)> = HashMap::new();
        for record in records {
            let number = record.id.as_deref().and_then(|id| numbers.get(id));
            let found = (record.offset, number.copied().unwrap_or_default());
            let place = (&*record.topic, record.key.as_deref());
            let known = last.entry(place).or_insert(found);
            *known = found.max(*known);
        }
        let stale = |(place, number): (&Place<'_>, &i64)| {
            last.get(place).is_none_or(|(_, last)| last != number)
        };
        Self {
            stale_keys: latest.iter().filter(|entry| stale(*entry)).count(),
            ragged: check(committed, records).ragged.len(),
        }
    }
}

/// What befalls the relay that streams, until the other one has delivered for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Displaced {
    /// Its connections to Postgres and to Kafka fall silent; then they speak again.
    BothLinks,
    /// Those to Postgres do.
    PostgresLink,
    /// The process is stopped by SIGSTOP, and goes on.
    Stopped,
}

/// The relay that streams is cut off while it has much to do, the other one takes over, and the first comes back
/// with what it had in its buffers and sockets. None of that may be delivered behind what the other one has
/// delivered; but for what was in flight to the broker already, which is counted.
pub(crate) fn displaced(ctx: &mut Context, how: Displaced) -> Outcome {
    ctx.outbox();
    let timeout = |config: Config| config.source("wal_sender_timeout = \"2s\"");
    let first = Seat::new(ctx, "first", &|config| {
        let broker = ctx.kafka.proxy().address().to_string();
        timeout(config.bootstrap(broker))
    });
    let slot = ctx.slot();
    slot.wait_active(PATIENCE);
    let second = Seat::new(ctx, "second", &timeout);
    let reader = || slot.read().and_then(|slot| slot.active_pid);
    let walsender = eventually_some(PATIENCE, reader);
    second.waits_for(i64::from(walsender));
    let seed = ctx.rng.u64(..);
    let load = ctx.workload().rate(6_000.0).seed(seed).start();
    ctx.more(&load, 8_000..12_000);
    ctx.struck();
    match how {
        Displaced::BothLinks => {
            ctx.kafka.proxy().stall();
            first.proxy.stall();
        }
        Displaced::PostgresLink => first.proxy.stall(),
        Displaced::Stopped => first.relay.signal("-STOP"),
    }
    eventually(PATIENCE, || reader().is_some_and(|pid| pid != walsender));
    ctx.over();
    ctx.more(&load, 8_000..12_000);
    ctx.caught_up();
    match how {
        Displaced::BothLinks => {
            ctx.kafka.proxy().resume();
            first.proxy.resume();
        }
        Displaced::PostgresLink => first.proxy.resume(),
        Displaced::Stopped => first.relay.signal("-CONT"),
    }
    let now = eventually_some(PATIENCE, reader);
    first.waits_for(i64::from(now));
    load.stop();
    let outcome = ctx.judge(Ragged::Allowed);
    // Whatever the first one was about to deliver is delivered before it ends.
    let first_log = first.relay.ends_well();
    let committed = History::committed(&ctx.url(), "public.outbox", &ctx.prefix);
    let limit = Duration::from_secs(3);
    let bootstrap = ctx.kafka.bootstrap_servers();
    let records = History::records(&bootstrap, &ctx.prefix, usize::MAX, limit);
    second.relay.ends_well();
    let late = Late::of(&committed, &records);
    let Late { stale_keys, ragged } = late;
    let purged = purged(&first_log);
    println!(
        "  {how:?}: {stale_keys} keys end on an old event, {ragged} repeats leave events out, {purged} were in flight"
    );
    // What was in flight to the broker when the relay noticed. Of the stream nothing may come late.
    let limit = match how {
        Displaced::PostgresLink => 0,
        Displaced::BothLinks | Displaced::Stopped => 2 * purged,
    };
    outcome.expect(stale_keys.max(ragged) <= limit, || {
        format!("{stale_keys} keys end on an old event, {ragged} repeats leave events out, and {purged} were in flight")
    })
}

/// How many records the relay has given up because another process read the slot, or might have.
fn purged(log: &str) -> usize {
    let lines = log
        .lines()
        .filter(|line| line.contains("records in flight are given up"));
    let counts = lines.filter_map(|line| {
        let fields: serde_json::Value = serde_json::from_str(line).ok()?;
        fields["in_flight"].as_u64()
    });
    counts.sum::<u64>() as usize
}
