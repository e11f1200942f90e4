//! Manifests in the bucket: numbered objects that are created only if they are absent.
//!
//! # Promises
//! - A number has one creator: a manifest is created by one request, on condition that it is absent.
//! - A manifest is missing only if the store answers that: all other errors are returned.
//! - Errors of an object have its key. Memory is bounded by [`MAX_MANIFEST`] and the limits of listings.
//!
//! Left to others: their bytes (`format`), the chain from a base (`opening`), retries (`manifest_log`).

use crate::format::{Kind, Manifest, VolumeId, Writer, may_be_seal};
use crate::indexes::Indexes;
use crate::names::{Name, Names};
use crate::retry;
use crate::seal::Keys;
use block::{Data, Error, Result};
use object_store::{Condition, Put, Store};
use std::rc::Rc;

/// Largest manifest, in bytes: a base with 30 million pieces.
pub(crate) const MAX_MANIFEST: usize = 512 << 20;
/// Most pages of a listing of a volume: a thousand million objects.
pub(crate) const MAX_PAGES: usize = 1 << 20;
/// Most pages of a listing of an epoch: a writer has some thousand manifests until the grace is over.
const MAX_PAGES_OF_EPOCH: usize = 10_000;
/// Attempts to find the end of an epoch whose manifests are being deleted.
const ATTEMPTS: u32 = 4;
/// Most seals of an epoch: each opening creates a few, unless it ends early.
const MAX_SEALS: usize = 10_000;
/// Manifests that are read at the same time.
pub(crate) const READERS: usize = 32;
/// Longest of several manifests that are read at the same time to find the last one that isn't a seal; longer
/// ones are read one after the other.
const MAX_SMALL: usize = 16 << 20;

/// Identity of a volume and of this writer of it.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub volume: VolumeId,
    pub epoch: u32,
    pub writer: Writer,
}

/// Outcome of the creation of a manifest.
#[derive(Debug)]
pub(crate) enum Created {
    /// The object is this writer's.
    Ours,
    /// There is this manifest of another writer.
    Others(Manifest),
}

/// End of an epoch's manifests.
pub(crate) struct Newest {
    /// Number of the last manifest that is not a seal.
    pub number: u64,
    /// Last manifest that is not a seal, or the error of damaged bytes.
    pub manifest: Result<Manifest>,
    /// Numbers of the seals after it, in order. There may be gaps, which their creator didn't get to.
    pub seals: Vec<u64>,
}

impl Newest {
    /// Whether the next number is a seal, so that the writer of the epoch creates no manifest any more.
    pub fn is_sealed(&self) -> bool {
        is_sealed(self.number, &self.seals)
    }
}

/// Manifests of a bucket.
#[derive(Debug, Clone)]
pub(crate) struct Manifests {
    pub store: Store,
    pub names: Names,
    /// Keys of an encrypted volume.
    pub keys: Option<Rc<Keys>>,
    /// Indexes of compressed pieces, for all states that are read.
    pub indexes: Indexes,
}

/// Present time, in milliseconds since 1970.
pub(crate) fn now() -> u64 {
    u64::try_from(runtime::wall_clock().as_millis()).unwrap_or(u64::MAX)
}

/// Time in milliseconds since 1970, for operators.
pub(crate) fn age_of(time: u64) -> String {
    format!("{} s ago", now().saturating_sub(time) / 1000)
}

/// Whether nothing needs an object of an ended epoch once the next one has a base. Needed are the claim, and
/// the seals after the `last` other manifest.
fn is_old(name: &Name, last: u64) -> bool {
    match name {
        Name::Manifest { number, .. } => (1..=last).contains(number),
        Name::Base { .. } => true,
        Name::Piece(_) => false,
    }
}

/// Whether the number after `last` is the first one of these seals: then the writer of the epoch creates no
/// manifest any more.
pub(crate) fn is_sealed(last: u64, seals: &[u64]) -> bool {
    last.checked_add(1).is_some_and(|next| seals.first() == Some(&next))
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
            is_compressed: false,
            link,
            time: now(),
            body,
        }
    }
}

