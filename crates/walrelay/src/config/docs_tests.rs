//! Checks `docs/reference/configuration.md`: its tables follow from the key table, and its examples can be
//! read.

use std::fmt::Write as _;
use std::path::Path;
use walrelay_failure::Exit;
use walrelay_settings::{Fallback, Row, ValueKind, below};

use super::sections::{KEYS, descriptions};
use super::*;

const PATH: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../docs/reference/configuration.md"
);

fn reference() -> String {
    std::fs::read_to_string(PATH).expect("docs/reference/configuration.md")
}

/// Returns the text between `<!-- name -->` and `<!-- end -->`.
fn marked<'a>(text: &'a str, name: &str) -> &'a str {
    let begin = format!("<!-- {name} -->\n");
    let (_, rest) = text
        .split_once(&begin)
        .unwrap_or_else(|| panic!("docs/reference/configuration.md has no {begin}"));
    rest.split_once("<!-- end -->").expect("not closed").0
}

/// Returns the sections that have a table in the document.
fn sections(text: &str) -> Vec<&str> {
    let marks = text.split("<!-- keys: ").skip(1);
    marks.filter_map(|mark| mark.split(" -->").next()).collect()
}

/// Returns the innermost section with a table that a key belongs to.
fn section_of<'t>(row: &Row, sections: &[&'t str]) -> &'t str {
    let around = sections
        .iter()
        .filter(|section| below(&row.path, section).is_some());
    around
        .max_by_key(|section| section.len())
        .unwrap_or_else(|| panic!("no table for {}", row.path))
}

/// Returns the rows of supported keys.
fn supported() -> impl Iterator<Item = &'static Row> {
    KEYS.rows()
        .iter()
        .filter(|row| !matches!(row.fallback, Fallback::Only(_)))
}

fn kind(kind: &ValueKind) -> String {
    match kind {
        ValueKind::Choice { here, .. } => {
            // The names of Java classes are accepted as well, which the document says once.
            let is_version = |choice: &str| choice.starts_with(|c: char| c.is_ascii_digit());
            let short = here
                .iter()
                .filter(|choice| !choice.contains('.') || is_version(choice));
            let choices: Vec<String> = short.map(|choice| format!("`{choice}`")).collect();
            choices.join(", ")
        }
        kind => {
            let (_article, name) = kind.wanted().split_once(' ').unwrap();
            name.to_owned()
        }
    }
}

fn table(section: &str, sections: &[&str]) -> String {
    let mut out = String::from("| key | type | default | |\n|---|---|---|---|\n");
    for row in supported().filter(|row| section_of(row, sections) == section) {
        let name = below(&row.path, section).unwrap();
        // The options of converters are listed once, for the value converter.
        let repeats = ["key.converter.", "header.converter."];
        if repeats.iter().any(|begin| name.starts_with(begin)) || name.contains(".type.") {
            continue;
        }
        let default = match row.fallback {
            Fallback::Required => "required".to_owned(),
            Fallback::Unset => "unset".to_owned(),
            Fallback::Is(text) | Fallback::Only(text) => format!("`{text}`"),
        };
        let (kind, doc) = (kind(&row.kind), &row.doc);
        writeln!(out, "| `{name}` | {kind} | {default} | {doc} |").unwrap();
    }
    out
}

fn refused() -> String {
    let mut out = String::from("| key | accepted | |\n|---|---|---|\n");
    for Row {
        path,
        kind,
        fallback,
        doc,
        ..
    } in KEYS.rows()
    {
        let accepted = match (fallback, kind) {
            (Fallback::Only(text), _) => format!("only `{text}`"),
            (_, ValueKind::Choice { later: [later], .. }) => format!("not `{later}`"),
            _ => continue,
        };
        writeln!(out, "| `{path}` | {accepted} | {doc} |").unwrap();
    }
    out
}

fn exit_codes() -> String {
    let mut out = String::from("| code | meaning |\n|---|---|\n");
    for exit in Exit::ALL {
        writeln!(out, "| {} | {} |", exit.code(), exit.meaning()).unwrap();
    }
    out
}

