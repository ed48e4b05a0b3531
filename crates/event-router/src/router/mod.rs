//! Turns rows into records by the plans of their tables.

mod partial_row;
mod position;
mod topics;

use std::fmt;
use std::str;

use smallvec::SmallVec;
use walrelay_lsn::{RelationId, RelationMap};
use walrelay_pgoutput::{Relation, Tuple, Value};
use walrelay_sink::{Header, Record};

pub use partial_row::PartialRow;
use partial_row::UnroutableTable;
use topics::Topics;

use crate::plan::{Field, Plan, PlanError, RouteError};
use crate::render::cloudevents::{CloudEvents, CloudPlan};
use crate::render::connect::TableFacts;
use crate::render::registry::{Encoding, RecordName, ValueSchema, WireFormat};
use crate::route::Route;
use crate::value::{Event, Fault, Part, ValueError};

/// Columns and headers that a row may need before it costs an allocation.
const INLINE_COLUMNS: usize = 12;
const INLINE_HEADERS: usize = 9;

/// Turns the rows of outbox tables into records.
pub struct Router {
    route: Route,
    events: Option<CloudEvents>,
    encoding: Option<Encoding>,
    /// The name of the header that carries the event's position.
    position_header: Option<Box<str>>,
    plans: Vec<TablePlan>,
    /// Places in `plans`.
    tables: RelationMap<usize>,
    /// What the catalogs say of tables.
    facts: Vec<TableFacts>,
    /// Where the columns are of rows that cannot be routed.
    unroutable_tables: RelationMap<UnroutableTable>,
    /// The topic of the row that was read last, and others.
    topics: Topics,
    /// What was rendered for that row. It begins with the position, where a header carries it.
    scratch: Vec<u8>,
}

/// A row that was read, before it is put together with what the router rendered for it:
/// [`Router::routed`].
#[derive(Default)]
pub struct Row<'t> {
    plan: usize,
    key: Part<'t>,
    value: Part<'t>,
    headers: SmallVec<[Part<'t>; INLINE_HEADERS]>,
    partition: Option<i32>,
    timestamp_ms: Option<i64>,
    event_id: Option<&'t [u8]>,
}

/// A record made of a row: the bytes are the row's or the router's, until it reads another.
#[derive(Default)]
pub struct Routed<'a> {
    topic: &'a str,
    key: Option<&'a [u8]>,
    value: Option<&'a [u8]>,
    headers: SmallVec<[Header<'a>; INLINE_HEADERS]>,
    partition: Option<i32>,
    timestamp_ms: Option<i64>,
    event_id: Option<&'a [u8]>,
}

/// All that is compiled for one table.
#[derive(Debug)]
struct TablePlan {
    plan: Plan,
    /// What makes a CloudEvent of the record.
    cloud: Option<CloudPlan>,
    /// What names the record, where the subject of its schema is called by it.
    record: Option<RecordName>,
}

// === impl Router ===

impl Router {
    /// A router that knows no table yet.
    pub fn new(route: impl Into<Route>) -> Self {
        Self {
            route: route.into(),
            events: None,
            encoding: None,
            position_header: None,
            plans: Vec::new(),
            tables: RelationMap::new(),
            facts: Vec::new(),
            unroutable_tables: RelationMap::new(),
            topics: Topics::default(),
            scratch: Vec::new(),
        }
    }

    /// Replaces what the catalogs say of tables. It counts for tables that are announced after it, and
    /// stays when tables are forgotten.
    pub fn describe(&mut self, facts: Vec<TableFacts>) {
        self.facts = facts;
    }

    /// With records that are CloudEvents.
    #[must_use]
    pub fn with_cloud_events(mut self, events: Option<CloudEvents>) -> Self {
        self.events = events;
        self
    }

    /// With values in a schema registry's wire format.
    #[must_use]
    pub fn with_wire_format(mut self, format: Option<WireFormat>) -> Self {
        self.encoding = format.map(Encoding::new);
        self
    }

    /// With a header of this name on every record, behind the route's own headers: 16 upper-case
    /// hexadecimal digits of [`Event::commit_lsn`], `/`, and 8 of [`Event::row`].
    #[must_use]
    pub fn with_position_header(mut self, name: Option<String>) -> Self {
        self.position_header = name.map(String::into_boxed_str);
        self
    }

    /// The schema of a subject's values is this one from now on; tables that are forgotten leave it.
    pub fn learn(&mut self, subject: &str, schema: ValueSchema) {
        if let Some(encoding) = &mut self.encoding {
            encoding.learn(subject, schema);
        }
    }

