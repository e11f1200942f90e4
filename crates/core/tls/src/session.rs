//! One connection in TLS: rustls has keys and states, the runtime's socket carries the records.
//!
//! One task may receive while another one sends: each holds the state of rustls only between its waits, and
//! only the sender puts bytes on the socket. The answer to a key update therefore leaves with the next send,
//! which is what RFC 8446, 4.6.3 asks for.

use crate::{ClientConfig, ServerConfig};
use block::{Buffer, Error, Payload, Result};
use runtime::net::{self, SendWatch, Shutdown};
use rustls::{ClientConnection, Connection, ServerConnection};
use std::cell::{Cell, RefCell};
use std::io::{self, BufRead, IoSlice, Write};
use std::time::Duration;

/// Default time limit of a handshake.
pub const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// Time limit of the last message of a connection.
pub const CLOSE_LIMIT: Duration = Duration::from_secs(1);
/// Memory of a connection in TLS, in bytes: received records, a record or handshake message that is being
/// joined, its plaintext, and records to send.
pub const MAX_CONNECTION_BYTES: usize = RECEIVE_BYTES + (64 << 10) + (32 << 10) + 2 * OUTPUT_BYTES;

/// Size of the buffer that records are received into, in bytes.
const RECEIVE_BYTES: usize = 128 << 10;
/// Maximum size of the buffer of records of one send to the socket, in bytes.
const OUTPUT_BYTES: usize = 256 << 10;
/// Limit of the bytes that are encrypted for one send; the rest of the buffer is for headers, tags and
/// control messages.
const SEND_BYTES: usize = OUTPUT_BYTES - (16 << 10);
// The pool rounds buffers up to powers of two: other sizes would take more memory than MAX_CONNECTION_BYTES.
const _: () = assert!(RECEIVE_BYTES.is_power_of_two() && OUTPUT_BYTES.is_power_of_two());
/// Number of pieces that are encrypted at a time.
const PIECES: usize = 64;

/// Received bytes of records, of which the first `used` were processed.
struct Records {
    buffer: Buffer,
    used: usize,
}

/// A connection whose handshake has ended.
pub struct Session {
    socket: net::Stream,
    connection: RefCell<Connection>,
    /// `None` while a receive has them, and after one was dropped.
    records: RefCell<Option<Records>>,
    /// Whether a send is in progress, or has failed or was dropped: the stream of records has a gap then.
    sending: Cell<bool>,
}

/// Buffer as a writer: takes what fits.
struct Output<'a>(&'a mut Buffer);

impl Write for Output<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let fitting = bytes.len().min(self.0.missing());
        self.0.append(&bytes[..fitting]);
        Ok(fitting)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A writer that takes nothing, and notes how many bytes it was offered.
#[derive(Default)]
struct Offer(usize);

impl Write for Offer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = bytes.len();
        Ok(0)
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0 = pieces.iter().map(|piece| piece.len()).sum();
        Ok(0)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Buffer with records that are ready, at most [`OUTPUT_BYTES`]: no larger than they are.
pub(crate) fn take_output(connection: &mut Connection) -> io::Result<Buffer> {
    let mut offer = Offer::default();
    connection.write_tls(&mut offer)?;
    let mut output = Buffer::new(offer.0.min(OUTPUT_BYTES));
    while connection.wants_write() && output.missing() > 0 {
        connection.write_tls(&mut Output(&mut output))?;
    }
    Ok(output)
}

#[cold]
fn broken(error: &rustls::Error) -> Error {
    let text = format!("TLS: {error}");
    match error {
        rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented => {
            Error::permission_denied(text)
        }
        rustls::Error::AlertReceived(_) => Error::disconnected(text),
        _ => Error::protocol(text),
    }
}

#[cold]
fn left_behind() -> Error {
    Error::closed("TLS: an earlier receive was dropped before its end")
}

/// Converts an error of rustls that its interface wraps.
#[cold]
fn unwrapped(error: &io::Error) -> Error {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(inner) => broken(inner),
        None => Error::protocol(format!("TLS: {error}")),
    }
}

impl Session {
    /// Makes the handshake as a server.
    ///
    /// # Errors
    /// [`Error::TimedOut`] after `limit`; [`Error::PermissionDenied`] for a client whose certificate isn't
    /// valid; [`Error::Disconnected`] if the client ends the connection; [`Error::Protocol`] for messages
    /// that violate TLS 1.3; errors of the socket.
    pub async fn accept(socket: net::Stream, config: &ServerConfig, limit: Duration) -> Result<Session> {
        let connection = ServerConnection::new(config.rules.clone()).map_err(|error| broken(&error))?;
        Self::shake_hands(socket, connection.into(), limit).await
    }

