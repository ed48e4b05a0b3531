//! The columns of an outbox table that has those of no preset: from options, recognised by their names, or asked for.

use std::fmt::Write as _;

use walrelay_failure::{Exit, Failure, nearest};
use walrelay_postgres_source::OutboxCandidate;

use super::{Ask, quoted};
use crate::cli::EventPart::{Aggregate, Id, Key, Payload, Topic, Type};
use crate::cli::{EventPart, PartColumn};
use crate::commands::print_notice;

/// The parts that an event needs. A row has the first one of an item, or another.
const NEEDED: [(&[EventPart], &str, &str); 4] = [
    (&[Id], "the event's id", "--column id=…"),
    (
        &[Topic, Aggregate],
        "the topic, or of a part of it",
        "--column topic=… or aggregate=…",
    ),
    (&[Key], "the key, per which order is kept", "--column key=…"),
    (&[Payload], "the payload", "--column payload=…"),
];

/// Returns the usual names of a part's column, in lower case and without underscores.
const fn usual_names(part: EventPart) -> &'static [&'static str] {
    match part {
        Id => &["id", "eventid", "messageid", "uuid", "eventuuid", "guid"],
        Topic => &["topic", "topicname"],
        Aggregate => &[
            "aggregatetype",
            "aggregate",
            "entitytype",
            "eventtype",
            "messagetype",
            "type",
            "eventname",
        ],
        Key => &[
            "aggregateid",
            "key",
            "partitionkey",
            "messagekey",
            "eventkey",
            "recordkey",
            "entityid",
        ],
        Payload => &[
            "payload",
            "data",
            "eventdata",
            "body",
            "message",
            "value",
            "content",
        ],
        Type => &["type", "eventtype", "messagetype", "eventname"],
    }
}

/// Returns the column that has the most usual name of a part.
fn by_name(part: EventPart, columns: &[String]) -> Option<PartColumn> {
    let plain = |column: &str| column.replace('_', "").to_lowercase();
    let mut names = usual_names(part).iter();
    let column = names.find_map(|name| columns.iter().find(|column| plain(column) == *name))?;
    Some(PartColumn {
        part,
        column: column.clone(),
    })
}

fn by_name_of_any(parts: &[EventPart], columns: &[String]) -> Option<PartColumn> {
    parts.iter().find_map(|part| by_name(*part, columns))
}

/// Refuses two options for one part, of which one would be ignored.
pub(super) fn check_options(options: &[PartColumn]) -> Result<(), Failure> {
    let groups = NEEDED.iter().map(|(parts, ..)| *parts);
    for parts in groups.chain([&[Type][..]]) {
        let named = options.iter().filter(|option| parts.contains(&option.part));
        let columns: Vec<&str> = named.map(|option| &*option.column).collect();
        if columns.len() > 1 {
            let what = format!(
                "the columns {} are named for one part of an event",
                columns.join(", ")
            );
            let failure = Failure::new("new-column", Exit::Usage, what);
            return Err(failure.remedy("name one of them (topic and aggregate are one part)"));
        }
    }
    Ok(())
}

/// Returns the columns of the table: those of the options, else the answers at a terminal, else those with
/// usual names.
pub(super) fn table_columns(
    outbox: &OutboxCandidate,
    options: &[PartColumn],
    ask: Ask<'_>,
) -> Result<Vec<PartColumn>, Failure> {
    let columns = &outbox.columns;
    if let Some(option) = options
        .iter()
        .find(|option| !columns.contains(&option.column))
    {
        return Err(unknown_column(outbox, &option.column));
    }
    let option_of = |parts: &[EventPart]| {
        let mut named = options.iter();
        named.find(|option| parts.contains(&option.part)).cloned()
    };
    let mut named = Vec::new();
    for (parts, purpose, option) in NEEDED {
        if let Some(option) = option_of(parts) {
            named.push(option);
            continue;
        }
        named.push(asked(outbox, parts, purpose, ask).ok_or_else(|| {
            let what = format!(
                "nothing says which column of {} is that of {purpose}",
                outbox.table
            );
            Failure::new("new-unknown", Exit::Usage, what).remedy(format!(
                "name it with {option}, or answer the question at a terminal; the columns are {}",
                columns.join(", ")
            ))
        })?);
    }
    named.extend(option_of(&[Type]).or_else(|| by_name(Type, columns)));
    Ok(named)
}

