//! The committed corpus of the fuzz targets, through the functions that the targets run.

use std::path::Path;

use walrelay_event_router::fuzzing;

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
fn topic_template() {
    run("topic_template", fuzzing::topic_templates);
}
