//! Nodes of snapshots. The upper bits of a node are a *slot*, which identifies a snapshot within this mount;
//! the other bits are the inode. Snapshot numbers grow without bound and don't fit there.
//!
//! A slot is reassigned to another snapshot only after the kernel has forgotten all of its nodes. So an open
//! file of a deleted snapshot never shows another snapshot.

use super::actions::os;
use crate::metadata::inode::{InodeNumber, MAX_INODE};
use crate::metadata::versions::SnapshotNumber;
use block::Result;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bits of a node that hold an inode number.
const INODE_BITS: u32 = MAX_INODE.count_ones();
/// Largest slot; slot 0 is the present version.
const MAX_SLOT: u16 = 0x7FFF;
/// Node of the directory of snapshots.
pub(super) const DIRECTORY: u64 = 1 << 63;

/// Kind of a node, with the file that it refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NodeKind {
    /// A file of the present version.
    Present,
    /// The directory of snapshots.
    Directory,
    /// A file of a snapshot. The number is 0, which no snapshot has, if the slot is unused.
    Snapshot(SnapshotNumber, InodeNumber),
}

/// State of a slot.
#[derive(Debug)]
struct Slot {
    number: SnapshotNumber,
    /// Number of the kernel's references to nodes of the slot.
    references: u64,
}

#[derive(Debug, Default)]
struct Table {
    slots: BTreeMap<u16, Slot>,
    by_number: BTreeMap<SnapshotNumber, u16>,
    /// Slot that was assigned last.
    last: u16,
}

/// Slots of a mount.
#[derive(Debug, Default)]
pub(super) struct Slots(Mutex<Table>);

fn slot_of(node: u64) -> u16 {
    (node >> INODE_BITS) as u16
}

impl Slots {
    fn table(&self) -> MutexGuard<'_, Table> {
        // Not poisoned: nothing panics while the lock is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Kind of a node.
    pub(super) fn kind(&self, node: u64) -> NodeKind {
        match slot_of(node) {
            0 => NodeKind::Present,
            _ if node == DIRECTORY => NodeKind::Directory,
            slot => {
                let number = self.table().slots.get(&slot).map_or(0, |slot| slot.number);
                NodeKind::Snapshot(number, node & MAX_INODE)
            }
        }
    }

    /// Returns the node of a file of a snapshot.
    ///
    /// # Errors
    /// ENFILE if all slots have nodes that the kernel refers to.
    pub(super) fn node(&self, number: SnapshotNumber, inode: InodeNumber) -> Result<u64> {
        Ok(u64::from(self.table().slot_for(number)?) << INODE_BITS | inode)
    }

    /// Adds a reference of the kernel to a node of a snapshot.
    pub(super) fn refer(&self, node: u64) {
        if let Some(slot) = self.table().slots.get_mut(&slot_of(node)) {
            slot.references += 1;
        }
    }

    /// Drops references of the kernel to a node of a snapshot.
    pub(super) fn forget(&self, node: u64, lookups: u64) {
        if let Some(slot) = self.table().slots.get_mut(&slot_of(node)) {
            slot.references = slot.references.saturating_sub(lookups);
        }
    }
}

impl Table {
    /// Returns the slot of a snapshot, and assigns one if it has none.
    fn slot_for(&mut self, number: SnapshotNumber) -> Result<u16> {
        if let Some(slot) = self.by_number.get(&number) {
            return Ok(*slot);
        }
        let is_free = |slot: &u16| self.slots.get(slot).is_none_or(|slot| slot.references == 0);
        // Slots are assigned in turn, so that each is reused as late as possible.
        let found = (self.last + 1..=MAX_SLOT).chain(1..=self.last).find(is_free);
        let slot = found.ok_or_else(|| {
            os(libc::ENFILE, format!("the kernel has files of {MAX_SLOT} snapshots in use; close some"))
        })?;
        self.last = slot;
        if let Some(old) = self.slots.insert(slot, Slot { number, references: 0 }) {
            self.by_number.remove(&old.number);
        }
        self.by_number.insert(number, slot);
        Ok(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::inode::ROOT;
    use crate::metadata::versions::MAX_NUMBER;

    #[test]
    fn nodes_of_snapshots_are_told_apart_from_inodes() {
        let slots = Slots::default();
        for number in [1, 7, MAX_NUMBER] {
            for inode in [ROOT, 77, MAX_INODE] {
                let node = slots.node(number, inode).unwrap();
                assert_eq!(slots.kind(node), NodeKind::Snapshot(number, inode));
                assert_eq!(slots.kind(inode), NodeKind::Present);
            }
        }
        assert_eq!(slots.kind(DIRECTORY), NodeKind::Directory);
        assert_eq!(slots.kind(9 << INODE_BITS | 5), NodeKind::Snapshot(0, 5), "an unused slot");
    }

    #[test]
    fn a_slot_stands_for_another_snapshot_only_when_the_kernel_has_forgotten_its_nodes() {
        let slots = Slots::default();
        let held = slots.node(1, 77).unwrap();
        slots.refer(held);
        slots.refer(held);
        slots.forget(held, 1);
        // Takes more snapshots than there are slots.
        let mut nodes = std::collections::BTreeSet::new();
        for number in 2..100_000 {
            nodes.insert(slots.node(number, 77).unwrap());
        }
        assert_eq!(nodes.len(), usize::from(MAX_SLOT) - 1);
        assert!(!nodes.contains(&held));
        assert_eq!(slots.kind(held), NodeKind::Snapshot(1, 77));
        slots.forget(held, 1);
        (100_000..140_000).for_each(|number| assert!(slots.node(number, 77).is_ok()));
        assert_ne!(slots.kind(held), NodeKind::Snapshot(1, 77));
    }
}
