//! Selects dead letters by the filters of the command line.

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use walrelay_sink_kind::dead_letters::DlqRecord;

use crate::cli::FilterArgs;

/// Largest assumed difference of the clocks of database, relay and sink.
const CLOCK_DIFFERENCE: time::Duration = time::Duration::days(1);

/// The filters of the command line, and the slot.
pub(super) struct Filter<'a> {
    pub(super) args: &'a FilterArgs,
    /// `None` for dead letters of all slots.
    pub(super) slot: Option<&'a str>,
}

impl Filter<'_> {
    pub(super) fn matches(&self, record: &DlqRecord) -> bool {
        let FilterArgs {
            class,
            topic,
            table,
            key,
            event_id,
            id,
            since,
            until,
            limit: _,
        } = self.args;
        let text = |wanted: &[String], found: Option<&[u8]>| {
            let among = |found: &[u8]| wanted.iter().any(|wanted| wanted.as_bytes() == found);
            wanted.is_empty() || found.is_some_and(among)
        };
        // A dead letter without a readable commit time matches no span of time.
        let committed = || OffsetDateTime::parse(record.commit_time.as_deref()?, &Rfc3339).ok();
        self.slot.is_none_or(|slot| slot == record.slot)
            && text(class, Some(record.class.as_bytes()))
            && text(topic, record.topic.as_deref().map(str::as_bytes))
            && text(table, record.table.as_deref().map(str::as_bytes))
            && text(key, record.key.as_deref())
            && text(event_id, record.event_id.as_deref())
            && (id.is_empty() || id.contains(&record.id))
            && since.is_none_or(|since| committed().is_some_and(|at| at >= since))
            && until.is_none_or(|until| committed().is_some_and(|at| at < until))
    }

    /// Returns the time from which records of the topic must be read, in milliseconds since 1970;
    /// `None` for all.
    pub(super) fn written_since(&self) -> Option<i64> {
        let since = self.args.since?.checked_sub(CLOCK_DIFFERENCE)?;
        i64::try_from(since.unix_timestamp_nanos() / 1_000_000)
            .ok()
            .filter(|millis| *millis > 0)
    }
}

#[cfg(test)]
mod tests {
    use walrelay_sink::EventPosition;

    use super::*;
    use crate::commands::dead_letters::tests;

    fn record() -> DlqRecord {
        DlqRecord {
            id: EventPosition::in_first_epoch(1, 2),
            class: "rejected".into(),
            topic: Some("t".into()),
            event_id: Some(b"e".to_vec()),
            key: Some(b"k".to_vec()),
            ..tests::record()
        }
    }

    fn at(text: &str) -> OffsetDateTime {
        OffsetDateTime::parse(text, &Rfc3339).unwrap()
    }

    fn matches(args: &FilterArgs, record: &DlqRecord) -> bool {
        Filter { args, slot: None }.matches(record)
    }

    #[test]
    fn each_kind_of_filter_decides() {
        let none = FilterArgs::default;
        let of = |kind: &str, value: &str| {
            let values = vec!["other".to_owned(), value.to_owned()];
            let mut args = none();
            match kind {
                "class" => args.class = values,
                "topic" => args.topic = values,
                "table" => args.table = values,
                "key" => args.key = values,
                _ => args.event_id = values,
            }
            args
        };
        let cases = [
            ("class", "rejected"),
            ("topic", "t"),
            ("table", "public.outbox"),
            ("key", "k"),
            ("event id", "e"),
        ];
        assert!(matches(&none(), &record()));
        for (kind, value) in cases {
            assert!(matches(&of(kind, value), &record()), "{kind}");
            assert!(!matches(&of(kind, "another"), &record()), "{kind}");
        }
        let bare = DlqRecord {
            topic: None,
            key: None,
            event_id: None,
            table: None,
            commit_time: None,
            ..record()
        };
        for (kind, value) in &cases[1..] {
            assert!(!matches(&of(kind, value), &bare), "{kind}");
        }
        for (lsn, expected) in [(1, true), (2, false)] {
            let id = vec![EventPosition::in_first_epoch(lsn, 2)];
            assert_eq!(matches(&FilterArgs { id, ..none() }, &record()), expected);
        }
        let both = FilterArgs {
            class: vec!["rejected".to_owned()],
            key: vec!["other".to_owned()],
            ..none()
        };
        assert!(!matches(&both, &record()));
    }

    #[test]
    fn a_span_of_time_is_closed_below_and_open_above() {
        let span = |since, until| FilterArgs {
            since,
            until,
            ..FilterArgs::default()
        };
        let exact = Some(at("2026-01-02T04:04:05.6789+01:00"));
        let later = Some(at("2026-01-02T03:04:06Z"));
        assert!(matches(&span(exact, later), &record()));
        assert!(!matches(&span(None, exact), &record()));
        assert!(!matches(&span(later, None), &record()));
        for commit_time in [None, Some("yesterday".to_owned())] {
            let unknown = DlqRecord {
                commit_time,
                ..record()
            };
            assert!(!matches(&span(exact, None), &unknown));
            assert!(!matches(&span(None, later), &unknown));
        }
        let written_since = |since| {
            let args = &span(since, None);
            Filter { args, slot: None }.written_since()
        };
        let day_before = Some(1_767_323_045_678 - 86_400_000);
        assert_eq!(written_since(exact), day_before);
        assert_eq!(written_since(Some(at("1969-01-01T00:00:00Z"))), None);
    }

    #[test]
    fn the_slot_decides() {
        let args = &FilterArgs::default();
        let of = |slot| Filter { args, slot }.matches(&record());
        assert!(of(None) && of(Some("orders")) && !of(Some("other")));
    }
}
