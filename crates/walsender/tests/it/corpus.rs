//! The committed corpus of the fuzz targets, through the functions that the targets run.

use std::path::Path;

use walrelay_walsender::fuzzing;

fn run(target: &str, check: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(target);
    let entries =
        std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files = 0;
    for entry in entries {
        let path = entry.unwrap().path();
        let body = std::fs::read(&path).unwrap();
        // The name of a file that breaks a promise is otherwise lost with the panic.
        std::panic::catch_unwind(|| check(&body))
            .unwrap_or_else(|_| panic!("{} breaks a promise", path.display()));
        files += 1;
    }
    assert!(files >= 10, "{files} files in {}", folder.display());
}

#[test]
fn walsender_framing() {
    run("walsender_framing", fuzzing::frames_do_not_depend_on_reads);
}

#[test]
fn walsender_server() {
    run("walsender_server", fuzzing::servers_may_say_anything);
}

#[test]
fn connection_string() {
    run("connection_string", fuzzing::connection_strings);
}

#[test]
fn password_file() {
    run("password_file", fuzzing::password_files);
}