impl Manifests {
    /// Returns the manifests of a bucket; no index of a piece is known yet.
    pub fn new(store: Store, names: Names, keys: Option<Rc<Keys>>) -> Manifests {
        Manifests { store, names, keys, indexes: Indexes::default() }
    }

    /// Key of a manifest.
    pub fn key(&self, epoch: u32, number: u64) -> String {
        self.names.key(Name::Manifest { epoch, number })
    }

    /// Bytes of a manifest.
    pub fn encode(&self, manifest: &Manifest) -> Data {
        Data::copy_of(&manifest.encode(self.keys.as_deref()))
    }

    /// Whether the volume is encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.keys.is_some()
    }

    /// Reads a manifest; `None` if it doesn't exist.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it is damaged, with its key; errors of the store.
    pub async fn get(&self, epoch: u32, number: u64) -> Result<Option<Manifest>> {
        self.get_within(MAX_MANIFEST, epoch, number).await
    }

    /// Reads a manifest of at most `limit` bytes; `None` if it doesn't exist.
    ///
    /// # Errors
    /// As [`get`](Self::get); [`Error::Protocol`] for a longer one.
    pub async fn get_within(&self, limit: usize, epoch: u32, number: u64) -> Result<Option<Manifest>> {
        self.get_named(limit, Name::Manifest { epoch, number }, epoch, number).await
    }

    /// Reads a base; `None` if it doesn't exist.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub async fn get_base(&self, epoch: u32, number: u64) -> Result<Option<Manifest>> {
        self.get_named(MAX_MANIFEST, Name::base(epoch, number), epoch, number).await
    }

    async fn get_named(&self, limit: usize, name: Name, epoch: u32, number: u64) -> Result<Option<Manifest>> {
        let key = self.names.key(name);
        match self.store.get(&key, limit).await {
            Ok(object) => {
                let decoded = Manifest::decode(object.data.filled(), epoch, number, self.keys.as_deref());
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
        // By one request: the condition of other ones isn't checked when formatting.
        if let Put::Written(_) = self.store.put_whole(&key, bytes.clone().into(), &Condition::Absent).await? {
            return Ok(Created::Ours);
        }
        match self.get(manifest.epoch, manifest.number).await? {
            Some(found) if found.writer.id == manifest.writer.id => Ok(Created::Ours),
            Some(found) => Ok(Created::Others(found)),
            None => Err(Error::io(format!(
                "object {key}: the store refuses to create it since it exists, and has none; expected one or the other: it is tried \
                 again, and if that doesn't end, this store's conditional writes aren't atomic: use another one"
            ))),
        }
    }

    /// Error of a manifest that must be there.
    pub fn lost(&self, name: Name) -> Error {
        Error::corrupt(format!(
            "object {}: it is missing; expected a manifest, since a later one continues it",
            self.names.key(name)
        ))
    }

    /// Passes on the names of the objects that begin with a prefix, in order, without those of other
    /// programs.
    ///
    /// # Errors
    /// Errors of [`list_all`](Self::list_all).
    pub async fn list(&self, prefix: &str, max_pages: usize, mut take: impl FnMut(Name)) -> Result<()> {
        let take = |key: &str, _| self.names.parse(key).into_iter().for_each(&mut take);
        self.list_all(prefix, max_pages, take).await
    }

    /// Passes on keys and lengths of all objects that begin with a prefix, in the order of their keys.
    ///
    /// # Errors
    /// [`Error::Protocol`] for more than `max_pages` pages; errors of the store.
    pub async fn list_all(
        &self,
        prefix: &str,
        max_pages: usize,
        mut take: impl FnMut(&str, u64),
    ) -> Result<()> {
        let mut from = None;
        for _ in 0..max_pages {
            let page = self.store.list(prefix, from.as_deref()).await?;
            page.objects.iter().for_each(|listed| take(&listed.key, listed.length));
            from = page.next;
            if from.is_none() {
                return Ok(());
            }
        }
        Err(Error::protocol(format!(
            "object store \"{}\": the listing of {prefix} has more than {max_pages} pages; expected an end",
            self.store.name()
        )))
    }

    /// Names of all manifests of an epoch that a listing shows, bases included.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn of_epoch(&self, epoch: u32) -> Result<Vec<Name>> {
        let mut names = Vec::new();
        self.list(&self.names.manifests_of(epoch), MAX_PAGES_OF_EPOCH, |name| names.push(name)).await?;
        Ok(names)
    }

    /// Numbers of the manifests of an epoch that a listing shows, in order, from its claim on. The listing
    /// may be of a moment before the claim.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn numbers(&self, epoch: u32) -> Result<Vec<u64>> {
        let number = |name| match name {
            Name::Manifest { number, .. } => Some(number),
            Name::Piece(_) | Name::Base { .. } => None,
        };
        let mut numbers: Vec<u64> = self.of_epoch(epoch).await?.into_iter().filter_map(number).collect();
        numbers.sort_unstable();
        if numbers.first() != Some(&0) {
            numbers.insert(0, 0);
        }
        Ok(numbers)
    }

    /// Lists the objects of an ended epoch that nothing needs once the next one has a base. `last` is the
    /// number of its last manifest that isn't a seal.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn list_old(&self, epoch: u32, last: u64) -> Result<Vec<Name>> {
        let mut names = self.of_epoch(epoch).await?;
        names.retain(|name| is_old(name, last));
        Ok(names)
    }

    /// Chooses those of an ended epoch's manifests that nothing needs once the next one has a base, from all
    /// numbers of a listing. The next writer may delete them meanwhile; then another listing is made.
    ///
    /// A damaged one before the seals may be the seal that fences the writer of the epoch, and is kept.
    /// Without a seal after it all are kept.
    ///
    /// # Errors
    /// Errors of [`newest`](Self::newest).
    pub async fn old_of(&self, epoch: u32, numbers: &[u64]) -> Result<Vec<Name>> {
        let is_overtaken = |error: &Error| matches!(error, Error::Corrupt(_));
        retry::while_overtaken(ATTEMPTS, is_overtaken, async |attempt| match attempt {
            1 => self.old_among(epoch, numbers).await,
            _ => self.old_among(epoch, &self.numbers(epoch).await?).await,
        })
        .await
    }

    async fn old_among(&self, epoch: u32, numbers: &[u64]) -> Result<Vec<Name>> {
        if numbers.iter().filter(|number| **number > 0).count() < 2 {
            // The seal alone.
            return Ok(Vec::new());
        }
        let newest = self.newest(epoch, numbers).await?;
        let mut last = newest.number;
        if let Err(error) = &newest.manifest {
            if newest.seals.is_empty() {
                tracing::warn!(
                    "manifests of epoch {epoch}: {error}; it may be a seal: all of them are kept; restore the object"
                );
                return Ok(Vec::new());
            }
            for number in numbers.iter().rev().filter(|number| **number <= newest.number) {
                last = *number;
                if !self.may_be_seal(epoch, last).await? {
                    break;
                }
                tracing::warn!(
                    "object {}: it may be a seal, and is kept; restore the object",
                    self.key(epoch, last)
                );
                last = last.saturating_sub(1);
            }
        }
        let names = numbers.iter().map(|number| Name::Manifest { epoch, number: *number });
        Ok(names.filter(|name| is_old(name, last)).collect())
    }

    /// Whether a manifest is a seal, or damaged so that it may be one.
    async fn may_be_seal(&self, epoch: u32, number: u64) -> Result<bool> {
        let object = match self.store.get(&self.key(epoch, number), MAX_MANIFEST).await {
            Err(Error::NotFound(_)) => return Err(self.lost(Name::Manifest { epoch, number })),
            // Another checksum than that of the store.
            Err(Error::Corrupt(_)) => return Ok(true),
            found => found?,
        };
        let bytes = object.data.filled();
        match Manifest::decode(bytes, epoch, number, self.keys.as_deref()) {
            Ok(manifest) => Ok(manifest.kind == Kind::Seal),
            Err(_) => Ok(may_be_seal(bytes)),
        }
    }

    /// Finds the last of these manifests that isn't a seal.
    ///
    /// A seal that isn't the end (one that took the number of a deleted manifest) is before a base, so this
    /// passes none of them.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if one of them is missing; errors of the store.
    pub async fn newest(&self, epoch: u32, numbers: &[u64]) -> Result<Newest> {
        let (mut rest, mut group, mut seals) = (numbers, 1, Vec::new());
        while !rest.is_empty() && seals.len() <= MAX_SEALS {
            let (before, group_numbers) = rest.split_at(rest.len().saturating_sub(group));
            let reads = group_numbers
                .iter()
                .map(async |number| (*number, self.get_within(MAX_SMALL, epoch, *number).await));
            for (number, read) in runtime::join_limited(READERS, reads).await.into_iter().rev() {
                let read = match read {
                    Err(Error::Protocol(_)) => self.get(epoch, number).await,
                    read => read,
                };
                let manifest = match read {
                    Ok(Some(manifest)) if manifest.kind == Kind::Seal => {
                        seals.push(number);
                        continue;
                    }
                    Ok(Some(manifest)) => Ok(manifest),
                    Ok(None) => return Err(self.lost(Name::Manifest { epoch, number })),
                    Err(error @ (Error::Corrupt(_) | Error::Unsupported(_))) => Err(error),
                    Err(error) => return Err(error),
                };
                seals.reverse();
                return Ok(Newest { number, manifest, seals });
            }
            (rest, group) = (before, READERS);
        }
        Err(match seals.len() {
            count if count > MAX_SEALS => Error::corrupt(format!(
                "{count} seals below {}; expected at most {MAX_SEALS}: stop what opens or fences the volume again and again, and \
                     delete the last ones; the one with the lowest number has to stay",
                self.names.manifests_of(epoch)
            )),
            _ => self.lost(Name::Manifest { epoch, number: 0 }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::testing::{Bucket, Faults, client};

    /// The first of several seals is what fences the writer.
    #[test]
    fn damaged_seals_before_another_one_are_kept() {
        let test = || async {
            let bucket = Bucket::start(Faults::default());
            let names = Names::new("db1").unwrap();
            let manifests = Manifests::new(client(object_store::Limits::default()), names, None);
            let identity = Identity { volume: [1; 16], epoch: 1, writer: Writer::new("a test".to_owned()) };
            let kinds = [Kind::Claim, Kind::Base, Kind::Seal, Kind::Seal, Kind::Seal];
            for (number, kind) in (0..).zip(kinds) {
                let manifest = identity.manifest(number, kind, u64::from(kind == Kind::Base), Vec::new());
                manifests.create(&manifest, &manifests.encode(&manifest)).await.unwrap();
            }
            let all = manifests.numbers(1).await.unwrap();
            let old = async |numbers: &[u64]| manifests.old_of(1, numbers).await.unwrap();
            let base = [Name::Manifest { epoch: 1, number: 1 }];
            let damage = |number: u64| {
                let mut objects = bucket.objects.borrow_mut();
                let object = objects.get_mut(&manifests.key(1, number)).unwrap();
                object.bytes[60] ^= 8;
                object.headers.clear();
            };
            for number in [3, 2] {
                damage(number);
                assert_eq!(old(&all).await, base, "{number}");
            }
            damage(0);
            assert_eq!(old(&[0, 3, 4]).await, [], "a damaged claim");
            damage(4);
            assert_eq!(old(&all).await, [], "no seal");
        };
        runtime::simulate(runtime::Simulation::new(1), test).unwrap();
    }
}