/// Asks for the column of a part until the answer is one. Without an answer it is the one with a usual name.
fn asked(
    outbox: &OutboxCandidate,
    parts: &[EventPart],
    purpose: &str,
    ask: Ask<'_>,
) -> Option<PartColumn> {
    let usual = by_name_of_any(parts, &outbox.columns);
    let columns = match &usual {
        Some(usual) => format!("[{}]", usual.column),
        None => format!("({})", outbox.columns.join(", ")),
    };
    let question = format!("Column of {purpose} {columns}: ");
    loop {
        let Some(column) = ask(&question).filter(|answer| !answer.is_empty()) else {
            return usual;
        };
        if !outbox.columns.contains(&column) {
            print_notice(&unknown_column(outbox, &column).what);
            continue;
        }
        let usual = by_name_of_any(parts, std::slice::from_ref(&column));
        let part = match (usual, parts) {
            (Some(usual), _) => usual.part,
            (None, [Topic, ..]) if is_whole_topic(&column, ask) => Topic,
            (None, parts) => *parts.last()?,
        };
        return Some(PartColumn { part, column });
    }
}

fn is_whole_topic(column: &str, ask: Ask<'_>) -> bool {
    let question = format!(
        "Is {column} the whole name of a topic? Otherwise an event with {column} = order goes to outbox.event.order. \
         [y/N]: "
    );
    ask(&question).is_some_and(|answer| matches!(&*answer.to_lowercase(), "y" | "yes"))
}

fn unknown_column(outbox: &OutboxCandidate, column: &str) -> Failure {
    let names = || outbox.columns.iter().map(String::as_str);
    let meant = nearest(column, names()).map(|name| format!("; did you mean {name:?}?"));
    let what = format!(
        "table {} has no column {column:?}{}",
        outbox.table,
        meant.unwrap_or_default()
    );
    Failure::new("new-column", Exit::Usage, what)
        .remedy(format!("the columns are {}", outbox.columns.join(", ")))
}

