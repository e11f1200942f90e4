//! The holder of an attachment: starts servers, keeps what must outlive them, and owns the node.
//!
//! # Promises
//! - A server that ends without having been told so is replaced, by one with the stack as it was when it was attached. Requests wait for at most
//!   [`Plan::recover_within`]; then the connection is aborted and they fail. They fail at once where the server had acknowledged
//!   writes from its own memory ([`block::DevicePart::keeps_acknowledged`]): a file system that went on would find them missing.
//! - The node is only detached while nobody uses it. A signal that comes while it is in use is reported, and changes nothing.
//! - What fails before the node is there leaves nothing behind.
//! - Its memory is locked, and it is the out-of-memory killer skips it (oom_score_adj -1000).
//!
//! Everything that takes time (starting a server, making the node) is a task of its own whose end is an event, so a holder
//! always answers. The holder does no I/O on the volume.

use super::driver::{Driver, NodeDriver, NodeRequest};
use super::folder::{self, Folder, FolderLock, OWNER_ONLY};
use super::handover::{self, Connection, Ready, Start};
use super::node::{self, LARGEST_SECTOR};
use super::process::protect;
use super::record::{Record, State};
use super::requests::{DETACH, DONE, LONGEST};
use super::systemd;
use block::{Buffer, Data, Error, Result};
use runtime::JoinHandle;
use runtime::net::{Access, Listener, SocketFolder, Stream};
use runtime::shared_memory::SharedMemory;
use runtime::sync::Notify;
use rustix::process::{Pid, PidfdFlags, Signal};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::rc::Rc;
use std::time::Duration;

/// Time for an operator to send a request.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);
/// Most requests that are received at a time.
const MOST_REQUESTS: usize = 16;
/// Pause between attempts to start a server.
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(200);
/// Pause between looks at the length of the log.
const BETWEEN_BOUNDS: Duration = Duration::from_secs(5);
/// Pause between looks whether the node is still there.
const BETWEEN_LOOKS: Duration = Duration::from_millis(500);
/// Time for a server to close its stack.
const STOP_LIMIT: Duration = Duration::from_secs(3600);
/// This program, also after its file was replaced: both processes have the same version.
pub const PROGRAM: &str = "/proc/self/exe";
/// Its name for `ps`.
pub const NAME: &str = "siltstone";

/// What is attached, and how.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The attachment's folder.
    pub folder: Folder,
    /// The stack, for the record.
    pub stack: String,
    /// Contents of the stack's file at this time; `None` for a stack of one line.
    pub text: Option<String>,
    /// Driver of the node.
    pub driver: Driver,
    /// Arguments of a server; the first one may have `--format` beside them.
    pub server_arguments: Vec<String>,
    /// Format the stack when it is opened for the first time.
    pub format: bool,
    /// Logical block size of the node in bytes; `None` for that of the device, up to 4096.
    pub sector_size: Option<u32>,
    /// Time in which a server that was lost has to be replaced.
    pub recover_within: Duration,
    /// Another program waits for the standard output until the node is there; if it ends before, the attachment is cancelled.
    pub is_in_background: bool,
}

/// Memory for a part of the stack that outlives a server: empty until a server has made it as large as it needs it.
struct KeptMemory {
    descriptor: OwnedFd,
    /// Locked with all memory of this process, so that it isn't swapped out while no server has it.
    mapped: RefCell<Option<SharedMemory>>,
}

impl KeptMemory {
    fn new() -> Result<Self> {
        let made = rustix::fs::memfd_create("siltstone-kept", rustix::fs::MemfdFlags::CLOEXEC);
        let descriptor = made.map_err(|error| Error::from_io(&error.into(), "creating kept memory"))?;
        Ok(KeptMemory { descriptor, mapped: RefCell::default() })
    }

    fn descriptor(&self) -> Result<OwnedFd> {
        let duplicate = self.descriptor.try_clone();
        duplicate.map_err(|error| Error::from_io(&error, "duplicating the descriptor of kept memory"))
    }

