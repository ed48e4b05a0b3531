//! The monitor of the outbox tables' sizes and ages, and the audit of their rows, by the configuration.

use walrelay_failure::{Exit, Failure};
use walrelay_postgres_source::{AuditWatch, DeadLetters, OutboxWatch, Selection, age_columns};
use walrelay_walsender::ConnInfo;

use crate::commands::assembly::{id_column, selection};
use crate::config::PipelineConfig;
use crate::workers::OutboxMonitor;

/// Makes the monitor of the configured tables.
pub(super) fn outbox_monitor(config: &PipelineConfig, info: ConnInfo) -> OutboxMonitor {
    let prune = config.prune.as_ref();
    let marks = config.source.mark_sent.as_ref().map(|_| Selection {
        unsent: true,
        ..selection(config)
    });
    let watch = OutboxWatch {
        tables: config.source.tables.clone(),
        ages: age_columns(prune.and_then(|prune| prune.column.as_deref())),
        marks,
    };
    OutboxMonitor::new(info, watch, prune.and_then(|prune| prune.keep))
}

/// Describes the tables that are audited.
pub(super) fn audit_watch(
    config: &PipelineConfig,
    dead_letters: DeadLetters,
) -> Result<AuditWatch, Failure> {
    let id = id_column(config).cloned().ok_or_else(|| {
        let what = "[audit] every: the route names no column for the id of events";
        Failure::new("audit-id", Exit::Config, what).remedy("set router.route.id")
    })?;
    let prune = config.prune.as_ref();
    Ok(AuditWatch {
        slot: config.source.slot.clone(),
        publication: config.source.publication.clone(),
        tables: config.source.tables.clone(),
        id,
        ages: age_columns(prune.and_then(|prune| prune.column.as_deref())),
        marks: Selection {
            unsent: true,
            ..selection(config)
        },
        dead_letters,
    })
}
