//! `[router.registry]`: values in a schema registry's wire format.

use std::collections::BTreeMap;
use std::time::Duration;

use walrelay_event_router::{
    Lookups, Place, SubjectNames, Template, ValueFormat, ValueSchema, WireFormat,
};

use super::document::{Entry, Value};
use super::keys::{self, SCHEMAS};
use super::reader::Reader;
use super::types::{Registry, RegistryLogin, SchemaFile};

const SECTION: &str = "router.registry";
const URL: &str = "router.registry.url";
const RECORD: &str = "router.registry.record";

/// `None` without the section, and when a problem was noted.
pub(super) fn registry(reader: &mut Reader<'_>, lookups: &Lookups) -> Option<Registry> {
    let path = |name: &str| format!("{SECTION}.{name}");
    let mut names = keys::of_section(SECTION).into_iter();
    let is_there =
        names.any(|name| reader.has(&path(name))) || !reader.entries_below(SCHEMAS).is_empty();
    if !is_there {
        return None;
    }
    let urls = if reader.has(URL) {
        reader.parsed(URL, urls)
    } else {
        reader.missing(URL, "\"http://localhost:8081\"");
        None
    };
    if !reader.has(&path("format")) {
        reader.missing(&path("format"), "\"avro\"");
    }
    let format = reader.choice(&path("format")).map(|index| match index {
        0 => ValueFormat::Avro,
        _ => ValueFormat::Json,
    });
    let subjects = reader.choice(&path("subject")).map(|index| match index {
        0 => SubjectNames::Topic,
        1 => SubjectNames::Record,
        _ => SubjectNames::TopicRecord,
    });
    let record = record(reader, subjects, lookups);
    let login = login(reader);
    let ca_file = reader.path(&path("ca_file"));
    let least = Duration::from_millis(100);
    let timeout = reader.duration(&path("timeout"), least, Some(60 * Duration::from_secs(1)));
    let register = reader.boolean(&path("register"));
    let schemas = schemas(reader, format);
    Some(Registry {
        urls: urls?,
        login: login.ok()?,
        ca_file,
        timeout: timeout?,
        register,
        schemas,
        wire: WireFormat {
            format: format?,
            subjects: subjects?,
            record: record.ok()?,
            lookups: lookups.clone(),
        },
    })
}

/// A problem that was noted.
struct Noted;

fn urls(text: &str) -> Result<Vec<String>, String> {
    let mut urls = Vec::new();
    for url in text.split(',').map(str::trim) {
        let rest = ["http://", "https://"]
            .iter()
            .find_map(|scheme| url.strip_prefix(scheme));
        let Some(rest) = rest else {
            return Err("a URL begins with http:// or https://".to_owned());
        };
        if rest.contains('@') {
            return Err(
                "write user and password as the keys `user` and `password`, \
                        or `password_file`, not into the URL"
                    .to_owned(),
            );
        }
        let odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '?' | '#');
        if rest.is_empty() || rest.starts_with(['/', ':']) || rest.contains(odd) {
            return Err("its form is http://host:8081, with a path if need be".to_owned());
        }
        urls.push(url.trim_end_matches('/').to_owned());
    }
    Ok(urls)
}

fn record(
    reader: &mut Reader<'_>,
    subjects: Option<SubjectNames>,
    lookups: &Lookups,
) -> Result<Option<Template>, Noted> {
    if !reader.has(RECORD) {
        return match subjects {
            Some(SubjectNames::Topic) => Ok(None),
            Some(_) => {
                reader.missing(RECORD, "\"com.example.{type}\"");
                Err(Noted)
            }
            None => Err(Noted),
        };
    }
    let record = reader.parsed(RECORD, |text| {
        if text.is_empty() {
            return Err("a record's name is not empty".to_owned());
        }
        // As strict as a topic: a subject's name must be there for each event.
        Template::parse(text, Place::Topic, lookups).map_err(|error| error.to_string())
    });
    if subjects == Some(SubjectNames::Topic) {
        let what = format!("`{RECORD}` has no effect while `{SECTION}.subject` is \"topic\"");
        reader.conflict(RECORD, what);
        return Err(Noted);
    }
    record.map(Some).ok_or(Noted)
}

fn login(reader: &mut Reader<'_>) -> Result<Option<RegistryLogin>, Noted> {
    let path = |name: &str| format!("{SECTION}.{name}");
    let [user, password, token] = ["user", "password", "token"].map(path);
    let files = [format!("{password}_file"), format!("{token}_file")];
    let name = reader.text(&user).map(|found| found.value);
    let said = reader.secret(&password, &files[0]);
    let bearer = reader.secret(&token, &files[1]);
    let has = |reader: &Reader<'_>, path: &str, file: &str| reader.has(path) || reader.has(file);
    let has_password = has(reader, &password, &files[0]);
    if has(reader, &token, &files[1]) {
        if reader.has(&user) {
            let what = format!("`{user}` has no effect beside a token: keep one of them");
            reader.conflict(&user, what);
            return Err(Noted);
        }
        for path in [&password, &files[0]] {
            if reader.has(path) {
                let what = format!("`{path}` has no effect beside a token: keep one of them");
                reader.conflict(path, what);
                return Err(Noted);
            }
        }
        let token = bearer.ok_or(Noted)?.value;
        return Ok(Some(RegistryLogin::Bearer(token)));
    }
    match (name, has_password) {
        (None, false) => Ok(None),
        (Some(user), true) => Ok(Some(RegistryLogin::Basic {
            user,
            password: said.ok_or(Noted)?.value,
        })),
        (Some(_), false) => {
            reader.missing(&password, "\"${REGISTRY_PASSWORD}\"");
            Err(Noted)
        }
        (None, true) => {
            reader.missing(&user, "\"walrelay\"");
            Err(Noted)
        }
    }
}

/// Files are read here, so that what is wrong with one is said before anything is sent.
fn schemas(reader: &mut Reader<'_>, format: Option<ValueFormat>) -> BTreeMap<String, SchemaFile> {
    let mut schemas = BTreeMap::new();
    for (subject, entry) in reader.entries_below(SCHEMAS) {
        let path = format!("{SCHEMAS}.{subject}");
        let Entry { value, origin, .. } = &entry;
        let Value::Text(name) = value else {
            if *value != Value::Broken {
                reader.wrong_type(&path, &entry, None);
            }
            continue;
        };
        let file = reader.beside(name);
        let text = match reader.file_at(&file) {
            Ok(text) => text,
            Err(error) => {
                let what = format!("cannot read the file that `{path}` names");
                let help = "a relative name is looked up beside the configuration file".to_owned();
                reader.note_cause(origin, "config-schema-file", what, help, error);
                continue;
            }
        };
        let problem = match format {
            Some(ValueFormat::Avro) => ValueSchema::avro(0, &text)
                .err()
                .map(|problem| problem.to_string()),
            Some(ValueFormat::Json) => serde_json::from_str::<serde_json::Value>(&text)
                .err()
                .map(|error| format!("it is not JSON: {error}")),
            None => None,
        };
        if let Some(problem) = problem {
            let what =
                format!("the schema in the file that `{path}` names is of no use: {problem}");
            reader.note(origin, None, "config-schema-file", what, None);
            continue;
        }
        schemas.insert(subject, SchemaFile { path: file, text });
    }
    schemas
}
