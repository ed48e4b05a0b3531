use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use walrelay_failure::{Exit, FailureWords};
use walrelay_lsn::{CommitEnd, Lsn};
use walrelay_relay::{Counts, PipelineState, Progress};
use walrelay_sink::{ConnectFailure, EndpointStats, Endpoints, EventPosition, Loss};

use super::list::{SLO, TIMES};
use crate::{RecentErrors, Setup, Telemetry};

#[test]
fn each_alert_that_is_named_exists_and_has_its_time() {
    assert_eq!(TIMES["WalrelayNotReady"], Some("2m"));
    assert_eq!(TIMES["WalrelaySilent"], None);
    let code = [
        include_str!("pipeline.rs"),
        include_str!("source.rs"),
        include_str!("sink.rs"),
        include_str!("events.rs"),
        include_str!("mod.rs"),
    ]
    .concat();
    for named in code.split("\"Walrelay").skip(1) {
        let end = named.find(['"', ',']).expect("its end");
        let name = format!("Walrelay{}", &named[..end]);
        assert!(TIMES.contains_key(&*name), "{name}");
    }
}

#[test]
fn a_clock_of_the_sink_that_is_apart_is_a_problem() {
    let telemetry = Telemetry::new(Setup::default(), RecentErrors::default());
    let shown = || {
        let problems = telemetry.report().problems;
        let mut alerts = problems.into_iter().filter_map(|problem| problem.reason);
        alerts.find(|reason| reason.contains("this machine"))
    };
    for (offset, expected) in [
        (-0.5, None),
        (-3.0, Some("3.0 s behind")),
        (4.0, Some("4.0 s ahead")),
    ] {
        telemetry.sink.clocks.note(offset);
        let reason = shown();
        assert_eq!(reason.is_some(), expected.is_some(), "{reason:?}");
        assert!(
            reason
                .unwrap_or_default()
                .contains(expected.unwrap_or_default())
        );
    }
}

#[test]
fn a_budget_that_is_used_up_is_a_problem() {
    let setup = Setup {
        slo: Some(crate::sections::Slo {
            commit_to_ack: Some(Duration::from_millis(1)),
            // 26 seconds of 30 days.
            target: 99.999,
            lag: Duration::from_secs(30),
        }),
        ..Setup::default()
    };
    let telemetry = Telemetry::new(setup, RecentErrors::default());
    let end_seconds = |number: u32| {
        for _ in 0..number {
            telemetry.commit_to_ack.record(Duration::from_millis(3));
            telemetry.end_second();
        }
        let problems = telemetry.report().problems;
        problems
            .into_iter()
            .find(|problem| problem.title.contains("budget"))
    };
    assert!(end_seconds(20).is_none());
    let problem = end_seconds(10).expect("a problem");
    let reason = "30 s of this run were later than 0.001 s, with a target of 99.999 %";
    assert_eq!(problem.reason.as_deref(), Some(reason));
    assert_eq!(problem.runbook, SLO);
}

#[test]
fn an_event_near_the_limit_is_a_problem_with_topic_and_sizes() {
    let telemetry = Telemetry::new(Setup::default(), RecentErrors::default());
    let event = walrelay_sink::Record {
        topic: "orders",
        value: Some(b"secret"),
        ..walrelay_sink::Record::default()
    };
    let shown = || {
        let problems = telemetry.report().problems.into_iter();
        let mut found = problems.filter(|it| it.title.contains("almost as large"));
        found.next()
    };
    telemetry.sink.sizes.compare(&event, 80, 100);
    assert_eq!(shown(), None);
    telemetry.sink.sizes.compare(&event, 81, 100);
    let problem = shown().expect("a problem");
    assert_eq!(telemetry.report().sink.events_near_limit, 1);
    let reason = "topic \"orders\": an event has 81 bytes, the limit is 100";
    assert_eq!(problem.reason.as_deref(), Some(reason));
    let alert = problem.alert.as_deref();
    assert_eq!(alert, Some("WalrelayEventsNearLimit"));
}

#[test]
fn a_loss_of_the_destination_is_a_problem_with_its_range_and_command() {
    let telemetry = Telemetry::new(Setup::default(), RecentErrors::default());
    let range = [0x10, 0x20].map(|lsn| EventPosition::in_first_epoch(lsn, 1));
    let loss = Loss::new("orders", Some("orders"), 4, range.into(), false);
    telemetry.sink.note_loss(loss);
    let problems = telemetry.report().problems.into_iter();
    let mut losses = problems.filter(|it| it.title.contains("has lost events"));
    let problem = losses.next().expect("a problem");
    let alert = problem.alert.as_deref();
    assert_eq!(
        (&*problem.level, alert),
        ("bad", Some("WalrelayDestinationLost"))
    );
    let reason =
        "stream \"orders\": 4 or more entries are gone, of the events from 0/10 1 to 0/20 1";
    assert_eq!(problem.reason.as_deref(), Some(reason));
    let remedy = problem.remedy.expect("a remedy");
    assert!(
        remedy.starts_with("walrelay replay --from 0/10 --to 0/21 "),
        "{remedy}"
    );
}

