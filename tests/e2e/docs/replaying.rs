//! REPLAY.md: its commands and its configuration against real servers.

use std::fs;
use std::path::Path;
use std::process::Output;

use walrelay_testkit::{Db, History, eventually};

use super::{block, insert, shell, succeeded};
use crate::rig::{PATIENCE, Rig};

const DOCUMENT: &str = "docs/REPLAY.md";

/// Runs a block beside `walrelay.toml`.
fn run(name: &str, dir: &Path) -> Output {
    let mut command = shell(&block(DOCUMENT, name));
    command.current_dir(dir).output().expect("a shell")
}

#[test]
fn commands_of_the_page_do_what_it_says() {
    let rig = Rig::with_outbox(18);
    let retention = block(DOCUMENT, "retention");
    let config = rig.config_with(&rig.postgres.url(), &format!("\n{retention}\n"));
    let dir = config.parent().expect("a folder");
    let relay = rig.streaming(&config);
    relay.says("the rolling bookmark is made");
    let db = Db::connect(&rig.postgres.url());
    insert(&db, "key", 1);
    rig.caught_up();
    let said = succeeded(&run("bookmark", dir));
    for words in [
        "created bookmark before_release",
        "BOOKMARK",
        "rolling",
        "dropped slot",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    succeeded(&run("replay", dir));
    let events = fs::read_to_string(dir.join("events.jsonl")).expect("the events");
    assert_eq!(events.lines().count(), 1, "{events}");
    eventually(PATIENCE, || {
        !History::records(&rig.bootstrap, "repaired", 1, PATIENCE).is_empty()
    });
    relay.ends_well();
}
