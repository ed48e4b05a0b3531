//! `walrelay init`: creates outbox table, publication, slot and role, or prints the SQL that does.

use std::fmt;

use secrecy::ExposeSecret as _;
use serde::Serialize;
use serde_json::json;
use walrelay_event_router::Template;
use walrelay_postgres_source::{
    Action, Moment, OutboxTable, PostgresError, SetupError, Wanted, account, inspect, last_error,
    lock_setup, noted, plan, run_note, script, snapshot_record, unmark, unmarked,
};
use walrelay_walsender::{ConnInfo, Error, Session, SessionKind, quote_literal};

use super::consumer;
use crate::cli::{Exit, Failure, InitArgs};
use crate::commands::assembly::{block_on, conn_info, wanted, with_passfile};
use crate::commands::{CommandResult, EnvVars, load, print_as};
use crate::config::{PipelineConfig, RouterConfig};
use crate::failures;

/// The comment above the function `outbox.emit` in scripts.
const EMIT: &str = "An outbox without a table: services call outbox.emit in the transaction of their data, and the\n\
                    -- event goes into the log alone. Needs prefix = \"outbox\" in [source.messages].";

/// Runs `walrelay init`.
pub(crate) fn init(args: &InitArgs, env: EnvVars<'_>) -> CommandResult {
    if args.consumer {
        let sql = consumer::script();
        return Ok(print_as(args.output, &sql, &json!({ "sql": sql }))?);
    }
    let config = load(&args.config, env)?.pipeline;
    let wanted = Wanted {
        create: true,
        ..wanted(&config)
    };
    let table = outbox_table(&config, &wanted);
    let mut info = conn_info(&config.source, env)?;
    let mut role = args.role.clone();
    if let Some(url) = &args.admin_url {
        let unusable = |what: String| Failure {
            exit: Exit::Usage,
            what,
            ..Failure::new("source-url", Exit::Usage, "")
        };
        let admin = url.expose_secret().parse::<ConnInfo>();
        let admin = admin
            .map_err(|error| unusable("--admin-url cannot be used".to_owned()).caused_by(error))?;
        if admin.dbname != info.dbname {
            let what = format!(
                "--admin-url names database {}, [source] url names {}",
                admin.dbname, info.dbname
            );
            return Err(vec![
                unusable(what).remedy("name the same database in both"),
            ]);
        }
        role.get_or_insert(info.user);
        info = with_passfile(admin, env);
    }
    if args.dry_run {
        // Without `--role`, the relay connects as the user of its URL.
        let role = role.as_deref().unwrap_or(&info.user);
        let sql = whole_script(&wanted, role, table.as_ref());
        return Ok(print_as(args.output, &sql, &json!({ "sql": sql }))?);
    }
    let done = block_on(async {
        let mut session = Session::connect(&info, SessionKind::Sql, &[]).await?;
        create(&mut session, &wanted, role.as_deref(), table.as_ref()).await
    })?;
    let done = done.map_err(failures::postgres)?;
    Ok(print_as(args.output, &done, &done)?)
}

/// The result of `init`.
#[derive(Debug, Default, Serialize)]
struct Done {
    /// The objects that it created: kind and name.
    created: Vec<String>,
    notes: Vec<String>,
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.created.is_empty() && self.notes.is_empty() {
            return writeln!(f, "everything is there already");
        }
        for object in &self.created {
            writeln!(f, "created {object}")?;
        }
        self.notes
            .iter()
            .try_for_each(|note| writeln!(f, "note: {note}"))
    }
}

/// Returns the outbox tables to create. `None`: the route consists of templates, which do not say
/// what the columns are for; a table for them must exist.
fn outbox_table(config: &PipelineConfig, wanted: &Wanted) -> Option<OutboxTable> {
    let RouterConfig::Debezium(debezium) = &config.router else {
        return None;
    };
    let times = config.cloud_events.iter().flat_map(|of| &of.time);
    let times: Vec<String> = times
        .flat_map(Template::columns)
        .map(str::to_owned)
        .collect();
    let snapshot = wanted.snapshot.as_ref();
    let unsent = snapshot.is_some_and(|rows| rows.unsent && rows.filter.is_none());
    Some(OutboxTable::new(
        &debezium.options,
        &wanted.columns,
        &times,
        unsent,
        config
            .prune
            .as_ref()
            .and_then(|prune| prune.column.as_deref()),
    ))
}

