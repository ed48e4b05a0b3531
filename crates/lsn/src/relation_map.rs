use std::fmt;

use crate::RelationId;

/// A map keyed by [`RelationId`], for lookups once per row.
///
/// A sorted vector: a relay has few tables, mostly one, and a binary search among them is faster
/// than hashing the key.
#[derive(Clone)]
pub struct RelationMap<T> {
    /// Sorted by [`RelationId`].
    entries: Vec<(RelationId, T)>,
}

impl<T> RelationMap<T> {
    /// Creates an empty map.
    pub const fn new() -> Self {
        Self {
            entries: Vec::new(),
        }
    }

    /// Returns the value of a table.
    #[inline]
    pub fn get(&self, id: RelationId) -> Option<&T> {
        let at = self.find(id).ok()?;
        self.entries.get(at).map(|(_, value)| value)
    }

    /// Returns true if the table has a value.
    pub fn contains(&self, id: RelationId) -> bool {
        self.find(id).is_ok()
    }

    /// Sets the value of a table; returns the previous one.
    pub fn insert(&mut self, id: RelationId, value: T) -> Option<T> {
        match self.find(id) {
            Ok(at) => {
                let (_, known) = self.entries.get_mut(at)?;
                Some(std::mem::replace(known, value))
            }
            Err(at) => {
                self.entries.insert(at, (id, value));
                None
            }
        }
    }

    /// Removes a table; returns its value.
    pub fn remove(&mut self, id: RelationId) -> Option<T> {
        let at = self.find(id).ok()?;
        Some(self.entries.remove(at).1)
    }

    /// Removes all tables.
    pub fn clear(&mut self) {
        self.entries.clear();
    }

    #[inline]
    fn find(&self, id: RelationId) -> Result<usize, usize> {
        self.entries.binary_search_by_key(&id, |(known, _)| *known)
    }
}

impl<T> Default for RelationMap<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: fmt::Debug> fmt::Debug for RelationMap<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.entries.iter().map(|(id, value)| (id, value));
        f.debug_map().entries(entries).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_found_replaced_and_forgotten() {
        let id = RelationId::new;
        let mut map = RelationMap::default();
        for number in [16_400, 3, 900_000, 17, 4_294_967_295, 0] {
            assert_eq!(map.insert(id(number), number), None);
        }
        for number in [0, 3, 17, 16_400, 900_000, 4_294_967_295] {
            assert_eq!(map.get(id(number)), Some(&number));
        }
        assert_eq!(map.get(id(4)), None);
        assert_eq!(map.insert(id(17), 18), Some(17));
        assert_eq!(map.remove(id(3)), Some(3));
        assert_eq!(map.remove(id(3)), None);
        assert!(map.contains(id(17)) && !map.contains(id(3)));
        assert_eq!(
            format!("{map:?}"),
            "{RelationId(0): 0, RelationId(17): 18, RelationId(16400): 16400, RelationId(900000): 900000, \
             RelationId(4294967295): 4294967295}"
        );
        map.clear();
        assert!(!map.contains(id(17)));
    }
}
