//! A lock on ranges of numbers: blocks of a device, bytes of a file.
//!
//! # Promises
//! - Of two requests whose ranges overlap, the earlier one is granted first; the later one is granted only
//!   after the earlier one has released its range. Small requests don't overtake an earlier large one.
//! - A request waits only for earlier requests that overlap it, and for the requests that these wait for.
//! - A request that is dropped while it waits leaves the line: later requests then wait only for the others
//!   before them.
//! - A request without a conflict costs a binary search, and allocates nothing once the lock has held as many
//!   requests before. A request that waits costs as many searches as it has direct predecessors, each of
//!   which it displaces (see below), so n requests for one range cost O(n log n), whatever the length of the
//!   line.
//!
//! The caller avoids deadlocks: two tasks that each hold a range and ask for the other's wait forever.
//!
//! # Algorithm
//! The table maps each block to the request that asked for it last, in *pieces* of neighbouring blocks. A new
//! request takes its blocks out of the pieces that it finds, inserts one of its own, and waits for each
//! request whose piece it found, once. Waiting is transitive: requests before those have released their
//! ranges when those have. A request that ends removes the rest of its pieces. A request that is dropped
//! while it waits returns its pieces to its direct predecessors, and these become the direct predecessors of
//! the requests that waited for it, where they overlap.

mod pieces;
#[cfg(test)]
mod tests;

use pieces::{Piece, Pieces};
use smallvec::SmallVec;
use std::cell::RefCell;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

/// Ranges locked by tasks of one shard.
pub type RangeLock = Lock<Rc<RefCell<Table>>>;

/// Granted range of a [`RangeLock`], held until it is dropped.
pub type RangeGuard = Held<Rc<RefCell<Table>>>;

/// Request of a [`RangeLock`] that may still be waiting.
pub type RangePlace = Asked<Rc<RefCell<Table>>>;

/// Ranges locked by tasks of several shards, in a table behind a mutex, which is held for one request or
/// release at a time and never while a task waits.
pub type SharedRangeLock = Lock<Arc<Mutex<Table>>>;

/// Granted range of a [`SharedRangeLock`], held until it is dropped.
pub type SharedRangeGuard = Held<Arc<Mutex<Table>>>;

/// Access to the table of a lock: on one shard, or on several.
pub trait Access: Clone + Default {
    /// Calls `work` with the table. `work` must not use the lock.
    fn with<T>(&self, work: impl FnOnce(&mut Table) -> T) -> T;
}

impl Access for Rc<RefCell<Table>> {
    #[inline]
    fn with<T>(&self, work: impl FnOnce(&mut Table) -> T) -> T {
        work(&mut self.borrow_mut())
    }
}

impl Access for Arc<Mutex<Table>> {
    #[inline]
    fn with<T>(&self, work: impl FnOnce(&mut Table) -> T) -> T {
        work(&mut crate::mailbox::lock(self))
    }
}

/// A [`RangeLock`] or a [`SharedRangeLock`]. Clones are the same lock.
#[derive(Debug, Clone, Default)]
pub struct Lock<A: Access>(A);

impl<A: Access> Lock<A> {
    /// Asks for a range. The request's place in the line is that of this call. An empty range is granted at
    /// once.
    #[inline]
    pub fn ask(&self, range: Range<u64>) -> Asked<A> {
        let (number, is_granted) = self.0.with(|table| {
            let number = table.enter(range);
            (number, table.request(number).waits_for == 0)
        });
        Asked { place: Some(Held { table: self.0.clone(), number }), is_granted }
    }

    /// Whether no block is held or waited for.
    pub fn is_free(&self) -> bool {
        self.0.with(|table| table.pieces.is_empty())
    }
}

type Wakers = SmallVec<[Waker; 4]>;

/// A request in the table. Its number is reused after it has left; its serial isn't.
#[derive(Debug, Default)]
struct Request {
    serial: u64,
    range: Range<u64>,
    /// Number of its pieces in the table.
    pieces: usize,
    /// Number of links to requests that it still waits for.
    waits_for: usize,
    /// Direct predecessors, including those that have left.
    before: Vec<Link>,
    /// Requests that wait for this one, including those that have left.
    after: Vec<Link>,
    waker: Option<Waker>,
}

/// Reference to a request, which has left if its number now has another serial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Link {
    number: u32,
    serial: u64,
}

