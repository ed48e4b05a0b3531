//! Runs the committed corpus of a fuzz target through the target's function. Included by the tests
//! of each fuzzed crate.

use std::path::Path;

/// Passes each file of `fuzz/corpus/<target>` to `check`, which panics on a violation.
pub(crate) fn run(target: &str, check: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(target);
    let entries =
        std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files = 0;
    for entry in entries {
        let path = entry.unwrap().path();
        let body = std::fs::read(&path).unwrap();
        // The panic message of `check` does not contain the file's name.
        std::panic::catch_unwind(|| check(&body))
            .unwrap_or_else(|_| panic!("{} violates an invariant", path.display()));
        files += 1;
    }
    assert!(files >= 10, "{files} files in {}", folder.display());
}
