//! Execution of the commands of a connection on the store.
//!
//! # Promises
//! - Commands are carried out in order, each as a whole before the next one. Commands that follow each other and only set one value are
//!   written together, and answered after that: an error is the answer to all of them.
//! - A command that reads a key and changes it is atomic against all other changes of the key. `MSET` is one write of the store. `MSETNX` excludes
//!   the other commands of the server while it reads and writes. `DEL`, `MGET`, `EXISTS` and `SCAN` read one key after the other.
//! - Replies that wait for the client have at most [`ENOUGH`](super::reply::ENOUGH) bytes and one value, and those of
//!   `KEYS` [`MOST_KEYS_BYTES`].

use super::command::{
    self, Condition, Expiry, Failure, LONG_STRING, NO_INTEGER, OVERFLOW, Request, SYNTAX, SetReply,
};
use super::facts::{Facts, Session};
use super::pattern::Pattern;
use super::reply::Replies;
use super::resp::{Arguments, integer};
use super::server_commands;
use super::store::{Range, Store, Stored, Write};
use crate::entry::{MOST_KEY_BYTES, MOST_VALUE_BYTES, Timestamp};
use block::{Error, Result};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

/// Limit of the bytes of a reply to `KEYS`.
pub const MOST_KEYS_BYTES: usize = 64 << 20;
/// Largest number of commands in a batch.
const BATCH_COMMANDS: usize = 256;
/// Bytes from which on a batch is written.
const BATCH_BYTES: usize = 1 << 20;
/// Largest number of keys that one call of the store returns.
const SCAN_KEYS: usize = 1000;

/// Where replies go.
pub trait Sink {
    /// Sends all replies.
    ///
    /// # Errors
    /// That the client is gone.
    fn send(&mut self, replies: &mut Replies) -> impl Future<Output = Result<()>>;
}

/// What follows a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// The next command.
    Continue,
    /// The end of the connection, after its replies.
    Close,
}

/// Commands that are written together.
#[derive(Default)]
struct Batch {
    writes: Vec<Write>,
    commands: usize,
    bytes: usize,
}

/// Present time.
pub fn now() -> Timestamp {
    runtime::wall_clock().as_millis() as Timestamp
}

/// Executor of a connection's commands.
pub struct Executor<S: Store, K> {
    store: Rc<S>,
    facts: Arc<Facts>,
    session: Session,
    replies: Replies,
    sink: K,
    batch: Batch,
    /// Whether long commands end early.
    stopping: Rc<Cell<bool>>,
    /// What `KV.SCAN` reads; `None` for the present.
    snapshot: Option<S::Snapshot>,
}

impl<S: Store, K: Sink> Executor<S, K> {
    /// Creates the executor of a new connection.
    pub fn new(store: Rc<S>, facts: Arc<Facts>, sink: K, stopping: Rc<Cell<bool>>) -> Self {
        let session = Session::new(facts.next_connection());
        let (replies, batch) = (Replies::new(), Batch::default());
        Executor { store, facts, session, replies, sink, batch, stopping, snapshot: None }
    }

    /// Carries out a command. It may be written, and its reply sent, later.
    ///
    /// # Errors
    /// That the client is gone.
    pub async fn execute(&mut self, arguments: Arguments<'_>) -> Result<Flow> {
        self.facts.count_command();
        let request = command::parse(arguments, now);
        if let Ok(request) = &request
            && self.add_to_batch(request)
        {
            if self.batch.commands >= BATCH_COMMANDS || self.batch.bytes >= BATCH_BYTES {
                self.write_batch().await;
            }
            return self.send_if_enough().await;
        }
        self.write_batch().await;
        let carried_out = match request {
            Ok(request) => self.carry_out(request).await?,
            Err(failure) => Err(failure),
        };
        match carried_out {
            Ok(Flow::Close) => return Ok(Flow::Close),
            Ok(Flow::Continue) => {}
            Err(failure) => self.replies.error(&failure.0),
        }
        self.send_if_enough().await
    }

    /// Adds an error of the protocol to the replies.
    pub async fn refuse(&mut self, text: &[u8]) {
        self.write_batch().await;
        self.replies.error(&[b"ERR ", text].concat());
    }

    /// Writes and answers what hasn't been yet.
    ///
    /// # Errors
    /// That the client is gone.
    pub async fn finish(&mut self) -> Result<()> {
        self.write_batch().await;
        if !self.replies.is_empty() {
            self.sink.send(&mut self.replies).await?;
        }
        self.replies.release();
        Ok(())
    }

