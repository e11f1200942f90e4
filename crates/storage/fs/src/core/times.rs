//! Times that operations set.

use crate::metadata::change::KEEP_TIMES;
use crate::metadata::inode::Time;

/// Returns the present time.
pub fn now() -> Time {
    runtime::wall_clock().as_nanos() as Time
}

/// Times that a file gets from a change of its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Times {
    /// Times stay unchanged, because the kernel sets them.
    Kept,
    /// Time at which the change is queued, so that times have the order of the changes.
    Present,
}

impl Times {
    /// Time for a change that is queued now; [`KEEP_TIMES`] for [`Kept`](Self::Kept).
    pub(crate) fn of_change(self) -> Time {
        match self {
            Times::Kept => KEEP_TIMES,
            Times::Present => now(),
        }
    }

    /// Time to set in an inode now; `None` for [`Kept`](Self::Kept).
    pub(crate) fn to_set(self) -> Option<Time> {
        (self == Times::Present).then(now)
    }
}
