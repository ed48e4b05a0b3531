//! Which id each record of a transaction gets.

use std::collections::{BTreeMap, BTreeSet};

use super::entry::{EntryId, NewId};
use super::streams::Streams;

/// A record of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    /// The sequence number.
    pub(super) seq: u64,
    /// The number of its stream.
    pub(super) stream: usize,
    /// The id of its position.
    pub(super) id: EntryId,
    /// The same event is in the transaction before: the core sends one again that was cut off.
    pub(super) again: bool,
    /// The id with which this sink has sent the record before, without learning whether the server has
    /// it.
    pub(super) tried: Option<EntryId>,
}

impl Head {
    /// Returns the id that the record's entry has, if the server has it.
    pub(super) fn stored_id(&self) -> EntryId {
        self.tried.unwrap_or(self.id)
    }
}

/// Returns the index of the last record with this stream and id.
pub(super) fn same_position(heads: &[Head], stream: usize, id: EntryId) -> Option<usize> {
    let is_same = |head: &Head| head.stream == stream && head.id == id;
    heads.iter().rposition(is_same)
}

/// Returns the indexes of the records whose ids are not above the newest, and which are not in the
/// transaction twice: whether the server has them must be asked. Those of a repeat are not asked for, but
/// for those that this sink has sent. The newest ids of all streams are known.
pub(super) fn to_look_up(heads: &[Head], streams: &Streams) -> Vec<usize> {
    let mut newest: BTreeMap<usize, (EntryId, bool)> = BTreeMap::new();
    let mut unclear = Vec::new();
    for (at, head) in heads.iter().enumerate() {
        let stream = &streams[head.stream];
        let known = newest
            .entry(head.stream)
            .or_insert_with(|| (stream.newest.unwrap_or_default(), stream.repeats));
        if !head.again && head.tried.is_some() && head.tried <= stream.newest {
            unclear.push(at);
        } else if head.id > known.0 {
            *known = (head.id, false);
        } else if !known.1 && !head.again {
            unclear.push(at);
        }
    }
    unclear
}

