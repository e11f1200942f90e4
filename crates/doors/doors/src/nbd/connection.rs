//! One client on one shard, served from its first byte to its last by one task.
//!
//! # Promises
//! - All requests of a receive are started before the task waits; all ready replies are sent in one vectored
//!   send, directly from the buffers that the device filled. There is no task per request and, in steady
//!   state, no allocation.
//! - At most [`SLOTS`] requests and about [`MAX_BYTES`] of their data are open at a time (started, or
//!   answered and not sent), and no more than the server's [`budget`](super::budget) has; at the limit
//!   nothing more is received until some replies have been sent.
//! - A client is disconnected if it breaks the protocol, is silent in the middle of a request or of the
//!   handshake, receives no byte of its replies, or holds memory for which others wait and is slower than 64
//!   KiB/s; other clients aren't affected. However the connection ends, started requests end first; after a
//!   DISC or a stop they are also answered.
//!
//! [`server`](super::server) admits clients; [`request`](super::request) and `work` interpret requests.

use super::budget::{Budget, Share};
use super::negotiation::{Agreement, ExportDescription};
use super::opening::{Negotiated, negotiate};
use super::protocol::{ErrorNumber, REQUEST_BYTES, Request};
use super::replies::Replies;
use super::request::{Command, Intake, LARGE_WRITE, Session, Step};
use super::server::ServerTls;
use super::source::ExportSource;
use super::work::{self, Ended, MAX_STATUS_BYTES, Work};
use crate::served::export::{Export, Tally};
use crate::served::in_flight::{InFlight, SLOTS};
use crate::served::work::{Operation, Target};
use block::{Buffer, Call, Device, Durability, Error, Payload, Result};
use runtime::Instant;
use runtime::net::{self, SendStep, SendWatch};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tls::Stream;

/// Limit of the bytes of open requests and replies of a connection.
pub(super) const MAX_BYTES: u64 = 64 << 20;
/// Size of the buffer that requests are received into, in bytes.
pub(super) const RECEIVE_BYTES: usize = 256 << 10;
/// Time limit of the handshake.
pub(super) const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// Time limit for a client that is silent in the middle of a request.
pub(super) const SILENCE_LIMIT: Duration = Duration::from_secs(30);
/// Time limit for a client that receives no byte of a reply. It begins with a step of the send, so a client
/// that stops in the middle of a step is found after at most twice this time.
pub(super) const SEND_LIMIT: Duration = Duration::from_secs(60);

/// Minimum rate of a client, in bytes per second, in a send or large write that holds bytes of the server's
/// budget while another connection waits for such bytes.
const SLOWEST: u64 = 64 << 10;
/// Time that such a send or write may take beyond its length divided by [`SLOWEST`].
const SLOWEST_GRACE: Duration = Duration::from_secs(10);

/// Time for which a receive waits for more requests to batch.
const BATCH_WAIT: Duration = Duration::from_micros(20);
/// Number of requests per receive at which the next receive doesn't wait. Above it the client batches
/// requests itself, and waiting would only delay both sides.
const ENOUGH_AT_ONCE: u32 = 4;
/// Period, in receives, of a receive that waits regardless, as a probe.
const PROBE_EVERY: u32 = 64;

/// State by which the server supervises a connection.
pub(super) struct Watch {
    /// Socket of the connection, in plain text or below TLS.
    pub(super) stream: net::Stream,
    /// Time at which the client is disconnected unless it makes progress.
    pub(super) deadline: Cell<Option<Instant>>,
    /// Whether the deadline has passed.
    pub(super) expired: Cell<bool>,
    /// Whether the connection accepts no more requests.
    pub(super) stopping: Cell<bool>,
    /// The send in flight.
    sends: SendWatch,
    /// Step of the send that was in flight at the server's last check, and the time when it was first seen.
    seen_step: Cell<Option<(SendStep, Instant)>>,
    /// Task of a connection that currently receives nothing.
    held_back: RefCell<Option<Waker>>,
    /// Replies that are being sent.
    taking: Pace,
    /// Payload of a large write that is being received.
    arriving: Pace,
    /// Whether the connection holds bytes of the server's budget.
    holds: Cell<bool>,
    /// Whether the connection waits for bytes of the server's budget.
    waits: Cell<bool>,
    /// Whether the client was too slow while another connection waited.
    slow: Cell<bool>,
    /// Observer of the end of the connection; `None` after its call.
    observer: RefCell<Option<EndObserver>>,
}

