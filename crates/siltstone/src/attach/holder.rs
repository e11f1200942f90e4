//! The holder of an attachment: starts servers, holds what must outlive them, and owns the node.
//!
//! # Promises
//! - A server that ends without having been told so is replaced. Requests wait for at most [`Plan::recover_within`]; then the
//!   connection is aborted and they fail. They fail at once where the server had acknowledged writes from its own memory
//!   ([`block::DevicePart::keeps_acknowledged`]): a file system that went on would find them missing.
//! - The node is only detached while nobody uses it. A signal that comes while it is in use is reported, and changes nothing.
//! - Its memory is locked, and it is the last process that the kernel kills for lack of memory.
//!
//! The holder does no I/O on the volume.

use super::handover::{self, Ready, Start};
use super::node;
use super::record::{Folder, Record, State};
use super::requests::{DETACH, DONE, LONGEST};
use super::systemd;
use block::{Buffer, Data, Error, Result};
use fuse::Mount;
use runtime::net::{Listener, SocketFolder, Stream};
use runtime::sync::Notify;
use rustix::process::{Pid, PidfdFlags, Signal};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::rc::Rc;
use std::time::Duration;

/// Time for an operator to send a request.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);
/// Pause between attempts to start a server.
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(200);
/// Time for the users of the FUSE file, beside the loop device, to close it.
const UNMOUNT_LIMIT: Duration = Duration::from_secs(10);
/// Time for a server to close its stack.
const STOP_LIMIT: Duration = Duration::from_secs(3600);
/// Permissions of the socket.
const OWNER_ONLY: u32 = 0o600;

/// What is attached, and how.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The attachment's folder.
    pub folder: Folder,
    /// The stack, for the record.
    pub stack: String,
    /// Arguments of a server; the first one may have `--format` beside them.
    pub server_arguments: Vec<String>,
    /// Format the stack when it is opened for the first time.
    pub format: bool,
    /// Logical block size of the node in bytes; `None` for that of the device, up to 4096.
    pub sector_size: Option<u32>,
    /// Time in which a server that was lost has to be replaced.
    pub recover_within: Duration,
}

/// What the holder waits for.
enum Event {
    Signal,
    Request(Stream),
    /// The server of this number has ended.
    Ended(u64, ExitStatus),
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

/// A server that has told that it serves.
struct Server {
    number: u64,
    process: OwnedFd,
    id: u32,
    ready: Ready,
    devices: Vec<OwnedFd>,
    /// Kept open: the server ends nothing, but has a closed standard input without it.
    _socket: OwnedFd,
}

struct Holder {
    plan: Plan,
    record: Record,
    server: Option<Server>,
    /// Devices and negotiation of the connection.
    connection: Option<(Vec<OwnedFd>, Ready)>,
    events: Rc<Events>,
    servers: u64,
}

/// Attaches, tells `attached` the record, and holds until the node is detached. The folder has been created, and is removed.
///
/// # Errors
/// Those of the first server, of the node and of the folder; everything is undone then.
pub async fn hold(plan: Plan, attached: impl FnOnce(&Record)) -> Result<()> {
    let outcome = attach_and_hold(&plan, attached).await;
    let removed = plan.folder.remove();
    outcome.and(removed)
}

async fn attach_and_hold(plan: &Plan, attached: impl FnOnce(&Record)) -> Result<()> {
    let socket = plan.folder.socket();
    let listener = SocketFolder::of(&socket)?.listen(&socket, Some(OWNER_ONLY))?;
    let events: Rc<Events> = Rc::default();
    protect();
    let mut servers = 0;
    let first = start_server(plan, None, &mut servers, &events).await?;
    let mut holder = match make_node(plan, first, servers, events.clone()).await {
        Ok(holder) => holder,
        Err((error, server)) => {
            let unmounted = unmount(plan).await;
            stop(&server, &events).await;
            return Err(unmounted.err().unwrap_or(error));
        }
    };
    listen(listener, events.clone());
    let signals = events.clone();
    runtime::spawn(async move {
        if let Err(error) = runtime::stop_signal().await {
            tracing::error!("{error}");
        }
        signals.push(Event::Signal);
    })
    .detach();
    attached(&holder.record);
    systemd::notify_ready().unwrap_or_else(|error| tracing::warn!("{error}"));
    holder.run().await
}

/// Keeps this process, and its children, working when memory is short: they may be what swaps and writes back.
fn protect() {
    let failed = |what: &str, error: &dyn std::fmt::Display| tracing::warn!("{what}: {error}");
    if let Err(error) = rustix::process::configure_io_flusher_behavior(true) {
        failed("PR_SET_IO_FLUSHER", &error);
    }
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", "-1000") {
        failed("/proc/self/oom_score_adj", &error);
    }
    lock_memory();
}

