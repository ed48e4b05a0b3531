use walrelay_pgoutput::Relation;

use super::{ID_HEADER, Options};
use crate::column_type;
use crate::columns::Columns;
use crate::part::Piece;
use crate::plan::{Field, HeaderField, Plan};
use crate::topic::Topic;
use crate::{PlanError, Role};

impl Options {
    /// The plan of a table by these options.
    pub(crate) fn compile(&self, relation: &Relation<'_>) -> Result<Plan, PlanError> {
        let mut columns = Columns::of(relation);
        let (id, event_id) = field(&mut columns, &self.event_id, Role::EventId)?;
        let (key, _) = field(&mut columns, &self.event_key, Role::EventKey)?;
        let (payload, _) = field(&mut columns, &self.payload, Role::Payload)?;
        let (_, routed_by) = field(&mut columns, &self.route_by, Role::RouteBy)?;
        Ok(Plan {
            topic: Topic::Routed {
                slot: routed_by,
                template: self.topic.clone(),
            },
            key: Some(key),
            value: Some(payload),
            headers: vec![HeaderField {
                name: ID_HEADER.into(),
                field: id,
            }],
            partition: None,
            timestamp: None,
            event_id: Some(event_id),
            slots: columns.finish(),
        })
    }
}

fn field(columns: &mut Columns<'_>, name: &str, role: Role) -> Result<(Field, usize), PlanError> {
    let Some(found) = columns.find(name) else {
        return Err(PlanError::missing(columns, name, role));
    };
    let type_oid = found.column.type_oid.get();
    let slot = found.slot;
    match column_type::reading(type_oid, &role) {
        Some(reading) => {
            let piece = Piece::Column { slot, reading };
            Ok((Field { role, piece }, slot))
        }
        None => Err(PlanError::UnsupportedType {
            table: columns.table().to_owned(),
            column: name.to_owned(),
            role,
            type_oid,
        }),
    }
}
