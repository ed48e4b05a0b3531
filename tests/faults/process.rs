//! Faults of the relay's own process.

use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::Command;

use walrelay_testkit::{ChaosProxy, Cut, eventually};

use crate::context::{Context, Ragged};
use crate::outcome::Outcome;
use crate::rig::PATIENCE;

/// Killed and started again, mid-burst. Half of the starts are killed at any moment, before they have
/// caught up too; the other half are left alone until they have, so that recovery can be measured.
pub(crate) fn sigkill(ctx: &mut Context, times: u32) -> Outcome {
    ctx.outbox();
    let mut relay = ctx.relay();
    let load = ctx.load();
    let slot = ctx.slot();
    for round in 0..times {
        ctx.more(&load, 20..400);
        relay.kill();
        let left_alone = round % 2 == 1;
        if left_alone {
            ctx.struck();
            ctx.over();
        }
        relay = ctx.start(&ctx.config());
        if left_alone {
            slot.wait_until(slot.wal_end(), PATIENCE);
        }
    }
    ctx.more(&load, 200..300);
    load.stop();
    ctx.judge(Ragged::Allowed)
}

/// Asked to stop and started again, mid-burst: nothing is repeated.
pub(crate) fn sigterm(ctx: &mut Context) -> Outcome {
    ctx.outbox();
    let mut relay = ctx.relay();
    let load = ctx.load();
    for _ in 0..6 {
        ctx.more(&load, 100..800);
        relay.ends_well();
        ctx.struck();
        ctx.over();
        relay = ctx.relay();
    }
    ctx.more(&load, 200..300);
    load.stop();
    let outcome = ctx.judge(Ragged::No);
    let repeated = outcome.duplicates;
    outcome.expect(repeated == 0, || {
        format!("{repeated} repeated after a drain")
    })
}

/// SIGKILL by the relay itself at each step that a promise hangs on, at a passing that the seed
/// decides.
pub(crate) fn failpoints(ctx: &mut Context, rounds: u32) -> Outcome {
    ctx.outbox();
    let first = ctx.relay();
    first.ends_well();
    let load = ctx.load();
    for point in [
        "after-read",
        "after-enqueue",
        "after-ack",
        "after-confirm",
        "draining",
    ] {
        for _ in 0..rounds {
            let passing = if point == "draining" {
                1
            } else {
                ctx.rng.u32(1..40)
            };
            let at = format!("{point}:{passing}");
            let mut relay = ctx.start_with(&ctx.config(), |command| {
                command.env("WALRELAY_DIE_AT", &at);
            });
            if point == "draining" {
                relay.streaming();
                ctx.more(&load, 50..300);
                relay.signal("-TERM");
            }
            let end = relay.ended();
            // By SIGKILL, or by SIGABRT, which runs nothing either.
            let killed = matches!(end.signal(), Some(6 | 9));
            assert!(killed, "{at}: {end}; {}", relay.log());
            ctx.struck();
            ctx.over();
        }
    }
    let relay = ctx.relay();
    ctx.more(&load, 200..300);
    ctx.finish(load, relay, Ragged::Allowed)
}

/// Stopped by SIGSTOP for less than the server waits for feedback, and for more.
pub(crate) fn suspended(ctx: &mut Context) -> Outcome {
    ctx.outbox();
    let config = ctx.config().source("wal_sender_timeout = \"3s\"");
    let relay = ctx.start(&config);
    relay.streaming();
    let slot = ctx.slot();
    let load = ctx.load();
    for _ in 0..2 {
        ctx.more(&load, 200..500);
        let streams = relay.streams();
        relay.signal("-STOP");
        ctx.struck();
        ctx.more(&load, 1_400..1_500);
        relay.signal("-CONT");
        ctx.over();
        ctx.more(&load, 300..400);
        assert_eq!(relay.streams(), streams, "{}", relay.log());
    }
    for _ in 0..2 {
        ctx.more(&load, 200..500);
        let streams = relay.streams();
        relay.signal("-STOP");
        ctx.struck();
        slot.wait_inactive(PATIENCE);
        relay.signal("-CONT");
        ctx.over();
        eventually(PATIENCE, || relay.streams() > streams);
    }
    ctx.more(&load, 200..300);
    ctx.finish(load, relay, Ragged::No)
}

