//! The status page looks for an event, and sends its row again, as `walrelay where` and `walrelay resend` do.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::Value;
use walrelay_testkit::{Db, HttpReceiver, Reaction, Redis, eventually, eventually_some};
use walrelay_throwaway::Signal;

use crate::docs::block;
use crate::endpoint::{address, ask};
use crate::rig::{PATIENCE, Relay, Rig, assert_has, assert_lacks, edit, insert_of, walrelay};

const TOKEN: &str = "Host: localhost\r\nAuthorization: Bearer s3cret\r\n";
const WHERE: &str = "x-walrelay-where: 1\r\n";
const RESEND: &str = "x-walrelay-resend: 1\r\n";
/// Header of each record that `walrelay resend` sends.
const RESEND_RECORD: &str = "walrelay-resend";
/// A page of the same endpoint, and of another site.
const SAME: &str = "Sec-Fetch-Site: same-origin\r\n";
const OTHER: &str = "Sec-Fetch-Site: cross-site\r\n";

/// The endpoint, with a token or without one, and more lines.
fn listen(rig: &Rig, token: bool, more: &str) -> String {
    fs::write(rig.path("token"), "s3cret").expect("written");
    let token = if token {
        "token_file = \"token\"\n"
    } else {
        ""
    };
    format!("\n[http]\nlisten = \"127.0.0.1:0\"\n{token}{more}")
}

/// Asks the endpoint. Returns the status and the body.
fn request(relay: &Relay, what: &str, headers: &str) -> (u16, String) {
    eventually_some(PATIENCE, || {
        ask(address(relay), what, &format!("{TOKEN}{headers}"))
    })
}

/// Runs a job to its end, and returns the document.
#[track_caller]
fn job(relay: &Relay, what: &str, header: &str) -> Value {
    let (code, body) = request(relay, &format!("POST /api/event/{what}"), header);
    assert_eq!(code, 202, "{body}");
    eventually_some(PATIENCE, || {
        let (code, body) = request(relay, "GET /api/event", "");
        assert_eq!(code, 200, "{body}");
        assert_lacks(&body, &["secret-value"]);
        let answer: Value = serde_json::from_str(&body).expect("JSON");
        (answer["busy"] == false).then_some(answer)
    })
}

/// Inserts an event, and returns its id.
fn insert(db: &Db, key: &str) -> String {
    insert_of(db, "order", key, 1);
    db.batch("UPDATE outbox SET payload = '{\"text\": \"secret-value\"}'");
    db.value("SELECT id::text FROM outbox")
}

/// Text of a place in the answer.
fn place(answer: &Value, name: &str) -> String {
    let places = answer["found"]["places"].as_array().expect("places");
    let place = places.iter().find(|place| place["place"] == name);
    let place = place.and_then(|place| place["text"].as_str());
    place.unwrap_or_default().to_owned()
}

/// Sends the event's row again by a dry run and a confirmation.
#[track_caller]
fn resend(relay: &Relay, id: &str, to: &str) {
    let dry = job(relay, &format!("resend?id={id}"), RESEND);
    let would = format!("1 row would be sent again: 1 to {to}");
    assert_eq!(dry["would_send"], would, "{dry:#}");
    let sent = job(relay, &format!("resend?id={id}&confirm=1"), RESEND);
    let said = sent["sent"].as_str().unwrap_or_default();
    assert_has(said, &["1 records acknowledged"]);
    assert_eq!(sent["would_send"], Value::Null);
}

