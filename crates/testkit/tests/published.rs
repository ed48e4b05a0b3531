//! Each published crate must build from its package, which has the files of its folder only. Files of other folders
//! that a program ships are linked into the crate's folder `shipped`: a package has what a link names.

#![allow(
    clippy::expect_used,
    reason = "a test's helpers may panic as the test itself may"
)]

use std::fs;
use std::path::{Component, Path, PathBuf};

#[test]
fn a_published_crate_includes_files_of_its_own_folder_only() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut included = 0;
    for folder in entries(&crates) {
        let Ok(manifest) = fs::read_to_string(folder.join("Cargo.toml")) else {
            continue;
        };
        if manifest.contains("publish = false") {
            continue;
        }
        for file in sources(&folder.join("src")) {
            let text = fs::read_to_string(&file).expect("a source");
            // Tests are not built from a package.
            let code = text.split("\nmod tests {").next().unwrap_or_default();
            for path in ["include_str!(", "include_bytes!("]
                .iter()
                .flat_map(|include| code.split(include).skip(1))
                .filter_map(|rest| rest.trim_start().strip_prefix('"')?.split('"').next())
            {
                included += 1;
                let named = lexical(&file.parent().expect("a folder").join(path));
                assert!(
                    named.starts_with(lexical(&folder)),
                    "{} includes {path}, which its package lacks: link it in {}/shipped",
                    file.display(),
                    folder.display()
                );
                assert!(named.is_file(), "{} is missing", named.display());
            }
        }
    }
    assert!(included > 5, "only {included} files are included");
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder");
    entries
        .map(|entry| entry.expect("an entry").path())
        .collect()
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for path in entries(folder) {
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs")
            && !path.to_string_lossy().ends_with("tests.rs")
        {
            found.push(path);
        }
    }
    found
}

/// The path without `..`, and without following links.
fn lexical(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                plain.pop();
            }
            Component::CurDir => {}
            other => plain.push(other),
        }
    }
    plain
}
