//! The key store: a small device with a secret for each zone, which a reset destroys.
//!
//! The key of a zone follows from the operator's key and this secret (`seal`), so neither alone opens the
//! zone. A bucket may keep every object forever: only bytes that are overwritten elsewhere are destroyed.
//!
//! # Promises
//! - The secret of a zone's generation is durable before [`KeyStore::renew`] or [`KeyStore::create`] returns,
//!   so before anything is sealed with it. It is drawn at random, and nowhere else.
//! - Once `renew` has returned, the secret of the generation before is overwritten on the device.
//! - A damaged slot has no secret, and others are served.
//! - A block that couldn't be read is unknown, and not empty: it is never written while a zone with data has
//!   its secret there, since another attempt, or another leg of a mirror, may read it. Its zones have no keys
//!   meanwhile, and others are served.
//! - Only a volume's writer writes to the device: a reader has [`KeyStore::refreshed`].
//! - A secret is overwritten only by `renew`, whose caller has made the reset durable in the bucket, and by
//!   `create`. A power cut leaves the old bytes or the new ones of each sector: secrets of other zones in it
//!   are the same in both.
//!
//! Left to others: that one writer uses the device (the stack locks its files), and the order of resets
//! (`core`).

use crate::format::hex;
use crate::seal::KEY;
use crate::table::{Entry, MAX_ZONES, Table};
use block::{BlockIndex, BlockSize, Buffer, Device, DeviceGeometry, DevicePart, Durability, Error, Result};
use crc_fast::{CrcAlgorithm, Digest};
use runtime::sync::Semaphore;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};
use zeroize::{Zeroize, Zeroizing};
use zones::sector::{self, Format, Head};

/// Bytes of a slot: the generation, the secret, zeros, a checksum.
const SLOT: usize = 64;
/// Bytes of a slot before its checksum.
const CHECKED: usize = SLOT - 4;
/// Least distance of the slots from the start of the device.
const START: u64 = 4096;
/// Bytes that are written with one request.
const BATCH: u64 = 1 << 20;
/// Bytes from the start of a device in which an earlier key store may have secrets, whatever its zones and
/// its blocks were.
const WIPED: u64 = BlockSize::LARGEST as u64 + MAX_ZONES as u64 * SLOT as u64;
/// Time limit of a read. A write has none: one that was given up could land later, over other secrets.
const LIMIT: Duration = Duration::from_secs(60);
const FORMAT: Format = Format { magic: *b"SILTOBKS", version: 1 };

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Superblock {
    head: Head,
    zones: U32,
    volume: [u8; 16],
    /// Offset of the first slot.
    start: U32,
    reserved: [u8; 472],
    checksum: U32,
}

/// Contents of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slot {
    /// The secret of this generation.
    Of(u64),
    /// Bytes of another form: the slot was never written, or is damaged.
    Damaged,
    /// Slot of a block that couldn't be read.
    Unread,
}

/// A key store.
pub(crate) struct KeyStore {
    device: Rc<dyn Device>,
    volume: [u8; 16],
    zones: u32,
    start: u64,
    /// Slots as they are on the device, in whole blocks.
    slots: RefCell<Zeroizing<Vec<u8>>>,
    /// Blocks whose slots have changed, counted from the first slot.
    changed: RefCell<BTreeSet<u64>>,
    /// Blocks that couldn't be read, with zeros in place of their slots: they aren't written.
    unread: RefCell<BTreeSet<u64>>,
    /// Held while blocks are written.
    writing: Rc<Semaphore>,
    /// Zones that have data without a secret, with the generation of the data.
    lost: RefCell<BTreeMap<u32, u64>>,
}

/// Knowledge of the caller about zones: the generation of one without data, `None` for one with data.
pub(crate) type Empty<'a> = &'a dyn Fn(u32) -> Option<u64>;

/// Offset of the slots, and their bytes in whole blocks.
fn extent(zones: u32, block: u64) -> (u64, u64) {
    (START.max(block), (u64::from(zones) * SLOT as u64).next_multiple_of(block))
}

