//! What is left when everything that has an equivalent was taken over: options by name, and why
//! nothing becomes of them.

use super::draft::{Refused, Toml};
use super::import::{Import, UNKNOWN};
use super::settings::{BESIDE, Kind};

/// What an option comes to.
#[derive(Clone, Copy)]
enum Rule {
    /// Nothing, and why.
    None(&'static str),
    /// Nothing while it has this value (in lower case); otherwise not supported.
    Unless(&'static str, &'static str),
    /// The same, and records would be others, or events missing.
    BreaksUnless(&'static str, &'static str),
    /// Not supported.
    Unsupported(&'static str),
    /// Not supported, and records would be others, or events missing.
    Breaks(&'static str),
}

use Rule::{Breaks, BreaksUnless, None as Nothing, Unless, Unsupported};

const DEFAULT: &str = "it has its default, which changes nothing";
const QUEUE: &str = "walrelay has no queue of its own in between: rows go from the socket to the \
    producer, and delivery.max_in_flight_bytes bounds what is on its way";
const POLL: &str = "walrelay does not poll: the server's stream wakes it up";
const HEARTBEAT: &str = "not needed: walrelay confirms an idle slot by itself, so that other tables' \
    WAL is not kept; nothing is written and nothing is published for it. Consumers of the topic of \
    heartbeats get no more of them";
const OFFSETS: &str = "the position is in the slot, and nowhere else";
const RETRIES: &str = "walrelay tries again for ever, with the pauses of delivery.backoff_initial \
    and delivery.backoff_max, where a retry can help";
const SNAPSHOT: &str = "walrelay takes no snapshots";
const SIGNALS: &str = "walrelay takes no snapshots on request, and listens to no signals";
const SCHEMAS: &str = "walrelay learns of a table's columns from the stream itself";
const NAMES: &str = "the router names the topics";
const COLUMNS: &str = "walrelay reads the columns that the router needs, and no others";
const ROWS: &str = "it changes values on their way: do it where the row is written";
const JVM: &str = "it concerns the Java process";

/// By name; one that ends with `*` is a prefix. The first that fits counts.
const RULES: &[(&str, Rule)] = &[
    (
        "name",
        Nothing("the connector's name is used for nothing but itself"),
    ),
    (
        "tasks.max",
        Nothing("one relay reads a slot; it has no tasks"),
    ),
    // Position.
    ("offset.mismatch.strategy", Nothing(OFFSETS)),
    ("offset.activity.monitor.interval*", Nothing(OFFSETS)),
    ("offset.*", Nothing(OFFSETS)),
    ("offsets.storage.topic", Nothing(OFFSETS)),
    (
        "flush.lsn.source",
        Unless(
            "true",
            "Debezium leaves the slot where it is, and walrelay always moves it: whoever \
            else moves it must stop",
        ),
    ),
    (
        "lsn.flush.timeout*",
        Nothing("walrelay never stops on a slow report of its position"),
    ),
    (
        "status.update.interval.ms",
        Nothing("walrelay reports at least every second"),
    ),
    ("xmin.fetch.interval.ms", Nothing(OFFSETS)),
    // Heartbeats, polling, queues.
    ("heartbeat.*", Nothing(HEARTBEAT)),
    ("topic.heartbeat.prefix", Nothing(HEARTBEAT)),
    ("poll.interval.ms", Nothing(POLL)),
    ("max.batch.size", Nothing(QUEUE)),
    ("max.queue.size", Nothing(QUEUE)),
    ("max.queue.size.in.bytes", Nothing(QUEUE)),
    ("record.processing.*", Nothing(QUEUE)),
    ("streaming.delay.ms", Nothing("walrelay begins at once")),
    // Slot and publication.
    (
        "slot.stream.params",
        Unsupported("walrelay asks pgoutput for what it needs, and for nothing else"),
    ),
    ("slot.max.retries", Nothing(RETRIES)),
    ("slot.retry.delay.ms", Nothing(RETRIES)),
    (
        "create.slot.command.timeout",
        Nothing("walrelay makes no slot here"),
    ),
    (
        "replica.identity.autoset.values",
        Nothing("INSERT needs no replica identity"),
    ),
    // Snapshots and signals.
    ("snapshot.*", Nothing(SNAPSHOT)),
    ("incremental.snapshot.*", Nothing(SIGNALS)),
    ("signal.*", Unsupported(SIGNALS)),
    (
        "notification.*",
        Unsupported("walrelay sends no notifications; its log says what happens"),
    ),
    ("read.only", Nothing(SIGNALS)),
    // What is captured.
    (
        "table.exclude.list",
        Unsupported("the tables are named one by one in source.tables"),
    ),
    (
        "table.blacklist",
        Unsupported("the tables are named one by one in source.tables"),
    ),
    (
        "schema.exclude.list",
        Unsupported("the tables are named one by one in source.tables"),
    ),
    (
        "schema.include.list",
        Nothing("source.tables names the tables with their schemas"),
    ),
    (
        "schema.whitelist",
        Nothing("source.tables names the tables with their schemas"),
    ),
    ("column.include.list", Nothing(COLUMNS)),
    ("column.exclude.list", Nothing(COLUMNS)),
    ("column.mask.*", Breaks(ROWS)),
    ("column.truncate.*", Breaks(ROWS)),
    (
        "column.propagate.source.type",
        Breaks("it adds parameters to schemas, and walrelay's have none of them"),
    ),
    (
        "datatype.propagate.source.type",
        Breaks("it adds parameters to schemas, and walrelay's have none of them"),
    ),
    (
        "message.key.columns",
        Nothing("the router takes the key from table.field.event.key"),
    ),
    (
        "skip.messages.without.change",
        Nothing("it concerns UPDATE, which the router drops"),
    ),
    (
        "tombstones.on.delete",
        Nothing("the router drops what DELETE makes, tombstones too"),
    ),
    (
        "message.prefix.*",
        Unsupported(
            "messages of pg_logical_emit_message are relayed where [source.messages] in docs/CONFIGURATION.md says so, by a prefix and in a form of its own",
        ),
    ),
    (
        "provide.transaction.metadata",
        Unless("false", "nothing is published to the topic of transactions"),
    ),
    (
        "topic.transaction",
        Nothing("there is no topic of transactions"),
    ),
    (
        "transaction.topic",
        Nothing("there is no topic of transactions"),
    ),
    // Names and schemas.
    (
        "topic.naming.strategy",
        BreaksUnless(
            "io.debezium.schema.schematopicnamingstrategy",
            "the router names the topics, but its envelopes' schemas have names by this strategy",
        ),
    ),
    (
        "topic.delimiter",
        BreaksUnless(
            ".",
            "the router names the topics, but its envelopes' schemas have names with this sign",
        ),
    ),
    ("topic.cache.size", Nothing(NAMES)),
    ("schema.refresh.mode", Nothing(SCHEMAS)),
    ("schema.history.*", Nothing(SCHEMAS)),
    (
        "field.name.adjustment.mode",
        BreaksUnless("none", "it renames columns"),
    ),
    (
        "sanitize.field.names",
        BreaksUnless("false", "it renames columns"),
    ),
    (
        "source.struct.version",
        Nothing("the router's records have no source block"),
    ),
    (
        "event.converting.failure.handling.mode",
        Nothing("walrelay's policy for such events is [poison]"),
    ),
    (
        "converters",
        Breaks(
            "converters of columns are Java code: cast in the database, say by a generated column",
        ),
    ),
    (
        "post.processors*",
        Breaks("post-processors are Java code: do what they do where the row is written"),
    ),
    // Failures.
    ("errors.max.retries", Nothing(RETRIES)),
    ("errors.retry.*", Nothing(RETRIES)),
    (
        "errors.log.*",
        Nothing("walrelay logs each event that it cannot deliver, without its values"),
    ),
    (
        "errors.deadletterqueue.*",
        Nothing("Kafka Connect has it for sinks only; walrelay's dead letters are in [poison]"),
    ),
    ("retriable.restart.connector.wait.ms", Nothing(RETRIES)),
    ("restart.*", Nothing(RETRIES)),
    (
        "transaction.boundary*",
        Nothing("it belongs to exactly-once delivery in Kafka Connect"),
    ),
    // Database.
    (
        "database.query.timeout.ms",
        Nothing("walrelay's own queries are a few looks at the catalogs"),
    ),
    (
        "database.sslpassword",
        Unsupported("encrypted keys are not read: decrypt it, and protect it by its permissions"),
    ),
    (
        "database.sslfactory",
        Unsupported("it is Java code; sslmode, sslrootcert, sslcert and sslkey do what it is for"),
    ),
    (
        "database.initial.statements",
        Unsupported("set it for the role: ALTER ROLE … SET …"),
    ),
    (
        "database.*",
        Unsupported(
            "no parameter of the JDBC driver that is known here; the URL's are in docs/CONFIGURATION.md",
        ),
    ),
    (
        "driver.*",
        Unsupported(
            "no parameter of the JDBC driver that is known here; the URL's are in docs/CONFIGURATION.md",
        ),
    ),
    (
        "connection.validation.timeout.ms",
        Nothing("it concerns the check before a connector starts"),
    ),
    ("executor.shutdown.timeout.ms", Nothing(JVM)),
    (
        "internal.*",
        Unsupported("it is an internal option of Debezium's"),
    ),
    (
        "guardrail.*",
        Nothing("it bounds the number of captured tables; here they are named"),
    ),
    ("custom.metric.tags", Nothing("there are no JMX metrics")),
    (
        "openlineage.*",
        Unsupported("walrelay sends nothing to OpenLineage"),
    ),
    // Kafka Connect.
    (
        "config.action.reload",
        Nothing("references are looked up when walrelay starts"),
    ),
    ("header.converter*", Nothing(DEFAULT)),
    (
        "topic.creation.enable",
        Nothing("sink.topics.create says so"),
    ),
    (
        "worker.*",
        Nothing("it concerns the worker, not what the connector sends"),
    ),
    // Debezium Server.
    ("consumer", Nothing("there is one consumer, Kafka")),
    (
        "termination.wait",
        Nothing("delivery.drain_timeout says how long a stop may take"),
    ),
    ("engine.factory", Nothing(JVM)),
    ("api.*", Nothing("walrelay has no such interface")),
    ("metrics.*", Nothing(JVM)),
    (
        "predicates*",
        Nothing("no transform that is taken over asks for a predicate"),
    ),
    ("format.*", Nothing("no converter has such an option")),
    (
        "quarkus.http.*",
        Nothing(
            "it is about Debezium Server's own HTTP interface; walrelay's would be [http], which is off unless it is configured",
        ),
    ),
    (
        "quarkus.log.*",
        Nothing("log.level and log.format are all that there is"),
    ),
    ("quarkus.*", Nothing(JVM)),
];

pub(super) fn rest(import: &mut Import) {
    class(import);
    failures(import);
    exactly_once(import);
    operations(import);
    snapshot(import);
    flush(import);
    topics(import);
    logging(import);
    let numbers: Vec<usize> = import.open().collect();
    let custom: Vec<String> = import
        .find("converters")
        .and_then(|number| import.text(number))
        .map(|text| text.split(',').map(|name| name.trim().to_owned()).collect())
        .unwrap_or_default();
    for number in numbers {
        let name = import.name(number).to_owned();
        if let Some(member) = name.strip_prefix(BESIDE) {
            let why = format!("`{member}` beside the configuration says nothing about it");
            import.none(number, why);
            continue;
        }
        if custom.iter().any(|owner| {
            name.strip_prefix(owner.as_str())
                .is_some_and(|rest| rest.starts_with('.'))
        }) {
            import.unsupported(
                number,
                "it belongs to a converter of columns, see `converters`",
            );
            continue;
        }
        match rule(&name) {
            Some(rule) => apply(import, number, rule),
            None => import.unsupported(number, UNKNOWN),
        }
    }
}

fn rule(name: &str) -> Option<Rule> {
    let fits = |pattern: &str| match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => name == pattern,
    };
    RULES
        .iter()
        .find(|(pattern, _)| fits(pattern))
        .map(|(_, rule)| *rule)
}

fn apply(import: &mut Import, number: usize, rule: Rule) {
    let word = import.word(number);
    match rule {
        Nothing(why) => import.none(number, why),
        Unless(value, _) | BreaksUnless(value, _) if word == value => import.none(number, DEFAULT),
        Unless(_, remedy) | Unsupported(remedy) => import.unsupported(number, remedy),
        BreaksUnless(_, remedy) | Breaks(remedy) => import.breaks(number, remedy),
    }
}

fn class(import: &mut Import) {
    let Some(number) = import.find("connector.class") else {
        import.fatal(
            "connector.class is missing: this is no configuration of a connector, or not all of it",
        );
        return;
    };
    let class = import.text(number).unwrap_or_default();
    match class.as_str() {
        "io.debezium.connector.postgresql.PostgresConnector" | "PostgresConnector" | "Postgres" => {
            import.none(number, "walrelay reads Postgres, and nothing else");
        }
        _ => {
            import.breaks(number, "walrelay reads Postgres, and nothing else");
            import.fatal("connector.class is not Debezium's connector for Postgres");
        }
    }
}

/// Debezium's tolerance drops events without a trace. Dead letters keep the flow and the events.
fn failures(import: &mut Import) {
    const REMARK: &str = "Debezium would drop an event that fails, and nobody would know. Here it \
        goes to the topic of dead letters (walrelay dlq) and the flow goes on. For `halt` remove the \
        lines; `skip` drops as Debezium does, but counts";
    if let Some(number) = import.find("errors.tolerance") {
        if import.word(number) == "all" {
            for class in ["unroutable", "oversize", "rejected", "undecodable"] {
                let letters = Toml::Text("dead-letter".to_owned());
                import.line_with(
                    "poison",
                    class,
                    letters,
                    &[number],
                    Refused::Soft,
                    Some(REMARK),
                );
            }
        } else {
            import.none(
                number,
                "an event that fails stops walrelay too, unless [poison] says otherwise",
            );
        }
    }
    if let Some(number) = import.find("event.processing.failure.handling.mode") {
        if import.word(number) == "fail" {
            import.none(
                number,
                "an event that fails stops walrelay too, unless [poison] says otherwise",
            );
        } else if import.draft.has("poison", "undecodable") {
            import.taken(number, "poison.undecodable", Some(REMARK));
        } else {
            let letters = Toml::Text("dead-letter".to_owned());
            let from = [number];
            import.line_with(
                "poison",
                "undecodable",
                letters,
                &from,
                Refused::Soft,
                Some(REMARK),
            );
        }
    }
}

fn exactly_once(import: &mut Import) {
    let Some(number) = import.find("exactly.once.support") else {
        return;
    };
    if import.word(number) == "required" {
        let once = Toml::Text("exactly-once".to_owned());
        let from = [number];
        import.line("delivery", "guarantee", once, &from, Refused::Breaks);
    } else {
        import.none(
            number,
            "it asks for nothing. If the worker has exactly.once.source.support=enabled, consumers \
             have had no duplicates so far: walrelay's at-least-once delivery repeats what was in \
             flight when it is killed",
        );
    }
}

/// The router knows inserts alone.
fn operations(import: &mut Import) {
    let Some(number) = import.find("skipped.operations") else {
        return;
    };
    let word = import.word(number);
    if word.split(',').any(|operation| operation.trim() == "c") {
        import.breaks(
            number,
            "it skips INSERT, so that nothing is relayed; walrelay relays INSERT",
        );
    } else {
        import.none(
            number,
            "the router takes INSERT alone; walrelay passes over everything else",
        );
    }
}

fn snapshot(import: &mut Import) {
    let Some(number) = import.find("snapshot.mode") else {
        import.note(
            "snapshot.mode",
            "it is not set, and Debezium's default `initial` publishes the rows that are in the table \
             when it first starts. walrelay does not: it begins where the slot stands",
        );
        return;
    };
    match import.word(number).as_str() {
        "no_data" | "never" | "schema_only" => import.none(
            number,
            "walrelay never takes a snapshot: it begins where the slot stands",
        ),
        "initial" | "when_needed" | "exported" => import.none(
            number,
            "walrelay takes no snapshot. Debezium has published the rows that were there when it \
             first started; walrelay begins where the slot stands, and repeats none of them",
        ),
        "always" => import.unsupported(
            number,
            "Debezium publishes the whole table at each start; walrelay takes no snapshots and begins \
             where the slot stands",
        ),
        "initial_only" => import.unsupported(
            number,
            "Debezium stops after the snapshot; walrelay takes none, and relays what is committed",
        ),
        _ => import.unsupported(number, "walrelay takes no snapshots, whatever the mode"),
    }
}

fn flush(import: &mut Import) {
    let Some(number) = import.find("lsn.flush.mode") else {
        return;
    };
    if import.word(number) == "manual" {
        import.unsupported(
            number,
            "Debezium leaves the slot where it is, and walrelay always moves it: whoever else moves \
             it must stop",
        );
    } else {
        import.none(
            number,
            "walrelay confirms what the broker has acknowledged, and an idle slot up to the end of \
             the log",
        );
    }
}

/// Kafka Connect's own creation of topics.
fn topics(import: &mut Import) {
    let off = import
        .find("topic.creation.enable")
        .is_some_and(|number| import.word(number) == "false");
    let mut create = Vec::new();
    for (number, option) in import.below("topic.creation.") {
        let count = import.word(number).parse::<i64>().ok();
        match option.as_str() {
            "enable" => {}
            _ if off => import.none(number, "topic.creation.enable is false"),
            "default.partitions" | "default.replication.factor" => {
                create.push(number);
                let key = if option == "default.partitions" {
                    "partitions"
                } else {
                    "replication_factor"
                };
                match count {
                    Some(-1) => import.taken(
                        number,
                        "sink.topics.create",
                        Some(
                            "-1 is the broker's default, and walrelay's when the key is not there",
                        ),
                    ),
                    Some(count) => {
                        let count = Toml::Integer(count);
                        import.line("sink.topics", key, count, &[number], Refused::Soft);
                    }
                    None => import.unsupported(number, "it is no number"),
                }
            }
            _ => import.unsupported(
                number,
                "walrelay creates topics with partitions and replicas only: create those that need \
                 more beforehand",
            ),
        }
    }
    if !create.is_empty() {
        let on = Toml::Bool(true);
        import.line("sink.topics", "create", on, &create, Refused::Soft);
    }
}

fn logging(import: &mut Import) {
    if import.kind == Kind::Connect {
        return;
    }
    if let Some(number) = import.find("quarkus.log.level") {
        let level = match import.word(number).as_str() {
            "off" | "fatal" | "severe" | "error" => "error",
            "warn" | "warning" => "warn",
            "debug" | "fine" | "config" => "debug",
            "trace" | "finer" | "finest" | "all" => "trace",
            _ => "info",
        };
        let level = Toml::Text(level.to_owned());
        import.line("log", "level", level, &[number], Refused::Soft);
    }
    let json = import
        .find("quarkus.log.console.json")
        .or_else(|| import.find("quarkus.log.console.json.enabled"));
    if let Some(number) = json {
        let format = if import.word(number) == "true" {
            "json"
        } else {
            "text"
        };
        let format = Toml::Text(format.to_owned());
        import.line("log", "format", format, &[number], Refused::Soft);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_rule_hides_another() {
        for (at, (pattern, _)) in RULES.iter().enumerate() {
            let name = pattern.trim_end_matches('*');
            let first = RULES
                .iter()
                .position(|(other, _)| match other.strip_suffix('*') {
                    Some(prefix) => name.starts_with(prefix),
                    None => name == *other,
                });
            assert_eq!(first, Some(at), "{pattern}");
        }
    }
}
