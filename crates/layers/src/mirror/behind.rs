//! Writes that were acknowledged before a leg that may lag had them: how many there may be, and waiting for them.

use block::{Error, Result};
use runtime::sync::Notify;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

/// All writes that are behind.
#[derive(Default)]
pub struct Behind {
    most_writes: u64,
    most_bytes: u64,
    bytes: Cell<u64>,
    begun: Cell<u64>,
    open: RefCell<BTreeSet<u64>>,
    ended: Notify,
}

/// One write that is behind, until this is dropped.
pub struct Lagging {
    behind: Rc<Behind>,
    number: u64,
    bytes: u64,
    is_acknowledged: Cell<bool>,
    /// Error of the last leg, if it came before the acknowledgement.
    failure: RefCell<Option<Error>>,
}

impl Lagging {
    /// The write is acknowledged from now on.
    ///
    /// # Errors
    /// That of the last leg, if it has failed the write meanwhile.
    pub fn acknowledge(&self) -> Result<()> {
        match self.failure.take() {
            Some(error) => Err(error),
            None => {
                self.is_acknowledged.set(true);
                Ok(())
            }
        }
    }

    /// The last leg has failed the write. Returns whether the write had been acknowledged; if not, it won't be.
    pub fn fail(&self, error: &Error) -> bool {
        if !self.is_acknowledged.get() {
            *self.failure.borrow_mut() = Some(error.clone());
        }
        self.is_acknowledged.get()
    }
}

impl Behind {
    /// At most so many, which hold at most so many bytes together.
    pub fn new(most_writes: u64, most_bytes: u64) -> Rc<Self> {
        Rc::new(Behind { most_writes, most_bytes, ..Behind::default() })
    }

    /// How many there are.
    pub fn writes(&self) -> u64 {
        self.open.borrow().len() as u64
    }

    /// How many bytes they hold.
    pub fn bytes(&self) -> u64 {
        self.bytes.get()
    }

    /// One more, if there is room.
    pub fn enter(self: &Rc<Self>, bytes: u64) -> Option<Lagging> {
        let fits = self.writes() < self.most_writes && self.bytes.get() + bytes <= self.most_bytes;
        fits.then(|| {
            self.begun.set(self.begun.get() + 1);
            self.bytes.set(self.bytes.get() + bytes);
            self.open.borrow_mut().insert(self.begun.get());
            Lagging {
                behind: self.clone(),
                number: self.begun.get(),
                bytes,
                is_acknowledged: Cell::new(false),
                failure: RefCell::default(),
            }
        })
    }

    /// Waits until all that are behind now have ended.
    pub async fn drained(&self) {
        let last = self.begun.get();
        while self.open.borrow().first().is_some_and(|first| *first <= last) {
            self.ended.notified().await;
        }
    }
}

impl Drop for Lagging {
    fn drop(&mut self) {
        self.behind.open.borrow_mut().remove(&self.number);
        self.behind.bytes.set(self.behind.bytes.get() - self.bytes);
        self.behind.ended.notify_all();
    }
}
