use std::net::Ipv6Addr;

/// Splits `host`, `host:port` or `[address]:port`. `None`: the text is none of them.
pub fn host_and_port(text: &str, default: u16) -> Option<(String, u16)> {
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']')?;
        let port = match rest.strip_prefix(':') {
            Some(port) => port.parse().ok()?,
            None if rest.is_empty() => default,
            None => return None,
        };
        (host, port)
    } else {
        match text.split_once(':') {
            Some((host, port)) => (host, port.parse().ok()?),
            None => (text, default),
        }
    };
    let is_ipv6 = || {
        let (address, _zone) = host.split_once('%').unwrap_or((host, ""));
        text.starts_with('[') && address.parse::<Ipv6Addr>().is_ok()
    };
    let is_host = is_name(host) || is_ipv6();
    (is_host && port > 0).then(|| (host.to_owned(), port))
}

/// Returns true if a text can be a name or an address of a host.
fn is_name(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    !text.is_empty() && text.bytes().all(is_part)
}

/// Returns what is wrong with an address of the key `key`, for an error; `None`: it is one of
/// [`host_and_port`]. The text of a URL, or of an address with a login, is not repeated: it may have a
/// password.
pub fn address_fault(key: &str, text: &str) -> Option<String> {
    if host_and_port(text, 1).is_some() {
        return None;
    }
    let (host, port) = text.split_once(':').unwrap_or((text, ""));
    let is_harmless = is_name(host) && port.bytes().all(|byte| byte.is_ascii_digit());
    Some(if is_harmless {
        format!("`{key}` has {text:?}, which is no host:port")
    } else {
        format!(
            "`{key}` has a text that is no host:port, such as a URL; the login and TLS have keys of their own"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_have_ports() {
        for (text, host, port) in [
            ("redis", "redis", 6379),
            ("redis:1", "redis", 1),
            ("[::1]:2", "::1", 2),
            ("[::1]", "::1", 6379),
            ("[fe80::1%eth0]:2", "fe80::1%eth0", 2),
        ] {
            let expected = Some((host.to_owned(), port));
            assert_eq!(host_and_port(text, 6379), expected, "{text}");
        }
        for wrong in [
            "",
            ":1",
            "r:",
            "r:x",
            "r:0",
            "r:70000",
            "[::1",
            "[]:1",
            "[::1]:0",
            "[::1]x",
            "redis://r",
            "user@r",
            "user@r:1",
            "r/0",
        ] {
            assert_eq!(host_and_port(wrong, 6379), None, "{wrong}");
        }
    }

    #[test]
    fn a_login_is_not_repeated() {
        for text in [
            "nats://u:secret@h",
            "u:secret@h:1",
            "secret@h",
            "redis://:secret@h/0",
            "amqp:guest:secret",
            "user:secret",
            "h?password=secret",
        ] {
            let fault = address_fault("hosts", text).expect("it is refused");
            assert!(!fault.contains("secret"), "{fault}");
        }
        let fault = address_fault("hosts", "h:0").expect("it is refused");
        assert_eq!(fault, "`hosts` has \"h:0\", which is no host:port");
        assert_eq!(address_fault("hosts", "h:1"), None);
    }
}
