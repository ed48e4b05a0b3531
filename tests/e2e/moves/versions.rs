//! Moves from one version of Postgres to another by the programs that Postgres has for that, while writers go on and
//! the relay, the command and `pg_upgrade` are killed at random moments.
//!
//! They need `pg_upgrade`, `pg_dump` and `psql` next to the server, which `scripts/fetch-servers.sh` does not fetch.
//! Without them a test says that it is skipped. `WALRELAY_CACHE` may name a directory whose `postgres-17` and
//! `postgres-18` have them, and `postgres-19`, to which the moves go on if it is there.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use fastrand::Rng;
use walrelay_testkit::{Delivered, History, Redis, eventually, rng, servers};
use walrelay_throwaway::{ChildGuard, PostgresBinaries, Shutdown, copy_dir};

use super::{Writers, ascend, blue_green, judge_records, replicated, step, switched, wait_rows};
use crate::rig::{PATIENCE, Relay, Rig, SLOT, command_with, done, edit, output_with, said};

/// How the rows come to the new server.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// `pg_upgrade`. It refuses a slot that has something left, such as the relay's last note of itself, so the slot
    /// is dropped before.
    Upgrade,
    /// `pg_dump`, restored in one transaction: the fence is there as soon as the table is.
    Dump,
}

impl Way {
    /// Versions of the servers, each of which gets the rows of the one before. Scripts fetch no Postgres 19.
    fn versions(self) -> Vec<u32> {
        let versions = match self {
            Self::Upgrade => [17, 18],
            Self::Dump => [16, 18],
        };
        let has_programs = |major: &u32| {
            let mut programs = self.programs().iter();
            is_installed(*major) && programs.all(|name| program(*major, name).is_file())
        };
        let newest = [19].into_iter().filter(has_programs);
        versions.into_iter().chain(newest).collect()
    }

    fn programs(self) -> &'static [&'static str] {
        match self {
            Self::Upgrade => &["pg_controldata", "pg_upgrade", "pg_checksums"],
            Self::Dump => &["pg_dump", "psql"],
        }
    }

    /// Copies the old server's database to the new one, which has none yet.
    fn copy(self, rng: &mut Rng, old: &Rig, new: &Rig) {
        match self {
            Self::Upgrade => upgrade(rng, old, new),
            Self::Dump => dump(old, new),
        }
    }
}

fn is_installed(major: u32) -> bool {
    PostgresBinaries::find(Some(major)).is_ok()
}

fn program(major: u32, name: &str) -> PathBuf {
    servers::binaries(major).dir().join(name)
}

/// Returns whether the machine has the programs of this way. The log of the tests says if not.
fn is_possible(way: Way) -> bool {
    let versions = way.versions();
    // The oldest server's programs do nothing here, but pg_controldata.
    let programs = versions
        .iter()
        .skip(1)
        .flat_map(|major| way.programs().iter().map(|name| (*major, *name)));
    let mut missing = programs.filter(|(major, name)| !program(*major, name).is_file());
    let Some((major, name)) = missing.next() else {
        return true;
    };
    eprintln!(
        "skipped: no {name} of Postgres {major} here; WALRELAY_CACHE names a directory of servers that have it"
    );
    false
}

