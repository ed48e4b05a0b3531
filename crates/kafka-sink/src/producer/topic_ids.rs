//! Which topics were deleted and recreated under a sink, by their ids.
//!
//! librdkafka ignores metadata of a partition whose leader epoch is below one that it has seen, also
//! where the topic has another id ([librdkafka issue 4898], open). Once the leader epoch has risen,
//! records for a topic that is made anew may be sent to a broker that does not lead it, again and
//! again and without an error. Only a new client sends them to the leader.
//!
//! [librdkafka issue 4898]: https://github.com/confluentinc/librdkafka/issues/4898

use std::collections::HashMap;

use crate::answers::TopicId;

/// The ids that topics had when a broker first reported them to the sink.
#[derive(Debug, Default)]
pub(crate) struct TopicIds(HashMap<String, TopicId>);

impl TopicIds {
    /// Returns the number of topics whose id is known.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn knows(&self, topic: &str) -> bool {
        self.0.contains_key(topic)
    }

    pub(crate) fn topics(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }

    /// Adds the ids of topics that were not known. Returns the topics that have another id than
    /// before, sorted.
    pub(crate) fn update(&mut self, now: Vec<(String, TopicId)>) -> Vec<String> {
        let mut renewed = Vec::new();
        for (topic, id) in now {
            match self.0.get(&topic) {
                Some(before) if *before == id => {}
                Some(_) => renewed.push(topic),
                None => {
                    self.0.insert(topic, id);
                }
            }
        }
        renewed.sort();
        renewed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_with_another_id_was_made_anew() {
        let mut ids = TopicIds::default();
        let now = |of: &[(&str, i64)]| {
            let of = of.iter();
            of.map(|(topic, id)| ((*topic).to_owned(), TopicId(7, *id)))
                .collect()
        };
        assert_eq!(ids.update(now(&[("a", 1), ("b", 2)])), [""; 0]);
        assert!(ids.knows("a") && !ids.knows("c"));
        // A topic that does not exist at the moment is missing.
        assert_eq!(ids.update(now(&[("b", 2), ("c", 3)])), [""; 0]);
        assert_eq!(ids.len(), 3);
        assert_eq!(ids.update(now(&[("c", 5), ("b", 2), ("a", 4)])), ["a", "c"]);
    }
}
