//! What proc(5) says of processes and of the machine.

use std::fs;
use std::process::Command;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

/// Seconds of CPU a process has used; `None` when it is gone. One that has ended and was not waited
/// for still has them.
pub(crate) fn cpu(pid: u32) -> Option<f64> {
    seconds(&format!("/proc/{pid}/stat"))
}

/// Of CPU, by a `stat`.
fn seconds(stat: &str) -> Option<f64> {
    let fields = fields(stat)?;
    // Fields 14 and 15, utime and stime; the first two are cut off.
    let ticks: Option<u64> = [11, 12]
        .iter()
        .map(|i| fields[*i].parse::<u64>().ok())
        .sum();
    Some(ticks? as f64 / ticks_per_second())
}

/// Whether it has ended and was not waited for.
pub(crate) fn is_zombie(pid: u32) -> bool {
    fields(&format!("/proc/{pid}/stat")).is_none_or(|fields| fields[0] == "Z")
}

/// What follows the name in a `stat`, from the state on.
fn fields(stat: &str) -> Option<Vec<String>> {
    let text = fs::read_to_string(stat).ok()?;
    let rest = text.rsplit_once(") ")?.1;
    Some(rest.split_whitespace().map(str::to_owned).collect())
}

/// A line of `/proc/<pid>/status` in MB (10^6 bytes), such as `VmRSS` or `VmHWM`; `None` when it is
/// gone.
pub(crate) fn memory(pid: u32, name: &str) -> Option<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: f64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024.0 / 1e6)
}

/// Seconds of CPU that the machine has spent on work, of all processors.
pub(crate) fn machine_cpu() -> f64 {
    let text = fs::read_to_string("/proc/stat").expect("Linux's /proc");
    let line = text.lines().next().expect("a first line");
    // user nice system idle iowait irq softirq
    let ticks: Vec<u64> = line
        .split_whitespace()
        .skip(1)
        .map(|word| word.parse().expect("a number"))
        .collect();
    let busy = ticks[0] + ticks[1] + ticks[2] + ticks[5] + ticks[6];
    busy as f64 / ticks_per_second()
}

fn ticks_per_second() -> f64 {
    static TICKS: OnceLock<f64> = OnceLock::new();
    *TICKS.get_or_init(|| say("getconf", &["CLK_TCK"]).parse().unwrap_or(100.0))
}

/// The first line a program prints.
pub(crate) fn say(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output();
    let bytes = output.map_or_else(
        |_| Vec::new(),
        |output| [output.stdout, output.stderr].concat(),
    );
    let text = String::from_utf8_lossy(&bytes);
    text.lines().next().unwrap_or("?").trim().to_owned()
}

/// Waits for a machine that does nothing else, as long as its patience lasts.
pub(crate) struct Quiet {
    patience: Duration,
}

impl Quiet {
    /// Part of one processor that may be busy.
    const BUSY: f64 = 0.1;
    const LOOK: Duration = Duration::from_millis(500);

    pub(crate) fn new(patience: Duration) -> Self {
        Self { patience }
    }

    pub(crate) fn wait(&mut self) {
        loop {
            let (begun, before) = (Instant::now(), machine_cpu());
            thread::sleep(Self::LOOK);
            let busy = (machine_cpu() - before) / begun.elapsed().as_secs_f64();
            if busy <= Self::BUSY || self.patience.is_zero() {
                return;
            }
            self.patience = self.patience.saturating_sub(begun.elapsed());
        }
    }
}
