//! All other options of the connector, of Kafka Connect and of Debezium Server. Most have no
//! equivalent.

use super::Absent::{Fatal, Note};
use super::Rule::{Breaks, Call, Ignore, Set, Unsupported, When};
use super::{Rule, Rules, apply_each, rule};
use crate::input::{OUTSIDE_CONFIG, Program};
use crate::translation::Translation;

const DEFAULT: &str = "it has its default, which changes nothing";
const QUEUE: &str = "walrelay has no queue of its own in between: rows go from the socket to the \
    producer, and delivery.max_in_flight_bytes bounds the events in flight";
const HEARTBEAT: &str = "not needed: walrelay confirms an idle slot by itself, so that other tables' \
    WAL is not kept; nothing is written and nothing is published for it. Consumers of the topic of \
    heartbeats get no more of them";
const OFFSETS: &str = "the position is in the slot, and nowhere else";
const RETRIES: &str = "walrelay tries again for ever, with the pauses of delivery.backoff_initial \
    and delivery.backoff_max, where a retry can help";
const SIGNALS: &str = "walrelay makes no snapshots on request, and listens to no signals";
/// `source.snapshot` is not written: with it a missing slot would be created again, where
/// `create = false` stops the relay.
const INITIAL: &str = "Debezium has published the rows that existed when it first started; \
    walrelay starts at the slot's position, and repeats none of them. For a \
    relay without a slot yet, source.snapshot = \"initial\" does the same; it \
    is not written here, because it would recreate a missing slot, where \
    source.create = false stops with slot-missing";
const OVERRIDES: &str = "source.snapshot_where has its condition, and source.snapshot_order its \
    order, for all tables together: docs/how-to/snapshots.md";
const ROWS: &str = "it changes values in between: do it where the row is written";
const JVM: &str = "it concerns the Java process";
const RENAMES: Rule = Breaks("it renames columns");
const JDBC: &str = "no known parameter of the JDBC driver; the URL's are in \
    docs/reference/configuration.md";
const MANUAL: &str = "Debezium leaves the slot where it is, and walrelay always moves it: whoever \
    else moves it must stop";
const POSTGRES: &str = "walrelay reads Postgres, and nothing else";
const HALTS: &str = "an event that fails stops walrelay too, unless [poison] says otherwise";

/// The keys of `[poison]`.
const CLASSES: &[&str] = &["unroutable", "oversize", "rejected", "undecodable"];

/// Options whose default in Debezium matters, in the order of the report's notes.
const SETTINGS: Rules = rules! {
    "connector.class" => When(rules! {
        "io.debezium.connector.postgresql.postgresconnector|postgresconnector|postgres" =>
            Ignore(POSTGRES);
        "*" => Rule::Fatal(POSTGRES, "connector.class is not Debezium's connector for Postgres");
    }), absent Fatal(
        "connector.class is missing: this is no configuration of a connector, or not all of it");
    "errors.tolerance" => When(rules! {
        "all" => Call(|translation, number| dead_letters(translation, number, CLASSES));
        "*" => Ignore(HALTS);
    });
    "event.processing.failure.handling.mode" => When(rules! {
        "fail" => Ignore(HALTS);
        "*" => Call(|translation, number| dead_letters(translation, number, &["undecodable"]));
    });
    "exactly.once.support" => When(rules! {
        "required" => Set("delivery", "guarantee", "exactly-once");
        "*" =>
            Ignore("it asks for nothing. If the worker has exactly.once.source.support=enabled, \
                    consumers have had no duplicates so far: walrelay's at-least-once delivery \
                    repeats the events in flight when it is killed");
    });
    "skipped.operations" => Call(skipped_operations);
    "snapshot.mode" => When(rules! {
        "no_data|never|schema_only" => Set("source", "snapshot", "never");
        "initial|exported" => Ignore(INITIAL);
        "when_needed" =>
            Unsupported("Debezium reads a snapshot when its position is gone. walrelay stops with \
                         slot-missing or slot-lost, and names the missing range, because its \
                         events may be in no table any more. To read the rows again by hand: \
                         walrelay resend, or source.snapshot = \"initial\" without the slot");
        "always" =>
            Unsupported("Debezium publishes the whole table at each start. walrelay reads it before it \
                makes the slot, and never again; `walrelay resend` sends rows again when you ask");
        "initial_only" =>
            Unsupported("Debezium stops after the snapshot. walrelay goes on with the log; `walrelay \
                resend` reads the table, sends its rows and ends");
        "configuration_based|custom" =>
            Unsupported("walrelay has no such rules of when to read the table: source.snapshot is never, \
                initial or unsent");
        "*" => Unsupported("source.snapshot is never, initial or unsent: docs/how-to/snapshots.md");
    }), absent Note(
        "it is not set, and Debezium's default is `initial`: ", INITIAL);
    "lsn.flush.mode" => When(rules! {
        "manual" => Unsupported(MANUAL);
        "*" =>
            Ignore("walrelay confirms acknowledged records, and an idle slot up to the end of the \
                    log");
    });
};

