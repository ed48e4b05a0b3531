//! `walrelay verify-topic`: looks for repeated, lost and disordered events in topics.
//!
//! - [`analysis`]: records in, findings out. [`memory`]: what it remembers. [`report`]: prints.

mod analysis;
mod memory;
mod report;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use walrelay_failure::{Exit, Failure};
use walrelay_sink::{Record, lock};
use walrelay_sink_kind::Ability;
use walrelay_sink_kind::topics::{ReadRecord, SentTo};

use super::tail::milliseconds;
use crate::cli::{RecordPlace, VerifySince, VerifyTopicArgs};
use crate::commands::assembly::block_on;
use crate::commands::assembly::server::Server;
use crate::commands::assembly::sink::{any_sink, refused};
use crate::commands::terminal::progress_line::ProgressLine;
use crate::commands::terminal::units::percent_bar;
use crate::commands::topics::place::{
    REPLAY_HEADER, RESEND_HEADER, event_id, has_header, header, text_at,
};
use crate::commands::topics::reading::TopicReader;
use crate::commands::topics::rows::{Rows, copy_of, route_rows};
use crate::commands::{EnvVars, log_warnings, print_as};
use crate::sinks::Count;
use analysis::{Analysis, At, Delivery, Findings, Latency, Order};
use report::Report;

/// The time before `--since` from which `--against-table` reads records, as the clocks of
/// hosts may differ. A record is published after its row's time.
const MARGIN: Duration = Duration::from_secs(60);

/// Runs `walrelay verify-topic`. The exit code says whether something is wrong.
pub(crate) fn verify_topic(args: &VerifyTopicArgs, env: EnvVars<'_>) -> Result<Exit, Vec<Failure>> {
    let server = Server::load(&args.config, env)?;
    log_warnings(server.process.log, None, env);
    let report = verify(args, &server)?;
    print_as(args.output, &report, &report.json())?;
    Ok(if report.is_wrong() {
        Exit::Findings
    } else {
        Exit::Ok
    })
}

fn verify(args: &VerifyTopicArgs, server: &Server) -> Result<Report, Failure> {
    let sink = any_sink(&server.config)?;
    let sink_topics = sink.readable_topics().map_err(|why| {
        refused("verify-topic-sink", &*sink, Ability::ReadTopics)
            .caused_by(why)
            .remedy("set sink.kind to that of the relay that writes the topic")
    })?;
    let now = OffsetDateTime::now_utc();
    let since = args.since.map(|since| match since {
        VerifySince::Time(time) => time,
        VerifySince::Ago(ago) => now - ago,
    });
    // The rows first: their records are in the topics before the ends are asked for.
    let rows = if args.against_table {
        let has_ids = sink_topics.has_event_ids();
        Some(expected(
            args,
            server,
            has_ids,
            since.map(|time| now - time),
        )?)
    } else {
        None
    };
    let margin = if args.against_table {
        MARGIN
    } else {
        Duration::ZERO
    };
    let from_ms = since.map_or(0, |time| milliseconds(time - margin));
    let mut reader = TopicReader::new(sink_topics, from_ms, args.id.clone())?;
    let (mut analysis, mut topics, mut trimmed) = (
        Analysis::new(args.remember.get()),
        BTreeMap::new(),
        Vec::new(),
    );
    for topic in &args.topics {
        if topics.contains_key(topic) {
            continue;
        }
        if !reader.follow(topic)? {
            let what = format!("there is no topic {topic}");
            let failure = Failure::new("verify-topic-missing", Exit::Data, what);
            return Err(failure.remedy("correct its name; it may be made with its first record"));
        }
        let number = analysis.add_topic();
        for partition in reader.partitions(topic).unwrap_or_default() {
            if partition.start > 0 {
                analysis.begins_late(number, partition.partition);
                if since.is_none() {
                    trimmed.push(format!("{topic}[{}]", partition.partition));
                }
            }
        }
        topics.insert(topic.clone(), number);
    }
    let mut looked_for = 0;
    for (sent_to, ids) in rows.into_iter().flatten() {
        let mut is_held = false;
        for (topic, number) in &topics {
            if reader.holds(topic, &sent_to)? {
                is_held = true;
                for id in &ids {
                    analysis.expect(*number, id.clone());
                }
            }
        }
        looked_for += if is_held { ids.len() as u64 } else { 0 };
    }
    let against_table = args.against_table.then_some(looked_for);
    let findings = read(args, server, &mut reader, analysis, &topics)?;
    let mut names: Vec<(u32, String)> = topics.into_iter().map(|(name, n)| (n, name)).collect();
    names.sort_unstable();
    Ok(Report {
        findings,
        topics: names.into_iter().map(|(_, name)| name).collect(),
        trimmed,
        rows: against_table,
        allow_repeats: args.allow_repeats,
    })
}

