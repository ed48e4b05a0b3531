//! Figures and tables for people.

use std::io::{self, Write};

/// Bytes in the largest unit of 1024 that leaves at least one: `12.3 MiB`.
pub(super) fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let mut value = count as f64;
    let mut unit = "B";
    for next in UNITS {
        // What would be rounded to 1024.0 belongs to the next unit.
        if value < 1023.95 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    format!("{value:.1} {unit}")
}

/// How much is done, where the whole is not known exactly: `[####......]  40 %, 400 of about 1000 rows`.
pub(super) fn bar(done: u64, expected: u64) -> String {
    if expected == 0 {
        return format!("{done} rows");
    }
    let part = (done as f64 / expected as f64).min(1.0);
    format!("{}, {done} of about {expected} rows", part_done(part))
}

/// A part of the whole, 0 to 1, as a picture and a percentage.
pub(super) fn part_done(part: f64) -> String {
    const WIDTH: usize = 24;
    let filled = ((part * WIDTH as f64) as usize).min(WIDTH);
    let (done, left) = ("#".repeat(filled), ".".repeat(WIDTH - filled));
    format!("[{done}{left}] {:3.0} %", part * 100.0)
}

/// Writes rows of as many cells as the first has, lined up.
pub(super) fn columns(rows: &[Vec<String>], out: &mut dyn Write) -> io::Result<()> {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in rows {
        let cells = row.iter().zip(&widths);
        let cells: Vec<String> = cells
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        writeln!(out, "{}", cells.join("  ").trim_end())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{bar, bytes};

    #[test]
    fn bars() {
        for (done, expected, text) in [
            (0, 0, "0 rows"),
            (7, 0, "7 rows"),
            (0, 8, "[........................]   0 %, 0 of about 8 rows"),
            (4, 8, "[############............]  50 %, 4 of about 8 rows"),
            (9, 8, "[########################] 100 %, 9 of about 8 rows"),
        ] {
            assert_eq!(bar(done, expected), text);
        }
    }

    #[test]
    fn units() {
        for (count, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            (1 << 20, "1.0 MiB"),
            (12_900_000_000, "12.0 GiB"),
            (u64::MAX, "16384.0 PiB"),
        ] {
            assert_eq!(bytes(count), text);
        }
    }
}
