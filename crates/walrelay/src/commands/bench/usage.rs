//! CPU and memory as proc(5) tells them; nothing where there is no such thing.

use std::fs;

/// Seconds of CPU this process has used so far.
pub(super) fn own_cpu() -> Option<f64> {
    cpu("self")
}

/// The same of a server's process, if it runs on this machine.
pub(super) fn walsender_cpu(pid: i32) -> Option<f64> {
    // On another machine the number may belong to anything here.
    let title = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let title = String::from_utf8_lossy(&title);
    let is_walsender = title.starts_with("postgres") && title.contains("walsender");
    is_walsender.then(|| cpu(&pid.to_string())).flatten()
}

fn cpu(process: &str) -> Option<f64> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name in brackets may hold anything; utime and stime are fields 14 and 15 of the whole.
    let (_, rest) = text.rsplit_once(") ")?;
    let mut fields = rest.split(' ').skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    Some((ticks()? + ticks()?) as f64 / ticks_per_second()?)
}

/// `AT_CLKTCK` of the auxiliary vector: pairs of numbers as wide as a pointer.
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

/// The most memory this process had resident since [`forget_peak`], in bytes.
pub(super) fn peak_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

/// Measures the peak anew from here on, where the system can.
pub(super) fn forget_peak() {
    // Without it the peak is that of the whole run so far, which is not less.
    let _ = fs::write("/proc/self/clear_refs", "5");
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_used_something() {
        let begun = own_cpu().expect("Linux tells");
        while own_cpu().expect("Linux tells") <= begun {
            std::hint::spin_loop();
        }
        assert!(peak_memory().expect("Linux tells") > 100_000);
    }

    #[test]
    fn another_process_is_no_walsender() {
        let own = i32::try_from(std::process::id()).expect("a pid");
        assert_eq!(walsender_cpu(own), None);
        assert_eq!(walsender_cpu(-1), None);
    }
}
