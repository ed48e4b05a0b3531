//! CPU and memory of processes from proc(5); `None` on systems without it.

use std::fmt::Display;
use std::fs;

/// Returns the CPU seconds that a process has used so far. `process` is its pid or `self`. The
/// figure stays readable after the process has ended, until it is reaped.
pub fn cpu(process: impl Display) -> Option<f64> {
    let fields = fields(process)?;
    // utime and stime are fields 14 and 15 of `stat`; `fields` begins with the third.
    let ticks = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some((ticks(11)? + ticks(12)?) as f64 / ticks_per_second()?)
}

/// Returns the CPU seconds of a walsender; `None` if `pid` is no walsender of this machine.
pub fn walsender_cpu(pid: i32) -> Option<f64> {
    // The server may run on another machine; the pid may then be any process here.
    let title = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let title = String::from_utf8_lossy(&title);
    let is_walsender = title.starts_with("postgres") && title.contains("walsender");
    is_walsender.then(|| cpu(pid)).flatten()
}

/// Returns the CPU seconds that all processors of the machine have spent on work.
pub fn machine_cpu() -> Option<f64> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    // user nice system idle iowait irq softirq
    let words = text.lines().next()?.split_whitespace().skip(1);
    let ticks: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
    let busy: Option<u64> = [0, 1, 2, 5, 6].iter().map(|at| ticks.get(*at)).sum();
    Some(busy? as f64 / ticks_per_second()?)
}

/// Returns whether a process has ended, reaped or not.
pub fn has_ended(pid: u32) -> bool {
    fields(pid).is_none_or(|fields| fields.first().is_none_or(|state| state == "Z"))
}

/// Returns the fields of `/proc/<process>/stat` after the name, from the state on. The name may
/// contain any character, also spaces and brackets.
fn fields(process: impl Display) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let rest = text.rsplit_once(") ")?.1;
    Some(rest.split_whitespace().map(str::to_owned).collect())
}

/// Returns a line of `/proc/<process>/status` in bytes, such as `VmRSS` (resident memory) or
/// `VmHWM` (its peak).
pub fn memory(process: impl Display, name: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib = line.trim_start_matches(':').split_whitespace().next()?;
    Some(kib.parse::<u64>().ok()? * 1024)
}

/// Returns whether this process runs as root, by its effective user id.
pub fn is_root() -> Option<bool> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    // The real, effective, saved and file system ids.
    let ids = text.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    Some(ids.split_whitespace().nth(1)? == "0")
}

/// Returns whether the system may write the memory of this process to a file when it crashes: the soft limit
/// `RLIMIT_CORE` is not 0.
pub fn may_dump_core() -> Option<bool> {
    let text = fs::read_to_string("/proc/self/limits").ok()?;
    let mut lines = text.lines();
    let limit = lines.find_map(|line| line.strip_prefix("Max core file size"))?;
    Some(limit.split_whitespace().next()? != "0")
}

/// Resets the peak memory (`VmHWM`) of this process, where the system can.
pub fn forget_peak() {
    // If this fails, the peak is that of the whole run so far: too high, never too low.
    let _ = fs::write("/proc/self/clear_refs", "5");
}

/// Returns the clock ticks per second: `AT_CLKTCK` of the auxiliary vector, which is pairs of
/// pointer-sized numbers.
fn ticks_per_second() -> Option<f64> {
    const AT_CLKTCK: usize = 17;
    const WIDTH: usize = size_of::<usize>();
    let vector = fs::read("/proc/self/auxv").ok()?;
    let number = |bytes: &[u8]| Some(usize::from_ne_bytes(bytes.try_into().ok()?));
    let entry = vector
        .chunks_exact(2 * WIDTH)
        .find(|entry| number(&entry[..WIDTH]) == Some(AT_CLKTCK))?;
    let ticks = number(&entry[WIDTH..])?;
    (ticks > 0).then_some(ticks as f64)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_used_something() {
        let begun = cpu("self").unwrap();
        while cpu("self").unwrap() <= begun {
            std::hint::spin_loop();
        }
        assert!(memory("self", "VmHWM").unwrap() > 100_000);
        assert!(machine_cpu().unwrap() > 0.0);
        assert!(!has_ended(std::process::id()));
    }

    #[test]
    fn another_process_is_no_walsender() {
        let own = i32::try_from(std::process::id()).unwrap();
        assert_eq!(walsender_cpu(own), None);
        assert_eq!(walsender_cpu(-1), None);
    }
}
