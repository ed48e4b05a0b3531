//! Events of the outbox are published to RabbitMQ.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::{Value, json};
use walrelay_testkit::{
    AmqpClient, AmqpMessage, Authority, Issued, QueueOptions, RabbitMq, eventually, eventually_some,
};

use crate::check::Checked;
use crate::endpoint::{address, get};
use crate::rig::{
    PATIENCE, Rig, assert_has, assert_lacks, done, ends, insert_of, output_with, refused,
};

/// The keys that the tests need to log in.
fn login(server: &RabbitMq) -> String {
    format!(
        "hosts = [\"127.0.0.1:{}\"]\nusername = \"guest\"\npassword = \"guest\"\n",
        server.port()
    )
}

/// Writes the usual configuration with this sink.
fn config(rig: &Rig, server: &RabbitMq, more: &str) -> PathBuf {
    let login = login(server);
    rig.config_and(&format!(
        "[sink]\nkind = \"rabbitmq\"\n[sink.rabbitmq]\n{login}{more}"
    ))
}

fn quorum(client: &mut AmqpClient, queue: &str) {
    let options = QueueOptions {
        queue_type: "quorum",
        ..QueueOptions::default()
    };
    client.declare_queue(queue, options);
}

fn ids(messages: &[AmqpMessage]) -> BTreeSet<&str> {
    let ids = messages.iter().map(|it| it.message_id.as_deref());
    ids.map(|id| id.expect("an id")).collect()
}

#[test]
fn routed_events_are_in_their_queue_and_the_unroutable_ones_are_dead_letters() {
    if !RabbitMq::is_wanted() {
        return;
    }
    let server = RabbitMq::shared();
    let rig = Rig::without_broker(15).outbox();
    let db = rig.db();
    let exchange = format!("{}events", rig.prefix);
    let dead = format!("{}dead", rig.prefix);
    let mut client = server.client();
    client.declare_exchange(&exchange, "topic");
    for queue in [&exchange, &dead] {
        quorum(&mut client, queue);
    }
    client.bind(&exchange, &exchange, "order.#");
    let more = format!(
        "exchange = \"{exchange}\"\nrouting_key = \"{{aggregatetype}}.{{type}}\"\n\
         dead_letter_routing_key = \"{dead}\"\n\
         [poison]\nunroutable = \"dead-letter\"\nretry_for = \"1s\"\n"
    );
    let config = config(&rig, server, &more);
    let relay = rig.streaming(&config);
    done(&output_with("bookmark create start", &config, &[]));
    // 50 events of 5 keys, of which one has no queue that is bound for it.
    db.batch(
        "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) \
         SELECT gen_random_uuid(), CASE n WHEN 17 THEN 'nowhere' ELSE 'order' END, \
         'k' || n % 5, 'T', json_build_object('number', n)::jsonb \
         FROM generate_series(0, 49) n",
    );
    rig.caught_up();

    let published = client.take(&exchange);
    let expected = |kind: &str| -> BTreeSet<String> {
        let sql = "SELECT id::text FROM outbox WHERE aggregatetype = $1";
        db.column(sql, &[&kind]).into_iter().collect()
    };
    let of_rows = expected("order");
    assert_eq!(of_rows.len(), 49);
    let arrived: BTreeSet<String> = ids(&published).into_iter().map(str::to_owned).collect();
    assert_eq!(arrived, of_rows, "each routed event, and no other");
    for message in &published {
        assert_eq!(message.routing_key, "order.T");
        assert_eq!(message.delivery_mode, Some(2));
    }
    let letters = client.take(&dead);
    let dead_ids: BTreeSet<String> = ids(&letters).into_iter().map(str::to_owned).collect();
    assert_eq!(dead_ids, expected("nowhere"));
    for letter in &letters {
        assert_eq!(letter.header("walrelay.dlq.class"), Some("unroutable"));
        assert_eq!(letter.header("walrelay.dlq.topic"), Some(&*exchange));
    }
    relay.ends_well();

    // A replay publishes the events again under their ids.
    let replayed_to = format!("again-{exchange}");
    client.declare_exchange(&replayed_to, "fanout");
    quorum(&mut client, &replayed_to);
    client.bind(&replayed_to, &replayed_to, "");
    let replay = "replay --from start --topic-prefix again-";
    done(&output_with(replay, &config, &[]));
    let replayed = client.take(&replayed_to);
    let all = expected("order").len() + expected("nowhere").len();
    assert_eq!(
        ids(&replayed).len(),
        all,
        "a fanout takes every routing key"
    );

    let list = output_with("dlq list", &config, &[]);
    refused(&list, 78, &["[dlq-sink]", "cannot read dead letters back"]);
}

