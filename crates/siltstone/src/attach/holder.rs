//! Holder of an attachment: starts servers, keeps what must outlive them, and owns the node.
//!
//! # Promises
//! - A server that ends without a request to do so is replaced by one that opens the stack as it was when it
//!   was attached. Requests wait for at most [`Plan::recover_within`]; then the connection is aborted and
//!   they fail. They fail at once if the server had acknowledged writes from its own memory
//!   ([`block::DevicePart::keeps_acknowledged`]): a file system on the node would otherwise continue without
//!   them.
//! - The node is only detached while it is unused. A signal that arrives while it is in use is reported; a
//!   holder in the foreground, which is a service's, detaches once the node is unused, one in the background
//!   ignores the signal, however often it is sent.
//! - On request the server is replaced by one of the installed program; if that one doesn't start, by one of
//!   the holder's program ([`reload`]).
//! - Until the node exists, a signal cancels the attachment, and so does the end of the operator's process.
//! - A failure before the node exists leaves no files, mounts or processes.
//! - Its memory is locked, and the out-of-memory killer skips it (oom_score_adj -1000).
//!
//! Everything that takes time (starting a server, creating the node) is a separate task that ends with an
//! event, so a holder always answers. The holder does no I/O on the volume.

mod end;
mod reload;

use super::announcement;
use super::driver::{Driver, NodeRequest};
use super::folder::{self, Folder, FolderLock, OWNER_ONLY};
use super::handover::{Connection, Ready, Start};
use super::launch::{self, KeptMemory, LeftConnection, Process, Server, duplicates, to_pass_on};
use super::node::{self, MAX_SECTOR};
use super::process::protect;
use super::record::{Record, State};
use super::requests::{DETACH, DETACH_ACKNOWLEDGED, DONE, LONGEST, RECEIVED, RELOAD, UNKNOWN};
use crate::service;
use block::{Buffer, Data, Error, Result};
use runtime::net::{Access, Listener, SocketFolder, Stream};
use runtime::sync::Notify;
use runtime::{JoinHandle, StopSignals};
use rustix::process::Signal;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::rc::Rc;
use std::time::Duration;

/// Time limit for receiving an operator's request.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);
/// Limit of requests that are received concurrently.
const MAX_REQUESTS: usize = 16;
/// Pause between attempts to start a server.
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(200);
/// Interval between checks of the log's size.
const LOG_CHECK: Duration = Duration::from_secs(5);
/// Size of the log in bytes at which it is truncated.
const LOG_LIMIT: u64 = 1 << 20;
/// Bytes at the end of the log that truncation keeps.
const LOG_KEPT: u64 = 256 << 10;
/// Interval between checks that the node still belongs to the attachment.
const NODE_CHECK: Duration = Duration::from_secs(2);
/// This program, even after its file was replaced: holder and servers have the same version until a
/// [`reload`].
pub const PROGRAM: &str = "/proc/self/exe";
/// Name of the program for `ps`.
pub const NAME: &str = "siltstone";

/// Parameters of an attachment.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The attachment's folder.
    pub folder: Folder,
    /// Stack on the command line, for the record.
    pub stack: String,
    /// Contents of the stack's file when it was attached; `None` for a stack of one line.
    pub text: Option<String>,
    /// Driver of the node.
    pub driver: Driver,
    /// Arguments of a server; the first server may also get `--format`.
    pub server_arguments: Vec<String>,
    /// Whether to format the stack when it is opened for the first time.
    pub format: bool,
    /// Logical block size of the node in bytes; `None` for that of the device, up to 4096.
    pub sector_size: Option<u32>,
    /// Time limit for replacing a lost server.
    pub recover_within: Duration,
}

/// Event that the holder waits for.
enum Event {
    Signal,
    Request(String, Stream),
    /// The process of the operator that waits for the node has ended.
    OperatorEnded,
    /// An attempt to start a server has ended.
    Started(Result<Server>),
    /// The server of this number has ended. Follows its [`Event::Started`].
    Ended(u64, ExitStatus),
    /// An attempt to make the node has ended.
    Node(Result<PathBuf>),
    /// Time to check whether the node still belongs to the attachment.
    LookAtNode,
    /// The time limit for replacing the n-th lost server has passed.
    Deadline(u64),
}

