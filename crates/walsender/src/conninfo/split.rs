//! From a connection string to parameters and their values, in either of its two forms.

use super::error::ConnInfoError;
use super::parameters::{names, nearest};

/// The parameters of a connection string, each at most once.
#[derive(Default)]
pub(super) struct Settings(Vec<(&'static str, String)>);

impl Settings {
    /// The value of a parameter. An empty one counts as not given.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        let mut all = self.0.iter();
        all.find(|(known, value)| *known == name && !value.is_empty())
            .map(|(_, value)| value.as_str())
    }

    /// `offset` is where the parameter stands in the connection string.
    fn add(&mut self, offset: usize, name: &str, value: String) -> Result<(), ConnInfoError> {
        let Some(name) = names().find(|known| *known == name) else {
            // Something with other characters is more likely a piece of a password that should
            // have been quoted than a name.
            let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let is_name = (1..=40).contains(&name.len()) && name.chars().all(plain);
            return Err(ConnInfoError::UnknownParameter {
                offset,
                name: is_name.then(|| name.to_owned()),
                nearest: if is_name { nearest(name) } else { None },
            });
        };
        if self.0.iter().any(|(known, _)| *known == name) {
            return Err(ConnInfoError::Duplicate { offset, name });
        }
        self.0.push((name, value));
        Ok(())
    }
}

pub(super) fn split(text: &str) -> Result<Settings, ConnInfoError> {
    if let Some(offset) = text.find('\0') {
        return syntax(offset, "a NUL character");
    }
    let start = text.len() - text.trim_start_matches(is_space).len();
    let trimmed = text.trim_matches(is_space);
    for scheme in ["postgres://", "postgresql://"] {
        if let Some(rest) = trimmed.strip_prefix(scheme) {
            return url(rest, start + scheme.len());
        }
    }
    let first_word = trimmed.split(|c| is_space(c) || c == '=').next();
    if first_word.is_some_and(|word| word.contains("://")) {
        return syntax(start, "a URL must start with postgres:// or postgresql://");
    }
    keywords(text)
}

/// As C's `isspace`.
fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t'..='\r')
}

fn syntax<T>(offset: usize, problem: &'static str) -> Result<T, ConnInfoError> {
    Err(ConnInfoError::Syntax { offset, problem })
}

/// `name = value name='quoted value'`; a backslash takes the next character as it is.
fn keywords(text: &str) -> Result<Settings, ConnInfoError> {
    let mut settings = Settings::default();
    let mut rest = text.trim_start_matches(is_space);
    while !rest.is_empty() {
        let name_at = text.len() - rest.len();
        let name_end = rest.find(|c| c == '=' || is_space(c));
        let (name, after) = rest.split_at(name_end.unwrap_or(rest.len()));
        let after = after.trim_start_matches(is_space);
        let Some(after) = after.strip_prefix('=') else {
            return syntax(
                name_at + name.len(),
                "no = after the name of a parameter (a value with spaces must be in single quotes)",
            );
        };
        // libpq, too, goes over spaces here: `a= b=c` gives a the value `b=c`.
        let raw = after.trim_start_matches(is_space);
        let (value, after) = value(raw, text.len() - raw.len())?;
        settings.add(name_at, name, value)?;
        rest = after.trim_start_matches(is_space);
    }
    Ok(settings)
}

/// The value at the start of `raw`, and what comes after it.
fn value(raw: &str, offset: usize) -> Result<(String, &str), ConnInfoError> {
    let quoted = raw.strip_prefix('\'');
    let mut chars = quoted.unwrap_or(raw).chars();
    let mut value = String::new();
    loop {
        let here = chars.as_str();
        match (chars.next(), quoted) {
            (None, Some(_)) => return syntax(offset, "this quote is never closed"),
            (None, None) => return Ok((value, "")),
            (Some('\\'), _) => value.extend(chars.next()),
            (Some('\''), Some(_)) => {
                let after = chars.as_str();
                if after.is_empty() || after.starts_with(is_space) {
                    return Ok((value, after));
                }
                return syntax(
                    offset + raw.len() - after.len(),
                    "no space after the closing quote (a quote within a value is written \\')",
                );
            }
            (Some(c), None) if is_space(c) => return Ok((value, here)),
            (Some(c), _) => value.push(c),
        }
    }
}