    async fn send_if_enough(&mut self) -> Result<Flow> {
        if self.replies.is_enough() {
            self.sink.send(&mut self.replies).await?;
        }
        Ok(Flow::Continue)
    }

    /// Adds a request to the batch, if it only sets a value.
    fn add_to_batch(&mut self, request: &Request<'_>) -> bool {
        let (key, value, expiry) = match request {
            Request::Set { key, value, expiry, condition: Condition::Always, reply: SetReply::Ok }
                if *expiry != Expiry::Keep =>
            {
                (*key, *value, *expiry)
            }
            Request::SetMany { pairs } if pairs.len() == 2 => (pairs.at(0), pairs.at(1), Expiry::Never),
            _ => return false,
        };
        let batch = &mut self.batch;
        batch.bytes += key.len() + value.len();
        batch.writes.push(put(key, value.to_vec(), expiry, None));
        batch.commands += 1;
        true
    }

    async fn write_batch(&mut self) {
        if self.batch.commands == 0 {
            return;
        }
        let Batch { writes, commands, .. } = std::mem::take(&mut self.batch);
        let written = self.write_each(writes).await;
        for _ in 0..commands {
            match &written {
                Ok(()) => self.replies.ok(),
                Err(failure) => self.replies.error(&failure.0),
            }
        }
    }

    async fn write(&self, writes: Vec<Write>) -> Result<(), Failure> {
        let _passage = self.facts.gate.pass().await;
        self.store.write(writes).await.map_err(|error| store_failure(&error))
    }

    async fn write_each(&self, writes: Vec<Write>) -> Result<(), Failure> {
        let _passage = self.facts.gate.pass().await;
        self.store.write_each(writes).await.map_err(|error| store_failure(&error))
    }

    async fn get(&self, key: &[u8]) -> Result<Option<Stored>, Failure> {
        let stored = self.store.get(key).await.map_err(|error| store_failure(&error))?;
        Ok(stored.filter(|stored| stored.is_live(now)))
    }

