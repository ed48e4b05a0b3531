//! The right command for names that other programs use.

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// The advice for names that other programs use.
const HINTS: [(&str, &[&str]); 17] = [
    (
        "walrelay check",
        &["doctor", "test", "diagnose", "preflight", "ping"],
    ),
    ("walrelay check --offline", &["validate", "lint"]),
    (
        "walrelay run",
        &[
            "start", "serve", "relay", "stream", "up", "daemon", "restart",
        ],
    ),
    (
        "walrelay new",
        &["configure", "config", "setup", "generate", "wizard"],
    ),
    (
        "walrelay init",
        &[
            "init-db",
            "initdb",
            "migrate",
            "prepare",
            "install",
            "create",
            "bootstrap",
        ],
    ),
    (
        "walrelay status",
        &[
            "health", "info", "lag", "top", "state", "stats", "metrics", "ps",
        ],
    ),
    ("walrelay slots list", &["slot", "list-slots"]),
    ("walrelay slots drop", &["drop-slot", "uninstall"]),
    (
        "walrelay dlq",
        &["dead-letter", "dead-letters", "deadletters", "dlt"],
    ),
    ("walrelay dlq redrive", &["retry", "redrive"]),
    (
        "walrelay tail",
        &["consume", "cat", "watch", "read", "logs"],
    ),
    ("walrelay verify-topic", &["verify", "audit"]),
    ("walrelay where", &["find", "locate", "trace", "search"]),
    ("walrelay prune", &["clean", "cleanup", "purge", "delete"]),
    (
        "walrelay import-debezium",
        &["import", "convert", "debezium"],
    ),
    ("walrelay --version", &["version"]),
    (
        "SIGTERM or Ctrl-C: the relay drains and ends",
        &["stop", "shutdown", "down"],
    ),
];

/// Adds the right command to the error of a name that is another program's. `first`: the first argument.
pub(super) fn add(error: &mut clap::Error, first: Option<&str>) {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return;
    }
    // A command of `slots` or `dlq` is not the first argument.
    let unknown = match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(name)) if first == Some(name) => name.as_str(),
        _ => return,
    };
    let Some(command) = command_of(unknown) else {
        return;
    };
    let tip = StyledStr::from(format!("use {command}"));
    error.remove(ContextKind::SuggestedSubcommand);
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
}

fn command_of(name: &str) -> Option<&'static str> {
    let name = name.replace('_', "-").to_lowercase();
    let hint = HINTS
        .iter()
        .find(|(_, names)| names.contains(&name.as_str()));
    hint.map(|(command, _)| *command)
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser as _};

    use super::*;
    use crate::cli::Cli;

    fn message(words: &[&str]) -> String {
        let line = std::iter::once(&"walrelay").chain(words);
        let mut error = Cli::try_parse_from(line).expect_err("no command");
        add(&mut error, words.first().copied());
        error.to_string()
    }

    #[test]
    fn a_name_of_another_program_leads_to_the_command() {
        for (name, tip) in [
            ("doctor", "tip: use walrelay check\n"),
            ("validate", "tip: use walrelay check --offline\n"),
            ("Init_DB", "tip: use walrelay init\n"),
            ("start", "tip: use walrelay run\n"),
        ] {
            let message = message(&[name]);
            assert!(message.contains(tip), "{message}");
            assert_eq!(message.matches("tip:").count(), 1, "{message}");
        }
        assert!(message(&["chekc"]).contains("'check'"));
        assert!(!message(&["slots", "start"]).contains("walrelay run"));
        assert!(!message(&["nothing-like-it"]).contains("tip:"));
    }

    #[test]
    fn hints_are_for_unknown_names_and_lead_to_known_ones() {
        let names: Vec<&str> = HINTS
            .iter()
            .flat_map(|(_, names)| *names)
            .copied()
            .collect();
        for (at, name) in names.iter().enumerate() {
            assert!(Cli::command().find_subcommand(name).is_none(), "{name}");
            assert!(!names[..at].contains(name), "{name} is there twice");
        }
        for (command, _) in HINTS {
            let mut words = command
                .strip_prefix("walrelay ")
                .into_iter()
                .flat_map(str::split_whitespace);
            let mut known = Cli::command();
            for word in words.by_ref().take_while(|word| !word.starts_with('-')) {
                let next = known.find_subcommand(word).cloned();
                known = next.unwrap_or_else(|| panic!("{command}"));
            }
        }
    }
}
