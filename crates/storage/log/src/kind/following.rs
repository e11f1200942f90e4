//! A log on zones that another machine writes: read only, and opened again whenever they have a newer state.
//!
//! # Promises
//! - Nothing is written. A state is opened as after a crash, on a view of the zones that doesn't change; its
//!   checkpoint and records must be complete.
//! - A read sees one state. The next state takes the place of the last one once it is open; reads in progress
//!   end with the state that they began with.
//! - While the next state can't be opened, the last one is served.
//!
//! A snapshot has the same contents in every state, until the writer deletes it. Those of the volume and of
//! clones change under their clients.

use super::opening::open_on_zones;
use super::options::Options;
use crate::device::LogPart;
use block::{
    BlockIndex, BlockRange, Buffer, Call, Device, DeviceGeometry, DevicePart, Durability, Error, Extent,
    Part, Payload, ReadOutcome, Result, Status, View, ZeroMode, ZonesPart,
};
use runtime::sync::Notify;
use runtime::{FailureRun, Home, Instant, TaskGroup};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// Time between two looks at the number of the zones' state, which costs no I/O.
const POLL: Duration = Duration::from_millis(500);
/// Longest time until a state that couldn't be opened is opened again, if there is no newer one.
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// A state that couldn't be opened.
#[derive(Debug, Clone, Copy)]
struct Failed {
    number: u64,
    /// Number of attempts.
    attempts: u32,
    at: Instant,
}

impl Failed {
    /// Whether a state is to be opened: a newer one, or the same one after a pause that grows. An opening
    /// reads much, and the next one finds the same, unless the store was at fault.
    fn permits(&self, number: u64, now: Instant) -> bool {
        let pause = POLL.saturating_mul(1 << self.attempts.min(10)).min(MAX_PAUSE);
        number != self.number || now >= self.at + pause
    }

    /// After another failure.
    fn after(before: Option<Failed>, number: u64, at: Instant) -> Failed {
        let same = before.filter(|before| before.number == number);
        Failed { number, attempts: same.map_or(1, |same| same.attempts.saturating_add(1)), at }
    }
}

/// A log that is followed.
#[derive(Debug)]
pub(crate) struct FollowingLog {
    shared: Arc<Shared>,
    home: Home<Follower>,
    geometry: DeviceGeometry,
}

/// The newest state, for the handles of all shards.
#[derive(Debug)]
struct Shared(Mutex<Arc<State>>);

/// The log in one state of its zones.
#[derive(Debug)]
struct State {
    number: u64,
    log: LogPart,
}

/// Opens newer states, on the home shard.
struct Follower {
    zones: Arc<dyn ZonesPart>,
    options: Options,
    shared: Arc<Shared>,
    /// States that reads may still use.
    retired: RefCell<Vec<Arc<State>>>,
    failures: FailureRun,
    failed: Cell<Option<Failed>>,
    error: RefCell<Option<Error>>,
    is_closed: Cell<bool>,
    closed: Notify,
    tasks: TaskGroup,
}

fn refusal() -> Error {
    Error::read_only("log: another machine writes its zones, and it takes no changes here; change it there")
}

impl Shared {
    fn current(&self) -> Arc<State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn replace(&self, state: Arc<State>) -> Arc<State> {
        std::mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), state)
    }
}

impl State {
    async fn open(view: View, options: &Options) -> Result<State> {
        let View { number, zones } = view;
        let opened = open_on_zones(zones.clone(), options).await;
        let checked = match opened {
            Ok(log) => {
                match log.status().await.get("lost").and_then(|lost| lost.get(0)?.as_str().map(String::from))
                {
                    None => return Ok(State { number, log }),
                    Some(lost) => {
                        log.release().await?;
                        Error::corrupt(format!("log on zones of another machine: {lost}"))
                    }
                }
            }
            Err(error) => error,
        };
        zones.close().await?;
        Err(checked)
    }
}

