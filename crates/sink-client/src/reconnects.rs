//! Connects as often as it needs.

use std::time::{Duration, Instant};

use tokio::time::sleep_until;
use tracing::{info, warn};
use walrelay_failure::Chain;
use walrelay_sink::{ConnectFailure, Disposition, Endpoints, OpenRequest};

use crate::{ClientError, Queue, Servers, Shared};

/// An open connection.
pub trait Connected {
    /// Returns host and port.
    fn address(&self) -> &str;
}

/// Counts the failures since the last success, and pauses between attempts.
#[derive(Debug)]
pub struct Reconnects {
    /// The name of the kind of server in log lines.
    title: &'static str,
    /// The first and the longest pause.
    pauses: (Duration, Duration),
    failures: u32,
    /// The id of the failure that was logged since the last success.
    logged: Option<&'static str>,
    /// The number of the host that is tried first.
    host: usize,
}

impl Reconnects {
    /// Counts from zero. `title`: the name of the kind of server in log lines. `pauses`: the first and
    /// the longest one; they double.
    pub fn new(title: &'static str, pauses: (Duration, Duration)) -> Self {
        Self {
            title,
            pauses,
            failures: 0,
            logged: None,
            host: 0,
        }
    }

    /// Notes that the server has taken a record.
    pub fn succeeded(&mut self) {
        self.failures = 0;
        self.logged = None;
    }

    /// Makes the next attempt start with the next host: this one answers, and takes
    /// no records, or not from this user.
    pub fn next_host(&mut self) {
        self.host = self.host.wrapping_add(1);
    }

    /// Counts a failure, and returns when to try again.
    pub fn failed(&mut self) -> Instant {
        let at = Instant::now() + pause(self.pauses, self.failures.saturating_sub(1));
        self.failures = self.failures.saturating_add(1);
        at
    }

    /// Connects, as often as it needs, with a pause after each failure. `connect` is given the number
    /// of the host to start with. An attempt counts as a failure until
    /// [`succeeded`](Self::succeeded) is called. `None`: the sink is to end.
    pub async fn connect<Q: Queue, S, C: Connected, E: ClientError>(
        &mut self,
        shared: &Shared<Q, S>,
        servers: &Servers,
        endpoints: &mut Endpoints,
        connect: impl AsyncFn(usize) -> Result<C, E>,
    ) -> Option<C> {
        loop {
            if self.failures > 0 {
                let until = self.failed();
                shared.unless_over(sleep_until(until.into())).await?;
            } else {
                self.failures = 1;
            }
            let addresses = servers.addresses();
            let open = addresses.map(|address| OpenRequest::new(&shared.stats, &address));
            let open: Vec<OpenRequest> = open.collect();
            let connected = shared.unless_over(connect(self.host)).await?;
            drop(open);
            match connected {
                Ok(connection) => {
                    let address = connection.address();
                    info!(address, "connected to {}", self.title);
                    endpoints.connected(address);
                    shared.set_obstacle(None);
                    return Some(connection);
                }
                Err(error) => {
                    let words = error.words();
                    if self.logged.replace(words.id) != Some(words.id) {
                        warn!(
                            id = words.id,
                            remedy = words.remedy,
                            error = %Chain(&error),
                            "{}",
                            words.what
                        );
                    }
                    for address in servers.addresses() {
                        endpoints.attempt(&address, None, false);
                    }
                    if let Some(fault) = error.certificate_fault() {
                        endpoints.certificate_refused(fault);
                    }
                    let cause = words.cause(&error);
                    endpoints.connect_failed(ConnectFailure { words, cause });
                    // It is not tried again before the others.
                    if error.disposition() == Disposition::Configuration {
                        self.next_host();
                    }
                    shared.lost(&error);
                }
            }
        }
    }
}

/// Returns the pause after so many failures: it doubles from the first to the longest.
pub fn pause((first, longest): (Duration, Duration), failures: u32) -> Duration {
    let pause = first.saturating_mul(1 << failures.min(20)).min(longest);
    // Between half and the whole, so that not all try again at once.
    pause.mul_f64(0.5 + fastrand::f64() / 2.0)
}
