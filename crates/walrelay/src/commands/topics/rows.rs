//! Routes rows of the outbox as the relay does, and sends nothing: what must be in the topics.

use std::sync::Arc;
use std::time::Duration;

use walrelay_failure::{Exit, Failure};
use walrelay_postgres_source::{
    ConfirmedError, ResendSource, SnapshotProgress, age_columns, recent_rows,
};
use walrelay_relay::{Outcome, Progress, TableName};
use walrelay_sink::{Record, any_factory};
use walrelay_sink_kind::topics::ReadRecord;

use crate::commands::assembly::pipelines::{
    CommandPipeline, OnProgress, router_and_settings, run_until, selected_rows,
    without_dead_letters,
};
use crate::commands::assembly::server::Server;
use crate::commands::assembly::{block_on, marking};
use crate::commands::print_notice;
use crate::config::PipelineConfig;
use crate::sinks::{Count, Counting, NullSinkFactory};

/// The rows of the outbox tables that are compared with topics.
#[derive(Debug)]
pub(crate) enum Rows {
    /// Rows that are not older than this.
    Since(Duration),
    /// Rows that fulfil this SQL condition.
    Where(String),
}

/// Routes the rows of a snapshot, once the slot has confirmed all of them. `count` gets the records.
///
/// # Errors
/// If the slot, which must exist, does not confirm or carry the rows, or a row cannot be routed.
pub(crate) fn route_rows<C: Count>(
    server: &Server,
    rows: Rows,
    count: &Arc<C>,
) -> Result<(), Failure> {
    let config = &server.config;
    let progress = Arc::new(SnapshotProgress::default());
    let source = block_on(Box::pin(async {
        let mut session = server.connect().await?;
        let filter = match rows {
            Rows::Where(condition) => condition,
            Rows::Since(since) => recent_rows(&mut session, &config.source.tables, since)
                .await?
                .ok_or_else(|| no_time(&config.source.tables))?,
        };
        let mut source = selected_rows(server, filter, &progress);
        // Counting also exports the snapshot.
        let rows = source.count(None).await?;
        let sink = server.sink_title();
        print_notice(&format!(
            "comparing {rows} rows of the outbox with the records in {sink}"
        ));
        let confirmed = marking(config).wait_confirmed(&mut session).await;
        session.close().await;
        confirmed.map_err(not_confirmed)?;
        Ok::<_, Failure>(source)
    }))??;
    route_selected(config, source, &progress, count)
}

/// Routes the rows of a snapshot as the relay does, and sends nothing. `count` gets the records.
///
/// # Errors
/// If a row cannot be routed.
pub(crate) fn route_selected<C: Count>(
    config: &PipelineConfig,
    source: ResendSource,
    progress: &SnapshotProgress,
    count: &Arc<C>,
) -> Result<(), Failure> {
    let (router, settings) = router_and_settings(config, false, without_dead_letters)?;
    let factory = any_factory(Counting::new(NullSinkFactory, Arc::clone(count)));
    let mut observer = OnProgress(|_: &Progress| {});
    let mut pipeline = CommandPipeline::new(source, router, factory, &mut observer, settings);
    match run_until(&mut pipeline, progress.acknowledged())?? {
        Outcome::Drained { .. } | Outcome::Unused if progress.is_acknowledged() => Ok(()),
        _ => {
            let what = "the comparison was interrupted";
            Err(Failure::new("rows-interrupted", Exit::Temporary, what)
                .remedy("run the comparison again: it changes nothing"))
        }
    }
}

/// Copies a record that would be sent, as if it had been read from its topic.
pub(crate) fn copy_of(record: &Record<'_>) -> ReadRecord {
    let headers = record.headers.iter();
    ReadRecord {
        topic: record.topic.to_owned(),
        key: record.key.map(<[u8]>::to_vec),
        value: record.value.map(<[u8]>::to_vec),
        headers: headers
            .map(|header| (header.name.to_owned(), header.value.map(<[u8]>::to_vec)))
            .collect(),
        ..ReadRecord::default()
    }
}

fn no_time(tables: &[TableName]) -> Failure {
    let columns = age_columns(None).join(" or ");
    let names: Vec<String> = tables.iter().map(ToString::to_string).collect();
    let what = format!(
        "--since needs a column {columns}, the same in each table, and {} lacks it",
        names.join(", ")
    );
    Failure::new("rows-time", Exit::Usage, what).remedy(
        "select rows by another column with --where, such as --where \"sent_at >= now() - interval '1 hour'\", or all \
         of them with --where true",
    )
}

fn not_confirmed(error: ConfirmedError) -> Failure {
    match error {
        ConfirmedError::Sql(error) => error.into(),
        error @ (ConfirmedError::NotConfirmed { .. }
        | ConfirmedError::InVain(_)
        | ConfirmedError::DeadLetters(_)) => {
            Failure::new("rows-not-confirmed", Exit::Temporary, error.to_string())
                .remedy("see that walrelay run runs and keeps up: walrelay status")
        }
    }
}
