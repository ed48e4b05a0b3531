//! `walrelay new`: writes a first configuration, commented, and alongside it the JSON Schema by which an editor
//! checks it.

mod columns;
mod outbox;

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Write as _};
use std::path::Path;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, utf8_percent_encode};
use secrecy::{ExposeSecret as _, SecretString};
use walrelay_failure::{Exit, Failure};
use walrelay_postgres_source::table_name::written;
use walrelay_postgres_source::{OutboxCandidate, outbox_candidates};
use walrelay_relay::TableName;
use walrelay_walsender::{ConnInfo, Error, Session, SessionKind};

use crate::cli::NewArgs;
use crate::commands::assembly::{block_on, with_passfile};
use crate::commands::terminal::confirm;
use crate::commands::{CommandResult, EnvVars, print_text};
use crate::config::{self, DEFAULT_KIND, Sample, sample};
use outbox::{MAX_NAMED, Outbox};

/// The preset of the table that `walrelay init` makes.
const DEFAULT: &str = "debezium";
/// The file with the JSON Schema, which the configuration names.
const SCHEMA_FILE: &str = "walrelay.schema.json";

/// Asks a question at the terminal, see [`confirm::ask`].
type Ask<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Runs `walrelay new`.
pub(crate) fn new(args: &NewArgs, env: EnvVars<'_>) -> CommandResult {
    if args.output_file.exists() {
        // Before the questions.
        let error = ErrorKind::AlreadyExists.into();
        return Err(not_written(&args.output_file, error).into());
    }
    let ask = |question, option| ask(question, option).map(SecretString::from);
    let url = args.database.clone().map_or_else(
        || ask("URL by which you reach the database: ", "--database"),
        Ok,
    )?;
    let sink = match (sample(&args.sink), &args.servers) {
        (None, _) => None,
        (Some(sample), Some(servers)) => Some((sample, servers.clone())),
        (Some(sample), None) => Some((sample, self::ask(sample.question, sample.option)?)),
    };
    let sink = sink_sections(&args.sink, sink);
    let info = url.expose_secret().parse::<ConnInfo>();
    let info = info.map_err(|error| walrelay_walsender::conn_info_failure(&error))?;
    let relay_url = relay_url(url.expose_secret(), &args.role, &info.dbname)?;
    let mut info = with_password(info, env);
    let outbox = Outbox::find(args, &mut info, &confirm::ask)?;
    let text = file(&relay_url, &sink, &outbox);
    write_new(&args.output_file, &text)?;
    // The schema is that of this program: one of another version is replaced.
    let schema = args.output_file.with_file_name(SCHEMA_FILE);
    std::fs::write(&schema, config::json_schema()).map_err(|error| not_written(&schema, error))?;
    Ok(print_text(&summary(&args.output_file, &sink, &outbox))?)
}

/// Adds the password of the environment, or else the password file, as libpq does.
fn with_password(mut info: ConnInfo, env: EnvVars<'_>) -> ConnInfo {
    if info.password.is_none() {
        let password = env("PGPASSWORD").filter(|password| !password.is_empty());
        info.password = password.map(SecretString::from);
    }
    with_passfile(info, env)
}

/// Finds the outbox tables, or one table. Asks for the password if the server asks for one and there is none.
fn candidates_of(
    info: &mut ConnInfo,
    only: Option<&TableName>,
) -> Result<Vec<OutboxCandidate>, Failure> {
    let mut candidates = find_candidates(info, only)?;
    if candidates.as_ref().is_err_and(misses_password) {
        info.password = confirm::ask_password("Your password for the database: ");
        if info.password.is_some() {
            candidates = find_candidates(info, only)?;
        }
    }
    candidates.map_err(|error| {
        let is_missing = misses_password(&error);
        let failure = Failure::from(error);
        if is_missing {
            failure.remedy(
                "put the password into the environment (PGPASSWORD) or into ~/.pgpass, or answer the question \
                 at a terminal",
            )
        } else {
            failure
        }
    })
}

fn find_candidates(
    info: &ConnInfo,
    only: Option<&TableName>,
) -> Result<Result<Vec<OutboxCandidate>, Error>, Failure> {
    block_on(async {
        let mut session = Session::connect(info, SessionKind::Sql, &[]).await?;
        let candidates = outbox_candidates(&mut session, only).await;
        session.close().await;
        candidates
    })
}

/// Returns true if a server asked for a password, and there is none.
fn misses_password(error: &Error) -> bool {
    match error {
        Error::PasswordMissing { .. } => true,
        Error::NoServer { attempts } => attempts.iter().any(misses_password),
        _ => false,
    }
}

