//! [`UrlTemplate`]: the URL of a record. [`is_private`]: addresses that a row must not choose.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use hyper::Uri;
use hyper::http::uri::PathAndQuery;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// The placeholder of a record's topic.
const TOPIC: &str = "{topic}";
/// All characters except the unreserved ones of RFC 3986.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// The URL of records: constant, or with the placeholder `{topic}` and others, which are templates over
/// the columns of the row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UrlTemplate {
    text: String,
    /// The text with `t` in the place of each column.
    sample: String,
    /// The target of every record; `None` if it depends on the topic or on columns.
    constant: Option<Target>,
    /// True if a record's topic or row decides the host.
    pub(crate) chooses_host: bool,
}

/// The address that a request is sent to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    /// True for `https`.
    pub(crate) secure: bool,
    /// The host's name or address, without the brackets of IPv6.
    pub(crate) host: Arc<str>,
    pub(crate) port: u16,
    /// Host and port as the URL has them.
    pub(crate) authority: Arc<str>,
    pub(crate) path: PathAndQuery,
    /// True if a record has chosen the host.
    pub(crate) chosen: bool,
    /// True if it is the target of every record.
    pub(crate) is_constant: bool,
}

/// The host and the port, without anything secret.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl Target {
    /// Returns the URL, which may have values of a row.
    pub(crate) fn url(&self) -> String {
        let scheme = if self.secure { "https" } else { "http" };
        format!("{scheme}://{}{}", self.authority, self.path)
    }

    /// Returns the part that may fail by itself: the server and the path. It may have values of a row, and
    /// is never shown.
    pub(crate) fn lane(&self) -> String {
        format!("{}{}", self.authority, self.path.path())
    }

    fn parse(url: &str, chosen: bool) -> Result<Self, String> {
        let form = || "its form is https://host:port/path".to_owned();
        if url.contains(|c: char| c.is_whitespace() || c.is_control() || c == '#') {
            return Err(form());
        }
        let uri: Uri = url.parse().map_err(|_| form())?;
        let secure = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err("a URL begins with http:// or https://".to_owned()),
        };
        let authority = uri.authority().ok_or_else(form)?;
        if authority.as_str().contains('@') {
            return Err(
                "write a token as the key `token` or `token_file`, not into the URL".into(),
            );
        }
        let host = authority.host();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            return Err(form());
        }
        let port = match authority.port() {
            Some(port) => port.as_u16(),
            None if authority.as_str() != authority.host() => return Err(form()),
            None if secure => 443,
            None => 80,
        };
        let root = PathAndQuery::from_static("/");
        Ok(Self {
            secure,
            host: Arc::from(host),
            port,
            authority: Arc::from(authority.as_str()),
            path: uri.path_and_query().cloned().unwrap_or(root),
            chosen,
            is_constant: false,
        })
    }
}

