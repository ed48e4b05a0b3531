//! Kafka's rules for the names of topics. They are checked before a record is queued: the broker
//! would refuse the record much later, and librdkafka would retry without end.

/// The longest name, from `org.apache.kafka.common.internals.Topic.MAX_NAME_LENGTH`.
const MAX_LENGTH: usize = 249;

/// What is wrong with a topic's name; `None` if it is valid.
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

#[cfg(test)]
mod tests {
    use super::problem;

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
