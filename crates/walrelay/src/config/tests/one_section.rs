//! Tests of single sections: accepted and refused values.

use walrelay_event_router::HeadersFrom;
use walrelay_relay::TableName;

use super::*;

#[test]
fn options_and_converters_of_debezium_are_read() {
    let text = format!(
        "{LEAST}\n[router.debezium]\n\"topic.prefix\" = \"srv\"\n\
         \"table.fields.additional.placement\" = \"type:header:eventType, ver:ENVELOPE\"\n\
         \"table.field.additional.missing\" = \"ignore\"\n\
         \"table.field.event.timestamp\" = \"ts\"\n\
         \"route.topic.regex\" = '(.*)-(.*)'\n\"route.topic.replacement\" = \"$2.$1\"\n\
         \"route.tombstone.on.empty.payload\" = \" TRUE\"\n\
         \"table.expand.json.payload\" = true\n\
         \"table.json.payload.null.behavior\" = \"optional_bytes\"\n\
         \"time.precision.mode\" = \"isostring\"\n\"money.fraction.digits\" = 3\n\
         \"extended.headers.enabled\" = true\n\
         [router.converters]\n\"key.converter\" = \"org.apache.kafka.connect.json.JsonConverter\"\n\
         \"key.converter.schemas.enable\" = false\n\"value.converter\" = \"binarydata\"\n\
         \"value.converter.delegate.converter.type\" = \"json\"\n\
         \"value.converter.delegate.converter.type.schemas.enable\" = \"false\"\n\
         \"header.converter\" = \"string\"\n"
    );
    let config = parse(&text).unwrap();
    let Debezium {
        options,
        context_headers,
        ..
    } = debezium(&config);
    assert!(*context_headers && options.has_envelope() && options.ignore_missing);
    assert!(options.tombstone_on_empty);
    assert_eq!(options.additional.len(), 2);
    assert_eq!(options.event_timestamp.as_deref(), Some("ts"));
    let topic = TopicTemplate::with_regex("(.*)-(.*)", "$2.$1");
    assert_eq!(Ok(&options.topic), topic.as_ref());
    assert!(
        options
            .expand
            .is_some_and(|expand| expand.keep_nulls && !expand.keep_empty_arrays)
    );
    assert_eq!(options.handling.time, TimePrecision::IsoString);
    assert_eq!(options.handling.money_fraction_digits, 3);
    let json = Converter::Json(JsonOptions {
        schemas: false,
        ..JsonOptions::default()
    });
    assert_eq!(options.key_converter, json);
    assert_eq!(
        options.value_converter,
        Converter::BinaryData(Some(Box::new(json)))
    );
    assert_eq!(options.header_converter, Converter::String);
}

#[test]
fn a_column_has_names_of_now_and_then() {
    let names = |config: &Config, column: &str| -> Vec<String> {
        config
            .pipeline
            .column_names
            .names_of(column)
            .map(str::to_owned)
            .collect()
    };
    let text = format!(
        "{LEAST}\n[router.debezium]\n\"table.field.event.payload\" = [\"body\", \"payload\", \"data\"]\n\
         [router.former_columns]\nbody = \"old\"\ntenant = [\"customer\"]\n"
    );
    let config = parse(&text).unwrap();
    assert_eq!(debezium(&config).options.payload, "body");
    assert_eq!(names(&config, "body"), ["body", "old", "payload", "data"]);
    assert_eq!(names(&config, "tenant"), ["tenant", "customer"]);
    assert_eq!(names(&config, "id"), ["id"]);
    for (value, named) in [("a", "a"), ("['a', 'b']", "a"), ("'a'", "a")] {
        let set = format!("router.debezium.route.by.field={value}");
        let config = parse_set(LEAST, &[&set]).unwrap();
        assert_eq!(debezium(&config).options.route_by, named, "{value}");
    }
    for (value, id) in [("[]", "config-invalid-value"), ("[1]", "config-wrong-type")] {
        let set = format!("router.debezium.route.by.field={value}");
        assert_eq!(only(parse_set(LEAST, &[&set])).0, id, "{value}");
    }
}

#[test]
fn tables_are_outboxes_or_passed_over() {
    let set = [
        "source.pass_over=['a.*', 'orders']",
        "source.former_tables=['old']",
    ];
    let source = parse_set(LEAST, &set).unwrap().pipeline.source;
    let passed = [TableName::new("a", "*"), TableName::new("public", "orders")];
    assert_eq!(source.pass_over, passed);
    assert_eq!(source.former_tables, [TableName::new("public", "old")]);
    for key in ["pass_over", "former_tables"] {
        let set = format!("source.{key}=['outbox']");
        let (id, _, what, _) = only(parse_set(LEAST, &[&set]));
        assert_eq!(id, "config-conflict");
        assert!(what.contains(&format!("`source.{key}`")), "{what}");
    }
}