/// Events in order of arrival.
#[derive(Default)]
struct Events {
    queue: RefCell<VecDeque<Event>>,
    arrived: Notify,
}

impl Events {
    fn push(&self, event: Event) {
        self.queue.borrow_mut().push_back(event);
        self.arrived.notify_one();
    }

    fn forget_signals(&self) {
        self.queue.borrow_mut().retain(|event| !matches!(event, Event::Signal));
    }

    /// Removes and returns a started server from the queue, if its event is still there.
    fn take_started(&self) -> Option<Server> {
        let mut queue = self.queue.borrow_mut();
        let place = queue.iter().position(|event| matches!(event, Event::Started(Ok(_))))?;
        match queue.remove(place) {
            Some(Event::Started(started)) => started.ok(),
            _ => None,
        }
    }

    async fn next(&self) -> Event {
        loop {
            let event = self.queue.borrow_mut().pop_front();
            if let Some(event) = event {
                return event;
            }
            self.arrived.notified().await;
        }
    }
}

/// Phase of an attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The first server is being started.
    Starting,
    /// The node is being made.
    MakingNode,
    /// The node exists; the record has the state.
    Held,
}

struct Holder {
    plan: Rc<Plan>,
    events: Rc<Events>,
    phase: Phase,
    /// Memory of the stack that outlives a server.
    memory: Rc<KeptMemory>,
    /// Number of servers started so far.
    started: u64,
    /// The process that is being started.
    starting: Rc<RefCell<Option<Process>>>,
    server: Option<(Process, OwnedFd)>,
    /// Descriptors and parameters of the connection, while requests may be answered.
    connection: Option<(Vec<OwnedFd>, Ready)>,
    /// Connection that was aborted last, and the task that aborts it.
    aborting: Option<(Connection, JoinHandle<()>)>,
    record: Option<Record>,
    /// Whether the node was removed; a last user may still keep it.
    is_removed: bool,
    /// Whether a signal is kept until the node is unused.
    keeps_signals: bool,
    /// Whether a signal was kept.
    is_ending: bool,
    /// Program of the next server.
    program: PathBuf,
    /// Operator who waits for a server of another program.
    reloading: Option<Stream>,
}

/// Attaches the stack, calls `attached` with the record, and holds the node until it is detached. The folder
/// has been created, and is removed at the end. The pipe `operator` closes when the operator's process ends.
/// An error of `attached` cancels the attachment.
///
/// # Errors
/// Errors of the first server, of the node and of the folder; everything is undone then.
pub async fn hold(
    plan: Plan,
    lock: FolderLock,
    operator: Option<OwnedFd>,
    attached: impl FnOnce(&Record) -> Result<()>,
) -> Result<()> {
    let plan = Rc::new(plan);
    let held = attach_and_hold(&plan, operator, attached).await;
    let removed = plan.folder.remove();
    drop(lock);
    let Detached { operator, ended } = held?;
    let outcome = ended.and(removed);
    if let Some(stream) = operator {
        answer(&stream, outcome.as_ref().err().map_or(DONE, Error::detail)).await;
    }
    outcome
}

/// A detached node.
struct Detached {
    /// Connection of the operator that requested it.
    operator: Option<Stream>,
    /// End of the server. After an error, changes that weren't durable may be lost.
    ended: Result<()>,
}

/// Holds the node until it is detached.
async fn attach_and_hold(
    plan: &Rc<Plan>,
    operator: Option<OwnedFd>,
    attached: impl FnOnce(&Record) -> Result<()>,
) -> Result<Detached> {
    let socket = plan.folder.socket();
    let listener = SocketFolder::of(&socket)?.listen(&socket, Access::with_mode(OWNER_ONLY))?;
    let events: Rc<Events> = Rc::default();
    protect();
    let keeps_signals = operator.is_none();
    listen(listener, events.clone());
    watch_signals(&events)?;
    if let Some(operator) = operator {
        watch_operator(operator, &events);
    }
    bound_log(plan.folder.log());
    let mut holder = Holder {
        plan: plan.clone(),
        events,
        phase: Phase::Starting,
        memory: Rc::new(KeptMemory::new()?),
        started: 0,
        starting: Rc::default(),
        server: None,
        connection: None,
        aborting: None,
        is_removed: false,
        record: None,
        keeps_signals,
        is_ending: false,
        program: PROGRAM.into(),
        reloading: None,
    };
    holder.start_server(Duration::ZERO);
    let outcome = holder.run(attached).await;
    if outcome.is_err() {
        holder.undo().await;
    }
    outcome
}

