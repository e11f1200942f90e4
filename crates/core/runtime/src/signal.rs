//! Requests of a thread or a process to the kernel besides I/O: signals, processors, a seed.
#![allow(unsafe_code)] // sigaction, sched_setaffinity, getrandom, prctl.

use crate::file::File;
use block::{Buffer, Error, Result};
use rustix::event::EventfdFlags;
use std::cell::Cell;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

static STOP_EVENT: AtomicI32 = AtomicI32::new(-1);
/// Signals that the handler has received.
static RECEIVED: AtomicU32 = AtomicU32::new(0);
/// Limits of the process; read by signal handlers, which an initialized `OnceLock` permits.
static HANG_LIMITS: OnceLock<HangLimits> = OnceLock::new();
/// Users of the limits ([`StopSignals::limit_hangs`]).
static LIMITED: AtomicU32 = AtomicU32::new(0);

extern "C" fn on_signal(_signal: libc::c_int) {
    let one = 1_u64;
    // SAFETY: write is async-signal-safe; eight bytes are read from `one`.
    unsafe { libc::write(STOP_EVENT.load(Ordering::Relaxed), std::ptr::from_ref(&one).cast(), 8) };
    RECEIVED.fetch_add(1, Ordering::Relaxed);
    set_alarm();
}

/// Descriptors of [`AbortOnHang`]; -1 in a free place.
static ABORTS: [AtomicI32; 64] = [const { AtomicI32::new(-1) }; 64];

/// A file to which a process that hangs ([`HangLimits`]) writes `1` before it ends: `abort` of a connection
/// of FUSE. A thread that waits for its own process's mount can't end, and would keep the process's
/// descriptors and locks. Dropping it closes the file.
#[derive(Debug)]
pub struct AbortOnHang {
    descriptor: OwnedFd,
    place: &'static AtomicI32,
}

impl AbortOnHang {
    /// Returns `None` if there are 64 already.
    pub fn new(descriptor: OwnedFd) -> Option<Self> {
        let number = descriptor.as_raw_fd();
        let is_taken = |place: &&AtomicI32| {
            place.compare_exchange(-1, number, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        let place = ABORTS.iter().find(is_taken)?;
        Some(AbortOnHang { descriptor, place })
    }
}

impl Drop for AbortOnHang {
    fn drop(&mut self) {
        debug_assert_eq!(self.place.load(Ordering::Relaxed), self.descriptor.as_raw_fd());
        // Before the descriptor is closed and its number used for another file.
        self.place.store(-1, Ordering::SeqCst);
    }
}

/// Whether the process is being ended by [`on_alarm`].
static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// Ends a process that has set no new alarm in time, without any of its threads.
extern "C" fn on_alarm(_signal: libc::c_int) {
    if IS_ENDING.swap(true, Ordering::Relaxed) {
        // The log hangs on another thread.
        // SAFETY: _exit is async-signal-safe.
        unsafe { libc::_exit(1) };
    }
    for place in &ABORTS {
        let descriptor = place.load(Ordering::Relaxed);
        if descriptor >= 0 {
            // SAFETY: write is async-signal-safe; one byte is read from a constant.
            unsafe { libc::write(descriptor, c"1".as_ptr().cast(), 1) };
        }
    }
    let limits = HANG_LIMITS.get();
    let message = limits.map_or("", |limits| &limits.message);
    let mut output = libc::pollfd { fd: libc::STDERR_FILENO, events: libc::POLLOUT, revents: 0 };
    // SAFETY: poll, write, alarm and _exit are async-signal-safe; `output` is one entry, the texts are
    // readable. Where standard error takes no bytes now, such as a full pipe, there is no message.
    unsafe {
        if libc::poll(&mut output, 1, 0) == 1 && output.revents & libc::POLLOUT != 0 {
            libc::write(libc::STDERR_FILENO, message.as_ptr().cast(), message.len());
        }
        if let Some((descriptor, message)) = limits.and_then(|limits| limits.log.as_ref()) {
            libc::alarm(1);
            libc::write(*descriptor, message.as_ptr().cast(), message.len());
        }
        libc::_exit(1)
    }
}

/// Sets the alarm to the limit for the number of received signals, from now on. Async-signal-safe.
fn set_alarm() {
    let Some(limits) = HANG_LIMITS.get() else { return };
    loop {
        let received = RECEIVED.load(Ordering::Relaxed);
        let seconds = match received {
            0 => return,
            // The end that the limits were for is over.
            _ if LIMITED.load(Ordering::Relaxed) == 0 => 0,
            1 => limits.first,
            _ => limits.further,
        };
        // SAFETY: alarm is async-signal-safe, and no memory is passed.
        unsafe { libc::alarm(seconds) };
        // The handler may have set another one meanwhile, on this thread or another.
        if RECEIVED.load(Ordering::Relaxed) == received {
            return;
        }
    }
}

/// Time limits for a process that has received a signal, and whose end is driven by a task. If the task
/// doesn't call [`StopSignals::still_ending`] for that long, because its shard hangs in a call to the kernel,
/// a timer of the kernel ends the process with status 1. No shard has to run for that.
///
/// The limits end with the last [`StopSignals`] that has set them: what the process does after its orderly
/// end, such as waiting for operations of the kernel, loses nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HangLimits {
    /// Seconds after the first signal, at least 1.
    pub first: u32,
    /// Seconds after further signals, at least 1.
    pub further: u32,
    /// Message to standard error, with its newline.
    pub message: String,
    /// Descriptor of a log, which stays open as long as the process runs, and the message for it. The end
    /// waits for the log for at most a second, if the process has another thread.
    pub log: Option<(RawFd, String)>,
}

/// Effect of a second SIGINT or SIGTERM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Repeated {
    EndsProcess,
    IsCaught,
}

