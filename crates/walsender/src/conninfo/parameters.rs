//! The parameters of libpq, and those of them that are refused.

/// The parameters of libpq 18 that [`build`](super::build) reads, and those that are ignored
/// because GSSAPI is not supported.
const ACCEPTED: &str = "
    host hostaddr port user password passfile dbname options application_name
    fallback_application_name connect_timeout keepalives keepalives_idle keepalives_interval
    keepalives_count sslmode sslrootcert sslcert sslkey channel_binding require_auth
    target_session_attrs

    krbsrvname gsslib gssdelegation";

macro_rules! restricted {
    ($($name:literal $($value:literal)* => $reason:literal;)*) => {
        &[$(($name, &[$($value),*], $reason)),*]
    };
}

/// All other parameters of libpq 18: name, accepted values, and why no other value is accepted. The
/// accepted values describe what happens anyway; a parameter without such a value is not supported.
pub(super) const RESTRICTED: &[(&str, &[&str], &str)] = restricted! {
    "client_encoding" "UTF8" "UTF-8" => "text is always exchanged in UTF8";
    "gssencmode" "disable" "prefer" => "GSSAPI is not supported; encrypt by sslmode";
    "replication" "database" =>
        "logical replication needs replication=database, which is always sent; leave it out";
    "load_balance_hosts" "disable" => "hosts are tried in the order given";
    "tcp_user_timeout" "0" =>
        "not supported; use keepalives_idle, keepalives_interval and keepalives_count";
    "sslnegotiation" "postgres" =>
        "encryption is always negotiated in Postgres' way; leave it out";
    "sslcompression" "0" => "compression of TLS is insecure and not supported";
    "sslsni" "1" => "the host's name is always sent; leave it out";
    "sslcertmode" "allow" =>
        "the certificate in sslcert is sent when the server asks; leave it out";
    "ssl_min_protocol_version" "TLSv1" "TLSv1.1" "TLSv1.2" =>
        "TLS 1.2 and 1.3 are offered; a higher minimum must be set on the server";
    "ssl_max_protocol_version" "TLSv1.3" =>
        "TLS 1.2 and 1.3 are offered; a lower maximum must be set on the server";
    "min_protocol_version" "3.0" => "protocol 3.0 is spoken; leave it out";
    "max_protocol_version" "3.0" "latest" => "protocol 3.0 is spoken; leave it out";
    "service" => "connection service files are not read; write the parameters out";
    "servicefile" => "connection service files are not read; write the parameters out";
    "sslpassword" =>
        "encrypted private keys are not supported; decrypt the key and protect it by its permissions";
    "sslcrl" => "revocation lists are not supported";
    "sslcrldir" => "revocation lists are not supported";
    "sslkeylogfile" => "the keys of a connection are not written down";
    "requirepeer" => "the owner of a unix socket is not checked";
    "scram_client_key" => "give a password or a password file";
    "scram_server_key" => "give a password or a password file";
    "oauth_issuer" => "OAuth is not supported";
    "oauth_client_id" => "OAuth is not supported";
    "oauth_client_secret" => "OAuth is not supported";
    "oauth_scope" => "OAuth is not supported";
};

/// Lists every parameter of libpq 18.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    let restricted = RESTRICTED.iter().map(|(name, ..)| *name);
    ACCEPTED.split_whitespace().chain(restricted)
}

/// Returns the parameter that `name` probably means, whatever its case.
pub(super) fn nearest(name: &str) -> Option<&'static str> {
    walrelay_failure::nearest(&name.to_ascii_lowercase(), names())
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn the_nearest_name_has_at_most_two_errors_and_fewer_than_signs() {
        for (name, wanted) in [
            ("sslmdoe", Some("sslmode")),
            ("PROT", Some("port")),
            ("usr", Some("user")),
            // Two errors are as many as the name has signs.
            ("us", None),
            ("", None),
            ("colour", None),
            // One error from each: the first in alphabetical order.
            ("sslcrt", Some("sslcert")),
        ] {
            assert_eq!(nearest(name), wanted, "{name}");
        }
    }
}
