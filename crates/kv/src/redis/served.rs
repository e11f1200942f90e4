//! The key-value store as the commands of redis see it.

use super::store::{Range, Store as Served, Stored, Write};
use crate::batch::{Batch, Write as Change};
use crate::entry::MOST_KEY_BYTES;
use crate::pairs::Pair;
use crate::reads::{Scan, Stored as Found};
use crate::store::{Snapshot, Store, Update, shard_of_key};
use block::{Data, Error, Result, Status};

/// Bytes of pairs that a scan returns about.
const SCAN_BYTES: usize = 1 << 20;

fn stored(found: Found) -> Stored {
    Stored { value: Data::copy_of(&found.value), expires: found.expires }
}

/// Adds a write to a batch.
fn push(batch: &mut Batch, write: &Write) {
    match write {
        Write::Put { key, value, expires } => batch.push(Change::Put { key, value, expires: *expires }),
        Write::Delete { key } => batch.delete(key),
        // Keys that are lower than a longer one are those up to its longest beginning that is a key.
        Write::DeleteRange { from, to } if to.len() > MOST_KEY_BYTES => {
            let last = &to[..MOST_KEY_BYTES];
            batch.delete_range(from, last);
            if from.as_slice() <= last {
                batch.delete(last);
            }
        }
        Write::DeleteRange { from, to } => batch.delete_range(from, to),
    }
}

impl Served for Store {
    type Snapshot = Snapshot;

    async fn get(&self, key: &[u8]) -> Result<Option<Stored>> {
        Ok(Store::get(self, key).await?.map(stored))
    }

    async fn write(&self, writes: Vec<Write>) -> Result<()> {
        let mut batch = Batch::new();
        writes.iter().for_each(|write| push(&mut batch, write));
        Store::write(self, batch, self.acknowledge()).await
    }

    async fn write_each(&self, writes: Vec<Write>) -> Result<()> {
        let shards = self.shards();
        let mut parts: Vec<Batch> = vec![Batch::new(); shards];
        for write in &writes {
            match write {
                Write::Put { key, .. } | Write::Delete { key } => {
                    push(&mut parts[usize::from(shard_of_key(key, shards))], write)
                }
                Write::DeleteRange { .. } => {
                    return Err(Error::invalid("a write of a range; expected writes of single keys"));
                }
            }
        }
        let parts = parts.into_iter().filter(|part| !part.is_empty());
        let written = parts.map(|part| Store::write(self, part, self.acknowledge()));
        runtime::join_all(written).await.into_iter().collect()
    }

    async fn update<R: Send + 'static>(
        &self,
        key: &[u8],
        change: impl FnOnce(Option<Stored>) -> (Option<Write>, R) + Send + 'static,
    ) -> Result<R> {
        let change = |found: Option<Found>| {
            let (write, answer) = change(found.map(stored));
            let update = match write {
                None => None,
                Some(Write::Put { value, expires, .. }) => Some(Update::Put(Found { value, expires })),
                Some(Write::Delete { .. }) => Some(Update::Delete),
                Some(Write::DeleteRange { .. }) => {
                    return (
                        None,
                        Err(Error::invalid("an update that deletes a range; expected a write of its key")),
                    );
                }
            };
            (update, Ok(answer))
        };
        Store::update(self, key, change).await?
    }

    async fn scan(&self, snapshot: Option<&Snapshot>, range: Range) -> Result<Vec<(Vec<u8>, Stored)>> {
        let Range { from, to, is_backward, limit } = range;
        let scan = Scan { from, to, is_backward, snapshot: None, most: limit, most_bytes: SCAN_BYTES };
        let (pairs, _) = Store::scan(self, snapshot, scan).await?;
        let stored = |pair: Pair<'_>| {
            (pair.key.to_vec(), Stored { value: Data::copy_of(pair.value), expires: pair.expires })
        };
        Ok(pairs.iter().map(stored).collect())
    }

    async fn snapshot(&self) -> Result<Snapshot> {
        Store::snapshot(self).await
    }

    async fn compact(&self) -> Result<()> {
        Store::compact(self).await
    }

    async fn status(&self) -> Status {
        let status = Store::status(self).await;
        status.unwrap_or_else(|error| Status::from_iter([("error".to_owned(), error.to_string().into())]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::now;

    #[test]
    fn a_range_that_ends_beyond_all_keys_has_the_largest_key() {
        let mut batch = Batch::new();
        push(&mut batch, &Write::DeleteRange { from: Vec::new(), to: vec![0xFF; MOST_KEY_BYTES + 1] });
        let mut found = Vec::new();
        batch.for_each(|write| {
            assert!(write.check().is_ok());
            found.push(match write {
                Change::DeleteRange { from, to, deleted } => {
                    assert!(deleted <= now());
                    (from.to_vec(), to.to_vec())
                }
                Change::Delete { key, .. } => (key.to_vec(), Vec::new()),
                Change::Put { .. } => panic!("nothing is set"),
            });
        });
        let last = vec![0xFF; MOST_KEY_BYTES];
        assert_eq!(found, [(Vec::new(), last.clone()), (last, Vec::new())]);
    }
}
