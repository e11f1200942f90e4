//! Zones whose appends fail as a drive's do, and policies and worlds for tests of them.

use crate::bare::zones;
use block::{Call, EraseGuarantee, Error, Payload, Result, ZoneAddress, ZoneIndex, Zones};
use logkit::cleaning::{Candidate, Policy, Pressure};
use logkit::layout::ROOT_ZONES;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

/// Time within which each test ends.
const PATIENCE: Duration = Duration::from_secs(120);

/// Zones whose next appends, except those to root zones, fail. Only an append that begins a zone gets `Busy`;
/// a zone that was opened is begun.
pub struct Failing {
    inner: Rc<dyn Zones>,
    begun: RefCell<BTreeSet<ZoneIndex>>,
    next: RefCell<VecDeque<Error>>,
    /// Whether appends of one block, other than roots, fail for lack of space: marks, and records without
    /// data.
    pub refuses_marks: Cell<bool>,
    /// Whether appends that begin a zone get `Busy`, because other programs have opened as many zones as the
    /// drive permits; and those that begin a root zone.
    pub is_shut: Cell<bool>,
    pub is_shut_for_roots: Cell<bool>,
    /// Whether an append that gets `Busy` because of `is_shut` has opened its zone nevertheless.
    pub opens_refused: Cell<bool>,
    /// Zone whose finish ends `is_shut`.
    pub opener: Cell<Option<ZoneIndex>>,
    /// Duration of appends, of those that get `Busy`, and of finishes.
    pub busy_takes: Cell<Duration>,
    pub append_takes: Cell<Duration>,
    pub finish_takes: Cell<Duration>,
    /// Number of finishes in progress.
    pub finishing: Cell<u32>,
    /// Zones that were opened before their first append.
    pub opened: RefCell<Vec<ZoneIndex>>,
}

impl Failing {
    pub async fn new() -> Result<Rc<Self>> {
        Self::with_limit(0).await
    }

    pub async fn with_limit(max_open: u32) -> Result<Rc<Self>> {
        Ok(Self::on(zones(40, 64 << 10, max_open).await?.open().await?))
    }

    pub fn on(inner: Rc<dyn Zones>) -> Rc<Self> {
        Rc::new(Failing {
            inner,
            begun: RefCell::default(),
            next: RefCell::default(),
            refuses_marks: Cell::new(false),
            is_shut: Cell::new(false),
            is_shut_for_roots: Cell::new(false),
            opens_refused: Cell::new(false),
            opener: Cell::new(None),
            busy_takes: Cell::default(),
            append_takes: Cell::default(),
            finish_takes: Cell::default(),
            finishing: Cell::new(0),
            opened: RefCell::default(),
        })
    }

    /// Error of the next append to a zone, if it fails.
    fn error_of(&self, zone: ZoneIndex, bytes: usize) -> Option<Error> {
        let (is_begun, is_root) = (self.begun.borrow().contains(&zone), zone.0 < ROOT_ZONES);
        let is_shut = if is_root { &self.is_shut_for_roots } else { &self.is_shut };
        if is_shut.get() && !is_begun {
            return busy(1).next();
        }
        let fails = |error: &Error| !(is_root || is_begun && matches!(error, Error::Busy(_)));
        let is_next = self.next.borrow().front().is_some_and(fails);
        if is_next {
            return self.next.borrow_mut().pop_front();
        }
        let is_refused = self.refuses_marks.get() && bytes <= 4096 && !is_root;
        is_refused.then(|| Error::no_space("the file system is full"))
    }

    pub fn fail(&self, errors: impl IntoIterator<Item = Error>) {
        self.next.borrow_mut().extend(errors);
    }

    pub fn is_empty(&self) -> bool {
        self.next.borrow().is_empty()
    }
}

pub fn busy(times: usize) -> impl Iterator<Item = Error> {
    std::iter::repeat_with(|| Error::busy("14 zones are open")).take(times)
}

impl Zones for Failing {
    conformance::pass_on!(inner: geometry, append_at, close, read, flush, report);

    fn append(&self, zone: ZoneIndex, payload: Payload) -> Call<'_, Result<ZoneAddress>> {
        if let Some(error) = self.error_of(zone, payload.len()) {
            let takes = if matches!(error, Error::Busy(_)) { self.busy_takes.get() } else { Duration::ZERO };
            return Call::new(async move {
                if self.is_shut.get() && self.opens_refused.get() {
                    self.inner.open(zone).await?;
                }
                runtime::sleep(takes).await;
                Err(error)
            });
        }
        self.begun.borrow_mut().insert(zone);
        Call::new(async move {
            runtime::sleep(self.append_takes.get()).await;
            self.inner.append(zone, payload).await
        })
    }

    fn open(&self, zone: ZoneIndex) -> Call<'_, Result<()>> {
        if let Some(error @ Error::Busy(_)) = self.error_of(zone, usize::MAX) {
            return Call::new(async move {
                runtime::sleep(self.busy_takes.get()).await;
                Err(error)
            });
        }
        self.begun.borrow_mut().insert(zone);
        self.opened.borrow_mut().push(zone);
        self.inner.open(zone)
    }

    fn finish(&self, zone: ZoneIndex) -> Call<'_, Result<()>> {
        Call::new(async move {
            self.finishing.set(self.finishing.get() + 1);
            runtime::sleep(self.finish_takes.get()).await;
            let finished = self.inner.finish(zone).await;
            self.finishing.set(self.finishing.get() - 1);
            if self.opener.get() == Some(zone) {
                self.is_shut.set(false);
            }
            finished
        })
    }

    fn reset(&self, zone: ZoneIndex, erase: EraseGuarantee) -> Call<'_, Result<u64>> {
        self.begun.borrow_mut().remove(&zone);
        self.inner.reset(zone, erase)
    }
}

/// A policy with classes of users and of moves.
#[derive(Debug)]
pub struct Classes {
    pub users: u8,
    pub all: u8,
}

impl Policy for Classes {
    fn name(&self) -> &'static str {
        "classes"
    }

    fn classes(&self) -> u8 {
        self.all
    }

    fn is_users(&self, class: u8) -> bool {
        class < self.users
    }

    fn choose(
        &mut self,
        _candidates: &mut dyn Iterator<Item = Candidate>,
        _pressure: Pressure,
        _now: u64,
    ) -> Option<ZoneIndex> {
        None
    }
}

pub fn simulate<F: Future<Output = Result<()>> + 'static>(main: impl FnOnce() -> F + Send + 'static) {
    let world = runtime::Simulation::new(1);
    let ends = async move || {
        let ended = runtime::timeout(PATIENCE, main()).await;
        ended.unwrap_or_else(|_| panic!("it waits for ever"))
    };
    runtime::simulate(world, ends).expect("the world runs").value.unwrap_or_else(|error| panic!("{error}"));
}
