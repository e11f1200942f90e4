//! What operations take on a device with one arm: the arm serves what it reaches first of what it knows, so an operation that
//! arrives later may be done earlier. Nothing runs by itself: whoever looks carries everything on to the present
//! ([`DiskServer::advance`]), and each who waits looks again when the arm has done what it is at.
//!
//! The time to reach a place is that of the seek (by the square root of the distance, the usual approximation: Ruemmler and
//! Wilkes, An introduction to disk drive modeling, 1994) and what is left of the turn. All tracks are equally long.

use super::profile::Disk;
use super::solid::time_of;
use runtime::Instant;
use std::collections::VecDeque;

/// An operation by its number.
pub(super) type Ticket = u64;

/// What an operation waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    /// Until then, surely.
    Until(Instant),
    /// At least until then: look again.
    LookAgain(Instant),
}

#[derive(Debug, Clone, Copy)]
struct Command {
    ticket: Ticket,
    at: u64,
    bytes: u64,
    is_write: bool,
}

/// The arm, and what it knows of.
#[derive(Debug)]
pub(super) struct DiskServer {
    profile: Disk,
    /// How many bytes there are.
    capacity: u64,
    /// Nanoseconds of a turn.
    turn: u64,
    /// Where the head is, in bytes, and since when.
    head: u64,
    now: u64,
    /// What the arm is at, and until when.
    serves: Option<(u64, Command)>,
    /// What it may serve next.
    queue: Vec<Command>,
    /// Reads and writes that there is no room for in the queue, in order of arrival.
    reads: VecDeque<Command>,
    writes: VecDeque<Command>,
    next: Ticket,
    /// Of the writes that have arrived, those before this number have reached the platter.
    in_buffer: u32,
    queued_reads: u32,
    /// Nanoseconds that an operation took the arm lately.
    usual: u64,
}

impl DiskServer {
    pub fn new(profile: Disk, capacity: u64) -> Self {
        let turn = 60_000_000_000 / u64::from(profile.rpm);
        DiskServer {
            profile,
            capacity: capacity.max(1),
            turn,
            head: 0,
            now: 0,
            serves: None,
            queue: Vec::new(),
            reads: VecDeque::new(),
            writes: VecDeque::new(),
            next: 0,
            in_buffer: 0,
            queued_reads: 0,
            usual: 0,
        }
    }

    /// An operation arrives.
    pub fn arrive(&mut self, now: Instant, at: u64, bytes: u64, is_write: bool) -> Ticket {
        self.advance(now);
        let command = Command { ticket: self.next, at, bytes, is_write };
        self.next += 1;
        if is_write {
            self.writes.push_back(command)
        } else {
            self.reads.push_back(command)
        }
        self.admit();
        self.serve_next();
        command.ticket
    }

    /// What an operation waits for: a read until it has been served, a write until it is in the buffer.
    pub fn wait(&mut self, now: Instant, ticket: Ticket) -> Wait {
        self.advance(now);
        // Both come in in the order of arrival.
        let place = |waiting: &VecDeque<Command>| {
            waiting.binary_search_by_key(&ticket, |command| command.ticket).ok().map(|place| place as u64)
        };
        let is_read = |command: &Command| command.ticket == ticket && !command.is_write;
        let is_served = || {
            self.queue.iter().any(is_read)
                || self.serves.as_ref().is_some_and(|(_, command)| is_read(command))
        };
        let before = place(&self.writes).or_else(|| place(&self.reads)).or_else(|| is_served().then_some(0));
        match (before, &self.serves) {
            // Thousands may wait: who is far behind doesn't look each time that the arm has done something.
            (Some(before), Some((end, _))) => {
                Wait::LookAgain(Instant::from_nanoseconds(end + before * self.usual / 2))
            }
            _ => Wait::Until(now + self.profile.interface),
        }
    }

    /// What a flush waits for that arrived when so many operations had: until no write of before is left.
    pub fn flush(&mut self, now: Instant, before: Ticket) -> Wait {
        self.advance(now);
        let is_old = |command: &Command| command.is_write && command.ticket < before;
        let waits = self.writes.iter().chain(&self.queue).any(is_old)
            || self.serves.as_ref().is_some_and(|(_, command)| is_old(command));
        match (waits, &self.serves) {
            (true, Some((end, _))) => Wait::LookAgain(Instant::from_nanoseconds(*end)),
            _ => Wait::Until(now + self.profile.interface),
        }
    }

    /// The number that the next operation gets.
    pub fn next_ticket(&self) -> Ticket {
        self.next
    }

    /// Carries everything on to the present.
    fn advance(&mut self, now: Instant) {
        let now = now.nanoseconds();
        while let Some((end, command)) = self.serves
            && end <= now
        {
            self.now = end;
            self.head = command.at + command.bytes;
            self.serves = None;
            if command.is_write {
                self.in_buffer -= 1
            } else {
                self.queued_reads -= 1
            }
            self.admit();
            self.serve_next();
        }
        self.now = self.now.max(now);
    }

    /// Lets in what there is room for.
    fn admit(&mut self) {
        while self.in_buffer < self.profile.write_buffer.max(1)
            && let Some(command) = self.writes.pop_front()
        {
            self.in_buffer += 1;
            self.queue.push(command);
        }
        while self.queued_reads < self.profile.queue_depth
            && let Some(command) = self.reads.pop_front()
        {
            self.queued_reads += 1;
            self.queue.push(command);
        }
    }

    /// If the arm is idle, it begins with what it reaches first.
    fn serve_next(&mut self) {
        if self.serves.is_some() {
            return;
        }
        let reach = |command: &Command| self.reach(command.at);
        let nearest = (0..self.queue.len()).min_by_key(|index| reach(&self.queue[*index]));
        if let Some(nearest) = nearest {
            let command = self.queue.swap_remove(nearest);
            let took = self.reach(command.at) + time_of(command.bytes, self.profile.bandwidth);
            self.usual = (7 * self.usual + took) / 8;
            self.serves = Some((self.now + took, command));
        }
    }

    /// How long it takes from here and now until this byte is below the head.
    fn reach(&self, at: u64) -> u64 {
        if at == self.head {
            // What comes next has been read ahead, or is still to be written.
            return 0;
        }
        let seek = self.seek(at.abs_diff(self.head));
        // The angle of a byte is when it passes the head, of each turn.
        let passes = time_of(at, self.profile.bandwidth) % self.turn;
        let there = (self.now + seek) % self.turn;
        seek + (passes + self.turn - there) % self.turn
    }

    fn seek(&self, distance: u64) -> u64 {
        let track = u128::from(self.profile.bandwidth) * u128::from(self.turn) / 1_000_000_000;
        if u128::from(distance) < track {
            return 0;
        }
        let (least, most) =
            (self.profile.track_seek.as_nanos() as f64, self.profile.full_seek.as_nanos() as f64);
        (least + (most - least) * (distance as f64 / self.capacity as f64).sqrt()) as u64
    }
}
