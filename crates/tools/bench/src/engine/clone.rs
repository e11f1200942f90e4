//! One clone of a job: its state, and the tasks that keep its operations in flight.

use super::addresses::{Addresses, Direction, Request};
use super::pace::Pace;
use super::replay::Source;
use super::stamp::Ledger;
use super::tally::Tally;
use super::{Progress, incompressible, repeated};
use crate::iolog::Action;
use crate::iolog::writer::Writer;
use crate::job::{Job, Region, Verify};
use block::{BlockCount, BlockIndex, BlockRange, Buffer, Data, Device, Durability, Payload, Result};
use runtime::Instant;
use runtime::sync::{Notify, Permit, Semaphore, StopToken};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Phase of a clone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Running the job.
    Work,
    /// Reading back its writes.
    Verify,
}

/// Number of operations between updates of the progress.
const TELL_EVERY: u32 = 64;

pub(super) struct Clone {
    pub(super) progress: Arc<Progress>,
    device: Rc<dyn Device>,
    stop: StopToken,
    depth: u32,
    durability: Durability,
    flush_every: u32,
    verify: Option<Verify>,
    time_limit: Option<Duration>,
    ramp: Duration,
    repeats: bool,
    transfer: u64,
    shift: u32,
    unit: u64,
    contents: Option<Data>,
    /// Whether writes use different parts of the contents.
    varies: bool,
    addresses: RefCell<Addresses>,
    pace: RefCell<Pace>,
    tally: RefCell<Tally>,
    ledger: RefCell<Option<Ledger>>,
    in_flight: RefCell<Vec<Request>>,
    landed: Notify,
    paced: bool,
    /// Pause after `thinktime_blocks` operations; zero: none.
    thinktime: Duration,
    thinktime_blocks: u64,
    /// Operations that have ended since the last pause.
    since_thought: Cell<u64>,
    /// Lock of the task that waits for its start, with a rate or a think time.
    starter: Rc<Semaphore>,
    /// Operations in flight, and waiters for their end.
    started: Cell<u32>,
    idle: Notify,
    /// Bytes that haven't been requested.
    remaining: Cell<u64>,
    next_check: Cell<usize>,
    measure_from: Cell<Instant>,
    deadline: Cell<Instant>,
    ended: Cell<bool>,
    untold: Cell<(u32, u64)>,
    unflushed: Cell<u32>,
    writes: Cell<u64>,
    /// Log that is replayed.
    source: Option<Rc<Source>>,
    /// Log that is written, and its start time.
    log: Option<Writer>,
    log_began: Cell<Instant>,
    flush_action: Action,
}

impl Clone {
    pub(super) fn new(
        job: &Job,
        region: &Region,
        number: u32,
        device: Rc<dyn Device>,
        progress: Arc<Progress>,
        stop: StopToken,
    ) -> Result<Clone> {
        let seed = job.seed(number).unwrap_or_else(runtime::random_u64);
        let unit = job.smallest_request();
        let largest = job.largest_request();
        let stamped = job.verify.is_some();
        let ledger = stamped.then(|| Ledger::new(seed, region.offset, region.length, unit));
        let contents = (job.writes() && !stamped).then(|| match &job.buffer_pattern {
            Some(pattern) => repeated(pattern, largest as usize),
            None if job.zero_buffers => Buffer::zeroed(largest as usize).freeze(),
            None => incompressible(seed, largest as usize),
        });
        Ok(Clone {
            progress,
            stop,
            depth: job.iodepth.max(1),
            durability: if job.sync { Durability::Durable } else { Durability::Visible },
            flush_every: job.flush_every().unwrap_or(0),
            verify: job.verify,
            time_limit: job.runtime,
            ramp: job.ramp_time,
            repeats: job.time_based,
            transfer: region.transfer,
            shift: device.geometry().block_size.shift(),
            unit,
            contents,
            varies: job.buffer_pattern.is_none() && !job.zero_buffers,
            addresses: RefCell::new(Addresses::new(job, region, seed)),
            pace: RefCell::new(Pace::new(job, runtime::now())),
            tally: RefCell::new(Tally::new()),
            ledger: RefCell::new(ledger),
            in_flight: RefCell::default(),
            landed: Notify::new(),
            paced: [job.rate_iops.read, job.rate_iops.write, job.rate_iops.trim].iter().any(Option::is_some),
            thinktime: job.thinktime,
            thinktime_blocks: job.thinktime_blocks.max(1),
            since_thought: Cell::new(0),
            starter: Semaphore::new(1),
            started: Cell::new(0),
            idle: Notify::new(),
            remaining: Cell::new(0),
            next_check: Cell::new(0),
            measure_from: Cell::default(),
            deadline: Cell::default(),
            ended: Cell::new(false),
            untold: Cell::default(),
            unflushed: Cell::new(0),
            writes: Cell::new(0),
            source: None,
            log: None,
            log_began: Cell::default(),
            flush_action: if job.fsync > 0 { Action::Sync } else { Action::Datasync },
            device,
        })
    }

