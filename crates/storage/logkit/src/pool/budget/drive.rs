//! Tasks for which the drive opened no zone: they try again one after the other, at each finish of a zone.
//!
//! A drive that refused a task is *scarce* for [`MAX_BUSY`] after the last refusal. Meanwhile lanes open
//! their zones before they take entries, so that no entry waits in the hand of a lane without a zone while
//! another lane has one: that lane would have nothing to write, and pass its zone on after each record.
//!
//! A *stall* begins when the drive refuses a task, and ends when any zone is opened, when no task waits any
//! more, or after [`MAX_BUSY`]. At that limit all waiting tasks fail, the last as soon as the first. The next
//! refusal begins another stall.

use block::Error;
use runtime::Instant;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

/// Time between attempts to open a zone that the drive refuses, because it has its maximum of open zones.
pub(crate) const BETWEEN_BUSY: Duration = Duration::from_millis(10);
/// Duration of a stall after which tasks fail, and time for which a drive is scarce after a refusal.
pub(crate) const MAX_BUSY: Duration = Duration::from_secs(10);

/// Adds to the error of a drive that opened no zone for [`MAX_BUSY`] how long that was.
pub(crate) fn still_busy(error: &Error, stalled: Duration) -> Error {
    error.in_context(format!(
        "open zones: the drive has opened none for {} s; expected one within {} s; close zones of other programs",
        stalled.as_secs(),
        MAX_BUSY.as_secs()
    ))
}

#[derive(Debug, Default)]
struct State {
    /// Tickets of waiting tasks in the order of arrival.
    refused: VecDeque<(u64, Option<Waker>)>,
    last_ticket: u64,
    /// Begin of the stall.
    stall: Option<Instant>,
    /// Error of the last stall that reached the limit, and the last ticket of its tasks.
    given_up: Option<(u64, Error)>,
    /// Number of zones that were finished.
    finished: u64,
    /// Number of zones that are being finished.
    finishing: u32,
    /// Time of the last refusal.
    last_refusal: Option<Instant>,
}

impl State {
    fn has_given_up(&self, ticket: u64) -> bool {
        self.given_up.as_ref().is_some_and(|(last, _)| ticket <= *last)
    }

    fn given_up_by(&self, ticket: u64) -> Option<Error> {
        self.given_up.as_ref().filter(|(last, _)| ticket <= *last).map(|(_, error)| error.clone())
    }
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
    /// Waits until all tasks that came earlier have opened their zones or given up, or this task has to give
    /// up.
    pub(crate) async fn first(&self) {
        self.wait(|state| self.is_first_of(state) || state.has_given_up(self.ticket)).await;
    }

    /// Whether all tasks that came earlier have opened their zones or given up.
    pub(crate) fn is_first(&self) -> bool {
        self.is_first_of(&self.queue.lock())
    }

    /// Notes that the drive refused to open a zone for this task at `now`. At the limit of the stall all
    /// waiting tasks fail.
    pub(crate) fn note_refused(&self, error: &Error, now: Instant) {
        let mut state = self.queue.lock();
        state.last_refusal = Some(now);
        if state.has_given_up(self.ticket) {
            return;
        }
        let stalled = now - *state.stall.get_or_insert(now);
        if stalled < MAX_BUSY {
            return;
        }
        state.stall = None;
        state.given_up = Some((state.last_ticket, still_busy(error, stalled)));
        let woken: Vec<Waker> = state.refused.iter_mut().filter_map(|(_, waker)| waker.take()).collect();
        drop(state);
        woken.into_iter().for_each(Waker::wake);
    }

    /// Error of this task, if it has to fail.
    pub(crate) fn given_up(&self) -> Option<Error> {
        self.queue.lock().given_up_by(self.ticket)
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
        if state.refused.is_empty() {
            state.stall = None;
        }
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

    /// Number of tasks that wait and get none of the zones that are being finished.
    pub(crate) fn waiting(&self) -> u32 {
        let state = self.lock();
        (state.refused.len() as u32).saturating_sub(state.finishing)
    }

    /// Whether the drive refused a task so shortly before `now` that it may refuse the next one.
    pub(crate) fn is_scarce(&self, now: Instant) -> bool {
        self.lock().last_refusal.is_some_and(|last| now - last < MAX_BUSY)
    }

    /// Notes that the drive opened a zone, which ends the stall.
    pub(crate) fn note_opened(&self) {
        self.lock().stall = None;
    }

    /// Notes that a zone which is open on the drive is being finished. [`end_finish`](Self::end_finish)
    /// follows.
    pub(crate) fn begin_finish(&self) {
        self.lock().finishing += 1;
    }

    /// Notes that a zone was finished, or can't be.
    pub(crate) fn end_finish(&self) {
        let mut state = self.lock();
        state.finishing -= 1;
        state.finished += 1;
        wake_first(state);
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

    fn at(milliseconds: u64) -> Instant {
        Instant::from_nanoseconds(milliseconds * 1_000_000)
    }

    #[test]
    fn all_waiting_tasks_give_up_together_ten_seconds_after_the_first_refusal() {
        let queue: Arc<DriveQueue> = Arc::default();
        let error = Error::busy("14 zones are open");
        let mut context = Context::from_waker(Waker::noop());
        let (first, second) = (queue.join(), queue.join());
        // Refused attempts may be slow.
        [500, 5000, 10_499].into_iter().for_each(|now| first.note_refused(&error, at(now)));
        let mut turn = Box::pin(second.first());
        assert!(turn.as_mut().poll(&mut context).is_pending() && first.given_up().is_none());
        first.note_refused(&error, at(10_500));
        assert!(turn.as_mut().poll(&mut context).is_ready());
        assert!(first.given_up().is_some() && second.given_up().is_some());
        // The next task has 10 s of its own, though others still wait.
        let third = queue.join();
        second.note_refused(&error, at(10_600));
        third.note_refused(&error, at(10_700));
        third.note_refused(&error, at(20_699));
        assert_eq!(third.given_up(), None);
        third.note_refused(&error, at(20_700));
        assert!(third.given_up().is_some());
    }

    #[test]
    fn a_drive_is_scarce_for_ten_seconds_after_each_refusal() {
        let queue: Arc<DriveQueue> = Arc::default();
        assert!(!queue.is_scarce(at(0)));
        let turn = queue.join();
        [1_000, 3_000]
            .into_iter()
            .for_each(|now| turn.note_refused(&Error::busy("14 zones are open"), at(now)));
        queue.note_opened();
        drop(turn);
        assert!(queue.is_scarce(at(12_999)) && !queue.is_scarce(at(13_000)));
    }

    #[test]
    fn zones_that_are_being_finished_suffice_for_as_many_tasks() {
        let queue: Arc<DriveQueue> = Arc::default();
        queue.begin_finish();
        let (_first, second) = (queue.join(), queue.join());
        assert_eq!(queue.waiting(), 1);
        drop(second);
        assert_eq!(queue.waiting(), 0);
        queue.end_finish();
        assert_eq!((queue.waiting(), queue.finished()), (1, 1));
    }

    #[test]
    fn a_stall_ends_when_a_zone_is_opened_or_no_task_waits() {
        let queue: Arc<DriveQueue> = Arc::default();
        let error = Error::busy("14 zones are open");
        let first = queue.join();
        first.note_refused(&error, at(0));
        queue.note_opened();
        [9_000, 18_999].into_iter().for_each(|now| first.note_refused(&error, at(now)));
        assert_eq!(first.given_up(), None);
        drop(first);
        let second = queue.join();
        second.note_refused(&error, at(19_500));
        assert_eq!(second.given_up(), None);
    }
}
