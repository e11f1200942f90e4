//! Regions of nodes for the copies of a zone.

use super::Core;
use crate::nodes::{self, Node};
use crate::zones::{MAX_COPIES, Replica};
use block::{Error, Result};
use smallvec::SmallVec;

impl Core {
    /// Number of copies of new zones: fewer while too few nodes are up.
    pub(super) fn copies_now(&self) -> usize {
        let up = self.nodes.iter().filter(|node| node.state() == nodes::State::Up).count();
        self.settings.copies.min(up.max(1))
    }

    /// Allocates regions on nodes to a zone.
    pub(super) fn allocate_regions(&self, zone: u32) -> Result<()> {
        let mut copies: SmallVec<[Replica; MAX_COPIES]> = SmallVec::new();
        let mut others: SmallVec<[u8; 4]> = SmallVec::new();
        while copies.len() < self.settings.copies {
            // The zone itself is no longer among the free ones.
            let zones = self.pool.free() + 1;
            let Some(node) = nodes::choose(&self.nodes, &others, zones, &mut self.random.borrow_mut()) else {
                break;
            };
            others.push(node);
            if let Some(region) = self.nodes[usize::from(node)].reserve_region() {
                copies.push(Replica { node, region, is_whole: true });
            }
        }
        if copies.is_empty() {
            return Err(self.no_region());
        }
        self.zones.change(&self.arena, zone, |entry| {
            entry.has_backup = self.backup.is_some();
            entry.copies = copies;
            (entry.blocks, entry.pending, entry.is_closed) = (0, 0, false);
        });
        Ok(())
    }

    /// Error while no staged block becomes available, because the nodes refuse all of them.
    pub(super) fn no_staged(&self) -> Error {
        if !self.nodes.iter().any(Node::is_up) {
            return Error::disconnected("no memory node answers");
        }
        match &*self.refusal.borrow() {
            Some(error @ (Error::Disconnected(_) | Error::TimedOut(_))) => Error::disconnected(format!(
                "no memory node took the blocks that wait to be written, which is tried again: {}",
                error.detail()
            )),
            _ => Error::no_space(
                "the memory nodes refuse all blocks that wait to be written; add nodes or memory, or store less",
            ),
        }
    }

    /// Error while no region is available.
    pub(crate) fn no_region(&self) -> Error {
        match self.nodes.iter().any(Node::is_up) {
            true => {
                Error::no_space("the memory nodes have no free region; add nodes or memory, or store less")
            }
            false => Error::disconnected("no memory node answers"),
        }
    }
}
