//! `walrelay check`.

use std::io::Write;
use std::time::Duration;

use walrelay_event_router::{Router, TableFacts};
use walrelay_kafka_sink::probe;
use walrelay_lsn::{RelationId, TypeOid};
use walrelay_pgoutput::{Column, Message, ReplicaIdentity, decode, encode};
use walrelay_walsender::{ConnInfo, Session, SessionKind};

use super::connect::{block_on, conn_info, kafka, registry, router, wanted};
use super::{Ended, Env, load};
use crate::cli::{CheckArgs, Exit, Failure};
use crate::config::{Config, SinkConfig};
use crate::failures;
use crate::postgres::{
    Action, Facts, Moment, Plan, PostgresError, Retention, Wanted, describe, inspect,
    lacking_to_publish, plan, read_state_file,
};
use crate::registry::{Known, Registry};

/// How long a broker may take to answer.
const BROKER_DEADLINE: Duration = Duration::from_secs(10);

/// `walrelay check`: reports everything that is wrong, not only the first thing.
pub(crate) fn check(args: &CheckArgs, env: Env<'_>) -> Ended {
    let config = load(&args.config, env)?;
    let mut failures = Vec::new();
    let info = noted(conn_info(&config.source, env), &mut failures);
    let router = noted(router(&config), &mut failures);
    let schemas = noted(registry(&config), &mut failures).flatten();
    let brokers = match &config.sink {
        SinkConfig::Kafka(sink) => noted(kafka(sink, &config.delivery), &mut failures),
        SinkConfig::Stdout { .. } => None,
    };
    if failures.is_empty() {
        say("configuration: fine");
    }
    if !args.offline {
        if let Some(info) = info {
            let wanted = wanted(&config);
            match block_on(Database::read(&info, &wanted, &config))? {
                Ok(database) => {
                    if database.lacking.is_empty() {
                        say_postgres(&config.sink, &wanted, &database.facts, &database.plan);
                    } else {
                        failures.push(cannot_publish(&wanted, &database.lacking));
                    }
                    if let Some((router, _)) = router {
                        failures.extend(routes(router, &database.facts, database.described));
                    }
                    say_retention(&database.facts, config.source.retained_wal_warning);
                }
                Err(error) => failures.push(failures::postgres(error)),
            }
        }
        if let Some(config) = brokers {
            match probe(&config, BROKER_DEADLINE) {
                Ok(cluster) => {
                    say(&format!("kafka: fine, {} broker(s)", cluster.brokers.len()));
                    for warning in config.warnings() {
                        say(&format!("  note: {warning}"));
                    }
                }
                Err(error) => failures.push(failures::kafka_client(&error)),
            }
        }
        if let Some(schemas) = schemas {
            failures.extend(ask(&schemas, &config));
        }
    }
    if failures.is_empty() {
        Ok(())
    } else {
        Err(failures)
    }
}

/// The value; a failure is added to the others.
fn noted<T>(result: Result<T, Failure>, failures: &mut Vec<Failure>) -> Option<T> {
    result.map_err(|failure| failures.push(failure)).ok()
}

/// What a check reads of the database.
struct Database {
    facts: Facts,
    /// As `run` would find it.
    plan: Plan,
    described: Vec<TableFacts>,
    /// What the role lacks to create the publication, where `run` would have to.
    lacking: Vec<String>,
}

impl Database {
    async fn read(
        info: &ConnInfo,
        wanted: &Wanted,
        config: &Config,
    ) -> Result<Self, PostgresError> {
        // The second connection shows whether the role may replicate.
        let mut session = Session::connect(info, SessionKind::Sql, &[]).await?;
        let facts = inspect(&mut session, wanted).await?;
        let described = describe(&mut session, &wanted.tables).await?;
        let mut replication = Session::connect(info, SessionKind::Replication, &[]).await?;
        replication.identify_system().await?;
        let kept = match &config.source.state_file {
            Some(path) => read_state_file(path)?,
            None => None,
        };
        let moment = match config.sink {
            SinkConfig::Stdout { confirm: false } => Moment::Print,
            _ => Moment::Start {
                known: kept.map(|kept| kept.confirmed),
                accept_gap: false,
            },
        };
        let plan = plan(wanted, &facts, moment)?;
        let lacking = if plan.actions.contains(&Action::CreatePublication) {
            lacking_to_publish(&mut session, wanted).await?
        } else {
            Vec::new()
        };
        replication.close().await;
        session.close().await;
        Ok(Self {
            facts,
            plan,
            described,
            lacking,
        })
    }
}

