//! `[log]`: level and format of the log.

use std::io::{self, IsTerminal as _};

use tracing::Level;
use walrelay_settings::{choice, section};

/// The form of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// [`Text`](Self::Text) on a terminal, [`Json`](Self::Json) elsewhere.
    Auto,
    /// Readable text.
    Text,
    /// One JSON object per line.
    Json,
}

impl LogFormat {
    /// Returns true if lines on standard error are JSON.
    pub fn is_json_on_stderr(self) -> bool {
        self == Self::Json || (self == Self::Auto && !io::stderr().is_terminal())
    }
}

const LEVELS: &[(&str, Level)] = &[
    ("error", Level::ERROR),
    ("warn", Level::WARN),
    ("info", Level::INFO),
    ("debug", Level::DEBUG),
    ("trace", Level::TRACE),
];
const FORMATS: &[(&str, LogFormat)] = &[
    ("auto", LogFormat::Auto),
    ("text", LogFormat::Text),
    ("json", LogFormat::Json),
];

section! {
/// `[log]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Log at "log" {
    /// How much is logged.
    "level" level: Level = choice(LEVELS).or("info");
    /// `auto` is `text` on a terminal and `json` elsewhere.
    "format" format: LogFormat = choice(FORMATS).or("auto");
}
}
