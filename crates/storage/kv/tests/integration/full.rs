//! Full stores: deletes alone make each of them writable again, also after the store was closed and opened.

use super::common::{limited_drive, simulate};
use block::{Error, ZonesPart};
use kv::{Acknowledge, Batch, DeletePersistence, MAX_KEY_BYTES, Settings, Store};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Number of keys that are overwritten.
const FEW_KEYS: u32 = 500;
/// Longest time from deletes until puts are accepted.
const MAX_WAIT: Duration = Duration::from_secs(60);
/// Maximum number of open zones of the drive, if that suffices for the shards.
const MAX_OPEN: u32 = 14;

/// Kind of writes that fill a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fill {
    Puts,
    Overwrites,
}

#[derive(Debug, Clone, Copy)]
struct Line {
    shards: u16,
    zones: u32,
    zone_size: u64,
    value: usize,
    promises: bool,
    /// Whether the store is closed and opened between the steps.
    reopens: bool,
    acknowledge: Acknowledge,
    /// Write buffers of all shards; `None` is the default of the kind.
    buffer_bytes: Option<u64>,
}

impl Line {
    /// Default settings of the kind.
    fn settings(&self) -> Settings {
        let capacity = u64::from(self.zones) * self.zone_size;
        let table_bytes = (self.zone_size / 2).min(capacity / 64).max(16 << 10);
        let promise = Settings {
            delete_persistence: Some(DeletePersistence::Time(Duration::from_secs(600))),
            compaction: "zap".to_owned(),
            placement: "zap".to_owned(),
            ..Settings::default()
        };
        Settings {
            shards: Some(self.shards),
            acknowledge: self.acknowledge,
            buffer_bytes: self.buffer_bytes.unwrap_or((capacity / 32).max(u64::from(self.shards) << 16)),
            cache_bytes: 4 << 20,
            table_bytes,
            level_bytes: (capacity / 16).max(table_bytes),
            ..if self.promises { promise } else { Settings::default() }
        }
    }
}

fn key(number: u32) -> Vec<u8> {
    format!("key {number:08}").into_bytes()
}

/// An incompressible value.
fn value(number: u32, round: u32, length: usize) -> Vec<u8> {
    let mut state = u64::from(number) << 32 | u64::from(round);
    let words = (0..length.div_ceil(8)).flat_map(|_| {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        (mixed ^ mixed >> 27).to_le_bytes()
    });
    words.take(length).collect()
}

/// A store with a model of its contents: the round of each key's value.
struct Run {
    line: Line,
    zones: Arc<dyn ZonesPart>,
    store: Store,
    model: BTreeMap<u32, u32>,
    round: u32,
}

impl Run {
    async fn new(line: Line) -> Self {
        let zones = limited_drive(line.zones, line.zone_size, MAX_OPEN.max(3 + 2 * u32::from(line.shards)));
        let store = Store::format(zones.clone(), &line.settings()).await.unwrap().on_lent_zones();
        Run { line, zones, store, model: BTreeMap::new(), round: 0 }
    }

    async fn put(&mut self, number: u32) -> Result<(), Error> {
        self.store.put(&key(number), &value(number, self.round, self.line.value)).await?;
        self.model.insert(number, self.round);
        Ok(())
    }

    /// Puts until the store is full; returns the number of accepted puts.
    async fn fill(&mut self, fill: Fill) -> u32 {
        self.round += 1;
        let most = 3 * (u64::from(self.line.zones) * self.line.zone_size / self.line.value as u64) as u32;
        for number in 0..most {
            let name = if fill == Fill::Puts { number } else { number * 7919 % FEW_KEYS };
            match self.put(name).await {
                Ok(()) => {}
                Err(Error::NoSpace(_)) => return number,
                Err(error) => panic!("{:?}: {error}", self.line),
            }
        }
        assert_eq!(fill, Fill::Overwrites, "{:?}: more was accepted than fits", self.line);
        most
    }

