//! The items of `walrelay check`: asks the server. `verdicts` judges its answers.

mod verdicts;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use walrelay_failure::{Exit, ToFailure as _};
use walrelay_sink_client::run_apart;
use walrelay_sink_kind::check::{Check, CheckInput, SinkChecks, Verdict};

use crate::client::error::NatsError;
use crate::client::jetstream::{STREAM_NAMES, StreamNames, names_request, stream_names};
use crate::client::message::check_subject;
use crate::client::{Connection, Login, connect};
use crate::losses::loss_of_dead_letters;
use verdicts::{
    Streams, discard, durability, exclusively, losses, not_seen, server, sizes, subjects, window,
};

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

/// Returns the reason that dead letters cannot be written to this subject; `None` if they can, or if the
/// server reports nothing.
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
                Answer::Streams(streams) => names.extend(streams),
                Answer::NotSeen => return Ok(None),
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
        let risks = losses(&streams, |loss| loss.is_of_acknowledged);
        Ok::<_, NatsError>(Some(risks))
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
    let finding = format!("{} accepts the login", connection.address);
    let mut checks = vec![(LOGIN, Check::pass(finding))];
    checks.push((SERVER, server(&connection, max_message)));
    let mut server = Server { connection, login };
    match server.others(max_message, exclusive, input).await {
        Ok(others) => checks.extend(others),
        Err(error) => checks.push((STREAMS, failed(&error))),
    }
    checks
}

struct Server<'a> {
    connection: Connection,
    login: &'a Login,
}

/// The streams of a subject.
enum Answer {
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
                Answer::Streams(streams) if streams.is_empty() => {
                    without.push(format!("{subject:?}"));
                }
                Answer::Streams(streams) => names.extend(streams),
                Answer::NotSeen => {
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

    async fn streams(&mut self, subject: &str) -> Result<Answer, NatsError> {
        let body = names_request(subject);
        let limit = self.login.servers.timeout;
        let answer = self.connection.request(STREAM_NAMES, &body, limit).await?;
        Ok(match stream_names(answer.0, &answer.1) {
            StreamNames::Names(names) => Answer::Streams(names),
            StreamNames::Unknown => Answer::NotSeen,
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
        let Answer::Streams(names) = self.streams(subject).await? else {
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
            Answer::Streams(names) if names.is_empty() => fail(format!(
                "no stream has the subject {subject:?} of dead letters"
            )),
            Answer::Streams(names) => {
                let names = names.join(", ");
                Check::pass(format!("{subject:?} is a subject of {names}"))
            }
            Answer::NotSeen => not_seen(&format!("whether a stream has the subject {subject:?}")),
        })
    }
}
