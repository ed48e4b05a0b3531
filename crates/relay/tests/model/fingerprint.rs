//! Hashing: states are told apart by it.

use std::hash::{BuildHasherDefault, DefaultHasher, Hash, Hasher};

/// For tables whose keys are small, or hashes already.
pub(crate) type Quick = BuildHasherDefault<Mix>;

/// Multiplies and folds; good enough to find a place in a table, not to tell things apart.
#[derive(Default)]
pub(crate) struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u8(&mut self, number: u8) {
        self.write_u64(number.into());
    }

    fn write_u16(&mut self, number: u16) {
        self.write_u64(number.into());
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        let product = u128::from(self.0.rotate_left(23) ^ number) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }

    fn write_u128(&mut self, number: u128) {
        self.write_u64(number as u64);
        self.write_u64((number >> 64) as u64);
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn write_isize(&mut self, number: isize) {
        self.write_u64(number as u64);
    }
}

/// 64 bits of a good hash: two of a hundred million states share one with a probability of 3 in
/// 10,000.
pub(crate) fn short_fingerprint(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// 128 bits of it.
pub(crate) fn fingerprint(value: &impl Hash) -> u128 {
    u128::from(short_fingerprint(&(0_u8, value))) << 64
        | u128::from(short_fingerprint(&(1_u8, value)))
}