    async fn delete(&mut self, numbers: impl Iterator<Item = u32>) {
        for number in numbers {
            let deleted = self.store.delete(&key(number)).await;
            deleted.unwrap_or_else(|error| panic!("{:?}: delete of key {number}: {error}", self.line));
            self.model.remove(&number);
        }
    }

    /// Puts keys; the store must accept them within a time limit.
    async fn put_soon(&mut self, numbers: impl Iterator<Item = u32>) {
        self.round += 1;
        let begin = runtime::now();
        for number in numbers {
            while let Err(error) = self.put(number).await {
                let status = self.store.status().await.unwrap();
                assert!(
                    begin.elapsed() < MAX_WAIT,
                    "{:?}: put of key {number}: {error}: {status:?}",
                    self.line
                );
                runtime::sleep(Duration::from_millis(100)).await;
            }
        }
    }

    async fn reopen(&mut self) {
        if self.line.reopens {
            self.store.close().await.unwrap_or_else(|error| panic!("{:?}: closing: {error}", self.line));
            let store = Store::open(self.zones.clone(), &self.line.settings()).await;
            self.store =
                store.unwrap_or_else(|error| panic!("{:?}: opening: {error}", self.line)).on_lent_zones();
        }
    }

    async fn check(&self, keys: u32) {
        for number in 0..keys {
            let found = self.store.get(&key(number)).await.unwrap().map(|stored| stored.value);
            let expected = self.model.get(&number).map(|round| value(number, *round, self.line.value));
            assert!(found == expected, "{:?}: key {number}", self.line);
        }
    }

    /// Checks that the deletes share tables.
    async fn check_tables(&self, put: u32) {
        let tables = self.store.tables().await.unwrap();
        assert!(tables.len() as u32 <= put / 8, "{:?}: {} tables of {put} keys", self.line, tables.len());
    }

    /// Deletes everything as FLUSHALL does.
    async fn clear(&mut self) {
        let last = vec![u8::MAX; MAX_KEY_BYTES];
        let mut batch = Batch::new();
        batch.delete_range(&[], &last);
        batch.delete(&last);
        let cleared = self.store.write(batch, Acknowledge::Written).await;
        cleared.unwrap_or_else(|error| panic!("{:?}: deleting all: {error}", self.line));
        self.model.clear();
    }

    async fn steps(mut self, fill: Fill) {
        let put = self.fill(fill).await;
        let keys = if fill == Fill::Puts { put } else { FEW_KEYS };
        self.check(keys).await;
        self.reopen().await;
        // Deletes half of the keys individually.
        self.delete((0..keys).step_by(2)).await;
        self.reopen().await;
        self.check(keys).await;
        self.check_tables(put).await;
        self.put_soon((0..keys).step_by(8)).await;
        self.store.compact().await.unwrap_or_else(|error| panic!("{:?}: compacting: {error}", self.line));
        self.check(keys).await;
        self.fill(fill).await;
        self.reopen().await;
        self.clear().await;
        self.reopen().await;
        self.put_soon((0..keys).step_by(2)).await;
        self.check(keys).await;
        // The store takes about as much as before, depending on the state of compactions.
        self.clear().await;
        let again = self.fill(fill).await;
        assert!(again >= put / 4 * 3, "{:?}: {again} puts were accepted; at first {put}", self.line);
        self.store.close().await.unwrap_or_else(|error| panic!("{:?}: closing: {error}", self.line));
    }
}

fn run(line: Line, fill: Fill) {
    simulate(9, 2, move || async move { Run::new(line).await.steps(fill).await });
}

#[test]
fn a_full_store_takes_deletes_and_then_puts_again() {
    let line = Line {
        shards: 1,
        zones: 40,
        zone_size: 1 << 20,
        value: 4000,
        promises: false,
        reopens: true,
        acknowledge: Acknowledge::Written,
        buffer_bytes: None,
    };
    run(line, Fill::Puts);
}

