//! The checks of the cluster: brokers, topics, rights, settings.

use std::time::Duration;

use walrelay_kafka_sink::{
    ClusterSurvey, Creation, KafkaConfig, KafkaSettings, TopicState, TopicSurvey, probe, survey,
    topic_name_problem,
};

use super::item::{Check, Item};
use super::postgres::Largest;
use crate::cli::Exit;
use crate::config::{Config, KafkaSink};
use crate::failures;

/// How long a broker may take to answer.
const BROKER_DEADLINE: Duration = Duration::from_secs(10);
/// How many topics are asked about, and how many are named in a finding.
const TOPICS: usize = 50;
const NAMED: usize = 3;
/// How topics that do not exist yet are called.
const NEW: &str = "new topics";

/// Asks the cluster and checks all of it. `topics`: those that are known beforehand.
pub(super) fn look(
    config: &Config,
    sink: &KafkaSink,
    kafka: &KafkaConfig,
    mut topics: Vec<String>,
    largest: &Largest,
) -> Vec<Check> {
    let cluster = match probe(kafka, BROKER_DEADLINE) {
        Ok(cluster) => cluster,
        Err(error) => {
            return vec![Check::failed(
                Item::Brokers,
                &failures::kafka_client(&error),
            )];
        }
    };
    let letters = config
        .poison
        .writes_letters()
        .then_some(&config.poison.topic);
    topics.retain(|topic| topic_name_problem(topic).is_none());
    topics.truncate(TOPICS);
    topics.extend(letters.filter(|topic| !topics.contains(topic)).cloned());
    let survey = match survey(kafka, &topics, BROKER_DEADLINE) {
        Ok(survey) => survey,
        Err(error) => {
            return vec![Check::failed(
                Item::Brokers,
                &failures::kafka_client(&error),
            )];
        }
    };
    let count = cluster.brokers.len();
    let mut checks = vec![Check::pass(
        Item::Brokers,
        format!("{count} broker(s) answer"),
    )];
    let of = Cluster {
        survey: &survey,
        bootstrap: kafka.bootstrap_servers(),
        principal: sink
            .properties
            .0
            .get("sasl.username")
            .map_or("…", |name| name),
        subjects: subjects(&survey, sink),
    };
    checks.push(of.topics());
    checks.push(of.access());
    checks.push(of.settings());
    checks.push(of.message_size(kafka.message_max_bytes().parse().ok(), largest));
    checks.push(of.replication_factor());
    checks.push(of.in_sync_replicas());
    checks.push(of.unclean_election());
    checks.push(of.dead_letters(letters));
    checks
}

/// What the checks look at.
struct Cluster<'a> {
    survey: &'a ClusterSurvey,
    bootstrap: &'a str,
    /// Who the relay is, where the configuration says so.
    principal: &'a str,
    subjects: Vec<Subject<'a>>,
}

/// A topic whose settings are seen, or what new ones will be like.
#[derive(Debug)]
struct Subject<'a> {
    name: &'a str,
    replicas: Option<u64>,
    settings: &'a KafkaSettings,
    max_message_bytes: Option<u64>,
}

impl<'a> Subject<'a> {
    fn setting(&self, name: &str) -> Option<&'a str> {
        self.settings.get(name).map(String::as_str)
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.setting(name)?.parse().ok()
    }
}

/// The existing topics; and, where one is missing or none is known, what new ones will be like.
fn subjects<'a>(survey: &'a ClusterSurvey, sink: &KafkaSink) -> Vec<Subject<'a>> {
    let existing = survey.topics.iter().filter_map(|topic| {
        let settings = topic.settings.as_ref()?.as_ref().ok()?;
        let TopicState::Exists { replicas, .. } = topic.state else {
            return None;
        };
        Some(Subject {
            name: &topic.name,
            replicas: u64::try_from(replicas).ok(),
            settings,
            max_message_bytes: settings.get("max.message.bytes")?.parse().ok(),
        })
    });
    let mut subjects: Vec<Subject<'a>> = existing.collect();
    let missing = |topic: &TopicSurvey| matches!(topic.state, TopicState::Missing { .. });
    if (survey.topics.is_empty() || survey.topics.iter().any(missing))
        && let Ok(settings) = &survey.defaults
    {
        let number = |name: &str| settings.get(name)?.parse().ok();
        let configured = sink.topics.create.then_some(sink.topics.replication_factor);
        subjects.push(Subject {
            name: NEW,
            replicas: configured
                .flatten()
                .map(|factor| u64::try_from(factor).unwrap_or(0))
                .or_else(|| number("default.replication.factor")),
            settings,
            max_message_bytes: number("message.max.bytes"),
        });
    }
    subjects
}

