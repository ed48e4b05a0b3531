//! Turns rows into records by the plans of their tables.

mod partial_row;
mod position;
mod row;
mod selection;
mod topics;

use std::fmt;

use smallvec::{SmallVec, smallvec};
use walrelay_lsn::{RelationId, RelationMap};
use walrelay_pgoutput::{Relation, Tuple, Value};
use walrelay_sink::Header;

pub use partial_row::PartialRow;
use partial_row::UnroutableTable;
use row::RowReader;
pub use row::{Routed, Row};
use selection::Parts;
pub use selection::{Selection, SelectionError, TopicChange};
use topics::Topics;

use crate::plan::{Columns, Plan, PlanError, Role, RouteError, Slots, Topic};
use crate::render::cloudevents::{CloudEvents, CloudPlan};
use crate::render::connect::TableFacts;
use crate::render::registry::{Encoding, ValueSchema, WireFormat};
use crate::render::template::Text;
use crate::route::Route;
use crate::value::{Event, Part};

/// Columns that a row may need before it costs an allocation.
const INLINE_COLUMNS: usize = 12;

/// Turns the rows of outbox tables into records.
pub struct Router {
    route: Route,
    events: Option<CloudEvents>,
    encoding: Option<Encoding>,
    position_header: Option<String>,
    run_header: Option<(String, String)>,
    selection: Option<Selection>,
    topic_change: Option<TopicChange>,
    /// The changed topic of the row that was read last.
    changed_topic: String,
    plans: Vec<TablePlan>,
    /// Places in `plans`.
    tables: RelationMap<usize>,
    /// From the catalogs.
    facts: Vec<TableFacts>,
    unroutable_tables: RelationMap<UnroutableTable>,
    /// The topic of the row that was read last, and others.
    topics: Topics,
    /// What was rendered for that row. It begins with the position, if a header carries the position.
    scratch: Vec<u8>,
}

struct TablePlan {
    slots: Slots,
    plan: Plan,
    cloud: Option<CloudPlan>,
    /// Makes the record's name, if the subject of its schema contains that name.
    record: Option<Text>,
    /// Slot of the event's type, if events are selected by it.
    kind: Option<usize>,
}

impl Router {
    /// A router that knows no table yet.
    pub fn new(route: impl Into<Route>) -> Self {
        Self {
            route: route.into(),
            events: None,
            encoding: None,
            position_header: None,
            run_header: None,
            selection: None,
            topic_change: None,
            changed_topic: String::new(),
            plans: Vec::new(),
            tables: RelationMap::new(),
            facts: Vec::new(),
            unroutable_tables: RelationMap::new(),
            topics: Topics::default(),
            scratch: Vec::new(),
        }
    }

