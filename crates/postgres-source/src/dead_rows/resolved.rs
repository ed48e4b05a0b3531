//! The stored keys of resolved dead letters, by the resolutions in the store of dead letters. A relay with `mark_dead`
//! works them off; pruning must not wait for one.

use walrelay_sink_kind::dead_letters::Outcome;
use walrelay_walsender::{Error, Session, quote_literal};

use super::table::{TABLE, VERSION, exists, has_keys, may_resolve, page};
use crate::dead_letters::{DeadLetters, DeadLettersError};
use crate::script::array;

/// The stored keys of a slot whose dead letters are resolved, each as it was when the resolutions were read.
#[derive(Debug, Default)]
pub(crate) struct ResolvedKeys {
    /// The version of each key.
    versions: Vec<String>,
    /// The reason why it is not known which dead letters are resolved: all count as open.
    pub(crate) unread: Option<DeadLettersError>,
}

impl ResolvedKeys {
    /// Reads which dead letters of a slot are resolved, if keys are stored.
    pub(crate) async fn read(
        session: &mut Session,
        slot: &str,
        dead_letters: &DeadLetters,
        deletes: bool,
    ) -> Result<Self, Error> {
        let mut resolved = Self::default();
        if !exists(session).await? || !has_keys(session, slot).await? {
            return Ok(resolved);
        }
        // Keys come first: one that is stored again after that may be of another dead letter.
        let (mut after, mut keys) = (0, Vec::new());
        loop {
            let page = page(session, slot, &format!("id > {after}")).await?;
            let Some(last) = page.last() else {
                break;
            };
            after = last.id;
            keys.extend(page.into_iter().map(|key| (key.origin, key.version)));
        }
        if let Err(error) = dead_letters.read().await {
            resolved.unread = Some(error);
            return Ok(resolved);
        }
        let may_delete = deletes && may_resolve(session).await?;
        let mut dropped = Vec::new();
        for (origin, version) in keys {
            match dead_letters.outcome(&origin) {
                // The row stays as it is, and the user's condition decides about it.
                Some(Outcome::Dropped) if may_delete => dropped.push(version),
                // Its row is to be marked as sent, by a relay or by `cutover rollback`.
                Some(_) => resolved.versions.push(version),
                None => {}
            }
        }
        if !dropped.is_empty() {
            let sql = format!(
                "DELETE FROM {TABLE} WHERE slot = {} AND {VERSION} = ANY ({}::text[])",
                quote_literal(slot),
                quote_literal(&array(dropped.iter().map(String::as_str)))
            );
            session.query(&sql).await?;
        }
        Ok(resolved)
    }

    /// Writes a condition that leaves these keys out: ` AND …`.
    pub(super) fn excluded(&self) -> String {
        if self.versions.is_empty() {
            return String::new();
        }
        let versions = array(self.versions.iter().map(String::as_str));
        format!(
            " AND {VERSION} <> ALL ({}::text[])",
            quote_literal(&versions)
        )
    }
}
