//! Converts the configuration to the types of the crates below, and connects by it.

mod parent;
pub(crate) mod pipelines;
pub(crate) mod server;
pub(crate) mod sink;
mod stop;

pub(crate) use parent::Parent;
pub(crate) use stop::{StopSignals, stop_signal_or};

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use secrecy::ExposeSecret;
use walrelay_event_router::{
    CloudEvents, HeadersFrom, MessageMember, Messages, Options, Route, Router, WireFormat,
};
use walrelay_failure::{Exit, Failure};
use walrelay_observe::wall_clock;
use walrelay_postgres_source::{
    AccountSettings, DeadLetters, Marking, Poller, Selection, Wanted, age_columns, assigned_columns,
};
use walrelay_relay::{
    AccountColumns, OnUpdate, PoisonPolicy, RegistryStats, Schemas, Settings, TableName,
};
use walrelay_schema_registry::Registry;
use walrelay_sink::Parking;
use walrelay_sink_kind::Ability;
use walrelay_sink_kind::dead_letters::DlqAddress;
use walrelay_walsender::{ConnInfo, Session, SessionKind};

use crate::commands::EnvVars;
use crate::config::{self, PipelineConfig, SnapshotMode};
use crate::failures;
use sink::{configured_sink, refused};

/// The warning about a connection that [`ConnInfo::may_be_plain`].
pub(crate) const PLAIN_TEXT: &str = "the connection to Postgres may be unencrypted: anyone on the network path can read the events, and \
     pretend to be the server";

/// Reads the connection string of `[source] url` with the password and the password file.
pub(crate) fn conn_info(
    source: &config::SourceSection,
    env: EnvVars<'_>,
) -> Result<ConnInfo, Failure> {
    let mut info: ConnInfo = source
        .url
        .expose_secret()
        .parse()
        .map_err(|error| walrelay_walsender::conn_info_failure(&error))?;
    if let Some(password) = &source.password {
        info.password = Some(password.clone());
    }
    Ok(with_passfile(info, env))
}

/// Adds the password file that libpq would read: PGPASSFILE, or ~/.pgpass, if it exists.
pub(crate) fn with_passfile(mut info: ConnInfo, env: EnvVars<'_>) -> ConnInfo {
    if info.passfile.is_none() {
        info.passfile = env("PGPASSFILE")
            .map(PathBuf::from)
            .or_else(|| env("HOME").map(|home| PathBuf::from(home).join(".pgpass")))
            .filter(|path| path.exists());
    }
    info
}

/// Reads the URL of `--admin-url`, which must name the database of the relay's own connection.
pub(crate) fn admin_info(
    url: &str,
    relay: &ConnInfo,
    env: EnvVars<'_>,
) -> Result<ConnInfo, Failure> {
    let unusable = |what: String| Failure::new("source-url", Exit::Usage, what);
    let admin = url.parse::<ConnInfo>();
    let admin = admin
        .map_err(|error| {
            unusable("--admin-url cannot be used".to_owned())
                .caused_by(error)
                .remedy("write it as postgres://owner:password@host:5432/database, the host being that of [source] url")
        })?;
    if admin.dbname != relay.dbname {
        let what = format!(
            "--admin-url names database {}, [source] url names {}",
            admin.dbname, relay.dbname
        );
        return Err(unusable(what).remedy("name the same database in both"));
    }
    Ok(with_passfile(admin, env))
}

pub(crate) fn route(router: &config::RouterConfig) -> Route {
    match router {
        config::RouterConfig::Debezium(debezium) => Route::from(debezium_options(debezium)),
        config::RouterConfig::Templates(templates) => Route::from((**templates).clone()),
    }
}

fn debezium_options(debezium: &config::Debezium) -> Options {
    let mut options = debezium.options.clone();
    if debezium.context_headers {
        let headers = [
            ("connectorLogicalName", options.topic_prefix.clone()),
            ("taskId", "0".to_owned()),
            ("connectorName", "postgresql".to_owned()),
            ("runId", run_id()),
        ];
        let headers = headers.map(|(name, text)| (format!("__debezium.context.{name}"), text));
        options.context_headers = headers.into();
    }
    options
}

/// Makes a UUID of version 7 (RFC 9562), which names this run, as Debezium's header `runId` does.
pub(crate) fn run_id() -> String {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let millis = since.unwrap_or_default().as_millis() & 0xffff_ffff_ffff;
    let random = fastrand::u128(..);
    let id = millis << 80
        | 7 << 76
        | (random >> 64 & 0xfff) << 64
        | 0b10 << 62
        | random & 0x3fff_ffff_ffff_ffff;
    let hex = format!("{id:032x}");
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| hex.get(part).unwrap_or_default());
    parts.join("-")
}

