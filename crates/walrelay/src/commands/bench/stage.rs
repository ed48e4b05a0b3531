//! What a benchmark makes in the database and in Kafka, and removes again.

use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::timeout;
use walrelay_kafka_sink::{KafkaConfig, KafkaError, TemporaryTopics, TopicCreation};
use walrelay_relay::TableName;
use walrelay_walsender::{ConnInfo, Error, Session, SessionKind, SlotOptions, quote_ident};

use crate::cli::{Exit, Failure};
use crate::failures;
use crate::postgres::Original;
use crate::postgres::script;

/// For one answer of the cluster.
const BROKER_PATIENCE: Duration = Duration::from_secs(15);
/// For everything in the database: a statement that was under way may have to end first.
const REMOVAL_PATIENCE: Duration = Duration::from_secs(30);
const WAL_SENDER_TIMEOUT: Duration = Duration::from_secs(30);

/// Everything of one benchmark, under names of its own.
pub(super) struct Stage {
    info: ConnInfo,
    /// Of schema and publication, and what the slots' names begin with.
    name: String,
    /// A topic's name and what it is made with.
    topic: String,
    topics: Option<(KafkaConfig, TopicCreation)>,
    /// Holds the slot that is copied: it goes with this session.
    keeper: Option<Session>,
    slots: u32,
    copies: u32,
    /// What may be there.
    in_database: bool,
    in_kafka: Vec<String>,
}

/// What could not be removed, and how somebody does it by hand.
pub(super) struct Left {
    what: String,
    by_hand: String,
}

impl Stage {
    pub(super) fn new(info: ConnInfo, topics: Option<(KafkaConfig, TopicCreation)>) -> Self {
        let id = fastrand::u32(..);
        Self {
            info,
            name: format!("walrelay_bench_{id:08x}"),
            topic: format!("walrelay-bench-{id:08x}"),
            topics,
            keeper: None,
            slots: 0,
            copies: 0,
            in_database: false,
            in_kafka: Vec::new(),
        }
    }

    /// What the names of all topics begin with, and a dot follows.
    pub(super) fn topic(&self) -> &str {
        &self.topic
    }

    pub(super) fn table(&self) -> TableName {
        TableName {
            schema: self.name.clone(),
            name: "outbox".to_owned(),
        }
    }

    pub(super) fn info(&self) -> &ConnInfo {
        &self.info
    }

    pub(super) fn kafka(&self) -> Option<&KafkaConfig> {
        self.topics.as_ref().map(|(config, _)| config)
    }

    /// Makes schema, table and publication.
    pub(super) async fn prepare(&mut self) -> Result<(), Failure> {
        let sql = [
            format!("CREATE SCHEMA {}", quote_ident(&self.name)),
            script::create_table(&self.table()),
            script::create_publication(&self.name, &[self.table()]),
        ];
        let mut session = connect(&self.info).await?;
        self.in_database = true;
        for statement in sql {
            if let Err(error) = session.query(&statement).await {
                let denied = error.sqlstate() == Some("42501");
                let failure = failures::postgres(error.into());
                return Err(if denied {
                    failure.remedy(
                        "the benchmark makes a schema and a publication of its own, which takes \
                         CREATE on the database: GRANT CREATE ON DATABASE … TO …, or name another \
                         role with --set source.url=…",
                    )
                } else {
                    failure
                });
            }
        }
        session.close().await;
        Ok(())
    }

    /// Makes the slot whose copies are read stand at the end of the log.
    pub(super) async fn keep_from_here(&mut self) -> Result<(), Failure> {
        // The former one keeps the log of what was written since: it goes first.
        self.keeper = None;
        self.slots += 1;
        let name = self.kept();
        let made = async {
            let mut keeper = Session::connect(&self.info, SessionKind::Replication, &[]).await?;
            let options = SlotOptions {
                failover: false,
                temporary: true,
                export_snapshot: false,
            };
            keeper.create_logical_slot(&name, options).await?;
            Ok::<_, Error>(keeper)
        };
        let keeper = made
            .await
            .map_err(|error| failures::postgres(error.into()))?;
        self.keeper = Some(keeper);
        Ok(())
    }

    fn kept(&self) -> String {
        format!("{}_{}", self.name, self.slots)
    }

    /// What the names of the next source's slots begin with: the server may not have noticed yet that
    /// the one before has gone.
    pub(super) fn next_copy(&mut self) -> String {
        self.copies += 1;
        format!("{}_copy_{}", self.name, self.copies)
    }

    /// The slot that was made last.
    pub(super) fn original(&self) -> Original {
        Original {
            info: self.info.clone(),
            slot: self.kept(),
            publication: self.name.clone(),
            tables: vec![self.table()],
            messages: false,
            wal_sender_timeout: WAL_SENDER_TIMEOUT,
        }
    }

