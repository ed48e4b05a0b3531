//! The items of `walrelay check`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use walrelay_failure::{Exit, ToFailure as _};
use walrelay_sink_client::run_apart;
use walrelay_sink_kind::check::{Check, CheckInput, SinkChecks, Verdict, shortened};

use crate::client::error::NatsError;
use crate::client::jetstream::{STREAM_NAMES, StreamNames, names_request, stream_names};
use crate::client::message::check_subject;
use crate::client::{Connection, Login, connect};
use crate::losses::{Content, Loss, loss_of_dead_letters};

const LOGIN: &str = "nats-login";
const SERVER: &str = "nats-server";
const STREAMS: &str = "nats-streams";
const DURABILITY: &str = "nats-durability";
const DISCARD: &str = "nats-discard";
const WINDOW: &str = "nats-window";
const DEAD_LETTERS: &str = "nats-dead-letters";

/// The items, in the order of the report.
pub(crate) const ITEMS: [&str; 7] = [
    LOGIN,
    SERVER,
    STREAMS,
    DURABILITY,
    DISCARD,
    WINDOW,
    DEAD_LETTERS,
];

/// Subjects that are looked at, at most.
const MAX_SUBJECTS: usize = 100;
/// Names that a finding lists, at most.
const LISTED: usize = 5;
/// The default of a stream's duplicate window in nanoseconds, which is the least that outlives the
/// restart of a relay.
const TWO_MINUTES: u64 = 120_000_000_000;

/// Logs in, and looks at the server and the streams. `exclusive`: the stream that only the relay writes
/// to.
pub(crate) fn check(
    login: &Login,
    max_message: u64,
    exclusive: Option<&str>,
    input: &CheckInput<'_>,
) -> SinkChecks {
    let checked = run_apart(|| run(login, max_message, exclusive, input));
    checked.unwrap_or_else(|error| vec![(LOGIN, failed(&error.into()))])
}

/// Returns why no dead letter can be written to this subject; `None` if one can be, or if the server reports nothing.
pub(crate) fn dead_letter_obstacle(login: &Login, subject: &str) -> Option<String> {
    let check = async || {
        let connection = connect(login, 0).await?;
        let mut server = Server { connection, login };
        server.dead_letters(subject).await
    };
    let check = run_apart(check).ok()?.ok()?;
    matches!(check.verdict, Verdict::Fail { .. }).then_some(check.finding)
}

/// Returns the settings by which streams lose acknowledged messages: those of these subjects, and the
/// exclusive one. `None` if the server does not answer, or does not show them to the user.
pub(crate) fn risks(
    login: &Login,
    exclusive: Option<&str>,
    subjects: &[String],
) -> Option<Vec<Check>> {
    let check = async || {
        let connection = connect(login, 0).await?;
        let mut server = Server { connection, login };
        let mut names: BTreeSet<String> = exclusive.into_iter().map(str::to_owned).collect();
        for subject in subjects {
            match server.streams(subject).await? {
                Found::Streams(found) => names.extend(found),
                Found::NotSeen => return Ok(None),
            }
        }
        let mut streams = Streams::new();
        for name in names {
            let config = server.config(&name).await?;
            if config.is_none() {
                return Ok(None);
            }
            streams.insert(name, config);
        }
        let found = found_losses(&streams, |loss| loss.is_of_acknowledged);
        Ok::<_, NatsError>(Some(found))
    };
    run_apart(check).ok()?.ok()?
}

fn failed(error: &NatsError) -> Check {
    Check::failed(error.to_failure())
}

async fn run(
    login: &Login,
    max_message: u64,
    exclusive: Option<&str>,
    input: &CheckInput<'_>,
) -> SinkChecks {
    let connection = match connect(login, 0).await {
        Ok(connection) => connection,
        Err(error) => return vec![(LOGIN, failed(&error))],
    };
    let found = format!("{} accepts the login", connection.address);
    let mut checks = vec![(LOGIN, Check::pass(found))];
    checks.push((SERVER, server(&connection, max_message)));
    let mut server = Server { connection, login };
    match server.others(max_message, exclusive, input).await {
        Ok(others) => checks.extend(others),
        Err(error) => checks.push((STREAMS, failed(&error))),
    }
    checks
}

