//! One disk as two: the first blocks as a device, the rest as the storage of a map's home. The disk is
//! recorded as one and cut as one, so that both halves are of the same moment after a power cut.

use block::{BlockIndex, BlockRange, Buffer, Call, Device, DevicePart, Durability, Result};
use log::home::{LINE, Line, Medium, Places};
use runtime::Random;
use runtime::mapping::PrivateWords;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes that are stored of a home's state and of its words.
const STATE: u64 = 128 << 10;
const WORDS: u64 = 1 << 20;

/// A home on the last blocks of a device, as on a file through the page cache: stored data is written back at
/// any time, and at the latest when it is persisted.
pub struct Rest {
    device: Rc<dyn Device>,
    first: u64,
    places: Places,
    /// Current contents.
    bytes: RefCell<Vec<u8>>,
    /// Blocks that were stored to since their last write-back.
    dirty: RefCell<BTreeSet<u64>>,
    random: RefCell<Random>,
    /// Whether data isn't made durable although it should be.
    is_lying: bool,
}

impl Rest {
    /// Number of blocks of 4 KiB that a home takes.
    pub fn blocks(places: &Places) -> u64 {
        (places.state + STATE + WORDS) >> 12
    }

    /// Opens a home with these places on the blocks of a disk from `first` on.
    ///
    /// # Errors
    /// Errors of reading the disk.
    pub async fn open(
        disk: &Arc<dyn DevicePart>,
        first: u64,
        places: Places,
        seed: u64,
        is_lying: bool,
    ) -> Result<Rc<dyn Medium>> {
        let device = disk.open().await?;
        let buffer = Buffer::new((Self::blocks(&places) as usize) << 12);
        let (outcome, buffer) = device.read(BlockIndex(first), buffer).await;
        outcome?;
        let bytes = RefCell::new(buffer.filled().to_vec());
        let random = RefCell::new(Random::new(seed));
        Ok(Rc::new(Rest { device, first, places, bytes, dirty: RefCell::default(), random, is_lying }))
    }

    /// Offset at which a byte of the home is stored: the parts of a home are far apart.
    fn place(&self, offset: u64) -> usize {
        let Places { state, state_length, words, .. } = self.places;
        let place = match offset {
            _ if offset < state => offset,
            _ if offset < state + state_length => {
                assert!(offset - state < STATE, "more state than is kept");
                offset
            }
            _ => state + STATE + (offset - words),
        };
        assert!(place < state + STATE + WORDS, "byte {offset} of a home: more words than are kept");
        place as usize
    }

    async fn write_back(&self, block: u64, durability: Durability) -> Result<()> {
        self.dirty.borrow_mut().remove(&block);
        let at = (block as usize) << 12;
        let bytes = Buffer::copy_of(&self.bytes.borrow()[at..at + 4096]);
        self.device.write(BlockIndex(self.first + block), bytes.into(), durability).await
    }
}

impl Medium for Rest {
    fn name(&self) -> &str {
        "the rest of the disk"
    }

    fn durable_by(&self) -> &'static str {
        "sync"
    }

    fn length(&self) -> Result<u64> {
        Ok(1 << 40)
    }

    fn words(&self, _offset: u64, most: usize) -> Result<PrivateWords> {
        let words = PrivateWords::anonymous(most)?;
        let bytes = self.bytes.borrow();
        let here = bytes[(self.places.state + STATE) as usize..].as_chunks::<4>().0;
        words.grow(here.len())?;
        words.iter().zip(here).for_each(|(word, bytes)| {
            word.store(u32::from_ne_bytes(*bytes), Ordering::Relaxed);
        });
        Ok(words)
    }

    fn read(&self, offset: u64, length: usize) -> Call<'_, Result<Vec<u8>>> {
        let at = self.place(offset);
        Call::ready(Ok(self.bytes.borrow()[at..at + length].to_vec()))
    }

    fn allocate(&self, _offset: u64, _length: u64) -> Call<'_, Result<()>> {
        Call::ready(Ok(()))
    }

    fn write(&self, offset: u64, bytes: Vec<u8>) -> Call<'_, Result<()>> {
        Call::new(async move {
            // The kernel may write back any dirty page before this write.
            let dirty: Vec<u64> = self.dirty.borrow().iter().copied().collect();
            for block in dirty {
                let chosen = self.random.borrow_mut().below(3) == 0;
                if chosen {
                    self.write_back(block, Durability::Visible).await?;
                }
            }
            let at = self.place(offset);
            self.bytes.borrow_mut()[at..at + bytes.len()].copy_from_slice(&bytes);
            let durability = if self.is_lying { Durability::Visible } else { Durability::Durable };
            for block in at as u64 >> 12..((at + bytes.len()) as u64).div_ceil(4096) {
                self.write_back(block, durability).await?;
            }
            Ok(())
        })
    }

    fn load(&self, offset: u64, lines: &mut [Line]) {
        let at = self.place(offset);
        let bytes = self.bytes.borrow();
        let words = bytes[at..at + lines.len() * LINE].as_chunks::<8>().0;
        for (word, bytes) in lines.as_flattened_mut().iter_mut().zip(words) {
            *word = u64::from_ne_bytes(*bytes);
        }
    }

    fn store(&self, offset: u64, line: &Line) {
        let at = self.place(offset);
        for (bytes, word) in
            self.bytes.borrow_mut()[at..at + LINE].as_chunks_mut::<8>().0.iter_mut().zip(line)
        {
            *bytes = word.to_ne_bytes();
        }
        self.dirty.borrow_mut().insert(at as u64 >> 12);
    }

    fn persist(&self) -> Call<'_, Result<()>> {
        Call::new(async move {
            let dirty: Vec<u64> = self.dirty.borrow().iter().copied().collect();
            for block in dirty {
                self.write_back(block, Durability::Visible).await?;
            }
            if self.is_lying { Ok(()) } else { self.device.flush().await }
        })
    }
}

/// Opens or creates a log on the first `blocks` blocks of a disk, with its map's home on the rest.
///
/// # Errors
/// Errors of the zones, the home and the log.
pub async fn open(
    disk: Arc<dyn DevicePart>,
    blocks: u64,
    options: &log::kind::Options,
    is_lying: bool,
) -> Result<log::LogPart> {
    let on_device = zones::on_device::Options {
        format: options.format,
        zone_size: options.zone_size,
        max_append: Some(log::layout::MAX_APPEND),
        ..Default::default()
    };
    let first = Arc::new(layers::linear::part_of(disk.clone(), BlockRange::new(0, blocks))?);
    let zones = Arc::new(zones::OnDevice::open(first, on_device).await?);
    let zone_count = block::ZonesPart::geometry(&*zones).zones;
    let map_home = log::kind::MapPlace::Pmem("the rest of the disk".into());
    let options = &log::kind::Options { map_home, ..options.clone() };
    let volume = options.size.unwrap_or(0) >> 12;
    let medium = Rest::open(&disk, blocks, Places::new(zone_count, volume), blocks, is_lying).await?;
    log::kind::open_with(zones, options, Some(log::home::storage(medium))).await
}
