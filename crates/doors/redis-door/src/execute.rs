//! Execution of the commands of a connection on the store.
//!
//! # Promises
//! - Commands are executed in order, each as a whole before the next one. Consecutive commands that only set
//!   one value are written together, and answered afterwards: an error is the reply to all of them.
//! - A command that reads a key and changes it is atomic with respect to all other changes of the key;
//!   `MSETNX` is atomic with respect to all its keys. `MSET` is one write of the store. `DEL`, `MGET`,
//!   `EXISTS` and `SCAN` read their keys one at a time.
//! - A command with many parts yields to other tasks between them.
//! - Replies that wait for the client have at most [`ENOUGH`](resp::ENOUGH) bytes and one value;
//!   those of `KEYS` have at most [`MAX_KEYS_BYTES`].

mod keys;
mod server;

use crate::command::{
    self, Condition, ExpireConditions, Expiry, Failure, LONG_STRING, NO_INTEGER, OVERFLOW, Request, SYNTAX,
    SetReply,
};
use crate::connection::{CLOCK_INTERVAL, MAX_TURN};
use crate::facts::{Facts, Session};
use crate::table;
use crate::transaction::is_http;
use crate::users::{LOGIN_LIMIT, Rights};
use block::{Error, Result};
use kv::{Batch, MAX_KEY_BYTES, MAX_VALUE_BYTES, Snapshot, Store, Stored, Timestamp, Update, Write, now};
use resp::{Arguments, Replies, integer};
use runtime::Instant;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tls::Stream;

/// Maximum bytes of a reply to `KEYS`.
pub const MAX_KEYS_BYTES: usize = 64 << 20;
/// Maximum number of commands in a batch.
const BATCH_COMMANDS: usize = 256;
/// Size in bytes at which a batch is written.
const BATCH_BYTES: usize = 1 << 20;
/// Maximum number of keys that one call of the store returns.
const SCAN_KEYS: usize = 1000;

/// State of the connection after a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// The next command follows.
    Continue,
    /// The connection ends after the pending replies.
    Close,
    /// The connection ends immediately: the command is a line of HTTP.
    Http,
}

/// Commands that are written together.
#[derive(Default)]
struct Pipeline {
    batch: Batch,
    commands: usize,
}

/// Executor of a connection's commands.
pub struct Executor {
    store: Store,
    facts: Arc<Facts>,
    session: Session,
    replies: Replies,
    stream: Stream,
    pipeline: Pipeline,
    /// Whether the server is stopping, so that long commands end early.
    stopping: Rc<Cell<bool>>,
    /// Snapshot for `KV.SCAN`; `None` reads the latest version.
    snapshot: Option<Snapshot>,
    /// Time at which a client that hasn't logged in is cut off; `None` after it has.
    login_deadline: Option<Instant>,
    /// Start of the turn, and number of parts of commands so far.
    turn: Instant,
    parts: u32,
}

/// Checks whether a connection with these rights may call a command.
///
/// # Errors
/// The reply `NOAUTH` or `NOPERM`.
#[cold]
fn permit(rights: Rights, arguments: Arguments<'_>) -> Result<(), Failure> {
    let name = arguments.at(0);
    if ["auth", "hello", "quit", "reset"].iter().any(|free| command::is(name, free)) {
        return Ok(());
    }
    if rights == Rights::None {
        return Err(Failure::fixed("NOAUTH Authentication required."));
    }
    match table::find(name) {
        Some(command)
            if ["write", "admin"].iter().any(|flag| command.flags.split(' ').any(|own| own == *flag)) =>
        {
            let text = format!("NOPERM this user has no permissions to run the '{}' command", command.name);
            Err(Failure::new(text))
        }
        _ => Ok(()),
    }
}

impl Executor {
    /// Creates the executor of a connection that was accepted at the time `accepted`.
    pub fn new(
        store: Store,
        facts: Arc<Facts>,
        stream: Stream,
        stopping: Rc<Cell<bool>>,
        accepted: Instant,
    ) -> Self {
        let session = Session::new(facts.next_connection(), facts.users.initial());
        let (replies, pipeline) = (Replies::new(), Pipeline::default());
        let (snapshot, turn, parts) = (None, runtime::now(), 0);
        let login_deadline = Some(accepted + LOGIN_LIMIT);
        Executor {
            store,
            facts,
            session,
            replies,
            stream,
            pipeline,
            stopping,
            snapshot,
            login_deadline,
            turn,
            parts,
        }
    }

