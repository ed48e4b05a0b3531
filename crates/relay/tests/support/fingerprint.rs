//! Fingerprints: hashes by which states are identified.

use std::hash::{BuildHasherDefault, DefaultHasher, Hash, Hasher};

/// The hasher of hash maps whose keys are small, or are hashes already.
pub(crate) type FastBuildHasher = BuildHasherDefault<FastHasher>;

/// Multiplies and folds. Good enough for the buckets of a hash map, not for fingerprints.
#[derive(Default)]
pub(crate) struct FastHasher(u64);

impl Hasher for FastHasher {
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

/// Returns a fingerprint of 64 bits: among a hundred million states, two have the same one with a
/// probability of 3 in 10,000.
pub(crate) fn short_fingerprint(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Returns a fingerprint of 128 bits.
pub(crate) fn fingerprint(value: &impl Hash) -> u128 {
    u128::from(short_fingerprint(&(0_u8, value))) << 64
        | u128::from(short_fingerprint(&(1_u8, value)))
}
