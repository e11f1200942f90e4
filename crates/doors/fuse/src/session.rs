//! Sessions: requests are read from the kernel's device and answered, on every shard.
//!
//! Each shard has a clone of the device (FUSE_DEV_IOC_CLONE), so that the shards answer in parallel; a
//! request may arrive on any of them. The workers of a shard take turns: the one whose turn it is reads,
//! executes and answers one request after the other, and waits for the next one. When the file system makes
//! it wait, it passes the turn on. So a request that needn't wait costs one read and one write, without a
//! change of the task; all other tasks of the shard run between two requests. There are at most
//! [`REQUESTS`] workers. One is created when one is needed, and remains; a request therefore costs neither a
//! task nor an allocation.
//!
//! # Memory
//! A shard holds at most [`REQUESTS`] requests, each of at most [`MAX_WRITE`] bytes, and a buffer of that
//! size to read the next one. Data of a large write remains in the buffer that it was read to, which is
//! aligned for devices.
//!
//! # Rings
//! Where the kernel offers it, requests are passed in the entries of rings (`session/rings.rs`); the devices
//! then have only FORGET and INTERRUPT, and everything if the kernel refuses the rings.
//!
//! # Hand-over
//! The mount outlives the server if another process holds all devices of the session
//! ([`Session::descriptors`]): the kernel fails the unanswered requests of a closed device. A new server
//! [adopts](Session::adopt) them with the result of INIT, and the kernel resends the unanswered requests.
//! It has to be [prepared](MountOptions::adoptable).

mod rings;

use crate::apart::Apart;
use crate::dispatch::{self, Request};
use crate::file_system::{FileSystem, FileSystemPart};
use crate::mount::{DEVICE, Mount, MountOptions};
use crate::negotiation::{MAX_WRITE, Negotiated, negotiate};
use crate::protocol::{DEV_IOC_CLONE, HEAD_BYTES, InHeader, InitIn, init_flag, notify, opcode};
use crate::reply;
use crate::request::{self, Message};
use block::{Buffer, Error, Payload, Result};
use rings::Rings;
use runtime::message_device::{self, MessageDevice};
use runtime::sync::{Notify, Permit, Semaphore, StopSource};
use runtime::{Requester, ShardIndex};
use std::cell::Cell;
use std::fmt;
use std::future::poll_fn;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Poll;
use std::time::Duration;
use zerocopy::IntoBytes;

/// Largest number of requests of a shard in progress.
pub const REQUESTS: usize = 64;
/// Most requests of a shard that have left their workers, in addition to [`REQUESTS`]: each waits until the
/// kernel has written a file back, which needs workers. Further ones fail with EBUSY.
pub const MAX_APART: usize = 256;
/// Time limit for the kernel to send INIT.
const INIT_LIMIT: Duration = Duration::from_secs(10);

/// Reason for the end of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// The file system was unmounted.
    Unmounted,
    /// The connection was aborted, through `/sys/fs/fuse/connections` or by `umount -f`.
    Aborted,
    /// The server ended the session. Unless another process holds its devices, users of the file system get
    /// errors.
    Left,
    /// The kernel's device failed, or a request was malformed.
    Failed(Error),
}

impl fmt::Display for Ended {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ended::Unmounted => formatter.write_str("unmounted"),
            Ended::Aborted => formatter.write_str("aborted"),
            Ended::Left => formatter.write_str("left by its server"),
            Ended::Failed(error) => write!(formatter, "failed: {error}"),
        }
    }
}

/// State of a session that all shards share.
struct Shared {
    /// Duplicates of the devices of all shards, dropped at the end: the connection lives as long as one of
    /// them is open.
    devices: Mutex<Vec<OwnedFd>>,
    /// Raised when the shards have to end.
    stop: StopSource,
    /// Number of shards that have not ended.
    serving: AtomicUsize,
    /// Raised when all shards have ended.
    all_ended: StopSource,
    ended: OnceLock<Ended>,
    /// File that aborts the connection, of a session with rings: their commands keep it open.
    abort: Option<OwnedFd>,
    /// Whether a request has come by a ring.
    uses_rings: AtomicBool,
}