    /// Executes a command. The write and the reply may be deferred.
    ///
    /// # Errors
    /// [`Error::Disconnected`] if the client has disconnected; other errors of
    /// sending.
    pub async fn execute(&mut self, arguments: Arguments<'_>) -> Result<Flow> {
        self.facts.count_command();
        if is_http(arguments.at(0)) {
            return Ok(Flow::Http);
        }
        if self.session.rights != Rights::All
            && let Err(failure) = permit(self.session.rights, arguments)
        {
            self.write_pipeline().await;
            self.replies.error(&failure.0);
            return self.send_if_enough().await;
        }
        if let Some(answer) = self.session.transaction.answer(arguments) {
            self.write_pipeline().await;
            match answer {
                Ok(()) => self.replies.ok(),
                Err(failure) => self.replies.error(&failure.0),
            }
            return self.send_if_enough().await;
        }
        let request = command::parse(arguments, now);
        if let Ok(request) = &request
            && self.add_to_pipeline(request)
        {
            let Pipeline { batch, commands } = &self.pipeline;
            if *commands >= BATCH_COMMANDS || batch.bytes().len() >= BATCH_BYTES {
                self.write_pipeline().await;
            }
            return self.send_if_enough().await;
        }
        self.write_pipeline().await;
        let carried_out = match request {
            Ok(request) => self.carry_out(request).await?,
            Err(failure) => Err(failure),
        };
        match carried_out {
            Ok(Flow::Continue) => {}
            Ok(end) => return Ok(end),
            Err(failure) => self.replies.error(&failure.0),
        }
        self.send_if_enough().await
    }

    /// Whether the client has logged in, or needn't.
    pub fn is_admitted(&self) -> bool {
        self.session.rights != Rights::None
    }

    /// Remaining time for the client to log in; `None` if it is admitted. After `RESET` it restarts.
    pub fn time_to_log_in(&mut self) -> Option<Duration> {
        if self.is_admitted() {
            self.login_deadline = None;
            return None;
        }
        let now = runtime::now();
        let deadline = *self.login_deadline.get_or_insert(now + LOGIN_LIMIT);
        Some(if deadline > now { deadline - now } else { Duration::ZERO })
    }

    /// Appends a protocol error to the replies.
    pub async fn refuse(&mut self, text: &[u8]) {
        self.write_pipeline().await;
        self.replies.error(&[b"ERR ", text].concat());
    }

    /// Writes deferred commands and sends all replies.
    ///
    /// # Errors
    /// [`Error::Disconnected`] if the client has disconnected; other errors of
    /// sending.
    pub async fn finish(&mut self) -> Result<()> {
        self.write_pipeline().await;
        if !self.replies.is_empty() {
            self.send().await?;
        }
        self.replies.release();
        Ok(())
    }

    /// Yields to other tasks once a long command has taken [`MAX_TURN`]; called after each of its parts.
    async fn pause(&mut self) {
        self.parts += 1;
        if self.parts.is_multiple_of(CLOCK_INTERVAL) && self.turn.elapsed() > MAX_TURN {
            runtime::yield_now().await;
            self.turn = runtime::now();
        }
    }

    /// Sends a part of a reply that has [`ENOUGH`](resp::ENOUGH) bytes, and may yield; called after
    /// each part of a command.
    async fn step(&mut self) -> Result<()> {
        self.send_if_enough().await?;
        self.pause().await;
        Ok(())
    }

    async fn send_if_enough(&mut self) -> Result<Flow> {
        if self.replies.is_enough() {
            self.send().await?;
        }
        Ok(Flow::Continue)
    }

    /// Sends all replies: first without the ring as many bytes as the kernel accepts, usually all, then the
    /// rest.
    async fn send(&mut self) -> Result<()> {
        if let Some(bytes) = self.replies.in_one_piece() {
            let sent = self.stream.try_send(bytes)?;
            self.replies.drop_first(sent);
            if self.replies.is_empty() {
                return Ok(());
            }
        }
        let replies = self.replies.take();
        match self.time_to_log_in() {
            None => self.stream.send(replies).await.0,
            Some(limit) => runtime::timeout(limit, self.stream.send(replies)).await?.0,
        }
    }

