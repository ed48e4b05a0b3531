//! The settings by which a stream loses acknowledged messages, for events and for dead letters.

use serde_json::Value;

/// Nanoseconds.
const A_DAY: i64 = 86_400_000_000_000;

/// A setting by which a stream does not keep acknowledged messages.
pub(crate) struct Loss {
    /// What the setting is about; `None`: events and dead letters.
    only: Option<Content>,
    /// False if the stream acknowledges nothing then.
    pub(crate) is_of_acknowledged: bool,
    pub(crate) is_set: fn(&Value) -> bool,
    /// What the stream does, behind its name.
    pub(crate) does: &'static str,
    pub(crate) remedy: &'static str,
}

/// The content of a stream.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    Events,
    DeadLetters,
}

/// The settings of a stream that matter, the worst first.
///
/// Source: "Streams" in the documentation of JetStream, and `server/filestore.go` for the limit by subject,
/// which deletes unless `discard_new_per_subject` is set.
const LOSSES: &[Loss] = &[
    Loss {
        only: Some(Content::DeadLetters),
        is_of_acknowledged: true,
        is_set: |config| !config["subject_transform"].is_null(),
        does: "gives messages other subjects, so they cannot be read back",
        remedy: "remove subject_transform from it",
    },
    Loss {
        only: None,
        is_of_acknowledged: false,
        is_set: |config| config["no_ack"] == true,
        does: "acknowledges nothing (no_ack), so nothing counts as delivered",
        remedy: "set no_ack to false",
    },
    Loss {
        only: Some(Content::DeadLetters),
        is_of_acknowledged: true,
        is_set: |config| config["retention"] != "limits",
        does: "deletes consumed messages",
        remedy: "set retention to limits",
    },
    Loss {
        only: Some(Content::Events),
        is_of_acknowledged: true,
        is_set: |config| config["retention"] == "interest",
        does: "drops messages without a consumer at once (retention interest), and acknowledges \
               them",
        remedy: "set retention to limits, or create all consumers before the relay starts",
    },
    Loss {
        only: None,
        is_of_acknowledged: true,
        is_set: |config| {
            let is_limited = |name: &str| config[name].as_i64() > Some(0);
            config["discard"] != "new" && (is_limited("max_msgs") || is_limited("max_bytes"))
                || is_limited("max_msgs_per_subject") && config["discard_new_per_subject"] != true
        },
        does: "deletes the oldest messages at a limit, consumed or not",
        remedy: "remove its limits, or set discard to new, and discard_new_per_subject for that by subject",
    },
    Loss {
        only: Some(Content::DeadLetters),
        is_of_acknowledged: true,
        is_set: |config| config["max_age"].as_i64() > Some(0),
        does: "deletes messages in time (max_age)",
        remedy: "set max_age to 0",
    },
    Loss {
        only: Some(Content::Events),
        is_of_acknowledged: true,
        is_set: |config| (1..A_DAY).contains(&config["max_age"].as_i64().unwrap_or(0)),
        does: "deletes messages within a day (max_age), consumed or not",
        remedy: "raise max_age beyond the longest outage of a consumer that you expect",
    },
    Loss {
        only: Some(Content::DeadLetters),
        is_of_acknowledged: true,
        is_set: |config| config["storage"] == "memory",
        does: "loses messages with its server",
        remedy: "recreate it with storage file",
    },
];

impl Loss {
    /// Returns the settings that matter to this content.
    pub(crate) fn about(content: Content) -> impl Iterator<Item = &'static Self> {
        let losses = LOSSES.iter();
        losses.filter(move |loss| loss.only.is_none_or(|only| only == content))
    }
}

/// Returns what may happen to dead letters in a stream; `None` if it keeps them all.
pub(crate) fn loss_of_dead_letters(config: &Value) -> Option<&'static Loss> {
    Loss::about(Content::DeadLetters).find(|loss| (loss.is_set)(config))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_stream_that_deletes_dead_letters_is_warned_of() {
        let good = json!({
            "storage": "file", "retention": "limits", "discard": "old", "max_msgs": -1, "max_bytes": -1,
            "max_age": 0, "max_msgs_per_subject": -1,
        });
        assert!(loss_of_dead_letters(&good).is_none());
        for (name, value, words) in [
            ("retention", json!("workqueue"), "consumed"),
            ("max_age", json!(1), "max_age"),
            ("max_msgs_per_subject", json!(1), "oldest"),
            ("storage", json!("memory"), "server"),
            ("subject_transform", json!({"src": "a"}), "subjects"),
        ] {
            let mut config = good.clone();
            config[name] = value;
            let what = loss_of_dead_letters(&config).expect(name).does;
            assert!(what.contains(words), "{what}");
        }
        let mut full = good;
        (full["discard"], full["max_bytes"]) = (json!("new"), json!(1));
        assert!(loss_of_dead_letters(&full).is_none(), "it refuses new ones");
        full["max_msgs_per_subject"] = json!(1);
        loss_of_dead_letters(&full).expect("the oldest one of the subject goes");
        full["discard_new_per_subject"] = json!(true);
        assert!(loss_of_dead_letters(&full).is_none(), "it refuses new ones");
    }
}
