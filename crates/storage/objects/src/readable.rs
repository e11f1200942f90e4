//! A state of a volume with the secrets of its zones, for those who only read it: beside the writer, whose
//! key store they share or have a copy of.
//!
//! # Promises
//! - Nothing is written: neither to the bucket nor to the key store.
//! - A reset is durable in the bucket before its secret is overwritten. So secrets that are read after a
//!   state are those of its data, or later ones; then a newer state is looked for, with those zones empty.
//! - A bucket that shows no state as new as the key store was rolled back: that is an error, once requests
//!   for single objects have shown it.
//!
//! A copy of the key store that is older than the data lacks secrets: reads of those zones fail, and others
//! are served.
//!
//! Left to others: states (`looking`), slots of the device (`key_store`).

use crate::encryption::Encryption;
use crate::format::hex;
use crate::key_store::KeyStore;
use crate::looking::{Looked, follow, is_last, look};
use crate::manifests::Manifests;
use block::{Error, Result};
use std::rc::Rc;

/// Attempts to find a state whose secrets are there, each of which may be overtaken by a reset.
const ATTEMPTS: u32 = 4;

/// A state, and the secrets of its zones.
pub(crate) struct Readable {
    pub looked: Looked,
    /// The key store as this state needs it; `None` without one.
    pub secrets: Option<Rc<KeyStore>>,
}

/// Refuses a volume in place of another one.
fn check_same(before: &Looked, now: &Looked) -> Result<()> {
    let shape = |looked: &Looked| (looked.table.zones.len(), looked.table.zone_size, looked.manifest.volume);
    match shape(before) == shape(now) {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "another volume, {}, was created in place of {}; expected the same one: open it again",
            hex(&now.manifest.volume),
            hex(&before.manifest.volume)
        ))),
    }
}

impl Readable {
    /// Looks at a volume; `None` if there is none.
    ///
    /// # Errors
    /// Errors of [`look`] and of [`KeyStore::open`]; [`Error::Invalid`] for the key store of another
    /// volume; [`Error::Corrupt`] for a bucket that was rolled back.
    pub async fn find(manifests: &Manifests, encryption: Option<&Encryption>) -> Result<Option<Readable>> {
        let part = encryption.and_then(|encryption| encryption.key_store.as_ref());
        let secrets = match part {
            Some(part) => Some(KeyStore::open(part).await?),
            None => None,
        };
        let Some(looked) = look(manifests).await? else { return Ok(None) };
        match secrets {
            Some(secrets) => Readable::with_secrets(manifests, looked, &secrets).await.map(Some),
            None => Ok(Some(Readable { looked, secrets: None })),
        }
    }

    /// Follows a volume to its newest state; `None` if there is none.
    ///
    /// # Errors
    /// As [`find`](Self::find); [`Error::Invalid`] if another volume was created in its place.
    pub async fn follow(&self, manifests: &Manifests) -> Result<Option<Readable>> {
        let Some(looked) = follow(manifests, &self.looked).await? else { return Ok(None) };
        check_same(&self.looked, &looked)?;
        match &self.secrets {
            Some(secrets) => Readable::with_secrets(manifests, looked, secrets).await.map(Some),
            None => Ok(Some(Readable { looked, secrets: None })),
        }
    }

    /// Reads the secrets that a state needs beyond the known ones.
    async fn with_secrets(manifests: &Manifests, mut looked: Looked, known: &KeyStore) -> Result<Readable> {
        let mut attempt = 1;
        loop {
            known.check_volume(&looked.manifest.volume, &looked.table)?;
            let secrets = Rc::new(known.refreshed(&looked.table).await?);
            let aged = secrets.check_age(&looked.table);
            if aged.is_ok() || attempt == ATTEMPTS {
                return Ok(Readable { looked, secrets: Some(secrets) });
            }
            attempt += 1;
            match follow(manifests, &looked).await? {
                Some(later) => looked = later,
                None if is_last(manifests, &looked).await? => aged?,
                None => {}
            }
        }
    }
}