/// Runs `pg_upgrade`, which is killed with the servers that it has started, and then begun again.
fn upgrade(rng: &mut Rng, old: &Rig, new: &Rig) {
    drop_slot_under_kills(rng, old);
    for rig in [old, new] {
        rig.postgres.stop(Shutdown::Fast).expect("it stops");
    }
    // 18 checks sums of pages by default, and 17 does not.
    let data = new.postgres.data_dir();
    let to = new.postgres.version().major;
    let mut sums = Command::new(program(to, "pg_checksums"));
    as_server(
        new,
        sums.args(["--disable", "--no-sync", "--pgdata"]).arg(&data),
    );
    done(&sums.output().expect("it runs"));
    // A copy, used in place of a second initdb.
    let first = data.with_extension("first");
    copy_dir(&data, &first).expect("it is copied");
    let mut command = upgrading(old, new);
    let mut child = ChildGuard::spawn(command.stdout(Stdio::piped())).expect("it starts");
    let mut output = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let steps: Vec<String> = output
        .by_ref()
        .map_while(Result::ok)
        .take(rng.usize(5..45))
        .collect();
    sleep(Duration::from_millis(rng.u64(0..200)));
    child.kill().expect("it is killed");
    kill_servers([&old.postgres.data_dir(), &data]);
    remove_sockets(data.parent().expect("a folder"));
    eprintln!("pg_upgrade to {to} is killed after {:?}", steps.last());
    // pg_upgrade wants a server that was shut down, and a new one without tables.
    old.postgres.start_again().expect("it starts");
    old.postgres.stop(Shutdown::Fast).expect("it stops");
    // Children of a killed server may still write to it.
    fs::rename(&data, data.with_extension("killed")).expect("renamed");
    fs::rename(first, &data).expect("renamed");
    let output = upgrading(old, new).output().expect("it runs");
    if !output.status.success() {
        let mut logs = Command::new("grep");
        logs.args(["-rhiE", "error|fatal|failed"])
            .arg(data.join("pg_upgrade_output.d"));
        eprintln!("{}", said(&logs.output().expect("it runs")));
    }
    done(&output);
    new.postgres.start_again().expect("it starts");
}

/// Drops the slot by commands that are killed at random moments, and then by one that is not.
fn drop_slot_under_kills(rng: &mut Rng, old: &Rig) {
    let config = old.path("walrelay.toml");
    let line = format!("slots drop {SLOT}");
    let arguments = ["--yes", "--no-bookmark"];
    for _ in 0..2 {
        let mut command = command_with(&line, &config, &arguments);
        let mut child = ChildGuard::spawn(&mut command).expect("it starts");
        sleep(Duration::from_millis(rng.u64(0..100)));
        child.kill().expect("it is killed");
    }
    // The statement of a killed command may still drop it.
    let exists = "SELECT EXISTS (SELECT FROM pg_replication_slots)";
    eventually(PATIENCE, || {
        if old.db().value::<bool>(exists) {
            let _ = output_with(&line, &config, &arguments);
        }
        !old.db().value::<bool>(exists)
    });
}

/// Returns the command that upgrades a stopped server.
fn upgrading(old: &Rig, new: &Rig) -> Command {
    let [from, to] = [old, new].map(|rig| rig.postgres.version().major);
    let data = new.postgres.data_dir();
    let folder = |program: PathBuf| program.parent().expect("a folder").to_path_buf();
    let mut upgrade = Command::new(program(to, "pg_upgrade"));
    upgrade
        .args(["--username", "postgres", "--no-sync", "--old-bindir"])
        .arg(folder(program(from, "postgres")))
        .arg("--new-bindir")
        .arg(folder(program(to, "postgres")))
        .arg("--old-datadir")
        .arg(old.postgres.data_dir())
        .arg("--new-datadir")
        .arg(&data)
        // The writers must not find the servers here.
        .arg("--socketdir")
        .arg(data.parent().expect("a folder"))
        .args(["--old-port", &old.postgres.port().to_string()])
        .args(["--new-port", &new.postgres.port().to_string()]);
    as_server(new, &mut upgrade);
    upgrade
}

/// Kills each process that was started with one of these directories, such as a server that `pg_upgrade` has started.
fn kill_servers(data: [&Path; 2]) {
    let names = data.map(|data| data.to_str().expect("text").to_owned());
    let is_of = |process: &fs::DirEntry| {
        let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        names.iter().any(|name| line.contains(name))
    };
    eventually(PATIENCE, || {
        let all = fs::read_dir("/proc").expect("processes").flatten();
        let found: Vec<_> = all
            .filter(is_of)
            .map(|process| process.file_name())
            .collect();
        if !found.is_empty() {
            // One may have ended meanwhile.
            let _ = Command::new("kill").arg("-KILL").args(&found).output();
        }
        found.is_empty()
    });
}

/// Removes the sockets and lock files of killed servers: the process ID in a lock file may be that of a zombie, or of
/// another process by now.
fn remove_sockets(folder: &Path) {
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let name = entry.file_name();
        if name.to_string_lossy().starts_with(".s.PGSQL.") {
            fs::remove_file(entry.path()).expect("removed");
        }
    }
}

