//! `walrelay route`: shows the record that the router makes of a row, or of each event of a message.

mod row;
mod types;

use std::io;
use std::path::Path;

use walrelay_event_router::{
    BatchEvent, BatchPlace, Event, MessageHeaders, Messages, RouteError, Routed, Router, Row,
    ValueFormat, ValueSchema,
};
use walrelay_failure::{Exit, Failure};
use walrelay_lsn::Lsn;
use walrelay_observe::wall_clock;
use walrelay_pgoutput::{Insert, Message, decode};
use walrelay_relay::{PoisonAction, TableName};
use walrelay_sink::Poison;

use crate::cli::{Form, RouteArgs};
use crate::commands::assembly::{poison_policy, router};
use crate::commands::{CommandResult, EnvVars, load, print_bytes};
use crate::config::PipelineConfig;
use crate::failures;
use crate::json;
use crate::sinks::record_line;
use row::FileRow;

/// Runs `walrelay route`.
pub(crate) fn route(args: &RouteArgs, env: EnvVars<'_>) -> CommandResult {
    let config = load(&args.config, env)?.pipeline;
    let (mut router, messages) = router(&config)?;
    let mut shown = Shown {
        config: &config,
        form: args.output,
        out: Vec::new(),
    };
    let failures = match (&args.row, &args.message) {
        (_, Some(path)) => shown.message(&mut router, messages, &read_file(path, "message")?)?,
        (Some(path), None) => {
            let row = read_row(path, &args.types)?;
            shown.row(&mut router, &row)?.into_iter().collect()
        }
        (None, None) => unreachable!("clap wants one of them"),
    };
    print_bytes(&shown.out)?;
    if failures.is_empty() {
        Ok(())
    } else {
        Err(failures)
    }
}

/// The output of the command.
struct Shown<'c> {
    config: &'c PipelineConfig,
    form: Form,
    out: Vec<u8>,
}

/// The reason why no record is made, and its class for the poison policy.
type Refusal = (Option<Poison>, String);

