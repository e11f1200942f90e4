//! Vectors, message header and address of an operation, which the kernel reads.
#![allow(unsafe_code)] // A message header of zeros.

use crate::address::SocketAddress;
use block::{Buffer, Payload};

/// Memory that the kernel needs for an operation, kept with its slot for reuse.
pub(crate) struct KernelMemory {
    pub(crate) vectors: Vec<libc::iovec>,
    pub(crate) message: libc::msghdr,
    pub(crate) address: Option<SocketAddress>,
}

impl Default for KernelMemory {
    fn default() -> Self {
        // SAFETY: a message header of zeros is a valid, empty one.
        KernelMemory { vectors: Vec::new(), message: unsafe { std::mem::zeroed() }, address: None }
    }
}

impl KernelMemory {
    /// Points the vectors at the unfilled parts of two buffers.
    pub(crate) fn point_at_spare(&mut self, buffers: [&Buffer; 2]) {
        self.vectors.clear();
        self.vectors.extend(buffers.map(|buffer| libc::iovec {
            iov_base: buffer.spare_address().cast(),
            iov_len: buffer.missing(),
        }));
    }

    /// Points the vectors at the payload's bytes after the first `skip`.
    pub(crate) fn point_at(&mut self, payload: &Payload, mut skip: usize) {
        self.vectors.clear();
        for data in payload.slices() {
            if skip >= data.len() {
                skip -= data.len();
                continue;
            }
            let rest = &data[skip..];
            skip = 0;
            self.vectors.push(libc::iovec { iov_base: rest.as_ptr() as *mut _, iov_len: rest.len() });
            // The remaining slices are sent by the next operation, after this short one.
            if self.vectors.len() == libc::UIO_MAXIOV as usize {
                break;
            }
        }
    }
}
