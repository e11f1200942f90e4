//! The ring: operations become submission entries, completion entries become results.
//!
//! Uses the fastest settings measured: `SINGLE_ISSUER | DEFER_TASKRUN` (completions are processed when the
//! shard asks for them and not by interrupting it), and submission after every [`SUBMIT_EVERY`] entries
//! instead of once per turn, which is 15 to 20 % faster because the device starts sooner.
//!
//! All memory that an entry points to (buffers, vectors, paths, message headers) is in the operation's slot
//! until the completion has arrived. When the ring is dropped it cancels operations and waits for the rest.
//! If that takes too long it leaks the memory rather than free it while the kernel may use it.
#![allow(unsafe_code)] // The kernel's border.

use crate::address::SocketAddress;
use crate::config::Config;
use crate::kernel_memory::KernelMemory;
use crate::operation::{Descriptor, Operation};
use crate::polling::Polling;
use crate::ring_entry::RingEntry;
use crate::slots::{Key, Slot};
use block::buffer::pool::{self, Region};
use block::{Data, Error, Result};
use io_uring::types::{Fd, Fixed, SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, cqueue, opcode, squeue};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::time::Duration;

/// Number of entries that are batched before they are submitted.
const SUBMIT_EVERY: usize = 4;
/// Number of slots for registered files and sockets; further ones use plain descriptors.
const FILE_SLOTS: u32 = 256;
/// Smallest region that is registered, in bytes.
const MIN_REGION: usize = 256 << 10;
/// `user_data` of entries that aren't operations. Generations of slots have 31 bits, so no key is equal to
/// it.
const WAKE: u64 = u64::MAX;
const IGNORED: u64 = u64::MAX - 1;

pub(crate) struct Ring {
    /// With long entries, which the commands of [`Operation::FuseEntry`] need.
    ring: IoUring<squeue::Entry128>,
    unsubmitted: usize,
    /// Whether the last turn left entries for this turn to submit.
    held_back: bool,
    registered_files: bool,
    /// Whether the kernel writes vectors in registered buffers (Linux 6.15).
    fixed_vectors: bool,
    free_file_slots: Vec<u32>,
    wake: RawFd,
    wake_value: Box<u64>,
    wake_armed: bool,
    polling: Polling,
}

impl Ring {
    /// Creates a ring for this thread, which polls the eventfd `wake`.
    pub(crate) fn new(config: &Config, wake: RawFd, processors: usize) -> Result<Ring> {
        let entries = config.ring_entries.clamp(8, 4096).next_power_of_two();
        let ring = IoUring::<squeue::Entry128>::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_cqsize(entries * 8)
            .build(entries)
            .map_err(|error| {
                Error::from_io(
                    &error,
                    "setting up io_uring (it needs Linux 6.1 or newer, kernel.io_uring_disabled = 0, and 256 KiB of \
                     locked memory per shard: ulimit -l)",
                )
            })?;
        let registered_files = ring.submitter().register_files_sparse(FILE_SLOTS).is_ok();
        let mut probe = Probe::new();
        let fixed_vectors = ring.submitter().register_probe(&mut probe).is_ok()
            && probe.is_supported(opcode::WritevFixed::CODE);
        let free_file_slots = if registered_files { (0..FILE_SLOTS).rev().collect() } else { Vec::new() };
        let ring = Ring {
            ring,
            unsubmitted: 0,
            held_back: false,
            registered_files,
            fixed_vectors,
            free_file_slots,
            wake,
            wake_value: Box::new(0),
            wake_armed: false,
            polling: Polling::new(config.poll, config.shards, processors),
        };
        ring.register_buffers(config.registered_bytes);
        Ok(ring)
    }

    /// Registers one region for the buffers of this thread, as large as the limit on locked memory allows.
    fn register_buffers(&self, budget: usize) {
        if let Some((address, bytes)) = pool::adopted_region() {
            pool::set_registered(self.register_region(address, bytes).is_ok());
            return;
        }
        let mut bytes = budget;
        while bytes >= MIN_REGION {
            let region = Region::new(bytes);
            match self.register_region(region.address(), region.len()) {
                Ok(()) => return pool::adopt_region(region),
                Err(error) => tracing::debug!("registering {bytes} bytes of buffers: {error}"),
            }
            bytes /= 2;
        }
    }

