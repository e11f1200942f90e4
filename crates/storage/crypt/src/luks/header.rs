//! Binary header of LUKS2: 4096 bytes, which the JSON area follows. There are two copies, each with a
//! checksum of all its bytes. Numbers are big-endian.
//!
//! Source: "LUKS2 On-Disk Format Specification", version 1.1.3, chapters 2 and 3. Decoding accepts any bytes.

use block::{Error, Result};
use ring::digest;
use zerocopy::big_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of the binary header.
pub const BINARY: usize = 4096;
/// Sizes of a copy with its JSON area, in bytes; the second copy follows the first.
pub const SIZES: [u64; 9] =
    [16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20];
/// Size of a new copy.
pub const NEW_SIZE: usize = SIZES[0] as usize;
const VERSION: u16 = 2;
/// Bytes of the salt, a random number that only makes the checksums of copies differ.
pub const SALT: usize = 64;

/// Which copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The copy at the start of the device.
    First,
    /// The copy after the first one.
    Second,
}

impl Place {
    fn magic(self) -> [u8; 6] {
        match self {
            Place::First => *b"LUKS\xba\xbe",
            Place::Second => *b"SKUL\xba\xbe",
        }
    }
}

/// Whether a device that starts with these bytes has a header, of any version of LUKS.
pub fn is_luks(start: &[u8]) -> bool {
    start.starts_with(&Place::First.magic())
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Binary {
    magic: [u8; 6],
    version: U16,
    size: U64,
    sequence: U64,
    label: [u8; 48],
    checksum_algorithm: [u8; 32],
    salt: [u8; SALT],
    uuid: [u8; 40],
    subsystem: [u8; 48],
    offset: U64,
    padding: [u8; 184],
    checksum: [u8; 64],
    rest: [u8; BINARY - 512],
}

/// A copy of the header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copy {
    /// Bytes of the copy, with its JSON area.
    pub size: u64,
    /// Number of the change that wrote it: the copy with the larger one is authoritative.
    pub sequence: u64,
    /// UUID of the volume, as text.
    pub uuid: String,
    /// The JSON text.
    pub json: Vec<u8>,
}

/// Bytes before the first zero.
fn until_zero(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Pads with zeros, or cuts before the last byte.
fn padded<const N: usize>(text: &[u8]) -> [u8; N] {
    std::array::from_fn(|at| if at + 1 < N { text.get(at).copied().unwrap_or(0) } else { 0 })
}

fn algorithm(name: &[u8]) -> Option<&'static digest::Algorithm> {
    match name {
        b"sha256" => Some(&digest::SHA256),
        b"sha384" => Some(&digest::SHA384),
        b"sha512" => Some(&digest::SHA512),
        b"sha1" => Some(&digest::SHA1_FOR_LEGACY_USE_ONLY),
        _ => None,
    }
}

/// Returns the size of the copy that begins with these bytes, at byte `at` of the device.
///
/// # Errors
/// [`Error::NotFound`] if there is no header; [`Error::Protocol`] for another version of LUKS;
/// [`Error::Corrupt`] for a header with fields that are out of range.
pub fn size(bytes: &[u8], place: Place, at: u64) -> Result<u64> {
    let (header, _) =
        Binary::ref_from_prefix(bytes).map_err(|_| Error::corrupt("a LUKS header is cut off"))?;
    if header.magic != place.magic() {
        return Err(Error::not_found(format!(
            "no LUKS header at byte {at}, but {}",
            zones::sector::describe(&bytes[..BINARY.min(bytes.len())])
        )));
    }
    match header.version.get() {
        VERSION => {}
        1 => {
            return Err(Error::protocol(
                "LUKS version 1; this program reads version 2; convert it with cryptsetup convert --type luks2",
            ));
        }
        version => {
            return Err(Error::protocol(format!("LUKS version {version}; this program reads version 2")));
        }
    }
    let size = header.size.get();
    match SIZES.contains(&size) && header.offset.get() == at && (place == Place::First || at == size) {
        true => Ok(size),
        false => {
            Err(Error::corrupt(format!("the LUKS2 header at byte {at} has a size or offset out of range")))
        }
    }
}