/// Options for the log of Debezium Server.
const LOG: Rules = rules! {
    "quarkus.log.level" => When(rules! {
        "off|fatal|severe|error" => Set("log", "level", "error");
        "warn|warning" => Set("log", "level", "warn");
        "debug|fine|config" => Set("log", "level", "debug");
        "trace|finer|finest|all" => Set("log", "level", "trace");
        "*" => Set("log", "level", "info");
    });
    "quarkus.log.console.json" => LOG_FORMAT;
    "quarkus.log.console.json.enabled" => Call(|translation, number| {
        if !translation.draft.has("log", "format") {
            LOG_FORMAT.apply(translation, number);
        }
    });
};
const LOG_FORMAT: Rule = When(rules! {
    "true" => Set("log", "format", "json");
    "*" => Set("log", "format", "text");
});

pub(super) const RULES: Rules = rules! {
    "name" => Ignore("the connector's name is used for nothing but itself");
    "tasks.max" => Ignore("one relay reads a slot; it has no tasks");
    // Position.
    "offset.*|xmin.fetch.interval.ms|offsets.storage.topic" => Ignore(OFFSETS);
    "flush.lsn.source" => When(rules! {
        "true" => Ignore(DEFAULT);
        "*" => Unsupported(MANUAL);
    });
    "lsn.flush.timeout*" => Ignore("walrelay never stops on a slow report of its position");
    "status.update.interval.ms" => Ignore("walrelay reports at least every second");
    // Heartbeats, polling, queues.
    "heartbeat.*|topic.heartbeat.prefix" => Ignore(HEARTBEAT);
    "poll.interval.ms" => Ignore("walrelay does not poll: the server's stream wakes it up");
    "max.batch.size|max.queue.size|max.queue.size.in.bytes|record.processing.*" => Ignore(QUEUE);
    "streaming.delay.ms" => Ignore("walrelay begins at once");
    // Slot and publication.
    "slot.stream.params" =>
        Unsupported("walrelay asks pgoutput only for the parts that it needs");
    "create.slot.command.timeout" => Ignore("walrelay makes no slot here");
    "replica.identity.autoset.values" => Ignore("INSERT needs no replica identity");
    // Snapshots and signals.
    "snapshot.select.statement.overrides*" => Unsupported(OVERRIDES);
    "snapshot.include.collection.list" =>
        Unsupported("a snapshot has all of source.tables; source.snapshot_where can leave rows out");
    "snapshot.isolation.mode" => When(rules! {
        "read_uncommitted|read_committed" =>
            Unsupported("walrelay reads all rows as of one moment, from which the log goes on");
        "*" => Ignore("walrelay reads all rows as of one moment, from which the log goes on");
    });
    "snapshot.locking.mode" => Ignore("walrelay locks nothing for a snapshot");
    "snapshot.mode.*" =>
        Unsupported("source.snapshot is never, initial or unsent: docs/how-to/snapshots.md");
    "snapshot.delay.ms|snapshot.fetch.size|snapshot.max.threads*|snapshot.lock.timeout.ms" =>
        Ignore("walrelay reads the tables one after the other, as fast as Kafka accepts their rows");
    "snapshot.*" => Unsupported("no option of walrelay's snapshots: docs/how-to/snapshots.md");
    "incremental.snapshot.*|read.only" => Ignore(SIGNALS);
    "signal.*" => Unsupported(SIGNALS);
    "notification.*" => Unsupported("walrelay sends no notifications; its log has the progress");
    // What is captured.
    "table.exclude.list|table.blacklist|schema.exclude.list" =>
        Unsupported("the tables are named one by one in source.tables");
    "schema.include.list|schema.whitelist" =>
        Ignore("source.tables names the tables with their schemas");
    "column.include.list|column.exclude.list" =>
        Ignore("walrelay reads the columns that the router needs, and no others");
    "column.mask.*|column.truncate.*" => Breaks(ROWS);
    "column.propagate.source.type|datatype.propagate.source.type" =>
        Breaks("it adds parameters to schemas, and walrelay's have none of them");
    "message.key.columns" => Ignore("the router reads the key from table.field.event.key");
    "skip.messages.without.change" => Ignore("it concerns UPDATE, which the router drops");
    "tombstones.on.delete" => Ignore("the router drops the records of DELETE, tombstones too");
    "message.prefix.*" =>
        Unsupported("messages of pg_logical_emit_message are relayed where [source.messages] in \
            docs/reference/configuration.md says so, by a prefix and in a form of its own");
    "provide.transaction.metadata" => When(rules! {
        "false" => Ignore(DEFAULT);
        "*" => Unsupported("nothing is published to the topic of transactions");
    });
    "topic.transaction|transaction.topic" => Ignore("there is no topic of transactions");
    // Names and schemas.
    "topic.naming.strategy" => When(rules! {
        "io.debezium.schema.schematopicnamingstrategy" => Ignore(DEFAULT);
        "*" =>
            Breaks("the router names the topics, but its envelopes' schemas have names by this \
                strategy");
    });
    "topic.delimiter" => When(rules! {
        "." => Ignore(DEFAULT);
        "*" =>
            Breaks("the router names the topics, but its envelopes' schemas have names with this \
                sign");
    });
    "topic.cache.size" => Ignore("the router names the topics");
    "schema.refresh.mode|schema.history.*" =>
        Ignore("walrelay learns of a table's columns from the stream itself");
    "field.name.adjustment.mode" => When(rules! {
        "none" => Ignore(DEFAULT);
        "*" => RENAMES;
    });
    "sanitize.field.names" => When(rules! {
        "false" => Ignore(DEFAULT);
        "*" => RENAMES;
    });
    "source.struct.version" => Ignore("the router's records have no source block");
    "event.converting.failure.handling.mode" =>
        Ignore("walrelay's policy for such events is [poison]");
    "converters" =>
        Breaks("converters of columns are Java code: cast in the database, say by a generated \
            column");
    "post.processors*" =>
        Breaks("post-processors are Java code: do their work where the row is written");
    // Failures.
    "errors.max.retries|errors.retry.*|retriable.restart.connector.wait.ms|restart.*|\
        slot.max.retries|slot.retry.delay.ms" => Ignore(RETRIES);
    "errors.log.*" => Ignore("walrelay logs each event that it cannot deliver, without its values");
    "errors.deadletterqueue.*" =>
        Ignore("Kafka Connect has it for sinks only; walrelay's dead letters are in [poison]");
    "transaction.boundary*" => Ignore("it belongs to exactly-once delivery in Kafka Connect");
    // Database.
    "database.query.timeout.ms" => Ignore("walrelay's own queries are a few looks at the catalogs");
    "database.tcpKeepAlive|driver.tcpKeepAlive" => Ignore("walrelay does this anyway");
    "database.sslpassword" =>
        Unsupported("encrypted keys are not read: decrypt it, and protect it by its permissions");
    "database.sslfactory" =>
        Unsupported("it is Java code; sslmode, sslrootcert, sslcert and sslkey replace it");
    "database.initial.statements" => Unsupported("set it for the role: ALTER ROLE … SET …");
    "database.*|driver.*" => Unsupported(JDBC);
    "connection.validation.timeout.ms" => Ignore("it concerns the check before a connector starts");
    "internal.*" => Unsupported("it is an internal option of Debezium's");
    "guardrail.*" => Ignore("it bounds the number of captured tables; here they are named");
    "custom.metric.tags" => Ignore("there are no JMX metrics");
    "openlineage.*" => Unsupported("walrelay sends nothing to OpenLineage");
    // Kafka Connect.
    "config.action.reload" => Ignore("references are looked up when walrelay starts");
    "header.converter*" => Ignore(DEFAULT);
    "topic.creation.enable" => Ignore("sink.topics.create says so");
    "worker.*" => Ignore("it concerns the worker, not the connector's records");
    // Debezium Server.
    "consumer" => Ignore("there is one consumer, Kafka");
    "termination.wait" => Ignore("delivery.drain_timeout limits the time of a stop");
    "api.*" => Ignore("walrelay has no such interface");
    "predicates*" => Ignore("no transform that is taken over asks for a predicate");
    "format.*" => Ignore("no converter has such an option");
    "quarkus.http.*" =>
        Ignore("it is about Debezium Server's own HTTP interface; walrelay's would be [http], \
            which is off unless it is configured");
    "quarkus.log.*" => Ignore("log.level and log.format are all that there is");
    "engine.factory|metrics.*|quarkus.*|executor.shutdown.timeout.ms" => Ignore(JVM);
};