/// `[user[:password]@][host[:port][,…]][/dbname][?name=value[&…]]`, percent-encoded; `text` is what
/// comes after the scheme and `base` where it starts in the connection string.
fn url(text: &str, base: usize) -> Result<Settings, ConnInfoError> {
    if let Some(at) = text.find(is_space) {
        return syntax(base + at, "a space in a URL must be written %20");
    }
    let (before_query, query) = match text.split_once('?') {
        Some((before, query)) => (before, Some(query)),
        None => (text, None),
    };
    // libpq would look for the end of the credentials behind the ? as well; other readers of URLs
    // would not. Who is right matters too much to choose.
    if let Some(query) = query
        && let Some(at) = query.find(['@', '/'])
        && query[at..].starts_with('@')
        && !before_query.contains(['@', '/'])
    {
        return syntax(
            base + before_query.len() + 1 + at,
            "it is ambiguous whether this @ ends a password: write ? in a user's name or password \
             as %3F, and @ in a parameter as %40",
        );
    }
    let mut url = Url {
        text,
        base,
        settings: Settings::default(),
    };
    // The first @ ends the credentials if no / comes before it.
    let authority = before_query.split('/').next().unwrap_or_default();
    let rest = match authority.find('@') {
        Some(at) => {
            url.credentials(&authority[..at])?;
            &before_query[at + 1..]
        }
        None => before_query,
    };
    let (servers, dbname) = rest.split_once('/').unwrap_or((rest, &rest[rest.len()..]));
    // A second @, or one behind a /, most likely belongs to the password; what stands between would
    // be taken for a host and be named in errors.
    if rest.len() < before_query.len()
        && let Some(at) = rest.find('@')
    {
        return syntax(
            url.offset_of(rest) + at,
            "a second @: write @ as %40 and / as %2F in a user's name, a password or a database",
        );
    }
    url.servers(servers)?;
    url.add("dbname", dbname)?;
    url.query(query.unwrap_or_default())?;
    Ok(url.settings)
}

/// A URL that is being read.
struct Url<'a> {
    text: &'a str,
    base: usize,
    settings: Settings,
}

impl Url<'_> {
    /// Where a part of the URL stands in the connection string.
    fn offset_of(&self, part: &str) -> usize {
        self.base + (part.as_ptr() as usize - self.text.as_ptr() as usize)
    }

    fn decode(&self, raw: &str) -> Result<String, ConnInfoError> {
        decode(raw, self.offset_of(raw))
    }

    /// Adds a parameter that has a place of its own in a URL, unless it is empty.
    fn add(&mut self, name: &str, raw: &str) -> Result<(), ConnInfoError> {
        if raw.is_empty() {
            return Ok(());
        }
        let value = self.decode(raw)?;
        self.settings.add(self.offset_of(raw), name, value)
    }

    fn credentials(&mut self, credentials: &str) -> Result<(), ConnInfoError> {
        let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
        self.add("user", user)?;
        self.add("password", password)
    }

    fn servers(&mut self, servers: &str) -> Result<(), ConnInfoError> {
        let (mut hosts, mut ports) = (Vec::new(), Vec::new());
        for server in servers.split(',') {
            let (host, port) = host_and_port(server, self.offset_of(server))?;
            hosts.push(self.decode(host)?);
            ports.push(self.decode(port)?);
        }
        for (name, list) in [("host", hosts), ("port", ports)] {
            if list.len() > 1 || !list[0].is_empty() {
                let offset = self.offset_of(servers);
                self.settings.add(offset, name, list.join(","))?;
            }
        }
        Ok(())
    }

    fn query(&mut self, query: &str) -> Result<(), ConnInfoError> {
        if query.is_empty() {
            return Ok(());
        }
        for pair in query.split('&') {
            let offset = self.offset_of(pair);
            let Some((name, value)) = pair.split_once('=') else {
                return syntax(offset, "a parameter in the query without =");
            };
            if let Some(at) = value.find('=') {
                return syntax(
                    self.offset_of(value) + at,
                    "a second = in a parameter of the query (within a value it is written %3D)",
                );
            }
            let (name, value) = (self.decode(name)?, self.decode(value)?);
            // As in JDBC's URLs; libpq has the same exception.
            if (name.as_str(), value.as_str()) == ("ssl", "true") {
                self.settings.add(offset, "sslmode", "require".to_owned())?;
            } else {
                self.settings.add(offset, &name, value)?;
            }
        }
        Ok(())
    }
}

fn host_and_port(server: &str, offset: usize) -> Result<(&str, &str), ConnInfoError> {
    let Some(bracketed) = server.strip_prefix('[') else {
        return Ok(server.split_once(':').unwrap_or((server, &server[..0])));
    };
    let Some((address, after)) = bracketed.split_once(']') else {
        return syntax(offset, "this bracket is never closed");
    };
    if address.is_empty() {
        return syntax(offset, "no IPv6 address between the brackets");
    }
    match after.strip_prefix(':') {
        Some(port) => Ok((address, port)),
        None if after.is_empty() => Ok((address, after)),
        None => syntax(
            offset + server.len() - after.len(),
            "after an address in brackets only a port, a comma, / or ? can come",
        ),
    }
}

/// Undoes percent-encoding.
fn decode(raw: &str, offset: usize) -> Result<String, ConnInfoError> {
    let mut bytes = Vec::with_capacity(raw.len());
    let mut rest = raw.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let here = offset + raw.len() - rest.len();
        if byte != b'%' {
            bytes.push(byte);
            rest = after;
            continue;
        }
        let digit = |at: usize| after.get(at).and_then(|&b| char::from(b).to_digit(16));
        let (Some(high), Some(low)) = (digit(0), digit(1)) else {
            return syntax(
                here,
                "no two hexadecimal digits after % (a percent sign is written %25)",
            );
        };
        match (high << 4 | low) as u8 {
            0 => return syntax(here, "%00"),
            byte => bytes.push(byte),
        }
        rest = &after[2..];
    }
    String::from_utf8(bytes).or_else(|_| syntax(offset, "percent-encoded bytes that are not UTF-8"))
}
