//! `[router.registry]`: values in a schema registry's wire format.

use walrelay_event_router::{
    Lookups, SubjectNames, Template, TemplateTarget, ValueFormat, ValueSchema, WireFormat,
};
use walrelay_http_client::one_url;
use walrelay_schema_registry::{RegistryLogin, RegistrySettings, SchemaFile};
use walrelay_settings::{
    AlreadyReported, Entry, MINUTE, Reader, Section, boolean, choice, duration, path, secret,
    section, string, text,
};

use crate::config::templates::full_template;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;

/// The section whose keys are subjects.
pub(super) const SCHEMAS: &str = "router.registry.schemas";

const FORMATS: &[(&str, ValueFormat)] = &[("avro", ValueFormat::Avro), ("json", ValueFormat::Json)];
const SUBJECTS: &[(&str, SubjectNames)] = &[
    ("topic", SubjectNames::Topic),
    ("record", SubjectNames::Record),
    ("topic-record", SubjectNames::TopicRecord),
];

section! {
pub(super) struct Keys at "router.registry" {
    /// The registry's URL, such as `http://registry:8081`. Several, separated by commas, are asked in turn.
    "url" urls: Vec<String> = text(urls).required("\"http://localhost:8081\"");
    /// The form of values: Avro, or JSON of JSON Schema.
    "format" format: ValueFormat = choice(FORMATS).required("\"avro\"");
    /// The name of a value's subject: `<topic>-value`, `<record>` or `<topic>-<record>`.
    "subject" subjects: SubjectNames = choice(SUBJECTS).or("topic");
    /// The name of the record, for subjects that contain it.
    "record" record: Option<Template> = full_template(TemplateTarget::Topic, "a record's name is not empty").optional();
    /// Whether the relay registers the schemas of `[router.registry.schemas]`.
    "register" register: bool = boolean().or("false");
    /// The user of HTTP basic authentication.
    "user" user: Option<String> = string().optional();
    /// The user's password.
    "password" password: Option<SecretString> = secret(|_| Ok(())).optional();
    /// A bearer token, instead of user and password.
    "token" token: Option<SecretString> = secret(|_| Ok(())).optional();
    /// PEM certificates to trust. Unset: those of the operating system.
    "ca_file" ca_file: Option<PathBuf> = path().optional();
    /// How long an answer may take, 100ms to 1m.
    "timeout" timeout: Duration = duration(Duration::from_millis(100)..=MINUTE).or("10s");
}
}

/// Reads the section; `None` if it is absent.
pub(super) fn registry(
    reader: &mut Reader<'_>,
) -> Result<Option<RegistrySettings>, AlreadyReported> {
    if !reader.has_below(Keys::AT) {
        return Ok(None);
    }
    let keys = Keys::read(reader);
    let schemas = schemas(reader, keys.as_ref().ok().map(|keys| keys.format));
    let mut keys = keys?;
    let record = "router.registry.record";
    match (keys.subjects, &keys.record) {
        (SubjectNames::Topic, Some(_)) => {
            let why = "while `router.registry.subject` is \"topic\"";
            return Err(reader.no_effect(record, why));
        }
        (SubjectNames::Record | SubjectNames::TopicRecord, None) => {
            return Err(reader.missing(record, "\"com.example.{type}\""));
        }
        _ => {}
    }
    Ok(Some(RegistrySettings {
        login: login(reader, &mut keys)?,
        urls: keys.urls,
        ca_file: keys.ca_file,
        timeout: keys.timeout,
        register: keys.register,
        schemas,
        wire: WireFormat {
            format: keys.format,
            subjects: keys.subjects,
            record: keys.record,
            lookups: reader.shared::<Lookups>().clone(),
        },
    }))
}

fn urls(text: &str) -> Result<Vec<String>, String> {
    text.split(',').map(|url| one_url(url.trim())).collect()
}

fn login(
    reader: &mut Reader<'_>,
    keys: &mut Keys,
) -> Result<Option<RegistryLogin>, AlreadyReported> {
    if let Some(token) = keys.token.take() {
        for name in ["user", "password", "password_file"] {
            let path = format!("{}.{name}", Keys::AT);
            if reader.has(&path) {
                return Err(reader.no_effect(&path, "beside a token: keep one of them"));
            }
        }
        return Ok(Some(RegistryLogin::Bearer(token)));
    }
    match (keys.user.take(), keys.password.take()) {
        (None, None) => Ok(None),
        (Some(user), Some(password)) => Ok(Some(RegistryLogin::Basic { user, password })),
        (Some(_), None) => {
            Err(reader.missing("router.registry.password", "\"${REGISTRY_PASSWORD}\""))
        }
        (None, Some(_)) => Err(reader.missing("router.registry.user", "\"walrelay\"")),
    }
}

/// Reads the files of schemas, so that their problems are reported before anything is sent.
fn schemas(reader: &mut Reader<'_>, format: Option<ValueFormat>) -> BTreeMap<String, SchemaFile> {
    let mut schemas = BTreeMap::new();
    for (subject, entry) in reader.below(SCHEMAS) {
        let path = format!("{SCHEMAS}.{subject}");
        if let Ok(schema) = schema(reader, &path, &entry, format) {
            schemas.insert(subject, schema);
        }
    }
    schemas
}

fn schema(
    reader: &mut Reader<'_>,
    path: &str,
    entry: &Entry,
    format: Option<ValueFormat>,
) -> Result<SchemaFile, AlreadyReported> {
    let id = "config-schema-file";
    let help = "a relative name is looked up next to the configuration file";
    let (file, text) = reader.file(path, entry, id, help)?;
    let problem = match format {
        Some(ValueFormat::Avro) => {
            let schema = ValueSchema::avro(0, &text);
            schema.err().map(|problem| problem.to_string())
        }
        Some(ValueFormat::Json) => {
            let schema = serde_json::from_str::<serde_json::Value>(&text);
            schema.err().map(|error| format!("it is not JSON: {error}"))
        }
        None => None,
    };
    if let Some(problem) = problem {
        let what = format!("the schema in the file that `{path}` names cannot be used: {problem}");
        return Err(reader.note(&entry.origin, id, what, None));
    }
    Ok(SchemaFile { path: file, text })
}
