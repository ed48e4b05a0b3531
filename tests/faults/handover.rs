//! Two relays lose one slot to each other again and again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use walrelay_testkit::{
    Background, ChaosProxy, Committed, Cut, Delivered, Direction, SlotWatch, check, eventually,
    eventually_some,
};
use walrelay_throwaway::Signal;

use crate::context::{Config, Context, Ragged};
use crate::control::Control;
use crate::outcome::Outcome;
use crate::rig::{PATIENCE, Relay};

/// One of two relays, with its configuration and the proxy through which it reaches Postgres.
pub(crate) struct ProxiedRelay {
    pub(crate) proxy: ChaosProxy,
    config: Config,
    pub(crate) relay: Relay,
}

impl ProxiedRelay {
    pub(crate) fn new(ctx: &Context, name: &str, change: &impl Fn(Config) -> Config) -> Self {
        let (proxy, url) = ctx.proxy();
        let mut config = change(ctx.config().url(&url));
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

    /// Waits until the relay has found this walsender at the slot.
    pub(crate) fn waits_for(&self, walsender: i32) {
        self.relay.says(&found(walsender));
    }
}

/// What a relay logs that has found this walsender at its slot.
fn found(walsender: i32) -> String {
    format!("is being read by server process {walsender}")
}

/// Waits until one relay streams and the other has found its walsender. Returns the index of the
/// first, and the walsender. On a busy machine a relay may lose the slot without a fault: then the
/// server had no status update within `wal_sender_timeout`.
fn active(sides: &[ProxiedRelay; 2], slot: &SlotWatch) -> (usize, i32) {
    eventually_some(PATIENCE, || {
        let walsender = slot.reader()?;
        let waits = |side: usize| sides[side].relay.log().contains(&found(walsender));
        let active = (0..2).find(|side| waits(1 - side))?;
        Some((active, walsender))
    })
}

/// How a relay loses the slot.
#[derive(Debug, Clone, Copy)]
enum Loss {
    /// Its connections to Postgres are reset, and new ones are refused until the other relay has
    /// the slot.
    Cut,
    /// Its connections to Postgres stall until the other relay has the slot.
    Stall,
    Sigterm,
    Sigkill,
    /// It is stopped by SIGSTOP until the other relay has the slot.
    Sigstop,
}

const LOSSES: [Loss; 5] = [
    Loss::Cut,
    Loss::Stall,
    Loss::Sigterm,
    Loss::Sigkill,
    Loss::Sigstop,
];

/// Polls who reads the slot, and collects for how long nobody did at each change.
fn gaps(slot: &SlotWatch, stop: &AtomicBool) -> Vec<Duration> {
    let mut gaps = Vec::new();
    let mut free_since = None;
    while !stop.load(Ordering::SeqCst) {
        if slot.reader().is_none() {
            free_since.get_or_insert_with(Instant::now);
        } else if let Some(since) = free_since.take() {
            gaps.push(since.elapsed());
        }
        thread::sleep(Duration::from_millis(5));
    }
    gaps
}

/// The streaming relay loses the slot to the other one `rounds` times, in random ways and under
/// load. No relay ends unless it is asked to, and a relay that comes back continues.
pub(crate) fn in_turns(ctx: &mut Context, rounds: usize, shared_file: bool) -> Outcome {
    ctx.outbox();
    let state_file = ctx.dir.join("state");
    let change = |config: Config| {
        let config = config.set(
            "source.receive_timeout = \"1s\"\nsource.wal_sender_timeout = \"1s\"\n\
             delivery.backoff_max = \"500ms\"",
        );
        if shared_file {
            config.set(&format!("source.state_file = \"{}\"", state_file.display()))
        } else {
            config
        }
    };
    let mut sides = [ProxiedRelay::new(ctx, "first", &change), {
        let slot = ctx.slot();
        slot.wait_active(PATIENCE);
        ProxiedRelay::new(ctx, "second", &change)
    }];
    let load = ctx.load();
    let slot = ctx.slot();
    let watched = ctx.slot();
    let watch = Background::start("gaps", move |stop| gaps(&watched, stop));
    let control = Control::start(&ctx.url());
    let mut order: Vec<Loss> = LOSSES.iter().copied().cycle().take(rounds).collect();
    ctx.rng.shuffle(&mut order);
    for loss in order {
        ctx.wait_rows(&load, 50..300);
        let (active, walsender) = active(&sides, &slot);
        let side = &mut sides[active];
        match loss {
            Loss::Cut => {
                side.proxy.refuse(true);
                side.proxy.cut(Cut::Reset);
            }
            Loss::Stall => side.proxy.stall(),
            Loss::Sigterm => {
                side.relay.signal(Signal::Term);
                let code = side.relay.ended().code();
                // 75: its connection was lost a moment before, on a machine that is too busy to answer within
                // `wal_sender_timeout`. Then it cannot confirm what is acknowledged, and the other one repeats it.
                assert!(
                    matches!(code, Some(0 | 75)),
                    "{code:?}: {}",
                    side.relay.log()
                );
            }
            Loss::Sigkill => {
                side.relay.signal(Signal::Kill);
                side.relay.ended();
            }
            Loss::Sigstop => side.relay.signal(Signal::Stop),
        }
        slot.wait_other_reader(walsender, PATIENCE);
        ctx.wait_rows(&load, 50..300);
        match loss {
            Loss::Cut => side.proxy.refuse(false),
            Loss::Stall => side.proxy.resume(),
            Loss::Sigterm | Loss::Sigkill => side.start_again(ctx),
            Loss::Sigstop => side.relay.signal(Signal::Cont),
        }
    }
    ctx.wait_rows(&load, 200..400);
    load.stop();
    let mut gaps = watch.end();
    let limit = control.limit(Duration::from_secs(1));
    let outcome = ctx.judge(Ragged::Allowed);
    for side in sides {
        side.relay.ends_well();
    }
    gaps.sort();
    let median = gaps.get(gaps.len().saturating_sub(1) / 2).copied();
    println!(
        "  handed over {rounds} times; the slot was free for {median:?} (median), {:?} at most",
        gaps.last()
    );
    outcome.expect(median.is_some_and(|median| median < limit), || {
        format!("the slot was free for {median:?}, the median of {gaps:?}, and not {limit:?}")
    })
}

/// A key in its topic.
type TopicKey<'a> = (&'a str, Option<&'a [u8]>);

/// What a displaced relay delivered after the other relay had delivered later events.
#[derive(Debug, Default)]
pub(crate) struct Late {
    /// Keys whose last record is not their latest event.
    pub(crate) stale_keys: usize,
    /// Repeats that leave events out: each is a run of late records, or its end.
    ragged: usize,
}

impl Late {
    pub(crate) fn find(committed: &[Committed], records: &[Delivered]) -> Self {
        let numbers: HashMap<&str, i64> = committed.iter().map(|r| (&*r.id, r.number)).collect();
        let mut latest: HashMap<TopicKey<'_>, i64> = HashMap::new();
        for row in committed {
            let number = latest.entry((&row.topic, row.key.as_deref())).or_default();
            *number = row.number.max(*number);
        }
        let mut last: HashMap<TopicKey<'_>, (i64, i64)> = HashMap::new();
        for record in records {
            let number = record.id.as_deref().and_then(|id| numbers.get(id));
            let found = (record.offset, number.copied().unwrap_or_default());
            let place = (&*record.topic, record.key.as_deref());
            let known = last.entry(place).or_insert(found);
            *known = found.max(*known);
        }
        let stale = |(place, number): (&TopicKey<'_>, &i64)| {
            last.get(place).is_none_or(|(_, last)| last != number)
        };
        Self {
            stale_keys: latest.iter().filter(|entry| stale(*entry)).count(),
            ragged: check(committed, records).ragged.len(),
        }
    }
}

/// What happens to the streaming relay until the other one has delivered for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Displaced {
    /// Its connections to the sink's server and to Postgres stall. Those to Postgres go on first.
    BothLinks,
    /// Its connections to Postgres stall.
    PostgresLink,
    /// The process is stopped by SIGSTOP.
    Stopped,
}

