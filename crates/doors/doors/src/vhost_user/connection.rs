//! The connection of a front-end: its messages, the state that they change, and its running queues.
//!
//! A message that changes resources of a running queue (the memory, features, addresses) pauses the queue:
//! its requests in flight end, the change is made, and the queue continues. A running queue therefore never
//! sees a change, and its memory isn't unmapped.

use super::config::{self, feature};
use super::descriptors;
use super::door::Shared;
use super::inflight::Inflight;
use super::memory::GuestMemory;
use super::protocol::{self, HEADER_BYTES, Header, Message, QueueAddresses, reply};
use super::queue::{self, CallLine, Ended, Settings};
use block::{Buffer, Error, Result};
use runtime::event::EventSignal;
use runtime::net::Stream;
use runtime::sync::{StopSource, StopToken};
use runtime::{RemoteHandle, ShardIndex};
use std::fmt;
use std::future::poll_fn;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

/// Time limit for a front-end that is silent in the middle of a message.
const SILENCE_LIMIT: Duration = Duration::from_secs(10);
/// Features of the protocol that are offered.
const PROTOCOL_FEATURES: u64 = protocol::feature::MQ
    | protocol::feature::REPLY_ACK
    | protocol::feature::BACKEND_REQ
    | protocol::feature::CONFIG
    | protocol::feature::INFLIGHT_SHMFD;

/// Reason for the end of a connection.
#[derive(Debug)]
pub(super) enum End {
    /// The front-end closed the connection.
    HungUp,
    /// The door stops.
    Stopped,
    /// The front-end or the guest broke the protocol.
    Violation(Error),
    /// The connection broke.
    Lost(Error),
}

impl End {
    fn of(error: Error) -> End {
        match error {
            Error::Disconnected(_) => End::Lost(error),
            error => End::Violation(error),
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::HungUp => formatter.write_str("the front-end disconnected"),
            End::Stopped => formatter.write_str("the door stops"),
            End::Violation(error) => write!(formatter, "the front-end was cut off: {error}"),
            End::Lost(error) => write!(formatter, "the connection broke: {error}"),
        }
    }
}

struct Running {
    stop: StopSource,
    handle: RemoteHandle<Ended>,
}

/// Settings of a queue by the front-end.
#[derive(Default)]
struct Queue {
    size: u32,
    addresses: Option<QueueAddresses>,
    next_available: u16,
    kick: Option<OwnedFd>,
    call: Arc<CallLine>,
    error: Option<EventSignal>,
    enabled: bool,
    running: Option<Running>,
}

/// Answer to a message.
enum Answer {
    /// No answer of its own.
    Done,
    Payload(Vec<u8>),
    WithDescriptor(Vec<u8>, OwnedFd),
}

struct Connection<'s> {
    stream: Stream,
    shared: &'s Arc<Shared>,
    features: u64,
    protocol_features: u64,
    memory: Option<Arc<GuestMemory>>,
    inflight: Option<Inflight>,
    queues: Vec<Queue>,
    /// Socket for messages of this back-end.
    channel: Option<OwnedFd>,
    /// Size of the disk that the front-end knows, in bytes.
    announced: u64,
}

/// A message with its descriptors.
struct Received {
    header: Header,
    payload: Buffer,
    descriptors: Vec<OwnedFd>,
}

/// Serves a front-end until it disconnects, breaks the protocol or the door stops. All queues have then
/// ended.
pub(super) async fn serve(stream: Stream, shared: &Arc<Shared>, stop: &StopToken) -> End {
    let queues = (0..shared.queues).map(|_| Queue::default()).collect();
    let mut connection = Connection {
        stream,
        shared,
        features: 0,
        protocol_features: 0,
        memory: None,
        inflight: None,
        queues,
        channel: None,
        announced: shared.export().geometry().bytes(),
    };
    let end = loop {
        match connection.next(stop).await {
            Err(end) => break end,
            Ok(received) => {
                if let Err(error) = connection.answer(received).await {
                    break End::of(error);
                }
            }
        }
    };
    if let End::Violation(_) = end {
        // Notifies the front-end; its descriptor may be of any kind, so errors are ignored.
        connection.queues.iter().flat_map(|queue| &queue.error).for_each(|signal| drop(signal.signal()));
    }
    let ended = connection.pause_all().await;
    match (end, ended) {
        (end @ (End::Violation(_) | End::Lost(_)), _) | (end, Ok(())) => end,
        (_, Err(error)) => End::of(error),
    }
}

