//! Faults that a caller asks for: power cuts, bus errors, wear, read disturb, a chip that stays busy.

/// When the power fails by itself.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Cut {
    /// After so many further bytes on the bus.
    BusByte(u64),
    /// In an operation (program, erase, register write): after so many further ones, at a fraction of its time.
    Operation {
        /// Operations that complete before it.
        after: u64,
        /// Part of the operation's time that passes, 0.0 to 1.0.
        fraction: f64,
    },
}

/// Faults in force. The default has none.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Faults {
    /// When the power fails. The chip is off afterwards, until [`crate::Chip::power_on`].
    pub cut: Option<Cut>,
    /// Probability that a byte from the host arrives with one bit flipped.
    pub flip_in: f64,
    /// Probability that a byte from the chip arrives with one bit flipped.
    pub flip_out: f64,
    /// After so many further operations one never ends: WIP stays 1 until a reset or a power cycle.
    pub stuck_busy: Option<u64>,
    /// Cells wear: beyond the chip's endurance bits stick at 0.
    pub wear: bool,
    /// Bytes read of a sector for one read-disturb bit flip in it, on average; 0 for none.
    pub read_disturb: u64,
}

impl Faults {
    /// Returns whether single bytes of the bus must be looked at.
    pub(crate) fn touches_bytes(&self) -> bool {
        self.flip_in > 0.0 || self.flip_out > 0.0 || matches!(self.cut, Some(Cut::BusByte(_)))
    }
}
