use std::fs;

use walrelay_testkit::SecureKafka;
use walrelay_throwaway::Signal;

use super::{Recorder, Secured, bearer, contains, jwt, login, refused};
use crate::check::Checked;
use crate::endpoint::LISTEN;
use crate::rig::{assert_has, assert_lacks, output_with};
use crate::shown::{NOT_READY, SINK_DOWN, Views};

const USER: &str = SecureKafka::USER;
const PASSWORD: &str = SecureKafka::PASSWORD;

/// Relays follow one another on the same slot, each with another login. Nothing is lost between
/// them.
#[test]
fn events_arrive_by_each_login() {
    let secured = Secured::new();
    let rig = &secured.rig;
    let token = rig.path("token");
    fs::write(&token, jwt(USER, 3600)).expect("written");
    let client = secured.broker.authority.client(USER);
    fs::write(rig.path("client.pem"), client.certificate).expect("written");
    fs::write(rig.path("client.key"), client.key).expect("written");
    let mutual = format!(
        "\"security.protocol\" = \"SSL\"\n\"ssl.certificate.location\" = \"{}\"\n\
         \"ssl.key.pem_file\" = \"client.key\"\n",
        rig.path("client.pem").display()
    );
    let from_command = format!("token_command = [\"cat\", \"{}\"]", token.display());
    let logins = [
        ("SECURE", login("PLAIN", USER, PASSWORD)),
        ("SECURE", login("SCRAM-SHA-256", USER, PASSWORD)),
        ("SECURE", login("SCRAM-SHA-512", USER, PASSWORD)),
        ("SECURE", bearer("token_file = \"token\"")),
        ("SECURE", bearer(&from_command)),
        ("MUTUAL", mutual),
    ];
    let mut number = 0;
    for (listener, lines) in &logins {
        let config = secured.config(&secured.broker.kafka.listener(listener), lines);
        let checked = Checked::run(&config, &[]);
        checked.passes("kafka/brokers", &[]);
        checked.passes("configuration/kafka-properties", &[]);
        let relay = rig.streaming(&config);
        for _ in 0..10 {
            number += 1;
            secured.insert(number);
        }
        rig.caught_up();
        relay.ends_well();
    }
    rig.verdict().assert_counts(60, 0);
}

#[test]
fn faults_of_kafka_access_are_told_apart() {
    let secured = Secured::new();
    let good = login("PLAIN", USER, PASSWORD);
    let expired = format!("token_file = \"{}\"", secured.rig.path("expired").display());
    fs::write(secured.rig.path("expired"), jwt(USER, -60)).expect("written");
    fs::write(secured.rig.path("nonsense"), "nonsense-token").expect("written");
    let wrong = |mechanism| login(mechanism, USER, "wrong-password");
    let (tls, access, token) = (("kafka-tls", 78), ("kafka-access", 77), ("kafka-token", 78));
    let without_client = "\"security.protocol\" = \"SSL\"\n".to_owned();
    let unverified = "\"enable.ssl.certificate.verification\" = false\n";
    let unverified = wrong("SCRAM-SHA-256") + unverified;
    let nobody = login("PLAIN", "nobody-here", PASSWORD);
    let failing = bearer("token_command = [\"false\"]");
    let nonsense = bearer("token_file = \"nonsense\"\ntoken_lifetime = \"1h\"");
    let nowhere = bearer("token_file = \"nowhere\"");
    for (listener, lines, (id, code), words) in [
        ("ELSEWHERE", &good, tls, "is not for this host name"),
        ("EXPIRED", &good, tls, "has expired"),
        ("STRANGER", &good, tls, "no trusted authority"),
        // With TLS 1.3 the server refuses after the handshake.
        ("MUTUAL", &without_client, tls, "certificate"),
        ("SECURE", &wrong("PLAIN"), access, "sasl.password"),
        ("SECURE", &wrong("SCRAM-SHA-256"), access, "sasl.password"),
        ("SECURE", &wrong("SCRAM-SHA-512"), access, "sasl.password"),
        ("SECURE", &nobody, access, "sasl.username"),
        // This listener offers only PLAIN.
        ("EXPIRED", &unverified, access, "sasl.mechanism"),
        ("SECURE", &nowhere, token, "cannot be read"),
        ("SECURE", &bearer(&expired), token, "the token expired"),
        ("SECURE", &failing, token, "exit status: 1"),
        ("SECURE", &nonsense, access, "who issued the token"),
    ] {
        let config = secured.config(&secured.broker.kafka.listener(listener), lines);
        let checked = output_with("check", &config, &[]);
        let error = refused(&checked, id, code, &[words]);
        let token = &jwt(USER, 0)[..20];
        assert_lacks(
            &error,
            &[PASSWORD, "wrong-password", "nonsense-token", token],
        );
    }
}

/// Verification can be turned off, and the relay warns about that.
#[test]
fn verification_that_is_off_is_warned_about() {
    let secured = Secured::new();
    let good = login("PLAIN", USER, PASSWORD);
    for (listener, property, words) in [
        (
            "ELSEWHERE",
            "\"ssl.endpoint.identification.algorithm\" = \"none\"",
            "identification.algorithm is none",
        ),
        (
            "STRANGER",
            "\"enable.ssl.certificate.verification\" = false",
            "verification is off",
        ),
    ] {
        let address = secured.broker.kafka.listener(listener);
        let config = secured.config(&address, &format!("{good}{property}\n"));
        let checked = Checked::run(&config, &[]);
        checked.passes("kafka/brokers", &[]);
        checked.warns("configuration/kafka-properties", &[words]);
        let relay = secured.rig.streaming(&config);
        relay.says(words);
        relay.ends_well();
    }
}

