//! A relay reports its state to systemd, by the protocol of sd_notify(3): a socket of the test takes the place of
//! systemd.

use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;

use walrelay_testkit::{eventually_some, servers};
use walrelay_throwaway::Signal;

use crate::rig::{NOWHERE, PATIENCE, Relay, Rig, ends, insert, run_command, unique};

/// The watchdog of the test's service: the relay answers twice as often.
const WATCHDOG: Duration = Duration::from_secs(4);

/// The socket that a relay reports to, and its messages so far.
struct Manager {
    socket: UnixDatagram,
    path: PathBuf,
    messages: Vec<String>,
}

impl Manager {
    fn new(rig: &Rig) -> Self {
        let path = rig.path(&format!("notify-{}", unique()));
        let socket = UnixDatagram::bind(&path).expect("a socket");
        socket.set_nonblocking(true).expect("non-blocking");
        Self {
            socket,
            path,
            messages: Vec::new(),
        }
    }

    /// Starts `walrelay run` as a service with a watchdog.
    fn start(&self, rig: &Rig, config: &Path) -> Relay {
        let mut command = run_command(config);
        command
            .env("NOTIFY_SOCKET", &self.path)
            .env("WATCHDOG_USEC", WATCHDOG.as_micros().to_string());
        Relay::spawn(
            &mut command,
            &rig.path(&format!("service-{}.log", unique())),
        )
    }

    /// Reads what has come.
    fn read(&mut self) {
        let mut message = [0; 4096];
        while let Ok(length) = self.socket.recv(&mut message) {
            let text = String::from_utf8_lossy(&message[..length]);
            self.messages.extend(text.lines().map(str::to_owned));
        }
    }

    /// Waits for a line that begins so, after this many lines. Returns the place after it.
    #[track_caller]
    fn wait(&mut self, from: usize, beginning: &str) -> usize {
        eventually_some(PATIENCE, || {
            self.read();
            let lines = self.messages.iter().skip(from);
            let at = lines
                .map(|line| line.starts_with(beginning))
                .position(|found| found);
            at.map(|at| from + at + 1)
        })
    }

    fn has(&self, beginning: &str) -> bool {
        self.messages.iter().any(|line| line.starts_with(beginning))
    }
}

#[test]
fn a_service_is_ready_when_it_streams_and_says_when_it_stops() {
    let rig = Rig::with_outbox(17);
    let mut manager = Manager::new(&rig);
    let relay = manager.start(&rig, &rig.config());
    let ready = manager.wait(0, "READY=1");
    assert_eq!(relay.streams(), 1, "{}", relay.log());
    let streaming = manager.wait(0, "STATUS=streaming");
    assert!(streaming <= ready + 2, "{:?}", manager.messages);
    // The watchdog is answered while the relay has nothing to do, and while it relays.
    let first = manager.wait(0, "WATCHDOG=1");
    let second = manager.wait(first, "WATCHDOG=1");
    insert(&rig.db(), 1);
    rig.caught_up();
    manager.wait(second, "WATCHDOG=1");
    assert!(!manager.has("STOPPING=1"), "{:?}", manager.messages);
    relay.ends_well();
    manager.read();
    assert!(manager.has("STOPPING=1"), "{:?}", manager.messages);
    let ready = manager.messages.iter().filter(|line| *line == "READY=1");
    assert_eq!(ready.count(), 1, "{:?}", manager.messages);
}

#[test]
fn a_service_says_what_it_waits_for_before_it_is_ready() {
    let rig = Rig::with_outbox(17);
    let (proxy, url) = rig.proxy();
    proxy.refuse(true);
    let mut manager = Manager::new(&rig);
    let relay = manager.start(&rig, &rig.config_with(&url, ""));
    manager.wait(0, "STATUS=waiting to retry: ");
    // A relay that waits works.
    let first = manager.wait(0, "WATCHDOG=1");
    manager.wait(first, "WATCHDOG=1");
    assert!(!manager.has("READY=1"), "{:?}", manager.messages);
    proxy.refuse(false);
    manager.wait(0, "READY=1");
    manager.wait(0, "STATUS=streaming");
    relay.ends_well();
}

#[test]
fn a_service_that_stands_by_is_ready() {
    let rig = Rig::with_outbox(17);
    let config = rig.config();
    let first = rig.streaming(&config);
    let mut manager = Manager::new(&rig);
    let second = manager.start(&rig, &config);
    manager.wait(0, "STATUS=standing by: ");
    manager.wait(0, "READY=1");
    let standing_by = manager.messages.len();
    first.ends_well();
    manager.wait(standing_by, "STATUS=streaming");
    second.ends_well();
}

#[test]
fn a_service_that_ends_by_an_error_leaves_its_reason() {
    let rig = Rig::with_outbox(17);
    let db = rig.db();
    db.batch("ALTER TABLE outbox ALTER aggregatetype DROP NOT NULL");
    let mut manager = Manager::new(&rig);
    let mut relay = manager.start(&rig, &rig.config());
    manager.wait(0, "READY=1");
    db.batch(
        "INSERT INTO outbox VALUES ('018f5a3e-7c1d-7b1a-9c55-0123456789ab', NULL, 'key', 'T', \
         '\"secret-value\"')",
    );
    ends(&mut relay, 65, "unroutable");
    manager.read();
    assert!(manager.has("STOPPING=1"), "{:?}", manager.messages);
    assert!(manager.has("STATUS=halted: "), "{:?}", manager.messages);
    let all = manager.messages.join("\n");
    assert!(!all.contains("secret-value"), "{all}");
}

/// A relay is not killed because its sink is away; a process that no longer runs sends nothing, and systemd
/// kills it.
#[test]
fn the_watchdog_is_answered_as_long_as_the_process_runs() {
    let rig = Rig::with(servers::postgres(17), NOWHERE).outbox();
    let config = rig.config();
    let mut manager = Manager::new(&rig);
    let relay = manager.start(&rig, &config);
    manager.wait(0, "READY=1");
    insert(&rig.db(), 1);
    let blocked = manager.wait(0, "STATUS=blocked by the sink: ");
    let answered = manager.wait(blocked, "WATCHDOG=1");
    manager.wait(answered, "WATCHDOG=1");

    relay.signal(Signal::Stop);
    manager.read();
    let stopped = manager.messages.len();
    // The control is a relay that stands by.
    let mut control = Manager::new(&rig);
    let other = control.start(&rig, &config);
    let mut at = 0;
    for _ in 0..3 {
        at = control.wait(at, "WATCHDOG=1");
    }
    manager.read();
    assert_eq!(manager.messages.len(), stopped, "{:?}", manager.messages);
    relay.kill();
    other.kill();
}