    fn register_region(&self, address: *mut u8, bytes: usize) -> std::io::Result<()> {
        let vector = libc::iovec { iov_base: address.cast(), iov_len: bytes };
        // SAFETY: the pool keeps the region while one of its buffers is in use, and the kernel pins the pages
        // as long as the ring exists.
        unsafe { self.ring.submitter().register_buffers(&[vector]) }
    }

    /// Puts a descriptor into the table of registered files, if there is a free slot.
    pub(crate) fn register_file(&mut self, fd: OwnedFd) -> Descriptor {
        let slot = self.free_file_slots.pop().filter(|_| self.registered_files);
        let slot = slot.filter(|slot| {
            self.ring.submitter().register_files_update(*slot, &[fd.as_raw_fd()]).is_ok_and(|done| done == 1)
        });
        Descriptor::Kernel { fd, slot }
    }

    pub(crate) fn release_file_slot(&mut self, slot: u32) {
        // An unsubmitted entry that names the slot would miss its file. There is none: an operation keeps its
        // descriptor.
        if self.ring.submitter().register_files_update(slot, &[-1]).is_ok() {
            self.free_file_slots.push(slot);
        }
    }

    /// Starts an operation. A short one is executed at once, and its result is returned.
    #[inline]
    pub(crate) fn start(&mut self, key: Key, slot: &mut Slot) -> Option<i32> {
        let operation = slot.operation.as_mut().expect("an operation that starts is in its slot");
        if let Operation::ReceiveMessage { file, .. } = operation {
            let poll = poll_for(file);
            self.make_free_entries(2);
            // The chain has one completion: a poll that succeeds has none, and one that fails takes that of
            // the read. Both have the key, so a cancellation finds the poll while it waits.
            self.push_unsubmitted(poll.user_data(key.user_data()));
        }
        if let Operation::FuseEntry { file, entry, commit } = operation {
            let submission = fuse_entry(file, entry, *commit, &mut slot.kernel);
            self.push(submission.user_data(key.user_data()));
            return None;
        }
        match entry_for(operation, &mut slot.kernel, self.fixed_vectors) {
            Ok(entry) => {
                self.push(entry.user_data(key.user_data()));
                None
            }
            Err(result) => Some(result),
        }
    }

    pub(crate) fn cancel(&mut self, key: Key) {
        self.push(opcode::AsyncCancel::new(key.user_data()).build().user_data(IGNORED));
    }

    /// Submits what is batched if fewer than `count` entries are free: a chain must not be cut by a
    /// submission.
    fn make_free_entries(&mut self, count: usize) {
        loop {
            let submission = self.ring.submission();
            if submission.capacity() - submission.len() >= count {
                return;
            }
            drop(submission);
            self.submit();
        }
    }

    #[inline]
    fn push(&mut self, entry: impl Into<squeue::Entry128>) {
        self.push_unsubmitted(entry);
        if self.unsubmitted >= SUBMIT_EVERY {
            self.submit();
        }
    }

    #[inline]
    fn push_unsubmitted(&mut self, entry: impl Into<squeue::Entry128>) {
        let entry = entry.into();
        // SAFETY: the memory that the entry points to is in its operation's slot, or in `wake_value`, until
        // its completion has been reaped.
        while unsafe { self.ring.submission().push(&entry) }.is_err() {
            self.submit();
        }
        self.unsubmitted += 1;
    }

    pub(crate) fn submit_now(&mut self) {
        if self.unsubmitted > 0 {
            self.submit();
        }
    }

    fn submit(&mut self) {
        match self.ring.submitter().submit() {
            Ok(count) => self.unsubmitted = self.unsubmitted.saturating_sub(count),
            Err(error) => self.pause_after(&error),
        }
    }

