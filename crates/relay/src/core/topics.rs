use std::collections::HashMap;

use walrelay_sink::{MAX_TOPICS, OTHER_TOPICS};

/// The number of a topic in a [`TopicNumbers`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct TopicNumber(u16);

impl TopicNumber {
    pub(super) fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Numbers of the first [`MAX_TOPICS`] topics, and one of all others, which is [`OTHER_TOPICS`].
#[derive(Debug, Default)]
pub(super) struct TopicNumbers {
    names: Vec<Box<str>>,
    numbers: HashMap<Box<str>, TopicNumber>,
    /// The number that was returned last. Most records have the topic of the record before.
    last: TopicNumber,
}

impl TopicNumbers {
    /// Returns the number of a topic. Allocates for the first record of a topic only.
    pub(super) fn number(&mut self, name: &str) -> TopicNumber {
        if self.names.get(self.last.index()).map(Box::as_ref) != Some(name) {
            self.last = match self.numbers.get(name) {
                Some(number) => *number,
                None => self.add(name),
            };
        }
        self.last
    }

    fn add(&mut self, name: &str) -> TopicNumber {
        // Below 2^16: there are at most MAX_TOPICS + 1 names.
        let number = TopicNumber(self.names.len().min(MAX_TOPICS) as u16);
        if self.names.len() < MAX_TOPICS {
            self.names.push(Box::from(name));
            self.numbers.insert(Box::from(name), number);
        } else if self.names.len() == MAX_TOPICS {
            self.names.push(Box::from(OTHER_TOPICS));
        }
        number
    }

    /// Returns the names; the index of a name is its number.
    pub(super) fn names(&self) -> &[Box<str>] {
        &self.names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_have_numbers_and_those_beyond_the_limit_share_one() {
        let mut topics = TopicNumbers::default();
        for _ in 0..2 {
            for n in 0..MAX_TOPICS + 20 {
                let number = topics.number(&format!("topic-{n}"));
                assert_eq!(number.index(), n.min(MAX_TOPICS));
            }
        }
        assert_eq!(topics.names().len(), MAX_TOPICS + 1);
        assert_eq!(&*topics.names()[7], "topic-7");
        assert_eq!(&*topics.names()[MAX_TOPICS], OTHER_TOPICS);
    }
}
