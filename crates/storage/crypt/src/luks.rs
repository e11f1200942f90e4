//! LUKS2: the header from which a passphrase gets the key of a volume, as cryptsetup writes and reads it.
//!
//! Format: "LUKS2 On-Disk Format Specification", version 1.1.3. [`format`](fn@format) creates a volume with
//! one key slot; [`open`] opens any volume of AES-XTS without integrity tags. No header is changed after its
//! creation: keys are added and removed by cryptsetup. Of two copies of the header the newer undamaged one is
//! authoritative.

mod header;
mod metadata;
mod slot;

use crate::device::{CryptPart, Segment};
use crate::secret::{self, Secret};
use block::{BlockIndex, BlockRange, Buffer, Device, DevicePart, Durability, Error, Result};
pub use header::is_luks;
use header::{Copy, Place};
use metadata::{Digest, Hash, Kdf, STRIPES, Slot, Volume};
use std::ops::Range;
use std::sync::Arc;
use zeroize::Zeroizing;

/// Offset of the data of a new volume, in bytes; also cryptsetup's.
pub const DATA: u64 = 16 << 20;
/// Offset of the material of the first key slot, after the two copies of the header.
const MATERIAL: u64 = 2 * header::NEW_SIZE as u64;
/// Bytes of the area of a key slot for a key of 64 bytes.
const AREA: u64 = (STRIPES as u64 * 64).next_multiple_of(4096);
/// Iterations of the digest of a random key; cryptsetup's are about as many.
const DIGEST_ITERATIONS: u32 = 100_000;
/// Most bytes of an earlier volume's header that are overwritten: two copies of 4 MiB, and 128 MiB of key
/// slots, which is also cryptsetup's limit.
const MAX_EARLIER: u64 = 136 << 20;
/// Bytes that are overwritten at once, unless a block is larger.
const ERASED: u64 = 1 << 20;
/// Most memory of Argon2 that a header may ask for, in bytes, unless a key permits more.
pub const MAX_MEMORY: u64 = 1 << 30;

/// Parameters of a new volume.
#[derive(Debug, Clone, Copy)]
pub struct NewVolume {
    /// Bytes that are encrypted as one sector: a power of two from 512 to 4096.
    pub sector_size: usize,
    /// Whether the header permits discards.
    pub discards: bool,
    /// Memory of Argon2id, in bytes.
    pub memory: u64,
    /// Passes of Argon2id over its memory.
    pub iterations: u32,
}

/// Reads bytes of a device, in whole blocks around them.
async fn read(device: &dyn Device, offset: u64, length: u64) -> Result<Vec<u8>> {
    let block = device.geometry().block_size;
    let (from, end) = (offset >> block.shift(), (offset + length).div_ceil(block.bytes()));
    let buffer = Buffer::new(((end - from) << block.shift()) as usize);
    let (read, buffer) = device.read(BlockIndex(from), buffer).await;
    read.map_err(|error| error.in_context("reading the LUKS2 header"))?;
    let skipped = (offset - (from << block.shift())) as usize;
    Ok(buffer.filled()[skipped..skipped + length as usize].to_vec())
}

/// Reads one copy of the header.
async fn read_copy(device: &dyn Device, place: Place, at: u64) -> Result<Copy> {
    let end = device.geometry().bytes();
    if at + header::BINARY as u64 > end {
        return Err(Error::not_found(format!("no LUKS header at byte {at}: the device has {end} bytes")));
    }
    let size = header::size(&read(device, at, header::BINARY as u64).await?, place, at)?;
    check_end("header", at + size, end)?;
    header::decode(&read(device, at, size).await?, place, at)
}

/// Checks that a device of `end` bytes contains the `needed` bytes to which its header refers.
fn check_end(what: &str, needed: u64, end: u64) -> Result<()> {
    match needed <= end {
        true => Ok(()),
        false => Err(Error::corrupt(format!(
            "the LUKS2 {what} is cut off: the device has {end} bytes; expected at least {needed}; look for the whole image"
        ))),
    }
}

/// Reads the authoritative copy of the header.
async fn read_header(device: &dyn Device) -> Result<Copy> {
    let first = read_copy(device, Place::First, 0).await;
    // Without the first copy the place of the second one isn't known.
    let places: &[u64] = match &first {
        Ok(first) => &[first.size],
        Err(_) => &header::SIZES,
    };
    let mut second = Err(Error::not_found("no second LUKS2 header"));
    for place in places {
        second = match read_copy(device, Place::Second, *place).await {
            Err(Error::NotFound(_)) => continue,
            found => found,
        };
        break;
    }
    match (&first, &second) {
        (Ok(_), Err(error)) => {
            tracing::warn!("crypt: {error}; the first copy is used; cryptsetup repair restores it")
        }
        (Err(error), Ok(_)) => {
            tracing::warn!("crypt: {error}; the second copy is used; cryptsetup repair restores it")
        }
        _ => {}
    }
    zones::sector::newest([first, second], |copy| copy.sequence)
}

