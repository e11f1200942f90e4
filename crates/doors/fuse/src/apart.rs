//! Calls to the kernel that end only when the server has answered requests: a notification that makes the
//! kernel write back cached data of a file, and unmounting. A small separate process makes them.
//!
//! A thread in such a call can't be killed. In the server itself it would keep a killed server, with the
//! descriptors and locks of its storage, until the connection is aborted. The kernel aborts it when the last
//! device of the session is closed, which the thread prevents.
//!
//! # The process
//! It is this program with [`ARGUMENT`], a socket as its standard input, and a clone of the device as its
//! standard output. [`THREADS`] threads make the calls. When the server has ended, the process fails the
//! requests of the kernel until its own calls have returned, and ends; then the kernel aborts the connection.
//! It can't fail the requests in the rings of the server; such a connection it aborts itself, by the file
//! that is then its standard error ([`ABORTS`]).
//!
//! If `main` doesn't call [`run_if_asked`], threads of the program itself make the calls.

use crate::mount::unmount_directly;
use crate::protocol::OutHeader;
use crate::reply;
use block::{Error, Result};
use runtime::{Answering, RemoteHandle};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zerocopy::IntoBytes;

/// First argument of the process.
const ARGUMENT: &str = "--fuse-calls-apart";
/// Second argument of the process, if its standard error is the file that aborts the connection.
const ABORTS: &str = "--aborts";
/// Number of concurrent calls.
const THREADS: usize = 4;
/// Most calls in progress or queued.
const MAX_CALLS: usize = 256;
/// Bytes of a call before its path: its number, its code and the node.
const HEAD: usize = 24;
/// Longest call: a path has at most 4095 bytes.
const LONGEST: usize = HEAD + 4096;
/// Bytes of a result: the call's number and errno.
const RESULT: usize = 12;
/// Codes of calls.
const WRITE_BACK: u64 = 1;
const UNMOUNT: u64 = 2;
/// Longest request of the kernel that is failed after the end of the server: a WRITE.
const MAX_REQUEST: usize = crate::negotiation::MAX_WRITE + 8192;
/// Pause between checks whether the calls have returned.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// Whether this program calls [`run_if_asked`].
static IS_PREPARED: AtomicBool = AtomicBool::new(false);

/// Makes the calls of another process of this program, if this one was started for that. Returns whether it
/// was; the process must then end. Call it first in `main`.
pub fn run_if_asked() -> bool {
    let mut arguments = std::env::args_os().skip(1);
    let (first, second) = (arguments.next(), arguments.next());
    let aborts = second.as_ref().is_some_and(|second| second == ABORTS);
    if first.is_none_or(|first| first != ARGUMENT)
        || second.is_some() && !aborts
        || arguments.next().is_some()
    {
        IS_PREPARED.store(true, Ordering::Relaxed);
        return false;
    }
    // An inherited working directory would keep its mount busy.
    let _left = std::env::set_current_dir("/");
    let name = c"siltstone-fuse";
    let _named = rustix::thread::set_name(name);
    let socket = std::io::stdin().as_fd().try_clone_to_owned();
    let device = std::io::stdout().as_fd().try_clone_to_owned();
    let abort = aborts.then(|| std::io::stderr().as_fd().try_clone_to_owned().ok()).flatten();
    if let (Some(_), Ok(null)) = (&abort, std::fs::File::options().write(true).open("/dev/null")) {
        // The message of a panic would abort the connection.
        let _redirected = rustix::stdio::dup2_stderr(&null);
    }
    if let (Ok(socket), Ok(device)) = (socket, device) {
        make_calls(&Arc::new((socket, device)), abort);
    }
    true
}