/// Makes the router, and the reader of logical messages if the configuration makes events of them.
pub(crate) fn router(config: &PipelineConfig) -> Result<(Router, Option<Messages>), Failure> {
    let messages = messages(config);
    let route = route(&config.router);
    let wire = config
        .registry
        .as_ref()
        .map(|registry| registry.wire.clone());
    let mut router = Router::new(route)
        .with_column_names(config.column_names.clone())
        .with_cloud_events(config.cloud_events.clone())
        .with_address(config.address.clone())
        .with_headers_from(config.headers_from.clone())
        .with_position_header(config.position_header.clone())
        .with_wire_format(wire);
    if let Some(messages) = &messages {
        // All messages have the same columns, so a column that the route lacks can be reported now.
        let announced = messages.announce(&mut router);
        announced.map_err(|error| failures::messages(&error))?;
        router.clear();
    }
    Ok((router, messages))
}

fn messages(config: &PipelineConfig) -> Option<Messages> {
    let prefix = config.source.messages.as_deref()?;
    let named = match &config.router {
        config::RouterConfig::Debezium(debezium) => {
            let options = &debezium.options;
            vec![
                (&options.event_id, MessageMember::Id),
                (&options.event_key, MessageMember::Key),
                (&options.event_type, MessageMember::Type),
                (&options.payload, MessageMember::Payload),
                (&options.route_by, MessageMember::Aggregate),
            ]
        }
        // The other templates may read any column; messages have the columns that presets read.
        config::RouterConfig::Templates(templates) => {
            let id = templates.id.iter();
            id.map(|id| (id, MessageMember::Id)).collect()
        }
    };
    let named = named.iter().map(|(name, member)| (name.as_str(), *member));
    Some(Messages::new(prefix, named))
}

/// Describes the database objects that the relay needs.
pub(crate) fn wanted(config: &PipelineConfig) -> Wanted {
    let mut columns = match &config.router {
        config::RouterConfig::Debezium(debezium) => debezium.options.columns(),
        config::RouterConfig::Templates(templates) => {
            templates.columns().into_iter().map(str::to_owned).collect()
        }
    };
    let address = config.address.iter();
    let address = address
        .flat_map(|address| [&address.topic, &address.routing_key])
        .flatten();
    columns.extend(
        address
            .flat_map(|part| part.template.columns())
            .map(str::to_owned),
    );
    let headers = config.headers_from.iter();
    columns.extend(headers.flat_map(HeadersFrom::columns).map(str::to_owned));
    let attributes = config.cloud_events.iter().flat_map(CloudEvents::columns);
    columns.extend(attributes.map(str::to_owned));
    let record = config.registry.iter().map(|registry| &registry.wire);
    columns.extend(record.flat_map(WireFormat::columns).map(str::to_owned));
    columns.sort();
    columns.dedup();
    Wanted {
        slot: config.source.slot.clone(),
        publication: config.source.publication.clone(),
        tables: config.source.tables.clone(),
        pass_over: config.source.pass_over.clone(),
        columns,
        content: match &config.router {
            // Debezium sends the number of any other column of type `oid`, too.
            config::RouterConfig::Debezium(debezium) => vec![debezium.options.payload.clone()],
            config::RouterConfig::Templates(templates) => {
                templates.columns().into_iter().map(str::to_owned).collect()
            }
        },
        column_names: config.column_names.clone(),
        by_templates: matches!(config.router, config::RouterConfig::Templates(_)),
        messages: config.source.messages.clone(),
        create: config.source.create,
        failover: config.source.failover,
        snapshot: (config.source.snapshot != SnapshotMode::Never).then(|| selection(config)),
        account: accounts_rows(config).then(|| AccountSettings {
            columns: account_columns(config),
            // With a snapshot, rows from before the slot are sent.
            before_slot: config.prune.as_ref().is_some_and(|prune| prune.before_slot)
                && config.source.snapshot == SnapshotMode::Never,
            dead_letters: (config.poison.writes_dead_letters())
                .then(|| config.poison.topic.clone()),
        }),
        marks: config.source.mark_sent.clone(),
        dead_marks: config.source.mark_dead.clone(),
        poller: match config.source.mark_sent {
            Some(_) => Poller::MayRun,
            None => Poller::Unknown,
        },
        kept_wal: config
            .retention
            .map_or(walrelay_postgres_source::sections::MAX_WAL, |retention| {
                retention.max_wal
            }),
        age: match &config.prune {
            // Other commands delete with an age of their own, and look themselves.
            Some(prune) if prune.keep.is_some() => age_columns(prune.column.as_deref()),
            _ => Vec::new(),
        },
    }
}

