//! Interface of the store for programs: keys and values, batches, scans, snapshots.
//!
//! A [`Store`] can be cloned and used on every shard of the runtime. Each key belongs to one shard of the
//! store, by its hash; operations are executed there.

mod iterator;
mod status;

pub use iterator::Iterator;

use crate::batch::{Batch, Write};
use crate::core::{BatchCondition, Core, Parts, Snapshot};
use crate::key_version::{Sequence, Timestamp, now};
use crate::recovery;
use crate::scan::{Pair, Pairs, Scan, Stored};
use crate::settings::{Acknowledge, Settings};
use crate::tree::salvage;
use block::{Error, Result, ZonesPart};
use logkit::Owner;
use logkit::recovery::Goal;
use runtime::Home;
use std::rc::Rc;
use std::sync::Arc;
use zones::Overlay;

/// Maximum bytes of one shard's answer to a scan.
const SCAN_BYTES: usize = 1 << 20;

/// An open store.
///
/// ```
/// use std::sync::Arc;
///
/// let disk = Arc::new(disks::ram::RamPart::new(256 << 20, block::BlockSize::new(4096)?)?);
/// let options = zones::on_device::Options { format: true, zone_size: Some(4 << 20), ..Default::default() };
/// let settings = siltstone_kv::Settings { buffer_bytes: 1 << 20, table_bytes: 1 << 20, ..Default::default() };
/// runtime::run(runtime::Config::default(), || async move {
///     let medium = Arc::new(zones::OnDevice::open(disk, options).await?);
///     let store = siltstone_kv::Store::format(medium, &settings).await?;
///     store.put(b"zone", b"4 MiB").await?;
///     store.flush().await?;
///     assert_eq!(store.get(b"zone").await?.map(|stored| stored.value), Some(b"4 MiB".to_vec()));
///     store.close().await
/// })??;
/// # Ok::<(), block::Error>(())
/// ```
#[derive(Clone)]
pub struct Store {
    pub(crate) homes: Arc<[Home<Core>]>,
    zones: Arc<dyn ZonesPart>,
    acknowledge: Acknowledge,
    /// Whether the caller owns the zones and closes them.
    is_lent: bool,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Store({} shards)", self.homes.len())
    }
}

/// Shard of a key in a store of `shards` shards.
pub fn shard_of_key(key: &[u8], shards: usize) -> u16 {
    if shards == 1 {
        return 0;
    }
    let hash = key.iter().fold(0xCBF2_9CE4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3)
    });
    // After one more multiplication the high bits of FNV-1a depend on all bytes.
    let mixed = (hash ^ hash >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 32;
    ((mixed * shards as u64) >> 32) as u16
}

impl Store {
    /// Creates a store on zones and opens it; the contents of the zones are lost.
    ///
    /// # Errors
    /// [`Error::Invalid`] for zones that are too few or too small, and for settings out of range; errors of
    /// resetting and writing.
    pub async fn format(zones: Arc<dyn ZonesPart>, settings: &Settings) -> Result<Self> {
        let homes = recovery::format(&zones, settings).await?;
        Ok(Store { homes: homes.into(), zones, acknowledge: settings.acknowledge, is_lent: false })
    }

    /// Opens the store on these zones. With [`Goal::Salvage`], opens a damaged store read-only, without a
    /// change to the zones.
    ///
    /// # Errors
    /// [`Error::Protocol`] for zones without a store, [`Error::Corrupt`] for a damaged one; errors of reading
    /// and writing.
    pub async fn open(zones: Arc<dyn ZonesPart>, settings: &Settings) -> Result<Self> {
        let zones = match settings.goal {
            Goal::Serve => zones,
            Goal::Salvage => Arc::new(Overlay::new(zones, salvage::MAX_BYTES)),
        };
        let homes = recovery::open(&zones, settings).await?;
        Ok(Store { homes: homes.into(), zones, acknowledge: settings.acknowledge, is_lent: false })
    }

    /// Returns the store, changed so that closing it leaves its zones open.
    #[must_use]
    pub fn on_lent_zones(self) -> Self {
        Store { is_lent: true, ..self }
    }

    /// Number of shards.
    pub fn shards(&self) -> usize {
        self.homes.len()
    }

    /// State in which writes are acknowledged, unless a call specifies another.
    pub fn acknowledge(&self) -> Acknowledge {
        self.acknowledge
    }

    fn home(&self, key: &[u8]) -> &Home<Core> {
        &self.homes[usize::from(shard_of_key(key, self.homes.len()))]
    }

    /// Returns the value of a key; `None` if the key doesn't exist.
    ///
    /// # Errors
    /// Errors of reading the zones; [`Error::Closed`].
    pub async fn get(&self, key: &[u8]) -> Result<Option<Stored>> {
        self.get_at(key, None).await
    }

