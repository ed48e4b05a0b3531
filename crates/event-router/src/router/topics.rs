//! A cache of rendered topics, as an outbox has few topics and its rows repeat them.

use walrelay_pgoutput::Value;

use crate::plan::Topic;
use crate::value::{Fault, value};

/// Number of places in the cache; a power of two.
const CACHE_SIZE: usize = 128;
/// Longest routing value in bytes that is cached; topics of longer values are rendered for each
/// row.
const MAX_VALUE_BYTES: usize = 256;

/// The topic of the last row, and a cache of topics by routing value. Length and some bytes of a
/// value select its place; a value replaces the former one in its place.
#[derive(Default)]
pub(crate) struct TopicCache {
    entries: Vec<CachedTopic>,
    last: usize,
    /// The last topic, if it is not in the cache.
    other: String,
}

#[derive(Default)]
struct CachedTopic {
    /// Index of the plan that rendered the topic; `None` if the place is empty.
    plan: Option<usize>,
    value: Vec<u8>,
    topic: String,
}

/// Returns the place of a routing value in the cache.
fn cache_place(value: &[u8]) -> usize {
    let byte = |at: usize| value.get(at).map_or(0, |byte| u32::from(*byte));
    let length = value.len();
    let some = byte(0) | byte(length / 2) << 8 | byte(length.wrapping_sub(1)) << 16;
    // Fibonacci hashing: the upper bits of a product with 2³² through the golden ratio.
    let mixed = (some | (length as u32) << 24).wrapping_mul(0x9E37_79B9);
    (mixed >> (u32::BITS - CACHE_SIZE.ilog2())) as usize
}

impl TopicCache {
    /// Sets the last topic to that of a row with these `values`: from the cache, or rendered.
    pub(crate) fn render(
        &mut self,
        plan: usize,
        topic: &Topic,
        values: &[Value<'_>],
        scratch: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        let routed_by = match topic {
            Topic::Routed { index, .. } => value(values, *index)?,
            Topic::Rendered(_) | Topic::Address(..) => None,
        };
        let Some(routed_by) = routed_by.filter(|value| value.len() <= MAX_VALUE_BYTES) else {
            self.last = CACHE_SIZE;
            return topic.render(values, scratch, &mut self.other);
        };
        let place = cache_place(routed_by);
        self.last = place;
        if let Some(known) = self.entries.get(place)
            && known.plan == Some(plan)
            && known.value == routed_by
        {
            return Ok(());
        }
        self.entries.resize_with(CACHE_SIZE, CachedTopic::default);
        let Some(known) = self.entries.get_mut(place) else {
            return Ok(());
        };
        known.plan = None;
        topic.render(values, scratch, &mut known.topic)?;
        known.value.clear();
        known.value.extend_from_slice(routed_by);
        known.plan = Some(plan);
        Ok(())
    }

    pub(crate) fn last(&self) -> &str {
        let known = self.entries.get(self.last);
        known.map_or(&self.other, |known| &known.topic)
    }

    /// Empties the cache. Must be called when plans change.
    pub(crate) fn clear(&mut self) {
        for known in &mut self.entries {
            known.plan = None;
        }
        self.last = CACHE_SIZE;
        self.other.clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::render::debezium::TopicTemplate;

    fn routed(template: &str, default: Option<&str>) -> Topic {
        Topic::Routed {
            index: 0,
            default: default.map(Into::into),
            name: Some({
                let template: TopicTemplate = template.parse().unwrap();
                Box::new(move |value, topic| template.render(value, topic))
            }),
        }
    }

    proptest! {
        /// A topic from the cache equals the rendered topic, whatever rows came before.
        #[test]
        fn cached_topics_equal_rendered_topics(
            rows in prop::collection::vec(
                (0..3_usize, prop::option::of("[a-c]{0,3}|[a-z\u{85}é\n]{0,8}|x{250,260}"), any::<bool>()),
                1..200,
            ),
        ) {
            let plans = [
                routed("outbox.event.${routedByValue}", None),
                routed("${routedByValue}-${routedByValue}", Some("none")),
                Topic::Routed {
                    index: 0,
                    default: None,
                    name: None,
                },
            ];
            let mut topics = TopicCache::default();
            for (plan, text, clear) in &rows {
                if *clear && text.is_none() {
                    topics.clear();
                }
                let value = match text {
                    Some(text) => Value::Text(text.as_bytes()),
                    None => Value::Null,
                };
                let mut expected = String::new();
                let rendered = plans[*plan].render(&[value], &mut Vec::new(), &mut expected);
                let found = topics.render(*plan, &plans[*plan], &[value], &mut Vec::new());
                prop_assert_eq!(found, rendered);
                if found.is_ok() {
                    prop_assert_eq!(topics.last(), expected);
                }
            }
        }
    }

    #[test]
    fn invalid_utf8_is_refused_each_time() {
        let mut topics = TopicCache::default();
        let topic = routed("t.${routedByValue}", None);
        for _ in 0..2 {
            let found = topics.render(0, &topic, &[Value::Text(b"a\xFF")], &mut Vec::new());
            assert_eq!(found, Err(Fault::new(0, crate::ValueError::NotUtf8)));
        }
    }
}