impl Cluster<'_> {
    fn topics(&self) -> Check {
        let item = Item::Topics;
        let bootstrap = self.bootstrap;
        let auto_create = self.survey.defaults.as_ref().ok();
        let auto_create = auto_create
            .and_then(|settings| settings.get("auto.create.topics.enable"))
            .map(|value| value == "true");
        let mut unsure = None;
        let mut to_create = 0;
        for topic in &self.survey.topics {
            let name = &topic.name;
            let create = || {
                format!(
                    "kafka-topics.sh --bootstrap-server {bootstrap} --create --topic {name} \
                     --partitions 6 --replication-factor 3, or [sink.topics] create = true"
                )
            };
            match &topic.state {
                TopicState::Exists { leaderless, .. } => {
                    if let Some(partition) = leaderless.first() {
                        return Check::fail(
                            item,
                            ("kafka-topic", Exit::Unavailable),
                            format!("partition {partition} of topic {name} has no leader"),
                            "start the brokers that have its replicas",
                        );
                    }
                }
                TopicState::Missing { creation } => match (creation, auto_create) {
                    (Creation::Allowed, _) | (Creation::NotConfigured, Some(true)) => {
                        to_create += 1;
                    }
                    // Reported as a right that is missing.
                    (Creation::Denied, _) => {}
                    (Creation::Refused(reason), _) => {
                        return Check::fail(
                            item,
                            ("kafka-topic", Exit::Config),
                            format!("topic {name} does not exist and cannot be created: {reason}"),
                            "correct partitions and replication_factor in [sink.topics]",
                        );
                    }
                    (Creation::NotConfigured, Some(false)) => {
                        return Check::fail(
                            item,
                            ("kafka-topic", Exit::Config),
                            format!("topic {name} does not exist, and nobody creates it"),
                            create(),
                        );
                    }
                    (Creation::NotConfigured, None) => {
                        unsure = unsure.or(Some((name, create())));
                    }
                },
                TopicState::Denied => {}
                TopicState::Unknown(reason) => {
                    let finding = format!("of topic {name} the broker says: {reason}");
                    return Check::warn(item, finding, "check again");
                }
            }
        }
        if let Some((name, remedy)) = unsure {
            return Check::warn(
                item,
                format!("topic {name} does not exist; whether the brokers create it is not seen"),
                remedy,
            );
        }
        let count = self.survey.topics.len();
        Check::pass(
            item,
            match (count, to_create) {
                (0, _) => "none is known before the first row".to_owned(),
                (_, 0) => format!("{count} known, all exist"),
                (_, new) => format!("{count} known, {new} to be created with the first record"),
            },
        )
    }

    fn access(&self) -> Check {
        let item = Item::TopicAccess;
        let (bootstrap, principal) = (self.bootstrap, self.principal);
        let mut untold = false;
        for topic in &self.survey.topics {
            let name = &topic.name;
            let lacks: (&str, &[&str]) = match &topic.state {
                TopicState::Denied => ("neither see nor write", &["Describe", "Write"]),
                TopicState::Exists {
                    writable: Some(false),
                    ..
                } => ("not write", &["Write"]),
                TopicState::Missing {
                    creation: Creation::Denied,
                } => ("not create", &["Create", "Describe", "Write"]),
                TopicState::Exists { writable: None, .. } => {
                    untold = true;
                    continue;
                }
                _ => continue,
            };
            let (may, operations) = lacks;
            let operations: Vec<String> = operations
                .iter()
                .map(|operation| format!("--operation {operation}"))
                .collect();
            return Check::fail(
                item,
                ("topic-access", Exit::Denied),
                format!("the relay may {may} topic {name}"),
                format!(
                    "kafka-acls.sh --bootstrap-server {bootstrap} --add --allow-principal \
                     User:{principal} {} --topic {name}",
                    operations.join(" ")
                ),
            );
        }
        let count = self.survey.topics.len();
        Check::pass(
            item,
            match (count, untold) {
                (0, _) => "no topic is known before the first row".to_owned(),
                (_, true) => "the brokers do not say who may write".to_owned(),
                (_, false) => format!("the relay may write to what exists of {count} topic(s)"),
            },
        )
    }

    fn settings(&self) -> Check {
        let item = Item::TopicSettings;
        let (bootstrap, principal) = (self.bootstrap, self.principal);
        let unseen = self.survey.topics.iter().find_map(|topic| {
            let reason = topic.settings.as_ref()?.as_ref().err()?;
            Some((
                format!("of topic {}", topic.name),
                reason,
                format!("--topic {}", topic.name),
            ))
        });
        let defaults = || {
            let reason = self.survey.defaults.as_ref().err()?;
            let known = self.subjects.is_empty();
            known.then(|| (format!("of {NEW}"), reason, "--cluster".to_owned()))
        };
        let Some((of, reason, resource)) = unseen.or_else(defaults) else {
            let count = self.subjects.iter().filter(|of| of.name != NEW).count();
            return Check::pass(
                item,
                format!("seen: {count} topic(s), and those of new ones"),
            );
        };
        Check::warn(
            item,
            format!("the settings {of} are not seen: {reason}"),
            format!(
                "kafka-acls.sh --bootstrap-server {bootstrap} --add --allow-principal User:{principal} \
                 --operation DescribeConfigs {resource}"
            ),
        )
    }

    /// The subjects that `is_wrong` finds something of, and a remedy for the first.
    fn wrong(
        &self,
        item: Item,
        (setting, to): (&str, &str),
        is_wrong: impl Fn(&Subject<'_>) -> Option<String>,
    ) -> Option<Check> {
        let found: Vec<(&str, String)> = self
            .subjects
            .iter()
            .filter_map(|subject| Some((subject.name, is_wrong(subject)?)))
            .collect();
        let (first, _) = found.first()?;
        let mut named: Vec<String> = found
            .iter()
            .take(NAMED)
            .map(|(name, what)| format!("{name}: {what}"))
            .collect();
        if found.len() > NAMED {
            named.push(format!("and {} more", found.len() - NAMED));
        }
        Some(Check::warn(
            item,
            named.join("; "),
            alter(self.bootstrap, first, setting, to),
        ))
    }

    fn message_size(&self, client: Option<u64>, largest: &Largest) -> Check {
        let item = Item::MessageSize;
        let most = match largest {
            Largest::Of(most) => *most,
            Largest::Unseen { why, remedy } => {
                return Check::warn(item, why.clone(), remedy.clone());
            }
        };
        if let (Some(most), Some(client)) = (most, client)
            && most > client
        {
            return Check::warn(
                item,
                format!(
                    "{}, more than message.max.bytes = {client} of [sink.kafka] takes",
                    largest.text()
                ),
                format!("[sink.kafka] \"message.max.bytes\" = {}", roomy(most)),
            );
        }
        let wanted = most.unwrap_or(0).max(client.unwrap_or(0));
        let to = roomy(wanted).to_string();
        let wrong = self.wrong(item, ("max.message.bytes", &to), |subject| {
            let limit = subject.max_message_bytes?;
            if most.is_some_and(|most| most > limit) {
                return Some(format!(
                    "max.message.bytes = {limit}, and {}",
                    largest.text()
                ));
            }
            client.filter(|client| *client > limit).map(|client| {
                format!(
                    "max.message.bytes = {limit} is below the relay's message.max.bytes = {client}"
                )
            })
        });
        wrong.unwrap_or_else(|| Check::pass(item, format!("{}, and fits", largest.text())))
    }

    fn replication_factor(&self) -> Check {
        let item = Item::ReplicationFactor;
        let few = |subject: &Subject<'_>| {
            let replicas = subject.replicas.filter(|replicas| *replicas < 3)?;
            Some(format!("{replicas} replica(s)"))
        };
        match self.wrong(item, ("", ""), few) {
            None => Check::pass(item, "3 replicas or more, of what is seen"),
            Some(check) => Check {
                finding: format!(
                    "{}: with fewer than 3, two brokers that fail lose acknowledged events",
                    check.finding
                ),
                remedy: Some(
                    "kafka-reassign-partitions.sh for topics that exist; for new ones \
                     [sink.topics] replication_factor = 3, or default.replication.factor"
                        .to_owned(),
                ),
                ..check
            },
        }
    }

    fn in_sync_replicas(&self) -> Check {
        let item = Item::InSyncReplicas;
        let setting = "min.insync.replicas";
        let least = |subject: &Subject<'_>| subject.number(setting).zip(subject.replicas);
        let blocked = self.wrong(item, (setting, "1"), |subject| {
            let (least, replicas) = least(subject)?;
            (least > replicas).then(|| {
                format!(
                    "{setting} = {least} with {replicas} replica(s): no record is ever acknowledged"
                )
            })
        });
        if let Some(check) = blocked {
            return Check::fail(
                item,
                ("kafka-topic", Exit::Config),
                check.finding,
                check.remedy.unwrap_or_default(),
            );
        }
        let weak = self.wrong(item, (setting, "2"), |subject| {
            let (least, replicas) = least(subject)?;
            match least {
                _ if replicas < 2 => None,
                1 => Some(format!(
                    "{setting} = 1: an acknowledged event may be on one broker alone"
                )),
                _ if least == replicas => Some(format!(
                    "{setting} = {least} of {replicas}: one broker that is away stops the topic"
                )),
                _ => None,
            }
        });
        weak.unwrap_or_else(|| Check::pass(item, "fits the replicas, of what is seen"))
    }

    fn unclean_election(&self) -> Check {
        let item = Item::UncleanElection;
        let setting = "unclean.leader.election.enable";
        let wrong = self.wrong(item, (setting, "false"), |subject| {
            (subject.setting(setting)? == "true")
                .then(|| format!("{setting} = true: acknowledged events may be lost"))
        });
        wrong.unwrap_or_else(|| Check::pass(item, "off, of what is seen"))
    }

    fn dead_letters(&self, topic: Option<&String>) -> Check {
        let item = Item::DeadLetters;
        let Some(topic) = topic else {
            return Check::pass(item, "no event becomes a dead letter");
        };
        let Some(subject) = self.subjects.iter().find(|subject| subject.name == topic) else {
            return Check::pass(
                item,
                format!("the settings of topic {topic} are not seen yet"),
            );
        };
        if subject
            .setting("cleanup.policy")
            .is_some_and(|policy| policy.contains("compact"))
        {
            return Check::warn(
                item,
                format!("topic {topic} is compacted: of a key it keeps the last dead letter alone"),
                alter(self.bootstrap, topic, "cleanup.policy", "delete"),
            );
        }
        match subject.setting("retention.ms") {
            None | Some("-1") => Check::pass(item, format!("topic {topic} keeps what it has")),
            Some(millis) => Check::warn(
                item,
                format!("topic {topic} removes dead letters after {millis} ms"),
                alter(self.bootstrap, topic, "retention.ms", "-1"),
            ),
        }
    }
}

