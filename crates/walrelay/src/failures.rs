//! Each error of the crates below as a failure: what is wrong, and what to do about it.

use std::borrow::Cow;
use std::error::Error;

use walrelay_event_router::{PlanError, Role, RouteError};
use walrelay_kafka_sink::dlq::ReplayError;
use walrelay_kafka_sink::{KafkaConfigError, KafkaError};
use walrelay_relay::{
    Chain, CoreError, LogError, PipelineError, SchemaError, SchemaFailure, SourceError,
};
use walrelay_sink::Disposition;
use walrelay_walsender::{ConnInfoError, ErrorClass};

use crate::cli::{Exit, Failure};
use crate::http::EndpointError;
use crate::postgres::{GO_ON, PUBLISH, PostgresError, columns_remedy};

/// An error of a sink factory.
pub(crate) trait SinkFailure: Error + Send + Sync + Sized + 'static {
    fn failure(self) -> Failure;
}

impl SinkFailure for KafkaError {
    fn failure(self) -> Failure {
        kafka_client(&self)
    }
}

impl SinkFailure for std::io::Error {
    fn failure(self) -> Failure {
        let what = "standard output cannot be opened";
        Failure::new("output", Exit::Unavailable, what).caused_by(self)
    }
}

pub(crate) fn endpoint(error: EndpointError) -> Failure {
    let (exit, remedy) = match &error {
        EndpointError::Listen { .. } => (
            Exit::Config,
            "choose another address for [http] listen: another process has this one, or this machine has not",
        ),
        EndpointError::Tls { .. } => (
            Exit::Config,
            "[http.tls] needs a chain of certificates and its key, both PEM files that the relay's user can read",
        ),
        EndpointError::Thread(_) => (
            Exit::Unavailable,
            "see the limits of the system and the user",
        ),
    };
    Failure::new("http-endpoint", exit, "the HTTP endpoint cannot be served")
        .caused_by(error)
        .remedy(remedy)
}

pub(crate) fn conn_info(error: &ConnInfoError) -> Failure {
    Failure::new("source-url", Exit::Config, "[source] url cannot be used")
        .caused_by(error.to_string())
        .remedy("its form is postgres://user:password@host:5432/database?sslmode=verify-full")
}

pub(crate) fn kafka(error: &KafkaConfigError) -> Failure {
    let what = "[sink.kafka] cannot be used";
    Failure::new("kafka-property", Exit::Config, what)
        .caused_by(error.to_string())
        .remedy(error.remedy())
}

pub(crate) fn kafka_client(error: &KafkaError) -> Failure {
    let (id, exit, what, remedy) = match error {
        KafkaError::Authentication { .. } => (
            "kafka-access",
            Exit::Denied,
            "Kafka refuses the relay",
            "correct the credentials in [sink.kafka], or the token that [sink.oauthbearer] gets; and \
             see that the broker knows this user and this mechanism",
        ),
        KafkaError::Token { .. } => (
            "kafka-token",
            Exit::Config,
            "there is no token for Kafka",
            "correct token_file or token_command in [sink.oauthbearer], or what is behind it",
        ),
        KafkaError::Tls { .. } => (
            "kafka-tls",
            Exit::Config,
            "TLS to Kafka fails",
            "the cause says what is wrong with the certificate. Where it says that the connection was \
             closed, this port may not speak TLS: security.protocol in [sink.kafka] must be that of \
             the listener",
        ),
        KafkaError::Create { .. } => (
            "kafka-client",
            Exit::Config,
            "the Kafka client cannot be made",
            "correct the property in [sink.kafka] that the cause speaks of",
        ),
        _ => (
            "kafka-unreachable",
            Exit::Unavailable,
            "Kafka cannot be reached",
            "check bootstrap.servers and the security settings in [sink.kafka], and that the brokers \
             advertise addresses that can be reached from here",
        ),
    };
    Failure::new(id, exit, what)
        .caused_by(Chain(error).to_string())
        .remedy(remedy)
}

/// Of the topic of dead letters.
pub(crate) fn letters(error: &KafkaError) -> Failure {
    match error {
        KafkaError::Topic { .. } => {
            let exit = if error.is_denied() {
                Exit::Denied
            } else {
                Exit::Unavailable
            };
            Failure::new("dlq-topic", exit, "the topic of dead letters cannot be read")
                .caused_by(error.to_string())
                .remedy("allow the principal READ and DESCRIBE on it, and see that its partitions have leaders")
        }
        error => kafka_client(error),
    }
}