impl Shared {
    fn devices(&self) -> MutexGuard<'_, Vec<OwnedFd>> {
        // Nothing panics while the lock is held.
        self.devices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the session on all shards. Only the first reason is kept.
    fn end(&self, ended: Ended) {
        let is_first = self.ended.set(ended).is_ok();
        // Unmounted, it may still be mounted in another namespace, whose users would wait.
        if let Some(abort) = self.abort.as_ref().filter(|_| is_first)
            && let Err(error) = rustix::io::write(abort, b"1")
        {
            tracing::warn!("aborting a FUSE connection: {error}");
        }
        self.devices().clear();
        self.stop.stop();
    }

    /// Records that this many shards have ended.
    fn left(&self, shards: usize) {
        if self.serving.fetch_sub(shards, Ordering::SeqCst) == shards {
            self.all_ended.stop();
        }
    }
}

/// A mounted file system that is being served.
pub struct Session {
    shared: Arc<Shared>,
    mount: Mount,
    /// Process for calls that wait for the server; started for the first one.
    apart: Mutex<Option<Arc<Apart>>>,
    negotiated: Negotiated,
}

impl Session {
    /// Mounts a file system and serves it on all shards. Returns once requests are answered.
    ///
    /// # Errors
    /// Errors of [`Mount::mount`] and of [`FileSystemPart::open`]; [`Error::Unsupported`] for a kernel that
    /// is too old. Nothing is mounted then.
    pub async fn mount(part: Arc<dyn FileSystemPart>, options: MountOptions) -> Result<Session> {
        let is_adoptable = options.adoptable;
        let (mount, device) = Mount::mount(options).await?;
        let started = async {
            let rings = Rings::of(runtime::shard_count()).filter(|_| !is_adoptable);
            let rings = rings.and_then(|rings| Some((rings, mount.open_abort()?)));
            let wanted = if rings.is_some() { init_flag::OVER_IO_URING } else { 0 };
            let negotiated = initialise(&device, part.capabilities() | wanted).await?;
            let rings = rings.filter(|_| negotiated.has(init_flag::OVER_IO_URING));
            Ok((start(part, vec![device], negotiated, rings).await?, negotiated))
        };
        match started.await {
            Ok((shared, negotiated)) => Ok(Session { shared, mount, apart: Mutex::default(), negotiated }),
            Err(error) => {
                remove(&mount).await;
                Err(error)
            }
        }
    }

    /// Serves a file system that an earlier server had mounted, and lets the kernel resend the requests that
    /// it didn't answer ([`Context::is_resent`](crate::Context::is_resent)). `devices` are all its
    /// [descriptors](Self::descriptors).
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the kernel can't resend requests (before Linux 6.9); [`Error::Invalid`]
    /// without a device or for impossible values; errors of the kernel and of [`FileSystemPart::open`].
    pub async fn adopt(
        part: Arc<dyn FileSystemPart>,
        devices: Vec<OwnedFd>,
        negotiated: Negotiated,
        mount: Mount,
    ) -> Result<Session> {
        negotiated.check()?;
        if !negotiated.has(init_flag::HAS_RESEND) {
            return Err(Error::unsupported(format!(
                "{}: the kernel can't send unanswered requests again; expected Linux 6.9 or newer; unmount it",
                mount.path().display()
            )));
        }
        if negotiated.has(init_flag::OVER_IO_URING) {
            return Err(Error::unsupported(format!(
                "{}: the kernel doesn't send requests again that were in the rings of the earlier server; \
                 expected a mount that is adoptable; unmount it",
                mount.path().display()
            )));
        }
        let Some(first) = devices.first() else {
            return Err(Error::invalid(format!("{}: no descriptor of {DEVICE}", mount.path().display())));
        };
        // Before the first read: requests that this server has read must not be resent.
        let doing =
            |error: rustix::io::Errno| Error::from_io(&error.into(), "asking for unanswered requests");
        rustix::io::write(first, reply::notification(notify::RESEND).as_bytes()).map_err(doing)?;
        let shared = start(part, devices, negotiated, None).await?;
        Ok(Session { shared, mount, apart: Mutex::default(), negotiated })
    }

