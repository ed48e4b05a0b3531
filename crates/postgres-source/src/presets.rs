//! The preset that fits a table: for the remedy of an error about missing columns, and for a first
//! configuration.

use walrelay_event_router::{Options, Preset, PresetValue};
use walrelay_relay::TableName;
use walrelay_walsender::{Error, Session, quote_literal};

use crate::catalog::row::{is_true, json, text};

/// A table that may be an outbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxCandidate {
    /// The table.
    pub table: TableName,
    /// True of an ordinary or partitioned table whose changes are in the log.
    pub is_logged: bool,
    /// The preset whose columns it has, all of them.
    pub preset: Option<&'static str>,
    /// The names of its columns, in order.
    pub columns: Vec<String>,
}

/// The condition for an ordinary or partitioned table whose changes are in the log.
const IS_LOGGED: &str =
    "c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p'";
const TABLES: &str = "FROM pg_catalog.pg_class c \
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
    JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid \
    WHERE a.attnum > 0 AND NOT a.attisdropped \
    AND n.nspname <> 'information_schema' AND n.nspname NOT LIKE 'pg\\_%'";
/// Those that have columns of any preset, or the name of an outbox.
const LIKELY: &str = "HAVING pg_catalog.bool_or(a.attname = 'id') AND pg_catalog.bool_or(a.attname = 'payload') \
    OR c.relname ILIKE '%outbox%' \
    ORDER BY c.relname ILIKE '%outbox%' DESC, n.nspname, c.relname LIMIT 1000";

/// Finds the tables that have all columns of a preset, then those with "outbox" in their name. Those whose preset
/// reads most columns come first; of equals, those with "outbox" in their name. `only`: this table, whatever its
/// name and columns.
///
/// # Errors
/// If the catalogs cannot be read.
pub async fn candidates(
    session: &mut Session,
    only: Option<&TableName>,
) -> Result<Vec<OutboxCandidate>, Error> {
    let (wanted, order) = match only {
        Some(only) => {
            let (schema, name) = (quote_literal(&only.schema), quote_literal(&only.name));
            (format!("n.nspname = {schema} AND c.relname = {name}"), "")
        }
        None => (IS_LOGGED.to_owned(), LIKELY),
    };
    let query = format!(
        "SELECT n.nspname, c.relname, pg_catalog.json_agg(a.attname ORDER BY a.attnum) AS columns, \
         pg_catalog.bool_and({IS_LOGGED}) AS is_logged {TABLES} AND {wanted} GROUP BY n.nspname, c.relname {order}"
    );
    let rows = session.query(&query).await?;
    let mut found = Vec::new();
    for row in rows.iter() {
        let columns: Vec<String> = json(&row, "columns").unwrap_or_default();
        let table = TableName {
            schema: text(&row, "nspname"),
            name: text(&row, "relname"),
        };
        let fit = fits(&columns, true).pop().filter(|fit| fit.value.is_none());
        let is_outbox = table.name.to_lowercase().contains("outbox");
        if fit.is_some() || is_outbox || only.is_some() {
            let (reads, preset) = fit.map_or((0, None), |fit| (fit.reads, Some(fit.name)));
            let candidate = OutboxCandidate {
                table,
                is_logged: is_true(&row, "is_logged"),
                preset,
                columns,
            };
            found.push((reads, candidate));
        }
    }
    found.sort_by_key(|(reads, _)| std::cmp::Reverse(*reads));
    Ok(found.into_iter().map(|(_, candidate)| candidate).collect())
}

/// A preset whose columns a table has.
struct Fit {
    name: &'static str,
    /// Number of the table's columns that the preset reads.
    reads: usize,
    /// Lines of `[router.route.value]` without the members whose columns the table lacks; `None`:
    /// the table has all columns.
    value: Option<String>,
}

