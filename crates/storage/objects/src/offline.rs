//! Work on a volume without opening it for writing: what operators ask about a bucket, and do to it.
//!
//! # Promises
//! - Only [`Volume::fence`] ends the work of the volume's writer; only [`Volume::collect`] deletes objects.
//!   Everything else reads.
//! - The key store is read for the check of data alone, and never written.
//! - Memory is bounded by the zone table, and by the limits of the listings.
//!
//! `survey`: the objects of the prefix, compared with the manifests. `check`, `collect`, `fence`, `status`.

mod check;
mod collect;
mod fence;
mod status;
mod survey;

pub use check::{CheckReport, Damage};
pub use collect::Collected;
pub use fence::{Epoch, Seal};
pub use survey::Count;

use crate::core::{Core, Settings};
use crate::encryption::{self, Encryption};
use crate::looking::{Looked, look};
use crate::manifests::{Identity, Manifests};
use crate::names::Names;
use crate::opening::{self, Opened};
use crate::part::Options;
use crate::readable::Readable;
use block::{Claim, Error, Result};
use object_store::{Counts, Store};
use std::rc::Rc;

/// A volume in a bucket that isn't opened.
#[derive(Debug)]
pub struct Volume {
    manifests: Manifests,
    settings: Settings,
    /// Name of this program for operators.
    writer: String,
    /// Key, and the key store if data can be read.
    encryption: Option<Encryption>,
}

impl Volume {
    /// Returns the volume of these options. Sends no request.
    ///
    /// # Errors
    /// [`Error::Invalid`] for options that can't be.
    pub fn new(options: Options) -> Result<Volume> {
        let Options { store, prefix, writer, settings, encryption, .. } = options;
        let keys = encryption::keys_of_manifests(encryption.as_ref())?;
        let manifests = Manifests::new(Store::new(store)?, Names::new(&prefix)?, keys);
        Ok(Volume { manifests, settings, writer, encryption })
    }

    /// URL of the bucket.
    pub fn bucket(&self) -> &str {
        self.manifests.store.name()
    }

    /// Prefix of all keys.
    pub fn prefix(&self) -> &str {
        self.manifests.names.prefix()
    }

    /// Counters of the client.
    pub fn counts(&self) -> Counts {
        self.manifests.store.counts()
    }

    /// Looks at the volume.
    async fn look(&self) -> Result<Looked> {
        look(&self.manifests).await?.ok_or_else(|| opening::no_volume(&self.manifests))
    }

    /// Looks at the volume, and returns zones that read this state.
    async fn look_to_read(&self) -> Result<(Looked, Rc<Core>)> {
        let keys = encryption::keys(self.encryption.as_ref())?;
        let manifests = Manifests { keys, ..self.manifests.clone() };
        let found = Readable::find(&manifests, self.encryption.as_ref()).await?;
        let found = found.ok_or_else(|| opening::no_volume(&manifests))?;
        let refusal = Error::read_only("the zones of a bucket are only looked at");
        let core = read_only(manifests, self.settings, &found, refusal)?;
        Ok((found.looked, core))
    }
}

/// Returns zones with the state of a look. They send requests for reads only; changes are refused with this
/// error.
///
/// # Errors
/// [`Error::Invalid`] for settings that can't be.
pub(crate) fn read_only(
    manifests: Manifests,
    settings: Settings,
    found: &Readable,
    refusal: Error,
) -> Result<Rc<Core>> {
    let Readable { looked, secrets } = found;
    let last = &looked.manifest;
    let writer = last.writer.clone();
    let identity = Identity { volume: last.volume, epoch: last.epoch, writer };
    let mut table = looked.table.clone();
    table.interrupt();
    let position =
        crate::bases::Position { number: last.number, base: last.link, base_bytes: 0, delta_bytes: 0 };
    let claim =
        Claim { number: last.epoch.into(), writer: last.writer.name.clone(), time: last.time, token: None };
    let opened = Opened { identity, claim, table, position, garbage: Vec::new(), was_unclean: false };
    let core = Core::new(manifests, settings, opened, secrets.clone())?;
    core.refuse_changes(refusal);
    Ok(core)
}