#[test]
fn the_tables_of_the_reference_follow_from_the_code() {
    let written = reference();
    let mut text = written.clone();
    let mut expected = vec![
        ("refused".to_owned(), refused()),
        ("exit codes".to_owned(), exit_codes()),
    ];
    let sections = sections(&written);
    for section in &sections {
        expected.push((format!("keys: {section}"), table(section, &sections)));
    }
    if std::env::var_os("UPDATE_DOCS").is_some() {
        for (name, table) in &expected {
            let mark = |table: &str| format!("<!-- {name} -->\n{table}<!-- end -->");
            text = text.replace(&mark(marked(&written, name)), &mark(table));
        }
        std::fs::write(PATH, &text).unwrap();
    }
    for (name, table) in &expected {
        assert!(
            marked(&text, name) == table,
            "docs/reference/configuration.md, {name}, is not what the code says. To rewrite the tables: \
             UPDATE_DOCS=1 cargo test -p walrelay docs\n{table}"
        );
    }
    let marks = text.matches("<!-- end -->").count();
    assert_eq!(
        marks,
        expected.len(),
        "a table that does not follow from the code"
    );
}

#[test]
fn the_examples_of_the_reference_are_read() {
    let text = reference();
    let env = |_: &str| Some("value".to_owned());
    let files = |path: &Path| {
        let schema = path
            .extension()
            .is_some_and(|extension| extension == "avsc");
        let text = if schema {
            "\"string\""
        } else {
            "postgres://relay@db/app"
        };
        Ok(text.to_owned())
    };
    let mut examples = 0;
    for block in text.split("```toml\n").skip(1) {
        let example = block.split("```").next().expect("not closed");
        let mut whole = with_source(example);
        if !example.contains("[sink") {
            whole.push_str("\n[sink]\nkind = \"stdout\"\n");
        }
        if let Err(error) = parse_with(&whole, "example.toml", &[], &env, &files) {
            panic!("an example of docs/reference/configuration.md is refused: {error}\n{whole}");
        }
        examples += 1;
    }
    assert!(examples >= 4, "only {examples} examples");
}

/// Each kind of sink has a page in `docs/sinks` with its name, whose first example is a configuration of
/// that kind.
#[test]
fn the_first_example_of_each_sinks_page_is_read() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/sinks");
    let files = |_: &Path| Ok("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n".to_owned());
    let mut kinds = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let kind = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if kind == "README" {
            continue;
        }
        let page = std::fs::read_to_string(&path).unwrap();
        let (_, example) = page.split_once("```toml\n").expect(&kind);
        let (example, _) = example.split_once("```").expect("its end");
        let config = parse_with(example, "example.toml", &[], &|_| None, &files);
        let config = config.unwrap_or_else(|error| panic!("docs/sinks/{kind}.md: {error}"));
        assert_eq!(config.pipeline.sink.description().name, kind);
        kinds.push(kind);
    }
    // CONFIGURATION has all about standard output.
    let other = descriptions().filter(|kind| kind.name != "stdout");
    let other: Vec<&str> = other.map(|kind| kind.name).collect();
    assert!(
        other
            .iter()
            .all(|kind| kinds.iter().any(|page| page == kind)),
        "{other:?}: {kinds:?}"
    );
    assert!(kinds.len() >= 5, "{kinds:?}");
}

/// Returns the example with a `[source]`, if it has none.
fn with_source(example: &str) -> String {
    let mut whole = example.to_owned();
    if !example.contains("[source]") {
        whole.push_str("\n[source]\nurl = \"postgres://db/app\"\ntables = [\"public.outbox\"]\n");
    }
    whole
}

/// The services themselves cannot be reached from here: the page says that their blocks are untested.
#[test]
fn each_block_of_the_page_of_kafka_is_read() {
    let page = include_str!("../../../../docs/sinks/kafka.md");
    let files = |_: &Path| Ok("secret-word\n".to_owned());
    let mut services = 0;
    for block in page.split("```toml\n").skip(1) {
        let (example, _) = block.split_once("```").expect("its end");
        let mut whole = with_source(example);
        if !example.contains("[sink.kafka]") {
            whole.push_str("\n[sink.kafka]\n\"bootstrap.servers\" = \"broker:9092\"\n");
        }
        let env = |name: &str| {
            let user = name.ends_with("_KEY");
            Some(if user { "user" } else { "secret-word" }.to_owned())
        };
        let config = parse_with(&whole, "example.toml", &[], &env, &files);
        let config = config.unwrap_or_else(|error| panic!("docs/sinks/kafka.md: {error}\n{whole}"));
        assert_eq!(config.pipeline.sink.description().name, "kafka");
        let shown = format!("{:?}", config.pipeline.sink);
        assert!(!shown.contains("secret-word"), "{shown}");
        services += usize::from(example.contains("SASL_SSL"));
    }
    let untested = page.matches("** (untested)").count();
    assert_eq!(
        services, untested,
        "a service is said to be tested, or has no block"
    );
    assert!(services >= 5, "only {services} services");
}

