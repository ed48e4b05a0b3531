//! The choice of rules.

use crate::plan::{Columns, Plan, PlanError};
use crate::render::connect::TableFacts;
use crate::render::debezium::{self, Options};
use crate::render::template::Templates;

/// The rules, as configured.
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
    /// The plan of a table; `facts` are from the catalogs.
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

    /// The columns that are the event's id, key and value, or come nearest.
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
