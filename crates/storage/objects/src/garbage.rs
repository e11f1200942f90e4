//! Objects that no manifest names, and that are deleted after a grace.
//!
//! # Promises
//! - An object is deleted at the earliest a grace after it was added, by this machine's monotonic clock: so
//!   long a reader of an earlier manifest has for it. Up to 1000 objects go with one request.
//! - A batch with an object that the store refuses to delete waits after each attempt for longer, and the
//!   others go on.
//! - At most [`MAX_WAITING`] objects wait, and a task runs only while there is garbage. What doesn't wait,
//!   and what is left when the process ends, is found by `gc`.

use crate::names::{Name, Names};
use object_store::{MAX_BATCH, Store};
use runtime::{FailureRun, Instant};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

/// Time until the second attempt to delete objects; it doubles with each one.
const PAUSE: Duration = Duration::from_secs(30);
/// Most times that it doubles.
const MAX_DOUBLINGS: u32 = 8;
/// Longest pause between batches after failures of the store.
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// Most objects that wait for their deletion.
const MAX_WAITING: usize = 1 << 20;

/// Garbage of a writer.
pub(crate) struct Garbage {
    store: Store,
    names: Names,
    grace: Duration,
    /// In the order in which they may be deleted, with the number of attempts.
    queue: RefCell<BTreeMap<(Instant, Name), u32>>,
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
        self.queue.borrow().keys().map(|(_, name)| *name).collect()
    }

    /// Deletes nothing any more.
    pub fn stop(&self) {
        self.is_stopped.set(true);
    }

    /// Adds objects that no manifest names any more, as many as may wait.
    pub fn add(self: &Rc<Self>, names: impl IntoIterator<Item = Name>) {
        let due = runtime::now() + self.grace;
        let headroom = MAX_WAITING.saturating_sub(self.waiting());
        self.queue.borrow_mut().extend(names.into_iter().take(headroom).map(|name| ((due, name), 0)));
        if self.waiting() > 0 && !self.is_stopped.get() && !self.is_running.replace(true) {
            runtime::spawn(self.clone().run()).detach();
        }
    }

    async fn run(self: Rc<Self>) {
        loop {
            let due = self.queue.borrow().first_key_value().map(|((due, _), _)| *due);
            let Some(due) = due.filter(|_| !self.is_stopped.get()) else { break };
            runtime::sleep_until(due).await;
            if self.is_stopped.get() {
                break;
            }
            let now = runtime::now();
            let ready: Vec<((Instant, Name), u32)> = {
                let queue = self.queue.borrow();
                let ready = queue.iter().take(MAX_BATCH).take_while(|((due, _), _)| *due <= now);
                ready.map(|(key, attempts)| (*key, *attempts)).collect()
            };
            let keys: Vec<String> = ready.iter().map(|((_, name), _)| self.names.key(*name)).collect();
            let outcome = self.store.delete_batch(&keys).await;
            let again = runtime::now();
            {
                let mut queue = self.queue.borrow_mut();
                for (key, attempts) in &ready {
                    queue.remove(key);
                    if outcome.is_err() {
                        let pause = PAUSE * 2_u32.pow((*attempts).min(MAX_DOUBLINGS));
                        queue.insert((again + pause, key.1), attempts + 1);
                    }
                }
            }
            match outcome {
                Ok(()) => {
                    self.failures.ended("deleting objects that are no longer needed");
                    self.deleted.set(self.deleted.get() + ready.len() as u64);
                }
                Err(error) => {
                    self.failures.failed(format!("deleting objects that are no longer needed: {error}"));
                    let failures = self.failures.count();
                    runtime::sleep(Duration::from_secs(failures).min(MAX_PAUSE)).await;
                }
            }
        }
        self.is_running.set(false);
    }
}