    /// Submits the batched entries and processes completions; with `wait`, waits for one or until the limit.
    pub(crate) fn turn(&mut self, wait: bool, limit: Option<Duration>) {
        if wait && !self.wake_armed {
            self.arm_wake();
        }
        let has_work = {
            let submission = self.ring.submission();
            submission.taskrun() || submission.cq_overflow()
        };
        // While tasks are ready, a few entries may wait for one turn and are submitted with those of these
        // tasks. This saves a system call per batch where a request and its answer are submitted one after
        // the other.
        if !wait && !has_work && (self.unsubmitted == 0 || !self.held_back) {
            self.held_back = self.unsubmitted > 0;
            return;
        }
        self.held_back = false;
        let result = match (wait, limit) {
            (true, Some(limit)) => {
                let time = Timespec::new().sec(limit.as_secs()).nsec(limit.subsec_nanos());
                self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&time))
            }
            (true, None) => self.ring.submit_and_wait(1),
            // `submit_and_wait(0)` would not process deferred completions; GETEVENTS does.
            (false, _) => self.enter_without_waiting(),
        };
        match result {
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(libc::ETIME) => {}
            Err(error) => self.pause_after(&error),
        }
        self.unsubmitted = self.ring.submission().len();
    }

    /// Submits the batched entries, and has the kernel post deferred completions.
    fn enter_without_waiting(&mut self) -> std::io::Result<usize> {
        const GET_EVENTS: u32 = 1;
        let unsubmitted = self.ring.submission().len() as u32;
        // SAFETY: no argument is passed, so the kernel reads none.
        unsafe { self.ring.submitter().enter::<libc::sigset_t>(unsubmitted, 0, GET_EVENTS, None) }
    }

    /// Submits the batched entries, and polls for a completion or a message if the wait is expected to be
    /// short. Returns whether there is one.
    pub(crate) fn poll(
        &mut self,
        limit: impl FnOnce() -> Option<Duration>,
        has_message: impl Fn() -> bool,
    ) -> bool {
        let Some(time) = self.polling.time(limit) else { return false };
        if self.unsubmitted > 0 {
            match self.enter_without_waiting() {
                Ok(_) => self.unsubmitted = self.ring.submission().len(),
                // The wait that follows handles the error.
                Err(_) => return false,
            }
        }
        let end = crate::now() + time;
        loop {
            if has_message() || self.ring.submission().taskrun() || !self.ring.completion().is_empty() {
                return true;
            }
            if crate::now() >= end {
                return false;
            }
            std::hint::spin_loop();
        }
    }

    /// State that decides whether to poll.
    pub(crate) fn polling(&mut self) -> &mut Polling {
        &mut self.polling
    }

    /// Pauses after a failed submission. EINTR and EBUSY (completions have to be reaped first) need no pause,
    /// EAGAIN (no memory for requests) a short one. Any other error would be a defect of this module.
    #[cold]
    fn pause_after(&self, error: &std::io::Error) {
        match error.raw_os_error() {
            Some(libc::EINTR | libc::EBUSY) => {}
            Some(libc::EAGAIN) => std::thread::yield_now(),
            _ => panic!("io_uring_enter: {error}"),
        }
    }

    /// Passes completions to `complete`.
    #[inline]
    pub(crate) fn reap(&mut self, mut complete: impl FnMut(Key, i32)) -> bool {
        let mut any = false;
        let wake_armed = &mut self.wake_armed;
        for entry in self.ring.completion() {
            any = true;
            match entry.user_data() {
                WAKE => *wake_armed = false,
                IGNORED => {}
                user_data => complete(Key::from_user_data(user_data), cqueue::Entry::result(&entry)),
            }
        }
        any
    }

    fn arm_wake(&mut self) {
        self.wake_armed = true;
        let target: *mut u64 = &mut *self.wake_value;
        self.push(opcode::Read::new(Fd(self.wake), target.cast(), 8).build().user_data(WAKE));
    }

    /// Cancels all operations that can be cancelled, when the shard ends.
    pub(crate) fn cancel_all(&mut self) {
        let builder = io_uring::types::CancelBuilder::any();
        self.push(opcode::AsyncCancel2::new(builder).build().user_data(IGNORED));
    }

    /// Closes the ring: unregisters the buffers and ends the read of the eventfd into this process's memory.
    pub(crate) fn close(mut self) {
        pool::set_registered(false);
        for _ in 0..100 {
            if !self.wake_armed {
                return;
            }
            self.cancel_all();
            self.turn(true, Some(Duration::from_millis(10)));
            self.reap(|_, _| {});
        }
        std::mem::forget(std::mem::take(&mut self.wake_value));
    }
}

