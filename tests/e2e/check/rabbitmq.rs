use std::fs;

use walrelay_testkit::{Authority, QueueOptions, RabbitMq};

use super::{Checked, checked};
use crate::rig::{Rig, insert_of};

#[test]
fn check_reports_faults_of_a_rabbitmq_sink() {
    if !RabbitMq::is_wanted() {
        return;
    }
    let rig = Rig::without_broker(18).outbox();
    let config = rig.config();
    let with = |host: &str, set: &str| {
        format!(
            "sink.kind=rabbitmq sink.rabbitmq.hosts=[\"{host}\"] sink.rabbitmq.username=guest \
             sink.rabbitmq.password=guest {set}"
        )
    };
    let item = "configuration/rabbitmq-settings";
    let offline = with("h", "");
    checked(&config, &["--offline"], &offline).warns(item, &["without TLS"]);
    let no_file = with(
        "h",
        "sink.rabbitmq.tls=true sink.rabbitmq.ca_file=/nonexistent",
    );
    let words = ["[rabbitmq-settings]", "/nonexistent"];
    checked(&config, &["--offline"], &no_file).fails(item, &words);

    let server = RabbitMq::shared();
    let host = format!("127.0.0.1:{}", server.port());
    let item = "rabbitmq/rabbitmq-login";
    // No server listens at this port.
    let nobody = with("127.0.0.1:1", "");
    checked(&config, &[], &nobody).fails(item, &["[rabbitmq-unreachable]", "127.0.0.1:1"]);
    let ca = rig.path("ca.pem");
    fs::write(&ca, Authority::new("ca").pem()).expect("a file");
    let ca = format!(
        "sink.rabbitmq.tls=true sink.rabbitmq.ca_file={}",
        ca.display()
    );
    let tls = with(&host, &ca);
    checked(&config, &[], &tls).fails(item, &["[rabbitmq-tls]"]);
    let denied = with(&host, "sink.rabbitmq.vhost=none");
    checked(&config, &[], &denied).fails(item, &["[rabbitmq-access]", "none"]);
    let wrong = with(&host, "").replace("password=guest", "password=secret-word");
    let refused = checked(&config, &[], &wrong);
    let found = refused.fails(item, &["[rabbitmq-access]", "correct username"]);
    assert!(!found.to_string().contains("secret-word"), "{found:#}");
    refused.ends(77);

    let exchange = format!("{}check", rig.prefix);
    let queue = format!("{}letters", rig.prefix);
    let letters = format!(
        "poison.unroutable=dead-letter sink.rabbitmq.dead_letter_routing_key={queue} \
         sink.rabbitmq.exchange={exchange}"
    );
    let there = "rabbitmq/rabbitmq-exchanges";
    let write = "rabbitmq/rabbitmq-write";
    let dead = "rabbitmq/rabbitmq-dead-letters";
    let set = with(&host, &letters);
    let missing = checked(&config, &[], &set);
    missing.passes(item, &[&host]);
    missing.fails(there, &["[rabbitmq-exchange-missing]", &exchange]);
    missing.fails(dead, &["[rabbitmq-dead-letters]", &queue]);
    missing.ends(78);

    let mut client = server.client();
    client.declare_exchange(&exchange, "topic");
    client.declare_queue(&queue, QueueOptions::default());
    client.bind(&queue, &exchange, "#");
    let fine = checked(&config, &[], &set);
    fine.passes(there, &[&exchange]);
    fine.passes(write, &["may write", &exchange]);
    fine.passes(dead, &[&queue]);
    // A user that may read only.
    let weak = set.replace("=guest", "=weak");
    let denied = checked(&config, &[], &weak);
    denied.passes(there, &[&exchange]);
    denied.fails(write, &["[rabbitmq-rights]", &exchange, "set_permissions"]);
    denied.fails(dead, &["[rabbitmq-rights]", &queue]);
    assert_eq!(client.take(&queue), [], "check publishes nothing");
}

#[test]
fn check_reports_missing_bindings_of_rabbitmq() {
    if !RabbitMq::is_wanted() {
        return;
    }
    let rig = Rig::without_broker(17).outbox();
    let (server, port) = RabbitMq::start_managed();
    let config = rig.config();
    let set = format!(
        "sink.kind=rabbitmq sink.rabbitmq.hosts=[\"127.0.0.1:{}\"] sink.rabbitmq.username=guest \
         sink.rabbitmq.password=guest sink.rabbitmq.exchange=orders \
         sink.rabbitmq.routing_key={{aggregatetype}} poison.unroutable=dead-letter \
         sink.rabbitmq.dead_letter_routing_key=letters",
        server.port()
    );
    let bindings = "rabbitmq/rabbitmq-bindings";
    let queues = "rabbitmq/rabbitmq-queues";
    let unset = checked(&config, &[], &set);
    unset.warns(bindings, &["not looked at", "set management_url"]);
    let nobody = format!("{set} sink.rabbitmq.management_url=http://127.0.0.1:1");
    checked(&config, &[], &nobody).warns(bindings, &["127.0.0.1:1", "rabbitmq_management"]);
    let set = format!("{set} sink.rabbitmq.management_url=http://127.0.0.1:{port}");
    let weak = set.replace("=guest", "=weak");
    checked(&config, &[], &weak).warns(bindings, &["(401)", "set_user_tags"]);

    let mut client = server.client();
    client.declare_exchange("orders", "direct");
    for queue in ["orders", "letters"] {
        client.declare_queue(queue, QueueOptions::default());
    }
    client.bind("orders", "orders", "secret-paid");
    checked(&config, &[], &set).passes(bindings, &["before the first event"]);
    let db = rig.db();
    insert_of(&db, "secret-paid", "k", 1);
    checked(&config, &[], &set).passes(bindings, &["for each routing key"]);
    insert_of(&db, "secret-shipped", "k", 2);
    insert_of(&db, "secret-sent", "k", 3);
    let unbound = checked(&config, &[], &set);
    let words = ["[rabbitmq-unbound]", "\"orders\" for 2 routing keys"];
    let found = unbound.fails(bindings, &words).to_string();
    assert!(!found.contains("secret"), "a value of a row: {found}");
    unbound.passes(queues, &["2 queues"]);
    unbound.ends(78);
    client.bind("orders", "orders", "secret-shipped");
    client.bind("orders", "orders", "secret-sent");

    let lost = set.replace("=letters", "=lost");
    checked(&config, &[], &lost).fails(bindings, &["dead letters"]);
    let stream = QueueOptions {
        queue_type: "stream",
        ..QueueOptions::default()
    };
    client.declare_queue("stream", stream);
    client.bind("stream", "orders", "secret-paid");
    checked(&config, &[], &set).passes(queues, &["3 queues"]);
    let by_both = set.replace("=letters", "=stream");
    let words = ["\"stream\" is a stream", "exchanges", "RabbitMQ 4.0"];
    checked(&config, &[], &by_both).warns(queues, &words);
    let limit = ["set_policy", "limit", "^orders$", "{\"max-length\":5}"];
    server.control(&limit);
    // The interface shows a policy with the next figures of the queue.
    let limited = Checked::until(|| checked(&config, &[], &set), queues, "warn");
    limited.passes(bindings, &["for each routing key"]);
    limited.warns(queues, &["\"orders\"", "drop-head", "reject-publish"]);
    assert_eq!(client.take("orders"), [], "check publishes nothing");
}
