//! Requests that wait until all their items have ended, in slots that are used again.

use block::Result;
use runtime::sync::Permit;
use slab::Slab;
use std::cell::RefCell;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// Which request; given back when it has ended.
pub type Key = usize;

struct Request {
    /// Items that haven't ended.
    left: u32,
    outcome: Result<()>,
    waker: Option<Waker>,
    /// Nobody waits any more.
    is_abandoned: bool,
    /// Its share of the room for what waits in memory.
    _room: Option<Permit>,
}

/// All requests that haven't ended.
#[derive(Default)]
pub struct Requests(RefCell<Slab<Request>>);

impl Requests {
    /// A request of so many items.
    pub fn begin(&self, items: u32, room: Option<Permit>) -> Key {
        let request = Request { left: items, outcome: Ok(()), waker: None, is_abandoned: false, _room: room };
        self.0.borrow_mut().insert(request)
    }

    /// One of its items has ended.
    pub fn item_ended(&self, key: Key, outcome: &Result<()>) {
        let mut all = self.0.borrow_mut();
        let request = &mut all[key];
        if let (Err(error), Ok(())) = (outcome, &request.outcome) {
            request.outcome = Err(error.clone());
        }
        request.left -= 1;
        if request.left > 0 {
            return;
        }
        if request.is_abandoned {
            let ended = all.remove(key);
            drop(all);
            drop(ended);
        } else if let Some(waker) = request.waker.take() {
            drop(all);
            waker.wake();
        }
    }

    /// Waits until all items have ended. Dropping it stops the waiting, not the request.
    pub async fn wait(&self, key: Key) -> Result<()> {
        struct Waiting<'a>(&'a Requests, Option<Key>);
        impl Drop for Waiting<'_> {
            fn drop(&mut self) {
                let Some(key) = self.1 else { return };
                let mut all = self.0.0.borrow_mut();
                let request = &mut all[key];
                (request.is_abandoned, request.waker) = (true, None);
                if request.left == 0 {
                    let ended = all.remove(key);
                    drop(all);
                    drop(ended);
                }
            }
        }
        let mut waiting = Waiting(self, Some(key));
        poll_fn(move |context| {
            let waiting: &mut Waiting<'_> = &mut waiting;
            let mut all = waiting.0.0.borrow_mut();
            let request = &mut all[key];
            if request.left > 0 {
                if !request.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
                    request.waker = Some(context.waker().clone());
                }
                return Poll::Pending;
            }
            let ended = all.remove(key);
            drop(all);
            waiting.1 = None;
            Poll::Ready(ended.outcome.clone())
        })
        .await
    }
}