/// Makes a program run as the account of the server, which no superuser of the system is.
fn as_server(rig: &Rig, command: &mut Command) {
    let owner = rig.postgres.data_dir().metadata().expect("a folder");
    // pg_upgrade writes there.
    command
        .current_dir(rig.postgres.socket_dir())
        .env("LC_ALL", "C");
    if owner.uid() != rig.folder().metadata().expect("a folder").uid() {
        command.uid(owner.uid()).gid(owner.gid());
    }
}

fn dump(old: &Rig, new: &Rig) {
    let to = new.postgres.version().major;
    let mut dump = Command::new(program(to, "pg_dump"))
        .args(["--dbname", &old.postgres.url()])
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let restored = Command::new(program(to, "psql"))
        .args([
            "--no-psqlrc",
            "--quiet",
            "--single-transaction",
            "--set",
            "ON_ERROR_STOP=1",
        ])
        .arg(new.postgres.url())
        .stdin(dump.stdout.take().expect("a pipe"))
        .output();
    assert!(dump.wait().expect("it ends").success());
    done(&restored.expect("it runs"));
}

/// Kills a step and the relay three times, each at a random moment, and then runs the step to its end.
#[track_caller]
pub(super) fn step_under_kills(
    rng: &mut Rng,
    rig: &Rig,
    mut relay: Relay,
    config: &Path,
    line: &str,
) -> Relay {
    for _ in 0..3 {
        let mut command = command_with(&format!("move {line}"), config, &[]);
        let mut child = ChildGuard::spawn(&mut command).expect("it starts");
        sleep(Duration::from_millis(rng.u64(0..150)));
        relay.kill();
        sleep(Duration::from_millis(rng.u64(0..100)));
        child.kill().expect("it is killed");
        relay = rig.start(config);
    }
    done(&step(config, line));
    relay
}

/// Moves an outbox from each server to the next one. Returns the last one, whose table has all rows, with the position
/// in each record.
fn moved(way: Way, seed: &str, rigs: Vec<Rig>, more: &str) -> Rig {
    let mut rng = rng(seed);
    let header = "[router]\nposition_header = \"walrelay-position\"\n\n[router.debezium]";
    let configured = |rig: &Rig| {
        let config = rig.config_and(more);
        edit(&config, "[router.debezium]", header);
        config
    };
    let urls: Vec<String> = rigs.iter().map(|rig| rig.postgres.url()).collect();
    let mut rigs = rigs.into_iter();
    let mut old = rigs.next().expect("an old server");
    let mut config = configured(&old);
    done(&output_with("init", &config, &[]));
    for _ in 0..4 {
        old.db()
            .batch("SELECT pg_logical_emit_message(true, 'x', 'y'); SELECT pg_switch_wal()");
    }
    let mut relay = old.streaming(&config);
    let writers = Writers::start(&urls);
    wait_rows(&old.db(), 200);
    for new in rigs {
        relay = step_under_kills(&mut rng, &old, relay, &config, "drain --yes --patience 2m");
        relay.streaming();
        relay.ends_well();
        way.copy(&mut rng, &old, &new);
        // Stops the server, if it still runs.
        old = new;
        config = configured(&old);
        relay = old.start(&config);
        relay.says("was not switched to");
        relay = step_under_kills(&mut rng, &old, relay, &config, "switch --yes");
        relay.streaming();
        wait_rows(&old.db(), 200);
        done(&step(&config, "verify"));
    }
    writers.end();
    old.caught_up();
    relay.ends_well();
    old
}

/// Runs a move with three seeds, and judges each by the history checker.
fn three_seeds(way: Way, test: &str, judge: impl Fn(&str, Vec<Rig>) -> String) {
    if !is_possible(way) {
        return;
    }
    for round in 1..=3 {
        let seed = format!("moves::versions::{test} {round}");
        let begun = Instant::now();
        let versions = way.versions();
        let mut rigs: Vec<Rig> = Vec::new();
        for major in &versions {
            let mut rig = Rig::new(*major);
            match rigs.first() {
                Some(first) => rig.prefix.clone_from(&first.prefix),
                None => rig = rig.outbox(),
            }
            rigs.push(rig);
        }
        let figures = judge(&seed, rigs);
        eprintln!(
            "{way:?} {versions:?} {round}: {figures}, {:.1} s",
            begun.elapsed().as_secs_f64()
        );
    }
}

