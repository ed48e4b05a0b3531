use walrelay_relay::TableName;

use super::{Facts, SetupError};

/// What the configuration asks of the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// The slot's name.
    pub slot: String,
    /// The publication's name.
    pub publication: String,
    /// The outbox tables.
    pub tables: Vec<TableName>,
    /// Columns the router reads of each.
    pub columns: Vec<String>,
    /// Whether what is missing may be created.
    pub create: bool,
}

/// Something to create, in the order of a [`Plan`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The publication, insert-only, for the wanted tables. Before the slot: what the slot decodes
    /// must be published from its first position on.
    CreatePublication,
    /// The slot.
    CreateSlot,
}

/// What to do before streaming, and what is worth a word.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// To create.
    pub actions: Vec<Action>,
    /// For people.
    pub notes: Vec<String>,
}

/// Compares what is wanted with what is there.
///
/// `relayed_before`: this process has streamed from the slot already. Then nothing may be created:
/// a slot that is gone took events with it.
pub fn plan(wanted: &Wanted, facts: &Facts, relayed_before: bool) -> Result<Plan, SetupError> {
    if facts.server.wal_level != "logical" {
        return Err(SetupError::WalLevel {
            found: facts.server.wal_level.clone(),
        });
    }
    tables(wanted, facts)?;
    let mut plan = Plan::default();
    slot(wanted, facts, relayed_before, &mut plan)?;
    publication(wanted, facts, &mut plan)?;
    // The publication first, see `Action`.
    plan.actions.reverse();
    Ok(plan)
}

fn tables(wanted: &Wanted, facts: &Facts) -> Result<(), SetupError> {
    for (name, table) in &facts.tables {
        let Some(table) = table else {
            return Err(SetupError::TableMissing {
                table: name.clone(),
            });
        };
        if !matches!(table.kind.as_str(), "r" | "p") || !table.permanent {
            return Err(SetupError::TableKind {
                table: name.clone(),
            });
        }
        let missing: Vec<String> = wanted
            .columns
            .iter()
            .filter(|column| !table.columns.contains(column))
            .cloned()
            .collect();
        if !missing.is_empty() {
            return Err(SetupError::ColumnsMissing {
                table: name.clone(),
                missing,
                present: table.columns.clone(),
            });
        }
    }
    Ok(())
}

fn slot(
    wanted: &Wanted,
    facts: &Facts,
    relayed_before: bool,
    plan: &mut Plan,
) -> Result<(), SetupError> {
    let name = &wanted.slot;
    let Some(slot) = &facts.slot else {
        // The slot is on the primary, which is away for the moment or has not been found yet.
        if facts.server.in_recovery {
            return Err(SetupError::Standby { slot: name.clone() });
        }
        if relayed_before {
            return Err(SetupError::SlotGone { slot: name.clone() });
        }
        if !wanted.create {
            return Err(SetupError::SlotMissing { slot: name.clone() });
        }
        plan.actions.push(Action::CreateSlot);
        return Ok(());
    };
    let plugin = slot.plugin.as_deref().unwrap_or("none");
    if slot.kind != "logical" || plugin != "pgoutput" {
        return Err(SetupError::SlotPlugin {
            slot: name.clone(),
            kind: slot.kind.clone(),
            plugin: plugin.to_owned(),
        });
    }
    let database = slot.database.as_deref().unwrap_or_default();
    if database != facts.server.database {
        return Err(SetupError::SlotDatabase {
            slot: name.clone(),
            found: database.to_owned(),
            connected: facts.server.database.clone(),
        });
    }
    if slot.wal_status.as_deref() == Some("lost") {
        return Err(SetupError::SlotLost {
            slot: name.clone(),
            confirmed: slot.confirmed,
        });
    }
    if slot.wal_status.as_deref() == Some("unreserved") {
        plan.notes.push(format!(
            "slot {name} is about to lose WAL it needs (wal_status = unreserved): raise \
             max_slot_wal_keep_size"
        ));
    }
    if let Some(pid) = slot.active_pid {
        plan.notes
            .push(format!("slot {name} is being read by server process {pid}"));
    }
    Ok(())
}

fn publication(wanted: &Wanted, facts: &Facts, plan: &mut Plan) -> Result<(), SetupError> {
    let name = &wanted.publication;
    let Some(publication) = &facts.publication else {
        // Postgres decodes with the catalogs of the time of each change: rows committed while there
        // was no publication are not carried, whatever is created now.
        if facts.slot.is_some() {
            return Err(SetupError::PublicationGone {
                publication: name.clone(),
                slot: wanted.slot.clone(),
            });
        }
        if !wanted.create {
            return Err(SetupError::PublicationMissing {
                publication: name.clone(),
            });
        }
        plan.actions.push(Action::CreatePublication);
        return Ok(());
    };
    if !publication.insert {
        return Err(SetupError::PublicationWithoutInsert {
            publication: name.clone(),
        });
    }
    let published = |table: &TableName| publication.tables.iter().find(|p| p.table == *table);
    let missing: Vec<TableName> = wanted
        .tables
        .iter()
        .filter(|table| published(table).is_none())
        .cloned()
        .collect();
    if !missing.is_empty() {
        return Err(SetupError::PublicationLacks {
            publication: name.clone(),
            tables: missing,
        });
    }
    let foreign: Vec<TableName> = publication
        .tables
        .iter()
        .map(|published| published.table.clone())
        .filter(|table| !wanted.tables.contains(table))
        .collect();
    if !foreign.is_empty() {
        return Err(SetupError::PublicationForeign {
            publication: name.clone(),
            tables: foreign,
        });
    }
    for published in &publication.tables {
        if let Some(columns) = &published.columns {
            let missing: Vec<String> = wanted
                .columns
                .iter()
                .filter(|column| !columns.contains(column))
                .cloned()
                .collect();
            if !missing.is_empty() {
                return Err(SetupError::PublicationColumns {
                    publication: name.clone(),
                    table: published.table.clone(),
                    missing,
                });
            }
        }
        if let Some(filter) = &published.row_filter {
            plan.notes.push(format!(
                "publication {name} carries only the rows of {} for which {filter}",
                published.table
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