/// Called once with the end of a connection, before requests in flight have ended.
pub(super) type EndObserver = Box<dyn FnOnce(&End)>;

/// A transfer (a send, or the payload of a large write), and the time for which other connections waited for
/// memory meanwhile.
#[derive(Default)]
struct Pace {
    /// Length of the message; 0 for none.
    bytes: Cell<u64>,
    waited: Cell<Duration>,
}

impl Pace {
    fn begin(&self, bytes: u64) {
        self.bytes.set(bytes);
        self.waited.set(Duration::ZERO);
    }

    /// Adds time in which another connection waited. Returns whether the transfer has exceeded its limit.
    fn wait(&self, time: Duration) -> bool {
        self.waited.set(self.waited.get() + time);
        let bytes = self.bytes.get();
        bytes > 0 && self.waited.get() > SLOWEST_GRACE + Duration::from_secs(bytes / SLOWEST)
    }
}

impl Watch {
    pub(super) fn new(stream: net::Stream, observer: EndObserver) -> Watch {
        Watch {
            stream,
            deadline: Cell::new(None),
            expired: Cell::new(false),
            stopping: Cell::new(false),
            sends: SendWatch::default(),
            seen_step: Cell::new(None),
            held_back: RefCell::default(),
            taking: Pace::default(),
            arriving: Pace::default(),
            holds: Cell::new(false),
            waits: Cell::new(false),
            slow: Cell::new(false),
            observer: RefCell::new(Some(observer)),
        }
    }

    /// Calls the observer with the end of the connection.
    pub(super) fn tell_end(&self, end: &End) {
        let observer = self.observer.take();
        if let Some(observer) = observer {
            observer(end);
        }
    }

    /// Ends a send if the client has received none of it for [`SEND_LIMIT`].
    pub(super) fn check_send(&self, now: Instant) {
        let step = self.sends.step();
        match (step, self.seen_step.get()) {
            (Some(step), Some((seen, since))) if step == seen => {
                if now - since >= SEND_LIMIT {
                    self.sends.interrupt();
                }
            }
            _ => self.seen_step.set(step.map(|step| (step, now))),
        }
    }

    /// Whether the deadline has passed, or the client is too slow while another connection waits for memory.
    /// `passed` is the time since the last check, `waiting` the number of waiting connections.
    pub(super) fn is_late(&self, now: Instant, passed: Duration, waiting: usize) -> bool {
        if self.holds.get() && waiting > usize::from(self.waits.get()) {
            let slow = [&self.taking, &self.arriving].map(|pace| pace.wait(passed));
            self.slow.set(slow.contains(&true) || self.slow.get());
        }
        self.slow.get() || self.deadline.get().is_some_and(|deadline| deadline <= now)
    }

    /// Reason for which the server ended the connection.
    fn end(&self) -> End {
        if self.slow.get() { End::Slow } else { End::Silent }
    }

    /// Makes the connection accept no more requests. The caller ends its receive.
    pub(super) fn stop(&self) {
        self.stopping.set(true);
        let held_back = self.held_back.take();
        held_back.into_iter().for_each(Waker::wake);
    }
}

/// Reason for the end of a connection.
#[derive(Debug)]
pub(super) enum End {
    /// The client sent DISC or ABORT.
    Goodbye,
    /// The client closed the connection without DISC.
    HungUp,
    /// The client was silent in the middle of a message.
    Silent,
    /// The client received no byte of its replies.
    Stalled,
    /// The client was too slow while another connection waited for memory.
    Slow,
    /// The server stops.
    Stopped,
    /// The client broke the protocol.
    Violation(Error),
    /// The connection broke.
    Lost(Error),
}

impl End {
    /// End after a receive that failed: records of TLS that aren't valid are the client's fault.
    pub(super) fn of_receive(error: Error) -> End {
        match error {
            Error::Protocol(_) => End::Violation(error),
            error => End::Lost(error),
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Goodbye => formatter.write_str("the client disconnected"),
            End::HungUp => formatter.write_str("the client hung up"),
            End::Silent => {
                formatter.write_str("the client was silent in the middle of a message and was cut off")
            }
            End::Stalled => write!(
                formatter,
                "the client took no byte of its replies for {} seconds and was cut off",
                SEND_LIMIT.as_secs()
            ),
            End::Slow => write!(
                formatter,
                "the client was cut off: it held shared memory and moved less than {} KiB/s for over {} s while other clients \
                 waited for memory",
                SLOWEST >> 10,
                SLOWEST_GRACE.as_secs()
            ),
            End::Stopped => formatter.write_str("the server stops"),
            End::Violation(error) => write!(formatter, "the client was cut off: {}", error.detail()),
            End::Lost(error) => write!(formatter, "the connection broke: {}", error.detail()),
        }
    }
}