/// Judges what Kafka has, and whether its positions ascend.
fn judge_kafka(way: Way) -> impl Fn(&str, Vec<Rig>) -> String {
    move |seed, rigs| {
        let new = moved(way, seed, rigs, "");
        let history = new.history();
        let verdict = history.check();
        verdict.assert_clean_but_for_ragged();
        assert!(verdict.committed > 400, "{verdict}");
        ascend(&history.records);
        format!("{} rows, {} repeats", verdict.committed, verdict.duplicates)
    }
}

fn stream_of(prefix: &str) -> String {
    format!("{prefix}order")
}

/// Returns lines of the configuration for a stream of Redis whose ids are positions: it refuses repeats.
fn sink_redis(prefix: &str) -> String {
    format!(
        "[sink]\nkind = \"redis\"\n[sink.redis]\nhosts = [\"127.0.0.1:{}\"]\nstream = \"{}\"\n",
        Redis::shared().port(),
        stream_of(prefix)
    )
}

/// Reads that stream.
fn records_in_redis(prefix: &str) -> Vec<Delivered> {
    let stream = stream_of(prefix);
    let entries = Redis::shared().client().entries(&stream);
    let records = entries.into_iter().enumerate();
    let records = records.map(|(offset, mut entry)| Delivered {
        id: entry.text("id").map(str::to_owned),
        topic: stream.clone(),
        offset: i64::try_from(offset).expect("few"),
        key: entry.fields.remove("key"),
        payload: entry.fields.remove("payload"),
        ..Delivered::default()
    });
    records.collect()
}

/// Judges what that stream has.
fn judge_redis(way: Way) -> impl Fn(&str, Vec<Rig>) -> String {
    move |seed, rigs| {
        let more = sink_redis(&rigs.first().expect("an old server").prefix);
        let new = moved(way, seed, rigs, &more);
        let history = History {
            committed: History::committed(&new.postgres.url(), "public.outbox", &new.prefix),
            records: records_in_redis(&new.prefix),
        };
        let verdict = history.check();
        verdict.assert_nothing_repeated();
        assert!(verdict.committed > 400, "{verdict}");
        format!("{} rows, {} repeats", verdict.committed, verdict.duplicates)
    }
}

#[test]
fn pg_upgrade_loses_and_reorders_nothing_in_kafka() {
    let test = "pg_upgrade_loses_and_reorders_nothing_in_kafka";
    three_seeds(Way::Upgrade, test, judge_kafka(Way::Upgrade));
}

#[test]
fn a_dump_loses_and_reorders_nothing_in_kafka() {
    let test = "a_dump_loses_and_reorders_nothing_in_kafka";
    three_seeds(Way::Dump, test, judge_kafka(Way::Dump));
}

#[test]
fn pg_upgrade_repeats_nothing_in_redis() {
    if Redis::is_wanted() {
        let test = "pg_upgrade_repeats_nothing_in_redis";
        three_seeds(Way::Upgrade, test, judge_redis(Way::Upgrade));
    }
}

#[test]
fn a_dump_repeats_nothing_in_redis() {
    if Redis::is_wanted() {
        let test = "a_dump_repeats_nothing_in_redis";
        three_seeds(Way::Dump, test, judge_redis(Way::Dump));
    }
}

/// The relays are killed, too.
#[test]
fn a_subscription_repeats_nothing_in_redis() {
    if Redis::is_wanted() {
        let test = "moves::versions::a_subscription_repeats_nothing_in_redis";
        let (old, written) = switched(replicated(15, 18, sink_redis), test, true);
        let repeats = judge_records(&records_in_redis(&old.prefix), &written);
        assert_eq!(repeats, 0, "repeats");
    }
}

#[test]
fn a_subscription_from_15_to_19_loses_and_reorders_nothing() {
    if !is_installed(19) {
        eprintln!(
            "skipped: no Postgres 19 here; WALRELAY_CACHE names a directory of servers that has it"
        );
        return;
    }
    for round in 1..=3 {
        let test = format!("moves::versions::a_subscription_from_15_to_19 {round}");
        let repeats = blue_green(15, 19, &test, true);
        eprintln!("a subscription from 15 to 19, {round}: {repeats} repeats");
    }
}
