//! The body of the fuzz target, here so that its corpus also runs as an ordinary test.

use std::path::Path;

use super::{Location, parse_with};

/// A text that a fuzzer does not generate by chance.
const SECRET: &str = "Zq9-Hunter2-Zq9";
const NAME: &str = "fuzz.toml";

/// Parses any text, whose parts behind NULs are `--set` overrides. Errors must point into the file,
/// and no output may show the URL's password, an environment variable's value or the content of a
/// secret file.
///
/// # Panics
/// If one of these is violated.
pub fn configurations(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else {
        return;
    };
    let mut parts = text.split('\0');
    let text = parts.next().unwrap_or_default();
    let overrides: Vec<String> = parts.map(str::to_owned).collect();
    configuration(text, &overrides);
    // The same with a URL that has a password.
    let url = format!("postgres://relay:{SECRET}@db/app");
    configuration(&format!("source.url = \"{url}\"\n{text}"), &overrides);
    let with_url = [&[format!("source.url={url}")], &*overrides].concat();
    configuration(text, &with_url);
}

fn configuration(text: &str, overrides: &[String]) {
    let env = |_: &str| Some(SECRET.to_owned());
    let files = |_: &Path| Ok(SECRET.to_owned());
    let output = match parse_with(text, NAME, overrides, &env, &files) {
        Ok(config) => format!("{config:?}"),
        Err(error) => {
            assert!(!error.problems().is_empty());
            for problem in error.problems() {
                assert!(!problem.what.is_empty());
                if let Location::At { line, column, .. } = problem.place {
                    let reported = text.split('\n').nth(line - 1);
                    let length = reported.map(|line| line.chars().count());
                    assert!(
                        length.is_some_and(|length| (1..=length + 1).contains(&column)),
                        "line {line}, column {column} of {text:?}"
                    );
                }
            }
            format!("{error} {error:?}")
        }
    };
    assert!(
        !output.contains(SECRET),
        "{output} for {text:?} {overrides:?}"
    );
}

/// The committed corpus.
#[cfg(test)]
#[path = "../../../../fuzz/run_corpus.rs"]
mod run_corpus;

#[cfg(test)]
mod tests {
    use super::{configurations, run_corpus};

    #[test]
    fn the_corpus_passes() {
        run_corpus::run("configuration", configurations);
    }
}