/// Bytes received and not yet used.
pub(super) struct Received {
    pub(super) buffer: Buffer,
    pub(super) used: usize,
}

impl Received {
    pub(super) fn rest(&self) -> &[u8] {
        &self.buffer.filled()[self.used..]
    }

    /// Makes space after the unused bytes for the next receive.
    pub(super) fn make_room(&mut self) {
        let rest = self.rest().len();
        if rest == 0 {
            self.buffer.clear();
        } else if self.used > 0 && self.buffer.missing() < RECEIVE_BYTES / 2 {
            self.buffer.filled_mut().copy_within(self.used.., 0);
            self.buffer.truncate_filled(rest);
        } else {
            return;
        }
        self.used = 0;
    }
}

/// Exports that clients of a server can open.
pub(super) struct Offered<'a> {
    pub(super) descriptions: &'a [ExportDescription],
    /// The same exports, with this shard's handles.
    pub(super) exports: &'a [(&'a Export, &'a dyn Device)],
    pub(super) source: Option<&'a dyn ExportSource>,
    pub(super) tls: Option<&'a ServerTls>,
}

/// Serves a client, handshake and transmission, until the connection ends.
pub(super) async fn serve(watch: &Watch, offered: &Offered<'_>, budget: &Arc<Budget>, shard: usize) -> End {
    watch.deadline.set(Some(runtime::now() + HANDSHAKE_LIMIT));
    let mut stream = Stream::Plain(watch.stream.clone());
    let end = match negotiate(watch, offered, &mut stream).await {
        Ok(negotiated) => transmit(watch, offered, budget, shard, negotiated, &stream).await,
        Err(end) => end,
    };
    if matches!(end, End::Goodbye | End::Stopped | End::HungUp | End::Violation(_)) {
        stream.say_goodbye().await;
    }
    end
}

/// Serves the transmission phase.
async fn transmit(
    watch: &Watch,
    offered: &Offered<'_>,
    budget: &Arc<Budget>,
    shard: usize,
    (agreement, opened, received): Negotiated,
    stream: &Stream,
) -> End {
    watch.deadline.set(None);
    // An export of the source belongs to this connection.
    let own = match opened {
        Some(config) => match config.device.open().await {
            Ok(device) => {
                Some((Export::new(&config.device, config.read_only, runtime::shard_count()), device))
            }
            Err(error) => return End::Lost(error),
        },
        None => None,
    };
    let (export, device) = match &own {
        Some((export, device)) => (export, &**device),
        None => offered.exports[agreement.export],
    };
    export.counters.add(&mut Tally { connections: 1, ..Tally::default() });
    let share = Share::new(budget.clone());
    let mut connection = Connection::new((watch, stream), export, device, share, shard, agreement, received);
    poll_fn(|context| connection.poll(context)).await
}

/// Whether receives wait to batch requests.
#[derive(Default)]
struct Batching {
    /// Whether the client sends requests before earlier ones are answered.
    deep: bool,
    /// Whether the receive in progress waited.
    waited: bool,
    /// Whether the ready tasks have run since this receive was considered.
    looked_again: bool,
    /// Number of requests that the last receive has brought so far.
    brought: Option<u32>,
    last: u32,
    receives: u32,
}

impl Batching {
    fn is_wanted(&self) -> bool {
        (self.deep && self.last < ENOUGH_AT_ONCE) || self.receives.is_multiple_of(PROBE_EVERY)
    }

    /// Begins a receive; returns whether it waits.
    fn begin(&mut self, all_answered: bool) -> bool {
        self.waited = all_answered && self.is_wanted();
        self.looked_again = false;
        self.receives = self.receives.wrapping_add(1);
        self.waited
    }

    #[inline]
    fn count(&mut self) {
        if let Some(count) = &mut self.brought {
            *count += 1;
        }
    }