/// Returns the id that each record gets; `None`: its entry exists, or is written by the same
/// transaction. `there`: the indexes of those that were looked up and found. Notes in `streams` the
/// newest ids when all is written, and which streams are being repeated. The end of a repeat is noted
/// when it is stored: until then the transaction may be refused, and planned again.
///
/// From the first record on that is not there, all up to the newest are written behind it: they are
/// the same suffix of the stream once more, and the last of each key stays the last. A record that this
/// sink has sent, and that exists, ends no repeat and is not repeated, unless one of its transaction is that
/// comes before it.
pub(super) fn ids(
    heads: &[Head],
    there: &BTreeSet<usize>,
    streams: &mut Streams,
) -> Vec<Option<NewId>> {
    let mut repeats: BTreeMap<usize, bool> = BTreeMap::new();
    let mut appended = BTreeSet::new();
    let id = |(at, head): (usize, &Head)| {
        if head.again {
            return None;
        }
        let stream = &mut streams[head.stream];
        let repeats = repeats.entry(head.stream).or_insert(stream.repeats);
        let newest = stream.newest.unwrap_or_default();
        if head.id > newest {
            *repeats = false;
            stream.newest = Some(head.id);
            return Some(NewId::Explicit(head.id));
        }
        let is_repeated = if head.tried.is_some() {
            appended.contains(&head.stream)
        } else {
            *repeats
        };
        if !is_repeated && there.contains(&at) {
            return None;
        }
        *repeats = true;
        appended.insert(head.stream);
        stream.repeats = true;
        let behind = newest.following();
        stream.newest = Some(behind);
        Some(NewId::Behind(behind))
    };
    heads.iter().enumerate().map(id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(first: u64, second: u64) -> EntryId {
        EntryId { first, second }
    }

    /// Heads of one stream, whose newest id is 5-5.
    fn at_five(ids: &[(u64, u64)]) -> (Vec<Head>, Streams) {
        let mut streams = Streams::default();
        let stream = streams.number("a");
        streams[stream].newest = Some(id(5, 5));
        let head = |(first, second): &(u64, u64)| Head {
            seq: 0,
            stream,
            id: id(*first, *second),
            again: false,
            tried: None,
        };
        (ids.iter().map(head).collect(), streams)
    }

    #[test]
    fn new_events_keep_their_positions_and_are_not_looked_up() {
        let (heads, mut streams) = at_five(&[(5, 6), (6, 0)]);
        assert!(to_look_up(&heads, &streams).is_empty());
        let given = ids(&heads, &BTreeSet::new(), &mut streams);
        let expected = [id(5, 6), id(6, 0)].map(|id| Some(NewId::Explicit(id)));
        assert_eq!(given, expected);
        assert_eq!(streams[0].newest, Some(id(6, 0)));
    }

    #[test]
    fn repeats_that_are_there_are_not_written() {
        let (heads, mut streams) = at_five(&[(4, 0), (5, 5), (6, 0)]);
        assert_eq!(to_look_up(&heads, &streams), [0, 1]);
        let given = ids(&heads, &BTreeSet::from([0, 1]), &mut streams);
        assert_eq!(given, [None, None, Some(NewId::Explicit(id(6, 0)))]);
        assert!(!streams[0].repeats);
    }

    #[test]
    fn all_events_from_a_missing_one_to_the_newest_are_written_after_it() {
        // 5-3 is missing. 5-6 is new, and the id that the second of them gets.
        let (heads, mut streams) = at_five(&[(4, 0), (5, 3), (5, 4), (5, 6), (5, 8), (6, 0)]);
        assert_eq!(to_look_up(&heads, &streams), [0, 1, 2]);
        let given = ids(&heads, &BTreeSet::from([0, 2]), &mut streams);
        let behind = |second| Some(NewId::Behind(id(5, second)));
        let newer = Some(NewId::Explicit(id(6, 0)));
        assert_eq!(
            given,
            [None, behind(6), behind(7), behind(8), behind(9), newer]
        );
        assert!(streams[0].repeats, "6-0 is not stored yet");
        assert_eq!(streams[0].newest, Some(id(6, 0)));
    }

    #[test]
    fn an_event_that_is_sent_again_while_it_is_queued_is_written_once() {
        // A transaction that was cut off, and as a whole.
        let (mut heads, mut streams) = at_five(&[(5, 5), (6, 0), (6, 1), (6, 0), (6, 1), (6, 2)]);
        assert_eq!(same_position(&heads[..3], 0, id(6, 0)), Some(1));
        assert_eq!(same_position(&heads[..3], 0, id(6, 2)), None);
        assert_eq!(same_position(&heads[..3], 1, id(6, 0)), None);
        for head in &mut heads[3..5] {
            head.again = true;
        }
        assert_eq!(to_look_up(&heads, &streams), [0]);
        let given = ids(&heads, &BTreeSet::from([0]), &mut streams);
        let explicit = |second| Some(NewId::Explicit(id(6, second)));
        let expected = [None, explicit(0), explicit(1), None, None, explicit(2)];
        assert_eq!(given, expected);
        assert!(!streams[0].repeats);
    }

    #[test]
    fn a_repeat_that_was_refused_with_a_newer_event_is_planned_again() {
        let (heads, mut streams) = at_five(&[(5, 3), (5, 4), (6, 0)]);
        let behind = |second| Some(NewId::Behind(id(5, second)));
        let expected = [behind(6), behind(7), Some(NewId::Explicit(id(6, 0)))];
        assert_eq!(ids(&heads, &BTreeSet::from([1]), &mut streams), expected);
        // The server refuses the transaction. 5-4 is in the stream, before the repeat of 5-3.
        streams.forget_newest();
        streams[0].newest = Some(id(5, 5));
        assert!(to_look_up(&heads, &streams).is_empty());
        assert_eq!(ids(&heads, &BTreeSet::new(), &mut streams), expected);
    }

    #[test]
    fn the_repeat_goes_on_with_the_next_transaction() {
        let (heads, mut streams) = at_five(&[(5, 3)]);
        ids(&heads, &BTreeSet::new(), &mut streams);
        assert!(streams[0].repeats);
        streams.forget_newest();
        streams[0].newest = Some(id(5, 6));
        let next = [Head {
            seq: 0,
            stream: 0,
            id: id(5, 4),
            again: false,
            tried: None,
        }];
        assert!(to_look_up(&next, &streams).is_empty());
        let given = ids(&next, &BTreeSet::new(), &mut streams);
        assert_eq!(given, [Some(NewId::Behind(id(5, 7)))]);
    }
}