#[test]
fn a_full_store_of_two_shards_with_a_promise_takes_deletes_and_then_puts_again() {
    let line = Line {
        shards: 2,
        zones: 40,
        zone_size: 1 << 20,
        value: 8000,
        promises: true,
        reopens: false,
        acknowledge: Acknowledge::Written,
        buffer_bytes: None,
    };
    run(line, Fill::Puts);
}

/// Writes of `together` keys each by several clients at once until each is refused; returns the keys of the
/// accepted ones. A client gives up after some refusals only: the last zones are taken meanwhile by writes
/// that were acknowledged.
async fn fill_at_once(run: &Run, clients: u32, together: u32) -> Vec<u32> {
    let puts = |client: u32| {
        let (store, line) = (run.store.clone(), run.line);
        async move {
            let mut accepted = Vec::new();
            let mut refusals = 0;
            for number in (client..).step_by(clients as usize) {
                let keys = number * together..(number + 1) * together;
                let mut batch = Batch::new();
                keys.clone().for_each(|number| batch.put(&key(number), &value(number, 1, line.value)));
                match store.write(batch, line.acknowledge).await {
                    Ok(()) => accepted.extend(keys),
                    Err(Error::NoSpace(_)) if refusals == 3 => break,
                    Err(Error::NoSpace(_)) => refusals += 1,
                    Err(error) => panic!("{line:?}: put of key {number}: {error}"),
                }
            }
            accepted
        }
    };
    let tasks: Vec<_> = (0..clients).map(|client| runtime::spawn(puts(client))).collect();
    let mut accepted = Vec::new();
    for task in tasks {
        accepted.extend(task.await);
    }
    accepted
}

/// Write buffers of each shard that are large in relation to the zones, in bytes.
const LARGE: Option<u64> = Some(4 << 20);

/// A store on zones of 256 KiB, with write buffers of this size for each shard.
fn small_zones(shards: u16, value: usize, acknowledge: Acknowledge, buffer: Option<u64>) -> Line {
    Line {
        shards,
        zones: 32 + 30 * u32::from(shards),
        zone_size: 256 << 10,
        value,
        promises: false,
        reopens: true,
        acknowledge,
        buffer_bytes: buffer.map(|bytes| bytes * u64::from(shards)),
    }
}

/// A store that several clients have filled at once, and the number of keys that they tried.
async fn full_at_once(line: Line, together: u32) -> (Run, u32) {
    let zones = limited_drive(line.zones, line.zone_size, 0);
    let store = Store::format(zones.clone(), &line.settings()).await.unwrap().on_lent_zones();
    let mut run = Run { line, zones, store, model: BTreeMap::new(), round: 1 };
    let accepted = fill_at_once(&run, 64 * u32::from(line.shards) / together, together).await;
    run.model.extend(accepted.iter().map(|number| (*number, 1)));
    let keys = accepted.iter().max().expect("puts that were accepted") + 1;
    (run, keys)
}

/// From a store that was filled at once, the deletion of everything leads out, and so does that of half of
/// the keys.
fn empty_what_was_filled_at_once(shards: u16, value: usize, buffer: Option<u64>) {
    empty_what_was_filled_by_batches(shards, value, buffer, 1);
}

/// As above, with `together` keys in each write, which are those of several shards.
fn empty_what_was_filled_by_batches(shards: u16, value: usize, buffer: Option<u64>, together: u32) {
    for acknowledge in [Acknowledge::Written, Acknowledge::Buffered] {
        let line = small_zones(shards, value, acknowledge, buffer);
        println!("{line:?}");
        simulate(9, usize::from(shards), move || async move {
            let (mut run, keys) = full_at_once(line, together).await;
            let count = run.model.len() as u32;
            run.clear().await;
            run.put_soon(0..count / 2).await;
            run.check(keys).await;
            run.reopen().await;
            run.check(keys).await;
            run.store.close().await.unwrap_or_else(|error| panic!("{line:?}: closing: {error}"));

            let (mut run, keys) = full_at_once(line, together).await;
            println!("{count} keys, and {}", run.model.len());
            let deleted: Vec<u32> = run.model.keys().copied().step_by(2).collect();
            run.delete(deleted.iter().copied()).await;
            run.put_soon(deleted.iter().copied().step_by(4)).await;
            run.check(keys).await;
            run.reopen().await;
            run.clear().await;
            run.put_soon(0..count / 2).await;
            run.check(keys).await;
            run.store.close().await.unwrap_or_else(|error| panic!("{line:?}: closing: {error}"));
        });
    }
}