/// A broker without TLS receives the begin of a handshake, and nothing else.
#[test]
fn nothing_is_sent_in_clear_to_a_broker_without_tls() {
    let secured = Secured::new();
    let plain = secured.broker.kafka.bootstrap_servers();
    let (_, port) = plain.rsplit_once(':').expect("a port");
    let recorder = Recorder::before(port.parse().expect("a port"));
    let address = format!("localhost:{}", recorder.port);
    // With TLS the login comes after the handshake, whichever it is.
    let config = secured.config(&address, &login("PLAIN", USER, PASSWORD));
    let checked = output_with("check", &config, &[]);
    refused(&checked, "kafka-tls", 78, &["security.protocol"]);
    let heard = recorder.heard();
    assert!(!heard.is_empty(), "it did not connect");
    for bytes in heard.iter().filter(|bytes| !bytes.is_empty()) {
        // A record of type handshake.
        assert_eq!(bytes[..2], [0x16, 0x03], "{bytes:?}");
        assert!(!contains(bytes, PASSWORD) && !contains(bytes, USER));
    }
}

/// A running relay logs what is wrong with the certificate and keeps trying. Nothing is confirmed.
#[test]
fn a_running_relay_waits_for_a_better_certificate() {
    let secured = Secured::new();
    let lines = format!("{}{LISTEN}", login("PLAIN", USER, PASSWORD));
    let config = secured.config(&secured.broker.kafka.listener("EXPIRED"), &lines);
    let mut relay = secured.rig.streaming(&config);
    let slot = secured.rig.slot();
    secured.insert(1);
    let event_ends = slot.wal_end();
    relay.says("has expired");
    let views = Views::new(&config, &relay);
    views.show(
        "blocked",
        &["the certificate of localhost", "has expired"],
        "give the broker a new certificate",
        SINK_DOWN,
    );
    let confirmed = slot.confirmed();
    assert!(confirmed < event_ends, "{confirmed} >= {event_ends}");
    assert_lacks(&relay.log(), &[PASSWORD]);
    // On the first SIGTERM the relay would wait for the broker up to its limit.
    relay.signal(Signal::Term);
    relay.says("draining");
    relay.signal(Signal::Term);
    assert_eq!(relay.ended().code(), Some(75), "{}", relay.log());

    let config = secured.config(&secured.secure(), &lines);
    secured
        .rig
        .finish(secured.rig.streaming(&config))
        .assert_clean();
}

/// A topic that may not be written: the relay logs what to grant. Once that is granted, everything
/// arrives in order.
#[test]
fn access_that_is_granted_late_is_waited_for() {
    let secured = Secured::new();
    let rig = &secured.rig;
    let [open, closed] = ["open", "closed"].map(|name| format!("{}{name}", rig.prefix));
    for topic in [&open, &closed] {
        secured.broker.kafka.create_topic(topic, 1, &[]);
    }
    secured.broker.allow(&open, &["WRITE", "DESCRIBE"]);
    let login = login("PLAIN", SecureKafka::LIMITED, SecureKafka::LIMITED_PASSWORD);
    let config = secured.config(&secured.secure(), &format!("{login}{LISTEN}"));
    let relay = rig.streaming(&config);
    secured.insert_of("open", 1);
    rig.caught_up();
    for number in 2..=10 {
        secured.insert_of(if number % 2 == 0 { "closed" } else { "open" }, number);
    }
    relay.says("allow the principal WRITE");
    let words = ["is not authorised", "its records wait for it"];
    let remedy = "allow the principal WRITE";
    Views::new(&config, &relay).show("blocked", &words, remedy, NOT_READY);
    secured.broker.allow(&closed, &["WRITE", "DESCRIBE"]);
    let verdict = rig.finish(relay);
    verdict.assert_clean();
    assert_eq!(verdict.committed, 10);
}

/// A topic may not be created for a while, and the policy skips events that Kafka refuses: the
/// event is retried, and arrives.
#[test]
fn a_topic_is_created_once_its_creation_is_allowed() {
    let secured = Secured::new();
    let rig = &secured.rig;
    let late = format!("{}late", rig.prefix);
    let login = login("PLAIN", SecureKafka::LIMITED, SecureKafka::LIMITED_PASSWORD);
    let lines = format!(
        "{login}\n[sink.topics]\ncreate = true\npartitions = 1\n\n\
         [poison]\nrejected = \"skip\"\nretry_for = \"2m\"\n\n[delivery]\nbackoff_max = \"200ms\"\n"
    );
    let relay = rig.streaming(&secured.config(&secured.secure(), &lines));
    secured.insert_of("late", 1);
    relay.says_often("the topic is missing and could not be created", 2);
    assert_lacks(&relay.log(), &["skipped"]);
    secured
        .broker
        .allow(&late, &["CREATE", "WRITE", "DESCRIBE"]);
    rig.caught_up();
    let verdict = rig.verdict();
    verdict.assert_clean();
    assert_eq!(verdict.committed, 1);
    let log = relay.ends_well();
    assert_has(&log, &["\"skipped\":0"]);
}
