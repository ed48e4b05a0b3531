//! Replays while the slots that they copy move on.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::Path;

use walrelay_lsn::Lsn;
use walrelay_testkit::{Committed, Db, Delivered, History, Running, check};

use crate::context::{Config, Context, Ragged};
use crate::outcome::Outcome;
use crate::rig::{PATIENCE, Relay, command_with, unique};

/// A moment between two commits: every transaction of the load is before or behind it, by its
/// position and by its commit time.
struct Moment {
    position: Lsn,
    time: String,
}

impl Moment {
    fn now(db: &Db) -> Self {
        // A transaction of the load first changes a counter, so none is open while this lock is held.
        db.batch("BEGIN; LOCK TABLE outbox_keys IN SHARE MODE");
        let time = db.value(
            "SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')",
        );
        // What is committed is flushed.
        let position = db.flush_lsn();
        db.batch("COMMIT");
        Self { position, time }
    }
}

/// One range, replayed into a topic of its own by processes that are killed.
struct Replay {
    /// The arguments of a replay that begins anew.
    arguments: Vec<String>,
    topic: String,
    range: Range<Lsn>,
    /// Whether it ended well. Otherwise the beginning of its range was gone.
    complete: bool,
    /// Number of processes that went on behind what was acknowledged.
    resumed: u32,
}

impl Replay {
    fn new(ctx: &Context, topic: String, from: &Moment, to: &Moment, by_time: bool) -> Self {
        let dir = ctx.dir.join(&topic);
        std::fs::create_dir(&dir).expect("a directory");
        let (begin, end) = (from.position.to_string(), to.position.to_string());
        let begin = if by_time { &from.time } else { &begin };
        let dir = dir.display().to_string();
        let pairs = [
            ["--from", begin],
            ["--to", &end],
            ["--to-topic", &topic],
            ["--state-dir", &dir],
        ];
        Self {
            arguments: pairs.concat().into_iter().map(str::to_owned).collect(),
            topic,
            range: from.position..to.position,
            complete: false,
            resumed: 0,
        }
    }

    fn dir(&self) -> &Path {
        Path::new(self.arguments.last().expect("the directory"))
    }

    /// Starts a process: it resumes if the one before has left a note.
    fn start(&mut self, ctx: &Context, config: &Config) -> Relay {
        let notes = std::fs::read_dir(self.dir()).expect("a directory");
        let mut names = notes.map(|note| {
            note.expect("a note")
                .file_name()
                .into_string()
                .expect("text")
        });
        let id = names.find_map(|name| {
            let id = name
                .strip_prefix("walrelay-replay-")?
                .strip_suffix(".json")?;
            Some(id.to_owned())
        });
        let arguments = if let Some(id) = &id {
            self.resumed += 1;
            let dir = self.arguments.last().expect("the directory");
            vec!["--resume", id, "--state-dir", dir]
        } else {
            self.arguments.iter().map(String::as_str).collect()
        };
        let mut command = command_with("replay", &config.path, &arguments);
        let log = ctx.dir.join(format!("replay-{}.log", unique()));
        Relay::spawn(&mut command, &log)
    }

    /// Kills up to two processes at random moments, of which `process` is the first, and lets the last
    /// one end.
    fn end(&mut self, ctx: &mut Context, config: &Config, load: &Running, mut process: Relay) {
        for _ in 0..ctx.rng.u32(..3) {
            ctx.wait_rows(load, 0..800);
            process.kill();
            process = self.start(ctx, config);
        }
        let code = process.ended().code();
        let log = process.log();
        // A process may have ended well before it was killed: then its note is gone, and the records are
        // there.
        let was_complete = log.contains("[replay-not-agreed]");
        self.complete = code == Some(0) || was_complete;
        let gone = log.contains("[replay-gone]");
        assert!(self.complete || gone, "{code:?}: {log}");
    }

    /// The rows that must be in the topic, among those of the log.
    fn expected(&self, logged: &[(Lsn, Committed)]) -> Vec<Committed> {
        let inside = logged
            .iter()
            .filter(|(commit, _)| self.range.contains(commit));
        let of_topic = inside.zip(0..).map(|((_, row), number)| Committed {
            topic: self.topic.clone(),
            number,
            ..row.clone()
        });
        of_topic.collect()
    }