/// Makes `[router.debezium]` of the columns; nothing without any.
pub(super) fn section(columns: &[PartColumn]) -> String {
    if columns.is_empty() {
        return String::new();
    }
    let mut text = "# The columns of the table.\n[router.debezium]\n".to_owned();
    for PartColumn { part, column } in columns {
        let key = match part {
            Id => "table.field.event.id",
            Topic | Aggregate => "route.by.field",
            Key => "table.field.event.key",
            Payload => "table.field.event.payload",
            Type => "table.field.event.type",
        };
        let _ = writeln!(text, "{} = {}", quoted(key), quoted(column));
        let topic = match part {
            Topic => "${routedByValue}",
            Aggregate => "outbox.event.${routedByValue}",
            Id | Key | Payload | Type => continue,
        };
        let _ = writeln!(text, "\"route.topic.replacement\" = {}", quoted(topic));
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use walrelay_relay::TableName;

    fn table(columns: &str) -> OutboxCandidate {
        OutboxCandidate {
            table: TableName::new("app", "events"),
            is_logged: true,
            preset: None,
            columns: columns.split(' ').map(str::to_owned).collect(),
        }
    }

    /// No terminal.
    fn nobody(_: &str) -> Option<String> {
        None
    }

    #[test]
    fn columns_are_told_by_usual_names() {
        for (columns, expected) in [
            (
                "event_id topic order_id key body",
                [
                    "\"table.field.event.id\" = \"event_id\"",
                    "\"route.by.field\" = \"topic\"",
                    "\"route.topic.replacement\" = \"${routedByValue}\"",
                    "\"table.field.event.key\" = \"key\"",
                    "\"table.field.event.payload\" = \"body\"",
                ],
            ),
            (
                "MessageId EventType AggregateId Data",
                [
                    "\"table.field.event.id\" = \"MessageId\"",
                    "\"route.by.field\" = \"EventType\"",
                    "\"route.topic.replacement\" = \"outbox.event.${routedByValue}\"",
                    "\"table.field.event.key\" = \"AggregateId\"",
                    "\"table.field.event.payload\" = \"Data\"",
                ],
            ),
        ] {
            let table = table(columns);
            let text = section(&table_columns(&table, &[], &nobody).expect("told"));
            let lines: Vec<&str> = text.lines().skip(2).take(5).collect();
            assert_eq!(lines, expected, "{text}");
        }
    }

    #[test]
    fn options_name_the_columns_that_no_name_tells() {
        let table = table("nr kind order_id doc");
        let option = |text: &str| text.parse::<PartColumn>().expect("an option");
        let failed = table_columns(
            &table,
            &[option("id=nr"), option("aggregate=kind")],
            &nobody,
        );
        let failed = failed.expect_err("no key");
        assert_eq!(failed.id, "new-unknown");
        assert!(failed.remedy.expect("a remedy").contains("--column key=…"));
        let failed =
            table_columns(&table, &[option("key=orderid")], &nobody).expect_err("no column");
        assert!(
            failed.what.contains("did you mean \"order_id\"?"),
            "{failed:?}"
        );
        let options = [
            "id=nr",
            "key=order_id",
            "topic=kind",
            "payload=doc",
            "type=kind",
        ];
        let columns = table_columns(&table, &options.map(option), &nobody).expect("all are named");
        let columns: Vec<&str> = columns
            .iter()
            .map(|column| column.column.as_str())
            .collect();
        assert_eq!(columns, ["nr", "kind", "order_id", "doc", "kind"]);
        for twice in [["key=doc", "key=order_id"], ["topic=kind", "aggregate=doc"]] {
            let failed = check_options(&twice.map(option)).expect_err("one would be ignored");
            assert_eq!(failed.id, "new-column");
        }
        check_options(&options.map(option)).expect("each part once");
        for text in ["key", "key=", "body=x", "=x"] {
            let error = text.parse::<PartColumn>().expect_err(text);
            assert!(
                error.ends_with("id, topic, aggregate, key, payload, type"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_column_with_an_unusual_name_has_the_whole_topic_only_by_a_yes() {
        let table = table("id kafka_topic key payload");
        for (answer, part) in [("y", Topic), ("", Aggregate)] {
            let ask = |question: &str| {
                let is_topic = question.starts_with("Column of the topic");
                let is_whole = question.starts_with("Is kafka_topic the whole name");
                Some(
                    if is_topic {
                        "kafka_topic"
                    } else if is_whole {
                        answer
                    } else {
                        ""
                    }
                    .to_owned(),
                )
            };
            let columns = table_columns(&table, &[], &ask).expect("all are told");
            assert_eq!(
                (columns[1].part, &*columns[1].column),
                (part, "kafka_topic")
            );
        }
    }

    #[test]
    fn answers_name_the_columns_and_a_wrong_one_is_asked_for_again() {
        let table = table("nr topic order_id payload");
        let answers = RefCell::new(vec!["payload", "order_id", "orderid", "", "nr"]);
        let questions = RefCell::new(Vec::new());
        let ask = |question: &str| {
            questions.borrow_mut().push(question.to_owned());
            answers.borrow_mut().pop().map(str::to_owned)
        };
        let columns = table_columns(&table, &[], &ask).expect("all are answered");
        let columns: Vec<_> = columns
            .iter()
            .map(|column| (column.part, column.column.as_str()))
            .collect();
        let expected = [
            (Id, "nr"),
            (Topic, "topic"),
            (Key, "order_id"),
            (Payload, "payload"),
        ];
        assert_eq!(columns, expected);
        let key = "Column of the key, per which order is kept (nr, topic, order_id, payload): ";
        assert_eq!(
            *questions.borrow(),
            [
                "Column of the event's id (nr, topic, order_id, payload): ",
                "Column of the topic, or of a part of it [topic]: ",
                key,
                key,
                "Column of the payload [payload]: ",
            ]
        );
    }
}
