//! Records of one sector: superblocks, zone headers, sectors of a bitmap.
//!
//! A record is 512 bytes: a magic number, a version, the fields of its owner, and CRC-32C of all that at the
//! end. It lies within one sector of any disk, so it is never torn. This module checks the common parts and
//! reports damage; the fields, and which of two copies is authoritative, are the owner's.
//!
//! Decoding accepts any bytes and never panics.

use block::{Buffer, Error, Result};
use crc_fast::{CrcAlgorithm, checksum};
use std::fmt::Display;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of a record, in bytes.
pub const SECTOR: usize = 512;
/// Length of the checksummed part of a record, in bytes.
const CHECKED: usize = SECTOR - 4;

/// Identification of the records of one format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Format {
    /// The first bytes of the record.
    pub magic: [u8; 8],
    /// The version that this program writes, and the only one that it reads.
    pub version: u32,
}

/// First fields of every record.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Debug, Clone, Copy)]
#[repr(C)]
pub struct Head {
    magic: [u8; 8],
    version: U32,
}

/// Fields of a record as on the medium: a [`Head`] first, 4 bytes for the checksum last, 512 bytes in all.
pub trait Fields: FromBytes + IntoBytes + Immutable + KnownLayout + Unaligned {}

impl<T: FromBytes + IntoBytes + Immutable + KnownLayout + Unaligned> Fields for T {}

impl Format {
    /// Head of every record of this format.
    pub fn head(&self) -> Head {
        Head { magic: self.magic, version: self.version.into() }
    }

    /// Decodes the record at the start of these bytes. `what` is its name in messages: "superblock of a
    /// mirror".
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is none, with a description of the bytes; [`Error::Protocol`] for another
    /// version; [`Error::Corrupt`] for a damaged record.
    pub fn read<'a, T: Fields>(&self, bytes: &'a [u8], what: impl Display) -> Result<&'a T> {
        const { assert!(size_of::<T>() == SECTOR, "a record is one sector") };
        let Ok((fields, _)) = T::ref_from_prefix(bytes) else {
            return Err(Error::corrupt(format!("{what}: {} bytes, expected {SECTOR}", bytes.len())));
        };
        let (head, _) = Head::ref_from_prefix(bytes)
            .map_err(|_| Error::corrupt(format!("{what}: {} bytes, expected {SECTOR}", bytes.len())))?;
        if head.magic != self.magic {
            return Err(Error::not_found(format!("no {what} here, but {}", describe(bytes))));
        }
        if head.version.get() != self.version {
            return Err(Error::protocol(format!(
                "{what}: version {} of the format; this program reads version {}: use the program that wrote it",
                head.version, self.version
            )));
        }
        if bytes[CHECKED..SECTOR] != sum(bytes).to_le_bytes() {
            return Err(Error::corrupt(format!("{what}: wrong checksum: torn or damaged")));
        }
        Ok(fields)
    }
}

fn sum(bytes: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, &bytes[..CHECKED]) as u32
}

/// Writes the checksum of a record into its last bytes.
///
/// # Panics
/// If there are fewer than 512.
pub fn seal(bytes: &mut [u8]) {
    let sum = sum(bytes);
    bytes[CHECKED..SECTOR].copy_from_slice(&sum.to_le_bytes());
}

/// Returns `bytes` bytes that begin with this record, sealed; the rest is zeros.
///
/// # Panics
/// If `bytes` is less than a record.
pub fn block_of<T: Fields>(fields: &T, bytes: usize) -> Buffer {
    const { assert!(size_of::<T>() == SECTOR, "a record is one sector") };
    let mut buffer = Buffer::zeroed(bytes);
    let sector = &mut buffer.filled_mut()[..SECTOR];
    sector.copy_from_slice(fields.as_bytes());
    seal(sector);
    buffer
}

/// Appends this record, sealed, to the buffer, which has capacity for it.
pub fn append<T: Fields>(fields: &T, buffer: &mut Buffer) {
    const { assert!(size_of::<T>() == SECTOR, "a record is one sector") };
    let from = buffer.filled().len();
    buffer.append(fields.as_bytes());
    seal(&mut buffer.filled_mut()[from..]);
}