#[test]
fn an_event_is_found_and_sent_again_to_kafka_after_a_dry_run() {
    let rig = Rig::with_outbox(18);
    let db = rig.db();
    let config = rig.config_and(&listen(&rig, true, ""));
    let relay = rig.streaming(&config);
    let id = insert(&db, "key");
    rig.caught_up();
    let topic = rig.records(1)[0].topic.clone();

    // Neither another site, nor a program without the token and the header, begins anything.
    let (look, again) = (
        format!("POST /api/event/where?id={id}"),
        format!("POST /api/event/resend?id={id}"),
    );
    for (what, header) in [(&look, WHERE), (&again, RESEND)] {
        assert_eq!(request(&relay, what, "").0, 403);
        assert_eq!(request(&relay, what, &format!("{header}{OTHER}")).0, 403);
        let anonymous = format!("Host: localhost\r\n{header}");
        let answer = eventually_some(PATIENCE, || ask(address(&relay), what, &anonymous));
        assert_eq!(answer.0, 401);
        let get = what.replace("POST", "GET");
        assert_eq!(request(&relay, &get, header).0, 405);
    }
    assert_eq!(request(&relay, "POST /api/event/where", WHERE).0, 400);
    let begun = request(&relay, "GET /api/event", "").1;
    assert_has(&begun, &["\"event\":null"]);

    let found = job(&relay, &format!("where?id={id}"), &format!("{WHERE}{SAME}"));
    assert_eq!(found["found"]["answer"], "delivered", "{found:#}");
    assert_has(&place(&found, "Kafka"), &[&topic, "written at"]);
    assert_has(&place(&found, "public.outbox"), &["the row is there"]);

    // Nothing is sent without a dry run, and one dry run allows one sending.
    let confirmed = format!("{again}&confirm=1");
    assert_eq!(request(&relay, &confirmed, RESEND).0, 428);
    assert_eq!(rig.records(1).len(), 1);
    resend(&relay, &id, &topic);
    let records = rig.records(1);
    assert_eq!(records.len(), 2);
    assert!(records[1].header("walrelay-resend").is_some());
    assert_eq!(request(&relay, &confirmed, RESEND).0, 428);

    let none = "00000000-0000-4000-8000-000000000000";
    let dry_run = format!("POST /api/event/resend?id={none}");
    assert_eq!(request(&relay, &dry_run, RESEND).0, 428);
    job(&relay, &format!("where?id={none}"), WHERE);
    let none = job(&relay, &format!("resend?id={none}"), RESEND);
    assert_has(&none["error"].to_string(), &["resend-no-rows"]);
    // An id is no option of the command, whatever it begins with.
    let odd = job(&relay, "where?id=--help%20%3Bx", WHERE);
    assert_eq!(odd["found"]["id"], "--help ;x", "{odd:#}");
    assert_eq!(odd["found"]["answer"], "no-evidence");

    // The commands would read another configuration than the relay did: a key, a secret, or the content of a file.
    let refused = || {
        let changed = job(&relay, &format!("where?id={id}"), WHERE);
        assert_has(&changed["error"].to_string(), &["has changed"]);
    };
    let text = fs::read_to_string(&config).expect("the configuration");
    edit(
        &config,
        "[http]",
        "[delivery]\nmax_in_flight_records = 7\n[http]",
    );
    refused();
    fs::write(&config, &text).expect("written");
    // A whole URL, so the commands could read it.
    let url = text.lines().find(|line| line.starts_with("url = "));
    let elsewhere = "url = \"postgres://walrelay:secret@127.0.0.1:1/elsewhere\"";
    edit(&config, url.expect("a URL"), elsewhere);
    refused();
    fs::write(&config, &text).expect("written");
    let found = job(&relay, &format!("where?id={id}"), WHERE);
    assert_eq!(found["found"]["answer"], "delivered", "{found:#}");
    fs::write(rig.path("token"), "another").expect("written");
    refused();
    relay.ends_well();
}

#[test]
fn without_a_token_events_are_found_and_not_sent_again() {
    let rig = Rig::without_broker(17).outbox();
    let receiver = HttpReceiver::start(false, None, |_, _| Reaction::Store(200));
    let url = format!("http://{}/events", receiver.address());
    let sink = format!("[sink]\nkind = \"http\"\n[sink.http]\nurl = \"{url}\"\n");
    let relay = rig.streaming(&rig.config_and(&listen(&rig, false, &sink)));
    let id = insert(&rig.db(), "key");
    rig.caught_up();
    // By the commands of the page.
    let commands = block("docs/how-to/where.md", "where-page");
    let (begin, read) = commands.split_once('\n').expect("two commands");
    let header = begin.split('\'').nth(1).expect("a header");
    assert_eq!(format!("{header}\r\n"), WHERE);
    let path = |command: &str| {
        let (_, path) = command.split_once("9187").expect("an address");
        path.trim_matches('"').to_owned()
    };
    assert_eq!(path(read.trim()), "/api/event");
    let begin = path(begin);
    let (what, _) = begin.split_once('=').expect("an id");
    let what = what.strip_prefix("/api/event/").expect("the path");
    let found = job(&relay, &format!("{what}={id}"), WHERE);
    assert_eq!(found["found"]["answer"], "no-evidence", "{found:#}");
    assert_has(&place(&found, "HTTP"), &["keeps no records"]);
    let (code, body) = request(&relay, &format!("POST /api/event/resend?id={id}"), RESEND);
    assert_eq!(code, 403);
    assert_has(&body, &["http.token_file"]);
    relay.ends_well();
}