#[test]
fn every_default_is_a_value_of_its_kind() {
    let text = "[source]\nurl = \"postgres://db\"\ntables = [\"o\"]\n[sink]\nkind = \"stdout\"\n";
    for row in supported() {
        if let Fallback::Is(default) = row.fallback {
            let mut overrides = vec![format!("{}={default}", row.path)];
            overrides.push("sink.kind=stdout".to_owned());
            // Keys that the section requires.
            if row.path.starts_with("router.registry.") {
                let needed = ["url=http://r:8081", "format=avro"];
                overrides.extend(needed.map(|needed| format!("router.registry.{needed}")));
            }
            if row.path.starts_with("retention.") {
                overrides.push("retention.keep=24h".to_owned());
            }
            if row.path.starts_with("audit.") {
                let needed = [
                    "audit.every=1h",
                    "source.snapshot=unsent",
                    "source.mark_sent=a = 1",
                ];
                overrides.extend(needed.map(str::to_owned));
            }
            parse_with(text, "t", &overrides, &|_| None, &|_| Ok(String::new())).unwrap();
        }
    }
}

#[test]
fn no_key_is_declared_twice() {
    for (index, row) in KEYS.rows().iter().enumerate() {
        let path = &row.path;
        assert!(
            KEYS.rows()[..index].iter().all(|other| other.path != *path),
            "{path}"
        );
        assert!(!row.doc.contains(['|', '\n']), "{path}");
    }
}

#[test]
fn the_example_of_http_is_read_and_a_dead_letter_needs_a_url() {
    let page = include_str!("../../../../docs/sinks/http.md");
    let (_, example) = page.split_once("```toml\n").expect("an example");
    let (example, _) = example.split_once("```").expect("its end");
    let files = |_: &Path| Ok("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n".to_owned());
    let read = |more: &str| {
        let whole = format!("{example}{more}");
        parse_with(&whole, "example.toml", &[], &|_| None, &files)
    };
    let config = read("").expect("valid");
    assert_eq!(config.pipeline.sink.description().name, "http");
    assert!(config.pipeline.address.is_none(), "no column makes the URL");
    let with_url = |url: &str| {
        let text = format!(
            "[source]\nurl = \"postgres://h/d\"\ntables = [\"public.outbox\"]\n\
             [sink]\nkind = \"http\"\n[sink.http]\nurl = \"{url}\"\n"
        );
        parse_with(&text, "t", &[], &|_| None, &files)
    };
    let config = with_url("https://h/{aggregatetype | lower}/{topic}/{\\\"topic\\\"}").unwrap();
    let address = config.pipeline.address.expect("an address");
    let url = address.routing_key.expect("a template");
    assert_eq!(
        url.template.columns().collect::<Vec<_>>(),
        ["aggregatetype", "topic"]
    );
    assert_eq!(url.tokens, Some(walrelay_event_router::Tokens::Url));
    assert!(address.topic.is_none());
    for (url, words) in [
        ("https://h/{a | nothing}", "nothing"),
        ("https://h/{a", "not closed"),
        ("https://h/}", "ends with one"),
        ("{a}://h/", "begins with http"),
    ] {
        let error = with_url(url).expect_err(url).to_string();
        assert!(error.contains(words), "{url}: {error}");
    }
    for (more, words) in [
        (
            "[poison]\nrejected = \"dead-letter\"\n",
            "sink.http.dead_letter_url",
        ),
        ("key_file = \"key.pem\"\n", "go together"),
        (
            "dead_letter_url = \"https://u:p@h/\"\n",
            "sink.http.dead_letter_url",
        ),
    ] {
        let error = read(more).expect_err(more).to_string();
        assert!(error.contains(words), "{error}");
        assert!(!error.contains("u:p@"), "{error}");
    }
}