impl FollowingLog {
    /// Opens the log in the zones' present state, `view`, and follows them. This shard becomes the home.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] if the log should be created; errors of opening the log, whose zones have to be
    /// complete.
    pub async fn open(zones: Arc<dyn ZonesPart>, view: View, options: &Options) -> Result<FollowingLog> {
        if options.format {
            return Err(refusal());
        }
        let options = Options { salvage: true, ..options.clone() };
        let state = State::open(view, &options).await?;
        let geometry = state.log.geometry().clone();
        let shared = Arc::new(Shared(Mutex::new(Arc::new(state))));
        let follower = Rc::new(Follower {
            zones,
            options,
            shared: shared.clone(),
            retired: RefCell::default(),
            failures: FailureRun::default(),
            failed: Cell::new(None),
            error: RefCell::new(None),
            is_closed: Cell::new(false),
            closed: Notify::new(),
            tasks: TaskGroup::default(),
        });
        follower.tasks.spawn(follower.clone().run()).detach();
        Ok(FollowingLog { shared, home: Home::here(follower), geometry })
    }
}

impl Follower {
    async fn run(self: Rc<Self>) {
        while !self.is_closed.get() {
            let _ = runtime::timeout(POLL, self.closed.notified()).await;
            if self.is_closed.get() {
                break;
            }
            match self.follow().await {
                // A state that can't be opened still can't.
                Ok(()) if self.failed.get().is_some() => {}
                Ok(()) => {
                    self.failures.ended("opening the newest state of a log of another machine");
                    self.error.replace(None);
                }
                Err(error) => {
                    self.failures
                        .failed(format!("opening the newest state of a log of another machine: {error}"));
                    self.error.replace(Some(error));
                }
            }
            self.release_retired().await;
        }
    }

    async fn follow(&self) -> Result<()> {
        let number = self.zones.state().await?;
        let failed = self.failed.get();
        if number == self.shared.current().number
            || failed.is_some_and(|failed| !failed.permits(number, runtime::now()))
        {
            return Ok(());
        }
        let Some(view) = self.zones.view().await? else { return Ok(()) };
        let number = view.number;
        let state = match State::open(view, &self.options).await {
            Ok(state) => state,
            Err(error) => {
                self.failed.set(Some(Failed::after(failed, number, runtime::now())));
                return Err(error);
            }
        };
        self.failed.set(None);
        let before = self.shared.replace(Arc::new(state));
        self.retired.borrow_mut().push(before);
        Ok(())
    }

    /// Releases states that no read uses any more.
    async fn release_retired(&self) {
        let unused: Vec<Arc<State>> =
            self.retired.borrow_mut().extract_if(.., |state| Arc::strong_count(state) == 1).collect();
        for state in unused {
            if let Err(error) = state.log.release().await {
                tracing::warn!("log: releasing a state of zones of another machine: {error}");
            }
        }
    }

    async fn close(self: Rc<Self>) -> Result<()> {
        self.is_closed.set(true);
        self.closed.notify_all();
        self.tasks.ended().await;
        let mut states = self.retired.take();
        states.push(self.shared.current());
        let mut closed = Ok(());
        for state in states {
            closed = closed.and(state.log.release().await);
        }
        closed
    }
}

impl Part for FollowingLog {
    fn kind(&self) -> &'static str {
        crate::KIND.name
    }

    fn status(&self) -> Call<'_, Status> {
        Call::new(async move {
            let state = self.shared.current();
            let mut status = state.log.status().await;
            status.insert("state".to_owned(), state.number.into());
            let error = self.home.with(|home: Rc<Follower>| async move { Ok(home.error.borrow().clone()) });
            if let Ok(Some(error)) = error.await {
                status.insert("error".to_owned(), error.to_string().into());
            }
            status
        })
    }

    fn message<'a>(&'a self, message: &'a str) -> Call<'a, Result<String>> {
        let word = message.split_whitespace().nth(1).unwrap_or_default();
        if !(message.starts_with("snapshot ") && ["list", "diff"].contains(&word)) {
            return Call::ready(Err(refusal()));
        }
        Call::new(async move { self.shared.current().log.message(message).await })
    }

    fn close(&self) -> Call<'_, Result<()>> {
        Call::new(self.home.close(Follower::close))
    }
}