/// Checks that a device takes writes, as resets need it.
///
/// # Errors
/// [`Error::Invalid`] for one that is read-only.
pub(crate) fn check_writable(device: &DeviceGeometry) -> Result<()> {
    match device.read_only {
        false => Ok(()),
        true => Err(Error::invalid(
            "the device of the key store is read-only; expected one that takes writes, since resets overwrite secrets: leave read_only \
             out, or open the volume with open=reader",
        )),
    }
}

/// Checks that a device has space for the secrets of zones.
///
/// # Errors
/// [`Error::Invalid`] for one that is too small.
pub(crate) fn check_device(device: &DeviceGeometry, zones: u32) -> Result<()> {
    let (start, length) = extent(zones, device.block_size.bytes());
    match device.bytes() {
        bytes if bytes >= start + length => Ok(()),
        bytes => Err(Error::invalid(format!(
            "key_store: its device has {bytes} bytes; expected at least {} for {zones} zones: use a larger one",
            start + length
        ))),
    }
}

fn checksum(volume: &[u8; 16], zone: u32, slot: &[u8]) -> [u8; 4] {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(volume);
    digest.update(&zone.to_le_bytes());
    digest.update(&slot[..CHECKED]);
    (digest.finalize() as u32).to_le_bytes()
}

/// Draws a secret of a generation into a slot.
fn fill(volume: &[u8; 16], zone: u32, generation: u64, slot: &mut [u8]) {
    slot[..8].copy_from_slice(&generation.to_le_bytes());
    runtime::fill_secret(&mut slot[8..8 + KEY]);
    slot[8 + KEY..CHECKED].fill(0);
    let sum = checksum(volume, zone, slot);
    slot[CHECKED..].copy_from_slice(&sum);
}

/// Need of a zone at opening, by its entry in the table and its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    Nothing,
    /// The zone is empty, and a secret of its generation is missing: its reset was interrupted.
    Secret,
    /// The zone is empty, and it isn't known whether its secret is there.
    Unknown,
    /// The zone has data whose secret is missing.
    Lost,
    /// The bucket shows an older generation.
    Older,
}

fn need(entry: &Entry, slot: Slot) -> Need {
    match slot {
        Slot::Of(generation) if generation == entry.generation => Need::Nothing,
        Slot::Of(generation) if generation > entry.generation => Need::Older,
        Slot::Unread if entry.pieces.is_empty() => Need::Unknown,
        _ if entry.pieces.is_empty() => Need::Secret,
        _ => Need::Lost,
    }
}

async fn read(device: &dyn Device, at: u64, length: u64) -> Result<Buffer> {
    let block = BlockIndex(at / device.geometry().block_size.bytes());
    let read = runtime::timeout(LIMIT, device.read(block, Buffer::new(length as usize))).await;
    let read = match read {
        Ok((outcome, buffer)) => outcome.map(|()| buffer),
        Err(_) => Err(Error::timed_out(format!("no answer within {LIMIT:?}"))),
    };
    read.map_err(in_context)
}

/// Whether an error is of a block, so that others may be read.
fn is_of_block(error: &Error) -> bool {
    matches!(error, Error::Os(..) | Error::Io(_) | Error::Corrupt(_))
}

/// Reads the blocks with these numbers one by one, or together if that succeeds, and passes each of them on
/// with its bytes, or the error of reading it.
///
/// # Errors
/// Errors of the device as a whole.
async fn read_blocks(
    device: &dyn Device,
    start: u64,
    blocks: Range<u64>,
    take: &mut dyn FnMut(u64, Result<&[u8]>),
) -> Result<()> {
    let block = device.geometry().block_size.bytes();
    match read(device, start + blocks.start * block, (blocks.end - blocks.start) * block).await {
        Ok(mut some) => {
            let each = blocks.zip(some.filled().chunks_exact(block as usize));
            each.for_each(|(number, bytes)| take(number, Ok(bytes)));
            some.filled_mut().zeroize();
        }
        Err(error) if is_of_block(&error) && blocks.end - blocks.start > 1 => {
            for number in blocks {
                Box::pin(read_blocks(device, start, number..number + 1, take)).await?;
            }
        }
        Err(error) if is_of_block(&error) => take(blocks.start, Err(error)),
        Err(error) => return Err(error),
    }
    Ok(())
}