/// Asks a question at the terminal.
fn ask(question: &str, option: &str) -> Result<String, Failure> {
    let answer = confirm::ask(question).filter(|answer| !answer.is_empty());
    answer.ok_or_else(|| {
        Failure::new("new-unknown", Exit::Usage, format!("nothing says {option}"))
            .remedy("say it as an option, or answer the question at a terminal")
    })
}

/// Returns the URL of the relay: that of the asker with another role, whose password is in the
/// environment.
fn relay_url(url: &str, role: &str, dbname: &str) -> Result<String, Failure> {
    let unusable = |what: &str| {
        Failure::new("new-url", Exit::Usage, what)
            .remedy("say it as postgres://user:password@host:5432/database?sslmode=verify-full")
    };
    let schemes = ["postgres://", "postgresql://"];
    let rest = schemes.iter().find_map(|scheme| url.strip_prefix(scheme));
    let rest = rest.ok_or_else(|| unusable("the database is not given as a URL"))?;
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, place) = rest.split_at(end);
    let hosts = authority
        .rsplit_once('@')
        .map_or(authority, |(_, hosts)| hosts);
    let (path, parameters) = place
        .split_once('?')
        .map_or((place, ""), |(path, parameters)| (path, parameters));
    let mut names = parameters
        .split('&')
        .filter_map(|pair| pair.split('=').next());
    if names.any(|name| name.contains('%') || matches!(name, "user" | "password" | "dbname")) {
        return Err(unusable(
            "user, password or database is a parameter of the URL",
        ));
    }
    let path = match path {
        "" | "/" => format!("/{}", encoded(dbname)),
        path => path.to_owned(),
    };
    let question = if parameters.is_empty() { "" } else { "?" };
    Ok(format!(
        "postgres://{}:${{RELAY_PASSWORD}}@{hosts}{path}{question}{parameters}",
        encoded(role)
    ))
}

/// The unreserved characters of RFC 3986 stay as they are.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

fn encoded(name: &str) -> PercentEncode<'_> {
    utf8_percent_encode(name, ENCODED)
}

/// Returns the text as a TOML string: a JSON string is one.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Makes the sections of a kind of sink: those of its sample, with its servers.
fn sink_sections(kind: &str, sample: Option<(Sample, String)>) -> String {
    let sections = sample.map_or_else(String::new, |(sample, servers)| {
        (sample.lines)(&quoted(&servers))
    });
    if kind == DEFAULT_KIND {
        return sections;
    }
    format!("[sink]\nkind = {}\n\n{sections}", quoted(kind))
}

/// Makes the configuration. The lines that are commented out are valid, too.
fn file(url: &str, sink: &str, outbox: &Outbox) -> String {
    let mut others = String::new();
    for (table, preset) in outbox.others.iter().take(MAX_NAMED) {
        let _ = writeln!(
            others,
            "# Has the columns of preset {preset:?}, too: {}",
            quoted(&written(table))
        );
    }
    let router = if outbox.preset == DEFAULT {
        columns::section(&outbox.columns)
    } else {
        format!("[router]\npreset = {}\n\n", quoted(outbox.preset))
    };
    format!(
        "#:schema ./{SCHEMA_FILE}\n\
         # Made by walrelay new. All keys: docs/reference/configuration.md. Then: walrelay check\n\
         \n\
         [source]\n\
         # The environment has the password; a file is named by password_file.\n\
         url = {}\n\
         tables = [{}]\n\
         {others}\
         # The position in the log; each relay has its own.\n\
         # slot = \"walrelay\"\n\
         # Rows from before the slot: never, all (initial), or those without dispatched_at (unsent).\n\
         # snapshot = \"never\"\n\
         \n\
         {router}\
         {sink}\
         \n\
         # An event that cannot be delivered: halt, dead-letter or skip.\n\
         # [poison]\n\
         # unroutable = \"halt\"\n\
         # rejected = \"halt\"\n\
         \n\
         # Metrics, health and a status page; walrelay status asks it. Each relay of a machine has its own port.\n\
         [http]\n\
         listen = \"127.0.0.1:9187\"\n\
         \n\
         # Delete confirmed rows that are older; before_slot: also those from before the slot.\n\
         # [prune]\n\
         # keep = \"7d\"\n\
         # before_slot = true\n",
        quoted(url),
        quoted(&written(&outbox.table)),
    )
}