impl DevicePart for FollowingLog {
    fn geometry(&self) -> &DeviceGeometry {
        &self.geometry
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Device>>> {
        Call::ready(Ok(Rc::new(Handle::new(&self.shared, None, &self.geometry))))
    }

    fn version<'a>(&'a self, name: &'a str) -> Call<'a, Result<Arc<dyn DevicePart>>> {
        Call::new(async move {
            let state = self.shared.current();
            let geometry = state.log.version(name).await?.geometry().clone();
            let part = FollowingVersion { shared: self.shared.clone(), name: name.to_owned(), geometry };
            Ok(Arc::new(part) as Arc<dyn DevicePart>)
        })
    }
}

/// A snapshot or a clone of the log.
#[derive(Debug)]
struct FollowingVersion {
    shared: Arc<Shared>,
    name: String,
    geometry: DeviceGeometry,
}

impl Part for FollowingVersion {
    fn kind(&self) -> &'static str {
        crate::SNAPSHOT_KIND.name
    }

    fn close(&self) -> Call<'_, Result<()>> {
        Call::ready(Ok(()))
    }
}

impl DevicePart for FollowingVersion {
    fn geometry(&self) -> &DeviceGeometry {
        &self.geometry
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Device>>> {
        Call::ready(Ok(Rc::new(Handle::new(&self.shared, Some(self.name.clone()), &self.geometry))))
    }
}

/// A state, and a handle on it.
type LastRead = (Weak<State>, Rc<dyn Device>);

/// Handle of one shard on the volume, or on a version of this name.
struct Handle {
    shared: Arc<Shared>,
    name: Option<String>,
    geometry: DeviceGeometry,
    /// Handle on the state that was read last.
    last: RefCell<Option<LastRead>>,
}

impl Handle {
    fn new(shared: &Arc<Shared>, name: Option<String>, geometry: &DeviceGeometry) -> Handle {
        Handle { shared: shared.clone(), name, geometry: geometry.clone(), last: RefCell::new(None) }
    }

    /// Returns the newest state, which isn't released before it is dropped, and its device.
    async fn device(&self) -> Result<(Arc<State>, Rc<dyn Device>)> {
        let state = self.shared.current();
        if let Some((last, device)) = &*self.last.borrow()
            && std::ptr::eq(last.as_ptr(), Arc::as_ptr(&state))
        {
            return Ok((state, device.clone()));
        }
        let device = match &self.name {
            None => state.log.open().await?,
            Some(name) => state.log.version(name).await?.open().await?,
        };
        self.last.replace(Some((Arc::downgrade(&state), device.clone())));
        Ok((state, device))
    }
}

impl Device for Handle {
    fn geometry(&self) -> &DeviceGeometry {
        &self.geometry
    }

    fn read(&self, at: BlockIndex, buffer: Buffer) -> Call<'_, ReadOutcome> {
        Call::new(async move {
            match self.device().await {
                Ok((_state, device)) => device.read(at, buffer).await,
                Err(error) => (Err(error), buffer),
            }
        })
    }

    fn write(&self, _at: BlockIndex, _payload: Payload, _durability: Durability) -> Call<'_, Result<()>> {
        Call::ready(Err(refusal()))
    }

    /// Returns at once: all that can be read is durable.
    fn flush(&self) -> Call<'_, Result<()>> {
        Call::ready(Ok(()))
    }

    fn discard(&self, _range: BlockRange) -> Call<'_, Result<()>> {
        Call::ready(Err(refusal()))
    }

    fn write_zeroes(
        &self,
        _range: BlockRange,
        _mode: ZeroMode,
        _durability: Durability,
    ) -> Call<'_, Result<()>> {
        Call::ready(Err(refusal()))
    }

    fn extents(&self, range: BlockRange) -> Call<'_, Result<Vec<Extent>>> {
        Call::new(async move {
            let (_state, device) = self.device().await?;
            device.extents(range).await
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_that_cannot_be_opened_is_opened_again_after_growing_pauses() {
        let start = runtime::now();
        let mut failed = Failed::after(None, 7, start);
        let mut pauses = Vec::new();
        for _ in 0..9 {
            let pause = (1..).map(|half| POLL * half).find(|pause| failed.permits(7, failed.at + *pause));
            pauses.push(pause.unwrap().as_secs());
            assert!(failed.permits(8, failed.at), "a newer one at once");
            failed = Failed::after(Some(failed), 7, failed.at);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(Failed::after(Some(failed), 8, start).attempts, 1);
    }
}
