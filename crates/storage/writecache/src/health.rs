//! Errors that outlast a request, and the end of the cache.
//!
//! A failure of the cache device is final: nothing more is written to it until the cache is opened again. An
//! error of write-back lasts until an attempt succeeds.

use block::{Error, Result};
use std::cell::{Cell, RefCell};

/// Lasting errors of a cache, and whether it is being closed.
#[derive(Debug, Default)]
pub struct Health {
    failure: RefCell<Option<Error>>,
    writeback_error: RefCell<Option<Error>>,
    closing: Cell<bool>,
}

fn result_of(error: &RefCell<Option<Error>>) -> Result<()> {
    match &*error.borrow() {
        Some(error) => Err(error.clone()),
        None => Ok(()),
    }
}

impl Health {
    /// Checks that the cache device takes writes.
    ///
    /// # Errors
    /// The failure of the cache device.
    pub fn check_device(&self) -> Result<()> {
        result_of(&self.failure)
    }

    /// Checks that the cache takes writes.
    ///
    /// # Errors
    /// The failure of the cache device; [`Error::Closed`] while the cache is being closed.
    pub fn check_open(&self) -> Result<()> {
        self.check_device()?;
        match self.closing.get() {
            true => Err(Error::closed("write cache: it is closed; open it again")),
            false => Ok(()),
        }
    }

    /// Whether the cache takes writes.
    #[inline]
    pub fn is_open(&self) -> bool {
        !self.has_failed() && !self.closing.get()
    }

    /// Checks that the last attempt at write-back succeeded.
    ///
    /// # Errors
    /// Its error.
    pub fn check_writeback(&self) -> Result<()> {
        result_of(&self.writeback_error)
    }

    /// Whether the cache device failed.
    pub fn has_failed(&self) -> bool {
        self.failure.borrow().is_some()
    }

    /// Notes the failure of the cache device. Only the first one counts.
    pub fn fail(&self, error: &Error) {
        if self.has_failed() {
            return;
        }
        tracing::error!("write cache: a record could not be written, further writes fail: {error}");
        *self.failure.borrow_mut() = Some(error.with_detail(format!(
            "the write cache takes no more writes; its cached blocks are still read and written back: {}",
            error.detail()
        )));
    }

    /// Notes that an attempt at write-back failed and will be repeated.
    pub fn writeback_failed(&self, error: Error) {
        if self.writeback_error.replace(Some(error.clone())).is_none() {
            tracing::warn!("write cache: write-back failed, it is retried: {error}");
        }
    }

    /// Notes that an attempt at write-back succeeded.
    pub fn writeback_succeeded(&self) {
        *self.writeback_error.borrow_mut() = None;
    }

    /// Takes no more writes: the cache is being closed.
    pub fn close(&self) {
        self.closing.set(true);
    }

    /// Whether the cache is being closed.
    pub fn is_closing(&self) -> bool {
        self.closing.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_final_and_an_error_of_write_back_is_not() {
        let health = Health::default();
        assert_eq!((health.check_open(), health.check_writeback()), (Ok(()), Ok(())));
        health.writeback_failed(Error::io("first"));
        health.writeback_failed(Error::io("second"));
        assert_eq!(health.check_writeback(), Err(Error::io("second")));
        health.writeback_succeeded();
        assert_eq!(health.check_writeback(), Ok(()));
        health.fail(&Error::io("one"));
        health.fail(&Error::io("other"));
        health.close();
        let error = health.check_open().expect_err("it failed");
        assert!(error.detail().ends_with("one") && health.check_device() == Err(error), "the first failure");
    }
}