pub(crate) fn desk(error: ReplayError) -> Failure {
    let what = error.to_string();
    match error {
        ReplayError::Kafka(error) => letters(&error),
        ReplayError::NoAnswer { source, .. } => {
            let failure = Failure::new("dlq-no-answer", Exit::Unavailable, what).remedy(
                "see to the broker, then run it again: what was done is not repeated, but this \
                 one letter may be",
            );
            match source {
                Some(source) => failure.caused_by(source),
                None => failure,
            }
        }
        ReplayError::NotRecorded { source, .. } => {
            Failure::new("dlq-not-recorded", Exit::Unavailable, what)
                .caused_by(source)
                .remedy(
                    "allow the principal WRITE on the topic of dead letters, then run it again: \
                     this one letter is repeated",
                )
        }
    }
}

pub(crate) fn postgres(error: PostgresError) -> Failure {
    let what = error.to_string();
    let disposition = error.disposition();
    match error {
        PostgresError::Setup(error) => {
            let exit = match disposition {
                Disposition::Fatal => Exit::Data,
                Disposition::Retryable => Exit::Unavailable,
                Disposition::Configuration => Exit::Config,
            };
            Failure::new(error.id(), exit, what).remedy(error.remedy())
        }
        PostgresError::SlotBusy { .. } => Failure::new("slot-busy", Exit::Unavailable, what)
            .remedy("stop the other relay, or give this one a slot of its own"),
        PostgresError::NoAnswer { .. }
        | PostgresError::TwoServers(_)
        | PostgresError::MakeWay(_) => {
            Failure::new("postgres-unreachable", Exit::Unavailable, what).remedy(
                "check the hosts in [source] url; with several, add \
                 target_session_attrs=read-write so that both connections reach the primary",
            )
        }
        PostgresError::SnapshotRead | PostgresError::SnapshotLost => {
            Failure::new("snapshot-lost", Exit::Unavailable, what)
                .remedy("start again: the rows are read from the first")
        }
        PostgresError::RowsSql(error) => Failure::new("snapshot-sql", Exit::Config, what)
            .caused_by(error)
            .remedy(
                "the cause says what of the SQL is wrong: snapshot_where or snapshot_order in [source], or \
                 --where or --id of resend. Columns are those of the table, as psql shows them",
            ),
        PostgresError::Row(_) => Failure::new("snapshot-row", Exit::Data, what).remedy(
            "that is a bug, of this program or of what is between it and Postgres: report it",
        ),
        PostgresError::Wal(error) => connection(error),
        PostgresError::Log(error) => log(&error),
        PostgresError::StateFile(error) => {
            let exit = match disposition {
                Disposition::Configuration => Exit::Config,
                Disposition::Retryable | Disposition::Fatal => Exit::Unavailable,
            };
            Failure {
                source: error.io().map(Into::into),
                ..Failure::new("state-file", exit, what).remedy(error.remedy())
            }
        }
        PostgresError::WalGone { source, .. } => Failure::new("wal-gone", Exit::Data, what)
            .caused_by(source)
            .remedy(format!(
                "drop the slot with pg_drop_replication_slot, {GO_ON} with a new one, and \
                 {PUBLISH}: docs/OPERATIONS.md, \"The slot is lost\". So that it does not happen \
                 again, raise max_slot_wal_keep_size"
            )),
    }
}

