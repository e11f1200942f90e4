//! Encryption of a volume: keys, and bytes that are sealed with their place.
//!
//! # Promises
//! - Sealed bytes open only with the same key and the same place: altered, moved and replayed ones are found.
//! - No key encrypts two texts with one nonce. A nonce has 160 random bits that are drawn for each piece and
//!   each manifest, and the number of the chunk, so this depends on no state: neither that of a bucket, which
//!   may show an older one, nor that of a writer before a crash.
//! - Keys are in no error, no status and no log, and are wiped when they are dropped.
//!
//! The cipher is XAES-256-GCM (C2SP), the extension of AES-256-GCM to nonces of 24 bytes. Keys are derived by
//! HKDF-SHA256 (RFC 5869). `book/src/formats/objects.md` has both byte by byte.
//!
//! Left to others: what is sealed where (`format`), secrets of zones that can be destroyed (`key_store`).

use aes::Aes256Enc;
use aes::cipher::{BlockCipherEncrypt, KeyInit};
use block::{Error, Result};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, KeyType, Prk, Salt};
use runtime::locked_memory::LockedBox;
use std::fmt;
use zeroize::{Zeroize, Zeroizing};

/// Bytes of a key.
pub(crate) const KEY: usize = 32;
/// Bytes of a nonce.
pub(crate) const NONCE: usize = 24;
/// Bytes of an authentication tag.
pub(crate) const TAG: usize = 16;
/// Bytes of a block of AES.
const BLOCK: usize = 16;
/// Bytes of a nonce without the number of the chunk.
const DRAWN: usize = NONCE - 4;
/// Salt of the first step of HKDF.
const SALT: &[u8] = b"siltstone objects 1";

/// A key of XAES-256-GCM, expanded.
pub(crate) struct Sealer {
    cipher: Aes256Enc,
    /// The subkey of CMAC (NIST SP 800-38B).
    subkey: [u8; BLOCK],
}

impl Drop for Sealer {
    fn drop(&mut self) {
        // The cipher wipes itself.
        self.subkey.zeroize();
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("XAES-256-GCM")
    }
}

/// Nonces of the chunks of one piece, or of one manifest.
#[derive(Debug, Clone)]
pub(crate) struct Nonces([u8; DRAWN]);

impl Nonces {
    /// Draws the random part.
    pub fn draw() -> Nonces {
        let mut drawn = [0; DRAWN];
        runtime::fill_secret(&mut drawn);
        Nonces(drawn)
    }

    /// Nonce of a chunk. The caller seals one text for each number.
    pub fn of(&self, chunk: u32) -> [u8; NONCE] {
        let mut nonce = [0; NONCE];
        nonce[..DRAWN].copy_from_slice(&self.0);
        nonce[DRAWN..].copy_from_slice(&chunk.to_le_bytes());
        nonce
    }
}

/// Uses a key, and overwrites the part of the stack that this has used: neither `ring`'s keys nor its HMAC
/// wipe themselves.
fn wiped<R>(act: impl FnOnce() -> R) -> R {
    // In a frame of its own, which is below this one, as that of `wipe_stack` is afterwards.
    #[inline(never)]
    fn run<R>(act: impl FnOnce() -> R) -> R {
        act()
    }
    #[inline(never)]
    fn wipe_stack() {
        [0_u8; 4 << 10].zeroize();
    }
    let returned = run(act);
    wipe_stack();
    returned
}

/// Encrypts one block in place.
fn encrypt(cipher: &Aes256Enc, bytes: &mut [u8]) {
    cipher.encrypt_block(bytes.try_into().expect("a block has 16 bytes"));
}

impl Sealer {
    /// Expands a key.
    pub fn new(key: &[u8; KEY]) -> Sealer {
        let cipher = Aes256Enc::new(key.into());
        let mut subkey = [0; BLOCK];
        encrypt(&cipher, &mut subkey);
        let carry = subkey[0] >> 7;
        for at in 0..BLOCK {
            subkey[at] = subkey[at] << 1 | subkey.get(at + 1).map_or(0, |next| next >> 7);
        }
        // In time that doesn't depend on the key.
        subkey[BLOCK - 1] ^= carry * 0x87;
        Sealer { cipher, subkey }
    }

    /// Key and nonce of AES-256-GCM.
    fn derive(&self, nonce: &[u8; NONCE]) -> (LessSafeKey, Nonce) {
        let (first, rest) = nonce.split_at(12);
        let mut key = Zeroizing::new([0; KEY]);
        for (number, half) in (1..).zip(key.chunks_exact_mut(BLOCK)) {
            half[..4].copy_from_slice(&[0, number, b'X', 0]);
            half[4..].copy_from_slice(first);
            half.iter_mut().zip(&self.subkey).for_each(|(byte, subkey)| *byte ^= subkey);
            encrypt(&self.cipher, half);
        }
        let key = UnboundKey::new(&AES_256_GCM, &*key).expect("a key of 32 bytes is one of AES-256");
        let nonce = Nonce::try_assume_unique_for_key(rest).expect("24 bytes without 12 are 12");
        (LessSafeKey::new(key), nonce)
    }

