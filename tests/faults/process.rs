//! Faults of the relay's own process.

use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::Command;

use walrelay_testkit::{Cut, eventually};
use walrelay_throwaway::Signal;

use crate::context::{Context, Ragged};
use crate::outcome::Outcome;
use crate::rig::PATIENCE;

/// Settings with which the relay soon tries again.
const SHORT_BACKOFF: &str = "delivery.backoff_max = \"500ms\"";

/// The relay is killed and started again under load. Half of the starts are killed at any moment,
/// also before they have caught up. The others are killed only after that, so that recovery can be
/// measured.
pub(crate) fn sigkill(ctx: &mut Context, times: u32) -> Outcome {
    ctx.outbox();
    let mut relay = ctx.relay();
    let load = ctx.load();
    let slot = ctx.slot();
    for round in 0..times {
        ctx.wait_rows(&load, 20..400);
        relay.kill();
        let left_alone = round % 2 == 1;
        if left_alone {
            ctx.fault_now();
        }
        relay = ctx.start(&ctx.config());
        if left_alone {
            slot.wait_until(slot.wal_end(), PATIENCE);
        }
    }
    ctx.wait_rows(&load, 200..300);
    load.stop();
    ctx.judge(Ragged::Allowed)
}

/// The relay is stopped in order and started again, under load: nothing is repeated.
pub(crate) fn sigterm(ctx: &mut Context) -> Outcome {
    ctx.outbox();
    let mut relay = ctx.relay();
    let load = ctx.load();
    ctx.wait_topics(&load);
    for _ in 0..6 {
        ctx.wait_rows(&load, 100..800);
        relay.ends_well();
        ctx.fault_now();
        relay = ctx.relay();
    }
    ctx.wait_rows(&load, 200..300);
    load.stop();
    ctx.judge(Ragged::No).nothing_repeated()
}

/// The relay kills itself by SIGKILL at each failpoint, at a random passing.
pub(crate) fn failpoints(ctx: &mut Context, rounds: u32) -> Outcome {
    ctx.outbox();
    ctx.relay().ends_well();
    let load = ctx.load();
    for point in [
        "after-read",
        "after-enqueue",
        "after-ack",
        "before-confirm",
        "draining",
    ] {
        for _ in 0..rounds {
            let drains = point == "draining";
            let passing = if drains { 1 } else { ctx.rng.u32(1..40) };
            let at = format!("{point}:{passing}");
            let mut relay = ctx.start_with(&ctx.config(), |command| {
                command.env("WALRELAY_DIE_AT", &at);
            });
            if drains {
                relay.streaming();
                ctx.wait_rows(&load, 50..300);
                relay.signal(Signal::Term);
            }
            let end = relay.ended();
            // By SIGKILL, or by SIGABRT, which runs no destructor either.
            let killed = matches!(end.signal(), Some(6 | 9));
            assert!(killed, "{at}: {end}; {}", relay.log());
            ctx.fault_now();
        }
    }
    let relay = ctx.relay();
    ctx.finish(load, relay, Ragged::Allowed)
}

/// The relay is stopped by SIGSTOP for a shorter time than the server waits for feedback, and for a
/// longer time.
pub(crate) fn suspended(ctx: &mut Context) -> Outcome {
    ctx.outbox();
    // The server waits for longer than any machine takes for these rows.
    let patient = ctx.config().set("source.wal_sender_timeout = \"10m\"");
    let relay = ctx.streaming(&patient);
    let slot = ctx.slot();
    let load = ctx.load();
    for _ in 0..2 {
        ctx.wait_rows(&load, 200..500);
        let streams = relay.streams();
        relay.signal(Signal::Stop);
        ctx.fault_begins();
        ctx.wait_rows(&load, 1_400..1_500);
        relay.signal(Signal::Cont);
        ctx.fault_ends();
        ctx.wait_rows(&load, 300..400);
        assert_eq!(relay.streams(), streams, "{}", relay.log());
    }
    relay.ends_well();
    let relay = ctx.streaming(&ctx.config().set("source.wal_sender_timeout = \"3s\""));
    for _ in 0..2 {
        ctx.wait_rows(&load, 200..500);
        let streams = relay.streams();
        relay.signal(Signal::Stop);
        ctx.fault_begins();
        slot.wait_inactive(PATIENCE);
        relay.signal(Signal::Cont);
        ctx.fault_ends();
        eventually(PATIENCE, || relay.streams() > streams);
    }
    ctx.finish(load, relay, Ragged::No)
}

