//! [`LogicalDecoding`]: when a slot can decode the server's log.

use super::ServerFacts;

/// Condition under which a slot can decode the server's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogicalDecoding {
    /// At any time: `wal_level = logical`.
    Always,
    /// While a valid logical slot exists: Postgres 19 and newer, with `wal_level = replica`. The first such
    /// slot switches decoding on without a restart, and dropping the last one switches it off. On a standby
    /// the slots of the primary count.
    WhileASlotExists {
        /// Such a slot exists.
        is_on: bool,
    },
}

impl ServerFacts {
    /// Returns the condition under which a slot can decode the log of this server; `None` if the server must
    /// be restarted with another `wal_level` before.
    ///
    /// Source: the documentation of `effective_wal_level` ("Preset Options"), which Postgres 19 introduced.
    pub fn logical_decoding(&self) -> Option<LogicalDecoding> {
        let is_logical = self.wal_level == "logical";
        match self.effective_wal_level.as_deref() {
            None | Some("logical") if is_logical => Some(LogicalDecoding::Always),
            Some("logical") => Some(LogicalDecoding::WhileASlotExists { is_on: true }),
            // On a standby also with `wal_level = logical`, because the log is that of the primary.
            Some("replica") => Some(LogicalDecoding::WhileASlotExists { is_on: false }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pairs of 19 are those that 19rc1 reports: a primary with and without a logical slot, and its
    /// standby.
    #[test]
    fn each_pair_of_settings_has_its_decision() {
        let always = Some(LogicalDecoding::Always);
        let [on, off] =
            [true, false].map(|is_on| Some(LogicalDecoding::WhileASlotExists { is_on }));
        for (wal_level, effective, in_recovery, expected) in [
            ("minimal", None, false, None),
            ("replica", None, false, None),
            ("logical", None, false, always),
            ("replica", None, true, None),
            ("logical", None, true, always),
            ("minimal", Some("minimal"), false, None),
            ("replica", Some("replica"), false, off),
            ("replica", Some("logical"), false, on),
            ("logical", Some("logical"), false, always),
            ("replica", Some("replica"), true, off),
            ("logical", Some("replica"), true, off),
            ("replica", Some("logical"), true, on),
            ("logical", Some("logical"), true, always),
        ] {
            let server = ServerFacts {
                wal_level: wal_level.to_owned(),
                effective_wal_level: effective.map(str::to_owned),
                in_recovery,
                ..ServerFacts::default()
            };
            let decision = server.logical_decoding();
            assert_eq!(decision, expected, "{wal_level}, effective {effective:?}");
        }
    }
}