    /// Adds a request to the pipeline if it only sets a value. Returns whether it was added.
    fn add_to_pipeline(&mut self, request: &Request<'_>) -> bool {
        let (key, value, expiry) = match request {
            Request::Set { key, value, expiry, condition: Condition::Always, reply: SetReply::Ok }
                if *expiry != Expiry::Keep =>
            {
                (*key, *value, *expiry)
            }
            Request::SetMany { pairs } if pairs.len() == 2 => (pairs.at(0), pairs.at(1), Expiry::Never),
            _ => return false,
        };
        self.pipeline.batch.push(match expires(expiry, None) {
            Some(expires) => Write::Put { key, value, expires },
            None => Write::Delete { key, deleted: now() },
        });
        self.pipeline.commands += 1;
        true
    }

    async fn write_pipeline(&mut self) {
        if self.pipeline.commands == 0 {
            return;
        }
        let Pipeline { batch, commands } = std::mem::take(&mut self.pipeline);
        let written = self.store.write_by_shard(batch, self.store.acknowledge()).await;
        for _ in 0..commands {
            match &written {
                Ok(()) => self.replies.ok(),
                Err(error) => self.replies.error(&Failure::from(error).0),
            }
        }
    }

    async fn get(&self, key: &[u8]) -> Result<Option<Stored>, Failure> {
        Ok(self.store.get(key).await?)
    }

    /// Executes a request that isn't in the pipeline. The outer error is that of the connection.
    async fn carry_out(&mut self, request: Request<'_>) -> Result<Result<Flow, Failure>> {
        match request {
            Request::Quit => {
                self.replies.ok();
                Ok(Ok(Flow::Close))
            }
            Request::GetMany { keys } => self.get_many(keys).await,
            Request::Keys { pattern } => self.keys(&pattern).await,
            Request::Range { range, only_keys } => self.range(range, only_keys).await,
            Request::Scan { cursor, pattern, count, is_other_type } => {
                self.scan(cursor, pattern.as_ref(), count, is_other_type).await
            }
            Request::Server { command, arguments } => self.server_command(command, arguments).await,
            request => Ok(self.carry_out_short(request).await.map(|()| Flow::Continue)),
        }
    }

    /// Executes a request whose reply is short, or one value.
    async fn carry_out_short(&mut self, request: Request<'_>) -> Result<(), Failure> {
        match request {
            Request::Get { key } => {
                let stored = self.get(key).await?;
                self.replies.optional_value(stored.as_ref().map(|stored| stored.value.as_slice()));
            }
            Request::Set { key, value, expiry, condition, reply } => {
                self.set(key, value, expiry, condition, reply).await?;
            }
            Request::GetAndDelete { key } => self.get_and_delete(key).await?,
            Request::GetAndExpire { key, expiry } => self.get_and_expire(key, expiry).await?,
            Request::Delete { keys } => self.delete(keys).await?,
            Request::Exists { keys } => self.exists(keys).await?,
            Request::Expire { key, at, conditions } => self.expire(key, at, conditions).await?,
            Request::ReadExpiry { key, in_seconds, is_absolute } => {
                self.read_expiry(key, in_seconds, is_absolute).await?;
            }
            Request::Persist { key } => self.persist(key).await?,
            Request::Length { key } => {
                let length = self.get(key).await?.map_or(0, |stored| stored.value.len());
                self.replies.count(length);
            }
            Request::Append { key, value } => self.append(key, value).await?,
            Request::Add { key, amount } => self.add(key, amount).await?,
            Request::SetMany { pairs } => {
                self.store.write(batch_of(pairs), self.store.acknowledge()).await?;
                self.replies.ok();
            }
            Request::SetManyIfAbsent { pairs } => {
                let acknowledge = self.store.acknowledge();
                let are_set = self.store.write_if_absent(batch_of(pairs), acknowledge).await?;
                self.replies.count(are_set.into());
            }
            Request::Type { key } => {
                let exists = self.get(key).await?.is_some();
                self.replies.simple(if exists { "string" } else { "none" });
            }
            Request::Count => self.count().await?,
            Request::Clear => self.clear().await?,
            Request::Ping { text: None } => self.replies.simple("PONG"),
            Request::Ping { text: Some(text) } | Request::Echo { text } => self.replies.value(text),
            Request::Select => self.replies.ok(),
            Request::Wait => self.replies.integer(0),
            Request::Snapshot => self.take_snapshot().await?,
            Request::Release => {
                self.snapshot = None;
                self.replies.ok();
            }
            Request::Compact => {
                self.store.compact().await?;
                self.replies.ok();
            }
            Request::Reset => self.reset(),
            // Executed by the caller.
            Request::GetMany { .. } | Request::Keys { .. } | Request::Range { .. } => return Err(SYNTAX),
            Request::Scan { .. } | Request::Server { .. } | Request::Quit => return Err(SYNTAX),
        }
        Ok(())
    }