#[test]
fn a_full_store_with_large_buffers_is_emptied() {
    empty_what_was_filled_at_once(1, 60_000, LARGE);
}

#[test]
fn a_full_store_of_two_shards_with_large_buffers_is_emptied() {
    empty_what_was_filled_at_once(2, 60_000, LARGE);
}

#[test]
fn a_full_store_of_four_shards_with_large_buffers_is_emptied() {
    empty_what_was_filled_at_once(4, 60_000, LARGE);
}

#[test]
fn a_store_that_batches_of_two_shards_have_filled_is_emptied() {
    empty_what_was_filled_by_batches(2, 50_000, LARGE, 4);
}

#[test]
fn a_store_that_batches_of_four_shards_have_filled_is_emptied() {
    empty_what_was_filled_by_batches(4, 20_000, LARGE, 8);
}

#[test]
fn a_full_store_of_two_shards_with_large_values_is_emptied() {
    empty_what_was_filled_at_once(2, 60_000, None);
}

/// Puts that several shards acknowledge before they are written, with buffers that are large in relation to
/// the free zones: each is written, or was refused before it was acknowledged.
fn fill_with_acknowledged_puts(shards: u16, value: usize) {
    for seed in 0..3 {
        simulate(seed, usize::from(shards), move || async move {
            let (mut run, keys) =
                full_at_once(small_zones(shards, value, Acknowledge::Buffered, LARGE), 1).await;
            let line = run.line;
            let flushed = run.store.flush().await;
            flushed.unwrap_or_else(|error| panic!("{line:?}, seed {seed}: flush: {error}"));
            run.check(keys).await;
            run.reopen().await;
            run.check(keys).await;
            run.store.close().await.unwrap_or_else(|error| panic!("{line:?}, seed {seed}: closing: {error}"));
        });
    }
}

#[test]
fn two_shards_write_every_put_that_they_acknowledge_before_the_store_is_full() {
    [4000, 60_000].into_iter().for_each(|value| fill_with_acknowledged_puts(2, value));
}

#[test]
fn four_shards_write_every_put_that_they_acknowledge_before_the_store_is_full() {
    [20_000, 60_000].into_iter().for_each(|value| fill_with_acknowledged_puts(4, value));
}

#[test]
fn a_large_put_that_does_not_fit_refuses_no_small_ones_of_other_shards() {
    let line = small_zones(2, 4000, Acknowledge::Written, LARGE);
    simulate(9, 2, move || async move {
        let mut run = Run::new(line).await;
        let large = (0..).map(key).find(|key| kv::shard_of_key(key, 2) == 0).unwrap();
        for number in 0.. {
            run.put(number).await.unwrap_or_else(|error| panic!("put of key {number}: {error}"));
            if number % 64 == 0 && run.store.fullness().await.unwrap().percent() >= 60 {
                break;
            }
        }
        let refused = run.store.put(&large, &value(0, 0, 4 << 20)).await;
        assert!(matches!(refused, Err(Error::NoSpace(_))), "{refused:?}");
        let small = (1_000_000..).filter(|number| kv::shard_of_key(&key(*number), 2) == 1);
        for number in small.take(16) {
            run.put(number).await.unwrap_or_else(|error| panic!("put of key {number}: {error}"));
        }
        run.store.close().await.unwrap();
    });
}

