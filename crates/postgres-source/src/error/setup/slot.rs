//! [`SlotSetupError`]: the slot is not as the relay needs it.

use walrelay_lsn::Lsn;
use walrelay_sink::Disposition;
use walrelay_walsender::quote_literal;

use super::gap::{GO_ON, Gap, PUBLISH};
use crate::catalog::CONFLICTING;

/// The slot is missing, cannot be created, or is not one that the relay may read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SlotSetupError {
    /// The slot is on the primary.
    #[error("the server is a standby, and replication slot {0} is not on it")]
    Standby(String),
    /// The slot is missing and may not be created silently.
    #[error("replication slot {slot} does not exist{}", if_dropped(gap.as_ref()))]
    Missing {
        /// Name of the slot.
        slot: String,
        /// The range that is not relayed if the slot was dropped. `None`: no relay was set up
        /// before.
        gap: Option<Gap>,
    },
    /// `max_replication_slots` has no room for the slot.
    #[error(
        "replication slot {slot} cannot be created: {needed} free one(s) of max_replication_slots are needed{}, and \
         {free} are free",
        if *needed > 1 { ", one of them for the time of the snapshot" } else { "" }
    )]
    Limit {
        /// Name of the slot.
        slot: String,
        /// Slots that are free.
        free: i64,
        /// Slots that are needed.
        needed: i64,
    },
    /// The slot is beyond the position that its relay has noted at most.
    #[error(
        "replication slot {slot} is at {to}, and a relay noted {from} at most: something else \
         moved the slot, or dropped and recreated it: changes committed from {from} to {to} may \
         not be relayed"
    )]
    PassedOver {
        /// Name of the slot.
        slot: String,
        /// The noted position.
        from: Lsn,
        /// The slot's position.
        to: Lsn,
    },
    /// A polling relay may send the rows: before `cutover switch`, and after `cutover rollback`.
    #[error(
        "replication slot {0} does not exist, and [source] mark_sent is set: a polling relay may \
         send the same events"
    )]
    NotSwitched(String),
    /// The slot that this process was reading is gone, with the WAL that it retained.
    #[error(
        "replication slot {slot}, which was being relayed, does not exist any more: changes \
         committed {gap} are not relayed"
    )]
    Gone {
        /// Name of the slot.
        slot: String,
        /// The range that is not relayed.
        gap: Gap,
    },
    /// The slot is not one of `pgoutput`.
    #[error(
        "replication slot {slot} is {kind} with plugin {plugin}; it must be logical with pgoutput"
    )]
    Plugin {
        /// Name of the slot.
        slot: String,
        /// `physical` or `logical`.
        kind: String,
        /// The plugin.
        plugin: String,
    },
    /// The slot sends a prepared transaction at PREPARE TRANSACTION, before its commit.
    #[error("replication slot {0} was created with two_phase, which a relay cannot read")]
    TwoPhase(String),
    /// The slot decodes another database.
    #[error("replication slot {slot} decodes database {found}, not {connected}")]
    Database {
        /// Name of the slot.
        slot: String,
        /// The database of the slot.
        found: String,
        /// The database of the connection.
        connected: String,
    },
    /// The server has invalidated the slot, usually because it removed WAL that the slot needs.
    #[error(
        "replication slot {slot} is lost ({reason}): changes committed {gap} cannot be relayed \
         from it"
    )]
    Lost {
        /// Name of the slot.
        slot: String,
        /// Postgres' own text.
        reason: String,
        /// The range that is not relayed.
        gap: Gap,
        /// Every row of the gap has this `xmin` or a later one.
        catalog_xmin: Option<u32>,
    },
}

impl SlotSetupError {
    pub(super) fn disposition(&self) -> Disposition {
        match self {
            Self::Standby(_) | Self::Limit { .. } => Disposition::Retryable,
            Self::Gone { .. } | Self::Lost { .. } => Disposition::Fatal,
            _ => Disposition::Configuration,
        }
    }