/// Reads the topics to their ends.
fn read(
    args: &VerifyTopicArgs,
    server: &Server,
    reader: &mut TopicReader,
    mut analysis: Analysis,
    topics: &BTreeMap<String, u32>,
) -> Result<Findings, Failure> {
    let position_header = server.config.position_header.as_deref();
    let mut line = ProgressLine::new();
    let mut records: u64 = 0;
    reader.read_to_ends(|reader, record| {
        records += 1;
        line.draw(|| format!("{}, {records} records", percent_bar(reader.progress())));
        let Some(topic) = topics.get(&record.topic) else {
            return;
        };
        let is_resent = has_header(record, RESEND_HEADER);
        // The position that a sink stores of a record that was sent again is of the time of that.
        let position = record.event_position.filter(|_| !is_resent);
        let position = position.map(Order::from_position).or_else(|| {
            let name = position_header?;
            Order::from_header(header(record, name)?)
        });
        analysis.add(&Delivery {
            at: At {
                topic: *topic,
                partition: record.partition,
                offset: record.offset,
            },
            key: record.key.as_deref(),
            id: reader.event_id(record).as_deref(),
            position,
            on_purpose: is_resent || has_header(record, REPLAY_HEADER),
            latency: latency(&args.commit_time, record),
        });
    })?;
    line.end();
    let findings = analysis.finish();
    if findings.records > 0 && findings.without_id == findings.records {
        let what = "no record has an event's id";
        return Err(Failure::new("verify-topic-no-ids", Exit::Data, what)
            .remedy("say where it is: --id header:NAME or --id value:MEMBER"));
    }
    Ok(findings)
}

/// Returns the time from the commit time in a record to the time at which it was written; `None` if it
/// has no commit time.
fn latency(place: &RecordPlace, record: &ReadRecord) -> Option<Latency> {
    let text = text_at(place, record)?;
    let committed = match text.parse() {
        Ok(milliseconds) => milliseconds,
        Err(_) => milliseconds(OffsetDateTime::parse(&text, &Rfc3339).ok()?),
    };
    let written = record.written_ms;
    Some(written.map_or(Latency::Unknown, |written| {
        Latency::Millis(written.saturating_sub(committed))
    }))
}

/// The ids of the events that the rows of the outbox tables make, by address.
type Ids = BTreeMap<SentTo, Vec<Box<str>>>;

#[derive(Debug)]
struct Expected {
    /// `--id`.
    id_place: Option<RecordPlace>,
    /// The sink stores the ids of events beside the headers.
    has_ids: bool,
    ids: Mutex<Ids>,
}

impl Count for Expected {
    fn sent(&self, record: &Record<'_>) {
        let mut sent = copy_of(record);
        sent.event_id = record.event_id.filter(|_| self.has_ids).map(<[u8]>::to_vec);
        if let Some(id) = event_id(self.id_place.as_ref(), &sent) {
            let sent_to = SentTo {
                topic: record.topic.to_owned(),
                routing_key: record.routing_key.unwrap_or_default().to_owned(),
            };
            lock(&self.ids).entry(sent_to).or_default().push(id.into());
        }
    }

    fn delivered(&self) {}
}

/// Routes the rows that the tables have, once the relay has confirmed them.
fn expected(
    args: &VerifyTopicArgs,
    server: &Server,
    has_ids: bool,
    since: Option<time::Duration>,
) -> Result<Ids, Failure> {
    block_on(async {
        let mut session = server.connect().await?;
        let slot = server.find_slot(&mut session).await?;
        session.close().await;
        slot.map(drop).ok_or_else(|| {
            let what = format!("there is no slot {}: nothing confirms rows", server.slot());
            Failure::new("verify-topic-slot", Exit::Config, what)
                .remedy("start walrelay run, or leave --against-table out")
        })
    })??;
    let rows = match (&args.r#where, since) {
        (Some(condition), _) => Rows::Where(condition.clone()),
        (None, Some(since)) => Rows::Since(since.try_into().unwrap_or_default()),
        (None, None) => Rows::Where("true".to_owned()),
    };
    let expected = Arc::new(Expected {
        id_place: args.id.clone(),
        has_ids,
        ids: Mutex::default(),
    });
    route_rows(server, rows, &expected)?;
    Ok(std::mem::take(&mut *lock(&expected.ids)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_is_between_the_commit_and_the_writing() {
        let record = |time: &str| ReadRecord {
            topic: "t".to_owned(),
            written_ms: Some(1_767_323_046_500),
            value: Some(format!("{{\"ts\": {time}}}").into_bytes()),
            headers: vec![("ce_time".to_owned(), Some(time.as_bytes().to_vec()))],
            ..ReadRecord::default()
        };
        let header = RecordPlace::Header("ce_time".to_owned());
        let member = RecordPlace::Value("ts".to_owned());
        for (place, time, expected) in [
            (&header, "2026-01-02T03:04:05.25Z", Some(1250)),
            (&header, "1767323046000", Some(500)),
            (&member, "1767323046000", Some(500)),
            (&member, "\"2026-01-02T03:04:07Z\"", Some(-500)),
            (&member, "null", None),
            (&header, "yesterday", None),
        ] {
            let expected = expected.map(Latency::Millis);
            assert_eq!(latency(place, &record(time)), expected, "{time}");
        }
        let untimed = ReadRecord {
            written_ms: None,
            ..record("1767323046000")
        };
        assert_eq!(latency(&header, &untimed), Some(Latency::Unknown));
    }
}