    /// Makes the handshake as a client.
    ///
    /// # Errors
    /// As [`accept`](Self::accept), about the server's certificate. A server's refusal of the client's
    /// certificate is an error of the first receive.
    pub async fn connect(socket: net::Stream, config: &ClientConfig, limit: Duration) -> Result<Session> {
        let connection = ClientConnection::new(config.rules.clone(), config.server.clone());
        Self::shake_hands(socket, connection.map_err(|error| broken(&error))?.into(), limit).await
    }

    async fn shake_hands(
        socket: net::Stream,
        mut connection: Connection,
        limit: Duration,
    ) -> Result<Session> {
        connection.set_buffer_limit(Some(SEND_BYTES));
        let session = Session {
            socket,
            connection: RefCell::new(connection),
            records: RefCell::new(Some(Records { buffer: Buffer::new(RECEIVE_BYTES), used: 0 })),
            sending: Cell::new(false),
        };
        let handshake = async {
            loop {
                session.flush(&SendWatch::default()).await?;
                if !session.connection.borrow().is_handshaking() {
                    return Ok(());
                }
                session.receive_messages().await?;
            }
        };
        match runtime::timeout(limit, handshake).await {
            Ok(outcome) => outcome.map(|()| session),
            Err(_) => {
                Err(Error::timed_out(format!("TLS: the handshake took longer than {} s", limit.as_secs())))
            }
        }
    }

    /// Receives messages of the handshake and processes them.
    async fn receive_messages(&self) -> Result<()> {
        let Some(mut records) = self.records.take() else { return Err(left_behind()) };
        let received = self.receive_records(&mut records).await;
        let processed = match received {
            Ok(0) => Ok(true),
            Ok(_) => self.decrypt(&mut records, &mut Buffer::new(0)),
            Err(error) => Err(error),
        };
        self.records.replace(Some(records));
        match processed {
            Ok(false) => Ok(()),
            Ok(true) => Err(Error::disconnected("TLS: the peer closed in the middle of the handshake")),
            Err(error) => {
                self.send_alert().await;
                Err(error)
            }
        }
    }

    /// Receives bytes after all earlier ones were processed; 0 at the end of the stream.
    async fn receive_records(&self, records: &mut Records) -> Result<usize> {
        let mut buffer = std::mem::replace(&mut records.buffer, Buffer::new(0));
        buffer.clear();
        records.used = 0;
        let (result, returned) = self.socket.receive(buffer).await;
        records.buffer = returned;
        result
    }

    /// Receives plaintext into the unfilled part of the buffer; 0 at the end of the stream, with or without
    /// the peer's close_notify: the protocols of the doors find messages that were cut short. After an error
    /// the buffer is unchanged.
    ///
    /// # Errors
    /// [`Error::Protocol`] for invalid records, [`Error::Disconnected`] for the peer's alert,
    /// [`Error::Closed`] after an earlier receive was dropped; errors of the socket.
    pub async fn receive(&self, mut buffer: Buffer) -> (Result<usize>, Buffer) {
        let Some(mut records) = self.records.take() else { return (Err(left_behind()), buffer) };
        let before = buffer.filled().len();
        let result = loop {
            match self.decrypt(&mut records, &mut buffer) {
                Ok(ended) => {
                    let count = buffer.filled().len() - before;
                    if count > 0 || ended || buffer.missing() == 0 {
                        break Ok(count);
                    }
                }
                Err(error) => {
                    buffer.truncate_filled(before);
                    self.send_alert().await;
                    break Err(error);
                }
            }
            match self.receive_records(&mut records).await {
                Ok(0) => break Ok(0),
                Ok(_) => {}
                Err(error) => break Err(error),
            }
        };
        self.records.replace(Some(records));
        (result, buffer)
    }

