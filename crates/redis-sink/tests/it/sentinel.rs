//! The conformance suite, and failovers, against a master, a replica and a Sentinel.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test may panic"
)]

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::process;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::support::{options, refusals, section, stored};
use walrelay_redis_sink::{Ids, RedisKind, RedisSection};
use walrelay_sink::{AnySinkFactory, Disposition, EventPosition, SinkStats};
use walrelay_sink_kind::SinkKind as _;
use walrelay_testkit::conformance::{Bounds, Destination, Refusal, Stored};
use walrelay_testkit::{
    OpenSink, PATIENCE, Redis, RedisGroup, RedisReply, conformance, eventually,
};

/// A group that one test has to itself.
struct Group(RedisGroup);

impl Group {
    fn start() -> Self {
        if !Redis::is_wanted() {
            // None of the tests of this program can be run.
            process::exit(0);
        }
        Self(RedisGroup::start())
    }

    /// An event must be on the replica, which may become the master.
    fn section(&self) -> RedisSection {
        RedisSection {
            hosts: Vec::new(),
            sentinels: vec![format!("127.0.0.1:{}", self.0.sentinel_port())],
            master: Some("mymaster".to_owned()),
            wait_replicas: 1,
            ..section(1, Ids::Position)
        }
    }
}

impl Destination for Group {
    fn factory(&self, bounds: Bounds) -> AnySinkFactory {
        let kind = RedisKind::new(&self.section(), &bounds.options());
        kind.unwrap().factory(None).0
    }

    fn stored(&self, topic: &str) -> Vec<Stored> {
        stored(&mut self.0.master().client(), topic)
    }

    fn pause(&self) {
        self.0.pause_master();
    }

    fn resume(&self) {
        self.0.resume();
    }

    fn kill(&self) {
        self.0.kill_master();
    }

    fn start(&self) {
        self.0.start_again();
    }

    fn refusals(&self) -> Vec<Refusal> {
        refusals()
    }

    fn drops_repeats(&self) -> bool {
        true
    }
}

// The others do not depend on who names the server.
conformance!(Group::start() =>
    acknowledged_means_durable
    order_per_key
    stops_in_time
);

/// A sink with its reports.
struct Relay {
    sink: OpenSink,
    stats: Arc<SinkStats>,
}

impl Relay {
    fn with(section: &RedisSection) -> Self {
        let kind = RedisKind::new(section, &options()).unwrap();
        let (mut factory, stats) = kind.factory(None);
        Self {
            sink: OpenSink::new(&mut factory, None),
            stats: stats.unwrap(),
        }
    }

    /// Sends the next event: its row and its id are its number.
    fn send(&mut self, stream: &str) {
        let position = EventPosition::in_first_epoch(1, self.sink.sent);
        self.sink.send_event(stream, "key", position);
    }
}

/// The numbers of a stream's events, as its master has them, in order.
fn numbers(group: &Group, stream: &str) -> Vec<u64> {
    let stored = group.stored(stream);
    stored.iter().map(|it| it.id.parse().unwrap()).collect()
}

#[test]
fn nothing_is_lost_or_repeated_when_the_master_is_killed_and_the_replica_is_promoted() {
    let group = Group::start();
    let stream = "failover";
    let mut relay = Relay::with(&RedisSection {
        // The first sentinel does not answer.
        sentinels: vec![
            "127.0.0.1:1".to_owned(),
            format!("127.0.0.1:{}", group.0.sentinel_port()),
        ],
        ..group.section()
    });
    for round in 1..=2 {
        for _ in 0..500 {
            relay.send(stream);
        }
        // Amid the transactions.
        let before = usize::try_from(relay.sink.sent).unwrap() - 400;
        relay
            .sink
            .reports
            .wait(|state| state.outcomes.len() >= before);
        let killed = group.0.master().port();
        for _ in 0..2_000 {
            relay.send(stream);
        }
        group.0.kill_master();
        group.0.failed_over();
        let promoted = group.0.master().port();
        assert_ne!(promoted, killed);
        // The new master has no replica.
        relay.sink.waits_for("0 of 1 replicas");
        let shown = relay.stats.endpoints();
        let [endpoint] = &*shown else {
            panic!("{shown:?}");
        };
        assert_eq!(endpoint.name, format!("127.0.0.1:{promoted}"));
        group.0.start_again();
        relay.sink.delivered();
        assert_eq!(group.0.master().port(), promoted);
        assert!(numbers(&group, stream).into_iter().eq(0..round * 2_500));
    }
}

