//! What a destination has lost while no relay ran, or under a former one, is shown until it is accepted; and so is
//! how the former run ended.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use walrelay_testkit::{Nats, NatsClient, Redis, eventually};

use crate::check::Checked;
use crate::endpoint::{address, at, config as config_with_endpoint, metric, status};
use crate::rig::{
    PATIENCE, Relay, Rig, assert_has, assert_lacks, insert_of, output_with, said, stdout,
};
use crate::shown::Views;

const ELSEWHERE: &str = "--set=http.listen=127.0.0.1:9";
const LOST: &str = "has lost events that it had acknowledged";

/// The losses in the document of a relay.
fn losses(relay: &Relay) -> Value {
    status(address(relay))["sink"]["losses"].clone()
}

/// Waits until the note of this run is in the database, and has these words.
fn noted(rig: &Rig, words: &[&str]) {
    let db = rig.db();
    let exists = || db.value::<bool>("SELECT to_regclass('walrelay_state.run') IS NOT NULL");
    eventually(PATIENCE, exists);
    let note =
        || -> String { db.value("SELECT coalesce((SELECT note FROM walrelay_state.run), '')") };
    eventually(PATIENCE, || words.iter().all(|word| note().contains(word)));
}

/// A destination loses the stream's events twice: while no relay runs, and under a relay that is killed afterwards.
/// `lose`: makes the destination lose them. `under`: it is seen under a running relay, too.
fn is_shown_until_it_is_accepted(
    rig: &Rig,
    config: &Path,
    stream: &str,
    lose: &mut dyn FnMut(),
    under: bool,
) {
    let db = rig.db();
    let insert = |numbers: std::ops::Range<u32>| {
        for number in numbers {
            insert_of(&db, "order", "key", number);
        }
        rig.caught_up();
    };
    let relay = rig.streaming(config);
    assert_eq!(status(address(&relay))["former_run"], Value::Null);
    insert(0..5);
    relay.ends_well();
    lose();

    // No event is written: the comparison shows it.
    let relay = rig.streaming(config);
    let words = [LOST, stream, "entries are gone"];
    let views = Views::new(config, &relay);
    views.show_problem(&words, "walrelay replay --from", "WalrelayDestinationLost");
    let loss = losses(&relay)[0].clone();
    let (from, to) = (loss["from"].as_str(), loss["to"].as_str());
    assert!(from < to, "{loss}");
    assert!(metric(address(&relay), "walrelay_destination_lost_events_total") >= Some(1.0));
    let former = status(address(&relay))["former_run"].clone();
    assert_eq!(former["starts"], 1, "{former}");
    assert!(
        former["ended_ms"].is_u64() && former["error_id"].is_null(),
        "{former}"
    );
    assert_eq!(
        metric(address(&relay), "walrelay_former_run_killed"),
        Some(0.0)
    );
    insert(5..8);
    let mut count = 1;
    if under {
        lose();
        insert(8..12);
        eventually(PATIENCE, || losses(&relay)[1]["stream"] == *stream);
        count = 2;
    }
    let all = losses(&relay);
    noted(
        rig,
        &[&format!("\"seen_ms\":{}", all[count - 1]["seen_ms"])],
    );
    relay.kill();
    rig.slot().wait_inactive(PATIENCE);

    // While no relay runs.
    let text = stdout(&output_with("status", config, &[ELSEWHERE]));
    let words = [
        "run before     started at 20",
        "left no sign of its end",
        LOST,
        "--accept-loss",
    ];
    assert_has(&text, &words);
    let checked = Checked::run(config, &[ELSEWHERE]);
    let remedy = "walrelay run --accept-loss";
    checked.warns(
        "relay/losses",
        &[LOST, stream, "walrelay replay --from", remedy],
    );
    assert_eq!(checked.all("relay/losses").len(), count);

    // The next relay has not seen them by itself, and shows them, with how the one before ended.
    let relay = rig.streaming(config);
    assert_eq!(losses(&relay), all);
    assert_eq!(
        metric(address(&relay), "walrelay_destination_lost_events_total"),
        Some(0.0)
    );
    let views = Views::new(config, &relay);
    views.show_problem(&[LOST, stream], remedy, "WalrelayDestinationLost");
    let seen = status(address(&relay));
    assert_eq!(seen["former_run"]["ended_ms"], Value::Null, "{seen:#}");
    assert_eq!(seen["former_run"]["starts"], 2, "{seen:#}");
    assert_eq!(
        metric(address(&relay), "walrelay_former_run_killed"),
        Some(1.0)
    );
    assert_eq!(
        metric(address(&relay), "walrelay_former_runs_total"),
        Some(2.0)
    );
    let problems = seen["problems"].to_string();
    assert_has(
        &problems,
        &["The run before left no sign of its end", "journalctl -k"],
    );
    relay.ends_well();

    // Accepted, they are gone for good, and later losses are not.
    let relay = rig.start_with(config, &["--accept-loss"]);
    relay.says("accepted by --accept-loss");
    relay.streaming();
    assert_eq!(losses(&relay), json!([]));
    insert(12..14);
    noted(rig, &["\"starts\":4"]);
    let checked = Checked::run(config, &[&at(address(&relay))]);
    assert_eq!(checked.all("relay/losses").len(), 0);
    relay.ends_well();
    let relay = rig.streaming(config);
    assert_eq!(losses(&relay), json!([]));
    relay.ends_well();
    let text = stdout(&output_with("status", config, &[ELSEWHERE]));
    assert_has(
        &text,
        &["run before     started at 20", "and was stopped at"],
    );
    assert_lacks(&text, &[LOST]);
}

