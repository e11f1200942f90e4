//! One queue on its shard: takes requests from the ring, executes them on the device, and completes them.
//!
//! One task drives all requests of the queue, without an allocation or a task per request. While requests
//! arrive the guest needn't notify this door. When none is left the task looks into the guest's ring for as
//! long as the shard may poll; then it asks for a notification and waits for it in the shard's ring.
//! Completed requests are published together, once per turn, with at most one notification.

use super::config::feature;
use super::inflight::InflightQueue;
use super::memory::{GuestMemory, Segment};
use super::protocol::QueueAddresses;
use super::request::{Action, Disk, ID_BYTES, Status, parse};
use super::ring::{Chain, SplitRing, bytes_of};
use crate::served::export::{Export, Tally};
use crate::served::in_flight::{InFlight, SLOTS};
use crate::served::work::{ByteRange, Operation, Target, Work};
use block::{Buffer, Call, Data, Device, Error, Result};
use runtime::BusyWait;
use runtime::event::{EventSignal, EventWait};
use runtime::sync::StopToken;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

/// Bytes of requests in flight at which no further request is taken.
const MAX_BYTES: u64 = 32 << 20;
/// Number of requests that are taken before the completed ones are published.
const REQUESTS_PER_ROUND: usize = 64;
/// Number of such rounds before other tasks of the shard run.
const ROUNDS_PER_POLL: usize = 4;

/// Descriptor by which the guest is notified. The front-end may exchange it while the queue runs.
#[derive(Default)]
pub(super) struct CallLine(Mutex<Option<EventSignal>>);

impl CallLine {
    pub(super) fn set(&self, signal: Option<EventSignal>) {
        // Nothing panics while the lock is held.
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = signal;
    }

    fn signal(&self) -> Result<()> {
        match &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(signal) => signal.signal(),
            // The guest polls.
            None => Ok(()),
        }
    }
}

/// Settings of a queue that starts.
pub(super) struct Settings {
    pub(super) memory: Arc<GuestMemory>,
    pub(super) size: u32,
    pub(super) addresses: QueueAddresses,
    pub(super) next_available: u16,
    /// Features that the guest has accepted.
    pub(super) features: u64,
    pub(super) inflight: Option<InflightQueue>,
    pub(super) kick: OwnedFd,
    pub(super) call: Arc<CallLine>,
    pub(super) stop: StopToken,
    pub(super) serial: [u8; ID_BYTES],
}

/// Final state of a queue.
pub(super) struct Ended {
    pub(super) next_available: u16,
    /// Error that ended the queue; `Ok` if it was stopped.
    pub(super) result: Result<()>,
}

/// A request in the device.
struct Request {
    head: u16,
    chain: Chain,
    status: Segment,
    operation: Operation,
    range: ByteRange,
}

struct Running<'d> {
    work: Work<'d>,
    request: Option<Request>,
}

impl Future for Running<'_> {
    type Output = (Request, Result<Option<Data>>);

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Poll::Ready(outcome) = Pin::new(&mut self.work).poll(context) else { return Poll::Pending };
        let request = self.request.take().expect("a request ends once");
        Poll::Ready((request, outcome))
    }
}

struct Queue<'d> {
    ring: SplitRing,
    inflight: Option<InflightQueue>,
    /// Requests that an earlier server took and didn't complete, to be repeated.
    again: VecDeque<u16>,
    target: Target<'d>,
    export: &'d Export,
    disk: Disk,
    serial: [u8; ID_BYTES],
    in_flight: InFlight<Running<'d>>,
    /// Requests that have ended in this turn; empty between turns.
    ended: Vec<(Request, Result<Option<Data>>)>,
    open_bytes: u64,
    /// Chains that aren't in use, kept for their capacity.
    spare: Vec<Chain>,
    tally: Tally,
    /// Whether completed requests haven't been published.
    unpublished: bool,
    /// Wait for the next request while none is in flight.
    idle: BusyWait,
    call: Arc<CallLine>,
}

