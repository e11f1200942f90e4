//! Inodes that an operation of several cores is about to change: until it has taken effect, other operations on their names and
//! attributes wait.
//!
//! An operation of one core takes no locks: it is decided and takes effect in one turn. It only waits for those that others hold.

use crate::inode::InodeNumber;
use runtime::sync::Notify;
use std::cell::RefCell;
use std::collections::BTreeSet;

/// In place of an inode: held while a directory gets another parent, so that the directories above others stay meanwhile.
pub const MOVES: InodeNumber = 0;

/// The locked inodes of a core.
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

    /// Waits until some inode is no longer locked, from this call on.
    pub fn released(&self) -> impl Future<Output = ()> + '_ {
        self.released.notified()
    }

    /// Locks inodes one after another. All callers ask for them in rising order, on all cores, so none waits for itself.
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
