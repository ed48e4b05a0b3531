/// Longest event id in a log line or an error, in characters.
const LONGEST_ID: usize = 100;

/// Writes an event's id for logs and errors: shortened, and without control characters. The id is
/// the only value of a row that is ever shown.
pub fn id_text(id: &[u8]) -> String {
    let text = String::from_utf8_lossy(id);
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().take(LONGEST_ID).map(plain).collect()
}
