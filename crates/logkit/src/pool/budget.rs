//! Budget of open zones: drives limit the number of zones that are begun and not finished (14 on a ZN540),
//! and refuse an append that would begin another.
//!
//! All shards of a log share one budget. Opening a zone takes a [`Permit`] for a [`Purpose`], which is held
//! with the open zone and dropped after the zone was finished. Each purpose has a reserved share, in the
//! order log, tables, checkpoint, so that tables never delay the log, nor the flush that frees it. Without a
//! permit a task waits; nothing fails.
//!
//! Where the shares are smaller than what the shards hold at a time, zones are used in turns: a task that
//! finds no permit asks the holders to seal their zones ([`seals`](crate::seals)). It asks again whenever
//! another task was faster. A task seals its own zones before it waits, so no two wait for each other.
//!
//! Zones of roots aren't part of the budget. A zone that can't be finished stays open on the drive, which
//! lowers the limit by one.

use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

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

    /// Whether the purposes need more permits than the limit, so that zones are used in turns.
    fn is_scarce(&self) -> bool {
        self.limit.is_some_and(|limit| self.log + self.tables + 1 > limit)
    }
}

#[derive(Debug)]
struct State {
    demand: Demand,
    held: [u32; PURPOSES],
    /// Number of permits that were returned.
    returned: u64,
    /// Tasks that wait for a permit, or for requests in [`Budget::wanted`].
    waiters: Vec<Waker>,
}

impl State {
    /// Whether a permit of this purpose may be taken without using the shares of others.
    fn permits(&self, purpose: Purpose) -> bool {
        let Some(limit) = self.demand.limit else { return true };
        let shares = self.demand.shares();
        let others = (0..PURPOSES).filter(|other| *other != purpose as usize);
        let left_to_others: u32 = others.map(|other| shares[other].saturating_sub(self.held[other])).sum();
        self.held.iter().sum::<u32>() + left_to_others < limit
    }
}

/// Permits for open zones, shared by all shards of a log, and the requests to seal zones
/// ([`seals`](crate::seals)).
#[derive(Debug)]
pub struct Budget {
    state: Mutex<State>,
    /// Number of requests to seal zones: times that a task found no permit while zones are used in turns, or
    /// a drive opened no zone. Changed with `state` locked.
    asked: AtomicU64,
    /// Number of the requests that were made because the drive opened no zone.
    asked_for_drive: AtomicU64,
}

impl Default for Budget {
    /// Returns a budget without a limit.
    fn default() -> Self {
        let demand = Demand { limit: None, log: 0, tables: 0 };
        let state = State { demand, held: [0; PURPOSES], returned: 0, waiters: Vec::new() };
        Budget { state: Mutex::new(state), asked: AtomicU64::new(0), asked_for_drive: AtomicU64::new(0) }
    }
}

/// Permission for one open zone; dropping it returns the permit.
#[derive(Debug)]
pub struct Permit {
    budget: Arc<Budget>,
    purpose: Purpose,
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = self.budget.lock();
        state.held[self.purpose as usize] -= 1;
        state.returned += 1;
        wake(state);
    }
}

fn wake(mut state: MutexGuard<'_, State>) {
    let waiters = std::mem::take(&mut state.waiters);
    drop(state);
    waiters.into_iter().for_each(Waker::wake);
}

fn register(state: &mut State, context: &Context<'_>) {
    if !state.waiters.iter().any(|waiter| waiter.will_wake(context.waker())) {
        state.waiters.push(context.waker().clone());
    }
}

impl Budget {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the limit and the demand, before zones are opened.
    pub fn set(&self, demand: Demand) {
        self.lock().demand = demand;
    }

    /// Takes a permit for this purpose; `None` if none is available.
    pub fn try_take(self: &Arc<Self>, purpose: Purpose) -> Option<Permit> {
        let mut state = self.lock();
        state.permits(purpose).then(|| {
            state.held[purpose as usize] += 1;
            Permit { budget: self.clone(), purpose }
        })
    }