/// Compares the limit of the configuration with that of the server.
fn server(connection: &Connection, max_message: u64) -> Check {
    let info = &connection.info;
    if info.max_payload < max_message {
        let finding = format!(
            "max_message_size is {max_message}, and the server's max_payload is {}",
            info.max_payload
        );
        return Check::warn(
            finding,
            "lower max_message_size in [sink.nats], or raise max_payload of the server",
        );
    }
    Check::pass(format!(
        "NATS {}, max_payload is {}",
        info.version, info.max_payload
    ))
}

struct Server<'a> {
    connection: Connection,
    login: &'a Login,
}

/// The streams of a subject.
enum Found {
    Streams(Vec<String>),
    NotSeen,
}

impl Server<'_> {
    async fn others(
        &mut self,
        max_message: u64,
        exclusive: Option<&str>,
        input: &CheckInput<'_>,
    ) -> Result<SinkChecks, NatsError> {
        let mut without = Vec::new();
        let mut names = BTreeSet::new();
        let mut is_seen = true;
        let mut count = 0;
        for subject in input.topics.iter().take(MAX_SUBJECTS) {
            if let Err(why) = check_subject(subject) {
                without.push(format!("{subject:?} ({why})"));
                continue;
            }
            count += 1;
            match self.streams(subject).await? {
                Found::Streams(streams) if streams.is_empty() => {
                    without.push(format!("{subject:?}"));
                }
                Found::Streams(streams) => names.extend(streams),
                Found::NotSeen => {
                    is_seen = false;
                    break;
                }
            }
        }
        let of_subjects = subjects(count, without, &names, is_seen);
        names.extend(exclusive.map(str::to_owned));
        let mut checks = vec![(STREAMS, of_subjects)];
        let mut streams = BTreeMap::new();
        for name in names {
            let config = self.config(&name).await?;
            streams.insert(name, config);
        }
        if let Some(exclusive) = exclusive
            && checks[0].1.verdict == Verdict::Pass
        {
            checks[0].1 = exclusively(exclusive, &streams);
        }
        if checks[0].1.verdict == Verdict::Pass
            && let Some(small) = sizes(&streams, max_message)
        {
            checks[0].1 = small;
        }
        if !streams.is_empty() {
            checks.push((DURABILITY, durability(&streams)));
            checks.push((DISCARD, discard(&streams)));
            checks.push((WINDOW, window(&streams)));
        }
        if let Some(subject) = input.dead_letters {
            let mut check = self.dead_letters(subject).await?;
            if check.verdict == Verdict::Pass {
                check = self.kept(subject, exclusive, check).await?;
            }
            checks.push((DEAD_LETTERS, check));
        }
        Ok(checks)
    }

    async fn streams(&mut self, subject: &str) -> Result<Found, NatsError> {
        let body = names_request(subject);
        let limit = self.login.servers.timeout;
        let answer = self.connection.request(STREAM_NAMES, &body, limit).await?;
        Ok(match stream_names(answer.0, &answer.1) {
            StreamNames::Names(names) => Found::Streams(names),
            StreamNames::Unknown => Found::NotSeen,
        })
    }

    /// Returns the configuration of a stream; `None` if the user may not see it.
    async fn config(&mut self, name: &str) -> Result<Option<Value>, NatsError> {
        // A name without a dot or a blank, as the server has it.
        let subject = format!("$JS.API.STREAM.INFO.{name}");
        let limit = self.login.servers.timeout;
        let (_, payload) = self.connection.request(&subject, b"", limit).await?;
        let answer: Option<Value> = serde_json::from_slice(&payload).ok();
        Ok(answer.and_then(|mut answer| answer.get_mut("config").map(Value::take)))
    }

    /// Sees that the streams of dead letters keep them. `otherwise`: the check if they do.
    async fn kept(
        &mut self,
        subject: &str,
        exclusive: Option<&str>,
        otherwise: Check,
    ) -> Result<Check, NatsError> {
        let Found::Streams(names) = self.streams(subject).await? else {
            return Ok(otherwise);
        };
        for name in names {
            if Some(&*name) == exclusive {
                return Ok(Check::warn(
                    format!(
                        "dead letters go to {name}, which exclusive_stream names: each resolution is a \
                         foreign message"
                    ),
                    "give the subject of dead letters to another stream",
                ));
            }
            match self.config(&name).await?.as_ref().map(loss_of_dead_letters) {
                Some(None) => {}
                Some(Some(loss)) => {
                    let what = format!(
                        "dead letters go to {name}, which {}: one that is gone is a lost event",
                        loss.does
                    );
                    return Ok(Check::warn(what, loss.remedy));
                }
                None => return Ok(not_seen(&format!("whether {name} keeps dead letters"))),
            }
        }
        Ok(otherwise)
    }

    async fn dead_letters(&mut self, subject: &str) -> Result<Check, NatsError> {
        let fail = |finding: String| {
            Check::fail(
                ("nats-no-stream", Exit::Config),
                finding,
                "create a stream with the subject, or change topic in [poison]",
            )
        };
        if let Err(why) = check_subject(subject) {
            return Ok(fail(format!("{subject:?} is no subject: {why}")));
        }
        Ok(match self.streams(subject).await? {
            Found::Streams(names) if names.is_empty() => fail(format!(
                "no stream has the subject {subject:?} of dead letters"
            )),
            Found::Streams(names) => {
                let names = names.join(", ");
                Check::pass(format!("{subject:?} is a subject of {names}"))
            }
            Found::NotSeen => not_seen(&format!("whether a stream has the subject {subject:?}")),
        })
    }
}

