use http_body_util::BodyExt as _;

use super::*;
use crate::{RecentErrors, Setup};

fn answers(token: Option<&str>) -> Answers {
    answers_at("127.0.0.1:9187", token)
}

fn answers_at(listen: &str, token: Option<&str>) -> Answers {
    answers_of(&["orders"], listen, token)
}

/// Returns the answers about pipelines of these names.
fn answers_of(pipelines: &[&str], listen: &str, token: Option<&str>) -> Answers {
    let telemetry = pipelines.iter().map(|name| {
        let setup = Setup {
            name: (*name).to_owned(),
            slot: format!("slot_of_{name}"),
            ..Setup::default()
        };
        Arc::new(Telemetry::new(setup, RecentErrors::default()))
    });
    let config = sections::Http {
        listen: listen.parse().unwrap(),
        token: token.map(SecretString::from),
        hosts: vec!["walrelay.internal".to_owned()],
        standby_ready: true,
        expect_event_every: None,
        tls: None,
    };
    Answers::new(telemetry.collect(), &config)
}

fn ask(answers: &Answers, method: Method, path: &str, authorization: Option<&str>) -> Answer {
    let mut request = Request::builder().method(method).uri(path);
    request = request.header(HOST, "127.0.0.1:9187");
    if let Some(authorization) = authorization {
        request = request.header(AUTHORIZATION, authorization);
    }
    answers.answer(&request.body(()).unwrap())
}

fn body(answer: Answer) -> String {
    let collected = futures_executor::block_on(answer.into_body().collect()).unwrap();
    String::from_utf8(collected.to_bytes().to_vec()).unwrap()
}

#[test]
fn every_path_but_health_needs_the_token_where_there_is_one() {
    let answers = answers(Some("s3cret\n"));
    let basic = format!("Basic {}", STANDARD.encode("anybody:s3cret"));
    for path in ["/", "/metrics", "/api/status", "/api/history", "/nowhere"] {
        for wrong in [
            None,
            Some("Bearer s3cre"),
            Some("Bearer"),
            Some("Basic !"),
            Some("Digest s3cret"),
        ] {
            let answer = ask(&answers, Method::GET, path, wrong);
            assert_eq!(
                answer.status(),
                StatusCode::UNAUTHORIZED,
                "{path} {wrong:?}"
            );
            assert!(answer.headers().contains_key(WWW_AUTHENTICATE));
        }
        for right in ["Bearer s3cret", "bearer  s3cret", &basic] {
            let answer = ask(&answers, Method::GET, path, Some(right));
            assert_ne!(answer.status(), StatusCode::UNAUTHORIZED, "{path} {right}");
        }
    }
    assert_eq!(
        ask(&answers, Method::GET, "/healthz", None).status(),
        StatusCode::OK
    );
    assert_eq!(
        ask(&answers, Method::POST, "/metrics", None).status(),
        StatusCode::METHOD_NOT_ALLOWED
    );
}