/// Opens a volume. The header may ask for `memory` bytes for Argon2.
///
/// # Errors
/// [`Error::NotFound`] without a header, [`Error::Corrupt`] for a damaged one, [`Error::Protocol`] for
/// another version of LUKS, [`Error::Unsupported`] for a volume that this program can't open,
/// [`Error::PermissionDenied`] if the passphrase opens no key slot. If some slots can't be tried and no other
/// opens, the error of the last one, with those of the others in its text.
pub async fn open(below: Arc<dyn DevicePart>, passphrase: Secret, memory: u64) -> Result<CryptPart> {
    let device = below.open().await?;
    let copy = read_header(&*device).await?;
    let volume = metadata::parse(&copy.json, copy.size)?;
    let Segment { offset, bytes, sector_size, .. } = volume.segment;
    let needed = offset.saturating_add(bytes.unwrap_or(sector_size as u64));
    check_end("volume", needed, device.geometry().bytes())?;
    let mut materials = Vec::new();
    for slot in &volume.slots {
        materials.push(read(&*device, slot.offset, (STRIPES * slot.key_size) as u64).await);
    }
    drop(device);
    let (segment, discards) = (volume.segment, volume.discards);
    let (number, key) = runtime::blocking(move || try_slots(&volume, materials, &passphrase, memory)).await?;
    let cipher = secret::expand(key.get())?;
    let part = CryptPart::new(below, cipher, segment, discards)?;
    Ok(part.with_status("header", "luks2").with_status("uuid", copy.uuid).with_status("key_slot", number))
}

/// Returns the volume key, with the number of the slot that the passphrase opens. A slot that can't be tried
/// doesn't keep others from being tried.
fn try_slots(
    volume: &Volume,
    materials: Vec<Result<Vec<u8>>>,
    passphrase: &Secret,
    memory: u64,
) -> Result<(u8, Secret)> {
    let mut work = slot::Work::new(memory);
    let of_slot = |number: u8, error: Error| error.in_context(format_args!("key slot {number}"));
    let refused = |(number, error): &(u8, Error)| of_slot(*number, error.clone());
    let mut failures: Vec<Error> = volume.refused.iter().map(refused).collect();
    for (slot, material) in volume.slots.iter().zip(materials) {
        let opened = material.and_then(|material| {
            let mut material = Zeroizing::new(material);
            slot::open(slot, &mut material, passphrase.get(), &volume.digest, &mut work)
        });
        match opened {
            Ok(Some(key)) => {
                failures.iter().for_each(|error| tracing::warn!("crypt: {error}; another one was opened"));
                return Ok((slot.number, key));
            }
            Ok(None) => {}
            Err(error) => failures.push(of_slot(slot.number, error)),
        }
    }
    let Some(last) = failures.last() else {
        return Err(match volume.slots.len() {
            0 => Error::not_found(
                "the LUKS2 header has no key slot in use for a passphrase; expected one; cryptsetup luksAddKey adds one",
            ),
            count => Error::permission_denied(format!(
                "the passphrase opens no key slot of the LUKS2 header, which has {count}"
            )),
        });
    };
    let texts: Vec<&str> = failures.iter().map(Error::detail).collect();
    Err(last.with_detail(format!(
        "the passphrase opens no key slot of the LUKS2 header that can be tried; {}",
        texts.join("; ")
    )))
}

/// Random text of a UUID of version 4.
fn draw_uuid() -> String {
    let mut bytes = [0_u8; 16];
    runtime::fill_secret(&mut bytes);
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex = |range: std::ops::Range<usize>| -> String {
        bytes[range].iter().map(|byte| format!("{byte:02x}")).collect()
    };
    [hex(0..4), hex(4..6), hex(6..8), hex(8..10), hex(10..16)].join("-")
}

fn drawn(length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    runtime::fill_secret(&mut bytes);
    bytes
}

/// Creates a volume with a random key of 64 bytes on a device, whose contents are lost.
///
/// All bytes before the data, also before that of an earlier volume, are overwritten with random ones first:
/// a device may keep the contents of blocks that only read as zeros. A copy of the header is written after
/// its key slot is durable, the first copy last. So a power cut leaves no header, or one that opens.
///
/// # Errors
/// [`Error::Invalid`] for a device of 16 MiB or less; errors of writing, and of deriving the key.
pub async fn format(below: &Arc<dyn DevicePart>, passphrase: Secret, new: NewVolume) -> Result<()> {
    let geometry = below.geometry();
    geometry.check_writable()?;
    check_size(geometry.bytes())?;
    let (mut key, mut material) = (secret::zeroed(64)?, Zeroizing::new(drawn(AREA as usize)));
    runtime::fill_secret(key.get_mut());
    let volume = new_volume(new);
    let made = runtime::blocking(move || {
        let mut volume = volume;
        slot::digest(key.get(), &mut volume.digest);
        slot::close(&volume.slots[0], &mut material, key.get(), passphrase.get())?;
        Ok::<_, Error>((volume, material))
    });
    let (volume, material) = made.await?;
    let uuid = draw_uuid();
    let json = metadata::write(&volume, header::NEW_SIZE as u64, AREA, DATA - MATERIAL);
    let copy = |place| {
        let mut salt = [0; header::SALT];
        runtime::fill_secret(&mut salt);
        header::encode(json.as_bytes(), &uuid, salt, place)
    };
    let (first, second) = (copy(Place::First)?, copy(Place::Second)?);
    let device = below.open().await?;
    let written = async {
        erase(&*device).await?;
        write(&*device, [first, second, material.to_vec()]).await
    };
    written.await.map_err(|error| error.in_context("writing the LUKS2 header"))
}

