//! Requests that end when all their items have ended, in reused slots.
//!
//! The caller divides a request into items, which end in any order. In steady state a request allocates
//! nothing. The items and their order are the caller's.

use crate::sync::Permit;
use block::Result;
use slab::Slab;
use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// Key of a request; reused once the request has ended and has no waiter.
pub type RequestKey = usize;

#[derive(Debug)]
struct Request {
    /// Number of items that haven't ended.
    left: u32,
    outcome: Result<()>,
    waker: Option<Waker>,
    /// Whether the waiter was dropped.
    is_abandoned: bool,
    /// Memory permit of the request, released when the last item has ended.
    room: Option<Permit>,
}

/// Requests in flight of one shard.
#[derive(Debug, Default)]
pub struct Requests(RefCell<Slab<Request>>);

impl Requests {
    /// Begins a request of `items` items, at least 1, which holds `room` until they have ended. The caller
    /// must [wait](Self::wait) for it, or create that future and drop it.
    pub fn begin(&self, items: u32, room: Option<Permit>) -> RequestKey {
        let request = Request { left: items, outcome: Ok(()), waker: None, is_abandoned: false, room };
        self.0.borrow_mut().insert(request)
    }

    /// Adds an item: one of the request's items was split in two.
    pub fn item_was_cut(&self, key: RequestKey) {
        self.0.borrow_mut()[key].left += 1;
    }

    /// Ends an item. The first error is the result of the request.
    pub fn item_ended(&self, key: RequestKey, outcome: &Result<()>) {
        let mut all = self.0.borrow_mut();
        let request = &mut all[key];
        if let (Err(error), Ok(())) = (outcome, &request.outcome) {
            request.outcome = Err(error.clone());
        }
        request.left -= 1;
        if request.left > 0 {
            return;
        }
        let (room, waker) = (request.room.take(), request.waker.take());
        if request.is_abandoned {
            all.remove(key);
        }
        // The permit and the waker may run code that uses this object.
        drop(all);
        if let Some(waker) = waker {
            waker.wake();
        }
        drop(room);
    }

    /// Number of requests that haven't ended, or whose waiter hasn't received the result.
    pub fn len(&self) -> usize {
        self.0.borrow().len()
    }

    /// Whether there is no request.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits until all items have ended. Dropping the future, polled or not, ends only the wait.
    pub fn wait(&self, key: RequestKey) -> Waiting<'_> {
        Waiting { requests: self, key: Some(key) }
    }
}

/// Future of [`Requests::wait`]; its output is the first error of an item, if there was one.
#[derive(Debug)]
#[must_use = "dropped, it lets the request go on without anybody who hears of errors"]
pub struct Waiting<'a> {
    requests: &'a Requests,
    /// `None` once the request has ended.
    key: Option<RequestKey>,
}

impl Future for Waiting<'_> {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let key = self.key.expect("a request is not polled again once it has ended");
        let mut all = self.requests.0.borrow_mut();
        let request = &mut all[key];
        if request.left > 0 {
            if !request.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
                request.waker = Some(context.waker().clone());
            }
            return Poll::Pending;
        }
        let outcome = all.remove(key).outcome;
        drop(all);
        self.key = None;
        Poll::Ready(outcome)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Some(key) = self.key else { return };
        let mut all = self.requests.0.borrow_mut();
        let request = &mut all[key];
        (request.is_abandoned, request.waker) = (true, None);
        if request.left == 0 {
            all.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::Error;

    fn poll(waiting: &mut Waiting<'_>) -> Poll<Result<()>> {
        Pin::new(waiting).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_request_ends_with_its_last_item_and_has_the_first_error() {
        let requests = Requests::default();
        let key = requests.begin(2, None);
        let mut waiting = requests.wait(key);
        requests.item_was_cut(key);
        requests.item_ended(key, &Ok(()));
        requests.item_ended(key, &Err(Error::io("first")));
        assert_eq!(poll(&mut waiting), Poll::Pending);
        requests.item_ended(key, &Err(Error::no_space("second")));
        assert_eq!(poll(&mut waiting), Poll::Ready(Err(Error::io("first"))));
        drop(waiting);
        assert!(requests.is_empty());
    }

    #[test]
    fn a_request_that_nobody_waits_for_ends_on_its_own() {
        let requests = Requests::default();
        let (early, late) = (requests.begin(1, None), requests.begin(1, None));
        drop(requests.wait(early));
        requests.item_ended(early, &Ok(()));
        assert_eq!(requests.len(), 1);
        let mut waiting = requests.wait(late);
        assert_eq!(poll(&mut waiting), Poll::Pending);
        requests.item_ended(late, &Ok(()));
        drop(waiting);
        assert!(requests.is_empty());
    }
}
