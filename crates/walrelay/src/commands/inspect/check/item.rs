//! The items of the doctor, and the results of its checks.

use serde::Serialize;
use walrelay_failure::Exit;
pub(super) use walrelay_sink_kind::check::{Check, Verdict};

/// The system that a check concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Group {
    Configuration,
    Postgres,
    /// The servers of the sink.
    Sink,
    Registry,
    /// A relay that runs.
    Relay,
}

impl Group {
    pub(super) const ALL: [Self; 5] = [
        Self::Configuration,
        Self::Postgres,
        Self::Sink,
        Self::Registry,
        Self::Relay,
    ];
}

macro_rules! items {
    ($($item:ident = $group:ident, $name:literal;)*) => {
        /// The subject of a check. `docs/operate/check.md` lists all items.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum Item {
            $($item,)*
            /// The settings of the sink, by a name that its kind gives.
            SinkSettings(&'static str),
            /// The servers of a sink.
            SinkServers {
                /// The kind of the sink.
                kind: &'static str,
                /// The name that the kind gives.
                name: &'static str,
            },
        }

        impl Item {
            #[cfg(test)]
            pub(super) const ALL: &'static [Self] = &[$(Self::$item,)*];

            pub(super) const fn group(self) -> Group {
                match self {
                    $(Self::$item => Group::$group,)*
                    Self::SinkSettings(_) => Group::Configuration,
                    Self::SinkServers { .. } => Group::Sink,
                }
            }

            /// Returns the name of the group: of a sink's servers, its kind.
            pub(super) const fn group_name(self) -> &'static str {
                match (self, self.group()) {
                    (Self::SinkServers { kind, .. }, _) => kind,
                    (_, Group::Configuration) => "configuration",
                    (_, Group::Postgres) => "postgres",
                    (_, Group::Sink) => "sink",
                    (_, Group::Registry) => "registry",
                    (_, Group::Relay) => "relay",
                }
            }

            /// Returns the name: unique in its group, and stable across versions.
            pub(super) const fn name(self) -> &'static str {
                match self {
                    $(Self::$item => $name,)*
                    Self::SinkSettings(name) | Self::SinkServers { name, .. } => name,
                }
            }
        }
    };
}

items! {
    File = Configuration, "file";
    Url = Configuration, "database-url";
    Routes = Configuration, "routes";
    Sink = Configuration, "sink";
    RegistryAuthority = Configuration, "registry-ca";
    StateFile = Configuration, "state-file";
    DeadLetterValue = Configuration, "dead-letter-value";

    Connection = Postgres, "connection";
    Version = Postgres, "version";
    WalLevel = Postgres, "wal-level";
    StateVersion = Postgres, "state-version";
    Replication = Postgres, "replication-right";
    WalSenders = Postgres, "walsenders";
    SlotLimit = Postgres, "slot-limit";
    WalSenderTimeout = Postgres, "wal-sender-timeout";
    SynchronousStandby = Postgres, "synchronous-standby";
    Clock = Postgres, "clock";
    Table = Postgres, "table";
    TableLock = Postgres, "table-lock";
    TableRoute = Postgres, "route";
    ReplicaIdentity = Postgres, "replica-identity";
    Publication = Postgres, "publication";
    Operations = Postgres, "publication-operations";
    Partitions = Postgres, "publication-partitions";
    PublishedTables = Postgres, "publication-tables";
    PublishedColumns = Postgres, "publication-columns";
    RowFilter = Postgres, "publication-rows";
    Slot = Postgres, "slot";
    SlotPosition = Postgres, "slot-position";
    Move = Postgres, "move";
    Marks = Postgres, "marks";
    Account = Postgres, "account";
    Waiting = Postgres, "waiting-rows";
    Snapshot = Postgres, "snapshot";
    RetainedWal = Postgres, "retained-wal";
    KeepSize = Postgres, "max-slot-wal-keep-size";
    IdleTimeout = Postgres, "idle-slot-timeout";
    RollingBookmark = Postgres, "rolling-bookmark";
    OtherSlots = Postgres, "other-slots";
    Transactions = Postgres, "open-transactions";
    FailoverSlot = Postgres, "failover-slot";
    StandbySlots = Postgres, "standby-slots";
    StandbyCopy = Postgres, "standby-copy";

    RegistryServer = Registry, "server";
    Schema = Registry, "schema";

    Relay = Relay, "state";
    RelayServers = Relay, "servers";
    RelayProblems = Relay, "problems";
    RelayProcess = Relay, "process";
    LastRun = Relay, "last-run";
    Losses = Relay, "losses";
}

