//! Programs that a test starts end with the test: when it panics, and when the test process is
//! killed.

use std::env;
use std::fs;
use std::io::{ErrorKind, Read as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};

use walrelay_throwaway::ChildGuard;

use crate::rig::{PATIENCE, Relay, output, run_command};

/// Variable with the directory of [`owner_of_a_relay`].
const DIRECTORY: &str = "WALRELAY_E2E_OWNER";
/// Variable that says how the owner ends, and how it starts its relay.
const MANNER: &str = "WALRELAY_E2E_OWNER_MANNER";

/// The owner process of the tests below: starts a relay, and panics or waits to be killed.
#[test]
fn owner_of_a_relay() {
    let Some(directory) = env::var_os(DIRECTORY) else {
        return; // runs only as a child of the tests below
    };
    let directory = std::path::Path::new(&directory);
    let config = directory.join("walrelay.toml");
    let manner = env::var(MANNER).expect("a manner");
    if manner == "runs to its end" {
        output(&["run", "--config", config.to_str().expect("text")]);
    }
    let mut command = run_command(&config);
    let _relay = Relay::spawn(&mut command, &directory.join("log"));
    let connected = directory.join("connected");
    walrelay_testkit::eventually(PATIENCE, || connected.exists());
    assert_ne!(manner, "panics", "as it must");
    // Ends by SIGKILL from the test; the limit ends it if the test fails.
    std::thread::sleep(PATIENCE);
}

/// Starts the owner process; returns it with the connection of its relay.
fn owner(directory: &std::path::Path, manner: &str) -> (ChildGuard, TcpStream) {
    // A server that accepts and never answers.
    let server = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = server.local_addr().expect("an address").port();
    let config = format!(
        "[source]\nurl = \"postgres://relay@127.0.0.1:{port}/app?sslmode=disable&connect_timeout=3600\"\n\
         tables = [\"public.outbox\"]\n[sink]\nkind = \"stdout\"\n"
    );
    fs::write(directory.join("walrelay.toml"), config).expect("written");
    let mut command = Command::new(env::current_exe().expect("this program"));
    command
        .args(["--exact", "children::owner_of_a_relay"])
        .env(DIRECTORY, directory)
        .env(MANNER, manner)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let owner = ChildGuard::spawn(&mut command).expect("this program runs");
    let (connection, _) = server.accept().expect("the relay connects");
    fs::write(directory.join("connected"), "").expect("written");
    (owner, connection)
}

/// Waits until the relay's connection is closed. The relay itself would close it after an hour.
#[track_caller]
fn closed(mut connection: TcpStream) {
    connection
        .set_read_timeout(Some(PATIENCE))
        .expect("a limit");
    let mut sent = Vec::new();
    if let Err(error) = connection.read_to_end(&mut sent) {
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    }
}

#[test]
fn children_of_a_killed_test_process_end() {
    for manner in ["is killed", "runs to its end"] {
        let directory = tempfile::tempdir().expect("a directory");
        let (mut owner, connection) = owner(directory.path(), manner);
        owner.kill().expect("it is killed");
        closed(connection);
    }
}

#[test]
fn children_of_a_test_that_panics_end() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut owner, connection) = owner(directory.path(), "panics");
    closed(connection);
    let status = owner.wait().expect("it ends");
    assert_eq!(status.code(), Some(101));
}
