//! Sets the version that `walrelay --version` prints. A release of a checkout has its commit, too, and
//! so has one that is built from other sources with `WALRELAY_COMMIT` set.

use std::env;
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=WALRELAY_COMMIT");
    let version = env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let commit = commit().map_or_else(String::new, |commit| format!(" ({commit})"));
    println!("cargo::rustc-env=WALRELAY_VERSION={version}{commit}");
}

/// Returns hash and date of the commit that is built, as `0ab262a 2026-11-27`: what `WALRELAY_COMMIT`
/// says, otherwise the repository. `None` for other profiles than releases, which would be built anew
/// after each commit, and for sources of which neither knows.
fn commit() -> Option<String> {
    let of_release = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    if !of_release {
        return None;
    }
    let given = env::var("WALRELAY_COMMIT").ok();
    if let Some(commit) = given.filter(|commit| !commit.trim().is_empty()) {
        return Some(commit.trim().to_owned());
    }
    if !Path::new("../../.git").exists() {
        return None;
    }
    // HEAD names a branch, and this file changes with each commit of it.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo::rerun-if-changed={log}");
    }
    git(&["log", "-1", "--format=%h %cs"])
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let text = text.trim();
    (output.status.success() && !text.is_empty()).then(|| text.to_owned())
}