/// Returns the SQL that prepares a database, in the order in which it must run. `table`: the outbox
/// tables to create.
fn whole_script(wanted: &Wanted, role: &str, table: Option<&OutboxTable>) -> String {
    let tables = table.filter(|_| !wanted.tables.is_empty()).map(|table| {
        let tables = wanted.tables.iter().map(|name| table.create(name));
        let why = "The outbox: services insert here, in the transaction of their data.";
        (why, tables.collect::<Vec<_>>().join("\n"))
    });
    let emit = wanted.messages.as_deref();
    let emit = emit.map(|prefix| (EMIT, script::create_emit(prefix)));
    let seen = if wanted.tables.is_empty() {
        "What the relay sees: no table. A publication must be named all the same."
    } else {
        "What the relay sees: inserts of the outbox, nothing else."
    };
    let last = if wanted.snapshot.is_some() {
        (
            "For the snapshot, the relay reads the tables. It makes the slot itself, after it.",
            script::grant_select(&wanted.tables, role),
        )
    } else {
        (
            "From here on Postgres keeps the log until the relay has confirmed it: last, and not\n\
             -- long before the relay is started.",
            script::ensure_slot(&wanted.slot, wanted.failover),
        )
    };
    let account = wanted.account.as_ref().map(|_| {
        let why = "The account of sent rows: only rows that it has are deleted.";
        (why, account::create_sql(Some(role)))
    });
    let noted = (
        "Where the relay notes what the slot has confirmed: a slot that something else moves or\n\
         -- recreates stops the next start.",
        noted::create_sql(&wanted.slot, Some(role)),
    );
    let read = wanted.snapshot.as_ref().map(|_| {
        let why = "Where the relay records that it has read the snapshot to its end.";
        (why, snapshot_record::create_sql(&wanted.slot, Some(role)))
    });
    let unmarked = wanted.marks.as_ref().map(|_| {
        let why = "Rows that were sent, and cannot be marked at once, for example because they are locked.";
        (why, unmarked::create_sql(Some(role)))
    });
    let usage = script::grant_usage(&wanted.tables, role).filter(|_| uses_rows(wanted));
    let usage = usage.map(|sql| ("The relay reads or changes rows of these schemas.", sql));
    let ended = (
        "The error with which a run ends: walrelay status and check show it while no relay runs.",
        last_error::create_sql(Some(role)),
    );
    let run = (
        "What a run notes for the next one: its start and end, and what the destination had and has lost.",
        run_note::create_sql(Some(role)),
    );
    let others = [
        (
            seen,
            script::ensure_publication(&wanted.publication, &wanted.tables),
        ),
        (
            "Who the relay is: may replicate, owns nothing, reads no table. Give it a password by\n\
             -- \\password, or by what your service has.",
            script::ensure_role(role),
        ),
    ];
    let parts = tables.into_iter().chain(emit).chain(others);
    let parts = parts
        .chain(usage)
        .chain(account)
        .chain(unmarked)
        .chain(read);
    let parts = parts.chain([noted, ended, run, last]);
    let parts = parts.map(|(why, sql)| format!("-- {why}\n{sql}\n"));
    parts.collect::<Vec<_>>().join("\n")
}

/// Returns true if the relay reads or changes rows of its tables.
fn uses_rows(wanted: &Wanted) -> bool {
    wanted.snapshot.is_some() || wanted.marks.is_some() || wanted.account.is_some()
}