/// Pushes an event for each signal.
///
/// # Errors
/// Errors of [`StopSignals::catch`].
fn watch_signals(events: &Rc<Events>) -> Result<()> {
    let (signals, events) = (StopSignals::catch()?, events.clone());
    runtime::spawn(async move {
        loop {
            match signals.next().await {
                Ok(()) => events.push(Event::Signal),
                Err(error) => return tracing::error!("{error}"),
            }
        }
    })
    .detach();
    Ok(())
}

/// Pushes an event when the operator's end of a pipe is closed.
fn watch_operator(pipe: OwnedFd, events: &Rc<Events>) {
    let events = events.clone();
    runtime::spawn(async move {
        // Nothing is ever written to the pipe.
        let _ended = runtime::blocking(move || std::fs::File::from(pipe).read(&mut [0])).await;
        events.push(Event::OperatorEnded);
    })
    .detach();
}

/// Limits the size of the log, since `/run` is in memory: checks it every [`LOG_CHECK`].
fn bound_log(path: PathBuf) {
    runtime::spawn(async move {
        loop {
            runtime::sleep(LOG_CHECK).await;
            // Under systemd the log may have no file.
            if std::fs::metadata(&path).is_ok_and(|log| log.len() > LOG_LIMIT)
                && let Err(error) = folder::shorten_log(&path, LOG_KEPT)
            {
                tracing::warn!("{error}");
            }
        }
    })
    .detach();
}

/// Accepts operators' connections, and receives their requests.
fn listen(listener: Listener, events: Rc<Events>) {
    let permits = runtime::sync::Semaphore::new(MAX_REQUESTS);
    runtime::spawn(async move {
        loop {
            let permit = permits.acquire(1).await;
            let (stream, events) = (listener.accept_retrying().await, events.clone());
            runtime::spawn(async move {
                if let Some(line) = request(&stream).await {
                    if [DETACH_ACKNOWLEDGED, RELOAD].contains(&line.as_str()) {
                        answer(&stream, RECEIVED).await;
                    }
                    events.push(Event::Request(line, stream));
                }
                drop(permit);
            })
            .detach();
        }
    })
    .detach();
}

/// Receives one line; `None` if it is incomplete or late.
async fn request(stream: &Stream) -> Option<String> {
    let receiving = async {
        let mut line = Vec::new();
        loop {
            let (received, buffer) = stream.receive(Buffer::new(LONGEST)).await;
            let count = received.ok().filter(|count| *count > 0)?;
            line.extend_from_slice(&buffer.filled()[..count]);
            if let Some(end) = line.iter().position(|byte| *byte == b'\n') {
                return String::from_utf8(line[..end].to_vec()).ok();
            }
            if line.len() > LONGEST {
                return None;
            }
        }
    };
    runtime::timeout(REQUEST_LIMIT, receiving).await.ok().flatten()
}

async fn answer(stream: &Stream, text: &str) {
    let line = format!("{}\n", text.replace('\n', " "));
    // A client that has disconnected needs no answer.
    let _sent = runtime::timeout(REQUEST_LIMIT, stream.send(Data::copy_of(line.as_bytes()).into())).await;
}

