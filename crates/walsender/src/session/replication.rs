//! The commands of the replication grammar.
//!
//! Source: PostgreSQL documentation, "Streaming Replication Protocol"; `repl_gram.y`.

use std::str::FromStr;

use postgres_protocol::message::frontend;
use walrelay_lsn::Lsn;

use super::query::{Answer, Session};
use super::rows::Rows;
use super::stream::ReplicationStream;
use crate::error::Error;
use crate::framing::wire::Allowance;
use crate::quote::{quote_ident, replication_literal};
use crate::version::ServerVersion;

/// The answer to `IDENTIFY_SYSTEM`: the server's identity, and the end of its WAL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SystemIdentity {
    /// The system identifier. Created by initdb; the same on a primary and its standbys. Positions
    /// of different systems cannot be compared.
    pub system_id: String,
    /// The timeline, which each promotion increases.
    pub timeline: u32,
    /// The flush position of the WAL.
    pub flushed: Lsn,
}

/// An ancestor of a timeline: an earlier timeline that it continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Ancestor {
    pub timeline: u32,
    /// The position at which the next timeline left this one: its WAL from here on is not part of
    /// the next timeline.
    pub ended: Lsn,
}

/// Options of a new slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SlotOptions {
    /// True if standbys synchronize the slot (17 and newer).
    pub failover: bool,
    /// True if the slot is dropped at the end of the session that created it.
    pub temporary: bool,
    /// True if a snapshot of the rows before the slot's first position is to be exported, see
    /// [`CreatedSlot::snapshot`].
    pub export_snapshot: bool,
}

/// The answer to `CREATE_REPLICATION_SLOT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreatedSlot {
    /// Transactions that commit after this position are streamed; those before are not.
    pub consistent_point: Lsn,
    /// The exported snapshot, for `SET TRANSACTION SNAPSHOT` of other sessions. It is valid until
    /// the session that created the slot ends or runs another command. `None` if none was
    /// requested.
    pub snapshot: Option<String>,
}

/// The arguments of `START_REPLICATION`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct StartReplication {
    pub slot: String,
    /// The start position. [`Lsn::ZERO`]: the slot's position. A position before that of the slot
    /// is **silently moved forward** to it. A position after it is used, and the changes between
    /// are skipped for good.
    pub start: Lsn,
    /// The publication whose tables are streamed.
    pub publication: String,
    /// True if messages of `pg_logical_emit_message` are to be streamed, too (14 and newer).
    pub messages: bool,
}

impl StartReplication {
    /// Writes the command. With version 1 of pgoutput's protocol a transaction is sent whole after
    /// its commit.
    fn command(&self) -> String {
        let messages = if self.messages {
            ", messages 'true'"
        } else {
            ""
        };
        format!(
            "START_REPLICATION SLOT {} LOGICAL {} \
             (proto_version '1', publication_names {}{messages})",
            quote_ident(&self.slot),
            self.start,
            replication_literal(&quote_ident(&self.publication)),
        )
    }
}

impl Session {
    /// Runs `IDENTIFY_SYSTEM`. For sessions of
    /// [`SessionKind::Replication`](crate::SessionKind::Replication).
    pub async fn identify_system(&mut self) -> Result<SystemIdentity, Error> {
        let rows = self.query("IDENTIFY_SYSTEM").await?;
        Ok(SystemIdentity {
            system_id: text(&rows, "systemid")?.to_owned(),
            timeline: parsed(&rows, "timeline")?,
            flushed: parsed(&rows, "xlogpos")?,
        })
    }

    /// Asks the server for the ancestors of a timeline, oldest first; empty for timeline 1. For
    /// sessions of [`SessionKind::Replication`](crate::SessionKind::Replication).
    ///
    /// # Errors
    /// [`Error::Server`] if the server has no history of the timeline.
    pub async fn timeline_history(&mut self, timeline: u32) -> Result<Vec<Ancestor>, Error> {
        // Timeline 1 has no history file.
        if timeline <= 1 {
            return Ok(Vec::new());
        }
        let rows = self.query(&format!("TIMELINE_HISTORY {timeline}")).await?;
        parse_history(text(&rows, "content")?)
    }