    /// The subject of the row that was read last, where values have schemas and it has a value.
    pub fn subject(&self) -> Option<&str> {
        let encoding = self.encoding.as_ref()?;
        Some(encoding.subject()).filter(|subject| !subject.is_empty())
    }

    /// Compiles the plan of a table. Call it for every Relation message: Postgres sends one before
    /// a table's first row on a connection and again after the table has changed.
    ///
    /// On error the table is forgotten: a plan made for its former columns must not route its rows.
    /// They can still give a [partial row](Self::partial_row).
    pub fn relation(&mut self, relation: &Relation<'_>) -> Result<(), PlanError> {
        self.compile(relation, None)
    }

    /// The same for a table of which a column is the topic, whatever the route says.
    pub fn relation_with_topic(
        &mut self,
        relation: &Relation<'_>,
        column: &str,
    ) -> Result<(), PlanError> {
        self.compile(relation, Some(column))
    }

    fn compile(&mut self, relation: &Relation<'_>, topic: Option<&str>) -> Result<(), PlanError> {
        let former = self.tables.remove(relation.id);
        self.topics.forget();
        let unroutable = UnroutableTable::of(self.route.partial_row_columns(), relation);
        self.unroutable_tables.insert(relation.id, unroutable);
        let facts = self
            .facts
            .iter()
            .find(|facts| facts.schema == relation.namespace && facts.name == relation.name);
        let mut plan = self.route.compile(relation, facts)?;
        if let Some(column) = topic {
            plan.topic_from(relation, column)?;
        }
        let cloud = match &self.events {
            Some(events) => Some(events.compile(relation, &plan)?),
            None => None,
        };
        let record = match &self.encoding {
            Some(encoding) => encoding.format().compile(relation)?,
            None => None,
        };
        let plan = TablePlan {
            plan,
            cloud,
            record,
        };
        let place = former.unwrap_or(self.plans.len());
        match self.plans.get_mut(place) {
            Some(former) => *former = plan,
            None => self.plans.push(plan),
        }
        self.tables.insert(relation.id, place);
        Ok(())
    }

    /// Whether rows of this table can be routed.
    pub fn knows(&self, relation: RelationId) -> bool {
        self.tables.contains(relation)
    }