impl Holder {
    /// Handles events until the node is detached.
    async fn run(&mut self, attached: impl FnOnce(&Record) -> Result<()>) -> Result<Detached> {
        let mut attached = Some(attached);
        let events = self.events.clone();
        loop {
            match events.next().await {
                Event::Signal if self.phase != Phase::Held => {
                    return Err(Error::cancelled(
                        "the attachment was stopped by a signal before the node was there",
                    ));
                }
                Event::OperatorEnded if self.phase != Phase::Held => {
                    return Err(Error::cancelled(
                        "the attachment was cancelled: siltstone attach ended before the node was there",
                    ));
                }
                Event::OperatorEnded => {}
                Event::Signal => match self.detach().await {
                    Ok(ended) => return Ok(Detached { operator: None, ended }),
                    Err(error) => self.signalled_in_use(&error),
                },
                Event::Request(line, stream) if line == RELOAD => self.reload(stream).await,
                Event::Request(line, stream) => match self.may_detach(&line) {
                    Ok(()) => match self.detach().await {
                        Ok(ended) => return Ok(Detached { operator: Some(stream), ended }),
                        Err(error) => answer(&stream, error.detail()).await,
                    },
                    Err(error) => answer(&stream, error.detail()).await,
                },
                Event::Started(outcome) => self.server_started(outcome)?,
                Event::Ended(number, status) => self.server_ended(number, status)?,
                Event::Node(outcome) => {
                    self.node_made(outcome?)?;
                    if let (Some(attached), Some(record)) = (attached.take(), &self.record) {
                        attached(record)?;
                        service::ready();
                    }
                }
                Event::LookAtNode => {
                    self.look_at_node();
                    if self.is_ending {
                        self.events.push(Event::Signal);
                    }
                }
                Event::Deadline(loss) => self.deadline(loss),
            }
        }
    }

    fn state(&self) -> Option<State> {
        self.record.as_ref().map(|record| record.state)
    }

    fn set_state(&mut self, state: State) {
        let Some(record) = &mut self.record else { return };
        record.state = state;
        if let Err(error) = record.write(&self.plan.folder) {
            tracing::warn!("{error}");
        }
    }

    /// Checks an operator's request to detach.
    fn may_detach(&self, line: &str) -> Result<()> {
        let name = self.plan.folder.name();
        if ![DETACH, DETACH_ACKNOWLEDGED].contains(&line) {
            return Err(Error::invalid(format!("{UNKNOWN} \"{line}\"; expected {DETACH}")));
        }
        match (self.phase, self.state()) {
            (Phase::Held, Some(State::Recovering)) => Err(Error::busy(format!(
                "{name} has lost its server and another one is being started: try again later"
            ))),
            (Phase::Held, _) => Ok(()),
            _ => Err(Error::busy(format!("{name} is still being attached: try again later"))),
        }
    }

    /// Starts a server after a pause, in a task.
    fn start_server(&mut self, pause: Duration) {
        self.started += 1;
        let (plan, events, starting, number) =
            (self.plan.clone(), self.events.clone(), self.starting.clone(), self.started);
        let (memory, program) = (self.memory.clone(), self.program.clone());
        let copied = |(descriptors, ready): &(Vec<OwnedFd>, Ready)| {
            // Descriptors that the kernel has are useless to another server.
            let descriptors = match self.plan.driver.node_driver().passes_descriptors_on() {
                true => Vec::new(),
                false => duplicates(descriptors)?,
            };
            let node = self.record.as_ref().map(|record| record.node.clone());
            Ok::<_, Error>(LeftConnection { descriptors, ready: ready.clone(), node })
        };
        let left = self.connection.as_ref().map(copied).transpose();
        // One task per server: the event of its end always follows that of its start.
        runtime::spawn(async move {
            runtime::sleep(pause).await;
            let spawned = left.and_then(|left| Ok((left, launch::spawn(&plan, &program, number)?)));
            let (left, (mut child, process, socket)) = match spawned {
                Ok(spawned) => spawned,
                Err(error) => return events.push(Event::Started(Err(error))),
            };
            *starting.borrow_mut() = Some(process.clone());
            let start = Start {
                driver: plan.driver,
                volume: plan.folder.volume(),
                text: plan.text.clone(),
                left: left.as_ref().map(|left| left.ready.connection.clone()),
            };
            let outcome = launch::greet(&plan, &memory, start, left, (process.clone(), socket)).await;
            if outcome.is_err() {
                process.signal(Signal::KILL);
            }
            *starting.borrow_mut() = None;
            events.push(Event::Started(outcome));
            let status = runtime::blocking(move || launch::wait(&mut child)).await;
            events.push(Event::Ended(number, status));
        })
        .detach();
    }

