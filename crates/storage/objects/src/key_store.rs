//! The key store: a small device with a secret for each zone, which a reset destroys.
//!
//! The key of a zone follows from the operator's key and this secret (`seal`), so neither alone opens the
//! zone. A bucket may keep every object forever: only bytes that are overwritten elsewhere are destroyed.
//!
//! # Promises
//! - The secret of a zone's generation is durable before [`KeyStore::renew`] or [`KeyStore::create`] returns,
//!   so before anything is sealed with it. It is drawn at random, and nowhere else.
//! - Once `renew` has returned, the secret of the generation before is overwritten on the device.
//! - A slot that can't be read is as one that is damaged: its secret is lost, and others are served.
//! - A secret is overwritten only by `renew`, whose caller has made the reset durable in the bucket, and by
//!   `create`. A power cut leaves the old bytes or the new ones of each sector: secrets of other zones in it
//!   are the same in both.
//!
//! Left to others: that one writer uses the device (the stack locks its files), and the order of resets
//! (`core`).

use crate::seal::KEY;
use crate::table::{Entry, MAX_ZONES, Table};
use block::{BlockIndex, BlockSize, Buffer, Device, DeviceGeometry, DevicePart, Durability, Error, Result};
use crc_fast::{CrcAlgorithm, Digest};
use runtime::sync::Semaphore;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
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
    /// Held while blocks are written.
    writing: Rc<Semaphore>,
    /// Zones that had data without a secret when the volume was opened.
    lost: Cell<u32>,
}

/// Offset of the slots, and their bytes in whole blocks.
fn extent(zones: u32, block: u64) -> (u64, u64) {
    (START.max(block), (u64::from(zones) * SLOT as u64).next_multiple_of(block))
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
            "a key store of {bytes} bytes: expected at least {} for {zones} zones",
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
    /// The zone has data whose secret is missing.
    Lost,
    /// The bucket shows an older generation.
    Older,
}

