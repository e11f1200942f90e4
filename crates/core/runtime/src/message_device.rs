//! Character devices that pass messages, such as `/dev/fuse`: each read takes one message and each write
//! sends one.
//!
//! # Promises
//! - Several receives of a shard may wait at the same time, and several shards may wait on clones of one
//!   device. A message wakes one of them.
//! - A receive never blocks the shard: it polls the device and reads without waiting, as one chain of two
//!   ring entries. [`MessageDevice::try_receive`] doesn't wait, and takes one system call.
//! - A send is one system call, which writes the message as a whole.
//! - Dropping the future of a receive cancels it. A message that had been read by then is lost.
//!
//! The callers interpret the messages.
#![allow(unsafe_code)] // fcntl, ioctl, readv, writev; add_filled after the kernel wrote.

use crate::file::os_error;
use crate::in_flight::submit;
use crate::kernel_memory::KernelMemory;
use crate::operation::{Descriptor, Operation};
use crate::shard;
use block::{Buffer, Error, Payload, Result};
use std::cell::RefCell;
use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::rc::Rc;

/// An open device of this shard.
#[derive(Clone)]
pub struct MessageDevice {
    descriptor: Rc<Descriptor>,
    name: Rc<str>,
    /// Vectors of the system calls.
    memory: Rc<RefCell<KernelMemory>>,
}

impl fmt::Debug for MessageDevice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "MessageDevice({})", self.name)
    }
}

fn last_error(doing: String) -> Error {
    let error = std::io::Error::last_os_error();
    os_error(error.raw_os_error().unwrap_or(libc::EIO), doing)
}

/// Opens a device for reading and writing, with O_NONBLOCK and O_CLOEXEC. Doesn't need a shard.
///
/// # Errors
/// Errors of open(2).
pub fn open(path: &Path) -> Result<OwnedFd> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = std::fs::OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
    let file = options.open(path);
    file.map(OwnedFd::from).map_err(|error| Error::from_io(&error, &format!("opening {}", path.display())))
}

/// Calls an ioctl of `target` whose argument is the number of `source`, in a 32-bit integer.
/// FUSE_DEV_IOC_CLONE is one.
///
/// # Errors
/// Errors of ioctl(2).
pub fn ioctl_with_descriptor(
    target: &OwnedFd,
    request: u32,
    source: BorrowedFd<'_>,
    doing: &str,
) -> Result<()> {
    let number = source.as_raw_fd();
    // SAFETY: the argument is valid for the four bytes that requests of this form read.
    match unsafe { libc::ioctl(target.as_raw_fd(), request as libc::Ioctl, std::ptr::from_ref(&number)) } {
        0.. => Ok(()),
        _ => Err(last_error(doing.to_owned())),
    }
}

impl MessageDevice {
    /// Takes ownership of an open device and makes its reads non-blocking: a read without a message would
    /// otherwise block the shard.
    ///
    /// # Errors
    /// Errors of fcntl(2).
    pub fn from_descriptor(fd: OwnedFd, name: &str) -> Result<MessageDevice> {
        // SAFETY: no memory is passed.
        let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) };
        // SAFETY: as above.
        let set = flags >= 0
            && unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) } >= 0;
        if !set {
            return Err(last_error(format!("making {name} non-blocking")));
        }
        let descriptor = shard::with_current(|shard| shard.adopt(fd));
        Ok(MessageDevice { descriptor: Rc::new(descriptor), name: name.into(), memory: Rc::default() })
    }

    fn raw(&self) -> RawFd {
        let Descriptor::Kernel { fd, .. } = &*self.descriptor else {
            unreachable!("the simulation has no message devices")
        };
        fd.as_raw_fd()
    }

    /// Descriptor, for other operations on the device.
    pub(crate) fn descriptor(&self) -> Rc<Descriptor> {
        self.descriptor.clone()
    }

    /// Name in error messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Waits for a message and reads it: its first bytes into the unfilled part of `head`, the rest into that
    /// of `body`. Returns the length of the message. After an error both buffers are unchanged.
    ///
    /// # Errors
    /// Errors of the device, except EAGAIN: if another reader has taken the message, this waits for the next
    /// one.
    #[inline]
    pub async fn receive(&self, mut head: Buffer, mut body: Buffer) -> (Result<usize>, Buffer, Buffer) {
        loop {
            let receiving = Operation::ReceiveMessage { file: self.descriptor.clone(), head, body };
            let (result, operation) = submit(receiving).await;
            let Operation::ReceiveMessage { head: its_head, body: its_body, .. } = operation else {
                unreachable!("a receive comes back as one")
            };
            (head, body) = (its_head, its_body);
            if result >= 0 {
                let count = result as usize;
                // SAFETY: the kernel reports that it wrote this many bytes.
                unsafe { fill(&mut head, &mut body, count) };
                return (Ok(count), head, body);
            }
            if result != -libc::EAGAIN {
                let error = os_error(-result, format!("reading a message of {}", self.name));
                return (Err(error), head, body);
            }
        }
    }

    /// Reads a message as [`receive`](Self::receive) does, if the device has one; `None` without.
    ///
    /// # Errors
    /// Errors of the device, except EAGAIN.
    #[inline]
    pub fn try_receive(&self, head: &mut Buffer, body: &mut Buffer) -> Result<Option<usize>> {
        let mut memory = self.memory.borrow_mut();
        memory.point_at_spare([head, body]);
        let (vectors, count) = (memory.vectors.as_ptr(), memory.vectors.len() as i32);
        // SAFETY: the vectors are the unfilled parts of both buffers.
        match unsafe { libc::readv(self.raw(), vectors, count) } {
            length if length >= 0 => {
                // SAFETY: the kernel reports that it wrote this many bytes.
                unsafe { fill(head, body, length as usize) };
                Ok(Some(length as usize))
            }
            _ => match std::io::Error::last_os_error().raw_os_error() {
                Some(libc::EAGAIN) => Ok(None),
                errno => {
                    let doing = format!("reading a message of {}", self.name);
                    Err(os_error(errno.unwrap_or(libc::EIO), doing))
                }
            },
        }
    }

    /// Writes one message. The device takes it without waiting, as `/dev/fuse` does.
    ///
    /// # Errors
    /// Errors of the device.
    #[inline]
    pub fn send(&self, payload: &Payload) -> Result<()> {
        let length = payload.len();
        let mut memory = self.memory.borrow_mut();
        memory.point_at(payload, 0);
        let (vectors, count) = (memory.vectors.as_ptr(), memory.vectors.len() as i32);
        // SAFETY: the vectors are the slices of the payload.
        match unsafe { libc::writev(self.raw(), vectors, count) } {
            count if count >= 0 && count as usize == length => {
                shard::with_current(|shard| shard.expect_request());
                Ok(())
            }
            count if count >= 0 => Err(Error::io(format!(
                "writing a message to {}: it took {count} bytes; expected {length}",
                self.name
            ))),
            _ => Err(last_error(format!("writing a message to {}", self.name))),
        }
    }
}

/// Marks the first `count` unfilled bytes of two buffers as filled.
///
/// # Safety
/// The kernel wrote this many bytes, in the order of the buffers.
unsafe fn fill(head: &mut Buffer, body: &mut Buffer, count: usize) {
    let in_head = count.min(head.missing());
    // SAFETY: as the caller promises.
    unsafe {
        head.add_filled(in_head);
        body.add_filled(count - in_head);
    }
}