    fn server_started(&mut self, outcome: Result<Server>) -> Result<()> {
        let server = match outcome {
            Ok(server) => server,
            Err(error) if self.phase == Phase::Starting => return Err(error),
            Err(error) => {
                if self.state() == Some(State::Recovering) {
                    tracing::warn!("starting a server: {error}");
                    self.return_to_own_program(&error);
                    self.start_server(BETWEEN_ATTEMPTS);
                }
                return Ok(());
            }
        };
        let Server { process, ready, descriptors, socket } = server;
        if self.phase == Phase::Starting {
            self.make_node(&ready, &descriptors)?;
            self.connection = Some((descriptors, ready));
            self.server = Some((process, socket));
            return Ok(());
        }
        if self.state() != Some(State::Recovering) {
            process.signal(Signal::KILL);
            if self.plan.driver.node_driver().passes_descriptors_on() {
                // The time limit passed while the kernel received the connection.
                self.connection = Some((descriptors, ready));
                self.abort();
            }
            return Ok(());
        }
        if let Some((_, before)) = &self.connection
            && !before.can_be_answered_by(&ready)
        {
            process.signal(Signal::KILL);
            if self.reloading.is_some() {
                self.return_to_own_program(&Error::invalid("its device isn't that of the former server"));
                self.start_server(BETWEEN_ATTEMPTS);
                return Ok(());
            }
            tracing::error!(
                "the new server's device: {} bytes, blocks of {}, read_only={}; expected at least {} bytes, blocks of {}, read_only={}; \
                 requests fail from now on",
                ready.bytes,
                ready.block_size,
                ready.read_only,
                before.bytes,
                before.block_size,
                before.read_only
            );
            self.fail();
            return Ok(());
        }
        tracing::warn!("process {} serves now", process.id);
        self.answer_reload(DONE);
        if let Some(record) = &mut self.record {
            record.server = process.id;
        }
        self.connection = Some((descriptors, ready));
        self.server = Some((process, socket));
        self.set_state(State::Attached);
        Ok(())
    }

    /// Replaces a lost server, if possible.
    fn server_ended(&mut self, number: u64, status: ExitStatus) -> Result<()> {
        if self.server.as_ref().is_none_or(|(process, _)| process.number != number) {
            return Ok(());
        }
        self.server = None;
        if let Some((descriptors, _)) = &self.connection {
            self.plan.driver.node_driver().server_lost(descriptors);
        }
        if self.is_removed {
            // The server saw the removal of the node, which a last user keeps.
            self.connection = None;
            self.set_state(State::Failed);
            return Ok(());
        }
        if self.phase == Phase::MakingNode {
            // The task that creates the node may wait for the answer to a request.
            self.abort();
            return Ok(());
        }
        tracing::error!("the server ended with {status}");
        let why_not_replaced =
            self.connection.as_ref().and_then(|(_, ready)| ready.why_not_replaced(self.plan.driver));
        let Some(record) = &mut self.record else { return Ok(()) };
        record.lost_servers += 1;
        if let Some(why) = why_not_replaced {
            tracing::error!("{why}: requests fail from now on");
            self.fail();
            return Ok(());
        }
        let (loss, events, limit) = (record.lost_servers, self.events.clone(), self.plan.recover_within);
        self.set_state(State::Recovering);
        self.start_server(Duration::ZERO);
        runtime::spawn(async move {
            runtime::sleep(limit).await;
            events.push(Event::Deadline(loss));
        })
        .detach();
        Ok(())
    }

    /// Removes the link to a node that another program has removed: the kernel may reuse its path.
    fn look_at_node(&mut self) {
        if let Some(record) = self.record.as_ref().filter(|record| !record.has_node())
            && record.state != State::Failed
        {
            tracing::error!(
                "{} was removed by another program; detach {}",
                record.node.display(),
                record.name
            );
            // Before the link is removed, so that programs that miss it find the reason.
            self.fail();
            self.plan.folder.remove_link();
        }
        // Also of attachments without a holder.
        Record::remove_lost_links();
    }

    /// Whether the path of the node belongs to another device by now.
    fn has_lost_node(&self) -> bool {
        self.record.as_ref().is_some_and(|record| !record.has_node())
    }

    /// Stops the attempts to replace a server.
    fn deadline(&mut self, loss: u64) {
        let lost = self.record.as_ref().map(|record| record.lost_servers);
        if self.state() != Some(State::Recovering) || lost != Some(loss) {
            return;
        }
        tracing::error!(
            "no server could be started in {} s; requests fail from now on",
            self.plan.recover_within.as_secs()
        );
        if let Some(process) = self.starting.take() {
            process.signal(Signal::KILL);
        }
        self.fail();
    }

