use std::fmt;

use fallible_iterator::FallibleIterator;
use postgres_protocol::message::backend::ErrorFields;

/// Five characters that say what kind of error it is ("PostgreSQL Error Codes", appendix A).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SqlState([u8; 5]);

impl SqlState {
    /// The code as text.
    pub fn as_str(&self) -> &str {
        str::from_utf8(&self.0).unwrap_or("?????")
    }

    /// Anything that is not five letters and digits becomes `?????`.
    pub(super) fn from_bytes(bytes: &[u8]) -> Self {
        match <[u8; 5]>::try_from(bytes) {
            Ok(code) if code.iter().all(u8::is_ascii_alphanumeric) => Self(code),
            _ => Self(*b"?????"),
        }
    }
}

impl fmt::Display for SqlState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An ErrorResponse. The words are the server's and may be in its language.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{severity}: {message} (SQLSTATE {sqlstate}){}{}",
    part("; ", .detail.as_deref()),
    part("; hint: ", .hint.as_deref())
)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the names say it")]
pub struct ServerError {
    /// `ERROR`, `FATAL` or `PANIC`, never translated. After the last two the session is over.
    pub severity: String,
    pub sqlstate: SqlState,
    pub message: String,
    /// Left out for the classes 22 and 23, where it quotes values of rows.
    pub detail: Option<String>,
    pub hint: Option<String>,
}

pub(crate) fn part(label: &str, text: Option<&str>) -> String {
    text.map_or_else(String::new, |text| format!("{label}{text}"))
}

impl ServerError {
    /// Whether the server closes the connection after it.
    pub(crate) fn ends_session(&self) -> bool {
        self.severity != "ERROR"
    }

    /// Logs a notice.
    pub(crate) fn log(&self, host: &str) {
        let Self {
            severity, message, ..
        } = self;
        tracing::debug!(host, severity, message, "notice");
    }

    /// Reads the fields of an ErrorResponse or NoticeResponse. A field that cannot be read ends
    /// the reading: what is known so far is still worth reporting.
    pub(crate) fn parse(mut fields: ErrorFields<'_>) -> Self {
        let mut error = Self {
            severity: String::new(),
            sqlstate: SqlState::from_bytes(b""),
            message: String::new(),
            detail: None,
            hint: None,
        };
        let mut localized = String::new();
        while let Ok(Some(field)) = fields.next() {
            let text = || String::from_utf8_lossy(field.value_bytes()).into_owned();
            match field.type_() {
                b'S' => localized = text(),
                b'V' => error.severity = text(),
                b'C' => error.sqlstate = SqlState::from_bytes(field.value_bytes()),
                b'M' => error.message = text(),
                b'D' => error.detail = Some(text()),
                b'H' => error.hint = Some(text()),
                _ => {}
            }
        }
        for severity in [localized, "ERROR".to_owned()] {
            if error.severity.is_empty() {
                error.severity = severity;
            }
        }
        if matches!(&error.sqlstate.0[..2], b"22" | b"23") {
            error.detail = None;
        }
        error
    }
}