impl Shown<'_> {
    fn row(&mut self, router: &mut Router, row: &FileRow) -> Result<Option<Failure>, Failure> {
        // With `[source.messages]`, the configuration may name no table.
        let table = self.config.source.tables.first().cloned();
        let table = table.unwrap_or_else(|| TableName {
            schema: "public".to_owned(),
            name: "outbox".to_owned(),
        });
        let (relation, insert) = (row.relation(&table), row.insert());
        if let Some(facts) = row.facts(&table) {
            router.describe(vec![facts]);
        }
        if let Message::Relation(relation) = decoded(&relation)? {
            router
                .relation(&relation)
                .map_err(|error| failures::plan("the row cannot be routed", error))?;
        }
        let Message::Insert(insert) = decoded(&insert)? else {
            unreachable!("an Insert message was made")
        };
        let refusal = self.record(router, &insert, None, &event(0))?;
        Ok(refusal.map(|refusal| self.failure_of("the row cannot be routed", refusal)))
    }

    /// Shows the record of each event of a logical message.
    fn message(
        &mut self,
        router: &mut Router,
        messages: Option<Messages>,
        content: &str,
    ) -> Result<Vec<Failure>, Failure> {
        let Some(mut messages) = messages else {
            let what = "messages are no events of this configuration";
            let remedy = "set prefix in [source.messages]";
            return Err(Failure::new("row-file", Exit::Usage, what).remedy(remedy));
        };
        let announced = messages.announce(router);
        announced.map_err(|error| failures::plan("the message cannot be routed", error))?;
        let content = content.as_bytes();
        if !BatchEvent::are_in(content) {
            let event = event(0);
            let refusal = match messages.read(content, event.commit_time) {
                Ok(row) => self.record(router, &row.insert, Some(row.headers), &event)?,
                Err(error) => Some((Some(error.poison()), error.to_string())),
            };
            let what = "the message cannot be routed";
            return Ok(Vec::from_iter(
                refusal.map(|refusal| self.failure_of(what, refusal)),
            ));
        }
        let (mut failures, mut place) = (Vec::new(), BatchPlace::default());
        for number in 0.. {
            let Some(part) = BatchEvent::at(content, place) else {
                break;
            };
            place = part.next();
            let event = event(number);
            let refusal = match messages.read_event(&part, event.commit_time) {
                Ok(row) => self.record(router, &row.insert, Some(row.headers), &event)?,
                Err(error) => Some((Some(error.poison()), error.to_string())),
            };
            let what = format!("event {} of the message cannot be routed", number + 1);
            failures.extend(refusal.map(|refusal| self.failure_of(&what, refusal)));
        }
        Ok(failures)
    }

    /// Shows the record of a row; returns why there is none.
    fn record<'a>(
        &mut self,
        router: &mut Router,
        insert: &Insert<'a>,
        headers: Option<MessageHeaders<'a>>,
        event: &Event,
    ) -> Result<Option<Refusal>, Failure> {
        learn_schema(router, self.config, insert, event)?;
        let mut row = Row::default();
        if let Err(error) = router.read(insert.relation, &insert.tuple, event, &mut row) {
            return Ok(Some((error.poison(), error.to_string())));
        }
        let mut routed = router.routed(&row);
        routed.add_headers(headers.iter().flat_map(MessageHeaders::iter));
        let record = routed.record();
        let destination = match self.config.sink.destination(&record) {
            Ok(destination) => destination,
            Err(why) => return Ok(Some((Some(Poison::Unroutable), why))),
        };
        let out = &mut self.out;
        match self.form {
            Form::Json => {
                record_line(out, &record);
                add_destination(out, &destination);
            }
            Form::Text => {
                if !out.is_empty() {
                    out.push(b'\n');
                }
                describe(out, &routed, &destination, router.subject());
            }
        }
        Ok(None)
    }

    /// Returns the failure of an event without a record, and shows it as JSON.
    fn failure_of(&mut self, what: &str, (poison, why): Refusal) -> Failure {
        let [class, policy, action] = policy(self.config, poison);
        if self.form == Form::Json {
            for (start, text) in [
                ("{\"error\":", &*why),
                (",\"class\":", class),
                (",\"policy\":", policy),
            ] {
                self.out.extend_from_slice(start.as_bytes());
                json::string(&mut self.out, text);
            }
            self.out.extend_from_slice(b"}\n");
        }
        // The id is the key of the policy, as with `walrelay run`.
        let id = poison.map_or("unroutable", Poison::name);
        let failure = Failure::new(id, Exit::Data, what);
        failure.caused_by(why).remedy(format!(
            "its class is {class}: with [poison] {class} = \"{policy}\", `walrelay run` {action}"
        ))
    }
}

/// Returns the place of a row or message in the log, as if it were committed now.
fn event(row: u64) -> Event {
    Event {
        epoch: 0,
        commit_lsn: Lsn::new(0),
        row,
        commit_time: wall_clock(),
    }
}

/// Gives the router the schema of the configuration that the row needs. Its id is 0: only the
/// registry knows ids.
fn learn_schema(
    router: &mut Router,
    config: &PipelineConfig,
    insert: &Insert<'_>,
    event: &Event,
) -> Result<(), Failure> {
    let Some(registry) = &config.registry else {
        return Ok(());
    };
    let read = router.read(insert.relation, &insert.tuple, event, &mut Row::default());
    let Err(RouteError::UnknownSchema { subject }) = read else {
        return Ok(());
    };
    let schema = match (registry.wire.format, registry.schemas.get(&subject)) {
        (ValueFormat::Json, _) => ValueSchema::json(0),
        (ValueFormat::Avro, Some(file)) => ValueSchema::avro(0, &file.text)
            .map_err(|problem| failures::schema_file(&subject).caused_by(problem))?,
        (ValueFormat::Avro, None) => return Err(failures::schema_file(&subject)),
    };
    router.learn(&subject, schema);
    Ok(())
}

fn read_file(path: &Path, kind: &str) -> Result<String, Failure> {
    let read = if path.as_os_str() == "-" {
        io::read_to_string(io::stdin())
    } else {
        std::fs::read_to_string(path)
    };
    read.map_err(|error| {
        let what = format!("cannot read the {kind} in {}", path.display());
        let failure = Failure::new("row-file", Exit::Usage, what).caused_by(error);
        failure.remedy(format!(
            "name a file with --{kind}, or - for standard input; it is UTF-8"
        ))
    })
}