/// 42501 is raised for many things; only the server's words say which one is missing.
fn privilege_remedy(error: &walrelay_walsender::Error) -> &'static str {
    // Servers may translate all but the names of objects and keywords: look for keywords where there are any.
    let said = error.server().map_or_else(String::new, |server| {
        let detail = server.detail.as_deref().unwrap_or_default();
        format!("{} {detail}", server.message)
    });
    let says = |words: &[&str]| words.iter().any(|word| said.contains(word));
    if says(&["replication", "REPLICATION", "walsender"]) {
        "to replicate, the role needs ALTER ROLE … REPLICATION (Amazon RDS: GRANT rds_replication TO \
         …; Azure: ALTER ROLE … REPLICATION as the admin)"
    } else if says(&["for database", "for schema"]) {
        "to create the publication or the table, a role needs CREATE on the database and the schema: \
         run walrelay init, or the SQL of walrelay init --dry-run, as an administrator"
    } else if says(&["owner of", "to create role", "CREATEROLE"]) {
        "only the owner of a table may publish it, and only a role with CREATEROLE may create \
         another: run walrelay init, or the SQL of walrelay init --dry-run, as an administrator"
    } else if says(&["for table", "row-level security"]) {
        "to read rows, for [source] snapshot and walrelay resend, the role needs SELECT on the outbox tables, and \
         BYPASSRLS where they have row-level security: GRANT SELECT ON … TO …"
    } else {
        "the cause says what it was refused. The relay itself needs REPLICATION only; publication, \
         table and slot are made by an administrator: walrelay init, or the SQL of walrelay init \
         --dry-run"
    }
}

/// Whether TLS fails for a reason that does not pass.
fn is_tls(error: &walrelay_walsender::Error) -> bool {
    use walrelay_walsender::Error as E;
    match error {
        E::Tls(error) => !error.is_transient(),
        E::TlsNotOffered { .. } => true,
        E::NoServer { attempts } => attempts.iter().all(is_tls),
        _ => false,
    }
}

fn connection(error: walrelay_walsender::Error) -> Failure {
    if is_tls(&error) {
        return Failure::new("postgres-tls", Exit::Config, "TLS to Postgres fails")
            .caused_by(error)
            .remedy(
                "the cause says which certificate, name or file is wrong: correct it, or sslmode \
                 and sslrootcert in [source] url. Nothing was sent: neither password nor query",
            );
    }
    let sqlstate = error.sqlstate().unwrap_or_default().to_owned();
    let (id, exit, what, remedy) = match (error.class(), sqlstate.as_str()) {
        (_, "28P01") => (
            "password",
            Exit::Denied,
            "Postgres does not accept the user's password",
            "correct user and password in [source] url (special characters are percent-encoded), \
             or put the password into password_file. Postgres says the same of a role that does not \
             exist, or that has no password: \\du in psql lists roles, \\password sets one",
        ),
        (_, "28000") => (
            "access",
            Exit::Denied,
            "Postgres does not let this user in",
            "check the role's name and LOGIN, and that pg_hba.conf has a line for its connections \
             to this database (logical replication uses the database's lines)",
        ),
        (_, "3D000") => (
            "database-missing",
            Exit::Config,
            "the database does not exist",
            "correct the database in [source] url: the part after the slash",
        ),
        (_, "42501") => (
            "privilege",
            Exit::Denied,
            "the role lacks a privilege",
            privilege_remedy(&error),
        ),
        (ErrorClass::AccessDenied, _) => (
            "access",
            Exit::Denied,
            "Postgres refuses access",
            "check user, password and pg_hba.conf",
        ),
        (ErrorClass::ServerUnavailable | ErrorClass::SlotInUse | ErrorClass::Unknown, _) => (
            "postgres-unreachable",
            Exit::Unavailable,
            "Postgres cannot be reached",
            "check host and port in [source] url, and that the server is running",
        ),
        // With a slot and a range it is `PostgresError::WalGone`.
        (ErrorClass::WalGone, _) => (
            "wal-gone",
            Exit::Data,
            "the log that the slot needs is gone",
            "see docs/OPERATIONS.md, \"The slot is lost\"; raise max_slot_wal_keep_size",
        ),
        (ErrorClass::Protocol, _) => (
            "protocol",
            Exit::Internal,
            "the server's answer is not understood",
            "is there a pooler such as PgBouncer in between? Replication needs a direct connection",
        ),
        (ErrorClass::Configuration, _) => (
            "postgres-configuration",
            Exit::Config,
            "Postgres refuses what the configuration asks for",
            "the cause above names what to change: a setting of the server (ssl, a publication, a \
             limit), or the configuration that asks for it",
        ),
    };
    Failure::new(id, exit, what).caused_by(error).remedy(remedy)
}

