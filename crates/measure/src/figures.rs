//! Percentiles and medians, the machine they were measured on, and their formatting.

use std::fmt;
use std::fs;
use std::thread;

use serde::Serialize;

/// Percentiles of a duration, in milliseconds.
#[derive(Debug, Clone, Copy, Serialize)]
#[expect(missing_docs, reason = "the names of percentiles")]
pub struct Spread {
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub max: f64,
}

impl Spread {
    /// Builds the percentiles from a function of the share (0 to 1); `None` if it returns `None`.
    pub fn by(at: impl Fn(f64) -> Option<f64>) -> Option<Self> {
        Some(Self {
            p50: at(0.5)?,
            p90: at(0.9)?,
            p99: at(0.99)?,
            max: at(1.0)?,
        })
    }

    /// Computes the percentiles of durations in microseconds, and sorts the durations; `None` if
    /// there are none.
    pub fn from_micros(micros: &mut [i64]) -> Option<Self> {
        micros.sort_unstable();
        let last = micros.len().checked_sub(1)?;
        Self::by(|share| Some(micros[(last as f64 * share).round() as usize] as f64 / 1e3))
    }

    /// Returns the median of each percentile.
    pub fn median(spreads: &[Self]) -> Self {
        let of = |figure: fn(&Self) -> f64| median(spreads.iter().map(figure));
        Self {
            p50: of(|spread| spread.p50),
            p90: of(|spread| spread.p90),
            p99: of(|spread| spread.p99),
            max: of(|spread| spread.max),
        }
    }
}

/// Cells of a Markdown table, without the bars at its ends.
impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { p50, p90, p99, max } = self;
        write!(f, "{p50:.2} | {p90:.2} | {p99:.2} | {max:.2}")
    }
}

/// Returns the median; NaN if there are no values.
pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}

/// Formats two decimal places and the unit, or a dash for a figure that was not measured.
pub fn known(figure: impl Into<Option<f64>>, unit: &str) -> String {
    match figure.into().filter(|figure| figure.is_finite()) {
        Some(figure) => format!("{figure:.2}{unit}"),
        None => "–".to_owned(),
    }
}

/// Returns a number with `places` decimal places.
pub fn fixed(places: usize, figure: f64) -> String {
    format!("{figure:.places$}")
}

/// Returns a whole number with separators of thousands.
pub fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The machine that a measurement ran on.
#[derive(Debug, Serialize)]
pub struct Machine {
    /// Number of processors that this process may use.
    pub processors: usize,
    /// Model name of the processors.
    pub model: Option<String>,
    /// Operating system, such as `linux`.
    pub system: &'static str,
    /// Release of the kernel.
    pub kernel: Option<String>,
    /// Memory in MB (10^6 bytes).
    pub memory_mb: Option<u64>,
}

impl Machine {
    /// Describes this machine.
    pub fn here() -> Self {
        let field = |file: &str, name: &str| {
            let text = fs::read_to_string(file).ok()?;
            let line = text.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let memory = field("/proc/meminfo", "MemTotal");
        let kib = memory.and_then(|text| text.trim_end_matches(" kB").parse::<u64>().ok());
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").ok();
        Self {
            processors: thread::available_parallelism().map_or(0, usize::from),
            model: field("/proc/cpuinfo", "model name"),
            system: std::env::consts::OS,
            kernel: kernel.map(|text| text.trim().to_owned()),
            memory_mb: kib.map(|kib| kib * 1024 / 1_000_000),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_shown() {
        assert_eq!(thousands(1_234_567.4), "1,234,567");
        assert_eq!(thousands(f64::NAN), "NaN");
        assert_eq!(known(1.234, " MB"), "1.23 MB");
        assert_eq!(known(f64::NAN, ""), "–");
        assert!((median([3.0, 1.0, 2.0, 4.0].into_iter()) - 2.5).abs() < 1e-9);
        let spread = Spread::from_micros(&mut [3_000, 1_000, 2_000]).unwrap();
        assert_eq!(spread.to_string(), "2.00 | 3.00 | 3.00 | 3.00");
        assert!(Spread::from_micros(&mut []).is_none());
    }
}