    /// Result of INIT.
    pub fn negotiated(&self) -> &Negotiated {
        &self.negotiated
    }

    /// Whether requests come by rings.
    pub fn uses_rings(&self) -> bool {
        self.shared.uses_rings.load(Ordering::Relaxed)
    }

    /// Mount point.
    pub fn path(&self) -> &Path {
        self.mount.path()
    }

    /// Returns duplicates of all devices, for a process that keeps the mount alive when this one is killed;
    /// none after the end.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn descriptors(&self) -> Result<Vec<OwnedFd>> {
        self.shared.devices().iter().map(duplicate).collect()
    }

    /// Returns the sender of notifications.
    ///
    /// # Errors
    /// [`Error::Closed`] after the end; errors of the kernel and of starting a process.
    pub fn notifier(&self) -> Result<Notifier> {
        self.apart().map(Notifier)
    }

    /// Returns the process for calls that wait for the server.
    fn apart(&self) -> Result<Arc<Apart>> {
        // Nothing panics while the lock is held.
        let mut apart = self.apart.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(apart) = &*apart {
            return Ok(apart.clone());
        }
        let clone = {
            let devices = self.shared.devices();
            // When a device is closed the kernel fails its unanswered requests, so the process has a device
            // of its own.
            clone_of(devices.first().ok_or_else(|| Error::closed("the FUSE session has ended"))?)?
        };
        let abort = self.shared.abort.as_ref().map(duplicate).transpose()?;
        let started = Arc::new(Apart::start(clone, abort)?);
        *apart = Some(started.clone());
        Ok(started)
    }

    /// Ends the process for calls, which holds a device of the session.
    fn end_apart(&self) {
        if let Some(apart) = self.apart.lock().unwrap_or_else(PoisonError::into_inner).take() {
            apart.end();
        }
    }

    async fn unmount(&self) -> Result<()> {
        match self.apart() {
            Ok(apart) => self.mount.unmount_by(&apart).await,
            Err(_) => self.mount.unmount().await,
        }
    }

    /// Reason for the end of the session; `None` while it is served.
    pub fn outcome(&self) -> Option<&Ended> {
        self.shared.ended.get()
    }

    /// Waits until the session has ended on all shards.
    pub async fn ended(&self) {
        self.shared.all_ended.token().stopped().await;
    }

    /// Ends the session after the requests in progress, and leaves the mount to another process that holds
    /// its devices. Without one, users of the file system get errors, and the mount remains without a server.
    /// With rings, the requests in progress are aborted.
    pub async fn leave(&self) {
        self.end_apart();
        self.shared.end(Ended::Left);
        self.ended().await;
    }

    /// Aborts the connection, unless the file system was unmounted: requests of the users fail, and the mount
    /// is removed. Another mount at its path stays. For a server that ends without waiting for its storage.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub async fn abort(&self) -> Result<()> {
        match self.outcome() {
            // The number of the connection may belong to another one by now.
            Some(Ended::Unmounted) => Ok(()),
            // A session that has left its users may still wait for the lazy removal of the mount.
            _ => self.mount.abort().await,
        }
    }

    /// Unmounts and ends the session. While the file system is in use, retries for at most `limit`.
    ///
    /// # Errors
    /// [`Error::Busy`] if it was still in use after that: its users then get errors, and the mount is removed
    /// lazily. Errors of [`Mount::unmount`]. The session has ended in any case.
    pub async fn stop(&self, limit: Duration) -> Result<()> {
        let unmounted = match self.outcome() {
            Some(Ended::Unmounted) => Ok(()),
            _ => runtime::retry_while_busy(limit, async || self.unmount().await).await,
        };
        match unmounted {
            Ok(()) | Err(Error::NotFound(_)) => {
                self.end_apart();
                self.shared.end(Ended::Unmounted);
                self.ended().await;
                Ok(())
            }
            Err(error) => {
                self.leave().await;
                remove(&self.mount).await;
                Err(error.with_detail(format!(
                    "{} after {limit:?}; its users get I/O errors now, and it is unmounted lazily",
                    error.detail()
                )))
            }
        }
    }
}