/// Requests the schemas that the configuration names. Nothing is registered.
fn ask(registry: &Registry, config: &Config) -> Vec<Failure> {
    if let Err(error) = registry.ping() {
        return vec![failures::schema(error)];
    }
    say("registry: fine");
    let registers = config
        .registry
        .as_ref()
        .is_some_and(|config| config.register);
    let mut failed = Vec::new();
    for (subject, known) in registry.known() {
        match known {
            Ok(Known::As(id)) => say(&format!("  schema of {subject}: known, its id is {id}")),
            Ok(Known::No) if registers => {
                say(&format!(
                    "  schema of {subject}: not known, run registers it"
                ));
            }
            Ok(Known::No) => failed.push(failures::unregistered(subject)),
            Err(error) => failed.push(failures::schema(error)),
        }
    }
    failed
}

/// Compiles the routes for the tables as they are now: names and types of columns.
fn routes(mut router: Router, facts: &Facts, described: Vec<TableFacts>) -> Vec<Failure> {
    router.describe(described);
    let mut failed = Vec::new();
    for ((name, table), id) in facts.tables.iter().zip(1..) {
        let Some(table) = table else { continue };
        let columns = facts.sent(name, table);
        let columns = columns.iter().map(|(column, oid, modifier)| Column {
            name: column,
            is_key: false,
            type_oid: TypeOid::new(*oid),
            type_modifier: *modifier,
        });
        let (id, identity) = (RelationId::new(id), ReplicaIdentity::Default);
        let message = encode::relation(id, &name.schema, &name.name, identity, columns);
        match decode(&message) {
            Ok(Message::Relation(relation)) => match router.relation(&relation) {
                Ok(()) => say(&format!("routes: fine for {name}")),
                Err(error) => {
                    let what = format!("rows of {name} cannot be routed");
                    failed.push(failures::plan(&what, error));
                }
            },
            other => unreachable!("a Relation message was made: {other:?}"),
        }
    }
    failed
}

/// `run` would have to create the publication, and could not.
fn cannot_publish(wanted: &Wanted, lacking: &[String]) -> Failure {
    let publication = &wanted.publication;
    let what = format!("publication {publication} does not exist, and the role may not create it");
    Failure::new("privilege", Exit::Denied, what)
        .caused_by(format!("the role lacks {}", lacking.join(" and ")))
        .remedy(
            "run walrelay init, or the SQL of walrelay init --dry-run, as an administrator; the relay \
             itself then needs REPLICATION only",
        )
}

fn say_postgres(sink: &SinkConfig, wanted: &Wanted, facts: &Facts, plan: &Plan) {
    say(&format!(
        "postgres: fine, database {}",
        facts.server.database
    ));
    for action in &plan.actions {
        match action {
            Action::CreatePublication => say(&format!(
                "  publication {} does not exist: run creates it",
                wanted.publication
            )),
            Action::CreateSlot | Action::RecreateSlot => {
                let how = match sink {
                    SinkConfig::Stdout { confirm: false } => "run prints from then on",
                    _ => "run creates it",
                };
                say(&format!("  slot {} does not exist: {how}", wanted.slot));
            }
        }
    }
    for note in &plan.notes {
        say(&format!("  note: {note}"));
    }
    if let Some(pid) = facts.slot.as_ref().and_then(|slot| slot.active_pid) {
        let slot = &wanted.slot;
        say(&format!(
            "  note: slot {slot} is being read by server process {pid}"
        ));
    }
}

fn say_retention(facts: &Facts, warn_above: u64) {
    let Some(slot) = &facts.slot else {
        return;
    };
    let retention = Retention::of(&facts.server, slot);
    if let Some(warning) = retention.warning(warn_above) {
        say(&format!(
            "  note: {warning} ({} bytes are kept)",
            retention.retained
        ));
    }
}

fn say(line: &str) {
    // Standard output may be closed.
    let _ = writeln!(std::io::stdout(), "{line}");
}

impl From<Failure> for Vec<Failure> {
    fn from(failure: Failure) -> Self {
        vec![failure]
    }
}