/// Decodes a whole copy, which is at byte `at` of the device.
///
/// # Errors
/// As [`size`]; [`Error::Corrupt`] for a wrong checksum.
pub fn decode(bytes: &[u8], place: Place, at: u64) -> Result<Copy> {
    let size = size(bytes, place, at)?;
    let corrupt = |what: &str| Error::corrupt(format!("the LUKS2 header at byte {at}: {what}"));
    if bytes.len() as u64 != size {
        return Err(corrupt("it is cut off"));
    }
    let (header, json) = Binary::ref_from_prefix(bytes).map_err(|_| corrupt("it is cut off"))?;
    let algorithm = algorithm(until_zero(&header.checksum_algorithm))
        .ok_or_else(|| corrupt("its checksum isn't sha256, sha384, sha512 or sha1"))?;
    if checksum(bytes, algorithm).as_ref() != &header.checksum[..algorithm.output_len()] {
        return Err(corrupt("its checksum is wrong"));
    }
    let uuid = String::from_utf8_lossy(until_zero(&header.uuid)).into_owned();
    Ok(Copy { size, sequence: header.sequence.get(), uuid, json: until_zero(json).to_vec() })
}

/// Checksum of a copy, in which the field of the checksum is zeros.
fn checksum(bytes: &[u8], algorithm: &'static digest::Algorithm) -> digest::Digest {
    let field = std::mem::offset_of!(Binary, checksum);
    let mut context = digest::Context::new(algorithm);
    context.update(&bytes[..field]);
    context.update(&[0; 64]);
    context.update(&bytes[field + 64..]);
    context.finish()
}

/// Encodes a copy of [`NEW_SIZE`], with sequence number 1.
///
/// # Errors
/// [`Error::Overflow`] if the JSON text doesn't fit.
pub fn encode(json: &[u8], uuid: &str, salt: [u8; SALT], place: Place) -> Result<Vec<u8>> {
    if json.len() >= NEW_SIZE - BINARY {
        return Err(Error::overflow(format!(
            "{} bytes of LUKS2 metadata: expected at most 12 KiB",
            json.len()
        )));
    }
    let offset = if place == Place::First { 0 } else { NEW_SIZE as u64 };
    let header = Binary {
        magic: place.magic(),
        version: VERSION.into(),
        size: (NEW_SIZE as u64).into(),
        sequence: 1.into(),
        label: [0; 48],
        checksum_algorithm: padded(b"sha256"),
        salt,
        uuid: padded(uuid.as_bytes()),
        subsystem: [0; 48],
        offset: offset.into(),
        padding: [0; 184],
        checksum: [0; 64],
        rest: [0; BINARY - 512],
    };
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend_from_slice(json);
    bytes.resize(NEW_SIZE, 0);
    let sum = checksum(&bytes, &digest::SHA256);
    let field = std::mem::offset_of!(Binary, checksum);
    bytes[field..field + sum.as_ref().len()].copy_from_slice(sum.as_ref());
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_encoded_is_decoded_and_every_flipped_bit_is_noticed() {
        for (place, at) in [(Place::First, 0), (Place::Second, NEW_SIZE as u64)] {
            let bytes = encode(b"{\"a\":1}", "uuid", [7; SALT], place).unwrap();
            let copy = decode(&bytes, place, at).unwrap();
            let uuid = "uuid".to_owned();
            assert_eq!(copy, Copy { size: NEW_SIZE as u64, sequence: 1, uuid, json: b"{\"a\":1}".to_vec() });
            assert!(decode(&bytes, place, at + 512).is_err());
            assert!(decode(&bytes[..bytes.len() - 512], place, at).is_err());
            for byte in (0..600).chain((600..bytes.len()).step_by(97)) {
                let mut bytes = bytes.clone();
                bytes[byte] ^= 1 << (byte % 8);
                // The checksum is shorter than its field.
                let is_unused = (480..512).contains(&byte);
                assert_eq!(decode(&bytes, place, at).is_ok(), is_unused, "byte {byte}");
            }
        }
        assert!(encode(&[b' '; NEW_SIZE], "", [0; SALT], Place::First).is_err());
    }

    #[test]
    fn other_versions_and_formats_are_named() {
        let mut bytes = encode(b"{}", "", [0; SALT], Place::First).unwrap();
        bytes[7] = 1;
        let error = decode(&bytes, Place::First, 0).unwrap_err().to_string();
        assert!(error.contains("convert it with cryptsetup convert --type luks2"), "{error}");
        bytes[7] = 3;
        assert!(matches!(decode(&bytes, Place::First, 0), Err(Error::Protocol(_))));
        bytes[..8].copy_from_slice(b"SILTMIRR");
        let error = decode(&bytes, Place::First, 0).unwrap_err();
        assert!(error.detail().contains("a leg of a mirror"), "{error}");
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_refused(mut bytes in prop::collection::vec(any::<u8>(), 0..20_000), magic: bool) {
            if magic && bytes.len() > 16 {
                bytes[..8].copy_from_slice(b"LUKS\xba\xbe\0\x02");
                bytes[8..16].copy_from_slice(&SIZES[0].to_be_bytes());
            }
            let _ = decode(&bytes, Place::First, 0);
            let _ = decode(&bytes, Place::Second, SIZES[0]);
        }
    }
}
