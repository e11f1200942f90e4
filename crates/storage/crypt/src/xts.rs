//! AES-XTS (IEEE 1619-2007, NIST SP 800-38E) over whole sectors of 512 to 4096 bytes.
//!
//! The tweak of a sector is a number of 64 bits, little-endian, as dm-crypt's `plain64`; without ciphertext
//! stealing, since all sectors are whole blocks of the cipher. The tweaks of consecutive blocks are computed
//! side by side, thirty-two at a time, inside the code that `aes` compiles for the processor at hand: as
//! vectors where it has them.

use aes::cipher::consts::U16;
use aes::cipher::typenum::Unsigned;
use aes::cipher::{
    Array, BlockCipherDecBackend, BlockCipherDecClosure, BlockCipherDecrypt, BlockCipherEncBackend,
    BlockCipherEncClosure, BlockCipherEncrypt, BlockSizeUser, KeyInit, ParBlocks,
};
use aes::{Aes128, Aes128Enc, Aes256, Aes256Enc, Block};
use block::{Error, Result};
use std::cell::RefCell;
use std::fmt;
use zerocopy::IntoBytes;

/// Bytes of a block of the cipher.
const BLOCK: usize = 16;
/// Smallest sector, in bytes; sectors are counted in this unit.
pub const MIN_SECTOR: usize = 512;
/// Largest sector, in bytes.
pub const MAX_SECTOR: usize = 4096;
/// Blocks of the largest sector, which are encrypted together.
const STRETCH: usize = MAX_SECTOR / BLOCK;
/// Tweaks that are computed side by side: those of the smallest sector.
const LANES: usize = MIN_SECTOR / BLOCK;
/// Sectors whose first tweaks are encrypted together.
const BATCH: usize = 64;

/// Key of AES-XTS, expanded. It is wiped when it is dropped.
pub enum Xts {
    /// AES-128: keys of 32 bytes.
    Aes128 {
        /// Cipher of the data.
        data: Aes128,
        /// Cipher of the tweaks.
        tweak: Aes128Enc,
    },
    /// AES-256: keys of 64 bytes.
    Aes256 {
        /// Cipher of the data.
        data: Aes256,
        /// Cipher of the tweaks.
        tweak: Aes256Enc,
    },
}

impl fmt::Debug for Xts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl Xts {
    /// Expands a key: the first half encrypts data, the second one tweaks.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a key that has neither 32 nor 64 bytes.
    pub fn new(key: &[u8]) -> Result<Xts> {
        let (data, tweak) = key.split_at(key.len() / 2);
        let wrong = |_| Error::invalid(format!("a key of {} bytes: expected 32 or 64", key.len()));
        match key.len() {
            64 => Ok(Xts::Aes256 {
                data: Aes256::new_from_slice(data).map_err(wrong)?,
                tweak: Aes256Enc::new_from_slice(tweak).map_err(wrong)?,
            }),
            _ => Ok(Xts::Aes128 {
                data: Aes128::new_from_slice(data).map_err(wrong)?,
                tweak: Aes128Enc::new_from_slice(tweak).map_err(wrong)?,
            }),
        }
    }

    /// Name of the cipher, for operators.
    pub fn name(&self) -> &'static str {
        match self {
            Xts::Aes128 { .. } => "aes-128-xts-plain64",
            Xts::Aes256 { .. } => "aes-256-xts-plain64",
        }
    }

    /// Encrypts whole sectors of `size` bytes in place. `number` is the tweak of the first one; that of each
    /// following sector is larger by its units of 512 bytes.
    ///
    /// # Panics
    /// Unless `size` is a power of two from 512 to 4096, and the length a multiple of it.
    pub fn encrypt(&self, sectors: &mut [u8], size: usize, number: u64) {
        self.each(sectors, size, number, |sectors, first, tweaks| match self {
            Xts::Aes128 { data, .. } => data.encrypt_with_backend(Stretches { sectors, size, first, tweaks }),
            Xts::Aes256 { data, .. } => data.encrypt_with_backend(Stretches { sectors, size, first, tweaks }),
        });
    }

    /// Reverses [`encrypt`](Self::encrypt).
    ///
    /// # Panics
    /// As [`encrypt`](Self::encrypt).
    pub fn decrypt(&self, sectors: &mut [u8], size: usize, number: u64) {
        self.each(sectors, size, number, |sectors, first, tweaks| match self {
            Xts::Aes128 { data, .. } => data.decrypt_with_backend(Stretches { sectors, size, first, tweaks }),
            Xts::Aes256 { data, .. } => data.decrypt_with_backend(Stretches { sectors, size, first, tweaks }),
        });
    }

    /// Calls `act` for batches of sectors, each with the first tweaks of its sectors.
    fn each(
        &self,
        sectors: &mut [u8],
        size: usize,
        number: u64,
        act: impl Fn(&mut [u8], &[Block], &mut Tweaks),
    ) {
        let is_size = size.is_power_of_two() && (MIN_SECTOR..=MAX_SECTOR).contains(&size);
        assert!(
            is_size && sectors.len().is_multiple_of(size),
            "{} bytes in sectors of {size}",
            sectors.len()
        );
        let step = (size / MIN_SECTOR) as u64;
        let mut number = number;
        for batch in sectors.chunks_mut(BATCH * size) {
            let mut tweaks = [Block::default(); BATCH];
            let tweaks = &mut tweaks[..batch.len() / size];
            for tweak in &mut *tweaks {
                tweak[..8].copy_from_slice(&number.to_le_bytes());
                number = number.wrapping_add(step);
            }
            match self {
                Xts::Aes128 { tweak, .. } => tweak.encrypt_blocks(tweaks),
                Xts::Aes256 { tweak, .. } => tweak.encrypt_blocks(tweaks),
            }
            TWEAKS.with_borrow_mut(|spread| act(batch, tweaks, spread));
        }
    }
}

