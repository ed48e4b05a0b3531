//! The choice between Debezium's rules and templates.

use crate::plan::{Columns, Plan, PlanError, Role};
use crate::render::connect::TableFacts;
use crate::render::debezium::{self, Options};
use crate::render::template::Templates;
use crate::value::ColumnIndex;

/// The configured rules by which rows become records.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Route {
    /// The rules of Debezium's outbox event router.
    Debezium(Box<Options>),
    /// Templates over columns.
    Template(Templates),
}

impl From<Options> for Route {
    fn from(options: Options) -> Self {
        Self::Debezium(Box::new(options))
    }
}

impl From<Templates> for Route {
    fn from(templates: Templates) -> Self {
        Self::Template(templates)
    }
}

impl Route {
    /// Compiles the plan of a table. `facts` are from the catalogs.
    pub(crate) fn compile(
        &self,
        columns: &mut Columns<'_>,
        facts: Option<&TableFacts>,
    ) -> Result<Plan, PlanError> {
        match self {
            Self::Debezium(options) => options.compile(columns, facts),
            Self::Template(templates) => templates.compile(columns),
        }
    }

    /// Returns the topic of all rows, if it does not depend on the row.
    pub fn constant_topic(&self) -> Option<String> {
        match self {
            Self::Debezium(options) => options.topic.constant(),
            Self::Template(templates) => templates.topic.constant(),
        }
    }

    /// Returns the index of the column of the event's type.
    pub(crate) fn kind(&self, columns: &mut Columns<'_>) -> Result<ColumnIndex, PlanError> {
        let names = match self {
            Self::Debezium(options) => [options.event_type.as_str(), &options.event_type],
            Self::Template(_) => ["type", "event_type"],
        };
        let column = names.iter().find_map(|name| columns.find(name));
        let (index, _) = column.ok_or_else(|| columns.missing(names[0], Role::EventType))?;
        Ok(index)
    }

    /// Returns the columns of the event's id, key and value, or those that come nearest. For dead
    /// letters of rows that cannot be routed.
    pub(crate) fn partial_row_columns(&self) -> [Option<&str>; 3] {
        match self {
            Self::Debezium(options) => {
                [&options.event_id, &options.event_key, &options.payload].map(|name| Some(&**name))
            }
            Self::Template(templates) => templates.partial_row_columns(),
        }
    }

    pub(crate) fn id_header(&self) -> &str {
        match self {
            Self::Debezium(_) => debezium::ID_HEADER,
            Self::Template(templates) => templates.id_header().unwrap_or(debezium::ID_HEADER),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_without_groups_is_a_constant_topic() {
        let of = |text: &str| {
            let options = Options {
                topic: text.parse().unwrap(),
                ..Options::default()
            };
            Route::from(options).constant_topic()
        };
        assert_eq!(of("outbox.event.all").as_deref(), Some("outbox.event.all"));
        assert_eq!(of("outbox.event.${routedByValue}"), None);
    }
}
