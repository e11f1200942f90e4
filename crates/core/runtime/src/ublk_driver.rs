//! The kernel's driver ublk (include/uapi/linux/ublk_cmd.h): control commands, and the queues of a block
//! device whose requests this process serves.
//!
//! # Promises
//! - A control command blocks its thread until the kernel has completed it. The kernel uses the caller's
//!   memory only until then.
//! - A queue passes data only by UBLK_F_USER_COPY: the kernel gets no address of this process.
//! - Dropping the future of a queue's command abandons the command; the kernel completes it when the device
//!   stops or the shard's ring closes.
//!
//! The callers interpret the structures.
#![allow(unsafe_code)] // A ring of its own, a mapping, reads and writes at the kernel's border.

use crate::file::os_error;
use crate::in_flight::{InFlight, submit};
use crate::operation::{Descriptor, Operation};
use crate::shard;
use block::{Buffer, Error, Result};
use io_uring::types::Fd;
use io_uring::{IoUring, cqueue, opcode, squeue};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::pin::Pin;
use std::ptr::NonNull;
use std::rc::Rc;
use std::task::{Context, Poll};

/// Length of the largest memory that a control command passes, in bytes.
pub const MAX_COMMAND_MEMORY: usize = 4096;
/// Length of a control command (struct ublksrv_ctrl_cmd), in bytes.
const CONTROL_COMMAND_BYTES: u32 = 32;
/// Length of a queue's command (struct ublksrv_io_cmd), in bytes.
const QUEUE_COMMAND_BYTES: u32 = 16;
/// Length of a request's descriptor (struct ublksrv_io_desc), in bytes.
const DESCRIPTOR_BYTES: usize = 24;
/// Largest depth of a queue: the distance of the queues' descriptors in the mapping.
const MAX_DEPTH: u64 = 4096;
/// Position of the requests' data in the character device.
const DATA_OFFSET: u64 = 0x8000_0000;
const TAG_SHIFT: u32 = 25;
const QUEUE_SHIFT: u32 = 41;

/// Direction of a command's memory, in ioctl's encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// The kernel writes (_IOR).
    Read = 2,
    /// The kernel reads and writes (_IOWR).
    ReadWrite = 3,
}

const fn encode(direction: Direction, number: u8, length: u32) -> u32 {
    (direction as u32) << 30 | length << 16 | (b'u' as u32) << 8 | number as u32
}

const FETCH_REQ: u32 = encode(Direction::ReadWrite, 0x20, QUEUE_COMMAND_BYTES);
const COMMIT_AND_FETCH_REQ: u32 = encode(Direction::ReadWrite, 0x21, QUEUE_COMMAND_BYTES);

/// `/dev/ublk-control` with a ring of its own, for a thread that may block.
pub struct Control {
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    device: OwnedFd,
    commands: u64,
}

impl Control {
    /// Opens the driver's control device.
    ///
    /// # Errors
    /// Errors of open(2) and io_uring_setup(2); ENOENT if the driver isn't loaded.
    pub fn open(path: &Path) -> std::io::Result<Control> {
        let device = std::fs::OpenOptions::new().read(true).write(true).open(path)?;
        let ring = IoUring::<squeue::Entry128, cqueue::Entry>::builder().build(2)?;
        Ok(Control { ring, device: device.into(), commands: 0 })
    }

    /// Executes a command for device `id` (`None`: any) with an inline value and memory that the kernel reads
    /// or writes. Returns when the kernel has completed it; there is no time limit.
    ///
    /// # Errors
    /// Errors of the driver.
    ///
    /// # Panics
    /// If the memory is longer than [`MAX_COMMAND_MEMORY`].
    pub fn call(
        &mut self,
        direction: Direction,
        number: u8,
        id: Option<u32>,
        value: u64,
        memory: &mut [u8],
    ) -> std::io::Result<()> {
        assert!(memory.len() <= MAX_COMMAND_MEMORY, "a command's memory of {} bytes", memory.len());
        let mut shared: Box<[u64]> = vec![0; memory.len().div_ceil(8)].into();
        for (word, bytes) in shared.iter_mut().zip(memory.chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_ne_bytes(whole);
        }
        let address = if memory.is_empty() { 0 } else { shared.as_mut_ptr() as u64 };
        let mut command = [0; 80];
        command[..4].copy_from_slice(&id.unwrap_or(u32::MAX).to_ne_bytes());
        // The command is for no queue.
        command[4..6].copy_from_slice(&u16::MAX.to_ne_bytes());
        command[6..8].copy_from_slice(&(memory.len() as u16).to_ne_bytes());
        command[8..16].copy_from_slice(&address.to_ne_bytes());
        command[16..24].copy_from_slice(&value.to_ne_bytes());
        self.commands += 1;
        let operation = encode(direction, number, CONTROL_COMMAND_BYTES);
        let entry = opcode::UringCmd80::new(Fd(self.device.as_raw_fd()), operation).cmd(command).build();
        // SAFETY: `shared` outlives the command: it is dropped after the completion, or never.
        unsafe { self.ring.submission().push(&entry.user_data(self.commands)) }
            .map_err(|_| std::io::Error::from_raw_os_error(libc::EBUSY))?;
        let result = loop {
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error)
                    if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => {}
                Err(error) => {
                    std::mem::forget(shared);
                    return Err(error);
                }
            }
            let commands = self.commands;
            if let Some(entry) = self.ring.completion().find(|entry| entry.user_data() == commands) {
                break entry.result();
            }
        };
        if result < 0 {
            return Err(std::io::Error::from_raw_os_error(-result));
        }
        for (word, bytes) in shared.iter().zip(memory.chunks_mut(8)) {
            bytes.copy_from_slice(&word.to_ne_bytes()[..bytes.len()]);
        }
        Ok(())
    }
}

