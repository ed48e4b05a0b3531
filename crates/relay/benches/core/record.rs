//! The record of the instructions that were counted last, a file beside the code.

use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use toml::{Table, Value};

use crate::parts::PARTS;

const PATH: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/benches/core/instructions.toml"
);

/// Instructions per row, with the compiler and the target, on which they depend, too.
#[derive(Debug)]
pub(crate) struct Record {
    rustc: String,
    target: String,
    instructions: Table,
}

impl Record {
    /// Reads the record from the file, if there is one.
    pub(crate) fn read() -> Option<Self> {
        let mut kept: Table = fs::read_to_string(PATH).ok()?.parse().expect("a TOML file");
        let mut text = |key: &str| match kept.remove(key) {
            Some(Value::String(text)) => text,
            other => panic!("{PATH}: {key} is {other:?}"),
        };
        Some(Self {
            rustc: text("rustc"),
            target: text("target"),
            instructions: match kept.remove("instructions") {
                Some(Value::Table(instructions)) => instructions,
                other => panic!("{PATH}: instructions is {other:?}"),
            },
        })
    }

    pub(crate) fn from_this_machine(counts: Vec<f64>) -> Self {
        let output = Command::new("rustc")
            .arg("-vV")
            .output()
            .expect("rustc runs");
        let output = String::from_utf8(output.stdout).expect("text");
        let field = |name: &str| {
            let line = output.lines().find_map(|line| line.strip_prefix(name));
            line.expect("rustc names it").to_owned()
        };
        let tenths = |count: f64| Value::Float((count * 10.0).round() / 10.0);
        let names = PARTS.iter().map(|(name, _)| (*name).to_owned());
        Self {
            rustc: field("release: "),
            target: field("host: "),
            instructions: names.zip(counts.into_iter().map(tenths)).collect(),
        }
    }

    /// Returns the instructions per row of a part.
    pub(crate) fn instructions_of(&self, part: &str) -> Option<f64> {
        self.instructions.get(part)?.as_float()
    }

    /// Returns true if compiler and target are the same, so that the numbers can be compared.
    pub(crate) fn is_of_the_same(&self, other: &Self) -> bool {
        (&self.rustc, &self.target) == (&other.rustc, &other.target)
    }

    /// Returns the names of compiler and target.
    pub(crate) fn machine(&self) -> String {
        format!("rustc {} for {}", self.rustc, self.target)
    }

    pub(crate) fn write(self) {
        let mut text = format!(
            "# Instructions per row: BENCH_RECORD=1 make bench-core.\nrustc = {:?}\ntarget = {:?}\n\n[instructions]\n",
            self.rustc, self.target
        );
        for (part, _) in PARTS {
            if let Some(count) = self.instructions_of(part) {
                writeln!(text, "{part:?} = {count:.1}").expect("a String takes all");
            }
        }
        fs::write(PATH, text).expect("the record is written");
    }
}
