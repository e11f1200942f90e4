//! Tasks for which the drive opened no zone: they try again one after the other, at each finish of a zone.
//!
//! A *stall* begins when the drive refuses the first task, and ends when any zone is opened. All tasks share
//! its duration, so a drive that stays refused fails the last task as soon as the first.

use block::Error;
use runtime::Instant;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

/// Time between attempts to open a zone that the drive refuses, because it has its maximum of open zones.
pub(crate) const BETWEEN_BUSY: Duration = Duration::from_millis(10);
/// Duration of a stall after which tasks give up.
pub(crate) const MAX_BUSY: Duration = Duration::from_secs(10);
/// Time without a refusal after which the next one begins another stall: slots of the drive may have been
/// free meanwhile.
const BETWEEN_STALLS: Duration = Duration::from_secs(1);

/// Adds to the error of a drive that opened no zone for [`MAX_BUSY`] how long that was.
pub(crate) fn still_busy(error: &Error, stalled: Duration) -> Error {
    error.in_context(format!(
        "open zones: the drive has opened none for {} s; expected one within {} s; close zones of other programs",
        stalled.as_secs(),
        MAX_BUSY.as_secs()
    ))
}

/// Time in which the drive opened no zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stall {
    begun: Instant,
    /// Time of the last refusal.
    refused: Instant,
}

impl Stall {
    /// Returns the stall after a refusal at `now`: the previous one, unless it is over.
    fn after_refusal(previous: Option<Stall>, now: Instant) -> Stall {
        let begun = match previous {
            Some(stall) if now - stall.refused < BETWEEN_STALLS => stall.begun,
            _ => now,
        };
        Stall { begun, refused: now }
    }
}

#[derive(Debug, Default)]
struct State {
    /// Tickets of waiting tasks in the order of arrival.
    refused: VecDeque<(u64, Option<Waker>)>,
    last_ticket: u64,
    stall: Option<Stall>,
    /// Number of zones that were finished.
    finished: u64,
}

/// Queue of the tasks for which the drive opened no zone.
#[derive(Debug, Default)]
pub(crate) struct DriveQueue(Mutex<State>);

/// Place of a task in the queue; left when dropped.
#[derive(Debug)]
pub(crate) struct DriveTurn {
    queue: Arc<DriveQueue>,
    ticket: u64,
}

impl DriveTurn {
    /// Waits until all tasks that came earlier have opened their zones or given up.
    pub(crate) async fn first(&self) {
        self.wait(|state| self.is_first_of(state)).await;
    }

    /// Whether all tasks that came earlier have opened their zones or given up.
    pub(crate) fn is_first(&self) -> bool {
        self.is_first_of(&self.queue.lock())
    }

    fn is_first_of(&self, state: &State) -> bool {
        state.refused.front().is_none_or(|(ticket, _)| *ticket == self.ticket)
    }

    /// Waits until the number of finished zones differs from `seen`.
    pub(crate) async fn finish(&self, seen: u64) {
        self.wait(|state| state.finished != seen).await;
    }

    async fn wait(&self, is_over: impl Fn(&State) -> bool) {
        poll_fn(|context| {
            let mut state = self.queue.lock();
            if is_over(&state) {
                return Poll::Ready(());
            }
            let place = state.refused.iter_mut().find(|(ticket, _)| *ticket == self.ticket);
            if let Some((_, waker)) = place {
                *waker = Some(context.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }
}

impl Drop for DriveTurn {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        state.refused.retain(|(ticket, _)| *ticket != self.ticket);
        wake_first(state);
    }
}

/// Wakes the first of the waiting tasks.
fn wake_first(mut state: MutexGuard<'_, State>) {
    let waker = state.refused.front_mut().and_then(|(_, waker)| waker.take());
    drop(state);
    if let Some(waker) = waker {
        waker.wake();
    }
}

impl DriveQueue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins the queue.
    pub(crate) fn join(self: &Arc<Self>) -> DriveTurn {
        let mut state = self.lock();
        state.last_ticket += 1;
        let ticket = state.last_ticket;
        state.refused.push_back((ticket, None));
        DriveTurn { queue: self.clone(), ticket }
    }

    /// Whether no task waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().refused.is_empty()
    }

    /// Notes that the drive refused to open a zone. Returns the duration of the stall.
    pub(crate) fn note_refused(&self, now: Instant) -> Duration {
        let mut state = self.lock();
        let stall = Stall::after_refusal(state.stall, now);
        state.stall = Some(stall);
        now - stall.begun
    }

    /// Notes that the drive opened a zone, which ends the stall.
    pub(crate) fn note_opened(&self) {
        self.lock().stall = None;
    }

    /// Notes that a zone was finished, or reset while it was open, so that the drive may open another.
    pub(crate) fn note_finished(&self) {
        let mut state = self.lock();
        state.finished += 1;
        wake_first(state);
    }

    /// Number of zones that were finished.
    pub(crate) fn finished(&self) -> u64 {
        self.lock().finished
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::Context;

    #[test]
    fn tasks_that_the_drive_refused_try_again_in_order_at_each_finish() {
        let queue: Arc<DriveQueue> = Arc::default();
        let mut context = Context::from_waker(Waker::noop());
        let (first, second) = (queue.join(), queue.join());
        assert!(first.is_first() && !second.is_first());
        let mut turn = Box::pin(second.first());
        assert!(turn.as_mut().poll(&mut context).is_pending());
        let seen = queue.finished();
        {
            let mut finish = pin!(first.finish(seen));
            assert!(finish.as_mut().poll(&mut context).is_pending());
            queue.note_finished();
            assert!(finish.poll(&mut context).is_ready());
        }
        assert!(turn.as_mut().poll(&mut context).is_pending());
        drop(first);
        assert!(turn.as_mut().poll(&mut context).is_ready() && !queue.is_empty());
        drop(turn);
        drop(second);
        assert!(queue.is_empty());
    }

    #[test]
    fn a_stall_lasts_from_the_first_refusal_until_a_zone_is_opened() {
        let queue = DriveQueue::default();
        let at = |milliseconds: u64| Instant::from_nanoseconds(milliseconds * 1_000_000);
        let refused = |milliseconds| queue.note_refused(at(milliseconds)).as_millis();
        assert_eq!([refused(500), refused(1000), refused(1900), refused(2899)], [0, 500, 1400, 2399]);
        queue.note_opened();
        assert_eq!([refused(2900), refused(3000)], [0, 100]);
        assert_eq!(refused(4000), 0, "no task was refused for a second");
    }
}