/// The checks in the order of the report, each with its item.
pub(super) type Checks = Vec<(Item, Check)>;

/// Returns the exit code of the first failed check.
pub(super) fn exit(checks: &[(Item, Check)]) -> Exit {
    let failed = checks.iter().find_map(|(_, check)| match check.verdict {
        Verdict::Fail { exit, .. } => Some(exit),
        _ => None,
    });
    failed.unwrap_or(Exit::Ok)
}

/// Number of checks by verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub(super) struct Summary {
    pub(super) checks: usize,
    pub(super) pass: usize,
    pub(super) warn: usize,
    pub(super) fail: usize,
}

impl Summary {
    pub(super) fn count(checks: &[(Item, Check)]) -> Self {
        let mut summary = Self::default();
        for (_, check) in checks {
            summary.checks += 1;
            *match check.verdict {
                Verdict::Pass => &mut summary.pass,
                Verdict::Warn => &mut summary.warn,
                Verdict::Fail { .. } => &mut summary.fail,
            } += 1;
        }
        summary
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::config::descriptions;

    #[test]
    fn names_differ_within_a_group() {
        let items = all();
        let names: BTreeSet<_> = items.iter().collect();
        assert_eq!(names.len(), items.len());
    }

    /// Lists group and name of each item, in the order of the page.
    fn all() -> Vec<(String, String)> {
        let mut items = Item::ALL.to_vec();
        for kind in descriptions() {
            let name = kind.name;
            items.extend(kind.settings_item.map(Item::SinkSettings));
            items.extend(kind.items.iter().map(|item| Item::SinkServers {
                kind: name,
                name: item,
            }));
        }
        let of_group = |group| items.iter().filter(move |item| item.group() == group);
        let items = Group::ALL.into_iter().flat_map(of_group);
        items
            .map(|item| (item.group_name().to_owned(), item.name().to_owned()))
            .collect()
    }

    /// The table in `docs/operate/check.md` has each item, in this order.
    #[test]
    fn the_page_lists_the_items() {
        let page = include_str!("../../../../../../docs/operate/check.md");
        let (_, table) = page.split_once("<!-- items -->\n").unwrap();
        let (table, _) = table.split_once("<!-- end -->").unwrap();
        let listed: Vec<(String, String)> = table
            .lines()
            .skip(2)
            .map(|line| {
                let mut cells = line.split('|').map(str::trim).skip(1);
                let group = cells.next().unwrap().to_owned();
                (group, cells.next().unwrap().trim_matches('`').to_owned())
            })
            .collect();
        assert_eq!(listed, all());
    }

    #[test]
    fn the_first_failure_gives_the_exit_code() {
        let fail = |exit| (Item::Slot, Check::fail(("slot-plugin", exit), "x", "y"));
        let pass = (Item::Slot, Check::pass("x"));
        let warn = (Item::Slot, Check::warn("x", "y"));
        assert_eq!(exit(&[]), Exit::Ok);
        assert_eq!(exit(&[pass.clone(), warn.clone()]), Exit::Ok);
        let checks = [pass, warn, fail(Exit::Denied), fail(Exit::Config)];
        assert_eq!(exit(&checks), Exit::Denied);
        let summary = Summary::count(&checks);
        assert_eq!((summary.pass, summary.warn, summary.fail), (1, 1, 2));
    }
}
