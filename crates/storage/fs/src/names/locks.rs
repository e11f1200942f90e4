//! Locks of inodes that an operation on several shards is about to change. Until it has taken effect, other
//! operations on their names and attributes wait.
//!
//! An operation on one shard takes no locks, because it is decided and takes effect in one turn. It waits for
//! locks of operations on several shards.

use crate::metadata::inode::InodeNumber;
use runtime::sync::Notify;
use std::cell::RefCell;
use std::collections::BTreeSet;

/// Number that is locked while a directory moves to another parent, so that the ancestors of directories
/// don't change.
pub const MOVES: InodeNumber = 0;

/// Locked inodes of a shard.
#[derive(Debug, Default)]
pub struct Locks {
    held: RefCell<BTreeSet<InodeNumber>>,
    released: Notify,
}

impl Locks {
    /// Whether any of these inodes is locked.
    #[inline]
    pub fn holds_any(&self, inodes: impl IntoIterator<Item = InodeNumber>) -> bool {
        let held = self.held.borrow();
        !held.is_empty() && inodes.into_iter().any(|inode| held.contains(&inode))
    }

    /// Waits for the next unlock of any inode after this call.
    pub fn released(&self) -> impl Future<Output = ()> + '_ {
        self.released.notified()
    }

    /// Locks inodes one after another, in ascending order. All callers on all shards use this order, which
    /// prevents deadlocks.
    pub async fn lock(&self, inodes: &[InodeNumber]) {
        debug_assert!(inodes.is_sorted());
        for inode in inodes {
            loop {
                let released = self.released();
                if self.held.borrow_mut().insert(*inode) {
                    break;
                }
                released.await;
            }
        }
    }

    /// Unlocks inodes.
    pub fn unlock(&self, inodes: &[InodeNumber]) {
        let mut held = self.held.borrow_mut();
        inodes.iter().for_each(|inode| {
            held.remove(inode);
        });
        drop(held);
        self.released.notify_all();
    }
}
