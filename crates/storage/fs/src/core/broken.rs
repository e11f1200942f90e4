//! Steps of rules that tests break on purpose ([`crate::broken`]).

use super::Core;
use crate::metadata::extents::Lost;

/// Ends the dying of blocks that a submitted operation has freed.
pub(super) fn end_dying(core: &Core, lost: &mut Lost) {
    let mut accounts = core.kit.pool.accounts();
    for (zone, count) in std::mem::take(&mut lost.0) {
        accounts.remove_dying(zone, count, core.kit.clock());
    }
}
