//! Text in lines that fit the terminal.

use std::io;

use textwrap::{Options, WordSeparator, WordSplitter, WrapAlgorithm};

use crate::commands::EnvVars;

/// The columns of a terminal whose width is not known.
const UNKNOWN: usize = 80;
/// The fewest columns that a text gets, however far it is indented.
const LEAST: usize = 30;

/// Returns the columns of standard output: `COLUMNS`, or else the width of the terminal.
pub(crate) fn columns(env: EnvVars<'_>) -> usize {
    let wanted = env("COLUMNS").and_then(|columns| columns.parse().ok());
    let shown = || terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| width.0.into());
    let columns = wanted.or_else(shown).filter(|columns| *columns > 0);
    columns.unwrap_or(UNKNOWN)
}

/// Breaks each line of the text between words so that it fits, and indents all lines but the first. Spaces at the
/// beginning of a line are repeated below it. A longer word, such as a path, stays whole.
pub(crate) fn wrapped(text: &str, indent: usize, columns: usize) -> String {
    let width = columns.saturating_sub(indent).max(LEAST);
    let mut lines = Vec::new();
    for line in text.lines() {
        let words = line.trim_start_matches(' ');
        let spaces = &line[..line.len() - words.len()];
        let options = Options::new(width)
            .initial_indent(spaces)
            .subsequent_indent(spaces)
            .break_words(false)
            .word_separator(WordSeparator::AsciiSpace)
            .word_splitter(WordSplitter::NoHyphenation)
            .wrap_algorithm(WrapAlgorithm::FirstFit);
        lines.extend(textwrap::wrap(words, options));
    }
    lines.join(&format!("\n{:indent$}", ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_fit_and_keep_their_indentation() {
        let text = "a text of several words that is too long\n  cause: /a/path/that/is/longer/than/all/columns x";
        assert_eq!(
            wrapped(text, 4, 34),
            "a text of several words that\n    is too long\n      cause:\n      \
             /a/path/that/is/longer/than/all/columns\n      x"
        );
        assert_eq!(wrapped("short", 60, 20), "short");
        assert_eq!(wrapped("", 4, 80), "");
    }

    #[test]
    fn the_width_is_that_of_the_variable_or_80() {
        // The tests run without a terminal, or with one of an unknown width.
        let with =
            |value: &'static str| move |name: &str| (name == "COLUMNS").then(|| value.to_owned());
        assert_eq!(columns(&with("132")), 132);
        assert!(columns(&with("wide")) > 0);
    }
}