    /// Makes a topic, and gives its name.
    pub(super) async fn create_topic(&mut self, last: &str) -> Result<String, Failure> {
        let Some((config, creation)) = self.topics.clone() else {
            return Err(super::needs_kafka());
        };
        let name = format!("{}.{last}", self.topic);
        self.in_kafka.push(name.clone());
        let topic = name.clone();
        let create =
            move || TemporaryTopics::new(&config, BROKER_PATIENCE)?.create(&topic, &creation);
        blocking(create).await??;
        Ok(name)
    }

    /// Removes everything that may be there.
    pub(super) async fn clear(&mut self) -> Vec<Left> {
        self.keeper = None;
        if self.in_database
            && let Ok(Ok(())) = timeout(REMOVAL_PATIENCE, self.clear_database()).await
        {
            self.in_database = false;
        }
        if let Some((config, _)) = self.topics.clone() {
            let topics = std::mem::take(&mut self.in_kafka);
            let delete = move || delete(&config, topics);
            // A thread that panicked leaves nothing to be told.
            self.in_kafka = blocking(delete).await.unwrap_or_default();
        }
        self.left()
    }

    async fn clear_database(&mut self) -> Result<(), Error> {
        let name = quote_ident(&self.name);
        let mut session = Session::connect(&self.info, SessionKind::Sql, &[]).await?;
        session
            .query(&format!("DROP PUBLICATION IF EXISTS {name}"))
            .await?;
        // A load that was broken off may still be in its last statement.
        session
            .query(&format!("DROP SCHEMA IF EXISTS {name} CASCADE"))
            .await?;
        session.close().await;
        Ok(())
    }

    /// What may still be there.
    pub(super) fn left(&self) -> Vec<Left> {
        let mut left = Vec::new();
        if self.in_database {
            let name = quote_ident(&self.name);
            left.push(Left {
                what: format!("schema and publication {name}"),
                by_hand: format!(
                    "DROP PUBLICATION IF EXISTS {name}; DROP SCHEMA IF EXISTS {name} CASCADE;"
                ),
            });
        }
        left.extend(self.in_kafka.iter().map(|topic| Left {
            what: format!("topic {topic}"),
            by_hand: format!("kafka-topics.sh --delete --topic {topic}"),
        }));
        left
    }
}

/// Those that could not be deleted.
fn delete(config: &KafkaConfig, topics: Vec<String>) -> Vec<String> {
    let deleted = |admin: &TemporaryTopics, topic: &str| admin.delete(topic).is_ok();
    match TemporaryTopics::new(config, BROKER_PATIENCE) {
        Ok(admin) => topics
            .into_iter()
            .filter(|topic| !deleted(&admin, topic))
            .collect(),
        Err(_) => topics,
    }
}

async fn connect(info: &ConnInfo) -> Result<Session, Failure> {
    let session = Session::connect(info, SessionKind::Sql, &[]).await;
    session.map_err(|error| failures::postgres(error.into()))
}

async fn blocking<T: Send + 'static>(
    call: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Failure> {
    spawn_blocking(call).await.map_err(|_| super::panicked())
}

impl From<KafkaError> for Failure {
    fn from(error: KafkaError) -> Self {
        failures::kafka_client(&error)
    }
}

/// `None` where nothing is left.
pub(super) fn failure_of(left: &[Left]) -> Option<Failure> {
    if left.is_empty() {
        return None;
    }
    let list = |of: fn(&Left) -> &str, by: &str| left.iter().map(of).collect::<Vec<_>>().join(by);
    Some(
        Failure::new(
            "bench-left",
            Exit::Unavailable,
            format!(
                "not everything that the benchmark made could be removed: {}",
                list(|left| &left.what, ", ")
            ),
        )
        .remedy(format!(
            "remove it by hand: {}",
            list(|left| &left.by_hand, "   ")
        )),
    )
}

/// The expression of a row's payload over its number `n`, of about so many bytes: the number, the
/// database's clock in microseconds since 1970, and text that does not compress.
pub(super) fn payload(bytes: u32) -> String {
    // What the other members take.
    let text = bytes.saturating_sub(60).max(1);
    format!(
        "jsonb_build_object('n', n, 'at', (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, \
         'text', (SELECT left(string_agg(md5(n || '.' || i), ''), {text}) \
         FROM generate_series(1, {}) i))",
        text.div_ceil(32)
    )
}

/// `INSERT INTO … SELECT …`, without the source of the numbers `n`.
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

    #[test]
    fn what_is_left_is_named_with_how_to_remove_it() {
        let info = "postgres://me@db/app".parse().expect("a URL");
        let mut stage = Stage::new(info, None);
        assert!(failure_of(&stage.left()).is_none());
        stage.in_database = true;
        stage.in_kafka.push("walrelay-bench-1.order".to_owned());
        let failure = failure_of(&stage.left()).expect("something is left");
        let name = &stage.name;
        let remedy = failure.remedy.expect("how");
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
