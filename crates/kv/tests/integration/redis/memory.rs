//! A store in memory, with the contract of the real one.

use block::{Data, Error, Result, Status};
use kv::redis::store::{Store, Stored, Write};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::rc::Rc;

type Keys = BTreeMap<Vec<u8>, (Vec<u8>, Option<u64>)>;

/// A store in memory. Clones are the same store.
#[derive(Clone, Default)]
pub struct Memory {
    keys: Rc<RefCell<Keys>>,
    /// Whether each call lets other tasks run, as a call that reads or writes a medium does.
    pub waits: Rc<Cell<bool>>,
    /// Error of writes.
    pub failure: Rc<RefCell<Option<Error>>>,
    /// Calls of `write`.
    pub writes: Rc<Cell<usize>>,
}

fn stored((value, expires): &(Vec<u8>, Option<u64>)) -> Stored {
    Stored { value: Data::copy_of(value), expires: *expires }
}

impl Memory {
    async fn wait(&self) {
        if self.waits.get() {
            runtime::yield_now().await;
        }
    }

    fn apply(&self, write: Write) {
        let mut keys = self.keys.borrow_mut();
        match write {
            Write::Put { key, value, expires } => {
                // A key that is set again takes its memory.
                match keys.get_mut(&key) {
                    Some(entry) => *entry = (value, expires),
                    None => drop(keys.insert(key, (value, expires))),
                }
            }
            Write::Delete { key } => drop(keys.remove(&key)),
            Write::DeleteRange { from, to } => keys.retain(|key, _| *key < from || *key >= to),
        }
    }
}

impl Store for Memory {
    async fn get(&self, key: &[u8]) -> Result<Option<Stored>> {
        self.wait().await;
        Ok(self.keys.borrow().get(key).map(stored))
    }

    async fn write(&self, writes: Vec<Write>) -> Result<()> {
        self.wait().await;
        self.writes.set(self.writes.get() + 1);
        if let Some(failure) = &*self.failure.borrow() {
            return Err(failure.clone());
        }
        writes.into_iter().for_each(|write| self.apply(write));
        Ok(())
    }

    async fn update<R: Send + 'static>(
        &self,
        key: &[u8],
        change: impl FnOnce(Option<Stored>) -> (Option<Write>, R) + Send + 'static,
    ) -> Result<R> {
        self.wait().await;
        let present = self.keys.borrow().get(key).map(stored);
        let (write, answer) = change(present);
        if let (Some(_), Some(failure)) = (&write, &*self.failure.borrow()) {
            return Err(failure.clone());
        }
        write.into_iter().for_each(|write| self.apply(write));
        Ok(answer)
    }

    async fn scan(&self, from: Vec<u8>, limit: usize) -> Result<Vec<(Vec<u8>, Stored)>> {
        self.wait().await;
        let keys = self.keys.borrow();
        let range = keys.range::<[u8], _>((Bound::Included(from.as_slice()), Bound::Unbounded));
        // Fewer than asked for, as the real one may return.
        Ok(range.take(limit.min(100)).map(|(key, entry)| (key.clone(), stored(entry))).collect())
    }

    async fn status(&self) -> Status {
        let mut status = Status::new();
        status.insert("keys".into(), self.keys.borrow().len().into());
        status
    }
}