    /// Encrypts bytes in place, and returns their tag. A nonce is used for one text only: see [`Nonces`].
    pub fn seal(&self, nonce: &[u8; NONCE], place: &[u8], bytes: &mut [u8]) -> [u8; TAG] {
        wiped(|| {
            let (key, nonce) = self.derive(nonce);
            let sealed = key.seal_in_place_separate_tag(nonce, Aad::from(place), bytes);
            let tag = sealed.expect("a text of less than 64 GiB is sealed");
            tag.as_ref().try_into().expect("a tag of AES-256-GCM has 16 bytes")
        })
    }

    /// Decrypts bytes in place; false, with arbitrary bytes, if they weren't sealed so.
    #[must_use]
    pub fn open(&self, nonce: &[u8; NONCE], place: &[u8], bytes: &mut [u8], tag: &[u8; TAG]) -> bool {
        wiped(|| {
            let (key, nonce) = self.derive(nonce);
            let tag = (*tag).into();
            key.open_in_place_separate_tag(nonce, Aad::from(place), tag, bytes, 0..).is_ok()
        })
    }
}

/// Length of an output of HKDF.
struct Length(usize);

impl KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

/// Second step of HKDF.
fn expand(from: &Prk, info: &[&[u8]], out: &mut [u8]) {
    let filled = from.expand(info, Length(out.len())).and_then(|output| output.fill(out));
    filled.expect("HKDF-SHA256 gives up to 8160 bytes");
}

/// Keys that follow from the operator's.
struct Derived {
    root: Prk,
    manifests: Sealer,
}

/// Keys of a volume.
pub(crate) struct Keys {
    derived: LockedBox<Derived>,
    id: [u8; 4],
    /// Whether zones have secrets of their own; `None` if that doesn't matter.
    has_store: Option<bool>,
}

impl fmt::Debug for Keys {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Keys {{ has_store: {} }}", self.has_store())
    }
}

impl Keys {
    /// Derives keys from that of the operator. `has_store` says whether zones have secrets of their own.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a key of another length than 32 bytes; errors of locking memory.
    pub fn new(operator: &[u8], has_store: bool) -> Result<Keys> {
        Keys::derive(operator, Some(has_store))
    }