pub(crate) fn pipeline<K: SinkFailure>(error: PipelineError<PostgresError, K>) -> Failure {
    let what = error.to_string();
    match error {
        PipelineError::Source(error) => postgres(error),
        PipelineError::Sink(error) => error.failure(),
        PipelineError::Core(error) => core(error),
        PipelineError::Delivery { source, event, .. } => {
            let exit = match source.disposition {
                Disposition::Configuration => Exit::Config,
                Disposition::Retryable | Disposition::Fatal => Exit::Data,
            };
            let failure = if event.is_some_and(|event| event.dead_letter) {
                Failure::new("dlq-write", exit, what).remedy(
                    "the topic of dead letters, which the cause names, refuses the record: raise its \
                     max.message.bytes, create it, or allow the principal WRITE and DESCRIBE on it. \
                     Then start again: neither this event nor anything after it was confirmed",
                )
            } else {
                Failure::new("delivery", exit, what).remedy(
                    "nothing after it was confirmed: mend the cause and start again. The row is in \
                     the outbox table, and in the log at the position given. [poison] can make a dead \
                     letter of such an event instead: docs/OPERATIONS.md, \"An event cannot be \
                     delivered\"",
                )
            };
            failure.caused_by(source)
        }
        PipelineError::Log(error) => log(&error),
        // The relay retries these as long as it runs, so it does not end by them.
        other => Failure::new("postgres-unreachable", Exit::Unavailable, what)
            .caused_by(other.to_string()),
    }
}

/// The slot does not continue what was relayed: what is gone, and how to go on.
fn log(error: &LogError) -> Failure {
    let (id, remedy) = match error {
        LogError::SlotMoved { .. } => (
            "slot-moved",
            format!(
                "find out who reads, advances or drops the slot: one slot belongs to one relay. Then \
                 {GO_ON} from where it stands, and if nobody else did, {PUBLISH}: \
                 docs/OPERATIONS.md, \"The slot is gone or was moved\""
            ),
        ),
        LogError::LogWentBack { .. } => (
            "log-went-back",
            format!(
                "the server was restored from an older state: consumers may have events that the \
                 database has not. Settle that, then {GO_ON} from the slot as it is now"
            ),
        ),
        LogError::OtherServer { .. } => (
            "other-server",
            format!(
                "the address now leads to another cluster. If that is not meant, correct it; if it is, \
                 {GO_ON} with the slot of the new one, and {PUBLISH}"
            ),
        ),
        _ => (
            "other-timeline",
            format!(
                "a standby was promoted whose slot is not a copy of the old primary's: {GO_ON} with \
                 it, and {PUBLISH}: docs/OPERATIONS.md, \"Failover of Postgres\""
            ),
        ),
    };
    Failure::new(id, Exit::Data, error.to_string()).remedy(remedy)
}

/// The route reads columns that messages do not have.
pub(crate) fn messages(error: &PlanError) -> Failure {
    Failure::new(
        "message-column",
        Exit::Config,
        "messages cannot be routed as [router] says",
    )
    .caused_by(error.to_string())
    .remedy(
        "a message has the columns that the cause lists, and no others: route by one of them, or \
         leave [source.messages] out",
    )
}

/// A table and the configured routes do not fit each other.
pub(crate) fn plan(what: &str, error: impl Into<Box<PlanError>>) -> Failure {
    let error = error.into();
    let remedy: Cow<'static, str> = match &*error {
        PlanError::MissingColumn { columns, role, .. } => {
            columns_remedy(columns, matches!(role, Role::Template(_))).into()
        }
        _ => "name the table's columns in [router.debezium] or [router.route]".into(),
    };
    Failure::new("column-missing", Exit::Config, what)
        .caused_by(error)
        .remedy(remedy)
}

/// The registry does not have a schema of the configuration.
pub(crate) fn unregistered(subject: &str) -> Failure {
    let reason = format!("the schema registry does not have the schema of subject {subject:?}");
    schema(SchemaError {
        kind: SchemaFailure::Missing,
        reason,
    })
}

/// `route` asks no registry.
pub(crate) fn schema_file(subject: &str) -> Failure {
    let what = format!(
        "the schema of subject {subject:?} is not in the configuration, and route asks no registry"
    );
    Failure::new("schema-file", Exit::Config, what)
        .remedy("name its file in [router.registry.schemas], or with --set")
}

