//! Keys of zones.

use super::Core;
use crate::format::{ATTEMPT_BITS, ChunkSealer, VolumeId};
use crate::gather::Gather;
use crate::key_store::KeyStore;
use crate::names::PieceName;
use crate::seal::{Keys, Sealer};
use block::{EraseGuarantee, Result, ZoneIndex};
use std::rc::Rc;

/// Keys of a volume's zones.
pub(super) struct ZoneKeys {
    keys: Rc<Keys>,
    volume: VolumeId,
    /// Secrets of zones that a reset destroys.
    store: Option<KeyStore>,
}

impl ZoneKeys {
    pub fn new(keys: Rc<Keys>, volume: VolumeId, store: Option<KeyStore>) -> ZoneKeys {
        ZoneKeys { keys, volume, store }
    }

    /// Guarantee of a reset.
    pub fn guarantee(&self) -> EraseGuarantee {
        if self.store.is_some() { EraseGuarantee::Key } else { EraseGuarantee::None }
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

    /// Destroys the keys of a zone before this generation, and makes one for it.
    ///
    /// # Errors
    /// Errors of the key store.
    pub async fn renew(&self, index: ZoneIndex, generation: u64) -> Result<()> {
        match &self.store {
            Some(store) => store.renew(index.0, generation).await,
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
    /// Whether the volume is encrypted, and with a key store the number of zones that had data without a
    /// secret when the volume was opened.
    pub fn encryption(&self) -> (bool, Option<u32>) {
        let store = self.keys.as_ref().and_then(|keys| keys.store.as_ref());
        (self.keys.is_some(), store.map(KeyStore::lost))
    }

    /// Key of a zone in a generation; `None` without encryption.
    ///
    /// # Errors
    /// Errors of [`KeyStore::secret`].
    pub(crate) fn zone_key(&self, index: ZoneIndex, generation: u64) -> Result<Option<Rc<Sealer>>> {
        self.keys.as_ref().map(|keys| keys.of(index, generation).map(Rc::new)).transpose()
    }

    /// Sealer of a new piece, with the key of the generation in its name; `None` without encryption.
    pub(super) fn sealer(&self, name: PieceName, key: Option<&Rc<Sealer>>) -> Option<ChunkSealer> {
        // With what this writer has drawn.
        let name = PieceName { serial: self.uploads.next.get(), ..name };
        key.map(|key| ChunkSealer::new(self.log.identity().volume, name, key.clone()))
    }

    /// Bytes of a new piece from this offset on, compressed and sealed as they come.
    pub(super) fn new_gather(&self, offset: u64, sealer: Option<ChunkSealer>) -> Gather {
        Gather::new(offset, self.compressor.clone(), sealer)
    }
}
