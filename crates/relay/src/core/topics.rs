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

/// Number of places in [`TopicNumbers::recent`]; a power of two.
const PLACES: usize = 128;

/// Numbers of the first [`MAX_TOPICS`] topics, and one of all others, which is [`OTHER_TOPICS`].
#[derive(Debug, Default)]
pub(super) struct TopicNumbers {
    names: Vec<Box<str>>,
    numbers: HashMap<Box<str>, TopicNumber>,
    /// The numbers of topics that came lately, by [`place`]: rows repeat few topics, and the hash of
    /// a map takes a tenth of the core's time.
    recent: Vec<TopicNumber>,
}

/// Returns the place of a topic among the recent ones. Names of topics differ at their ends more often
/// than at their beginnings.
fn place(name: &str) -> usize {
    let bytes = name.as_bytes();
    let last = match bytes.last_chunk::<8>() {
        Some(bytes) => u64::from_le_bytes(*bytes),
        None => bytes
            .iter()
            .fold(0, |last, byte| last << 8 | u64::from(*byte)),
    };
    // Fibonacci hashing: the upper bits of a product with 2⁶⁴ through the golden ratio.
    let mixed = (last ^ name.len() as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> (u64::BITS - PLACES.ilog2())) as usize
}

impl TopicNumbers {
    /// Returns the number of a topic. Allocates for the first record of a topic only.
    pub(super) fn number(&mut self, name: &str) -> TopicNumber {
        let place = place(name);
        if let Some(number) = self.recent.get(place)
            && self.names.get(number.index()).map(Box::as_ref) == Some(name)
            && number.index() < MAX_TOPICS
        {
            return *number;
        }
        let number = match self.numbers.get(name) {
            Some(number) => *number,
            None => self.add(name),
        };
        self.recent.resize(PLACES, TopicNumber::default());
        if let Some(recent) = self.recent.get_mut(place) {
            *recent = number;
        }
        number
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
        // Topics that share a place have their own numbers, in any order.
        for n in (0..MAX_TOPICS).rev().chain([3, 99, 3]) {
            assert_eq!(topics.number(&format!("topic-{n}")).index(), n);
        }
        assert_eq!(topics.number("").index(), MAX_TOPICS);
        assert_eq!(topics.names().len(), MAX_TOPICS + 1);
        assert_eq!(&*topics.names()[7], "topic-7");
        assert_eq!(&*topics.names()[MAX_TOPICS], OTHER_TOPICS);
    }
}