    /// Returns the value of a key at a snapshot; `None` if it didn't exist.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub async fn get_in(&self, snapshot: &Snapshot, key: &[u8]) -> Result<Option<Stored>> {
        let sequence = snapshot.sequence(usize::from(shard_of_key(key, self.homes.len())));
        self.get_at(key, Some(sequence)).await
    }

    async fn get_at(&self, key: &[u8], snapshot: Option<Sequence>) -> Result<Option<Stored>> {
        let home = self.home(key);
        if home.is_here() {
            return home.get()?.get(key, snapshot).await;
        }
        let key = key.to_vec();
        home.with(move |core: Rc<Core>| async move { core.get(&key, snapshot).await }).await
    }

    /// Sets a key, with the store's default acknowledgement.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a key or value that is too large, [`Error::NoSpace`], the failure of the log.
    pub async fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.write_one(Write::Put { key, value, expires: None }).await
    }

    /// Sets a key that expires at the time `expires`.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub async fn put_until(&self, key: &[u8], value: &[u8], expires: Timestamp) -> Result<()> {
        self.write_one(Write::Put { key, value, expires: Some(expires) }).await
    }

    /// Deletes a key, whether it exists or not.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub async fn delete(&self, key: &[u8]) -> Result<()> {
        self.write_one(Write::Delete { key, deleted: now() }).await
    }

    /// Deletes the keys in `from`..`to`.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub async fn delete_range(&self, from: &[u8], to: &[u8]) -> Result<()> {
        let mut batch = Batch::new();
        batch.delete_range(from, to);
        self.write(batch, self.acknowledge).await
    }

    async fn write_one(&self, write: Write<'_>) -> Result<()> {
        write.check()?;
        let (Write::Put { key, .. } | Write::Delete { key, .. } | Write::DeleteRange { from: key, .. }) =
            write;
        let batch = Batch::of(write);
        self.write_to(self.home(key), batch, self.acknowledge).await
    }

    async fn write_to(&self, home: &Home<Core>, batch: Batch, acknowledge: Acknowledge) -> Result<()> {
        home.with(move |core: Rc<Core>| async move { core.write(batch, acknowledge).await }).await
    }

    /// Writes a batch atomically: after a crash either all of it is in effect or nothing.
    ///
    /// # Errors
    /// As [`put`](Self::put); [`Error::Invalid`] for a batch of several shards that is larger than an append
    /// to the zones.
    pub async fn write(&self, batch: Batch, acknowledge: Acknowledge) -> Result<()> {
        let mut parts = self.divide(batch)?;
        match parts.len() {
            0 => Ok(()),
            1 => {
                let (shard, part) = parts.remove(0);
                self.write_to(&self.homes[usize::from(shard)], part, acknowledge).await
            }
            _ => self.write_cross_shard(parts, BatchCondition::Always, acknowledge).await.map(drop),
        }
    }

    /// Writes each shard's part of a batch atomically, but not the whole: the writes of a key take effect
    /// together, in their order. After an error any of the parts may be in effect.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub async fn write_by_shard(&self, batch: Batch, acknowledge: Acknowledge) -> Result<()> {
        let mut parts = self.divide(batch)?;
        let write = |(shard, part)| self.write_to(&self.homes[usize::from(shard)], part, acknowledge);
        match parts.len() {
            1 => write(parts.remove(0)).await,
            _ => runtime::join_all(parts.into_iter().map(write)).await.into_iter().collect(),
        }
    }

    /// Writes a batch of puts and deletes atomically if none of its keys exists; returns whether it was
    /// written. No other write of these keys takes effect in between.
    ///
    /// # Errors
    /// As [`write`](Self::write); [`Error::Invalid`] for a batch that deletes a range.
    pub async fn write_if_absent(&self, batch: Batch, acknowledge: Acknowledge) -> Result<bool> {
        if batch.keys().len() < batch.len() as usize {
            return Err(Error::invalid(
                "a conditional batch that deletes a range; expected writes of single keys",
            ));
        }
        let mut parts = self.divide(batch)?;
        match parts.len() {
            0 => Ok(true),
            1 => {
                let (shard, part) = parts.remove(0);
                let write =
                    move |core: Rc<Core>| async move { core.write_if_absent(part, acknowledge).await };
                self.homes[usize::from(shard)].with(write).await
            }
            _ => self.write_cross_shard(parts, BatchCondition::AllAbsent, acknowledge).await,
        }
    }

    async fn write_cross_shard(
        &self,
        parts: Parts,
        condition: BatchCondition,
        acknowledge: Acknowledge,
    ) -> Result<bool> {
        let write = move |core: Rc<Core>| async move { core.write_cross_shard(parts, condition).await };
        let is_met = self.homes[0].with(write).await?;
        if is_met && acknowledge == Acknowledge::Flushed {
            self.flush().await?;
        }
        Ok(is_met)
    }

    /// Checks the writes of a batch, and divides them by shard.
    fn divide(&self, batch: Batch) -> Result<Parts> {
        let shards = self.homes.len();
        let mut checked = Ok(());
        batch.for_each(|write| {
            if checked.is_ok() {
                checked = write.check();
            }
        });
        checked?;
        let shard = match batch.only_key() {
            Some(key) => Some(shard_of_key(key, shards)),
            None => (shards == 1 && !batch.is_empty()).then_some(0),
        };
        if let Some(shard) = shard {
            return Ok(vec![(shard, batch)]);
        }
        let mut parts: Vec<Batch> = vec![Batch::new(); shards];
        batch.for_each(|write| match write {
            Write::Put { key, .. } | Write::Delete { key, .. } => {
                parts[usize::from(shard_of_key(key, shards))].push(write);
            }
            Write::DeleteRange { .. } => parts.iter_mut().for_each(|part| part.push(write)),
        });
        Ok((0..).zip(parts).filter(|(_, part)| !part.is_empty()).collect())
    }

    /// Updates a key atomically: no other write of the key takes effect between the read and the write.
    /// `change` gets the present value, and returns the update of this key, if any, and the result.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub async fn update<R: Send + 'static>(
        &self,
        key: &[u8],
        change: impl FnOnce(Option<Stored>) -> (Option<Update>, R) + Send + 'static,
    ) -> Result<R> {
        let (home, key, acknowledge) = (self.home(key), key.to_vec(), self.acknowledge);
        let update = move |core: Rc<Core>| async move {
            let entered = core.gate.enter_alone([key.as_slice()].into_iter()).await;
            let (update, result) = change(core.get(&key, None).await?);
            if let Some(update) = update {
                let write = match &update {
                    Update::Put(stored) => {
                        Write::Put { key: &key, value: &stored.value, expires: stored.expires }
                    }
                    Update::Delete => Write::Delete { key: &key, deleted: now() },
                };
                write.check()?;
                core.write_entered(Batch::of(write), acknowledge).await?;
            }
            drop(entered);
            core.flush_for(acknowledge).await?;
            Ok(result)
        };
        home.with(update).await
    }

    /// Returns the next pairs of a range of keys, in order, and whether the range has more.
    ///
    /// # Errors
    /// Errors of reading the zones; [`Error::Closed`].
    pub async fn scan(&self, snapshot: Option<&Snapshot>, scan: Scan) -> Result<(Pairs, bool)> {
        let asked = self.homes.iter().enumerate().map(|(shard, home)| {
            let mut scan = scan.clone();
            let sequence = snapshot.map(|snapshot| snapshot.sequence(shard));
            scan.most_bytes = scan.most_bytes.min(SCAN_BYTES);
            async move {
                match home.is_here() {
                    true => home.get()?.scan(scan, sequence).await,
                    false => {
                        home.with(move |core: Rc<Core>| async move { core.scan(scan, sequence).await }).await
                    }
                }
            }
        });
        let mut answers = Vec::new();
        for answer in runtime::join_all(asked).await {
            answers.push(answer?);
        }
        Ok(join(answers, scan.is_backward, scan.most))
    }

    /// Takes a snapshot of the store for reads; it lasts until it is dropped. Compaction keeps the data of a
    /// snapshot, so deletes of this data aren't persistent meanwhile. A batch is in the snapshot completely
    /// or not at all; concurrent single writes to different shards
    /// are included independently of each other.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub async fn snapshot(&self) -> Result<Snapshot> {
        let homes = self.homes.clone();
        self.homes[0].with(move |core: Rc<Core>| core.take_snapshot(homes)).await
    }

    /// Returns an iterator over the keys in `from`..`to` of a new snapshot, positioned at no key.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub async fn iterate(&self, from: &[u8], to: Option<&[u8]>) -> Result<Iterator> {
        let snapshot = self.snapshot().await?;
        Ok(Iterator::new(self.clone(), snapshot, from.to_vec(), to.map(<[u8]>::to_vec)))
    }

    /// Makes all acknowledged writes durable.
    ///
    /// # Errors
    /// The failure of the log; errors of flushing the zones.
    pub async fn flush(&self) -> Result<()> {
        for home in self.homes.iter() {
            let flush = |core: Rc<Core>| async move {
                core.settle().await?;
                logkit::flusher::flush(&*core).await
            };
            home.with(flush).await?;
        }
        Ok(())
    }

    /// Writes all buffers to tables.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; the failure of the log.
    pub async fn flush_buffers(&self) -> Result<()> {
        for home in self.homes.iter() {
            let flush = |core: Rc<Core>| async move {
                core.settle().await?;
                core.flush_buffers().await
            };
            home.with(flush).await?;
        }
        Ok(())
    }

    /// Merges all buffers and tables down to the last level: data that was overwritten or deleted before the
    /// call takes no more space in tables, unless a snapshot sees it.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; the failure of the log; [`Error::Closed`].
    pub async fn compact(&self) -> Result<()> {
        let asked =
            self.homes.iter().map(|home| home.with(|core: Rc<Core>| async move { core.compact_all().await }));
        runtime::join_all(asked).await.into_iter().collect()
    }

    /// Waits until no compaction is due.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; the failure of the log.
    pub async fn wait_for_compactions(&self) -> Result<()> {
        for home in self.homes.iter() {
            home.with(|core: Rc<Core>| async move { core.wait_for_compactions().await }).await?;
        }
        Ok(())
    }

    /// Writes all queued writes and a last checkpoint, and closes the store.
    ///
    /// There is no time limit: storage that never answers is waited for without end. After a limit of the
    /// caller (`runtime::timeout`), only the process can end; what wasn't durable is lost.
    ///
    /// Dropping all handles isn't a close: tasks may write to the zones until the runtime ends. They must not
    /// be opened again before.
    ///
    /// # Errors
    /// The failure of the log; errors of writing.
    pub async fn close(&self) -> Result<()> {
        let mut closed = Ok(());
        for home in self.homes.iter() {
            let settle = |core: Rc<Core>| async move {
                core.settle().await?;
                match core.flush_buffers().await {
                    // Writes that aren't in tables are in the log.
                    Err(Error::NoSpace(_)) => Ok(()),
                    outcome => outcome,
                }
            };
            closed = closed.and(home.with(settle).await);
        }
        let end = |core: Rc<Core>| async move {
            // Before the lanes stop taking entries: writes that were admitted earlier.
            core.submit();
            core.kit().begin_closing();
            core.wake();
            core.kit().tasks.ended().await;
            // Other shards may wait for permits of these zones.
            let _permit = core.table_zones.permit().await;
            core.close_zones().await;
            Ok(())
        };
        for home in self.homes.iter().rev() {
            closed = closed.and(home.with(end).await);
        }
        for home in self.homes.iter() {
            let seal = |core: Rc<Core>| async move {
                core.end_zones().await;
                Ok(())
            };
            closed = closed.and(home.with(seal).await);
        }
        let is_clean = |core: Rc<Core>| async move { Ok(core.buffers.is_empty()) };
        let mut clean = true;
        for home in self.homes.iter() {
            clean &= home.with(is_clean).await.unwrap_or(false);
        }
        let last = move |core: Rc<Core>| async move {
            match core.tables.lost().is_some() {
                true => Ok(()),
                false => core.take_checkpoint(clean).await,
            }
        };
        closed = closed.and(self.homes[0].with(last).await);
        for home in self.homes.iter() {
            closed = closed.and(home.forget().await);
        }
        match self.is_lent {
            true => closed,
            false => closed.and(self.zones.close().await),
        }
    }
}