/// SIGINT and SIGTERM, caught.
#[derive(Debug)]
pub struct StopSignals {
    /// `None` under the simulated runtime, which has no signals.
    event: Option<File>,
    limits_hangs: Cell<bool>,
}

impl Drop for StopSignals {
    fn drop(&mut self) {
        if self.limits_hangs.get() && LIMITED.fetch_sub(1, Ordering::Relaxed) == 1 {
            set_alarm();
        }
    }
}

impl StopSignals {
    /// Catches the first signal of each kind; the second one ends the process, as by default.
    ///
    /// # Errors
    /// As [`catch`](Self::catch).
    pub fn catch_first() -> Result<Self> {
        Self::install(Repeated::EndsProcess)
    }

    /// Catches all signals: none of them ends the process, which clients depend on until it has shut down.
    ///
    /// # Errors
    /// Errors of eventfd(2) and sigaction(2).
    pub fn catch() -> Result<Self> {
        Self::install(Repeated::IsCaught)
    }

    fn install(repeated: Repeated) -> Result<Self> {
        if crate::shard::with_current(|shard| shard.world().is_some()) {
            return Ok(StopSignals { event: None, limits_hangs: Cell::new(false) });
        }
        let event = Some(File::from_descriptor(install(repeated)?, "stop signal"));
        Ok(StopSignals { event, limits_hangs: Cell::new(false) })
    }

    /// Sets the limits for the end of the process after a signal. They count from each signal and from each
    /// call of [`still_ending`](Self::still_ending), until this is dropped. The first call in a process sets
    /// them.
    ///
    /// # Errors
    /// Errors of sigaction(2).
    pub fn limit_hangs(&self, limits: HangLimits) -> Result<()> {
        if self.event.is_none() {
            return Ok(());
        }
        handle(libc::SIGALRM, on_alarm, 0)?;
        let _earlier_ones = HANG_LIMITS.set(limits);
        if !self.limits_hangs.replace(true) {
            LIMITED.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Notes that the task that ends the process still runs. Does nothing before a signal and without limits.
    pub fn still_ending(&self) {
        if self.event.is_some() {
            set_alarm();
        }
    }

    /// Waits for the next signal. Several signals between two calls are reported once.
    ///
    /// # Errors
    /// Errors of reading the eventfd.
    pub async fn next(&self) -> Result<()> {
        match &self.event {
            Some(event) => event.read_at(0, Buffer::new(8)).await.0.map(drop),
            None => std::future::pending().await,
        }
    }
}

fn install(repeated: Repeated) -> Result<OwnedFd> {
    let event = rustix::event::eventfd(0, EventfdFlags::CLOEXEC)
        .map_err(|error| Error::from_io(&error.into(), "creating an eventfd for signals"))?;
    let duplicate = event.try_clone().map_err(|error| Error::from_io(&error, "duplicating an eventfd"))?;
    // The handler uses this descriptor until the process ends, so it is never closed; the caller gets a
    // duplicate.
    STOP_EVENT.store(event.into_raw_fd(), Ordering::Relaxed);
    let once = match repeated {
        Repeated::EndsProcess => libc::SA_RESETHAND,
        Repeated::IsCaught => 0,
    };
    for signal in [libc::SIGINT, libc::SIGTERM] {
        handle(signal, on_signal, once)?;
    }
    Ok(duplicate)
}

static HANGUP: AtomicBool = AtomicBool::new(false);

extern "C" fn on_hangup(_signal: libc::c_int) {
    HANGUP.store(true, Ordering::Relaxed);
}

/// Catches SIGHUP, which ends the process by default. Returns a flag that each signal sets; the caller clears
/// it.
///
/// # Errors
/// Errors of sigaction(2).
pub fn catch_hangup() -> Result<&'static AtomicBool> {
    handle(libc::SIGHUP, on_hangup, 0).map(|()| &HANGUP)
}

/// Installs a signal handler, which may call only async-signal-safe functions.
fn handle(signal: libc::c_int, handler: extern "C" fn(libc::c_int), flags: libc::c_int) -> Result<()> {
    // SAFETY: a sigaction of zeros is valid; the handlers call only async-signal-safe functions.
    let installed = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as libc::sighandler_t;
        action.sa_flags = libc::SA_RESTART | flags;
        libc::sigaction(signal, &action, std::ptr::null_mut())
    };
    match installed {
        0 => Ok(()),
        _ => Err(Error::from_io(&std::io::Error::last_os_error(), "installing a signal handler")),
    }
}