fn read_row(path: &Path, types: &[(String, String)]) -> Result<FileRow, Failure> {
    let text = read_file(path, "row")?;
    let failure = |what| Failure::new("row-file", Exit::Usage, what);
    FileRow::read(&text, types).map_err(|why| {
        failure(format!(
            "the row in {} cannot be used: {why}",
            path.display()
        ))
        .remedy(
            "a row is a JSON object, such as {\"id\": 1, \"payload\": {\"a\": 1}, \"$types\": \
             {\"id\": \"bigint\"}}; types may also be given with --type column=type",
        )
    })
}

/// Decodes a message that was encoded from the row's file.
fn decoded(message: &[u8]) -> Result<Message<'_>, Failure> {
    decode(message).map_err(|error| {
        Failure::new(
            "row-file",
            Exit::Usage,
            "the row has no form that Postgres could send",
        )
        .caused_by(error)
        .remedy("shorten the row: the cause names its part")
    })
}

/// Returns the class of a row that cannot be routed, its policy in `[poison]`, and what `run` would
/// do.
fn policy(config: &PipelineConfig, class: Option<Poison>) -> [&'static str; 3] {
    let policy = poison_policy(config, None);
    let action = class.map_or(PoisonAction::Halt, |class| policy.action(class));
    let (policy, action) = match action {
        PoisonAction::Halt => ("halt", "would stop at it"),
        PoisonAction::DeadLetter => ("dead-letter", "would write a dead letter and go on"),
        PoisonAction::Skip => ("skip", "would pass it over"),
    };
    [class.map_or("none", Poison::name), policy, action]
}

/// Adds the destination to the line of a record, unless it is the topic, which the line has.
fn add_destination(out: &mut Vec<u8>, destination: &[(&str, String)]) {
    if matches!(destination, [("topic", _)]) || !out.ends_with(b"}\n") {
        return;
    }
    out.truncate(out.len() - 2);
    let mut start = ",\"destination\":{";
    for (name, text) in destination {
        out.extend_from_slice(std::mem::replace(&mut start, ",").as_bytes());
        json::string(out, &name.to_lowercase().replace(' ', "_"));
        out.push(b':');
        json::string(out, text);
    }
    out.extend_from_slice(b"}}\n");
}

/// Writes a line for each part of the record.
fn describe(
    out: &mut Vec<u8>,
    routed: &Routed<'_>,
    destination: &[(&str, String)],
    subject: Option<&str>,
) {
    let record = routed.record();
    let mut part = |name: &str, text: &str| {
        out.extend_from_slice(format!("{:<10} {text}\n", format!("{name}:")).as_bytes());
    };
    let number = |number: Option<String>, absent: &str| number.unwrap_or(absent.to_owned());
    for (name, text) in destination {
        part(name, &readable(text.as_bytes()));
    }
    let partition = record.partition.map(|partition| partition.to_string());
    part("partition", &number(partition, "(by the key)"));
    let timestamp = record.timestamp_ms.map(|millis| millis.to_string());
    part("timestamp", &number(timestamp, "(time of production)"));
    part("key", &nullable(record.key));
    for header in record.headers {
        let name = readable(header.name.as_bytes());
        part("header", &format!("{name}: {}", nullable(header.value)));
    }
    part("value", &nullable(record.value));
    if let Some(subject) = subject {
        let subject = readable(subject.as_bytes());
        let text = format!("subject {subject}; its id, which the registry has, is 0 here");
        part("schema", &text);
    }
}

fn nullable(bytes: Option<&[u8]>) -> String {
    bytes.map_or_else(|| "(null)".to_owned(), readable)
}

/// Returns text as it is; bytes that are not UTF-8 or have control characters as in JSON.
fn readable(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(char::is_control) => text.to_owned(),
        _ => {
            let mut out = Vec::new();
            json::bytes(&mut out, Some(bytes));
            String::from_utf8_lossy(&out).into_owned()
        }
    }
}
