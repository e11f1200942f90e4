//! A connection in plain text or in TLS.

use crate::{ClientConfig, ServerConfig, Session};
use block::{Buffer, Call, Error, Payload, Result};
use runtime::net::{self, SendWatch, Shutdown};
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

/// A connection of this shard. Clones share it, so that one task receives while another one sends.
#[derive(Clone)]
pub enum Stream {
    /// In plain text.
    Plain(net::Stream),
    /// In TLS.
    Tls(Rc<Session>),
}

impl fmt::Debug for Stream {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Stream::Plain(_) => "Stream::Plain",
            Stream::Tls(_) => "Stream::Tls",
        })
    }
}

impl From<net::Stream> for Stream {
    fn from(socket: net::Stream) -> Stream {
        Stream::Plain(socket)
    }
}

impl Stream {
    /// Returns a server's connection: after a handshake if there is a configuration, in plain text otherwise.
    ///
    /// # Errors
    /// Errors of [`Session::accept`].
    pub async fn accept(
        socket: net::Stream,
        config: Option<&ServerConfig>,
        limit: Duration,
    ) -> Result<Stream> {
        match config {
            Some(config) => Ok(Stream::Tls(Rc::new(Session::accept(socket, config, limit).await?))),
            None => Ok(Stream::Plain(socket)),
        }
    }

    /// Returns a client's connection, as [`accept`](Self::accept) does.
    ///
    /// # Errors
    /// Errors of [`Session::connect`].
    pub async fn connect(
        socket: net::Stream,
        config: Option<&ClientConfig>,
        limit: Duration,
    ) -> Result<Stream> {
        match config {
            Some(config) => Ok(Stream::Tls(Rc::new(Session::connect(socket, config, limit).await?))),
            None => Ok(Stream::Plain(socket)),
        }
    }

    /// Whether the connection is in TLS.
    pub fn is_tls(&self) -> bool {
        matches!(self, Stream::Tls(_))
    }

    /// Receives as [`net::Stream::receive`] does.
    #[inline]
    pub async fn receive(&self, buffer: Buffer) -> (Result<usize>, Buffer) {
        match self {
            Stream::Plain(socket) => socket.receive(buffer).await,
            Stream::Tls(session) => Call::new(session.receive(buffer)).await,
        }
    }

    /// Receives as [`receive`](Self::receive) does, as a call.
    #[inline]
    pub fn start_receive(&self, buffer: Buffer) -> Call<'_, (Result<usize>, Buffer)> {
        match self {
            Stream::Plain(socket) => Call::new(socket.receive(buffer)),
            Stream::Tls(session) => Call::new(session.receive(buffer)),
        }
    }

    /// Receives until the buffer is full.
    ///
    /// # Errors
    /// [`Error::Disconnected`] if the stream ends first.
    pub async fn receive_exact(&self, mut buffer: Buffer) -> (Result<()>, Buffer) {
        while buffer.missing() > 0 {
            let (result, returned) = self.receive(buffer).await;
            buffer = returned;
            match result {
                Ok(0) => {
                    let missing = buffer.missing();
                    let text = format!("the peer closed with {missing} bytes still to come");
                    return (Err(Error::disconnected(text)), buffer);
                }
                Ok(_) => {}
                Err(error) => return (Err(error), buffer),
            }
        }
        (Ok(()), buffer)
    }

    /// Sends as [`net::Stream::send`] does.
    #[inline]
    pub async fn send(&self, payload: Payload) -> (Result<()>, Payload) {
        match self {
            Stream::Plain(socket) => socket.send(payload).await,
            Stream::Tls(session) => {
                let watch = SendWatch::default();
                Call::new(session.send_watched(payload, &watch)).await
            }
        }
    }

    /// Sends as [`net::Stream::send_watched`] does, as a call.
    #[inline]
    pub fn start_send_watched<'c>(
        &'c self,
        payload: Payload,
        watch: &'c SendWatch,
    ) -> Call<'c, (Result<()>, Payload)> {
        match self {
            Stream::Plain(socket) => Call::new(socket.send_watched(payload, watch)),
            Stream::Tls(session) => Call::new(session.send_watched(payload, watch)),
        }
    }

    /// Sends as many bytes as the kernel takes at once, as [`net::Stream::try_send`] does; none in TLS.
    ///
    /// # Errors
    /// Errors of [`net::Stream::try_send`].
    #[inline]
    pub fn try_send(&self, bytes: &[u8]) -> Result<usize> {
        match self {
            Stream::Plain(socket) => socket.try_send(bytes),
            Stream::Tls(_) => Ok(0),
        }
    }

    /// Shuts a direction down; in TLS, after a close_notify if it is the sending one.
    ///
    /// # Errors
    /// Errors of [`net::Stream::shutdown`].
    pub async fn shutdown(&self, direction: Shutdown) -> Result<()> {
        match self {
            Stream::Plain(socket) => socket.shutdown(direction).await,
            Stream::Tls(session) => session.shutdown(direction).await,
        }
    }

    /// Ends a connection in TLS by close_notify; does nothing in plain text.
    pub async fn say_goodbye(&self) {
        if let Stream::Tls(session) = self {
            Call::new(session.say_goodbye()).await;
        }
    }
}