    /// Replaces the facts about tables, for tables that are announced later. [`clear`](Self::clear)
    /// keeps them.
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
        self.position_header = name;
        self
    }

    /// With a header of this name and value on every record, behind all others: it tells the records of one
    /// run from those of another.
    #[must_use]
    pub fn with_run_header(mut self, header: Option<(String, String)>) -> Self {
        self.run_header = header;
        self
    }

    /// With these events alone: [`Row::is_passed_over`] says so of the others.
    #[must_use]
    pub fn with_selection(mut self, selection: Option<Selection>) -> Self {
        self.selection = selection;
        self
    }

    /// With other topics than the route's. Subjects of schemas are those of the route's topics.
    #[must_use]
    pub fn with_topic_change(mut self, change: Option<TopicChange>) -> Self {
        self.topic_change = change;
        self
    }

    /// Sets the schema of a subject's values. [`clear`](Self::clear) keeps it.
    pub fn learn(&mut self, subject: &str, schema: ValueSchema) {
        if let Some(encoding) = &mut self.encoding {
            encoding.learn(subject, schema);
        }
    }

    /// The subject of the row that was read last; `None` without a wire format or a value.
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

    /// The same for a table with a column that names the topic in place of the route.
    pub(crate) fn relation_with_topic(
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
        let mut facts = self.facts.iter();
        let facts = facts.find(|of| of.schema == relation.namespace && of.name == relation.name);
        let mut columns = Columns::of(relation);
        let mut plan = self.route.compile(&mut columns, facts)?;
        if let Some(column) = topic {
            let (slot, _) = columns.needed(column, || Role::RouteBy)?;
            plan.topic = Topic::Routed {
                slot,
                default: None,
                name: None,
            };
        }
        let events = self.events.as_ref();
        let cloud = events.map(|events| events.compile(&mut columns, &plan));
        let cloud = cloud.transpose()?;
        let record = match &self.encoding {
            Some(encoding) => encoding.format().compile(&mut columns)?,
            None => None,
        };
        let selection = self.selection.as_ref();
        let kind = match selection.filter(|selection| selection.asks_for_type()) {
            Some(_) => Some(self.route.kind(&mut columns)?),
            None => None,
        };
        let slots = columns.finish();
        let plan = TablePlan {
            slots,
            plan,
            cloud,
            record,
            kind,
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

    /// The first of two steps, for callers that need the router in between: reads the tuple into a
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
        let TablePlan { slots, plan, .. } = table;
        if tuple.len() != slots.columns {
            return Err(RouteError::ColumnCount {
                table: slots.table.clone(),
                announced: slots.columns,
                found: tuple.len(),
            });
        }
        let mut values: SmallVec<[Value<'t>; INLINE_COLUMNS]> =
            smallvec![Value::Null; slots.names.len()];
        slots.values(tuple, &mut values);
        let scratch = &mut self.scratch;
        scratch.clear();
        if self.position_header.is_some() {
            scratch.extend_from_slice(&position::text(event));
        }
        let values = &*values;
        let mut reader = RowReader {
            slots,
            values,
            scratch,
        };
        row.plan = place;
        row.key = reader.optional(plan.key.as_ref())?;
        row.value = reader.optional(plan.value.as_ref())?;
        row.partition = reader.number(plan.partition.as_ref())?;
        row.timestamp_ms = reader.number(plan.timestamp.as_ref())?;
        row.headers.clear();
        for (_, field) in &plan.headers {
            row.headers.push(reader.part(field)?);
        }
        if let Some(cloud) = &table.cloud {
            let headers = cloud.apply(values, event, &mut row.value, scratch);
            row.headers
                .extend(headers.map_err(|(fault, target)| slots.error(fault, &target.into()))?);
        }
        self.topics
            .render(place, &plan.topic, values, scratch)
            .map_err(|fault| slots.error(fault, &plan.topic.role()))?;
        row.event_id = plan.event_id.and_then(|slot| values.get(slot)?.bytes());
        if let Some(selection) = &self.selection {
            row.passed_over = !selection.takes(Parts {
                kind: table.kind.and_then(|slot| values.get(slot)?.bytes()),
                key: row.key.resolve(scratch),
                topic: self.topics.last(),
                id: row.event_id,
            });
            if row.passed_over {
                return Ok(());
            }
        }
        if let Some(TopicChange::Prefix(prefix)) = &self.topic_change {
            self.changed_topic.clone_from(prefix);
            self.changed_topic.push_str(self.topics.last());
        }
        if let Some(encoding) = &mut self.encoding {
            let (topic, record) = (self.topics.last(), table.record.as_ref());
            encoding.apply(topic, record, (values, slots), &mut row.value, scratch)?;
        }
        Ok(())
    }

    /// The second step: the record of the row that was read last.
    pub fn routed<'a>(&'a self, row: &Row<'a>) -> Routed<'a> {
        let mut routed = Routed::default();
        self.write(row, &mut routed);
        routed
    }

    /// Like [`routed`](Self::routed), into a fresh record: a record is large, and is not moved.
    pub fn write<'a>(&'a self, row: &Row<'a>, routed: &mut Routed<'a>) {
        let bytes = |part: &Part<'a>| part.resolve(&self.scratch);
        routed.topic = match &self.topic_change {
            None => self.topics.last(),
            Some(TopicChange::Prefix(_)) => &self.changed_topic,
            Some(TopicChange::To(topic)) => topic,
        };
        routed.key = bytes(&row.key);
        routed.value = bytes(&row.value);
        routed.partition = row.partition;
        routed.timestamp_ms = row.timestamp_ms;
        routed.event_id = row.event_id;
        let plan = self.plans.get(row.plan);
        let names = plan.map_or(&[][..], |table| &table.plan.headers);
        let cloud = plan.and_then(|table| table.cloud.as_ref());
        for (at, part) in row.headers.iter().enumerate() {
            if matches!(part, Part::Absent) {
                continue;
            }
            let name = match names.get(at) {
                Some((name, _)) => name,
                None => cloud.map_or("", |cloud| cloud.header(at - names.len())),
            };
            let value = bytes(part);
            routed.headers.push(Header { name, value });
        }
        if let Some(name) = &self.position_header {
            let value = self.scratch.get(..position::LENGTH);
            routed.headers.push(Header { name, value });
        }
        if let Some((name, value)) = &self.run_header {
            let value = Some(value.as_bytes());
            routed.headers.push(Header { name, value });
        }
    }

    /// Event id, key and value of a row that [`read`](Self::read) refused, each unchanged if it cannot
    /// be read as its type.
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

// Written by hand: topics and scratch hold rows' values.
impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Router")
            .field("route", &self.route)
            .field("plans", &self.plans.len())
            .finish_non_exhaustive()
    }
}
