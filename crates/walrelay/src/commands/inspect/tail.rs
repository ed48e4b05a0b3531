//! `walrelay tail`: prints the records of a topic of the configured sink.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::thread::sleep;
use std::time::{Duration, Instant};

use time::OffsetDateTime;
use walrelay_failure::{Exit, Failure};
use walrelay_sink::{Header, Record};
use walrelay_sink_kind::Ability;
use walrelay_sink_kind::topics::{FollowedPartition, ReadRecord, TopicReader};

use crate::cli::{TailArgs, TailFrom};
use crate::commands::assembly::sink::{any_sink, refused};
use crate::commands::{CommandResult, EnvVars, load, log_warnings, print_notice, print_part};
use crate::sinks::record_line;

/// Timeout of one request to a server of the sink.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval at which a topic that does not exist is looked for.
const INTERVAL: Duration = Duration::from_millis(500);
/// After this time without a record the topic counts as read: its last offsets may hold no record
/// for consumers, but the marker of a Kafka transaction.
const IDLE_END: Duration = Duration::from_secs(5);

/// Runs `walrelay tail`. Ends at Ctrl-C as any process does: nothing is to be confirmed.
pub(crate) fn tail(args: &TailArgs, env: EnvVars<'_>) -> CommandResult {
    let config = load(&args.config, env)?;
    log_warnings(config.process.log, None, env);
    let sink = any_sink(&config.pipeline)?;
    let topics = sink.readable_topics().map_err(|why| {
        refused("tail-sink", &*sink, Ability::ReadTopics)
            .caused_by(why)
            .remedy("set sink.kind to that of the relay that writes the topic")
    })?;
    let mut reader = topics.reader()?;
    let partitions = follow(args, &mut *reader)?;
    print_records(args, &mut *reader, &partitions)?;
    Ok(())
}

/// Begins to read the topic; with `--follow`, once it exists.
fn follow(
    args: &TailArgs,
    reader: &mut dyn TopicReader,
) -> Result<Vec<FollowedPartition>, Failure> {
    let topic = &args.topic;
    let from_ms = match args.from {
        TailFrom::Beginning => 0,
        TailFrom::End => i64::MAX,
        TailFrom::Time(time) => milliseconds(time),
    };
    let (begun, mut noticed) = (Instant::now(), false);
    loop {
        match reader.follow(topic, from_ms, REQUEST_TIMEOUT) {
            Ok(Some(partitions)) => return Ok(partitions),
            Ok(None) if !args.follow => {
                let what = format!("there is no topic {topic}");
                return Err(Failure::new("tail-topic", Exit::Data, what).remedy(
                    "correct its name; it may be made with its first record: --follow waits for it",
                ));
            }
            Ok(None) => {
                if !std::mem::replace(&mut noticed, true) {
                    print_notice(&format!("waiting for topic {topic}"));
                }
            }
            // A new topic has no leader for a moment.
            Err(error) if begun.elapsed() < REQUEST_TIMEOUT && may_pass(&error) => {}
            Err(error) if noticed && may_pass(&error) => {}
            Err(error) => return Err(error),
        }
        sleep(INTERVAL);
    }
}

fn may_pass(error: &Failure) -> bool {
    error.exit == Exit::Unavailable
}

pub(super) fn milliseconds(time: OffsetDateTime) -> i64 {
    i64::try_from(time.unix_timestamp_nanos() / 1_000_000).unwrap_or(0)
}

/// Prints the records that are asked for, until the ends, the limit, or until nobody reads them.
fn print_records(
    args: &TailArgs,
    reader: &mut dyn TopicReader,
    partitions: &[FollowedPartition],
) -> Result<(), Failure> {
    // By partition, the offset at which the topic ended at the start.
    let ends = partitions.iter().map(|of| (of.partition, of.end));
    let ends: BTreeMap<i32, i64> = ends.collect();
    let unread = partitions.iter().filter(|of| of.start < of.end);
    let mut unread: Vec<i32> = unread.map(|of| of.partition).collect();
    let mut printed = 0;
    let mut last = Instant::now();
    while args.follow || (!unread.is_empty() && last.elapsed() < IDLE_END) {
        let Some(record) = reader.next(Duration::from_millis(100))? else {
            continue;
        };
        last = Instant::now();
        let end = ends.get(&record.partition).copied().unwrap_or_default();
        if record.offset + 1 >= end {
            unread.retain(|partition| *partition != record.partition);
        }
        if !is_wanted(args, &record, end) {
            continue;
        }
        printed += 1;
        if print_record(&record)?.is_break() || Some(printed) == args.limit {
            break;
        }
    }
    Ok(())
}

/// Returns true if a record is asked for, in a partition that ended at offset `end` at the start.
fn is_wanted(args: &TailArgs, record: &ReadRecord, end: i64) -> bool {
    let key = args.key.as_ref().map(String::as_bytes);
    let of_key = key.is_none() || key == record.key.as_deref();
    let place = match args.from {
        TailFrom::End => record.offset >= end,
        TailFrom::Beginning | TailFrom::Time(_) => args.follow || record.offset < end,
    };
    of_key && place
}

fn print_record(record: &ReadRecord) -> Result<ControlFlow<()>, Failure> {
    let headers = record.headers.iter().map(|(name, value)| Header {
        name,
        value: value.as_deref(),
    });
    let headers: Vec<Header<'_>> = headers.collect();
    let mut line = Vec::new();
    record_line(
        &mut line,
        &Record {
            topic: &record.topic,
            partition: Some(record.partition),
            timestamp_ms: record.timestamp_ms,
            key: record.key.as_deref(),
            value: record.value.as_deref(),
            headers: &headers,
            ..Record::default()
        },
    );
    print_part(&line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser as _;

    fn wanted(line: &str, key: Option<&[u8]>, offset: i64) -> bool {
        let words = format!("walrelay tail orders {line}");
        let Command::Tail(args) = Cli::try_parse_from(words.split_whitespace())
            .unwrap()
            .command
        else {
            panic!("{line}");
        };
        let record = ReadRecord {
            topic: "orders".to_owned(),
            offset,
            key: key.map(<[u8]>::to_vec),
            ..ReadRecord::default()
        };
        is_wanted(&args, &record, 10)
    }

    #[test]
    fn records_are_those_of_the_place_and_the_key() {
        for (line, key, offset, expected) in [
            ("", None, 9, true),
            ("", None, 10, false),
            ("--follow", None, 10, true),
            ("--from end --follow", None, 9, false),
            ("--from end --follow", None, 10, true),
            ("--key a", Some(b"a".as_slice()), 0, true),
            ("--key a", Some(b"b".as_slice()), 0, false),
            ("--key a", None, 0, false),
        ] {
            assert_eq!(wanted(line, key, offset), expected, "{line} {offset}");
        }
    }
}