    async fn update<R: Send + 'static>(
        &self,
        key: &[u8],
        change: impl FnOnce(Option<Stored>) -> (Option<Write>, R) + Send + 'static,
    ) -> Result<R, Failure> {
        let _passage = self.facts.gate.pass().await;
        let updated = self.store.update(key, |stored| change(stored.filter(|stored| stored.is_live(now))));
        updated.await.map_err(|error| store_failure(&error))
    }

    /// Carries out a request that isn't in the batch. The outer error is that the client is gone.
    async fn carry_out(&mut self, request: Request<'_>) -> Result<Result<Flow, Failure>> {
        match request {
            Request::Quit => {
                self.replies.ok();
                Ok(Ok(Flow::Close))
            }
            Request::GetMany { keys } => self.get_many(keys).await,
            Request::Keys { pattern } => self.keys(&pattern).await,
            Request::Range { range, only_keys } => self.range(range, only_keys).await,
            request => Ok(self.carry_out_short(request).await.map(|()| Flow::Continue)),
        }
    }

    /// Carries out a request whose reply is short, or one value.
    async fn carry_out_short(&mut self, request: Request<'_>) -> Result<(), Failure> {
        match request {
            Request::Get { key } => {
                let stored = self.get(key).await?;
                self.replies.optional_value(stored.map(|stored| stored.value));
            }
            Request::Set { key, value, expiry, condition, reply } => {
                self.set(key, value, expiry, condition, reply).await?;
            }
            Request::GetAndDelete { key } => {
                let own = key.to_vec();
                let before =
                    self.update(key, |stored| (stored.as_ref().map(|_| Write::Delete { key: own }), stored));
                let before = before.await?;
                self.replies.optional_value(before.map(|stored| stored.value));
            }
            Request::GetAndExpire { key, expiry } => self.get_and_expire(key, expiry).await?,
            Request::Delete { keys } => {
                let mut count = 0;
                for key in keys.iter() {
                    let own = key.to_vec();
                    let deleting = self.update(key, |stored| match stored {
                        Some(_) => (Some(Write::Delete { key: own }), 1),
                        None => (None, 0),
                    });
                    count += deleting.await?;
                }
                self.replies.count(count);
            }
            Request::Exists { keys } => {
                let mut count = 0;
                for key in keys.iter() {
                    count += usize::from(self.get(key).await?.is_some());
                }
                self.replies.count(count);
            }
            Request::Expire { key, at, conditions } => {
                let own = key.to_vec();
                let is_set = self.update(key, move |stored| {
                    let Some(Stored { value, expires }) = stored else { return (None, false) };
                    let before = expires.map(|expires| i64::try_from(expires).unwrap_or(i64::MAX));
                    let is_met = !(conditions.if_none && before.is_some()
                        || conditions.if_any && before.is_none()
                        || conditions.if_later && before.is_none_or(|before| at <= before)
                        || conditions.if_earlier && before.is_some_and(|before| at >= before));
                    (is_met.then(|| put(&own, value.to_vec(), Expiry::At(at), None)), is_met)
                });
                let is_set = is_set.await?;
                self.replies.count(is_set.into());
            }
            Request::ReadExpiry { key, in_seconds, is_absolute } => {
                let time = match self.get(key).await? {
                    None => -2,
                    Some(Stored { expires: None, .. }) => -1,
                    Some(Stored { expires: Some(expires), .. }) => {
                        let time = if is_absolute { expires } else { expires.saturating_sub(now()) };
                        (if in_seconds { time.saturating_add(500) / 1000 } else { time }) as i64
                    }
                };
                self.replies.integer(time);
            }
            Request::Persist { key } => {
                let own = key.to_vec();
                let was_set = self.update(key, move |stored| match stored {
                    Some(Stored { value, expires: Some(_) }) => {
                        (Some(put(&own, value.to_vec(), Expiry::Never, None)), true)
                    }
                    _ => (None, false),
                });
                let was_set = was_set.await?;
                self.replies.count(was_set.into());
            }
            Request::Length { key } => {
                let length = self.get(key).await?.map_or(0, |stored| stored.value.len());
                self.replies.count(length);
            }
            Request::Append { key, value } => self.append(key, value).await?,
            Request::Add { key, amount } => self.add(key, amount).await?,
            Request::SetMany { pairs } => {
                let writes =
                    pairs_of(pairs).map(|(key, value)| put(key, value.to_vec(), Expiry::Never, None));
                self.write(writes.collect()).await?;
                self.replies.ok();
            }
            Request::SetManyIfAbsent { pairs } => {
                let are_set = self.set_many_if_absent(pairs).await?;
                self.replies.count(are_set.into());
            }
            Request::Scan { cursor, pattern, count, is_other_type } => {
                self.scan(cursor, pattern.as_ref(), count, is_other_type).await?;
            }
            Request::Type { key } => {
                let exists = self.get(key).await?.is_some();
                self.replies.simple(if exists { "string" } else { "none" });
            }
            Request::Count => {
                let mut count = 0;
                self.for_each_key(&mut |_| {
                    count += 1;
                    Ok(())
                })
                .await?;
                self.replies.count(count);
            }
            Request::Clear => {
                let to = vec![u8::MAX; MOST_KEY_BYTES + 1];
                self.write(vec![Write::DeleteRange { from: Vec::new(), to }]).await?;
                self.replies.ok();
            }
            Request::Ping { text: None } => self.replies.simple("PONG"),
            Request::Ping { text: Some(text) } | Request::Echo { text } => self.replies.bulk(text),
            Request::Select => self.replies.ok(),
            Request::Wait => self.replies.integer(0),
            Request::Snapshot => {
                // The one before is released first: two would keep more from being erased.
                self.snapshot = None;
                let taken = self.store.snapshot().await.map_err(|error| store_failure(&error))?;
                self.snapshot = Some(taken);
                self.replies.ok();
            }
            Request::Release => {
                self.snapshot = None;
                self.replies.ok();
            }
            Request::Compact => {
                self.store.compact().await.map_err(|error| store_failure(&error))?;
                self.replies.ok();
            }
            Request::Reset => {
                self.session.reset();
                self.snapshot = None;
                self.replies.protocol = self.session.protocol;
                self.replies.simple("RESET");
            }
            Request::Server { command, arguments } => {
                let status =
                    if command.name == "info" { self.store.status().await } else { Default::default() };
                let (facts, session) = (&self.facts, &mut self.session);
                server_commands::carry_out(command, arguments, facts, session, &status, &mut self.replies)?;
            }
            // Carried out elsewhere.
            Request::GetMany { .. } | Request::Keys { .. } | Request::Range { .. } | Request::Quit => {
                return Err(SYNTAX);
            }
        }
        Ok(())
    }

    async fn set(
        &mut self,
        key: &[u8],
        value: &[u8],
        expiry: Expiry,
        condition: Condition,
        reply: SetReply,
    ) -> Result<(), Failure> {
        let (own, value) = (key.to_vec(), value.to_vec());
        let updating = self.update(key, move |stored| {
            let is_met = match condition {
                Condition::Always => true,
                Condition::IfAbsent => stored.is_none(),
                Condition::IfPresent => stored.is_some(),
            };
            let expires = stored.as_ref().and_then(|stored| stored.expires);
            (is_met.then(|| put(&own, value, expiry, expires)), (is_met, stored))
        });
        let (is_set, before) = updating.await?;
        match (reply, is_set) {
            (SetReply::Before, _) => self.replies.optional_value(before.map(|stored| stored.value)),
            (SetReply::Number, is_set) => self.replies.count(is_set.into()),
            (SetReply::Ok, true) => self.replies.ok(),
            (SetReply::Ok, false) => self.replies.null(),
        }
        Ok(())
    }

    async fn get_and_expire(&mut self, key: &[u8], expiry: Result<Expiry, Failure>) -> Result<(), Failure> {
        let stored = match expiry {
            Ok(Expiry::Keep) => self.get(key).await?,
            Err(failure) => match self.get(key).await? {
                Some(_) => return Err(failure),
                None => None,
            },
            Ok(expiry) => {
                let own = key.to_vec();
                let updating = self.update(key, move |stored| {
                    let has_expiry = stored.as_ref().is_some_and(|stored| stored.expires.is_some());
                    let changed = stored.as_ref().filter(|_| has_expiry || expiry != Expiry::Never);
                    (changed.map(|stored| put(&own, stored.value.to_vec(), expiry, None)), stored)
                });
                updating.await?
            }
        };
        self.replies.optional_value(stored.map(|stored| stored.value));
        Ok(())
    }

    async fn append(&mut self, key: &[u8], tail: &[u8]) -> Result<(), Failure> {
        let (own, tail) = (key.to_vec(), tail.to_vec());
        let updating = self.update(key, move |stored| {
            let (value, expires) = match &stored {
                Some(stored) => (&*stored.value, stored.expires),
                None => (&[][..], None),
            };
            let length = value.len() + tail.len();
            if length > MOST_VALUE_BYTES {
                return (None, Err(LONG_STRING));
            }
            (Some(Write::Put { key: own, value: [value, &tail].concat(), expires }), Ok(length))
        });
        let length = updating.await??;
        self.replies.count(length);
        Ok(())
    }

    async fn add(&mut self, key: &[u8], amount: i64) -> Result<(), Failure> {
        let own = key.to_vec();
        let updating = self.update(key, move |stored| {
            let (before, expires) = match &stored {
                Some(stored) => (integer(&stored.value), stored.expires),
                None => (Some(0), None),
            };
            let sum = before.ok_or(NO_INTEGER).and_then(|before| before.checked_add(amount).ok_or(OVERFLOW));
            let write = sum.as_ref().ok().map(|sum| Write::Put {
                key: own,
                value: sum.to_string().into_bytes(),
                expires,
            });
            (write, sum)
        });
        let sum = updating.await??;
        self.replies.integer(sum);
        Ok(())
    }

    async fn set_many_if_absent(&self, pairs: Arguments<'_>) -> Result<bool, Failure> {
        let _passage = self.facts.gate.pass_alone().await;
        for (key, _) in pairs_of(pairs) {
            if self.get(key).await?.is_some() {
                return Ok(false);
            }
        }
        let writes =
            pairs_of(pairs).map(|(key, value)| put(key, value.to_vec(), Expiry::Never, None)).collect();
        self.store.write(writes).await.map_err(|error| store_failure(&error))?;
        Ok(true)
    }

    /// `MGET`: values are sent as they are read.
    async fn get_many(&mut self, keys: Arguments<'_>) -> Result<Result<Flow, Failure>> {
        // An error has no place in the array, so that the first value is read before it begins; later ones end the connection.
        let mut first = match self.get(keys.at(0)).await {
            Ok(first) => Some(first),
            Err(failure) => return Ok(Err(failure)),
        };
        self.replies.array(keys.len());
        for key in keys.iter() {
            let stored = match first.take() {
                Some(first) => first,
                None => match self.get(key).await {
                    Ok(stored) => stored,
                    Err(failure) => return Err(Error::io(String::from_utf8_lossy(&failure.0).into_owned())),
                },
            };
            self.replies.optional_value(stored.map(|stored| stored.value));
            self.send_if_enough().await?;
        }
        Ok(Ok(Flow::Continue))
    }

    async fn keys(&mut self, pattern: &Pattern) -> Result<Result<Flow, Failure>> {
        let (mut found, mut bytes) = (Vec::new(), 0);
        let mut visit = |key: Vec<u8>| {
            if pattern.matches(&key) {
                bytes += key.len() + size_of::<Vec<u8>>();
                found.push(key);
            }
            match bytes <= MOST_KEYS_BYTES {
                true => Ok(()),
                false => Err(Failure::fixed("ERR the matching keys have more than 64 MiB; use SCAN")),
            }
        };
        if let Err(failure) = self.for_each_key(&mut visit).await {
            return Ok(Err(failure));
        }
        self.replies.array(found.len());
        for key in found {
            self.replies.bulk(&key);
            self.send_if_enough().await?;
        }
        Ok(Ok(Flow::Continue))
    }

    async fn page(&self, from: Vec<u8>, limit: usize) -> Result<Vec<(Vec<u8>, Stored)>, Failure> {
        self.store.scan(None, Range::from(from, limit)).await.map_err(|error| store_failure(&error))
    }

    /// `KV.SCAN`: an array of keys, each followed by its value and its expiry in milliseconds since 1970, -1 without one; or of keys.
    /// An empty one says that the range has no more. Values are sent one after the other.
    async fn range(&mut self, range: Range, only_keys: bool) -> Result<Result<Flow, Failure>> {
        let page = match self.store.scan(self.snapshot.as_ref(), range).await {
            Ok(page) => page,
            Err(error) => return Ok(Err(store_failure(&error))),
        };
        self.replies.array(if only_keys { page.len() } else { 3 * page.len() });
        for (key, Stored { value, expires }) in page {
            self.replies.bulk(&key);
            if !only_keys {
                self.replies.value(value);
                self.replies.integer(expires.map_or(-1, |time| i64::try_from(time).unwrap_or(i64::MAX)));
            }
            self.send_if_enough().await?;
        }
        Ok(Ok(Flow::Continue))
    }

    /// Calls `visit` with every key, in order.
    async fn for_each_key(
        &self,
        visit: &mut dyn FnMut(Vec<u8>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut from = Vec::new();
        loop {
            let page = self.page(from, SCAN_KEYS).await?;
            let Some((last, _)) = page.last() else { return Ok(()) };
            from = after(last);
            for (key, _) in page.into_iter().filter(|(_, stored)| stored.is_live(now)) {
                visit(key)?;
            }
            if self.stopping.get() {
                return Err(Failure::fixed("ERR the server stops"));
            }
            runtime::yield_now().await;
        }
    }

    async fn scan(
        &mut self,
        cursor: u64,
        pattern: Option<&Pattern>,
        count: usize,
        is_other_type: bool,
    ) -> Result<(), Failure> {
        let from = self.facts.cursors().position(cursor);
        // No key has another type, so that the iteration is at its end.
        let limit = count.min(SCAN_KEYS);
        let mut page = if is_other_type { Vec::new() } else { self.page(from, limit).await? };
        let mut following = page.last().map(|(last, _)| after(last));
        // A short page may be the last one.
        if let Some(key) = &following
            && page.len() < limit
            && self.page(key.clone(), 1).await?.is_empty()
        {
            following = None;
        }
        let next = match following {
            Some(key) => self.facts.cursors().advance(cursor, key),
            None => {
                self.facts.cursors().end(cursor);
                0
            }
        };
        page.retain(|(key, stored)| {
            stored.is_live(now) && pattern.is_none_or(|pattern| pattern.matches(key))
        });
        self.replies.array(2);
        self.replies.bulk(next.to_string().as_bytes());
        self.replies.array(page.len());
        for (key, _) in page {
            self.replies.bulk(&key);
        }
        Ok(())
    }
}

/// Lowest key after this one.
fn after(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

fn pairs_of(pairs: Arguments<'_>) -> impl Iterator<Item = (&[u8], &[u8])> {
    (0..pairs.len() / 2).map(move |index| (pairs.at(2 * index), pairs.at(2 * index + 1)))
}

/// Write that sets a value; one that has expired already is a deletion. `before` is the expiry that the key has.
fn put(key: &[u8], value: Vec<u8>, expiry: Expiry, before: Option<Timestamp>) -> Write {
    let key = key.to_vec();
    let expires = match expiry {
        Expiry::Never => None,
        Expiry::Keep => before,
        Expiry::At(time) => match Timestamp::try_from(time) {
            Ok(time) if time > now() => Some(time),
            _ => return Write::Delete { key },
        },
    };
    Write::Put { key, value, expires }
}

/// Error reply for an error of the store.
fn store_failure(error: &Error) -> Failure {
    Failure::new(match error {
        Error::ReadOnly(_) => format!("READONLY {error}"),
        Error::NoSpace(_) => format!("OOM {error}"),
        error => format!("ERR {error}"),
    })
}