/// Tweak of a block, as its two little-endian words.
type Tweak = [u64; 2];

/// Tweaks of a stretch, aligned as the widest vectors are.
#[repr(align(64))]
struct Tweaks([Tweak; STRETCH]);

thread_local! {
    /// Tweaks of the stretch that is being encrypted, in memory that needn't be cleared each time.
    static TWEAKS: RefCell<Tweaks> = const { RefCell::new(Tweaks([[0; 2]; STRETCH])) };
}

/// Whole sectors of `size` bytes, with their first tweaks, encrypted, and space for those of a stretch.
struct Stretches<'a> {
    sectors: &'a mut [u8],
    size: usize,
    first: &'a [Block],
    tweaks: &'a mut Tweaks,
}

impl BlockSizeUser for Stretches<'_> {
    type BlockSize = U16;
}

/// Adds the bits that have left a tweak at the top to its low word (IEEE 1619, 5.2: x^128 = x^7 + x^2 + x +
/// 1).
#[inline(always)]
fn reduced(low: u64, carry: u64) -> u64 {
    low ^ carry ^ carry << 1 ^ carry << 2 ^ carry << 7
}

/// Computes the tweaks of a sector's blocks, whose number is a multiple of [`LANES`], from the first one.
#[inline(always)]
fn spread(first: &Block, tweaks: &mut [Tweak]) {
    let first = u128::from_le_bytes(first.0);
    let (first_low, first_high) = (first as u64, (first >> 64) as u64);
    let (mut low, mut high) = ([0; LANES], [0; LANES]);
    // Lane n begins with the product of the first tweak and x^n.
    for lane in 0..LANES {
        low[lane] = reduced(first_low << lane, first_high >> 1 >> (63 - lane));
        high[lane] = first_high << lane | first_low >> 1 >> (63 - lane);
    }
    for group in tweaks.as_chunks_mut::<LANES>().0 {
        for lane in 0..LANES {
            group[lane] = [low[lane].to_le(), high[lane].to_le()];
        }
        // Multiplies each by x^LANES.
        for lane in 0..LANES {
            let carry = high[lane] >> (64 - LANES);
            high[lane] = high[lane] << LANES | low[lane] >> (64 - LANES);
            low[lane] = reduced(low[lane] << LANES, carry);
        }
    }
}

#[inline(always)]
fn xor(blocks: &mut [Block], tweaks: &[Tweak]) {
    let bytes = Array::slice_as_flattened_mut(blocks);
    bytes.iter_mut().zip(tweaks.as_bytes()).for_each(|(byte, tweak)| *byte ^= tweak);
}

impl Stretches<'_> {
    /// Calls `act` for pieces of at most `piece` blocks, between two additions of their tweaks.
    #[inline(always)]
    fn each(self, piece: usize, mut act: impl FnMut(&mut [Block])) {
        let Stretches { sectors, size, mut first, tweaks: Tweaks(tweaks) } = self;
        for stretch in sectors.chunks_mut(MAX_SECTOR) {
            let (blocks, _) = Block::slice_as_chunks_mut(stretch);
            for tweaks in tweaks[..blocks.len()].chunks_exact_mut(size / BLOCK) {
                spread(&first[0], tweaks);
                first = &first[1..];
            }
            for (blocks, tweaks) in blocks.chunks_mut(piece).zip(tweaks.chunks(piece)) {
                xor(blocks, tweaks);
                act(blocks);
                xor(blocks, tweaks);
            }
        }
    }
}

impl BlockCipherEncClosure for Stretches<'_> {
    #[inline(always)]
    fn call<B: BlockCipherEncBackend<BlockSize = U16>>(self, backend: &B) {
        self.each(B::ParBlocksSize::USIZE, |blocks| match ParBlocks::<B>::slice_as_mut_array(blocks) {
            Some(blocks) => backend.encrypt_par_blocks_inplace(blocks),
            None => backend.encrypt_tail_blocks_inplace(blocks),
        });
    }
}