/// Creates what is missing.
async fn create(
    session: &mut Session,
    wanted: &Wanted,
    role: Option<&str>,
    new_table: Option<&OutboxTable>,
) -> Result<Done, PostgresError> {
    let mut done = Done::default();
    lock_setup(session, &wanted.slot).await?;
    let mut facts = inspect(session, wanted).await?;
    // Before anything is created, fail for every other reason than a missing table.
    match plan(wanted, &facts, Moment::Init) {
        Ok(_) => {}
        Err(SetupError::TableMissing { .. }) if new_table.is_some() => {}
        Err(error) => return Err(error.into()),
    }
    for (table, found) in &facts.tables {
        if found.is_none()
            && let Some(new_table) = new_table
        {
            session.query(&new_table.create(table)).await?;
            done.created.push(format!("table {table}"));
        }
    }
    if !done.created.is_empty() {
        facts = inspect(session, wanted).await?;
    }
    let plan = plan(wanted, &facts, Moment::Init)?;
    if let Some(prefix) = &wanted.messages {
        create_emit(session, prefix, &mut done).await?;
    }
    if let Some(role) = role {
        let known = format!(
            "SELECT FROM pg_catalog.pg_roles WHERE rolname = {}",
            quote_literal(role)
        );
        if session.query(&known).await?.is_empty() {
            session.query(&script::create_role(role)).await?;
            done.created
                .push(format!("role {role}; give it a password"));
        }
    }
    let user = role.filter(|_| uses_rows(wanted));
    if let Some(sql) = user.and_then(|role| script::grant_usage(&wanted.tables, role)) {
        session.query(&sql).await?;
    }
    let reads = wanted.snapshot.is_some() && !wanted.tables.is_empty();
    if let Some(role) = role.filter(|_| reads) {
        session
            .query(&script::grant_select(&wanted.tables, role))
            .await?;
    }
    if wanted.snapshot.is_some() {
        let sql = snapshot_record::create_sql(&wanted.slot, role);
        session.query(&sql).await?;
    }
    if wanted.marks.is_some() {
        session.query(&unmarked::create_sql(role)).await?;
    }
    session.query(&last_error::create_sql(role)).await?;
    session.query(&run_note::create_sql(role)).await?;
    if noted::grant(session, &wanted.slot, role).await? {
        let slot = &wanted.slot;
        done.created
            .push(format!("sequence for the noted position of slot {slot}"));
    }
    if wanted.account.is_some() {
        if !account::may_write(session).await? {
            let tables = "tables walrelay_state.account and walrelay_state.accounts";
            done.created.push(tables.to_owned());
        }
        session.query(&account::create_sql(role)).await?;
    }
    let makes_slot = plan.actions.contains(&Action::CreateSlot);
    for action in plan.actions {
        match action {
            Action::CreatePublication => {
                let mut sql = script::create_publication(&wanted.publication, &wanted.tables);
                if makes_slot {
                    // In the same transaction.
                    sql += &script::mark_publication(&wanted.publication, &wanted.slot);
                }
                session.query(&sql).await?;
                done.created
                    .push(format!("publication {}", wanted.publication));
            }
            Action::CreateSlot => {
                noted::forget(session, &wanted.slot).await?;
                snapshot_record::forget(session, &wanted.slot).await?;
                account::begin(session, wanted).await?;
                let sql = script::create_slot(&wanted.slot, wanted.failover);
                session.query(&sql).await?;
                noted::made(session, &wanted.slot).await?;
                unmark(session, wanted).await?;
                done.created.push(format!("slot {}", wanted.slot));
            }
            Action::FinishSetup => unmark(session, wanted).await?,
            // Only `run` plans these.
            Action::DropSlot | Action::Snapshot | Action::EnableFailover => {
                unreachable!("init changes no slot and reads no rows")
            }
        }
    }
    done.notes.extend(plan.notes);
    Ok(done)
}

