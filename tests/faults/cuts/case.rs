//! One cut: a database of its own, what is done there, and what must hold afterwards.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use walrelay_testkit::{Db, HttpReceiver, Program, eventually};
use walrelay_throwaway::Postgres;

use super::statements::StatementProxy;
use crate::rig::{PATIENCE, Relay, command_with, unique, with_failures};

/// The evidence by which rows count as sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Evidence {
    Account,
    Marks,
}

/// Starts until a relay streams, at most.
const STARTS: usize = 8;
/// Errors that name a range of events that nobody sends unless the user does.
const GAPS: [&str; 3] = [
    "[slot-passed-over]",
    "[slot-missing]",
    "[cutover-not-switched]",
];
/// Exit codes of a relay that a later start may help: unavailable, and drained too late.
const AGAIN: [i32; 2] = [69, 75];

/// A database with an outbox, a configuration, and a path of the receiver.
pub(crate) struct Case<'a> {
    pub(crate) name: String,
    pub(crate) evidence: Evidence,
    postgres: &'a Postgres,
    receiver: &'a HttpReceiver,
    dir: PathBuf,
    config: PathBuf,
    db: Db,
    inserted: u32,
    /// The user has accepted that events are not sent.
    pub(crate) gave_up: bool,
    /// What the programs have said.
    pub(crate) logs: String,
}

impl<'a> Case<'a> {
    pub(crate) fn new(
        postgres: &'a Postgres,
        receiver: &'a HttpReceiver,
        evidence: Evidence,
        dir: &Path,
    ) -> Self {
        let name = format!("c{}", unique());
        let dir = dir.join(&name);
        fs::create_dir_all(&dir).expect("a directory");
        let password = postgres.superuser_password();
        Db::connect(&postgres.url()).batch(&format!("CREATE DATABASE {name}"));
        let url = postgres.url_for("postgres", Some(password), &name);
        let db = Db::connect(&url);
        db.batch(
            "CREATE TABLE outbox (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregatetype text NOT NULL, \
             aggregateid text NOT NULL, type text NOT NULL, payload jsonb, seq bigserial, \
             created_at timestamptz NOT NULL DEFAULT now() - interval '2 days', sent_at timestamptz)",
        );
        let evidence_lines = match evidence {
            Evidence::Account => "snapshot = \"initial\"",
            Evidence::Marks => "snapshot = \"unsent\"\nmark_sent = \"sent_at = now()\"",
        };
        let text = format!(
            "[source]\nurl = \"{url}\"\nslot = \"{name}\"\npublication = \"{name}\"\n\
             tables = [\"public.outbox\"]\nsnapshot_order = [\"seq\"]\n{evidence_lines}\n\n\
             [router.debezium]\n\n[log]\nformat = \"json\"\n\n[prune]\nkeep = \"10s\"\n\n\
             [sink]\nkind = \"http\"\n\n[sink.http]\nurl = \"http://{}/{name}\"\n",
            receiver.address()
        );
        let config = dir.join("walrelay.toml");
        fs::write(&config, text).expect("the configuration is written");
        Self {
            name,
            evidence,
            postgres,
            receiver,
            dir,
            config,
            db,
            inserted: 0,
            gave_up: false,
            logs: String::new(),
        }
    }

    /// Inserts rows, each with an event of the next number.
    pub(crate) fn insert(&mut self, rows: u32) {
        for number in self.inserted + 1..=self.inserted + rows {
            self.db.batch(&format!(
                "INSERT INTO outbox (aggregatetype, aggregateid, type, payload) \
                 VALUES ('order', 'key', 'T', '{{\"number\": {number}}}')"
            ));
        }
        self.inserted += rows;
    }

    /// Runs SQL as an administrator would.
    pub(crate) fn sql(&self, sql: &str) {
        if let Err(error) = self.db.try_batch(&sql.replace("SLOT", &self.name)) {
            // Such as a slot that is there already.
            eprintln!("{}: {error}", self.name);
        }
    }

    pub(crate) fn has_slot(&self) -> bool {
        self.db.value(&format!(
            "SELECT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = '{}')",
            self.name
        ))
    }

    /// A command with the configuration. SLOT is the name of the slot.
    fn command(&self, line: &str) -> Command {
        command_with(&line.replace("SLOT", &self.name), &self.config, &[])
    }

    fn spawn(&self, command: &mut Command) -> Program {
        Relay::spawn(command, &self.dir.join(format!("{}.log", unique())))
    }

    /// Starts a command, without waiting for it.
    pub(crate) fn start(&self, line: &str) -> Program {
        self.spawn(&mut self.command(line))
    }