/// Receives calls and makes them until the other end of the socket is closed and all calls have returned.
fn make_calls(ends: &Arc<(OwnedFd, OwnedFd)>, abort: Option<OwnedFd>) {
    let threads: Vec<_> = (0..THREADS)
        .filter_map(|_| {
            let ends = ends.clone();
            std::thread::Builder::new().name("fuse-call".into()).spawn(move || calls_of_thread(&ends)).ok()
        })
        .collect();
    let (socket, device) = &**ends;
    let mut closed = [PollFd::new(socket, PollFlags::RDHUP)];
    while rustix::event::poll(&mut closed, None) == Err(Errno::INTR) {}
    if let Some(abort) = abort {
        // An error means that the connection has ended.
        let _ended = rustix::io::write(abort, b"1");
    }
    let mut request = vec![0; MAX_REQUEST];
    while threads.iter().any(|thread| !thread.is_finished()) {
        let mut readable = [PollFd::new(device, PollFlags::IN)];
        match rustix::event::poll(&mut readable, Some(&PAUSE)) {
            Ok(0) | Err(Errno::INTR) => continue,
            _ => {}
        }
        match rustix::io::read(device, &mut request[..]) {
            Ok(length) if length >= 16 => fail(device, &request),
            Ok(_) | Err(Errno::INTR | Errno::NOENT | Errno::AGAIN) => {}
            // The connection has ended, and all calls with it.
            Err(_) => break,
        }
    }
    threads.into_iter().for_each(|thread| drop(thread.join()));
}

/// Fails a request. For requests without a reply the write fails, which is ignored.
fn fail(device: &OwnedFd, request: &[u8]) {
    let unique = u64::from_le_bytes(request[8..16].try_into().unwrap_or_default());
    let header = OutHeader { len: size_of::<OutHeader>() as u32, error: -libc::ENOTCONN, unique };
    let _ended = rustix::io::write(device, header.as_bytes());
}

fn calls_of_thread((socket, device): &(OwnedFd, OwnedFd)) {
    let mut call = vec![0; LONGEST];
    loop {
        let length = match rustix::net::recv(socket, &mut call[..], RecvFlags::empty()) {
            Ok((length, _)) if length >= HEAD => length,
            Err(Errno::INTR) => continue,
            _ => return,
        };
        let word = |at: usize| u64::from_le_bytes(call[at..at + 8].try_into().unwrap_or_default());
        let outcome = match word(8) {
            UNMOUNT => unmount_directly(Path::new(OsStr::from_bytes(&call[HEAD..length])), false),
            _ => rustix::io::write(device, &reply::invalidation(word(16))).map(drop),
        };
        let errno = outcome.err().map_or(0, Errno::raw_os_error);
        let mut result = [0; RESULT];
        result[..8].copy_from_slice(&call[..8]);
        result[8..].copy_from_slice(&errno.to_le_bytes());
        if rustix::net::send(socket, &result, SendFlags::NOSIGNAL).is_err() {
            return;
        }
    }
}

/// Calls that wait for their results.
#[derive(Default)]
struct Waiting {
    number: u64,
    /// `None` after the end of the process.
    calls: Option<BTreeMap<u64, Answering<i32>>>,
}

struct Shared {
    socket: OwnedFd,
    waiting: Mutex<Waiting>,
}

impl Shared {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        // Nothing panics while the lock is held.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes results to their waiters until the process has ended.
    fn receive_results(&self) {
        let mut result = [0; RESULT];
        loop {
            match rustix::net::recv(&self.socket, &mut result[..], RecvFlags::empty()) {
                Ok((RESULT, _)) => {}
                Err(Errno::INTR) => continue,
                _ => break,
            }
            let number = u64::from_le_bytes(result[..8].try_into().unwrap_or_default());
            let errno = i32::from_le_bytes(result[8..].try_into().unwrap_or_default());
            let call = self.waiting().calls.as_mut().and_then(|calls| calls.remove(&number));
            if let Some(call) = call {
                call.give(errno);
            }
        }
        // Remaining waiters get an error.
        let _ended = self.waiting().calls.take();
    }
}

/// The process that makes calls, until this is [ended](Self::end) or dropped.
pub(crate) struct Apart(Arc<Shared>);

