//! [`Remembered`]: a map of the last values, bounded in size. [`Distribution`]: percentiles of any
//! number of values, likewise bounded.

use std::collections::{BTreeMap, HashMap};
use std::mem;

/// A map by hash that keeps at least the `limit` values that were used last, and at most twice as
/// many.
#[derive(Debug)]
pub(super) struct Remembered<V> {
    /// Values that were used since the last call of `make_room` that dropped any.
    recent: HashMap<u64, V>,
    /// Values that were not.
    older: HashMap<u64, V>,
    limit: usize,
}

impl<V> Remembered<V> {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            recent: HashMap::new(),
            older: HashMap::new(),
            limit,
        }
    }

    /// Makes room for one more value. Returns the values that are dropped for it.
    pub(super) fn make_room(&mut self) -> impl Iterator<Item = V> + use<V> {
        let dropped = if self.recent.len() < self.limit {
            HashMap::new()
        } else {
            mem::replace(&mut self.older, mem::take(&mut self.recent))
        };
        dropped.into_values()
    }

    /// Uses a value.
    pub(super) fn get_mut(&mut self, hash: u64) -> Option<&mut V> {
        if let Some(value) = self.older.remove(&hash) {
            self.recent.insert(hash, value);
        }
        self.recent.get_mut(&hash)
    }

    /// Adds a value that is not there.
    pub(super) fn insert(&mut self, hash: u64, value: V) {
        self.recent.insert(hash, value);
    }

    pub(super) fn into_values(self) -> impl Iterator<Item = V> {
        self.recent.into_values().chain(self.older.into_values())
    }
}

/// Counts values, rounded to three digits.
#[derive(Debug, Default)]
pub(super) struct Distribution {
    counts: BTreeMap<i64, u64>,
    total: u64,
}

impl Distribution {
    pub(super) fn add(&mut self, value: i64) {
        let mut unit = 1;
        while value.unsigned_abs() / unit >= 1000 {
            unit *= 10;
        }
        let unit = unit.cast_signed();
        *self.counts.entry(value / unit * unit).or_default() += 1;
        self.total += 1;
    }

    /// Returns the value that is not exceeded by the `share` (0 to 1) of the values; `None` without
    /// values.
    pub(super) fn at(&self, share: f64) -> Option<f64> {
        let rank = (self.total as f64 * share).ceil() as u64;
        let mut passed = 0;
        let entry = self.counts.iter().find(|(_, count)| {
            passed += **count;
            passed >= rank.max(1)
        });
        entry.map(|(value, _)| *value as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_least_the_limit_and_at_most_twice_as_many_are_remembered() {
        let mut map = Remembered::new(10);
        let mut dropped = Vec::new();
        for n in 0..100 {
            dropped.extend(map.make_room());
            map.insert(n, n);
            // Used again and again, so never dropped.
            assert_eq!(map.get_mut(0), Some(&mut 0));
            for last in n.saturating_sub(8)..=n {
                assert!(map.recent.contains_key(&last) || map.older.contains_key(&last));
            }
            assert!(map.recent.len() <= 10 && map.older.len() <= 10);
        }
        let mut all: Vec<u64> = map.into_values().chain(dropped).collect();
        all.sort_unstable();
        assert_eq!(all, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn percentiles_have_three_digits() {
        let mut values = Distribution::default();
        assert_eq!(values.at(0.5), None);
        (1..=100).for_each(|value| values.add(value));
        let at = |values: &Distribution, share| values.at(share).unwrap() as i64;
        let shares = [0.0, 0.5, 0.99, 1.0].map(|share| at(&values, share));
        assert_eq!(shares, [1, 50, 99, 100]);
        values.add(-1_234_567);
        values.add(98_765);
        assert_eq!(
            [0.0, 1.0].map(|share| at(&values, share)),
            [-1_230_000, 98_700]
        );
        for value in 0..100_000 {
            values.add(value * 100_000);
        }
        assert!(values.counts.len() < 12_000, "{}", values.counts.len());
    }
}