/// A site whose name leads to this address (DNS rebinding) gets nothing but metrics and health.
#[test]
fn without_a_token_the_endpoint_answers_only_to_its_own_names() {
    let status = |answers: &Answers, path: &str, host: Option<&str>, origin: Option<&str>| {
        let mut request = Request::builder().uri(path);
        for (name, value) in [(HOST, host), (ORIGIN, origin)] {
            if let Some(value) = value {
                request = request.header(name, value);
            }
        }
        answers.answer(&request.body(()).unwrap()).status()
    };
    let here = answers(None);
    let everywhere = answers_at("0.0.0.0:9187", None);
    let ours = [
        "localhost",
        "LocalHost.:9187",
        "127.0.0.1:9187",
        "[::1]:80",
        "Walrelay.Internal",
    ];
    let foreign = [
        "evil.example",
        "localhost.evil.example:9187",
        "127.0.0.1.evil.example",
        "[::1",
        "",
    ];
    for path in ["/", "/api/status", "/api/history", "/nowhere"] {
        for host in ours {
            let found = status(&here, path, Some(host), None);
            assert_ne!(found, StatusCode::FORBIDDEN, "{path} {host}");
            let found = status(&here, path, Some(host), Some("http://127.0.0.1:9187"));
            assert_ne!(found, StatusCode::FORBIDDEN, "{path} {host}");
            for origin in ["http://evil.example", "null"] {
                let found = status(&here, path, Some(host), Some(origin));
                assert_eq!(found, StatusCode::FORBIDDEN, "{path} {origin}");
            }
        }
        for host in foreign {
            for answers in [&here, &everywhere] {
                let found = status(answers, path, Some(host), None);
                assert_eq!(found, StatusCode::FORBIDDEN, "{path} {host}");
            }
        }
        assert_eq!(status(&here, path, None, None), StatusCode::FORBIDDEN);
        // The address of another interface leads here only if all are listened on.
        let address = Some("192.0.2.7:9187");
        assert_eq!(status(&here, path, address, None), StatusCode::FORBIDDEN);
        assert_ne!(
            status(&everywhere, path, address, None),
            StatusCode::FORBIDDEN
        );
    }
    for host in [Some("evil.example"), None] {
        for path in ["/metrics", "/healthz"] {
            assert_eq!(status(&here, path, host, None), StatusCode::OK, "{path}");
        }
        let ready = status(&here, "/readyz", host, None);
        assert_eq!(ready, StatusCode::SERVICE_UNAVAILABLE);
    }
    let absolute = |target: &str| status(&here, target, Some("localhost"), None);
    assert_eq!(
        absolute("http://evil.example/api/status"),
        StatusCode::FORBIDDEN
    );
    assert_eq!(absolute("http://localhost/api/status"), StatusCode::OK);
}

/// The problem of a relay that connects.
const CONNECTING: &str = r#""title":"Connecting to Postgres","reason":null,"remedy":"see walrelay check, if it lasts","alert":"WalrelayNotReady, after 2m""#;

