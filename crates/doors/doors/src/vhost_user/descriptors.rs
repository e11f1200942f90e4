//! Checks of descriptors from a front-end, before any other use of them.
//!
//! A descriptor may belong to a file system whose server doesn't answer: its attributes, a mapping, even its
//! close would wait for that server, and the shard with it. So only eventfds, memory of tmpfs and hugetlbfs,
//! and sockets are accepted, which the kernel identifies without asking a file system. All others are closed
//! by a thread that may block.

use block::{Buffer, Error, Result};
use runtime::net::Stream;
use std::os::fd::OwnedFd;

/// Receives as [`Stream::receive_with_descriptors`].
///
/// # Errors
/// [`Error::Protocol`] for a descriptor of another kind; errors of the stream.
pub async fn receive(
    stream: &Stream,
    buffer: &mut Buffer,
    most: usize,
    descriptors: &mut Vec<OwnedFd>,
) -> Result<usize> {
    let mut passed = Vec::new();
    let received = stream.receive_with_descriptors(buffer, most, &mut passed).await;
    let (taken, refused): (Vec<_>, Vec<_>) = passed.into_iter().partition(is_taken);
    descriptors.extend(taken);
    if refused.is_empty() {
        return received;
    }
    runtime::spawn(runtime::blocking(move || drop(refused))).detach();
    Err(Error::protocol(
        "a descriptor is neither an eventfd, nor a file of tmpfs or hugetlbfs, nor a socket; share the guest's memory by a memfd, or \
         by a file in /dev/shm or of huge pages",
    ))
}

fn is_taken(descriptor: &OwnedFd) -> bool {
    runtime::event::is_event(descriptor)
        || runtime::shared_memory::is_memory(descriptor)
        || runtime::net::is_socket(descriptor)
}

/// Checks that a descriptor is an eventfd.
///
/// # Errors
/// [`Error::Protocol`] for any other descriptor.
pub fn event(descriptor: OwnedFd) -> Result<OwnedFd> {
    match runtime::event::is_event(&descriptor) {
        true => Ok(descriptor),
        false => Err(Error::protocol("a kick, call or error descriptor: expected an eventfd")),
    }
}

/// Checks that descriptors are memory.
///
/// # Errors
/// [`Error::Protocol`] for any other descriptor.
pub fn memory(descriptors: &[OwnedFd]) -> Result<()> {
    match descriptors.iter().all(runtime::shared_memory::is_memory) {
        true => Ok(()),
        false => {
            Err(Error::protocol("shared memory: expected a file of tmpfs or hugetlbfs, such as a memfd"))
        }
    }
}