/// Requests and the blocks that they have or wait for.
#[derive(Debug, Default)]
pub struct Table {
    pieces: Pieces,
    requests: Vec<Request>,
    free: Vec<u32>,
    last_serial: u64,
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

impl Table {
    #[inline]
    fn request(&mut self, number: u32) -> &mut Request {
        &mut self.requests[number as usize]
    }

    fn is_present(&self, link: Link) -> bool {
        self.requests[link.number as usize].serial == link.serial
    }

    #[inline]
    fn enter(&mut self, range: Range<u64>) -> u32 {
        let number = self.free.pop().unwrap_or_else(|| {
            self.requests.push(Request::default());
            self.requests.len() as u32 - 1
        });
        self.last_serial += 1;
        let serial = self.last_serial;
        let request = self.request(number);
        (request.serial, request.range) = (serial, range.clone());
        if range.is_empty() {
            return number;
        }
        let mut position = self.pieces.seek(range.start);
        if self.pieces.get(position).is_some_and(|piece| piece.start < range.end) {
            self.displace(&range, Link { number, serial });
            position = self.pieces.seek(range.start);
        }
        self.put(position, Piece { start: range.start, end: range.end, number });
        number
    }

    #[inline]
    fn put(&mut self, position: pieces::Position, piece: Piece) {
        self.request(piece.number).pieces += 1;
        self.pieces.insert(position, piece);
    }

    #[inline]
    fn take(&mut self, position: pieces::Position) -> Piece {
        let piece = self.pieces.remove(position);
        self.request(piece.number).pieces -= 1;
        piece
    }

    /// Takes the blocks of a new request out of the pieces of others, and makes it wait for them.
    fn displace(&mut self, range: &Range<u64>, new: Link) {
        loop {
            let position = self.pieces.seek(range.start);
            if self.pieces.get(position).is_none_or(|piece| piece.start >= range.end) {
                return;
            }
            let piece = self.take(position);
            if piece.start < range.start {
                self.put(position, Piece { end: range.start, ..piece });
            }
            if piece.end > range.end {
                let position = self.pieces.seek(range.end);
                self.put(position, Piece { start: range.end, ..piece });
            }
            // No request is newer than `new`, so a link to it is the last one.
            if self.request(piece.number).after.last() != Some(&new) {
                self.link(piece.number, new);
            }
        }
    }

    /// Makes a request wait for another one.
    fn link(&mut self, earlier: u32, later: Link) {
        let serial = self.request(earlier).serial;
        self.request(earlier).after.push(later);
        let request = self.request(later.number);
        request.before.push(Link { number: earlier, serial });
        request.waits_for += 1;
    }

    /// Removes a request, granted or waiting. Adds the wakers of the requests that this grants to `woken`,
    /// and returns its own waker.
    #[inline]
    fn leave(&mut self, number: u32, woken: &mut Wakers) -> Option<Waker> {
        let request = self.request(number);
        request.serial = 0;
        let waker = request.waker.take();
        if request.waits_for > 0 {
            self.withdraw(number);
        } else if request.pieces > 0 {
            self.forget(number);
        }
        if !self.request(number).after.is_empty() {
            self.release(number, woken);
        }
        let request = self.request(number);
        request.before.clear();
        request.waits_for = 0;
        self.free.push(number);
        waker
    }

    /// Removes the pieces of a request that was granted.
    #[inline]
    fn forget(&mut self, number: u32) {
        let Range { start, end } = self.request(number).range;
        let mut position = self.pieces.seek(start);
        loop {
            let piece = self.pieces.get(position).filter(|piece| piece.start < end);
            let piece = piece.expect("the pieces of a request lie in its range");
            if piece.number != number {
                position = self.pieces.next(position);
                continue;
            }
            self.take(position);
            // Most requests have a single piece.
            if self.request(number).pieces == 0 {
                return;
            }
            position = self.pieces.seek(piece.end);
        }
    }

    /// Grants the requests that waited for this one only.
    fn release(&mut self, number: u32, woken: &mut Wakers) {
        // Taken out and put back, so that its memory is reused.
        let mut after = std::mem::take(&mut self.request(number).after);
        for link in after.drain(..) {
            if self.is_present(link) {
                let request = self.request(link.number);
                request.waits_for -= 1;
                if request.waits_for == 0 {
                    woken.extend(request.waker.take());
                }
            }
        }
        self.request(number).after = after;
    }

