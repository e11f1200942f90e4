//! The fence without an opening.
//!
//! # Promises
//! - Once [`Volume::fence`] has returned, no flush, finish or reset of the writer that it names is
//!   acknowledged. The volume has no writer until the next opening.
//! - [`Volume::epoch`] writes nothing.
//!
//! Left to others: the seal (`opening`).

use super::Volume;
use crate::format::{Kind, Writer};
use crate::manifests::{Identity, Newest, age_of};
use crate::opening::{self, last_epoch};
use crate::retry;
use block::{Error, Result};

/// Attempts, each of which may be overtaken by an opening.
const ATTEMPTS: u32 = 8;

/// The last epoch of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Epoch {
    /// Number of the epoch.
    pub epoch: u32,
    /// Name of the writer; `None` if its last manifest is damaged.
    pub writer: Option<String>,
    /// Time of the last manifest, in milliseconds since 1970 by the writer's clock.
    pub time: Option<u64>,
    /// Whether the writer was closed.
    pub is_closed: bool,
    /// The seal that ended it before, if there was one.
    pub sealed: Option<Seal>,
}

/// End of an epoch by another one than its writer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seal {
    /// Name of the creator.
    pub creator: String,
    /// Time, in milliseconds since 1970 by the creator's clock.
    pub time: u64,
}

impl Epoch {
    /// Describes the writer, and when it wrote last.
    pub fn describe(&self) -> String {
        let name = self.writer.as_deref().unwrap_or("(its last manifest is damaged)").escape_debug();
        let last = self.time.map_or_else(String::new, |time| format!(", last manifest {}", age_of(time)));
        format!("epoch {}, writer \"{name}\"{last}", self.epoch)
    }
}

impl Volume {
    /// Returns the last epoch, and its newest manifest. Nothing is written.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no volume; [`Error::Unsupported`] for another version and without its
    /// key; [`Error::Corrupt`] if a manifest is lost; errors of the store.
    pub async fn epoch(&self) -> Result<Epoch> {
        let (epoch, newest) = self.newest().await?;
        self.describe(epoch, &newest).await
    }

    async fn newest(&self) -> Result<(u32, Newest)> {
        let is_overtaken = |error: &Error| matches!(error, Error::Corrupt(_));
        let found = retry::while_overtaken(ATTEMPTS, is_overtaken, async |_| {
            let epoch = last_epoch(&self.manifests).await?;
            if epoch == 0 {
                return Ok(None);
            }
            let numbers = self.manifests.numbers(epoch).await?;
            self.manifests.newest(epoch, &numbers).await.map(|newest| Some((epoch, newest)))
        });
        match found.await? {
            // Of another version, or with another key: what a seal does there isn't known.
            Some((_, Newest { manifest: Err(error @ Error::Unsupported(_)), .. })) => Err(error),
            Some(found) => Ok(found),
            None => {
                opening::check_empty(&self.manifests).await?;
                Err(opening::no_volume(&self.manifests))
            }
        }
    }

    async fn describe(&self, epoch: u32, newest: &Newest) -> Result<Epoch> {
        let manifest = newest.manifest.as_ref().ok();
        let sealed = match newest.is_sealed() {
            true => self.manifests.get(epoch, newest.number + 1).await?,
            false => None,
        };
        let sealed = sealed.filter(|seal| seal.kind == Kind::Seal);
        Ok(Epoch {
            epoch,
            writer: manifest.map(|manifest| manifest.writer.name.clone()),
            time: manifest.map(|manifest| manifest.time),
            is_closed: manifest.is_some_and(|manifest| manifest.is_clean),
            sealed: sealed.map(|seal| Seal { creator: seal.writer.name, time: seal.time }),
        })
    }

    /// Ends the acknowledgements of the volume's writer, and returns whose. A writer that is only opening the
    /// volume continues.
    ///
    /// # Errors
    /// Errors of [`epoch`](Self::epoch); [`Error::Busy`] if writers are faster each time.
    pub async fn fence(&self) -> Result<Epoch> {
        let writer = Writer::new(format!("siltstone objects fence, {}", self.writer));
        for _ in 0..ATTEMPTS {
            let (epoch, newest) = self.newest().await?;
            let volume = newest.manifest.as_ref().map_or([0; 16], |manifest| manifest.volume);
            let before = self.describe(epoch, &newest).await?;
            let identity = Identity { volume, epoch, writer: writer.clone() };
            let newest = opening::fence(&self.manifests, &identity, newest).await?;
            // A writer that has claimed an epoch meanwhile isn't fenced by this seal.
            if last_epoch(&self.manifests).await? == epoch {
                let Epoch { writer, time, is_closed, .. } = self.describe(epoch, &newest).await?;
                return Ok(Epoch { writer, time, is_closed, ..before });
            }
        }
        Err(Error::busy(format!(
            "after {ATTEMPTS} attempts the volume has a newer writer each time; expected one at a time: stop the others, and try \
             again"
        )))
    }
}
