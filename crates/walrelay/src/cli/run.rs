//! Arguments of `walrelay run`.

use clap::Args;
use walrelay_postgres_source::table_name::parse_or_all as table_or_all;
use walrelay_relay::TableName;

use super::common::ConfigArgs;
use super::until::Until;

/// Arguments of `run`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct RunArgs {
    /// The configuration file and its overrides.
    #[command(flatten)]
    pub config: ConfigArgs,

    /// Go on over a gap in the log that the first connection finds, and log its range: a slot that
    /// is missing or lost is made anew, one that was moved, and another server or timeline than in
    /// the state file, are taken as they are. The events in the gap are NOT relayed.
    ///
    /// For one start by hand, never for a unit file. Without a gap it changes nothing; a gap that
    /// is found later stops the relay as usual.
    #[arg(long)]
    pub accept_gap: bool,

    /// Accept the noted losses of the destination: events that Redis or NATS had acknowledged and has
    /// lost. They are no problem of `status`, `check` and alerts any more. Send them again first, by the
    /// command that the problem names.
    ///
    /// For one start by hand. A loss that this start finds is noted as usual.
    #[arg(long)]
    pub accept_loss: bool,

    /// Deliver everything that was committed before this end, confirm it, and end with exit code 0: at the
    /// start of the run (caught-up), a position such as 0/16B3748, or a time such as 2026-01-02T03:04:05Z.
    /// For example for cron, or before maintenance of the server.
    #[arg(long, value_name = "caught-up|LSN|TIME")]
    pub until: Option<Until>,

    /// Pass over the rows of this table, also if they may be events: they are confirmed and not
    /// sent. Adds to `[source] pass_over`; `schema.*` names all tables that the publication
    /// carries of a schema.
    ///
    /// An outbox is never passed over: rows of a table that `[source] tables` names, now or by its
    /// former name, are sent.
    #[arg(long, value_name = "TABLE", value_parser = table_or_all)]
    pub pass_over: Vec<TableName>,
}