impl Connection<'_> {
    /// Waits for a message, for the end of any queue, and for the stop of the door. Meanwhile announces
    /// growths of the device.
    async fn next(&mut self, stop: &StopToken) -> Result<Received, End> {
        let Connection { stream, queues, shared, channel, announced, .. } = self;
        // Kept across announcements, since a part of a message may have arrived.
        let mut receiving = pin!(receive(stream));
        let mut stopped = pin!(stop.stopped());
        loop {
            let refresh = shared.refresh_token();
            announce_growth(shared, channel, announced);
            let mut refreshed = pin!(refresh.stopped());
            let received = poll_fn(|context| {
                if stopped.as_mut().poll(context).is_ready() {
                    return Poll::Ready(Err(End::Stopped));
                }
                for (index, queue) in queues.iter_mut().enumerate() {
                    let Some(running) = &mut queue.running else { continue };
                    let Poll::Ready(ended) = Pin::new(&mut running.handle).poll(context) else { continue };
                    queue.running = None;
                    shared.running_queues.fetch_sub(1, Ordering::Relaxed);
                    let error = match ended {
                        Ok(Ended { result: Err(error), .. }) | Err(error) => error,
                        Ok(_) => Error::cancelled("it was not asked to end"),
                    };
                    return Poll::Ready(Err(End::of(error.in_context(format_args!("queue {index}")))));
                }
                if refreshed.as_mut().poll(context).is_ready() {
                    return Poll::Ready(Ok(None));
                }
                receiving.as_mut().poll(context).map(|received| received.map(Some))
            });
            if let Some(received) = received.await? {
                return Ok(received);
            }
        }
    }

    /// Executes a message and answers it.
    async fn answer(&mut self, received: Received) -> Result<()> {
        let Received { header, payload, descriptors } = received;
        let number = header.number;
        let done = match protocol::parse(number, payload.filled(), descriptors.len()) {
            Ok(message) => self.carry_out(message, descriptors).await,
            Err(error) => Err(error),
        };
        let wants_code = header.needs_reply && self.protocol_features & protocol::feature::REPLY_ACK != 0;
        let code = |code: u64| reply(number, &code.to_le_bytes());
        match done {
            Ok(Answer::Payload(payload)) => self.stream.send_with_descriptors(&reply(number, &payload), &[]),
            Ok(Answer::WithDescriptor(payload, descriptor)) => {
                self.stream.send_with_descriptors(&reply(number, &payload), &[descriptor.as_fd()])
            }
            Ok(Answer::Done) if wants_code => self.stream.send_with_descriptors(&code(0), &[]),
            Ok(Answer::Done) => Ok(()),
            Err(error) => {
                if wants_code {
                    // The connection ends; the code only informs the front-end.
                    let _ = self.stream.send_with_descriptors(&code(1), &[]);
                }
                Err(error)
            }
        }
    }

    fn offered(&self) -> u64 {
        config::features(self.shared.export().read_only)
    }

    async fn carry_out(&mut self, message: Message, mut descriptors: Vec<OwnedFd>) -> Result<Answer> {
        let number = |value: u64| Ok(Answer::Payload(value.to_le_bytes().to_vec()));
        match message {
            Message::GetFeatures => return number(self.offered()),
            Message::GetProtocolFeatures => return number(PROTOCOL_FEATURES),
            Message::GetQueueCount => return number(self.shared.queues as u64),
            Message::SetOwner | Message::ResetOwner => {}
            Message::SetConfig => {
                tracing::debug!("{}: a write to the configuration was ignored", self.shared.name)
            }
            Message::GetConfig { offset, length } => return Ok(self.config(offset, length)),
            Message::SetBackendChannel => {
                let needed = protocol::feature::BACKEND_REQ | protocol::feature::CONFIG;
                self.channel = match self.protocol_features & needed == needed {
                    true => descriptors.pop(),
                    // Without the other feature there is no answer.
                    false => None,
                };
            }
            Message::SetFeatures(features) => {
                check_offered("features", features, self.offered())?;
                self.pause_all().await?;
                self.features = features;
                self.start_all()?;
            }
            Message::SetProtocolFeatures(features) => {
                check_offered("protocol features", features, PROTOCOL_FEATURES)?;
                self.protocol_features = features;
            }
            Message::SetMemory(regions) => {
                descriptors::memory(&descriptors)?;
                self.pause_all().await?;
                // The old mappings are removed first, so that a guest's memory isn't mapped twice.
                self.memory = None;
                self.memory = Some(Arc::new(GuestMemory::map(&regions, &descriptors)?));
                self.start_all()?;
            }
            Message::GetInflight(asked) => {
                let (description, descriptor) = Inflight::create(&asked, self.shared.queues)?;
                return Ok(Answer::WithDescriptor(description.to_bytes(), descriptor));
            }
            Message::SetInflight(given) => {
                let descriptor = descriptors.pop().ok_or_else(|| Error::protocol("no descriptor"))?;
                descriptors::memory(std::slice::from_ref(&descriptor))?;
                self.pause_all().await?;
                self.inflight = Some(Inflight::map(&given, &descriptor, self.shared.queues)?);
                self.start_all()?;
            }
            Message::GetBase(index) => {
                self.pause(index).await?;
                let queue = self.queue(index)?;
                queue.kick = None;
                let state = [index as u32, u32::from(queue.next_available)];
                return Ok(Answer::Payload(state.iter().flat_map(|word| word.to_le_bytes()).collect()));
            }
            Message::SetCall(index) => {
                let signal = descriptors
                    .pop()
                    .map(descriptors::event)
                    .transpose()?
                    .map(EventSignal::new)
                    .transpose()?;
                self.queue(index)?.call.set(signal);
            }
            Message::SetError(index) => {
                self.queue(index)?.error = descriptors
                    .pop()
                    .map(descriptors::event)
                    .transpose()?
                    .map(EventSignal::new)
                    .transpose()?;
            }
            Message::SetSize(index, size) => self.change(index, |queue| queue.size = size).await?,
            Message::SetAddresses(index, addresses) => {
                self.change(index, |queue| queue.addresses = Some(addresses)).await?;
            }
            Message::SetBase(index, base) => {
                let base = u16::try_from(base).map_err(|_| {
                    Error::protocol(format!("base {base} of queue {index}: expected 16 bits"))
                })?;
                self.change(index, |queue| queue.next_available = base).await?;
            }
            Message::SetKick(index) => {
                let kick = descriptors.pop().map(descriptors::event).transpose()?;
                self.change(index, |queue| queue.kick = kick).await?;
            }
            Message::SetEnabled(index, enabled) => {
                self.change(index, |queue| queue.enabled = enabled).await?;
            }
        }
        Ok(Answer::Done)
    }

    fn config(&self, offset: u32, length: u32) -> Answer {
        let space = config::space(self.shared.export().geometry(), self.shared.queues);
        let mut payload: Vec<u8> = [offset, length, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
        // The front-end's structure may be longer: its further fields belong to features that aren't offered.
        payload.extend((offset..offset + length).map(|at| space.get(at as usize).copied().unwrap_or(0)));
        Answer::Payload(payload)
    }

    fn queue(&mut self, index: usize) -> Result<&mut Queue> {
        let count = self.queues.len();
        self.queues
            .get_mut(index)
            .ok_or_else(|| Error::protocol(format!("queue {index} out of range 0..{count}")))
    }

    /// Changes a queue, which is paused meanwhile.
    async fn change(&mut self, index: usize, change: impl FnOnce(&mut Queue)) -> Result<()> {
        self.pause(index).await?;
        change(self.queue(index)?);
        self.start(index)
    }

    /// Stops a queue; its requests in flight end.
    async fn pause(&mut self, index: usize) -> Result<()> {
        let shared = self.shared;
        let queue = self.queue(index)?;
        let Some(running) = queue.running.take() else { return Ok(()) };
        running.stop.stop();
        let ended = running.handle.await?;
        shared.running_queues.fetch_sub(1, Ordering::Relaxed);
        queue.next_available = ended.next_available;
        ended.result.map_err(|error| error.in_context(format_args!("queue {index}")))
    }

    /// Stops all queues. Returns the first error.
    async fn pause_all(&mut self) -> Result<()> {
        for running in self.queues.iter().filter_map(|queue| queue.running.as_ref()) {
            running.stop.stop();
        }
        let mut result = Ok(());
        for index in 0..self.queues.len() {
            let paused = self.pause(index).await;
            result = result.and(paused);
        }
        result
    }

    fn start_all(&mut self) -> Result<()> {
        (0..self.queues.len()).try_for_each(|index| self.start(index))
    }

    /// Starts a queue if the front-end has made all necessary settings.
    fn start(&mut self, index: usize) -> Result<()> {
        // Without protocol features a queue is always enabled.
        let always_enabled = self.features & feature::PROTOCOL_FEATURES == 0;
        let (features, shared, memory) = (self.features, self.shared.clone(), self.memory.clone());
        let inflight = self.inflight.clone();
        let queue = self.queue(index)?;
        let (Some(kick), Some(addresses), Some(memory)) = (&queue.kick, queue.addresses, memory) else {
            return Ok(());
        };
        if queue.size == 0 || !(queue.enabled || always_enabled) {
            return Ok(());
        }
        let in_context = |error: Error| error.in_context(format_args!("queue {index}"));
        let size = u16::try_from(queue.size).unwrap_or(u16::MAX);
        let inflight =
            inflight.map(|inflight| inflight.queue(index, size)).transpose().map_err(in_context)?;
        let stop = StopSource::new();
        let settings = Settings {
            memory,
            size: queue.size,
            addresses,
            next_available: queue.next_available,
            features,
            inflight,
            kick: kick.try_clone().map_err(|error| Error::from_io(&error, "keeping a kick descriptor"))?,
            call: queue.call.clone(),
            stop: stop.token(),
            serial: shared.serial,
        };
        shared.running_queues.fetch_add(1, Ordering::Relaxed);
        let shard = ShardIndex(index % runtime::shard_count());
        let handle = runtime::spawn_on(shard, move || run(settings, shared));
        queue.running = Some(Running { stop, handle });
        Ok(())
    }
}

