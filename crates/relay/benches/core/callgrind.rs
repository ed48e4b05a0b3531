//! Counts instructions with valgrind: the difference between runs of this program with few and with
//! many passes over the rows, so that start and preparation do not count.

use std::env;
use std::process::{Command, Stdio};

use crate::parts::{PARTS, ROWS};

/// Arguments `FLAG part passes`: run only these passes of this part.
pub(crate) const FLAG: &str = "--passes";
const FEW: u64 = 2;
const MANY: u64 = 12;

/// Instructions per row of each part, or why they cannot be counted.
pub(crate) fn count() -> Result<Vec<f64>, String> {
    let version = Command::new("valgrind").arg("--version").output();
    if !version.is_ok_and(|output| output.status.success()) {
        return Err(
            "valgrind does not run; Debian and Ubuntu have it as a package, valgrind".to_owned(),
        );
    }
    let parts = PARTS.iter().map(|(name, _)| {
        let more = instructions(name, MANY)?.checked_sub(instructions(name, FEW)?);
        let more = more.ok_or("more passes took fewer instructions")?;
        Ok(more as f64 / ((MANY - FEW) as f64 * ROWS as f64))
    });
    parts.collect()
}

fn instructions(part: &str, passes: u64) -> Result<u64, String> {
    let own = env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(own)
        .args([FLAG, part, &passes.to_string()])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("valgrind: {error}"))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    // "==123== Collected : 1234567"
    let collected = stderr
        .lines()
        .find_map(|line| line.split_once("Collected : "))
        .and_then(|(_, number)| number.trim().parse().ok());
    match collected {
        Some(number) if output.status.success() => Ok(number),
        _ => Err(format!("valgrind ended with {}: {stderr}", output.status)),
    }
}
