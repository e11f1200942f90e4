//! The store for programs that aren't built on the runtime of this workspace: any thread, any executor.
//!
//! [`Store::open`] opens a file, or creates it, and starts the threads that run the store. The handle is
//! `Send + Sync + Clone`. Each call returns a [`Pending`], which is awaited on any executor, or waited for by
//! a thread with [`blocking`](Pending::blocking).
//!
//! ```
//! use siltstone_kv::embedded::{Options, Store};
//!
//! # let folder = tempfile::tempdir().map_err(|error| block::Error::from_io(&error, "a folder"))?;
//! # std::env::set_current_dir(&folder).map_err(|error| block::Error::from_io(&error, "the folder"))?;
//! let store = Store::open("data.kv", Options::default()).blocking()?;
//! store.insert("apple", "red").blocking()?;
//! store.insert("banana", "yellow").blocking()?;
//! assert_eq!(store.get("apple").blocking()?.as_deref(), Some(&b"red"[..]));
//! for pair in store.range("b"..).blocking() {
//!     let (key, value) = pair?;
//!     println!("{} is {}", key.escape_ascii(), value.escape_ascii());
//! }
//! store.remove("apple").blocking()?;
//! store.close().blocking()?;
//! # Ok::<(), block::Error>(())
//! ```
//!
//! # Promises
//! - A write that has returned survives the end of the process, unless it is acknowledged in memory
//!   ([`Acknowledge::Buffered`]), and a power cut after the next [`flush`](Store::flush).
//! - One program has the file open at a time; a second one gets [`Error::Busy`].
//! - Dropping the last handle closes the store, and waits for that; [`close`](Store::close) also returns the
//!   error. Futures, iterators and snapshots are handles.
//! - A call whose future is dropped after its first poll runs to its end.
//!
//! The file is that of the stack `kv(file(data.kv))`: `siltstone kv` reads and serves it when no program has
//! it open.
//!
//! [`Store`] has the name of [`crate::Store`], which is the same store for tasks of this workspace's shards,
//! as `tokio::fs::File` has that of `std::fs::File`. Names of calls are those of fjall and redb.

mod open;
mod range;

pub use crate::settings::Acknowledge;
pub use crate::table::Compression;
pub use block::{Error, Result, Status};
pub use open::Options;
pub use range::{Blocking, Pair, Range, Snapshot};
pub use runtime::embedded::Pending;

use crate::batch::{self, Write};
use crate::key_version::now;
use crate::scan::Stored;
use crate::store::{Update, shard_of_key};
use open::Opened;
use range::Held;
use runtime::embedded::Embedded;
use runtime::{Config, ShardIndex};
use std::ops::RangeBounds;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Handle of an open store. Clones refer to the same store.
#[derive(Debug, Clone)]
pub struct Store {
    embedded: Embedded<Opened>,
    /// Shard of the runtime for each shard of the store.
    places: Arc<[ShardIndex]>,
}

/// Writes that take effect atomically: after a crash either all of them are in effect or none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch(batch::Batch);

impl Batch {
    /// Returns a batch without writes.
    pub fn new() -> Self {
        Batch::default()
    }

    /// Sets a key.
    pub fn insert(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        self.0.put(key.as_ref(), value.as_ref());
    }

    /// Removes a key.
    pub fn remove(&mut self, key: impl AsRef<[u8]>) {
        self.0.delete(key.as_ref());
    }

    /// Removes the keys in `from`..`to`.
    pub fn remove_range(&mut self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) {
        self.0.delete_range(from.as_ref(), to.as_ref());
    }

    /// Number of writes.
    pub fn len(&self) -> usize {
        self.0.len() as usize
    }

