//! The seed of a run of tests, from which every random choice of a test comes.

use std::env;
use std::sync::OnceLock;

use fastrand::Rng;

/// Name of the environment variable that sets the seed.
const VARIABLE: &str = "WALRELAY_TEST_SEED";

/// Returns the seed of this process: the number in `WALRELAY_TEST_SEED`, else a random one. Panics
/// if the variable is no number.
pub fn seed() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    *SEED.get_or_init(|| match env::var(VARIABLE) {
        Ok(text) if !text.is_empty() => text
            .parse()
            .unwrap_or_else(|_| panic!("{VARIABLE}: {text:?} is no number")),
        _ => u64::from(fastrand::u32(..)),
    })
}

/// Returns the random numbers of one test. They depend on the [`seed`] and on the test's name, and
/// not on which other tests run.
pub fn rng(test: &str) -> Rng {
    rng_of(seed(), test)
}

/// Returns the random numbers of one test under this seed.
pub fn rng_of(seed: u64, test: &str) -> Rng {
    // FNV-1a, of which every version of Rust makes the same number.
    let mixed = test
        .bytes()
        .fold(seed ^ 0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
    Rng::with_seed(mixed)
}

/// Returns the setting for the seed of this run, such as `WALRELAY_TEST_SEED=7`.
pub fn seed_setting() -> String {
    format!("{VARIABLE}={}", seed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_test_has_numbers_of_its_own_that_the_seed_repeats() {
        let first = |seed, test| rng_of(seed, test).u64(..);
        assert_eq!(first(7, "a"), first(7, "a"));
        assert_ne!(first(7, "a"), first(7, "b"));
        assert_ne!(first(7, "a"), first(8, "a"));
    }
}