fn not_seen(what: &str) -> Check {
    Check::warn(
        format!("JetStream does not say {what}"),
        "see that JetStream is on, and let the user publish to $JS.API.STREAM.NAMES and \
         $JS.API.STREAM.INFO.*",
    )
}

fn listed(names: Vec<String>) -> String {
    shortened(names, LISTED).join(", ")
}

fn subjects(count: usize, without: Vec<String>, names: &BTreeSet<String>, is_seen: bool) -> Check {
    if !without.is_empty() {
        return Check::fail(
            ("nats-no-stream", Exit::Config),
            format!(
                "no stream has the subject of the newest rows: {}",
                listed(without)
            ),
            "create a stream with these subjects, or correct subject in [sink.nats]",
        );
    }
    if !is_seen {
        return not_seen("which streams have the subjects of the newest rows");
    }
    if count == 0 {
        return Check::pass("no subject is known before the first event");
    }
    let names = listed(names.iter().cloned().collect());
    Check::pass(format!(
        "the subjects of the newest rows are those of {names}"
    ))
}

/// Compares the streams of the newest rows with the one that only the relay writes to.
fn exclusively(exclusive: &str, streams: &Streams) -> Check {
    let others = streams.keys().filter(|name| *name != exclusive);
    let others: Vec<String> = others.cloned().collect();
    if !others.is_empty() {
        return Check::fail(
            ("nats-other-stream", Exit::Config),
            format!(
                "exclusive_stream is {exclusive}, and subjects of the newest rows are those of {}",
                listed(others)
            ),
            "give the subjects to the stream, or correct exclusive_stream in [sink.nats]",
        );
    }
    let config = streams.get(exclusive).and_then(Option::as_ref);
    match config.map(|config| &config["retention"]) {
        None => not_seen(&format!(
            "anything of {exclusive}, which exclusive_stream names"
        )),
        Some(retention) if retention == "limits" => Check::pass(format!(
            "the subjects of the newest rows are those of {exclusive}"
        )),
        Some(_) => Check::warn(
            format!(
                "{exclusive} deletes consumed messages, so the relay cannot find them, and repeats \
                 them after a lost acknowledgement"
            ),
            "set retention to limits, or let consumers drop repeats",
        ),
    }
}

