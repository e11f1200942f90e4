//! Model of the writes of clients to a store, and of the permitted states after a power cut.
//!
//! Each client has its own keys and one write in flight. Each shard of the store keeps the writes of a client
//! in order, and a batch is atomic. So after a power cut each shard has a prefix of the client's writes,
//! which includes all durable ones; a batch for several shards is in all of these prefixes or in none.

use kv::shard_of_key;
use kv::{Acknowledge, Batch};
use runtime::Random;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

/// Keys and values.
pub type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// A value: its incompressible bytes are derived from a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Value {
    pub number: u64,
    pub length: usize,
}

impl Value {
    fn bytes(self) -> Vec<u8> {
        let mut bytes = vec![0; self.length];
        Random::new(self.number).fill(&mut bytes);
        bytes
    }
}

/// A write of a batch; keys are given by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Put(u64, Value),
    Delete(u64),
    /// Deletes the keys between two numbers, the second one excluded.
    DeleteRange(u64, u64),
}

/// An operation of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// Writes a batch.
    Write(Vec<Change>, Acknowledge),
    Flush,
    FlushBuffers,
    Compact,
    /// Closes and reopens the store; only used with a single client.
    Reopen,
    /// Waits for this number of microseconds.
    Wait(u64),
}

/// Key `number` of a client.
pub fn key(client: usize, number: u64) -> Vec<u8> {
    format!("c{client}-{number:03}").into_bytes()
}

/// Batch of these changes.
pub fn batch(client: usize, changes: &[Change]) -> Batch {
    let mut batch = Batch::new();
    for change in changes {
        match *change {
            Change::Put(number, value) => batch.put(&key(client, number), &value.bytes()),
            Change::Delete(number) => batch.delete(&key(client, number)),
            Change::DeleteRange(from, to) => batch.delete_range(&key(client, from), &key(client, to)),
        }
    }
    batch
}

/// A batch that a client wrote, with event numbers of the disk: it can't be on the disk before `from`,
/// survives the end of the process at and after `kept`, and is durable at and after `durable`.
#[derive(Debug, Clone)]
struct Step {
    changes: Vec<Change>,
    from: u64,
    kept: u64,
    durable: u64,
}

/// A client with all its writes.
#[derive(Debug)]
pub struct Client {
    number: usize,
    steps: Vec<Step>,
    /// Number of the steps that were acknowledged.
    acknowledged: usize,
}

impl Client {
    pub fn new(number: usize) -> Self {
        Client { number, steps: Vec::new(), acknowledged: 0 }
    }

    /// Notes the start of a write.
    pub fn begin(&mut self, changes: &[Change], event: u64) {
        self.steps.push(Step { changes: changes.to_vec(), from: event, kept: u64::MAX, durable: u64::MAX });
    }

    /// Notes that the last write was acknowledged.
    pub fn acknowledge(&mut self) {
        self.acknowledged = self.steps.len();
    }

    /// Notes that the last write survives the end of the process; earlier ones of its shards do also.
    pub fn last_is_kept(&mut self, event: u64) {
        self.steps.last_mut().into_iter().for_each(|step| step.kept = event);
    }

    /// Notes that the last write was refused, so it must have no effect.
    pub fn refuse(&mut self) {
        self.steps.pop();
    }

    /// Notes that the last write is durable; earlier ones are on the same shards.
    pub fn last_is_durable(&mut self, event: u64) {
        let last = self.steps.last_mut();
        last.into_iter().for_each(|step| step.durable = event);
    }

    /// Number of acknowledged writes.
    pub fn acknowledged(&self) -> usize {
        self.acknowledged
    }

    /// Notes that the first `count` writes are durable.
    pub fn durable(&mut self, count: usize, event: u64) {
        self.steps[..count].iter_mut().for_each(|step| step.durable = step.durable.min(event));
    }

    /// Shards that a write changes.
    fn shards_of(&self, step: &Step, shards: usize) -> Vec<usize> {
        let has = |change: &Change, shard: usize| match *change {
            Change::Put(number, _) | Change::Delete(number) => {
                usize::from(shard_of_key(&key(self.number, number), shards)) == shard
            }
            Change::DeleteRange(..) => true,
        };
        (0..shards).filter(|shard| step.changes.iter().any(|change| has(change, *shard))).collect()
    }

    fn apply(&self, step: &Step, map: &mut Map) {
        for change in &step.changes {
            match *change {
                Change::Put(number, value) => _ = map.insert(key(self.number, number), value.bytes()),
                Change::Delete(number) => _ = map.remove(&key(self.number, number)),
                Change::DeleteRange(from, to) => {
                    let (from, to) = (key(self.number, from), key(self.number, to));
                    map.retain(|key, _| *key < from || *key >= to);
                }
            }
        }
    }