/// Creates the function `outbox.emit`. An existing one is not replaced: services may rely on its
/// prefix.
async fn create_emit(session: &mut Session, prefix: &str, done: &mut Done) -> Result<(), Error> {
    let found = session.query(script::find_emit()).await?;
    let Some(row) = found.first() else {
        session.query(&script::create_emit(prefix)).await?;
        done.created.push("function outbox.emit".to_owned());
        return Ok(());
    };
    if !script::is_emit(row.get("prosrc").unwrap_or_default(), prefix) {
        let note = "function outbox.emit is there, and not as this version makes it for this prefix: \
                    left as it is. The SQL of --dry-run replaces it";
        done.notes.push(note.to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::test_config;
    use crate::config::Config;

    fn wanted() -> Wanted {
        super::wanted(&test_config())
    }

    /// Returns the script for these overrides of the configuration.
    fn script_with(set: &[&str]) -> String {
        let text = "[source]\nurl = \"postgres://db/app\"\ntables = [\"public.outbox\"]\n\
                    [sink.kafka]\n\"bootstrap.servers\" = \"b:9092\"\n";
        let set: Vec<String> = set.iter().copied().map(str::to_owned).collect();
        let config = Config::parse(text, "walrelay.toml", &set, &|_| None)
            .unwrap()
            .pipeline;
        let wanted = super::wanted(&config);
        whole_script(&wanted, "walrelay", outbox_table(&config, &wanted).as_ref())
    }

    fn default_table() -> OutboxTable {
        outbox_table(&test_config(), &wanted()).expect("a table")
    }

    #[test]
    fn the_table_has_the_configured_columns() {
        let debezium = |key: &str, value: &str| format!("router.debezium.\"{key}\"={value}");
        let all = [
            debezium("table.field.event.id", "event_id"),
            debezium("table.field.event.key", "Customer \"No\""),
            debezium("table.field.event.type", "kind"),
            debezium("table.field.event.payload", "data"),
            debezium("table.field.event.timestamp", "at"),
            debezium("table.field.event.schema.version", "version"),
            debezium("topic.prefix", "shop"),
            debezium("route.by.field", "order"),
            debezium(
                "table.fields.additional.placement",
                "tenant:header,part:partition,kind:envelope",
            ),
        ];
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let script = script_with(&all);
        let (table, _) = script.split_once(");").expect("a table");
        let columns: Vec<&str> = table.lines().skip(2).map(str::trim).collect();
        let begins = [
            "\"event_id\"        uuid PRIMARY KEY",
            "\"order\"           text NOT NULL,",
            "\"Customer \"\"No\"\"\" text NOT NULL,",
            "\"part\"            integer NOT NULL,",
            "\"version\"         integer NOT NULL DEFAULT 1,",
            "\"at\"              timestamptz NOT NULL DEFAULT now(),",
            "\"kind\"            text NOT NULL,",
            "\"tenant\"          text,",
            "\"data\"            jsonb,",
            "created_at        timestamptz NOT NULL DEFAULT now(),",
            "seq               bigint GENERATED BY DEFAULT AS IDENTITY ",
        ];
        assert_eq!(columns.len(), begins.len(), "{table}");
        for (column, begin) in columns.iter().zip(begins) {
            assert!(column.starts_with(begin), "{column:?} not {begin:?}");
        }
    }

    #[test]
    fn the_table_has_what_converters_snapshots_and_cloud_events_read() {
        for (set, column) in [
            (
                "router.converters.\"value.converter\"=bytearray",
                "payload       bytea,",
            ),
            ("source.snapshot=unsent", "\"dispatched_at\" timestamptz,"),
            (
                "prune.column=happened",
                "\"happened\"    timestamptz NOT NULL",
            ),
            (
                "router.cloudevents.time={at}",
                "\"at\"          timestamptz",
            ),
            ("router.cloudevents.subject={who}", "\"who\"         text,"),
        ] {
            let cloud = [
                "router.cloudevents.mode=binary",
                "router.cloudevents.source=/shop",
                "router.cloudevents.type={type}",
            ];
            let mut sets = vec![set];
            if set.contains("cloud") {
                sets.extend(cloud);
            } else if set.contains("prune") {
                sets.push("prune.before_slot=true");
            }
            let script = script_with(&sets);
            assert!(script.contains(column), "{set}: {script}");
        }
    }

    #[test]
    fn with_a_snapshot_the_script_grants_select_and_creates_no_slot() {
        let snapshot = Wanted {
            snapshot: Some(walrelay_postgres_source::Selection::default()),
            ..wanted()
        };
        let script = whole_script(&snapshot, "relay", Some(&default_table()));
        assert!(
            script.contains("GRANT SELECT ON \"public\".\"outbox\" TO \"relay\";"),
            "{script}"
        );
        assert!(!script.contains("replication_slot"), "{script}");
    }

    #[test]
    fn a_relay_that_reads_or_changes_rows_may_use_the_schema() {
        let usage = "GRANT USAGE ON SCHEMA \"app\" TO \"walrelay\";";
        let tables = "source.tables=[\"app.outbox\"]";
        assert!(!script_with(&[tables]).contains(usage));
        let script = script_with(&[tables, "source.snapshot=initial"]);
        assert!(script.contains(usage), "{script}");
    }

    /// `migrations/` has the script that `walrelay init --dry-run` prints.
    #[test]
    fn the_migration_is_what_a_dry_run_prints_by_default() {
        let migration = include_str!("../../../../../migrations/0001_outbox.sql");
        assert_eq!(
            whole_script(&wanted(), "walrelay", Some(&default_table())),
            migration
        );
        let (outbox, rest) = migration.split_once("-- What the relay sees").unwrap();
        assert!(outbox.contains("CREATE TABLE"));
        let without = whole_script(&wanted(), "walrelay", None);
        assert_eq!(without, format!("-- What the relay sees{rest}"));
    }

    #[test]
    fn the_migration_of_emit_is_what_a_dry_run_prints_for_messages() {
        let messages = Wanted {
            messages: Some("outbox".into()),
            ..wanted()
        };
        let migration = include_str!("../../../../../migrations/0002_emit.sql");
        let whole = whole_script(&messages, "walrelay", Some(&default_table()));
        assert!(whole.contains(migration), "{whole}");
        let rest = whole.replace(&format!("{migration}\n"), "");
        assert_eq!(
            rest,
            whole_script(&wanted(), "walrelay", Some(&default_table()))
        );
        // Other prefixes are quoted.
        let sql = script::create_emit("it's");
        assert!(sql.contains("emit_message(true, 'it''s', "), "{sql}");
        let body = sql.split("$emit$").nth(1).expect("a body");
        assert!(script::is_emit(body, "it's"));
        assert!(!script::is_emit(body, "outbox"));
    }

    #[test]
    fn messages_need_no_table() {
        let messages = Wanted {
            messages: Some("outbox".into()),
            tables: Vec::new(),
            ..wanted()
        };
        let script = whole_script(&messages, "walrelay", Some(&default_table()));
        let others = script.replace("TABLE IF NOT EXISTS walrelay_state.", "");
        assert!(!others.contains("TABLE"), "{script}");
        assert!(
            script.contains("CREATE PUBLICATION \"walrelay\"\n        WITH ("),
            "{script}"
        );
    }
}