/// Returns the number of the process at the other end of a connected unix socket, which called listen(2) or
/// connect(2) there. It is 0 for a process that isn't in this one's namespace of processes.
///
/// # Errors
/// Errors of getsockopt(2).
pub fn peer_process(socket: BorrowedFd<'_>) -> std::io::Result<u32> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `peer`.
    let outcome = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            std::ptr::from_mut(&mut peer).cast(),
            &raw mut length,
        )
    };
    match outcome {
        0 => Ok(u32::try_from(peer.pid).unwrap_or(0)),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Processors that this process may use.
pub(crate) fn allowed_processors() -> Vec<usize> {
    let set = allowed_set();
    // SAFETY: every index is below the size of the set.
    let allowed: Vec<usize> =
        (0..libc::CPU_SETSIZE as usize).filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) }).collect();
    if allowed.is_empty() { vec![0] } else { allowed }
}

/// Processors that this thread may use.
fn allowed_set() -> libc::cpu_set_t {
    // SAFETY: a set of zeros is valid, and the kernel writes at most its size.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set);
        set
    }
}

/// Processor that runs this thread; it may change at any time.
pub(crate) fn current_processor() -> usize {
    // SAFETY: no memory is passed.
    let processor = unsafe { libc::sched_getcpu() };
    usize::try_from(processor).unwrap_or(0)
}

/// Moves this thread to another processor if it runs on this one and may use others. Returns whether it has
/// moved. The set of its processors is unchanged afterwards, unless another thread changes it meanwhile.
pub(crate) fn leave_processor(processor: usize) -> bool {
    if current_processor() != processor || processor >= libc::CPU_SETSIZE as usize {
        return false;
    }
    let set = allowed_set();
    // SAFETY: the sets are local variables, and the index is below their size.
    unsafe {
        let mut others = set;
        libc::CPU_CLR(processor, &mut others);
        let has_others = libc::CPU_COUNT(&others) > 0;
        let moved = has_others && libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &others) == 0;
        if moved {
            libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
        }
        moved
    }
}

/// Makes timers of this thread exact to a microsecond (the kernel's default is 50), and pins it to
/// `processor` if there is one. Both are optimizations, so failures are ignored.
pub(crate) fn prepare_thread(processor: Option<usize>) {
    // SAFETY: no memory is passed.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1000_u64, 0, 0, 0) };
    if let Some(processor) = processor {
        // SAFETY: the set is a local variable, and the index is below its size.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(processor, &mut set);
            libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
        }
    }
}

/// Marks this shard's thread as part of the path on which the kernel writes memory back (PR_SET_IO_FLUSHER).
/// Its own allocations then never wait for that write-back, which would wait for the thread. For doors that
/// the kernel uses as a disk or a file system. Does nothing without the privilege (CAP_SYS_RESOURCE).
pub fn serve_write_back() {
    if crate::shard::with_current(|shard| shard.world().is_some()) {
        return;
    }
    /// From `linux/prctl.h`.
    const PR_SET_IO_FLUSHER: libc::c_int = 57;
    // SAFETY: no memory is passed.
    unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1_u64, 0, 0, 0) };
}

/// Returns a seed from the kernel.
pub(crate) fn kernel_random() -> u64 {
    let mut seed = 0_u64;
    // SAFETY: eight bytes are written to `seed`. A call for less than 256 bytes isn't interrupted.
    unsafe { libc::getrandom(std::ptr::from_mut(&mut seed).cast(), 8, 0) };
    seed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_leaves_its_processor_and_may_return() {
        let allowed = allowed_processors();
        // Between the calls it may be moved by the kernel.
        let moved = (0..100).any(|_| leave_processor(current_processor()));
        assert_eq!(moved, allowed.len() > 1, "{allowed:?}");
        assert_eq!(allowed_processors(), allowed);
        assert!(!leave_processor(usize::MAX));
    }

    #[test]
    fn the_limit_for_a_hanging_end_ends_with_the_orderly_end() {
        let main = || async {
            let signals = StopSignals::catch().unwrap();
            let limits = HangLimits { first: 600, further: 500, message: String::new(), log: None };
            signals.limit_hangs(limits).unwrap();
            let left = |at_most| {
                // SAFETY: no memory is passed. The alarm is cancelled and its time returned.
                let seconds = unsafe { libc::alarm(0) };
                assert!(seconds <= at_most, "{seconds}");
                seconds
            };
            on_signal(libc::SIGTERM);
            assert!(left(600) > 500);
            on_signal(libc::SIGTERM);
            signals.next().await.unwrap();
            assert!(left(500) > 0);
            signals.still_ending();
            drop(signals);
            assert_eq!(left(0), 0, "the end is over");
            on_signal(libc::SIGTERM);
            assert_eq!(left(0), 0, "a later signal has no limit");
        };
        crate::run(crate::Config::default(), main).unwrap();
    }
}