    /// Lets requests fail from now on.
    fn fail(&mut self) {
        self.answer_reload("no server could be started in time; requests fail from now on");
        self.abort();
        self.set_state(State::Failed);
    }

    /// Ends the connection between kernel and servers.
    fn abort(&mut self) {
        // The kernel aborts a FUSE connection when its last descriptor is closed.
        let Some((_, Ready { connection, .. })) = self.connection.take() else { return };
        let (driver, volume) = (self.plan.driver.node_driver(), self.plan.folder.volume());
        if driver.frees_number_on_abort() {
            self.plan.folder.remove_link();
        }
        if driver.goes_by_number() && self.has_lost_node() {
            return;
        }
        let aborted = connection.clone();
        let aborting = runtime::spawn(async move {
            let aborting = runtime::blocking(move || driver.abort(&aborted, &volume));
            aborting.await.unwrap_or_else(|error| tracing::error!("{error}"));
        });
        self.aborting = Some((connection, aborting));
    }

    /// Starts to create the node, in a task.
    ///
    /// # Errors
    /// Errors of duplicating the descriptors that the driver passes to the kernel.
    fn make_node(&mut self, ready: &Ready, descriptors: &[OwnedFd]) -> Result<()> {
        self.phase = Phase::MakingNode;
        let driver = self.plan.driver.node_driver();
        let request = NodeRequest {
            volume: self.plan.folder.volume(),
            sector_size: self.plan.sector_size.unwrap_or(ready.block_size.min(MAX_SECTOR)),
            recover_within: self.plan.recover_within,
        };
        let (events, ready, descriptors) =
            (self.events.clone(), ready.clone(), to_pass_on(driver, descriptors)?);
        runtime::spawn(async move {
            let making = runtime::blocking(move || driver.make(&request, &ready, descriptors));
            events.push(Event::Node(making.await));
        })
        .detach();
        Ok(())
    }

    fn node_made(&mut self, node: PathBuf) -> Result<()> {
        let (Some((process, _)), Some((_, ready))) = (&self.server, &self.connection) else {
            return Err(Error::io(launch::said_last(&self.plan))
                .in_context("the server ended while the node was made"));
        };
        let record = Record {
            name: self.plan.folder.name().to_owned(),
            stack: self.plan.stack.clone(),
            driver: self.plan.driver,
            diskseq: node::sequence_number(&node),
            node,
            bytes: ready.bytes,
            state: State::Attached,
            lost_servers: 0,
            holder: std::process::id(),
            server: process.id,
        };
        self.plan.folder.make_link(&record.node)?;
        record.write(&self.plan.folder)?;
        let announced = record
            .diskseq
            .map_or(Ok(()), |number| announcement::announce(&record.name, &record.node, number));
        announced.unwrap_or_else(|error| tracing::warn!("{error}; a mount in fstab may wait for the node"));
        self.record = Some(record);
        self.phase = Phase::Held;
        let events = self.events.clone();
        runtime::spawn(async move {
            loop {
                runtime::sleep(NODE_CHECK).await;
                events.push(Event::LookAtNode);
            }
        })
        .detach();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client of an older version sends [`DETACH`], and takes the first line for the outcome.
    #[test]
    fn only_the_request_for_it_is_acknowledged() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let main = move || async move {
            let listening = SocketFolder::of(&socket)
                .and_then(|folder| folder.listen(&socket, Access::with_mode(OWNER_ONLY)));
            let events: Rc<Events> = Rc::default();
            listen(listening.unwrap(), events.clone());
            for (request, answers) in [(DETACH, "done\n"), (DETACH_ACKNOWLEDGED, "received\ndone\n")] {
                let socket = socket.clone();
                let asking = runtime::spawn(runtime::blocking(move || {
                    let mut stream = std::os::unix::net::UnixStream::connect(socket)?;
                    std::io::Write::write_all(&mut stream, format!("{request}\n").as_bytes())?;
                    std::io::read_to_string(stream)
                }));
                let Event::Request(line, stream) = events.next().await else { panic!("a request") };
                assert_eq!(line, request);
                answer(&stream, DONE).await;
                drop(stream);
                assert_eq!(asking.await.unwrap(), answers);
            }
        };
        runtime::run(runtime::Config::default(), main).unwrap();
    }
}