/// Returns true if rows are deleted because they are accounted as sent: without marks, and where
/// several relays share a table.
pub(crate) fn prunes_by_account(config: &PipelineConfig) -> bool {
    let prune = config.prune.as_ref();
    prune.is_some_and(|prune| config.source.mark_sent.is_none() || !prune.slots.is_empty())
}

/// Returns true if the relay keeps an account of the rows that it sends: if a key of `[prune]` is set.
pub(crate) fn accounts_rows(config: &PipelineConfig) -> bool {
    let is_set = config.prune.as_ref().is_some_and(|prune| {
        let keys = [
            prune.keep.is_some(),
            prune.before_slot,
            !prune.slots.is_empty(),
            prune.partition.is_some(),
        ];
        keys.contains(&true)
    });
    is_set && prunes_by_account(config)
}

/// Returns the columns by which sent rows are accounted.
pub(crate) fn account_columns(config: &PipelineConfig) -> AccountColumns {
    let column = config
        .prune
        .as_ref()
        .and_then(|prune| prune.column.as_deref());
    AccountColumns {
        id: id_column(config).cloned(),
        age: age_columns(column),
    }
}

/// Returns the column with the id of events; `None` if the route names none.
pub(crate) fn id_column(config: &PipelineConfig) -> Option<&String> {
    match &config.router {
        config::RouterConfig::Debezium(debezium) => Some(&debezium.options.event_id),
        config::RouterConfig::Templates(templates) => templates.id.as_ref(),
    }
}

/// Describes the rows of the tables that a snapshot reads, and their order.
pub(crate) fn selection(config: &PipelineConfig) -> Selection {
    let time = match &config.router {
        config::RouterConfig::Debezium(debezium) => debezium.options.event_timestamp.clone(),
        config::RouterConfig::Templates(_) => None,
    };
    Selection {
        unsent: config.source.snapshot == SnapshotMode::Unsent,
        marked: config.source.mark_sent.as_deref().map(assigned_columns),
        filter: config.source.snapshot_where.clone(),
        order: config.source.snapshot_order.clone(),
        unordered: config.source.snapshot_unordered,
        time,
    }
}

/// Returns the address of the dead letters of the configured relay.
pub(crate) fn dlq_address(config: &PipelineConfig) -> DlqAddress<'_> {
    DlqAddress {
        topic: &config.poison.topic,
        slot: &config.source.slot,
    }
}

/// Returns the name of the store of dead letters: the kind of the sink, and the topic. Empty if the sink has none.
pub(crate) fn dead_letter_store(config: &PipelineConfig) -> Result<String, Failure> {
    let sink = configured_sink(config)?;
    let has_store = sink.dead_letters().is_some();
    let store = has_store.then(|| format!("{} {}", sink.name(), config.poison.topic));
    Ok(store.unwrap_or_default())
}

/// Makes the reader of the slot's open dead letters. `epoch`: see [`Epoch`](walrelay_sink_kind::dead_letters::Epoch).
pub(crate) fn dead_letters(
    config: &PipelineConfig,
    epoch: impl Fn() -> Option<(i32, u64)> + Send + 'static,
) -> Result<DeadLetters, Failure> {
    let writes = config.poison.writes_dead_letters();
    let sink = configured_sink(config)?;
    let Some(store) = sink.dead_letters() else {
        return if writes {
            Err(
                refused("sink-ability", &*sink, Ability::DeadLetters).remedy(
                    "set sink.kind to that of the relay that writes them: their rows must be kept",
                ),
            )
        } else {
            Ok(DeadLetters::default())
        };
    };
    let read = store.read_open(dlq_address(config), writes, Box::new(epoch));
    let messages = config.source.messages.iter();
    let messages = messages.map(|prefix| TableName::new(Messages::SCHEMA, prefix));
    let named = config.source.tables.iter().cloned().chain(messages);
    let id = id_column(config).cloned();
    let store = dead_letter_store(config)?;
    Ok(DeadLetters::new(read, id, named).in_store(store))
}