    /// Decrypts received records until the buffer is full or no complete record is left. Returns whether the
    /// peer has ended its stream.
    fn decrypt(&self, records: &mut Records, buffer: &mut Buffer) -> Result<bool> {
        let connection = &mut *self.connection.borrow_mut();
        loop {
            loop {
                let mut reader = connection.reader();
                match reader.fill_buf() {
                    Ok([]) => return Ok(true),
                    Ok(_) if buffer.missing() == 0 => return Ok(false),
                    Ok(plaintext) => {
                        let taken = plaintext.len().min(buffer.missing());
                        buffer.append(&plaintext[..taken]);
                        reader.consume(taken);
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => return Err(unwrapped(&error)),
                }
            }
            let mut rest = &records.buffer.filled()[records.used..];
            if rest.is_empty() {
                return Ok(false);
            }
            let taken = connection.read_tls(&mut rest).map_err(|error| unwrapped(&error))?;
            records.used += taken;
            connection.process_new_packets().map_err(|error| broken(&error))?;
        }
    }

    /// Sends the whole payload, and returns it.
    ///
    /// # Errors
    /// As [`net::Stream::send_watched`]; [`Error::Closed`] after an earlier send failed or was dropped.
    pub async fn send_watched(&self, payload: Payload, watch: &SendWatch) -> (Result<()>, Payload) {
        if self.sending.replace(true) {
            return (Err(Error::closed("TLS: an earlier send didn't end")), payload);
        }
        let mut at = Position::default();
        let mut result = Ok(());
        while result.is_ok() && at.slice < payload.slices().len() {
            result = match self.encrypt(&payload, &mut at) {
                Ok(()) => self.put_records(watch).await,
                Err(error) => Err(error),
            };
        }
        self.sending.set(result.is_err());
        (result, payload)
    }

    /// Encrypts the payload from `at` on, as far as the limit of one send allows.
    fn encrypt(&self, payload: &Payload, at: &mut Position) -> Result<()> {
        let connection = &mut *self.connection.borrow_mut();
        loop {
            let mut pieces = [IoSlice::new(&[]); PIECES];
            let mut count = 0;
            let mut from = at.byte;
            for data in payload.slices().iter().skip(at.slice).take(PIECES) {
                pieces[count] = IoSlice::new(&data[from..]);
                (count, from) = (count + 1, 0);
            }
            if count == 0 {
                return Ok(());
            }
            let written = connection.writer().write_vectored(&pieces[..count]);
            let written = written.map_err(|error| unwrapped(&error))?;
            let all: usize = pieces[..count].iter().map(|piece| piece.len()).sum();
            at.advance(payload, written);
            if written < all {
                return Ok(());
            }
        }
    }

    /// Puts the records that are ready on the socket.
    async fn put_records(&self, watch: &SendWatch) -> Result<()> {
        loop {
            let output = {
                let connection = &mut *self.connection.borrow_mut();
                if !connection.wants_write() {
                    return Ok(());
                }
                take_output(connection).map_err(|error| unwrapped(&error))?
            };
            self.socket.send_watched(output.into(), watch).await.0?;
        }
    }

    /// Sends control messages that are ready, unless a send is in progress, which takes them with it.
    async fn flush(&self, watch: &SendWatch) -> Result<()> {
        if self.sending.replace(true) {
            return Ok(());
        }
        let result = self.put_records(watch).await;
        self.sending.set(result.is_err());
        result
    }

    /// Sends the alert about an error that was found. The connection ends whether or not the peer gets it.
    #[cold]
    async fn send_alert(&self) {
        let _ = runtime::timeout(CLOSE_LIMIT, self.flush(&SendWatch::default())).await;
    }

    /// Renews the keys of sending, and asks the peer to renew its own: with the next send.
    ///
    /// # Errors
    /// [`Error::Protocol`] after an error of the connection.
    #[cfg(test)]
    pub(crate) fn refresh_keys(&self) -> Result<()> {
        self.connection.borrow_mut().refresh_traffic_keys().map_err(|error| broken(&error))
    }

    /// Shuts a direction down, after a close_notify if it is the sending one and no send is in progress.
    ///
    /// # Errors
    /// Errors of [`net::Stream::shutdown`].
    pub async fn shutdown(&self, direction: Shutdown) -> Result<()> {
        if direction != Shutdown::Read {
            self.say_goodbye().await;
        }
        self.socket.shutdown(direction).await
    }

    /// Sends close_notify, unless a send is in progress or has failed, or the peer takes nothing for
    /// [`CLOSE_LIMIT`].
    pub async fn say_goodbye(&self) {
        if !self.sending.get() {
            self.connection.borrow_mut().send_close_notify();
            self.send_alert().await;
        }
    }
}

/// Position in a payload.
#[derive(Default)]
struct Position {
    slice: usize,
    byte: usize,
}

impl Position {
    fn advance(&mut self, payload: &Payload, mut count: usize) {
        while let Some(data) = payload.slices().get(self.slice) {
            let rest = data.len() - self.byte;
            if count < rest {
                self.byte += count;
                return;
            }
            count -= rest;
            (self.slice, self.byte) = (self.slice + 1, 0);
        }
    }
}
