//! Tests of the password file.

use super::*;

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
        // Escapes, and the text after an unescaped colon.
        ("*:*:*:*:a\\:b\\\\c\\d", me, Some("a:b\\cd")),
        ("*:*:*:*:a:b", me, Some("a")),
        ("*:*:*:*:a\\", me, Some("a\\")),
        ("\\d\\b:*:*:*:x", me, Some("x")),
        ("\\:\\:1:*:*:*:x", "host=::1 user=me", Some("x")),
        ("::1:*:*:*:x", "host=::1 user=me", None),
        ("*:*:a\\\\b:*:x", "host=h user=me dbname=a\\\\b", Some("x")),
        // `localhost` matches the socket in the default directory; other sockets match by
        // directory.
        (
            "localhost:*:*:*:x",
            "host=/var/run/postgresql user=me",
            Some("x"),
        ),
        ("localhost:*:*:*:x", "host=/elsewhere user=me", None),
        ("/elsewhere:*:*:*:x", "host=/elsewhere user=me", Some("x")),
        ("10.0.0.1:*:*:*:x", "hostaddr=10.0.0.1 user=me", Some("x")),
        // A password in the connection string takes precedence.
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
