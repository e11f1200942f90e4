//! Checkpoints: the tree at one moment, whose pages are written while operations go on.
//!
//! The tree may show operations on names and attributes whose records aren't written yet. If they never are, the operations have
//! taken effect nevertheless, each of them whole. The checkpoint counts their changes, so that they aren't replayed
//! ([`crate::change`]).

use crate::core::{Broken, Core};
use crate::format::State;
use crate::tree::{PAGE, Place, Stored};
use block::{Buffer, Error, Result};
use logkit::checkpoint::{self, Cut};
use logkit::pool::{CHECKPOINT_CLASS, Usage};
use logkit::record::{Identity, keyed_sum, sum_of};
use std::rc::Rc;

/// The bytes of a page that hold its checksum; the tree leaves them 0.
const SUM: std::ops::Range<usize> = 28..32;

/// Checksum of a page, whose own bytes are 0. It covers the place, so that a page isn't taken for another one.
fn sum_of_page(page: &[u8; PAGE], identity: &Identity, place: Place) -> [u8; 4] {
    keyed_sum(identity.key, &[&place.zone.to_le_bytes(), &place.position.to_le_bytes(), page]).to_le_bytes()
}

/// Puts the checksum into a page.
fn seal(page: &mut [u8; PAGE], identity: &Identity, place: Place) {
    let sum = sum_of_page(page, identity, place);
    page[SUM].copy_from_slice(&sum);
}

/// Takes the checksum out of a page and compares it.
///
/// # Errors
/// [`Error::Corrupt`] for another page, or a damaged one.
pub(crate) fn unseal(page: &mut [u8; PAGE], identity: &Identity, place: Place) -> Result<()> {
    let mut found = [0; 4];
    found.copy_from_slice(&page[SUM]);
    page[SUM].fill(0);
    match sum_of_page(page, identity, place) == found {
        true => Ok(()),
        false => Err(Error::corrupt(format!(
            "a page of the tree in {place}: wrong checksum; restore the file system"
        ))),
    }
}

/// Pages that are written in one record.
const PAGES_AT_ONCE: u64 = 256;
/// Pages that are encoded between two yields to other tasks.
const PAGES_A_TURN: usize = 16;

impl Core {
    /// Writes a checkpoint. With `clean`, it is the last one before the file system is closed.
    ///
    /// # Errors
    /// What writing returns. The previous checkpoint stays authoritative, unless the log has failed.
    pub(crate) async fn write_checkpoint(self: &Rc<Self>, clean: bool) -> Result<()> {
        checkpoint::take(self, async || {
            self.compact_pages();
            // From here to the next wait nothing changes the tree.
            let cut = Cut::now(&self.kit);
            let frozen = self.metadata.borrow().clone();
            let (dead, shown) = (self.released.take(), self.shown());
            if self.breaks(Broken::FreesPagesEarly) {
                self.free_pages(&dead);
            }
            let written = self.write_tree(&frozen.tree).await;
            let committed = match written {
                Ok(tree) => {
                    let (next_inode, inodes, epoch) = (frozen.next_inode, frozen.inodes, self.kit.epoch);
                    let state = State { tree, next_inode, inodes, epoch, shown };
                    checkpoint::commit(self, cut, &state.encode(), clean).await
                }
                Err(error) => Err(error),
            };
            match committed {
                Ok(()) if self.breaks(Broken::FreesPagesEarly) => {}
                Ok(()) => self.free_pages(&dead),
                // The checkpoint before still has these pages. If the log has failed, it is unknown which one counts.
                Err(_) => self.released.put_back(dead),
            }
            committed
        })
        .await
    }

    fn free_pages(&self, dead: &[Place]) {
        let mut accounts = self.kit.pool.accounts();
        dead.iter().for_each(|place| accounts.remove_live(place.zone, 1, self.kit.clock()));
    }

    /// Writes the pages of a tree that have no place.
    async fn write_tree(self: &Rc<Self>, tree: &crate::tree::Tree) -> Result<Stored> {
        let block = self.kit.layout.block_bytes();
        let mut cursor = tree.unstored();
        let mut next = cursor.next();
        while next.is_some() {
            let space = checkpoint::space(self, PAGES_AT_ONCE, |_| 0).await?;
            let (zone, first) = (space.zone(), space.position());
            let mut data = Buffer::new((1 + space.blocks as usize) * block);
            data.append_zeroes(block);
            let (mut sums, mut pages) = (Vec::new(), Vec::new());
            let level = next.as_ref().map(crate::tree::Page::level);
            // A page names the places of those below it, so a record has pages of one level.
            while let Some(page) =
                next.take_if(|page| Some(page.level()) == level && pages.len() < space.blocks as usize)
            {
                let mut bytes = [0; PAGE];
                page.encode(&mut bytes);
                let place = Place { zone, position: first + pages.len() as u32 };
                seal(&mut bytes, &self.kit.identity, place);
                data.append(&bytes);
                sums.push(sum_of(&bytes));
                pages.push(page);
                next = cursor.next();
                if pages.len().is_multiple_of(PAGES_A_TURN) {
                    runtime::yield_now().await;
                }
            }
            data.shorten((1 + pages.len()) * block);
            checkpoint::append(self, space, data, &sums, &[]).await?;
            self.kit.pool.add_live(zone, pages.len() as u32);
            for (position, page) in (first..).zip(&pages) {
                page.set_place(Place { zone, position });
            }
        }
        tree.stored().ok_or_else(|| {
            Error::io("pages of a checkpoint have no place: they changed while they were written")
        })
    }

    /// Takes their places from pages in zones with few live ones, so that checkpoints stay compact.
    fn compact_pages(&self) {
        let pool = &self.kit.pool;
        let is_full = |zone: &logkit::Zone| zone.class == CHECKPOINT_CLASS && zone.usage == Usage::Full;
        let mut zones: Vec<(u32, u32)> = pool
            .list()
            .into_iter()
            .filter(|(_, zone)| is_full(zone))
            .map(|(number, zone)| (zone.live, number))
            .collect();
        zones.sort_unstable();
        let live: u64 = zones.iter().map(|(live, _)| u64::from(*live)).sum();
        // The number of zones at which a third of their space is unused; the emptiest zones beyond it are rewritten.
        let enough = (live + live / 2).div_ceil(u64::from(self.kit.layout.zone_blocks)) as usize + 1;
        let surplus = zones.len().saturating_sub(enough);
        let emptiest: Vec<u32> = zones[..surplus].iter().map(|(_, zone)| *zone).collect();
        if !emptiest.is_empty() {
            self.metadata.borrow_mut().tree.forget_places(|place| emptiest.contains(&place.zone));
        }
    }
}
