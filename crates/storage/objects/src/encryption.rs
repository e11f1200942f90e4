//! Encryption as operators set it, and the keys and the key store of an opening.
//!
//! # Promises
//! - A device that can't be the key store is refused before anything is claimed.
//! - An opening that returns has a key store with the secrets of all zones, except those that are lost or
//!   can't be read, which it logs.
//!
//! Left to others: the cipher (`seal`), the device (`key_store`), keys of zones (`core::keys`).

use crate::format::VolumeId;
use crate::key_store::{self, KeyStore};
use crate::seal::Keys;
use crate::table::Table;
use block::{DevicePart, EraseGuarantee, Result};
use crypt::secret::Secret;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

/// Encryption of a volume.
#[derive(Clone)]
pub struct Encryption {
    /// The operator's key, of 32 bytes.
    pub key: Arc<Secret>,
    /// Device with a secret for each zone, so that a reset destroys the key of a zone. What is overwritten on
    /// it must be lost, and it has one user at a time.
    pub key_store: Option<Arc<dyn DevicePart>>,
}

impl Encryption {
    /// Guarantee of a reset.
    pub(crate) fn guarantee(&self) -> EraseGuarantee {
        guarantee(self.key_store.is_some())
    }
}

/// Guarantee of a reset of zones with or without a key store.
pub(crate) fn guarantee(has_key_store: bool) -> EraseGuarantee {
    if has_key_store { EraseGuarantee::Key } else { EraseGuarantee::None }
}

/// Name of the cipher of a volume, for the status.
pub(crate) fn cipher(is_encrypted: bool) -> &'static str {
    if is_encrypted { "XAES-256-GCM" } else { "none" }
}

impl fmt::Debug for Encryption {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Encryption {{ key_store: {} }}", self.key_store.is_some())
    }
}

/// Derives the keys, and reads the key store of an existing volume; of a new one with this number of zones
/// only the size of the device is checked.
///
/// # Errors
/// Errors of [`Keys::new`] and [`KeyStore::open`]; [`block::Error::Invalid`] for a device that is too small.
pub(crate) async fn open(
    encryption: Option<&Encryption>,
    new_zones: Option<u32>,
) -> Result<(Option<Rc<Keys>>, Option<KeyStore>)> {
    let Some(Encryption { key, key_store }) = encryption else { return Ok((None, None)) };
    let keys = Rc::new(Keys::new(key.get(), key_store.is_some())?);
    let Some(part) = key_store else { return Ok((Some(keys), None)) };
    let device = part.open().await?;
    key_store::check_writable(device.geometry())?;
    let store = match new_zones {
        Some(zones) => {
            key_store::check_device(device.geometry(), zones)?;
            None
        }
        None => Some(KeyStore::open(part).await?),
    };
    Ok((Some(keys), store))
}

/// Keys of a volume whose zones are read.
///
/// # Errors
/// Errors of [`Keys::new`].
pub(crate) fn keys(encryption: Option<&Encryption>) -> Result<Option<Rc<Keys>>> {
    let keys = encryption.map(|Encryption { key, key_store }| Keys::new(key.get(), key_store.is_some()));
    keys.transpose().map(|keys| keys.map(Rc::new))
}

/// Keys of a volume of which only manifests are read, so that it doesn't matter whether it has a key store.
///
/// # Errors
/// Errors of [`Keys::new`].
pub(crate) fn keys_of_manifests(encryption: Option<&Encryption>) -> Result<Option<Rc<Keys>>> {
    let keys = encryption.map(|Encryption { key, .. }| Keys::of_manifests(key.get()));
    keys.transpose().map(|keys| keys.map(Rc::new))
}

/// Reads and completes the key store of an opened volume, or creates that of a new one.
///
/// # Errors
/// Errors of the device, and of the checks of [`KeyStore`].
pub(crate) async fn complete(
    encryption: Option<&Encryption>,
    is_new: bool,
    volume: VolumeId,
    table: &Table,
) -> Result<Option<KeyStore>> {
    let part = encryption.and_then(|encryption| encryption.key_store.as_ref());
    let Some(part) = part else { return Ok(None) };
    let store = if is_new {
        KeyStore::create(part, volume, table.zones.len() as u32).await?
    } else {
        // Again: the writer before may have renewed secrets until it was fenced.
        let store = KeyStore::open(part).await?;
        store.check_volume(&volume, table)?;
        store.check_age(table)?;
        store
    };
    store.complete(table).await?;
    match (store.lost(), store.unread()) {
        (0, 0) => {}
        (lost, 0) => tracing::warn!(
            "zones in an object store: the key store lacks the secrets of {lost} zones, whose data can't be read: it is \
             damaged, or an older copy"
        ),
        (lost, unread) => tracing::warn!(
            "zones in an object store: the key store can't be read in part (blocks: {unread}): {lost} zones have data that can't be read, and \
             empty zones with secrets there take none; mend its device, or put a copy in its place, and open again"
        ),
    }
    Ok(Some(store))
}

#[cfg(test)]
mod tests;
