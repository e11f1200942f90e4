//! Claims of zones that have one writer at a time, such as those in a bucket that several machines reach.

/// Identity of a claim's holder, which the layer that made the claim chose: a write cache of zones recognizes
/// its own claims by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClaimToken {
    /// Random identity of the holder's own storage.
    pub owner: [u8; 16],
    /// Number of the holder's claims, this one included.
    pub count: u64,
}

/// A writer's claim of zones. It ends the writer before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// Number of the claim; larger than those of all claims before.
    pub number: u64,
    /// Name of the writer for operators.
    pub writer: String,
    /// Wall-clock time of the claim, in ms since 1970.
    pub time: u64,
    /// Token of the layer that made the claim; `None` for a claim by the first handle.
    pub token: Option<ClaimToken>,
}
