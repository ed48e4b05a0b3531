//! [`ServiceManager`]: reports the state of the pipelines to systemd, by the protocol of sd_notify(3).

use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::{MissedTickBehavior, interval};
use tracing::{debug, warn};

use crate::background::Background;
use crate::{Pipelines, Telemetry, printable};

/// Interval at which the state is looked at.
const INTERVAL: Duration = Duration::from_millis(500);
/// Interval at which a pipeline says that its runtime works.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// The longest status, in bytes: systemd shows it on one line.
const LONGEST_STATUS: usize = 500;

/// The service manager that started this process, as `NOTIFY_SOCKET` and `WATCHDOG_USEC` name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceManager {
    socket: PathBuf,
    /// The process is killed if it reports nothing for so long.
    watchdog: Option<Duration>,
}

impl ServiceManager {
    /// Reads the variables; `None` if no service manager waits for reports.
    pub fn from_env(env: &dyn Fn(&str) -> Option<String>) -> Option<Self> {
        let socket = env("NOTIFY_SOCKET").filter(|socket| !socket.is_empty())?;
        let is_for_this =
            env("WATCHDOG_PID").is_none_or(|pid| pid == std::process::id().to_string());
        let watchdog = env("WATCHDOG_USEC").filter(|_| is_for_this);
        let watchdog = watchdog.and_then(|micros| match micros.parse() {
            Ok(0) => None,
            Ok(micros) => Some(Duration::from_micros(micros)),
            Err(error) => {
                warn!(%error, "WATCHDOG_USEC is no number: the watchdog of systemd is not answered");
                None
            }
        });
        let socket = PathBuf::from(socket);
        Some(Self { socket, watchdog })
    }

    /// Returns true if pipelines are to call [`Telemetry::beat`].
    pub fn has_watchdog(&self) -> bool {
        self.watchdog.is_some()
    }

    /// Starts the thread that reports. Dropping it reports that the process stops.
    ///
    /// # Errors
    /// If the system starts no thread.
    pub fn start(&self, pipelines: Pipelines) -> io::Result<Background> {
        let notifier = Notifier {
            manager: self.clone(),
            pipelines,
            sent: Sent::default(),
        };
        Background::start("systemd", move || notifier.run())
    }

    /// Sends one message. Waits for nothing: systemd reads a full socket later.
    fn send(&self, message: &str) -> io::Result<()> {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        match self.abstract_name() {
            #[cfg(target_os = "linux")]
            Some(name) => {
                use std::os::linux::net::SocketAddrExt as _;
                let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
                socket.send_to_addr(message.as_bytes(), &address)?;
            }
            _ => {
                socket.send_to(message.as_bytes(), &self.socket)?;
            }
        }
        Ok(())
    }

    /// Returns the name of a socket in the abstract namespace, which `@` stands for.
    fn abstract_name(&self) -> Option<&str> {
        self.socket.to_str()?.strip_prefix('@')
    }
}

/// The parts of the state that the service manager has.
#[derive(Debug, Default)]
struct Sent {
    status: Option<String>,
    ready: bool,
    stopping: bool,
    watchdog: Option<Instant>,
    failed: bool,
}

struct Notifier {
    manager: ServiceManager,
    pipelines: Pipelines,
    sent: Sent,
}

impl Notifier {
    async fn run(mut self) {
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let stopping = self.pipelines.iter().all(|one| one.is_ending());
            self.report(stopping);
        }
    }

    /// Sends what has changed since the last message.
    fn report(&mut self, stopping: bool) {
        let status = status(&self.pipelines);
        let ready = self.sent.ready || self.pipelines.readiness(true).ready;
        let stopping = self.sent.stopping || stopping;
        let beats = self.manager.watchdog.is_some_and(|limit| {
            let due = |at: Instant| at.elapsed() + INTERVAL >= limit / 4;
            self.sent.watchdog.is_none_or(due) && is_alive(&self.pipelines, limit)
        });
        let mut lines = Vec::new();
        if ready && !self.sent.ready && !stopping {
            lines.push("READY=1".to_owned());
        }
        if stopping && !self.sent.stopping {
            lines.push("STOPPING=1".to_owned());
        }
        if beats {
            lines.push("WATCHDOG=1".to_owned());
        }
        if self.sent.status.as_ref() != Some(&status) {
            lines.push(format!("STATUS={status}"));
        }
        if lines.is_empty() {
            return;
        }
        let message = lines.join("\n") + "\n";
        match self.manager.send(&message) {
            Ok(()) => {
                self.sent = Sent {
                    status: Some(status),
                    ready,
                    stopping,
                    watchdog: beats.then(Instant::now).or(self.sent.watchdog),
                    failed: false,
                };
            }
            // The next interval sends it again.
            Err(error) if std::mem::replace(&mut self.sent.failed, true) => {
                debug!(%error, "systemd still accepts no report of the state");
            }
            Err(error) => warn!(%error, "systemd accepts no report of the state"),
        }
    }
}

impl Drop for Notifier {
    fn drop(&mut self) {
        self.report(true);
    }
}

