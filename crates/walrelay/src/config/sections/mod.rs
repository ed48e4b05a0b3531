//! The sections of the file: the declaration of every key, and the checks of combinations of keys.

mod cloud_events;
mod debezium;
mod delivery;
mod registry;
mod route;
mod router;
mod sink;

use std::sync::LazyLock;
use walrelay_event_router::ColumnNames;
use walrelay_observe::sections as observe;
use walrelay_postgres_source::sections;
use walrelay_settings::{AlreadyReported, Keys, OpenSection, Reader, Row, Section, ValueKind};

pub use debezium::Debezium;
pub use delivery::{BackoffLimits, Delivery, Guarantee, Poison};
pub use router::{RouterConfig, preset_names};
pub(crate) use sink::{DEFAULT_KIND, Sample, sample};
pub use sink::{SinkConfig, sink_names};
#[cfg(test)]
pub(crate) use sink::{SinkSection, SinkSettings, StdoutSection, descriptions};
pub use walrelay_observe::sections::{Http, Log, LogFormat, Otel, Slo};
pub use walrelay_postgres_source::sections::{
    AuditSettings, Prune, Retention, SnapshotMode, SourceSection,
};

use super::{Config, PipelineConfig, ProcessConfig};

/// The sections that every configuration has: the defaults of their keys are shown.
const WITH_DEFAULTS: [&str; 4] = ["source", "delivery", "poison", "log"];

/// Names by which other programs know a key.
const SYNONYMS: &[(&str, &str)] = &[
    ("brokers", "sink.kafka.bootstrap.servers"),
    ("bootstrap_servers", "sink.kafka.bootstrap.servers"),
    ("connection", "source.url"),
    ("connection_string", "source.url"),
    ("database", "source.url"),
    ("database_url", "source.url"),
    ("dbname", "source.url"),
    ("dsn", "source.url"),
    ("hostname", "source.url"),
    ("source.host", "source.url"),
    ("source.port", "source.url"),
    ("source.user", "source.url"),
    ("source.password", "source.password_file"),
    ("bind", "http.listen"),
    ("metrics", "http.listen"),
    ("metrics_port", "http.listen"),
    ("port", "http.listen"),
    ("verbosity", "log.level"),
    ("dead_letter_topic", "poison.topic"),
    ("dlq", "poison.topic"),
    ("dlq_topic", "poison.topic"),
];

/// Every key, in the order of the reference.
pub(super) static KEYS: LazyLock<Keys> = LazyLock::new(|| {
    let mut declared = Vec::new();
    for section in [
        SourceSection::declare as fn(&mut Vec<Row>),
        router::Keys::declare,
        router::HeaderColumns::declare,
        router::PositionHeader::declare,
        route::Keys::declare,
        debezium::Keys::declare,
        debezium::Converters::declare,
        cloud_events::Keys::declare,
        registry::Keys::declare,
        sink::rows,
        Delivery::declare,
        Poison::declare,
        sections::RetentionKeys::declare,
        Prune::declare,
        sections::AuditKeys::declare,
        observe::HttpKeys::declare,
        observe::OtelKeys::declare,
        Slo::declare,
        Log::declare,
    ] {
        section(&mut declared);
    }
    let open = [
        (route::HEADERS, ValueKind::Template),
        (route::MEMBERS, ValueKind::Template),
        (route::LOOKUPS, ValueKind::Scalar),
        (router::FORMER_COLUMNS, ValueKind::Names),
        (registry::SCHEMAS, ValueKind::Scalar),
    ];
    let open = sink::open().chain(open);
    let open = open.map(|(at, kind)| OpenSection {
        at,
        kind,
        nests: at == route::MEMBERS,
    });
    Keys::new(declared, open.collect())
        .with_alternatives("sink")
        .with_synonyms(SYNONYMS)
});

/// Reads the whole configuration. Every section is read before the first error returns, so that all
/// problems are noted.
pub(super) fn config(reader: &mut Reader<'_>) -> Result<Config, AlreadyReported> {
    let source = sections::source(reader);
    route::lookups(reader);
    router::former_columns(reader);
    let router = router::router(reader);
    let registry = registry::registry(reader);
    let registry_of = registry.as_ref().ok().and_then(Option::as_ref);
    let format = registry_of.map(|registry| registry.wire.format);
    let cloud_events = cloud_events::cloud_events(reader, format);
    let events = cloud_events.as_ref().ok().and_then(Option::as_ref);
    if registry_of.is_some() {
        cloud_events::with_registry(reader, router.as_ref().ok(), events);
    }
    let headers_from = router::headers_from(reader);
    let position_header = router::position_header(reader, router.as_ref().ok(), events);
    let sink = sink::sink(reader);
    let topic = match (&router, &sink) {
        (Ok(RouterConfig::Debezium(debezium)), Ok(sink)) => {
            debezium::check_topic(reader, debezium, |topic| sink.topic_problem(topic))
        }
        _ => Ok(()),
    };
    let address = sink::address(reader, sink.as_ref().ok());
    let delivery = delivery::delivery(reader);
    let poison = delivery::poison(reader, |topic| sink.as_ref().ok()?.topic_problem(topic));
    let dead_letters = sink::check_poison(reader, sink.as_ref().ok(), poison.as_ref().ok());
    let retention = sections::retention(reader);
    let snapshots = source
        .as_ref()
        .is_ok_and(|source| source.snapshot != SnapshotMode::Never);
    let own = source.as_ref().ok().map(|source| source.slot.as_str());
    let prune = sections::prune(reader, snapshots, own);
    let marks = source
        .as_ref()
        .is_ok_and(|source| source.mark_sent.is_some());
    // Without the source, its problem is the one to report.
    let audit = if source.is_ok() {
        sections::audit(reader, marks)
    } else {
        Ok(None)
    };
    let http = observe::http(reader);
    let otel = observe::otel(reader, http.as_ref().ok());
    let slo = observe::slo(reader);
    let log = Log::read(reader);
    topic?;
    dead_letters?;
    Ok(Config {
        pipeline: PipelineConfig {
            source: source?,
            router: router?,
            cloud_events: cloud_events?,
            headers_from: headers_from?,
            position_header: position_header?,
            column_names: reader.shared::<ColumnNames>().clone(),
            registry: registry?,
            sink: sink?,
            address: address?,
            delivery: delivery?,
            poison: poison?,
            retention: retention?,
            prune: prune?,
            audit: audit?,
            shown: reader.shown(&WITH_DEFAULTS),
            // Of what is read here and after this.
            digest: 0,
        },
        process: ProcessConfig {
            http: http?,
            otel: otel?,
            slo: slo?,
            log: log?,
        },
    })
}
