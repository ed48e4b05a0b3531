//! One module per command, in groups: the `use` lines below list which command is in which. Each has
//! a function that runs the command and returns its failures.
//!
//! The commands use `invocation`, which reads the configuration, `assembly`, which makes the parts of a relay,
//! `terminal`, which talks to the operator, and `topics`, which reads the sink's topics.

mod assembly;
mod database;
mod dead_letters;
mod delivery;
mod inspect;
mod invocation;
mod measure;
mod moves;
mod onboard;
mod terminal;
mod topics;

pub(crate) use database::{bookmark::bookmark, init::init, prune::prune, slots::slots};
pub(crate) use dead_letters::dlq;
pub(crate) use delivery::{replay::replay, resend::resend, run::run};
pub(crate) use inspect::{
    alerts::alerts, check::check, route::route, status::status, stuck::stuck, tail::tail,
    verify_topic::verify_topic, whereabouts::whereabouts,
};
pub(crate) use measure::{bench::bench, demo::demo};
pub(crate) use moves::move_outbox;
pub(crate) use onboard::{
    cutover::cutover, import_debezium::import_debezium, new::new, schema::schema,
};
pub(crate) use terminal::output::print_bytes;

#[cfg(test)]
use invocation::test_config;
pub(crate) use invocation::{CommandResult, EnvVars};
use invocation::{load, log_warnings};
use terminal::output::{print_as, print_line, print_notice, print_part, print_text, write_failed};
