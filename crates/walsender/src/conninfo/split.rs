//! Splits a connection string of either form into parameters and values.

use super::error::{ConnInfoError, Parsed};
use super::parameters::{names, nearest};

/// The parameters of a connection string, each at most once.
#[derive(Default)]
pub(super) struct Settings(Vec<(&'static str, String)>);

impl Settings {
    /// Returns the value of a parameter. An empty value counts as not given.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        let (_, value) = self.0.iter().find(|(known, _)| *known == name)?;
        (!value.is_empty()).then_some(value)
    }

    /// Adds a parameter. `offset`: its offset in the connection string, in bytes.
    fn add(&mut self, offset: usize, name: &str, value: String) -> Parsed<()> {
        let Some(name) = names().find(|known| *known == name) else {
            // With other characters it is more likely a piece of an unquoted password than a name.
            let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let is_name = (1..=40).contains(&name.len()) && name.chars().all(plain);
            return Err(ConnInfoError::UnknownParameter {
                offset,
                name: is_name.then(|| name.to_owned()),
                nearest: nearest(name).filter(|_| is_name),
            });
        };
        if self.0.iter().any(|(known, _)| *known == name) {
            return Err(ConnInfoError::Duplicate { offset, name });
        }
        self.0.push((name, value));
        Ok(())
    }
}

pub(super) fn split(text: &str) -> Parsed<Settings> {
    let mut reader = Reader {
        text,
        settings: Settings::default(),
    };
    let trimmed = text.trim_matches(is_space);
    let url = trimmed.strip_prefix("postgres://");
    let url = url.or_else(|| trimmed.strip_prefix("postgresql://"));
    let first_word = trimmed.split(|c| is_space(c) || c == '=').next();
    if let Some(at) = text.find('\0') {
        return syntax(at, "a NUL character");
    } else if let Some(url) = url {
        reader.url(url)?;
    } else if first_word.is_some_and(|word| word.contains("://")) {
        let problem = "a URL must start with postgres:// or postgresql://";
        return syntax(reader.offset(trimmed), problem);
    } else {
        reader.keywords()?;
    }
    Ok(reader.settings)
}

/// Tells whether C's `isspace` calls the character a space.
fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t'..='\r')
}

fn syntax<T>(offset: usize, problem: &'static str) -> Parsed<T> {
    Err(ConnInfoError::Syntax { offset, problem })
}

/// Parser of a connection string.
struct Reader<'a> {
    text: &'a str,
    settings: Settings,
}

impl<'a> Reader<'a> {
    /// Returns the offset of `part` in the connection string, in bytes.
    fn offset(&self, part: &str) -> usize {
        part.as_ptr() as usize - self.text.as_ptr() as usize
    }

    /// Parses the keyword form: `name = value name='quoted value'`; a backslash escapes the next
    /// character.
    fn keywords(&mut self) -> Parsed<()> {
        let mut rest = self.text.trim_start_matches(is_space);
        while !rest.is_empty() {
            let name_end = rest.find(|c| c == '=' || is_space(c));
            let (name, after) = rest.split_at(name_end.unwrap_or(rest.len()));
            let Some(raw) = after.trim_start_matches(is_space).strip_prefix('=') else {
                let problem = "no = after the name of a parameter (a value with spaces must be in \
                    single quotes)";
                return syntax(self.offset(after), problem);
            };
            // As in libpq, spaces here are skipped: `a= b=c` gives `a` the value `b=c`.
            let (value, after) = self.value(raw.trim_start_matches(is_space))?;
            self.settings.add(self.offset(name), name, value)?;
            rest = after.trim_start_matches(is_space);
        }
        Ok(())
    }

    /// Reads the value at the start of `raw`; returns it and the rest.
    fn value(&self, raw: &'a str) -> Parsed<(String, &'a str)> {
        let quoted = raw.strip_prefix('\'');
        let mut chars = quoted.unwrap_or(raw).chars();
        let mut value = String::new();
        loop {
            let here = chars.as_str();
            match (chars.next(), quoted) {
                (None, None) => return Ok((value, "")),
                (None, Some(_)) => return syntax(self.offset(raw), "this quote is never closed"),
                (Some('\\'), _) => value.extend(chars.next()),
                (Some('\''), Some(_)) if chars.as_str().starts_with(|c: char| !is_space(c)) => {
                    let problem = "no space after the closing quote (a quote within a value is \
                        written \\')";
                    return syntax(self.offset(chars.as_str()), problem);
                }
                (Some('\''), Some(_)) => return Ok((value, chars.as_str())),
                (Some(c), None) if is_space(c) => return Ok((value, here)),
                (Some(c), _) => value.push(c),
            }
        }
    }