    /// Derives keys of manifests, whether zones have secrets of their own or not. They open no zone.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn of_manifests(operator: &[u8]) -> Result<Keys> {
        Keys::derive(operator, None)
    }

    fn derive(operator: &[u8], has_store: Option<bool>) -> Result<Keys> {
        if operator.len() != KEY {
            return Err(Error::invalid(format!("a key of {} bytes: expected {KEY}", operator.len())));
        }
        let mut id = [0; 4];
        let derived = wiped(|| {
            let root = Salt::new(HKDF_SHA256, SALT).extract(operator);
            let mut key = Zeroizing::new([0; KEY]);
            expand(&root, &[b"manifests"], &mut *key);
            expand(&root, &[b"key id"], &mut id);
            LockedBox::new(Derived { manifests: Sealer::new(&key), root })
        });
        let remedy = "expected a sufficient limit of locked memory (ulimit -l), or CAP_IPC_LOCK";
        let derived = derived.map_err(|error| {
            Error::from_io(&error, "locking the memory of the keys of a volume").in_context(remedy)
        })?;
        Ok(Keys { derived, id, has_store })
    }

    /// Key of manifests.
    pub fn manifests(&self) -> &Sealer {
        &self.derived.manifests
    }

    /// Bytes by which manifests name the operator's key.
    pub fn id(&self) -> [u8; 4] {
        self.id
    }

    /// Whether zones have secrets of their own.
    pub fn has_store(&self) -> bool {
        self.has_store == Some(true)
    }

    /// Whether these keys open a volume whose zones have secrets of their own, or have none.
    pub fn fit(&self, has_store: bool) -> bool {
        self.has_store.is_none_or(|own| own == has_store)
    }

    /// Key of a zone in a generation. `secret` is what the key store has for it, or empty.
    pub fn zone(&self, volume: &[u8; 16], zone: u32, generation: u64, secret: &[u8]) -> Sealer {
        wiped(|| {
            let (number, generation) = (zone.to_le_bytes(), generation.to_le_bytes());
            let mut key = Zeroizing::new([0; KEY]);
            expand(&self.derived.root, &[b"zone", volume, &number, &generation, secret], &mut *key);
            Sealer::new(&key)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Test vectors of the specification (C2SP, XAES-256-GCM), with both values of the bit that is carried.
    #[test]
    fn the_cipher_is_xaes_256_gcm() {
        for (key, place, expected) in [
            (1, "", "ce546ef63c9cc60765923609b33a9a1974e96e52daf2fcf7075e2271"),
            (3, "c2sp.org/XAES-256-GCM", "986ec1832593df5443a179437fd083bf3fdb41abd740a21f71eb769d"),
        ] {
            let sealer = Sealer::new(&[key; KEY]);
            let (nonce, mut bytes) = (b"ABCDEFGHIJKLMNOPQRSTUVWX", *b"XAES-256-GCM");
            let tag = sealer.seal(nonce, place.as_bytes(), &mut bytes);
            assert_eq!(hex(&bytes) + &hex(&tag), expected);
            assert!(sealer.open(nonce, place.as_bytes(), &mut bytes, &tag));
            assert_eq!(&bytes, b"XAES-256-GCM");
        }
    }

    #[test]
    fn sealed_bytes_open_only_with_their_key_place_and_nonce() {
        let (sealer, other) = (Sealer::new(&[5; KEY]), Sealer::new(&[6; KEY]));
        let (nonce, text) = ([9; NONCE], *b"a text of some bytes");
        let mut sealed = text;
        let tag = sealer.seal(&nonce, b"place", &mut sealed);
        let open = |sealer: &Sealer, nonce: [u8; NONCE], place: &[u8], bytes: &[u8], tag: [u8; TAG]| {
            sealer.open(&nonce, place, &mut bytes.to_vec(), &tag)
        };
        assert!(open(&sealer, nonce, b"place", &sealed, tag));
        assert!(!open(&other, nonce, b"place", &sealed, tag), "another key");
        assert!(!open(&sealer, nonce, b"elsewhere", &sealed, tag), "another place");
        assert!(!open(&sealer, nonce, b"place", &sealed[1..], tag), "shorter");
        let flipped = |bytes: &[u8], at: usize| {
            let mut bytes = bytes.to_vec();
            bytes[at] ^= 1;
            bytes
        };
        for at in 0..sealed.len() {
            assert!(!open(&sealer, nonce, b"place", &flipped(&sealed, at), tag), "byte {at}");
        }
        for at in 0..NONCE {
            let nonce = flipped(&nonce, at).try_into().unwrap();
            assert!(!open(&sealer, nonce, b"place", &sealed, tag), "byte {at} of the nonce");
        }
        for at in 0..TAG {
            let tag = flipped(&tag, at).try_into().unwrap();
            assert!(!open(&sealer, nonce, b"place", &sealed, tag), "byte {at} of the tag");
        }
    }

    /// Zones, generations, volumes, secrets and operators have keys of their own, and nothing shows them.
    #[test]
    fn each_generation_of_a_zone_has_a_key_of_its_own() {
        let keys = [Keys::new(&[1; KEY], false).unwrap(), Keys::new(&[2; KEY], true).unwrap()];
        let mut seen = std::collections::BTreeSet::new();
        for keys in &keys {
            let volumes = [[7; 16], [8; 16]];
            let mut tag_of = |sealer: &Sealer| {
                assert!(seen.insert(sealer.seal(&[0; NONCE], b"", &mut [0; 32])), "a key twice");
            };
            tag_of(keys.manifests());
            for volume in &volumes {
                for (zone, generation) in [(0, 1), (1, 0), (0, 2), (256, 1)] {
                    for secret in [&[][..], &[3; KEY], &[4; KEY]] {
                        tag_of(&keys.zone(volume, zone, generation, secret));
                    }
                }
            }
        }
        assert_ne!(keys[0].id(), keys[1].id());
        assert_eq!(
            format!("{:?} {:?}", keys[0], keys[0].manifests()),
            "Keys { has_store: false } XAES-256-GCM"
        );
        assert!(matches!(Keys::new(&[1; 31], false), Err(Error::Invalid(_))));
    }

    /// Prints the throughput: `cargo test -p siltstone-objects --lib chunks_are_sealed -- --nocapture`.
    #[test]
    fn many_chunks_are_sealed_with_nonces_of_their_own() {
        let (sealer, nonces) = (Sealer::new(&[5; KEY]), Nonces([1; DRAWN]));
        let (mut chunk, mut seen) = (vec![7; 64 << 10], std::collections::BTreeSet::new());
        let (begun, count) = (runtime::thread_cpu_time(), 500);
        for number in 0..count {
            let nonce = nonces.of(number);
            sealer.seal(&nonce, b"place", &mut chunk);
            assert!(seen.insert(nonce));
        }
        let (elapsed, bytes) = (runtime::thread_cpu_time() - begun, f64::from(count) * chunk.len() as f64);
        println!("{:.2} GB/s of the processor's time", bytes / elapsed.as_nanos() as f64);
    }
}