/// Notifies the front-end of a change of the configuration space if the device has grown since the last
/// notification.
fn announce_growth(shared: &Shared, channel: &mut Option<OwnedFd>, announced: &mut u64) {
    let present = shared.export().geometry().bytes();
    let Some(socket) = channel.as_ref().filter(|_| *announced != present) else { return };
    *announced = present;
    // Without NEED_REPLY there is no answer, also with REPLY_ACK, and none is needed.
    let message = protocol::message(protocol::CONFIG_CHANGE, protocol::flag::VERSION, &[]);
    let flags = rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL;
    let problem = match rustix::net::send(socket, &message, flags) {
        Ok(sent) if sent == message.len() => return,
        Ok(_) => "it takes nothing".to_owned(),
        Err(error) => error.to_string(),
    };
    // Part of the message was sent, so a further one can't follow.
    *channel = None;
    tracing::warn!(
        "vhost-user \"{}\": the front-end can't be told that the device has grown: its channel: {problem}",
        shared.name
    );
}

fn check_offered(what: &str, features: u64, offered: u64) -> Result<()> {
    match features & !offered {
        0 => Ok(()),
        others => {
            Err(Error::protocol(format!("{what} {others:#x}: not offered; expected some of {offered:#x}")))
        }
    }
}

/// Serves a queue on its shard.
async fn run(settings: Settings, shared: Arc<Shared>) -> Ended {
    let next_available = settings.next_available;
    let device = shared.devices.here();
    let Some(device) = device else {
        return Ended { next_available, result: Err(Error::cancelled("the door is stopping")) };
    };
    queue::serve(settings, shared.export(), &**device, runtime::current_shard().0).await
}

