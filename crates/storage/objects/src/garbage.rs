//! Objects that no manifest names, and that are deleted after a grace.
//!
//! # Promises
//! - An object is deleted at the earliest a grace after it was added, by this machine's monotonic clock: for
//!   this time readers of an earlier manifest can read it. One request deletes up to 1000 objects that were
//!   added within a second.
//! - A batch with an object that the store refuses to delete waits longer after each attempt, and delays no
//!   other batch.
//! - At most [`MAX_WAITING`] objects wait, and a task runs only while there is garbage. Further objects are
//!   counted; `gc` finds them, and those that wait when the process ends.
//!
//! Left to others: what is garbage (`manifest_log`, `core`, `core::gc`).

use crate::names::{Name, Names};
use object_store::{MAX_BATCH, Store};
use runtime::{FailureRun, Instant};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

/// Time until the second attempt to delete objects; it doubles with each one.
const PAUSE: Duration = Duration::from_secs(30);
/// Limit of the doublings.
const MAX_DOUBLINGS: u32 = 8;
/// Longest pause between batches after failures of the store.
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// Limit of the objects that wait for their deletion: 5 MiB of memory.
const MAX_WAITING: usize = 1 << 17;
/// Time in which objects are added to the same batch.
const BATCH_TIME: Duration = Duration::from_secs(1);

/// Objects that are deleted by one request.
struct Batch {
    names: Vec<Name>,
    begun: Instant,
    attempts: u32,
}

/// Time from which a batch may be deleted, and a number that distinguishes those of one time.
type Due = (Instant, u64);

/// Garbage of a writer.
pub(crate) struct Garbage {
    store: Store,
    names: Names,
    grace: Duration,
    /// In the order in which they may be deleted.
    queue: RefCell<BTreeMap<Due, Batch>>,
    /// Number of objects in the queue.
    waiting: Cell<usize>,
    /// Batch that takes more objects.
    open: Cell<Option<Due>>,
    next: Cell<u64>,
    is_running: Cell<bool>,
    is_stopped: Cell<bool>,
    deleted: Cell<u64>,
    dropped: Cell<u64>,
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
            waiting: Cell::new(0),
            open: Cell::new(None),
            next: Cell::new(0),
            is_running: Cell::new(false),
            is_stopped: Cell::new(false),
            deleted: Cell::new(0),
            dropped: Cell::new(0),
            failures: FailureRun::default(),
        })
    }

    /// Number of objects that wait for their deletion.
    pub fn waiting(&self) -> usize {
        self.waiting.get()
    }

    /// Number of objects that were deleted.
    pub fn deleted(&self) -> u64 {
        self.deleted.get()
    }

    /// Number of objects that weren't added, at the limit of those that wait.
    pub fn dropped(&self) -> u64 {
        self.dropped.get()
    }

    /// Number of objects that may be added.
    pub fn headroom(&self) -> usize {
        MAX_WAITING.saturating_sub(self.waiting())
    }

    /// Objects that wait for their deletion.
    pub fn names(&self) -> BTreeSet<Name> {
        self.queue.borrow().values().flat_map(|batch| &batch.names).copied().collect()
    }

    /// Ends the deletions.
    pub fn stop(&self) {
        self.is_stopped.set(true);
    }

    /// Inserts a batch, and returns its key.
    fn insert(&self, queue: &mut BTreeMap<Due, Batch>, due: Instant, batch: Batch) -> Due {
        let key = (due, self.next.replace(self.next.get() + 1));
        queue.insert(key, batch);
        key
    }

    /// Adds objects that no manifest names any more, as many as may wait; the others are counted.
    pub fn add(self: &Rc<Self>, names: impl IntoIterator<Item = Name>) {
        let now = runtime::now();
        let (mut all, headroom) = (names.into_iter(), self.headroom());
        let mut names = all.by_ref().take(headroom).peekable();
        let mut queue = self.queue.borrow_mut();
        while names.peek().is_some() {
            let open = self.open.take().and_then(|due| queue.remove(&due));
            let mut batch = match open {
                Some(batch) if batch.names.len() < MAX_BATCH && now - batch.begun < BATCH_TIME => batch,
                full => {
                    if let Some(full) = full {
                        self.insert(&mut queue, now + self.grace, full);
                    }
                    Batch { names: Vec::new(), begun: now, attempts: 0 }
                }
            };
            let before = batch.names.len();
            batch.names.extend(names.by_ref().take(MAX_BATCH - before));
            self.waiting.set(self.waiting.get() + batch.names.len() - before);
            // A grace after its last object was added.
            self.open.set(Some(self.insert(&mut queue, now + self.grace, batch)));
        }
        drop(queue);
        self.dropped.set(self.dropped.get() + all.count() as u64);
        if self.waiting() > 0 && !self.is_stopped.get() && !self.is_running.replace(true) {
            runtime::spawn(self.clone().run()).detach();
        }
    }

    async fn run(self: Rc<Self>) {
        loop {
            let due = self.queue.borrow().first_key_value().map(|(due, _)| *due);
            let Some(due) = due.filter(|_| !self.is_stopped.get()) else { break };
            runtime::sleep_until(due.0).await;
            if self.is_stopped.get() {
                break;
            }
            self.delete(due).await;
        }
        self.is_running.set(false);
    }

    /// Deletes a batch, if it is still due.
    async fn delete(&self, due: Due) {
        // Objects may have been added meanwhile, and it is due later.
        let keys: Option<Vec<String>> = {
            let queue = self.queue.borrow();
            queue.get(&due).map(|batch| batch.names.iter().map(|name| self.names.key(*name)).collect())
        };
        let Some(keys) = keys else { return };
        if self.open.get() == Some(due) {
            self.open.set(None);
        }
        // The batch stays in the queue during the request, so that a search for garbage skips its objects.
        let outcome = self.store.delete_batch(&keys).await;
        let batch = self.queue.borrow_mut().remove(&due);
        match (outcome, batch) {
            (Ok(()), _) => {
                self.failures.ended("deleting objects that are no longer needed");
                self.waiting.set(self.waiting.get() - keys.len());
                self.deleted.set(self.deleted.get() + keys.len() as u64);
            }
            (Err(error), batch) => {
                if let Some(mut batch) = batch {
                    let pause = PAUSE * 2_u32.pow(batch.attempts.min(MAX_DOUBLINGS));
                    batch.attempts += 1;
                    self.insert(&mut self.queue.borrow_mut(), runtime::now() + pause, batch);
                }
                self.failures.failed(format!("deleting objects that are no longer needed: {error}"));
                let failures = self.failures.count();
                runtime::sleep(Duration::from_secs(failures).min(MAX_PAUSE)).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::testing::{Bucket, Faults, client};

    #[test]
    fn objects_over_the_limit_are_counted() {
        let run = || async {
            let _bucket = Bucket::start(Faults::default());
            let (store, names) = (client(object_store::Limits::default()), Names::new("db1").unwrap());
            let garbage = Garbage::new(store, names, Duration::from_secs(60));
            let some = |count: usize| (0..count as u64).map(|number| Name::Base { epoch: 1, number });
            garbage.add(some(MAX_WAITING - 5));
            assert_eq!((garbage.headroom(), garbage.dropped()), (5, 0));
            garbage.add(some(7));
            garbage.add(some(3));
            assert_eq!((garbage.waiting(), garbage.headroom(), garbage.dropped()), (MAX_WAITING, 0, 5));
            garbage.stop();
        };
        runtime::simulate(runtime::Simulation::new(1), run).unwrap();
    }
}
