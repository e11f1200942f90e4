//! The log of a writer's manifests: group commit of changes of the zone table, and the fence.
//!
//! # Promises
//! - [`ManifestLog::wait_until_durable`] returns `Ok` only after the manifest with the changes was created
//!   under the next number of this writer's epoch. A number has one creator, and the next writer creates the
//!   number after the last one: afterwards no change of this writer becomes durable, and each wait fails.
//! - Changes that come while a manifest is being written are in the next one together. While nothing changes
//!   no request is sent.
//! - A manifest that can't be written is written again, with the same bytes, until the store answers.
//! - At most [`MAX_CHAIN`](bases::MAX_CHAIN) deltas follow a base, so opening reads a bounded number of
//!   manifests. A base is written beside them (`bases`).

use crate::bases::{self, Bases, Position};
use crate::format::Kind;
use crate::garbage::Garbage;
use crate::manifests::{Created, Identity, Manifests, age_of};
use crate::names::Name;
use crate::retry::Pause;
use crate::table::{Change, Table, encode_changes};
use block::{Data, Error, Result};
use runtime::FailureRun;
use runtime::sync::Notify;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

/// Manifests of a writer.
pub(crate) struct ManifestLog {
    manifests: Manifests,
    identity: Identity,
    table: RefCell<Table>,
    position: Cell<Position>,
    bases: Bases,
    /// Changes of the next batch, and whether a clean stop follows them.
    pending: RefCell<(Vec<Change>, bool)>,
    /// Number of the batch that collects changes, and of the last durable one.
    batch: Cell<u64>,
    durable: Cell<u64>,
    is_running: Cell<bool>,
    /// Reason why no change becomes durable any more.
    failure: RefCell<Option<Error>>,
    /// Notified when a batch or a base has ended, and when the log has.
    changed: Notify,
    /// Notified when the log has ended: what waits for other things isn't woken by each batch.
    ended: Notify,
    garbage: Rc<Garbage>,
    failures: FailureRun,
    base_failures: FailureRun,
    /// Number of the base to which the last durable delta links: earlier manifests aren't needed.
    linked: Cell<u64>,
}

impl ManifestLog {
    /// Returns the log after the manifest at this position, whose table this is.
    pub fn new(
        manifests: Manifests,
        identity: Identity,
        table: Table,
        position: Position,
        garbage: Rc<Garbage>,
    ) -> Rc<ManifestLog> {
        Rc::new(ManifestLog {
            manifests,
            identity,
            table: RefCell::new(table),
            position: Cell::new(position),
            bases: Bases::default(),
            pending: RefCell::default(),
            batch: Cell::new(1),
            durable: Cell::new(0),
            is_running: Cell::new(false),
            failure: RefCell::new(None),
            changed: Notify::new(),
            ended: Notify::new(),
            garbage,
            failures: FailureRun::default(),
            base_failures: FailureRun::default(),
            linked: Cell::new(position.base),
        })
    }

    /// Runs on the durable table.
    pub fn with_table<R>(&self, look: impl FnOnce(&Table) -> R) -> R {
        look(&self.table.borrow())
    }

    /// This writer and its volume.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Number of the last manifest.
    pub fn number(&self) -> u64 {
        self.position.get().number
    }

    /// Whether a manifest of this epoch isn't needed any more: it is before the base to which the last delta
    /// links.
    pub fn is_replaced(&self, name: Name) -> bool {
        bases::is_replaced(name, self.identity.epoch, self.linked.get())
    }

    /// Whether the last attempt to write a manifest failed.
    pub fn is_waiting_for_store(&self) -> bool {
        self.failures.count() > 0 || self.base_failures.count() > 0
    }

    /// Error after which nothing becomes durable.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] for a writer that another one has fenced, and after an error that can't be mended;
    /// [`Error::Closed`] after [`stop`](Self::stop).
    pub fn check(&self) -> Result<()> {
        self.failure.borrow().clone().map_or(Ok(()), Err)
    }

    /// Ends the log: waits fail with this error, unless they failed before.
    pub fn stop(&self, error: Error) {
        self.failure.borrow_mut().get_or_insert(error);
        self.changed.notify_all();
        self.ended.notify_all();
    }

    /// Waits until the log has ended, and returns the error of [`check`](Self::check).
    async fn wait_until_ended(&self) -> Error {
        loop {
            if let Err(error) = self.check() {
                return error;
            }
            self.ended.notified().await;
        }
    }