fn in_context(error: Error) -> Error {
    error.in_context("the key store")
}

impl KeyStore {
    /// Creates a key store for the first generations of a volume's zones. Secrets that the device had are
    /// destroyed.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a device that is too small; errors of the device.
    pub async fn create(part: &Arc<dyn DevicePart>, volume: [u8; 16], zones: u32) -> Result<KeyStore> {
        let device = part.open().await?;
        check_device(device.geometry(), zones)?;
        let block = device.geometry().block_size.bytes();
        let (start, length) = extent(zones, block);
        let mut slots = Zeroizing::new(vec![0; length as usize]);
        let each = (0..zones).zip(slots.chunks_exact_mut(SLOT));
        each.for_each(|(zone, slot)| fill(&volume, zone, 1, slot));
        let store = KeyStore::with(device, (volume, zones, start), slots);
        // No superblock until all other bytes are overwritten.
        store.wipe(0..start).await?;
        store.wipe(start + length..store.device.geometry().bytes().min(WIPED)).await?;
        store.changed.borrow_mut().extend(0..length / block);
        store.write_changed().await?;
        let superblock = Superblock {
            head: FORMAT.head(),
            zones: zones.into(),
            volume,
            start: U32::new(start as u32),
            reserved: [0; 472],
            checksum: 0.into(),
        };
        let bytes = sector::block_of(&superblock, block as usize);
        store.device.write(BlockIndex(0), bytes.into(), Durability::Durable).await.map_err(in_context)?;
        Ok(store)
    }

    /// Reads a key store.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is none; [`Error::Corrupt`] and [`Error::Protocol`] for a damaged one and
    /// other versions; errors of the device.
    pub async fn open(part: &Arc<dyn DevicePart>) -> Result<KeyStore> {
        let device = part.open().await?;
        let (block, size) = (device.geometry().block_size.bytes(), device.geometry().bytes());
        let first = read(&*device, 0, block).await?;
        let superblock: &Superblock = FORMAT.read(first.filled(), "key store of zones in an object store")?;
        let (zones, start) = (superblock.zones.get(), u64::from(superblock.start.get()));
        let (_, length) = extent(zones, block);
        let is_possible = (1..=MAX_ZONES).contains(&zones);
        if !is_possible || start < START || !start.is_multiple_of(block) || start + length > size {
            return Err(Error::corrupt(format!(
                "the key store: {zones} zones from byte {start} on; expected 1 to {MAX_ZONES}, in whole blocks of {block} bytes, up to byte {size}"
            )));
        }
        let mut slots = Zeroizing::new(vec![0; length as usize]);
        let (mut unread, most) = (BTreeSet::new(), (BATCH / block).max(1));
        for from in (0..length / block).step_by(most as usize) {
            let blocks = from..(from + most).min(length / block);
            let mut take = |number: u64, bytes: Result<&[u8]>| match bytes {
                Ok(bytes) => slots[(number * block) as usize..][..bytes.len()].copy_from_slice(bytes),
                Err(error) => {
                    tracing::warn!("{error}: {block} bytes from byte {} on", start + number * block);
                    unread.insert(number);
                }
            };
            read_blocks(&*device, start, blocks, &mut take).await?;
        }
        let store = KeyStore::with(device, (superblock.volume, zones, start), slots);
        store.unread.replace(unread);
        Ok(store)
    }

    fn with(
        device: Rc<dyn Device>,
        (volume, zones, start): ([u8; 16], u32, u64),
        slots: Zeroizing<Vec<u8>>,
    ) -> KeyStore {
        let (slots, writing) = (RefCell::new(slots), Semaphore::new(1));
        let (changed, unread, lost) = (RefCell::default(), RefCell::default(), RefCell::default());
        KeyStore { device, volume, zones, start, slots, changed, unread, writing, lost }
    }

    fn block_bytes(&self) -> u64 {
        self.device.geometry().block_size.bytes()
    }