impl UrlTemplate {
    /// Parses a URL, which may have `{topic}` and templates over columns in its host, its path and its
    /// query. The templates are not checked.
    ///
    /// # Errors
    /// If the text has another form. The message names the form, and not the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let sample = without_columns(text).ok_or("a placeholder is not closed")?;
        let example = sample.replace(TOPIC, "t");
        if example.contains(['{', '}']) {
            return Err("a placeholder begins with one { and ends with one }".to_owned());
        }
        Target::parse(&example, false)?;
        let behind = text.split_once("://").map_or(text, |(_, behind)| behind);
        // The first placeholder is in the host if no path and no query begins before it.
        let before = behind.split_once('{').map(|(before, _)| before);
        let chooses_host = before.is_some_and(|before| !before.contains(['/', '?']));
        let constant = if text.contains('{') {
            None
        } else {
            let target = Target::parse(text, false)?;
            Some(Target {
                is_constant: true,
                ..target
            })
        };
        Ok(Self {
            text: text.to_owned(),
            sample,
            constant,
            chooses_host,
        })
    }

    /// Parses a URL without templates over columns.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub fn parse_of_topic(text: &str) -> Result<Self, String> {
        let parsed = Self::parse(text)?;
        if parsed.template().is_some() {
            return Err("the only placeholder is {topic}".to_owned());
        }
        Ok(parsed)
    }

    /// Returns the text as a template over columns, in which `{topic}` is no column; `None` if it has no
    /// column.
    pub fn template(&self) -> Option<String> {
        (self.sample != self.text).then(|| self.text.replace(TOPIC, "{{topic}}"))
    }

    /// Returns the text as it was parsed.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the target of records of a topic. The error says why there is none.
    pub(crate) fn target(&self, topic: &str) -> Result<Target, String> {
        self.target_of(topic, &self.text)
    }

    /// Returns the target of a record, whose row makes this text of the
    /// [`template`](Self::template).
    pub(crate) fn target_of_row(&self, topic: &str, text: Option<&str>) -> Result<Target, String> {
        if self.sample == self.text {
            return self.target(topic);
        }
        let text = text.ok_or("the event has no row that makes the URL")?;
        let target = self.target_of(topic, text)?;
        let is_dots = |part: &str| matches!(part, "." | "..");
        if target.path.path().split('/').any(is_dots) {
            return Err("the values of the row make a path that leads elsewhere".to_owned());
        }
        Ok(target)
    }

    fn target_of(&self, topic: &str, text: &str) -> Result<Target, String> {
        if let Some(constant) = &self.constant {
            return Ok(constant.clone());
        }
        let text = if text.contains(TOPIC) {
            if matches!(topic, "" | "." | "..") {
                return Err("the topic cannot be part of a URL".to_owned());
            }
            let escaped = utf8_percent_encode(topic, RESERVED).to_string();
            text.replace(TOPIC, &escaped)
        } else {
            text.to_owned()
        };
        let target = Target::parse(&text, self.chooses_host)?;
        let in_host =
            |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | ':' | '[' | ']');
        if self.chooses_host && !target.authority.chars().all(in_host) {
            return Err("the topic or a value cannot be part of a host's name".to_owned());
        }
        Ok(target)
    }

    /// Returns the target that every record's host is in; `None` if records choose the host.
    pub(crate) fn server(&self) -> Option<Target> {
        match &self.constant {
            Some(constant) => Some(constant.clone()),
            None if self.chooses_host => None,
            None => self.target_of("t", &self.sample).ok(),
        }
    }

    /// Returns true if requests are encrypted.
    pub(crate) fn is_secure(&self) -> bool {
        self.text.starts_with("https://")
    }

    /// Returns true if requests are not encrypted and may leave this machine.
    pub(crate) fn is_bare(&self) -> bool {
        let is_loopback = |target: &Target| {
            let address = target.host.parse::<IpAddr>();
            *target.host == *"localhost" || address.is_ok_and(|address| address.is_loopback())
        };
        !self.is_secure() && !self.server().as_ref().is_some_and(is_loopback)
    }
}

/// Replaces each placeholder but `{topic}` by `t`; `None` if one is not closed.
fn without_columns(text: &str) -> Option<String> {
    let mut sample = String::new();
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once('{') {
        sample.push_str(before);
        // A text of a filter may have any character.
        let mut quote = None;
        let end = behind.find(|c: char| {
            match quote {
                Some(open) if c == open => quote = None,
                None if matches!(c, '\'' | '"') => quote = Some(c),
                None if c == '}' => return true,
                _ => {}
            }
            false
        })?;
        let (name, behind) = behind.split_at(end);
        sample.push_str(if name == "topic" { TOPIC } else { "t" });
        rest = behind.strip_prefix('}')?;
    }
    sample.push_str(rest);
    Some(sample)
}

/// Returns true for an address that is not of the public internet. Of IPv4: private, loopback,
/// link-local, shared (RFC 6598), multicast, and the rest of the registry of special addresses. Of IPv6:
/// all that is not global unicast, and forms that contain such an IPv4 address.
pub(crate) fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => is_private_v4(v4),
        IpAddr::V6(v6) => {
            let [.., a, b, c, d] = v6.octets();
            let last = Ipv4Addr::new(a, b, c, d);
            match v6.segments() {
                // IPv4-mapped, IPv4-compatible, NAT64 (RFC 6052).
                [0, 0, 0, 0, 0, 0 | 0xffff, _, _] | [0x64, 0xff9b, 0, 0, 0, 0, _, _] => {
                    is_private_v4(last)
                }
                // 6to4 (RFC 3056).
                [0x2002, high, low, ..] => {
                    is_private_v4(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)))
                }
                // Assigned to protocols, such as Teredo (RFC 4380), and for documentation.
                [0x2001, 0..0x200 | 0xdb8, ..] | [0x3fff, 0..0x1000, ..] => true,
                // ISATAP (RFC 5214).
                [.., 0 | 0x200, 0x5efe, _, _] if is_private_v4(last) => true,
                // Global unicast is 2000::/3. Outside of it are the local addresses, NAT64 of a
                // network's own prefix (RFC 8215), multicast, and what is not assigned.
                [first, ..] => first & 0xe000 != 0x2000,
            }
        }
    }
}

