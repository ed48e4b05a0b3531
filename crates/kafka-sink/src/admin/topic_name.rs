//! Kafka's rules for the names of topics. They are checked before a record is queued: the broker
//! would refuse the record much later, and librdkafka would retry without end.

/// The longest name, from `org.apache.kafka.common.internals.Topic.MAX_NAME_LENGTH`.
const MAX_LENGTH: usize = 249;

/// Returns what is wrong with a topic's name; `None` if it is valid.
pub fn problem(name: &str) -> Option<String> {
    if name.is_empty() {
        return Some("the name of a topic must not be empty".to_owned());
    }
    if name == "." || name == ".." {
        return Some("a topic must not be called \".\" or \"..\"".to_owned());
    }
    if name.len() > MAX_LENGTH {
        return Some(format!(
            "the name has {} bytes, Kafka allows {MAX_LENGTH}",
            name.len()
        ));
    }
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    name.chars().find(|c| !legal(*c)).map(|c| {
        format!(
            "the character {c:?} is not allowed in the name of a topic; Kafka allows ASCII \
             letters, digits, '.', '_' and '-'"
        )
    })
}

/// Returns true if Kafka refuses a topic for the name of another one: in the names of metrics it
/// replaces each `.` by `_`.
pub(crate) fn collides(name: &str, other: &str) -> bool {
    let metric = |name: &str| name.replace('.', "_");
    name != other && metric(name) == metric(other)
}

#[cfg(test)]
mod tests {
    use super::{collides, problem};

    #[test]
    fn names_collide_that_differ_only_in_dots_and_underscores() {
        assert!(collides("my.topic", "my_topic"));
        assert!(collides("a.b_c", "a_b.c"));
        for other in ["my.topic", "my-topic", "mytopic", "My_topic"] {
            assert!(!collides("my.topic", other), "{other}");
        }
    }

    #[test]
    fn kafkas_rules() {
        for good in [
            "a",
            "outbox.event.Order",
            "A_b-C.9",
            "...",
            &"x".repeat(249),
        ] {
            assert_eq!(problem(good), None, "{good}");
        }
        for bad in [
            "",
            ".",
            "..",
            "a b",
            "a/b",
            "größe",
            "a\0b",
            &"x".repeat(250),
        ] {
            assert!(problem(bad).is_some(), "{bad}");
        }
    }
}