    /// Takes a permit for this purpose, waiting until one is available.
    pub async fn take(self: &Arc<Self>, purpose: Purpose) -> Permit {
        // Number of returned permits at the last request: the next permit may go to another task, which keeps
        // its zone.
        let mut asked_at = None;
        poll_fn(|context| {
            let mut state = self.lock();
            if state.permits(purpose) {
                state.held[purpose as usize] += 1;
                return Poll::Ready(Permit { budget: self.clone(), purpose });
            }
            let asks = state.demand.is_scarce() && asked_at != Some(state.returned);
            if asks {
                asked_at = Some(state.returned);
                self.asked.fetch_add(1, Ordering::AcqRel);
                let waiters = std::mem::take(&mut state.waiters);
                register(&mut state, context);
                drop(state);
                waiters.into_iter().for_each(Waker::wake);
            } else {
                register(&mut state, context);
            }
            Poll::Pending
        })
        .await
    }

    /// Waits until the number of requests for permits differs from `seen`, and returns it. The holders of
    /// zones should then seal them.
    pub async fn wanted(&self, seen: u64) -> u64 {
        poll_fn(|context| {
            let mut state = self.lock();
            let asked = self.asked();
            if asked != seen {
                return Poll::Ready(asked);
            }
            register(&mut state, context);
            Poll::Pending
        })
        .await
    }

    /// Number of requests to seal zones.
    #[inline]
    pub fn asked(&self) -> u64 {
        self.asked.load(Ordering::Acquire)
    }

    /// Number of requests to seal zones because the drive opened no other.
    pub(crate) fn asked_for_drive(&self) -> u64 {
        self.asked_for_drive.load(Ordering::Acquire)
    }

    /// Asks the holders of zones to seal them, though there is a permit: the drive refuses to open another
    /// zone.
    pub(crate) fn ask_for_drive(&self) {
        self.asked_for_drive.fetch_add(1, Ordering::AcqRel);
        self.ask();
    }

    /// Asks the holders of zones to seal them, and wakes those that wait in [`wanted`](Self::wanted).
    pub(crate) fn ask(&self) {
        let state = self.lock();
        self.asked.fetch_add(1, Ordering::AcqRel);
        wake(state);
    }

    /// Notes that a zone stays open on the drive because it can't be finished, which lowers the limit by one.
    pub fn lose(&self) {
        let mut state = self.lock();
        if let Some(limit) = &mut state.demand.limit {
            *limit = limit.saturating_sub(1).max(Demand::FEWEST);
        }
        // Zones may be used in turns from now on, so tasks that wait have to ask.
        wake(state);
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

    #[test]
    fn a_small_budget_has_one_permit_of_each_purpose_and_asks_the_holders_for_more() {
        let budget = budget(4, 8, 8);
        let log = [budget.try_take(Log), budget.try_take(Log)];
        assert!(log.iter().all(Option::is_some) && budget.try_take(Log).is_none());
        assert!(budget.try_take(Tables).is_some());
        let mut context = Context::from_waker(Waker::noop());
        let mut taken = pin!(budget.take(Log));
        let mut wanted = pin!(budget.wanted(0));
        assert!(wanted.as_mut().poll(&mut context).is_pending());
        assert!(taken.as_mut().poll(&mut context).is_pending());
        assert_eq!(wanted.poll(&mut context), Poll::Ready(1));
        drop(log);
        assert!(taken.poll(&mut context).is_ready());
    }

    #[test]
    fn a_task_that_was_overtaken_asks_again_and_others_do_not_make_it() {
        let budget = budget(3, 8, 8);
        let mut context = Context::from_waker(Waker::noop());
        let first = budget.try_take(Tables);
        let mut waiting = pin!(budget.take(Tables));
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        drop(first);
        let faster = budget.try_take(Tables);
        assert!(faster.is_some() && waiting.as_mut().poll(&mut context).is_pending());
        let mut wanted = pin!(budget.wanted(1));
        assert_eq!(wanted.as_mut().poll(&mut context), Poll::Ready(2), "it asked again");
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        assert!(pin!(budget.wanted(2)).poll(&mut context).is_pending(), "nothing was returned since");
        drop(faster);
        assert!(waiting.poll(&mut context).is_ready());
    }

    #[test]
    fn tasks_that_wait_when_a_zone_is_lost_ask_from_then_on() {
        let budget = budget(4, 1, 2);
        let held = [budget.try_take(Tables), budget.try_take(Tables)];
        let mut context = Context::from_waker(Waker::noop());
        let mut waiting = pin!(budget.take(Tables));
        let mut wanted = pin!(budget.wanted(0));
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        assert!(wanted.as_mut().poll(&mut context).is_pending(), "there are enough");
        budget.lose();
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        assert!(wanted.as_mut().poll(&mut context).is_ready());
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