/// The largest number of records in flight of the relay that is stopped: far fewer than the rows in
/// its sockets.
const IN_FLIGHT: usize = 500;

/// The streaming relay is cut off under high load, the other relay takes over, and the first one
/// comes back with events in its buffers and sockets. It must not deliver them behind those of the
/// other relay, except for records that the broker had received already, which are counted.
pub(crate) fn displaced(ctx: &mut Context, how: Displaced) -> Outcome {
    ctx.outbox();
    let timeout = |config: Config| config.set("source.wal_sender_timeout = \"2s\"");
    let first = ProxiedRelay::new(ctx, "first", &|config| {
        let address = ctx.sink_proxy().address().to_string();
        let config = timeout(config.set(&ctx.destination.address_setting(&address)));
        match how {
            Displaced::Stopped => {
                config.set(&format!("delivery.max_in_flight_records = {IN_FLIGHT}"))
            }
            Displaced::BothLinks | Displaced::PostgresLink => config,
        }
    });
    let slot = ctx.slot();
    let walsender = slot.wait_active(PATIENCE);
    let second = ProxiedRelay::new(ctx, "second", &timeout);
    second.waits_for(walsender);
    let seed = ctx.rng.u64(..);
    let load = ctx.workload().rate(6_000.0).seed(seed).start();
    ctx.wait_rows(&load, 8_000..12_000);
    ctx.fault_begins();
    match how {
        Displaced::BothLinks => {
            ctx.sink_proxy().stall();
            first.proxy.stall();
        }
        Displaced::PostgresLink => first.proxy.stall(),
        Displaced::Stopped => first.relay.signal(Signal::Stop),
    }
    slot.wait_other_reader(walsender, PATIENCE);
    ctx.fault_ends();
    ctx.wait_rows(&load, 8_000..12_000);
    ctx.caught_up();
    match how {
        Displaced::BothLinks | Displaced::PostgresLink => first.proxy.resume(),
        Displaced::Stopped => first.relay.signal(Signal::Cont),
    }
    first.waits_for(slot.wait_active(PATIENCE));
    let received = ctx.sink_proxy().bytes(Direction::ToServer);
    ctx.sink_proxy().resume();
    load.stop();
    let outcome = ctx.judge(Ragged::Allowed);
    // What the first relay still delivers is delivered before it ends.
    let first_log = first.relay.ends_well();
    // Its last requests come before this row's.
    eventually(PATIENCE, || ctx.sink_proxy().open() == 0);
    ctx.db().batch(
        "INSERT INTO outbox VALUES (gen_random_uuid(), 'order', 'marker', 'T', '{\"number\": 1}')",
    );
    ctx.caught_up();
    let committed = ctx.committed("outbox");
    let records = ctx.records(committed.len());
    second.relay.ends_well();
    let Late { stale_keys, ragged } = Late::find(&committed, &records);
    let purged = purged(&first_log);
    println!(
        "  {how:?}: {stale_keys} keys end on an old event, {ragged} repeats leave events out, {purged} were in flight"
    );
    // None of the stream may come late, only records that were in flight to the broker: those when
    // the relay noticed or, if it was stopped, those when it stopped, of which the broker may have
    // acknowledged some before it noticed.
    // Nothing at all of a server that stores no event a second time, nor what had not left the relay's machine.
    let limit = match how {
        _ if ctx.destination.refuses_repeats() => 0,
        Displaced::PostgresLink | Displaced::BothLinks => 0,
        Displaced::Stopped => 2 * IN_FLIGHT,
    };
    let late = ctx.sink_proxy().bytes(Direction::ToServer) - received;
    let outcome = outcome.expect(how != Displaced::BothLinks || late == 0, || {
        format!(
            "the server received {late} bytes of the first relay after the second one's records"
        )
    });
    outcome.expect(stale_keys.max(ragged) <= limit, || {
        format!("{stale_keys} keys end on an old event, {ragged} repeats leave events out, and {purged} were in flight; the limit is {limit}")
    })
}

/// Number of records that the relay gave up because another process read the slot, or might have.
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