#[test]
fn the_example_of_redis_is_read_and_its_combinations_are_checked() {
    let page = include_str!("../../../../docs/sinks/redis.md");
    let (_, example) = page.split_once("```toml\n").expect("an example");
    let (example, _) = example.split_once("```").expect("its end");
    let files = |_: &Path| Ok("secret-word\n".to_owned());
    let read = |old: &str, new: &str| {
        assert!(example.contains(old), "{old}");
        let whole = example.replace(old, new);
        parse_with(&whole, "example.toml", &[], &|_| None, &files)
    };
    let config = read("", "").expect("valid").pipeline;
    assert_eq!(config.sink.description().name, "redis");
    let address = config.address.expect("an address");
    let stream = address.topic.expect("a template");
    assert_eq!(
        stream.template.columns().collect::<Vec<_>>(),
        ["aggregate_type"]
    );
    assert!(address.routing_key.is_none());
    let shown = format!("{:?}", config.sink);
    assert!(!shown.contains("secret-word"), "{shown}");
    let password = "password_file = \"/run/secrets/redis\"\n";
    read(&format!("username = \"walrelay\"\n{password}"), "").expect("no login");
    let hosts = "hosts = [\"redis.internal:6379\"]\n";
    let sentinels = "sentinels = [\"s1\", \"s2:1\"]\nmaster = \"m\"\n";
    read(hosts, sentinels).expect("sentinels");
    read("tls = true\n", "cluster = true\n").expect("a cluster");
    for (old, new, words) in [
        (hosts, "sentinels = [\"s1\"]\n", "`sink.redis.master`"),
        (
            hosts,
            "sentinels = [\"s1:x\"]\nmaster = \"m\"\n",
            "no host:port",
        ),
        ("tls = true\n", sentinels, "with `sentinels`"),
        ("tls = true\n", "master = \"m\"\n", "without `sentinels`"),
        (
            hosts,
            "cluster = true\nsentinels = [\"s1\"]\nmaster = \"m\"\n",
            "exclude each other",
        ),
        (
            "tls = true\n",
            "sentinel_password_file = \"/f\"\n",
            "without `sentinels`",
        ),
        (
            "hosts = [\"redis.internal:6379\"]\n",
            "",
            "`sink.redis.hosts`",
        ),
        ("internal:6379", "internal:0", "no host:port"),
        ("internal:6379", "u:secret-word@h:1", "such as a URL"),
        (password, "", "`sink.redis.password_file`"),
        (
            "tls = true\n",
            "tls = true\nkey_file = \"k\"\n",
            "go together",
        ),
        ("tls = true\n", "ca_file = \"c\"\n", "while `tls` is false"),
        ("tls = true\n", "tls = true\nids = \"clock\"\n", "clock"),
        (
            "tls = true\n",
            "tls = true\nwait_timeout = \"2s\"\n",
            "without `wait_replicas`",
        ),
        ("tls = true\n", "tls = true\nusernam = \"x\"\n", "usernam"),
        ("| lower}", "| nothing}", "nothing"),
    ] {
        let error = read(old, new).expect_err(new).to_string();
        assert!(error.contains(words), "{new:?}: {error}");
        assert!(!error.contains("secret-word"), "{error}");
    }
}

#[test]
fn the_example_of_nats_is_read_and_its_combinations_are_checked() {
    let page = include_str!("../../../../docs/sinks/nats.md");
    let (_, example) = page.split_once("```toml\n").expect("an example");
    let (example, _) = example.split_once("```").expect("its end");
    let files = |_: &Path| Ok("secret-word\n".to_owned());
    let read = |old: &str, new: &str| {
        assert!(example.contains(old), "{old}");
        let whole = example.replace(old, new);
        parse_with(&whole, "example.toml", &[], &|_| None, &files)
    };
    let config = read("", "").expect("valid").pipeline;
    assert_eq!(config.sink.description().name, "nats");
    let subject = config.address.expect("an address").topic;
    let subject = subject.expect("a template");
    assert_eq!(
        subject.template.columns().collect::<Vec<_>>(),
        ["aggregate_type", "event_type"]
    );
    assert_eq!(subject.tokens, Some(walrelay_event_router::Tokens::Refuse));
    let shown = format!("{:?}", config.sink);
    assert!(!shown.contains("secret-word"), "{shown}");
    let password = "password_file = \"/run/secrets/nats\"\n";
    let user = "username = \"walrelay\"\n";
    read(&format!("{user}{password}"), "").expect("no login");
    read(&format!("{user}{password}"), "token_file = \"t\"\n").expect("a token");
    for (old, new, words) in [
        (
            "hosts = [\"nats.internal:4222\"]\n",
            "",
            "`sink.nats.hosts`",
        ),
        ("internal:4222", "internal:0", "no host:port"),
        ("internal:4222", "u:secret-word@h:1", "such as a URL"),
        (password, "", "`sink.nats.password_file`"),
        (user, "", "`sink.nats.username`"),
        (password, &format!("{password}token = \"t\"\n"), "only one"),
        (
            password,
            &format!("{password}credentials_file = \"t\"\n"),
            "only one",
        ),
        (
            "tls = true\n",
            "tls = true\nkey_file = \"k\"\n",
            "go together",
        ),
        ("tls = true\n", "ca_file = \"c\"\n", "while `tls` is false"),
        (
            "subject = \"events.{aggregate_type | lower}.{event_type | lower}\"\n",
            "invalid_tokens = \"replace\"\n",
            "without `subject`",
        ),
        ("tls = true\n", "tls = true\nusernam = \"x\"\n", "usernam"),
        ("| lower}.", "| nothing}.", "nothing"),
    ] {
        let error = read(old, new).expect_err(new).to_string();
        assert!(error.contains(words), "{new:?}: {error}");
        assert!(!error.contains("secret-word"), "{error}");
    }
}

