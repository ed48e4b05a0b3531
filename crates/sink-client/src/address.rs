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
    (!host.is_empty() && port > 0).then(|| (host.to_owned(), port))
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
        ] {
            assert_eq!(host_and_port(wrong, 6379), None, "{wrong}");
        }
    }
}
