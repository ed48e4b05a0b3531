//! The epoch of a slot's positions: the number of moves to servers whose logs started at lower positions.
//!
//! A row of `walrelay_state.epoch`, which a switch writes in the transaction of its record
//! ([`finish_move`](crate::moves::finish_move)). It is part of the database, so copies carry it, and a relay
//! reads it each time it opens the slot. Without the table the epoch is 0.

use walrelay_lsn::Lsn;
use walrelay_sink::{MAX_EPOCH, PublishedLsn};
use walrelay_walsender::{Error, Session, quote_literal};

use super::catalog::row::{parsed, text};
use super::{kept, state_version};

const TABLE: &str = "walrelay_state.epoch";

/// The epoch of a slot's positions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Epoch {
    /// Its number.
    pub number: u8,
    /// The `system_identifier` of the server that was switched to, and the position of its slot then: earlier
    /// events of that server were published in another epoch. `None` in epoch 0, and for a slot that was created later.
    pub since: Option<(String, Lsn)>,
}

/// No epoch is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the outbox was moved {MAX_EPOCH} times to a server whose log began lower")]
pub struct EpochsExhausted;

impl Epoch {
    /// Returns the position from which on the events of this server have this epoch.
    pub fn begin(&self, system: &str) -> Option<Lsn> {
        let since = self.since.as_ref();
        since.and_then(|(of, begin)| (of == system).then_some(*begin))
    }

    /// Returns the epoch after a switch to this server, whose slot is at `position`.
    ///
    /// `former`: the epoch of the former server. Each of its events was committed before `barrier`; `None`: not
    /// known.
    ///
    /// # Errors
    /// If a further epoch is needed, and there is none.
    pub fn after_switch(
        &self,
        former: u8,
        barrier: Option<Lsn>,
        position: Lsn,
    ) -> Result<u8, EpochsExhausted> {
        let number = self.number.max(former);
        let begins = PublishedLsn::new(number, position.get());
        let is_later =
            barrier.is_some_and(|barrier| begins >= PublishedLsn::new(former, barrier.get()));
        if is_later {
            return Ok(number);
        }
        let next = number.checked_add(1);
        next.filter(|next| *next <= MAX_EPOCH)
            .ok_or(EpochsExhausted)
    }
}

/// Reads the epoch of a slot. One that was created after the last switch, for example because the slot got another
/// name, has the highest epoch of the database: the destination may have positions of that one.
///
/// # Errors
/// Also if the table exists and this role may not read it: epoch 0 would publish positions that go back.
pub async fn find_epoch(session: &mut Session, slot: &str) -> Result<Epoch, Error> {
    if !kept::has_table(session, "epoch").await? {
        return Ok(Epoch::default());
    }
    let sql = format!(
        "SELECT epoch, system, since FROM {TABLE} WHERE slot = {slot} \
         UNION ALL (SELECT max(epoch), NULL, NULL FROM {TABLE} WHERE NOT EXISTS \
         (SELECT FROM {TABLE} WHERE slot = {slot}))",
        slot = quote_literal(slot)
    );
    let rows = session.query(&sql).await?;
    let Some(row) = rows.first() else {
        return Ok(Epoch::default());
    };
    let since = parsed(&row, "since").map(|since| (text(&row, "system"), since));
    Ok(Epoch {
        number: parsed(&row, "epoch").unwrap_or_default(),
        since,
    })
}

/// Gives a slot that does not exist the highest epoch of the database, before it is created and after it was dropped. The
/// row of a dropped slot stays, because it may hold the only record of the highest epoch. A new slot of its name may be
/// that of another relay, whose destination has positions of the highest one. No event is published again: a new slot
/// has none that was committed before. Returns whether the epoch was lower.
///
/// # Errors
/// Also if the row is lower, and this role may not change it.
pub async fn raise_for_new_slot(session: &mut Session, slot: &str) -> Result<bool, Error> {
    let is_new = format!(
        "NOT EXISTS (SELECT FROM pg_catalog.pg_replication_slots WHERE slot_name = {})",
        quote_literal(slot)
    );
    raise(
        session,
        slot,
        "pg_catalog.pg_current_wal_insert_lsn()",
        &is_new,
    )
    .await
}

/// Gives a slot the highest epoch of the database from its position on, because nothing shows that it is the slot of
/// its row: another client may have dropped and created it. If it did not, an event that was in flight is repeated with
/// a higher position. No position goes back. Returns whether the epoch was lower.
///
/// # Errors
/// Also if the row is lower, and this role may not change it.
pub async fn raise_for_unknown_slot(
    session: &mut Session,
    slot: &str,
    position: Lsn,
) -> Result<bool, Error> {
    raise(session, slot, &format!("'{position}'"), "true").await
}