/// Returns the names of the environment's variables that lines in force name.
fn variables(sections: &str) -> impl Iterator<Item = &str> {
    let lines = sections.lines().filter(|line| !line.starts_with('#'));
    lines.flat_map(|line| {
        let parts = line.split("${").skip(1);
        parts.filter_map(|part| part.split_once('}').map(|(name, _)| name))
    })
}

/// Describes the table that the file names.
fn choice(outbox: &Outbox) -> String {
    let Outbox { table, preset, .. } = outbox;
    let unfit = outbox.unfit.iter().take(MAX_NAMED).map(written);
    let unfit = unfit.collect::<Vec<_>>().join(", ");
    let such = if unfit.is_empty() {
        unfit
    } else {
        format!(", such as {unfit}")
    };
    match (outbox.exists, outbox.others.len()) {
        (true, _) if !outbox.columns.is_empty() => {
            format!("[router.debezium] names the columns of table {table}")
        }
        (true, 0) => format!("table {table} has the columns of preset {preset}"),
        (true, others) => format!(
            "table {table} has the columns of preset {preset}; so have {others} more, which the file names"
        ),
        (false, _) if *preset != DEFAULT => format!(
            "no table has the columns of preset {preset}, so it names {table}, which walrelay init --preset {preset} \
             makes"
        ),
        (false, _) if outbox.is_named => {
            format!("table {table} does not exist, and walrelay init creates it")
        }
        (false, _) => format!(
            "no table has the columns of a preset, so it names {table}, which walrelay init makes; for a table with \
             other columns{such}, start again with --table, or see [router.route] in docs/reference/configuration.md"
        ),
    }
}

/// Writes the text about what was written, and the next steps.
fn summary(path: &Path, sink: &str, outbox: &Outbox) -> String {
    let choice = choice(outbox);
    let exports = variables(sink).map(|name| {
        let export = format!("export {name}=…");
        format!("{export:<36}# of the sink\n  ")
    });
    let exports: String = exports.collect();
    let init = if !outbox.exists && outbox.preset != DEFAULT {
        let preset = outbox.preset;
        format!("walrelay init --preset {preset} --dry-run > init.sql")
    } else {
        "walrelay init --dry-run > init.sql".to_owned()
    };
    format!(
        "{} is written: {choice}. Alongside it, {SCHEMA_FILE} lets an editor complete and check it.\n\nNext:\n  export RELAY_PASSWORD=…             # of the relay's role\n  {exports}\
         {init}  # an administrator runs it, and gives the role its password\n  \
         walrelay check\n  walrelay run\n",
        path.display()
    )
}

/// Writes a file that must not exist.
fn write_new(path: &Path, text: &str) -> Result<(), Failure> {
    let file = OpenOptions::new().write(true).create_new(true).open(path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| not_written(path, error))
}

