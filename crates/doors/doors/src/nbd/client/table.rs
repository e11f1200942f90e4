//! Requests of a connection: those to be sent, those in flight, and those with an unfetched answer.
//!
//! Cookies are never reused, so a duplicate or unsolicited reply is detected. In steady state nothing is
//! allocated. [`link`](super::link) sends and receives.

use super::link::MAX_REQUESTS;
use crate::nbd::protocol::{REQUEST_BYTES, Request};
use block::{Buffer, Data, Error, Payload, Result};
use runtime::sync::Permit;
use runtime::{LimitedRequest, TimeLimit};
use smallvec::SmallVec;
use std::task::{Context, Poll, Waker};

/// Bits of a cookie that name the slot; the others are a counter.
const SLOT_BITS: u32 = 16;
const HEADS: usize = (MAX_REQUESTS * REQUEST_BYTES).next_power_of_two();

/// Result of a request.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) result: Result<()>,
    /// Buffer of a read.
    pub(super) buffer: Option<Buffer>,
    /// Lengths and flags of a block status.
    pub(super) extents: Vec<(u32, u32)>,
}

/// A request in flight.
pub(super) struct Pending {
    pub(super) request: Request,
    pub(super) buffer: Option<Buffer>,
    /// Parts of a read that have arrived: start and end, from the read's first byte.
    pub(super) covered: SmallVec<[(u32, u32); 2]>,
    pub(super) failure: Option<Error>,
    pub(super) extents: Vec<(u32, u32)>,
    /// Time limit of the request; `None` without one.
    waiting: Option<LimitedRequest>,
    _permit: Permit,
}

enum State {
    Free,
    InFlight(Pending),
    Done(Answer),
}

struct Slot {
    state: State,
    /// Whether the caller was dropped.
    abandoned: bool,
    waker: Option<Waker>,
}

/// All requests of a connection.
#[derive(Default)]
pub(super) struct Table {
    slots: Vec<Slot>,
    free: Vec<usize>,
    in_flight: usize,
    serial: u64,
    /// Heads of the requests to be sent, and the payloads between them with their positions.
    heads: Option<Buffer>,
    payloads: Vec<(usize, Data)>,
    failure: Option<Error>,
    closing: bool,
    /// Time limit of requests; `None`: unlimited.
    limit: Option<TimeLimit>,
    driver: Option<Waker>,
}

fn slot_of(cookie: u64) -> usize {
    (cookie & ((1 << SLOT_BITS) - 1)) as usize
}

impl Table {
    /// Creates a table whose requests have this time limit.
    pub(super) fn new(limit: TimeLimit) -> Self {
        Table { limit: Some(limit), ..Table::default() }
    }

    pub(super) fn set_driver(&mut self, waker: &Waker) {
        if !self.driver.as_ref().is_some_and(|known| known.will_wake(waker)) {
            self.driver = Some(waker.clone());
        }
    }