#[test]
fn the_example_of_rabbitmq_is_read_and_no_login_is_assumed() {
    let page = include_str!("../../../../docs/sinks/rabbitmq.md");
    let (_, example) = page.split_once("```toml\n").expect("an example");
    let (example, _) = example.split_once("```").expect("its end");
    let files = |_: &Path| Ok("secret-word\n".to_owned());
    let read = |old: &str, new: &str| {
        assert!(example.contains(old), "{old}");
        let whole = example.replace(old, new);
        parse_with(&whole, "example.toml", &[], &|_| None, &files)
    };
    let config = read("", "").expect("valid").pipeline;
    assert_eq!(config.sink.description().name, "rabbitmq");
    let address = config.address.expect("an address");
    let columns = |part: &Option<walrelay_event_router::AddressPart>| {
        let part = part.as_ref().expect("a template");
        part.template.columns().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(columns(&address.topic), "aggregate_type");
    assert_eq!(columns(&address.routing_key), "event_type");
    let shown = format!("{:?}", config.sink);
    assert!(!shown.contains("secret-word"), "{shown}");
    let of_management = "ca_file = \"c\"\nmanagement_url = \"https://h:15671\"\n";
    read("tls = true\n", of_management).expect("of an interface with TLS");
    let exchange = "exchange = \"{aggregate_type | map(Order: 'orders.events', default: \
                    'default.events')}\"\n";
    for (old, new, words) in [
        (
            "hosts = [\"rabbitmq.internal:5671\"]\n",
            "",
            "`sink.rabbitmq.hosts`",
        ),
        ("internal:5671", "internal:0", "no host:port"),
        ("internal:5671", "u:secret-word@h:1", "such as a URL"),
        ("username = \"walrelay\"\n", "", "`sink.rabbitmq.username`"),
        (
            "password_file = \"/run/secrets/rabbitmq\"\n",
            "",
            "`sink.rabbitmq.password_file`",
        ),
        (
            "tls = true\n",
            "tls = true\nkey_file = \"k\"\n",
            "go together",
        ),
        ("tls = true\n", "ca_file = \"c\"\n", "while `tls` is false"),
        (
            "tls = true\n",
            "tls = true\nauth = \"external\"\n",
            "certificate_file",
        ),
        (
            "tls = true\n",
            "tls = true\nqueue = \"q\"\n",
            "while `declare` is false",
        ),
        (
            "tls = true\n",
            "tls = true\ndeclare = true\n",
            "`sink.rabbitmq.queue`",
        ),
        (
            "tls = true\n",
            "tls = true\ndeclare = true\nqueue = \"q\"\n",
            "a text without columns",
        ),
        (exchange, "exchange = \"{x | nothing}\"\n", "nothing"),
        (
            "tls = true\n",
            "tls = true\nvhost = \"\"\n",
            "cannot be empty",
        ),
        ("tls = true\n", "tls = true\nprefetch = 2\n", "prefetch"),
    ] {
        let error = read(old, new).expect_err(new).to_string();
        assert!(error.contains(words), "{new:?}: {error}");
        assert!(!error.contains("secret-word"), "{error}");
    }
}
