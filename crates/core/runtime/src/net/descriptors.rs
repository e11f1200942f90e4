//! Messages with descriptors (SCM_RIGHTS) on unix sockets.
//!
//! For protocols whose descriptors belong to the first byte of a message, as in vhost-user. The kernel never
//! joins bytes of two messages with descriptors in one receive. Not simulated.

use super::Stream;
use crate::event::readable;
use crate::operation::Descriptor;
use block::{Buffer, Error, Result};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Largest number of descriptors in one message.
pub const MAX_DESCRIPTORS: usize = 32;

/// Whether a descriptor of another process is a socket. Asks no file system, which could block.
pub fn is_socket(descriptor: &OwnedFd) -> bool {
    rustix::net::sockopt::socket_type(descriptor).is_ok()
}

impl Stream {
    fn kernel_descriptor(&self) -> Result<&OwnedFd> {
        match &*self.descriptor {
            Descriptor::Kernel { fd, .. } => Ok(fd),
            Descriptor::Simulated(_) => Err(Error::unsupported("messages with descriptors under simulation")),
        }
    }

    /// Receives at most `most` bytes and appends them to the buffer, and the descriptors that came with them,
    /// up to [`MAX_DESCRIPTORS`], to `descriptors`. Returns the number of bytes, 0 at the end of the stream.
    ///
    /// # Errors
    /// [`Error::Protocol`] for more descriptors; errors of the kernel.
    pub async fn receive_with_descriptors(
        &self,
        buffer: &mut Buffer,
        most: usize,
        descriptors: &mut Vec<OwnedFd>,
    ) -> Result<usize> {
        let socket = self.kernel_descriptor()?;
        let mut bytes = [0; 4096];
        let most = most.min(bytes.len()).min(buffer.missing());
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let slices = &mut [IoSliceMut::new(&mut bytes[..most])];
            let received =
                recvmsg(socket, slices, &mut ancillary, RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC);
            let received = match received {
                Ok(received) => received,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => {
                    readable(&self.descriptor).await?;
                    continue;
                }
                Err(error) => return Err(Error::from_io(&error.into(), "receiving")),
            };
            for message in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(passed) = message {
                    descriptors.extend(passed);
                }
            }
            if received.flags.contains(ReturnFlags::CTRUNC) {
                return Err(Error::protocol(format!(
                    "message with more than {MAX_DESCRIPTORS} descriptors: expected at most these"
                )));
            }
            buffer.append(&bytes[..received.bytes]);
            return Ok(received.bytes);
        }
    }

    /// Sends a message with descriptors, without waiting for the peer.
    ///
    /// # Errors
    /// [`Error::TimedOut`] if the peer's socket has no space for the message; errors of the kernel.
    pub fn send_with_descriptors(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<()> {
        let socket = self.kernel_descriptor()?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(Error::invalid(format!(
                "{} descriptors in a message: expected at most {MAX_DESCRIPTORS}",
                descriptors.len()
            )));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, flags) {
            Ok(sent) if sent == bytes.len() => Ok(()),
            Ok(_) | Err(Errno::AGAIN) => Err(Error::timed_out("sending: the peer takes nothing")),
            Err(error) => Err(Error::from_io(&error.into(), "sending")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::{Address, Listener};
    use std::os::fd::AsFd;

    #[test]
    fn descriptors_arrive_with_the_first_byte_of_their_message() {
        let folder = tempfile::tempdir().unwrap();
        let address = Address::Unix(folder.path().join("socket"));
        crate::run(crate::Config::default(), move || async move {
            let listener = Listener::bind(&address).unwrap();
            let client = Stream::connect(&address).await.unwrap();
            let server = listener.accept().await.unwrap();
            let event = crate::event::create_event().unwrap();
            client.send_with_descriptors(b"none", &[]).unwrap();
            client.send_with_descriptors(b"two of them", &[event.as_fd(), event.as_fd()]).unwrap();
            client.send_with_descriptors(b"!", &[event.as_fd()]).unwrap();
            drop(client);
            for (text, count) in [("none", 0), ("two of them", 2), ("!", 1), ("", 0)] {
                let (mut buffer, mut descriptors) = (Buffer::new(100), Vec::new());
                let most = text.len().max(1);
                let received = server.receive_with_descriptors(&mut buffer, most, &mut descriptors).await;
                assert_eq!(received.unwrap(), text.len());
                assert_eq!((buffer.filled(), descriptors.len()), (text.as_bytes(), count));
            }
        })
        .unwrap();
    }
}
