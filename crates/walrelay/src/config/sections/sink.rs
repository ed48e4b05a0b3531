//! `[sink]`, `[sink.stdout]`, `[sink.topics]` and `[sink.oauthbearer]`.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;
use walrelay_settings::{
    AlreadyReported, MINUTE, Reader, SECOND, Section, boolean, choice, duration, integer, path,
    section, strings,
};

use super::kafka::{self, KafkaProperties};

/// `[sink]`.
#[derive(Debug, Clone)]
pub enum SinkConfig {
    /// Kafka.
    Kafka(KafkaSink),
    /// Standard output, one JSON object per line.
    Stdout {
        /// Whether the slot itself is read, and printed events are confirmed in it.
        confirm: bool,
    },
}

/// `[sink.kafka]` and `[sink.topics]`.
#[derive(Debug, Clone)]
pub struct KafkaSink {
    /// Properties of librdkafka.
    pub properties: KafkaProperties,
    /// Whether and how topics are created.
    pub topics: TopicCreation,
    /// Where OAUTHBEARER tokens come from; `None`: no tokens.
    pub bearer: Option<Bearer>,
}

/// `[sink.oauthbearer]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bearer {
    /// Where a token comes from.
    pub origin: TokenOrigin,
    /// Validity of a token that has no claim `exp`.
    pub lifetime: Option<Duration>,
    /// Timeout of the command.
    pub timeout: Duration,
}

/// Where a token comes from.
#[derive(Clone, PartialEq, Eq)]
pub enum TokenOrigin {
    /// The content of this file.
    File(PathBuf),
    /// The output of a command: the program and its arguments. Not empty.
    Command(Vec<String>),
}

/// Without a program's arguments, which may be secrets.
impl fmt::Debug for TokenOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
            Self::Command(argv) => {
                let program = argv.first().map_or("", String::as_str);
                f.debug_tuple("Command")
                    .field(&program)
                    .finish_non_exhaustive()
            }
        }
    }
}

#[derive(Clone, Copy)]
pub(super) enum SinkKind {
    Kafka,
    Stdout,
}

const KINDS: &[(&str, SinkKind)] = &[("kafka", SinkKind::Kafka), ("stdout", SinkKind::Stdout)];

section! {
pub(super) struct Keys at "sink" {
    /// Where records go.
    "kind" kind: SinkKind = choice(KINDS).or("kafka");
    /// Whether `kind = "stdout"` reads the slot itself and confirms what it prints.
    "stdout.confirm" confirm: bool = boolean().or("false");
}
}

section! {
pub(super) struct Tokens at "sink.oauthbearer" {
    /// A file of the token, renewed by another program. This or `token_command`.
    "token_file" file: Option<PathBuf> = path().optional();
    /// A program, run without a shell, that prints a token, and its arguments.
    "token_command" command: Vec<String> = strings().or_empty();
    /// How long the program may take, 100ms to 1m.
    "token_timeout" timeout: Duration = duration(Duration::from_millis(100)..=MINUTE).or("10s");
    /// How long a token is valid, at least 1s, where it is not a JWT with the claim `exp`.
    "token_lifetime" lifetime: Option<Duration> = duration(SECOND..).optional();
}
}

section! {
/// `[sink.topics]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopicCreation at "sink.topics" {
    /// Whether the relay creates topics; otherwise the broker may.
    "create" create: bool = boolean().or("false");
    /// Of a topic that is created. Unset: the broker's default.
    "partitions" partitions: Option<i32> = integer::<i32>(1..=100_000).optional();
    /// The same.
    "replication_factor" replication_factor: Option<i16> = integer::<i16>(1..=1_000).optional();
}
}

pub(super) fn sink(reader: &mut Reader<'_>) -> Result<SinkConfig, AlreadyReported> {
    let keys = Keys::read(reader);
    let properties = kafka::properties(reader);
    let bearer = bearer(reader);
    let topics = topics(reader);
    let keys = keys?;
    Ok(match keys.kind {
        // Kafka's settings are not checked: they may stay in the file while the sink is standard
        // output.
        SinkKind::Stdout => SinkConfig::Stdout {
            confirm: keys.confirm,
        },
        SinkKind::Kafka => {
            kafka::check(reader, &properties);
            SinkConfig::Kafka(KafkaSink {
                properties,
                topics: topics?,
                bearer: bearer?,
            })
        }
    })
}

fn topics(reader: &mut Reader<'_>) -> Result<TopicCreation, AlreadyReported> {
    let topics = TopicCreation::read(reader)?;
    if !topics.create {
        for path in ["sink.topics.partitions", "sink.topics.replication_factor"] {
            reader.no_effect(path, "while `sink.topics.create` is false");
        }
    }
    Ok(topics)
}

/// Reads the section; `None` if it is absent. The file is not opened and the program not run,
/// because tokens expire.
fn bearer(reader: &mut Reader<'_>) -> Result<Option<Bearer>, AlreadyReported> {
    let [file, command] = [
        "sink.oauthbearer.token_file",
        "sink.oauthbearer.token_command",
    ];
    let tokens = Tokens::read(reader)?;
    if tokens.command.first().is_some_and(String::is_empty) {
        let what = format!("the first word of `{command}` is the program");
        return Err(reader.conflict(command, what));
    }
    let origin = match (tokens.file, tokens.command) {
        (None, command) if command.is_empty() => {
            let path = "sink.oauthbearer.token_lifetime";
            reader.no_effect(path, "without `token_file` or `token_command`");
            return Ok(None);
        }
        (None, command) => TokenOrigin::Command(command),
        (Some(file), command) if command.is_empty() => TokenOrigin::File(file),
        (Some(_), _) => return Err(reader.both(file, command)),
    };
    Ok(Some(Bearer {
        origin,
        lifetime: tokens.lifetime,
        timeout: tokens.timeout,
    }))
}
