use std::fs;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use walrelay_testkit::PATIENCE;

use super::*;

const NOW: Duration = Duration::from_secs(1_700_000_000);

fn jwt(claims: &str) -> String {
    let encode = |text: &str| URL_SAFE_NO_PAD.encode(text);
    format!("{}.{}.c2ln", encode(r#"{"alg":"RS256"}"#), encode(claims))
}

fn minutes(number: u64) -> Duration {
    Duration::from_secs(number * 60)
}

#[test]
fn a_jwt_has_an_expiry_and_a_subject() {
    let raw = jwt(r#"{"sub":"relay","exp":1700003600.5,"aud":["kafka"]}"#);
    let found = token(&raw, None, NOW).unwrap();
    assert_eq!(found.value, raw);
    assert_eq!(found.principal, "relay");
    assert_eq!(found.expires_at_ms, 1_700_003_600_500);
    assert_eq!(found.valid_for, Duration::from_millis(3_600_500));
    // The earlier of the two ends applies.
    let shorter = token(&raw, Some(minutes(5)), NOW).unwrap();
    assert_eq!(shorter.valid_for, minutes(5));
    let longer = token(&raw, Some(minutes(500)), NOW).unwrap();
    assert_eq!(longer.valid_for, found.valid_for);
}

#[test]
fn an_opaque_token_needs_a_lifetime() {
    for raw in ["opaque", "a.b.c", "a.b", "a.b.c.d", &jwt("{}"), &jwt("[]")] {
        let problem = token(raw, None, NOW).unwrap_err();
        assert!(matches!(problem, Problem::NoEnd), "{raw}: {problem}");
        let found = token(raw, Some(minutes(5)), NOW).unwrap();
        assert_eq!(found.valid_for, minutes(5));
        assert_eq!(found.expires_at_ms, 1_700_000_300_000);
        assert!(!found.principal.is_empty());
    }
}

#[test]
fn an_invalid_token_is_refused_and_not_shown() {
    for (raw, words) in [
        (String::new(), "nothing in it"),
        ("two hush".to_owned(), "no bearer token"),
        ("hush\nhush".to_owned(), "no bearer token"),
        ("hush\u{1}".to_owned(), "no bearer token"),
        (
            jwt(r#"{"exp":1699999940,"sub":"hush"}"#),
            "expired 60 s ago",
        ),
        (jwt(r#"{"exp":-5}"#), "expired"),
    ] {
        let problem = token(&raw, None, NOW).unwrap_err();
        let text = format!("{problem} {problem:?}");
        assert!(text.contains(words), "{text}");
        assert!(!text.contains("hush"), "{text}");
    }
}

fn source(origin: TokenOrigin) -> Bearer {
    Bearer {
        origin,
        lifetime: Some(minutes(5)),
        timeout: PATIENCE,
    }
}

fn command(argv: &[&str]) -> TokenOrigin {
    TokenOrigin::Command(argv.iter().map(|word| (*word).to_owned()).collect())
}

#[test]
fn a_file_is_read_for_each_token() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("token");
    let tokens = source(TokenOrigin::File(path.clone()));
    let error = tokens.token().unwrap_err().to_string();
    assert!(error.contains(path.to_str().unwrap()), "{error}");
    fs::write(&path, " one\n").unwrap();
    assert_eq!(tokens.token().unwrap().value, "one");
    fs::write(&path, "two").unwrap();
    assert_eq!(tokens.token().unwrap().value, "two");
    fs::write(&path, vec![b'a'; MAX_TOKEN + 1]).unwrap();
    assert!(tokens.token().unwrap_err().to_string().contains("longer"));
    fs::write(&path, [0xff, 0xfe]).unwrap();
    tokens.token().unwrap_err();
}

#[test]
fn a_command_prints_the_token() {
    let tokens = source(command(&["printf", "%s\\n", "a$b"]));
    // Without a shell the arguments are unchanged, and a text with `$` is no token.
    assert!(
        tokens
            .token()
            .unwrap_err()
            .to_string()
            .contains("no bearer")
    );
    let tokens = source(command(&["printf", "  %s\\n\\n", "abc"]));
    assert_eq!(tokens.token().unwrap().value, "abc");
}

#[test]
fn the_error_of_a_command_does_not_show_its_arguments() {
    for (argv, words) in [
        (&["/nonexistent/hush-program"][..], "cannot be started"),
        (&["sh", "-c", "echo hush; exit 3"], "exit status: 3"),
        (&["sh", "-c", "exit 0 # hush"], "nothing in it"),
        (&["sh", "-c", "kill -9 $$ # hush"], "signal: 9"),
    ] {
        let error = source(command(argv)).token().unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
        assert!(
            !error.contains("hush;") && !error.contains("# hush"),
            "{error}"
        );
    }
}

/// Also if a child of the program keeps the output open, or if the program never stops printing.
/// Each program ends by itself, but later than the test allows. The child ends with the test: it
/// reads from a pipe that the test holds open.
#[test]
fn a_command_that_does_not_end_is_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    let held = fs::File::options().read(true).write(true).open(&pipe);
    let with_child = format!("cat '{}' & exec sleep 3600", pipe.display());
    let start = std::time::Instant::now();
    for argv in [
        &["sleep", "3600"][..],
        &["sh", "-c", &with_child],
        &["sh", "-c", "exec >&-; exec sleep 3600"],
        &["sh", "-c", "echo token; exec sleep 3600"],
        &["yes"],
    ] {
        let (timeout, expected) = match argv {
            ["yes"] => (PATIENCE, "longer than any"),
            _ => (Duration::from_millis(300), "was stopped"),
        };
        let tokens = Bearer {
            timeout,
            ..source(command(argv))
        };
        let error = tokens.token().unwrap_err().to_string();
        assert!(error.contains(expected), "{argv:?}: {error}");
    }
    assert!(start.elapsed() < PATIENCE);
    // A child that has not opened the pipe yet finds none.
    drop(dir);
    drop(held.unwrap());
}

#[test]
fn debug_does_not_show_arguments() {
    let tokens = source(command(&["vault", "-token=hush"]));
    let shown = format!("{tokens:?}");
    assert!(
        shown.contains("vault") && !shown.contains("hush"),
        "{shown}"
    );
}
