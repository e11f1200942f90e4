//! One connection of a client: requests in, replies out, driven by one task.
//!
//! Promises: requests that are made before the task's next turn leave in one vectored send; replies find their
//! requests by cookie, in any order; a read's data goes to the caller's buffer, directly where at least
//! [`DIRECT_BYTES`] of it are still to come; a request ends even if its caller has gone. At most [`MOST_REQUESTS`] are
//! in flight; who comes then waits. Bytes that aren't the protocol end the connection: everything in flight fails.

use super::handshake::RemoteExport;
use super::reply_stream::ReplyStream;
use crate::nbd::protocol::{REQUEST_BYTES, Request, command};
use block::{Buffer, Call, Data, Error, Payload, Result};
use runtime::net::{Shutdown, Stream};
use runtime::sync::{Permit, Semaphore};
use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// How many requests are in flight on a connection at most.
pub(super) const MOST_REQUESTS: usize = 256;
/// From so many missing bytes on, a read is received directly into its buffer.
pub(super) const DIRECT_BYTES: usize = 64 << 10;
const HEADS: usize = (MOST_REQUESTS + 1).next_power_of_two() * 32;

/// What a request returned.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) result: Result<()>,
    /// The buffer that a read brought.
    pub(super) buffer: Option<Buffer>,
    /// Lengths and flags of a block status.
    pub(super) extents: Vec<(u32, u32)>,
}

/// A request in flight.
pub(super) struct Pending {
    pub(super) request: Request,
    pub(super) buffer: Option<Buffer>,
    /// The parts of a read that have arrived, by their distance from its beginning.
    pub(super) covered: Vec<(u32, u32)>,
    pub(super) failure: Option<Error>,
    pub(super) extents: Vec<(u32, u32)>,
    _permit: Permit,
}

enum State {
    Free,
    InFlight(Box<Pending>),
    Done(Answer),
}

struct Slot {
    state: State,
    /// Nobody waits for it any more.
    abandoned: bool,
    waker: Option<Waker>,
}

/// Requests in flight, by cookie, and those that are to be sent.
pub(super) struct Table {
    slots: Vec<Slot>,
    free: Vec<usize>,
    in_flight: usize,
    serial: u64,
    heads: Option<Buffer>,
    pieces: Vec<(usize, Data)>,
    failure: Option<Error>,
    closing: bool,
    driver: Option<Waker>,
    /// Boxes of requests that have ended, to be used again.
    spare: Vec<Box<Pending>>,
}

const SLOT_BITS: u32 = 16;

impl Table {
    /// The request that a reply is for.
    pub(super) fn pending(&mut self, cookie: u64) -> Result<&mut Pending> {
        let slot = self.slots.get_mut((cookie & ((1 << SLOT_BITS) - 1)) as usize);
        match slot.map(|slot| &mut slot.state) {
            Some(State::InFlight(pending)) if pending.request.cookie == cookie => Ok(pending),
            _ => Err(Error::protocol(format!("a reply to a request that isn't in flight: cookie {cookie:#x}"))),
        }
    }

    /// A request has ended: with what it failed with, or with this.
    pub(super) fn finish(&mut self, cookie: u64, result: Result<()>) {
        let index = (cookie & ((1 << SLOT_BITS) - 1)) as usize;
        let slot = &mut self.slots[index];
        let State::InFlight(mut pending) = std::mem::replace(&mut slot.state, State::Free) else { return };
        self.in_flight -= 1;
        let result = pending.failure.take().map_or(result, Err);
        let mut buffer = pending.buffer.take();
        if let (Err(_), Some(buffer)) = (&result, &mut buffer) {
            // A failed read shows nothing.
            buffer.clear();
        }
        let answer = Answer { result, buffer, extents: std::mem::take(&mut pending.extents) };
        if slot.abandoned {
            self.free.push(index);
        } else {
            slot.state = State::Done(answer);
            if let Some(waker) = slot.waker.take() {
                waker.wake();
            }
        }
        drop(pending);
    }

    fn fail(&mut self, error: &Error) {
        self.failure.get_or_insert_with(|| error.clone());
        let cookies: Vec<u64> = self.slots.iter().filter_map(|slot| match &slot.state {
            State::InFlight(pending) => Some(pending.request.cookie),
            _ => None,
        }).collect();
        for cookie in cookies {
            self.finish(cookie, Err(error.clone()));
        }
        (self.heads, self.pieces) = (None, Vec::new());
    }
}
