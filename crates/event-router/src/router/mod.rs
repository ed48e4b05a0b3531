//! Turns rows into records, by the plans of their tables.

mod partial_row;
mod position;
mod row;
mod selection;
mod topics;

use std::fmt;

use walrelay_lsn::{RelationId, RelationMap};
use walrelay_pgoutput::{Relation, Tuple, Value};
use walrelay_sink::Header;

pub use partial_row::PartialRow;
use partial_row::UnroutableTable;
use row::RowReader;
pub use row::{Routed, Row};
use selection::Parts;
pub use selection::{Selection, SelectionError, TopicChange};
use topics::TopicCache;

use crate::headers::{HeaderBuffer, HeaderColumns, HeadersFrom};
use crate::plan::{ColumnNames, Columns, Plan, PlanColumns, PlanError, Role, RouteError, Topic};
use crate::render::cloudevents::{CloudEvents, CloudPlan};
use crate::render::connect::TableFacts;
use crate::render::registry::{Encoding, ValueSchema, WireFormat};
use crate::render::template::{Address, Text};
use crate::route::Route;
use crate::value::{ColumnIndex, Event, Part};

/// Number of columns of a row that need no allocation.
const INLINE_COLUMNS: usize = 12;

/// Turns the rows of outbox tables into records.
pub struct Router {
    route: Route,
    events: Option<CloudEvents>,
    encoding: Option<Encoding>,
    address: Option<Address>,
    headers_from: Option<HeadersFrom>,
    position_header: Option<String>,
    run_header: Option<(String, String)>,
    column_names: ColumnNames,
    selection: Option<Selection>,
    topic_change: Option<TopicChange>,
    /// Changed topic of the last row.
    changed_topic: String,
    plans: Vec<TablePlan>,
    /// Indexes into `plans`.
    tables: RelationMap<usize>,
    /// Facts about tables, from the catalogs.
    facts: Vec<TableFacts>,
    unroutable_tables: RelationMap<UnroutableTable>,
    /// Topic of the last row, and a cache of topics.
    topics: TopicCache,
    /// Headers of the last row, from `headers_from`.
    column_headers: HeaderBuffer,
    /// Rendered parts of the last row. Begins with the position, if there is a position header.
    scratch: Vec<u8>,
}

struct TablePlan {
    columns: PlanColumns,
    plan: Plan,
    cloud: Option<CloudPlan>,
    /// The columns of further headers.
    headers: Option<HeaderColumns>,
    /// Renders the record's name, if the subject of its schema contains that name.
    record: Option<Text>,
    /// Index of the event's type, if the selection compares it.
    kind: Option<ColumnIndex>,
}

impl Router {
    /// Creates a router without plans.
    pub fn new(route: impl Into<Route>) -> Self {
        Self {
            route: route.into(),
            events: None,
            encoding: None,
            address: None,
            headers_from: None,
            position_header: None,
            run_header: None,
            column_names: ColumnNames::default(),
            selection: None,
            topic_change: None,
            changed_topic: String::new(),
            plans: Vec::new(),
            tables: RelationMap::new(),
            facts: Vec::new(),
            unroutable_tables: RelationMap::new(),
            topics: TopicCache::default(),
            column_headers: HeaderBuffer::default(),
            scratch: Vec::new(),
        }
    }

    /// Replaces the facts about tables. They apply to tables that are announced later;
    /// [`clear`](Self::clear) keeps them.
    pub fn describe(&mut self, facts: Vec<TableFacts>) {
        self.facts = facts;
    }

    /// Makes the records CloudEvents.
    #[must_use]
    pub fn with_cloud_events(mut self, events: Option<CloudEvents>) -> Self {
        self.events = events;
        self
    }

    /// Encodes the values in a schema registry's wire format.
    #[must_use]
    pub fn with_wire_format(mut self, format: Option<WireFormat>) -> Self {
        self.encoding = format.map(Encoding::new);
        self
    }

    /// Sets the templates of the sink's address, which replace the topic of the route.
    #[must_use]
    pub fn with_address(mut self, address: Option<Address>) -> Self {
        self.address = address;
        self
    }

    /// Adds headers from columns of the row, after the route's own headers. One that has the name of
    /// another header of the record is left out. Logical messages bring their headers otherwise.
    #[must_use]
    pub fn with_headers_from(mut self, headers: Option<HeadersFrom>) -> Self {
        self.headers_from = headers;
        self
    }

    /// Adds a header of this name to every record, after the route's own headers. Its value is
    /// [`Event::commit_lsn`] in 16 upper-case hexadecimal digits, `/`, and [`Event::row`] in 8.
    #[must_use]
    pub fn with_position_header(mut self, name: Option<String>) -> Self {
        self.position_header = name;
        self
    }

