//! The parts that are read from a row, and the record that borrows them.

use std::fmt;
use std::str;

use smallvec::SmallVec;
use walrelay_pgoutput::Value;
use walrelay_sink::{EventPosition, Header, Record, RecordKind};

use crate::plan::{Field, Plan, PlanColumns, RouteError};
use crate::value::{Fault, Part, ValueError};

/// Number of headers of a row that need no allocation.
const INLINE_HEADERS: usize = 9;

/// The parts of a row; [`Router::routed`](crate::Router::routed) makes a record of them.
#[derive(Default)]
pub struct Row<'t> {
    pub(super) plan: usize,
    pub(super) routing_key: Part<'t>,
    pub(super) key: Part<'t>,
    pub(super) value: Part<'t>,
    pub(super) headers: SmallVec<[Part<'t>; INLINE_HEADERS]>,
    pub(super) partition: Option<i32>,
    pub(super) timestamp_ms: Option<i64>,
    pub(super) event_id: Option<&'t [u8]>,
    pub(super) position: EventPosition,
    pub(super) passed_over: bool,
}

/// The record of a row. Borrows from the row, and from the router until the next row is read.
#[derive(Default)]
pub struct Routed<'a> {
    pub(super) topic: &'a str,
    pub(super) routing_key: Option<&'a str>,
    pub(super) key: Option<&'a [u8]>,
    pub(super) value: Option<&'a [u8]>,
    pub(super) headers: SmallVec<[Header<'a>; INLINE_HEADERS]>,
    pub(super) partition: Option<i32>,
    pub(super) timestamp_ms: Option<i64>,
    pub(super) event_id: Option<&'a [u8]>,
    pub(super) position: EventPosition,
}

// === impl RowReader ===

/// Reads the parts of a row.
pub(super) struct RowReader<'r, 't> {
    pub(super) columns: &'r PlanColumns,
    pub(super) values: &'r [Value<'t>],
    pub(super) scratch: &'r mut Vec<u8>,
}

impl<'t> RowReader<'_, 't> {
    #[inline]
    pub(super) fn read(&mut self, plan: &Plan, row: &mut Row<'t>) -> Result<(), RouteError> {
        row.key = match &plan.key {
            Some(field) => self.part(field)?,
            None => Part::Null,
        };
        row.value = self.part(&plan.value)?;
        row.partition = self.number(plan.partition.as_ref())?;
        row.timestamp_ms = self.number(plan.timestamp.as_ref())?;
        row.headers.clear();
        for (_, field) in &plan.headers {
            row.headers.push(self.part(field)?);
        }
        if let Some(field) = &plan.routing_key {
            row.routing_key = self.routing_key(field)?;
        }
        Ok(())
    }

    /// Renders the second part of the address, which is a text and not NULL.
    fn routing_key(&mut self, field: &Field) -> Result<Part<'t>, RouteError> {
        let part = self.part(field)?;
        let why = match part.resolve(self.scratch).map(str::from_utf8) {
            Some(Ok(_)) => return Ok(part),
            Some(Err(_)) => ValueError::NotUtf8,
            None => ValueError::Null,
        };
        Err(self
            .columns
            .error(Fault::new(field.piece.index(), why), &field.role))
    }

    // Most parts are in the row, and need no rendering.
    #[inline]
    fn part(&mut self, field: &Field) -> Result<Part<'t>, RouteError> {
        match field.piece.in_row(self.values) {
            Some(text) => Ok(Part::Row(text)),
            None => self.render(field),
        }
    }

    #[inline(never)]
    fn render(&mut self, field: &Field) -> Result<Part<'t>, RouteError> {
        let part = field.piece.render(self.values, self.scratch);
        part.map_err(|fault| self.columns.error(fault, &field.role))
    }

    /// Parses a part that is rendered as decimal text.
    fn number<T: str::FromStr>(&mut self, field: Option<&Field>) -> Result<Option<T>, RouteError> {
        let Some(field) = field else { return Ok(None) };
        let part = self.part(field)?;
        let Some(text) = part.resolve(self.scratch) else {
            return Ok(None);
        };
        let number = str::from_utf8(text).ok().and_then(|text| text.parse().ok());
        number.map(Some).ok_or_else(|| {
            let fault = Fault::new(field.piece.index(), ValueError::NotANumber);
            self.columns.error(fault, &field.role)
        })
    }
}

// === impl Routed ===

impl<'a> Routed<'a> {
    /// Adds headers after the others.
    pub fn add_headers(&mut self, more: impl IntoIterator<Item = Header<'a>>) {
        self.headers.extend(more);
    }

    /// Returns the record, for a sink.
    pub fn record(&self) -> Record<'_> {
        Record {
            kind: RecordKind::Event,
            topic: self.topic,
            routing_key: self.routing_key,
            partition: self.partition,
            timestamp_ms: self.timestamp_ms,
            key: self.key,
            value: self.value,
            headers: &self.headers,
            event_id: self.event_id,
            position: self.position,
        }
    }

    /// Returns the topic of the record.
    pub fn topic(&self) -> &'a str {
        self.topic
    }

    /// Returns the routing key of the record.
    pub fn routing_key(&self) -> Option<&'a str> {
        self.routing_key
    }

    /// Returns the key of the record.
    pub fn key(&self) -> Option<&'a [u8]> {
        self.key
    }

    /// Returns the value of the record.
    pub fn value(&self) -> Option<&'a [u8]> {
        self.value
    }

    /// Returns the headers of the record.
    pub fn headers(&self) -> &[Header<'a>] {
        &self.headers
    }

    /// Returns the id of the event, unchanged from the row.
    pub fn event_id(&self) -> Option<&'a [u8]> {
        self.event_id
    }
}

impl Row<'_> {
    /// Returns true if the router's [`Selection`](crate::Selection) leaves the event out, so that
    /// it has no record.
    pub fn is_passed_over(&self) -> bool {
        self.passed_over
    }
}

/// Shows no values.
impl fmt::Debug for Row<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Row").finish_non_exhaustive()
    }
}

/// Shows lengths, no values, as [`Record`]'s does.
impl fmt::Debug for Routed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Routed").field(&self.record()).finish()
    }
}