    /// Checks whether a store may have these contents after a power cut at these events, or the end of its
    /// process with `is_kill`.
    ///
    /// # Errors
    /// A description of the found and the permitted contents.
    pub fn check(
        &self,
        shards: usize,
        (cuts, is_kill): (&RangeInclusive<u64>, bool),
        all: &Map,
    ) -> Result<(), String> {
        let own = all.iter().filter(|(key, _)| key.starts_with(format!("c{}-", self.number).as_bytes()));
        let found: Map = own.map(|(key, value)| (key.clone(), value.clone())).collect();
        let mut firsts: Vec<Vec<usize>> = vec![Vec::new()];
        for shard in 0..shards {
            let counts = self.first_parts(shard, shards, (cuts, is_kill), &found)?;
            firsts = firsts
                .into_iter()
                .flat_map(|first| counts.iter().map(move |count| [first.as_slice(), &[*count]].concat()))
                .collect();
        }
        let is_whole = |counts: &Vec<usize>| {
            self.steps.iter().enumerate().all(|(index, step)| {
                let mut has = self.shards_of(step, shards).into_iter().map(|shard| index < counts[shard]);
                let first = has.next();
                has.all(|has| Some(has) == first)
            })
        };
        match firsts.iter().any(is_whole) {
            true => Ok(()),
            false => Err(format!("client {}: a part of a batch; the shards have {firsts:?}", self.number)),
        }
    }

    /// Numbers of steps that a shard's prefix may have.
    fn first_parts(
        &self,
        shard: usize,
        shards: usize,
        (cuts, is_kill): (&RangeInclusive<u64>, bool),
        found: &Map,
    ) -> Result<Vec<usize>, String> {
        let is_here = |key: &[u8]| usize::from(shard_of_key(key, shards)) == shard;
        let here = |map: &Map| -> Map {
            map.iter()
                .filter(|(key, _)| is_here(key))
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect()
        };
        let found = here(found);
        // Only steps of this shard are candidates: after its last durable one, up to the last one that may be
        // on the disk.
        let own =
            |(index, step): (usize, &Step)| self.shards_of(step, shards).contains(&shard).then_some(index);
        let steps = || self.steps.iter().enumerate();
        let survives = |step: &Step| step.durable <= *cuts.end() || is_kill && step.kept <= *cuts.end();
        let durable = steps().filter(|(_, step)| survives(step)).filter_map(own).next_back();
        let least = durable.map_or(0, |index| index + 1);
        let mut map = Map::new();
        let (mut legal, mut nearest) = (Vec::new(), (usize::MAX, 0, Map::new()));
        for count in 0..=self.steps.len() {
            if let Some(step) = count.checked_sub(1).map(|last| &self.steps[last]) {
                if step.from > *cuts.start() {
                    break;
                }
                self.apply(step, &mut map);
            }
            let shown = here(&map);
            if count >= least && shown == found {
                legal.push(count);
            }
            let differing = differing(&found, &shown).len();
            if differing < nearest.0 {
                nearest = (differing, count, shown);
            }
        }
        match legal.is_empty() {
            false => Ok(legal),
            true => Err(format!(
                "client {}, shard {shard}: no first part of its writes with at least {least}; nearest is that with {}: {}",
                self.number,
                nearest.1,
                difference(&found, &nearest.2)
            )),
        }
    }
}

/// Keys with different values.
fn differing<'a>(found: &'a Map, expected: &'a Map) -> BTreeSet<&'a Vec<u8>> {
    let keys = found.keys().chain(expected.keys());
    keys.filter(|key| found.get(*key) != expected.get(*key)).collect()
}

/// Description of the keys with different values.
pub fn difference(found: &Map, expected: &Map) -> String {
    let short = |value: Option<&Vec<u8>>| match value {
        Some(value) => format!("{} bytes, {:02x?}…", value.len(), &value[..value.len().min(4)]),
        None => "nothing".to_owned(),
    };
    let lines = differing(found, expected).into_iter().map(|key| {
        format!(
            "{} has {} for {}",
            String::from_utf8_lossy(key),
            short(found.get(key)),
            short(expected.get(key))
        )
    });
    lines.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(number: u64, value: u64) -> Change {
        Change::Put(number, Value { number: value, length: 4 })
    }

    /// Client that puts key 0, then keys 0 and 1 together; the first batch is durable at event 5.
    fn client() -> Client {
        let mut client = Client::new(0);
        client.begin(&[put(0, 1)], 3);
        client.acknowledge();
        client.durable(1, 5);
        client.begin(&[put(0, 2), put(1, 3)], 6);
        client
    }

    fn map(values: &[(u64, u64)]) -> Map {
        values
            .iter()
            .map(|(number, value)| (key(0, *number), Value { number: *value, length: 4 }.bytes()))
            .collect()
    }

    #[test]
    fn what_was_durable_is_there_and_a_batch_is_whole() {
        for shards in [1, 2] {
            let check =
                |cuts, values: &[(u64, u64)]| client().check(shards, (&cuts, false), &map(values)).is_ok();
            assert!(check(4..=4, &[]) && check(4..=4, &[(0, 1)]));
            assert!(!check(5..=5, &[]) && check(5..=5, &[(0, 1)]));
            assert!(!check(4..=5, &[]), "a state of several cuts");
            assert!(!check(5..=5, &[(0, 2), (1, 3)]), "the second batch before it was written");
            assert!(check(6..=9, &[(0, 2), (1, 3)]) && check(6..=9, &[(0, 1)]));
            assert!(!check(6..=9, &[(0, 2)]) && !check(6..=9, &[(0, 1), (1, 3)]), "the second batch in part");
        }
        let is_split = shard_of_key(&key(0, 0), 2) != shard_of_key(&key(0, 1), 2);
        assert!(is_split, "the keys are of one shard");
    }
}
