//! Key slots of LUKS2: a passphrase gives a key, which decrypts material, which merges to the volume key.
//!
//! These functions take seconds and up to gigabytes, and are called on a thread of their own. A header
//! decides how much: [`Work`] bounds what all slots of a header may take together.

use super::metadata::{Digest, Hash, Kdf, STRIPES, Slot};
use crate::secret::{self, Secret};
use crate::xts::MIN_SECTOR;
use argon2::{Algorithm, Argon2, Params, Version};
use block::{Error, Result};
use ring::{digest, pbkdf2};
use std::num::NonZeroU32;
use zeroize::{Zeroize, Zeroizing};

/// Most lanes of Argon2.
const MAX_LANES: u32 = 16;
/// Limit of the work that one header may cause: KiB that Argon2 fills, several minutes. One iteration of
/// PBKDF2 is about as much work as one KiB.
const MAX_WORK: u64 = 256 << 20;

fn digest_of(hash: Hash) -> &'static digest::Algorithm {
    match hash {
        Hash::Sha1 => &digest::SHA1_FOR_LEGACY_USE_ONLY,
        Hash::Sha256 => &digest::SHA256,
        Hash::Sha384 => &digest::SHA384,
        Hash::Sha512 => &digest::SHA512,
    }
}

fn pbkdf2_of(hash: Hash) -> pbkdf2::Algorithm {
    match hash {
        Hash::Sha1 => pbkdf2::PBKDF2_HMAC_SHA1,
        Hash::Sha256 => pbkdf2::PBKDF2_HMAC_SHA256,
        Hash::Sha384 => pbkdf2::PBKDF2_HMAC_SHA384,
        Hash::Sha512 => pbkdf2::PBKDF2_HMAC_SHA512,
    }
}

/// Work that a header may still cause.
pub struct Work {
    left: u64,
    /// Most memory of Argon2, in KiB.
    memory: u64,
}

impl Work {
    /// The work of one header, with this limit of Argon2's memory in bytes.
    pub fn new(memory: u64) -> Work {
        Work { left: MAX_WORK, memory: memory >> 10 }
    }

    fn take(&mut self, work: u64) -> Result<()> {
        self.left = self.left.checked_sub(work).ok_or_else(|| {
            Error::overflow(format!(
                "its header asks for more work than {MAX_WORK} KiB of Argon2 or iterations of PBKDF2"
            ))
        })?;
        Ok(())
    }

    fn take_kdf(&mut self, kdf: &Kdf, length: usize) -> Result<()> {
        match kdf {
            Kdf::Argon2 { time, memory, lanes, .. } => {
                if u64::from(*memory) > self.memory {
                    return Err(Error::out_of_memory(format!(
                        "Argon2 needs {memory} KiB of memory; expected at most {} KiB; a larger pbkdf_memory permits it",
                        self.memory
                    )));
                }
                let is_valid = *time > 0 && (1..=MAX_LANES).contains(lanes) && *memory >= 8 * lanes;
                if !is_valid {
                    return Err(Error::corrupt(format!(
                        "its numbers for Argon2 are out of range; expected 1 to {MAX_LANES} lanes and 8 KiB for each"
                    )));
                }
                self.take(u64::from(*time) * u64::from(*memory))
            }
            Kdf::Pbkdf2 { hash, iterations, .. } => self.take_pbkdf2(*hash, *iterations, length),
        }
    }

    fn take_pbkdf2(&mut self, hash: Hash, iterations: u32, length: usize) -> Result<()> {
        let blocks = length.div_ceil(digest_of(hash).output_len());
        self.take(u64::from(iterations) * blocks as u64)
    }
}