/// Write of an update.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Update {
    /// Sets the key.
    Put(Stored),
    /// Deletes the key.
    Delete,
}

/// Merges the shards' answers to a scan. Pairs beyond the last pair of a shard with more pairs are dropped,
/// because that shard may have smaller keys there.
fn join(answers: Vec<(Pairs, bool)>, is_backward: bool, most: usize) -> (Pairs, bool) {
    if answers.len() == 1 {
        return answers.into_iter().next().unwrap_or_default();
    }
    let is_before = |a: &[u8], b: &[u8]| if is_backward { a > b } else { a < b };
    let ends =
        answers.iter().filter(|(_, has_more)| *has_more).map(|(pairs, _)| pairs.last().map(|pair| pair.key));
    let mut end: Option<&[u8]> = None;
    let mut has_more = false;
    for last in ends {
        has_more = true;
        if let Some(last) = last
            && end.is_none_or(|end| is_before(last, end))
        {
            end = Some(last);
        }
    }
    let mut pairs: Vec<Pair<'_>> = answers.iter().flat_map(|(pairs, _)| pairs.iter()).collect();
    match is_backward {
        true => pairs.sort_by(|a, b| b.key.cmp(a.key)),
        false => pairs.sort_by(|a, b| a.key.cmp(b.key)),
    }
    if let Some(end) = end {
        let known = pairs.partition_point(|pair| !is_before(end, pair.key));
        pairs.truncate(known);
    }
    if pairs.len() > most {
        pairs.truncate(most);
        has_more = true;
    }
    (pairs.into_iter().collect(), has_more)
}
