//! What the fuzz target runs, here so that its corpus is also an ordinary test.

use std::path::Path;

use super::{Place, parse_with};

/// Like nothing that a fuzzer comes upon by chance.
const SECRET: &str = "Zq9-Hunter2-Zq9";
const NAME: &str = "fuzz.toml";

/// Any file, and behind NULs any `--set` overrides: errors point into the file, and nothing shows
/// the password in the URL, the value of an environment variable or what stands in a secret's file.
///
/// # Panics
/// Only when a promise of this module is broken.
pub fn configurations(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else {
        return;
    };
    let mut parts = text.split('\0');
    let text = parts.next().unwrap_or_default();
    let overrides: Vec<String> = parts.map(str::to_owned).collect();
    configuration(text, &overrides);
    // The same with a URL that is known to hold a password.
    let url = format!("postgres://relay:{SECRET}@db/app");
    configuration(&format!("source.url = \"{url}\"\n{text}"), &overrides);
    let with_url = [&[format!("source.url={url}")], &*overrides].concat();
    configuration(text, &with_url);
}

fn configuration(text: &str, overrides: &[String]) {
    let env = |_: &str| Some(SECRET.to_owned());
    let files = |_: &Path| Ok(SECRET.to_owned());
    let told = match parse_with(text, NAME, overrides, &env, &files) {
        Ok(config) => format!("{config:?}"),
        Err(error) => {
            assert!(!error.problems().is_empty());
            for problem in error.problems() {
                assert!(!problem.what.is_empty());
                if let Place::At { line, column, .. } = problem.place {
                    let blamed = text.split('\n').nth(line - 1);
                    let length = blamed.map(|line| line.chars().count());
                    assert!(
                        length.is_some_and(|length| (1..=length + 1).contains(&column)),
                        "line {line}, column {column} of {text:?}"
                    );
                }
            }
            format!("{error} {error:?}")
        }
    };
    assert!(!told.contains(SECRET), "{told} for {text:?} {overrides:?}");
}

/// The committed corpus.
#[cfg(test)]
#[path = "../../../../fuzz/run_corpus.rs"]
mod run_corpus;

#[cfg(test)]
mod tests {
    use super::{configurations, run_corpus};

    #[test]
    fn the_corpus_keeps_the_promises() {
        run_corpus::run("configuration", configurations);
    }
}
