use fallible_iterator::FallibleIterator;
use postgres_protocol::message::backend::ErrorFields;

/// Bytes that are kept of each text of an error.
const LONGEST_TEXT: usize = 8 * 1024;

/// An ErrorResponse of the server. The text may be in the server's language.
#[derive(Debug, Clone, Default, PartialEq, Eq, thiserror::Error)]
#[error(
    "{severity}: {message} (SQLSTATE {sqlstate}){}{}",
    part("; ", .detail.as_deref()),
    part("; hint: ", .hint.as_deref())
)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the names say it")]
pub struct ServerError {
    /// `ERROR`, `FATAL` or `PANIC`, not translated. `FATAL` and `PANIC` end the session.
    pub severity: String,
    /// The kind of error, five characters ("PostgreSQL Error Codes", appendix A).
    pub sqlstate: String,
    pub message: String,
    /// The detail. Removed for the SQLSTATE classes 22 and 23, whose details quote values of rows.
    pub detail: Option<String>,
    pub hint: Option<String>,
    /// The function of the server's source that reported it, which no language changes.
    pub routine: Option<String>,
}

fn part(label: &str, text: Option<&str>) -> String {
    text.map_or_else(String::new, |text| format!("{label}{text}"))
}

impl ServerError {
    /// Returns true if the server closes the connection after this error.
    pub(crate) fn ends_session(&self) -> bool {
        self.severity != "ERROR"
    }

    /// Returns true for a warning that the server skips a missing publication, and its rows: since version 18,
    /// of this function of pgoutput.c ("skipped loading publication"). Before 18 it was an error; here it is one
    /// in any version. Other warnings have the same SQLSTATE: a walsender that waits for a slot of
    /// synchronized_standby_slots.
    pub(crate) fn skips_publication(&self) -> bool {
        self.severity == "WARNING" && self.routine.as_deref() == Some("LoadPublications")
    }

    /// Logs a NoticeResponse.
    pub(crate) fn log(&self, host: &str) {
        let Self {
            severity, message, ..
        } = self;
        tracing::debug!(host, severity, message, "notice");
    }

    /// Reads the fields of an ErrorResponse or NoticeResponse, up to the first field that cannot be
    /// read. The fields before it are still worth reporting.
    pub(crate) fn parse(mut fields: ErrorFields<'_>) -> Self {
        let mut error = Self {
            severity: String::new(),
            sqlstate: sqlstate(b""),
            message: String::new(),
            detail: None,
            hint: None,
            routine: None,
        };
        let mut localized = String::new();
        while let Ok(Some(field)) = fields.next() {
            let text = || cut(field.value_bytes());
            match field.type_() {
                b'S' => localized = text(),
                b'V' => error.severity = text(),
                b'C' => error.sqlstate = sqlstate(field.value_bytes()),
                b'M' => error.message = text(),
                b'D' => error.detail = Some(text()),
                b'H' => error.hint = Some(text()),
                b'R' => error.routine = Some(text()),
                _ => {}
            }
        }
        for severity in [localized, "ERROR".to_owned()] {
            if error.severity.is_empty() {
                error.severity = severity;
            }
        }
        if error.sqlstate.starts_with("22") || error.sqlstate.starts_with("23") {
            error.detail = None;
        }
        error
    }
}

/// Reads a text, of which no more than [`LONGEST_TEXT`] is kept.
fn cut(bytes: &[u8]) -> String {
    match bytes.get(..LONGEST_TEXT) {
        Some(begin) if begin.len() < bytes.len() => {
            String::from_utf8_lossy(begin).into_owned() + "…"
        }
        _ => String::from_utf8_lossy(bytes).into_owned(),
    }
}

/// Reads an SQLSTATE as text; `?????` for bytes that are not five letters or digits.
fn sqlstate(bytes: &[u8]) -> String {
    let is_code = bytes.len() == 5 && bytes.iter().all(u8::is_ascii_alphanumeric);
    let code = str::from_utf8(bytes).ok().filter(|_| is_code);
    code.unwrap_or("?????").to_owned()
}
