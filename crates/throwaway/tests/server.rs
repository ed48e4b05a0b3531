//! Tests with a real server: the one that `PostgresBinaries::find` finds.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test's helpers may panic as the test itself may"
)]

use std::{
    env, fs,
    io::{self, BufRead as _, BufReader},
    net::TcpStream,
    os::unix::{fs::MetadataExt as _, net::UnixStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
};

use walrelay_measure::proc;
use walrelay_testkit::{PATIENCE, eventually};
use walrelay_throwaway::{ChildGuard, Postgres, PostgresBinaries, Shutdown, ThrowawayError};

/// Asserts that the server's log ends with these words.
#[track_caller]
fn logged(server: &Postgres, words: &str) {
    let log = server.log_tail();
    assert!(log.contains(words), "{log}");
}

/// Waits until the output of an owner process has a line that begins with `mark`; returns the words
/// that follow.
fn words_of(owner: &mut Child, mark: &str) -> Vec<String> {
    let lines = BufReader::new(owner.stdout.take().unwrap()).lines();
    let line = lines
        .map(Result::unwrap)
        .find(|line| line.starts_with(mark))
        .expect("the owner says what it started");
    line.split(' ').skip(1).map(str::to_owned).collect()
}

/// Waits as long as the process lives that holds the other end of standard input.
fn wait_for_the_end_of_input() {
    io::copy(&mut io::stdin(), &mut io::sink()).unwrap();
}

/// Whether the process exists and is no zombie.
fn runs(pid: u32) -> bool {
    if Path::new("/proc/self/stat").exists() {
        return !proc::has_ended(pid);
    }
    // Without `/proc`: the system reaps orphans, so there are no zombies.
    let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
    rustix::process::test_kill_process(pid).is_ok()
}

fn dir_of(server: &Postgres) -> PathBuf {
    server.data_dir().parent().unwrap().to_owned()
}

#[test]
fn a_server_starts_stops_and_starts_again_where_it_was() {
    let server = Postgres::builder().start().unwrap();
    let socket = server
        .socket_dir()
        .join(format!(".s.PGSQL.{}", server.port()));
    UnixStream::connect(&socket).unwrap();
    TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    assert!(matches!(server.start_again(), Err(ThrowawayError::Running)));
    let unnameable = server.standby("no slot's name", 1, &[]);
    assert!(matches!(unnameable, Err(ThrowawayError::Invalid { .. })));
    let first = server.pid().unwrap();

    server.stop(Shutdown::Fast).unwrap();
    assert_eq!(server.pid(), None);
    assert!(!runs(first));
    logged(&server, "database system is shut down");
    server.stop(Shutdown::Fast).unwrap(); // nothing to do
    let reloaded = server.reload_settings();
    assert!(matches!(reloaded, Err(ThrowawayError::Stopped)));

    server.start_again().unwrap();
    assert_ne!(server.pid(), Some(first));
    TcpStream::connect(("127.0.0.1", server.port())).unwrap();

    server.kill().unwrap();
    server.start_again().unwrap();
    logged(&server, "automatic recovery");
    UnixStream::connect(&socket).unwrap();

    server.change_setting("log_min_messages", "debug1").unwrap();
    server.reload_settings().unwrap();
    let changed = "parameter \"log_min_messages\" changed";
    eventually(PATIENCE, || server.log_tail().contains(changed));

    let (dir, pid) = (dir_of(&server), server.pid().unwrap());
    drop(server);
    assert!(!runs(pid));
    assert!(!dir.exists());
}

#[test]
fn two_at_once_do_not_meet() {
    let servers: Vec<Postgres> = thread::scope(|scope| {
        let starts: Vec<_> = (0..2)
            .map(|_| scope.spawn(|| Postgres::builder().fast().start().unwrap()))
            .collect();
        starts
            .into_iter()
            .map(|start| start.join().unwrap())
            .collect()
    });
    assert_ne!(servers[0].port(), servers[1].port());
    assert_ne!(servers[0].data_dir(), servers[1].data_dir());
}

#[test]
fn a_server_that_cannot_start_says_why_and_leaves_nothing() {
    let error = Postgres::builder()
        .setting("wal_level", "enormous")
        .start()
        .unwrap_err();
    let ThrowawayError::Ended { log_tail, .. } = &error else {
        panic!("{error}")
    };
    assert!(
        log_tail.contains("invalid value for parameter \"wal_level\""),
        "{log_tail}"
    );
}

#[test]
fn files_belong_to_the_server_and_settings_reach_it() {
    let server = Postgres::builder()
        .file("server.key", "not a key")
        .hba("host all nobody all reject")
        .start()
        .unwrap();
    let key = fs::metadata(server.data_dir().join("server.key")).unwrap();
    assert_eq!(key.mode() & 0o777, 0o600);
    assert_eq!(key.uid(), fs::metadata(server.data_dir()).unwrap().uid());
    let password = server.superuser_password();
    assert!(server.url().contains(&format!(":{password}@")));
    assert!(!format!("{server:?}").contains(password));
    let socket = server.socket_dir();
    assert!(socket.as_os_str().len() < 90, "{}", socket.display());
}

#[test]
fn a_panic_stops_the_server() {
    let dir = thread::spawn(|| {
        let server = Postgres::builder().start().unwrap();
        let path = dir_of(&server);
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
            let _server = server;
            panic!("on purpose");
        }));
        assert!(caught.is_err());
        path
    })
    .join()
    .unwrap();
    assert!(!dir.exists());
}

