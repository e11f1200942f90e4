//! Time limit of the requests to one peer: a device, a server.
//!
//! # Promises
//! - A peer has failed once one of its requests has waited for the whole limit without progress. A request's
//!   wait begins when it is submitted, and again with each progress of a request that isn't younger. A slow
//!   peer with a long queue therefore doesn't fail, and one that answers all requests but one does.
//! - A failure is detected at most the limit after the last progress, and at least 15/16 of it. A step of the
//!   timer counts once, however long it took: time in which this process was stopped doesn't count against
//!   the peer.
//! - One timer runs for all requests of a peer, and only while there are any. A request reads no clock and
//!   allocates nothing in steady state.
//!
//! The caller ends the requests: their futures ask [`LimitedRequest::poll_failed`].

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Number of steps of the timer within the limit.
const STEPS: u32 = 16;

/// Requests that were submitted between two steps of the timer.
#[derive(Debug, Default)]
struct Batch {
    in_flight: u32,
    /// Whether one of the requests made progress since the last step.
    progress: bool,
    /// Number of steps since the last progress.
    idle: u32,
}

/// Requests in flight by the step in which they were submitted, the oldest first.
#[derive(Debug, Default)]
struct Batches {
    /// Step of the first batch.
    first: u64,
    list: VecDeque<Batch>,
    in_flight: u32,
}

impl Batches {
    /// Adds a request. Returns its step.
    fn begin(&mut self) -> u64 {
        if self.list.is_empty() {
            self.list.push_back(Batch::default());
        }
        self.in_flight += 1;
        let last = self.list.len() - 1;
        self.list[last].in_flight += 1;
        self.first + last as u64
    }

    fn of(&mut self, step: u64) -> &mut Batch {
        &mut self.list[(step - self.first) as usize]
    }

    /// Records progress of a request.
    fn progress(&mut self, step: u64) {
        self.of(step).progress = true;
    }

    /// Removes a request, which is progress.
    fn end(&mut self, step: u64) {
        self.in_flight -= 1;
        let batch = self.of(step);
        batch.in_flight -= 1;
        batch.progress = true;
    }

    /// Begins the next step. Returns whether a request has waited for the whole limit.
    fn step(&mut self) -> bool {
        let (mut progress, mut failed) = (false, false);
        for batch in &mut self.list {
            progress |= std::mem::take(&mut batch.progress);
            batch.idle = if progress { 0 } else { batch.idle + 1 };
            failed |= batch.in_flight > 0 && batch.idle >= STEPS;
        }
        while self.list.front().is_some_and(|batch| batch.in_flight == 0) {
            self.list.pop_front();
            self.first += 1;
        }
        self.list.push_back(Batch::default());
        failed
    }
}

#[derive(Debug)]
struct Limit {
    limit: Duration,
    batches: RefCell<Batches>,
    /// Wakers of the waiting requests, by place, and the free places.
    wakers: RefCell<(Vec<Option<Waker>>, Vec<usize>)>,
    is_stepping: Cell<bool>,
    /// Number of failures so far: requests that were submitted before the last one have failed.
    failures: Cell<u64>,
}

/// Time limit of the requests of one shard to one peer. Clones are the same limit.
#[derive(Debug, Clone)]
pub struct TimeLimit(Rc<Limit>);

/// A request in flight, until this is dropped.
#[derive(Debug)]
#[must_use = "the request ends when this is dropped"]
pub struct LimitedRequest {
    limit: Rc<Limit>,
    /// Step in which the request was submitted; `None` for a watcher.
    step: Option<u64>,
    /// Place of the waker; `None` until the request has waited.
    place: Option<usize>,
    /// Number of failures when the request was submitted.
    failures: u64,
}

impl TimeLimit {
    /// Creates a limit without requests.
    pub fn new(limit: Duration) -> Self {
        TimeLimit(Rc::new(Limit {
            limit,
            batches: RefCell::default(),
            wakers: RefCell::default(),
            is_stepping: Cell::new(false),
            failures: Cell::new(0),
        }))
    }

    /// The limit.
    pub fn limit(&self) -> Duration {
        self.0.limit
    }

    /// Submits a request.
    #[inline]
    pub fn begin(&self) -> LimitedRequest {
        let step = self.0.batches.borrow_mut().begin();
        if !self.0.is_stepping.replace(true) {
            crate::spawn(run(self.0.clone())).detach();
        }
        LimitedRequest {
            limit: self.0.clone(),
            step: Some(step),
            place: None,
            failures: self.0.failures.get(),
        }
    }

    /// Watches for later failures of the requests, without a request of its own.
    pub fn watch(&self) -> LimitedRequest {
        LimitedRequest { limit: self.0.clone(), step: None, place: None, failures: self.0.failures.get() }
    }
}