    /// Updates the decision from the number of requests of a receive.
    fn judge(&mut self) {
        let Some(count) = self.brought.take() else { return };
        self.last = count;
        if self.waited || self.last > 1 {
            self.deep = self.last > 1;
        }
    }
}

/// The transmission phase of a connection.
struct Connection<'c> {
    watch: &'c Watch,
    stream: &'c Stream,
    export: &'c Export,
    session: Session,
    target: Target<'c>,
    intake: Intake,
    /// `None` while a receive into it is in progress.
    received: Option<Received>,
    receiving: Option<Call<'c, (Result<usize>, Buffer)>>,
    /// Number of used bytes of the buffer when the receive in progress took it.
    used: usize,
    /// Write whose payload is received into a buffer of its own; the buffer is `None` while a receive has it.
    large: Option<(Request, Durability)>,
    large_buffer: Option<Buffer>,
    /// Whether the next request waits for answers to earlier ones, or for a share of the server's budget.
    held_back: bool,
    batching: Batching,
    in_flight: InFlight<Work<'c>>,
    replies: Replies,
    sending: Option<Call<'c, (Result<()>, Payload)>>,
    /// Number of requests, and their bytes, that the send in progress answers.
    sent: (usize, u64),
    /// Payload that was sent, kept for its capacity.
    spare: Payload,
    output_failed: bool,
    open_requests: usize,
    open_bytes: u64,
    /// Share of the server's budget that covers the open bytes.
    share: Share,
    tally: Tally,
    end: Option<End>,
}

