//! Zones that the cleaner may choose, and the end of their cleaning.

use super::{CHECKPOINT_CLASS, Usage, Zone, ZonePool};
use crate::cleaning::Candidate;
use crate::stream::Sequences;
use block::ZoneIndex;
use std::cell::Cell;

impl ZonePool {
    /// Lets `choose` choose a victim among the candidates: the full zones with data whose cleaning would gain
    /// space. The victim is now [being cleaned](Usage::Cleaning): if its last blocks die on another shard, it
    /// becomes dead only when the cleaner ends it, not a second time. Returns the victim, and whether a zone
    /// that `choose` examined was excluded because a record in it hasn't committed: its live blocks may still
    /// grow.
    ///
    /// A zone of `zone_blocks` blocks that the cleaner fills has `data_blocks` data blocks; fewer while zones
    /// are filled only up to their known space. Headers and unused space of users' records are counted as
    /// garbage, because the cleaner packs the data better. Those of the cleaner's own records aren't: the
    /// cleaner would pack them the same way again, without end. So each move lowers the counted garbage.
    ///
    /// Zones that `choose` doesn't examine cost no time. The pool is locked while `choose` runs: calling
    /// other methods of the pool would deadlock.
    pub fn choose(
        &self,
        (data_blocks, zone_blocks): (u32, u32),
        committed: &Sequences,
        choose: impl FnOnce(&mut dyn Iterator<Item = Candidate>) -> Option<ZoneIndex>,
    ) -> (Option<Candidate>, bool) {
        let mut state = self.lock();
        let has_uncommitted = Cell::new(false);
        let candidate = |number: usize| {
            let zone = &state.zones[number];
            let most = match state.only_backed {
                true => data_blocks.saturating_sub(zone_blocks.saturating_sub(state.useful(number as u32))),
                false => data_blocks,
            };
            let written = if zone.is_packed(zone_blocks) { most.min(zone.written) } else { most };
            let live = zone.live;
            // Moving the other blocks frees nothing before the records that free the dying ones are written,
            // and users may wait for zones for those records.
            let is_dying = zone.dying > 0;
            if zone.usage != Usage::Full || zone.class == CHECKPOINT_CLASS || live >= written || is_dying {
                return None;
            }
            if !zone.last.is_within(committed) {
                has_uncommitted.set(true);
                return None;
            }
            let &Zone { class, opened, changed, .. } = zone;
            let zone = ZoneIndex(number as u32);
            Some(Candidate { zone, live: live.into(), written: written.into(), class, opened, changed })
        };
        let chosen = choose(&mut (0..state.zones.len()).filter_map(candidate));
        let chosen = chosen.and_then(|zone| candidate(zone.0 as usize));
        if let Some(victim) = &chosen {
            state.change(victim.zone.0).usage = Usage::Cleaning;
        }
        (chosen, has_uncommitted.get())
    }

    /// Ends the cleaning of a zone, whose blocks have been moved or are
    /// [dying](super::Accounts::begin_dying): it is full, and dead without live blocks. Returns the number of
    /// other live blocks; if there are any, the state of the zone is unchanged.
    pub fn end_cleaning(&self, zone: u32) -> u32 {
        let mut state = self.lock();
        let entry = &state.zones[zone as usize];
        let left = entry.live.saturating_sub(entry.dying);
        if left == 0 {
            state.set_full(zone);
        }
        left
    }
}
