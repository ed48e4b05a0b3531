//! [`nearest`]: "did you mean" for every name that a user writes. `event-router` and `walsender`, which
//! know nothing of configuration files, have the same rule in functions of their own.

/// Returns the known name that `name` probably means: at most two typing errors away, and by fewer
/// errors than `name` has signs. Of two equally near names the first in alphabetical order.
pub fn nearest<'n>(name: &str, known: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    nearest_within(2, name, known)
}

/// Returns the known name that is at most so many typing errors away (Damerau and Levenshtein's
/// distance).
pub(crate) fn nearest_within<'n>(
    errors: usize,
    name: &str,
    known: impl IntoIterator<Item = &'n str>,
) -> Option<&'n str> {
    known
        .into_iter()
        .map(|known| (strsim::damerau_levenshtein(name, known), known))
        .min()
        .filter(|(distance, _)| *distance <= errors && *distance < name.chars().count())
        .map(|(_, known)| known)
}