/// Fills `key` by Argon2.
fn argon2(passphrase: &[u8], kdf: &Kdf, key: &mut [u8]) -> Result<()> {
    let Kdf::Argon2 { is_id, time, memory, lanes, salt } = kdf else { return Ok(()) };
    let wrong = |error: argon2::Error| Error::corrupt(format!("Argon2: {error}"));
    let parameters = Params::new(*memory, *time, *lanes, Some(key.len())).map_err(wrong)?;
    let mut blocks: Vec<argon2::Block> = Vec::new();
    let count = parameters.block_count();
    if blocks.try_reserve_exact(count).is_err() {
        return Err(Error::out_of_memory(format!("Argon2: {memory} KiB aren't available")));
    }
    blocks.resize(count, argon2::Block::new());
    let algorithm = if *is_id { Algorithm::Argon2id } else { Algorithm::Argon2i };
    let argon2 = Argon2::new(algorithm, Version::V0x13, parameters);
    let derived = argon2.hash_password_into_with_memory(passphrase, salt, key, &mut blocks);
    blocks.iter_mut().for_each(Zeroize::zeroize);
    derived.map_err(wrong)
}

/// Returns the key of a slot's material.
///
/// # Errors
/// [`Error::Corrupt`] for parameters out of range, [`Error::OutOfMemory`] if Argon2 may not or can't have its
/// memory, [`Error::Overflow`] if the header has caused too much work.
fn derive(passphrase: &[u8], kdf: &Kdf, length: usize, work: &mut Work) -> Result<Secret> {
    work.take_kdf(kdf, length)?;
    let mut key = secret::zeroed(length)?;
    match kdf {
        Kdf::Argon2 { .. } => argon2(passphrase, kdf, key.get_mut())?,
        Kdf::Pbkdf2 { hash, iterations, salt } => {
            let iterations =
                NonZeroU32::new(*iterations).ok_or_else(|| Error::corrupt("PBKDF2 of 0 iterations"))?;
            pbkdf2::derive(pbkdf2_of(*hash), iterations, salt, passphrase, key.get_mut());
        }
    }
    Ok(key)
}

/// Hashes pieces of a block, each with its number: TKS1's diffuser.
fn diffuse(block: &mut [u8], hash: Hash) {
    let algorithm = digest_of(hash);
    for (number, piece) in block.chunks_mut(algorithm.output_len()).enumerate() {
        let mut context = digest::Context::new(algorithm);
        context.update(&(number as u32).to_be_bytes());
        context.update(piece);
        piece.copy_from_slice(&context.finish().as_ref()[..piece.len()]);
    }
}

fn add(block: &mut [u8], other: &[u8]) {
    block.iter_mut().zip(other).for_each(|(byte, other)| *byte ^= other);
}

/// Reverses [`split`]: the anti-forensic splitter of LUKS (Fruhwirth, "TKS1", 2004).
fn merge(material: &[u8], key: &mut [u8], hash: Hash) {
    key.fill(0);
    let (stripes, _) = material.split_at(STRIPES * key.len());
    for (number, stripe) in stripes.chunks_exact(key.len()).enumerate() {
        add(key, stripe);
        if number + 1 < STRIPES {
            diffuse(key, hash);
        }
    }
}

/// Changes the last of `STRIPES` random stripes so that they merge to `key`.
fn split(key: &[u8], material: &mut [u8], hash: Hash) {
    let (stripes, last) = material.split_at_mut((STRIPES - 1) * key.len());
    let mut sum = Zeroizing::new(vec![0; key.len()]);
    for stripe in stripes.chunks_exact(key.len()) {
        add(&mut sum, stripe);
        diffuse(&mut sum, hash);
    }
    last.copy_from_slice(key);
    add(last, &sum);
}

