//! The signals that ask a command to stop.

use std::future::{Future, poll_fn};
use std::task::Poll;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{info, warn};
use walrelay_failure::{Exit, Failure};
use walrelay_kafka_sink::exit_at_once;

/// Resolves at the first of the [`StopSignals`], or when `ended` resolves. A signal after that ends the process
/// at once.
pub(crate) fn stop_signal_or(
    ended: impl Future<Output = ()>,
) -> Result<impl Future<Output = ()>, Failure> {
    let mut signals = StopSignals::new()?;
    Ok(async move {
        let is_signal = tokio::select! {
            () = signals.next() => true,
            () = ended => false,
        };
        if is_signal {
            // A terminal that is closed sends SIGHUP twice: by the shell, and by the kernel.
            signals.ignore_hangup();
            info!("asked to stop");
        }
        tokio::spawn(async move {
            signals.next().await;
            warn!("a signal while the relay drains: stopping at once");
            // Records in flight are not confirmed, so the next start sends them again.
            exit_at_once(Exit::Temporary.code());
        });
    })
}

/// The signals that ask to stop: SIGTERM, SIGINT, SIGQUIT, and SIGHUP unless it is ignored.
pub(crate) struct StopSignals {
    others: Vec<Signal>,
    hangup: Option<Signal>,
}

impl StopSignals {
    /// Listens from now on.
    pub(crate) fn new() -> Result<Self, Failure> {
        let hangup = Some(SignalKind::hangup()).filter(|kind| !is_ignored(*kind));
        let others = [
            SignalKind::terminate(),
            SignalKind::interrupt(),
            SignalKind::quit(),
        ];
        let listen = |kind| {
            signal(kind).map_err(|error| {
                Failure::new("signals", Exit::Internal, "cannot listen for signals")
                    .caused_by(error)
                    .remedy("see whether a sandbox or seccomp profile keeps walrelay from handling signals")
            })
        };
        Ok(Self {
            others: others.into_iter().map(listen).collect::<Result<_, _>>()?,
            hangup: hangup.map(listen).transpose()?,
        })
    }

    /// Waits for SIGHUP no more; the process does not end by it.
    fn ignore_hangup(&mut self) {
        self.hangup = None;
    }

    /// Waits for one of them.
    pub(crate) async fn next(&mut self) {
        poll_fn(|context| {
            let mut received = Poll::Pending;
            for signal in self.others.iter_mut().chain(&mut self.hangup) {
                if signal.poll_recv(context).is_ready() {
                    received = Poll::Ready(());
                }
            }
            received
        })
        .await;
    }
}

/// Returns true if this process was started with the signal ignored, as `nohup` starts it.
/// Listening would end that. `SigIgn` of proc(5) is a mask of numbers; without /proc the answer is
/// no.
fn is_ignored(kind: SignalKind) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (kind.as_raw_value() - 1) & 1 == 1)
}