/// No file descriptor is left for a new connection: the relay logs that, and continues when there
/// is one.
pub(crate) fn out_of_descriptors(ctx: &mut Context) -> Outcome {
    ctx.outbox();
    let (proxy, url) = ctx.proxy();
    let config = ctx.proxied_config().url(&url).set(SHORT_BACKOFF);
    let relay = ctx.streaming(&config);
    let load = ctx.load();
    let limit = |soft: u32| {
        let pid = relay.pid().to_string();
        let limit = format!("--nofile={soft}:");
        let mut prlimit = Command::new("prlimit");
        let status = prlimit.args(["--pid", &pid, &limit]).status();
        assert!(status.expect("prlimit, of util-linux, runs").success());
    };
    for _ in 0..2 {
        ctx.wait_rows(&load, 200..600);
        let streams = relay.streams();
        let said = relay.log().matches("Too many open files").count();
        limit(3);
        ctx.fault_begins();
        proxy.cut(Cut::Reset);
        ctx.sink_proxy().cut(Cut::Reset);
        eventually(PATIENCE, || {
            relay.log().matches("Too many open files").count() > said
        });
        ctx.wait_rows(&load, 1_000..2_000);
        limit(1_024);
        ctx.fault_ends();
        eventually(PATIENCE, || relay.streams() > streams);
    }
    ctx.finish(load, relay, Ragged::Allowed)
}

/// The log of the relay goes to a full device.
pub(crate) fn log_disk_full(ctx: &mut Context) -> Outcome {
    ctx.outbox();
    let config = ctx.config().set(SHORT_BACKOFF);
    let relay = ctx.start_with(&config, |command| {
        let mut full = Command::new("sh");
        full.args(["-c", "exec \"$0\" \"$@\" 2>/dev/full"])
            .arg(command.get_program())
            .args(command.get_args())
            .env_remove("WALRELAY_CONFIG");
        *command = full;
    });
    let slot = ctx.slot();
    slot.wait_active(PATIENCE);
    let load = ctx.load();
    for _ in 0..3 {
        ctx.wait_rows(&load, 200..600);
        // Terminate the walsender, so that the relay has something to log.
        let walsender = ctx.terminate_walsender();
        ctx.fault_now();
        slot.wait_other_reader(walsender, PATIENCE);
    }
    ctx.finish(load, relay, Ragged::No)
}

/// The wall clock of the relay alone jumps by days, ahead and back, by libfaketime.
///
/// Limit: librdkafka's threads wait on condition variables by the wall clock, so a wait during a
/// step back lasts longer by the step, unless something wakes the thread. Nothing wakes its main
/// thread while it waits to request a producer id again; that thread was seen to sleep for a day.
/// So the producer must be up before the first jump.
pub(crate) fn clock_jumps(ctx: &mut Context) -> Outcome {
    let places = [
        "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
        "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
        "/usr/lib64/faketime/libfaketimeMT.so.1",
    ];
    let Some(library) = places.into_iter().find(|path| Path::new(path).exists()) else {
        return Outcome::skipped("libfaketime is not installed");
    };
    ctx.outbox();
    let clock = ctx.dir.join("clock");
    // Write in one step: a partly written file would be another jump, during a wait.
    let set = |offset: &str| {
        let new = clock.with_extension("new");
        std::fs::write(&new, offset).expect("the clock is written");
        std::fs::rename(&new, &clock).expect("the clock is set");
    };
    set("+0");
    let config = ctx.config().set(SHORT_BACKOFF);
    let relay = ctx.start_with(&config, |command| {
        command
            .env("LD_PRELOAD", library)
            .env("FAKETIME_TIMESTAMP_FILE", &clock)
            .env("FAKETIME_NO_CACHE", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    });
    relay.streaming();
    let load = ctx.load();
    ctx.wait_topics(&load);
    for offset in ["+1d", "-2d", "+0", "+400d", "+0"] {
        ctx.wait_rows(&load, 200..600);
        set(offset);
        // A log line with the new day shows that the clock has jumped.
        let streams = relay.streams();
        ctx.terminate_walsender();
        ctx.fault_now();
        eventually(PATIENCE, || relay.streams() > streams);
    }
    let days: std::collections::BTreeSet<String> = relay
        .log()
        .lines()
        .filter_map(|line| line.split_once("\"timestamp\":\""))
        .filter_map(|(_, rest)| rest.get(..10).map(str::to_owned))
        .collect();
    assert!(days.len() >= 4, "its clock did not jump: {days:?}");
    ctx.finish(load, relay, Ragged::No)
}