    /// Opens the logs that the clone replays and writes.
    pub(super) async fn with_logs(mut self, job: &Job, number: u32) -> Result<Clone> {
        if let Some(log) = job.log_of(number) {
            self.source = Some(Rc::new(Source::open(log, &job.replay).await?));
        }
        if let Some(target) = &job.log_to {
            self.log = Some(Writer::create(target).await?);
        }
        Ok(self)
    }

    /// Whether the writes have to be read back.
    pub(super) fn has_to_verify(&self) -> bool {
        let wanted = self.verify.is_some_and(|verify| verify.after_writes || verify.only);
        let written = self.ledger.borrow().as_ref().is_some_and(|ledger| ledger.written() > 0);
        wanted && written && !self.ended.get()
    }

    pub(super) fn take_tally(&self) -> Tally {
        let mut tally = self.tally.replace(Tally::new());
        if tally.begin == Instant::from_nanoseconds(u64::MAX) {
            tally.begin = tally.end;
        }
        tally
    }

    /// Runs one phase to its end.
    pub(super) async fn run(self: &Rc<Self>, phase: Phase) {
        let begin = runtime::now();
        if phase == Phase::Work {
            let measure_from = begin + self.ramp;
            self.measure_from.set(measure_from);
            self.tally.borrow_mut().begin = measure_from;
            self.tally.borrow_mut().end = measure_from;
            let never = Instant::from_nanoseconds(u64::MAX);
            self.deadline.set(self.time_limit.map_or(never, |limit| measure_from + limit));
            self.remaining.set(self.transfer);
            self.log_began.set(begin);
            if let Some(source) = &self.source {
                source.begin(begin);
            }
            if self.verify.is_some_and(|verify| verify.only) {
                return self.pretend();
            }
        }
        let workers = (0..self.depth).map(|_| {
            let clone = self.clone();
            runtime::spawn(async move {
                match (phase, &clone.source) {
                    (Phase::Work, Some(source)) => clone.replay_log(source).await,
                    (Phase::Work, None) => clone.work().await,
                    (Phase::Verify, _) => clone.read_back().await,
                }
            })
        });
        let workers: Vec<_> = workers.collect();
        // A stalled device must not keep a run from ending after its time: its operations end in tasks of
        // their own.
        let all = runtime::join_all(workers);
        let mut all = std::pin::pin!(all);
        let stopped = self.stop.stopped();
        let mut stopped = std::pin::pin!(stopped);
        let interrupted = std::future::poll_fn(|context| {
            if all.as_mut().poll(context).is_ready() {
                return std::task::Poll::Ready(false);
            }
            stopped.as_mut().poll(context).map(|()| true)
        })
        .await;
        if interrupted {
            self.ended.set(true);
            let _grace = runtime::timeout(Duration::from_secs(5), all).await;
        }
        self.tell();
        if let (Some(log), Phase::Work) = (&self.log, phase)
            && let Err(error) = log.end().await
        {
            self.fail(format!("write_iolog: {error}"), true);
        }
    }