fn not_written(path: &Path, error: io::Error) -> Failure {
    let exists = error.kind() == ErrorKind::AlreadyExists;
    let what = format!("cannot write {}", path.display());
    let exit = if exists {
        Exit::Usage
    } else {
        Exit::Unavailable
    };
    Failure::new("new-file", exit, what)
        .caused_by(error)
        .remedy(if exists {
            "it is left as it is: name another file with --output-file"
        } else {
            "see to its folder, or name another file with --output-file"
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, preset_names, schema_problems, sink_names};

    fn url_of(url: &str) -> Result<String, String> {
        relay_url(url, "relay", "app").map_err(|failure| failure.what)
    }

    #[test]
    fn the_relay_s_url_has_another_role_and_no_password() {
        let expected = "postgres://relay:${RELAY_PASSWORD}@db:5432/app";
        for url in [
            "postgres://db:5432/app",
            "postgres://db:5432/",
            "postgresql://me:secret@db:5432",
            "postgres://me:se%40cret@db:5432/app",
        ] {
            assert_eq!(url_of(url).as_deref(), Ok(expected), "{url}");
        }
        assert_eq!(
            url_of("postgres://me@a:1,b:2?sslmode=verify-full&x=y").as_deref(),
            Ok("postgres://relay:${RELAY_PASSWORD}@a:1,b:2/app?sslmode=verify-full&x=y")
        );
        for url in [
            "host=db dbname=app",
            "postgres://db/app?x=y&password=secret",
        ] {
            assert!(!url_of(url).expect_err("unusable").contains("secret"));
        }
    }

    #[test]
    fn the_next_steps_set_every_variable_of_the_file() {
        for kind in sink_names() {
            let sample = sample(kind).map(|sample| (sample, "h:1".to_owned()));
            let sink = sink_sections(kind, sample);
            let text = summary(Path::new("walrelay.toml"), &sink, &Outbox::new(DEFAULT));
            let exported = text.matches("  export ").count();
            assert_eq!(exported, 1 + usize::from(kind == "rabbitmq"), "{text}");
            let named = text.contains("  export RABBITMQ_PASSWORD=…          # of the sink\n");
            assert_eq!(named, kind == "rabbitmq", "{text}");
        }
    }

    fn candidate(schema: &str, name: &str, preset: &'static str) -> OutboxCandidate {
        let table = TableName {
            schema: schema.into(),
            name: name.into(),
        };
        OutboxCandidate {
            table,
            is_logged: true,
            preset: Some(preset),
            columns: Vec::new(),
        }
    }

    #[test]
    fn the_file_is_read_as_it_is_and_with_what_is_commented_out() {
        let env = |_: &str| Some("x".to_owned());
        let read = |text: &str| Config::parse(text, "walrelay.toml", &[], &env).map(drop);
        let two = [
            candidate("app", "Out\"box", "outbox"),
            candidate("public", "outbox", "debezium"),
        ];
        let samples = sink_names().filter_map(|kind| {
            let sample = sample(kind)?;
            let servers = if sample.question.starts_with("URL") {
                "https://h/{topic}"
            } else {
                "h:1234"
            };
            Some(sink_sections(kind, Some((sample, servers.to_owned()))))
        });
        let samples: Vec<String> = samples.collect();
        let cases = samples
            .iter()
            .flat_map(|sink| [(sink, &[][..]), (sink, &two)]);
        for (sink, candidates) in cases {
            let outbox = Outbox::from_candidates(candidates.to_vec(), None);
            let text = file("postgres://relay:${RELAY_PASSWORD}@db/app", sink, &outbox);
            read(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
            assert!(text.starts_with("#:schema ./walrelay.schema.json\n"));
            let is_toml = |line: &&str| line.contains(" = ") || line.starts_with("# [");
            let lines = text.lines().map(|line| match line.strip_prefix("# ") {
                Some(commented) if is_toml(&line) => commented,
                _ => line,
            });
            let all = lines.collect::<Vec<_>>().join("\n");
            read(&all).unwrap_or_else(|error| panic!("{error}\n{all}"));
            assert_ne!(all, text);
            for text in [&text, &all] {
                assert_eq!(schema_problems(text), [""; 0], "{text}");
            }
            let tables = Config::parse(&text, "walrelay.toml", &[], &env)
                .unwrap()
                .pipeline
                .source
                .tables;
            let expected = candidates.first().map(|first| first.table.clone());
            assert_eq!(
                tables.first(),
                Some(&expected.unwrap_or(TableName::new("public", "outbox")))
            );
        }
        let stdout = sink_sections("stdout", None);
        let mut outbox = Outbox::new(DEFAULT);
        read(&file("postgres://db/app", &stdout, &outbox)).expect("a sink without servers");
        for parts in [
            ["id=a", "topic=b"],
            ["aggregate=${c}", "key=\"d"],
            ["payload=e", "type=f"],
        ] {
            outbox.columns = parts.map(|part| part.parse().expect("a part")).into();
            let text = file("postgres://db/app", &stdout, &outbox);
            read(&text).expect("columns");
            assert_eq!(schema_problems(&text), [""; 0], "{text}");
        }
        for preset in preset_names() {
            read(&file("postgres://db/app", &stdout, &Outbox::new(preset))).expect(preset);
        }
    }

    /// `UPDATE_DOCS=1` rewrites the file.
    #[test]
    fn packages_bring_the_configuration_that_new_writes() {
        let url = "postgres://walrelay:${RELAY_PASSWORD}@localhost:5432/app?sslmode=verify-full";
        let sample = sample(DEFAULT_KIND).map(|sample| (sample, "localhost:9092".to_owned()));
        let text = file(
            url,
            &sink_sections(DEFAULT_KIND, sample),
            &Outbox::new(DEFAULT),
        );
        let (_, text) = text.split_once('\n').expect("a first line");
        let expected = format!(
            "# An example: edit it, or let `walrelay new` write one for your database. The unit of systemd reads\n\
             # variables such as RELAY_PASSWORD from /etc/walrelay/walrelay.env. Then: walrelay check\n{text}"
        );
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/walrelay.toml");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(path, &expected).expect("the file is written");
        }
        let packaged = std::fs::read_to_string(path).expect("the file is read");
        assert_eq!(packaged, expected);
    }
}
