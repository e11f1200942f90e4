//! Start of a server by its holder: the process and the exchange of the first messages.
//!
//! The holder decides when servers are started and replaced, and what happens to a connection.

use super::driver::NodeDriver;
use super::handover::{self, Ready, Start};
use super::holder::{NAME, Plan};
use block::{Error, Result};
use runtime::shared_memory::SharedMemory;
use rustix::process::{Pid, PidfdFlags, Signal};
use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::rc::Rc;

/// Memory for a part of the stack that outlives a server: empty until a server has set its size.
pub struct KeptMemory {
    descriptor: OwnedFd,
    /// Locked with all memory of this process, so that it isn't swapped out between two servers.
    mapped: RefCell<Option<SharedMemory>>,
}

impl KeptMemory {
    pub fn new() -> Result<Self> {
        let made = rustix::fs::memfd_create("siltstone-kept", rustix::fs::MemfdFlags::CLOEXEC);
        let descriptor = made.map_err(|error| Error::from_io(&error.into(), "creating kept memory"))?;
        Ok(KeptMemory { descriptor, mapped: RefCell::default() })
    }

    pub fn descriptor(&self) -> Result<OwnedFd> {
        let duplicate = self.descriptor.try_clone();
        duplicate.map_err(|error| Error::from_io(&error, "duplicating the descriptor of kept memory"))
    }

    /// Maps and locks the memory, if a server uses it.
    pub fn lock(&self) -> Result<()> {
        let status = rustix::fs::fstat(&self.descriptor);
        let length =
            status.map_err(|error| Error::from_io(&error.into(), "looking at kept memory"))?.st_size as u64;
        if length > 0 && self.mapped.borrow().is_none() {
            self.mapped.replace(Some(SharedMemory::map(&self.descriptor, 0, length)?));
        }
        Ok(())
    }
}

/// A process that is or becomes a server.
#[derive(Clone)]
pub struct Process {
    pub number: u64,
    pub id: u32,
    descriptor: Rc<OwnedFd>,
}

impl Process {
    pub fn signal(&self, signal: Signal) {
        // The process may have ended.
        let _sent = rustix::process::pidfd_send_signal(&*self.descriptor, signal);
    }
}

/// A server that serves clients.
pub struct Server {
    pub process: Process,
    pub ready: Ready,
    pub descriptors: Vec<OwnedFd>,
    /// Other end of the server's standard input, kept until the server has ended.
    pub socket: OwnedFd,
}

/// Connection that a server left, for the next one.
pub struct LeftConnection {
    pub descriptors: Vec<OwnedFd>,
    pub ready: Ready,
    /// The node; `None` before its creation.
    pub node: Option<PathBuf>,
}

/// Starts server `number` of a program. Returns its process, also as a child to wait for, and the holder's
/// end of its socket.
pub fn spawn(plan: &Plan, program: &Path, number: u64) -> Result<(Child, Process, OwnedFd)> {
    let doing = |error: std::io::Error| Error::from_io(&error, "starting a server");
    let (socket, other) = handover::pair()?;
    let mut command = Command::new(program);
    command.args(&plan.server_arguments).stdin(Stdio::from(other)).stdout(Stdio::null());
    command.arg0(NAME);
    // The holder is the service that systemd watches.
    for variable in ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"] {
        command.env_remove(variable);
    }
    // Ctrl-C is for the holder only.
    command.process_group(0);
    if plan.format && number == 1 {
        command.arg("--format");
    }
    let mut child = command.spawn().map_err(doing)?;
    // The command owns the other end of the socket; with it open, the end of the server would go unnoticed.
    drop(command);
    let id = child.id();
    let descriptor = match rustix::process::pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
        Ok(descriptor) => Rc::new(descriptor),
        Err(error) => {
            let _ended = child.kill().and_then(|()| child.wait());
            return Err(Error::from_io(&error.into(), "watching a server"));
        }
    };
    Ok((child, Process { number, id, descriptor }, socket))
}

/// Sends the first message to a started server, with the connection `left` to take over. Waits until the
/// server is ready or has ended.
pub async fn greet(
    plan: &Plan,
    kept_memory: &KeptMemory,
    start: Start,
    left: Option<LeftConnection>,
    (process, socket): (Process, OwnedFd),
) -> Result<Server> {
    let memory = kept_memory.descriptor()?;
    // Opening a stack has no time limit; the socket closes when the server ends.
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
    // The server has set the size of the memory.
    let talked = talking.await.and_then(|served| kept_memory.lock().map(|()| served));
    match talked {
        Ok(((ready, descriptors), socket)) => Ok(Server { process, ready, descriptors, socket }),
        Err(Error::Closed(_)) => Err(Error::io(said_last(plan))),
        Err(error) => Err(error),
    }
}

/// Duplicates those descriptors of a server that its driver passes to the kernel.
pub fn to_pass_on(driver: &dyn NodeDriver, descriptors: &[OwnedFd]) -> Result<Vec<OwnedFd>> {
    match driver.passes_descriptors_on() {
        true => duplicates(descriptors),
        false => Ok(Vec::new()),
    }
}

pub fn duplicates(descriptors: &[OwnedFd]) -> Result<Vec<OwnedFd>> {
    let duplicates = descriptors.iter().map(OwnedFd::try_clone).collect::<std::io::Result<_>>();
    duplicates.map_err(|error| Error::from_io(&error, "duplicating a descriptor of the connection"))
}

pub fn wait(child: &mut Child) -> ExitStatus {
    // Fails only for a process that isn't a child.
    child.wait().unwrap_or_default()
}

/// Returns the last line of the log: the error of a server that has ended.
pub fn said_last(plan: &Plan) -> String {
    let log = std::fs::read_to_string(plan.folder.log()).unwrap_or_default();
    let last = log.lines().rev().find(|line| !line.trim().is_empty());
    last.map_or_else(
        || "the server ended before it served; its error is on standard error of attach".to_owned(),
        str::to_owned,
    )
}
