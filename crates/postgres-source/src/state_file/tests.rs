use tempfile::TempDir;

use super::*;

fn position() -> Position {
    Position {
        system_id: "7431234567890123456".into(),
        timeline: 3,
        database: "an \"odd\" näme".into(),
        slot: "walrelay".into(),
        confirmed: "16/B374D848".parse().unwrap(),
        sink_cluster: None,
    }
}

fn dir() -> (TempDir, PathBuf) {
    let dir = TempDir::with_prefix("walrelay-state-").unwrap();
    let path = dir.path().join("state");
    (dir, path)
}

#[test]
fn what_was_written_is_read() {
    let (dir, path) = dir();
    assert_eq!(read(&path).unwrap(), None);
    write(&path, &position()).unwrap();
    assert_eq!(read(&path).unwrap(), Some(position()));
    let later = Position {
        confirmed: Lsn::new(u64::MAX),
        ..position()
    };
    write(&path, &later).unwrap();
    assert_eq!(read(&path).unwrap(), Some(later.clone()));
    let clustered = Position {
        sink_cluster: Some("a \"cluster\"".to_owned()),
        ..later
    };
    write(&path, &clustered).unwrap();
    assert_eq!(read(&path).unwrap(), Some(clustered));
    let files: Vec<_> = fs::read_dir(dir.path()).unwrap().collect();
    assert_eq!(files.len(), 1, "only the file itself remains: {files:?}");
}

#[test]
fn the_text_is_readable_and_its_checksum_verifiable() {
    let text = position().text();
    for line in [
        "version = 1\n",
        "system_identifier = \"7431234567890123456\"\n",
        "timeline = 3\n",
        "slot = \"walrelay\"\n",
        "confirmed = \"16/B374D848\"\n",
    ] {
        assert!(text.contains(line), "{text}");
    }
    // As `head -n -1 state | sha256sum` prints it.
    assert_eq!(
        checksum("abc"),
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    );
}

#[test]
fn a_torn_or_changed_file_is_no_position() {
    let (_dir, path) = dir();
    let text = position().text();
    for cut in 0..text.len() {
        fs::write(&path, &text.as_bytes()[..cut]).unwrap();
        let error = read(&path).unwrap_err();
        assert!(
            matches!(error, StateFileError::Broken { .. }),
            "cut at {cut}: {error}"
        );
    }
    for at in 0..text.len() {
        let mut bytes = text.clone().into_bytes();
        bytes[at] ^= 1;
        fs::write(&path, &bytes).unwrap();
        assert!(read(&path).is_err(), "changed at {at}");
    }
    fs::write(&path, format!("{text}{text}")).unwrap();
    assert!(read(&path).is_err(), "twice");
}

/// The files as walrelay 0.1 wrote them. They stay as they are: a later version reads them, too.
#[test]
fn the_files_of_the_first_release_are_read() {
    let (_dir, path) = dir();
    for (text, cluster) in [
        (include_str!("formats/state-0.1"), None),
        (
            include_str!("formats/state-0.1-cluster"),
            Some("5L6g3nShT-eMCtK--X86sw".to_owned()),
        ),
    ] {
        fs::write(&path, text).unwrap();
        let expected = Position {
            database: "app".into(),
            sink_cluster: cluster,
            ..position()
        };
        assert_eq!(read(&path).unwrap(), Some(expected));
    }
}

#[test]
fn the_error_names_another_version() {
    let (_dir, path) = dir();
    fs::write(&path, with_checksum("version = 3\nnews = true\n".into())).unwrap();
    let error = read(&path).unwrap_err();
    assert!(
        matches!(error, StateFileError::Version { found: Some(3), .. }),
        "{error}"
    );
    assert!(error.to_string().contains("version 3"), "{error}");
    assert!(
        error.remedy().contains("a newer walrelay"),
        "{}",
        error.remedy()
    );
    // The checksum matches, but a key is unknown, missing or wrong.
    let (body, _) = position()
        .text()
        .rsplit_once(CHECKSUM)
        .map(|(body, rest)| (body.to_owned(), rest.to_owned()))
        .unwrap();
    for strange in [
        format!("{body}more = 1\n"),
        body.replace("timeline = 3\n", ""),
        body.replace("16/B374D848", "16"),
    ] {
        fs::write(&path, with_checksum(strange)).unwrap();
        let error = read(&path).unwrap_err();
        assert!(matches!(error, StateFileError::Broken { .. }), "{error}");
    }
}

#[test]
fn an_impossible_path_is_an_error_of_the_configuration() {
    let (dir, path) = dir();
    let nowhere = dir.path().join("nowhere").join("state");
    assert_eq!(read(&nowhere).unwrap(), None);
    let below_a_file = path.join("state");
    fs::write(&path, "").unwrap();
    // A directory at the file's path.
    let directory = dir.path().join("directory");
    fs::create_dir(&directory).unwrap();
    for wrong in [&nowhere, &below_a_file, &directory] {
        let error = write(wrong, &position()).unwrap_err();
        assert!(matches!(error, StateFileError::Write { .. }), "{error}");
        assert_eq!(
            error.disposition(),
            Disposition::Configuration,
            "{wrong:?}: {error:?}"
        );
        assert!(!error.remedy().is_empty());
    }
    let full = StateFileError::Write {
        path,
        source: io::Error::from(io::ErrorKind::StorageFull),
    };
    assert_eq!(full.disposition(), Disposition::Retryable);
}

/// Opening a FIFO waits for its other end, and a device such as `/dev/zero` has no end.
#[test]
fn a_fifo_or_a_device_is_an_error_and_no_wait() {
    let (dir, path) = dir();
    let fifo = |path: &Path| {
        let made = std::process::Command::new("mkfifo").arg(path).status();
        assert!(made.expect("mkfifo runs").success());
    };
    let fifo_path = dir.path().join("fifo");
    fifo(&fifo_path);
    for special in [&fifo_path, Path::new("/dev/zero")] {
        let errors = [
            read(special).unwrap_err(),
            write(special, &position()).unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.disposition(), Disposition::Configuration, "{error:?}");
            assert!(
                error.io().is_some_and(|io| io.contains("a FIFO")),
                "{error:?}"
            );
        }
    }
    // In the place of the file that is written first.
    fifo(&new_file(&path));
    for error in [
        write(&path, &position()).unwrap_err(),
        check_writable(&path).unwrap_err(),
    ] {
        assert!(
            error.io().is_some_and(|io| io.contains("a FIFO")),
            "{error:?}"
        );
    }
}
