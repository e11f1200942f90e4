//! Destination of writes.

/// Destination of writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The cache; the origin later.
    Writeback,
    /// Both devices.
    Writethrough,
    /// The origin; the cached block is evicted.
    Passthrough,
}

impl Mode {
    /// Names of the modes, as in dm-cache and lvmcache.
    pub const NAMES: [&'static str; 3] = ["writethrough", "writeback", "passthrough"];
    pub(crate) const ALL: [Mode; 3] = [Mode::Writeback, Mode::Writethrough, Mode::Passthrough];

    /// Returns the mode of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Mode::ALL.into_iter().find(|mode| mode.name() == name)
    }

    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Writeback => "writeback",
            Mode::Writethrough => "writethrough",
            Mode::Passthrough => "passthrough",
        }
    }
}
