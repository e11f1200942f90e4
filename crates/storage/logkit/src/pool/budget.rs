//! Budget of open zones: drives limit the number of zones that are begun and not finished (14 on a ZN540),
//! and refuse an append that would begin another.
//!
//! All shards of a log share one budget. Opening a zone takes a [`Permit`] for a [`Purpose`], which is held
//! with the open zone and dropped after the zone was finished. Each purpose has a reserved share, in the
//! order log, tables, checkpoint, so that tables never delay the log, nor the flush that frees it. Without a
//! permit a task waits; nothing fails.
//!
//! Permits go to waiting tasks in the order of their arrival. A task that waits asks the holders to seal
//! their zones ([`seals`](crate::seals)), unless the permits of zones that are being sealed suffice for it. A
//! request concerns the zones that were opened before it, so there is another one whenever a zone is opened
//! whose permit a task waits for. A task seals its own zones before it waits, so no two wait for each other.
//! A request expires once no waiting task needs the permit of a zone: the zone is kept.
//!
//! A drive may permit fewer open zones than the budget, since other programs have zones open too. The tasks
//! that it refused try again one after the other, before any other task opens a zone (`drive`).
//!
//! Zones of roots aren't part of the budget. A zone that can't be finished stays open on the drive, which
//! lowers the limit by one.

pub(crate) mod drive;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use drive::DriveQueue;

/// Purpose of an open zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Records of users.
    Log,
    /// Other appends of the owner and the cleaner.
    Tables,
    /// Checkpoints.
    Checkpoint,
}

const PURPOSES: usize = 3;

/// Demand for open zones, and their limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Demand {
    /// Most open zones at a time, root zones excluded; `None` for no limit.
    pub limit: Option<u32>,
    /// Number of zones that the lanes of all shards hold.
    pub log: u32,
    /// Number of zones that are held for tables on all shards.
    pub tables: u32,
}

impl Demand {
    /// Fewest permits with which a log makes progress: one of each purpose.
    pub const FEWEST: u32 = PURPOSES as u32;

    /// Permits that are reserved for each purpose.
    fn shares(&self) -> [u32; PURPOSES] {
        let Some(limit) = self.limit else { return [0; PURPOSES] };
        let left = limit.saturating_sub(1);
        let log = self.log.min(left.saturating_sub(1)).max(1);
        [log, self.tables.min(left.saturating_sub(log)).max(1), 1]
    }
}

/// Numbers of requests to seal zones. A zone is concerned by those after the numbers of its opening.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Requests {
    /// Requests of tasks that wait for a permit.
    pub for_permits: u64,
    /// Requests of tasks for which the drive opened no zone.
    pub for_drive: u64,
}

/// A task that waits for a permit, in the order of arrival.
#[derive(Debug)]
struct Waiter {
    ticket: u64,
    purpose: Purpose,
    /// The permit is counted as held.
    has_permit: bool,
    waker: Option<Waker>,
}

#[derive(Debug)]
struct State {
    demand: Demand,
    held: [u32; PURPOSES],
    /// Number of the held permits whose zones are being sealed.
    ending: [u32; PURPOSES],
    /// Whether zones were opened since the last request for permits, or were kept because it was out of date.
    is_unasked: [bool; PURPOSES],
    waiters: VecDeque<Waiter>,
    last_ticket: u64,
    /// Tasks that wait for requests in [`Budget::wanted`].
    listeners: Vec<Waker>,
}

impl State {
    /// Whether a permit of this purpose may be taken, without using the shares of others, if these are held.
    fn permits(&self, held: &[u32; PURPOSES], purpose: Purpose) -> bool {
        let Some(limit) = self.demand.limit else { return true };
        let shares = self.demand.shares();
        let others = (0..PURPOSES).filter(|other| *other != purpose as usize);
        let left_to_others: u32 = others.map(|other| shares[other].saturating_sub(held[other])).sum();
        held.iter().sum::<u32>() + left_to_others < limit
    }