    /// Records the writes of a run without executing them.
    fn pretend(&self) {
        let mut ledger = self.ledger.borrow_mut();
        let Some(ledger) = ledger.as_mut() else { return };
        while let Some(request) = self.draw() {
            if request.direction == Direction::Write {
                ledger.begin_write(request.offset, request.length);
            }
        }
    }

    #[inline]
    fn draw(&self) -> Option<Request> {
        let remaining = self.remaining.get();
        if self.ended.get() {
            return None;
        }
        let mut request = self.addresses.borrow_mut().draw();
        if self.repeats {
            return Some(request);
        }
        if remaining < self.unit {
            return None;
        }
        request.length = request.length.min(remaining / self.unit * self.unit);
        self.remaining.set(remaining - request.length);
        Some(request)
    }

    async fn work(&self) {
        // Buffer that is kept from one operation to the next.
        let mut spare: Option<Buffer> = None;
        let thinks = !self.thinktime.is_zero();
        let waits = self.paced || thinks;
        loop {
            let turn = if waits { Some(self.starter.acquire(1).await) } else { None };
            if thinks && !self.think().await {
                return;
            }
            let Some(request) = self.draw() else { return };
            if self.paced && !self.wait_for_start(request.direction).await {
                return;
            }
            if self.verify.is_some() {
                self.wait_for_overlap(&request).await;
            }
            drop(turn);
            self.started.set(self.started.get() + 1);
            if self.log.is_some() {
                let action = match request.direction {
                    Direction::Read => Action::Read,
                    Direction::Write => Action::Write,
                    Direction::Trim => Action::Trim,
                };
                self.note(action, request.offset, request.length).await;
            }
            let started = runtime::now();
            let result = if self.paced {
                promptly(self.perform(&request, &mut spare)).await
            } else {
                self.perform(&request, &mut spare).await
            };
            let ended = runtime::now();
            self.started.set(self.started.get() - 1);
            if waits {
                self.since_thought.set(self.since_thought.get() + 1);
                if self.started.get() == 0 {
                    self.idle.notify_all();
                }
            }
            if self.verify.is_some() {
                self.in_flight.borrow_mut().retain(|other| *other != request);
                self.landed.notify_all();
            }
            if let Err(error) = result {
                return self.fail(error.to_string(), true);
            }
            if let Err(error) = self.check(&request, spare.as_ref()) {
                self.fail(error, false);
            }
            if !self.account(&request, started, ended) {
                return;
            }
            if self.flush_every > 0 && request.direction == Direction::Write {
                self.maybe_flush().await;
            }
        }
    }

    /// Pauses after the configured number of operations. Returns false if the clone has ended. As in fio,
    /// operations in flight end first.
    async fn think(&self) -> bool {
        const LOOK: Duration = Duration::from_millis(50);
        if self.since_thought.get() < self.thinktime_blocks {
            return !self.ended.get();
        }
        while self.started.get() > 0 {
            self.idle.notified().await;
        }
        let until = runtime::now() + self.thinktime;
        while !self.ended.get() {
            let now = runtime::now();
            if now >= self.deadline.get() || self.stop.is_stopped() {
                self.ended.set(true);
            } else if now >= until {
                break;
            } else {
                runtime::sleep(LOOK.min(until - now).min(self.deadline.get() - now)).await;
            }
        }
        self.since_thought.set(0);
        !self.ended.get()
    }

    /// Waits until an operation of a clone with a rate may start. Returns false if the clone has ended.
    ///
    /// As in fio (`io_submit_mode=inline`): if the next start is in the future, operations in flight end
    /// first, and then the clone waits for the time that was left when the wait began. A clone that is then
    /// late starts the next operations at once. As in fio, the last part of the wait is a busy loop, so that
    /// starts are punctual and the processor is as warm as under load.
    async fn wait_for_start(&self, direction: Direction) -> bool {
        const AWAKE: Duration = Duration::from_micros(60);
        let due = self.pace.borrow_mut().next(direction, runtime::now);
        let Some(due) = due else { return true };
        let begin = runtime::now();
        if due <= begin {
            return true;
        }
        while self.started.get() > 0 {
            self.idle.notified().await;
        }
        let start = runtime::now() + (due - begin);
        // A clone whose time is over must not wait for the next start.
        if start >= self.deadline.get() {
            self.ended.set(true);
            return false;
        }
        if due - begin > AWAKE {
            runtime::sleep((due - begin) - AWAKE).await;
        }
        while runtime::now() < start {
            runtime::yield_now().await;
        }
        !self.ended.get()
    }