type Streams = BTreeMap<String, Option<Value>>;

/// Returns the streams for whose configuration this is true.
fn those(streams: &Streams, is: impl Fn(&Value) -> bool) -> Vec<String> {
    let streams = streams.iter();
    let those = streams.filter(|(_, config)| config.as_ref().is_some_and(&is));
    those.map(|(name, _)| name.clone()).collect()
}

fn unseen(streams: &Streams, what: &str) -> Option<Check> {
    let hidden = streams.iter().filter(|(_, config)| config.is_none());
    let hidden: Vec<String> = hidden.map(|(name, _)| name.clone()).collect();
    (!hidden.is_empty()).then(|| not_seen(&format!("{what} of {}", listed(hidden))))
}

fn durability(streams: &Streams) -> Check {
    let memory = those(streams, |config| config["storage"] == "memory");
    if !memory.is_empty() {
        return Check::warn(
            format!(
                "streams in memory lose all events with their server: {}",
                listed(memory)
            ),
            "recreate them with storage file",
        );
    }
    let single = those(streams, |config| config["num_replicas"].as_u64() < Some(2));
    if !single.is_empty() {
        return Check::warn(
            format!(
                "streams of one replica: {}. An acknowledged event may be lost with the machine, as a \
                 server writes to its disk every 2 minutes by default (sync_interval, which is not seen)",
                listed(single)
            ),
            "use 3 replicas, or sync_interval: always in the server's configuration of jetstream",
        );
    }
    unseen(streams, "the replicas")
        .unwrap_or_else(|| Check::pass("all streams are in files with several replicas"))
}

/// Returns a warning of each setting by which some of the streams lose events.
fn found_losses(streams: &Streams, is_wanted: fn(&Loss) -> bool) -> Vec<Check> {
    let wanted = Loss::about(Content::Events).filter(|loss| is_wanted(loss));
    let found = wanted.filter_map(|loss| {
        let names = those(streams, loss.is_set);
        (!names.is_empty())
            .then(|| Check::warn(format!("{} {}", listed(names), loss.does), loss.remedy))
    });
    found.collect()
}

fn discard(streams: &Streams) -> Check {
    let found = found_losses(streams, |_| true).into_iter();
    let (findings, remedies): (Vec<String>, Vec<Option<String>>) =
        found.map(|check| (check.finding, check.remedy)).unzip();
    if !findings.is_empty() {
        let remedies: Vec<String> = remedies.into_iter().flatten().collect();
        return Check::warn(findings.join("; "), remedies.join("; "));
    }
    unseen(streams, "the limits")
        .unwrap_or_else(|| Check::pass("no stream deletes its oldest messages to make room"))
}

/// Compares the limit of the configuration with those of the streams.
fn sizes(streams: &Streams, max_message: u64) -> Option<Check> {
    let limit = |config: &Value| config["max_msg_size"].as_u64();
    let small = those(streams, |config| {
        limit(config).is_some_and(|limit| limit < max_message)
    });
    let least = streams.values().flatten().filter_map(limit).min()?;
    (!small.is_empty()).then(|| {
        Check::warn(
            format!(
                "max_message_size is {max_message}, and max_msg_size of {} is {least} or more",
                listed(small)
            ),
            "lower max_message_size in [sink.nats], or raise max_msg_size of the streams",
        )
    })
}

