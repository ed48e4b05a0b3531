//! Whether topics exist, and whether the relay may write to them.

use walrelay_kafka_sink::{Creation, TopicState};

use super::Cluster;
use crate::cli::Exit;
use crate::commands::check::item::{Check, Item};

impl Cluster<'_> {
    pub(super) fn topics(&self) -> Check {
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

    pub(super) fn access(&self) -> Check {
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
}