impl BlockCipherDecClosure for Stretches<'_> {
    #[inline(always)]
    fn call<B: BlockCipherDecBackend<BlockSize = U16>>(self, backend: &B) {
        self.each(B::ParBlocksSize::USIZE, |blocks| match ParBlocks::<B>::slice_as_mut_array(blocks) {
            Some(blocks) => backend.decrypt_par_blocks_inplace(blocks),
            None => backend.decrypt_tail_blocks_inplace(blocks),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// XTS as IEEE 1619 defines it: block after block.
    fn slow(key: &[u8], sector: &mut [u8], number: u64, encrypts: bool) {
        let (data, tweak) = key.split_at(key.len() / 2);
        let encrypt = |key: &[u8], block: &mut Block| match key.len() {
            16 => Aes128::new_from_slice(key).unwrap().encrypt_block(block),
            _ => Aes256::new_from_slice(key).unwrap().encrypt_block(block),
        };
        let decrypt = |block: &mut Block| match data.len() {
            16 => Aes128::new_from_slice(data).unwrap().decrypt_block(block),
            _ => Aes256::new_from_slice(data).unwrap().decrypt_block(block),
        };
        let mut first = Block::default();
        first[..8].copy_from_slice(&number.to_le_bytes());
        encrypt(tweak, &mut first);
        let mut tweak = u128::from_le_bytes(first.0);
        for bytes in sector.chunks_exact_mut(BLOCK) {
            let mut block = Array((u128::from_le_bytes(bytes.try_into().unwrap()) ^ tweak).to_le_bytes());
            if encrypts {
                encrypt(data, &mut block)
            } else {
                decrypt(&mut block)
            }
            bytes.copy_from_slice(&(u128::from_le_bytes(block.0) ^ tweak).to_le_bytes());
            tweak = (tweak << 1) ^ ((tweak >> 127) * 0x87);
        }
    }

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        digits.chunks(2).map(byte).collect()
    }

    /// Vectors 4 and 10 of IEEE 1619-2007, annex B: 512 bytes that count up, of which the first and last 32
    /// bytes of the ciphertext are compared.
    #[test]
    fn vectors_of_the_standard() {
        let plain: Vec<u8> = (0..512).map(|byte| byte as u8).collect();
        let digits = "27182818284590452353602874713526 31415926535897932384626433832795";
        let long = "2718281828459045235360287471352662497757247093699959574966967627
                    3141592653589793238462643383279502884197169399375105820974944592";
        for (key, number, begin, end) in [
            (
                digits,
                0,
                "27a7479befa1d476489f308cd4cfa6e2a96e4bbe3208ff25287dd3819616e89c",
                "0a282df920147beabe421ee5319d0568",
            ),
            (
                long,
                0xff,
                "1c3b3a102f770386e4836c99e370cf9bea00803f5e482357a4ae12d414a3e63b",
                "c4f36ffda9fcea70b9c6e693e148c151",
            ),
        ] {
            let xts = Xts::new(&hex(key)).unwrap();
            let mut bytes = plain.clone();
            xts.encrypt(&mut bytes, 512, number);
            assert_eq!(bytes[..32], hex(begin), "{key}");
            assert_eq!(bytes[496..], hex(end), "{key}");
            xts.decrypt(&mut bytes, 512, number);
            assert_eq!(bytes, plain);
        }
    }

    proptest! {
        #[test]
        fn sectors_are_as_the_standard_defines(
            key in prop_oneof![prop::collection::vec(any::<u8>(), 32), prop::collection::vec(any::<u8>(), 64)],
            shift in 9_u32..=12,
            count in 1_usize..=140,
            number in any::<u64>(),
            seed in any::<u64>(),
        ) {
            let size = 1 << shift;
            let count = count.min(1 + (300 << 10 >> shift));
            let mut random = runtime::Random::new(seed);
            let mut plain = vec![0; count * size];
            random.fill(&mut plain);
            let xts = Xts::new(&key).unwrap();
            let mut bytes = plain.clone();
            xts.encrypt(&mut bytes, size, number);
            // The slow way is slow: a few sectors of each case.
            for sector in [0, count / 2, count - 1] {
                let range = sector * size..(sector + 1) * size;
                let tweak = number.wrapping_add((sector * size / 512) as u64);
                let mut expected = plain[range.clone()].to_vec();
                slow(&key, &mut expected, tweak, true);
                prop_assert_eq!(&bytes[range], &expected[..]);
                slow(&key, &mut expected, tweak, false);
                prop_assert_eq!(&plain[sector * size..(sector + 1) * size], &expected[..]);
            }
            xts.decrypt(&mut bytes, size, number);
            prop_assert_eq!(bytes, plain);
        }
    }

    #[test]
    fn other_keys_are_refused() {
        for length in [0, 16, 31, 33, 48, 63, 65, 128] {
            let error = Xts::new(&vec![1; length]).unwrap_err().to_string();
            assert!(error.contains("expected 32 or 64"), "{error}");
        }
    }
}