    /// Whether a task waits for a permit, those of zones that are being sealed don't suffice for it, and one
    /// of a purpose for which `is_meant` holds would help.
    fn lacks(&self, is_meant: impl Fn(usize) -> bool) -> bool {
        let shares = self.demand.shares();
        let mut held = self.held;
        held.iter_mut().zip(self.ending).for_each(|(held, ending)| *held -= ending);
        for waiter in self.waiters.iter().filter(|waiter| !waiter.has_permit) {
            let purpose = waiter.purpose as usize;
            if self.permits(&held, waiter.purpose) {
                held[purpose] += 1;
                continue;
            }
            let helps = |other: usize| other == purpose || self.held[other] > shares[other];
            if (0..PURPOSES).any(|other| is_meant(other) && helps(other)) {
                return true;
            }
        }
        false
    }

    fn ticket(&mut self) -> u64 {
        self.last_ticket += 1;
        self.last_ticket
    }

    fn take_waiter(&mut self, ticket: u64) -> Option<Waiter> {
        let position = self.waiters.iter().position(|waiter| waiter.ticket == ticket)?;
        self.waiters.remove(position)
    }
}

/// Permits for open zones, shared by all shards of a log, and the requests to seal zones
/// ([`seals`](crate::seals)).
#[derive(Debug)]
pub struct Budget {
    state: Mutex<State>,
    /// Numbers of requests. Changed with `state` locked.
    for_permits: AtomicU64,
    for_drive: AtomicU64,
    drive: Arc<DriveQueue>,
}

impl Default for Budget {
    /// Returns a budget without a limit.
    fn default() -> Self {
        let state = State {
            demand: Demand { limit: None, log: 0, tables: 0 },
            held: [0; PURPOSES],
            ending: [0; PURPOSES],
            is_unasked: [false; PURPOSES],
            waiters: VecDeque::new(),
            last_ticket: 0,
            listeners: Vec::new(),
        };
        let (for_permits, for_drive) = (AtomicU64::new(0), AtomicU64::new(0));
        Budget { state: Mutex::new(state), for_permits, for_drive, drive: Arc::default() }
    }
}

/// Permission for one open zone; dropping it returns the permit.
#[derive(Debug)]
pub struct Permit {
    budget: Arc<Budget>,
    purpose: Purpose,
    is_ending: bool,
    /// The zone is open on the drive, and is being finished.
    is_finishing: bool,
}

impl Permit {
    /// Notes that the zone was opened. Returns the numbers of requests that don't concern it.
    pub(crate) fn opened(&self) -> Requests {
        let mut state = self.budget.lock();
        state.is_unasked[self.purpose as usize] = true;
        // Read under the lock: a task that waits already asks again, and that request concerns the zone.
        let before = self.budget.requests();
        self.budget.settle(state);
        before
    }

    /// Number of tasks that wait and that the end of the zone would help: for the permit, and for the drive.
    /// `before` are the numbers of requests that don't concern the zone, `requests` those of all. At 0 none
    /// of them needs an answer: a task that lacks a permit or a zone of the drive later asks again.
    pub(crate) fn waiting(&self, before: Requests, requests: Requests) -> u32 {
        let for_permit = if before.for_permits < requests.for_permits { self.lacked() } else { 0 };
        let for_drive = if before.for_drive < requests.for_drive { self.budget.drive.waiting() } else { 0 };
        for_permit + for_drive
    }

    /// Number of tasks that wait for a permit, if this one would help any; otherwise 0.
    fn lacked(&self) -> u32 {
        let mut state = self.budget.lock();
        let is_lacked = state.lacks(|purpose| purpose == self.purpose as usize);
        state.is_unasked[self.purpose as usize] |= !is_lacked;
        match is_lacked {
            true => state.waiters.iter().filter(|waiter| !waiter.has_permit).count() as u32,
            false => 0,
        }
    }

    /// Notes that the zone is being sealed, so that the permit is returned soon. `is_open` is whether it is
    /// open on the drive, which may then open another.
    pub(crate) fn begin_return(&mut self, is_open: bool) {
        if !std::mem::replace(&mut self.is_ending, true) {
            self.budget.lock().ending[self.purpose as usize] += 1;
            self.is_finishing = is_open;
            if is_open {
                self.budget.drive.begin_finish();
            }
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = self.budget.lock();
        state.held[self.purpose as usize] -= 1;
        state.ending[self.purpose as usize] -= u32::from(self.is_ending);
        self.budget.settle(state);
        if self.is_finishing {
            self.budget.drive.end_finish();
        }
    }
}

/// Place of a task in the queue for a permit; left when dropped, with the permit if it has one.
struct Waiting<'a> {
    budget: &'a Arc<Budget>,
    ticket: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.budget.lock();
        if let Some(waiter) = state.take_waiter(self.ticket) {
            state.held[waiter.purpose as usize] -= u32::from(waiter.has_permit);
            self.budget.settle(state);
        }
    }
}