#[test]
fn streams_of_redis_that_were_flushed() {
    if !Redis::is_wanted() {
        return;
    }
    let server = Redis::start();
    let rig = Rig::without_broker(18).outbox();
    let stream = format!("{}order", rig.prefix);
    let more = format!(
        "[sink]\nkind = \"redis\"\n[sink.redis]\nhosts = [\"127.0.0.1:{}\"]\nstream = \"{stream}\"\n",
        server.port(),
    );
    let config = config_with_endpoint(&rig, &rig.postgres.url(), &more);
    let mut client = server.client();
    let mut lose = || {
        client.run("FLUSHALL");
    };
    is_shown_until_it_is_accepted(&rig, &config, &stream, &mut lose, true);
}

/// The configuration of a relay of this stream, and the stream.
fn nats(rig: &Rig, server: &Nats, exclusive: bool) -> (PathBuf, String) {
    let name = rig.prefix.trim_end_matches(['-', '_', '.']);
    let stream = format!("{}_events", name.replace('.', "_"));
    let exclusive = exclusive.then(|| format!("exclusive_stream = \"{stream}\""));
    let more = format!(
        "[sink]\nkind = \"nats\"\n[sink.nats]\nhosts = [\"127.0.0.1:{}\"]\nsubject = \"{stream}\"\n{}\n",
        server.port(),
        exclusive.unwrap_or_default()
    );
    (
        config_with_endpoint(rig, &rig.postgres.url(), &more),
        stream,
    )
}

fn nats_stream(lose: fn(&mut NatsClient, &str), exclusive: bool, under: bool) {
    if !Nats::is_wanted() {
        return;
    }
    let server = Nats::shared();
    let rig = Rig::without_broker(17).outbox();
    let (config, stream) = nats(&rig, server, exclusive);
    let mut client = server.client();
    client.create_stream(&stream, &[&stream], &json!({}));
    is_shown_until_it_is_accepted(
        &rig,
        &config,
        &stream,
        &mut || lose(&mut client, &stream),
        under,
    );
    client.delete_stream(&stream);
}

fn made_again(client: &mut NatsClient, stream: &str) {
    client.delete_stream(stream);
    client.create_stream(stream, &[stream], &json!({}));
}

fn purged(client: &mut NatsClient, stream: &str) {
    client.api(&format!("STREAM.PURGE.{stream}"), &json!({}));
}

tests! {
    fn a_stream_of_nats_that_was_made_again() { nats_stream(made_again, false, true) }
    fn an_exclusive_stream_of_nats_that_was_made_again() { nats_stream(made_again, true, true) }
    fn a_stream_of_nats_that_was_purged() { nats_stream(purged, false, false) }
    fn an_exclusive_stream_of_nats_that_was_purged() { nats_stream(purged, true, false) }
}

/// A role that may create nothing notes its run alongside its state file.
#[test]
fn a_role_that_may_not_write_notes_its_run_alongside_the_state_file() {
    let rig = Rig::with_outbox(16);
    rig.db().batch(
        "CREATE ROLE least LOGIN REPLICATION PASSWORD 'hunter2'; \
         REVOKE CREATE ON DATABASE postgres FROM PUBLIC",
    );
    rig.create_slot();
    let url = rig.url_as("least", "hunter2", "postgres");
    let state_file = rig.path("state");
    let line = format!("state_file = \"{}\"", state_file.display());
    let config = crate::rig::with_source(config_with_endpoint(&rig, &url, ""), &line);
    let file = rig.path("state.run");
    let relay = rig.streaming(&config);
    eventually(PATIENCE, || file.exists());
    relay.kill();
    rig.slot().wait_inactive(PATIENCE);
    let relay = rig.streaming(&config);
    let former = status(address(&relay))["former_run"].clone();
    assert_eq!(
        (&former["starts"], &former["ended_ms"]),
        (&json!(1), &Value::Null)
    );
    relay.ends_well();
    let output = output_with("status", &config, &[ELSEWHERE]);
    assert_has(&said(&output), &["and was stopped at"]);
    let missing: bool = rig
        .db()
        .value("SELECT to_regclass('walrelay_state.run') IS NULL");
    assert!(missing, "the role has created the table");
}

/// The end of the relay that gives up the slot is noted after the standby has it.
#[test]
fn a_standby_that_takes_over_shows_how_the_former_relay_ended() {
    let rig = Rig::without_broker(17).outbox();
    let more = "[sink]\nkind = \"stdout\"\n[sink.stdout]\nconfirm = true\n";
    let config = || config_with_endpoint(&rig, &rig.postgres.url(), more);
    let first = rig.streaming(&config());
    noted(&rig, &["\"starts\":1"]);
    let standby = rig.start(&config());
    let state = |relay: &Relay| status(address(relay))["pipeline"]["state"].clone();
    eventually(PATIENCE, || state(&standby) == "waiting-for-slot");
    first.ends_well();
    let former = || status(address(&standby))["former_run"].clone();
    eventually(PATIENCE, || former()["ended_ms"].is_u64());
    assert_has(&former().to_string(), &["and was stopped at"]);
    noted(&rig, &["\"starts\":2"]);
    assert_eq!(
        metric(address(&standby), "walrelay_former_run_killed"),
        Some(0.0)
    );
    standby.ends_well();
}