/// Returns the volume key, if the passphrase is that of the slot, whose material is decrypted in place.
///
/// # Errors
/// As [`Work`] and the derivations report; `Ok(None)` for another passphrase.
pub fn open(
    slot: &Slot,
    material: &mut [u8],
    passphrase: &[u8],
    digest: &Digest,
    work: &mut Work,
) -> Result<Option<Secret>> {
    work.take_pbkdf2(digest.hash, digest.iterations, digest.digest.len())?;
    let area_key = derive(passphrase, &slot.kdf, slot.area_key_size, work)?;
    secret::expand(area_key.get())?.decrypt(material, MIN_SECTOR, 0);
    let mut key = secret::zeroed(slot.key_size)?;
    merge(material, key.get_mut(), slot.hash);
    let iterations =
        NonZeroU32::new(digest.iterations).ok_or_else(|| Error::corrupt("a digest of 0 iterations"))?;
    let is_right =
        pbkdf2::verify(pbkdf2_of(digest.hash), iterations, &digest.salt, key.get(), &digest.digest);
    Ok(is_right.is_ok().then_some(key))
}

/// Encrypts a volume key for a passphrase: the random bytes of `material` become those of the slot.
///
/// # Errors
/// As [`open`].
pub fn close(slot: &Slot, material: &mut [u8], key: &[u8], passphrase: &[u8]) -> Result<()> {
    let area_key = derive(passphrase, &slot.kdf, slot.area_key_size, &mut Work::new(u64::MAX))?;
    let used = &mut material[..STRIPES * key.len()];
    split(key, used, slot.hash);
    secret::expand(area_key.get())?.encrypt(used, MIN_SECTOR, 0);
    Ok(())
}

/// Fills the digest of a volume key.
pub fn digest(key: &[u8], digest: &mut Digest) {
    let iterations = NonZeroU32::new(digest.iterations).unwrap_or(NonZeroU32::MIN);
    pbkdf2::derive(pbkdf2_of(digest.hash), iterations, &digest.salt, key, &mut digest.digest);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_is_split_is_merged() {
        for (hash, length) in [(Hash::Sha256, 64), (Hash::Sha512, 32), (Hash::Sha1, 64), (Hash::Sha384, 64)] {
            let mut random = runtime::Random::new(7);
            let (mut material, mut key) = (vec![0; STRIPES * length], vec![0; length]);
            random.fill(&mut material);
            random.fill(&mut key);
            split(&key, &mut material, hash);
            let mut merged = vec![1; length];
            merge(&material, &mut merged, hash);
            assert_eq!(merged, key, "{hash:?}");
            material[0] ^= 1;
            merge(&material, &mut merged, hash);
            assert_ne!(merged, key);
        }
    }

    #[test]
    fn work_beyond_the_limits_is_refused() {
        let argon2 =
            |time, memory, lanes| Kdf::Argon2 { is_id: true, time, memory, lanes, salt: vec![1; 16] };
        let refused = |kdf: &Kdf| Work::new(1 << 30).take_kdf(kdf, 64).err().map(|error| error.to_string());
        assert_eq!(refused(&argon2(4, 1 << 20, 4)), None);
        let error = refused(&argon2(1, (1 << 20) + 1, 1)).unwrap();
        assert!(error.contains("1048577 KiB") && error.contains("pbkdf_memory"), "{error}");
        for (time, memory, lanes) in [(0, 64, 1), (1, 64, 0), (1, 64, 17), (1, 7, 1), (1, 0, 0)] {
            assert!(refused(&argon2(time, memory, lanes)).unwrap().contains("out of range"));
        }
        assert!(refused(&argon2(257, 1 << 20, 4)).unwrap().contains("more work"));
        let pbkdf2 = |iterations| Kdf::Pbkdf2 { hash: Hash::Sha256, iterations, salt: vec![1; 16] };
        assert_eq!(refused(&pbkdf2(20_000_000)), None);
        assert!(refused(&pbkdf2(u32::MAX)).unwrap().contains("more work"));
        // Slots share the work.
        let mut work = Work::new(1 << 30);
        assert!((0..13).try_for_each(|_| work.take_kdf(&pbkdf2(10_000_000), 64)).is_ok());
        assert!(work.take_kdf(&pbkdf2(10_000_000), 64).is_err());
    }
}