    /// Carries out `work`, unless the log ends first.
    ///
    /// # Errors
    /// Errors of [`check`](Self::check).
    pub async fn unless_ended<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        let (mut work, mut ended) = (pin!(work), pin!(self.wait_until_ended()));
        poll_fn(|context| match ended.as_mut().poll(context) {
            Poll::Ready(error) => Poll::Ready(Err(error)),
            Poll::Pending => work.as_mut().poll(context).map(Ok),
        })
        .await
    }

    /// Adds changes, in order, and returns the number of their batch.
    pub fn push(self: &Rc<Self>, changes: impl IntoIterator<Item = Change>) -> u64 {
        self.pending.borrow_mut().0.extend(changes);
        self.start()
    }

    /// Adds a clean stop.
    pub fn push_clean(self: &Rc<Self>) -> u64 {
        self.pending.borrow_mut().1 = true;
        self.start()
    }

    fn start(self: &Rc<Self>) -> u64 {
        let has_work = { !self.pending.borrow().0.is_empty() || self.pending.borrow().1 };
        if has_work && self.check().is_ok() && !self.is_running.replace(true) {
            runtime::spawn(self.clone().run()).detach();
        }
        self.batch.get()
    }

    /// Waits until a batch is durable.
    ///
    /// # Errors
    /// Errors of [`check`](Self::check).
    pub async fn wait_until_durable(&self, batch: u64) -> Result<()> {
        loop {
            if self.durable.get() >= batch {
                return Ok(());
            }
            self.check()?;
            self.changed.notified().await;
        }
    }

    /// Waits until all changes that were added are durable.
    ///
    /// # Errors
    /// Errors of [`check`](Self::check).
    pub async fn wait_until_written(&self) -> Result<()> {
        let collects = { !self.pending.borrow().0.is_empty() || self.pending.borrow().1 };
        self.wait_until_durable(self.batch.get() - u64::from(!collects)).await
    }

    async fn run(self: Rc<Self>) {
        while self.check().is_ok() {
            let (changes, is_clean) = self.pending.take();
            if changes.is_empty() && !is_clean {
                break;
            }
            let batch = self.batch.replace(self.batch.get() + 1);
            match self.write(&changes, is_clean).await {
                Ok(()) => self.durable.set(batch),
                Err(error) => self.stop(final_error(error)),
            }
            self.changed.notify_all();
        }
        self.is_running.set(false);
    }

    /// Writes a manifest with these changes, and applies them.
    ///
    /// # Errors
    /// Errors after which this writer has to end.
    async fn write(self: &Rc<Self>, changes: &[Change], is_clean: bool) -> Result<()> {
        while self.bases.must_wait(&self.position.get())? {
            self.check()?;
            self.begin_base();
            self.changed.notified().await;
        }
        let mut garbage = Vec::new();
        // The table as it will be: what a failed write leaves behind isn't used, as the log ends with it.
        {
            let mut table = self.table.borrow_mut();
            for change in changes {
                garbage.extend(table.replaced(change).into_iter().map(Name::Piece));
                table.apply(change, self.identity.epoch)?;
            }
            table.is_clean = is_clean;
            bases::check_length(&table)?;
        }
        let link = self.position.get().base;
        let number = self.position.get().number + 1;
        let mut manifest = self.identity.manifest(number, Kind::Delta, link, encode_changes(changes));
        manifest.is_clean = is_clean;
        manifest.is_compressed = changes.iter().any(Change::is_compressed);
        let bytes = self.manifests.encode(&manifest);
        self.create(&manifest, &bytes).await?;
        self.linked.set(link);
        // A base may have been written meanwhile.
        let position = self.position.get();
        if position.base == link {
            garbage.extend(self.bases.replaced());
        }
        let position = Position { number, delta_bytes: position.delta_bytes + bytes.len(), ..position };
        self.position.set(position);
        self.garbage.add(garbage);
        self.begin_base();
        Ok(())
    }

    /// Begins to write the base after the last manifest, if one is due and none is being written.
    fn begin_base(self: &Rc<Self>) {
        let base = self.bases.begin(&self.position.get(), &self.identity, &self.table.borrow());
        if let Some(base) = base {
            let bytes = self.manifests.encode(&base);
            drop(base);
            runtime::spawn(self.clone().write_base(bytes)).detach();
        }
    }

    /// Writes the base that was begun, again until the store has it.
    async fn write_base(self: Rc<Self>, bytes: Data) {
        let mut pause = Pause::new();
        while self.check().is_ok() {
            match self.bases.write(&self.manifests, &self.identity, &bytes).await {
                Ok(is_written) => {
                    self.base_failures.ended("writing a base manifest");
                    self.end_base(is_written, bytes.len());
                    return;
                }
                Err(error) => self.base_failures.failed(format!("writing a base manifest: {error}")),
            }
            pause.wait().await;
        }
    }

    /// Ends the base that was begun, with its length. If it isn't written, the next delta begins another one.
    fn end_base(&self, is_written: bool, length: usize) {
        let epoch = self.identity.epoch;
        if is_written {
            self.position.set(self.bases.end(self.position.get(), epoch, length));
        } else if let Some(name) = self.bases.abandon(epoch) {
            let key = self.manifests.names.key(name);
            tracing::warn!("object {key}: the store has other bytes than were written; another base follows");
            self.garbage.add([name]);
        }
        self.changed.notify_all();
    }

    /// Creates a manifest, again until the store answers.
    async fn create(&self, manifest: &crate::format::Manifest, bytes: &Data) -> Result<()> {
        let mut pause = Pause::new();
        loop {
            match self.manifests.create(manifest, bytes).await {
                Ok(Created::Ours) => {
                    self.failures.ended("writing a manifest");
                    return self.check();
                }
                Ok(Created::Others(other)) => return Err(fenced(&self.identity, &other)),
                // The number is taken by damaged bytes.
                Err(error @ (Error::Corrupt(_) | Error::Unsupported(_))) => return Err(error),
                Err(error) => self.failures.failed(format!("writing a manifest: {error}")),
            }
            self.check()?;
            pause.wait().await;
            self.check()?;
        }
    }
}

