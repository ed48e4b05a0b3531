//! Creates and removes the objects of a benchmark in the database and in the sink.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::timeout;
use walrelay_event_router::{Options, Router};
use walrelay_failure::{Exit, Failure};
use walrelay_postgres_source::{CopySource, Original, OutboxTable, script};
use walrelay_relay::{PoisonPolicy, Settings, TableName};
use walrelay_sink_kind::SinkKind;
use walrelay_walsender::{ConnInfo, Session, SessionKind, SlotOptions, quote_ident};

use crate::commands::assembly::{self, sql_session};
use crate::config::PipelineConfig;

/// Timeout of one request to a server of the sink.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);
/// Timeout of the removal from the database: a running statement may have to end first.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(30);
const DEADLOCK_DETECTED: &str = "40P01";
const WAL_SENDER_TIMEOUT: Duration = Duration::from_secs(30);

/// The objects of one benchmark, under names of their own.
pub(super) struct BenchObjects {
    pub(super) info: ConnInfo,
    /// Name of schema and publication, and prefix of the slots' names.
    name: String,
    /// Prefix of all topics' names, without the dot that follows.
    pub(super) topic_prefix: String,
    pub(super) sink: Arc<dyn SinkKind>,
    /// The session with the temporary slot whose copies are read: the server drops the slot with
    /// the session.
    slot_session: Option<Session>,
    /// Number of slots created so far.
    slots: u32,
    /// Number of sources of copies so far.
    copies: u32,
    /// Whether schema and publication may exist.
    in_database: bool,
    /// Topics that may exist.
    in_sink: Vec<String>,
}

impl BenchObjects {
    pub(super) fn new(info: ConnInfo, sink: Arc<dyn SinkKind>) -> Self {
        let id = fastrand::u32(..);
        Self {
            info,
            name: format!("walrelay_bench_{id:08x}"),
            topic_prefix: format!("walrelay-bench-{id:08x}"),
            sink,
            slot_session: None,
            slots: 0,
            copies: 0,
            in_database: false,
            in_sink: Vec::new(),
        }
    }

    pub(super) fn table(&self) -> TableName {
        TableName {
            schema: self.name.clone(),
            name: "outbox".to_owned(),
        }
    }

    /// Creates schema, table and publication.
    pub(super) async fn create_schema(&mut self) -> Result<(), Failure> {
        let sql = [
            format!("CREATE SCHEMA {}", quote_ident(&self.name)),
            OutboxTable::default().create(&self.table()),
            script::create_publication(&self.name, &[self.table()]),
        ];
        let mut session = sql_session(&self.info).await?;
        self.in_database = true;
        for statement in sql {
            session.query(&statement).await.map_err(|error| {
                let denied = error.sqlstate() == Some("42501");
                let failure = Failure::from(error);
                if denied {
                    failure.remedy(
                        "the benchmark makes a schema and a publication of its own, which needs \
                         CREATE on the database: GRANT CREATE ON DATABASE … TO …, or name another \
                         role with --set source.url=…",
                    )
                } else {
                    failure
                }
            })?;
        }
        session.close().await;
        Ok(())
    }

    /// Replaces the slot whose copies are read by a new one at the end of the WAL.
    pub(super) async fn recreate_slot(&mut self) -> Result<(), Failure> {
        // Drop the previous slot first: it keeps the WAL written since.
        self.slot_session = None;
        self.slots += 1;
        let mut session = Session::connect(&self.info, SessionKind::Replication, &[]).await?;
        let options = SlotOptions {
            temporary: true,
            ..SlotOptions::default()
        };
        let name = self.slot_name();
        session.create_logical_slot(&name, options).await?;
        self.slot_session = Some(session);
        Ok(())
    }

    /// Returns the name of the slot that was created last.
    fn slot_name(&self) -> String {
        format!("{}_{}", self.name, self.slots)
    }

    /// Makes a pipeline from copies of the slot that was created last to the topic of this suffix.
    /// It has the router of Debezium's preset, and the configured settings without `[poison]`: all
    /// rows of the benchmark's table can be delivered.
    pub(super) fn pipeline(&mut self, suffix: &str, config: &PipelineConfig) -> BenchPipeline {
        let topic = self.topic(suffix).parse();
        let topic = topic.unwrap_or_else(|_| unreachable!("a name without $ and \\ is a template"));
        BenchPipeline {
            source: self.copy_source(),
            router: Router::new(Options {
                topic,
                ..Options::default()
            }),
            settings: Settings {
                tables: [self.table()].into(),
                poison: PoisonPolicy::default(),
                ..assembly::settings(config, None, None, None)
            },
        }
    }

    /// Makes a source of copies of the slot that was created last. The prefix of their names is
    /// new: the slots of the source before may still exist, until the server notices that its
    /// session has ended.
    fn copy_source(&mut self) -> CopySource {
        self.copies += 1;
        let original = Original {
            info: self.info.clone(),
            slot: self.slot_name(),
            publication: self.name.clone(),
            tables: vec![self.table()],
            messages: false,
            wal_sender_timeout: WAL_SENDER_TIMEOUT,
        };
        CopySource::new(original, &format!("{}_copy_{}", self.name, self.copies))
    }

    fn topic(&self, suffix: &str) -> String {
        format!("{}.{suffix}", self.topic_prefix)
    }