    /// Number of the block that has the slot of a zone.
    fn block_of(&self, zone: u32) -> u64 {
        u64::from(zone) * SLOT as u64 / self.block_bytes()
    }

    /// Zones whose slots are in a block.
    fn zones_of(&self, block: u64) -> Range<u32> {
        let each = self.block_bytes() / SLOT as u64;
        let end = ((block + 1) * each).min(self.zones.into());
        (block * each) as u32..end as u32
    }

    fn is_unread(&self, block: u64) -> bool {
        self.unread.borrow().contains(&block)
    }

    fn slot(&self, zone: u32) -> Slot {
        if self.is_unread(self.block_of(zone)) {
            return Slot::Unread;
        }
        let slots = self.slots.borrow();
        let Some(slot) = slots.chunks_exact(SLOT).nth(zone as usize) else { return Slot::Damaged };
        match slot[CHECKED..] == checksum(&self.volume, zone, slot) {
            true => Slot::Of(u64::from_le_bytes(slot[..8].try_into().expect("eight bytes"))),
            false => Slot::Damaged,
        }
    }

    /// Checks that this is the key store of a volume with this table.
    ///
    /// # Errors
    /// [`Error::Invalid`] for that of another volume.
    pub fn check_volume(&self, volume: &[u8; 16], table: &Table) -> Result<()> {
        match self.volume == *volume && self.zones as usize == table.zones.len() {
            true => Ok(()),
            false => Err(Error::invalid(format!(
                "key_store: it has the secrets of another volume, {} with {} zones; expected those of {} with {} zones: name the device \
                 of that volume, or replace the volume by --format",
                hex(&self.volume),
                self.zones,
                hex(volume),
                table.zones.len()
            ))),
        }
    }

    /// Checks that the last state that the bucket shows isn't older than the key store. A state from a
    /// listing that may be stale isn't the last one.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it is.
    pub fn check_age(&self, table: &Table) -> Result<()> {
        let older =
            (0..).zip(&table.zones).find(|(zone, entry)| need(entry, self.slot(*zone)) == Need::Older);
        let Some((zone, entry)) = older else { return Ok(()) };
        Err(Error::corrupt(format!(
            "the bucket has generation {} of zone {zone}, and the key store a later one: the object store shows an older state of \
             the volume, which was rolled back",
            entry.generation
        )))
    }

    /// Draws secrets for zones that were empty when their reset was interrupted, and counts the zones with
    /// data whose secret is lost. A block that couldn't be read is written if no zone needs what it has.
    ///
    /// # Errors
    /// Errors of the device.
    pub async fn complete(&self, table: &Table) -> Result<()> {
        let empty = |zone: u32| {
            let entry = &table.zones[zone as usize];
            entry.pieces.is_empty().then_some(entry.generation)
        };
        let unread = self.unread.borrow().clone();
        for block in unread {
            if self.zones_of(block).all(|zone| empty(zone).is_some()) {
                let _only = self.writing.acquire(1).await;
                self.redraw(block, &empty).await?;
            }
        }
        for (zone, entry) in (0..).zip(&table.zones) {
            if need(entry, self.slot(zone)) == Need::Secret {
                self.draw(zone, entry.generation);
            }
        }
        self.note_lost(table);
        self.write_changed().await
    }

    /// Notes the zones of a table that have data without a secret.
    fn note_lost(&self, table: &Table) {
        let lost = (0..).zip(&table.zones).filter(|(zone, entry)| {
            // An older state of the bucket has data whose secret was destroyed.
            let need = need(entry, self.slot(*zone));
            need == Need::Lost || (need == Need::Older && !entry.pieces.is_empty())
        });
        self.lost.replace(lost.map(|(zone, entry)| (zone, entry.generation)).collect());
    }

    /// Zones that have data without a secret.
    pub fn lost(&self) -> u32 {
        self.lost.borrow().len() as u32
    }

    /// Blocks that couldn't be read.
    pub fn unread(&self) -> u32 {
        self.unread.borrow().len() as u32
    }