impl std::fmt::Debug for Apart {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Apart")
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        self.end();
    }
}

impl Apart {
    /// Starts the process. `device` is a clone that no other process has, `abort` the file that aborts its
    /// connection, if that has rings.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn start(device: OwnedFd, abort: Option<OwnedFd>) -> Result<Apart> {
        let starting = |error: std::io::Error| Error::from_io(&error, "starting a process for FUSE calls");
        let made =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (socket, other) = made.map_err(|error| starting(error.into()))?;
        let process = match IS_PREPARED.load(Ordering::Relaxed) {
            true => {
                let mut command = Command::new("/proc/self/exe");
                command.arg0("siltstone").arg(ARGUMENT).process_group(0);
                command.args(abort.as_ref().map(|_| ABORTS));
                let error = abort.map_or_else(Stdio::null, Stdio::from);
                command.stdin(Stdio::from(other)).stdout(Stdio::from(device)).stderr(error);
                Some(command.spawn().map_err(starting)?)
            }
            false => {
                let ends = Arc::new((other, device));
                std::thread::Builder::new()
                    .name("fuse-calls".into())
                    .spawn(move || make_calls(&ends, abort))
                    .map_err(starting)?;
                None
            }
        };
        let waiting = Waiting { number: 0, calls: Some(BTreeMap::new()) };
        let shared = Arc::new(Shared { socket, waiting: Mutex::new(waiting) });
        let its = shared.clone();
        let received = move || {
            its.receive_results();
            // Reaps the process, which would otherwise be a zombie until this one ends.
            process.map(|mut process: Child| process.wait())
        };
        std::thread::Builder::new().name("fuse-results".into()).spawn(received).map_err(starting)?;
        Ok(Apart(shared))
    }

    /// Makes the kernel write back and drop the cached data of a node. A node that the kernel doesn't know is
    /// no error.
    ///
    /// # Errors
    /// [`Error::Busy`] if too many calls are in progress; [`Error::Closed`] after the end of the process;
    /// errors of the kernel.
    pub async fn write_back(&self, node: u64) -> Result<()> {
        match self.call(WRITE_BACK, node, &[])?.await {
            Ok(0 | libc::ENOENT) => Ok(()),
            Ok(errno) => Err(Error::from_errno(errno, "asking the kernel to write its cache back")),
            Err(_) => Err(ended()),
        }
    }

    /// Unmounts. Returns the error number of umount(2), 0 for success; `None` if the process has ended.
    pub async fn unmount(&self, path: &Path) -> Option<i32> {
        self.call(UNMOUNT, 0, path.as_os_str().as_bytes()).ok()?.await.ok()
    }

    /// Ends the process once its calls have returned. Requests that they wait for fail unless another process
    /// answers them.
    pub fn end(&self) {
        // An error means that the process has ended.
        let _ended = rustix::net::shutdown(&self.0.socket, Shutdown::Both);
    }

    fn call(&self, code: u64, node: u64, path: &[u8]) -> Result<RemoteHandle<i32>> {
        let mut waiting = self.0.waiting();
        waiting.number += 1;
        let number = waiting.number;
        let calls = waiting.calls.as_mut().ok_or_else(ended)?;
        let busy =
            || Error::busy(format!("more than {MAX_CALLS} write-backs of the kernel's cache in progress"));
        if calls.len() >= MAX_CALLS {
            return Err(busy());
        }
        let mut call = Vec::with_capacity(HEAD + path.len());
        [number, code, node].iter().for_each(|word| call.extend(word.to_le_bytes()));
        call.extend(path);
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match rustix::net::send(&self.0.socket, &call, flags) {
            Ok(_) => {}
            Err(Errno::AGAIN | Errno::NOBUFS) => return Err(busy()),
            Err(_) => return Err(ended()),
        }
        let (answering, handle) = runtime::answer();
        calls.insert(number, answering);
        Ok(handle)
    }
}

fn ended() -> Error {
    Error::closed("the process for FUSE calls has ended")
}