    /// Creates a topic, and returns its name.
    pub(super) async fn create_topic(&mut self, suffix: &str) -> Result<String, Failure> {
        let name = self.topic(suffix);
        self.in_sink.push(name.clone());
        let (sink, topic) = (Arc::clone(&self.sink), name.clone());
        let create = move || match sink.topics() {
            Some(topics) => Ok(topics.create(&topic, REQUEST_TIMEOUT)?),
            None => Err(super::needs_topics(&*sink)),
        };
        blocking(create).await??;
        Ok(name)
    }

    /// Removes all objects that may exist.
    pub(super) async fn remove(&mut self) {
        self.slot_session = None;
        if self.in_database
            && let Ok(Ok(())) = timeout(REMOVAL_TIMEOUT, self.drop_schema()).await
        {
            self.in_database = false;
        }
        if !self.in_sink.is_empty() {
            // The list stays as it is until the end: a second signal drops this future, and a thread
            // that panics returns nothing.
            let (sink, topics) = (Arc::clone(&self.sink), self.in_sink.clone());
            let delete = move || match sink.topics() {
                Some(of) => of.delete(topics, REQUEST_TIMEOUT),
                None => topics,
            };
            if let Ok(left) = blocking(delete).await {
                self.in_sink = left;
            }
        }
    }

    /// Drops publication and schema.
    async fn drop_schema(&self) -> Result<(), Failure> {
        let name = quote_ident(&self.name);
        let mut session = sql_session(&self.info).await?;
        session
            .query(&format!("DROP PUBLICATION IF EXISTS {name}"))
            .await?;
        // This may wait for the last statement of an interrupted load, which locks the table and its
        // sequence in another order.
        let drop = format!("DROP SCHEMA IF EXISTS {name} CASCADE");
        while let Err(error) = session.query(&drop).await {
            if error.sqlstate() != Some(DEADLOCK_DETECTED) {
                return Err(error.into());
            }
        }
        session.close().await;
        Ok(())
    }

    /// Returns the failure that objects may still exist, with the commands that remove them; `None`
    /// if there are none.
    pub(super) fn not_removed(&self) -> Option<Failure> {
        let mut left = Vec::new();
        let mut commands = Vec::new();
        if self.in_database {
            let name = quote_ident(&self.name);
            left.push(format!("schema and publication {name}"));
            commands.push(format!(
                "DROP PUBLICATION IF EXISTS {name}; DROP SCHEMA IF EXISTS {name} CASCADE;"
            ));
        }
        for topic in &self.in_sink {
            left.push(format!("topic {topic}"));
            let topics = self.sink.topics();
            commands.extend(topics.map(|topics| topics.delete_command(topic)));
        }
        if left.is_empty() {
            return None;
        }
        let what = format!(
            "not everything that the benchmark made could be removed: {}",
            left.join(", ")
        );
        let remedy = format!("remove it by hand: {}", commands.join("   "));
        Some(Failure::new("bench-left", Exit::Unavailable, what).remedy(remedy))
    }
}

/// The parts of a benchmark's pipeline: its source, its route, and its settings.
pub(super) struct BenchPipeline {
    pub(super) source: CopySource,
    pub(super) router: Router,
    pub(super) settings: Settings,
}

/// Runs a blocking call on a thread of its own.
async fn blocking<T: Send + 'static>(
    call: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Failure> {
    spawn_blocking(call).await.map_err(|_| super::panicked())
}

/// Returns the SQL expression of a row's payload of about `bytes` bytes: the row's number `n`, the
/// database's clock in microseconds since 1970, and text that does not compress.
fn payload(bytes: u32) -> String {
    // The other members take about 60 bytes.
    let text = bytes.saturating_sub(60).max(1);
    format!(
        "jsonb_build_object('n', n, 'at', (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, \
         'text', (SELECT left(string_agg(md5(n || '.' || i), ''), {text}) \
         FROM generate_series(1, {}) i))",
        text.div_ceil(32)
    )
}

/// Returns `INSERT INTO … SELECT …`, without the source of the numbers `n`.
pub(super) fn insert(table: &TableName, bytes: u32) -> String {
    format!(
        "INSERT INTO {} (aggregatetype, aggregateid, type, payload) \
         SELECT 'order', 'customer-' || n % 10000, 'OrderPlaced', {}",
        script::table(table),
        payload(bytes)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::assembly::sink::any_sink;
    use crate::commands::test_config;

    #[test]
    fn leftovers_are_reported_with_commands_to_remove_them() {
        let info = "postgres://me@db/app".parse().expect("a URL");
        let sink = any_sink(&test_config()).expect("a sink").into();
        let mut objects = BenchObjects::new(info, sink);
        assert!(objects.not_removed().is_none());
        objects.in_database = true;
        objects.in_sink.push("walrelay-bench-1.order".to_owned());
        let failure = objects.not_removed().expect("objects are left");
        let name = &objects.name;
        let remedy = failure.remedy.expect("commands");
        for words in [
            &format!("DROP SCHEMA IF EXISTS \"{name}\" CASCADE;"),
            &format!("DROP PUBLICATION IF EXISTS \"{name}\";"),
            "kafka-topics.sh --delete --topic walrelay-bench-1.order",
        ] {
            assert!(remedy.contains(words), "{remedy}");
        }
        assert!(failure.what.contains(name.as_str()), "{}", failure.what);
    }

    #[test]
    fn payloads_are_about_as_large_as_asked_for() {
        assert!(
            payload(300).contains("'text', (SELECT left(string_agg(md5(n || '.' || i), ''), 240)")
        );
        assert!(payload(300).contains("generate_series(1, 8) i"));
    }
}