fn window(streams: &Streams) -> Check {
    let short = those(streams, |config| {
        config["duplicate_window"].as_u64() < Some(TWO_MINUTES)
    });
    if !short.is_empty() {
        return Check::warn(
            format!(
                "streams with a duplicate window below 2 minutes: {}. Events that a relay repeats after \
                 a longer outage are stored twice",
                listed(short)
            ),
            "raise duplicate_window to the longest outage that you expect",
        );
    }
    unseen(streams, "the duplicate windows").unwrap_or_else(|| {
        let seconds = streams.values().flatten();
        let seconds = seconds.filter_map(|config| config["duplicate_window"].as_u64());
        let least = seconds.min().unwrap_or_default() / 1_000_000_000;
        Check::pass(format!("the shortest duplicate window is {least} s"))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn streams(config: Option<Value>) -> Streams {
        Streams::from([("S".to_owned(), config)])
    }

    #[test]
    fn the_exclusive_stream_has_all_subjects_and_keeps_what_was_consumed() {
        let with = |name: &str, config| Streams::from([(name.to_owned(), config)]);
        let good = || Some(json!({"retention": "limits"}));
        for (streams, verdict, words) in [
            (with("S", good()), Verdict::Pass, "of S"),
            (with("S", None), Verdict::Warn, "does not say"),
            (
                with("S", Some(json!({"retention": "workqueue"}))),
                Verdict::Warn,
                "consumed",
            ),
        ] {
            let check = exclusively("S", &streams);
            assert_eq!(check.verdict, verdict, "{check:?}");
            assert!(check.finding.contains(words), "{check:?}");
        }
        let mut both = with("S", good());
        both.extend(with("T", good()));
        let check = exclusively("S", &both);
        assert!(matches!(check.verdict, Verdict::Fail { .. }), "{check:?}");
    }

    #[test]
    fn a_stream_that_takes_less_than_the_configuration_allows_is_warned_of() {
        let small = |limit: i64| sizes(&streams(Some(json!({"max_msg_size": limit}))), 1_000);
        assert!(small(-1).is_none() && small(1_000).is_none());
        let finding = small(999).expect("it is smaller").finding;
        assert!(finding.contains("max_msg_size of S is 999"), "{finding}");
    }

    #[test]
    fn a_limit_by_subject_deletes_unless_it_refuses() {
        let mut config = json!({"discard": "new", "max_msgs_per_subject": 2});
        let check = discard(&streams(Some(config.clone())));
        assert_eq!(check.verdict, Verdict::Warn, "{check:?}");
        config["discard_new_per_subject"] = json!(true);
        let check = discard(&streams(Some(config)));
        assert_eq!(check.verdict, Verdict::Pass, "{check:?}");
    }

    #[test]
    fn a_stream_that_may_lose_or_repeat_events_is_warned_of() {
        let good = json!({
            "storage": "file", "num_replicas": 3, "discard": "old", "max_msgs": -1, "max_bytes": -1,
            "max_age": 0, "max_msgs_per_subject": -1, "duplicate_window": 600_000_000_000_u64,
        });
        let checks = [durability, discard, window];
        for check in checks {
            let check = check(&streams(Some(good.clone())));
            assert_eq!(check.verdict, Verdict::Pass, "{check:?}");
        }
        for (at, name, value, words) in [
            (0, "storage", json!("memory"), "in memory"),
            (0, "num_replicas", json!(1), "sync_interval"),
            (1, "max_bytes", json!(1_000), "oldest"),
            (1, "max_msgs_per_subject", json!(2), "oldest"),
            (1, "retention", json!("interest"), "without a consumer"),
            (1, "no_ack", json!(true), "nothing"),
            (1, "max_age", json!(60_000_000_000_u64), "within a day"),
            (
                2,
                "duplicate_window",
                json!(1_000_000_000),
                "below 2 minutes",
            ),
        ] {
            let mut config = good.clone();
            config[name] = value;
            let check = checks[at](&streams(Some(config)));
            assert_eq!(check.verdict, Verdict::Warn, "{check:?}");
            assert!(check.finding.contains(words), "{check:?}");
        }
        for check in checks {
            let check = check(&streams(None));
            assert!(check.finding.contains("does not say"), "{check:?}");
        }
    }
}