    pub(super) fn id(&self) -> &'static str {
        match self {
            Self::Standby(_) => "standby",
            Self::Missing { .. } => "slot-missing",
            Self::Limit { .. } => "server-limit",
            Self::PassedOver { .. } => "slot-passed-over",
            Self::NotSwitched(_) => "cutover-not-switched",
            Self::Gone { .. } => "slot-gone",
            Self::Plugin { .. } => "slot-plugin",
            Self::TwoPhase(_) => "slot-two-phase",
            Self::Database { .. } => "slot-database",
            Self::Lost { .. } => "slot-lost",
        }
    }

    pub(super) fn remedy(&self) -> String {
        match self {
            Self::Standby(_) => {
                "name all hosts in [source] url and add target_session_attrs=read-write, so that \
                 the primary is found"
                    .to_owned()
            }
            Self::Missing { .. } => format!(
                "on the first day run walrelay init. If the slot was there before, find out who \
                 dropped it, {GO_ON}, and {PUBLISH}: docs/operate/troubleshooting.md, \"The slot is gone or was \
                 moved\""
            ),
            Self::Limit { .. } => {
                "drop an unused slot (walrelay slots list), or raise max_replication_slots and restart the \
                 server: the relay goes on by itself"
                    .to_owned()
            }
            Self::PassedOver { .. } => format!(
                "find out what moved the slot: pg_replication_slot_advance, another reader such as Debezium, a tool that \
                 recreates slots, or a walrelay that could not note its positions. Then {GO_ON} from where the slot is, \
                 and if nothing else relayed these events, send their rows with walrelay resend: docs/operate/troubleshooting.md, \
                 \"The slot is gone or was moved\""
            ),
            Self::NotSwitched(_) => format!(
                "make the slot by walrelay cutover switch, when the polling relay is to stop. If \
                 there is none, {GO_ON}: it sends the unmarked rows, and creates the slot"
            ),
            Self::Gone { .. } => format!(
                "find out who dropped it, {GO_ON} with a new one, and {PUBLISH}: \
                 docs/operate/troubleshooting.md, \"The slot is gone or was moved\""
            ),
            Self::Plugin { .. } => {
                "give the relay a slot of its own: another name in [source] slot".to_owned()
            }
            Self::TwoPhase(slot) => {
                // In one statement: without the copy the slot must not be dropped.
                let exchange = |from: &str, to: &str| {
                    let (from, to) = (quote_literal(from), quote_literal(to));
                    format!(
                        "SELECT pg_drop_replication_slot({from}) \
                         FROM pg_copy_logical_replication_slot({from}, {to});"
                    )
                };
                let other = "walrelay_without_two_phase";
                format!(
                    "a copy of a slot has the same position with two_phase off (and failover off). While \
                     no relay runs: {} {}",
                    exchange(slot, other),
                    exchange(other, slot)
                )
            }
            Self::Database { found, .. } => format!(
                "connect to database {found} in [source] url, or give the relay a slot of its own"
            ),
            Self::Lost {
                catalog_xmin,
                reason,
                ..
            } => {
                let rows = catalog_xmin.map_or_else(String::new, |xmin| {
                    format!(" (none of them has an age(xmin) above age('{xmin}'::xid))")
                });
                format!(
                    "{GO_ON} with a new one in its place, and {PUBLISH}{rows}: docs/operate/troubleshooting.md, \
                     \"The slot is lost\". So that it does not happen again, {}",
                    prevention(reason)
                )
            }
        }
    }
}

fn if_dropped(gap: Option<&Gap>) -> String {
    gap.map_or_else(String::new, |gap| {
        format!(
            ", though a relay was set up here: if it was dropped, changes committed {gap} are not \
             relayed"
        )
    })
}

/// Returns what prevents that a slot is lost again for this reason: `invalidation_reason` of
/// `pg_replication_slots`, or our text for `conflicting`.
fn prevention(reason: &str) -> &'static str {
    match reason {
        "rows_removed" | CONFLICTING => {
            "set hot_standby_feedback = on on this standby, and let the standby stream from a slot of the \
             primary (primary_slot_name): otherwise the primary removes catalog rows that the slot needs. A \
             new slot on a standby waits until SELECT pg_log_standby_snapshot() runs on the primary"
        }
        "wal_level_insufficient" => {
            "keep wal_level = logical on the primary, or, from Postgres 19 on, a logical slot there"
        }
        "idle_timeout" => "raise idle_replication_slot_timeout, or keep a relay running",
        _ => "raise max_slot_wal_keep_size",
    }
}