/// Puts until the store is full, and returns the fullness in percent after every 20 puts.
async fn percents(run: &mut Run) -> Vec<u64> {
    let mut percents = Vec::new();
    for number in 0.. {
        if number % 20 == 0 {
            percents.push(run.store.fullness().await.unwrap().percent());
        }
        match run.put(number).await {
            Ok(()) => {}
            Err(Error::NoSpace(_)) => break,
            Err(error) => panic!("{:?}: {error}", run.line),
        }
    }
    percents
}

#[test]
fn the_fullness_of_a_store_reaches_its_limit_when_puts_are_refused() {
    for (shards, zones, zone_size) in [(1, 32, 1 << 20), (2, 40, 1 << 20), (4, 64, 1 << 20)] {
        let line = Line {
            shards,
            zones,
            zone_size,
            value: 20_000,
            promises: false,
            reopens: false,
            acknowledge: Acknowledge::Written,
            buffer_bytes: None,
        };
        simulate(9, usize::from(shards), move || async move {
            let mut run = Run::new(line).await;
            let percents = percents(&mut run).await;
            let count = |from: u64, to: u64| percents.iter().filter(|it| (from..to).contains(*it)).count();
            println!("{line:?}: {percents:?}");
            // The first level of warnings is reached before puts are refused, and not long before; a zone is
            // some percent of such small stores.
            assert!(count(80, 1000) > 0, "{line:?}: {percents:?}");
            assert!(count(0, 80) * 10 > percents.len() * 7, "{line:?}: {percents:?}");
            assert!(run.store.fullness().await.unwrap().percent() >= 95, "{line:?}: {percents:?}");
            run.clear().await;
            run.store.compact().await.unwrap();
            let emptied = run.store.fullness().await.unwrap();
            assert!(emptied.percent() < 10, "{line:?}: {emptied:?}");
            run.store.close().await.unwrap();
            assert_eq!(run.store.fullness().await, None);
        });
    }
}

#[test]
fn a_full_store_of_two_shards_with_a_promise_and_small_values_takes_deletes_and_then_puts_again() {
    let line = Line {
        shards: 2,
        zones: 40,
        zone_size: 1 << 20,
        value: 4000,
        promises: true,
        reopens: false,
        acknowledge: Acknowledge::Written,
        buffer_bytes: None,
    };
    run(line, Fill::Puts);
}

#[test]
fn a_full_store_of_tables_that_are_larger_than_zones_takes_deletes_and_then_puts_again() {
    // The zones have space for a few purged tables only, unless earlier ones are freed.
    let line = Line {
        shards: 1,
        zones: 64,
        zone_size: 1 << 20,
        value: 8000,
        promises: false,
        reopens: true,
        acknowledge: Acknowledge::Written,
        buffer_bytes: None,
    };
    run(line, Fill::Puts);
}

#[test]
fn a_store_that_is_overwritten_does_not_fill() {
    let line = Line {
        shards: 2,
        zones: 40,
        zone_size: 1 << 20,
        value: 4000,
        promises: false,
        reopens: false,
        acknowledge: Acknowledge::Written,
        buffer_bytes: None,
    };
    run(line, Fill::Overwrites);
}

/// A cell of the grid: size of the values, whether there is a promise, whether the store is opened again
/// between the steps, and kind of writes.
type Cell = (usize, bool, bool, Fill);

/// Fills stores on zones of one size; only in long runs.
fn check_grid(
    (zones, zone_size): (u32, u64),
    shards: u16,
    acknowledge: Acknowledge,
    cells: impl IntoIterator<Item = Cell>,
) {
    if conformance::budget::is_left_out() {
        return;
    }
    for (value, promises, reopens, fill) in cells {
        let buffer_bytes = None;
        let line = Line { shards, zones, zone_size, value, promises, reopens, acknowledge, buffer_bytes };
        println!("{line:?}, {fill:?}");
        run(line, fill);
    }
}

