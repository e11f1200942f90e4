//! Write-behind: writes that are acknowledged while a lagging leg still has them outstanding; their limit,
//! and waiting for them.

use block::{Error, Result};
use runtime::sync::Notify;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

/// All outstanding write-behind writes.
#[derive(Default)]
pub struct Behind {
    most_writes: u64,
    most_bytes: u64,
    bytes: Cell<u64>,
    begun: Cell<u64>,
    open: RefCell<BTreeSet<u64>>,
    ended: Notify,
}

/// One write-behind write, outstanding until this is dropped.
pub struct Lagging {
    behind: Rc<Behind>,
    number: u64,
    bytes: u64,
    is_acknowledged: Cell<bool>,
    /// Error of the last leg, if it came before the acknowledgement.
    failure: RefCell<Option<Error>>,
}

impl Lagging {
    /// Marks the write as acknowledged.
    ///
    /// # Errors
    /// The last active leg's error, if it has failed the write meanwhile.
    pub fn acknowledge(&self) -> Result<()> {
        match self.failure.take() {
            Some(error) => Err(error),
            None => {
                self.is_acknowledged.set(true);
                Ok(())
            }
        }
    }

    /// Notes that the last leg has failed the write. Returns whether the write was already acknowledged; if
    /// not, it fails.
    pub fn fail(&self, error: &Error) -> bool {
        if !self.is_acknowledged.get() {
            *self.failure.borrow_mut() = Some(error.clone());
        }
        self.is_acknowledged.get()
    }
}

impl Behind {
    /// Creates limits of outstanding writes and of their bytes.
    pub fn new(most_writes: u64, most_bytes: u64) -> Rc<Self> {
        Rc::new(Behind { most_writes, most_bytes, ..Behind::default() })
    }

    /// Number of outstanding writes.
    pub fn writes(&self) -> u64 {
        self.open.borrow().len() as u64
    }

    /// Bytes of outstanding writes.
    pub fn bytes(&self) -> u64 {
        self.bytes.get()
    }

    /// Adds a write of this many bytes, if the limits allow it.
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

    /// Waits until all writes that are outstanding now have ended.
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