    /// Returns the key store with the secrets that the data of these zones needs, for a reader: the blocks of
    /// missing ones are read again, which the writer may have written since. Nothing is written.
    ///
    /// # Errors
    /// Errors of the device as a whole.
    pub async fn refreshed(&self, table: &Table) -> Result<KeyStore> {
        let slots = self.slots.borrow().clone();
        let store = KeyStore::with(self.device.clone(), (self.volume, self.zones, self.start), slots);
        store.unread.replace(self.unread.borrow().clone());
        let missing =
            (0..).zip(&table.zones).filter(|(zone, entry)| need(entry, self.slot(*zone)) == Need::Lost);
        let blocks: BTreeSet<u64> = missing.map(|(zone, _)| self.block_of(zone)).collect();
        for number in blocks {
            let mut take = |number: u64, bytes: Result<&[u8]>| match bytes {
                Ok(bytes) => store.know(number, bytes),
                // The secrets of other zones that are known stay.
                Err(error) => tracing::warn!("{error}: block {number} of the secrets"),
            };
            read_blocks(&*self.device, self.start, number..number + 1, &mut take).await?;
        }
        store.note_lost(table);
        Ok(store)
    }

    /// Takes over the bytes of a block.
    fn know(&self, block: u64, bytes: &[u8]) {
        let at = (block * self.block_bytes()) as usize;
        self.slots.borrow_mut()[at..at + bytes.len()].copy_from_slice(bytes);
        self.unread.borrow_mut().remove(&block);
    }

    /// Secret of a zone's generation.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the zone was reset since; [`Error::Corrupt`] if the secret is lost.
    pub fn secret(&self, zone: u32, generation: u64) -> Result<Zeroizing<[u8; KEY]>> {
        match self.slot(zone) {
            Slot::Of(found) if found == generation => {
                let slots = self.slots.borrow();
                let mut secret = Zeroizing::new([0; KEY]);
                secret.copy_from_slice(&slots[zone as usize * SLOT + 8..][..KEY]);
                Ok(secret)
            }
            Slot::Of(found) if found > generation => Err(Error::invalid(format!(
                "zone {zone}: generation {generation} was reset and its key destroyed, the key store has generation {found}; \
                     expected reads of the present generation: open again"
            ))),
            Slot::Unread => Err(Error::corrupt(format!(
                "zone {zone}: its key is unknown, since the key store can't be read from byte {} on; expected a device that can be read: \
                 mend it, or put a copy in its place, and open again",
                self.start + self.block_of(zone) * self.block_bytes()
            ))),
            Slot::Of(_) | Slot::Damaged => Err(Error::corrupt(format!(
                "zone {zone}: the key store has no secret of generation {generation}: it is damaged, or an older copy; the data of \
                 this generation is lost without it"
            ))),
        }
    }

    /// Checks that the secret of a zone can be replaced, and changes nothing. A block that couldn't be read
    /// is read again.
    ///
    /// # Errors
    /// [`Error::Io`] if it still can't be read, and other zones need it; errors of the device as a whole.
    pub async fn check_renewable(&self, zone: u32, empty: Empty<'_>) -> Result<()> {
        match self.is_unread(self.block_of(zone)) {
            true => {
                let _only = self.writing.acquire(1).await;
                self.read_again(zone, empty).await.map(drop)
            }
            false => Ok(()),
        }
    }

    /// Reads the block of a zone again, if it couldn't be read; false if it still can't be, and no other zone
    /// needs what it has. The caller is the only one that reads or writes blocks.
    ///
    /// # Errors
    /// Errors of [`check_renewable`](Self::check_renewable).
    async fn read_again(&self, zone: u32, empty: Empty<'_>) -> Result<bool> {
        let block = self.block_of(zone);
        let mut refusal = None;
        let mut take = |number: u64, bytes: Result<&[u8]>| match bytes {
            Ok(bytes) => self.know(number, bytes),
            Err(error) => refusal = Some(error),
        };
        if self.is_unread(block) {
            read_blocks(&*self.device, self.start, block..block + 1, &mut take).await?;
        }
        let Some(error) = refusal else {
            let is_missing = |zone: &u32, generation: &mut u64| self.slot(*zone) != Slot::Of(*generation);
            self.lost.borrow_mut().retain(is_missing);
            return Ok(true);
        };
        match self.zones_of(block).filter(|other| *other != zone && empty(*other).is_none()).count() {
            0 => Ok(false),
            others => Err(Error::io(format!(
                "zone {zone}: its secret isn't overwritten, since the same {} bytes have those of {others} other zones with data, and \
                 can't be read: {error}; nothing was changed; mend the device of the key store, or put a copy in its place, and open \
                 again",
                self.block_bytes()
            ))),
        }
    }

