//! Stores for embedded flash on the chip, with the power cut at every byte of the bus: acknowledged values
//! survive.

use crate::common::resized;
use ekv::Database;
use embassy_sync::blocking_mutex::raw::NoopRawMutex;
use embedded_storage::nor_flash::{NorFlash as _, ReadNorFlash as _};
use embedded_storage_async::nor_flash::{ErrorType, MultiwriteNorFlash, NorFlash, ReadNorFlash};
use sequential_storage::cache::Cache;
use sequential_storage::map::{MapConfig, MapStorage};
use spinor::{Chip, Cut, Description, Faults, Nor, NorError, State};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// Size of the chip: 64 sectors.
const SIZE: u32 = 256 << 10;

/// Runs a future that never waits.
fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("the driver doesn't wait"),
    }
}

/// The driver of this crate behind the asynchronous traits.
struct Async<'a>(Nor<'a>);

impl ErrorType for Async<'_> {
    type Error = NorError;
}

impl ReadNorFlash for Async<'_> {
    const READ_SIZE: usize = 1;

    async fn read(&mut self, offset: u32, bytes: &mut [u8]) -> Result<(), NorError> {
        self.0.read(offset, bytes)
    }

    fn capacity(&self) -> usize {
        self.0.capacity()
    }
}

impl NorFlash for Async<'_> {
    const WRITE_SIZE: usize = 1;
    const ERASE_SIZE: usize = 4096;

    async fn erase(&mut self, from: u32, to: u32) -> Result<(), NorError> {
        self.0.erase(from, to)
    }

    async fn write(&mut self, offset: u32, bytes: &[u8]) -> Result<(), NorError> {
        self.0.write(offset, bytes)
    }
}

impl MultiwriteNorFlash for Async<'_> {}

impl ekv::flash::Flash for Async<'_> {
    type Error = NorError;

    fn page_count(&self) -> usize {
        SIZE as usize / ekv::config::PAGE_SIZE
    }

    async fn erase(&mut self, page: ekv::flash::PageID) -> Result<(), NorError> {
        let start = (page.index() * ekv::config::PAGE_SIZE) as u32;
        self.0.erase(start, start + ekv::config::PAGE_SIZE as u32)
    }

    async fn read(
        &mut self,
        page: ekv::flash::PageID,
        offset: usize,
        bytes: &mut [u8],
    ) -> Result<(), NorError> {
        self.0.read((page.index() * ekv::config::PAGE_SIZE + offset) as u32, bytes)
    }

    async fn write(&mut self, page: ekv::flash::PageID, offset: usize, bytes: &[u8]) -> Result<(), NorError> {
        self.0.write((page.index() * ekv::config::PAGE_SIZE + offset) as u32, bytes)
    }
}

/// A store with keys 0 to 3.
trait Store {
    fn format(chip: &mut Chip);
    /// Sets the keys one after the other. Returns the number of acknowledged ones.
    fn set(chip: &mut Chip, values: &[u32]) -> usize;
    fn get(chip: &mut Chip, keys: usize) -> Vec<Option<u32>>;
}

struct Map;

/// Opens the map of sequential-storage; a macro, because the type of its cache is private.
macro_rules! open_map {
    ($chip:expr) => {
        MapStorage::<u8, _, _>::new(
            Async(Nor::new($chip).unwrap()),
            MapConfig::new(0..0x4000),
            Cache::new_uncached(),
        )
    };
}

impl Store for Map {
    fn format(_: &mut Chip) {}

    fn set(chip: &mut Chip, values: &[u32]) -> usize {
        let (mut map, mut buffer) = (open_map!(chip), [0; 64]);
        let store =
            |(key, value): (usize, &u32)| now(map.store_item(&mut buffer, &(key as u8), value)).is_ok();
        values.iter().enumerate().map(store).take_while(|stored| *stored).count()
    }

    fn get(chip: &mut Chip, keys: usize) -> Vec<Option<u32>> {
        let (mut map, mut buffer) = (open_map!(chip), [0; 64]);
        (0..keys).map(|key| now(map.fetch_item::<u32>(&mut buffer, &(key as u8))).unwrap()).collect()
    }
}

struct Tree;

impl Store for Tree {
    fn format(chip: &mut Chip) {
        let database =
            Database::<_, NoopRawMutex>::new(Async(Nor::new(chip).unwrap()), ekv::Config::default());
        now(database.format()).unwrap();
    }

    fn set(chip: &mut Chip, values: &[u32]) -> usize {
        let database =
            Database::<_, NoopRawMutex>::new(Async(Nor::new(chip).unwrap()), ekv::Config::default());
        if now(database.mount()).is_err() {
            return 0;
        }
        let store = |(key, value): (usize, &u32)| {
            now(async {
                let mut transaction = database.write_transaction().await;
                transaction.write(&[key as u8], &value.to_le_bytes()).await.is_ok()
                    && transaction.commit().await.is_ok()
            })
        };
        values.iter().enumerate().map(store).take_while(|stored| *stored).count()
    }

    fn get(chip: &mut Chip, keys: usize) -> Vec<Option<u32>> {
        let database =
            Database::<_, NoopRawMutex>::new(Async(Nor::new(chip).unwrap()), ekv::Config::default());
        now(database.mount()).expect("it mounts after every cut");
        let read = |key: usize| {
            let mut value = [0; 4];
            let transaction = now(database.read_transaction());
            match now(transaction.read(&[key as u8], &mut value)) {
                Ok(4) => Some(u32::from_le_bytes(value)),
                Ok(length) => panic!("{length} bytes"),
                Err(_) => None,
            }
        };
        (0..keys).map(read).collect()
    }
}

/// Cuts the power at every byte of the bus while the keys get new values, and restarts.
fn survives_every_cut<S: Store>() {
    let description: Arc<Description> = Description::parse("small", &resized("W25Q128JV", SIZE)).unwrap();
    let mut first = Chip::erased(description.clone(), 1);
    let (old, new) = ([1, 2, 3], [11, 12, 13]);
    S::format(&mut first);
    assert_eq!(S::set(&mut first, &old), 3);
    let begun = first.memory().to_vec();
    let mut kept = [0; 4];
    for cut in 0.. {
        let mut chip = Chip::new(description.clone(), begun.clone(), 1).unwrap();
        chip.set_faults(Faults { cuts: vec![Cut::BusByte(cut)], ..Faults::default() });
        let acknowledged = S::set(&mut chip, &new);
        let is_off = chip.state() == State::PowerDown;
        chip.set_faults(Faults::default());
        chip.power_on();
        chip.advance(10_000_000);
        let found = S::get(&mut chip, 3);
        for (key, value) in found.iter().enumerate() {
            let may_be_new = key <= acknowledged;
            let must_be_new = key < acknowledged;
            let is_fine = *value == Some(new[key]) && may_be_new || *value == Some(old[key]) && !must_be_new;
            assert!(is_fine, "cut at byte {cut}, {acknowledged} acknowledged: {found:?}");
        }
        // The store still works after the cut.
        assert_eq!(S::set(&mut chip, &[21]), 1, "cut at byte {cut}");
        kept[acknowledged] += 1;
        if !is_off {
            assert_eq!(acknowledged, 3);
            break;
        }
    }
    assert!(kept.iter().all(|count| *count > 0), "cuts before, between and after: {kept:?}");
}

#[test]
fn sequential_storage_keeps_what_it_acknowledged() {
    survives_every_cut::<Map>();
}

#[test]
fn ekv_keeps_what_it_acknowledged() {
    survives_every_cut::<Tree>();
}