/// The relay publishes nothing twice.
#[test]
fn one_in_seven_of_21_000_events_is_a_dead_letter_and_none_is_repeated() {
    if !RabbitMq::is_wanted() {
        return;
    }
    let server = RabbitMq::shared();
    let rig = Rig::without_broker(18).outbox();
    let db = rig.db();
    let exchange = format!("{}events", rig.prefix);
    let dead = format!("{}dead", rig.prefix);
    let mut client = server.client();
    client.declare_exchange(&exchange, "topic");
    for queue in [&exchange, &dead] {
        client.declare_queue(queue, QueueOptions::default());
    }
    client.bind(&exchange, &exchange, "order.#");
    let more = format!(
        "exchange = \"{exchange}\"\nrouting_key = \"{{aggregatetype}}\"\n\
         dead_letter_routing_key = \"{dead}\"\n\
         [poison]\nunroutable = \"dead-letter\"\nretry_for = \"2s\"\n"
    );
    let config = config(&rig, server, &more);
    let relay = rig.streaming(&config);
    for _ in 0..3 {
        db.batch(
            "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) \
             SELECT gen_random_uuid(), CASE n % 7 WHEN 0 THEN 'nowhere' ELSE 'order' END, \
             'k' || n % 1000, 'T', json_build_object('number', n)::jsonb \
             FROM generate_series(1, 7000) n",
        );
    }
    let since = Instant::now();
    rig.caught_up();
    eprintln!("all is confirmed after {:?}", since.elapsed());
    for (queue, count) in [(&exchange, 18_000), (&dead, 3_000)] {
        let messages = client.take(queue);
        assert_eq!(
            (messages.len(), ids(&messages).len()),
            (count, count),
            "{queue}"
        );
    }
    relay.ends_well();
}

#[test]
fn a_missing_exchange_stops_the_relay_after_a_while() {
    if !RabbitMq::is_wanted() {
        return;
    }
    let server = RabbitMq::shared();
    let rig = Rig::without_broker(15).outbox();
    let more = "exchange = \"nobody.has.declared.it\"\nrouting_key = \"secret-{type}\"\n\
                [poison]\nretry_for = \"1s\"\n";
    let config = config(&rig, server, more);
    let mut relay = rig.streaming(&config);
    insert_of(&rig.db(), "order", "secret-key", 1);
    let log = ends(&mut relay, 78, "delivery");
    assert_has(
        &log,
        &["nobody.has.declared.it", "there is no such exchange"],
    );
    assert_lacks(&log, &["secret-"]);
}

/// The configuration of docs/sinks/rabbitmq.md, with the test's database and server.
fn example(rig: &Rig, server: &RabbitMq) -> PathBuf {
    let page = include_str!("../../docs/sinks/rabbitmq.md");
    let (_, example) = page.split_once("```toml\n").expect("an example");
    let (example, _) = example.split_once("```").expect("its end");
    let password = rig.path("password");
    fs::write(&password, "guest\n").expect("a file");
    let port = server.port();
    let replaced = [
        ("postgres://relay@db/app", rig.postgres.url()),
        ("rabbitmq.internal:5671", format!("127.0.0.1:{port}")),
        ("tls = true", "tls = false".to_owned()),
        ("username = \"walrelay\"", "username = \"guest\"".to_owned()),
        ("/run/secrets/rabbitmq", path(&password).to_owned()),
    ];
    let mut text = example.to_owned();
    for (old, new) in replaced {
        assert!(text.contains(old), "the example has no {old}");
        text = text.replace(old, &new);
    }
    let config = rig.path("example.toml");
    fs::write(&config, text + "\n[log]\nformat = \"json\"\n").expect("a file");
    config
}

fn path(path: &Path) -> &str {
    path.to_str().expect("text")
}

