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
use crate::quote::{quote_ident, replication_literal};
use crate::version::ServerVersion;

/// Who the server is, and where its log ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SystemIdentity {
    /// Made by initdb; the same on a primary and its standbys. Positions of different systems have
    /// nothing to do with each other.
    pub system_id: String,
    /// Raised by every promotion.
    pub timeline: u32,
    /// How far the log is on disk.
    pub flushed: Lsn,
    /// The database of the session.
    pub dbname: Option<String>,
}

/// A timeline that another one continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Ancestor {
    pub timeline: u32,
    /// Where it was left: log of it from here on is not part of the one that continues it.
    pub ended: Lsn,
}

/// What kind of slot to create.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SlotOptions {
    /// Whether standbys are to keep a copy of it (17 and newer).
    pub failover: bool,
    /// Whether it goes with the session that created it.
    pub temporary: bool,
    /// Whether a snapshot of the rows before its first position is exported, see [`CreatedSlot::snapshot`].
    pub export_snapshot: bool,
}

/// A slot that was created just now.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct CreatedSlot {
    pub name: String,
    /// Transactions that commit after this are streamed; those before are not.
    pub consistent_point: Lsn,
    pub plugin: String,
    /// For `SET TRANSACTION SNAPSHOT` of other sessions, as long as the session that created the slot lives and
    /// is given no other command. `None` if none was asked for.
    pub snapshot: Option<String>,
}

/// What to stream, and from where.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct StartReplication {
    pub slot: String,
    /// From where on. [`Lsn::ZERO`]: from where the slot stands. A position behind the slot is
    /// **silently moved forward** to it; one ahead of it is obeyed, and what lies between is
    /// skipped for good.
    pub start: Lsn,
    /// The publications whose tables are wanted.
    pub publications: Vec<String>,
    /// Whether messages of `pg_logical_emit_message` are wanted, too (14 and newer).
    pub messages: bool,
    /// Version of pgoutput's messages. With 1 a transaction is sent after its commit, whole.
    pub proto_version: u32,
}

impl StartReplication {
    fn command(&self) -> String {
        let publications = self.publications.iter().map(|name| quote_ident(name));
        let publications = publications.collect::<Vec<_>>().join(",");
        let messages = if self.messages {
            ", messages 'true'"
        } else {
            ""
        };
        format!(
            "START_REPLICATION SLOT {} LOGICAL {} \
             (proto_version '{}', publication_names {}{messages})",
            quote_ident(&self.slot),
            self.start,
            self.proto_version,
            replication_literal(&publications),
        )
    }
}

impl Session {
    /// Asks who the server is. For sessions of
    /// [`SessionKind::Replication`](crate::SessionKind::Replication).
    pub async fn identify_system(&mut self) -> Result<SystemIdentity, Error> {
        let rows = self.query("IDENTIFY_SYSTEM").await?;
        Ok(SystemIdentity {
            system_id: text(&rows, "systemid")?.to_owned(),
            timeline: parsed(&rows, "timeline")?,
            flushed: parsed(&rows, "xlogpos")?,
            dbname: text(&rows, "dbname").ok().map(str::to_owned),
        })
    }

    /// The timelines that this one continues, oldest first. None for timeline 1. For sessions of
    /// [`SessionKind::Replication`](crate::SessionKind::Replication).
    ///
    /// # Errors
    /// [`Error::Server`] where the server has no history of that timeline.
    pub async fn timeline_history(&mut self, timeline: u32) -> Result<Vec<Ancestor>, Error> {
        // The first timeline has no file of its history.
        if timeline <= 1 {
            return Ok(Vec::new());
        }
        let rows = self.query(&format!("TIMELINE_HISTORY {timeline}")).await?;
        parse_history(text(&rows, "content")?)
    }

