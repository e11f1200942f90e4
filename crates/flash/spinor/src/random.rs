//! Seeded randomness: the same seed gives the same chip, the same faults and the same marginal reads.

/// SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.next() as u8
    }

    /// Returns a number below `limit`; 0 for a limit of 0.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        if limit == 0 { 0 } else { self.next() % limit }
    }

    /// Returns a number in `0.0..1.0`.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub(crate) fn chance(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.unit() < probability
    }

    /// Draws from the exponential distribution with mean 1.
    pub(crate) fn exponential(&mut self) -> f64 {
        -(1.0 - self.unit()).ln()
    }

    /// Returns the number of draws since an earlier state of this generator.
    #[cfg(test)]
    pub(crate) fn draws_since(&self, earlier: &Random) -> u64 {
        // The inverse of the odd increment modulo 2^64, by Newton's iteration.
        let increment = 0x9E37_79B9_7F4A_7C15u64;
        let inverse = (0..6).fold(increment, |inverse: u64, _| {
            inverse.wrapping_mul(2u64.wrapping_sub(increment.wrapping_mul(inverse)))
        });
        self.0.wrapping_sub(earlier.0).wrapping_mul(inverse)
    }
}
