//! Two relays on one slot that change places again and again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use walrelay_testkit::{ChaosProxy, Cut, SlotWatch, eventually, eventually_some};

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
            config.source(&format!("state_file = {state_file:?}"))
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