/// Receives a message.
async fn receive(stream: &Stream) -> Result<Received, End> {
    let mut descriptors = Vec::new();
    let mut head = Buffer::new(HEADER_BYTES);
    match descriptors::receive(stream, &mut head, HEADER_BYTES, &mut descriptors).await {
        Ok(0) => return Err(End::HungUp),
        Ok(_) => {}
        Err(error) => return Err(End::of(error)),
    }
    let rest = async {
        fill(stream, &mut head, &mut descriptors).await?;
        let mut bytes = [0; HEADER_BYTES];
        bytes.copy_from_slice(head.filled());
        let header = Header::parse(&bytes)?;
        let mut payload = Buffer::new(header.payload);
        fill(stream, &mut payload, &mut descriptors).await?;
        Ok((header, payload))
    };
    match runtime::timeout(SILENCE_LIMIT, rest).await {
        Ok(Ok((header, payload))) => Ok(Received { header, payload, descriptors }),
        Ok(Err(error)) => Err(End::of(error)),
        Err(_) => {
            Err(End::Violation(Error::timed_out("the front-end was silent in the middle of a message")))
        }
    }
}

async fn fill(stream: &Stream, buffer: &mut Buffer, descriptors: &mut Vec<OwnedFd>) -> Result<()> {
    while buffer.missing() > 0 {
        let missing = buffer.missing();
        if descriptors::receive(stream, buffer, missing, descriptors).await? == 0 {
            return Err(Error::disconnected("the front-end closed in the middle of a message"));
        }
    }
    if descriptors.len() > runtime::net::MAX_DESCRIPTORS {
        return Err(Error::protocol(format!("a message with {} descriptors", descriptors.len())));
    }
    Ok(())
}
