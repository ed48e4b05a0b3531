use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use walrelay_kafka_sink::dlq::DlqRecord;

use crate::cli::FilterArgs;

/// How far the clocks of a database, a relay and a broker may be apart.
const CLOCKS: time::Duration = time::Duration::days(1);

/// Which dead letters are meant.
#[derive(Debug, Clone)]
pub(super) struct Filter {
    args: FilterArgs,
    slot: Option<String>,
}

impl Filter {
    /// Of one slot, or of all.
    pub(super) fn new(args: &FilterArgs, slot: Option<&str>) -> Self {
        Self {
            args: args.clone(),
            slot: slot.map(str::to_owned),
        }
    }

    pub(super) fn fits(&self, record: &DlqRecord) -> bool {
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
        } = &self.args;
        let text = |wanted: &[String], found: Option<&[u8]>| {
            let among = |found: &[u8]| wanted.iter().any(|wanted| wanted.as_bytes() == found);
            wanted.is_empty() || found.is_some_and(among)
        };
        // What has no time that can be read fits no span of time.
        let committed = || OffsetDateTime::parse(record.commit_time.as_deref()?, &Rfc3339).ok();
        self.slot.as_ref().is_none_or(|slot| *slot == record.slot)
            && text(class, Some(record.class.as_bytes()))
            && text(topic, record.topic.as_deref().map(str::as_bytes))
            && text(table, record.table.as_deref().map(str::as_bytes))
            && text(key, record.key.as_deref())
            && text(event_id, record.event_id.as_deref())
            && (id.is_empty() || id.contains(&record.id))
            && since.is_none_or(|since| committed().is_some_and(|at| at >= since))
            && until.is_none_or(|until| committed().is_some_and(|at| at < until))
    }

    /// Records of the topic before this time, in milliseconds since 1970, need not be read.
    pub(super) fn written_since(&self) -> Option<i64> {
        let since = self.args.since?.checked_sub(CLOCKS)?;
        i64::try_from(since.unix_timestamp_nanos() / 1_000_000)
            .ok()
            .filter(|millis| *millis > 0)
    }
}

#[cfg(test)]
mod tests {
    use walrelay_kafka_sink::dlq::Position;
    use walrelay_sink::EventPosition;

    use super::*;

    fn record() -> DlqRecord {
        DlqRecord {
            id: EventPosition { lsn: 1, row: 2 },
            slot: "orders".into(),
            class: "rejected".into(),
            cause: None,
            xid: None,
            commit_time: Some("2026-01-02T03:04:05.678900Z".into()),
            table: Some("public.outbox".into()),
            event_id: Some(b"e".to_vec()),
            topic: Some("t".into()),
            partition: None,
            timestamp_ms: None,
            omitted_bytes: None,
            key: Some(b"k".to_vec()),
            value: None,
            headers: Vec::new(),
            position: Position {
                partition: 0,
                offset: 0,
            },
        }
    }

    fn at(text: &str) -> OffsetDateTime {
        OffsetDateTime::parse(text, &Rfc3339).unwrap()
    }

    fn fits(args: &FilterArgs, record: &DlqRecord) -> bool {
        Filter::new(args, None).fits(record)
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
        assert!(fits(&none(), &record()));
        for (kind, value) in cases {
            assert!(fits(&of(kind, value), &record()), "{kind}");
            assert!(!fits(&of(kind, "another"), &record()), "{kind}");
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
            assert!(!fits(&of(kind, value), &bare), "{kind}");
        }
        for (lsn, expected) in [(1, true), (2, false)] {
            let id = vec![EventPosition { lsn, row: 2 }];
            assert_eq!(fits(&FilterArgs { id, ..none() }, &record()), expected);
        }
        let both = FilterArgs {
            class: vec!["rejected".to_owned()],
            key: vec!["other".to_owned()],
            ..none()
        };
        assert!(!fits(&both, &record()));
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
        assert!(fits(&span(exact, later), &record()));
        assert!(!fits(&span(None, exact), &record()));
        assert!(!fits(&span(later, None), &record()));
        for commit_time in [None, Some("yesterday".to_owned())] {
            let unknown = DlqRecord {
                commit_time,
                ..record()
            };
            assert!(!fits(&span(exact, None), &unknown));
            assert!(!fits(&span(None, later), &unknown));
        }
        let filter = Filter::new(&span(exact, None), None);
        assert_eq!(filter.written_since(), Some(1_767_323_045_678 - 86_400_000));
        let ancient = Filter::new(&span(Some(at("1969-01-01T00:00:00Z")), None), None);
        assert_eq!(ancient.written_since(), None);
    }

    #[test]
    fn the_slot_decides() {
        let of = |slot| Filter::new(&FilterArgs::default(), slot).fits(&record());
        assert!(of(None) && of(Some("orders")) && !of(Some("other")));
    }
}
