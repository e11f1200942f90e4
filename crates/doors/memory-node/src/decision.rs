//! Computes the memory that a node may lend and that it reclaims, from measurements and without I/O.
//!
//! Two watermarks give hysteresis: below the reserve, memory is reclaimed until the reserve and a margin
//! above it are available. Lending stops at the upper watermark.
//!
//! Pressure is the kernel's measure: the share of the last ten seconds in which some task waited for memory
//! (PSI, "some avg10", Documentation/accounting/psi.rst). Above its limit lending stops, and an eighth of the
//! lent memory is reclaimed, until the pressure has fallen to half of the limit.

use crate::machine::Measurement;

/// Margin above the reserve, as a divisor of it.
const MARGIN: u64 = 8;
/// Share of the lent memory that is reclaimed under pressure, as a divisor.
const PRESSURE_SHARE: u64 = 8;

/// Limits of lending.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Policy {
    /// Limit of lent memory, in bytes.
    pub capacity: u64,
    /// Bytes of available memory that are reserved for the machine's own programs.
    pub reserve: u64,
    /// Share of time in which some task waits for memory above which memory is reclaimed, in percent.
    pub pressure_limit: f64,
}

impl Policy {
    /// Available memory below which lending stops, in bytes: the upper watermark.
    pub fn lending_limit(&self) -> u64 {
        self.reserve.saturating_add(self.reserve / MARGIN)
    }
}

/// Result of a measurement.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Decision {
    /// Further bytes that may be lent.
    pub may_lend: u64,
    /// Bytes that borrowers are asked to discard.
    pub reclaim: u64,
    /// Whether memory is reclaimed because less than the reserve was available.
    pub is_below_reserve: bool,
    /// Whether memory is reclaimed because tasks waited for memory.
    pub is_under_pressure: bool,
}

/// Computes the decision for a measurement while `lent` bytes are lent; `before` is the previous decision.
pub fn decide(policy: &Policy, measured: &Measurement, lent: u64, before: &Decision) -> Decision {
    let available = measured.available();
    let upper = policy.lending_limit();
    let is_below_reserve = available < if before.is_below_reserve { upper } else { policy.reserve };
    let pressure_limit = policy.pressure_limit / if before.is_under_pressure { 2.0 } else { 1.0 };
    let is_under_pressure = measured.some_avg10.is_some_and(|share| share > pressure_limit);
    let deficit = if is_below_reserve { upper - available } else { 0 };
    let pressure_share = if is_under_pressure { lent.div_ceil(PRESSURE_SHARE) } else { 0 };
    let beyond_capacity = lent.saturating_sub(policy.capacity);
    let may_lend = match is_below_reserve || is_under_pressure {
        true => 0,
        false => available.saturating_sub(upper).min(policy.capacity.saturating_sub(lent)),
    };
    Decision {
        may_lend,
        reclaim: deficit.max(pressure_share).max(beyond_capacity).min(lent),
        is_below_reserve,
        is_under_pressure,
    }
}

/// Divides `reclaim` bytes among borrowers in proportion to the memory of each. No share exceeds that memory.
pub fn shares(reclaim: u64, lent: &[u64]) -> Vec<u64> {
    let total: u128 = lent.iter().map(|bytes| u128::from(*bytes)).sum();
    let share = |bytes: &u64| {
        let product = u128::from(reclaim) * u128::from(*bytes);
        product.div_ceil(total.max(1)).min(u128::from(*bytes)) as u64
    };
    lent.iter().map(share).collect()
}

#[cfg(test)]
#[path = "decision_tests.rs"]
mod tests;