    /// Removes a waiting request. Each of its blocks goes back to the latest of its direct predecessors that
    /// asked for it, and the requests that waited for this one wait for those that they overlap.
    fn withdraw(&mut self, number: u32) {
        let mut before: Vec<Link> = self.request(number).before.clone();
        before.retain(|link| self.is_present(*link));
        before.sort_unstable_by_key(|link| std::cmp::Reverse(link.serial));
        before.dedup();
        let start = self.request(number).range.start;
        let mut position = self.pieces.seek(start);
        while self.request(number).pieces > 0 {
            let piece = self.pieces.get(position).expect("the pieces of a request lie in its range");
            if piece.number == number {
                self.take(position);
                self.give_back(&before, piece.start..piece.end);
                position = self.pieces.seek(piece.end);
            } else {
                position = self.pieces.next(position);
            }
        }
        let after: SmallVec<[Link; 8]> = self.request(number).after.iter().copied().collect();
        for later in after.into_iter().filter(|link| self.is_present(*link)).collect::<SmallVec<[Link; 8]>>()
        {
            for earlier in &before {
                let range = self.request(earlier.number).range.clone();
                let request = self.request(later.number);
                if overlap(&range, &request.range) && !request.before.contains(earlier) {
                    self.link(earlier.number, later);
                }
            }
        }
    }

    /// Returns the blocks of a range to those of these requests that asked for them, the latest first.
    fn give_back(&mut self, owners: &[Link], range: Range<u64>) {
        let mut free: SmallVec<[Range<u64>; 4]> = SmallVec::new();
        free.push(range);
        for owner in owners {
            let owned = self.request(owner.number).range.clone();
            for part in std::mem::take(&mut free) {
                if !overlap(&part, &owned) {
                    free.push(part);
                    continue;
                }
                let both = part.start.max(owned.start)..part.end.min(owned.end);
                let position = self.pieces.seek(both.start);
                self.put(position, Piece { start: both.start, end: both.end, number: owner.number });
                let rest = [part.start..both.start, both.end..part.end];
                free.extend(rest.into_iter().filter(|part| !part.is_empty()));
            }
        }
    }
}

/// Request that may still be waiting. Dropping it leaves the line.
#[must_use = "a range that was asked for keeps others waiting until it is dropped"]
#[derive(Debug)]
pub struct Asked<A: Access> {
    /// `None` after the range was taken.
    place: Option<Held<A>>,
    /// Whether the range was granted when it was asked for. If not, the table has the current state.
    is_granted: bool,
}

impl<A: Access> Asked<A> {
    /// Takes the range if it is granted.
    ///
    /// # Errors
    /// The request itself, if it is still waiting.
    #[inline]
    pub fn try_take(mut self) -> Result<Held<A>, Self> {
        match self.is_granted || self.place.as_ref().is_some_and(Held::is_granted) {
            true => self.place.take().ok_or(self),
            false => Err(self),
        }
    }
}

impl<A: Access> Future for Asked<A> {
    type Output = Held<A>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Held<A>> {
        let held =
            self.place.as_ref().expect("a place in the line is not polled again once its turn has come");
        if !self.is_granted && held.waits(context.waker()) {
            return Poll::Pending;
        }
        Poll::Ready(self.place.take().expect("it was there"))
    }
}

impl<A: Access> Unpin for Asked<A> {}

/// Range that is held until this is dropped.
#[must_use = "the range is held as long as this lives"]
pub struct Held<A: Access> {
    table: A,
    number: u32,
}

impl<A: Access> Held<A> {
    fn is_granted(&self) -> bool {
        self.table.with(|table| table.request(self.number).waits_for == 0)
    }

    /// Whether the request is still waiting; stores a waker if so.
    fn waits(&self, waker: &Waker) -> bool {
        let replaced = self.table.with(|table| {
            let request = table.request(self.number);
            (request.waits_for > 0).then(|| request.waker.replace(waker.clone()))
        });
        // The old waker is dropped here, while the table isn't borrowed: its drop may run any code.
        replaced.is_some()
    }
}

impl<A: Access> Drop for Held<A> {
    #[inline]
    fn drop(&mut self) {
        let mut woken = Wakers::new();
        let own = self.table.with(|table| table.leave(self.number, &mut woken));
        drop(own);
        woken.into_iter().for_each(Waker::wake);
    }
}

impl<A: Access> std::fmt::Debug for Held<A> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Held({})", self.number)
    }
}
