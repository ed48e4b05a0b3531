//! Asks whoever sits at the terminal before something is changed.

use std::io::{self, IsTerminal, Write};

/// Asks, and compares the answer.
///
/// # Errors
/// Why nothing was agreed to.
pub(super) fn confirm(
    question: &str,
    is_agreement: impl Fn(&str) -> bool,
) -> Result<(), &'static str> {
    if !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
        return Err("nobody can be asked, as this is no terminal");
    }
    // Nobody is left to be asked when standard error is closed: then nothing is answered.
    let _ = write!(io::stderr(), "{question}");
    let mut answer = String::new();
    match io::stdin().read_line(&mut answer) {
        Ok(_) if is_agreement(answer.trim()) => Ok(()),
        _ => Err("it was not agreed to"),
    }
}

/// Asks whether to go on: y or yes.
///
/// # Errors
/// Why nothing was agreed to.
pub(super) fn go_on() -> Result<(), &'static str> {
    confirm("Go on? [y/N] ", |answer| {
        matches!(answer, "y" | "Y" | "yes")
    })
}