#[test]
fn readiness_has_a_reason() {
    let answers = answers(None);
    let answer = ask(&answers, Method::GET, "/readyz", None);
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(
        body(answer),
        format!(r#"{{"ready":false,"reason":"connecting","problems":[{{{CONNECTING}}}]}}"#)
    );
    answers
        .pipelines
        .only()
        .unwrap()
        .state(&walrelay_relay::PipelineState::Streaming);
    let answer = ask(&answers, Method::GET, "/readyz", None);
    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!(body(answer), r#"{"ready":true,"reason":null}"#);
}

/// Returns a relay that waits for its slot, behind this kind of reader.
fn waiting_behind(kind: walrelay_relay::HolderKind) -> walrelay_relay::PipelineState {
    walrelay_relay::PipelineState::WaitingForSlot {
        why: "slot s is being read by server process 7 (psql)".to_owned(),
        holder: walrelay_relay::SlotHolder {
            kind,
            pid: Some(7),
            application_name: Some("psql".to_owned()),
            since: None,
        },
    }
}

#[test]
fn a_standby_is_ready_unless_configured_otherwise_and_a_stolen_slot_is_not() {
    use walrelay_relay::HolderKind;

    let mut answers = answers(None);
    let readyz = |answers: &Answers| {
        let answer = ask(answers, Method::GET, "/readyz", None);
        (answer.status(), body(answer))
    };
    answers
        .pipelines
        .only()
        .unwrap()
        .state(&waiting_behind(HolderKind::Relay));
    let (status, text) = readyz(&answers);
    assert_eq!(status, StatusCode::OK);
    assert!(text.contains("standing by: slot s"), "{text}");
    assert!(answers.pipelines.only().unwrap().report().ready);
    answers.standby_ready = false;
    let (status, text) = readyz(&answers);
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(text.contains("standing by: slot s"), "{text}");
    answers.standby_ready = true;
    for (kind, remedy) in [
        (HolderKind::Stranger, "pg_terminate_backend(7)"),
        (HolderKind::Unknown, "wal_sender_timeout"),
    ] {
        answers
            .pipelines
            .only()
            .unwrap()
            .state(&waiting_behind(kind));
        let (status, text) = readyz(&answers);
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{kind:?}");
        assert!(
            text.contains("process 7 (psql)") && text.contains(remedy),
            "{text}"
        );
        assert!(!answers.pipelines.only().unwrap().report().ready);
    }
}

#[test]
fn a_blocked_relay_names_reason_and_remedy() {
    let answers = answers(None);
    answers
        .pipelines
        .only()
        .unwrap()
        .state(&walrelay_relay::PipelineState::Blocked {
            why: "no broker answers: b:9092".to_owned(),
            remedy: Some("start the \"brokers\""),
        });
    let text = body(ask(&answers, Method::GET, "/readyz", None));
    assert!(text.contains("no broker answers: b:9092"), "{text}");
    assert!(text.contains("start the "), "{text}");
    let report = answers.pipelines.only().unwrap().report();
    assert_eq!(
        report.pipeline.reason.as_deref(),
        Some("no broker answers: b:9092")
    );
    // A label with a quote would break a scraper's line.
    let metrics = body(ask(&answers, Method::GET, "/metrics", None));
    let line = "walrelay_not_ready_reason{reason=\"blocked by the sink: no broker answers: b:9092\",\
                remedy=\"start the 'brokers'";
    assert!(metrics.contains(line), "{metrics}");
}

#[tokio::test(start_paused = true)]
async fn events_come_each_second_and_at_once_when_the_state_changes() {
    let answers = answers(None);
    let mut events = ask(&answers, Method::GET, "/api/events", None).into_body();
    let start = Instant::now();
    let mut at = Vec::new();
    for n in 0..4 {
        let frame = events.frame().await.unwrap().unwrap().into_data().unwrap();
        let text = String::from_utf8(frame.to_vec()).unwrap();
        assert!(
            text.starts_with("event: status\ndata: {") && text.ends_with("}\n\n"),
            "{text}"
        );
        at.push(start.elapsed().as_millis());
        if n == 1 {
            answers
                .pipelines
                .only()
                .unwrap()
                .state(&walrelay_relay::PipelineState::Streaming);
        }
    }
    assert!(
        at[1] - at[0] >= 1000 && at[2] - at[1] <= 400 && at[3] - at[2] >= 1000,
        "{at:?}"
    );
}

#[test]
fn streams_are_bounded_and_closed_ones_free_their_place() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let _inside = runtime.enter();
    let answers = answers(None);
    let open = || ask(&answers, Method::GET, "/api/events", None);
    let mut streams: Vec<_> = (0..MOST_STREAMS).map(|_| open()).collect();
    assert!(
        streams
            .iter()
            .all(|answer| answer.status() == StatusCode::OK)
    );
    assert_eq!(open().status(), StatusCode::SERVICE_UNAVAILABLE);
    streams.pop();
    assert_eq!(open().status(), StatusCode::OK);
}

#[test]
fn a_request_names_one_of_several_pipelines() {
    let listen = "127.0.0.1:9187";
    let several = answers_of(&["orders", "bills"], listen, None);
    let get = |answers: &Answers, path: &str| {
        let answer = ask(answers, Method::GET, path, None);
        (answer.status(), body(answer))
    };
    let slot = |(status, body): (StatusCode, String)| {
        assert_eq!(status, StatusCode::OK, "{body}");
        let report: crate::StatusReport = serde_json::from_str(&body).unwrap();
        report.pipeline.slot
    };
    assert_eq!(
        slot(get(&several, "/api/status?pipeline=bills")),
        "slot_of_bills"
    );
    assert_eq!(
        slot(get(&several, "/api/status?a=b&pipeline=orders")),
        "slot_of_orders"
    );
    let (status, _) = get(&several, "/api/history?pipeline=orders");
    assert_eq!(status, StatusCode::OK);
    for path in ["/api/status", "/api/history?pipeline=none", "/api/events"] {
        let (status, body) = get(&several, path);
        assert_eq!(status, StatusCode::NOT_FOUND, "{path}");
        let expected = "name one of the pipelines: ?pipeline=NAME with one of orders, bills\n";
        assert_eq!(body, expected);
    }
    let one = answers_of(&["orders"], listen, None);
    assert_eq!(slot(get(&one, "/api/status")), "slot_of_orders");
}

#[test]
fn several_pipelines_are_ready_when_each_is() {
    let several = answers_of(&["orders", "bills"], "127.0.0.1:9187", None);
    let ready = || body(ask(&several, Method::GET, "/readyz", None));
    let streams = |name: &str| {
        let query = format!("pipeline={name}");
        let pipeline = several.pipelines.named(Some(&query)).unwrap();
        pipeline.state(&walrelay_relay::PipelineState::Streaming);
    };
    let of = |name: &str| format!(r#"{{"pipeline":"{name}",{CONNECTING}}}"#);
    let not_ready = |reason: &str, problems: &str| {
        format!(r#"{{"ready":false,"reason":"{reason}","problems":[{problems}]}}"#)
    };
    let both = format!("{},{}", of("orders"), of("bills"));
    assert_eq!(
        ready(),
        not_ready("orders: connecting; bills: connecting", &both)
    );
    streams("orders");
    assert_eq!(ready(), not_ready("bills: connecting", &of("bills")));
    streams("bills");
    assert_eq!(ready(), r#"{"ready":true,"reason":null}"#);
}

/// Work begins only by the page's own requests, or by those of a program with the same header.
#[test]
fn another_site_begins_no_work() {
    let answers = answers(Some("s3cret"));
    let status = |path: &str, headers: &[(&str, &str)]| {
        let mut request = Request::builder().method(Method::POST).uri(path);
        request = request.header(AUTHORIZATION, "Bearer s3cret");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        answers.answer(&request.body(()).unwrap()).status()
    };
    for (path, header) in ACTIONS {
        let path = format!("{path}?id=1&lsn=0/10&row=0");
        assert_eq!(status(&path, &[]), StatusCode::FORBIDDEN, "{path}");
        for site in ["cross-site", "same-site", "none"] {
            let found = status(&path, &[(header, "1"), (FETCH_SITE, site)]);
            assert_eq!(found, StatusCode::FORBIDDEN, "{path} {site}");
        }
        // This pipeline has neither dead letters nor commands.
        for site in [None, Some((FETCH_SITE, "same-origin"))] {
            let headers: Vec<_> = site.into_iter().chain([(header, "1")]).collect();
            assert_eq!(status(&path, &headers), StatusCode::NOT_FOUND, "{path}");
        }
    }
}

#[test]
fn events_are_looked_for_with_a_token_or_on_a_loopback_address() {
    let status = |listen: &str, token: Option<&str>, path| {
        let authorization = token.map(|token| format!("Bearer {token}"));
        let answers = answers_at(listen, token);
        let answer = ask(&answers, Method::GET, path, authorization.as_deref());
        answer.status()
    };
    let everywhere = "0.0.0.0:9187";
    assert_eq!(
        status(everywhere, None, "/api/event"),
        StatusCode::FORBIDDEN
    );
    let answers = answers_at(everywhere, None);
    let look = ask(&answers, Method::POST, "/api/event/where?id=1", None);
    assert_eq!(look.status(), StatusCode::FORBIDDEN);
    assert!(body(look).contains("http.token_file"));
    // This relay has no commands.
    for (listen, token) in [
        (everywhere, Some("s3cret")),
        ("127.0.0.1:9187", None),
        ("[::1]:9187", None),
    ] {
        assert_eq!(
            status(listen, token, "/api/event"),
            StatusCode::NOT_FOUND,
            "{listen}"
        );
    }
}
