use std::fmt::{self, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proptest::prelude::*;
use secrecy::ExposeSecret;

use super::info::Spelled;
use super::*;

fn parse(text: &str) -> ConnInfo {
    text.parse()
        .unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn refused(text: &str) -> ConnInfoError {
    match text.parse::<ConnInfo>() {
        Ok(info) => panic!("{text} was read as {info:?}"),
        Err(error) => error,
    }
}

fn password(info: &ConnInfo) -> Option<&str> {
    info.password.as_ref().map(ExposeSecret::expose_secret)
}

fn tcp(name: &str, port: u16) -> Host {
    Host {
        address: HostAddr::Tcp(name.to_owned()),
        hostaddr: None,
        port,
    }
}

fn unix(directory: &str, port: u16) -> Host {
    Host {
        address: HostAddr::Unix(directory.into()),
        hostaddr: None,
        port,
    }
}

#[test]
fn urls() {
    let info = parse("postgres://me:s%3Acr%40t@db:6432/app?sslmode=verify-full&application_name=x");
    assert_eq!(info.user, "me");
    assert_eq!(password(&info), Some("s:cr@t"));
    assert_eq!(info.hosts, [tcp("db", 6432)]);
    assert_eq!(info.dbname, "app");
    assert_eq!(info.ssl_mode, SslMode::VerifyFull);
    assert_eq!(info.application_name, "x");

    let info = parse("  postgresql://me@db\n");
    assert_eq!(info.hosts, [tcp("db", 5432)]);
    assert_eq!(info.dbname, "me", "the role's name");
    assert_eq!(password(&info), None);
    assert_eq!(info.ssl_mode, SslMode::Prefer);
    assert_eq!(info.connect_timeout, Duration::from_secs(10));
    assert_eq!(info.keepalives, Some(Keepalives::default()));
    assert_eq!(info.application_name, "walrelay");

    assert_eq!(parse("postgres://me@db?").hosts, [tcp("db", 5432)]);

    // A colon in a password need not be encoded, nor an @ after the authority.
    let info = parse("postgres://me:a:b@db/c?options=x@y");
    assert_eq!(password(&info), Some("a:b"));
    assert_eq!(info.options.as_deref(), Some("x@y"));
    assert_eq!(
        parse("postgres://db/?user=me&ssl=true").ssl_mode,
        SslMode::Require
    );
}

#[test]
fn lists_of_hosts() {
    for (text, hosts) in [
        (
            "postgres://me@a,b:1,[::1]:2,[fe80::2]/",
            vec![
                tcp("a", 5432),
                tcp("b", 1),
                tcp("::1", 2),
                tcp("fe80::2", 5432),
            ],
        ),
        ("host=a,b port=1,2 user=me", vec![tcp("a", 1), tcp("b", 2)]),
        ("host=a,b port=7 user=me", vec![tcp("a", 7), tcp("b", 7)]),
        (
            "host=a,::1 port=7, user=me",
            vec![tcp("a", 7), tcp("::1", 5432)],
        ),
        (
            "postgres://me@%2Ftmp,db:1/x",
            vec![unix("/tmp", 5432), tcp("db", 1)],
        ),
        (
            "postgres://me@:6000/x?host=/run/pg",
            vec![unix("/run/pg", 6000)],
        ),
        ("user=me host='/my dir'", vec![unix("/my dir", 5432)]),
        (
            "user=me host=db,db2 hostaddr=10.0.0.1,::1",
            vec![
                Host {
                    hostaddr: Some(IpAddr::from([10, 0, 0, 1])),
                    ..tcp("db", 5432)
                },
                Host {
                    hostaddr: "::1".parse().ok(),
                    ..tcp("db2", 5432)
                },
            ],
        ),
        (
            "user=me hostaddr=10.0.0.1",
            vec![Host {
                hostaddr: Some(IpAddr::from([10, 0, 0, 1])),
                ..tcp("10.0.0.1", 5432)
            }],
        ),
    ] {
        assert_eq!(parse(text).hosts, hosts, "{text}");
    }
    let default = &parse("user=me").hosts[0].address;
    if Path::new(DEFAULT_SOCKET_DIR).is_dir() {
        assert_eq!(*default, HostAddr::Unix(DEFAULT_SOCKET_DIR.into()));
    } else {
        assert_eq!(*default, HostAddr::Tcp("localhost".to_owned()));
    }
}

#[test]
fn targets_and_names_of_hosts() {
    let host = tcp("db", 1);
    assert_eq!(host.tcp_target(), Some(("db".to_owned(), 1)));
    assert_eq!(host.socket_path(), None);
    assert_eq!(host.to_string(), "db:1");
    assert_eq!(tcp("::1", 1).to_string(), "[::1]:1");
    let host = unix("/tmp", 7);
    assert_eq!(host.tcp_target(), None);
    assert_eq!(host.socket_path(), Some("/tmp/.s.PGSQL.7".into()));
    assert_eq!(host.to_string(), "/tmp/.s.PGSQL.7");
    let host = &parse("user=u host=db hostaddr=10.0.0.1").hosts[0];
    assert_eq!(host.tcp_target(), Some(("10.0.0.1".to_owned(), 5432)));
    assert_eq!(host.to_string(), "db:5432 (10.0.0.1)");
    let host = &parse("user=u hostaddr=10.0.0.1").hosts[0];
    assert_eq!(host.to_string(), "10.0.0.1:5432");
}

#[test]
fn keyword_form() {
    let info = parse("host = db  user= 'a b'\tpassword='it\\'s \\\\ me' dbname=x\\ y options=''");
    assert_eq!(info.user, "a b");
    assert_eq!(password(&info), Some("it's \\ me"));
    assert_eq!(info.dbname, "x y");
    assert_eq!(info.options, None, "empty is not given");
    let info = parse(
        "user=u connect_timeout=3 keepalives_idle=5 keepalives_count=0 \
         fallback_application_name=f passfile=/p sslcert=/c sslkey=/k sslrootcert=/r \
         target_session_attrs=primary channel_binding=require",
    );
    assert_eq!(info.connect_timeout, Duration::from_secs(3));
    let expected = Keepalives {
        idle: Duration::from_secs(5),
        ..Keepalives::default()
    };
    assert_eq!(info.keepalives, Some(expected));
    assert_eq!(info.application_name, "f");
    assert_eq!(info.passfile, Some("/p".into()));
    assert_eq!(info.ssl_cert, Some("/c".into()));
    assert_eq!(info.ssl_key, Some("/k".into()));
    assert_eq!(info.ssl_root_cert, Some(RootCert::File("/r".into())));
    assert_eq!(info.target_session_attrs, TargetSessionAttrs::Primary);
    assert_eq!(info.channel_binding, ChannelBinding::Require);
    assert_eq!(parse("user=u keepalives=0").keepalives, None);
    let info = parse("user=u fallback_application_name=f application_name=a");
    assert_eq!(info.application_name, "a");
}

#[test]
fn syntax_errors_say_where() {
    for (text, at) in [
        ("mydb", 4),
        ("user=u mydb", 11),
        ("user=u =x", 7),
        ("user=u password='abc", 16),
        ("user=u password='it''s'", 20),
        ("user=u\0", 6),
        ("mysql://u@h/d?a=b", 0),
        ("postgres://u@h/d e", 16),
        ("postgres://u%4@h/", 12),
        ("postgres://u%zz@h/", 12),
        ("postgres://u@h/%00", 15),
        ("postgres://u@h/%ff", 15),
        ("postgres://u@[::1/x", 13),
        ("postgres://u@a,[]/x", 15),
        ("postgres://u@[::1]x/x", 18),
        ("postgres://u@h/d?sslmode", 17),
        ("postgres://u:p?dbname=x@h/d", 23),
        ("postgres://u@h/d?options=a=b", 26),
        (" postgres://u@h/d?options=%", 26),
    ] {
        match text.parse::<ConnInfo>() {
            Err(
                ConnInfoError::Syntax { offset, .. }
                | ConnInfoError::UnknownParameter { offset, .. },
            ) => assert_eq!(offset, at, "{text}"),
            other => panic!("{text:?}: {other:?}"),
        }
    }
}

#[test]
fn unknown_parameters_are_named_with_the_nearest() {
    for (text, message) in [
        (
            "user=u sslmod=require",
            "connection string, byte 7: unknown parameter sslmod; did you mean sslmode?",
        ),
        (
            "postgres://u@h/?aplication_name=x",
            "connection string, byte 16: unknown parameter aplication_name; did you mean \
             application_name?",
        ),
        (
            "User=u",
            "connection string, byte 0: unknown parameter User; did you mean user?",
        ),
        (
            "user=u colour=red",
            "connection string, byte 7: unknown parameter colour",
        ),
        // Perhaps the rest of a password with a space in it.
        (
            "user=u password=a b$c=d",
            "connection string, byte 18: unknown parameter",
        ),
    ] {
        assert_eq!(refused(text).to_string(), message);
    }
    assert!(matches!(
        refused("user=u user=v"),
        ConnInfoError::Duplicate {
            name: "user",
            offset: 7
        }
    ));
    assert!(matches!(
        refused("postgres://h/?user=u&host=other"),
        ConnInfoError::Duplicate { name: "host", .. }
    ));
}

#[test]
fn wrong_values_are_refused() {
    for (text, part) in [
        ("host=h", "no user"),
        ("user=u port=0", "port: expected 1 to 65535"),
        ("user=u port=65536", "port"),
        ("user=u port=+1", "port"),
        (
            "user=u host=a,b port=1,2,3",
            "2 × host does not go with 3 × port",
        ),
        (
            "user=u host=a,b hostaddr=::1",
            "2 × host does not go with 1 × hostaddr",
        ),
        (
            "user=u hostaddr=::1,::2 port=1,2,3",
            "2 × hostaddr does not go with 3 × port",
        ),
        ("user=u hostaddr=db", "hostaddr: expected IP"),
        ("user=u host=/tmp hostaddr=::1", "hostaddr"),
        ("user=u host=@abstract", "abstract"),
        ("user=u host=[::1]", "host: expected"),
        ("postgres://u:p@ss@h/d", "a second @"),
        ("postgres://u:p@ss/w@h:1/d", "a second @"),
        ("postgres://u:p/ss@h/d", "port: expected"),
        ("user=u sslmode=allow", "sslmode: allow would try without"),
        (
            "user=u sslmode=verify",
            "sslmode=\"verify\": expected disable, prefer",
        ),
        ("user=u channel_binding=maybe", "channel_binding=\"maybe\""),
        (
            "user=u channel_binding=require sslmode=disable",
            "nothing to bind to",
        ),
        (
            "user=u channel_binding=require require_auth=md5",
            "excludes scram",
        ),
        ("user=u target_session_attrs=master", "read-write"),
        (
            "user=u connect_timeout=0",
            "connect_timeout: expected whole seconds",
        ),
        ("user=u connect_timeout=-1", "connect_timeout"),
        ("user=u connect_timeout=2147483648", "connect_timeout"),
        ("user=u keepalives=yes", "keepalives: expected 0 or 1"),
        ("user=u keepalives_idle=a", "keepalives_idle"),
        ("user=u sslcert=/c", "sslcert is given without sslkey"),
        ("user=u sslkey=/c", "sslkey is given without sslcert"),
        ("user=u sslrootcert=system sslmode=verify-ca", "verify-full"),
        ("user=u sslrootcert=system sslmode=prefer", "verify-full"),
        ("user=u service=x", "service files"),
        ("user=u sslcrl=/x", "revocation"),
        ("user=u gssencmode=require", "GSSAPI"),
        ("user=u client_encoding=LATIN1", "UTF8"),
        ("user=u replication=true", "replication=database"),
        ("user=u load_balance_hosts=random", "order given"),
        ("user=u sslnegotiation=direct", "negotiated"),
    ] {
        let message = refused(text).to_string();
        assert!(message.contains(part), "{text}: {message}");
    }
    parse(
        "user=u client_encoding=utf-8 gssencmode=prefer krbsrvname=postgres gsslib=gssapi \
         replication=database sslcompression=0 sslsni=1 load_balance_hosts=disable \
         ssl_min_protocol_version=TLSv1.2 sslnegotiation=postgres sslcrl='' gssdelegation=1",
    );
    let info = parse("user=u sslrootcert=system");
    assert_eq!(info.ssl_root_cert, Some(RootCert::System));
    assert_eq!(info.ssl_mode, SslMode::VerifyFull);
}

#[test]
fn every_parameter_that_is_known_has_a_meaning_or_a_reason() {
    for name in parameters::names() {
        // A value that none of the restricted ones has.
        let text = format!("user=u {name}=9z");
        match text.parse::<ConnInfo>() {
            Ok(_) | Err(ConnInfoError::Duplicate { name: "user", .. }) => {}
            Err(ConnInfoError::HalfKeyPair { given, .. }) => assert_eq!(given, name),
            Err(
                ConnInfoError::Unsupported { name: at, .. }
                | ConnInfoError::InvalidValue { name: at, .. },
            ) => assert_eq!(at, name),
            Err(other) => panic!("{name}: {other}"),
        }
    }
}

#[test]
fn authentication_methods() {
    for (list, scram, md5, cleartext, none) in [
        ("", true, false, false, true),
        ("scram-sha-256", true, false, false, false),
        ("md5", false, true, false, false),
        ("password,scram-sha-256", true, false, true, false),
        ("none", false, false, false, true),
        ("!none", true, false, false, false),
        ("!password,!md5", true, false, false, true),
        ("!scram-sha-256,!gss", false, false, false, true),
    ] {
        let methods = parse(&format!("user=u require_auth='{list}'")).require_auth;
        let expected = AuthMethods {
            scram,
            md5,
            cleartext,
            none,
        };
        assert_eq!(methods, expected, "{list}");
    }
    for (list, part) in [
        ("md5,!none", "either all"),
        ("!none,md5", "either all"),
        ("md5,md5", "once"),
        ("scram", "list of"),
        ("md5,", "list of"),
        ("gss", "not supported"),
        ("!none,!scram-sha-256", "at least one"),
    ] {
        let message = refused(&format!("user=u require_auth={list}")).to_string();
        assert!(message.contains(part), "{list}: {message}");
    }
}

#[test]
fn nothing_printed_holds_the_password() {
    let info = parse("postgres://me:hunter2@a,b:1/app?sslmode=require&require_auth=md5");
    assert_eq!(
        info.redacted(),
        "host=a,b port=5432,1 user=me dbname=app sslmode=require require_auth=md5"
    );
    assert_eq!(
        format!("{info:?}"),
        format!("ConnInfo({}; password given)", info.redacted())
    );
    // Errors of passwords that should have been quoted or encoded.
    for text in [
        "postgres://me:hunter2/x@db/app",
        "postgres://me:hunter2?x@db/app",
        "postgres://me:hunter2@x@db/app",
        "postgres://me:hunter2%@db/app",
        "postgres://me:hun ter2@db/app",
        "user=u password='hunter2''x' dbname=d",
        "user=u password='hunter2",
        "user=u password=x hunter2! dbname=d",
    ] {
        let error = refused(text);
        for shown in [error.to_string(), format!("{error:?}")] {
            assert!(!shown.contains("hun"), "{text}: {shown}");
        }
    }
}

// The password file.

fn look_up(file: &[u8], connection: &str) -> Result<Option<String>, ConnInfoError> {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("pgpass");
    std::fs::write(&path, file).expect("written");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("mode");
    let mut info = parse(connection);
    info.passfile = Some(path);
    let found = info.password_for(&info.hosts[0])?;
    Ok(found.map(|password| password.expose_secret().to_owned()))
}

#[test]
fn password_files_are_read_as_libpq_reads_them() {
    let me = "host=db user=me dbname=app";
    for (file, connection, expected) in [
        ("db:5432:app:me:secret\n", me, Some("secret")),
        ("db:5432:app:me:secret", me, Some("secret")),
        ("db:5432:app:me:secret\r\n", me, Some("secret")),
        ("*:*:*:*:any", me, Some("any")),
        ("*:*:*:you:1\n*:*:app:me:2\n*:*:*:me:3", me, Some("2")),
        ("#db:5432:app:me:no\ndb:*:*:*:yes", me, Some("yes")),
        ("db:5433:app:me:no", me, None),
        ("db:5432:app:mee:no", me, None),
        ("db:5432:app:m:no", me, None),
        ("d:5432:app:me:no", me, None),
        ("db:5432:app:me", me, None),
        ("*x:5432:app:me:no", me, None),
        ("", me, None),
        ("\n\n:::::", me, None),
        ("db:5432:app:me:", me, None),
        // Escapes, and what comes after an unescaped colon.
        ("*:*:*:*:a\\:b\\\\c\\d", me, Some("a:b\\cd")),
        ("*:*:*:*:a:b", me, Some("a")),
        ("*:*:*:*:a\\", me, Some("a\\")),
        ("\\d\\b:*:*:*:x", me, Some("x")),
        ("\\:\\:1:*:*:*:x", "host=::1 user=me", Some("x")),
        ("::1:*:*:*:x", "host=::1 user=me", None),
        ("*:*:a\\\\b:*:x", "host=h user=me dbname=a\\\\b", Some("x")),
        // The socket in the default directory is localhost's, others are named by theirs.
        (
            "localhost:*:*:*:x",
            "host=/var/run/postgresql user=me",
            Some("x"),
        ),
        ("localhost:*:*:*:x", "host=/elsewhere user=me", None),
        ("/elsewhere:*:*:*:x", "host=/elsewhere user=me", Some("x")),
        ("10.0.0.1:*:*:*:x", "hostaddr=10.0.0.1 user=me", Some("x")),
        // The connection string comes first.
        ("*:*:*:*:file", "host=db user=me password=own", Some("own")),
    ] {
        let found = look_up(file.as_bytes(), connection).expect("readable");
        assert_eq!(found.as_deref(), expected, "{file:?} {connection}");
    }
    assert!(matches!(
        look_up(b"*:*:*:you:\xFF\n*:*:*:me:\xFF", me),
        Err(ConnInfoError::PassfileEncoding { line: 2, .. })
    ));
}

#[test]
fn password_files_of_others_are_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("pgpass");
    std::fs::write(&path, "*:*:*:*:x").expect("written");
    let with = |path: &Path| {
        let info = parse(&format!("host=db user=me passfile={}", path.display()));
        info.password_for(&info.hosts[0])
    };
    for mode in [0o640, 0o604, 0o620, 0o601] {
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("mode");
        let message = with(&path).expect_err("refused").to_string();
        assert!(message.contains(&path.display().to_string()), "{message}");
        assert!(message.contains(&format!("{mode:04o}")), "{message}");
    }
    for unreadable in [dir.path(), &dir.path().join("absent")] {
        assert!(matches!(
            with(unreadable),
            Err(ConnInfoError::Passfile { .. })
        ));
    }
    let info = parse("host=db user=me");
    assert!(matches!(info.password_for(&info.hosts[0]), Ok(None)));
}

// Both forms, there and back.

/// Everything that can be compared.
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
        let bindable = ssl_mode != SslMode::Disable && require_auth.scram;
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

/// Every byte that is not plain percent-encoded.
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

/// As a URL: what has a place of its own there stands there, the rest in the query.
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
    // The values are those of the keyword form, which the other half of the test checks.
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