impl<'c> Connection<'c> {
    fn new(
        (watch, stream): (&'c Watch, &'c Stream),
        export: &'c Export,
        device: &'c dyn Device,
        share: Share,
        shard: usize,
        agreement: Agreement,
        received: Received,
    ) -> Self {
        let geometry = export.geometry();
        Connection {
            watch,
            stream,
            export,
            session: Session {
                size: geometry.bytes(),
                read_only: export.read_only,
                structured: agreement.structured,
                allocation_context: agreement.allocation_context,
            },
            target: export.target(device, shard),
            intake: Intake::default(),
            received: Some(received),
            receiving: None,
            used: 0,
            large: None,
            large_buffer: None,
            held_back: false,
            batching: Batching::default(),
            in_flight: InFlight::new(),
            replies: Replies::new(agreement.structured),
            sending: None,
            sent: (0, 0),
            spare: Payload::new(),
            output_failed: false,
            open_requests: 0,
            open_bytes: 0,
            share,
            tally: Tally::default(),
            end: None,
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<End> {
        self.in_flight.register(context.waker());
        loop {
            self.collect();
            let mut progress = self.poll_receive(context);
            self.start_requests(context);
            // Replies are sent before more requests are received.
            progress |= self.poll_send(context);
            self.start_receive(context);
            if self.receiving.is_some() {
                progress |= self.poll_receive(context);
            }
            if !progress {
                break;
            }
        }
        self.export.counters.add(&mut self.tally);
        self.watch.holds.set(self.share.holds());
        self.watch.waits.set(self.share.waits());
        let sent = self.sending.is_none() && (self.replies.is_empty() || self.output_failed);
        match self.end.take() {
            Some(end) if self.in_flight.is_empty() && sent => Poll::Ready(end),
            end => {
                self.end = end;
                Poll::Pending
            }
        }
    }

    /// Accepts no more requests. Requests in flight end, and their replies are sent while the client receives
    /// them.
    #[cold]
    fn end(&mut self, end: End) {
        if self.end.is_none() {
            self.watch.tell_end(&end);
            self.end = Some(end);
            self.share.leave();
            self.watch.deadline.set(None);
        }
    }

    /// Answers the requests whose calls have ended.
    fn collect(&mut self) {
        let Connection { in_flight, replies, tally, target, .. } = self;
        in_flight.collect(|ended| answer(replies, tally, target.block_shift, ended));
    }

    /// Polls a receive; returns whether it has ended.
    fn poll_receive(&mut self, context: &mut Context<'_>) -> bool {
        let Some(receiving) = &mut self.receiving else { return false };
        let Poll::Ready((result, buffer)) = Pin::new(receiving).poll(context) else { return false };
        self.receiving = None;
        self.batching.brought = Some(0);
        match result {
            Ok(0) if self.watch.expired.get() => self.end(self.watch.end()),
            Ok(0) if self.watch.stopping.get() => self.end(End::Stopped),
            Ok(0) => self.end(End::HungUp),
            Ok(_) => {}
            Err(error) => self.end(End::of_receive(error)),
        }
        match self.large {
            None => self.received = Some(Received { buffer, used: self.used }),
            Some((request, durability)) if buffer.missing() == 0 => {
                self.large = None;
                self.watch.arriving.begin(0);
                self.begin(request, write(durability), Some(buffer));
            }
            Some(_) => self.large_buffer = Some(buffer),
        }
        true
    }

    /// Starts a receive unless a request is held back, and sets the deadline if the receive must bring bytes.
    fn start_receive(&mut self, context: &mut Context<'_>) {
        if self.receiving.is_some() || self.end.is_some() {
            return;
        }
        if self.watch.stopping.get() {
            return self.end(End::Stopped);
        }
        if self.held_back {
            self.watch.held_back.replace(Some(context.waker().clone()));
            return self.watch.deadline.set(None);
        }
        if self.batching.is_wanted() && !self.in_flight.is_empty() && !self.batching.looked_again {
            // Requests that are ready run first: this shows whether all requests are answered at once.
            self.batching.looked_again = true;
            return context.waker().wake_by_ref();
        }
        let stream = self.stream;
        let (call, in_the_middle) = if let Some(buffer) = self.large_buffer.take() {
            (stream.start_receive(buffer), true)
        } else if let Some(mut received) = self.received.take() {
            received.make_room();
            let in_the_middle = !received.rest().is_empty() || self.intake.is_skipping();
            self.used = received.used;
            let waits = self.batching.begin(self.in_flight.is_empty() && !in_the_middle);
            let call = match waits {
                true => Call::new(async move {
                    runtime::sleep(BATCH_WAIT).await;
                    stream.receive(received.buffer).await
                }),
                false => stream.start_receive(received.buffer),
            };
            (call, in_the_middle)
        } else {
            return;
        };
        self.receiving = Some(call);
        if in_the_middle {
            self.watch.deadline.set(Some(runtime::now() + SILENCE_LIMIT));
        } else if self.watch.deadline.get().is_some() {
            self.watch.deadline.set(None);
        }
    }

    /// Starts every received request, as far as the limits allow.
    fn start_requests(&mut self, context: &Context<'_>) {
        if self.end.is_some() || self.large.is_some() {
            return;
        }
        let Some(mut received) = self.received.take() else { return };
        self.held_back = false;
        loop {
            let bytes = received.rest();
            let step = match self.intake.next(bytes, &self.session) {
                Ok(step) => step,
                Err(error) => {
                    self.end(End::Violation(error));
                    break;
                }
            };
            if !self.admits(&step, context) {
                self.held_back = true;
                break;
            }
            self.intake.take(&step);
            received.used += step.consumed();
            match step {
                Step::Wait => break,
                Step::Skip(_) => {}
                Step::Disconnect => {
                    self.end(End::Goodbye);
                    break;
                }
                Step::Refuse(request, refusal) => {
                    self.open_requests += 1;
                    self.tally.errors += 1;
                    self.replies.error(&request, refusal.number, refusal.words);
                    if refusal.ends_session {
                        let text = format!("command {}: {}", request.command, refusal.words);
                        self.end(End::Violation(Error::protocol(text)));
                        break;
                    }
                }
                Step::Start(request, command) => {
                    self.open(&request, command);
                    let begin = received.used - step.consumed() + REQUEST_BYTES;
                    let payload = &received.buffer.filled()[begin..received.used];
                    let payload = (!payload.is_empty()).then(|| Buffer::copy_of(payload));
                    self.begin(request, command, payload);
                }
                Step::StartLarge(request, durability) => {
                    self.open(&request, write(durability));
                    let here = received.rest().len().min(request.length as usize);
                    let mut buffer = Buffer::new(request.length as usize);
                    buffer.append(&received.rest()[..here]);
                    received.used += here;
                    if buffer.missing() > 0 {
                        self.watch.arriving.begin(u64::from(request.length));
                        (self.large, self.large_buffer) = (Some((request, durability)), Some(buffer));
                        break;
                    }
                    self.begin(request, write(durability), Some(buffer));
                }
            }
        }
        self.received = Some(received);
        self.batching.judge();
    }

    /// Whether the limits allow this step now. If the server's budget doesn't, the connection is in its
    /// queue.
    #[inline]
    fn admits(&mut self, step: &Step, context: &Context<'_>) -> bool {
        let bytes = match step {
            Step::Start(request, command) => self.cost(request, *command),
            Step::StartLarge(request, durability) => self.cost(request, write(*durability)),
            Step::Refuse(..) => 0,
            Step::Wait | Step::Skip(_) | Step::Disconnect => return true,
        };
        let all = self.open_bytes + bytes;
        let admitted = self.open_requests < SLOTS && (self.open_bytes == 0 || all <= MAX_BYTES);
        admitted && self.share.cover(all, context)
    }

    fn cost(&self, request: &Request, command: Command) -> u64 {
        cost(request, command, self.target.block_shift)
    }

    fn open(&mut self, request: &Request, command: Command) {
        self.open_requests += 1;
        self.open_bytes += self.cost(request, command);
        self.batching.count();
    }

    /// Closes the requests whose replies were sent or never will be.
    fn close_sent(&mut self) {
        self.open_requests -= self.sent.0;
        self.open_bytes -= self.sent.1;
        self.share.shrink_to(self.open_bytes);
    }

    /// Executes an open request.
    #[inline]
    fn begin(&mut self, request: Request, command: Command, payload: Option<Buffer>) {
        if request.length == 0 && command != Command::Device(Operation::Flush) {
            let outcome = Ok(None);
            let ended = Ended { request, command, outcome };
            return answer(&mut self.replies, &mut self.tally, self.target.block_shift, ended);
        }
        let work = work::begin(self.target, request, command, payload);
        if let Some(ended) = self.in_flight.start(work) {
            answer(&mut self.replies, &mut self.tally, self.target.block_shift, ended);
        }
    }

    /// Polls a send; returns whether it has ended. Starts the next one if there are replies.
    fn poll_send(&mut self, context: &mut Context<'_>) -> bool {
        let mut progress = false;
        loop {
            if let Some(sending) = &mut self.sending {
                let Poll::Ready((result, payload)) = Pin::new(sending).poll(context) else { return progress };
                self.sending = None;
                self.watch.taking.begin(0);
                self.spare = payload;
                self.spare.clear();
                self.close_sent();
                progress = true;
                if let Err(error) = result {
                    self.output_failed = true;
                    self.end(match error {
                        Error::TimedOut(_) => End::Stalled,
                        _ if self.watch.expired.get() => self.watch.end(),
                        error => End::Lost(error),
                    });
                }
            }
            if self.replies.is_empty() {
                return progress;
            }
            self.sent = self.replies.take(&mut self.spare);
            if self.output_failed {
                // The client is disconnected, so the replies are discarded.
                self.spare.clear();
                self.close_sent();
                return progress;
            }
            let payload = std::mem::take(&mut self.spare);
            self.watch.taking.begin(self.sent.1);
            self.sending = Some(self.stream.start_send_watched(payload, &self.watch.sends));
        }
    }
}

/// Command of a write.
fn write(durability: Durability) -> Command {
    Command::Device(Operation::Write(durability))
}

/// Bytes of a request in the budget: the blocks that a read or write touches, or the longest reply to a block
/// status.
#[inline]
fn cost(request: &Request, command: Command, block_shift: u32) -> u64 {
    match command {
        Command::Device(Operation::Read | Operation::Write(_)) => request.range().block_bytes(block_shift),
        Command::BlockStatus { .. } => MAX_STATUS_BYTES,
        Command::Device(_) => 0,
    }
}

/// Appends the reply to a request that has ended, and counts it.
#[inline]
fn answer(replies: &mut Replies, tally: &mut Tally, block_shift: u32, ended: Ended) {
    let Ended { request, command, outcome } = ended;
    match command {
        Command::Device(operation) => tally.count(operation, u64::from(request.length)),
        Command::BlockStatus { .. } => tally.block_statuses += 1,
    }
    replies.bytes += cost(&request, command, block_shift);
    match (outcome, command) {
        (Ok(Some(data)), Command::BlockStatus { .. }) => replies.block_status(&request, data),
        (Ok(Some(data)), _) => replies.data(&request, data),
        (Ok(None), _) => replies.done(&request),
        (Err(error), _) => {
            tally.errors += 1;
            replies.error(&request, ErrorNumber::of(&error), &error.to_string());
        }
    }
}

const _: () =
    assert!(RECEIVE_BYTES / 2 > LARGE_WRITE as usize + REQUEST_BYTES, "a small write fits the buffer");
