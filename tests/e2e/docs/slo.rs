//! docs/operate: the objective of `[slo]`. The rules that `walrelay alerts` prints are those that the tests of the
//! rules read, and a running relay shows its budget.

use walrelay_testkit::eventually;

use super::{block, text};
use crate::endpoint::{LISTEN, address, at, metric};
use crate::rig::{PATIENCE, Rig, assert_has, insert_of, output_with, stdout};

#[test]
fn the_objective_of_the_page_is_shown_and_makes_rules() {
    let rig = Rig::with_outbox(17);
    let slo = block("docs/operate/alerts.md", "slo");
    let config = rig.config_and(&format!("\n{slo}\n{LISTEN}"));
    let rules = stdout(&output_with("alerts", &config, &[]));
    let (_, burning) = rules
        .split_once("      - alert: WalrelaySloBurnsFast")
        .expect("a rule");
    assert!(text("deploy/prometheus/slo.yml").ends_with(burning));
    // Each event is later than that.
    let relay = rig.start_with(&config, &["--set", "slo.commit_to_ack=1ms"]);
    relay.streaming();
    let address = address(&relay);
    let missed = || {
        insert_of(&rig.db(), "order", "k", 1);
        metric(address, "walrelay_slo_missed_seconds_total") > Some(0.0)
    };
    eventually(PATIENCE, missed);
    let shown = stdout(&output_with("status", &config, &[&at(address)]));
    assert_has(
        &shown,
        &["of the budget left", "later than 0.001 s (99.9 %)"],
    );
    rig.caught_up();
    relay.ends_well();
}