impl Budget {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the limit and the demand, before zones are opened.
    pub fn set(&self, demand: Demand) {
        let mut state = self.lock();
        state.demand = demand;
        self.settle(state);
    }

    /// Gives permits to waiting tasks, the oldest first, and asks the holders of zones for those that get
    /// none. Called after each change of the state, so no waiting task has to be considered by
    /// [`try_take`](Self::try_take).
    fn settle(&self, mut state: MutexGuard<'_, State>) {
        let mut woken = Vec::new();
        for at in 0..state.waiters.len() {
            let purpose = state.waiters[at].purpose;
            if !state.waiters[at].has_permit && state.permits(&state.held, purpose) {
                state.held[purpose as usize] += 1;
                state.waiters[at].has_permit = true;
                woken.extend(state.waiters[at].waker.take());
            }
        }
        if state.lacks(|purpose| state.is_unasked[purpose]) {
            state.is_unasked = [false; PURPOSES];
            self.for_permits.fetch_add(1, Ordering::AcqRel);
            woken.append(&mut state.listeners);
        }
        drop(state);
        woken.into_iter().for_each(Waker::wake);
    }

    fn permit(self: &Arc<Self>, purpose: Purpose) -> Permit {
        Permit { budget: self.clone(), purpose, is_ending: false, is_finishing: false }
    }

    /// Takes a permit for this purpose; `None` if none is available.
    pub fn try_take(self: &Arc<Self>, purpose: Purpose) -> Option<Permit> {
        let mut state = self.lock();
        state.permits(&state.held, purpose).then(|| {
            state.held[purpose as usize] += 1;
            self.permit(purpose)
        })
    }