    /// Counts an operation. Returns false if the clone has ended.
    #[inline]
    pub(super) fn account(&self, request: &Request, started: Instant, ended: Instant) -> bool {
        let (count, bytes) = self.untold.get();
        self.untold.set((count + 1, bytes + request.length));
        if count + 1 >= TELL_EVERY {
            self.tell();
        }
        if ended >= self.measure_from.get() {
            self.tally.borrow_mut().record(request.direction, started, ended, request.length);
        }
        if ended >= self.deadline.get() || self.stop.is_stopped() {
            self.ended.set(true);
        }
        !self.ended.get()
    }

    #[cold]
    pub(super) fn fail(&self, error: String, fatal: bool) {
        self.tally.borrow_mut().fail(error);
        if fatal || self.verify.is_some_and(|verify| verify.fatal) {
            self.ended.set(true);
        }
    }

    #[cold]
    fn tell(&self) {
        let (operations, bytes) = self.untold.take();
        self.progress.add(u64::from(operations), bytes);
    }

    #[inline]
    fn range(&self, request: &Request) -> BlockRange {
        let start = BlockIndex(request.offset >> self.shift);
        BlockRange { start, count: BlockCount(request.length >> self.shift) }
    }

    #[inline]
    pub(super) async fn perform(&self, request: &Request, spare: &mut Option<Buffer>) -> Result<()> {
        match request.direction {
            Direction::Read => self.read(request, spare).await,
            Direction::Write => self.write(request).await,
            Direction::Trim => self.device.discard(self.range(request)).await,
        }
    }

    #[inline]
    async fn read(&self, request: &Request, spare: &mut Option<Buffer>) -> Result<()> {
        let length = request.length as usize;
        let buffer = spare.take().filter(|buffer| buffer.len() == length);
        let buffer = buffer.unwrap_or_else(|| Buffer::new(length));
        let (result, buffer) = self.device.read(self.range(request).start, buffer).await;
        *spare = Some(buffer);
        result
    }

    #[inline]
    async fn write(&self, request: &Request) -> Result<()> {
        let length = request.length as usize;
        let payload: Payload = match &self.contents {
            Some(contents) if !self.varies => contents.slice(0..length).into(),
            Some(contents) => {
                let number = self.writes.get();
                self.writes.set(number + 1);
                let begin = ((number as usize * 4096) % (contents.len() - length + 1)) & !4095;
                contents.slice(begin..begin + length).into()
            }
            None => self.stamped(request),
        };
        self.device.write(self.range(request).start, payload, self.durability).await
    }

    fn stamped(&self, request: &Request) -> Payload {
        let mut buffer = Buffer::zeroed(request.length as usize);
        if let Some(ledger) = self.ledger.borrow_mut().as_mut() {
            let sequence = ledger.begin_write(request.offset, request.length);
            ledger.stamp(buffer.filled_mut(), request.offset, sequence);
        }
        buffer.into()
    }

    /// Waits for overlapping requests, if blocks are verified: the contents after two concurrent ones would
    /// be unknown.
    async fn wait_for_overlap(&self, request: &Request) {
        loop {
            let overlaps = |other: &Request| {
                request.offset < other.offset + other.length && other.offset < request.offset + request.length
            };
            if !self.in_flight.borrow().iter().any(overlaps) {
                self.in_flight.borrow_mut().push(*request);
                return;
            }
            self.landed.notified().await;
        }
    }