pub(super) fn apply(translation: &mut Translation<'_>) {
    apply_each(translation, SETTINGS);
    topics(translation);
    if translation.program == Program::Server {
        apply_each(translation, LOG);
    }
    let converters = translation.text_of("converters");
    let of_converter = |name: &str| {
        let mut owners = converters.split(',').map(str::trim);
        owners.any(|owner| {
            name.strip_prefix(owner)
                .is_some_and(|rest| rest.starts_with('.'))
        })
    };
    for (number, name) in translation.below("") {
        if let Some(member) = name.strip_prefix(OUTSIDE_CONFIG) {
            let why = format!("`{member}` beside the configuration says nothing about it");
            translation.ignored(number, why);
        } else if !converters.is_empty() && of_converter(&name) {
            let why = "it belongs to a converter of columns, see `converters`";
            translation.unsupported(number, why);
        } else if let Some(rule) = rule(RULES, &name) {
            rule.apply(translation, number);
        }
    }
}

/// Writes `dead-letter` for these kinds of poison. Debezium's tolerance drops events without a
/// trace; dead letters keep them.
fn dead_letters(translation: &mut Translation<'_>, number: usize, classes: &[&str]) {
    const REMARK: Option<&str> = Some(
        "Debezium would drop an event that fails, and no one would notice. Here it goes to the topic \
         of dead letters (walrelay dlq) and the flow goes on. For `halt` remove the lines; `skip` \
         drops as Debezium does, but counts",
    );
    for class in classes {
        if translation.draft.has("poison", class) {
            translation.taken(number, &format!("poison.{class}"), REMARK);
        } else {
            let policy = super::literal("dead-letter");
            translation.write("poison", class, policy, &[number], REMARK);
        }
    }
}

