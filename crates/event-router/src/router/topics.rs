//! A cache of rendered topics: an outbox has few, and its rows repeat them.

use walrelay_pgoutput::Value;

use crate::plan::Topic;
use crate::value::{Fault, value};

/// Of the cache; a power of two.
const PLACES: usize = 128;
/// Longer values are rendered each time.
const LONGEST: usize = 256;

/// The topics of the last row and of rows before it. Length and some bytes of a value choose its place.
/// A value replaces another one there.
#[derive(Default)]
pub(crate) struct Topics {
    places: Vec<Rendered>,
    last: usize,
    /// The last topic, if it is not in the cache.
    other: String,
}

#[derive(Default)]
struct Rendered {
    /// The plan that rendered it; `None`: the place is empty.
    plan: Option<usize>,
    value: Vec<u8>,
    topic: String,
}

fn place(value: &[u8]) -> usize {
    let byte = |at: usize| value.get(at).map_or(0, |byte| u32::from(*byte));
    let length = value.len();
    let some = byte(0) | byte(length / 2) << 8 | byte(length.wrapping_sub(1)) << 16;
    // Fibonacci hashing: the upper bits of a product with 2³² through the golden ratio.
    let mixed = (some | (length as u32) << 24).wrapping_mul(0x9E37_79B9);
    (mixed >> (u32::BITS - PLACES.ilog2())) as usize
}

impl Topics {
    /// Renders the topic of a row with these `values`, or finds it.
    pub(crate) fn render(
        &mut self,
        plan: usize,
        topic: &Topic,
        values: &[Value<'_>],
        scratch: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        let routed_by = match topic {
            Topic::Routed { slot, .. } => value(values, *slot)?,
            Topic::Made(_) => None,
        };
        let Some(routed_by) = routed_by.filter(|value| value.len() <= LONGEST) else {
            self.last = PLACES;
            return topic.render(values, scratch, &mut self.other);
        };
        let place = place(routed_by);
        self.last = place;
        if let Some(known) = self.places.get(place)
            && known.plan == Some(plan)
            && known.value == routed_by
        {
            return Ok(());
        }
        self.places.resize_with(PLACES, Rendered::default);
        let Some(known) = self.places.get_mut(place) else {
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
        let known = self.places.get(self.last);
        known.map_or(&self.other, |known| &known.topic)
    }

    /// Empties the cache: the plans have changed.
    pub(crate) fn forget(&mut self) {
        for known in &mut self.places {
            known.plan = None;
        }
        self.last = PLACES;
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
            slot: 0,
            default: default.map(Into::into),
            name: Some({
                let template: TopicTemplate = template.parse().unwrap();
                Box::new(move |value, topic| template.render(value, topic))
            }),
        }
    }

    proptest! {
        /// Whatever came before, a topic is what it is when nothing is kept.
        #[test]
        fn what_is_kept_is_what_would_be_rendered(
            rows in prop::collection::vec(
                (0..3_usize, prop::option::of("[a-c]{0,3}|[a-z\u{85}é\n]{0,8}|x{250,260}"), any::<bool>()),
                1..200,
            ),
        ) {
            let plans = [
                routed("outbox.event.${routedByValue}", None),
                routed("${routedByValue}-${routedByValue}", Some("none")),
                Topic::Routed {
                    slot: 0,
                    default: None,
                    name: None,
                },
            ];
            let mut topics = Topics::default();
            for (plan, text, forget) in &rows {
                if *forget && text.is_none() {
                    topics.forget();
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
    fn what_is_not_text_is_refused_each_time() {
        let mut topics = Topics::default();
        let topic = routed("t.${routedByValue}", None);
        for _ in 0..2 {
            let found = topics.render(0, &topic, &[Value::Text(b"a\xFF")], &mut Vec::new());
            assert_eq!(found, Err(Fault::new(0, crate::ValueError::NotUtf8)));
        }
    }
}