    async fn get_and_delete(&mut self, key: &[u8]) -> Result<(), Failure> {
        let delete = |stored: Option<Stored>| (stored.as_ref().map(|_| Update::Delete), stored);
        let before = self.store.update(key, delete).await?;
        self.replies.optional_value(before.as_ref().map(|stored| stored.value.as_slice()));
        Ok(())
    }

    async fn count(&mut self) -> Result<(), Failure> {
        let mut count = 0;
        self.for_each_key(&mut |_| {
            count += 1;
            Ok(())
        })
        .await?;
        self.replies.count(count);
        Ok(())
    }

    async fn clear(&mut self) -> Result<(), Failure> {
        // The end of a range is exclusive, so the last key is deleted separately.
        let last = vec![u8::MAX; MAX_KEY_BYTES];
        let mut batch = Batch::new();
        batch.delete_range(&[], &last);
        batch.delete(&last);
        self.store.write(batch, self.store.acknowledge()).await?;
        self.replies.ok();
        Ok(())
    }

    async fn take_snapshot(&mut self) -> Result<(), Failure> {
        // The previous snapshot is released first: two would delay the erasure of more data.
        self.snapshot = None;
        self.snapshot = Some(self.store.snapshot().await?);
        self.replies.ok();
        Ok(())
    }

    fn reset(&mut self) {
        self.session.reset(self.facts.users.initial());
        self.snapshot = None;
        self.replies.protocol = self.session.protocol;
        self.replies.simple("RESET");
    }

    async fn delete(&mut self, keys: Arguments<'_>) -> Result<(), Failure> {
        let mut count = 0;
        for key in keys.iter() {
            let delete = |stored: Option<Stored>| (stored.as_ref().map(|_| Update::Delete), stored.is_some());
            count += usize::from(self.store.update(key, delete).await?);
            self.pause().await;
        }
        self.replies.count(count);
        Ok(())
    }

    async fn exists(&mut self, keys: Arguments<'_>) -> Result<(), Failure> {
        let mut count = 0;
        for key in keys.iter() {
            count += usize::from(self.get(key).await?.is_some());
            self.pause().await;
        }
        self.replies.count(count);
        Ok(())
    }

    async fn expire(&mut self, key: &[u8], at: i64, conditions: ExpireConditions) -> Result<(), Failure> {
        let set_expiry = move |stored: Option<Stored>| {
            let Some(Stored { value, expires }) = stored else { return (None, false) };
            let before = expires.map(|expires| i64::try_from(expires).unwrap_or(i64::MAX));
            let is_met = !(conditions.if_none && before.is_some()
                || conditions.if_any && before.is_none()
                || conditions.if_later && before.is_none_or(|before| at <= before)
                || conditions.if_earlier && before.is_some_and(|before| at >= before));
            (is_met.then(|| put(value, Expiry::At(at), None)), is_met)
        };
        let is_set = self.store.update(key, set_expiry).await?;
        self.replies.count(is_set.into());
        Ok(())
    }

    async fn read_expiry(&mut self, key: &[u8], in_seconds: bool, is_absolute: bool) -> Result<(), Failure> {
        let time = match self.get(key).await? {
            None => -2,
            Some(Stored { expires: None, .. }) => -1,
            Some(Stored { expires: Some(expires), .. }) => {
                let time = if is_absolute { expires } else { expires.saturating_sub(now()) };
                (if in_seconds { time.saturating_add(500) / 1000 } else { time }) as i64
            }
        };
        self.replies.integer(time);
        Ok(())
    }

