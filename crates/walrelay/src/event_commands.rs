//! [`OperatorCommands`]: `walrelay where` and `walrelay resend` for the status page, as processes of this program.
//!
//! A process of its own: so the relay does not end with the command, and the command neither logs in the relay's log
//! nor listens for its signals.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use walrelay_failure::Exit;
use walrelay_observe::EventCommands;

use crate::cli::ConfigArgs;
use crate::config::Config;

/// Timeout of one command. Each place that `where` looks at has [`PLACE_TIMEOUT`].
const TIMEOUT: Duration = Duration::from_secs(90);
/// `--timeout` of the commands.
const PLACE_TIMEOUT: &str = "20s";
/// Interval of the checks whether the program has ended, after its output has.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Largest output that is kept, in bytes.
const MOST_BYTES: u64 = 1 << 20;
/// The part of the result of `resend` by which it is found.
const ACKNOWLEDGED: &str = "records acknowledged";
/// Notice of a sending that failed.
const MAY_BE_SENT: &str = "records may have been sent: look for the event before you send it again";
/// Characters of an error that are shown.
const MOST_SHOWN: usize = 2_000;

/// Runs the commands with the configuration of this relay.
pub(crate) struct OperatorCommands {
    config: ConfigArgs,
    /// [`PipelineConfig::digest`](crate::config::PipelineConfig::digest) as the relay has read it.
    digest: u64,
}

impl OperatorCommands {
    pub(crate) fn new(config: ConfigArgs, digest: u64) -> Self {
        Self { config, digest }
    }

    /// Runs a command; `more`: its arguments beside the configuration. Returns its output and its notices.
    fn run(
        &self,
        name: &str,
        more: &[&str],
        expected: &[Exit],
    ) -> Result<(String, String), String> {
        let mut command = Command::new(program().map_err(|error| error.to_string())?);
        let mut arguments: Vec<OsString> = vec![name.into(), "--config".into()];
        arguments.push(self.config.config.clone().into());
        for set in &self.config.set {
            arguments.extend(["--set".into(), set.into()]);
        }
        arguments.push("--end-with-stdin".into());
        arguments.extend(more.iter().map(OsString::from));
        command.arg0("walrelay").args(arguments);
        let ended = output(command, TIMEOUT)?;
        if expected
            .iter()
            .any(|exit| ended.status.code() == Some(i32::from(exit.code())))
        {
            return Ok((ended.output, ended.notices));
        }
        // A killed process reports nothing.
        let signal = ended.status.signal().map_or_else(String::new, |signal| {
            format!("\nits process was ended by signal {signal}")
        });
        let notices = ended.notices + &signal;
        let notices: Vec<char> = notices.trim().chars().collect();
        let shown = notices.len().saturating_sub(MOST_SHOWN);
        Err(notices[shown..].iter().collect())
    }

    /// Checks that all that the configuration reads is as the relay has read it: a command that reads it now must not
    /// look, or send, elsewhere.
    fn check_unchanged(&self) -> Result<(), String> {
        let env = |name: &str| std::env::var(name).ok();
        let config = Config::load(&self.config.config, &self.config.set, &env);
        let is_same = config.is_ok_and(|config| config.pipeline.digest == self.digest);
        is_same.then_some(()).ok_or_else(|| {
            "the configuration has changed since the relay started: restart the relay first"
                .to_owned()
        })
    }
}

impl EventCommands for OperatorCommands {
    fn whereabouts(&self, event: &str) -> Result<Value, String> {
        self.check_unchanged()?;
        let arguments = ["--output=json", "--timeout", PLACE_TIMEOUT, "--", event];
        let (output, _) = self.run("where", &arguments, &[Exit::Ok, Exit::Findings])?;
        serde_json::from_str(&output).map_err(|error| error.to_string())
    }

    fn dry_run(&self, event: &str) -> Result<String, String> {
        self.check_unchanged()?;
        let event = format!("--id={event}");
        let arguments = ["--dry-run", "--timeout", PLACE_TIMEOUT, &event];
        let (output, _) = self.run("resend", &arguments, &[Exit::Ok])?;
        Ok(output.trim().to_owned())
    }