    /// Makes an inserted row a record.
    pub fn route<'a>(
        &'a mut self,
        relation: RelationId,
        tuple: &Tuple<'a>,
        event: &Event,
    ) -> Result<Routed<'a>, RouteError> {
        let mut row = Row::default();
        self.read(relation, tuple, event, &mut row)?;
        Ok(self.routed(&row))
    }

    /// The first of two steps, for callers that keep the router meanwhile: what the row says, into a
    /// fresh `row`. Before another row is read, [`routed`](Self::routed) makes a record of it.
    pub fn read<'t>(
        &mut self,
        relation: RelationId,
        tuple: &Tuple<'t>,
        event: &Event,
        row: &mut Row<'t>,
    ) -> Result<(), RouteError> {
        let found = self.tables.get(relation);
        let Some((place, table)) = found.and_then(|place| Some((*place, self.plans.get(*place)?)))
        else {
            return Err(RouteError::UnknownRelation { relation });
        };
        let plan = &table.plan;
        if tuple.len() != plan.slots.columns {
            return Err(RouteError::ColumnCount {
                table: plan.slots.table.to_string(),
                announced: plan.slots.columns,
                found: tuple.len(),
            });
        }
        let mut inline = [Value::Null; INLINE_COLUMNS];
        let mut more;
        let values = if let Some(values) = inline.get_mut(..plan.slots.names.len()) {
            values
        } else {
            more = vec![Value::Null; plan.slots.names.len()];
            &mut more
        };
        plan.slots.values(tuple, values);
        let values = &*values;
        let scratch = &mut self.scratch;
        scratch.clear();
        if self.position_header.is_some() {
            scratch.extend_from_slice(&position::text(event));
        }

        let mut part = |field: &Field| match field.piece.in_row(values) {
            // By far the most frequent: nothing is rendered.
            Some(text) => Ok(Part::Row(text)),
            None => render(plan, field, values, scratch),
        };
        let mut optional = |field: &Option<Field>| match field {
            Some(field) => part(field),
            None => Ok(Part::Null),
        };
        row.plan = place;
        row.key = optional(&plan.key)?;
        row.value = optional(&plan.value)?;
        let partition = optional(&plan.partition)?;
        let timestamp = optional(&plan.timestamp)?;
        row.headers.clear();
        for header in &plan.headers {
            row.headers.push(part(&header.field)?);
        }
        if let Some(cloud) = &table.cloud {
            let more = cloud.apply(tuple, event, &mut row.value, &mut self.scratch)?;
            row.headers.extend(more);
        }
        self.topics
            .render(place, &plan.topic, values, &mut self.scratch)
            .map_err(|fault| plan.slots.error(fault, &plan.topic.role()))?;
        if let Some(encoding) = &mut self.encoding {
            let (record, of) = (table.record.as_ref(), (tuple, &*plan.slots.table));
            let topic = self.topics.last();
            encoding.apply(topic, record, of, &mut row.value, &mut self.scratch)?;
        }
        row.partition = match &plan.partition {
            Some(field) => number(plan, field, &partition, &self.scratch)?,
            None => None,
        };
        row.timestamp_ms = match &plan.timestamp {
            Some(field) => number(plan, field, &timestamp, &self.scratch)?,
            None => None,
        };
        row.event_id = plan.event_id.and_then(|slot| values.get(slot)?.bytes());
        Ok(())
    }

    /// The second step: the record of the row that was read last.
    pub fn routed<'a>(&'a self, row: &Row<'a>) -> Routed<'a> {
        let mut routed = Routed::default();
        self.write(row, &mut routed);
        routed
    }

    /// The same into its place, for a record is large: into a fresh one.
    pub fn write<'a>(&'a self, row: &Row<'a>, routed: &mut Routed<'a>) {
        let bytes = |part: &Part<'a>| part.resolve(&self.scratch);
        routed.topic = self.topics.last();
        routed.key = bytes(&row.key);
        routed.value = bytes(&row.value);
        routed.partition = row.partition;
        routed.timestamp_ms = row.timestamp_ms;
        routed.event_id = row.event_id;
        let plan = self.plans.get(row.plan);
        let names = plan.map_or(&[][..], |table| &table.plan.headers);
        let cloud = plan.and_then(|table| table.cloud.as_ref());
        for (at, part) in row.headers.iter().enumerate() {
            let name = match names.get(at) {
                Some(header) => &*header.name,
                None => cloud.map_or("", |cloud| cloud.header(at - names.len())),
            };
            let value = match part {
                Part::Absent => continue,
                part => bytes(part),
            };
            routed.headers.push(Header { name, value });
        }
        if let Some(name) = &self.position_header {
            let value = self.scratch.get(..position::LENGTH);
            routed.headers.push(Header { name, value });
        }
    }

    /// What can be had of a row that [`read`](Self::read) refused. What cannot be read as it should
    /// is given as it came.
    pub fn partial_row<'a>(&'a self, relation: RelationId, tuple: &Tuple<'a>) -> PartialRow<'a> {
        let Some(unroutable) = self.unroutable_tables.get(relation) else {
            return PartialRow::default();
        };
        PartialRow {
            id_header: Some(self.route.id_header()),
            ..unroutable.read(tuple)
        }
    }

    /// Forgets all tables: a new connection announces them afresh.
    pub fn clear(&mut self) {
        self.plans.clear();
        self.topics.forget();
        self.tables.clear();
        self.unroutable_tables.clear();
    }
}

/// Renders what is not in the row as it stands.
#[inline(never)]
fn render<'t>(
    plan: &Plan,
    field: &Field,
    values: &[Value<'t>],
    scratch: &mut Vec<u8>,
) -> Result<Part<'t>, RouteError> {
    let part = field.piece.render(values, scratch);
    part.map_err(|fault| plan.slots.error(fault, &field.role))
}

/// Reads a part that was rendered as decimal text.
fn number<T: str::FromStr>(
    plan: &Plan,
    field: &Field,
    part: &Part<'_>,
    scratch: &[u8],
) -> Result<Option<T>, RouteError> {
    let Some(text) = part.resolve(scratch) else {
        return Ok(None);
    };
    let number = str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    number.map(Some).ok_or_else(|| {
        let fault = Fault::new(field.piece.slot(), ValueError::NotANumber);
        plan.slots.error(fault, &field.role)
    })
}

// Written by hand: topics and scratch hold rows' values.
impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Router")
            .field("route", &self.route)
            .field("plans", &self.plans)
            .finish_non_exhaustive()
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

    /// The event's id, as it stands in the row.
    pub fn event_id(&self) -> Option<&'a [u8]> {
        self.event_id
    }
}

/// Lengths, no values.
impl fmt::Debug for Row<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Row")
            .field("headers", &self.headers.len())
            .finish_non_exhaustive()
    }
}

/// As [`Record`]'s: lengths, no values.
impl fmt::Debug for Routed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Routed").field(&self.record()).finish()
    }
}