/// Takes ownership of the descriptor that an abandoned operation has returned.
pub(crate) fn returned_descriptor(result: i32) -> Option<Descriptor> {
    // SAFETY: the kernel has opened it for an operation of this ring whose waiter was dropped.
    let fd = (result >= 0).then(|| unsafe { OwnedFd::from_raw_fd(result) })?;
    Some(Descriptor::Kernel { fd, slot: None })
}

macro_rules! with_fd {
    ($descriptor:expr, |$fd:ident| $entry:expr) => {
        match &**$descriptor {
            Descriptor::Kernel { slot: Some(slot), .. } => {
                let $fd = Fixed(*slot);
                $entry
            }
            Descriptor::Kernel { fd, slot: None } => {
                let $fd = Fd(fd.as_raw_fd());
                $entry
            }
            Descriptor::Simulated(_) => unreachable!("a simulated file on a real ring"),
        }
    };
}

/// Returns the first entry of a [`Operation::ReceiveMessage`]: waits until the device has a message. A
/// message wakes only one of the waiting entries.
fn poll_for(file: &Rc<Descriptor>) -> squeue::Entry {
    let events = (libc::EPOLLIN | libc::EPOLLEXCLUSIVE) as u32;
    let entry = with_fd!(file, |fd| opcode::PollAdd::new(fd, events).build());
    entry.flags(squeue::Flags::IO_LINK | squeue::Flags::SKIP_SUCCESS)
}

/// Returns the entry for an [`Operation::FuseEntry`], the only operation that needs a long one.
#[inline]
fn fuse_entry(
    file: &Rc<Descriptor>,
    entry: &RingEntry,
    commit: Option<u64>,
    memory: &mut KernelMemory,
) -> squeue::Entry128 {
    let (code, request) = entry.command(commit);
    let mut submission = with_fd!(file, |fd| opcode::UringCmd80::new(fd, code).cmd(request).build());
    if commit.is_none() {
        entry.point_at(memory, &mut submission);
    }
    submission
}

