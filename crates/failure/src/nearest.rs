//! "Did you mean" for every name that a user writes.

/// Returns the known name that `name` probably means: at most two typing errors away, and by fewer
/// errors than `name` has signs. Of two equally near names the first in alphabetical order.
pub fn nearest<'n>(name: &str, known: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    nearest_within(2, name, known)
}

/// Returns the known name that is at most so many typing errors away (Damerau and Levenshtein's
/// distance).
pub fn nearest_within<'n>(
    errors: usize,
    name: &str,
    known: impl IntoIterator<Item = &'n str>,
) -> Option<&'n str> {
    let distances = known
        .into_iter()
        .map(|known| (strsim::damerau_levenshtein(name, known), known));
    let (distance, nearest) = distances.min()?;
    (distance <= errors && distance < name.chars().count()).then_some(nearest)
}