    async fn persist(&mut self, key: &[u8]) -> Result<(), Failure> {
        let persist = |stored: Option<Stored>| match stored {
            Some(Stored { value, expires: Some(_) }) => (Some(put(value, Expiry::Never, None)), true),
            _ => (None, false),
        };
        let was_set = self.store.update(key, persist).await?;
        self.replies.count(was_set.into());
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
        let value = value.to_vec();
        let set = move |stored: Option<Stored>| {
            let is_met = match condition {
                Condition::Always => true,
                Condition::IfAbsent => stored.is_none(),
                Condition::IfPresent => stored.is_some(),
            };
            let expires = stored.as_ref().and_then(|stored| stored.expires);
            (is_met.then(|| put(value, expiry, expires)), (is_met, stored))
        };
        let (is_set, before) = self.store.update(key, set).await?;
        match (reply, is_set) {
            (SetReply::Before, _) => {
                self.replies.optional_value(before.as_ref().map(|stored| stored.value.as_slice()))
            }
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
                let set_expiry = move |stored: Option<Stored>| {
                    let has_expiry = stored.as_ref().is_some_and(|stored| stored.expires.is_some());
                    let changed = stored.as_ref().filter(|_| has_expiry || expiry != Expiry::Never);
                    (changed.map(|stored| put(stored.value.clone(), expiry, None)), stored)
                };
                self.store.update(key, set_expiry).await?
            }
        };
        self.replies.optional_value(stored.as_ref().map(|stored| stored.value.as_slice()));
        Ok(())
    }

    async fn append(&mut self, key: &[u8], tail: &[u8]) -> Result<(), Failure> {
        let tail = tail.to_vec();
        let append = move |stored: Option<Stored>| {
            let Stored { mut value, expires } = stored.unwrap_or_default();
            let length = value.len() + tail.len();
            if length > MAX_VALUE_BYTES {
                return (None, Err(LONG_STRING));
            }
            value.extend(tail);
            (Some(Update::Put(Stored { value, expires })), Ok(length))
        };
        let length = self.store.update(key, append).await??;
        self.replies.count(length);
        Ok(())
    }

    async fn add(&mut self, key: &[u8], amount: i64) -> Result<(), Failure> {
        let add = move |stored: Option<Stored>| {
            let (before, expires) = match &stored {
                Some(stored) => (integer(&stored.value), stored.expires),
                None => (Some(0), None),
            };
            let sum = before.ok_or(NO_INTEGER).and_then(|before| before.checked_add(amount).ok_or(OVERFLOW));
            let put = |sum: &i64| Update::Put(Stored { value: sum.to_string().into_bytes(), expires });
            (sum.as_ref().ok().map(put), sum)
        };
        let sum = self.store.update(key, add).await??;
        self.replies.integer(sum);
        Ok(())
    }

    /// `MGET`: each value is sent when it has been read.
    async fn get_many(&mut self, keys: Arguments<'_>) -> Result<Result<Flow, Failure>> {
        // The array can't contain an error, so the first value is read before the array begins; later errors
        // end the connection.
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
            self.replies.optional_value(stored.as_ref().map(|stored| stored.value.as_slice()));
            // The replies have a copy of the value, which may wait long for the client.
            drop(stored);
            self.step().await?;
        }
        Ok(Ok(Flow::Continue))
    }
}

/// Lowest key after `key`.
fn after(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

/// Batch that sets keys; each key is followed by its value.
fn batch_of(pairs: Arguments<'_>) -> Batch {
    let mut batch = Batch::new();
    (0..pairs.len()).step_by(2).for_each(|index| batch.put(pairs.at(index), pairs.at(index + 1)));
    batch
}

/// Expiry of a new value; the outer `None` means that it has expired already. `before` is the key's present
/// expiry.
fn expires(expiry: Expiry, before: Option<Timestamp>) -> Option<Option<Timestamp>> {
    match expiry {
        Expiry::Never => Some(None),
        Expiry::Keep => Some(before),
        Expiry::At(time) => Timestamp::try_from(time).ok().filter(|time| *time > now()).map(Some),
    }
}

/// Update that sets a value, or deletes the key if the value has expired already. `before` is the key's
/// present expiry.
fn put(value: Vec<u8>, expiry: Expiry, before: Option<Timestamp>) -> Update {
    expires(expiry, before).map_or(Update::Delete, |expires| Update::Put(Stored { value, expires }))
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        Failure::new(match error {
            Error::ReadOnly(_) => format!("READONLY {error}"),
            Error::NoSpace(_) => format!("OOM {error}"),
            error => format!("ERR {error}"),
        })
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::from(&error)
    }
}