/// Returns the entry for an operation, or its result if it is executed at once. `fixed_vectors` is whether
/// the kernel writes vectors in registered buffers.
fn entry_for(
    operation: &mut Operation,
    memory: &mut KernelMemory,
    fixed_vectors: bool,
) -> Result<squeue::Entry, i32> {
    const HERE: Fd = Fd(libc::AT_FDCWD);
    /// Largest count that fits the kernel's signed result.
    const LARGEST: usize = 0x7FFF_F000;
    Ok(match operation {
        Operation::Read { file, offset, buffer } => {
            let (address, length) = (buffer.spare_address(), buffer.missing().min(LARGEST) as u32);
            let registered = buffer.is_registered_here();
            with_fd!(file, |fd| if registered {
                opcode::ReadFixed::new(fd, address, length, 0).offset(*offset).build()
            } else {
                opcode::Read::new(fd, address, length).offset(*offset).build()
            })
        }
        Operation::Write { file, offset, payload, skip, durable } => {
            let flags = if *durable { libc::RWF_DSYNC } else { 0 };
            let offset = *offset + *skip as u64;
            match payload.slices() {
                [data] => {
                    let (rest, registered) = (&data[*skip..], data.is_registered_here());
                    let (address, length) = (rest.as_ptr(), rest.len().min(LARGEST) as u32);
                    with_fd!(file, |fd| if registered {
                        opcode::WriteFixed::new(fd, address, length, 0).offset(offset).rw_flags(flags).build()
                    } else {
                        opcode::Write::new(fd, address, length).offset(offset).rw_flags(flags).build()
                    })
                }
                _ => {
                    memory.point_at(payload, *skip);
                    let (vectors, count) = (memory.vectors.as_ptr(), memory.vectors.len() as u32);
                    // The pages of registered buffers are pinned already.
                    let registered = fixed_vectors && payload.slices().iter().all(Data::is_registered_here);
                    with_fd!(file, |fd| if registered {
                        opcode::WritevFixed::new(fd, vectors, count, 0).offset(offset).rw_flags(flags).build()
                    } else {
                        opcode::Writev::new(fd, vectors, count).offset(offset).rw_flags(flags).build()
                    })
                }
            }
        }
        Operation::Sync { file, metadata } => {
            let flags = if *metadata {
                io_uring::types::FsyncFlags::empty()
            } else {
                io_uring::types::FsyncFlags::DATASYNC
            };
            with_fd!(file, |fd| opcode::Fsync::new(fd).flags(flags).build())
        }
        Operation::Allocate { file, mode, offset, length } => {
            with_fd!(file, |fd| opcode::Fallocate::new(fd, *length).offset(*offset).mode(*mode).build())
        }
        Operation::Truncate { file, length } => return Err(truncate(file, *length)),
        Operation::Open { path, flags, mode } => {
            opcode::OpenAt::new(HERE, path.as_ptr()).flags(*flags).mode(*mode).build()
        }
        Operation::Rename { from, to } => {
            opcode::RenameAt::new(HERE, from.as_ptr(), HERE, to.as_ptr()).build()
        }
        Operation::Unlink { path } => opcode::UnlinkAt::new(HERE, path.as_ptr()).build(),
        Operation::Accept { listener } => {
            with_fd!(listener, |fd| opcode::Accept::new(fd, std::ptr::null_mut(), std::ptr::null_mut())
                .flags(libc::SOCK_CLOEXEC)
                .build())
        }
        Operation::Connect { socket, address } => {
            let address = match SocketAddress::of(address) {
                Ok(address) => memory.address.insert(address),
                Err(error) => return Err(-error.errno()),
            };
            let (pointer, length) = (address.as_ptr(), address.len());
            with_fd!(socket, |fd| opcode::Connect::new(fd, pointer, length).build())
        }
        Operation::Receive { socket, buffer } => {
            let (address, length) = (buffer.spare_address(), buffer.missing().min(LARGEST) as u32);
            with_fd!(socket, |fd| opcode::Recv::new(fd, address, length).build())
        }
        Operation::Send { socket, payload, skip } => {
            // With MSG_WAITALL the kernel continues after a short send.
            let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
            match payload.slices() {
                [data] => {
                    let rest = &data[*skip..];
                    let (address, length) = (rest.as_ptr(), rest.len().min(LARGEST) as u32);
                    with_fd!(socket, |fd| opcode::Send::new(fd, address, length).flags(flags).build())
                }
                _ => {
                    memory.point_at(payload, *skip);
                    memory.message.msg_iov = memory.vectors.as_mut_ptr();
                    memory.message.msg_iovlen = memory.vectors.len();
                    let message: *const libc::msghdr = &memory.message;
                    with_fd!(socket, |fd| opcode::SendMsg::new(fd, message).flags(flags as u32).build())
                }
            }
        }
        Operation::Readable { file } => {
            with_fd!(file, |fd| opcode::PollAdd::new(fd, libc::POLLIN as u32).build())
        }
        Operation::Shutdown { socket, how } => {
            with_fd!(socket, |fd| opcode::Shutdown::new(fd, *how).build())
        }
        // Without the forms for registered buffers, which /dev/fuse refuses.
        Operation::ReceiveMessage { file, head, body } => {
            memory.point_at_spare([head, body]);
            let (vectors, count) = (memory.vectors.as_ptr(), memory.vectors.len() as u32);
            with_fd!(file, |fd| opcode::Readv::new(fd, vectors, count).build())
        }
        Operation::Command { file, operation, command } => {
            with_fd!(file, |fd| opcode::UringCmd16::new(fd, *operation).cmd(*command).build())
        }
        Operation::FuseEntry { .. } => unreachable!("it has a long entry"),
    })
}

/// Executes ftruncate at once: it is short and rare, and has an entry only since Linux 6.9.
fn truncate(file: &Descriptor, length: u64) -> i32 {
    let Descriptor::Kernel { fd, .. } = file else { unreachable!("a simulated file on a real ring") };
    let Ok(length) = libc::off_t::try_from(length) else { return -libc::EFBIG };
    // SAFETY: the descriptor is open; no memory is passed.
    match unsafe { libc::ftruncate(fd.as_raw_fd(), length) } {
        0 => 0,
        _ => -std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO),
    }
}