/// All cells, on small zones.
fn check_small(shards: u16, acknowledge: Acknowledge) {
    let values = [4000, 8000].into_iter();
    let kinds = values.flat_map(|value| {
        [(false, true), (true, false), (true, true)].map(|(promises, reopens)| (value, promises, reopens))
    });
    let cells = kinds.flat_map(|(value, promises, reopens)| {
        [Fill::Puts, Fill::Overwrites].map(|fill| (value, promises, reopens, fill))
    });
    check_grid((if shards > 4 { 96 } else { 40 }, 1 << 20), shards, acknowledge, cells);
}

/// The cells that differ on larger zones: with a promise zones are reset early, and opening again ends open
/// zones early. A cell takes about a minute of processor time.
fn check_large(shards: u16) {
    let cells = [
        (8000, false, true, Fill::Puts),
        (8000, true, true, Fill::Puts),
        (8000, true, false, Fill::Overwrites),
    ];
    check_grid((64, 4 << 20), shards, Acknowledge::Written, cells);
}

#[test]
fn from_every_full_store_of_one_shard_a_delete_leads_out() {
    check_small(1, Acknowledge::Written);
}

#[test]
fn from_every_full_store_of_two_shards_a_delete_leads_out() {
    check_small(2, Acknowledge::Written);
}

#[test]
fn from_every_full_store_of_three_shards_a_delete_leads_out() {
    check_small(3, Acknowledge::Written);
}

#[test]
fn from_every_full_store_of_four_shards_a_delete_leads_out() {
    check_small(4, Acknowledge::Written);
}

#[test]
fn from_every_full_store_of_eight_shards_a_delete_leads_out() {
    check_small(8, Acknowledge::Written);
}

#[test]
fn from_every_full_store_of_two_shards_with_buffered_puts_a_delete_leads_out() {
    check_small(2, Acknowledge::Buffered);
}

#[test]
fn from_every_full_store_of_four_shards_with_buffered_puts_a_delete_leads_out() {
    check_small(4, Acknowledge::Buffered);
}

#[test]
fn from_every_full_store_of_one_shard_with_larger_zones_a_delete_leads_out() {
    check_large(1);
}

#[test]
fn from_every_full_store_of_two_shards_with_larger_zones_a_delete_leads_out() {
    check_large(2);
}

#[test]
fn from_every_full_store_of_three_shards_with_larger_zones_a_delete_leads_out() {
    check_large(3);
}

#[test]
fn from_every_full_store_of_four_shards_with_larger_zones_a_delete_leads_out() {
    check_large(4);
}

#[test]
fn from_every_full_store_of_eight_shards_with_larger_zones_a_delete_leads_out() {
    check_large(8);
}

#[test]
fn all_keys_of_many_shards_are_deleted_in_one_record() {
    simulate(4, 2, || async {
        let zones = limited_drive(128, 1 << 20, 0);
        let settings = Settings { shards: Some(16), buffer_bytes: 1 << 20, ..super::common::small() };
        let store = Store::format(zones, &settings).await.unwrap();
        for number in 0..64 {
            store.put(&key(number), b"value").await.unwrap();
        }
        let last = vec![u8::MAX; MAX_KEY_BYTES];
        let mut batch = Batch::new();
        batch.delete_range(&[], &last);
        batch.delete(&last);
        store.write(batch, Acknowledge::Written).await.unwrap();
        for number in 0..64 {
            assert_eq!(store.get(&key(number)).await.unwrap(), None);
        }
        // An atomic batch for several shards is one record, which limits its size.
        let mut batch = Batch::new();
        (0..64).for_each(|number| batch.put(&key(number), &value(number, 0, 20_000)));
        let refused = store.write(batch, Acknowledge::Written).await.unwrap_err().to_string();
        assert!(
            refused.contains("bytes of keys and values") && refused.contains("expected up to 917504 bytes"),
            "{refused}"
        );
        store.close().await.unwrap();
    });
}