/// Opens the character device of a block device. Only one open file of it exists at a time; the queues share
/// it.
///
/// # Errors
/// Errors of open(2); EBUSY if another process has it open.
pub fn open_character_device(path: &Path) -> std::io::Result<OwnedFd> {
    let mut options = std::fs::OpenOptions::new();
    Ok(options.read(true).write(true).custom_flags(libc::O_CLOEXEC).open(path)?.into())
}

/// Read-only mapping of a queue's request descriptors.
struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

impl Mapping {
    fn new(device: &OwnedFd, queue: u16, depth: u16) -> std::io::Result<Mapping> {
        // SAFETY: sysconf takes no memory.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let length = (usize::from(depth) * DESCRIPTOR_BYTES).next_multiple_of(page);
        let offset = u64::from(queue) * MAX_DEPTH * DESCRIPTOR_BYTES as u64;
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        // SAFETY: asks for addresses wherever the kernel likes.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ,
                flags,
                device.as_raw_fd(),
                offset as libc::off_t,
            )
        };
        match NonNull::new(start.cast::<u8>()) {
            Some(address) if start != libc::MAP_FAILED => Ok(Mapping { start: address, length }),
            _ => Err(std::io::Error::last_os_error()),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the addresses are those of the mapping, and there are no references to it.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
    }
}

/// Descriptor of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestDescriptor {
    /// Operation in the lowest 8 bits, and flags.
    pub operation: u32,
    /// Length in sectors of 512 bytes; for a report of zones, the number of zones.
    pub sectors: u32,
    /// First sector.
    pub start: u64,
}

/// A command of a queue in flight. Its result is 0 if the tag has a request, else a negative error number.
pub struct QueueCommand(InFlight);

impl Future for QueueCommand {
    type Output = i32;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<i32> {
        Pin::new(&mut self.0).poll(context).map(|(result, _)| result)
    }
}

/// A hardware queue of a block device, on the shard that fetches its requests.
pub struct Queue {
    descriptor: Rc<Descriptor>,
    mapping: Mapping,
    index: u16,
    depth: u16,
}

impl Queue {
    /// Returns queue `index` of this depth of an open character device. All commands of the queue are sent by
    /// this shard.
    ///
    /// # Errors
    /// Errors of duplicating the descriptor and of mmap(2).
    pub fn new(device: &OwnedFd, index: u16, depth: u16) -> Result<Queue> {
        if shard::is_simulated() {
            return Err(Error::unsupported("a queue of the kernel's under simulation"));
        }
        let doing = |error: std::io::Error| Error::from_io(&error, &format!("opening queue {index}"));
        let mapping = Mapping::new(device, index, depth).map_err(doing)?;
        let descriptor = device.try_clone().map_err(doing)?;
        // Not registered with the ring: until Linux 6.12 the ring keeps a removed file open while an older
        // operation on any registered file is in flight, and the device can't be deleted before.
        let descriptor = Rc::new(Descriptor::Kernel { fd: descriptor, slot: None });
        Ok(Queue { descriptor, mapping, index, depth })
    }

    /// Number of requests that the kernel keeps in flight.
    pub fn depth(&self) -> u16 {
        self.depth
    }

    fn command(&self, operation: u32, tag: u16, result: i32, sector: u64) -> QueueCommand {
        let mut command = [0; 16];
        command[..2].copy_from_slice(&self.index.to_ne_bytes());
        command[2..4].copy_from_slice(&tag.to_ne_bytes());
        command[4..8].copy_from_slice(&result.to_ne_bytes());
        // The field for a buffer's address: data is copied, so it has the sector of a zone append.
        command[8..].copy_from_slice(&sector.to_ne_bytes());
        QueueCommand(submit(Operation::Command { file: self.descriptor.clone(), operation, command }))
    }

    /// Waits for the first request of a tag.
    pub fn fetch(&self, tag: u16) -> QueueCommand {
        self.command(FETCH_REQ, tag, 0, 0)
    }

