//! The check of the account of sent rows: only rows that it has are deleted.

use std::time::Duration;

use walrelay_failure::Chain;
use walrelay_postgres_source::{DeadLetters, NoAccount, PruneError, hidden_rows};
use walrelay_walsender::{ConnInfo, Error, Session};

use super::DatabaseState;
use crate::commands::assembly::accounts_rows;
use crate::commands::database::prune::{MISSING_DEAD_LETTERS, no_account_remedy, pruning};
use crate::commands::inspect::check::item::Check;

/// The age of rows that are looked at, if `[prune]` has none.
const KEEP: Duration = Duration::from_secs(86_400);

/// Compares the numbers of old rows with those that are accounted as sent, if rows are deleted by an
/// account and there is a slot.
pub(super) async fn account(
    session: &mut Session,
    info: &ConnInfo,
    db: &DatabaseState<'_>,
) -> Result<Vec<Check>, Error> {
    let config = db.config;
    if db.facts.slot.is_none() || !accounts_rows(config) {
        return Ok(Vec::new());
    }
    let keep = config.prune.as_ref().and_then(|prune| prune.keep);
    let Ok(pruning) = pruning(
        config,
        info.clone(),
        Some(keep.unwrap_or(KEEP)),
        DeadLetters::default(),
    ) else {
        return Ok(Vec::new());
    };
    let stays = |why: String, remedy: &str| Check::warn(format!("old rows stay: {why}"), remedy);
    let role = &db.survey.role;
    let hidden = hidden_rows(session, &db.wanted, role).await?;
    if !hidden.is_empty() {
        let checks = hidden.into_iter().map(|right| {
            let why = format!("role {role} may not {}", right.what);
            stays(why, &right.grant.unwrap_or_default())
        });
        return Ok(checks.collect());
    }
    let never_ran = db
        .facts
        .slot
        .as_ref()
        .is_some_and(|slot| slot.active_pid.is_none());
    let found = match pruning.unaccounted(session).await {
        Ok(found) => found,
        // A relay begins the account when it reads the slot first.
        Err(PruneError::NoAccount(NoAccount::Slot(_) | NoAccount::Missing)) if never_ran => {
            return Ok(Vec::new());
        }
        Err(PruneError::NoAccount(why)) => {
            return Ok(vec![stays(why.to_string(), no_account_remedy(&why))]);
        }
        Err(PruneError::Sql(error)) => return Err(error),
        Err(error) => return Ok(vec![stays(error.to_string(), "see the cause")]),
    };
    let unaccounted = found.tables.iter().map(|one| {
        let remedy = if one.has_other_rows() {
            "send the unsent rows (walrelay resend), then walrelay prune --accept"
        } else {
            MISSING_DEAD_LETTERS
        };
        stays(one.to_string(), remedy)
    });
    let problems = found.problems.iter().filter_map(|problem| match problem {
        PruneError::NoAccount(why) => Some(stays(why.to_string(), no_account_remedy(why))),
        // Another item says so.
        PruneError::Column(_) | PruneError::Missing(_) => None,
        problem => Some(stays(Chain(problem).to_string(), "see the cause")),
    });
    let mut checks: Vec<Check> = unaccounted.chain(problems).collect();
    if found.tables.is_empty() && found.problems.is_empty() {
        checks.push(Check::pass(
            "old rows are those that were accounted as sent",
        ));
    }
    Ok(checks)
}
