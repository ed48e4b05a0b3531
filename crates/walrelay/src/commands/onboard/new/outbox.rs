//! The outbox table that a first configuration names: found by its columns, or named by you.

use walrelay_failure::{Exit, Failure};
use walrelay_postgres_source::table_name::{self, written};
use walrelay_postgres_source::{OutboxCandidate, usual_table};
use walrelay_relay::TableName;
use walrelay_walsender::ConnInfo;

use super::{Ask, DEFAULT, candidates_of, columns};
use crate::cli::{NewArgs, PartColumn};
use crate::commands::print_notice;
use crate::config::preset_names;

/// The most tables that the file and a question name.
pub(super) const MAX_NAMED: usize = 10;

/// The outbox table that the file names.
#[derive(Debug)]
pub(super) struct Outbox {
    pub(super) table: TableName,
    /// False: `walrelay init` creates it.
    pub(super) exists: bool,
    /// True: an option or an answer named it, and no other table was looked at.
    pub(super) is_named: bool,
    pub(super) preset: &'static str,
    /// The columns of the parts, if they are not those of the preset.
    pub(super) columns: Vec<PartColumn>,
    /// Other tables that have all columns of a preset.
    pub(super) others: Vec<(TableName, &'static str)>,
    /// Tables with the name of an outbox, and the columns of no preset.
    pub(super) unfit: Vec<TableName>,
}

impl Outbox {
    /// Creates the table that `walrelay init` makes for a preset.
    pub(super) fn new(preset: &'static str) -> Self {
        Self {
            table: TableName::new("public", usual_table(preset)),
            exists: false,
            is_named: false,
            preset,
            columns: Vec::new(),
            others: Vec::new(),
            unfit: Vec::new(),
        }
    }

    /// Finds the table, or asks for it and its columns.
    pub(super) fn find(args: &NewArgs, info: &mut ConnInfo, ask: Ask<'_>) -> Result<Self, Failure> {
        columns::check_options(&args.columns)?;
        if let Some(table) = &args.table {
            return Self::named(table, &args.columns, info, ask);
        }
        let outbox = Self::from_candidates(candidates_of(info, None)?, args.preset.as_deref());
        if outbox.exists || args.preset.is_some() {
            return Ok(outbox);
        }
        match asked(&outbox, ask) {
            Some(table) => Self::named(&table, &[], info, ask),
            None => Ok(outbox),
        }
    }

    /// Creates the first table that fits, or else the one that `walrelay init` makes. `wanted`: the preset.
    pub(super) fn from_candidates(candidates: Vec<OutboxCandidate>, wanted: Option<&str>) -> Self {
        let preset = preset_names().find(|name| Some(*name) == wanted);
        let mut outbox = Self::new(preset.unwrap_or(DEFAULT));
        for candidate in candidates {
            match candidate.preset {
                Some(fits) if preset.is_none_or(|preset| preset == fits) => {
                    outbox.others.push((candidate.table, fits));
                }
                Some(_) => {}
                None => outbox.unfit.push(candidate.table),
            }
        }
        if !outbox.others.is_empty() {
            (outbox.table, outbox.preset) = outbox.others.remove(0);
            outbox.exists = true;
        }
        outbox
    }

    /// Looks for a table by its name.
    fn named(
        table: &TableName,
        options: &[PartColumn],
        info: &mut ConnInfo,
        ask: Ask<'_>,
    ) -> Result<Self, Failure> {
        let mut outbox = Self {
            table: table.clone(),
            is_named: true,
            ..Self::new(DEFAULT)
        };
        if let Some(found) = candidates_of(info, Some(table))?.pop() {
            if !found.is_logged {
                let what = format!("the changes of {table} are not in the log");
                let remedy = "name an ordinary or partitioned table into which your services insert: no view, foreign or \
                              unlogged table, and no partition";
                return Err(Failure::new("new-table", Exit::Usage, what).remedy(remedy));
            }
            outbox.exists = true;
            match found.preset {
                Some(preset) if options.is_empty() => outbox.preset = preset,
                _ => outbox.columns = columns::table_columns(&found, options, ask)?,
            }
        } else {
            outbox.columns = options.to_vec();
        }
        Ok(outbox)
    }
}

/// Asks for the outbox table. `None`: the one that `walrelay init` makes.
fn asked(outbox: &Outbox, ask: Ask<'_>) -> Option<TableName> {
    let unfit: Vec<String> = outbox.unfit.iter().take(MAX_NAMED).map(written).collect();
    let unfit = if unfit.is_empty() {
        String::new()
    } else {
        format!(" (tables with the name of one: {})", unfit.join(", "))
    };
    let question = format!(
        "No table has the columns of a preset. Your outbox table{unfit}, or nothing for a new one, {}: ",
        outbox.table
    );
    loop {
        let answer = ask(&question).filter(|answer| !answer.is_empty())?;
        match table_name::parse(&answer) {
            Ok(table) => return Some(table),
            Err(why) => print_notice(&format!("{answer:?} is no table: {why}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_asked_for_until_the_answer_is_one() {
        let candidate = OutboxCandidate {
            table: TableName::new("app", "Outbox"),
            is_logged: true,
            preset: None,
            columns: Vec::new(),
        };
        let outbox = Outbox::from_candidates(vec![candidate], None);
        assert_eq!(outbox.table, TableName::new("public", "outbox"));
        let answers = std::cell::RefCell::new(vec!["app.\"Outbox\"", "app.Outbox"]);
        let ask = |question: &str| {
            assert!(question.contains("(tables with the name of one: app.\"Outbox\")"));
            answers.borrow_mut().pop().map(str::to_owned)
        };
        assert_eq!(asked(&outbox, &ask), Some(TableName::new("app", "Outbox")));
        assert_eq!(asked(&outbox, &|_: &str| Some(String::new())), None);
    }
}