/// Raises the row of a slot to the highest epoch of the database under an SQL condition. `since`: an SQL value.
async fn raise(
    session: &mut Session,
    slot: &str,
    since: &str,
    condition: &str,
) -> Result<bool, Error> {
    if !kept::has_table(session, "epoch").await? {
        return Ok(false);
    }
    let lower = format!(
        "WHERE slot = {} AND epoch < (SELECT max(epoch) FROM {TABLE}) AND {condition}",
        quote_literal(slot)
    );
    let rows = session
        .query(&format!("SELECT FROM {TABLE} {lower}"))
        .await?;
    if rows.is_empty() {
        return Ok(false);
    }
    // Earlier events of the name have another epoch.
    let raise = format!(
        "UPDATE {TABLE} SET epoch = (SELECT max(epoch) FROM {TABLE}), \
         system = (SELECT system_identifier::text FROM pg_catalog.pg_control_system()), \
         since = {since}, at = now() {lower}"
    );
    session.query(&raise).await?;
    Ok(true)
}

/// Returns SQL that records the epoch from this position of this server on. Nothing is recorded of epoch 0.
///
/// `drained_slots`: a query of the slots of former servers that are drained.
pub(crate) fn record_sql(
    slot: &str,
    number: u8,
    (system, since): (&str, Lsn),
    drained_slots: &str,
) -> Vec<String> {
    if number == 0 {
        return Vec::new();
    }
    vec![
        format!(
            "CREATE TABLE IF NOT EXISTS {TABLE} (\n    slot   name PRIMARY KEY, -- the relay's slot\n    \
             epoch  smallint NOT NULL CHECK (epoch BETWEEN 0 AND {MAX_EPOCH}), -- the top byte of published positions\n    \
             system text NOT NULL,   -- the system identifier of the server that was switched to\n    \
             since  pg_lsn NOT NULL, -- its slot's position then\n    at     timestamptz NOT NULL DEFAULT now()\n)"
        ),
        format!("GRANT SELECT ON {TABLE} TO PUBLIC"),
        state_version::raise_sql(),
        // Other slots that exist keep theirs: their relays may send an event again, which must have its position. So do
        // those whose events a copy has and that are switched after this one: their switches compare with the epoch of
        // the former server.
        format!(
            "INSERT INTO {TABLE} (slot, epoch, system, since) SELECT slot, (SELECT coalesce(max(epoch), 0) FROM {TABLE}), \
             {system}, '0/0' FROM (SELECT slot_name FROM pg_catalog.pg_replication_slots WHERE slot_type = 'logical' \
             AND database = pg_catalog.current_database() UNION {drained_slots}) AS other (slot) WHERE slot <> {slot} \
             ON CONFLICT DO NOTHING",
            system = quote_literal(system),
            slot = quote_literal(slot),
        ),
        // An epoch never goes back.
        format!(
            "INSERT INTO {TABLE} AS known (slot, epoch, system, since) VALUES ({}, {number}, {}, '{since}') \
             ON CONFLICT (slot) DO UPDATE SET epoch = greatest(known.epoch, excluded.epoch), \
             system = excluded.system, since = excluded.since, at = now()",
            quote_literal(slot),
            quote_literal(system),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(own: u8, former: u8, barrier: Option<u64>, position: u64) -> Option<u8> {
        let own = Epoch {
            number: own,
            since: None,
        };
        let barrier = barrier.map(Lsn::new);
        own.after_switch(former, barrier, Lsn::new(position)).ok()
    }

    #[test]
    fn an_epoch_is_raised_only_if_positions_would_go_back() {
        for (own, former, barrier, position, expected) in [
            (0, 0, Some(100), 100, Some(0)),
            (0, 0, Some(100), 99, Some(1)),
            (0, 0, None, 99, Some(1)),
            (0, 2, Some(100), 200, Some(2)),
            (0, 2, Some(100), 20, Some(3)),
            // The server was the outbox's before.
            (1, 2, Some(100), 200, Some(2)),
            (2, 1, Some(100), 20, Some(2)),
            (0, MAX_EPOCH, Some(100), 100, Some(MAX_EPOCH)),
            (0, MAX_EPOCH, Some(100), 99, None),
        ] {
            let found = next(own, former, barrier, position);
            assert_eq!(found, expected, "{own} {former} {barrier:?} {position}");
        }
    }

    #[test]
    fn every_event_after_a_switch_is_published_above_every_one_before() {
        let mut rng = fastrand::Rng::with_seed(7);
        for _ in 0..1_000 {
            // The end of each server's log, and the epoch that its database has.
            let mut servers = [(0, 0); 3].map(|(_, epoch)| (rng.u64(1..1_000), epoch));
            let mut at = 0;
            for _ in 0..20 {
                let (barrier, former) = {
                    let (end, epoch) = &mut servers[at];
                    *end += rng.u64(1..1_000);
                    (*end, *epoch)
                };
                at = (at + rng.usize(1..servers.len())) % servers.len();
                let (end, epoch) = &mut servers[at];
                *end += rng.u64(1..1_000);
                *epoch = next(*epoch, former, Some(barrier), *end).expect("few moves");
                let begins = PublishedLsn::new(*epoch, *end);
                assert!(begins >= PublishedLsn::new(former, barrier));
            }
        }
    }
}