    /// What is wrong with the records of its topic, if anything is.
    fn judge(&self, mut expected: Vec<Committed>, records: &[Delivered]) -> Option<String> {
        if !self.complete && self.resumed == 0 && !records.is_empty() {
            return Some(format!(
                "{:?}: gone after {} records",
                self.arguments,
                records.len()
            ));
        }
        if !self.complete {
            // Of each key, the rows up to the last one that was sent.
            let sent: HashSet<&str> = records.iter().filter_map(|of| of.id.as_deref()).collect();
            let were_sent = expected.iter().filter(|row| sent.contains(&*row.id));
            let last: HashMap<_, _> = were_sent.map(|row| (row.key.clone(), row.number)).collect();
            expected.retain(|row| last.get(&row.key) >= Some(&row.number));
        }
        let verdict = check(&expected, records);
        (!verdict.is_clean_but_for_ragged()).then(|| format!("{:?}: {verdict}", self.arguments))
    }
}

/// Replays of a position or a time that a relay's slot or bookmark is about to leave behind, beside
/// that relay. Both are killed at random moments and started again: a replay has every row of its
/// range, or sends nothing and ends with `replay-gone`.
pub(crate) fn replay_moving_slots(ctx: &mut Context, times: usize) -> Outcome {
    ctx.outbox();
    let db = ctx.db();
    // The rolling bookmark moves, too.
    let config = ctx.config().set("retention.keep = \"1s\"");
    let mut relay = ctx.streaming(&config);
    let load = ctx.load();
    ctx.wait_topics(&load);
    let topics = format!("again-{}", ctx.prefix);
    let mut replays = Vec::new();
    for number in 1..=times {
        ctx.wait_rows(&load, 20..1_000);
        relay.kill();
        let from = Moment::now(&db);
        ctx.wait_rows(&load, 50..800);
        let to = Moment::now(&db);
        let last = number == times;
        let by_time = !last && ctx.rng.bool();
        let topic = format!("{topics}{number}");
        let mut replay = Replay::new(ctx, topic, &from, &to, by_time);
        if last {
            // Nothing moves the slot.
            let process = replay.start(ctx, &config);
            replay.end(ctx, &config, &load, process);
            relay = ctx.start(&config);
        } else if ctx.rng.bool() {
            let process = replay.start(ctx, &config);
            ctx.wait_rows(&load, 0..150);
            relay = ctx.start(&config);
            replay.end(ctx, &config, &load, process);
        } else {
            relay = ctx.start(&config);
            ctx.wait_rows(&load, 0..150);
            let process = replay.start(ctx, &config);
            replay.end(ctx, &config, &load, process);
        }
        replays.push(replay);
    }
    ctx.wait_rows(&load, 200..300);
    load.stop();
    let mut outcome = ctx.judge(Ragged::Allowed);
    relay.ends_well();
    let commits = ctx.commit_log().ids();
    let logged = commits.iter().map(|row| row.commit);
    let logged: Vec<(Lsn, Committed)> = logged.zip(ctx.committed_by_the_log()).collect();
    let complete = replays.iter().filter(|replay| replay.complete).count();
    let resumed: u32 = replays.iter().map(|replay| replay.resumed).sum();
    println!(
        "  {complete} of {times} replays were complete, the others gone; {resumed} were resumed"
    );
    let expected: Vec<_> = replays
        .iter()
        .map(|replay| replay.expected(&logged))
        .collect();
    let of_complete = replays
        .iter()
        .zip(&expected)
        .filter(|(replay, _)| replay.complete);
    let distinct = of_complete.map(|(_, rows)| rows.len()).sum();
    let bootstrap = ctx.kafka().bootstrap_servers();
    let records = History::records(&bootstrap, &topics, distinct, PATIENCE);
    for (replay, expected) in replays.iter().zip(expected) {
        let of_topic = records.iter().filter(|record| record.topic == replay.topic);
        let of_topic: Vec<Delivered> = of_topic.cloned().collect();
        outcome.wrong.extend(replay.judge(expected, &of_topic));
    }
    outcome.expect(replays.last().is_some_and(|last| last.complete), || {
        "nothing moved the slot, and the range was gone".to_owned()
    })
}