    /// Maps the memory, if a server uses it.
    fn lock(&self) -> Result<()> {
        let status = rustix::fs::fstat(&self.descriptor);
        let length =
            status.map_err(|error| Error::from_io(&error.into(), "looking at kept memory"))?.st_size as u64;
        if length > 0 && self.mapped.borrow().is_none() {
            self.mapped.replace(Some(SharedMemory::map(&self.descriptor, 0, length)?));
        }
        Ok(())
    }
}

/// What the holder waits for.
enum Event {
    Signal,
    /// The program that has started the holder, and waits for its output, has ended.
    OperatorGone,
    Request(String, Stream),
    /// An attempt to start a server has ended.
    Started(Result<Server>),
    /// The server of this number has ended.
    Ended(u64, ExitStatus),
    /// An attempt to make the node has ended.
    Node(Result<PathBuf>),
    /// The time for replacing the n-th lost server is over.
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

/// A process that is or becomes a server.
#[derive(Clone)]
struct Process {
    number: u64,
    id: u32,
    descriptor: Rc<OwnedFd>,
}

impl Process {
    fn signal(&self, signal: Signal) {
        // It may have ended.
        let _sent = rustix::process::pidfd_send_signal(&*self.descriptor, signal);
    }
}

/// A server that has told that it serves.
struct Server {
    process: Process,
    ready: Ready,
    descriptors: Vec<OwnedFd>,
    /// Kept until the server has ended: its standard input.
    socket: OwnedFd,
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
    /// Number of servers that were started.
    started: u64,
    /// The process that is being started.
    starting: Rc<RefCell<Option<Process>>>,
    server: Option<(Process, OwnedFd)>,
    /// Descriptors and negotiation of the connection, while requests may be answered.
    connection: Option<(Vec<OwnedFd>, Ready)>,
    /// The connection that was aborted last, and the task that does it.
    aborting: Option<(Connection, JoinHandle<()>)>,
    record: Option<Record>,
    /// Whether the node has been removed, though a last user may keep it.
    is_removed: bool,
}

/// Attaches, tells `attached` the record, and holds until the node is detached. The folder has been created, and is removed. An error of
/// `attached` cancels the attachment.
///
/// # Errors
/// Those of the first server, of the node and of the folder; everything is undone then.
pub async fn hold(plan: Plan, lock: FolderLock, attached: impl FnOnce(&Record) -> Result<()>) -> Result<()> {
    let plan = Rc::new(plan);
    let held = attach_and_hold(&plan, attached).await;
    let removed = plan.folder.remove();
    drop(lock);
    let stream = held?;
    if let Some(stream) = stream {
        answer(&stream, removed.as_ref().err().map_or(DONE, Error::detail)).await;
    }
    removed
}

/// Holds until the node is detached. Returns the connection of the operator who asked for that.
async fn attach_and_hold(
    plan: &Rc<Plan>,
    attached: impl FnOnce(&Record) -> Result<()>,
) -> Result<Option<Stream>> {
    let socket = plan.folder.socket();
    let listener = SocketFolder::of(&socket)?.listen(&socket, Access::with_mode(OWNER_ONLY))?;
    let events: Rc<Events> = Rc::default();
    protect();
    listen(listener, events.clone());
    runtime::catch_all_stop_signals();
    wait_for_signal(&events);
    if plan.is_in_background {
        watch_operator(&events)?;
        bound_log(plan.folder.log());
    }
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
    };
    holder.start_server(Duration::ZERO);
    let outcome = holder.run(attached).await;
    if outcome.is_err() {
        holder.undo().await;
    }
    outcome
}

/// Pushes an event for the next signal.
fn wait_for_signal(events: &Rc<Events>) {
    let events = events.clone();
    runtime::spawn(async move {
        match runtime::stop_signal().await {
            Ok(()) => events.push(Event::Signal),
            Err(error) => tracing::error!("{error}"),
        }
    })
    .detach();
}

