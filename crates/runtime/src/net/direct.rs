//! Sends and receives by system calls of their own, without a wait and without the ring: for protocols of short requests and
//! answers, where the trip through the ring is a large part of a round trip. Simulated streams have nothing to give at once.

use super::Stream;
use crate::operation::Descriptor;
use block::{Buffer, Error, Result};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

/// Largest number of bytes of one [`Stream::try_receive`].
const PIECE: usize = 4096;

impl Stream {
    /// Receives what has arrived, up to 4 KiB, and appends it to the buffer. Returns `None` if nothing has, and 0 at the end of the
    /// stream. No receive of this stream is in flight meanwhile.
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn try_receive(&self, buffer: &mut Buffer) -> Result<Option<usize>> {
        let Descriptor::Kernel { fd, .. } = &*self.descriptor else { return Ok(None) };
        let mut piece = [0; PIECE];
        let length = buffer.missing().min(PIECE);
        match recv(fd, &mut piece[..length], RecvFlags::DONTWAIT) {
            Ok((count, _)) => {
                buffer.append(&piece[..count]);
                Ok(Some(count))
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(error) => Err(Error::from_io(&error.into(), "receiving")),
        }
    }

    /// Sends as many of the bytes as the kernel takes at once, and returns their number. No send of this stream is in flight meanwhile.
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn try_send(&self, bytes: &[u8]) -> Result<usize> {
        let Descriptor::Kernel { fd, .. } = &*self.descriptor else { return Ok(0) };
        match send(fd, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(count) => Ok(count),
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            Err(error) => Err(Error::from_io(&error.into(), "sending")),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::net::{Address, Listener, Stream};
    use block::Buffer;

    #[test]
    fn what_is_there_is_received_and_what_fits_is_sent() {
        crate::run(crate::Config::default(), || async {
            let listener = Listener::bind(&"127.0.0.1:0".parse::<Address>().unwrap()).unwrap();
            let client = Stream::connect(listener.local_address()).await.unwrap();
            let server = listener.accept().await.unwrap();
            let mut buffer = Buffer::new(10);
            assert_eq!(server.try_receive(&mut buffer), Ok(None));
            assert_eq!(client.try_send(b"requests, and more"), Ok(18));
            while server.try_receive(&mut buffer).unwrap().is_none() {
                crate::yield_now().await;
            }
            assert_eq!(buffer.filled(), b"requests, ");
            let (received, rest) = server.receive(Buffer::new(100)).await;
            assert_eq!((received, rest.filled()), (Ok(8), &b"and more"[..]));
            let large = vec![7; 16 << 20];
            let sent = client.try_send(&large).unwrap();
            assert!((1..large.len()).contains(&sent), "{sent}");
            assert_eq!(client.try_send(&large), Ok(0), "the peer has received nothing");
            drop(client);
            let mut buffer = Buffer::new(large.len() + 1);
            while server.try_receive(&mut buffer).unwrap() != Some(0) {}
            assert_eq!(buffer.filled().len(), sent);
        })
        .unwrap();
    }
}
