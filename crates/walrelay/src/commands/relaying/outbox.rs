//! The monitor of the outbox tables' sizes and ages, by the configuration.

use walrelay_observe::OutboxMonitor;
use walrelay_postgres_source::{OutboxWatch, Selection, age_columns};
use walrelay_walsender::ConnInfo;

use crate::commands::assembly::selection;
use crate::config::PipelineConfig;

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