/// Loads and locks the memory that this process has and will have. Children don't inherit it.
///
/// Beside paging, this keeps recoveries free of errors: when a server is killed while the kernel copies a request to a page that isn't
/// there yet, the kernel fails the request (EIO) instead of sending it to the next server.
pub fn lock_memory() {
    use rustix::mm::MlockAllFlags;
    let flags = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE;
    if let Err(error) = rustix::mm::mlockall(flags) {
        tracing::warn!("locking memory: {error}");
    }
}

/// Accepts operators' connections.
fn listen(listener: Listener, events: Rc<Events>) {
    runtime::spawn(async move {
        loop {
            match listener.accept().await {
                Ok(stream) => events.push(Event::Request(stream)),
                Err(error) => {
                    tracing::warn!("{error}");
                    runtime::sleep(BETWEEN_ATTEMPTS).await;
                }
            }
        }
    })
    .detach();
}

/// Starts a server, and waits until it serves or has ended.
async fn start_server(
    plan: &Plan,
    left: Option<(&[OwnedFd], &Ready)>,
    servers: &mut u64,
    events: &Rc<Events>,
) -> Result<Server> {
    let doing = |error: std::io::Error| Error::from_io(&error, "starting a server");
    let (socket, other) = handover::pair()?;
    let mut command = Command::new(std::env::current_exe().map_err(doing)?);
    command.args(&plan.server_arguments).stdin(Stdio::from(other)).stdout(Stdio::null());
    // Ctrl-C is for the holder.
    command.process_group(0);
    if plan.format && *servers == 0 {
        command.arg("--format");
    }
    let start = Start { path: plan.folder.volume(), negotiated: left.map(|(_, ready)| ready.negotiated) };
    handover::send(&socket, &start, left.map_or(&[], |(devices, _)| devices))?;
    let mut child = command.spawn().map_err(doing)?;
    // It has the other end of the socket; this process would wait for itself.
    drop(command);
    *servers += 1;
    let (number, id) = (*servers, child.id());
    let process = rustix::process::pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
    let process = match process {
        Ok(process) => process,
        Err(error) => {
            let _ended = child.kill().and_then(|()| child.wait());
            return Err(Error::from_io(&error.into(), "watching a server"));
        }
    };
    let ended = events.clone();
    runtime::spawn(async move {
        let status = runtime::blocking(move || wait(&mut child)).await;
        ended.push(Event::Ended(number, status));
    })
    .detach();
    // Opening a stack takes as long as it takes; the socket is closed if the server ends.
    let (received, socket) = runtime::blocking(move || (handover::receive::<Ready>(&socket), socket)).await;
    let (ready, devices) = match received {
        Ok(received) => received,
        Err(Error::Closed(_)) => return Err(Error::io(said_last(plan))),
        Err(error) => return Err(error),
    };
    Ok(Server { number, process, id, ready, devices, _socket: socket })
}

fn wait(child: &mut Child) -> ExitStatus {
    // Fails only for a process that isn't a child.
    child.wait().unwrap_or_default()
}

/// The last line of the log: the error of a server that has ended.
fn said_last(plan: &Plan) -> String {
    let log = std::fs::read_to_string(plan.folder.log()).unwrap_or_default();
    let last = log.lines().rev().find(|line| !line.trim().is_empty());
    last.map_or_else(|| "the server ended before it served, and said nothing".to_owned(), str::to_owned)
}

/// Makes the node of the first server.
async fn make_node(
    plan: &Plan,
    mut server: Server,
    servers: u64,
    events: Rc<Events>,
) -> Result<Holder, (Error, Server)> {
    let ready = server.ready.clone();
    let largest = node::SECTOR_SIZES[node::SECTOR_SIZES.len() - 1];
    let sector_size = plan.sector_size.unwrap_or(ready.block_size.min(largest));
    let volume = plan.folder.volume();
    let created = runtime::blocking(move || node::create(&volume, sector_size, ready.read_only)).await;
    let made = created.and_then(|node| {
        let record = Record {
            name: plan.folder.name().to_owned(),
            stack: plan.stack.clone(),
            node,
            bytes: ready.bytes,
            state: State::Attached,
            lost_servers: 0,
            holder: std::process::id(),
            server: server.id,
        };
        let told = plan.folder.make_link(&record.node).and_then(|()| plan.folder.write(&record));
        let removed = |error| node::remove(&record.node, &plan.folder.volume()).err().unwrap_or(error);
        told.map_err(removed).map(|()| record)
    });
    match made {
        Ok(record) => {
            let connection = Some((std::mem::take(&mut server.devices), ready));
            Ok(Holder { plan: plan.clone(), record, server: Some(server), connection, events, servers })
        }
        Err(error) => Err((error, server)),
    }
}

