//! Tests of both forms of connection strings, and of the errors in them.

use super::*;

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
        // May be the rest of a password with a space in it, so it is not shown.
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
        // A value that no restricted parameter accepts.
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
        let methods = parse(&format!("user=u require_auth='{list}'"))
            .require_auth
            .unwrap_or_default();
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
fn no_output_contains_the_password() {
    let info = parse("postgres://me:hunter2@a,b:1/app?sslmode=require&require_auth=md5");
    assert_eq!(
        info.redacted(),
        "host=a,b port=5432,1 user=me dbname=app sslmode=require require_auth=md5"
    );
    assert_eq!(
        format!("{info:?}"),
        format!("ConnInfo({}; password given)", info.redacted())
    );
    // Errors about passwords that should have been quoted or encoded.
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