    /// Creates a logical slot for pgoutput. It waits until all transactions that are open now have ended. For
    /// sessions of
    /// [`SessionKind::Replication`](crate::SessionKind::Replication).
    ///
    /// # Errors
    /// [`Error::TooOld`] for a failover slot before 17. [`Error::Server`] with 42710 if it exists,
    /// 53400 if there are too many, 55000 if the server's `wal_level` is not `logical`.
    pub async fn create_logical_slot(
        &mut self,
        name: &str,
        options: SlotOptions,
    ) -> Result<CreatedSlot, Error> {
        let command = create_slot_command(name, options, self.server_version())?;
        let rows = self.query(&command).await?;
        Ok(CreatedSlot {
            name: text(&rows, "slot_name")?.to_owned(),
            consistent_point: parsed(&rows, "consistent_point")?,
            plugin: text(&rows, "output_plugin")?.to_owned(),
            snapshot: text(&rows, "snapshot_name").ok().map(str::to_owned),
        })
    }

    /// Has standbys keep a copy of a slot (17 and newer). For sessions of
    /// [`SessionKind::Replication`](crate::SessionKind::Replication).
    ///
    /// # Errors
    /// [`Error::Server`] with 55006 while a process reads the slot.
    pub async fn set_failover(&mut self, slot: &str) -> Result<(), Error> {
        let slot = quote_ident(slot);
        let command = format!("ALTER_REPLICATION_SLOT {slot} (FAILOVER true)");
        self.query(&command).await.map(drop)
    }

    /// Starts streaming. The session becomes the stream; if the server refuses, it is closed.
    ///
    /// # Errors
    /// [`Error::Server`]; its class tells a slot in use from one that is lost. See [`Error::class`].
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
        self.owed += 1;
        match self.answer(None).await? {
            Answer::CopyBoth => Ok(()),
            Answer::Done => Err(Error::protocol("START_REPLICATION ended without a stream")),
        }
    }
}

/// A history file: lines of timeline, position and reason, with comments and empty lines between
/// (`readTimeLineHistory` of `timeline.c`).
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
        return Err(Error::TooOld {
            feature: "a failover slot",
            needs: 17,
            server,
        });
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

/// A value of the only row that a replication command returns.
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
    fn start_names_slot_and_publications_whatever_they_contain() {
        let command = StartReplication {
            slot: "s".to_owned(),
            start: Lsn::new(0x16_B374_D848),
            publications: vec!["p".to_owned(), r#"it's "odd", p\2"#.to_owned()],
            messages: true,
            proto_version: 1,
        };
        assert_eq!(
            command.command(),
            r#"START_REPLICATION SLOT "s" LOGICAL 16/B374D848 (proto_version '1', publication_names '"p","it''s ""odd"", p\2"', messages 'true')"#
        );
        let plain = StartReplication {
            start: Lsn::ZERO,
            publications: vec!["p".to_owned()],
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
    fn create_speaks_the_grammar_of_the_version() {
        let create = |major, failover, temporary| {
            let options = SlotOptions {
                failover,
                temporary,
                export_snapshot: false,
            };
            create_slot_command("s", options, ServerVersion { major, minor: 1 })
        };
        for (major, failover, temporary, expected) in [
            (
                14,
                false,
                false,
                r#""s" LOGICAL pgoutput NOEXPORT_SNAPSHOT"#,
            ),
            (
                14,
                false,
                true,
                r#""s" TEMPORARY LOGICAL pgoutput NOEXPORT_SNAPSHOT"#,
            ),
            (
                15,
                false,
                false,
                r#""s" LOGICAL pgoutput (SNAPSHOT 'nothing')"#,
            ),
            (
                17,
                true,
                false,
                r#""s" LOGICAL pgoutput (SNAPSHOT 'nothing', FAILOVER)"#,
            ),
        ] {
            let command = create(major, failover, temporary).unwrap();
            assert_eq!(command, format!("CREATE_REPLICATION_SLOT {expected}"));
        }
        for (major, how) in [(14, "EXPORT_SNAPSHOT"), (16, "(SNAPSHOT 'export')")] {
            let options = SlotOptions {
                temporary: true,
                export_snapshot: true,
                ..SlotOptions::default()
            };
            let server = ServerVersion { major, minor: 1 };
            let command = create_slot_command("s", options, server).unwrap();
            let expected =
                format!(r#"CREATE_REPLICATION_SLOT "s" TEMPORARY LOGICAL pgoutput {how}"#);
            assert_eq!(command, expected);
        }
        let error = create(16, true, false).unwrap_err();
        assert!(matches!(error, Error::TooOld { needs: 17, .. }), "{error}");
    }
}