    /// Completes the request of a tag with a number of bytes or a negative error number, and waits for the
    /// tag's next request. A zone append is completed with the sector that it was written to; `sector` is 0
    /// for other requests.
    #[inline]
    pub fn commit_and_fetch(&self, tag: u16, result: i32, sector: u64) -> QueueCommand {
        self.command(COMMIT_AND_FETCH_REQ, tag, result, sector)
    }

    /// Returns the descriptor of a tag's request, which is stable from a fetch until the commit.
    ///
    /// # Panics
    /// If the tag isn't less than the depth.
    #[inline]
    pub fn request(&self, tag: u16) -> RequestDescriptor {
        assert!(tag < self.depth, "tag {tag} out of range 0..{}", self.depth);
        // SAFETY: the mapping has a descriptor for each tag, aligned to 8 bytes. The kernel may write to it
        // meanwhile, which yields any values.
        let words: [u64; 2] = unsafe {
            let at = self.mapping.start.as_ptr().add(usize::from(tag) * DESCRIPTOR_BYTES).cast::<u64>();
            [at.read_volatile(), at.add(1).read_volatile()]
        };
        let (first, start) = (words[0].to_ne_bytes(), words[1]);
        let half = |at: usize| u32::from_ne_bytes([first[at], first[at + 1], first[at + 2], first[at + 3]]);
        RequestDescriptor { operation: half(0), sectors: half(4), start }
    }

    fn data_position(&self, tag: u16) -> u64 {
        DATA_OFFSET + (u64::from(self.index) << QUEUE_SHIFT) + (u64::from(tag) << TAG_SHIFT)
    }

    fn descriptor(&self) -> &OwnedFd {
        match &*self.descriptor {
            Descriptor::Kernel { fd, .. } => fd,
            Descriptor::Simulated(_) => unreachable!("a queue is one of the kernel's"),
        }
    }

    /// Copies the data of a write until the buffer is full. The copy is a plain system call: the ring would
    /// also copy during submission.
    ///
    /// # Errors
    /// Errors of pread(2); [`Error::Io`] if the request has fewer bytes.
    #[inline]
    pub fn take_data(&self, tag: u16, buffer: &mut Buffer) -> Result<()> {
        let mut at = self.data_position(tag);
        while buffer.missing() > 0 {
            let (address, length) = (buffer.spare_address(), buffer.missing());
            // SAFETY: the buffer has this many bytes there, which are exclusively borrowed.
            let count = unsafe {
                libc::pread(self.descriptor().as_raw_fd(), address.cast(), length, at as libc::off_t)
            };
            let count = copied(count)?;
            // SAFETY: the kernel reports that it wrote this many bytes.
            unsafe { buffer.add_filled(count) };
            at += count as u64;
        }
        Ok(())
    }

    /// Copies the data of a read, or a report of zones, to the request.
    ///
    /// # Errors
    /// Errors of pwrite(2); [`Error::Io`] if the request has fewer bytes.
    #[inline]
    pub fn give_data(&self, tag: u16, mut data: &[u8]) -> Result<()> {
        let mut at = self.data_position(tag);
        while !data.is_empty() {
            // SAFETY: the bytes are valid for the call.
            let count = unsafe {
                libc::pwrite(
                    self.descriptor().as_raw_fd(),
                    data.as_ptr().cast(),
                    data.len(),
                    at as libc::off_t,
                )
            };
            let count = copied(count)?;
            data = &data[count..];
            at += count as u64;
        }
        Ok(())
    }
}

/// Returns the number of bytes of a call on the character device; 0 if a signal interrupted it before the
/// first byte.
fn copied(count: isize) -> Result<usize> {
    const DOING: &str = "copying the data of a request";
    match count {
        1.. => Ok(count as usize),
        0 => Err(Error::io(format!("{DOING}: it has fewer bytes"))),
        _ => match std::io::Error::last_os_error().raw_os_error() {
            Some(libc::EINTR) => Ok(0),
            errno => Err(os_error(errno.unwrap_or(libc::EIO), DOING.to_owned())),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values printed by a C program over include/uapi/linux/ublk_cmd.h.
    #[test]
    fn commands_have_the_kernels_numbers() {
        assert_eq!(FETCH_REQ, 0xC010_7520);
        assert_eq!(COMMIT_AND_FETCH_REQ, 0xC010_7521);
        assert_eq!(encode(Direction::ReadWrite, 0x04, CONTROL_COMMAND_BYTES), 0xC020_7504);
        assert_eq!(encode(Direction::Read, 0x13, CONTROL_COMMAND_BYTES), 0x8020_7513);
    }

    #[test]
    fn a_missing_driver_is_not_found() {
        let error = Control::open(Path::new("/dev/ublk-control-of-nobody")).err().expect("no such device");
        assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    }
}
