//! Loss of acknowledged changes: none of the active legs may have them.

use block::{Error, Result};
use std::cell::RefCell;

/// Error after which acknowledged changes may be missing on all active legs. Flushes and the close return it
/// until the mirror is opened again, and no bit is cleared.
#[derive(Debug, Default)]
pub struct Loss(RefCell<Option<Error>>);

impl Loss {
    /// Notes that acknowledged changes may be on no active leg; `mirror` names the mirror. Only the first
    /// loss is kept.
    pub fn note(&self, mirror: impl std::fmt::Display, why: &str, error: &Error) {
        let text = format!(
            "mirror {mirror}: acknowledged writes may be lost: {why}: {}; open the mirror again and check its data",
            error.detail()
        );
        tracing::error!("{text}");
        self.0.borrow_mut().get_or_insert_with(|| error.with_detail(text));
    }

    /// Checks that no acknowledged changes may be missing on all active legs.
    ///
    /// # Errors
    /// The error by which they may have been lost.
    pub fn check(&self) -> Result<()> {
        self.0.borrow().clone().map_or(Ok(()), Err)
    }
}