/// Sends notifications to the kernel.
#[derive(Debug, Clone)]
pub struct Notifier(Arc<Apart>);

impl Notifier {
    /// Makes the kernel write back and drop the cached data of a node. Returns when workers of the session
    /// have answered the writes, so not all workers may wait here ([`MAX_APART`]).
    ///
    /// # Errors
    /// [`Error::Busy`] if too many files are being written back; [`Error::Closed`] after the end of the
    /// session; errors of the kernel, except for a node that it doesn't know.
    pub async fn write_back(&self, node: u64) -> Result<()> {
        self.0.write_back(node).await
    }
}

/// Removes a mount without a server, lazily if it is in use.
async fn remove(mount: &Mount) {
    let Err(error) = mount.unmount().await else { return };
    tracing::warn!("{error}; unmounting lazily");
    if let Err(error) = mount.detach().await {
        tracing::warn!("{error}");
    }
}

fn duplicate(device: &OwnedFd) -> Result<OwnedFd> {
    device
        .try_clone()
        .map_err(|error| Error::from_io(&error, &format!("duplicating a descriptor of {DEVICE}")))
}

/// Opens another device of the session that a device belongs to.
fn clone_of(device: &OwnedFd) -> Result<OwnedFd> {
    let clone = message_device::open(Path::new(DEVICE))?;
    let doing = "cloning the FUSE device";
    message_device::ioctl_with_descriptor(&clone, DEV_IOC_CLONE, device.as_fd(), doing)?;
    Ok(clone)
}

/// Parses the first request of a connection, of `length` bytes.
fn first_request(bytes: &[u8], length: usize) -> Result<(InHeader, InitIn)> {
    let malformed = |malformed: request::Malformed| Error::protocol(malformed.to_string());
    let header = request::header(bytes, length).map_err(malformed)?;
    if header.opcode == opcode::INIT
        && let Message::Init(init) =
            request::parse(&header, &bytes[size_of::<InHeader>()..], None, false).map_err(malformed)?
    {
        return Ok((header, init));
    }
    Err(Error::protocol(format!("FUSE request {}: expected INIT ({}) first", header.opcode, opcode::INIT)))
}

/// Answers INIT.
async fn initialise(device: &OwnedFd, capabilities: u64) -> Result<Negotiated> {
    let device = MessageDevice::from_descriptor(duplicate(device)?, DEVICE)?;
    let reading = device.receive(Buffer::new(HEAD_BYTES), Buffer::new(MAX_WRITE));
    let (result, head, body) = runtime::timeout(INIT_LIMIT, reading).await?;
    let mut bytes = head.filled().to_vec();
    bytes.extend_from_slice(body.filled());
    let (header, init) = first_request(&bytes, result?)?;
    let requests = REQUESTS * runtime::shard_count();
    match negotiate(&init, capabilities, requests) {
        Ok((negotiated, out)) => {
            device.send(&reply::with(header.unique, &out))?;
            Ok(negotiated)
        }
        Err(error) => {
            let _ = device.send(&reply::error(header.unique, libc::EPROTO));
            Err(error)
        }
    }
}

/// Serves a connection on all shards, each with a device of its own; further devices are closed.
async fn start(
    part: Arc<dyn FileSystemPart>,
    mut devices: Vec<OwnedFd>,
    negotiated: Negotiated,
    rings: Option<(Rings, OwnedFd)>,
) -> Result<Arc<Shared>> {
    let (rings, abort) = rings.unzip();
    let shards = runtime::shard_count();
    devices.truncate(shards);
    while devices.len() < shards {
        let clone = clone_of(&devices[0])?;
        devices.push(clone);
    }
    let shared = Arc::new(Shared {
        devices: Mutex::new(devices.iter().map(duplicate).collect::<Result<_>>()?),
        stop: StopSource::new(),
        serving: AtomicUsize::new(shards),
        all_ended: StopSource::new(),
        ended: OnceLock::new(),
        abort,
        uses_rings: AtomicBool::new(false),
    });
    for (shard, device) in devices.into_iter().enumerate() {
        let (part, its) = (part.clone(), shared.clone());
        let started =
            runtime::spawn_on(ShardIndex(shard), move || start_shard(part, its, device, negotiated, rings));
        if let Err(error) = started.await.and_then(|started| started) {
            shared.end(Ended::Left);
            shared.left(shards - shard);
            shared.all_ended.token().stopped().await;
            return Err(error);
        }
    }
    Ok(shared)
}

