//! The parameters of libpq, and what is done with those that mean nothing here.

/// Every parameter of libpq 18, in three groups: those that [`build`](super::build) reads, those
/// without a meaning here (nothing speaks GSSAPI), and those that [`restriction`] restricts.
const NAMES: &str = "
    host hostaddr port user password passfile dbname options application_name
    fallback_application_name connect_timeout keepalives keepalives_idle keepalives_interval
    keepalives_count sslmode sslrootcert sslcert sslkey channel_binding require_auth
    target_session_attrs

    krbsrvname gsslib gssdelegation

    client_encoding gssencmode replication load_balance_hosts tcp_user_timeout sslnegotiation
    sslcompression sslsni sslcertmode ssl_min_protocol_version ssl_max_protocol_version
    min_protocol_version max_protocol_version service servicefile sslpassword sslcrl sslcrldir
    sslkeylogfile requirepeer scram_client_key scram_server_key oauth_issuer oauth_client_id
    oauth_client_secret oauth_scope";

/// Every parameter of libpq 18.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    NAMES.split_whitespace()
}

/// The only values of a parameter that describe what happens anyway, and why it takes no others.
/// A parameter without such a value would be obeyed only in appearance.
pub(super) fn restriction(name: &str) -> Option<(&'static [&'static str], &'static str)> {
    let values: &[&str] = match name {
        "client_encoding" => &["UTF8", "UTF-8"],
        "gssencmode" => &["disable", "prefer"],
        "replication" => &["database"],
        "load_balance_hosts" => &["disable"],
        "tcp_user_timeout" | "sslcompression" => &["0"],
        "sslnegotiation" => &["postgres"],
        "sslsni" => &["1"],
        "sslcertmode" => &["allow"],
        "ssl_min_protocol_version" => &["TLSv1", "TLSv1.1", "TLSv1.2"],
        "ssl_max_protocol_version" => &["TLSv1.3"],
        "min_protocol_version" => &["3.0"],
        "max_protocol_version" => &["3.0", "latest"],
        _ => &[],
    };
    let reason = match name {
        "client_encoding" => "text is always exchanged in UTF8",
        "gssencmode" => "GSSAPI is not supported; encrypt by sslmode",
        "replication" => {
            "logical replication needs replication=database, which is always sent; leave it out"
        }
        "load_balance_hosts" => "hosts are tried in the order given",
        "tcp_user_timeout" => {
            "not supported; use keepalives_idle, keepalives_interval and keepalives_count"
        }
        "sslnegotiation" => "encryption is always negotiated in Postgres' way; leave it out",
        "sslcompression" => "compression of TLS is insecure and not supported",
        "sslsni" => "the host's name is always sent; leave it out",
        "sslcertmode" => "the certificate in sslcert is sent when the server asks; leave it out",
        "ssl_min_protocol_version" => {
            "TLS 1.2 and 1.3 are offered; a higher minimum must be set on the server"
        }
        "ssl_max_protocol_version" => {
            "TLS 1.2 and 1.3 are offered; a lower maximum must be set on the server"
        }
        "min_protocol_version" | "max_protocol_version" => "protocol 3.0 is spoken; leave it out",
        "service" | "servicefile" => {
            "connection service files are not read; write the parameters out"
        }
        "sslpassword" => {
            "encrypted private keys are not supported; decrypt the key and protect it by its permissions"
        }
        "sslcrl" | "sslcrldir" => "revocation lists are not supported",
        "sslkeylogfile" => "the keys of a connection are not written down",
        "requirepeer" => "the owner of a unix socket is not checked",
        "scram_client_key" | "scram_server_key" => "give a password or a password file",
        "oauth_issuer" | "oauth_client_id" | "oauth_client_secret" | "oauth_scope" => {
            "OAuth is not supported"
        }
        _ => return None,
    };
    Some((values, reason))
}

/// The parameter whose name is at most two typing errors away.
pub(super) fn nearest(name: &str) -> Option<&'static str> {
    let name = name.to_ascii_lowercase();
    names()
        .map(|known| (strsim::damerau_levenshtein(&name, known), known))
        .filter(|(distance, known)| *distance <= 2.min(known.len() / 2))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}