/// Returns the state of the pipelines on one line, with a name before each of several.
fn status(pipelines: &Pipelines) -> String {
    let parts = pipelines.iter().map(|pipeline| {
        let text = state(pipeline);
        match pipelines.only() {
            Some(_) => text,
            None => format!("{}: {text}", pipeline.name()),
        }
    });
    let text = parts.collect::<Vec<_>>().join("; ");
    let text = printable(&text);
    let mut end = text.len().min(LONGEST_STATUS);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

/// Returns the state of a pipeline, what it waits for, and the worst of its other problems.
fn state(pipeline: &Telemetry) -> String {
    let report = pipeline.report();
    let mut text = report.not_ready.unwrap_or_else(|| pipeline.urgent().0);
    if let Some(reason) = report.pipeline.reason
        && !text.contains(&reason)
    {
        text = format!("{text}: {reason}");
    }
    let problem = report
        .problems
        .into_iter()
        .find(|problem| !problem.is_state);
    match problem.filter(|problem| matches!(&*problem.level, "bad" | "warn")) {
        Some(problem) => format!("{text}; {}", problem.title),
        None => text,
    }
}

/// Returns true if each pipeline works.
fn is_alive(pipelines: &Pipelines, watchdog: Duration) -> bool {
    let silence = watchdog / 2;
    pipelines.iter().all(|pipeline| pipeline.is_alive(silence))
}

/// Calls [`Telemetry::beat`] again and again, on the runtime of the pipeline.
pub async fn heartbeat(telemetry: Arc<Telemetry>) {
    let mut ticks = interval(HEARTBEAT);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        telemetry.beat();
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;
    use std::time::Duration;

    use super::{LONGEST_STATUS, Notifier, Sent, ServiceManager, status};
    use crate::{Pipelines, RecentErrors, Setup, Telemetry};
    use walrelay_relay::PipelineState;

    fn manager(variables: &[(&str, &str)]) -> Option<ServiceManager> {
        let find = |name: &str| variables.iter().find(|(known, _)| *known == name);
        ServiceManager::from_env(&|name| find(name).map(|(_, value)| (*value).to_owned()))
    }

    fn pipeline(name: &str) -> std::sync::Arc<Telemetry> {
        let setup = Setup {
            name: name.to_owned(),
            ..Setup::default()
        };
        std::sync::Arc::new(Telemetry::new(setup, RecentErrors::default()))
    }

    #[test]
    fn the_variables_name_socket_and_watchdog() {
        assert_eq!(manager(&[]), None);
        assert_eq!(manager(&[("NOTIFY_SOCKET", "")]), None);
        let socket = ("NOTIFY_SOCKET", "/run/systemd/notify");
        let watchdog = |variables: &[_]| manager(variables).expect("a manager").watchdog;
        assert_eq!(watchdog(&[socket]), None);
        let seconds = ("WATCHDOG_USEC", "30000000");
        assert_eq!(watchdog(&[socket, seconds]), Some(Duration::from_secs(30)));
        assert_eq!(watchdog(&[socket, ("WATCHDOG_USEC", "0")]), None);
        assert_eq!(watchdog(&[socket, ("WATCHDOG_USEC", "soon")]), None);
        // Of another process.
        assert_eq!(watchdog(&[socket, seconds, ("WATCHDOG_PID", "1")]), None);
    }

    #[test]
    fn a_status_is_one_line_of_limited_length() {
        let long = pipeline("long");
        long.state(&PipelineState::Waiting {
            cause: "postgres",
            why: format!("no\nanswer {}", "é".repeat(LONGEST_STATUS)),
            explanation: None,
        });
        let text = status(&[long].into_iter().collect::<Pipelines>());
        assert!(text.starts_with("waiting to retry: no\\nanswer"), "{text}");
        assert!(text.len() <= LONGEST_STATUS, "{}", text.len());
        let several = [pipeline("one"), pipeline("two")];
        let text = status(&several.into_iter().collect::<Pipelines>());
        assert!(
            text.starts_with("one: connecting; two: connecting"),
            "{text}"
        );
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_socket_of_the_abstract_namespace_is_reached() {
        use std::os::linux::net::SocketAddrExt as _;
        use std::os::unix::net::SocketAddr;

        let name = format!("walrelay-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("an address");
        let socket = UnixDatagram::bind_addr(&address).expect("a socket");
        let manager = manager(&[("NOTIFY_SOCKET", &format!("@{name}"))]).expect("a manager");
        manager.send("READY=1\n").expect("sent");
        let mut message = [0; 64];
        let length = socket.recv(&mut message).expect("received");
        assert_eq!(&message[..length], b"READY=1\n");
    }

    #[test]
    fn the_watchdog_is_answered_while_the_pipeline_works() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).expect("a socket");
        socket.set_nonblocking(true).expect("non-blocking");
        let received = || {
            let mut message = [0; 2048];
            let length = socket.recv(&mut message).unwrap_or(0);
            String::from_utf8_lossy(&message[..length]).into_owned()
        };
        let path = path.to_string_lossy();
        let variables = [("NOTIFY_SOCKET", &*path), ("WATCHDOG_USEC", "1")];
        let telemetry = pipeline("main");
        let mut notifier = Notifier {
            manager: manager(&variables).expect("a manager"),
            pipelines: [telemetry.clone()].into_iter().collect(),
            sent: Sent::default(),
        };
        // The limit is a microsecond: the last heartbeat is always too old.
        notifier.report(false);
        assert_eq!(received(), "STATUS=connecting\n");
        notifier.report(false);
        assert_eq!(received(), "");
        notifier.manager.watchdog = Some(Duration::from_secs(60));
        notifier.report(false);
        assert_eq!(received(), "WATCHDOG=1\n");
        // Not due again.
        notifier.report(false);
        assert_eq!(received(), "");
        telemetry.state(&PipelineState::Streaming);
        notifier.report(false);
        assert_eq!(received(), "READY=1\nSTATUS=streaming\n");
        telemetry.state(&PipelineState::Draining);
        drop(notifier);
        assert_eq!(received(), "STOPPING=1\nSTATUS=draining\n");
    }
}