/// Steps the timer while there are requests.
async fn run(limit: Rc<Limit>) {
    loop {
        crate::sleep(limit.limit / STEPS).await;
        if limit.batches.borrow().in_flight == 0 {
            // Progress of ended requests must not count for later ones.
            limit.batches.borrow_mut().list.clear();
            return limit.is_stepping.set(false);
        }
        let failed = limit.batches.borrow_mut().step();
        if failed {
            limit.failures.set(limit.failures.get() + 1);
            let wakers: Vec<Waker> =
                limit.wakers.borrow_mut().0.iter_mut().filter_map(Option::take).collect();
            wakers.into_iter().for_each(Waker::wake);
        }
    }
}

impl LimitedRequest {
    /// Records progress of the request, such as a part of its reply.
    pub fn progress(&self) {
        if let Some(step) = self.step {
            self.limit.batches.borrow_mut().progress(step);
        }
    }

    /// Returns `Ready` once the peer has failed after the request was submitted; until then the task's waker
    /// is registered.
    #[inline]
    pub fn poll_failed(&mut self, context: &Context<'_>) -> Poll<()> {
        if self.limit.failures.get() != self.failures {
            return Poll::Ready(());
        }
        let mut wakers = self.limit.wakers.borrow_mut();
        let (places, free) = &mut *wakers;
        let place = *self.place.get_or_insert_with(|| {
            free.pop().unwrap_or_else(|| {
                places.push(None);
                places.len() - 1
            })
        });
        if !places[place].as_ref().is_some_and(|known| known.will_wake(context.waker())) {
            places[place] = Some(context.waker().clone());
        }
        Poll::Pending
    }
}

impl Drop for LimitedRequest {
    #[inline]
    fn drop(&mut self) {
        if let Some(step) = self.step {
            self.limit.batches.borrow_mut().end(step);
        }
        if let Some(place) = self.place {
            let waker = {
                let mut wakers = self.limit.wakers.borrow_mut();
                wakers.1.push(place);
                wakers.0[place].take()
            };
            drop(waker);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps at most `most` times, until the peer fails. Returns the number of steps.
    fn fails_after(batches: &mut Batches, most: u32) -> Option<u32> {
        (1..=most).find(|_| batches.step())
    }

    #[test]
    fn a_request_without_an_answer_fails_after_the_limit() {
        let mut batches = Batches::default();
        batches.begin();
        assert_eq!(fails_after(&mut batches, 100), Some(STEPS));
    }

    #[test]
    fn each_answer_extends_the_wait_of_requests_that_are_not_older() {
        let mut batches = Batches::default();
        // 128 queued requests that the peer answers in order, one in each half of the limit.
        let queue: Vec<u64> = (0..128).map(|_| batches.begin()).collect();
        for request in queue {
            assert_eq!(fails_after(&mut batches, STEPS / 2), None);
            batches.end(request);
        }
        assert_eq!((fails_after(&mut batches, 100), batches.in_flight, batches.list.len()), (None, 0, 1));
    }

    #[test]
    fn answers_to_younger_requests_do_not_extend_a_wait() {
        let mut batches = Batches::default();
        let forgotten = batches.begin();
        for step in 1..STEPS {
            assert!(!batches.step());
            let younger = batches.begin();
            batches.progress(younger);
            batches.end(younger);
            assert!(batches.list.len() as u32 <= step + 1);
        }
        assert!(batches.step(), "it failed although all others are answered");
        batches.end(forgotten);
        assert!(fails_after(&mut batches, 100).is_none());
    }

    #[test]
    fn progress_of_a_request_extends_its_own_wait() {
        let mut batches = Batches::default();
        let long = batches.begin();
        for _ in 0..10 {
            assert_eq!(fails_after(&mut batches, STEPS - 1), None);
            batches.progress(long);
        }
        batches.step();
        assert_eq!(fails_after(&mut batches, 100), Some(STEPS));
    }

    #[test]
    fn all_requests_of_a_peer_fail_within_the_limit_and_later_ones_wait_again() {
        let main = || async {
            let limit = TimeLimit::new(Duration::from_secs(16));
            for _ in 0..2 {
                let began = crate::now();
                let failed = |mut request: LimitedRequest| {
                    crate::spawn(async move {
                        std::future::poll_fn(|context| request.poll_failed(context)).await;
                        crate::now()
                    })
                };
                let first = failed(limit.begin());
                crate::sleep(Duration::from_millis(2500)).await;
                let second = failed(limit.begin());
                assert_eq!((first.await - began, second.await - began), {
                    let limit = Duration::from_secs(16);
                    (limit, limit)
                });
                // The timer ends with the last request.
                crate::sleep(Duration::from_millis(1500)).await;
                assert!(!limit.0.is_stepping.get() && limit.0.batches.borrow().in_flight == 0);
            }
        };
        crate::simulate(crate::Simulation::new(1), main).expect("it ends");
    }
}