/// Keeps the log of a holder in the background short.
fn bound_log(log: PathBuf) {
    runtime::spawn(async move {
        loop {
            runtime::sleep(BETWEEN_BOUNDS).await;
            let log = log.clone();
            if let Err(error) = runtime::blocking(move || folder::bound_log(&log)).await {
                tracing::warn!("bounding the log: {error}");
            }
        }
    })
    .detach();
}

/// Pushes an event when the program that reads the standard output has ended.
fn watch_operator(events: &Rc<Events>) -> Result<()> {
    use rustix::event::{PollFd, PollFlags};
    let output = std::os::fd::AsFd::as_fd(&std::io::stdout()).try_clone_to_owned();
    let output = output.map_err(|error| Error::from_io(&error, "watching standard output"))?;
    let events = events.clone();
    runtime::spawn(async move {
        runtime::blocking(move || {
            // Of a pipe without a reader the kernel tells an error, which needn't be asked for.
            let mut polled = [PollFd::new(&output, PollFlags::empty())];
            while rustix::event::poll(&mut polled, None) == Err(rustix::io::Errno::INTR) {}
        })
        .await;
        events.push(Event::OperatorGone);
    })
    .detach();
    Ok(())
}

/// Accepts operators' connections, and receives their requests.
fn listen(listener: Listener, events: Rc<Events>) {
    let permits = runtime::sync::Semaphore::new(MOST_REQUESTS);
    runtime::spawn(async move {
        loop {
            let permit = permits.acquire(1).await;
            let (stream, events) = (listener.accept_retrying().await, events.clone());
            runtime::spawn(async move {
                if let Some(line) = request(&stream).await {
                    events.push(Event::Request(line, stream));
                }
                drop(permit);
            })
            .detach();
        }
    })
    .detach();
}

/// Receives one line.
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
    // A client that has gone needs no answer.
    let _sent = runtime::timeout(REQUEST_LIMIT, stream.send(Data::copy_of(line.as_bytes()).into())).await;
}

/// Connection that a server has left, to be taken over by the next one.
struct LeftConnection {
    descriptors: Vec<OwnedFd>,
    ready: Ready,
    /// The node, if it is there.
    node: Option<PathBuf>,
}

/// Starts a server, and waits until it serves or has ended. It takes over the connection `left`. `ending` gets the task that waits for the end of
/// its process.
async fn start_server(
    plan: &Plan,
    kept_memory: &KeptMemory,
    number: u64,
    left: Option<LeftConnection>,
    starting: &RefCell<Option<Process>>,
    ending: &RefCell<Option<JoinHandle<ExitStatus>>>,
) -> Result<Server> {
    let doing = |error: std::io::Error| Error::from_io(&error, "starting a server");
    let (socket, other) = handover::pair()?;
    let mut command = Command::new(PROGRAM);
    command.args(&plan.server_arguments).stdin(Stdio::from(other)).stdout(Stdio::null());
    command.arg0(NAME);
    // Ctrl-C is for the holder.
    command.process_group(0);
    if plan.format && number == 1 {
        command.arg("--format");
    }
    let start = Start {
        driver: plan.driver,
        volume: plan.folder.volume(),
        text: plan.text.clone(),
        left: left.as_ref().map(|left| left.ready.connection.clone()),
    };
    let mut child = command.spawn().map_err(doing)?;
    // It has the other end of the socket; this process would wait for itself.
    drop(command);
    let id = child.id();
    let descriptor = match rustix::process::pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
        Ok(descriptor) => Rc::new(descriptor),
        Err(error) => {
            let _ended = child.kill().and_then(|()| child.wait());
            return Err(Error::from_io(&error.into(), "watching a server"));
        }
    };
    let process = Process { number, id, descriptor };
    *starting.borrow_mut() = Some(process.clone());
    *ending.borrow_mut() = Some(runtime::spawn(runtime::blocking(move || wait(&mut child))));
    let memory = kept_memory.descriptor()?;
    // Opening a stack takes as long as it takes; the socket is closed when the server ends.
    let (driver, volume) = (plan.driver.node_driver(), plan.folder.volume());
    let talking = runtime::blocking(move || {
        let left_descriptors = left.as_ref().map_or(&[][..], |left| &left.descriptors);
        handover::send(&socket, &start, left_descriptors, Some(&memory))?;
        let before = left.map(|left| (left.ready, left.node));
        let (ready, descriptors) = handover::receive::<Ready>(&socket)?;
        if let Some((before, Some(node))) = before
            && before.can_be_answered_by(&ready)
        {
            driver.take_over(&node, &volume, to_pass_on(driver, &descriptors)?)?;
        }
        Ok(((ready, descriptors), socket))
    });
    // The server has made the memory as large as it needs it.
    let talked = talking.await.and_then(|served| kept_memory.lock().map(|()| served));
    match talked {
        Ok(((ready, descriptors), socket)) => Ok(Server { process, ready, descriptors, socket }),
        Err(error) => {
            process.signal(Signal::KILL);
            match error {
                Error::Closed(_) => Err(Error::io(said_last(plan))),
                error => Err(error),
            }
        }
    }
}

