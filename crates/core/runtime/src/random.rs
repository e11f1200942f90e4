//! Seeded randomness: xoshiro256++ (Blackman and Vigna, "Scrambled linear pseudorandom number generators",
//! 2021), seeded by SplitMix64. Not for secrets.

/// Seeded generator: the same seed gives the same numbers, on every machine.
#[derive(Debug, Clone)]
pub struct Random {
    state: [u64; 4],
}

impl Random {
    /// Generator with this seed.
    pub fn new(seed: u64) -> Self {
        let mut split = seed;
        let mut next = || {
            split = split.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut mixed = split;
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            mixed ^ (mixed >> 31)
        };
        Random { state: [next(), next(), next(), next()] }
    }

    /// Returns 64 random bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        let state = &mut self.state;
        let result = state[0].wrapping_add(state[3]).rotate_left(23).wrapping_add(state[0]);
        let shifted = state[1] << 17;
        state[2] ^= state[0];
        state[3] ^= state[1];
        state[1] ^= state[2];
        state[0] ^= state[3];
        state[2] ^= shifted;
        state[3] = state[3].rotate_left(45);
        result
    }

    /// Returns a number from 0 to `limit` - 1, by multiplication (Lemire, "Fast random integer generation in
    /// an interval", 2019, without the rejection: the bias is below 2^-64 times `limit`).
    ///
    /// # Panics
    /// If `limit` is 0.
    #[inline]
    pub fn below(&mut self, limit: u64) -> u64 {
        assert!(limit > 0, "random number below 0: expected a limit of at least 1");
        ((u128::from(self.next_u64()) * u128::from(limit)) >> 64) as u64
    }

    /// Returns a number from 0 to 1, excluding 1.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns true with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// Fills the bytes randomly.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next_u64().to_le_bytes()[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_decide() {
        let draw =
            |seed| (0..8).map(move |_| 0).scan(Random::new(seed), |random, _: u8| Some(random.next_u64()));
        assert!(draw(1).eq(draw(1)));
        assert!(!draw(1).eq(draw(2)));
    }

    #[test]
    fn below_covers_its_range() {
        let mut random = Random::new(7);
        let mut seen = [0_u32; 10];
        (0..10_000).for_each(|_| seen[random.below(10) as usize] += 1);
        assert!(seen.iter().all(|count| (800..1200).contains(count)), "{seen:?}");
        assert!((0..1000).all(|_| (0.0..1.0).contains(&random.unit())));
    }
}