#[test]
fn a_problem_has_alert_reason_and_remedy_and_the_worst_is_first() {
    let setup = Setup {
        expect_event_every: Some(Duration::ZERO),
        ..Setup::default()
    };
    let telemetry = Telemetry::new(setup, RecentErrors::default());
    telemetry.state(&PipelineState::Streaming);
    telemetry.clock(Some(-3.0));
    telemetry.skipped(walrelay_relay::Class::Parked);
    telemetry.dead_letter_obstacle(Some("it is missing".to_owned()));
    let titles = |telemetry: &Telemetry| {
        let shown = telemetry.report().problems.into_iter();
        let shown: Vec<_> = shown
            .map(|problem| {
                assert!(
                    problem.reason.is_some() && problem.remedy.is_some(),
                    "{problem:?}"
                );
                (
                    problem.level.clone(),
                    problem.alert_text().expect("an alert"),
                )
            })
            .collect();
        shown
    };
    let of = |level: &str, alert: &str| (level.to_owned(), alert.to_owned());
    let streaming = [
        of("warn", "WalrelayClocksApart, after 5m"),
        of("warn", "WalrelaySilent"),
        of("warn", "WalrelayDeadLetterTopic, after 5m"),
        of("note", "WalrelayEventsSkipped"),
    ];
    assert_eq!(titles(&telemetry), streaming);
    telemetry.state(&PipelineState::Blocked {
        why: "no room".to_owned(),
        remedy: None,
    });
    let blocked = titles(&telemetry);
    assert_eq!(blocked[0], of("bad", "WalrelayNotReady, after 2m"));
    assert_eq!(blocked[1..], streaming);
}

#[test]
fn a_new_attempt_names_why_the_last_one_failed() {
    let telemetry = Telemetry::new(Setup::default(), RecentErrors::default());
    let shown = |state: &PipelineState| {
        telemetry.state(state);
        let report = telemetry.report();
        let first = report.problems.into_iter().next();
        first.map(|problem| (problem.title, problem.reason))
    };
    let why = "a record was not delivered".to_owned();
    let failed = shown(&PipelineState::Waiting {
        cause: "delivery",
        why: why.clone(),
        explanation: None,
    });
    let (failed, reason) = failed.expect("a problem");
    assert!(
        failed.ends_with(" accepts no events: not relaying, trying again"),
        "{failed}"
    );
    assert_eq!(reason, Some(why));
    let (title, reason) = shown(&PipelineState::Connecting).expect("a problem");
    assert_eq!(title, failed, "it tells nothing of Postgres");
    let last = "the last attempt failed: a record was not delivered";
    assert_eq!(reason.as_deref(), Some(last));
    // The next event may end this attempt, too: a probe does not see it ready in between.
    let (title, reason) = shown(&PipelineState::Streaming).expect("a problem");
    assert_eq!((title, reason.as_deref()), (failed, Some(last)));
    assert!(!telemetry.report().ready);
    telemetry.progress(&Progress {
        counts: Counts::default(),
        received: Lsn::ZERO,
        confirmed: CommitEnd::from_slot(Lsn::new(1)),
        in_flight: 1,
        first: None,
        oldest: None,
    });
    assert_eq!(shown(&PipelineState::Streaming), None);
    assert!(telemetry.report().ready);
    let (title, reason) = shown(&PipelineState::Connecting).expect("a problem");
    assert_eq!(
        (&*title, reason),
        ("Connecting to Postgres", None),
        "this is another attempt"
    );
}

#[test]
fn a_server_of_which_no_attempt_has_failed_is_not_down() {
    let telemetry = Telemetry::new(Setup::default(), RecentErrors::default());
    telemetry.state(&PipelineState::Streaming);
    // A broker of the last client, which the present one does not know yet.
    let of_client = telemetry.sink.client();
    for state in [EndpointStats::INIT, EndpointStats::DOWN, "CONNECT"] {
        *walrelay_sink::lock(&of_client) = vec![EndpointStats {
            name: "b:9092/1".to_owned(),
            state: state.to_owned(),
            ..EndpointStats::default()
        }];
        assert!(telemetry.report().problems.is_empty(), "{state}");
    }
    telemetry.sink.all_down.store(true, Relaxed);
    let problems = telemetry.report().problems;
    assert_eq!(problems[0].alert.as_deref(), Some("WalrelaySinkDown"));
}

#[test]
fn servers_that_refuse_the_relay_have_the_words_of_their_failure() {
    let telemetry = Telemetry::new(Setup::default(), RecentErrors::default());
    telemetry.state(&PipelineState::Streaming);
    let mut endpoints = Endpoints::new(Arc::clone(&telemetry.sink));
    let fail = |endpoints: &mut Endpoints, exit| {
        endpoints.attempt("a:1", None, false);
        telemetry.sink.all_down.store(true, Relaxed);
        endpoints.connect_failed(ConnectFailure {
            words: FailureWords {
                id: "redis-access",
                exit,
                what: "Redis refuses the relay",
                remedy: "correct the password",
            },
            cause: "a:1: no login [redis-access]".to_owned(),
        });
    };
    let shown = || telemetry.report().problems.into_iter().next();
    for (exit, title) in [
        (Exit::Denied, "Redis refuses the relay"),
        (Exit::Unavailable, " is down: no endpoint answers"),
    ] {
        fail(&mut endpoints, exit);
        let problem = shown().expect("a problem");
        assert_eq!(problem.title, title);
        assert_eq!(
            problem.reason.as_deref(),
            Some("a:1: no login [redis-access]")
        );
        let remedy = problem.remedy.expect("a remedy");
        assert!(remedy.starts_with("correct the password. "), "{remedy}");
        assert_eq!(problem.alert.as_deref(), Some("WalrelaySinkDown"));
    }
    endpoints.connected("a:1");
    assert!(shown().is_none(), "it answers");
    endpoints.attempt("a:1", None, false);
    assert!(shown().is_none(), "one attempt is not enough");
}