    /// Adds a header of this name and value to every record, after all others. The header
    /// identifies the records of one run.
    #[must_use]
    pub fn with_run_header(mut self, header: Option<(String, String)>) -> Self {
        self.run_header = header;
        self
    }

    /// Sets the other names of columns.
    #[must_use]
    pub fn with_column_names(mut self, names: ColumnNames) -> Self {
        self.column_names = names;
        self
    }

    /// Routes only the selected events; [`Row::is_passed_over`] is true for the others.
    #[must_use]
    pub fn with_selection(mut self, selection: Option<Selection>) -> Self {
        self.selection = selection;
        self
    }

    /// Changes the topics of the route. Subjects of schemas still contain the route's topics.
    #[must_use]
    pub fn with_topic_change(mut self, change: Option<TopicChange>) -> Self {
        self.topic_change = change;
        self
    }

    /// Sets the schema of a subject's values; [`clear`](Self::clear) keeps it.
    pub fn learn(&mut self, subject: &str, schema: ValueSchema) {
        if let Some(encoding) = &mut self.encoding {
            encoding.learn(subject, schema);
        }
    }

    /// Returns the subject of the last row's schema; `None` without a wire format or a value.
    pub fn subject(&self) -> Option<&str> {
        let subject = &*self.encoding.as_ref()?.subject;
        (!subject.is_empty()).then_some(subject)
    }

    /// Compiles the plan of a table. Must be called for every Relation message: Postgres sends one
    /// before the first row of a table on a connection, and again after the table has changed.
    ///
    /// On an error the former plan is removed, as it must not route rows with other columns. The
    /// rows can still give a [partial row](Self::partial_row).
    pub fn relation(&mut self, relation: &Relation<'_>) -> Result<(), PlanError> {
        self.compile(relation, None, true)
    }

    /// Adds the relation of logical messages. `topic`: the column whose text is the topic.
    pub(crate) fn message_relation(
        &mut self,
        relation: &Relation<'_>,
        topic: Option<&str>,
    ) -> Result<(), PlanError> {
        self.compile(relation, topic, false)
    }