/// Unmounts the FUSE door, unless it isn't mounted.
async fn unmount(plan: &Plan) -> Result<()> {
    let mount = Mount::existing(plan.folder.volume());
    match runtime::retry_while_busy(UNMOUNT_LIMIT, async || mount.unmount().await).await {
        Ok(()) | Err(Error::NotFound(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Tells a server to end, and waits for it.
async fn stop(server: &Server, events: &Events) {
    if rustix::process::pidfd_send_signal(&server.process, Signal::TERM).is_err() {
        return;
    }
    let ended = async {
        loop {
            match events.next().await {
                Event::Ended(number, status) if number == server.number => return status,
                Event::Request(stream) => answer(&stream, "the node is being detached").await,
                Event::Ended(..) | Event::Signal => {}
            }
        }
    };
    match runtime::timeout(STOP_LIMIT, ended).await {
        Ok(status) if status.success() => {}
        Ok(status) => tracing::error!("the server ended with {status}"),
        Err(_) => tracing::error!("the server (process {}) doesn't end; it is left alone", server.id),
    }
}

async fn answer(stream: &Stream, text: &str) {
    let line = format!("{}\n", text.replace('\n', " "));
    // A client that has gone needs no answer.
    let _sent = runtime::timeout(REQUEST_LIMIT, stream.send(Data::copy_of(line.as_bytes()).into())).await;
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

impl Holder {
    async fn run(&mut self) -> Result<()> {
        loop {
            match self.events.next().await {
                Event::Signal => match self.detach().await {
                    Ok(()) => return Ok(()),
                    Err(error) => {
                        tracing::error!("{error}");
                        // The first signal of each kind was caught.
                        let events = self.events.clone();
                        runtime::spawn(async move {
                            if runtime::stop_signal().await.is_ok() {
                                events.push(Event::Signal);
                            }
                        })
                        .detach();
                    }
                },
                Event::Request(stream) => match request(&stream).await.as_deref() {
                    Some(DETACH) => match self.detach().await {
                        Ok(()) => {
                            self.plan.folder.remove()?;
                            answer(&stream, DONE).await;
                            return Ok(());
                        }
                        Err(error) => answer(&stream, error.detail()).await,
                    },
                    Some(other) => {
                        answer(&stream, &format!("unknown request \"{other}\"; expected {DETACH}")).await
                    }
                    None => {}
                },
                Event::Ended(number, status) => {
                    if self.server.as_ref().is_some_and(|server| server.number == number) {
                        self.replace_server(status).await;
                    }
                }
            }
        }
    }

    fn set_state(&mut self, state: State) {
        self.record.state = state;
        if let Err(error) = self.plan.folder.write(&self.record) {
            tracing::warn!("{error}");
        }
    }

    /// Starts servers until one serves, after one was lost.
    async fn replace_server(&mut self, status: ExitStatus) {
        tracing::error!("the server (process {}) ended with {status}", self.record.server);
        self.server = None;
        self.record.lost_servers += 1;
        if self.connection.as_ref().is_some_and(|(_, ready)| !ready.keeps_acknowledged) {
            tracing::error!(
                "this stack acknowledges writes from its server's memory, which are lost: requests fail from now on"
            );
            self.connection = None;
            return self.set_state(State::Failed);
        }
        self.set_state(State::Recovering);
        let until = runtime::now() + self.plan.recover_within;
        loop {
            let left = self.connection.as_ref().map(|(devices, ready)| (devices.as_slice(), ready));
            match start_server(&self.plan, left, &mut self.servers, &self.events).await {
                Ok(mut server) => {
                    self.record.server = server.id;
                    self.connection = Some((std::mem::take(&mut server.devices), server.ready.clone()));
                    self.server = Some(server);
                    tracing::warn!("process {} serves now", self.record.server);
                    return self.set_state(State::Attached);
                }
                Err(error) if runtime::now() < until => {
                    tracing::warn!("starting a server: {error}");
                    runtime::sleep(BETWEEN_ATTEMPTS).await;
                }
                Err(error) => {
                    tracing::error!(
                        "no server could be started in {} s: {error}; requests fail from now on",
                        self.plan.recover_within.as_secs()
                    );
                    // The kernel aborts the connection when its last device is closed.
                    self.connection = None;
                    return self.set_state(State::Failed);
                }
            }
        }
    }

    /// Removes the node and ends the server.
    async fn detach(&mut self) -> Result<()> {
        let (node, volume) = (self.record.node.clone(), self.plan.folder.volume());
        runtime::blocking(move || {
            node::check_unused(&node, &volume)?;
            node::remove(&node, &volume)
        })
        .await?;
        node::released(&self.record.node, &self.plan.folder.volume()).await?;
        unmount(&self.plan).await?;
        self.connection = None;
        if let Some(server) = self.server.take() {
            stop(&server, &self.events).await;
        }
        Ok(())
    }
}