/// Describes the rows that count as not sent, and how rows are marked as sent; `set` is empty if
/// they are not.
pub(crate) fn marking(config: &PipelineConfig) -> Marking {
    let source = &config.source;
    Marking {
        slot: source.slot.clone(),
        tables: source.tables.clone(),
        selection: Selection {
            unsent: true,
            ..selection(config)
        },
        set: source.mark_sent.clone().unwrap_or_default(),
        messages: source.messages.clone(),
        create: wanted(config).create,
    }
}

/// Makes the settings of a pipeline.
pub(crate) fn settings(
    config: &PipelineConfig,
    messages: Option<Messages>,
    parking: Option<Arc<Parking>>,
    schemas: Option<Arc<dyn Schemas>>,
) -> Settings {
    let delivery = &config.delivery;
    Settings {
        tables: [&*config.source.tables, &config.source.former_tables]
            .concat()
            .into(),
        pass_over: Arc::from(config.source.pass_over.as_slice()),
        messages,
        max_unconfirmed_records: delivery
            .max_unconfirmed_records
            .max(delivery.max_in_flight_records) as usize,
        status_interval: config.source.status_interval,
        receive_timeout: config.source.receive_timeout(),
        drain_timeout: delivery.drain_timeout,
        backoff_initial: delivery.backoff.initial,
        backoff_max: delivery.backoff.max,
        poison: poison_policy(config, parking),
        on_update: match &config.router {
            config::RouterConfig::Debezium(debezium) => debezium.on_update,
            config::RouterConfig::Templates(_) => OnUpdate::default(),
        },
        schemas,
        sent_rows: None,
        account: None,
        explain: walrelay_postgres_source::explain,
    }
}

/// Makes the poison policy of a pipeline.
pub(crate) fn poison_policy(
    config: &PipelineConfig,
    parking: Option<Arc<Parking>>,
) -> PoisonPolicy {
    let poison = &config.poison;
    PoisonPolicy {
        unroutable: poison.unroutable,
        oversize: poison.oversize,
        rejected: poison.rejected,
        undecodable: poison.undecodable,
        topic: Arc::from(poison.topic.as_str()),
        slot: Arc::from(config.source.slot.as_str()),
        retry_for: poison.retry_for,
        shape: poison
            .value
            .clone()
            .map(|shape| (shape, wall_clock as fn() -> _)),
        parking,
        limits: None,
    }
}

/// Makes the client of the schema registry as a pipeline uses it; `None` if none is configured.
pub(crate) fn schemas(
    config: &PipelineConfig,
    stats: Option<Arc<RegistryStats>>,
) -> Result<Option<Arc<dyn Schemas>>, Failure> {
    let registry = registry(config)?;
    Ok(registry.map(|registry| Arc::new(registry.counting(stats)) as Arc<dyn Schemas>))
}

/// Makes the client of [`schemas`] that never registers a schema.
pub(crate) fn schemas_without_registering(
    config: &PipelineConfig,
) -> Result<Option<Arc<dyn Schemas>>, Failure> {
    let mut config = config.clone();
    if let Some(registry) = &mut config.registry {
        registry.register = false;
    }
    schemas(&config, None)
}

/// Makes the client of the schema registry; `None` if none is configured.
pub(crate) fn registry(config: &PipelineConfig) -> Result<Option<Registry>, Failure> {
    let registry = config.registry.as_ref().map(Registry::new).transpose();
    registry.map_err(|error| {
        Failure::new(
            "registry-ca",
            Exit::Config,
            "[router.registry] ca_file cannot be used",
        )
        .caused_by(error)
        .remedy("it is a file of certificates in PEM, and the relay's user must be able to read it")
    })
}

/// Opens a session for SQL.
pub(crate) async fn sql_session(info: &ConnInfo) -> Result<Session, Failure> {
    let session = Session::connect(info, SessionKind::Sql, &[]).await;
    session.map_err(Failure::from)
}

/// Runs a future on a runtime of one thread: a pipeline needs no more.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(no_runtime)?;
    Ok(runtime.block_on(future))
}

/// Returns the failure that the system gives no event loop or no thread.
pub(crate) fn no_runtime(error: io::Error) -> Failure {
    Failure::new("runtime", Exit::Unavailable, "cannot start")
        .caused_by(error)
        .remedy(
            "raise the limit that the cause is about: open files (LimitNOFILE=, ulimit -n) or threads (TasksMax=, ulimit \
             -u)",
        )
}