    /// Creates a logical slot for pgoutput. The server waits until all transactions that are open
    /// now have ended. For sessions of
    /// [`SessionKind::Replication`](crate::SessionKind::Replication).
    ///
    /// # Errors
    /// [`Error::FailoverTooOld`] for a failover slot before version 17. [`Error::Server`] with 42710
    /// if the slot exists, 53400 if there are too many slots, 55000 if the server's `wal_level` is
    /// not `logical`.
    pub async fn create_logical_slot(
        &mut self,
        name: &str,
        options: SlotOptions,
    ) -> Result<CreatedSlot, Error> {
        let command = create_slot_command(name, options, self.server_version())?;
        let rows = self.query(&command).await?;
        Ok(CreatedSlot {
            consistent_point: parsed(&rows, "consistent_point")?,
            snapshot: text(&rows, "snapshot_name").ok().map(str::to_owned),
        })
    }

    /// Makes a slot a failover slot, which standbys synchronize (17 and newer). For sessions of
    /// [`SessionKind::Replication`](crate::SessionKind::Replication).
    ///
    /// # Errors
    /// [`Error::Server`] with 55006 while a process reads the slot.
    pub async fn set_failover(&mut self, slot: &str) -> Result<(), Error> {
        let slot = quote_ident(slot);
        let command = format!("ALTER_REPLICATION_SLOT {slot} (FAILOVER true)");
        self.query(&command).await.map(drop)
    }

    /// Starts streaming. The session becomes the stream; if the server refuses, the session is
    /// closed.
    ///
    /// # Errors
    /// [`Error::Server`]; its [class](Error::class) distinguishes a slot in use from one that is
    /// lost.
    pub async fn start_replication(
        mut self,
        command: &StartReplication,
    ) -> Result<ReplicationStream, Error> {
        match self.try_start(&command.command()).await {
            Ok(()) => Ok(ReplicationStream::new(self.wire)),
            Err(error) => {
                self.close().await;
                Err(error)
            }
        }
    }

    async fn try_start(&mut self, command: &str) -> Result<(), Error> {
        self.settle().await?;
        self.wire.queue("a name in START_REPLICATION", |out| {
            frontend::query(command, out)
        })?;
        self.pending_answers += 1;
        match self.answer(None, &mut Allowance::answer()).await? {
            Answer::CopyBoth => Ok(()),
            Answer::Done => Err(Error::protocol("START_REPLICATION ended without a stream")),
        }
    }
}

/// Parses a history file: lines with timeline, position and reason; comments and empty lines are
/// ignored (`readTimeLineHistory` of `timeline.c`).
fn parse_history(content: &str) -> Result<Vec<Ancestor>, Error> {
    let wrong = || Error::protocol("a timeline's history cannot be read");
    let lines = content.lines().map(str::trim_start);
    lines
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| {
            let mut fields = line.split_whitespace();
            let timeline = fields.next().and_then(|field| field.parse().ok());
            let ended = fields.next().and_then(|field| field.parse().ok());
            Ok(Ancestor {
                timeline: timeline.ok_or_else(wrong)?,
                ended: ended.ok_or_else(wrong)?,
            })
        })
        .collect()
}

fn create_slot_command(
    name: &str,
    options: SlotOptions,
    server: ServerVersion,
) -> Result<String, Error> {
    if options.failover && server.major < 17 {
        return Err(Error::FailoverTooOld { server });
    }
    let name = quote_ident(name);
    let temporary = if options.temporary { " TEMPORARY" } else { "" };
    let snapshot = match (server.major, options.export_snapshot) {
        (..15, false) => "NOEXPORT_SNAPSHOT",
        (..15, true) => "EXPORT_SNAPSHOT",
        (_, false) => "SNAPSHOT 'nothing'",
        (_, true) => "SNAPSHOT 'export'",
    };
    let how = match (server.major, options.failover) {
        (..15, _) => snapshot.to_owned(),
        (_, false) => format!("({snapshot})"),
        (_, true) => format!("({snapshot}, FAILOVER)"),
    };
    Ok(format!(
        "CREATE_REPLICATION_SLOT {name}{temporary} LOGICAL pgoutput {how}"
    ))
}