/// The owner process of the next test: starts a server, prints where it is, and waits to be killed.
#[test]
fn owner_to_be_killed() {
    if env::var_os("WALRELAY_THROWAWAY_OWNER").is_none() {
        return; // runs only as a child of the next test
    }
    let server = Postgres::builder().start().unwrap();
    println!(
        "\nserver {} {}",
        server.pid().unwrap(),
        dir_of(&server).display()
    );
    // Ends by SIGKILL from the next test, or when that test fails.
    wait_for_the_end_of_input();
}

#[test]
fn nothing_outlives_a_killed_owner() {
    let mut owner = Command::new(env::current_exe().unwrap())
        .args(["--exact", "owner_to_be_killed", "--nocapture"])
        .env("WALRELAY_THROWAWAY_OWNER", "1")
        // The janitor adds the usual directories to PATH, so it finds its programs.
        .env("PATH", "/nonexistent")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let words = words_of(&mut owner, "server ");
    let (pid, dir) = (words[0].parse().unwrap(), Path::new(&words[1]));
    assert!(runs(pid) && dir.exists());

    owner.kill().unwrap();
    owner.wait().unwrap();
    eventually(PATIENCE, || !runs(pid));
    eventually(PATIENCE, || !dir.exists());
}

/// The owner process of the next test: starts a program that starts another, prints both pids, and
/// panics or waits.
#[test]
fn owner_of_children() {
    let Some(end) = env::var_os("WALRELAY_THROWAWAY_CHILDREN") else {
        return; // runs only as a child of the next test
    };
    let mut shell = Command::new("/bin/sh");
    shell
        .args(["-c", "sleep 3600 & echo $!; wait"])
        .stdout(Stdio::piped());
    let mut child = ChildGuard::spawn(&mut shell).unwrap();
    let mut line = String::new();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    println!("\nchildren {} {}", child.id(), line.trim());
    assert_ne!(end, "panic", "as it must");
    // Ends by SIGKILL from the next test, or when that test fails.
    wait_for_the_end_of_input();
}

#[test]
fn no_child_outlives_an_owner_that_is_killed_or_panics() {
    for end in ["kill", "panic"] {
        let mut owner = ChildGuard::spawn(
            Command::new(env::current_exe().unwrap())
                .args(["--exact", "owner_of_children", "--nocapture"])
                .env("WALRELAY_THROWAWAY_CHILDREN", end)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::null()),
        )
        .unwrap();
        let words = words_of(&mut owner, "children ");
        let pids = words.iter().map(|word| word.parse().unwrap());
        let pids: Vec<u32> = pids.collect();
        assert_eq!(pids.len(), 2, "{words:?}");
        if end == "kill" {
            assert!(pids.iter().all(|pid| runs(*pid)), "{words:?}");
            owner.kill().unwrap();
        }
        owner.wait().unwrap();
        eventually(PATIENCE, || !pids.iter().any(|pid| runs(*pid)));
    }
}

#[test]
fn binaries_are_found_by_version() {
    let any = PostgresBinaries::find(None).unwrap();
    let same = PostgresBinaries::find(Some(any.version().major)).unwrap();
    assert_eq!(same.version().major, any.version().major);
    assert_eq!(PostgresBinaries::at(any.dir()).unwrap(), any);
}