/// There is no schema.
pub(crate) fn schema(error: SchemaError) -> Failure {
    let (id, exit, remedy) = match error.kind {
        SchemaFailure::Unavailable => (
            "registry-unreachable",
            Exit::Unavailable,
            "see to the schema registry, and to url, ca_file and timeout in [router.registry].",
        ),
        SchemaFailure::Unauthenticated | SchemaFailure::Forbidden => (
            "registry-access",
            Exit::Denied,
            "correct user and password, or the token, in [router.registry], and allow them to read \
             the subject, and with register = true to write it.",
        ),
        SchemaFailure::Missing => (
            "schema-missing",
            Exit::Config,
            "register a schema for the subject; or name its file in [router.registry.schemas] and set \
             register = true. Where the registry does not speak of the subject, url in \
             [router.registry] may lead elsewhere.",
        ),
        SchemaFailure::Refused => (
            "schema-refused",
            Exit::Config,
            "correct the schema, or what [router.registry] says of its format and subject; whether it \
             goes with earlier ones is a matter of the subject's compatibility in the registry.",
        ),
    };
    Failure::new(id, exit, "there is no schema for values")
        .caused_by(error)
        .remedy(format!(
            "{remedy} A relay that stopped has confirmed what was sent, and goes on from there when \
             started again"
        ))
}

fn core(error: CoreError) -> Failure {
    let what = error.to_string();
    match error {
        CoreError::Plan { source, .. } => {
            let mut failure = plan(&what, source);
            let again = "what was sent is confirmed; the relay goes on from here when started again. ";
            failure.remedy = failure.remedy.map(|remedy| again.to_owned() + &remedy);
            failure
        }
        CoreError::ForeignTable { .. } => {
            Failure::new("publication-foreign-table", Exit::Config, what).remedy(
                "add it to [source] tables if it is an outbox, or take it out of the publication",
            )
        }
        CoreError::Route { source, .. } => {
            let again = match *source {
                RouteError::SchemaMismatch { .. } => {
                    "have what writes the events keep to the schema, or register one that they fit,"
                }
                _ => "make the column NOT NULL",
            };
            Failure::new("unroutable", Exit::Data, what)
                .caused_by(source)
                .remedy(format!(
                    "what came before is confirmed. Start again with [poison] unroutable or \
                     undecodable = \"dead-letter\" (--set poison.unroutable=dead-letter) to keep the \
                     event in a topic of its own and go on, or \"skip\" to pass it over; and {again} so \
                     that it does not happen again"
                ))
        }
        CoreError::Schema { source, .. } => Failure {
            what,
            ..schema(source)
        },
        CoreError::Message { source, .. } => Failure::new("message", Exit::Data, what)
            .caused_by(source)
            .remedy(
                "what came before is confirmed. Write such events with outbox.emit, which refuses \
                 what is no event: docs/CONFIGURATION.md, \"[source.messages]\". To go on, start \
                 again with [poison] undecodable or unroutable = \"dead-letter\" \
                 (--set poison.undecodable=dead-letter), or \"skip\"",
            ),
        CoreError::NotTransactional { .. } => {
            Failure::new("message-not-transactional", Exit::Data, what).remedy(
                "emit it with true as the first argument, or with outbox.emit. What came before is \
                 confirmed. If nobody needs this one, start once with --set poison.unroutable=skip",
            )
        }
        CoreError::Update { .. } => Failure::new("outbox-updated", Exit::Data, what).remedy(
            "events are inserted rows, and table.op.invalid.behavior = \"fatal\" asks for this. Have \
             the publication carry insertions only (ALTER PUBLICATION … SET (publish = 'insert')), or \
             start with [router.debezium] \"table.op.invalid.behavior\" = \"warn\": the update itself \
             is never sent. What came before is confirmed",
        ),
        CoreError::Decode { source, .. } => Failure::new("undecodable", Exit::Internal, what)
            .caused_by(source)
            .remedy(BUG),
        CoreError::Ledger { source, .. } => Failure::new("ledger", Exit::Internal, what)
            .caused_by(source)
            .remedy(BUG),
        _ => Failure::new("protocol", Exit::Internal, what).remedy(BUG),
    }
}

const BUG: &str = "this is a bug in walrelay or in the server; nothing was confirmed past it. \
                   Please report it with the server's version";