#[test]
fn the_example_of_the_page_publishes_by_exchange_and_routing_key() {
    if !RabbitMq::is_wanted() {
        return;
    }
    let server = RabbitMq::shared();
    let rig = Rig::without_broker(18);
    let db = rig.db();
    db.batch(
        "CREATE TABLE outbox (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), \
         aggregate_type text NOT NULL, aggregate_id text NOT NULL, event_type text NOT NULL, \
         payload jsonb NOT NULL, metadata jsonb, created_at timestamptz NOT NULL)",
    );
    let mut client = server.client();
    for exchange in ["orders.events", "default.events"] {
        client.declare_exchange(exchange, "topic");
    }
    quorum(&mut client, "paid orders");
    client.bind("paid orders", "orders.events", "orderpaid");
    quorum(&mut client, "others");
    client.bind("others", "default.events", "#");
    let config = example(&rig, server);
    let relay = rig.streaming(&config);
    for (aggregate, event) in [("Order", "OrderPaidEvent"), ("Cart", "CartEmptied")] {
        db.batch(&format!(
            "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, metadata, \
             created_at) VALUES ('{aggregate}', '42', '{event}', '{{\"total\": 7}}', \
             '{{\"user\": \"u\"}}', '2026-01-02 03:04:05+00')"
        ));
    }
    rig.caught_up();
    relay.ends_well();
    let paid = client.take("paid orders");
    let [paid] = &*paid else {
        panic!("{paid:?}");
    };
    let id = db.column(
        "SELECT id::text FROM outbox WHERE aggregate_type = 'Order'",
        &[],
    );
    assert_eq!(paid.exchange, "orders.events");
    assert_eq!(paid.routing_key, "orderpaid");
    assert_eq!(paid.message_id.as_ref(), Some(&id[0]));
    assert_eq!(paid.header("event-type"), Some("OrderPaidEvent"));
    assert_eq!(paid.header("aggregate-id"), Some("42"));
    let body: Value = serde_json::from_slice(&paid.body).expect("JSON");
    let expected = json!({
        "event_id": id[0],
        "event_type": "OrderPaidEvent",
        "aggregate_type": "Order",
        "aggregate_id": "42",
        "payload": {"total": 7},
        "metadata": {"user": "u"},
        "timestamp": body["timestamp"],
    });
    assert_eq!(body, expected);
    assert!(
        body["timestamp"]
            .as_str()
            .is_some_and(|it| it.starts_with("2026-01-02"))
    );
    let others = client.take("others");
    let keys: Vec<&str> = others.iter().map(|it| &*it.routing_key).collect();
    assert_eq!(keys, ["cartemptied"]);
}

#[test]
fn a_queue_is_declared_where_that_is_configured() {
    if !RabbitMq::is_wanted() {
        return;
    }
    let server = RabbitMq::shared();
    let rig = Rig::without_broker(15).outbox();
    let name = format!("{}declared", rig.prefix);
    let more = format!(
        "declare = true\nexchange = \"{name}\"\nqueue = \"{name}\"\nrouting_key = \"{{type}}\"\n"
    );
    let config = config(&rig, server, &more);
    let relay = rig.streaming(&config);
    insert_of(&rig.db(), "order", "key", 1);
    rig.caught_up();
    relay.ends_well();
    let mut client = server.client();
    // With the same arguments: others would be refused.
    quorum(&mut client, &name);
    client.declare_exchange(&name, "topic");
    assert_eq!(client.take(&name).len(), 1);
}

/// Returns the numbers in the bodies.
fn numbers(messages: &[AmqpMessage]) -> Vec<u64> {
    let number = |it: &AmqpMessage| {
        let body: Value = serde_json::from_slice(&it.body).expect("JSON");
        body["number"].as_u64().expect("a number")
    };
    messages.iter().map(number).collect()
}

/// The server takes no messages while it has too little memory. The relay says so, and goes on by
/// itself on the same connection.
#[test]
fn a_memory_alarm_is_shown_and_waited_for() {
    if !RabbitMq::is_wanted() {
        return;
    }
    let server = RabbitMq::in_turn();
    let rig = Rig::without_broker(15).outbox();
    let db = rig.db();
    let name = format!("{}queue", rig.prefix);
    quorum(&mut server.client(), &name);
    let more = format!(
        "exchange = \"\"\nrouting_key = \"{name}\"\nconfirm_timeout = \"1s\"\n\
         [http]\nlisten = \"127.0.0.1:0\"\n"
    );
    let config = config(&rig, &server, &more);
    let relay = rig.streaming(&config);
    let at = address(&relay);
    for number in 0..20 {
        insert_of(&db, "order", "key", number);
    }
    rig.caught_up();
    let limit = |bytes: &str| server.control(&["set_vm_memory_high_watermark", "absolute", bytes]);
    limit("1");
    for number in 20..40 {
        insert_of(&db, "order", "key", number);
    }
    relay.says("RabbitMQ accepts no messages at the moment");
    let why = "RabbitMQ accepts no messages at the moment: low on memory";
    let set = format!("--set=http.listen={at}");
    eventually(PATIENCE, || {
        let command = output_with("status", &config, &[&set]);
        let status = String::from_utf8_lossy(&command.stdout).into_owned();
        let (code, ready) = get(at, "/readyz").expect("an answer");
        code == 503 && [&status, &ready].iter().all(|text| text.contains(why))
    });
    // The server reads the first message behind the alarm, and then no more.
    let waiting = server.client().messages(&name);
    assert!((20..=21).contains(&waiting), "{waiting}");
    limit("512MB");
    relay.says("RabbitMQ accepts messages again");
    rig.caught_up();
    let log = relay.ends_well();
    assert_lacks(&log, &["cannot be reached", "no confirm"]);
    let arrived = numbers(&server.client().take(&name));
    assert!(arrived.iter().copied().eq(0..40), "{arrived:?}");
}

