//! Failures of routing and of value schemas.

use std::borrow::Cow;

use walrelay_event_router::{PlanError, Role, RouteError, ValueError};
use walrelay_failure::{Exit, Failure};
use walrelay_postgres_source::columns_remedy;
use walrelay_relay::{SchemaError, SchemaFailure};
use walrelay_sink::Poison;

use super::BUG;

/// Makes the failure that the route reads columns that logical messages do not have.
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

/// Makes the failure that the configured route reads columns that the table does not have, or reads
/// them wrongly.
pub(crate) fn plan(what: &str, error: impl Into<Box<PlanError>>) -> Failure {
    let error = error.into();
    let remedy: Cow<'static, str> = match &*error {
        PlanError::MissingColumn {
            role: Role::Headers,
            ..
        }
        | PlanError::UnsupportedType {
            role: Role::Headers,
            ..
        } => "correct [router] headers_from".into(),
        PlanError::MissingColumn { columns, role, .. } => {
            columns_remedy(columns, matches!(role, Role::Template(_))).into()
        }
        _ => "name the table's columns in [router.debezium] or [router.route]".into(),
    };
    Failure::new("column-missing", Exit::Config, what)
        .caused_by(error)
        .remedy(remedy)
}

/// Makes the failure that a table of the stream cannot be routed, after other events were sent.
pub(super) fn plan_within_stream(what: &str, source: Box<PlanError>) -> Failure {
    let lacks_column = matches!(&*source, PlanError::MissingColumn { .. });
    let mut failure = plan(what, source);
    if lacks_column && let Some(remedy) = &mut failure.remedy {
        remedy.push_str(
            ". If the table has the column, a column list of the publication left it out, and rows of that \
             time lack it for ever: once the list is away, start once with --set poison.unroutable=skip, and \
             publish the rows again that the log names: docs/operate/troubleshooting.md, \"A column was renamed or \
             dropped\"",
        );
    }
    let again = "all sent events are confirmed; the relay goes on from here when started \
                 again. ";
    failure.remedy = failure.remedy.map(|remedy| again.to_owned() + &remedy);
    failure
}

/// Makes the failure that an event cannot be routed.
pub(super) fn route(what: String, source: RouteError) -> Failure {
    let again = match source {
        RouteError::SchemaMismatch { .. } => {
            "have the service that writes the events keep to the schema, or register one \
             that they fit,"
        }
        RouteError::Value { why, .. } => again(why),
        _ => "correct the row's table",
    };
    let confirmed = "everything before it is confirmed.";
    let Some(class) = source.poison().map(Poison::name) else {
        return Failure::new("unroutable", Exit::Data, what)
            .caused_by(source)
            .remedy(format!("{confirmed} {BUG}"));
    };
    // The id is the key of the policy.
    Failure::new(class, Exit::Data, what)
        .caused_by(source)
        .remedy(format!(
            "{confirmed} Start again with [poison] {class} = \"dead-letter\" \
             (--set poison.{class}=dead-letter) to keep the event in a topic of its own and go on, \
             or \"skip\" to pass it over; and {again} so that it does not happen again"
        ))
}

/// Returns the remedy without which the next row has this fault, too.
fn again(why: ValueError) -> &'static str {
    match why {
        ValueError::Null => "make the column NOT NULL",
        ValueError::NotInTable => "add the value to the lookup table,",
        ValueError::NotBytes => "choose another column or converter,",
        _ => {
            "see that your application can only write another content into the column, for example by a CHECK constraint,"
        }
    }
}

/// Makes the failure that the registry does not have the schema of a subject that the configuration
/// names.
pub(crate) fn unregistered(subject: &str) -> Failure {
    let reason = format!("the schema registry does not have the schema of subject {subject:?}");
    schema(SchemaError {
        kind: SchemaFailure::Missing,
        reason,
    })
}

/// Makes the failure that `walrelay route` needs a schema that only the registry has, and `route`
/// asks no registry.
pub(crate) fn schema_file(subject: &str) -> Failure {
    let what = format!(
        "the schema of subject {subject:?} is not in the configuration, and route asks no registry"
    );
    Failure::new("schema-file", Exit::Config, what)
        .remedy("name its file in [router.registry.schemas], or with --set")
}

/// Makes the failure that the schema registry did not give a schema.
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
            "correct the schema, or its format and subject in [router.registry]; the subject's \
             compatibility in the registry decides whether it goes with earlier ones.",
        ),
    };
    Failure::new(id, exit, "there is no schema for values")
        .caused_by(error)
        .remedy(format!(
            "{remedy} A stopped relay has confirmed all sent events, and goes on from there when \
             started again"
        ))
}