/// Checks the size of a device for a new volume.
///
/// # Errors
/// [`Error::Invalid`] for a device that has no space for data.
pub fn check_size(bytes: u64) -> Result<()> {
    match bytes > DATA {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "a device of {bytes} bytes: expected more than {DATA}, which the LUKS2 header takes"
        ))),
    }
}

fn new_volume(new: NewVolume) -> Volume {
    let kdf = Kdf::Argon2 {
        is_id: true,
        time: new.iterations,
        memory: (new.memory >> 10) as u32,
        lanes: 1,
        salt: drawn(32),
    };
    let hash = Hash::Sha256;
    let slot = Slot { number: 0, key_size: 64, hash, offset: MATERIAL, area_key_size: 64, kdf };
    let digest = Digest { hash, iterations: DIGEST_ITERATIONS, salt: drawn(32), digest: vec![0; 32] };
    let segment = Segment { offset: DATA, bytes: None, tweak: 0, sector_size: new.sector_size };
    Volume { slots: vec![slot], refused: Vec::new(), digest, segment, discards: new.discards }
}

/// Blocks of a device that contain these bytes.
fn blocks(device: &dyn Device, bytes: Range<u64>) -> BlockRange {
    let (block, blocks) = (device.geometry().block_size, device.geometry().blocks.0);
    let end = bytes.end.div_ceil(block.bytes()).min(blocks);
    let first = (bytes.start >> block.shift()).min(end);
    BlockRange::new(first, end - first)
}

/// Overwrites all before the data with random bytes. The header of an earlier volume is overwritten before
/// its key slots.
async fn erase(device: &dyn Device) -> Result<()> {
    let (copies, end) = match read_header(device).await {
        Ok(copy) => {
            let data = metadata::parse(&copy.json, copy.size).map_or(0, |volume| volume.segment.offset);
            (2 * copy.size, data.clamp(DATA, MAX_EARLIER))
        }
        Err(_) => (0, DATA),
    };
    let block = device.geometry().block_size;
    let step = (ERASED >> block.shift()).max(1);
    for bytes in [0..copies, copies..end] {
        let range = blocks(device, bytes);
        for first in (range.start.0..range.end().0).step_by(step as usize) {
            let count = step.min(range.end().0 - first);
            let mut buffer = Buffer::zeroed((count << block.shift()) as usize);
            runtime::fill_secret(buffer.filled_mut());
            device.write(BlockIndex(first), buffer.into(), Durability::Visible).await?;
        }
        device.flush().await?;
    }
    Ok(())
}

/// Writes the two copies of the header and the material after them, the last one first, each durably before
/// the next.
async fn write(device: &dyn Device, [first, second, material]: [Vec<u8>; 3]) -> Result<()> {
    let mut image = drawn(MATERIAL as usize);
    image.extend_from_slice(&material);
    let copy = header::NEW_SIZE;
    for (from, bytes) in [(2 * copy, material), (copy, second), (0, first)] {
        image[from..from + bytes.len()].copy_from_slice(&bytes);
        let range = blocks(device, from as u64..(from + bytes.len()) as u64);
        // A block may be larger than the piece: then the bytes beside it are written again.
        let block = device.geometry().block_size;
        let start = block.offset_of(range.start).0 as usize;
        let length = block.bytes_of(range.count) as usize;
        let mut buffer = Buffer::new(length);
        buffer.append(&image[start..image.len().min(start + length)]);
        buffer.append_zeroes(buffer.missing());
        device.write(range.start, buffer.into(), Durability::Visible).await?;
        device.flush().await?;
    }
    Ok(())
}

/// Decodes arbitrary bytes as a header and as metadata, for tests with random input.
pub fn decode_anything(bytes: &[u8]) {
    let _ = header::decode(bytes, Place::First, 0);
    let _ = header::decode(bytes, Place::Second, header::SIZES[0]);
    if let Ok(volume) = metadata::parse(bytes, header::SIZES[0]) {
        assert!(
            volume.slots.len() <= 32 && volume.slots.iter().all(|slot| slot.offset < volume.segment.offset)
        );
    }
}
