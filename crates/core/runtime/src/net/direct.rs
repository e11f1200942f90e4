//! Sends by a plain system call, without waiting and without the ring: for protocols of short requests and
//! answers, where the ring is a large part of the round trip. Simulated streams take nothing at once.

use super::Stream;
use crate::operation::Descriptor;
use block::{Error, Result};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};

impl Stream {
    /// Sends as many of the bytes as the kernel takes at once, and returns their number. The stream must have
    /// no send in flight.
    ///
    /// # Errors
    /// Errors of send(2).
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
    fn what_fits_is_sent() {
        crate::run(crate::Config::default(), || async {
            let listener = Listener::bind(&"127.0.0.1:0".parse::<Address>().unwrap()).unwrap();
            let client = Stream::connect(listener.local_address()).await.unwrap();
            let server = listener.accept().await.unwrap();
            assert_eq!(client.try_send(b"requests, and more"), Ok(18));
            let (received, buffer) = server.receive(Buffer::new(100)).await;
            assert_eq!((received, buffer.filled()), (Ok(18), &b"requests, and more"[..]));
            let large = vec![7; 16 << 20];
            let sent = client.try_send(&large).unwrap();
            assert!((1..large.len()).contains(&sent), "{sent}");
            assert_eq!(client.try_send(&large), Ok(0), "the peer has received nothing");
            drop(client);
            let mut buffer = Buffer::new(large.len() + 1);
            loop {
                let (received, filled) = server.receive(buffer).await;
                buffer = filled;
                if received.unwrap() == 0 {
                    break;
                }
            }
            assert_eq!(buffer.filled().len(), sent);
        })
        .unwrap();
    }
}
