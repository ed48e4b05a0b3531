//! Asks the operator at the terminal, also before something is changed.

use std::io::{self, IsTerminal, Write};

use secrecy::SecretString;
use walrelay_failure::Failure;

/// Asks a question.
///
/// # Errors
/// Returns `not_agreed` with the reason appended, unless the answer is one that `agrees`.
pub(crate) fn confirm(
    question: &str,
    agrees: impl Fn(&str) -> bool,
    not_agreed: Failure,
) -> Result<(), Failure> {
    let because = |reason: &str| Failure {
        what: format!("{}: {reason}", not_agreed.what),
        ..not_agreed
    };
    if !is_terminal() {
        return Err(because(
            "no confirmation is possible, as this is no terminal",
        ));
    }
    match ask(question) {
        Some(answer) if agrees(&answer) => Ok(()),
        _ => Err(because("it was not agreed to")),
    }
}

/// Returns the answer to a question, without spaces around it. `None`: nobody can be asked.
pub(crate) fn ask(question: &str) -> Option<String> {
    if !is_terminal() {
        return None;
    }
    // If standard error is closed, the question is not shown, and nobody answers it.
    let _ = write!(io::stderr(), "{question}");
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).ok()?;
    Some(answer.trim().to_owned())
}

/// Returns the answer to a question, which is not shown while it is typed. `None`: nobody can be asked, or the
/// answer is empty.
pub(crate) fn ask_password(question: &str) -> Option<SecretString> {
    if !is_terminal() {
        return None;
    }
    let answer = rpassword::prompt_password(question).ok()?;
    (!answer.is_empty()).then(|| answer.into())
}

fn is_terminal() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Asks whether to continue: y or yes.
///
/// # Errors
/// As [`confirm`].
pub(crate) fn ask_to_continue(not_agreed: Failure) -> Result<(), Failure> {
    let agrees = |answer: &str| matches!(answer, "y" | "Y" | "yes");
    confirm("Go on? [y/N] ", agrees, not_agreed)
}