/// Translates the setting that skips operations: the router relays only INSERT.
fn skipped_operations(translation: &mut Translation<'_>, number: usize) {
    let word = translation.word(number);
    let rule = if word.split(',').any(|operation| operation.trim() == "c") {
        Breaks("it skips INSERT, so that nothing is relayed; walrelay relays INSERT")
    } else {
        Ignore("the router reads only INSERT; walrelay passes over everything else")
    };
    rule.apply(translation, number);
}

/// Translates Kafka Connect's options for the creation of topics.
fn topics(translation: &mut Translation<'_>) {
    const KEYS: &[(&str, &str)] = &[
        ("default.partitions", "partitions"),
        ("default.replication.factor", "replication_factor"),
    ];
    const DEFAULT: &str = "-1 is the broker's default, and walrelay's when the key is not there";
    let off = translation
        .text_of("topic.creation.enable")
        .eq_ignore_ascii_case("false");
    let mut create = Vec::new();
    for (number, option) in translation.below("topic.creation.") {
        if option == "enable" {
            continue;
        }
        if off {
            translation.ignored(number, "topic.creation.enable is false");
            continue;
        }
        let Some(key) = super::lookup(KEYS, &option) else {
            let why = "walrelay creates topics with partitions and replicas only: create those \
                that need more beforehand";
            translation.unsupported(number, why);
            continue;
        };
        create.push(number);
        match translation.word(number).parse::<i64>() {
            Ok(-1) => translation.taken(number, "sink.topics.create", Some(DEFAULT)),
            Ok(count) => translation.write("sink.topics", key, count.to_string(), &[number], None),
            Err(_) => translation.unsupported(number, "it is no number"),
        }
    }
    if !create.is_empty() {
        translation.write("sink.topics", "create", "true".to_owned(), &create, None);
    }
}