fn is_private_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_multicast()
        || address.is_documentation()
        || a == 0
        || a >= 240
        || (a == 100 && b & 0xc0 == 64)
        || (a == 198 && b & 0xfe == 18)
        || (a == 192 && b == 0 && c == 0)
        // Relays of 6to4 (RFC 7526).
        || (a == 192 && b == 88 && c == 99)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(url: &str, topic: &str) -> Result<(String, String), String> {
        let target = UrlTemplate::parse(url)?.target(topic)?;
        Ok((target.to_string(), target.path.to_string()))
    }

    #[test]
    fn a_url_is_constant_or_has_the_topic() {
        let is = |host: &str, path: &str| Ok((host.to_owned(), path.to_owned()));
        assert_eq!(target("https://h/a?b=c", "x"), is("h:443", "/a?b=c"));
        assert_eq!(target("http://h", "x"), is("h:80", "/"));
        assert_eq!(target("http://[::1]:8/x", "x"), is("[::1]:8", "/x"));
        let path = "https://h:8443/hooks/{topic}";
        assert_eq!(target(path, "a.B"), is("h:8443", "/hooks/a.B"));
        assert_eq!(target(path, "a/ü?"), is("h:8443", "/hooks/a%2F%C3%BC%3F"));
        assert_eq!(target("https://{topic}.h/", "eu"), is("eu.h:443", "/"));
        for (url, topic) in [
            (path, ".."),
            (path, ""),
            ("https://{topic}.h/", "a/b"),
            ("https://{topic}.h/", "a@b"),
            ("https://{topic}/", "h:80"),
        ] {
            assert!(target(url, topic).is_err(), "{url} {topic}");
        }
        for wrong in [
            "",
            "h",
            "ftp://h/",
            "https://",
            "https:///x",
            "https://u:secret@h/",
            "http://h/{id",
            "http://h/id}",
            "http://h/a b",
            "http://h/#x",
            "http://h:/",
            "http://h:99999/",
        ] {
            let why = UrlTemplate::parse(wrong).expect_err(wrong);
            assert!(!why.contains("secret"), "{why}");
        }
    }

    #[test]
    fn a_url_has_templates_over_columns() {
        let url = "https://h/{tenant | default('}')}/{topic}?x={id}";
        let parsed = UrlTemplate::parse(url).unwrap();
        let template = parsed.template().unwrap();
        assert_eq!(
            template,
            "https://h/{tenant | default('}')}/{{topic}}?x={id}"
        );
        assert_eq!(parsed.server().unwrap().to_string(), "h:443");
        assert!(UrlTemplate::parse_of_topic(url).is_err());
        let target = |url: &str, text| {
            let target = UrlTemplate::parse(url)
                .unwrap()
                .target_of_row("a/b", text)?;
            Ok::<_, String>((target.to_string(), target.path.to_string(), target.chosen))
        };
        assert_eq!(
            target(url, Some("https://h/t%2F1/{topic}?x=7")),
            Ok(("h:443".to_owned(), "/t%2F1/a%2Fb?x=7".to_owned(), false))
        );
        assert!(target(url, None).is_err());
        assert!(target("https://h/{a}{b}/", Some("https://h/../")).is_err());
        let of_host = "https://{tenant}.example.org:8443/{id}";
        assert_eq!(UrlTemplate::parse(of_host).unwrap().server(), None);
        assert_eq!(
            target(of_host, Some("https://eu.example.org:8443/1")),
            Ok(("eu.example.org:8443".to_owned(), "/1".to_owned(), true))
        );
        for wrong in [
            "https://eu%2F.example.org:8443/1",
            "https://eu_.example.org:8443/1",
        ] {
            assert!(target(of_host, Some(wrong)).is_err(), "{wrong}");
        }
        assert_eq!(target("https://h/x", None).unwrap().1, "/x");
    }

    #[test]
    fn an_address_that_is_not_public_is_private() {
        for private in [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
            "198.18.0.1",
            "::1",
            "::",
            "fe80::1",
            "fd00::1",
            "::ffff:10.0.0.1",
            "::127.0.0.1",
            "64:ff9b::a00:1",
            "2002:a00:1::",
            "ff02::1",
            "192.88.99.1",
            "192.0.0.8",
            "203.0.113.1",
            "240.0.0.1",
            "fec0::1",
            "2001::1",
            "2001:db8::1",
            "3fff::1",
            "64:ff9b:1::1",
            "100::1",
            "5f00::1",
            "4000::1",
            "::ffff:100.64.0.1",
            "64:ff9b::c0a8:1",
            "2a00:1:2:3:0:5efe:a00:1",
        ] {
            assert!(is_private(private.parse().unwrap()), "{private}");
        }
        for public in [
            "1.1.1.1",
            "172.32.0.1",
            "100.128.0.1",
            "2606:4700::1",
            "::ffff:1.1.1.1",
            "64:ff9b::101:101",
            "2001:200::1",
            "2002:101:101::",
            "2a00:1::1",
        ] {
            assert!(!is_private(public.parse().unwrap()), "{public}");
        }
    }
}