/// Reads a value of the single row that a replication command returns.
fn text<'a>(rows: &'a Rows, column: &'static str) -> Result<&'a str, Error> {
    let value = rows.first().and_then(|row| row.get(column));
    value.ok_or_else(|| Error::protocol(format!("a replication command returned no {column}")))
}

fn parsed<T: FromStr>(rows: &Rows, column: &'static str) -> Result<T, Error> {
    let wrong = |_| {
        Error::protocol(format!(
            "a replication command returned a malformed {column}"
        ))
    };
    text(rows, column)?.parse().map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_replication_quotes_slot_and_publication() {
        let command = StartReplication {
            slot: "s".to_owned(),
            start: Lsn::new(0x16_B374_D848),
            publication: r#"it's "odd", p\2"#.to_owned(),
            messages: true,
        };
        assert_eq!(
            command.command(),
            r#"START_REPLICATION SLOT "s" LOGICAL 16/B374D848 (proto_version '1', publication_names '"it''s ""odd"", p\2"', messages 'true')"#
        );
        let plain = StartReplication {
            start: Lsn::ZERO,
            publication: "p".to_owned(),
            messages: false,
            ..command
        };
        assert_eq!(
            plain.command(),
            r#"START_REPLICATION SLOT "s" LOGICAL 0/0 (proto_version '1', publication_names '"p"')"#
        );
    }

    #[test]
    fn a_history_is_read_as_postgres_reads_it() {
        let history = "1\t0/3000148\tno recovery target specified\n\n# by hand\n2\t16/B374D848\t\n";
        let read = parse_history(history).unwrap();
        let ended: Vec<_> = read
            .iter()
            .map(|ancestor| (ancestor.timeline, ancestor.ended.to_string()))
            .collect();
        assert_eq!(
            ended,
            [(1, "0/3000148".to_owned()), (2, "16/B374D848".to_owned())]
        );
        assert_eq!(parse_history("").unwrap(), []);
        for torn in ["1", "1\t", "1\t0/", "x\t0/1", "1\t0/1\t\n2"] {
            assert!(parse_history(torn).is_err(), "{torn:?}");
        }
    }

    #[test]
    fn create_slot_uses_the_grammar_of_the_version() {
        let plain = SlotOptions::default();
        let temporary = SlotOptions {
            temporary: true,
            ..plain
        };
        let exported = SlotOptions {
            export_snapshot: true,
            ..temporary
        };
        let failover = SlotOptions {
            failover: true,
            ..plain
        };
        let create =
            |major, options| create_slot_command("s", options, ServerVersion { major, minor: 1 });
        for (major, options, kind, how) in [
            (14, plain, "", "NOEXPORT_SNAPSHOT"),
            (14, temporary, " TEMPORARY", "NOEXPORT_SNAPSHOT"),
            (15, plain, "", "(SNAPSHOT 'nothing')"),
            (17, failover, "", "(SNAPSHOT 'nothing', FAILOVER)"),
            (14, exported, " TEMPORARY", "EXPORT_SNAPSHOT"),
            (16, exported, " TEMPORARY", "(SNAPSHOT 'export')"),
        ] {
            let expected = format!(r#"CREATE_REPLICATION_SLOT "s"{kind} LOGICAL pgoutput {how}"#);
            assert_eq!(create(major, options).unwrap(), expected);
        }
        let error = create(16, failover).unwrap_err();
        assert!(matches!(error, Error::FailoverTooOld { .. }), "{error}");
    }
}
