//! `walrelay init --preset`: the table of a preset, as the configuration uses it.

use walrelay_failure::{Exit, Failure};
use walrelay_postgres_source::{OutboxTable, Wanted, assigned_columns};

use crate::config::{PipelineConfig, SnapshotMode};

/// Returns the table of a preset with the columns and indexes for this configuration. `by_options`: the
/// table for the options of Debezium's router, if the configuration has this router.
pub(super) fn preset_table(
    preset: &str,
    config: &PipelineConfig,
    wanted: &Wanted,
    by_options: Option<OutboxTable>,
) -> Result<OutboxTable, Failure> {
    let mut table =
        OutboxTable::from_preset(preset).unwrap_or_else(|| by_options.unwrap_or_default());
    let source = &config.source;
    let filter = source.snapshot_where.as_deref();
    let unsent = source.snapshot == SnapshotMode::Unsent && filter.is_none();
    let set = marks(config);
    table.add_state_columns(&set, unsent);
    let age = config
        .prune
        .as_ref()
        .and_then(|prune| prune.column.as_deref());
    table.add_indexes(age, source.mark_sent.is_some(), filter);
    let refused = |what: String, remedy: String| {
        Err(Failure::new("init-preset", Exit::Usage, what).remedy(remedy))
    };
    if wanted.tables.is_empty() {
        let what = "[source] tables names no table that --preset could make".to_owned();
        return refused(what, "name it there".to_owned());
    }
    let assigned = assigned_columns(&set);
    let named = wanted.columns.iter().chain(&assigned).map(String::as_str);
    let missing = table.missing(named.chain(age)).join(", ");
    if missing.is_empty() {
        return Ok(table);
    }
    let columns: Vec<&str> = table.columns().collect();
    refused(
        format!(
            "the table of preset {preset:?} lacks columns that the configuration names: {missing}"
        ),
        format!(
            "set [router] preset = {preset:?}, or name others of its columns: {}",
            columns.join(", ")
        ),
    )
}

/// Returns all assignments of marks.
pub(super) fn marks(config: &PipelineConfig) -> String {
    let sets = config
        .source
        .mark_sent
        .iter()
        .chain(&config.source.mark_dead);
    // On lines of their own, because each may end in a comment.
    sets.cloned().collect::<Vec<_>>().join("\n, ")
}