#[test]
fn a_master_that_is_demoted_while_it_runs_is_left_for_the_new_one() {
    let group = Group::start();
    let stream = "demoted";
    let mut relay = Relay::with(&group.section());
    relay.send(stream);
    relay.sink.delivered();
    let before = group.0.master().port();
    let mut sentinel = group.0.sentinel();
    let mut fail_over = || sentinel.run("SENTINEL FAILOVER mymaster");
    let begun = RedisReply::Okay;
    // Until the Sentinel knows the replica well enough.
    eventually(PATIENCE, || fail_over() == begun);
    for _ in 0..2_000 {
        relay.send(stream);
    }
    // The Sentinel gives up a failover that takes 2 s, as on a busy machine, and begins no other: its
    // master is not down. It refuses the command while one is under way.
    eventually(PATIENCE, || {
        let moved = group.0.master().port() != before;
        if !moved {
            fail_over();
        }
        moved
    });
    relay.sink.delivered();
    assert!(numbers(&group, stream).into_iter().eq(0..relay.sink.sent));
}

/// Names a server to everybody who asks, as a sentinel that does not know of a failover.
fn stale_sentinel(named: u16) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let named = named.to_string();
    let answer = format!("*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{named}\r\n", named.len());
    // It ends with the process.
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut question = [0; 1_000];
            if stream.read(&mut question).is_ok() {
                let _ = stream.write_all(answer.as_bytes());
            }
        }
    });
    port
}

#[test]
fn a_replica_that_a_sentinel_names_is_left_for_the_next_sentinel() {
    let group = Group::start();
    let stale = format!("127.0.0.1:{}", stale_sentinel(group.0.replica().port()));
    let only = RedisSection {
        sentinels: vec![stale.clone()],
        ..group.section()
    };
    let mut relay = Relay::with(&only);
    relay.send("stale");
    let disposition = relay.sink.waits_for("the server is a replica");
    assert_eq!(disposition, Disposition::Retryable);
    relay.sink.close(Duration::ZERO);
    let right = group.section().sentinels.remove(0);
    let mut relay = Relay::with(&RedisSection {
        sentinels: vec![stale, right],
        ..group.section()
    });
    relay.send("stale");
    relay.sink.delivered();
}

#[test]
fn an_unknown_master_a_server_that_is_no_sentinel_and_a_wrong_password_are_shown() {
    let group = Group::start();
    let refused = |section: &RedisSection, words: &str| {
        let mut relay = Relay::with(section);
        relay.send("none");
        let disposition = relay.sink.waits_for(words);
        assert_eq!(disposition, Disposition::Configuration, "{words}");
        relay.sink.close(Duration::ZERO);
    };
    let unknown = RedisSection {
        master: Some("other".to_owned()),
        ..group.section()
    };
    refused(&unknown, "knows no master \"other\"");
    let server = RedisSection {
        sentinels: vec![format!("127.0.0.1:{}", group.0.master().port())],
        ..group.section()
    };
    refused(&server, "no sentinel");
    let set = "ACL SETUSER relay on >secret-word +sentinel|get-master-addr-by-name";
    group.0.sentinel().done(set);
    let with = |password: &str| RedisSection {
        sentinel_username: Some("relay".to_owned()),
        sentinel_password: Some(password.into()),
        ..group.section()
    };
    refused(&with("wrong"), "WRONGPASS");
    let mut relay = Relay::with(&with("secret-word"));
    relay.send("allowed");
    relay.sink.delivered();
    let set = "ACL SETUSER weak on >secret-word ~* +ping +xadd +multi +exec +xinfo +wait";
    group.0.master().client().done(set);
    let weak = RedisSection {
        username: Some("weak".to_owned()),
        password: Some("secret-word".into()),
        ..group.section()
    };
    refused(&weak, "may not use ROLE");
}
