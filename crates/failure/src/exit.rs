//! Exit codes. Documents are generated from this list.

use std::process::ExitCode;

/// The class of a failure, which is the exit code of a command that ends with it. The numbers follow `sysexits.h` where it has one that fits.
///
/// `walrelay --help` and `docs/reference/configuration.md` list them from [`Exit::ALL`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Exit {
    /// Success. For `run`: stopped on request, and everything that was sent is confirmed.
    Ok = 0,
    /// `verify-topic` found something wrong, or `where` and `stuck` found no evidence. The code of `diff`
    /// and `grep` for what they find.
    Findings = 1,
    /// The code `EX_USAGE`.
    Usage = 64,
    /// The code `EX_DATAERR`.
    Data = 65,
    /// The code `EX_UNAVAILABLE`.
    Unavailable = 69,
    /// The code `EX_SOFTWARE`.
    Internal = 70,
    /// The code `EX_TEMPFAIL`.
    Temporary = 75,
    /// The code `EX_NOPERM`.
    Denied = 77,
    /// The code `EX_CONFIG`.
    Config = 78,
}

impl Exit {
    /// All exit codes, in ascending order.
    pub const ALL: [Self; 9] = [
        Self::Ok,
        Self::Findings,
        Self::Usage,
        Self::Data,
        Self::Unavailable,
        Self::Internal,
        Self::Temporary,
        Self::Denied,
        Self::Config,
    ];

    /// Returns the number that the process exits with.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Returns the meaning in one line, for `--help` and the documents.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Ok => "done; for `run`: stopped on request, everything sent is confirmed",
            Self::Findings => "`verify-topic`, `where` or `stuck` found something, or no evidence",
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_differ_and_none_is_what_a_shell_uses_itself() {
        let codes: Vec<u8> = Exit::ALL.iter().map(|exit| exit.code()).collect();
        assert_eq!(codes, [0, 1, 64, 65, 69, 70, 75, 77, 78]);
    }
}
