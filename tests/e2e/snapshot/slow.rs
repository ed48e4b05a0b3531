//! A relay that gets little CPU reads its snapshot once, slowly.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::Duration;

use walrelay_testkit::eventually;
use walrelay_throwaway::Signal;

use super::gate::{GATED, Gate};
use super::{INITIAL, fill, rig};
use crate::rig::{PATIENCE, Relay, assert_lacks, with_source};

/// The process runs for `RUNS`, then is stopped for `STOPPED`, as a CPU limit of a cgroup does it. The
/// stops are shorter than the lease by far.
const RUNS: Duration = Duration::from_millis(8);
const STOPPED: Duration = Duration::from_millis(92);

/// Ends the stops, also if the work panics.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Gives the relay a share of the CPU while `work` runs.
fn with_little_cpu(relay: &Relay, work: impl FnOnce()) {
    let over = AtomicBool::new(false);
    scope(|scope| {
        let _over = Over(&over);
        scope.spawn(|| {
            while !over.load(Ordering::SeqCst) {
                relay.signal(Signal::Stop);
                sleep(STOPPED);
                relay.signal(Signal::Cont);
                sleep(RUNS);
            }
        });
        work();
    });
}

#[test]
fn a_snapshot_with_little_cpu_is_read_once() {
    let rig = rig(15);
    fill(&rig, 99_000);
    let lines = format!("{INITIAL}\nwal_sender_timeout = \"1s\"");
    let relay = rig.start(&with_source(rig.config(), &lines));
    relay.says("the snapshot begins");
    with_little_cpu(&relay, || {
        eventually(PATIENCE * 2, || rig.slot().read().is_some());
    });
    eprintln!("{}", relay.log());
    relay.streaming();
    assert_eq!(
        relay.log().matches("the snapshot begins").count(),
        1,
        "{}",
        relay.log()
    );
    rig.finish(relay).assert_nothing_repeated();
}

/// A server that answers too late for the lease makes the relay read the first rows again. The lease is
/// longer then, so that the snapshot comes to its end however slow the server is.
#[test]
fn the_lease_is_longer_after_a_late_proof() {
    let rig = rig(15);
    rig.workload().rows(1_000).seed(16).run();
    let gate = Gate::new(&rig);
    let (proxy, url) = rig.proxy();
    let lines = format!("{GATED}\nwal_sender_timeout = \"1s\"");
    let relay = rig.start(&with_source(rig.config_with(&url, ""), &lines));
    relay.says("streaming the snapshot");
    proxy.stall();
    relay.says("may be read by another relay");
    proxy.resume();
    relay.says("doubled its time");
    relay.says_often("streaming the snapshot", 2);
    gate.open();
    relay.says("the snapshot is complete");
    assert_lacks(&relay.log(), &["a new one is made"]);
    rig.finish(relay).assert_clean_but_for_ragged();
}
