//! List of the snapshots of a file system; on the home.

use crate::core::times::now;
use crate::metadata::directory::show;
use crate::metadata::versions::{MAX_NUMBER, MAX_SNAPSHOTS, SnapshotInfo, SnapshotNumber, check_name};
use block::{Error, Result};
use runtime::sync::Semaphore;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// State of a snapshot on the medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The next checkpoint will include it.
    New,
    /// The durable checkpoint includes it.
    There,
    /// The next checkpoint won't include it.
    Deleted,
}

/// Snapshots of a file system, oldest first.
#[derive(Debug)]
pub struct SnapshotList {
    all: RefCell<Vec<(SnapshotInfo, Stage)>>,
    /// Number of the next snapshot.
    next: Cell<SnapshotNumber>,
    /// Serializes taking and deleting snapshots.
    pub(crate) alone: Rc<Semaphore>,
}

impl Default for SnapshotList {
    fn default() -> Self {
        SnapshotList { all: RefCell::default(), next: Cell::new(1), alone: Semaphore::new(1) }
    }
}

impl SnapshotList {
    /// Sets the snapshots of the newest checkpoint, and the number of the next one.
    pub fn set(&self, found: impl Iterator<Item = SnapshotInfo>, next: SnapshotNumber) {
        self.next.set(next);
        *self.all.borrow_mut() = found.map(|info| (info, Stage::There)).collect();
    }

    /// Returns the snapshots on the medium, oldest first.
    pub fn there(&self) -> Vec<SnapshotInfo> {
        let all = self.all.borrow();
        all.iter().filter(|(_, stage)| *stage == Stage::There).map(|(info, _)| info.clone()).collect()
    }

    /// Returns the snapshots that a checkpoint includes if it begins now.
    pub fn of_checkpoint(&self) -> Vec<SnapshotInfo> {
        let all = self.all.borrow();
        all.iter().filter(|(_, stage)| *stage != Stage::Deleted).map(|(info, _)| info.clone()).collect()
    }

    /// Number of the next snapshot, larger than those of all earlier ones.
    pub fn next_number(&self) -> SnapshotNumber {
        self.next.get()
    }

    /// Notes that a checkpoint with these snapshots is durable.
    pub fn are_durable(&self, written: &[SnapshotInfo]) {
        for (info, stage) in self.all.borrow_mut().iter_mut().filter(|(_, stage)| *stage == Stage::New) {
            if written.iter().any(|it| it.number == info.number) {
                *stage = Stage::There;
            }
        }
    }

    /// Finds a snapshot by its name.
    ///
    /// # Errors
    /// [`Error::NotFound`] with the existing names.
    pub fn find(&self, name: &str) -> Result<SnapshotInfo> {
        let there = self.there();
        there.iter().find(|it| it.name == name).cloned().ok_or_else(|| {
            let names: Vec<&str> = there.iter().map(|it| it.name.as_str()).collect();
            Error::not_found(match names.is_empty() {
                true => format!("snapshot \"{name}\" doesn't exist: the file system has no snapshots"),
                false => format!("snapshot \"{name}\" doesn't exist; expected one of {}", names.join(", ")),
            })
        })
    }

    pub(crate) fn set_stage(&self, number: SnapshotNumber, new: Stage) {
        let mut all = self.all.borrow_mut();
        all.iter_mut().filter(|(info, _)| info.number == number).for_each(|(_, stage)| *stage = new);
    }

    pub(crate) fn stage(&self, number: SnapshotNumber) -> Option<Stage> {
        self.all.borrow().iter().find(|(info, _)| info.number == number).map(|(_, stage)| *stage)
    }

    /// Adds a snapshot that all shards have, and that the next checkpoint will include.
    pub(crate) fn add(&self, info: SnapshotInfo) {
        self.all.borrow_mut().push((info, Stage::New));
    }

    pub(crate) fn remove(&self, number: SnapshotNumber) {
        self.all.borrow_mut().retain(|(info, _)| info.number != number);
    }

    /// Returns a new snapshot with this name. Its number isn't reused, even if the snapshot isn't taken.
    pub(crate) fn new_snapshot(&self, name: &str) -> Result<SnapshotInfo> {
        check_name(name)?;
        let all = self.all.borrow();
        if all.iter().any(|(info, _)| info.name == name) {
            return Err(Error::already_exists(format!(
                "snapshot \"{}\": there is one of this name; choose another name, or delete it first",
                show(name.as_bytes())
            )));
        }
        if all.len() >= MAX_SNAPSHOTS {
            return Err(Error::no_space(format!(
                "snapshot \"{name}\": the file system has {} snapshots; expected less than {MAX_SNAPSHOTS}: delete some",
                all.len()
            )));
        }
        drop(all);
        let number = self.next.get();
        if number > MAX_NUMBER {
            return Err(Error::no_space(format!(
                "snapshot \"{name}\": the file system has had {MAX_NUMBER} snapshots, the most that there can be; copy the files to a new file system"
            )));
        }
        self.next.set(number + 1);
        Ok(SnapshotInfo { number, name: name.to_owned(), created: now() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(number: SnapshotNumber, name: &str) -> SnapshotInfo {
        SnapshotInfo { number, name: name.to_owned(), created: 0 }
    }

    #[test]
    fn names_and_numbers_are_given_once() {
        let list = SnapshotList::default();
        list.set([info(7, "a"), info(8, "b"), info(11, "c")].into_iter(), 12);
        let refused = |name: &str| list.new_snapshot(name).err();
        assert!(matches!(refused("a"), Some(Error::AlreadyExists(_))));
        for name in ["", "a/b", "..", "a\nb"] {
            assert!(matches!(refused(name), Some(Error::Invalid(_))), "{name:?}");
        }
        assert!(list.find("d").unwrap_err().detail().contains("a, b, c"));
        let number = |name: &str| list.new_snapshot(name).unwrap().number;
        assert_eq!((number("d"), number("d"), list.next_number()), (12, 13, 14), "a number was reused");
        list.set(std::iter::empty(), MAX_NUMBER);
        assert_eq!(number("d"), MAX_NUMBER);
        assert!(matches!(refused("e"), Some(Error::NoSpace(_))));
    }
}
