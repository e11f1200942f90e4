//! What a node may lend, and what it wants back: a function of measurements, without I/O.
//!
//! Lending ends a margin above the reserve, and memory is wanted back from the reserve on until that margin is there again: a machine at
//! the limit doesn't ask for memory, lend it again, and ask again.
//!
//! Pressure is the kernel's own measure: the share of the last ten seconds in which some task waited for memory (PSI, "some avg10",
//! Documentation/accounting/psi.rst). Above its limit nothing is lent, and an eighth of what is lent at the time is wanted back, until it
//! has fallen to half of the limit.

use crate::machine::Measurement;

/// Margin above the reserve, as a divisor of it.
const MARGIN: u64 = 8;
/// Share of the lent memory that is wanted back under pressure, as a divisor.
const PRESSED_SHARE: u64 = 8;

/// Limits of lending.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Policy {
    /// Most bytes that are lent.
    pub capacity: u64,
    /// Bytes of available memory that are kept for the machine's own programs.
    pub reserve: u64,
    /// Share of time, in percent, above which tasks wait for memory too often.
    pub pressure_limit: f64,
}

impl Policy {
    /// Available memory below which nothing is lent, in bytes.
    pub fn lending_limit(&self) -> u64 {
        self.reserve.saturating_add(self.reserve / MARGIN)
    }
}

/// Result of a measurement.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Decision {
    /// Bytes that may be lent beside those that are lent.
    pub may_lend: u64,
    /// Bytes that borrowers have to discard.
    pub wants_back: u64,
    /// Whether memory is wanted back because less than the reserve was available.
    pub is_short: bool,
    /// Whether memory is wanted back because tasks waited for memory.
    pub is_pressed: bool,
}

/// Decides anew, with this many bytes lent, after the decision `before`.
pub fn decide(policy: &Policy, measured: &Measurement, lent: u64, before: &Decision) -> Decision {
    let available = measured.available();
    let enough = policy.lending_limit();
    let is_short = available < if before.is_short { enough } else { policy.reserve };
    let pressure_limit = policy.pressure_limit / if before.is_pressed { 2.0 } else { 1.0 };
    let is_pressed = measured.some_avg10.is_some_and(|share| share > pressure_limit);
    let deficit = if is_short { enough - available } else { 0 };
    let pressed_share = if is_pressed { lent.div_ceil(PRESSED_SHARE) } else { 0 };
    let beyond_capacity = lent.saturating_sub(policy.capacity);
    let may_lend = match is_short || is_pressed {
        true => 0,
        false => available.saturating_sub(enough).min(policy.capacity.saturating_sub(lent)),
    };
    Decision {
        may_lend,
        wants_back: deficit.max(pressed_share).max(beyond_capacity).min(lent),
        is_short,
        is_pressed,
    }
}

/// Divides the wanted bytes among borrowers, in proportion to what each has. No share is larger than that.
pub fn shares(wants_back: u64, lent: &[u64]) -> Vec<u64> {
    let total: u128 = lent.iter().map(|bytes| u128::from(*bytes)).sum();
    let share = |bytes: &u64| {
        let wanted = u128::from(wants_back) * u128::from(*bytes);
        wanted.div_ceil(total.max(1)).min(u128::from(*bytes)) as u64
    };
    lent.iter().map(share).collect()
}

#[cfg(test)]
#[path = "decision_tests.rs"]
mod tests;