    /// Whether the batch has no writes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Store {
    /// Opens the store of a file; creates it if there is no file, or an empty one.
    ///
    /// # Errors
    /// [`Error::Busy`] if another program has the file open, or this one; [`Error::Protocol`] for a file
    /// without a store, [`Error::Corrupt`] for a damaged one; [`Error::NotFound`] without `create`;
    /// [`Error::Invalid`] for options out of range; errors of the file, and of starting threads.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Pending<Store> {
        let path = path.as_ref().to_path_buf();
        let config = Config::default().with_shards(options.shards).polling();
        let (told, places) = runtime::answer();
        let open = move || async move {
            let opened = Opened::open(&path, &options).await?;
            told.give(opened.store.homes.iter().map(runtime::Home::shard).collect());
            Ok(opened)
        };
        let close = |opened: Arc<Opened>| async move { opened.close().await };
        Pending::of(async move {
            let embedded = runtime::embedded::start(config, open, close).await?;
            Ok(Store { embedded, places: places.await? })
        })
    }

    /// Shard of the runtime that has a key.
    fn place(&self, key: &[u8]) -> ShardIndex {
        self.places[usize::from(shard_of_key(key, self.places.len()))]
    }

    /// Returns a call on the first shard.
    fn at_first<T, Fut>(&self, work: impl FnOnce(Arc<Opened>) -> Fut + Send + 'static) -> Pending<T>
    where
        T: Send + 'static,
        Fut: Future<Output = Result<T>> + 'static,
    {
        self.embedded.call(ShardIndex(0), work)
    }

    /// Returns the value of a key; `None` if the key doesn't exist.
    ///
    /// # Errors
    /// Errors of reading the file; [`Error::Corrupt`] for data with a wrong checksum; [`Error::Closed`].
    pub fn get(&self, key: impl AsRef<[u8]>) -> Pending<Option<Vec<u8>>> {
        let key = key.as_ref().to_vec();
        self.embedded.call(self.place(&key), move |opened: Arc<Opened>| async move {
            Ok(opened.store.get(&key).await?.map(|stored| stored.value))
        })
    }

    /// Whether a key exists.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn contains_key(&self, key: impl AsRef<[u8]>) -> Pending<bool> {
        let key = key.as_ref().to_vec();
        self.embedded.call(self.place(&key), move |opened: Arc<Opened>| async move {
            Ok(opened.store.get(&key).await?.is_some())
        })
    }

    /// Sets a key. Keys have up to 32 KiB, values up to 64 MiB.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a key or value that is too large; [`Error::NoSpace`]; the failure of the log,
    /// which is permanent; [`Error::Closed`].
    pub fn insert(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Pending<()> {
        self.write_one(Write::Put { key: key.as_ref(), value: value.as_ref(), expires: None })
    }

    /// Sets a key that expires after a time.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn insert_expiring(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        after: Duration,
    ) -> Pending<()> {
        let expires = now().saturating_add(after.as_millis().try_into().unwrap_or(u64::MAX));
        self.write_one(Write::Put { key: key.as_ref(), value: value.as_ref(), expires: Some(expires) })
    }

    /// Removes a key, whether it exists or not.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn remove(&self, key: impl AsRef<[u8]>) -> Pending<()> {
        self.write_one(Write::Delete { key: key.as_ref(), deleted: now() })
    }

    fn write_one(&self, write: Write<'_>) -> Pending<()> {
        if let Err(error) = write.check() {
            return Pending::failed(error);
        }
        let (Write::Put { key, .. } | Write::Delete { key, .. } | Write::DeleteRange { from: key, .. }) =
            write;
        let (place, batch) = (self.place(key), batch::Batch::of(write));
        self.embedded.call(place, move |opened: Arc<Opened>| async move {
            opened.store.write(batch, opened.store.acknowledge()).await
        })
    }

    /// Writes a batch atomically.
    ///
    /// # Errors
    /// As [`insert`](Self::insert); [`Error::Invalid`] for a batch of several shards with more than 2 MiB.
    pub fn write(&self, batch: Batch) -> Pending<()> {
        self.at_first(
            move |opened| async move { opened.store.write(batch.0, opened.store.acknowledge()).await },
        )
    }

    /// Updates a key atomically: `change` gets the value, and returns the new one, or `None` to remove the
    /// key. Returns the value before. `change` runs on the key's shard, and must neither block nor call the
    /// store; a panic in it writes nothing, and is propagated to the caller.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn fetch_update(
        &self,
        key: impl AsRef<[u8]>,
        change: impl FnOnce(Option<&[u8]>) -> Option<Vec<u8>> + Send + 'static,
    ) -> Pending<Option<Vec<u8>>> {
        let key = key.as_ref().to_vec();
        let change = |before: Option<Stored>| {
            let before = before.map(|stored| stored.value);
            let changed = std::panic::catch_unwind(AssertUnwindSafe(|| change(before.as_deref())));
            match changed {
                Ok(Some(value)) => (Some(Update::Put(Stored { value, expires: None })), Ok(before)),
                Ok(None) => (before.is_some().then_some(Update::Delete), Ok(before)),
                Err(panic) => (None, Err(panic)),
            }
        };
        let call = self.embedded.call(self.place(&key), move |opened: Arc<Opened>| async move {
            opened.store.update(&key, change).await
        });
        Pending::of(async move {
            match call.await? {
                Ok(before) => Ok(before),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// Iterates over all keys in order.
    pub fn iter(&self) -> Range {
        self.range::<&[u8]>(..)
    }

    /// Iterates over the keys of a range in order. The snapshot of the iteration is taken with the first
    /// page.
    pub fn range<K: AsRef<[u8]>>(&self, keys: impl RangeBounds<K>) -> Range {
        let (from, to) = Range::bounds(&keys);
        Range::new(self.clone(), from, to)
    }

    /// Iterates over the keys that begin with `prefix`, in order.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Range {
        let from = prefix.as_ref().to_vec();
        // First key that is larger than all with the prefix; `None` if there is none.
        let end = from.iter().rposition(|byte| *byte < u8::MAX).map(|last| {
            let mut end = from[..=last].to_vec();
            end[last] += 1;
            end
        });
        Range::new(self.clone(), from, end)
    }

    /// Takes a snapshot for reads; it lasts until it and its iterators are dropped.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn snapshot(&self) -> Pending<Snapshot> {
        let store = self.clone();
        let embedded = self.embedded.clone();
        let call = self.at_first(move |opened| async move {
            // Released on the shard also if the caller is dropped meanwhile.
            Ok(Held::new(opened.store.snapshot().await?, embedded))
        });
        Pending::of(async move { Ok(Snapshot::new(store, call.await?)) })
    }

    /// Makes all writes that have returned durable.
    ///
    /// # Errors
    /// The failure of the log; errors of flushing the file; [`Error::Closed`].
    pub fn flush(&self) -> Pending<()> {
        self.at_first(|opened| async move { opened.store.flush().await })
    }

    /// Merges all tables, so that removed and overwritten values take no space, unless a snapshot has them.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; the failure of the log; [`Error::Closed`].
    pub fn compact(&self) -> Pending<()> {
        self.at_first(|opened| async move { opened.store.compact().await })
    }

    /// Numbers for operators, as `siltstone kv status` shows them.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn status(&self) -> Pending<Status> {
        self.at_first(|opened| async move { opened.store.status().await })
    }

    /// Writes what is in memory, and closes the store for all handles, after the calls in flight. Later calls
    /// fail with [`Error::Closed`]. The threads have ended when this returns; it may be called again, with
    /// the same result.
    ///
    /// # Errors
    /// Errors of writing; [`Error::Cancelled`] with the panic's text if a thread of the store panicked.
    pub fn close(&self) -> Pending<()> {
        self.embedded.close()
    }
}
