//! What the settings of topics promise.

use super::{Cluster, NEW, Subject};
use crate::cli::Exit;
use crate::commands::check::item::{Check, Item};
use crate::commands::check::postgres::Largest;

/// How many topics are named in a finding.
const NAMED: usize = 3;

impl Cluster<'_> {
    pub(super) fn settings(&self) -> Check {
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
    pub(super) fn wrong(
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

    pub(super) fn message_size(&self, client: Option<u64>, largest: &Largest) -> Check {
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

    pub(super) fn replication_factor(&self) -> Check {
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

    pub(super) fn in_sync_replicas(&self) -> Check {
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

    pub(super) fn unclean_election(&self) -> Check {
        let item = Item::UncleanElection;
        let setting = "unclean.leader.election.enable";
        let wrong = self.wrong(item, (setting, "false"), |subject| {
            (subject.setting(setting)? == "true")
                .then(|| format!("{setting} = true: acknowledged events may be lost"))
        });
        wrong.unwrap_or_else(|| Check::pass(item, "off, of what is seen"))
    }

    pub(super) fn dead_letters(&self, topic: Option<&String>) -> Check {
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