    fn draw(&self, zone: u32, generation: u64) {
        let at = zone as usize * SLOT;
        fill(&self.volume, zone, generation, &mut self.slots.borrow_mut()[at..at + SLOT]);
        self.changed.borrow_mut().insert(self.block_of(zone));
        self.lost.borrow_mut().remove(&zone);
    }

    /// Writes a block that couldn't be read, with new secrets of all its zones, none of which has data. They
    /// are used once they are durable. The caller is the only one that reads or writes blocks.
    async fn redraw(&self, block: u64, empty: Empty<'_>) -> Result<()> {
        let zones = self.zones_of(block).filter_map(|zone| Some((zone, empty(zone)?)));
        zones.for_each(|(zone, generation)| self.draw(zone, generation));
        self.changed.borrow_mut().remove(&block);
        self.write(&BTreeSet::from([block])).await?;
        self.unread.borrow_mut().remove(&block);
        Ok(())
    }

    /// Replaces the secret of a zone by that of a later generation. Resets at the same time are written
    /// together.
    ///
    /// # Errors
    /// Errors of [`check_renewable`](Self::check_renewable), and of the device: then it is unknown
    /// which of the two it has.
    pub async fn renew(&self, zone: u32, generation: u64, empty: Empty<'_>) -> Result<()> {
        let block = self.block_of(zone);
        if self.is_unread(block) {
            let _only = self.writing.acquire(1).await;
            if !self.read_again(zone, empty).await? {
                let renewed = |other| if other == zone { Some(generation) } else { empty(other) };
                return self.redraw(block, &renewed).await;
            }
        }
        self.draw(zone, generation);
        self.write_changed().await
    }

    /// Writes the blocks that have changed, durably. Others that wait for this write are done with it, unless
    /// it fails.
    async fn write_changed(&self) -> Result<()> {
        let _writing = self.writing.acquire(1).await;
        let changed = self.changed.take();
        if changed.is_empty() {
            return Ok(());
        }
        debug_assert!(changed.is_disjoint(&self.unread.borrow()), "a block is written that couldn't be read");
        let written = self.write(&changed).await;
        if written.is_err() {
            self.changed.borrow_mut().extend(changed);
        }
        written
    }

    async fn write(&self, changed: &BTreeSet<u64>) -> Result<()> {
        let block = self.block_bytes();
        let most = (BATCH / block).max(1);
        let mut blocks = changed.iter().copied().peekable();
        while let Some(first) = blocks.next() {
            let mut end = first + 1;
            while end - first < most && blocks.next_if_eq(&end).is_some() {
                end += 1;
            }
            let payload = {
                let slots = self.slots.borrow();
                Buffer::copy_of(&slots[(first * block) as usize..(end * block) as usize])
            };
            let at = BlockIndex(self.start / block + first);
            self.device.write(at, payload.into(), Durability::Visible).await.map_err(in_context)?;
        }
        self.device.flush().await.map_err(in_context)
    }

    /// Overwrites bytes by zeros that are written: deallocated ones may stay on the medium.
    async fn wipe(&self, range: Range<u64>) -> Result<()> {
        let block = self.block_bytes();
        let zeros = Buffer::zeroed(BATCH as usize).freeze();
        for at in range.clone().step_by(BATCH as usize) {
            let some = zeros.slice(0..(range.end - at).min(BATCH) as usize);
            let written = self.device.write(BlockIndex(at / block), some.into(), Durability::Visible).await;
            written.map_err(in_context)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