#[test]
fn an_envelope_needs_the_prefix_of_its_schemas() {
    // Debezium requires the prefix, and the names of schemas are made of it.
    let set = "router.debezium.table.fields.additional.placement=type:envelope";
    let (id, _, what, _) = only(parse_set(LEAST, &[set]));
    assert_eq!(id, "config-missing-key");
    assert_eq!(what, "missing key `router.debezium.topic.prefix`");
}

#[test]
fn a_destination_that_is_given_up_must_not_halt_the_relay() {
    let sets = [
        "sink.kind=http",
        "sink.http.url=https://hooks.example.com/{topic}",
        "sink.http.unavailable_for=1h",
    ];
    let (id, _, what, _) = only(parse_set(LEAST, &sets));
    assert_eq!(id, "config-conflict");
    assert!(what.contains("poison.rejected"), "{what}");
    let skips = [&sets[..], &["poison.rejected=skip"]].concat();
    assert!(parse_set(LEAST, &skips).is_ok());
}

#[test]
fn an_endpoint_beyond_loopback_needs_a_token_or_consent() {
    refused_overrides(
        "
        http.listen=db:9187                  => config-invalid-value => same => it is an IP address and a port
        http.listen=0.0.0.0:9187             => config-conflict => same => it needs `http.token_file`, or `http.allow_anonymous = true`
        http.allow_anonymous=true            => config-conflict => same => has no effect without `http.listen`
        http.expect_event_every=\"5m\"        => config-conflict => same => has no effect without `http.listen`
        http.hosts=[\"a\"]                     => config-conflict => same => has no effect without `http.listen`
        ",
    );
    let listens = |sets: &[&str]| {
        parse_set(LEAST, sets)
            .unwrap()
            .process
            .http
            .map(|http| http.listen.to_string())
    };
    assert_eq!(listens(&[]), None);
    assert_eq!(
        listens(&["http.listen=localhost:0"]).as_deref(),
        Some("127.0.0.1:0")
    );
    let everywhere = ["http.listen=[::]:9187", "http.allow_anonymous=true"];
    assert_eq!(listens(&everywhere).as_deref(), Some("[::]:9187"));
    let half = ["http.listen=[::1]:9187", "http.tls.key_file=a.key"];
    let (id, _, what, _) = only(parse_set(LEAST, &half));
    assert_eq!(
        (&*id, what),
        (
            "config-missing-key",
            "missing key `http.tls.certificate_file`".to_owned()
        )
    );
}

#[test]
fn standard_output_needs_no_broker() {
    let confirms = |config: &Config| {
        let stdout = config.pipeline.sink.section::<StdoutSection>();
        stdout.map(|stdout| stdout.confirm)
    };
    let config =
        parse("[source]\nurl='postgres://db'\ntables=['o']\n[sink]\nkind='stdout'").unwrap();
    assert_eq!(confirms(&config), Some(false));
    let config = parse_set(LEAST, &["sink.kind=stdout"]).unwrap();
    assert_eq!(confirms(&config), Some(false));
    let confirming = ["sink.kind=stdout", "sink.stdout.confirm=true"];
    let config = parse_set(LEAST, &confirming).unwrap();
    assert_eq!(confirms(&config), Some(true));
}

#[test]
fn messages_stand_in_for_tables() {
    let text = |source: &str| {
        format!("[source]\nurl = 'postgres://db'\n{source}\n[sink]\nkind = 'stdout'\n")
    };
    for (lines, prefix, tables) in [
        ("messages.prefix = 'outbox'", Some("outbox"), 0),
        (
            "tables = ['o']\nmessages.prefix = \"it's\"",
            Some("it's"),
            1,
        ),
        ("tables = ['o']", None, 1),
    ] {
        let source = parse(&text(lines)).unwrap().pipeline.source;
        assert_eq!(source.messages.as_deref(), prefix);
        assert_eq!(source.tables.len(), tables);
    }
    for [lines, words] in cases(
        "
                                              => missing key `source.tables`
        messages.prefix = ''                  => must not be empty
        messages.prefix = 3                   => wants a string
        messages.prefx = 'a'                  => unknown key `source.messages.prefx`
        tables = []; messages.prefix = 'a'    => must not be empty
        ",
    ) {
        let error = parse(&text(&lines.replace("; ", "\n")))
            .unwrap_err()
            .to_string();
        assert!(error.contains(words), "{lines}: {error}");
    }
}

#[test]
fn cloud_events_need_source_and_type() {
    let text = |lines: &str| with_section("router.cloudevents", lines);
    let least = "mode = 'structured'\nsource = '/orders'\ntype = 'com.example.{type | lower}'";
    let events = parse(&text(least)).unwrap().pipeline.cloud_events.unwrap();
    assert_eq!(
        events.mode,
        walrelay_event_router::CloudEventMode::Structured
    );
    assert_eq!(events.columns(), ["type"]);
    assert_eq!(events.content_type, "application/json");
    assert!(parse(&text("")).unwrap().pipeline.cloud_events.is_none());
    refused_lines(
        "router.cloudevents",
        "
        mode = 'both'      => invalid value of `router.cloudevents.mode`
        mode = 'binary'    => missing key `router.cloudevents.source`
        mode = 'binary'    => missing key `router.cloudevents.type`
        source = '/orders' => has no effect while `router.cloudevents.mode` is not set
        mode = 'binary'; source = '{x'; type = 't' => invalid value of `router.cloudevents.source`
        mode = 'binary'; source = ''; type = 't'   => must not be empty
        mode = 'binary'; source = 's'; type = 't'; datacontenttype = 'json' => a media type
        ",
    );
}

#[test]
fn headers_come_from_one_column_or_two() {
    let of = |lines: &str| {
        let parsed = parse(&with_section("router", lines)).unwrap();
        parsed.pipeline.headers_from
    };
    assert_eq!(of(""), None);
    let column = || Some(HeadersFrom::Column("metadata".to_owned()));
    assert_eq!(of("headers_from = 'metadata'"), column());
    assert_eq!(
        of("headers_from = ['metadata']\npreset = 'outbox'"),
        column()
    );
    let arrays = HeadersFrom::Arrays {
        names: "header_keys".to_owned(),
        values: "header_values".to_owned(),
    };
    assert_eq!(
        of("headers_from = ['header_keys', 'header_values']"),
        Some(arrays)
    );
    refused_lines(
        "router",
        "
        headers_from = []                => the list must not be empty
        headers_from = ['a', 'b', 'c']   => names one column, or two
        headers_from = ''                => invalid value of `router.headers_from`
        headers_from = 3                 => `router.headers_from` wants
        ",
    );
}

#[test]
fn the_position_header_must_be_unused() {
    let named = "position_header = 'walrelay-position'\n";
    let of = |lines: &str| {
        parse(&with_section("router", lines))
            .unwrap()
            .pipeline
            .position_header
    };
    assert_eq!(of(""), None);
    for more in ["", "preset = 'outbox'"] {
        let name = of(&format!("{named}{more}"));
        assert_eq!(name.as_deref(), Some("walrelay-position"), "{more}");
    }
    refused_lines(
        "router",
        "
        position_header = ''                                  => must not be empty
        position_header = 3                                   => wants a string
        position_header = 'walrelay.dlq.row'                  => those of dead letters
        position_header = 'id'                                => have already
        position_header = 'aggregate-id'; preset = 'outbox'   => have already
        position_header = 'traceparent'; debezium.'tracing.span.context.field' = 'ctx' => have already
        position_header = 'seen'; debezium.table.fields.additional.placement = 'a:header:seen' => have already
        position_header = '__debezium.context.taskId'; [router.debezium]; 'topic.prefix' = 'srv'; 'extended.headers.enabled' = true => have already
        position_header = 'ce_id'; [router.cloudevents]; mode = 'binary'; source = 's'; type = 't' => have already
        position_header = 'content-type'; [router.cloudevents]; mode = 'structured'; source = 's'; type = 't' => have already
        ",
    );
}

#[test]
fn errors_of_kafka_properties_show_their_place() {
    let with = |lines: &str| {
        let text =
            format!("[source]\nurl = 'postgres://db'\ntables = ['o']\n[sink.kafka]\n{lines}\n");
        parse(&text).unwrap_err()
    };
    let servers = "'bootstrap.servers' = 'b:9092'\n";
    for [lines, line, words, help] in cases(
        r#"
        'linger.ms' = 'five'              => 6 => "linger.ms"                => CONFIGURATION.md
        'queue.buffering.max.ms' = 'five' => 6 => "queue.buffering.max.ms"   => CONFIGURATION.md
        'linger.ms' = 5000000             => 6 => linger.ms                  => CONFIGURATION.md
        'acks' = '1'                      => 6 => acks: a record             => the relay sets acks=all
        'lingr.ms' = 5                    => 6 => lingr.ms is not a property => did you mean linger.ms?
        'group.id' = 'x'                  => 6 => a consumer property        => remove it
        'linger.ms' = 1; 'queue.buffering.max.ms' = 2 => 7 => two names of one property => keep one of them
        "#,
    ) {
        let error = with(&format!("{servers}{}", lines.replace("; ", "\n")));
        let [problem] = error.problems() else {
            panic!("{lines}: {error}");
        };
        assert_eq!(problem.id, "kafka-property");
        assert!(problem.what.contains(words), "{lines}: {problem}");
        let said = problem.to_string();
        assert!(said.contains(&format!("walrelay.toml:{line}:")), "{said}");
        assert!(problem.help.as_ref().unwrap().contains(help), "{problem:?}");
    }
    // A value of another type is one problem.
    let error = with(&format!("{servers}'linger.ms' = []"));
    let ids: Vec<_> = error.problems().iter().map(|problem| problem.id).collect();
    assert_eq!(ids, ["config-wrong-type"], "{error}");
    // The brokers are set, under a misspelt name.
    let error = with("'bootstrap.server' = 'b:9092'");
    let [problem] = error.problems() else {
        panic!("{error}");
    };
    assert_eq!(
        problem.help.as_deref(),
        Some("did you mean bootstrap.servers?")
    );
    // Values from the environment and from files are not shown.
    for lines in ["'linger.ms' = '${SECRET}'", "'linger.ms_file' = 'a'"] {
        let text = format!(
            "[source]\nurl = 'postgres://db'\ntables = ['o']\n[sink.kafka]\n{servers}{lines}\n"
        );
        let env = |_: &str| Some("hunter2".to_owned());
        let files = |_: &Path| Ok("hunter2".to_owned());
        let error = parse_with(&text, "walrelay.toml", &[], &env, &files).unwrap_err();
        let shown = format!("{error} {error:?}");
        assert!(shown.contains("does not accept the value"), "{shown}");
        assert!(!shown.contains("hunter2"), "{shown}");
    }
    // With another sink the section is not checked.
    assert!(parse_set(&format!("{LEAST}\n'lingr.ms' = 5"), &["sink.kind=stdout"]).is_ok());
}

#[test]
fn snapshots_need_tables() {
    let config = parse_set(LEAST, &["source.snapshot=unsent"]).unwrap();
    assert_eq!(config.pipeline.source.snapshot, SnapshotMode::Unsent);
    assert!(config.pipeline.source.snapshot_order.is_empty());
    let with = |set: &[&str]| parse_set(LEAST, set).unwrap_err().to_string();
    let messages = "[source]\nurl = 'postgres://db'\nsnapshot = 'initial'\nmessages.prefix = 'x'\n\
                    [sink]\nkind = 'stdout'\n";
    let error = parse(messages).unwrap_err().to_string();
    assert!(error.contains("messages leave no rows"), "{error}");
    for (set, words) in [
        (&["source.snapshot=always"][..], "invalid value"),
        (
            &["source.snapshot_where=sent"],
            "no effect without `source.snapshot`",
        ),
        (
            &["source.snapshot_unordered=true"],
            "no effect without `source.snapshot`",
        ),
        (
            &[
                "source.snapshot=initial",
                "source.snapshot_unordered=true",
                "source.snapshot_order=['seq']",
            ],
            "no effect with `source.snapshot_order`",
        ),
        (
            &["source.snapshot=initial", "source.snapshot_where= "],
            "invalid value",
        ),
    ] {
        let error = with(set);
        assert!(error.contains(words), "{set:?}: {error}");
    }
}

#[test]
fn the_sink_has_the_rule_for_the_topic_of_dead_letters() {
    let (id, _, what, _) = only(parse_set(LEAST, &["poison.topic=a b"]));
    assert_eq!(&*id, "config-invalid-value");
    assert!(
        what.starts_with("invalid value of `poison.topic`: "),
        "{what}"
    );
    let printed = ["poison.topic=a b", "sink.kind=stdout"];
    let config = parse_set(LEAST, &printed).expect("standard output has no such rule");
    assert_eq!(config.pipeline.poison.topic, "a b");
}