    fn compile(
        &mut self,
        relation: &Relation<'_>,
        topic: Option<&str>,
        has_header_columns: bool,
    ) -> Result<(), PlanError> {
        let former = self.tables.remove(relation.id);
        self.topics.clear();
        let names = &self.column_names;
        let unroutable = UnroutableTable::new(self.route.partial_row_columns(), relation, names);
        self.unroutable_tables.insert(relation.id, unroutable);
        let mut facts = self.facts.iter();
        let facts = facts.find(|of| of.schema == relation.namespace && of.name == relation.name);
        let mut columns = Columns::new(
            relation,
            names,
            facts.map(TableFacts::domains).unwrap_or_default(),
        );
        let mut plan = self.route.compile(&mut columns, facts)?;
        if let Some(address) = &self.address {
            address.compile(&mut columns, &mut plan)?;
        }
        if let Some(column) = topic {
            let (index, _) = columns.needed(column, || Role::RouteBy)?;
            plan.topic = Topic::Routed {
                index,
                default: None,
                name: None,
            };
        }
        let events = self.events.as_ref();
        let cloud = events.map(|events| events.compile(&mut columns, &plan));
        let cloud = cloud.transpose()?;
        let headers = self.headers_from.as_ref().filter(|_| has_header_columns);
        let headers = headers.map(|headers| headers.compile(&mut columns));
        let headers = headers.transpose()?;
        let record = match &self.encoding {
            Some(encoding) => encoding.format.compile(&mut columns)?,
            None => None,
        };
        let selection = self.selection.as_ref();
        let compares_type = selection.is_some_and(Selection::compares_type);
        let kind = compares_type.then(|| self.route.kind(&mut columns));
        let kind = kind.transpose()?;
        let columns = columns.finish();
        let plan = TablePlan {
            columns,
            plan,
            cloud,
            headers,
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

    /// Turns an inserted row into a record.
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

    /// Reads the tuple into a fresh `row`: the first step of [`route`](Self::route), for callers
    /// that need the router between the steps. [`routed`](Self::routed) makes the record, before
    /// another row is read.
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
        let TablePlan { columns, plan, .. } = table;
        columns.check_count(tuple)?;
        // An array that is filled in place: a `SmallVec` would be made elsewhere, and moved.
        let mut inline = [Value::Null; INLINE_COLUMNS];
        let mut spilled = Vec::new();
        let values = if let Some(values) = inline.get_mut(..columns.names.len()) {
            values
        } else {
            spilled.resize(columns.names.len(), Value::Null);
            spilled.as_mut_slice()
        };
        columns.values(tuple, values);
        self.column_headers.clear();
        let scratch = &mut self.scratch;
        scratch.clear();
        if self.position_header.is_some() {
            scratch.extend_from_slice(&position::text(event));
        }
        let values = &*values;
        let mut reader = RowReader {
            columns,
            values,
            scratch,
        };
        row.plan = place;
        reader.read(plan, row)?;
        if let Some(cloud) = &table.cloud {
            let headers = cloud.apply(values, event, &mut row.value, scratch);
            row.headers
                .extend(headers.map_err(|(fault, target)| columns.error(fault, &target.into()))?);
        }
        self.topics
            .render(place, &plan.topic, values, scratch)
            .map_err(|fault| columns.error(fault, &plan.topic.role()))?;
        row.position = event.position();
        row.event_id = plan.event_id.and_then(|index| values.get(index)?.bytes());
        if let Some(selection) = &self.selection {
            row.passed_over = !selection.matches(Parts {
                kind: table.kind.and_then(|index| values.get(index)?.bytes()),
                key: row.key.resolve(scratch),
                topic: self.topics.last(),
                id: row.event_id,
            });
            if row.passed_over {
                return Ok(());
            }
        }
        if let Some(headers) = &table.headers {
            let read = self.column_headers.read(headers, values);
            read.map_err(|fault| columns.error(fault, &Role::Headers))?;
        }
        if let Some(TopicChange::Prefix(prefix)) = &self.topic_change {
            self.changed_topic.clone_from(prefix);
            self.changed_topic.push_str(self.topics.last());
        }
        if let Some(encoding) = &mut self.encoding {
            let (topic, record) = (self.topics.last(), table.record.as_ref());
            encoding.apply(topic, record, (values, columns), &mut row.value, scratch)?;
        }
        Ok(())
    }

    /// Makes the record of the last row: the second step of [`route`](Self::route).
    pub fn routed<'a>(&'a self, row: &Row<'a>) -> Routed<'a> {
        let mut routed = Routed::default();
        self.write(row, &mut routed);
        routed
    }

    /// Makes the record as [`routed`](Self::routed) does, but writes into a fresh one, as moving a
    /// record costs time.
    pub fn write<'a>(&'a self, row: &Row<'a>, routed: &mut Routed<'a>) {
        let bytes = |part: &Part<'a>| part.resolve(&self.scratch);
        routed.topic = match &self.topic_change {
            None => self.topics.last(),
            Some(TopicChange::Prefix(_)) => &self.changed_topic,
            Some(TopicChange::To(topic)) => topic,
        };
        // `RowReader` has checked that it is a text.
        routed.routing_key = bytes(&row.routing_key).and_then(|key| std::str::from_utf8(key).ok());
        routed.key = bytes(&row.key);
        routed.value = bytes(&row.value);
        routed.partition = row.partition;
        routed.timestamp_ms = row.timestamp_ms;
        routed.event_id = row.event_id;
        routed.position = row.position;
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
        if !self.column_headers.is_empty() {
            self.write_column_headers(routed);
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

    // Not inlined, so that the case of a row without such headers stays short.
    #[inline(never)]
    fn write_column_headers<'a>(&'a self, routed: &mut Routed<'a>) {
        let of_route = routed.headers.len();
        let run_header = self.run_header.as_ref().map(|(name, _)| name);
        for header in self.column_headers.iter() {
            let mut others = routed.headers.iter().take(of_route);
            let later = [self.position_header.as_ref(), run_header];
            if others.all(|other| other.name != header.name)
                && later.into_iter().flatten().all(|name| name != header.name)
            {
                routed.headers.push(header);
            }
        }
    }

    /// Reads event id, key and value of a row that [`read`](Self::read) has refused. A value that
    /// cannot be read as its type is unchanged.
    pub fn partial_row<'a>(&'a self, relation: RelationId, tuple: &Tuple<'a>) -> PartialRow<'a> {
        let unroutable = self.unroutable_tables.get(relation);
        let id_header = self.route.id_header();
        unroutable.map_or_else(PartialRow::default, |of| of.read(tuple, id_header))
    }

    /// Removes all plans: a new connection announces the tables again.
    pub fn clear(&mut self) {
        self.plans.clear();
        self.topics.clear();
        self.tables.clear();
        self.unroutable_tables.clear();
    }
}

// Not derived: `topics` and `scratch` contain values of rows.
impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Router")
            .field("route", &self.route)
            .field("plans", &self.plans.len())
            .finish_non_exhaustive()
    }
}