    /// Takes a permit for this purpose, waiting until one is available and tasks that came earlier have
    /// theirs.
    pub async fn take(self: &Arc<Self>, purpose: Purpose) -> Permit {
        let waiting = {
            let mut state = self.lock();
            let ticket = state.ticket();
            state.waiters.push_back(Waiter { ticket, purpose, has_permit: false, waker: None });
            self.settle(state);
            Waiting { budget: self, ticket }
        };
        poll_fn(|context| {
            let mut state = self.lock();
            let place = state.waiters.iter().position(|waiter| waiter.ticket == waiting.ticket);
            let Some(at) = place else { return Poll::Pending };
            if state.waiters[at].has_permit {
                state.waiters.remove(at);
                return Poll::Ready(self.permit(purpose));
            }
            state.waiters[at].waker = Some(context.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Waits until the numbers of requests differ from `seen`, and returns them. The holders of zones should
    /// then seal them.
    pub async fn wanted(&self, seen: Requests) -> Requests {
        poll_fn(|context| {
            let mut state = self.lock();
            let requests = self.requests();
            if requests != seen {
                return Poll::Ready(requests);
            }
            if !state.listeners.iter().any(|listener| listener.will_wake(context.waker())) {
                state.listeners.push(context.waker().clone());
            }
            Poll::Pending
        })
        .await
    }

    /// Numbers of requests to seal zones.
    #[inline]
    pub fn requests(&self) -> Requests {
        Requests {
            for_permits: self.for_permits.load(Ordering::Acquire),
            for_drive: self.for_drive.load(Ordering::Acquire),
        }
    }

    /// Tasks for which the drive opened no zone.
    pub(crate) fn drive(&self) -> &Arc<DriveQueue> {
        &self.drive
    }

    /// Asks the holders of zones to seal them, though there is a permit: the drive refuses to open another
    /// zone.
    pub(crate) fn ask_for_drive(&self) {
        self.ask(&self.for_drive);
    }

    /// Asks the holders of zones to seal them, and ends waiting in [`wanted`](Self::wanted).
    pub(crate) fn ask_all(&self) {
        self.ask(&self.for_permits);
    }

    fn ask(&self, requests: &AtomicU64) {
        let mut state = self.lock();
        requests.fetch_add(1, Ordering::AcqRel);
        let woken = std::mem::take(&mut state.listeners);
        drop(state);
        woken.into_iter().for_each(Waker::wake);
    }

    /// Whether a task waits because the drive opened no zone for it.
    pub(crate) fn has_refused(&self) -> bool {
        !self.drive.is_empty()
    }

    /// Notes that a zone stays open on the drive because it can't be finished, which lowers the limit by one.
    pub fn lose(&self) {
        let mut state = self.lock();
        if let Some(limit) = &mut state.demand.limit {
            *limit = limit.saturating_sub(1).max(Demand::FEWEST);
        }
        self.settle(state);
    }

    /// Number of held permits.
    pub fn held(&self) -> u32 {
        self.lock().held.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Purpose::{Checkpoint, Log, Tables};
    use std::pin::pin;
    use std::task::Context;

    fn budget(limit: u32, log: u32, tables: u32) -> Arc<Budget> {
        let budget = Budget::default();
        budget.set(Demand { limit: Some(limit), log, tables });
        Arc::new(budget)
    }

    #[test]
    fn each_purpose_finds_its_share_whatever_others_hold() {
        let budget = budget(6, 2, 2);
        let mut tables: Vec<Permit> = std::iter::from_fn(|| budget.try_take(Tables)).collect();
        assert_eq!(tables.len(), 3, "its share, and one unreserved");
        let log: Vec<Permit> = std::iter::from_fn(|| budget.try_take(Log)).collect();
        assert_eq!(log.len(), 2);
        let checkpoint = budget.try_take(Checkpoint).expect("its share");
        assert_eq!(budget.held(), 6);
        assert!(budget.try_take(Checkpoint).is_none());
        tables.pop();
        assert!(budget.try_take(Log).is_some(), "a permit that was dropped");
        drop((tables, log, checkpoint));
        assert_eq!(budget.held(), 0);
    }

    #[test]
    fn a_budget_without_a_limit_has_permits_for_all() {
        let budget: Arc<Budget> = Arc::default();
        let held: Vec<Permit> = (0..100).filter_map(|_| budget.try_take(Tables)).collect();
        assert_eq!(held.len(), 100);
    }

    /// Takes a permit and opens a zone with it.
    fn open(budget: &Arc<Budget>, purpose: Purpose) -> Option<(Permit, Requests)> {
        let permit = budget.try_take(purpose)?;
        let before = permit.opened();
        Some((permit, before))
    }

    fn asked(budget: &Budget) -> u64 {
        budget.requests().for_permits
    }

    #[test]
    fn a_small_budget_has_one_permit_of_each_purpose_and_asks_the_holders_for_more() {
        let budget = budget(4, 8, 8);
        let log = [open(&budget, Log), open(&budget, Log)];
        assert!(log.iter().all(Option::is_some) && budget.try_take(Log).is_none());
        assert!(budget.try_take(Tables).is_some());
        let mut context = Context::from_waker(Waker::noop());
        let mut taken = pin!(budget.take(Log));
        let mut wanted = pin!(budget.wanted(Requests::default()));
        assert!(wanted.as_mut().poll(&mut context).is_pending());
        assert!(taken.as_mut().poll(&mut context).is_pending());
        assert!(wanted.poll(&mut context).is_ready());
        assert_eq!(asked(&budget), 1);
        drop(log);
        assert!(taken.poll(&mut context).is_ready());
    }

    #[test]
    fn permits_go_to_waiting_tasks_in_order_and_none_overtakes_them() {
        let budget = budget(3, 8, 8);
        let mut context = Context::from_waker(Waker::noop());
        let held = open(&budget, Log);
        let (mut first, mut second) = (pin!(budget.take(Log)), pin!(budget.take(Log)));
        assert!(first.as_mut().poll(&mut context).is_pending());
        assert!(second.as_mut().poll(&mut context).is_pending());
        assert!(open(&budget, Tables).is_some(), "its share is free");
        drop(held);
        assert!(budget.try_take(Log).is_none(), "it is the first task's");
        assert!(second.as_mut().poll(&mut context).is_pending());
        let Poll::Ready(permit) = first.poll(&mut context) else { panic!("its turn") };
        drop(permit);
        assert!(budget.try_take(Log).is_none());
        assert!(second.poll(&mut context).is_ready());
        assert_eq!(budget.held(), 0);
    }

    #[test]
    fn a_task_that_stops_to_wait_leaves_its_permit_to_the_next() {
        let budget = budget(3, 8, 8);
        let mut context = Context::from_waker(Waker::noop());
        let held = open(&budget, Log);
        let mut first = Box::pin(budget.take(Log));
        let mut second = pin!(budget.take(Log));
        assert!(first.as_mut().poll(&mut context).is_pending());
        assert!(second.as_mut().poll(&mut context).is_pending());
        drop(held);
        drop(first);
        assert!(second.poll(&mut context).is_ready());
        assert_eq!(budget.held(), 0);
    }

    #[test]
    fn a_request_concerns_a_zone_that_is_opened_after_it_while_a_task_waits() {
        let budget = budget(3, 8, 8);
        let mut context = Context::from_waker(Waker::noop());
        // Taken before the other task waits, and opened afterwards.
        let permit = budget.try_take(Log).expect("a permit");
        let mut waiting = pin!(budget.take(Log));
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        let before = permit.opened();
        assert!(before.for_permits < asked(&budget), "{before:?}");
        let seen = budget.requests();
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        assert!(open(&budget, Tables).is_some());
        assert_eq!(budget.requests(), seen, "one is enough, and a zone of another share doesn't help");
        drop(permit);
        let Poll::Ready(permit) = waiting.poll(&mut context) else { panic!("its turn") };
        assert_eq!(permit.opened(), seen, "the request was its own");
    }

    #[test]
    fn a_task_asks_again_for_the_zone_of_the_one_before_it_but_not_for_a_permit_without_a_zone() {
        let budget = budget(3, 8, 8);
        let mut context = Context::from_waker(Waker::noop());
        let held = open(&budget, Log);
        let mut tasks: Vec<_> = (0..3).map(|_| Box::pin(budget.take(Log))).collect();
        assert!(tasks.iter_mut().all(|task| task.as_mut().poll(&mut context).is_pending()));
        assert_eq!(asked(&budget), 1, "one request is enough for all");
        drop(held);
        // It finds no free zone.
        let permit = tasks.remove(0).as_mut().poll(&mut context);
        assert!(permit.is_ready());
        drop(permit);
        assert_eq!(asked(&budget), 1);
        let Poll::Ready(permit) = tasks.remove(0).as_mut().poll(&mut context) else { panic!("its turn") };
        assert_eq!((permit.opened().for_permits, asked(&budget)), (1, 2));
    }

    #[test]
    fn no_zone_is_sealed_for_a_task_that_waits_for_one_that_is_being_sealed() {
        let budget = budget(5, 2, 2);
        let mut context = Context::from_waker(Waker::noop());
        let (mut full, _) = open(&budget, Log).expect("a permit");
        // Nothing is scarce: the second is held longer than expected.
        let (other, _) = open(&budget, Log).expect("a permit");
        full.begin_return(false);
        let mut first = pin!(budget.take(Log));
        assert!(first.as_mut().poll(&mut context).is_pending());
        assert_eq!(asked(&budget), 0);
        let mut second = pin!(budget.take(Log));
        assert!(second.as_mut().poll(&mut context).is_pending());
        assert_eq!(asked(&budget), 1);
        drop((full, other));
        assert!(first.poll(&mut context).is_ready() && second.poll(&mut context).is_ready());
        assert_eq!(budget.held(), 0);
    }

    #[test]
    fn tasks_that_wait_when_a_zone_is_lost_ask_from_then_on() {
        let budget = budget(5, 1, 3);
        let mut held: Vec<_> = (0..3).filter_map(|_| open(&budget, Tables)).collect();
        held[0].0.begin_return(false);
        let mut context = Context::from_waker(Waker::noop());
        let mut waiting = pin!(budget.take(Tables));
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        assert_eq!(asked(&budget), 0, "one is being sealed");
        budget.lose();
        assert_eq!(asked(&budget), 1);
        drop(held);
        assert!(waiting.poll(&mut context).is_ready());
    }

    #[test]
    fn a_zone_that_stays_open_is_one_permit_fewer() {
        let budget = budget(5, 1, 1);
        (0..9).for_each(|_| budget.lose());
        let held = [Log, Tables, Checkpoint].map(|purpose| budget.try_take(purpose));
        assert!(held.iter().all(Option::is_some) && budget.try_take(Tables).is_none());
    }
}
