//! Property tests: both forms are formatted and parsed back, and no text makes the parser panic.

use super::*;

/// Collects all fields in a form that can be compared.
fn parts(info: &ConnInfo) -> impl PartialEq + fmt::Debug {
    (
        (
            info.hosts.clone(),
            info.user.clone(),
            password(info).map(str::to_owned),
            info.dbname.clone(),
            info.application_name.clone(),
            info.options.clone(),
        ),
        (
            info.ssl_mode,
            info.ssl_root_cert.clone(),
            info.ssl_cert.clone(),
            info.ssl_key.clone(),
            info.passfile.clone(),
        ),
        (
            info.channel_binding,
            info.require_auth,
            info.target_session_attrs,
            info.connect_timeout,
            info.keepalives,
        ),
    )
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z]{1,8}", "[^\0]{1,12}", "[ '\\\\%@:/?&=,#\n\té]{1,8}",]
}

fn any_host() -> impl Strategy<Value = Host> {
    let ip = prop_oneof![
        any::<[u8; 4]>().prop_map(IpAddr::from),
        any::<[u8; 16]>().prop_map(IpAddr::from),
    ];
    let tcp = ("[a-z_][a-zA-Z0-9_.-]{0,9}", prop::option::of(ip.clone()))
        .prop_map(|(name, hostaddr)| (HostAddr::Tcp(name), hostaddr));
    let address = prop_oneof![
        3 => tcp,
        1 => ip.prop_map(|ip| (HostAddr::Tcp(ip.to_string()), None)),
        1 => "/[^\0,]{0,10}".prop_map(|path| (HostAddr::Unix(path.into()), None)),
    ];
    (address, 1..=u16::MAX).prop_map(|((address, hostaddr), port)| Host {
        address,
        hostaddr,
        port,
    })
}

fn spelled<T: Spelled + fmt::Debug>() -> impl Strategy<Value = T> {
    prop::sample::select(T::SPELLINGS).prop_map(|(_, value)| value)
}

fn any_info() -> impl Strategy<Value = ConnInfo> {
    let file = || prop::option::of(text().prop_map(PathBuf::from));
    let count = 1..=i32::MAX as u32;
    let seconds = move || count.clone().prop_map(|s| Duration::from_secs(s.into()));
    let keepalives =
        (seconds(), seconds(), 1..=i32::MAX as u32).prop_map(|(idle, interval, retries)| {
            Keepalives {
                idle,
                interval,
                retries,
            }
        });
    let methods = (1_u8..16).prop_map(|bits| AuthMethods {
        scram: bits & 1 != 0,
        md5: bits & 2 != 0,
        cleartext: bits & 4 != 0,
        none: bits & 8 != 0,
    });
    let methods = prop::option::of(methods);
    let names = (
        prop::collection::vec(any_host(), 1..4),
        text(),
        prop::option::of(text()),
        text(),
        text(),
        prop::option::of(text()),
    );
    let security = (
        spelled::<SslMode>(),
        file(),
        prop::option::of((text(), text())),
        spelled::<ChannelBinding>(),
        methods,
    );
    let rest = (
        spelled::<TargetSessionAttrs>(),
        seconds(),
        prop::option::of(keepalives),
        file(),
    );
    (names, security, rest).prop_map(|(names, security, rest)| {
        let (hosts, user, password, dbname, application_name, options) = names;
        let (ssl_mode, root, pair, channel_binding, require_auth) = security;
        let (target_session_attrs, connect_timeout, keepalives, passfile) = rest;
        let bindable =
            ssl_mode != SslMode::Disable && require_auth.is_none_or(|methods| methods.scram);
        ConnInfo {
            hosts,
            user,
            password: password.map(Into::into),
            dbname,
            ssl_mode,
            ssl_root_cert: root
                .filter(|path| path != Path::new("system"))
                .map(RootCert::File),
            ssl_cert: pair.as_ref().map(|(cert, _)| cert.into()),
            ssl_key: pair.as_ref().map(|(_, key)| key.into()),
            channel_binding: if bindable {
                channel_binding
            } else {
                ChannelBinding::Prefer
            },
            require_auth,
            target_session_attrs,
            connect_timeout,
            keepalives,
            application_name,
            options,
            passfile,
        }
    })
}

/// Percent-encodes every byte that is not a letter, a digit, a dot or a hyphen.
fn encode(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || byte == b'.' || byte == b'-' {
            encoded.push(char::from(byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

/// Formats a URL; parameters without a place of their own go into the query.
fn to_url(info: &ConnInfo) -> String {
    let hosts: Vec<String> = info
        .hosts
        .iter()
        .map(|host| match &host.address {
            HostAddr::Tcp(name) if name.contains(':') => format!("[{name}]:{}", host.port),
            HostAddr::Tcp(name) => format!("{name}:{}", host.port),
            HostAddr::Unix(path) => {
                format!("{}:{}", encode(path.to_str().expect("text")), host.port)
            }
        })
        .collect();
    let password = password(info).map_or_else(String::new, |word| format!(":{}", encode(word)));
    let mut url = format!(
        "postgresql://{}{password}@{}/{}",
        encode(&info.user),
        hosts.join(","),
        encode(&info.dbname)
    );
    // The values of the query are taken from the keyword form, which another test checks.
    let settings = split::split(&info.redacted()).expect("its own form");
    let mut separator = '?';
    for name in parameters::names() {
        if let Some(value) = settings.get(name)
            && !["host", "port", "user", "dbname"].contains(&name)
        {
            let _ = write!(url, "{separator}{name}={}", encode(value));
            separator = '&';
        }
    }
    url
}

proptest! {
    #[test]
    fn the_keyword_form_is_read_back(info in any_info()) {
        let mut text = info.redacted();
        if let Some(password) = password(&info) {
            let escaped = password.replace('\\', "\\\\").replace('\'', "\\'");
            text = format!("password = '{escaped}' {text}");
        }
        let again: ConnInfo = text.parse().map_err(|error| {
            TestCaseError::fail(format!("{text:?}: {error}"))
        })?;
        prop_assert_eq!(parts(&again), parts(&info));
    }

    #[test]
    fn the_url_form_is_read_back(info in any_info()) {
        let text = to_url(&info);
        let again: ConnInfo = text.parse().map_err(|error| {
            TestCaseError::fail(format!("{text:?}: {error}"))
        })?;
        prop_assert_eq!(parts(&again), parts(&info));
    }

    #[test]
    fn no_text_makes_it_panic(
        text in prop_oneof![
            any::<String>(),
            "[a-z=' \\\\\0%@:/?&,\\[\\]é]{0,40}",
            "postgres://[a-z%0-9@:/?&=,\\[\\]é ]{0,40}",
            "user=u [a-z=' \\\\%é]{0,40}",
        ],
    ) {
        if let Ok(info) = text.parse::<ConnInfo>() {
            let again = parse(&info.redacted());
            prop_assert_eq!(again.redacted(), info.redacted());
        }
    }

    #[test]
    fn no_password_file_makes_it_panic(file in prop::collection::vec(
        prop_oneof![any::<u8>(), prop::sample::select(&b":*\\\nme"[..])], 0..60,
    )) {
        let _ = look_up(&file, "host=m user=e");
    }
}