    /// Appends a request to those to be sent. Returns its slot, or its answer if the connection has ended.
    pub(super) fn submit(
        &mut self,
        mut request: Request,
        payload: Option<Payload>,
        buffer: Option<Buffer>,
        permit: Permit,
    ) -> Result<usize, Answer> {
        if let Some(error) = &self.failure {
            return Err(Answer { result: Err(error.clone()), buffer, extents: Vec::new() });
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { state: State::Free, abandoned: false, waker: None });
            self.slots.len() - 1
        });
        self.serial += 1;
        request.cookie = (self.serial << SLOT_BITS) | index as u64;
        let nothing_waits = self.heads.is_none();
        let heads = self.heads.get_or_insert_with(|| Buffer::new(HEADS));
        heads.append(&request.encode());
        let end = heads.filled().len();
        let slices = payload.iter().flat_map(|payload| payload.slices());
        self.payloads.extend(slices.map(|slice| (end, slice.clone())));
        let pending = Pending {
            request,
            buffer,
            covered: SmallVec::new(),
            failure: None,
            extents: Vec::new(),
            waiting: self.limit.as_ref().map(TimeLimit::begin),
            _permit: permit,
        };
        self.slots[index] = Slot { state: State::InFlight(pending), abandoned: false, waker: None };
        self.in_flight += 1;
        if nothing_waits {
            self.wake_driver();
        }
        Ok(index)
    }

    fn wake_driver(&self) {
        if let Some(driver) = &self.driver {
            driver.wake_by_ref();
        }
    }

    /// Moves the requests to be sent into a payload. Returns false if there are none.
    pub(super) fn take_outgoing(&mut self, payload: &mut Payload) -> bool {
        let Some(heads) = self.heads.take() else { return false };
        let heads = heads.freeze();
        let mut begin = 0;
        for (end, data) in self.payloads.drain(..) {
            payload.push(heads.slice(begin..end));
            payload.push(data);
            begin = end;
        }
        payload.push(heads.slice(begin..heads.len()));
        true
    }

    /// Polls the answer of a request. Its slot is free once it is ready.
    pub(super) fn poll(&mut self, index: usize, context: &Context<'_>) -> Poll<Answer> {
        let slot = &mut self.slots[index];
        match std::mem::replace(&mut slot.state, State::Free) {
            State::Done(answer) => Poll::Ready(answer),
            other => {
                slot.state = other;
                if !slot.waker.as_ref().is_some_and(|known| known.will_wake(context.waker())) {
                    slot.waker = Some(context.waker().clone());
                }
                Poll::Pending
            }
        }
    }

    /// Ends the caller's wait: it has received its answer, or was dropped.
    pub(super) fn leave(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        slot.waker = None;
        match slot.state {
            State::InFlight(_) => slot.abandoned = true,
            State::Free | State::Done(_) => {
                slot.state = State::Free;
                self.free.push(index);
            }
        }
    }

    /// Returns the request that a part of a reply belongs to. The part is progress of the request.
    pub(super) fn pending(&mut self, cookie: u64) -> Result<&mut Pending> {
        match self.slots.get_mut(slot_of(cookie)).map(|slot| &mut slot.state) {
            Some(State::InFlight(pending)) if pending.request.cookie == cookie => {
                if let Some(waiting) = &pending.waiting {
                    waiting.progress();
                }
                Ok(pending)
            }
            _ => Err(Error::protocol(format!(
                "the NBD server replies to cookie {cookie:#x}, which is not in flight"
            ))),
        }
    }

    /// Ends a request with its earlier failure, or else with this result.
    pub(super) fn finish(&mut self, cookie: u64, result: Result<()>) {
        let index = slot_of(cookie);
        let slot = &mut self.slots[index];
        let State::InFlight(pending) = std::mem::replace(&mut slot.state, State::Free) else { return };
        self.in_flight -= 1;
        let result = pending.failure.map_or(result, Err);
        let mut buffer = pending.buffer;
        if let (Err(_), Some(buffer)) = (&result, &mut buffer) {
            // A failed read returns no bytes.
            buffer.clear();
        }
        if slot.abandoned {
            self.free.push(index);
        } else {
            slot.state = State::Done(Answer { result, buffer, extents: pending.extents });
            if let Some(waker) = slot.waker.take() {
                waker.wake();
            }
        }
        if self.closing && self.in_flight == 0 {
            self.wake_driver();
        }
    }

    /// Fails all requests in flight and later ones: the connection has ended.
    pub(super) fn fail(&mut self, error: &Error) {
        self.failure.get_or_insert_with(|| error.clone());
        for index in 0..self.slots.len() {
            if let State::InFlight(pending) = &self.slots[index].state {
                self.finish(pending.request.cookie, Err(error.clone()));
            }
        }
        self.heads = None;
        self.payloads.clear();
    }

    /// Accepts no more requests.
    pub(super) fn close(&mut self) {
        self.closing = true;
        self.wake_driver();
    }

    /// Whether no more requests are accepted and all have ended.
    pub(super) fn is_closed(&self) -> bool {
        self.closing && self.in_flight == 0
    }
}