/// Error of a log after an error that no repetition mends: a number that damaged bytes have taken, a manifest
/// that is too large, a change that doesn't fit. All have the kind that layers above know as final; errors of
/// the store are none of them, and are waited out.
fn final_error(error: Error) -> Error {
    match error {
        Error::ReadOnly(_) | Error::Closed(_) => error,
        other => Error::read_only(format!("the zones have ended, and take no more changes: {other}")),
    }
}

/// Error of a writer whose next number another one has created.
pub(crate) fn fenced(identity: &Identity, other: &crate::format::Manifest) -> Error {
    Error::read_only(format!(
        "fenced: this writer of epoch {} was replaced by \"{}\" {}: its writes since the last flush are lost; use the zones there, or open them here again, which fences that one",
        identity.epoch,
        other.writer.name.escape_debug(),
        age_of(other.time)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Writer;
    use crate::names::Names;
    use crate::table::State;
    use object_store::testing::{Bucket, Faults, client};

    #[test]
    fn a_batch_does_not_wake_what_waits_unless_the_log_ends() {
        let test = || async {
            let _bucket = Bucket::start(Faults::default());
            let (store, names) = (client(object_store::Limits::default()), Names::new("db1").unwrap());
            let garbage = Garbage::new(store.clone(), names.clone(), std::time::Duration::ZERO);
            let identity = Identity { volume: [1; 16], epoch: 1, writer: Writer::new("a test".to_owned()) };
            let position = Position { number: 1, base: 1, base_bytes: 100, delta_bytes: 0 };
            let (manifests, table) = (Manifests::new(store, names, None), Table::new(4, 1 << 20).unwrap());
            let log = ManifestLog::new(manifests, identity, table, position, garbage);
            let polls = Rc::new(Cell::new(0));
            let (own, counted) = (log.clone(), polls.clone());
            let waiting = runtime::spawn(async move {
                let work = poll_fn(|_| {
                    counted.set(counted.get() + 1);
                    Poll::<()>::Pending
                });
                own.unless_ended(work).await
            });
            for _ in 0..5 {
                let batch = log.push([Change::State { zone: 0, state: State::Begun }]);
                log.wait_until_durable(batch).await.unwrap();
            }
            assert_eq!((log.number(), polls.get()), (6, 1));
            log.stop(Error::closed("a test"));
            assert_eq!(waiting.await, Err(Error::closed("a test")));
        };
        runtime::simulate(runtime::Simulation::new(1), test).unwrap();
    }
}