    /// The same, through a proxy.
    pub(crate) fn start_through(&self, line: &str, proxy: &StatementProxy) -> Program {
        let password = self.postgres.superuser_password();
        let url = self
            .postgres
            .url_tcp_for("postgres", Some(password), &self.name);
        let port = self.postgres.port();
        let url = url.replace(&format!(":{port}/"), &format!(":{}/", proxy.port()));
        let separator = if url.contains('?') { '&' } else { '?' };
        let url = format!("source.url={url}{separator}sslmode=disable");
        self.spawn(self.command(line).arg("--set").arg(url))
    }

    /// Runs a command to its end. Returns its exit code.
    pub(crate) fn run(&mut self, line: &str) -> Option<i32> {
        let mut program = self.start(line);
        let code = program.ended().code();
        self.note(line, &program);
        assert_ne!(code, Some(101), "{line} panicked: {}", self.logs);
        code
    }

    /// Keeps what a program has said.
    pub(crate) fn note(&mut self, line: &str, program: &Program) {
        let code = program.status().and_then(|status| status.code());
        let log = with_failures(program.log());
        let _ = writeln!(self.logs, "--- {line} ({code:?})\n{log}");
    }

    /// Numbers of the events that have arrived.
    fn delivered(&self) -> BTreeSet<u32> {
        let path = format!("/{}", self.name);
        let stored = self.receiver.stored();
        let own = stored.iter().filter(|received| received.path == path);
        own.filter_map(|received| {
            let value: serde_json::Value = serde_json::from_slice(&received.body).ok()?;
            u32::try_from(value["number"].as_u64()?).ok()
        })
        .collect()
    }

    /// Whether all events have arrived, and their rows are settled by the running relay.
    pub(crate) fn is_settled(&self) -> bool {
        let condition = match self.evidence {
            Evidence::Account => "true",
            Evidence::Marks => "sent_at IS NULL",
        };
        let left = format!("SELECT count(*) FROM outbox WHERE {condition}");
        self.delivered().len() as u32 == self.inserted && self.db.value::<i64>(&left) == 0
    }

    /// Starts the relay until it streams, as its errors advise, and sends one more event.
    pub(crate) fn streams(&mut self, mut accept: bool) -> Program {
        for _ in 0..STARTS {
            let line = if accept { "run --accept-gap" } else { "run" };
            let mut relay = self.start(line);
            let mut code = None;
            eventually(PATIENCE, || {
                code = relay.status().and_then(|status| status.code());
                code.is_some() || relay.log().contains("\"streaming\"")
            });
            if code.is_none() {
                self.insert(1);
                let number = self.inserted;
                eventually(PATIENCE, || {
                    relay.status().is_some() || self.delivered().contains(&number)
                });
                if relay.status().is_none() {
                    return relay;
                }
                code = relay.ended().code();
            }
            self.note(line, &relay);
            let log = with_failures(relay.log());
            let is_gap = GAPS.iter().any(|gap| log.contains(gap));
            match code {
                // The slot is older than the publication: Postgres cannot decode what is between.
                Some(78) if log.contains("[publication-gone]") => {
                    self.gave_up = true;
                    self.run("slots drop SLOT --yes");
                    self.run("init");
                }
                Some(78) if is_gap && !accept => {
                    (accept, self.gave_up) = (true, true);
                }
                Some(code) if AGAIN.contains(&code) => {}
                other => panic!("a wall: {line} ended with {other:?}\n{}", self.logs),
            }
        }
        panic!("a wall: {STARTS} starts, and none streams\n{}", self.logs);
    }

    /// Checks that no row is gone or marked whose event has not arrived.
    pub(crate) fn check(&self, all_arrive: bool) {
        let delivered = self.delivered();
        let rows = self.db.query(
            "SELECT (payload->>'number')::int4, sent_at IS NOT NULL FROM outbox",
            &[],
        );
        let rows: Vec<(i32, bool)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        for number in 1..=self.inserted {
            let row = rows.iter().find(|(row, _)| row.cast_unsigned() == number);
            let arrived = delivered.contains(&number);
            let wrong = match row {
                _ if arrived => None,
                None => Some("deleted"),
                Some((_, true)) => Some("marked"),
                Some(_) if all_arrive => Some("left behind"),
                Some(_) => None,
            };
            if let Some(wrong) = wrong {
                panic!(
                    "event {number} did not arrive and is {wrong}\n{}",
                    self.logs
                );
            }
        }
    }

    /// The number of rows that were inserted.
    pub(crate) fn inserted(&self) -> u32 {
        self.inserted
    }

    /// Removes slots and the database.
    pub(crate) fn clean_up(self) {
        let Self {
            name, postgres, db, ..
        } = self;
        drop(db);
        let admin = Db::connect(&postgres.url());
        eventually(PATIENCE, || {
            admin
                .try_batch(&format!(
                    "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots \
                     WHERE database = '{name}' AND active; \
                     SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots \
                     WHERE database = '{name}'"
                ))
                .is_ok()
        });
        admin.batch(&format!("DROP DATABASE {name} WITH (FORCE)"));
        let _ = fs::remove_dir_all(self.dir);
    }
}