fn need(entry: &Entry, slot: Slot) -> Need {
    match slot {
        Slot::Of(generation) if generation == entry.generation => Need::Nothing,
        Slot::Of(generation) if generation > entry.generation => Need::Older,
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

/// Appends the slots at byte `at` of the device. Blocks that can't be read have damaged ones.
async fn read_slots(device: &dyn Device, at: u64, length: u64, slots: &mut Vec<u8>) -> Result<()> {
    let block = device.geometry().block_size.bytes();
    match read(device, at, length).await {
        Ok(mut some) => {
            slots.extend_from_slice(some.filled());
            some.filled_mut().zeroize();
        }
        Err(Error::Os(..) | Error::Io(_) | Error::Corrupt(_)) if length > block => {
            for at in (at..at + length).step_by(block as usize) {
                Box::pin(read_slots(device, at, block, slots)).await?;
            }
        }
        Err(error @ (Error::Os(..) | Error::Io(_) | Error::Corrupt(_))) => {
            tracing::warn!("{error}: the secrets in {length} bytes from byte {at} on are lost");
            slots.resize(slots.len() + length as usize, 0);
        }
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
        let mut slots = Zeroizing::new(Vec::with_capacity(length as usize));
        while (slots.len() as u64) < length {
            let at = slots.len() as u64;
            read_slots(&*device, start + at, (length - at).min(BATCH.max(block)), &mut slots).await?;
        }
        Ok(KeyStore::with(device, (superblock.volume, zones, start), slots))
    }

    fn with(
        device: Rc<dyn Device>,
        (volume, zones, start): ([u8; 16], u32, u64),
        slots: Zeroizing<Vec<u8>>,
    ) -> KeyStore {
        let (slots, changed, writing) = (RefCell::new(slots), RefCell::default(), Semaphore::new(1));
        KeyStore { device, volume, zones, start, slots, changed, writing, lost: Cell::new(0) }
    }

    fn slot(&self, zone: u32) -> Slot {
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
            false => Err(Error::invalid(
                "key_store: it has the secrets of another volume; expected those of this one, or format",
            )),
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
    /// data whose secret is lost.
    ///
    /// # Errors
    /// Errors of the device.
    pub async fn complete(&self, table: &Table) -> Result<()> {
        let mut lost = 0;
        for (zone, entry) in (0..).zip(&table.zones) {
            match need(entry, self.slot(zone)) {
                Need::Secret => self.draw(zone, entry.generation),
                Need::Lost => lost += 1,
                Need::Nothing | Need::Older => {}
            }
        }
        self.lost.set(lost);
        self.write_changed().await
    }

    /// Zones that had data without a secret when the volume was opened.
    pub fn lost(&self) -> u32 {
        self.lost.get()
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
            Slot::Of(found) if found > generation => {
                Err(Error::invalid(format!("zone {zone}: it was reset, and its key destroyed")))
            }
            _ => Err(Error::corrupt(format!(
                "zone {zone}: the key store has no secret of generation {generation}: it is damaged, or an older copy; the data of \
                 this generation is lost without it"
            ))),
        }
    }

    fn draw(&self, zone: u32, generation: u64) {
        let at = zone as usize * SLOT;
        fill(&self.volume, zone, generation, &mut self.slots.borrow_mut()[at..at + SLOT]);
        let block = self.device.geometry().block_size.bytes();
        self.changed.borrow_mut().insert(at as u64 / block);
    }

    /// Replaces the secret of a zone by that of a later generation. Resets at the same time are written
    /// together.
    ///
    /// # Errors
    /// Errors of the device, after which it is unknown which of the two it has.
    pub async fn renew(&self, zone: u32, generation: u64) -> Result<()> {
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
        let written = self.write(&changed).await;
        if written.is_err() {
            self.changed.borrow_mut().extend(changed);
        }
        written
    }

    async fn write(&self, changed: &BTreeSet<u64>) -> Result<()> {
        let block = self.device.geometry().block_size.bytes();
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
        let block = self.device.geometry().block_size.bytes();
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
mod tests {
    use super::*;
    use crate::table::{Piece, State};
    use disks::ram::RamPart;

    const VOLUME: [u8; 16] = [7; 16];

    fn device(block: u64) -> Arc<dyn DevicePart> {
        Arc::new(RamPart::new(1 << 20, block::BlockSize::new(block).unwrap()).unwrap())
    }

    async fn bytes(part: &Arc<dyn DevicePart>) -> Vec<u8> {
        let (outcome, buffer) = part.open().await.unwrap().read(BlockIndex(0), Buffer::new(1 << 20)).await;
        outcome.unwrap();
        buffer.filled().to_vec()
    }

    fn world<Fut: Future<Output = ()> + 'static>(test: impl FnOnce() -> Fut + 'static) {
        runtime::simulate(runtime::Simulation::new(5), test).unwrap();
    }

    #[test]
    fn a_renewed_secret_is_nowhere_on_the_device() {
        for block in [512, 4096, 16384] {
            world(move || async move {
                let part = device(block);
                let store = KeyStore::create(&part, VOLUME, 500).await.unwrap();
                let all: Vec<_> = (0..500).map(|zone| *store.secret(zone, 1).unwrap()).collect();
                assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 500);
                let holds =
                    async |secret: &[u8; KEY]| bytes(&part).await.windows(KEY).any(|bytes| bytes == secret);
                assert!(holds(&all[77]).await && holds(&all[78]).await);
                runtime::join_all([store.renew(77, 2), store.renew(300, 2), store.renew(76, 2)]).await;
                assert!(!holds(&all[77]).await && holds(&all[78]).await);
                assert!(matches!(store.secret(77, 1), Err(Error::Invalid(_))));
                let again = KeyStore::open(&part).await.unwrap();
                for zone in 0..500 {
                    let generation = if [76, 77, 300].contains(&zone) { 2 } else { 1 };
                    assert_eq!(
                        *again.secret(zone, generation).unwrap(),
                        *store.secret(zone, generation).unwrap()
                    );
                }
                KeyStore::create(&part, [8; 16], 500).await.unwrap();
                assert!(!holds(&all[78]).await, "formatting destroys all");
            });
        }
    }

    /// Nothing of an earlier key store is left, whatever zones and blocks it had.
    #[test]
    fn formatting_destroys_the_secrets_of_more_zones_and_of_other_blocks() {
        for (before, zones, after) in
            [(512, 8, 512), (512, 500, 16384), (16384, 500, 512), (16384, 8, 4096), (65536, 8, 512)]
        {
            world(move || async move {
                let old = device(before);
                let store = KeyStore::create(&old, VOLUME, 500).await.unwrap();
                let secrets: Vec<_> = (0..500).map(|zone| *store.secret(zone, 1).unwrap()).collect();
                let new = device(after);
                let copy = Buffer::copy_of(&bytes(&old).await);
                let handle = new.open().await.unwrap();
                handle.write(BlockIndex(0), copy.into(), Durability::Visible).await.unwrap();
                KeyStore::create(&new, [8; 16], zones).await.unwrap();
                let left: BTreeSet<Vec<u8>> =
                    bytes(&new).await.windows(KEY).step_by(8).map(<[u8]>::to_vec).collect();
                assert!(secrets.iter().all(|secret| !left.contains(&secret[..])), "{before} to {after}");
                KeyStore::open(&new)
                    .await
                    .unwrap()
                    .check_volume(&[8; 16], &Table::new(zones, 512).unwrap())
                    .unwrap();
            });
        }
    }

    fn faulty(part: &Arc<dyn DevicePart>, rule: &str) -> Arc<dyn DevicePart> {
        let rules = layers::fault::parse_rules(&[rule.to_owned()], stack::Contract::Device).unwrap();
        Arc::new(layers::fault::FaultDevicePart::new(part.clone(), rules, 1).unwrap())
    }

    /// A sector that can't be read has damaged slots, and those of the others are served.
    #[test]
    fn sectors_that_cannot_be_read_lose_their_secrets_alone() {
        world(|| async {
            let part = device(512);
            let store = KeyStore::create(&part, VOLUME, 500).await.unwrap();
            // The sector of zones 80 to 87.
            let at = START + 80 * SLOT as u64;
            let part = faulty(&part, &format!("read error=EIO range={at}..{}", at + 512));
            let again = KeyStore::open(&part).await.unwrap();
            for zone in 0..500 {
                match (80..88).contains(&zone) {
                    true => assert!(matches!(again.secret(zone, 1), Err(Error::Corrupt(_))), "{zone}"),
                    false => assert_eq!(again.secret(zone, 1), store.secret(zone, 1), "{zone}"),
                }
            }
        });
    }

    /// A write that takes long is awaited, so that it never lands over a later one.
    #[test]
    fn slow_writes_are_awaited() {
        world(|| async {
            let part = device(512);
            KeyStore::create(&part, VOLUME, 8).await.unwrap();
            let store = KeyStore::open(&faulty(&part, "write delay=500s times=1")).await.unwrap();
            let begun = runtime::now();
            store.renew(3, 2).await.unwrap();
            assert!(begun.elapsed() >= Duration::from_secs(500));
            let again = KeyStore::open(&part).await.unwrap();
            assert_eq!(again.secret(3, 2), store.secret(3, 2));
        });
    }

    /// A superblock that was altered is refused before memory is taken for its zones.
    #[test]
    fn key_stores_of_too_many_zones_are_refused() {
        world(|| async {
            let part = device(512);
            KeyStore::create(&part, VOLUME, 8).await.unwrap();
            for zones in [0, MAX_ZONES + 1, u32::MAX] {
                let mut sector = bytes(&part).await[..sector::SECTOR].to_vec();
                sector[12..16].copy_from_slice(&zones.to_le_bytes());
                sector::seal(&mut sector);
                let handle = part.open().await.unwrap();
                let sector = Buffer::copy_of(&sector).into();
                handle.write(BlockIndex(0), sector, Durability::Visible).await.unwrap();
                let error = KeyStore::open(&part).await.map(drop).unwrap_err();
                let is_named = error.to_string().contains(&format!("{zones} zones"));
                assert!(matches!(error, Error::Corrupt(_)) && is_named, "{error}");
            }
        });
    }

    #[test]
    fn other_key_stores_and_older_buckets_are_refused() {
        world(|| async {
            let part = device(512);
            assert!(matches!(KeyStore::open(&part).await, Err(Error::NotFound(_))));
            assert!(matches!(KeyStore::create(&part, VOLUME, 1 << 20).await, Err(Error::Invalid(_))));
            let store = KeyStore::create(&part, VOLUME, 8).await.unwrap();
            let mut table = Table::new(8, 1 << 20).unwrap();
            store.check_volume(&VOLUME, &table).unwrap();
            store.check_age(&table).unwrap();
            assert!(matches!(store.check_volume(&[8; 16], &table), Err(Error::Invalid(_))));
            let larger = Table::new(9, 1 << 20).unwrap();
            assert!(matches!(store.check_volume(&VOLUME, &larger), Err(Error::Invalid(_))));
            store.renew(3, 2).await.unwrap();
            let error = store.check_age(&table).unwrap_err();
            assert!(matches!(error, Error::Corrupt(_)) && error.to_string().contains("zone 3"), "{error}");
            // An interrupted reset, and a copy of the key store that is older than the data.
            let piece = Piece { offset: 0, length: 512, compressed: 0, epoch: 1, serial: 1 };
            table.zones[3].generation = 2;
            table.zones[4].generation = 7;
            table.zones[5] = Entry { generation: 2, state: State::Full, pieces: vec![piece] };
            store.check_age(&table).unwrap();
            store.complete(&table).await.unwrap();
            assert_eq!(store.lost(), 1);
            let again = KeyStore::open(&part).await.unwrap();
            assert_eq!(*again.secret(4, 7).unwrap(), *store.secret(4, 7).unwrap());
            let error = again.secret(5, 2).unwrap_err();
            assert!(matches!(error, Error::Corrupt(_)) && error.to_string().contains("zone 5"), "{error}");
            again.complete(&table).await.unwrap();
            assert_eq!(again.lost(), 1);
        });
    }

    /// Damage of any byte is noticed, or is in bytes without a use.
    #[test]
    fn damaged_slots_have_no_secret() {
        world(|| async {
            let part = device(512);
            let store = KeyStore::create(&part, VOLUME, 8).await.unwrap();
            for at in 0..SLOT {
                store.slots.borrow_mut()[SLOT + at] ^= 1;
                assert!(matches!(store.secret(1, 1), Err(Error::Corrupt(_))), "byte {at}");
                store.slots.borrow_mut()[SLOT + at] ^= 1;
            }
            // A slot elsewhere.
            let slot = store.slots.borrow()[..SLOT].to_vec();
            store.slots.borrow_mut()[SLOT..2 * SLOT].copy_from_slice(&slot);
            assert!(matches!(store.secret(1, 1), Err(Error::Corrupt(_))));
            assert_eq!(store.secret(0, 1).map(drop), Ok(()));
        });
    }
}