/// Workers of a shard.
struct Workers {
    shared: Arc<Shared>,
    negotiated: Negotiated,
    /// Permit to read requests, which one worker has.
    turn: Rc<Semaphore>,
    /// Number of workers.
    count: Cell<usize>,
    /// Number of requests that have left their workers.
    apart: Cell<usize>,
    /// Number of entries of rings.
    entries: Cell<usize>,
    /// Number of workers that wait for their turn.
    idle: Cell<usize>,
    stopping: Cell<bool>,
    stop: Notify,
    /// Notified when a worker has ended.
    ended: Notify,
}

/// Resources of a worker, dropped before the worker is counted as ended.
#[derive(Clone)]
struct Served {
    device: MessageDevice,
    file_system: Rc<dyn FileSystem>,
}

async fn start_shard(
    part: Arc<dyn FileSystemPart>,
    shared: Arc<Shared>,
    device: OwnedFd,
    negotiated: Negotiated,
    rings: Option<Rings>,
) -> Result<()> {
    runtime::serve_write_back();
    let file_system = part.open().await?;
    let served = Served { device: MessageDevice::from_descriptor(device, DEVICE)?, file_system };
    let workers = Rc::new(Workers {
        shared,
        negotiated,
        turn: Semaphore::new(1),
        count: Cell::new(0),
        apart: Cell::new(0),
        entries: Cell::new(0),
        idle: Cell::new(0),
        stopping: Cell::new(false),
        stop: Notify::new(),
        ended: Notify::new(),
    });
    if let Some(rings) = rings {
        rings::start(&workers, &served, rings)?;
    }
    runtime::spawn(run_shard(workers, served)).detach();
    Ok(())
}

async fn run_shard(workers: Rc<Workers>, served: Served) {
    add_worker(&workers, &served);
    drop(served);
    workers.shared.stop.token().stopped().await;
    workers.stopping.set(true);
    workers.stop.notify_all();
    while workers.count.get() + workers.apart.get() + workers.entries.get() > 0 {
        workers.ended.notified().await;
    }
    workers.shared.left(1);
}

fn add_worker(workers: &Rc<Workers>, served: &Served) {
    workers.count.set(workers.count.get() + 1);
    let (workers, served) = (workers.clone(), served.clone());
    runtime::spawn(async move {
        work(&workers, &served).await;
        drop(served);
        workers.count.set(workers.count.get() - 1);
        workers.ended.notify_all();
    })
    .detach();
}

/// Takes its turns to read and answer requests until the session ends.
async fn work(workers: &Rc<Workers>, served: &Served) {
    let mut stopped = pin!(workers.stop.notified());
    while !workers.stopping.get() {
        workers.idle.set(workers.idle.get() + 1);
        let turn = until(stopped.as_mut(), workers.turn.acquire(1)).await;
        workers.idle.set(workers.idle.get() - 1);
        let Some(turn) = turn else { return };
        if let Err(ended) = take_turn(workers, served, turn, stopped.as_mut()).await {
            return workers.shared.end(ended);
        }
    }
}

/// Reads and answers requests until one has to wait, or the session ends. That one is answered after the turn
/// was passed on.
async fn take_turn(
    workers: &Rc<Workers>,
    served: &Served,
    turn: Permit,
    mut stopped: Pin<&mut impl Future<Output = ()>>,
) -> Result<(), Ended> {
    while !workers.stopping.get() {
        let Some(received) = until(stopped.as_mut(), receive(&served.device)).await else { break };
        let request = received?;
        if request.header.opcode == opcode::LSEEK {
            answer_apart(workers, served, request)?;
            runtime::yield_now().await;
            continue;
        }
        let mut answering = pin!(answer(workers, served, request));
        match poll_fn(|context| Poll::Ready(answering.as_mut().poll(context))).await {
            Poll::Ready(answered) => answered?,
            Poll::Pending => {
                if workers.idle.get() == 0 && workers.count.get() < REQUESTS {
                    add_worker(workers, served);
                }
                drop(turn);
                return answering.await;
            }
        }
        runtime::yield_now().await;
    }
    Ok(())
}

