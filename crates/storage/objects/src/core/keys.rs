//! Keys of zones in their generations, and serial numbers of pieces.
//!
//! # Promises
//! - A key is that of one generation of a zone, and is derived at each use: once a reset has destroyed its
//!   secret, it isn't found any more.
//! - In an encrypted volume no two writers have the same serial numbers, also after a rollback of the bucket.
//!
//! Left to others: derivation (`seal`), secrets on the device (`key_store`), the order of a reset (`commit`).

use super::Core;
use crate::encryption;
use crate::format::{ATTEMPT_BITS, ChunkSealer, VolumeId};
use crate::key_store::{Empty, KeyStore};
use crate::names::PieceName;
use crate::open_piece::OpenPiece;
use crate::seal::{Keys, Sealer};
use block::{EraseGuarantee, Error, Result, ZoneIndex};
use std::rc::Rc;

/// Keys of a volume's zones.
pub(super) struct ZoneKeys {
    keys: Rc<Keys>,
    volume: VolumeId,
    /// Secrets of zones that a reset destroys.
    store: Option<Rc<KeyStore>>,
}

impl ZoneKeys {
    pub fn new(keys: Rc<Keys>, volume: VolumeId, store: Option<Rc<KeyStore>>) -> ZoneKeys {
        ZoneKeys { keys, volume, store }
    }

    /// Guarantee of a reset.
    pub fn guarantee(&self) -> EraseGuarantee {
        encryption::guarantee(self.store.is_some())
    }

    /// Key of a zone in a generation.
    ///
    /// # Errors
    /// Errors of [`KeyStore::secret`].
    fn of(&self, index: ZoneIndex, generation: u64) -> Result<Sealer> {
        let secret = self.store.as_ref().map(|store| store.secret(index.0, generation)).transpose()?;
        let secret = secret.as_ref().map_or(&[][..], |secret| &secret[..]);
        Ok(self.keys.zone(&self.volume, index.0, generation, secret))
    }

    /// Checks that the key of a zone can be destroyed. Nothing is changed.
    ///
    /// # Errors
    /// Errors of [`KeyStore::check_renewable`].
    pub async fn check_renewable(&self, index: ZoneIndex, empty: Empty<'_>) -> Result<()> {
        match &self.store {
            Some(store) => store.check_renewable(index.0, empty).await,
            None => Ok(()),
        }
    }

    /// Destroys the keys of a zone before this generation, and makes one for it.
    ///
    /// # Errors
    /// Errors of the key store.
    pub async fn renew(&self, index: ZoneIndex, generation: u64, empty: Empty<'_>) -> Result<()> {
        match &self.store {
            Some(store) => store.renew(index.0, generation, empty).await,
            None => Ok(()),
        }
    }
}

/// First serial number of a writer's pieces.
pub(super) fn first_serial(is_encrypted: bool) -> u64 {
    let mut drawn = [0; 8];
    if is_encrypted {
        runtime::fill_secret(&mut drawn);
    }
    u64::from_le_bytes(drawn) >> ATTEMPT_BITS << ATTEMPT_BITS | 1
}

impl Core {
    /// Whether the volume is encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.keys.is_some()
    }

    /// The key store, if there is one.
    pub fn key_store(&self) -> Option<&KeyStore> {
        self.keys.as_ref()?.store.as_deref()
    }

    /// Generation of a zone without data, as the manifests have it; `None` for one with data.
    fn generation_of_empty(&self, zone: u32) -> Option<u64> {
        self.log.with_table(|table| {
            let entry = &table.zones[zone as usize];
            entry.pieces.is_empty().then_some(entry.generation)
        })
    }

    /// Checks that the key of a zone can be destroyed. Nothing is changed.
    ///
    /// # Errors
    /// Errors of [`KeyStore::check_renewable`].
    pub(super) async fn check_renewable(&self, index: ZoneIndex) -> Result<()> {
        match &self.keys {
            Some(keys) => keys.check_renewable(index, &|zone| self.generation_of_empty(zone)).await,
            None => Ok(()),
        }
    }

    /// Destroys the keys of a zone before this generation, whose reset is durable, and makes one for it.
    ///
    /// # Errors
    /// Errors of the key store, which end the writer.
    pub(super) async fn renew(&self, index: ZoneIndex, generation: u64) -> Result<()> {
        let Some(keys) = &self.keys else { return Ok(()) };
        let renewed = keys.renew(index, generation, &|zone| self.generation_of_empty(zone)).await;
        renewed.inspect_err(|error| self.log.stop(error.clone()))
    }

    /// Key of a zone in a generation; `None` without encryption.
    ///
    /// # Errors
    /// Errors of [`KeyStore::secret`]; [`Error::NotFound`] for a zone that another machine has reset since.
    pub(crate) fn zone_key(&self, index: ZoneIndex, generation: u64) -> Result<Option<Rc<Sealer>>> {
        let key = self.keys.as_ref().map(|keys| keys.of(index, generation).map(Rc::new)).transpose();
        key.map_err(|error| match error {
            Error::Invalid(_) if self.is_reader.get() => Error::not_found(format!(
                "zone {index}: its writer has reset it and destroyed its key since the manifest that is read here; a newer manifest \
                 tells"
            )),
            other => other,
        })
    }

    /// Sealer of a new piece, with the key of the generation in its name; `None` without encryption.
    pub(super) fn sealer(&self, name: PieceName, key: Option<&Rc<Sealer>>) -> Option<ChunkSealer> {
        // With what this writer has drawn.
        let name = PieceName { serial: self.uploads.next.get(), ..name };
        key.map(|key| ChunkSealer::new(self.log.identity().volume, name, key.clone()))
    }

    /// Bytes of a new piece from this offset on, compressed and sealed as they come.
    pub(super) fn new_piece(&self, offset: u64, sealer: Option<ChunkSealer>) -> OpenPiece {
        OpenPiece::new(offset, self.compressor.clone(), sealer)
    }
}