/// Returns the newest of the readable copies. If there is none, returns the most informative error: damage
/// and other versions rather than a missing copy.
///
/// # Errors
/// The most informative error of the copies.
pub fn newest<T>(copies: impl IntoIterator<Item = Result<T>>, number: impl Fn(&T) -> u64) -> Result<T> {
    let worth = |copy: &Result<T>| match copy {
        Ok(copy) => (2, number(copy)),
        Err(Error::NotFound(_)) => (0, 0),
        Err(_) => (1, 0),
    };
    let best = copies.into_iter().reduce(|best, copy| if worth(&copy) > worth(&best) { copy } else { best });
    best.unwrap_or_else(|| Err(Error::not_found("no copy could be read")))
}

/// Describes the first bytes of a device, for an operator who decides whether they may be overwritten. All
/// known formats are recognized with 4104 bytes or more.
pub fn describe(bytes: &[u8]) -> &'static str {
    let at = |offset: usize, magic: &[u8]| bytes.get(offset..offset + magic.len()) == Some(magic);
    match () {
        () if bytes.iter().all(|byte| *byte == 0) => "nothing but zeros",
        () if at(0, b"SILTZSUP") => "zones of Siltstone's",
        () if at(0, b"SILTZHDR") => "a zone header, where a superblock should be",
        () if at(0, b"SILTMIRR") => "a leg of a mirror of Siltstone's",
        () if at(0, b"SILTMBIT") => "a piece of the bitmap of a mirror of Siltstone's",
        () if at(0, b"SILTWCSB") => "a write cache of Siltstone's",
        () if at(0, b"SILTZWSB") => "a write cache of zones of Siltstone's",
        () if at(0, b"SILTTSUP") => "the table of a cache of Siltstone's",
        () if at(0, b"SILTOBKS") => "the key store of zones in an object store of Siltstone's",
        () if at(0, b"SILT") => "data of Siltstone's",
        () => foreign(bytes).unwrap_or("data that Siltstone doesn't know"),
    }
}