/// How a setting is changed.
fn alter(bootstrap: &str, name: &str, setting: &str, to: &str) -> String {
    // What new topics get is the setting of the brokers, which has another name in one case.
    let (entity, setting) = match (name, setting) {
        (NEW, "max.message.bytes") => ("brokers --entity-default".to_owned(), "message.max.bytes"),
        (NEW, setting) => ("brokers --entity-default".to_owned(), setting),
        (topic, setting) => (format!("topics --entity-name {topic}"), setting),
    };
    format!(
        "kafka-configs.sh --bootstrap-server {bootstrap} --alter --entity-type {entity} --add-config \
         {setting}={to}"
    )
}

/// With room for key and headers.
fn roomy(bytes: u64) -> u64 {
    bytes.saturating_add(bytes / 2)
}

#[cfg(test)]
mod tests {
    #![expect(
        clippy::redundant_closure_for_method_calls,
        reason = "a method is not general enough in the lifetime of its Cluster"
    )]

    use super::*;
    use crate::commands::check::item::Verdict;

    fn settings(of: &[(&str, &str)]) -> KafkaSettings {
        let of = of.iter();
        of.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    fn existing(replicas: usize, of: &[(&str, &str)]) -> TopicSurvey {
        TopicSurvey {
            name: "orders".into(),
            state: TopicState::Exists {
                replicas,
                leaderless: Vec::new(),
                writable: Some(true),
            },
            settings: Some(Ok(settings(of))),
        }
    }

    fn in_state(state: TopicState) -> TopicSurvey {
        TopicSurvey {
            name: "orders".into(),
            state,
            settings: None,
        }
    }

    fn missing(creation: Creation) -> TopicSurvey {
        in_state(TopicState::Missing { creation })
    }

    fn sink() -> KafkaSink {
        let text = "[source]\nurl = \"postgres://db/app\"\ntables = [\"public.outbox\"]\n\
                    [sink.kafka]\n\"bootstrap.servers\" = \"b:9092\"\n";
        let config = Config::parse(text, "walrelay.toml", &[], &|_| None).unwrap();
        match config.sink {
            crate::config::SinkConfig::Kafka(sink) => sink,
            other @ crate::config::SinkConfig::Stdout { .. } => panic!("{other:?}"),
        }
    }

    /// What a check of this topic says, on a cluster whose brokers create topics or not.
    fn of(
        topic: TopicSurvey,
        auto_create: Option<&str>,
        check: impl Fn(&Cluster<'_>) -> Check,
    ) -> Check {
        let defaults = match auto_create {
            Some(value) => Ok(settings(&[
                ("auto.create.topics.enable", value),
                ("default.replication.factor", "1"),
                ("message.max.bytes", "1000"),
            ])),
            None => Err("not authorised".to_owned()),
        };
        let survey = ClusterSurvey {
            brokers: 3,
            defaults,
            topics: vec![topic],
        };
        let check = check(&Cluster {
            survey: &survey,
            bootstrap: "b:9092",
            principal: "relay",
            subjects: subjects(&survey, &sink()),
        });
        let passed = check.verdict == Verdict::Pass;
        assert_eq!(passed, check.remedy.is_none(), "{check:?}");
        check
    }

    #[test]
    fn a_missing_topic_is_created_by_somebody_or_not() {
        let unled = in_state(TopicState::Exists {
            replicas: 3,
            leaderless: vec![2],
            writable: None,
        });
        for (topic, auto_create, verdict) in [
            (existing(3, &[]), Some("false"), "pass"),
            (unled, Some("true"), "fail"),
            (missing(Creation::NotConfigured), Some("true"), "pass"),
            (missing(Creation::NotConfigured), Some("false"), "fail"),
            (missing(Creation::NotConfigured), None, "warn"),
            (missing(Creation::Allowed), Some("false"), "pass"),
            (missing(Creation::Refused("x".into())), Some("true"), "fail"),
            (in_state(TopicState::Unknown("x".into())), None, "warn"),
        ] {
            let check = of(topic, auto_create, |of| of.topics());
            assert_eq!(check.verdict.name(), verdict, "{check:?}");
        }
    }

    #[test]
    fn rights_that_are_missing_are_named() {
        let unwritable = in_state(TopicState::Exists {
            replicas: 3,
            leaderless: Vec::new(),
            writable: Some(false),
        });
        for (topic, words) in [
            (unwritable, "User:relay --operation Write --topic orders"),
            (in_state(TopicState::Denied), "Describe --operation Write"),
            (missing(Creation::Denied), "--operation Create"),
        ] {
            let check = of(topic, Some("true"), |of| of.access());
            assert_eq!(check.verdict.name(), "fail", "{check:?}");
            let remedy = check.remedy.unwrap();
            assert!(remedy.contains(words), "{remedy}");
        }
        let check = of(existing(3, &[]), Some("true"), |of| of.access());
        assert_eq!(check.verdict.name(), "pass", "{check:?}");
    }

    #[test]
    fn replicas_and_how_many_have_to_answer() {
        let least = |replicas, value| existing(replicas, &[("min.insync.replicas", value)]);
        let size = ("max.message.bytes", "1000");
        for (replicas, value, verdict) in [
            (3, "2", "pass"),
            (3, "1", "warn"),
            (3, "3", "warn"),
            (3, "4", "fail"),
            (1, "1", "pass"),
            (1, "2", "fail"),
        ] {
            let mut topic = least(replicas, value);
            if let Some(Ok(settings)) = &mut topic.settings {
                settings.insert(size.0.into(), size.1.into());
            }
            let check = of(topic.clone(), Some("true"), |of| of.in_sync_replicas());
            assert_eq!(check.verdict.name(), verdict, "{check:?}");
            let check = of(topic, Some("true"), |of| of.replication_factor());
            assert_eq!(check.verdict == Verdict::Pass, replicas >= 3, "{check:?}");
        }
        // New topics get what the brokers have.
        let new = missing(Creation::NotConfigured);
        let check = of(new, Some("true"), |of| of.replication_factor());
        assert!(check.finding.contains("new topics: 1"), "{check:?}");
    }

    #[test]
    fn a_row_has_to_fit_both_limits() {
        let topic = || existing(3, &[("max.message.bytes", "1000")]);
        for (client, largest, verdict, words) in [
            (1000, Largest::Of(None), "pass", ""),
            (1000, Largest::Of(Some(1000)), "pass", ""),
            (1000, Largest::Of(Some(1001)), "warn", "[sink.kafka]"),
            (
                2000,
                Largest::Of(Some(1001)),
                "warn",
                "max.message.bytes=3000",
            ),
            (2000, Largest::Of(Some(1)), "warn", "max.message.bytes=3000"),
        ] {
            let check = of(topic(), Some("true"), |cluster| {
                cluster.message_size(Some(client), &largest)
            });
            assert_eq!(check.verdict.name(), verdict, "{check:?}");
            assert!(check.remedy.unwrap_or_default().contains(words));
        }
        let new = missing(Creation::NotConfigured);
        let check = of(new, Some("true"), |cluster| {
            cluster.message_size(Some(2000), &Largest::Of(None))
        });
        let remedy = check.remedy.unwrap();
        assert!(remedy.contains("brokers --entity-default --add-config message.max.bytes="));
    }
}
