//! Search for garbage: objects that no manifest names, of writers that crashed or were fenced.

use super::Core;
use crate::names::Name;
use block::Result;
use std::collections::BTreeSet;
use std::rc::Rc;

impl Core {
    /// Lists all objects of the volume, and has those deleted, after the grace, that nothing needs. Returns
    /// their number.
    ///
    /// An object is needed if the zone table names it, and as the claim or the last manifest of an epoch. Of
    /// the present epoch nothing is deleted: what it doesn't need any more is known without a search.
    ///
    /// # Errors
    /// Errors of the store; those of a log that has ended.
    pub async fn collect_garbage(self: Rc<Self>) -> Result<u64> {
        self.check()?;
        let epoch = self.log.identity().epoch;
        let names = &self.manifests.names;
        let mut found = BTreeSet::new();
        for prefix in [names.pieces(), names.manifests()] {
            let mut from = None;
            loop {
                let page = self.manifests.store.list(&prefix, from.as_deref()).await?;
                let listed = page.objects.iter().filter_map(|object| names.parse(&object.key));
                found.extend(listed.filter(|name| match name {
                    Name::Piece(piece) => {
                        piece.epoch < epoch && !self.log.with_table(|table| table.has(piece))
                    }
                    Name::Manifest { epoch: of, .. } => *of < epoch,
                }));
                from = page.next;
                if from.is_none() {
                    break;
                }
            }
        }
        // A reset that is being written may have taken pieces out of the table: they are garbage once its
        // manifest exists.
        self.log.written().await?;
        let last_of = |epoch: u32| {
            let all = Name::Manifest { epoch, number: 0 }..=Name::Manifest { epoch, number: u64::MAX };
            found.range(all).next_back().copied()
        };
        let needed: BTreeSet<Name> = found
            .iter()
            .filter_map(|name| match name {
                Name::Manifest { epoch, .. } => last_of(*epoch),
                Name::Piece(_) => None,
            })
            .collect();
        let known = self.garbage.names();
        let garbage: Vec<Name> = found
            .iter()
            .copied()
            .filter(|name| {
                let is_claim = matches!(name, Name::Manifest { number: 0, .. });
                !is_claim && !needed.contains(name) && !known.contains(name)
            })
            .collect();
        let count = garbage.len() as u64;
        self.garbage.add(garbage);
        Ok(count)
    }
}
