//! A store in memory, with the contract of the real one.

use block::{Data, Error, Result, Status};
use kv::redis::store::{Range, Store, Stored, Write};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Keys with their values and times of expiry.
pub type Keys = BTreeMap<Vec<u8>, (Vec<u8>, Option<u64>)>;

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
    type Snapshot = Keys;

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

    async fn write_each(&self, writes: Vec<Write>) -> Result<()> {
        Store::write(self, writes).await
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

    async fn scan(&self, snapshot: Option<&Keys>, range: Range) -> Result<Vec<(Vec<u8>, Stored)>> {
        self.wait().await;
        let present = self.keys.borrow();
        let keys = snapshot.unwrap_or(&present);
        let is_in = |key: &&Vec<u8>| **key >= range.from && range.to.as_ref().is_none_or(|to| *key < to);
        let pair = |(key, entry): (&Vec<u8>, &(Vec<u8>, Option<u64>))| (key.clone(), stored(entry));
        // Fewer than asked for, as the real one may return.
        let count = range.limit.min(100);
        let found = keys.iter().filter(|(key, _)| is_in(key));
        Ok(match range.is_backward {
            true => found.rev().take(count).map(pair).collect(),
            false => found.take(count).map(pair).collect(),
        })
    }

    async fn snapshot(&self) -> Result<Keys> {
        self.wait().await;
        Ok(self.keys.borrow().clone())
    }

    async fn compact(&self) -> Result<()> {
        self.wait().await;
        Ok(())
    }

    async fn status(&self) -> Status {
        let mut status = Status::new();
        status.insert("keys".into(), self.keys.borrow().len().into());
        status
    }
}