#[test]
fn an_event_is_found_and_sent_again_to_redis() {
    if !Redis::is_wanted() {
        return;
    }
    let rig = Rig::without_broker(17).outbox();
    let server = Redis::shared();
    let stream = rig.prefix.trim_end_matches('.').replace(['-', '.'], "_");
    let sink = format!(
        "[sink]\nkind = \"redis\"\n[sink.redis]\nhosts = [\"127.0.0.1:{}\"]\nstream = \"{stream}\"\n",
        server.port()
    );
    let relay = rig.streaming(&rig.config_and(&listen(&rig, true, &sink)));
    let id = insert(&rig.db(), "key");
    rig.caught_up();
    let found = job(&relay, &format!("where?id={id}"), WHERE);
    assert_eq!(found["found"]["answer"], "delivered", "{found:#}");
    resend(&relay, &id, &stream);
    assert_eq!(server.client().entries(&stream).len(), 2);
    relay.ends_well();
}

/// A relay to HTTP whose event was delivered and looked for, so that its row may be sent again. `again`: the reaction to
/// the record that `resend` sends.
struct SentOnce {
    relay: Relay,
    receiver: HttpReceiver,
    id: String,
    /// Its servers run until the relay has ended.
    _rig: Rig,
}

impl SentOnce {
    fn new(again: impl Fn() -> Reaction + Send + Sync + 'static) -> Self {
        let rig = Rig::without_broker(17).outbox();
        let receiver = HttpReceiver::start(false, None, move |_, received| {
            match received.header(RESEND_RECORD) {
                Some(_) => again(),
                None => Reaction::Store(200),
            }
        });
        let sink = format!(
            "[delivery]\ndrain_timeout = \"1s\"\n[sink]\nkind = \"http\"\n[sink.http]\nurl = \"http://{}/events\"\n",
            receiver.address()
        );
        let relay = rig.streaming(&rig.config_and(&listen(&rig, true, &sink)));
        let id = insert(&rig.db(), "key");
        rig.caught_up();
        job(&relay, &format!("where?id={id}"), WHERE);
        let dry = job(&relay, &format!("resend?id={id}"), RESEND);
        assert_has(&dry["would_send"].to_string(), &["1 row"]);
        Self {
            relay,
            receiver,
            id,
            _rig: rig,
        }
    }

    fn confirmation(&self) -> String {
        format!("resend?id={}&confirm=1", self.id)
    }

    /// Begins to send the row, and returns the PID of the command once the destination has its record.
    fn begin(&self) -> u32 {
        let begin = format!("POST /api/event/{}", self.confirmation());
        assert_eq!(request(&self.relay, &begin, RESEND).0, 202);
        let is_again = || {
            let received = self.receiver.received();
            received
                .iter()
                .any(|one| one.header(RESEND_RECORD).is_some())
        };
        self.relay.until("the record", is_again);
        let children = children_of(self.relay.pid());
        let [command] = children[..] else {
            panic!("not one child: {children:?}");
        };
        command
    }

    /// Asserts that the sending failed so, and that it may not be repeated without a look.
    #[track_caller]
    fn failed(self, answer: &Value, words: &[&str]) {
        let error = answer["error"].as_str().unwrap_or_default();
        assert_has(error, words);
        assert_has(error, &["records may have been sent"]);
        assert_eq!(
            (&answer["sent"], &answer["would_send"]),
            (&Value::Null, &Value::Null)
        );
        let confirmed = format!("POST /api/event/{}", self.confirmation());
        assert_eq!(request(&self.relay, &confirmed, RESEND).0, 428);
        let found = job(&self.relay, &format!("where?id={}", self.id), WHERE);
        assert_eq!(found["error"], Value::Null);
        self.relay.ends_well();
    }
}

/// PIDs of the running children of a process.
fn children_of(pid: u32) -> Vec<u32> {
    let mut children = Vec::new();
    for entry in fs::read_dir("/proc").expect("/proc").flatten() {
        let of = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        let parent = of.and_then(|of| Some((of, state_and_parent(of)?.1)));
        children.extend(
            parent
                .filter(|(_, parent)| *parent == pid)
                .map(|(of, _)| of),
        );
    }
    children
}

/// The state of a process in proc(5), and the PID of its parent.
fn state_and_parent(pid: u32) -> Option<(String, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    let mut rest = rest.split_whitespace();
    Some((rest.next()?.to_owned(), rest.next()?.parse().ok()?))
}

