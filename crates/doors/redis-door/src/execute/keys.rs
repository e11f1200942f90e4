//! Commands that iterate over keys: `SCAN`, `KEYS`, `DBSIZE` and `KV.SCAN`. Their replies are sent in pieces.

use super::{Executor, Flow, MAX_KEYS_BYTES, SCAN_KEYS, after};
use crate::command::Failure;
use crate::pattern::Pattern;
use crate::scan_cursors::{HashPage, Position};
use block::Result;
use kv::{Pairs, Scan};

const TOO_MANY: Failure = Failure::fixed("ERR the matching keys have more than 64 MiB; use SCAN");

impl Executor {
    pub(super) async fn keys(&mut self, pattern: &Pattern) -> Result<Result<Flow, Failure>> {
        let (mut found, mut bytes) = (Vec::new(), 0);
        let mut visit = |key: &[u8]| {
            if pattern.matches(key) {
                bytes += key.len() + size_of::<Vec<u8>>();
                found.push(key.to_vec());
            }
            if bytes <= MAX_KEYS_BYTES { Ok(()) } else { Err(TOO_MANY) }
        };
        if let Err(failure) = self.for_each_key(&mut visit).await {
            return Ok(Err(failure));
        }
        self.array_of(found.iter().map(Vec::as_slice)).await?;
        Ok(Ok(Flow::Continue))
    }

    /// Replies with an array of keys.
    async fn array_of(&mut self, keys: impl ExactSizeIterator<Item = &[u8]>) -> Result<()> {
        self.replies.array(keys.len());
        for key in keys {
            self.replies.bulk(key);
            self.step().await?;
        }
        Ok(())
    }

    /// `KV.SCAN`: an array of keys, each followed by its value and its expiry in milliseconds since 1970 or
    /// -1; with `only_keys` an array of keys. An empty array is the end of the range. Values are sent one at
    /// a time.
    pub(super) async fn range(&mut self, range: Scan, only_keys: bool) -> Result<Result<Flow, Failure>> {
        let pairs = match self.store.scan(self.snapshot.as_ref(), range).await {
            Ok((pairs, _)) => pairs,
            Err(error) => return Ok(Err(Failure::from(&error))),
        };
        self.replies.array(if only_keys { pairs.len() } else { 3 * pairs.len() });
        for pair in pairs.iter() {
            self.replies.bulk(pair.key);
            if !only_keys {
                self.replies.value(pair.value);
                self.replies.integer(pair.expires.map_or(-1, |time| i64::try_from(time).unwrap_or(i64::MAX)));
            }
            self.step().await?;
        }
        Ok(Ok(Flow::Continue))
    }

    /// Calls `visit` with every key, in order.
    pub(super) async fn for_each_key(
        &mut self,
        visit: &mut dyn FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut from = Vec::new();
        loop {
            let (pairs, has_more) = self.store.scan(None, Scan::from(from, SCAN_KEYS)).await?;
            for pair in pairs.iter() {
                visit(pair.key)?;
            }
            match pairs.last() {
                Some(last) if has_more => from = after(last.key),
                _ => return Ok(()),
            }
            if self.stopping.get() {
                return Err(Failure::fixed("ERR the server stops"));
            }
            runtime::yield_now().await;
        }
    }

    pub(super) async fn scan(
        &mut self,
        cursor: u64,
        pattern: Option<&Pattern>,
        count: usize,
        is_other_type: bool,
    ) -> Result<Result<Flow, Failure>> {
        let is_match = |key: &[u8]| pattern.is_none_or(|pattern| pattern.matches(key));
        let position = self.facts.cursors().position(cursor);
        let from = match position {
            Position::Key(from) => from,
            Position::Hash(_) if is_other_type => Vec::new(),
            Position::Hash(from) => {
                let mut page = HashPage::new(from);
                let mut visit = |key: &[u8]| {
                    if is_match(key) {
                        page.offer(key);
                    }
                    // The page exceeds its size if all keys have the same hash.
                    if page.bytes() <= MAX_KEYS_BYTES { Ok(()) } else { Err(TOO_MANY) }
                };
                if let Err(failure) = self.for_each_key(&mut visit).await {
                    return Ok(Err(failure));
                }
                let (keys, next) = page.finish();
                self.page(next, keys.iter().map(Vec::as_slice)).await?;
                return Ok(Ok(Flow::Continue));
            }
        };
        // No key has another type, so the iteration ends at once.
        let (pairs, has_more) = match is_other_type {
            true => (Pairs::new(), false),
            false => match self.store.scan(None, Scan::from(from, count.min(SCAN_KEYS))).await {
                Ok(found) => found,
                Err(error) => return Ok(Err(Failure::from(&error))),
            },
        };
        let next = match pairs.last() {
            Some(last) if has_more => self.facts.cursors().advance(cursor, after(last.key)),
            _ => {
                self.facts.cursors().end(cursor);
                0
            }
        };
        let keys: Vec<&[u8]> = pairs.iter().map(|pair| pair.key).filter(|key| is_match(key)).collect();
        self.page(next, keys.into_iter()).await?;
        Ok(Ok(Flow::Continue))
    }

    /// Appends and sends the reply to `SCAN`.
    async fn page(&mut self, next: u64, keys: impl ExactSizeIterator<Item = &[u8]>) -> Result<()> {
        self.replies.array(2);
        self.replies.bulk(next.to_string().as_bytes());
        self.array_of(keys).await
    }
}
