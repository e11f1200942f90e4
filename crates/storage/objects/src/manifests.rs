//! Manifests in the bucket: numbered objects that are created only if they are absent.

use crate::format::{Kind, Manifest, VolumeId, Writers};
use crate::names::{Name, Names};
use block::{Data, Error, Result};
use object_store::{Condition, Put, Store};

/// Largest manifest, in bytes: a base with 30 million pieces.
pub(crate) const MAX_MANIFEST: usize = 512 << 20;

/// Identity of a volume and of this writer of it.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub volume: VolumeId,
    pub epoch: u32,
    pub writer: Writers,
}

/// Outcome of the creation of a manifest.
#[derive(Debug)]
pub(crate) enum Created {
    /// The object is this writer's.
    Ours,
    /// There is this manifest of another writer.
    Others(Manifest),
}

/// Manifests of a bucket.
#[derive(Debug, Clone)]
pub(crate) struct Manifests {
    pub store: Store,
    pub names: Names,
}

fn now() -> u64 {
    u64::try_from(runtime::wall_clock().as_millis()).unwrap_or(u64::MAX)
}

/// Time in milliseconds since 1970, for operators.
pub(crate) fn age_of(time: u64) -> String {
    format!("{} s ago", now().saturating_sub(time) / 1000)
}

impl Identity {
    /// Returns a manifest of this writer, with the present time.
    pub fn manifest(&self, number: u64, kind: Kind, link: u64, body: Vec<u8>) -> Manifest {
        Manifest {
            volume: self.volume,
            writer: self.writer.clone(),
            epoch: self.epoch,
            number,
            kind,
            is_clean: false,
            link,
            time: now(),
            body,
        }
    }
}

impl Manifests {
    /// Key of a manifest.
    pub fn key(&self, epoch: u32, number: u64) -> String {
        self.names.key(Name::Manifest { epoch, number })
    }

    /// Reads a manifest; `None` if it doesn't exist.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it is damaged, with its key; errors of the store.
    pub async fn get(&self, epoch: u32, number: u64) -> Result<Option<Manifest>> {
        let key = self.key(epoch, number);
        match self.store.get(&key, MAX_MANIFEST).await {
            Ok(object) => {
                let decoded = Manifest::decode(object.data.filled(), epoch, number);
                decoded.map(Some).map_err(|error| error.in_context(format!("object {key}")))
            }
            Err(Error::NotFound(text)) if !text.contains("NoSuchBucket") => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Creates a manifest if there is none of its number. It may be called again with the same bytes after an
    /// error, whose outcome is unknown: a manifest of this writer that is there already is a success.
    ///
    /// # Errors
    /// Errors of the store; the manifest may have been created.
    pub async fn create(&self, manifest: &Manifest, bytes: &Data) -> Result<Created> {
        let key = self.key(manifest.epoch, manifest.number);
        if let Put::Written(_) = self.store.put(&key, bytes.clone().into(), &Condition::Absent).await? {
            return Ok(Created::Ours);
        }
        match self.get(manifest.epoch, manifest.number).await? {
            Some(found) if found.writer.id == manifest.writer.id => Ok(Created::Ours),
            Some(found) => Ok(Created::Others(found)),
            None => Err(Error::io(format!("object {key}: the store refuses it as existing, and has none"))),
        }
    }

    /// Numbers of the manifests of an epoch that a listing shows, in order.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn numbers(&self, epoch: u32) -> Result<Vec<u64>> {
        let (prefix, mut numbers, mut from) = (self.names.manifests_of(epoch), Vec::new(), None);
        loop {
            let page = self.store.list(&prefix, from.as_deref()).await?;
            numbers.extend(page.objects.iter().filter_map(|listed| match self.names.parse(&listed.key) {
                Some(Name::Manifest { number, .. }) => Some(number),
                _ => None,
            }));
            from = page.next;
            if from.is_none() {
                numbers.sort_unstable();
                return Ok(numbers);
            }
        }
    }
}