    fn resend(&self, event: &str) -> Result<String, String> {
        self.check_unchanged()?;
        let event = format!("--id={event}");
        let arguments = ["--yes", "--timeout", PLACE_TIMEOUT, &event];
        let ended = self.run("resend", &arguments, &[Exit::Ok]);
        let (_, notices) = ended.map_err(|why| format!("{why}\n{MAY_BE_SENT}"))?;
        let result = notices.lines().find(|line| line.contains(ACKNOWLEDGED));
        Ok(result.unwrap_or_default().to_owned())
    }
}

/// Returns this program, also after its file was replaced.
fn program() -> io::Result<PathBuf> {
    if cfg!(target_os = "linux") {
        Ok(PathBuf::from("/proc/self/exe"))
    } else {
        std::env::current_exe()
    }
}

/// A command that has ended.
struct Ended {
    status: ExitStatus,
    output: String,
    notices: String,
}

/// Runs a command to its end. One that has not ended after `limit` is killed.
fn output(mut command: Command, limit: Duration) -> Result<Ended, String> {
    let deadline = Instant::now() + limit;
    let slow = || {
        format!(
            "it has not ended after {} s, and was killed",
            limit.as_secs()
        )
    };
    let child = command
        // Closed when this process ends, also by SIGKILL: the command ends then (`--end-with-stdin`).
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = KillOnDrop(child.map_err(|error| error.to_string())?);
    // On threads, because a read of a pipe has no timeout, and a full pipe holds the program up.
    let (sender, receiver) = channel();
    let (output, notices) = (child.0.stdout.take(), child.0.stderr.take());
    read_aside(0, output, sender.clone()).map_err(|error| error.to_string())?;
    read_aside(1, notices, sender).map_err(|error| error.to_string())?;
    let mut texts = [String::new(), String::new()];
    for _ in 0..texts.len() {
        let left = deadline.saturating_duration_since(Instant::now());
        let (at, read) = receiver.recv_timeout(left).map_err(|_| slow())?;
        let bytes = read.map_err(|error| error.to_string())?;
        texts[at] = String::from_utf8_lossy(&bytes).into_owned();
    }
    let status = loop {
        match child.0.try_wait().map_err(|error| error.to_string())? {
            Some(status) => break status,
            None if Instant::now() >= deadline => return Err(slow()),
            None => thread::sleep(POLL_INTERVAL),
        }
    };
    let [output, notices] = texts;
    Ok(Ended {
        status,
        output,
        notices,
    })
}

type Bytes = (usize, io::Result<Vec<u8>>);

/// Reads a pipe on a thread, and sends its content with its number.
fn read_aside(
    at: usize,
    pipe: Option<impl Read + Send + 'static>,
    sender: Sender<Bytes>,
) -> io::Result<()> {
    let read = move || {
        let mut bytes = Vec::new();
        // The rest is read as well, because a closed pipe would end the command.
        let read = pipe.map_or(Ok(0), |mut pipe| {
            pipe.by_ref().take(MOST_BYTES).read_to_end(&mut bytes)?;
            io::copy(&mut pipe, &mut io::sink())
        });
        // The receiver may be gone.
        let _ = sender.send((at, read.map(|_| bytes)));
    };
    let thread = thread::Builder::new().name("event-output".to_owned());
    thread.spawn(read).map(drop)
}

/// A child process that is killed and reaped on drop, if it has not ended.
struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(line: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", line]);
        command
    }

    #[test]
    fn a_command_is_read_to_its_end_or_killed() {
        let both = "head -c 2000000 /dev/zero | tr '\\0' x >&2; echo out; exit 3";
        let ended = output(shell(both), TIMEOUT).expect("ended");
        assert_eq!((ended.status.code(), &*ended.output), (Some(3), "out\n"));
        assert_eq!(ended.notices.len() as u64, MOST_BYTES);
        let slow = output(shell("exec sleep 600"), Duration::from_millis(50));
        assert!(slow.is_err_and(|why| why.contains("was killed")));
    }
}