/// Answers a request outside of its worker.
fn answer_apart(workers: &Rc<Workers>, served: &Served, request: Request) -> Result<(), Ended> {
    if workers.apart.get() >= MAX_APART {
        // If the reply fails, the request has ended.
        let _sent = served.device.send(&reply::error(request.header.unique, libc::EBUSY));
        return Ok(());
    }
    workers.apart.set(workers.apart.get() + 1);
    let (workers, served) = (workers.clone(), served.clone());
    runtime::spawn(async move {
        let answered = answer(&workers, &served, request).await;
        drop(served);
        workers.apart.set(workers.apart.get() - 1);
        workers.ended.notify_all();
        if let Err(ended) = answered {
            workers.shared.end(ended);
        }
    })
    .detach();
    Ok(())
}

/// Waits for a future until the other one ends.
async fn until<T>(
    mut stopped: Pin<&mut impl Future<Output = ()>>,
    future: impl Future<Output = T>,
) -> Option<T> {
    let mut future = pin!(future);
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => stopped.as_mut().poll(context).map(|()| None),
    })
    .await
}

fn violation(malformed: request::Malformed) -> Ended {
    Ended::Failed(Error::protocol(malformed.to_string()))
}

/// Reads a request: at once if there is one, and otherwise waits for it.
async fn receive(device: &MessageDevice) -> Result<Request, Ended> {
    let (mut head, mut body) = (Buffer::new(HEAD_BYTES), Buffer::new(MAX_WRITE));
    loop {
        let result = match device.try_receive(&mut head, &mut body) {
            Ok(None) => {
                let (result, its_head, its_body) = device.receive(head, body).await;
                (head, body) = (its_head, its_body);
                result
            }
            result => result.map(Option::unwrap_or_default),
        };
        let error = match result {
            Ok(length) => return Request::of(head, body, length).map_err(violation),
            Err(error) => error,
        };
        match error.errno() {
            // The request ended while it was read.
            libc::EINTR | libc::ENOENT => {}
            libc::ENODEV => return Err(Ended::Unmounted),
            libc::ECONNABORTED => return Err(Ended::Aborted),
            _ => return Err(Ended::Failed(error)),
        }
    }
}

/// Executes a request. Returns the reply to send, if the request takes one.
async fn reply_to(workers: &Workers, served: &Served, request: Request) -> Result<Option<Payload>, Ended> {
    let user = Requester::of_process(request.header.pid);
    let answering = dispatch::answer(&*served.file_system, &workers.negotiated, request);
    runtime::attributed(user, answering).await.map_err(violation)
}

async fn answer(workers: &Workers, served: &Served, request: Request) -> Result<(), Ended> {
    let unique = request.header.unique;
    let Some(reply) = reply_to(workers, served, request).await? else { return Ok(()) };
    let Err(error) = served.device.send(&reply) else { return Ok(()) };
    match error.errno() {
        // The request has ended: its caller was interrupted, or the file system was unmounted.
        libc::ENOENT | libc::ENODEV | libc::ECONNABORTED => {}
        _ => {
            tracing::warn!("reply to request {unique}: {error}");
            // Without a reply the caller would block forever.
            let _ = served.device.send(&reply::error(unique, libc::EIO));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_request_other_than_init_is_named() {
        for (opcode, arguments) in [(opcode::WRITE, [1; 104]), (opcode::STATFS, [0; 104])] {
            let len = (size_of::<InHeader>() + arguments.len()) as u32;
            let header = InHeader { len, opcode, ..InHeader::default() };
            let error = first_request(&[header.as_bytes(), &arguments].concat(), len as usize);
            let expected = format!("FUSE request {opcode}: expected INIT (26) first");
            assert!(error.expect_err("refused").to_string().contains(&expected));
        }
    }
}
