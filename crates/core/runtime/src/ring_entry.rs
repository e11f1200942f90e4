//! Memory of an entry of a ring of `/dev/fuse`, and its commands: see `fuse_ring`, which submits them.
#![allow(unsafe_code)] // Memory that the kernel copies to; the part of an entry that io-uring can't set.

use crate::kernel_memory::KernelMemory;
use crate::locked_memory;
use io_uring::squeue::Entry128;
use std::ptr::NonNull;

/// Length of the headers of a request and its reply (struct fuse_uring_req_header), in bytes.
pub const HEADER_BYTES: usize = 288;
/// Position of the payload in the memory of an entry.
const PAYLOAD_OFFSET: usize = 4096;
/// Commands (enum fuse_uring_cmd).
const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;
/// Positions in struct io_uring_sqe: of `addr`, in units of 8 bytes, and of `len`, in units of 4.
const ADDR_INDEX: usize = 2;
const LEN_INDEX: usize = 6;

/// An entry of one queue. The kernel has a queue for each possible processor, to which it gives the requests
/// of the programs that run there.
pub struct RingEntry {
    /// Headers, and at [`PAYLOAD_OFFSET`] the payload.
    memory: NonNull<u8>,
    payload_bytes: usize,
    queue: u16,
}

impl Drop for RingEntry {
    fn drop(&mut self) {
        let length = PAYLOAD_OFFSET + self.payload_bytes;
        // SAFETY: the mapping is this entry's own, and no command is in flight: it would own the entry.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), length) };
    }
}

impl RingEntry {
    /// Returns an entry of a queue of the device's connection. Its memory takes pages at their first use.
    ///
    /// # Errors
    /// Errors of mmap(2).
    pub(crate) fn map(queue: u16, payload_bytes: usize) -> std::io::Result<RingEntry> {
        let memory = locked_memory::map_on_fault(PAYLOAD_OFFSET + payload_bytes)?;
        Ok(RingEntry { memory, payload_bytes, queue })
    }

    /// Headers of the request.
    #[inline]
    pub fn headers(&self) -> &[u8; HEADER_BYTES] {
        // SAFETY: the mapping is larger, zeroed or written by the kernel, and no command is in flight.
        unsafe { self.memory.cast().as_ref() }
    }

    /// Payload of the request.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr().add(PAYLOAD_OFFSET), self.payload_bytes) }
    }

    /// Headers and payload, to write those of the reply.
    #[inline]
    pub fn parts_mut(&mut self) -> (&mut [u8; HEADER_BYTES], &mut [u8]) {
        // SAFETY: as above; the borrow is exclusive, and the parts don't overlap.
        unsafe {
            let payload = self.memory.as_ptr().add(PAYLOAD_OFFSET);
            (self.memory.cast().as_mut(), std::slice::from_raw_parts_mut(payload, self.payload_bytes))
        }
    }

    /// Returns the code of a command, and its struct fuse_uring_cmd_req.
    pub(crate) fn command(&self, commit: Option<u64>) -> (u32, [u8; 80]) {
        let mut request = [0; 80];
        request[8..16].copy_from_slice(&commit.unwrap_or(0).to_ne_bytes());
        request[16..18].copy_from_slice(&self.queue.to_ne_bytes());
        (if commit.is_some() { COMMIT_AND_FETCH } else { REGISTER }, request)
    }

    /// Points the vectors at both parts of the memory, and the submission entry at the vectors.
    pub(crate) fn point_at(&self, memory: &mut KernelMemory, submission: &mut Entry128) {
        memory.vectors.clear();
        for (offset, length) in [(0, HEADER_BYTES), (PAYLOAD_OFFSET, self.payload_bytes)] {
            // SAFETY: the offset is inside of the mapping.
            let start = unsafe { self.memory.as_ptr().add(offset) };
            memory.vectors.push(libc::iovec { iov_base: start.cast(), iov_len: length });
        }
        let address = memory.vectors.as_ptr() as u64;
        // SAFETY: the type is a struct io_uring_sqe and 64 further bytes, aligned as the former. These are
        // integers in it; the opcode's builder has no `len`.
        unsafe {
            std::ptr::from_mut(submission).cast::<u64>().add(ADDR_INDEX).write(address);
            std::ptr::from_mut(submission).cast::<u32>().add(LEN_INDEX).write(2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Positions in struct io_uring_sqe and the numbers of include/uapi/linux/fuse.h.
    #[test]
    fn a_registration_has_the_kernels_layout() {
        let entry = RingEntry::map(3, 4096).expect("mapped");
        let (code, request) = entry.command(None);
        assert_eq!((code, request[16]), (1, 3));
        let (code, request) = entry.command(Some(0x0102));
        assert_eq!((code, &request[..18]), (2, &[0, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 3, 0][..]));
        let command = io_uring::opcode::UringCmd80::new(io_uring::types::Fd(0), 1);
        let (mut submission, mut kernel) = (command.cmd(request).build(), KernelMemory::default());
        entry.point_at(&mut kernel, &mut submission);
        let lengths: Vec<usize> = kernel.vectors.iter().map(|vector| vector.iov_len).collect();
        assert_eq!(lengths, [HEADER_BYTES, 4096]);
    }
}
