use walrelay_failure::{Exit, Failure};

use crate::failures::is_of_stream;

/// Returns the words for dead letters that cannot be read, for those of a stream.
pub(super) fn dead_letter_failure(failure: Failure) -> Failure {
    if !is_of_stream(&failure) {
        return failure;
    }
    Failure {
        id: "dlq-topic",
        what: format!("the dead letters cannot be read: {}", failure.what),
        ..failure
    }
}

/// Returns true if the user may not read dead letters.
pub(super) fn is_denied(failure: &Failure) -> bool {
    failure.id == "dlq-topic" && failure.exit == Exit::Denied
}

/// Returns the words for a stream in which dead letters have another subject than they are sent to.
pub(super) fn transformed(subject: &str) -> Failure {
    let what = format!(
        "the dead letters cannot be read: the stream of {subject} gives its messages other subjects"
    );
    Failure::new("dlq-topic", Exit::Unavailable, what).remedy(
        "remove subject_transform from the stream, or name a subject of another stream as topic in \
         [poison]",
    )
}
