//! Model of a disk with one arm. Of the queued operations the arm serves the one that it reaches first, so a
//! later operation may complete earlier. The model has no task of its own: each call advances it to the
//! present ([`DiskServer::advance`]), and waiters call again when the arm has completed an operation.
//!
//! The time to reach an offset is the seek time plus the rotational latency. Seeks take the square root of
//! the distance, the usual approximation (Ruemmler and Wilkes, An introduction to disk drive modeling, 1994).
//! All tracks have the same length.

use super::profile::Disk;
use super::solid::time_of;
use runtime::Instant;
use std::collections::VecDeque;

/// Number of an operation, in order of arrival.
pub(super) type Ticket = u64;

/// Wait of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    /// The operation completes at this time.
    Until(Instant),
    /// The completion time is unknown until this time: ask again then.
    LookAgain(Instant),
}

#[derive(Debug, Clone, Copy)]
struct Command {
    ticket: Ticket,
    at: u64,
    bytes: u64,
    is_write: bool,
}

/// State of the disk.
#[derive(Debug)]
pub(super) struct DiskServer {
    profile: Disk,
    /// Size of the disk in bytes.
    capacity: u64,
    /// Nanoseconds of a rotation.
    turn: u64,
    /// Offset of the head in bytes, at the time `now`.
    head: u64,
    now: u64,
    /// Operation that the arm serves, and its end.
    serves: Option<(u64, Command)>,
    /// Operations that the arm may serve next.
    queue: Vec<Command>,
    /// Reads and writes that wait for the queue, in order of arrival.
    reads: VecDeque<Command>,
    writes: VecDeque<Command>,
    next: Ticket,
    /// Number of writes in the write buffer that haven't reached the platter.
    in_buffer: u32,
    queued_reads: u32,
    /// Moving average of the arm's time per operation, in nanoseconds.
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

    /// Queues an operation.
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

    /// Returns the wait of an operation: a read completes when it has been served, a write when it is in the
    /// write buffer.
    pub fn wait(&mut self, now: Instant, ticket: Ticket) -> Wait {
        self.advance(now);
        // Both lists are in order of arrival.
        let position = |waiting: &VecDeque<Command>| {
            waiting.binary_search_by_key(&ticket, |command| command.ticket).ok().map(|index| index as u64)
        };
        let is_read = |command: &Command| command.ticket == ticket && !command.is_write;
        let is_served = || {
            self.queue.iter().any(is_read)
                || self.serves.as_ref().is_some_and(|(_, command)| is_read(command))
        };
        let before =
            position(&self.writes).or_else(|| position(&self.reads)).or_else(|| is_served().then_some(0));
        match (before, &self.serves) {
            // Thousands of operations may wait: one far back in the list isn't woken for each operation that
            // is served.
            (Some(before), Some((end, _))) => {
                Wait::LookAgain(Instant::from_nanoseconds(end + before * self.usual / 2))
            }
            _ => Wait::Until(now + self.profile.interface),
        }
    }

    /// Returns the wait of a flush that arrived before operation `before`: it completes when no earlier write
    /// is left.
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

    /// Number of the next operation.
    pub fn next_ticket(&self) -> Ticket {
        self.next
    }

    /// Advances the model to the present.
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

    /// Moves waiting operations to the queue as far as its depth and the write buffer allow.
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

    /// If the arm is idle, begins the operation that it reaches first.
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

    /// Nanoseconds from now until this byte is below the head.
    fn reach(&self, at: u64) -> u64 {
        if at == self.head {
            // A sequential operation has no positioning time: read-ahead, or the next sector to write.
            return 0;
        }
        let seek = self.seek(at.abs_diff(self.head));
        // A byte's angle is the time at which it passes the head in each rotation.
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