    /// Parses a URL after the scheme:
    /// `[user[:password]@][host[:port][,…]][/dbname][?name=value[&…]]`, percent-encoded.
    fn url(&mut self, url: &str) -> Parsed<()> {
        if let Some(at) = url.find(is_space) {
            let problem = "a space in a URL must be written %20";
            return syntax(self.offset(url) + at, problem);
        }
        let (before_query, query) = url.split_once('?').unwrap_or((url, ""));
        // libpq also looks for the end of the credentials after the ?; other parsers of URLs do
        // not. A wrong choice could send a password to the wrong host, so this is an error.
        if !before_query.contains(['@', '/'])
            && let Some(at) = query.find(['@', '/'])
            && query[at..].starts_with('@')
        {
            let problem = "it is ambiguous whether this @ ends a password: write ? in a user's \
                name or password as %3F, and @ in a parameter as %40";
            return syntax(self.offset(query) + at, problem);
        }
        // The first @ ends the credentials if no / comes before it.
        let authority = before_query.split('/').next().unwrap_or_default();
        let mut rest = before_query;
        if let Some((credentials, _)) = authority.split_once('@') {
            rest = &before_query[credentials.len() + 1..];
            // A second @, or one after a /, most likely belongs to the password. The text between
            // the two would be taken for a host and shown in errors.
            if let Some(at) = rest.find('@') {
                let problem = "a second @: write @ as %40 and / as %2F in a user's name, a \
                    password or a database";
                return syntax(self.offset(rest) + at, problem);
            }
            let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
            self.part("user", user)?;
            self.part("password", password)?;
        }
        let (servers, dbname) = rest.split_once('/').unwrap_or((rest, ""));
        self.servers(servers)?;
        self.part("dbname", dbname)?;
        self.query(query)
    }

    /// Adds a parameter that is not in the query of the URL, unless it is empty.
    fn part(&mut self, name: &str, raw: &str) -> Parsed<()> {
        if raw.is_empty() {
            return Ok(());
        }
        let value = self.decode(raw)?;
        self.settings.add(self.offset(raw), name, value)
    }

    fn servers(&mut self, servers: &str) -> Parsed<()> {
        let (mut hosts, mut ports) = (Vec::new(), Vec::new());
        for server in servers.split(',') {
            let (host, port) = self.host_and_port(server)?;
            hosts.push(self.decode(host)?);
            ports.push(self.decode(port)?);
        }
        for (name, list) in [("host", hosts), ("port", ports)] {
            if list.len() > 1 || !list[0].is_empty() {
                self.settings
                    .add(self.offset(servers), name, list.join(","))?;
            }
        }
        Ok(())
    }

    fn host_and_port<'s>(&self, server: &'s str) -> Parsed<(&'s str, &'s str)> {
        let Some(bracketed) = server.strip_prefix('[') else {
            return Ok(server.split_once(':').unwrap_or((server, "")));
        };
        match bracketed.split_once(']') {
            None => syntax(self.offset(server), "this bracket is never closed"),
            Some(("", _)) => syntax(self.offset(server), "no IPv6 address between the brackets"),
            Some((address, "")) => Ok((address, "")),
            Some((address, after)) => match after.strip_prefix(':') {
                Some(port) => Ok((address, port)),
                None => syntax(
                    self.offset(after),
                    "after an address in brackets only a port, a comma, / or ? can come",
                ),
            },
        }
    }

    fn query(&mut self, query: &str) -> Parsed<()> {
        for pair in query.split('&').filter(|_| !query.is_empty()) {
            let offset = self.offset(pair);
            let Some((name, value)) = pair.split_once('=') else {
                return syntax(offset, "a parameter in the query without =");
            };
            if let Some(at) = value.find('=') {
                let problem = "a second = in a parameter of the query (within a value it is \
                    written %3D)";
                return syntax(self.offset(value) + at, problem);
            }
            let (name, value) = (self.decode(name)?, self.decode(value)?);
            // `ssl=true` as in JDBC's URLs; libpq has the same exception.
            if (name.as_str(), value.as_str()) == ("ssl", "true") {
                self.settings.add(offset, "sslmode", "require".to_owned())?;
            } else {
                self.settings.add(offset, &name, value)?;
            }
        }
        Ok(())
    }

    /// Decodes percent-encoding.
    fn decode(&self, raw: &str) -> Parsed<String> {
        let mut parts = raw.split('%');
        let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
        for part in parts {
            let digit = |at: usize| char::from(*part.as_bytes().get(at)?).to_digit(16);
            let percent = self.offset(part) - 1;
            match digit(0)
                .zip(digit(1))
                .map(|(high, low)| (high << 4 | low) as u8)
            {
                Some(0) => return syntax(percent, "%00"),
                Some(byte) => bytes.push(byte),
                None => {
                    let problem = "no two hexadecimal digits after % (a percent sign is written \
                        %25)";
                    return syntax(percent, problem);
                }
            }
            bytes.extend_from_slice(&part.as_bytes()[2..]);
        }
        let problem = "percent-encoded bytes that are not UTF-8";
        String::from_utf8(bytes).or_else(|_| syntax(self.offset(raw), problem))
    }
}