/// Returns the remedy if the route reads columns that the table does not have. `by_templates`: the
/// route consists of templates instead of Debezium's options.
pub fn remedy(present: &[String], by_templates: bool) -> String {
    let how = if by_templates {
        "under [router.former_columns], as in body = \"payload\""
    } else {
        "as in \"table.field.event.payload\" = [\"body\", \"payload\"]"
    };
    let mut remedy = format!(
        "the table has the columns {}. If a column was renamed, give its current and its former \
         name, {how}: the log has rows of both. Otherwise ",
        present.join(", ")
    );
    let mut fits = fits(present, by_templates);
    let obsolete = if by_templates {
        "what [router.route] says of other columns"
    } else {
        "[router.debezium] and [router.converters]"
    };
    let rest = match fits.pop() {
        Some(Fit {
            name, value: None, ..
        }) => format!(
            "preset {name:?} reads no others: set [router] preset = {name:?}, and remove {obsolete}"
        ),
        Some(Fit {
            name,
            value: Some(value),
            ..
        }) => format!(
            "preset {name:?} fits but for its value. Set [router] preset = {name:?}, remove {obsolete}, \
             and write the value again:\n\n[router.route.value]\n{value}\n"
        ),
        None if by_templates => {
            "write each part that reads another column in [router.route]: the other parts stay the \
             preset's"
                .to_owned()
        }
        None => {
            "name yours in [router.debezium], such as \"table.field.event.payload\" = \"…\", or \
             choose another [router] preset and write the differences in [router.route]"
                .to_owned()
        }
    };
    remedy.push_str(&rest);
    remedy
}

/// Returns the presets that fit, the best one last: it reads most columns, or lacks none of as
/// many. `debezium`: Debezium's defaults are one of them.
fn fits(present: &[String], debezium: bool) -> Vec<Fit> {
    let columns = Options::default().columns();
    let of_debezium = (debezium && has(present, &columns)).then_some(Fit {
        name: "debezium",
        reads: columns.len(),
        value: None,
    });
    let fits = Preset::ALL.iter().filter_map(|preset| fit(preset, present));
    let mut fits: Vec<Fit> = fits.chain(of_debezium).collect();
    fits.sort_by_key(|fit| (fit.reads, fit.value.is_none()));
    fits
}

fn has(present: &[String], columns: &[String]) -> bool {
    columns.iter().all(|column| present.contains(column))
}

/// Returns the columns that a preset reads.
fn columns(preset: &Preset) -> Vec<String> {
    let Ok(routes) = preset.routes() else {
        unreachable!("a preset is made of templates");
    };
    routes.columns().into_iter().map(str::to_owned).collect()
}

fn fit(preset: &Preset, present: &[String]) -> Option<Fit> {
    let name = preset.name;
    let all = columns(preset);
    let reads = all.iter().filter(|column| present.contains(column)).count();
    if reads == all.len() {
        let value = None;
        return Some(Fit { name, reads, value });
    }
    let PresetValue::Object(members) = preset.value else {
        return None;
    };
    // The table must have the columns of id, topic, key and headers.
    let others = Preset {
        value: PresetValue::Object(&[]),
        ..*preset
    };
    let known = |text: &str| present.iter().any(|column| format!("{{{column}}}") == text);
    let kept = members.iter().filter(|(_, text)| known(text));
    let lines: Vec<String> = kept
        .map(|(name, text)| format!("{name} = \"{text}\""))
        .collect();
    (has(present, &columns(&others)) && !lines.is_empty()).then(|| Fit {
        name,
        reads,
        value: Some(lines.join("\n")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remedy_of(columns: &str, by_templates: bool) -> String {
        let columns: Vec<String> = columns.split(' ').map(str::to_owned).collect();
        remedy(&columns, by_templates)
    }

    #[test]
    fn the_preset_that_fits_the_table_is_named() {
        for (columns, by_templates, words) in [
            (
                "id type aggregate_id payload",
                false,
                "preset = \"events_outbox\"",
            ),
            (
                "id event_type aggregate_id payload sent_at",
                false,
                "preset = \"outbox_events\"",
            ),
            (
                "id aggregate_type aggregate_id event_type payload metadata created_at",
                false,
                "preset = \"outbox\"",
            ),
            (
                "id aggregate_type aggregate_id event_type payload created_at",
                true,
                "[router.route.value]\nevent_id = \"{id}\"",
            ),
            (
                "id aggregatetype aggregateid type payload",
                true,
                "preset = \"debezium\"",
            ),
            ("uid topic data", false, "[router.debezium]"),
            ("uid topic data", true, "in [router.route]"),
        ] {
            let remedy = remedy_of(columns, by_templates);
            assert!(remedy.contains(words), "{columns}: {remedy}");
        }
        assert!(!remedy_of("uid topic data", true).contains("[router.debezium]"));
        let value = remedy_of(
            "id aggregate_type aggregate_id event_type payload created_at",
            true,
        );
        assert!(!value.contains("{metadata}"), "{value}");
    }
}