/// Serves a queue until it is stopped or fails. Its requests in flight have then ended and are completed.
pub(super) async fn serve(settings: Settings, export: &Export, device: &dyn Device, shard: usize) -> Ended {
    let next_available = settings.next_available;
    let stop = settings.stop.clone();
    let begin = || {
        let kick = EventWait::new(
            settings
                .kick
                .try_clone()
                .map_err(|error| Error::from_io(&error, "keeping the kick descriptor of a queue"))?,
        )?;
        let queue = Queue::new(settings, export, export.target(device, shard))?;
        Ok((kick, queue))
    };
    let (kick, mut queue) = match begin() {
        Ok(begun) => begun,
        Err(error) => return Ended { next_available, result: Err(error) },
    };
    let mut waiting = None;
    let mut stopped = Some(Call::new(async move { stop.stopped().await }));
    let mut failure = None;
    poll_fn(|context| {
        queue.in_flight.register(context.waker());
        if let Some(call) = &mut stopped
            && Pin::new(call).poll(context).is_ready()
        {
            stopped = None;
        }
        let takes = stopped.is_some() && failure.is_none();
        match queue.turn(takes, &kick, &mut waiting, context) {
            Ok(()) => {}
            Err(error) => {
                failure.get_or_insert(error);
            }
        }
        let takes = stopped.is_some() && failure.is_none();
        if takes || !queue.in_flight.is_empty() { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    let published = queue.publish();
    // A request that an earlier server took is still in the record.
    Ended { next_available: queue.ring.next_available(), result: failure.map_or(published, Err) }
}

impl<'d> Queue<'d> {
    fn new(settings: Settings, export: &'d Export, target: Target<'d>) -> Result<Self> {
        let has = |feature| settings.features & feature != 0;
        let Settings { memory, size, addresses, next_available, mut inflight, call, serial, .. } = settings;
        let event_index = has(feature::EVENT_IDX);
        let mut ring = SplitRing::new(memory, size, addresses, event_index, next_available)?;
        let mut again = Vec::new();
        if let Some(inflight) = &mut inflight {
            // The used index and the record are authoritative: the front-end doesn't know which requests a
            // killed server took.
            again = inflight.recover(ring.next_used())?;
            ring.set_next_available(ring.next_used().wrapping_add(again.len() as u16));
            if !again.is_empty() {
                let count = again.len();
                tracing::info!("vhost-user: requests of an earlier server are submitted again: {count}");
            }
        }
        // The previous server may have been killed before its last notification.
        call.signal()?;
        ring.decline_notifications();
        Ok(Queue {
            ring,
            inflight,
            again: again.into(),
            target,
            export,
            disk: Disk {
                size: export.geometry().bytes(),
                read_only: export.read_only,
                has_flush: has(feature::FLUSH),
            },
            serial,
            in_flight: InFlight::new(),
            ended: Vec::new(),
            open_bytes: 0,
            spare: Vec::new(),
            tally: Tally::default(),
            unpublished: false,
            idle: BusyWait::default(),
            call,
        })
    }

    /// Completes ended requests. If `takes`, also starts the available ones and waits for more.
    fn turn<'k>(
        &mut self,
        takes: bool,
        kick: &'k EventWait,
        waiting: &mut Option<Call<'k, Result<()>>>,
        context: &mut Context<'_>,
    ) -> Result<()> {
        for _ in 0..ROUNDS_PER_POLL {
            self.collect();
            let took = takes && self.take_requests()?;
            self.publish()?;
            if took {
                self.idle.end();
                continue;
            }
            // At a limit, the end of a request wakes this task.
            if !takes || self.is_full() {
                return Ok(());
            }
            // With requests in flight, the shard itself polls, for their ends too.
            if self.in_flight.is_empty() && self.idle.again() {
                context.waker().wake_by_ref();
                return Ok(());
            }
            // Repeated every time, because the requested index may have been passed since.
            if self.ring.ask_for_notification()? {
                self.ring.decline_notifications();
                continue;
            }
            let call = waiting.get_or_insert_with(|| Call::new(kick.wait()));
            let Poll::Ready(result) = Pin::new(call).poll(context) else { return Ok(()) };
            *waiting = None;
            result?;
            self.ring.decline_notifications();
        }
        context.waker().wake_by_ref();
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.in_flight.len() >= SLOTS || self.open_bytes >= MAX_BYTES
    }

    /// Starts available requests. Returns whether there were any.
    fn take_requests(&mut self) -> Result<bool> {
        let mut took = false;
        // Read after the requests became available: a guest uses a growth only when it knows of it.
        self.disk.size = self.export.geometry().bytes();
        for _ in 0..REQUESTS_PER_ROUND {
            if self.is_full() {
                break;
            }
            if let Some(head) = self.again.pop_front() {
                self.start(head)?;
            } else if let Some(head) = self.ring.pop()? {
                if let Some(inflight) = &mut self.inflight {
                    inflight.submit(head);
                }
                self.start(head)?;
            } else {
                break;
            }
            took = true;
        }
        Ok(took)
    }

    fn start(&mut self, head: u16) -> Result<()> {
        let mut chain = self.spare.pop().unwrap_or_default();
        self.ring.read_chain(head, &mut chain)?;
        let (action, status) = parse(self.ring.memory(), &mut chain, &self.disk)?;
        match action {
            Action::Answer(answer) => {
                self.tally.errors += u64::from(answer != Status::Ok);
                self.finish(head, chain, status, answer);
            }
            Action::Identify => {
                let serial = self.serial;
                scatter(self.ring.memory(), &chain.writable, &serial);
                self.finish(head, chain, status, Status::Ok);
            }
            Action::Carry(operation, range) => {
                let payload = match operation {
                    Operation::Write(_) => Some(self.gather(&chain, range)?),
                    _ => None,
                };
                let request = Some(Request { head, chain, status, operation, range });
                self.open_bytes += self.cost(operation, range);
                let work = self.target.begin(range, operation, payload);
                if let Some((request, outcome)) = self.in_flight.start(Running { work, request }) {
                    self.complete(request, outcome);
                }
            }
        }
        Ok(())
    }

    /// Copies the data of a write out of guest memory.
    fn gather(&self, chain: &Chain, range: ByteRange) -> Result<Buffer> {
        let memory = self.ring.memory();
        let mut payload = Buffer::new(range.length as usize);
        for segment in &chain.readable {
            memory.append_to(*segment, &mut payload);
        }
        memory.check_intact()?;
        Ok(payload)
    }

    /// Bytes of a request in the budget of the queue.
    fn cost(&self, operation: Operation, range: ByteRange) -> u64 {
        match operation {
            Operation::Read | Operation::Write(_) => range.block_bytes(self.target.block_shift),
            _ => 0,
        }
    }

    fn collect(&mut self) {
        let Queue { in_flight, ended, .. } = self;
        in_flight.collect(|output| ended.push(output));
        while let Some((request, outcome)) = self.ended.pop() {
            self.complete(request, outcome);
        }
    }

    fn complete(&mut self, request: Request, outcome: Result<Option<Data>>) {
        let Request { head, chain, status, operation, range } = request;
        self.open_bytes -= self.cost(operation, range);
        self.tally.count(operation, range.length);
        let answer = match outcome {
            Ok(data) => {
                if let Some(data) = data {
                    scatter(self.ring.memory(), &chain.writable, &data);
                }
                Status::Ok
            }
            Err(error) => {
                self.tally.errors += 1;
                tracing::debug!("a request of the guest: {error}");
                match error {
                    Error::Unsupported(_) => Status::Unsupported,
                    _ => Status::Failed,
                }
            }
        };
        self.finish(head, chain, status, answer);
    }

    /// Answers a request.
    fn finish(&mut self, head: u16, mut chain: Chain, status: Segment, answer: Status) {
        self.ring.memory().write(status, &[answer as u8]);
        // The length of the prefix that has been written. It fits: a chain has at most 2^32 bytes, and 16 of
        // them are the header to read.
        let written = match answer {
            Status::Ok => bytes_of(&chain.writable) as u32 + 1,
            _ if chain.writable.is_empty() => 1,
            _ => 0,
        };
        if let Some(inflight) = &mut self.inflight {
            inflight.complete(head);
        }
        self.ring.push(head, written);
        self.unpublished = true;
        chain.clear();
        self.spare.push(chain);
    }

    /// Publishes completed requests to the guest.
    fn publish(&mut self) -> Result<()> {
        if !self.unpublished {
            return Ok(());
        }
        self.unpublished = false;
        self.export.counters.add(&mut self.tally);
        let notify = self.ring.publish();
        if let Some(inflight) = &mut self.inflight {
            inflight.published(self.ring.next_used());
            if !inflight.is_intact() {
                return Err(Error::protocol(
                    "requests in flight: the front-end has made their memory shorter",
                ));
            }
        }
        if notify {
            self.call.signal()?;
        }
        self.ring.memory().check_intact()
    }
}

/// Copies bytes to segments, until either end.
fn scatter(memory: &GuestMemory, segments: &[Segment], mut bytes: &[u8]) {
    for segment in segments {
        let (here, rest) = bytes.split_at(segment.length.min(bytes.len()));
        memory.write(*segment, here);
        bytes = rest;
    }
}
