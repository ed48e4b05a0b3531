//! Exit codes, documented here and nowhere else by hand.

use std::process::ExitCode;

/// How the program ends. Numbers follow `sysexits.h` where it has one that fits.
///
/// `walrelay --help` and `docs/CONFIGURATION.md` list them from [`Exit::ALL`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Exit {
    /// Done. For `run`: asked to stop, and everything that was sent is confirmed.
    Ok,
    /// `EX_USAGE`.
    Usage,
    /// `EX_DATAERR`.
    Data,
    /// `EX_UNAVAILABLE`.
    Unavailable,
    /// `EX_SOFTWARE`.
    Internal,
    /// `EX_TEMPFAIL`.
    Temporary,
    /// `EX_NOPERM`.
    Denied,
    /// `EX_CONFIG`.
    Config,
}

impl Exit {
    /// All of them, by number.
    pub const ALL: [Self; 8] = [
        Self::Ok,
        Self::Usage,
        Self::Data,
        Self::Unavailable,
        Self::Internal,
        Self::Temporary,
        Self::Denied,
        Self::Config,
    ];

    /// What the shell sees.
    pub const fn code(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Usage => 64,
            Self::Data => 65,
            Self::Unavailable => 69,
            Self::Internal => 70,
            Self::Temporary => 75,
            Self::Denied => 77,
            Self::Config => 78,
        }
    }

    /// One line for people.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Ok => "done; for `run`: stopped on request, everything sent is confirmed",
            Self::Usage => "the command line is wrong",
            Self::Data => "an event cannot be delivered, now or later",
            Self::Unavailable => "a server cannot be reached, where the command does not retry",
            Self::Internal => "a bug in walrelay",
            Self::Temporary => {
                "stopped before everything sent was confirmed; the next start sends it again"
            }
            Self::Denied => "access denied: authentication, or a missing privilege",
            Self::Config => "a configuration is wrong, the relay's or a server's",
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit.code())
    }
}

/// The list that `--help` ends with.
pub(super) fn help() -> String {
    let mut text = String::from("Exit codes:");
    for exit in Exit::ALL {
        let line = format!("\n  {:>2}  {}", exit.code(), exit.meaning());
        text.push_str(&line);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_differ_and_none_is_what_a_shell_uses_itself() {
        let codes: Vec<u8> = Exit::ALL.iter().map(|exit| exit.code()).collect();
        assert_eq!(codes, [0, 64, 65, 69, 70, 75, 77, 78]);
        assert!(help().contains("78  a configuration is wrong"));
    }
}
