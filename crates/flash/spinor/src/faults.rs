//! Faults that a caller requests: power cuts, bus errors, wear, read disturb, a chip that stays busy.

/// Moment of a power cut.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Cut {
    /// After this number of further bytes on the bus.
    BusByte(u64),
    /// During an operation (program, erase, register write), at a fraction of its time.
    Operation {
        /// Number of operations that complete before it.
        after: u64,
        /// Fraction of the operation's time that passes, 0.0 to 1.0.
        fraction: f64,
    },
}

/// Faults in force. The default has none.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Faults {
    /// Power cuts, each of which happens once. The chip is off afterwards, until [`crate::Chip::power_on`].
    ///
    /// All are counted from the moment at which the faults are set, so several cut the power several times.
    pub cuts: Vec<Cut>,
    /// Probability that a byte from the host arrives with one bit flipped.
    pub flip_in: f64,
    /// Probability that a byte from the chip arrives with one bit flipped.
    pub flip_out: f64,
    /// Number of further operations after which one never ends: WIP stays 1 until a reset or a power cycle.
    pub stuck_busy: Option<u64>,
    /// Whether cells wear: after the chip's endurance bits stick at 0.
    pub wear: bool,
    /// Bytes read of a sector for one read-disturb bit flip in it, on average; 0 for none.
    pub read_disturb: u64,
}

impl Faults {
    /// Returns whether the faults affect single bytes of the bus.
    pub(crate) fn touches_bytes(&self) -> bool {
        self.flip_in > 0.0
            || self.flip_out > 0.0
            || self.cuts.iter().any(|cut| matches!(cut, Cut::BusByte(_)))
    }

    /// Counts a byte on the bus. Returns whether a cut strikes before it.
    pub(crate) fn bus_byte_cuts(&mut self) -> bool {
        let mut strikes = false;
        self.cuts.retain_mut(|cut| match cut {
            Cut::BusByte(0) => {
                strikes = true;
                false
            }
            Cut::BusByte(left) => {
                *left -= 1;
                true
            }
            Cut::Operation { .. } => true,
        });
        strikes
    }

    /// Counts an operation. Returns the fraction of its time, 0.0 to 1.0, after which the first cut strikes;
    /// `None` without one.
    pub(crate) fn operation_cuts(&mut self) -> Option<f64> {
        let mut strikes: Option<f64> = None;
        self.cuts.retain_mut(|cut| match cut {
            Cut::Operation { after: 0, fraction } => {
                let fraction = fraction.clamp(0.0, 1.0);
                strikes = Some(strikes.map_or(fraction, |other| other.min(fraction)));
                false
            }
            Cut::Operation { after, .. } => {
                *after -= 1;
                true
            }
            Cut::BusByte(_) => true,
        });
        strikes
    }
}
