//! Objects that no manifest names, and that are deleted after a grace.
//!
//! # Promises
//! - An object is deleted at the earliest a grace after it was added, by this machine's monotonic clock: so
//!   long a reader of an earlier manifest has for it. Up to 1000 objects go with one request.
//! - A task runs only while there is garbage. What is left when the process ends is found by `gc`.

use crate::names::{Name, Names};
use object_store::{MAX_BATCH, Store};
use runtime::{FailureRun, Instant};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

/// Time until the next attempt after a failed deletion.
const PAUSE: Duration = Duration::from_secs(30);

/// Garbage of a writer.
pub(crate) struct Garbage {
    store: Store,
    names: Names,
    grace: Duration,
    /// In the order in which they may be deleted.
    queue: RefCell<VecDeque<(Instant, Name)>>,
    is_running: Cell<bool>,
    is_stopped: Cell<bool>,
    deleted: Cell<u64>,
    failures: FailureRun,
}

impl Garbage {
    /// Returns none.
    pub fn new(store: Store, names: Names, grace: Duration) -> Rc<Garbage> {
        Rc::new(Garbage {
            store,
            names,
            grace,
            queue: RefCell::default(),
            is_running: Cell::new(false),
            is_stopped: Cell::new(false),
            deleted: Cell::new(0),
            failures: FailureRun::default(),
        })
    }

    /// Number of objects that wait for their deletion.
    pub fn waiting(&self) -> usize {
        self.queue.borrow().len()
    }

    /// Number of objects that were deleted.
    pub fn deleted(&self) -> u64 {
        self.deleted.get()
    }

    /// Objects that wait for their deletion.
    pub fn names(&self) -> BTreeSet<Name> {
        self.queue.borrow().iter().map(|(_, name)| *name).collect()
    }

    /// Deletes nothing any more.
    pub fn stop(&self) {
        self.is_stopped.set(true);
    }

    /// Adds objects that no manifest names any more.
    pub fn add(self: &Rc<Self>, names: impl IntoIterator<Item = Name>) {
        let due = runtime::now() + self.grace;
        self.queue.borrow_mut().extend(names.into_iter().map(|name| (due, name)));
        if self.waiting() > 0 && !self.is_stopped.get() && !self.is_running.replace(true) {
            runtime::spawn(self.clone().run()).detach();
        }
    }

    async fn run(self: Rc<Self>) {
        loop {
            let due = self.queue.borrow().front().map(|(due, _)| *due);
            let Some(due) = due.filter(|_| !self.is_stopped.get()) else { break };
            runtime::sleep_until(due).await;
            if self.is_stopped.get() {
                break;
            }
            let now = runtime::now();
            let ready: Vec<Name> = {
                let queue = self.queue.borrow();
                queue
                    .iter()
                    .take(MAX_BATCH)
                    .take_while(|(due, _)| *due <= now)
                    .map(|(_, name)| *name)
                    .collect()
            };
            let keys: Vec<String> = ready.iter().map(|name| self.names.key(*name)).collect();
            match self.store.delete_batch(&keys).await {
                Ok(()) => {
                    self.failures.ended("deleting objects that are no longer needed");
                    self.queue.borrow_mut().drain(..ready.len());
                    self.deleted.set(self.deleted.get() + ready.len() as u64);
                }
                Err(error) => {
                    self.failures.failed(format!("deleting objects that are no longer needed: {error}"));
                    runtime::sleep(PAUSE).await;
                }
            }
        }
        self.is_running.set(false);
    }
}
