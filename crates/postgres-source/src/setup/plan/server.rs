//! The server's part of a plan: its settings, its version, and the data of a newer walrelay.

use crate::catalog::{Facts, LogicalDecoding, Wanted};
use crate::error::{ServerSetupError, SetupError};
use crate::state_version::VERSION;

/// Checks that the server writes what logical decoding needs, or will as soon as a slot exists, and returns
/// which of these.
///
/// On a standby it may be the primary that lacks a slot. The checks of the slot name that more precisely: the
/// server is a standby, or its slot is lost.
pub fn wal_level(facts: &Facts) -> Result<LogicalDecoding, SetupError> {
    let server = &facts.server;
    server.logical_decoding().ok_or_else(|| {
        SetupError::Server(ServerSetupError::WalLevel {
            level: server.wal_level.clone(),
            replica_suffices: server.effective_wal_level.is_some(),
        })
    })
}

/// Checks that no newer walrelay has written data that this one cannot read.
pub fn state_version(facts: &Facts) -> Result<(), SetupError> {
    let found = facts.server.state_version;
    if found > VERSION {
        return Err(SetupError::Server(ServerSetupError::StateVersion(found)));
    }
    Ok(())
}

/// Checks that the server supports failover slots, if one is wanted.
pub fn failover_known(wanted: &Wanted, facts: &Facts) -> Result<(), SetupError> {
    if wanted.failover && facts.server.major < 17 {
        return Err(SetupError::Server(ServerSetupError::FailoverTooOld(
            facts.server.major,
        )));
    }
    Ok(())
}
