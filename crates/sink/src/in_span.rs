use tracing::Span;

/// Wraps the body of a thread, so that it runs in the caller's current span. Log lines of the
/// thread then belong to the caller's pipeline: a new thread inherits no span.
pub fn in_current_span<T>(work: impl FnOnce() -> T) -> impl FnOnce() -> T {
    let span = Span::current();
    move || span.in_scope(work)
}
