//! Compression of pages. All memory for it is allocated when the device is opened, none per page.

use crate::slot::{Encoding, PAGE};
use block::{Error, Result};
use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size};
use zstd_safe::{CCtx, DCtx};

/// Level of zstd: the fastest one with its usual format.
const LEVEL: i32 = 1;

/// Compression of pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// No compression.
    None,
    /// LZ4: fast.
    Lz4,
    /// zstd: smaller, for several times the processor time.
    Zstd,
}

/// Names of [`Compression`] in stacks.
pub const NAMES: [&str; 3] = ["lz4", "zstd", "none"];

impl Compression {
    /// The compression of a name in [`NAMES`].
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        let all = [Compression::Lz4, Compression::Zstd, Compression::None];
        NAMES.iter().zip(all).find(|(known, _)| **known == name).map(|(_, compression)| compression)
    }
}

/// Compressor and decompressor with their memory, for one page at a time.
pub struct Compressor {
    compression: Compression,
    table: CompressTable,
    compressing: CCtx<'static>,
    decompressing: DCtx<'static>,
    output: Box<[u8]>,
}

impl Compressor {
    /// Creates a compressor, and allocates its memory.
    pub fn new(compression: Compression) -> Self {
        let most = get_maximum_output_size(PAGE).max(zstd_safe::compress_bound(PAGE));
        let mut compressor = Compressor {
            compression,
            table: CompressTable::small(),
            compressing: CCtx::create(),
            decompressing: DCtx::create(),
            output: vec![0; most].into(),
        };
        // zstd allocates its memory with the first page.
        let _first = compressor.compress(&[0; PAGE]);
        compressor
    }

    /// Returns the encoding and the compressed page; `None` without compression, or if it fails.
    pub fn compress(&mut self, page: &[u8; PAGE]) -> Option<(Encoding, &[u8])> {
        let (encoding, length) = match self.compression {
            Compression::None => return None,
            Compression::Lz4 => {
                (Encoding::Lz4, compress_into_with_table(page, &mut self.output, &mut self.table).ok()?)
            }
            Compression::Zstd => {
                (Encoding::Zstd, self.compressing.compress(&mut self.output[..], page, LEVEL).ok()?)
            }
        };
        Some((encoding, &self.output[..length]))
    }

    /// Decodes the bytes of a slot into `page`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if they aren't a page.
    pub fn decompress(&mut self, encoding: Encoding, bytes: &[u8], page: &mut [u8; PAGE]) -> Result<()> {
        let length = match encoding {
            Encoding::Plain => bytes.len(),
            Encoding::Lz4 => decompress_into(bytes, page).unwrap_or(0),
            Encoding::Zstd => self.decompressing.decompress(&mut page[..], bytes).unwrap_or(0),
        };
        match (length == PAGE, encoding) {
            (false, _) => Err(Error::corrupt(format!("{} bytes that aren't a page", bytes.len()))),
            (true, Encoding::Plain) => {
                page.copy_from_slice(bytes);
                Ok(())
            }
            (true, _) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::Random;

    #[test]
    fn pages_come_back_and_damaged_bytes_are_told() {
        let mut page = [7; PAGE];
        Random::new(1).fill(&mut page[..1000]);
        for (compression, encoding) in
            [(Compression::Lz4, Encoding::Lz4), (Compression::Zstd, Encoding::Zstd)]
        {
            let mut compressor = Compressor::new(compression);
            let (found, bytes) = compressor.compress(&page).expect("it becomes smaller");
            let bytes = bytes.to_vec();
            assert!(found == encoding && (1000..1200).contains(&bytes.len()), "{} bytes", bytes.len());
            let mut read = [0; PAGE];
            compressor.decompress(encoding, &bytes, &mut read).expect("it is a page");
            assert_eq!(read, page);
            let cut = &bytes[..bytes.len() - 1];
            assert!(matches!(compressor.decompress(encoding, cut, &mut read), Err(Error::Corrupt(_))));
            // The slot's checksum detects damage; decompression only has to stay in bounds.
            for at in 0..bytes.len() {
                let mut other = bytes.clone();
                other[at] ^= 0x41;
                let _either = compressor.decompress(encoding, &other, &mut read);
            }
        }
        let mut none = Compressor::new(Compression::None);
        assert!(none.compress(&page).is_none());
        let mut read = [0; PAGE];
        none.decompress(Encoding::Plain, &page, &mut read).expect("it is a page");
        assert_eq!(read, page);
        assert!(none.decompress(Encoding::Plain, &page[1..], &mut read).is_err());
    }
}
