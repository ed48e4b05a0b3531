//! Against a real server: whatever `PostgresBinaries::find` finds.

#![allow(
    clippy::unwrap_used,
    reason = "a test's helpers may panic as the test itself may"
)]

use std::{
    env, fs,
    io::{BufRead as _, BufReader},
    net::TcpStream,
    os::unix::{fs::MetadataExt as _, net::UnixStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use walrelay_lab::servers::{
    Auth, ChildGuard, Postgres, PostgresBinaries, Shutdown, ThrowawayError,
};

fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(15);
    while !condition() {
        assert!(Instant::now() < deadline, "not within 15 s: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Whether the kernel still knows this pid as anything but a corpse.
fn runs(pid: u32) -> bool {
    if Path::new("/proc/self/stat").exists() {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        return stat
            .rsplit_once(") ")
            .is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']));
    }
    // Elsewhere the system reaps orphans.
    let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
    rustix::process::test_kill_process(pid).is_ok()
}

fn dir_of(server: &Postgres) -> PathBuf {
    server.data_dir().parent().unwrap().to_owned()
}

#[test]
fn starts_stops_and_starts_again_where_it_was() {
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
    assert!(
        server.log_tail().contains("database system is shut down"),
        "{}",
        server.log_tail()
    );
    server.stop(Shutdown::Fast).unwrap(); // nothing to do
    assert!(matches!(
        server.reload_settings(),
        Err(ThrowawayError::Stopped)
    ));

    server.start_again().unwrap();
    assert_ne!(server.pid(), Some(first));
    TcpStream::connect(("127.0.0.1", server.port())).unwrap();

    server.kill().unwrap();
    server.start_again().unwrap();
    assert!(
        server.log_tail().contains("automatic recovery"),
        "{}",
        server.log_tail()
    );
    UnixStream::connect(&socket).unwrap();

    server.change_setting("log_min_messages", "debug1").unwrap();
    server.reload_settings().unwrap();
    eventually("the new setting is seen", || {
        server
            .log_tail()
            .contains("parameter \"log_min_messages\" changed")
    });

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
fn without_tcp_nothing_listens_and_there_is_no_url() {
    let server = Postgres::builder().tcp(false).start().unwrap();
    assert_eq!(server.url_tcp(), None);
    let pid_file = fs::read_to_string(server.data_dir().join("postmaster.pid")).unwrap();
    assert_eq!(
        pid_file.lines().nth(5).unwrap(),
        "",
        "a TCP address is listened at"
    );
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
        .auth(Auth::ScramSha256, Auth::Md5)
        .superuser_password("p@ss'word/")
        .hba("host all nobody all reject")
        .start()
        .unwrap();
    let key = fs::metadata(server.data_dir().join("server.key")).unwrap();
    assert_eq!(key.mode() & 0o777, 0o600);
    assert_eq!(key.uid(), fs::metadata(server.data_dir()).unwrap().uid());
    assert!(
        server.url().contains(":p%40ss%27word%2F@"),
        "{}",
        server.url()
    );
    assert!(!format!("{server:?}").contains("word"));
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

/// The owner of the next test: starts a server, says where it is, and waits to be killed.
#[test]
fn owner_to_be_killed() {
    if env::var_os("WALRELAY_THROWAWAY_OWNER").is_none() {
        return; // not a test by itself; see below
    }
    let server = Postgres::builder().start().unwrap();
    println!(
        "\nserver {} {}",
        server.pid().unwrap(),
        dir_of(&server).display()
    );
    thread::sleep(Duration::from_secs(60));
}

#[test]
fn nothing_outlives_a_killed_owner() {
    let mut owner = Command::new(env::current_exe().unwrap())
        .args(["--exact", "owner_to_be_killed", "--nocapture"])
        .env("WALRELAY_THROWAWAY_OWNER", "1")
        // Where no program is in PATH, the janitor finds those it needs all the same.
        .env("PATH", "/nonexistent")
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let line = BufReader::new(owner.stdout.take().unwrap())
        .lines()
        .map(Result::unwrap)
        .find(|line| line.starts_with("server "))
        .expect("the owner names its server");
    let mut words = line.split(' ').skip(1);
    let pid: u32 = words.next().unwrap().parse().unwrap();
    let dir = Path::new(words.next().unwrap());
    assert!(runs(pid) && dir.exists());

    owner.kill().unwrap();
    owner.wait().unwrap();
    eventually("the server ends", || !runs(pid));
    eventually("its directory is removed", || !dir.exists());
}

/// The owner of the next test: starts a program that starts another, names both and panics or waits.
#[test]
fn owner_of_children() {
    let Some(end) = env::var_os("WALRELAY_THROWAWAY_CHILDREN") else {
        return; // not a test by itself; see below
    };
    let mut shell = Command::new("/bin/sh");
    shell
        .args(["-c", "sleep 600 & echo $!; wait"])
        .stdout(Stdio::piped());
    let mut child = ChildGuard::spawn(&mut shell).unwrap();
    let mut line = String::new();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    println!("\nchildren {} {}", child.id(), line.trim());
    assert_ne!(end, "panic", "as it must");
    thread::sleep(Duration::from_secs(60));
}

#[test]
fn no_child_outlives_an_owner_that_is_killed_or_panics() {
    for end in ["kill", "panic"] {
        let mut owner = ChildGuard::spawn(
            Command::new(env::current_exe().unwrap())
                .args(["--exact", "owner_of_children", "--nocapture"])
                .env("WALRELAY_THROWAWAY_CHILDREN", end)
                .stdout(Stdio::piped())
                .stderr(Stdio::null()),
        )
        .unwrap();
        let line = BufReader::new(owner.stdout.take().unwrap())
            .lines()
            .map(Result::unwrap)
            .find(|line| line.starts_with("children "))
            .expect("the owner names its children");
        let pids: Vec<u32> = line
            .split(' ')
            .skip(1)
            .map(|word| word.parse().unwrap())
            .collect();
        assert_eq!(pids.len(), 2, "{line}");
        if end == "kill" {
            assert!(pids.iter().all(|pid| runs(*pid)), "{line}");
            owner.kill().unwrap();
        }
        owner.wait().unwrap();
        eventually("both end", || !pids.iter().any(|pid| runs(*pid)));
    }
}

#[test]
fn binaries_are_found_by_version() {
    let any = PostgresBinaries::find(None).unwrap();
    let same = PostgresBinaries::find(Some(any.version().major)).unwrap();
    assert_eq!(same.version().major, any.version().major);
    assert_eq!(PostgresBinaries::at(any.dir()).unwrap(), any);
}