/// Writes certificate and key; returns the lines that name them.
fn identity(rig: &Rig, issued: &Issued) -> String {
    let (certificate, key) = (rig.path("client.pem"), rig.path("client.key"));
    fs::write(&certificate, &issued.certificate).expect("a file");
    fs::write(&key, &issued.key).expect("a file");
    format!(
        "certificate_file = \"{}\"\nkey_file = \"{}\"\n",
        path(&certificate),
        path(&key)
    )
}

#[test]
fn tls_verifies_the_server_and_a_certificate_may_be_the_user() {
    if !RabbitMq::is_wanted() {
        return;
    }
    let authority = Authority::new("the test's");
    let (server, port) = RabbitMq::start_secure(&authority, "localhost");
    let rig = Rig::without_broker(15).outbox();
    let db = rig.db();
    let ca = rig.path("ca.pem");
    fs::write(&ca, authority.pem()).expect("a file");
    let queue = format!("{}queue", rig.prefix);
    quorum(&mut server.client(), &queue);
    let with = |host: &str, login: &str| {
        rig.config_and(&format!(
            "[sink]\nkind = \"rabbitmq\"\n[sink.rabbitmq]\nhosts = [\"{host}:{port}\"]\n\
             tls = true\nca_file = \"{}\"\n{login}exchange = \"\"\nrouting_key = \"{queue}\"\n",
            path(&ca)
        ))
    };
    let plain = "username = \"guest\"\npassword = \"guest\"\n";
    // A user with a password, then the user that the certificate names.
    let client = identity(&rig, &authority.client("guest"));
    let external = format!("auth = \"external\"\n{client}");
    for (number, login) in [(0, plain), (1, &external)] {
        let relay = rig.streaming(&with("localhost", login));
        insert_of(&db, "order", "key", number);
        rig.caught_up();
        relay.ends_well();
    }
    assert_eq!(numbers(&server.client().take(&queue)), [0, 1]);

    let item = "rabbitmq/rabbitmq-login";
    // The certificate is for another name than this.
    let other_name = with("127.0.0.1", plain);
    Checked::run(&other_name, &[]).fails(item, &["[rabbitmq-tls]"]);
    fs::write(&ca, Authority::new("another").pem()).expect("a file");
    Checked::run(&with("localhost", plain), &[]).fails(item, &["[rabbitmq-tls]"]);
    fs::write(&ca, authority.pem()).expect("a file");
    let stranger = identity(&rig, &authority.client("stranger"));
    let stranger = with("localhost", &format!("auth = \"external\"\n{stranger}"));
    Checked::run(&stranger, &[]).fails(item, &["[rabbitmq-access]"]);
    let expired = identity(&rig, &authority.expired_client("guest"));
    let expired = with("localhost", &format!("auth = \"external\"\n{expired}"));
    let words = [
        "[rabbitmq-tls]",
        "refuses the certificate of the relay: it has expired",
        "have a new certificate issued",
    ];
    // A busy server may reset the connection before the client has read why.
    let checked = eventually_some(PATIENCE, || {
        let checked = Checked::run(&expired, &[]);
        let found = checked.worst(item)["id"].clone();
        (found == "rabbitmq-tls").then_some(checked)
    });
    checked.fails(item, &words);
    let settings = "configuration/rabbitmq-settings";
    checked.warns(settings, &["client.pem has expired: it ended on"]);
}

#[test]
fn a_server_that_goes_away_is_waited_for() {
    if !RabbitMq::is_wanted() {
        return;
    }
    let server = RabbitMq::in_turn();
    let rig = Rig::without_broker(15).outbox();
    let db = rig.db();
    let name = format!("{}queue", rig.prefix);
    let mut client = server.client();
    client.declare_queue(&name, QueueOptions::default());
    let more = format!("exchange = \"\"\nrouting_key = \"{name}\"\n");
    let config = config(&rig, &server, &more);
    let relay = rig.streaming(&config);
    for number in 0..20 {
        insert_of(&db, "order", "key", number);
    }
    rig.caught_up();
    server.kill();
    for number in 20..40 {
        insert_of(&db, "order", "key", number);
    }
    relay.says("RabbitMQ cannot be reached");
    server.start_again();
    rig.caught_up();
    relay.ends_well();
    let mut first: Vec<u64> = Vec::new();
    for number in numbers(&server.client().take(&name)) {
        if !first.contains(&number) {
            first.push(number);
        }
    }
    assert!(first.iter().copied().eq(0..40), "{first:?}");
}
