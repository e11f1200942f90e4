//! Search for garbage: objects that no manifest names, of writers that crashed or were fenced.
//!
//! # Promises
//! - What it finds is needed by no manifest, and by no change or upload of this writer.
//! - One search finds at most [`MAX_PIECES`] pieces. The next one finds the others.
//!
//! Left to others: the deletion, a grace later (`garbage`).

use super::Core;
use crate::manifests::MAX_PAGES;
use crate::names::Name;
use block::Result;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Most pieces that one search finds; the next one finds the others.
pub(super) const MAX_PIECES: usize = 1 << 17;

impl Core {
    /// Lists all objects of the volume, and has those deleted, after the grace, that nothing needs. Returns
    /// their number.
    ///
    /// An object is needed if the zone table names it, and as the claim or a seal at the end of an epoch. Of
    /// the present epoch what it doesn't need any more is known without a search, unless that was too much:
    /// pieces that were stored before all those that are in no manifest yet, and manifests before the base to
    /// which the last delta links.
    ///
    /// # Errors
    /// Errors of the store; those of a log that has ended.
    pub async fn collect_garbage(self: Rc<Self>) -> Result<u64> {
        self.check()?;
        let (own, names) = (self.log.identity().epoch, &self.manifests.names);
        // Before the listings as well: what is deleted after one isn't read.
        let mut known = self.garbage.names();
        let mut found = BTreeSet::new();
        let oldest = self.oldest_attempt();
        let is_unknown = |name: Name| match name {
            Name::Piece(piece) => {
                let is_earlier = piece.epoch < own || (piece.epoch == own && piece.serial < oldest);
                is_earlier && !self.log.with_table(|table| table.has(&piece))
            }
            _ => true,
        };
        let take = |name| {
            if found.len() < MAX_PIECES && matches!(name, Name::Piece(_)) && is_unknown(name) {
                found.insert(name);
            }
        };
        self.manifests.list(&names.pieces(), MAX_PAGES, take).await?;
        let mut epochs: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        let take = |name| match name {
            // This epoch began with a base.
            Name::Base { epoch, .. } if epoch < own => {
                found.insert(name);
            }
            Name::Manifest { epoch, number } if epoch < own && !known.contains(&name) => {
                epochs.entry(epoch).or_default().push(number);
            }
            name if self.log.is_replaced(name) => {
                found.insert(name);
            }
            _ => {}
        };
        self.manifests.list(&names.manifests(), MAX_PAGES, take).await?;
        for (epoch, numbers) in epochs {
            found.extend(self.manifests.old_of(epoch, &numbers).await?);
        }
        // Pieces may be in changes that were added before. A reset that is being written may have taken
        // pieces out of the table: they are garbage once its manifest exists.
        self.log.wait_until_written().await?;
        known.extend(self.garbage.names());
        found.retain(|name| !known.contains(name) && is_unknown(*name));
        let garbage: Vec<Name> = found.into_iter().take(self.garbage.headroom()).collect();
        let count = garbage.len() as u64;
        self.garbage.add(garbage);
        Ok(count)
    }
}
