//! The checks of topic settings: size, replication, elections, retention.

use walrelay_settings::format_bytes as bytes;
use walrelay_sink_kind::check::{Check, shortened};

use super::{Cluster, NEW, Subject};

/// Number of topics that a finding names at most.
const NAMED: usize = 3;

impl Cluster<'_> {
    pub(super) fn settings(&self) -> Check {
        let unseen = self.survey.topics.iter().find_map(|topic| {
            let reason = topic.settings.as_ref()?.as_ref().err()?;
            let name = &topic.name;
            Some((format!("topic {name}"), reason, format!("--topic {name}")))
        });
        let defaults = || {
            let reason = self.survey.defaults.as_ref().err()?;
            let needed = self.subjects.is_empty();
            needed.then(|| (NEW.to_owned(), reason, "--cluster".to_owned()))
        };
        let Some((of, reason, resource)) = unseen.or_else(defaults) else {
            let count = self.subjects.iter().filter(|of| of.name != NEW).count();
            return Check::pass(format!("seen: {count} topic(s), and those of new ones"));
        };
        Check::warn(
            format!("the settings of {of} are not seen: {reason}"),
            self.allow_command("--operation DescribeConfigs", &resource),
        )
    }

    /// Returns the subjects for which `problem` returns one, as a finding, and the name of the
    /// first.
    fn problems(&self, problem: impl Fn(&Subject<'_>) -> Option<String>) -> Option<(String, &str)> {
        let subjects = self.subjects.iter();
        let problems = subjects.filter_map(|subject| Some((subject.name, problem(subject)?)));
        let problems: Vec<(&str, String)> = problems.collect();
        let first = problems.first()?.0;
        let texts = problems
            .iter()
            .map(|(name, what)| format!("{name}: {what}"));
        Some((shortened(texts.collect(), NAMED).join("; "), first))
    }

    /// Returns a warning about the subjects for which `problem` returns one, or `passed`. The
    /// remedy changes the setting of the first.
    fn warn_about(
        &self,
        (setting, to): (&str, &str),
        problem: impl Fn(&Subject<'_>) -> Option<String>,
        passed: &str,
    ) -> Check {
        match self.problems(problem) {
            None => Check::pass(passed),
            Some((finding, first)) => Check::warn(finding, self.alter_command(first, setting, to)),
        }
    }

    pub(super) fn message_size(
        &self,
        client: Option<u64>,
        largest: &Result<Option<u64>, Check>,
    ) -> Check {
        let most = match largest {
            Ok(most) => *most,
            Err(unseen) => return unseen.clone(),
        };
        let row = match most {
            Some(most) => format!("the largest row has {}", bytes(most)),
            None => "no row is in the tables".to_owned(),
        };
        if let (Some(most), Some(client)) = (most, client)
            && most > client
        {
            return Check::warn(
                format!("{row}, more than message.max.bytes = {client} of [sink.kafka] allows"),
                format!("[sink.kafka] \"message.max.bytes\" = {}", with_room(most)),
            );
        }
        let needed = most.unwrap_or(0).max(client.unwrap_or(0));
        let to = with_room(needed).to_string();
        let problem = |subject: &Subject<'_>| {
            let limit = subject.max_message_bytes?;
            if most.is_some_and(|most| most > limit) {
                return Some(format!("max.message.bytes = {limit}, and {row}"));
            }
            client.filter(|client| *client > limit).map(|client| {
                format!(
                    "max.message.bytes = {limit} is below the relay's message.max.bytes = {client}"
                )
            })
        };
        let passed = format!("{row}, and fits");
        self.warn_about(("max.message.bytes", &to), problem, &passed)
    }

    pub(super) fn replication_factor(&self) -> Check {
        let few = |subject: &Subject<'_>| {
            let replicas = subject.replicas.filter(|replicas| *replicas < 3)?;
            Some(format!("{replicas} replica(s)"))
        };
        let Some((finding, _)) = self.problems(few) else {
            return Check::pass("3 replicas or more, as far as seen");
        };
        Check::warn(
            format!("{finding}: with fewer than 3, two brokers that fail lose acknowledged events"),
            if self.brokers < 3 {
                format!(
                    "the cluster has {} broker(s), and a topic no more replicas: add brokers before production, then \
                     kafka-reassign-partitions.sh",
                    self.brokers
                )
            } else {
                "kafka-reassign-partitions.sh for topics that exist; for new ones \
                 [sink.topics] replication_factor = 3, or default.replication.factor"
                    .to_owned()
            },
        )
    }

    pub(super) fn in_sync_replicas(&self) -> Check {
        let setting = "min.insync.replicas";
        let least = |subject: &Subject<'_>| subject.number(setting).zip(subject.replicas);
        let blocked = self.problems(|subject| {
            let (least, replicas) = least(subject)?;
            (least > replicas).then(|| {
                format!(
                    "{setting} = {least} with {replicas} replica(s): older brokers acknowledge no record, newer \
                     ones (Kafka 4) count it as {replicas}, so that one broker that is away stops the topic"
                )
            })
        });
        if let Some((finding, first)) = blocked {
            return Check::warn(finding, self.alter_command(first, setting, "1"));
        }
        let weak = |subject: &Subject<'_>| {
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
        };
        self.warn_about((setting, "2"), weak, "fits the replicas, as far as seen")
    }

    pub(super) fn unclean_election(&self) -> Check {
        let setting = "unclean.leader.election.enable";
        let unclean = |subject: &Subject<'_>| {
            (subject.setting(setting)? == "true")
                .then(|| format!("{setting} = true: acknowledged events may be lost"))
        };
        self.warn_about((setting, "false"), unclean, "off, as far as seen")
    }

    pub(super) fn dead_letters(&self, topic: Option<&str>) -> Check {
        let Some(topic) = topic else {
            return Check::pass("no event becomes a dead letter");
        };
        let Some(subject) = self.subjects.iter().find(|subject| subject.name == topic) else {
            return Check::pass(format!("the settings of topic {topic} are not seen yet"));
        };
        let policy = subject.setting("cleanup.policy");
        if policy.is_some_and(|policy| policy.contains("compact")) {
            return Check::warn(
                format!("topic {topic} is compacted: of a key it keeps the last dead letter alone"),
                self.alter_command(topic, "cleanup.policy", "delete"),
            );
        }
        match subject.setting("retention.ms") {
            None | Some("-1") => Check::pass(format!("topic {topic} keeps its records")),
            Some(millis) => Check::warn(
                format!("topic {topic} removes dead letters after {millis} ms"),
                self.alter_command(topic, "retention.ms", "-1"),
            ),
        }
    }

    /// Returns the command that changes a setting.
    fn alter_command(&self, name: &str, setting: &str, to: &str) -> String {
        // New topics take the setting of the brokers. For `max.message.bytes`, it has another name.
        let (entity, setting) = match (name, setting) {
            (NEW, "max.message.bytes") => {
                ("brokers --entity-default".to_owned(), "message.max.bytes")
            }
            (NEW, setting) => ("brokers --entity-default".to_owned(), setting),
            (topic, setting) => (format!("topics --entity-name {topic}"), setting),
        };
        format!(
            "kafka-configs.sh --bootstrap-server {} --alter --entity-type {entity} --add-config \
             {setting}={to}",
            self.bootstrap
        )
    }
}

/// Returns half as many bytes more, for key and headers.
fn with_room(bytes: u64) -> u64 {
    bytes.saturating_add(bytes / 2)
}
