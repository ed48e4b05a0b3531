//! Runs the committed corpus of a fuzz target through the function that the target runs. Shared by the
//! tests of the crates that are fuzzed, each of which includes this file.

use std::path::Path;

/// Gives each file of `fuzz/corpus/<target>` to `check`, which panics where a promise is broken.
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
        // The name of a file that breaks a promise is otherwise lost with the panic.
        std::panic::catch_unwind(|| check(&body))
            .unwrap_or_else(|_| panic!("{} breaks a promise", path.display()));
        files += 1;
    }
    assert!(files >= 10, "{files} files in {}", folder.display());
}
