//! The scenarios.

use crate::context::Context;
use crate::outcome::Outcome;
use crate::process;

/// One fault, or several of a kind.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// The line of the catalogue, in the words of the report.
    pub(crate) covers: &'static str,
    /// Whether `make test` runs it too.
    pub(crate) subset: bool,
    /// The versions of Postgres it concerns.
    pub(crate) versions: &'static [u32],
    pub(crate) run: fn(&mut Context) -> Outcome,
}

/// Every version that is supported.
pub(crate) const ALL: &[u32] = &[14, 15, 16, 17, 18];

const fn in_all(
    name: &'static str,
    covers: &'static str,
    run: fn(&mut Context) -> Outcome,
) -> Scenario {
    Scenario {
        name,
        covers,
        subset: false,
        versions: ALL,
        run,
    }
}

const fn in_subset(
    name: &'static str,
    covers: &'static str,
    run: fn(&mut Context) -> Outcome,
) -> Scenario {
    Scenario {
        subset: true,
        ..in_all(name, covers, run)
    }
}

/// In the order of the report. Names are lower case with hyphens.
pub(crate) const SCENARIOS: &[Scenario] = &[
    in_subset(
        "sigkill-few",
        "SIGKILL of the relay at random moments, 8 times",
        |ctx| process::sigkill(ctx, 8),
    ),
    in_all(
        "sigkill",
        "SIGKILL of the relay at random moments, 100 times in one history",
        |ctx| process::sigkill(ctx, 100),
    ),
    in_subset("sigterm", "SIGTERM under load, 6 times", process::sigterm),
];
