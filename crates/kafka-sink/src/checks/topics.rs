//! Checks that topics exist or can be created, and that the relay may write to them.

use walrelay_failure::Exit;
use walrelay_sink_kind::check::Check;

use super::Cluster;
use crate::{Creation, TopicState};

/// The finding without a topic: the input of the checks names none.
const NONE_KNOWN: &str =
    "none is known: no row that this role may read, and no running relay, tells one";

impl Cluster<'_> {
    pub(super) fn topics(&self) -> Check {
        let defaults = self.survey.defaults.as_ref().ok();
        let auto_create = defaults.and_then(|settings| settings.get("auto.create.topics.enable"));
        let auto_create = auto_create.map(|value| value == "true");
        let mut unsure = None;
        let mut to_create = 0;
        for topic in &self.survey.topics {
            let name = &topic.name;
            let creation = match &topic.state {
                TopicState::Missing { creation } => creation,
                TopicState::Exists { leaderless, .. } => match leaderless.first() {
                    None => continue,
                    Some(partition) => {
                        return Check::fail(
                            ("kafka-topic", Exit::Unavailable),
                            format!("partition {partition} of topic {name} has no leader"),
                            "start the brokers that have its replicas",
                        );
                    }
                },
                // The check of access reports the missing privilege.
                TopicState::Denied => continue,
                TopicState::Unknown(reason) => {
                    let finding = format!("of topic {name} the broker says: {reason}");
                    return Check::warn(finding, "check again");
                }
            };
            match (creation, auto_create) {
                (Creation::Allowed, _) | (Creation::NotConfigured, Some(true)) => to_create += 1,
                (Creation::NotConfigured, None) => unsure = unsure.or(Some(name)),
                // The check of access reports the missing privilege.
                (Creation::Denied, _) => {}
                (Creation::Refused(reason), _) => {
                    return Check::fail(
                        ("kafka-topic", Exit::Config),
                        format!("topic {name} does not exist and cannot be created: {reason}"),
                        format!(
                            "correct partitions and replication_factor in [sink.topics]: the cluster has {} \
                             broker(s), and a topic no more replicas",
                            self.brokers
                        ),
                    );
                }
                (Creation::NotConfigured, Some(false)) => {
                    return Check::fail(
                        ("kafka-topic", Exit::Config),
                        format!("topic {name} does not exist, and nothing creates it"),
                        self.create_command(name),
                    );
                }
            }
        }
        if let Some(name) = unsure {
            return Check::warn(
                format!("topic {name} does not exist; whether the brokers create it is not seen"),
                self.create_command(name),
            );
        }
        let count = self.survey.topics.len();
        Check::pass(match (count, to_create) {
            (0, _) => NONE_KNOWN.to_owned(),
            (_, 0) => format!("{count} known, all exist"),
            (_, new) => format!("{count} known, {new} to be created with the first record"),
        })
    }

    fn create_command(&self, topic: &str) -> String {
        format!(
            "kafka-topics.sh --bootstrap-server {} --create --topic {topic} \
             --partitions 6 --replication-factor {}, or [sink.topics] create = true",
            self.bootstrap,
            self.brokers.clamp(1, 3)
        )
    }

    pub(super) fn access(&self) -> Check {
        let mut not_reported = false;
        for topic in &self.survey.topics {
            let name = &topic.name;
            let (may, operations) = match &topic.state {
                TopicState::Denied => (
                    "neither see nor write",
                    "--operation Describe --operation Write",
                ),
                TopicState::Exists {
                    writable: Some(false),
                    ..
                } => ("not write", "--operation Write"),
                TopicState::Missing {
                    creation: Creation::Denied,
                } => (
                    "not create",
                    "--operation Create --operation Describe --operation Write",
                ),
                TopicState::Exists { writable: None, .. } => {
                    not_reported = true;
                    continue;
                }
                _ => continue,
            };
            return Check::fail(
                ("topic-access", Exit::Denied),
                format!("the relay may {may} topic {name}"),
                self.allow_command(operations, &format!("--topic {name}")),
            );
        }
        let count = self.survey.topics.len();
        Check::pass(match (count, not_reported) {
            (0, _) => NONE_KNOWN.to_owned(),
            (_, true) => "the brokers do not say who may write".to_owned(),
            (_, false) => format!("the relay may write to the existing ones of {count} topic(s)"),
        })
    }

    /// Returns the command that allows the relay's user these operations.
    pub(super) fn allow_command(&self, operations: &str, resource: &str) -> String {
        format!(
            "kafka-acls.sh --bootstrap-server {} --add --allow-principal User:{} {operations} \
             {resource}",
            self.bootstrap, self.principal
        )
    }
}
