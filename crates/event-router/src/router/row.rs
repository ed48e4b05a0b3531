//! A row while it is made a record: its parts, and the record that borrows them.

use std::fmt;
use std::str;

use smallvec::SmallVec;
use walrelay_pgoutput::Value;
use walrelay_sink::{Header, Record};

use crate::plan::{Field, RouteError, Slots};
use crate::value::{Fault, Part, ValueError};

/// Headers that a row may need before it costs an allocation.
const INLINE_HEADERS: usize = 9;

/// A row that was read; [`Router::routed`](crate::Router::routed) joins it with what the router rendered for it.
#[derive(Default)]
pub struct Row<'t> {
    pub(super) plan: usize,
    pub(super) key: Part<'t>,
    pub(super) value: Part<'t>,
    pub(super) headers: SmallVec<[Part<'t>; INLINE_HEADERS]>,
    pub(super) partition: Option<i32>,
    pub(super) timestamp_ms: Option<i64>,
    pub(super) event_id: Option<&'t [u8]>,
    pub(super) passed_over: bool,
}

/// A record made of a row. It borrows from the row, and from the router until the next row is read.
#[derive(Default)]
pub struct Routed<'a> {
    pub(super) topic: &'a str,
    pub(super) key: Option<&'a [u8]>,
    pub(super) value: Option<&'a [u8]>,
    pub(super) headers: SmallVec<[Header<'a>; INLINE_HEADERS]>,
    pub(super) partition: Option<i32>,
    pub(super) timestamp_ms: Option<i64>,
    pub(super) event_id: Option<&'a [u8]>,
}

// === impl RowReader ===

/// Reads the parts of a row.
pub(super) struct RowReader<'r, 't> {
    pub(super) slots: &'r Slots,
    pub(super) values: &'r [Value<'t>],
    pub(super) scratch: &'r mut Vec<u8>,
}

impl<'t> RowReader<'_, 't> {
    #[inline]
    pub(super) fn optional(&mut self, field: Option<&Field>) -> Result<Part<'t>, RouteError> {
        match field {
            Some(field) => self.part(field),
            None => Ok(Part::Null),
        }
    }

    /// By far the most parts are in the row: nothing is rendered.
    #[inline]
    pub(super) fn part(&mut self, field: &Field) -> Result<Part<'t>, RouteError> {
        match field.piece.in_row(self.values) {
            Some(text) => Ok(Part::Row(text)),
            None => self.render(field),
        }
    }

    #[inline(never)]
    fn render(&mut self, field: &Field) -> Result<Part<'t>, RouteError> {
        let part = field.piece.render(self.values, self.scratch);
        part.map_err(|fault| self.slots.error(fault, &field.role))
    }

    /// A part that is rendered as decimal text.
    pub(super) fn number<T: str::FromStr>(
        &mut self,
        field: Option<&Field>,
    ) -> Result<Option<T>, RouteError> {
        let Some(field) = field else { return Ok(None) };
        let part = self.part(field)?;
        let Some(text) = part.resolve(self.scratch) else {
            return Ok(None);
        };
        let number = str::from_utf8(text).ok().and_then(|text| text.parse().ok());
        number.map(Some).ok_or_else(|| {
            let fault = Fault::new(field.piece.slot(), ValueError::NotANumber);
            self.slots.error(fault, &field.role)
        })
    }
}

// === impl Routed ===

impl<'a> Routed<'a> {
    /// Adds more headers behind those it has.
    pub fn add_headers(&mut self, more: impl IntoIterator<Item = Header<'a>>) {
        self.headers.extend(more);
    }

    /// The record, to be offered to a sink.
    pub fn record(&self) -> Record<'_> {
        Record {
            topic: self.topic,
            partition: self.partition,
            timestamp_ms: self.timestamp_ms,
            key: self.key,
            value: self.value,
            headers: &self.headers,
        }
    }

    /// The topic.
    pub fn topic(&self) -> &'a str {
        self.topic
    }

    /// The record's key.
    pub fn key(&self) -> Option<&'a [u8]> {
        self.key
    }

    /// The record's value.
    pub fn value(&self) -> Option<&'a [u8]> {
        self.value
    }

    /// The record's headers.
    pub fn headers(&self) -> &[Header<'a>] {
        &self.headers
    }

    /// The event's id, unchanged from the row.
    pub fn event_id(&self) -> Option<&'a [u8]> {
        self.event_id
    }
}

impl Row<'_> {
    /// The router's [`Selection`](crate::Selection) leaves the event out: there is no record of it.
    pub fn is_passed_over(&self) -> bool {
        self.passed_over
    }
}

/// No values.
impl fmt::Debug for Row<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Row").finish_non_exhaustive()
    }
}

/// As [`Record`]'s: lengths, no values.
impl fmt::Debug for Routed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Routed").field(&self.record()).finish()
    }
}
