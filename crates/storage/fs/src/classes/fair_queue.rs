//! Start-time fair queueing with bounded depth, SFQ(D): the order in which the requests of classes are
//! started. Does no I/O and has no clock.
//!
//! Each class has a *tag*, a virtual time. A started request advances the tag of its class by its cost
//! divided by the shares of the class. Among the classes with waiting requests, the one with the smallest tag
//! is next. The virtual time of the queue is the largest tag at which a request was started. A class that
//! begins to wait gets at least this tag, so an idle class saves up no credit. A request is started while the
//! cost of requests in flight is below the depth. So a new request of a class with large shares waits at most
//! for the requests in flight, whose cost is bounded by the depth and the size of one request.
//!
//! W. Jin, J. S. Chase, J. Kaur: Interposed Proportional Sharing for a Storage Service Utility,
//! SIGMETRICS 2004.

use std::collections::VecDeque;

/// Number of a class.
pub type ClassNumber = usize;
/// Number of the class of requests without a class.
pub const DEFAULT: ClassNumber = 0;
/// Number of the class of the cleaner, scrub and defragmentation.
pub const BACKGROUND: ClassNumber = 1;
/// Most shares of a class.
pub const MAX_SHARES: u32 = 1000;

#[derive(Debug)]
struct Waiting<T> {
    number: u64,
    cost: u64,
    waiter: T,
}

#[derive(Debug)]
struct Flow<T> {
    shares: u32,
    /// Start tag of the next request of the class.
    tag: u128,
    /// Waiting requests in order of arrival.
    waiting: VecDeque<Waiting<T>>,
}

impl<T> Flow<T> {
    fn new(shares: u32, tag: u128) -> Self {
        Flow { shares, tag, waiting: VecDeque::new() }
    }

    /// Starts a request. Returns its start tag.
    fn start(&mut self, cost: u64) -> u128 {
        let start = self.tag;
        // Doesn't overflow: costs are below 2^54.
        self.tag += u128::from(cost * u64::from(MAX_SHARES) / u64::from(self.shares));
        start
    }
}

/// Queues of the classes; `T` identifies a waiting request to the caller.
#[derive(Debug)]
pub struct FairQueue<T> {
    flows: Vec<Flow<T>>,
    virtual_time: u128,
    /// Cost of the requests in flight.
    in_flight: u64,
    /// Cost of the requests in flight of the background class.
    background: u64,
    depth: u64,
    /// Number of waiting requests.
    waiting: usize,
    arrivals: u64,
}

impl<T> FairQueue<T> {
    /// Returns queues without requests; the cost of requests in flight is bounded by `depth`.
    pub fn new(depth: u64) -> Self {
        let (flows, depth) = (Vec::new(), depth.max(1));
        let (virtual_time, in_flight, background, waiting, arrivals) = (0, 0, 0, 0, 0);
        FairQueue { flows, virtual_time, in_flight, background, depth, waiting, arrivals }
    }

    /// Makes a class, or changes its shares (1 to [`MAX_SHARES`]) for requests that haven't started.
    pub fn set(&mut self, class: ClassNumber, shares: u32) {
        let (now, shares) = (self.virtual_time, shares.clamp(1, MAX_SHARES));
        while self.flows.len() <= class {
            self.flows.push(Flow::new(shares, now));
        }
        let flow = &mut self.flows[class];
        // The lead of a class over others is an amount of cost: it is rescaled to the new shares.
        let ahead = flow.tag.saturating_sub(now);
        flow.tag = flow.tag.min(now) + ahead * u128::from(flow.shares) / u128::from(shares);
        flow.shares = shares;
    }

    /// Number of classes.
    pub fn classes(&self) -> usize {
        self.flows.len()
    }

    /// Shares of a class.
    pub fn shares(&self, class: ClassNumber) -> u32 {
        self.flows[class].shares
    }

    /// Number of waiting requests.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Cost of the requests in flight.
    pub fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Whether the depth bounds the requests in flight. The default class isn't bounded while no other class
    /// competes with it.
    #[inline]
    fn is_bounded(&self) -> bool {
        self.flows.len() > 2 || self.waiting > 0 || self.background > 0
    }

    /// Starts a request that needn't wait. Returns false for one that must [wait](Self::wait).
    #[inline]
    pub fn try_start(&mut self, class: ClassNumber, cost: u64) -> bool {
        if class == DEFAULT && !self.is_bounded() {
            // Without competition, a request doesn't advance the tag of its class.
            self.in_flight += cost;
            return true;
        }
        self.try_start_bounded(class, cost)
    }

    fn try_start_bounded(&mut self, class: ClassNumber, cost: u64) -> bool {
        if self.waiting > 0 || self.in_flight >= self.depth {
            return false;
        }
        let flow = &mut self.flows[class];
        flow.tag = flow.tag.max(self.virtual_time);
        self.virtual_time = flow.start(cost);
        self.start_now(class, cost);
        true
    }

    /// Starts a request that must not wait, outside of the shares of its class.
    pub fn start_now(&mut self, class: ClassNumber, cost: u64) {
        self.in_flight += cost;
        if class == BACKGROUND {
            self.background += cost;
        }
    }

    /// Queues a request. Returns its number, for [`waiter`](Self::waiter) and [`leave`](Self::leave).
    pub fn wait(&mut self, class: ClassNumber, cost: u64, waiter: T) -> u64 {
        self.arrivals += 1;
        self.waiting += 1;
        let flow = &mut self.flows[class];
        if flow.waiting.is_empty() {
            flow.tag = flow.tag.max(self.virtual_time);
        }
        flow.waiting.push_back(Waiting { number: self.arrivals, cost, waiter });
        self.arrivals
    }

    fn place(&self, class: ClassNumber, number: u64) -> Option<usize> {
        self.flows[class].waiting.binary_search_by_key(&number, |request| request.number).ok()
    }

    /// Returns the waiter of a request; `None` once it has been started.
    pub fn waiter(&mut self, class: ClassNumber, number: u64) -> Option<&mut T> {
        let place = self.place(class, number)?;
        Some(&mut self.flows[class].waiting[place].waiter)
    }

    /// Removes a waiting request; `None` if it has been started.
    pub fn leave(&mut self, class: ClassNumber, number: u64) -> Option<T> {
        let place = self.place(class, number)?;
        self.waiting -= 1;
        self.flows[class].waiting.remove(place).map(|request| request.waiter)
    }

    /// Starts the next request, if one is waiting and the depth permits it.
    #[inline]
    pub fn start_next(&mut self) -> Option<T> {
        if self.waiting == 0 || self.in_flight >= self.depth {
            return None;
        }
        let rank = |flow: &Flow<T>| {
            let first = flow.waiting.front()?.number;
            Some((flow.tag, first))
        };
        let ranked = self.flows.iter().enumerate().filter_map(|(class, flow)| Some((rank(flow)?, class)));
        let (_, class) = ranked.min()?;
        let flow = &mut self.flows[class];
        let request = flow.waiting.pop_front()?;
        self.virtual_time = self.virtual_time.max(flow.start(request.cost));
        self.waiting -= 1;
        self.start_now(class, request.cost);
        Some(request.waiter)
    }

    /// Notes that a started request has ended.
    #[inline]
    pub fn ended(&mut self, class: ClassNumber, cost: u64) {
        self.in_flight -= cost;
        if class == BACKGROUND {
            self.background -= cost;
        }
    }
}

#[cfg(test)]
mod tests;