#[test]
fn a_sending_ends_if_its_relay_is_killed() {
    let mut sent = SentOnce::new(|| Reaction::Never);
    let command = sent.begin();
    sent.relay.signal(Signal::Kill);
    sent.relay.ended();
    // A process that has ended may wait for init to notice.
    let has_ended = || state_and_parent(command).is_none_or(|(state, _)| state == "Z");
    eventually(PATIENCE, has_ended);
}

#[test]
fn a_look_and_a_dry_run_end_at_once_if_their_parent_is_gone() {
    let rig = Rig::without_broker(17).outbox();
    let sink = "[sink]\nkind = \"http\"\n[sink.http]\nurl = \"http://127.0.0.1:9/events\"\n";
    let config = rig.config_and(&listen(&rig, true, sink));
    let db = rig.db();
    let id = insert(&db, "key");
    db.batch("CREATE PUBLICATION walrelay FOR TABLE outbox");
    let holder = rig.db();
    holder.batch("BEGIN; LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE");
    for words in [vec!["where", &id], vec!["resend", "--id", &id, "--dry-run"]] {
        let mut command = walrelay(&words);
        command.args(["--end-with-stdin", "--timeout", "1h", "--config"]);
        command.arg(&config).stdin(Stdio::piped());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().expect("walrelay runs");
        let waits = "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted";
        eventually(PATIENCE, || db.value(waits));
        drop(child.stdin.take());
        let status = eventually_some(PATIENCE, || child.try_wait().expect("a child"));
        assert_eq!(status.code(), Some(75), "{words:?}");
        // The server notices later that its client is gone.
        db.batch("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE NOT granted");
        eventually(PATIENCE, || !db.value::<bool>(waits));
    }
}

#[test]
fn a_sending_that_the_destination_refuses_is_an_error_of_the_page() {
    let sent = SentOnce::new(|| Reaction::Answer(410, Vec::new()));
    let answer = job(&sent.relay, &sent.confirmation(), RESEND);
    sent.failed(&answer, &["410"]);
}

#[test]
fn a_sending_whose_process_is_killed_is_an_error_of_the_page() {
    let sent = SentOnce::new(|| Reaction::Never);
    let command = sent.begin().to_string();
    let killed = Command::new("/bin/sh")
        .args(["-c", "kill -KILL $0", &command])
        .status();
    assert!(killed.is_ok_and(|status| status.success()));
    let answer = eventually_some(PATIENCE, || {
        let (_, body) = request(&sent.relay, "GET /api/event", "");
        let answer: Value = serde_json::from_str(&body).expect("JSON");
        (answer["busy"] == false).then_some(answer)
    });
    sent.failed(&answer, &["ended by signal 9"]);
}

#[test]
fn an_id_that_two_tables_have_is_shown_for_both_and_sends_both_rows() {
    let rig = Rig::with_outbox(18);
    let db = rig.db();
    db.batch("CREATE TABLE other (LIKE outbox INCLUDING ALL)");
    let config = rig.config_and(&listen(&rig, true, ""));
    let tables = "\"public.outbox\", \"public.other\"";
    edit(&config, "\"public.outbox\"", tables);
    let relay = rig.streaming(&config);
    let id = insert(&db, "key");
    db.batch("INSERT INTO other SELECT * FROM outbox");
    rig.caught_up();
    let found = job(&relay, &format!("where?id={id}"), WHERE);
    assert_eq!(found["found"]["answer"], "delivered", "{found:#}");
    for table in ["public.outbox", "public.other"] {
        assert_has(&place(&found, table), &["the row is there"]);
    }
    let dry = job(&relay, &format!("resend?id={id}"), RESEND);
    assert_has(
        &dry["would_send"].to_string(),
        &["2 rows would be sent again: 2 to "],
    );
    let sent = job(&relay, &format!("resend?id={id}&confirm=1"), RESEND);
    assert_has(&sent["sent"].to_string(), &["2 records acknowledged"]);
    // A table whose rows no index finds by the id would be read as a whole.
    db.batch("ALTER TABLE other DROP CONSTRAINT other_pkey");
    let found = job(&relay, &format!("where?id={id}"), WHERE);
    assert_has(&place(&found, "public.other"), &["no index"]);
    let dry = job(&relay, &format!("resend?id={id}"), RESEND);
    assert_has(
        &dry["error"].to_string(),
        &["resend-no-index", "public.other"],
    );
    assert_eq!(dry["would_send"], Value::Null);
    relay.ends_well();
}
