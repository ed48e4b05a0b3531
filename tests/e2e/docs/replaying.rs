//! docs/how-to/replay.md: its commands and its configuration, with real servers.

use std::fs;
use std::path::Path;

use walrelay_testkit::eventually;

use super::{block, shell};
use crate::rig::{PATIENCE, Rig, assert_has, insert, stdout};

const DOCUMENT: &str = "docs/how-to/replay.md";

/// Runs a block in the directory of `walrelay.toml`.
#[track_caller]
fn run(name: &str, dir: &Path) -> String {
    let mut command = shell(&block(DOCUMENT, name));
    stdout(&command.current_dir(dir).output().expect("a shell"))
}

#[test]
fn commands_of_the_page_do_what_it_says() {
    let rig = Rig::with_outbox(18);
    let retention = block(DOCUMENT, "retention");
    let config = rig.config_and(&format!("\n{retention}\n"));
    let dir = config.parent().expect("a folder");
    let relay = rig.streaming(&config);
    relay.says("the rolling bookmark is made");
    let db = rig.db();
    insert(&db, 1);
    rig.caught_up();
    let said = run("bookmark", dir);
    let parts = [
        "created bookmark before_release",
        "BOOKMARK",
        "rolling",
        "dropped slot",
    ];
    assert_has(&said, &parts);
    run("replay", dir);
    let events = fs::read_to_string(dir.join("events.jsonl")).expect("the events");
    assert_eq!(events.lines().count(), 1, "{events}");
    eventually(PATIENCE, || !rig.records_in("repaired", 1).is_empty());
    relay.ends_well();
}