/// Identifies the format of another program by its signature in the first bytes of a device, as wipefs(8)
/// does; `None` for Siltstone's own formats and for unknown bytes. All known formats are recognized with 128
/// KiB or more.
pub fn foreign(bytes: &[u8]) -> Option<&'static str> {
    let at = |offset: usize, magic: &[u8]| bytes.get(offset..offset + magic.len()) == Some(magic);
    let label = |sector: usize| at(sector * 512, b"LABELONE");
    Some(match () {
        () if at(0, b"SILT") => return None,
        () if at(0, b"XFSB") => "an XFS file system",
        () if at(0, b"QFI\xfb") => "a qcow2 image",
        () if at(0, b"LUKS\xba\xbe") => "a LUKS volume",
        () if (0..4).any(label) => "an LVM physical volume",
        () if at(1080, b"\x53\xef") => "an ext2, ext3 or ext4 file system",
        () if at(0x10040, b"_BHRfS_M") => "a btrfs file system",
        () if at(4086, b"SWAPSPACE2") || at(4086, b"SWAP-SPACE") => "a swap area",
        () if at(1024, b"\x10\x20\xf5\xf2") => "an F2FS file system",
        () if at(1024, b"\xe2\xe1\xf5\xe0") => "an EROFS file system",
        () if at(0, b"hsqs") => "a squashfs file system",
        () if at(0x8001, b"CD001") => "an ISO 9660 file system",
        () if at(3, b"NTFS    ") => "an NTFS file system",
        () if at(3, b"EXFAT   ") => "an exFAT file system",
        () if at(0, b"\xfc\x4e\x2b\xa9") || at(4096, b"\xfc\x4e\x2b\xa9") => "a member of an md array",
        () if at(0, b"vhdxfile") => "a VHDX image",
        () if at(0, b"KDMV") => "a VMDK image",
        () if at(512, b"EFI PART") || at(4096, b"EFI PART") => "a GPT partition table",
        () if at(510, b"\x55\xaa") => "a boot sector or a partition table",
        () => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: Format = Format { magic: *b"SILTTEST", version: 7 };

    #[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
    #[repr(C)]
    struct Words {
        head: Head,
        words: [u8; 496],
        crc: U32,
    }

    fn words() -> Words {
        Words { head: FORMAT.head(), words: std::array::from_fn(|at| at as u8), crc: 0.into() }
    }

    fn refusal(bytes: &[u8]) -> Error {
        FORMAT.read::<Words>(bytes, "a test").err().expect("it is none")
    }

    /// CRC-32C bit by bit, as defined in RFC 3720 (appendix B.4).
    fn slow_sum(bytes: &[u8]) -> u32 {
        !bytes.iter().fold(!0_u32, |crc, byte| {
            (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
                (crc >> 1) ^ (0x82F6_3B78 & 0_u32.wrapping_sub(crc & 1))
            })
        })
    }

    #[test]
    fn a_record_lies_on_the_medium_as_the_book_says() {
        assert_eq!(slow_sum(b"123456789"), 0xE306_9283);
        let block = block_of(&words(), 1024);
        let bytes = block.filled();
        assert_eq!(bytes[..8], *b"SILTTEST");
        assert_eq!(bytes[8..12], [7, 0, 0, 0]);
        assert_eq!(bytes[12..16], [0, 1, 2, 3]);
        assert_eq!(bytes[508..512], slow_sum(&bytes[..508]).to_le_bytes());
        assert!(bytes[512..].iter().all(|byte| *byte == 0));
        assert_eq!(FORMAT.read::<Words>(bytes, "a test").expect("it is one").words, words().words);

        let mut page = Buffer::new(1024);
        append(&words(), &mut page);
        append(&words(), &mut page);
        assert_eq!((&page.filled()[..512], &page.filled()[512..]), (&bytes[..512], &bytes[..512]));
    }

    #[test]
    fn what_is_no_record_is_named() {
        let block = block_of(&words(), 512);
        let mut other = Buffer::zeroed(512);
        assert_eq!(refusal(other.filled()), Error::not_found("no a test here, but nothing but zeros"));
        other.filled_mut()[..8].copy_from_slice(b"SILTMIRR");
        assert!(
            refusal(other.filled()).detail().contains("but a leg of a mirror"),
            "{}",
            refusal(other.filled())
        );
        let newer = Format { version: 8, ..FORMAT };
        let newer = newer.read::<Words>(block.filled(), "a test").err().expect("of another version");
        assert!(
            matches!(&newer, Error::Protocol(text) if text.contains("version 7 of the format; this program reads version 8"))
        );
        for length in 0..512 {
            assert!(FORMAT.read::<Words>(&block.filled()[..length], "a test").is_err(), "{length} bytes");
        }
        for bit in 0..SECTOR * 8 {
            let mut bytes = block.filled().to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let error = refusal(&bytes);
            let right = match bit / 8 {
                0..8 => matches!(error, Error::NotFound(_)),
                8..12 => matches!(error, Error::Protocol(_)),
                _ => matches!(error, Error::Corrupt(_)),
            };
            assert!(right, "bit {bit}: {error}");
        }
    }

    #[test]
    fn the_newest_copy_counts_and_else_the_error_that_says_most() {
        let none = || Err(Error::not_found("none"));
        let torn = || Err(Error::corrupt("torn"));
        assert_eq!(newest([Ok(3), Ok(4)], |number| *number), Ok(4));
        assert_eq!(newest([Ok(4), Ok(3)], |number| *number), Ok(4));
        assert_eq!(newest([torn(), Ok(3)], |number| *number), Ok(3));
        assert_eq!(newest([Ok(3), none()], |number| *number), Ok(3));
        assert_eq!(newest([none(), torn()], |number: &u64| *number), torn());
        assert_eq!(newest([torn(), none()], |number: &u64| *number), torn());
        assert_eq!(newest([none(), none()], |number: &u64| *number), none());
    }
}