    /// Checks the data of a verified job's read.
    #[inline]
    fn check(&self, request: &Request, buffer: Option<&Buffer>) -> std::result::Result<(), String> {
        if self.verify.is_none() {
            return Ok(());
        }
        let mut ledger = self.ledger.borrow_mut();
        let Some(ledger) = ledger.as_mut() else { return Ok(()) };
        match (request.direction, buffer) {
            // The blocks of a job that only reads were written by an earlier job.
            (Direction::Read, Some(buffer)) => {
                ledger.check(buffer.filled(), request.offset, self.addresses.borrow().only_reads())
            }
            (Direction::Trim, _) => {
                ledger.forget(request.offset, request.length);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    async fn maybe_flush(&self) {
        self.unflushed.set(self.unflushed.get() + 1);
        if self.unflushed.get() < self.flush_every {
            return;
        }
        self.unflushed.set(0);
        if self.log.is_some() {
            self.note(self.flush_action, 0, 0).await;
        }
        self.flush().await;
    }

    /// Flushes. Returns false if the clone has ended.
    async fn flush(&self) -> bool {
        match self.device.flush().await {
            Ok(()) => true,
            Err(error) => {
                self.fail(format!("flush: {error}"), true);
                false
            }
        }
    }

    /// Records a request in the log that is written.
    async fn note(&self, action: Action, offset: u64, length: u64) {
        let Some(log) = &self.log else { return };
        let since = runtime::now() - self.log_began.get();
        let nanoseconds = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
        if log.note(nanoseconds, action, offset, length)
            && let Err(error) = log.write_out().await
        {
            self.fail(format!("write_iolog: {error}"), true);
        }
    }

    /// Flushes for a replayed log. Returns false if the clone has ended.
    pub(super) async fn replay_flush(&self) -> bool {
        self.flush().await && self.goes_on(runtime::now())
    }

    /// Waits for the turn to start an operation.
    pub(super) async fn turn(&self) -> Permit {
        self.starter.acquire(1).await
    }

    pub(super) fn ended(&self) -> bool {
        self.ended.get()
    }

    /// Whether the clone continues at this time.
    pub(super) fn goes_on(&self, now: Instant) -> bool {
        if now >= self.deadline.get() || self.stop.is_stopped() {
            self.ended.set(true);
        }
        !self.ended.get()
    }

    pub(super) fn time_left(&self, now: Instant) -> Duration {
        self.deadline.get() - now
    }

    /// Whether a request consists of whole blocks inside the device.
    pub(super) fn is_inside(&self, request: &Request) -> bool {
        let geometry = self.device.geometry();
        let end = request.offset.checked_add(request.length);
        let is_whole = (request.offset | request.length).is_multiple_of(geometry.block_size.bytes());
        let is_held = request.direction != Direction::Write
            || self.contents.as_ref().is_some_and(|contents| contents.len() as u64 >= request.length);
        is_whole && is_held && end.is_some_and(|end| end <= geometry.bytes())
    }

    /// Reads every written block, in order, and checks it.
    async fn read_back(&self) {
        let mut buffer = Buffer::new(self.unit as usize);
        while !self.ended.get() && !self.stop.is_stopped() {
            let next =
                self.ledger.borrow().as_ref().and_then(|ledger| ledger.next_written(self.next_check.get()));
            let Some((index, offset)) = next else { return };
            self.next_check.set(index + 1);
            let (result, returned) = self.device.read(BlockIndex(offset >> self.shift), buffer).await;
            buffer = returned;
            let checked = match result {
                Err(error) => Err(error.to_string()),
                Ok(()) => self
                    .ledger
                    .borrow()
                    .as_ref()
                    .map_or(Ok(()), |ledger| ledger.check(buffer.filled(), offset, true)),
            };
            if let Err(error) = checked {
                self.fail(error, false);
            }
        }
    }
}

/// Submits an operation to the kernel at once: operations with a start time must not wait for a batch.
pub(super) async fn promptly<F: Future>(operation: F) -> F::Output {
    let mut operation = std::pin::pin!(operation);
    let mut begun = false;
    std::future::poll_fn(|context| {
        let polled = operation.as_mut().poll(context);
        if !std::mem::replace(&mut begun, true) && polled.is_pending() {
            runtime::submit_now();
        }
        polled
    })
    .await
}