/// No file descriptor is left for a new connection: the relay says so, and goes on when there is one.
pub(crate) fn out_of_descriptors(ctx: &mut Context) -> Outcome {
    ctx.outbox();
    let proxy = ChaosProxy::start(("127.0.0.1", ctx.postgres.port()));
    let broker = ctx.kafka.proxy().address().to_string();
    let config = ctx
        .config()
        .url(ctx.url_at(proxy.port()))
        .bootstrap(broker)
        .more("[delivery]\nbackoff_max = \"500ms\"");
    let relay = ctx.start(&config);
    relay.streaming();
    let load = ctx.load();
    let limit = |soft: u32| {
        let pid = relay.pid().to_string();
        let limit = format!("--nofile={soft}:");
        let status = Command::new("prlimit")
            .args(["--pid", &pid, &limit])
            .status();
        assert!(status.expect("prlimit, of util-linux, runs").success());
    };
    for _ in 0..2 {
        ctx.more(&load, 200..600);
        let streams = relay.streams();
        let said = relay.log().matches("Too many open files").count();
        limit(3);
        ctx.struck();
        proxy.cut(Cut::Reset);
        ctx.kafka.proxy().cut(Cut::Reset);
        eventually(PATIENCE, || {
            relay.log().matches("Too many open files").count() > said
        });
        ctx.more(&load, 1_000..2_000);
        limit(1_024);
        ctx.over();
        eventually(PATIENCE, || relay.streams() > streams);
    }
    ctx.more(&load, 200..300);
    ctx.finish(load, relay, Ragged::Allowed)
}

/// What it says goes to a device that is full.
pub(crate) fn log_disk_full(ctx: &mut Context) -> Outcome {
    ctx.outbox();
    let config = ctx.config().more("[delivery]\nbackoff_max = \"500ms\"");
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
        ctx.more(&load, 200..600);
        // Something to be said.
        let walsender = slot.wait_active(PATIENCE);
        ctx.db()
            .batch(&format!("SELECT pg_terminate_backend({walsender})"));
        ctx.struck();
        ctx.over();
        eventually(PATIENCE, || {
            slot.read()
                .and_then(|slot| slot.active_pid)
                .is_some_and(|pid| pid != walsender)
        });
    }
    ctx.more(&load, 200..300);
    ctx.finish(load, relay, Ragged::No)
}

/// The wall clock jumps by days, ahead and back, for the relay alone, by libfaketime. What it does
/// not show: librdkafka's threads wait on condition variables by the wall clock, so a wait that a step
/// back falls into lasts for longer by the step, unless something wakes it. Its main thread, which
/// nothing wakes while it waits to ask again for a producer's id, was seen to sleep a day. So the
/// producer is up before the first jump.
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
    // In one step: half a file would be another jump, in the midst of a wait.
    let set = |offset: &str| {
        let new = clock.with_extension("new");
        std::fs::write(&new, offset).expect("the clock is written");
        std::fs::rename(&new, &clock).expect("the clock is set");
    };
    set("+0");
    let config = ctx.config().more("[delivery]\nbackoff_max = \"500ms\"");
    let relay = ctx.start_with(&config, |command| {
        command
            .env("LD_PRELOAD", library)
            .env("FAKETIME_TIMESTAMP_FILE", &clock)
            .env("FAKETIME_NO_CACHE", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    });
    relay.streaming();
    let slot = ctx.slot();
    let load = ctx.load();
    ctx.more(&load, 100..200);
    ctx.caught_up();
    for offset in ["+1d", "-2d", "+0", "+400d", "+0"] {
        ctx.more(&load, 200..600);
        set(offset);
        // A line with a time of the new day: the jump has taken place.
        let streams = relay.streams();
        let walsender = slot.wait_active(PATIENCE);
        ctx.db()
            .batch(&format!("SELECT pg_terminate_backend({walsender})"));
        ctx.struck();
        ctx.over();
        eventually(PATIENCE, || relay.streams() > streams);
    }
    let days: std::collections::BTreeSet<String> = relay
        .log()
        .lines()
        .filter_map(|line| line.split_once("\"timestamp\":\""))
        .filter_map(|(_, rest)| rest.get(..10).map(str::to_owned))
        .collect();
    assert!(days.len() >= 4, "its clock did not jump: {days:?}");
    ctx.more(&load, 200..300);
    ctx.finish(load, relay, Ragged::No)
}
