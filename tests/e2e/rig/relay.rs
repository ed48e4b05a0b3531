//! `walrelay run` as a process.

use std::path::Path;
use std::process::Command;

pub(crate) use walrelay_testkit::Program as Relay;
use walrelay_throwaway::end_with_owner;

use super::output::with_failures;

/// The binary with arguments. It is killed when this process ends, also by SIGKILL.
pub(crate) fn walrelay(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_walrelay"));
    command
        .args(args)
        .env_remove("WALRELAY_CONFIG")
        // A line of the output is one line, however long it is.
        .env("COLUMNS", "10000")
        .env("NO_COLOR", "1");
    end_with_owner(&mut command).expect("a shell");
    command
}

/// `walrelay run` with this configuration.
pub(crate) fn run_command(config: &Path) -> Command {
    let mut command = walrelay(&["run", "--config"]);
    command.arg(config);
    command
}

/// Waits until the relay ends with this exit code and this error; returns the log.
#[track_caller]
pub(crate) fn ends(relay: &mut Relay, code: i32, id: &str) -> String {
    let status = relay.ended();
    let log = with_failures(relay.log());
    assert_eq!(status.code(), Some(code), "{log}");
    assert!(log.contains(&format!("[{id}]")), "not {id}: {log}");
    log
}
