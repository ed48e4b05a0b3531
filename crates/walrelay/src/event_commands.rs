//! [`OperatorCommands`]: `walrelay where` and `walrelay resend` for the status page, as processes of this program.
//!
//! A process of its own: so the relay does not end with the command, and the command neither logs in the relay's log
//! nor listens for its signals.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use walrelay_failure::Exit;
use walrelay_observe::EventCommands;
use walrelay_sink::{OutputLimit, run_program};

use crate::cli::ConfigArgs;
use crate::config::Config;

/// Timeout of one command. Each place that `where` looks at has [`PLACE_TIMEOUT`].
const TIMEOUT: Duration = Duration::from_secs(90);
/// `--timeout` of the commands.
const PLACE_TIMEOUT: &str = "20s";
/// Largest output that is kept, in bytes.
const MOST_BYTES: usize = 1 << 20;
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
        // Standard input is closed when this process ends, also by SIGKILL: the command ends then (`--end-with-stdin`).
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let command = piped
            .stderr(Stdio::piped())
            .arg0("walrelay")
            .args(arguments);
        let output = OutputLimit::Kept(MOST_BYTES);
        let ended = run_program(command, TIMEOUT, output).map_err(|error| error.to_string())?;
        let [output, notices] =
            [ended.stdout, ended.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        if expected
            .iter()
            .any(|exit| ended.status.code() == Some(i32::from(exit.code())))
        {
            return Ok((output, notices));
        }
        // A killed process reports nothing.
        let signal = ended.status.signal().map_or_else(String::new, |signal| {
            format!("\nits process was ended by signal {signal}")
        });
        let notices = notices + &signal;
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