/// Takes those of a server's descriptors that its driver passes on.
fn to_pass_on(driver: &dyn NodeDriver, descriptors: &[OwnedFd]) -> Result<Vec<OwnedFd>> {
    match driver.passes_descriptors_on() {
        true => duplicates(descriptors),
        false => Ok(Vec::new()),
    }
}

fn duplicates(descriptors: &[OwnedFd]) -> Result<Vec<OwnedFd>> {
    let duplicates = descriptors.iter().map(OwnedFd::try_clone).collect::<std::io::Result<_>>();
    duplicates.map_err(|error| Error::from_io(&error, "duplicating a descriptor of the connection"))
}

fn wait(child: &mut Child) -> ExitStatus {
    // Fails only for a process that isn't a child.
    child.wait().unwrap_or_default()
}

/// The last line of the log: the error of a server that has ended.
fn said_last(plan: &Plan) -> String {
    let log = std::fs::read_to_string(plan.folder.log()).unwrap_or_default();
    let last = log.lines().rev().find(|line| !line.trim().is_empty());
    last.map_or_else(
        || "the server ended before it served; its error is on standard error of attach".to_owned(),
        str::to_owned,
    )
}

impl Holder {
    /// Handles events until the node is detached. Returns the connection of the operator who asked for that.
    async fn run(&mut self, attached: impl FnOnce(&Record) -> Result<()>) -> Result<Option<Stream>> {
        let mut attached = Some(attached);
        let events = self.events.clone();
        loop {
            match events.next().await {
                Event::Signal if self.phase != Phase::Held => {
                    return Err(Error::cancelled(
                        "the attachment was stopped by a signal before the node was there",
                    ));
                }
                Event::OperatorGone if self.phase != Phase::Held => {
                    return Err(Error::cancelled("attach ended before the node was there"));
                }
                Event::OperatorGone => {}
                Event::Signal => {
                    wait_for_signal(&self.events);
                    match self.detach().await {
                        Ok(()) => return Ok(None),
                        Err(error) => tracing::error!("{error}"),
                    }
                }
                Event::Request(line, stream) => match self.may_detach(&line) {
                    Ok(()) => match self.detach().await {
                        Ok(()) => return Ok(Some(stream)),
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
                        systemd::notify_ready().unwrap_or_else(|error| tracing::warn!("{error}"));
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

    /// Checks an operator's request.
    fn may_detach(&self, line: &str) -> Result<()> {
        let name = self.plan.folder.name();
        if line != DETACH {
            return Err(Error::invalid(format!("unknown request \"{line}\"; expected {DETACH}")));
        }
        match (self.phase, self.state()) {
            (Phase::Held, Some(State::Recovering)) => Err(Error::busy(format!(
                "{name} has lost its server and another one is being started: try again later"
            ))),
            (Phase::Held, _) => Ok(()),
            _ => Err(Error::busy(format!("{name} is still being attached: try again later"))),
        }
    }

    /// Begins to start a server after a pause.
    fn start_server(&mut self, pause: Duration) {
        self.started += 1;
        let (plan, events, starting, number) =
            (self.plan.clone(), self.events.clone(), self.starting.clone(), self.started);
        let memory = self.memory.clone();
        let copied = |(descriptors, ready): &(Vec<OwnedFd>, Ready)| {
            // Those that the kernel has are of no use to another server.
            let descriptors = match self.plan.driver.node_driver().passes_descriptors_on() {
                true => Vec::new(),
                false => duplicates(descriptors)?,
            };
            let node = self.record.as_ref().map(|record| record.node.clone());
            Ok::<_, Error>(LeftConnection { descriptors, ready: ready.clone(), node })
        };
        let left = self.connection.as_ref().map(copied).transpose();
        runtime::spawn(async move {
            runtime::sleep(pause).await;
            let ending = RefCell::default();
            let outcome = match left {
                Ok(left) => start_server(&plan, &memory, number, left, &starting, &ending).await,
                Err(error) => Err(error),
            };
            *starting.borrow_mut() = None;
            // One task for both events: the end of a server comes after its beginning, also where it died right after it was ready.
            events.push(Event::Started(outcome));
            let ending = ending.take();
            if let Some(ending) = ending {
                events.push(Event::Ended(number, ending.await));
            }
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
                // The time was over while the kernel got the connection.
                self.connection = Some((descriptors, ready));
                self.abort();
            }
            return Ok(());
        }
        if let Some((_, before)) = &self.connection
            && !before.can_be_answered_by(&ready)
        {
            process.signal(Signal::KILL);
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
        if let Some(record) = &mut self.record {
            record.server = process.id;
        }
        self.connection = Some((descriptors, ready));
        self.server = Some((process, socket));
        self.set_state(State::Attached);
        Ok(())
    }

    /// Replaces a server that was lost, if that is possible.
    fn server_ended(&mut self, number: u64, status: ExitStatus) -> Result<()> {
        if self.server.as_ref().is_none_or(|(process, _)| process.number != number) {
            return Ok(());
        }
        self.server = None;
        if let Some((descriptors, _)) = &self.connection {
            self.plan.driver.node_driver().server_lost(descriptors);
        }
        if self.is_removed {
            // The server has seen the end of the node, which a last user keeps.
            self.connection = None;
            self.set_state(State::Failed);
            return Ok(());
        }
        if self.phase == Phase::MakingNode {
            // What makes the node may wait for the answer to a request.
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

    /// Ends the attempts to replace a server.
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
        let aborted = connection.clone();
        let aborting = runtime::spawn(async move {
            let aborting = runtime::blocking(move || driver.abort(&aborted, &volume));
            aborting.await.unwrap_or_else(|error| tracing::error!("{error}"));
        });
        self.aborting = Some((connection, aborting));
    }

    /// Begins to make the node.
    ///
    /// # Errors
    /// Those of duplicating the descriptors that the driver passes on.
    fn make_node(&mut self, ready: &Ready, descriptors: &[OwnedFd]) -> Result<()> {
        self.phase = Phase::MakingNode;
        let driver = self.plan.driver.node_driver();
        let request = NodeRequest {
            volume: self.plan.folder.volume(),
            sector_size: self.plan.sector_size.unwrap_or(ready.block_size.min(LARGEST_SECTOR)),
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
            return Err(
                Error::io(said_last(&self.plan)).in_context("the server ended while the node was made")
            );
        };
        let record = Record {
            name: self.plan.folder.name().to_owned(),
            stack: self.plan.stack.clone(),
            driver: self.plan.driver,
            bytes: ready.bytes,
            state: State::Attached,
            lost_servers: 0,
            holder: std::process::id(),
            server: process.id,
            diskseq: node::diskseq(&node),
            node,
        };
        self.plan.folder.make_link(&node::link_target(&record.node))?;
        self.watch_node(record.node.clone());
        record.write(&self.plan.folder)?;
        self.record = Some(record);
        self.phase = Phase::Held;
        Ok(())
    }

    /// Removes the link when the node is taken away by others, such as `losetup -d`: the kernel gives its name to other disks.
    fn watch_node(&self, node: PathBuf) {
        let (driver, volume, folder) =
            (self.plan.driver.node_driver(), self.plan.folder.volume(), self.plan.folder.clone());
        if !driver.may_be_taken_away() {
            return;
        }
        runtime::spawn(async move {
            loop {
                runtime::sleep(BETWEEN_LOOKS).await;
                let (node, volume) = (node.clone(), volume.clone());
                if !runtime::blocking(move || driver.is_unreleased(&node, &volume)).await {
                    return folder.remove_link();
                }
            }
        })
        .detach();
    }

    /// Removes the node and ends the server.
    async fn detach(&mut self) -> Result<()> {
        let Some(node) = self.record.as_ref().map(|record| record.node.clone()) else { return Ok(()) };
        let (driver, volume) = (self.plan.driver, self.plan.folder.volume());
        node::remove_unused(driver, &node, &volume).await?;
        self.is_removed = true;
        node::released(driver, &node, &volume).await?;
        self.connection = None;
        self.stop_server().await;
        Ok(())
    }

    /// Removes what there is of an attachment that failed.
    async fn undo(&mut self) {
        let warn = |error: Error| tracing::warn!("{error}");
        let mut connection = self.connection.take().map(|(_, ready)| ready.connection);
        if let Some((aborted, aborting)) = self.aborting.take() {
            // The number of a removed node may be another one's: nothing is aborted after the removal.
            aborting.await;
            connection = connection.or(Some(aborted));
        }
        let starting = self.starting.take();
        if let Some(process) = starting {
            process.signal(Signal::TERM);
            self.ended(&process).await;
        }
        // A server may have become ready at the same time.
        let events = std::mem::take(&mut *self.events.queue.borrow_mut());
        for event in events {
            match event {
                Event::Started(Ok(Server { process, socket, .. })) => self.server = Some((process, socket)),
                other => self.events.push(other),
            }
        }
        let (driver, volume) = (self.plan.driver.node_driver(), self.plan.folder.volume());
        let removed = runtime::blocking(move || driver.remove_all(connection.as_ref(), &volume));
        removed.await.unwrap_or_else(warn);
        driver.close_volume(&self.plan.folder.volume()).await.unwrap_or_else(warn);
        self.stop_server().await;
    }

    /// Tells the server to end, and waits for it.
    async fn stop_server(&mut self) {
        let Some((process, _socket)) = self.server.take() else { return };
        process.signal(Signal::TERM);
        self.ended(&process).await;
    }

    /// Waits for the end of a process. Other events are dropped, and operators told.
    async fn ended(&self, process: &Process) {
        let ended = async {
            loop {
                match self.events.next().await {
                    Event::Ended(number, status) if number == process.number => return status,
                    Event::Request(_, stream) => answer(&stream, "the node is being detached").await,
                    // Nobody has it by now.
                    Event::Started(Ok(server)) => server.process.signal(Signal::TERM),
                    _ => {}
                }
            }
        };
        match runtime::timeout(STOP_LIMIT, ended).await {
            Ok(status) if status.success() => {}
            Ok(status) => tracing::error!("the server ended with {status}"),
            Err(_) => {
                tracing::error!("the server (process {}) doesn't end; kill it with kill -9", process.id)
            }
        }
    }
}
