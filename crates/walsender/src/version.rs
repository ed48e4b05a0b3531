//! The version of a Postgres server.

use std::fmt;

/// A server's version: 15.18 is major 15, minor 18.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerVersion {
    /// The major version, with new features.
    pub major: u32,
    /// The minor version, with fixes; 0 before the release.
    pub minor: u32,
}

impl ServerVersion {
    /// Parses the parameter `server_version`: `15.18 (Debian 15.18-0+deb12u1)`, `18beta1`,
    /// `17devel`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let digits = |text: &str| {
            let end = text
                .find(|character: char| !character.is_ascii_digit())
                .unwrap_or(text.len());
            (text[..end].parse().ok(), end)
        };
        let (major, end) = digits(text);
        let minor = text[end..]
            .strip_prefix('.')
            .and_then(|rest| digits(rest).0);
        Some(Self {
            major: major?,
            minor: minor.unwrap_or(0),
        })
    }
}

impl fmt::Display for ServerVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        for (text, major, minor) in [
            ("15.18 (Debian 15.18-0+deb12u1)", 15, 18),
            ("14.0", 14, 0),
            ("18beta1", 18, 0),
            ("17devel", 17, 0),
            ("16rc1", 16, 0),
            ("16", 16, 0),
        ] {
            assert_eq!(
                ServerVersion::parse(text),
                Some(ServerVersion { major, minor }),
                "{text}"
            );
        }
        for text in ["", "devel", ".1", "99999999999.1"] {
            assert_eq!(ServerVersion::parse(text), None, "{text}");
        }
    }
}
