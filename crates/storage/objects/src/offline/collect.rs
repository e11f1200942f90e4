//! Deletion of garbage without opening the volume.
//!
//! # Promises
//! - Only what no state of the volume will ever need is deleted: pieces without a manifest of writers that
//!   have ended, and manifests before the newest base. So it is safe while a writer runs, whose own garbage
//!   is left to it.
//! - An object is deleted at the earliest a grace after it was needed last, for readers of earlier manifests.
//!
//! Left to others: what is garbage (`survey`).

use super::Volume;
use super::survey::{Count, survey};
use block::{Error, Result};
use object_store::MAX_BATCH;
use std::time::Duration;

/// Outcome of a search for garbage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Collected {
    /// Objects that nothing needs.
    pub garbage: Count,
    /// Objects that no manifest names, and that a writer may still need.
    pub unsettled: Count,
    /// Objects that were deleted.
    pub deleted: u64,
    /// Time that was waited for the grace.
    pub waited: Duration,
}

impl Volume {
    /// Finds the objects that nothing needs, and deletes them after the grace, unless it is only `dry`.
    /// `listed` gets the number of listed objects, `deleted` that of deleted ones and of all.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no volume; [`Error::Corrupt`] and [`Error::Unsupported`] if its
    /// manifests can't be read; the first error of the store.
    pub async fn collect(
        &self,
        is_dry: bool,
        listed: &dyn Fn(u64),
        deleted: &dyn Fn(u64, u64),
    ) -> Result<Collected> {
        let looked = self.look().await?;
        let survey = survey(&self.manifests, &looked, listed).await?;
        let mut collected =
            Collected { garbage: survey.garbage, unsettled: survey.unsettled, ..Collected::default() };
        if is_dry || survey.names.is_empty() {
            return Ok(collected);
        }
        let total = survey.names.len() as u64;
        deleted(0, total);
        // The time of the last manifest isn't that of its creation, which an outage delays.
        collected.waited = self.settings.grace;
        runtime::sleep(collected.waited).await;
        let mut failure = None::<Error>;
        for batch in survey.names.chunks(MAX_BATCH) {
            let keys: Vec<String> = batch.iter().map(|name| self.manifests.names.key(*name)).collect();
            match self.manifests.store.delete_batch(&keys).await {
                Ok(()) => collected.deleted += batch.len() as u64,
                Err(error) => failure = failure.or(Some(error)),
            }
            deleted(collected.deleted, total);
        }
        let rest = total - collected.deleted;
        match failure {
            None => Ok(collected),
            Some(error) => Err(error.in_context(format!("{rest} of {total} objects may not be deleted"))),
        }
    }
}
