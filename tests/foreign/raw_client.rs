//! A client that sends exactly the bytes of the test, over a blocking unix socket with a deadline.
//!
//! It uses the least that the protocol allows (simple replies), so that a test sees the answers of the server
//! and not those of a library.

use std::io::{ErrorKind, Read, Result, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Time after which a read from a silent server fails.
const DEADLINE: Duration = Duration::from_secs(60);
/// Length of a reply without data.
const SIMPLE_REPLY_BYTES: usize = 16;

const OPTION_MAGIC: &[u8; 8] = b"IHAVEOPT";
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
const OPTION_EXPORT_NAME: u32 = 1;
/// Fixed newstyle, without zeroes after the answer.
const CLIENT_FLAGS: u32 = 3;

/// Type of a request, with its number on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Command {
    /// Read.
    Read = 0,
    /// Write; the data follows.
    Write = 1,
    /// Disconnect, without a reply.
    Disconnect = 2,
    /// Flush.
    Flush = 3,
    /// Discard.
    Trim = 4,
    /// Write zeroes.
    WriteZeroes = 6,
    /// A type that doesn't exist.
    Unknown = 4711,
}

/// A connection.
pub struct RawClient {
    /// Socket, for tests that send arbitrary bytes.
    pub stream: UnixStream,
    /// Size of the export in bytes; 0 until it is known.
    pub size: u64,
}

impl RawClient {
    /// Connects, and reads nothing.
    ///
    /// # Errors
    /// If no server listens on the socket.
    pub fn connect(socket: &Path) -> Result<RawClient> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(DEADLINE))?;
        stream.set_write_timeout(Some(DEADLINE))?;
        Ok(RawClient { stream, size: 0 })
    }

    /// Connects and exchanges the greeting, so that options can follow.
    ///
    /// # Errors
    /// Errors of the connection.
    pub fn greet(socket: &Path) -> Result<RawClient> {
        let mut client = RawClient::connect(socket)?;
        let greeting: [u8; 18] = client.receive()?;
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT", "the server's greeting");
        client.stream.write_all(&CLIENT_FLAGS.to_be_bytes())?;
        Ok(client)
    }

    /// Connects and opens the default export, so that requests can follow.
    ///
    /// # Errors
    /// Errors of the connection.
    pub fn open(socket: &Path) -> Result<RawClient> {
        let mut client = RawClient::greet(socket)?;
        client.stream.write_all(&option(OPTION_EXPORT_NAME, 0))?;
        let answer: [u8; 10] = client.receive()?;
        client.size = u64::from_be_bytes(answer[..8].try_into().expect("eight bytes"));
        Ok(client)
    }

    /// Sends a request, with the data of a write.
    ///
    /// # Errors
    /// Errors of the connection.
    pub fn send(
        &mut self,
        command: Command,
        cookie: u64,
        offset: u64,
        length: u32,
        data: &[u8],
    ) -> Result<()> {
        let mut bytes = request(command, cookie, offset, length).to_vec();
        bytes.extend_from_slice(data);
        self.stream.write_all(&bytes)
    }

    /// Receives a reply: its error number and cookie.
    ///
    /// # Errors
    /// Errors of the connection.
    pub fn reply(&mut self) -> Result<(u32, u64)> {
        let reply: [u8; SIMPLE_REPLY_BYTES] = self.receive()?;
        let word = |at: usize| u32::from_be_bytes(reply[at..at + 4].try_into().expect("four bytes"));
        assert_eq!(word(0), REPLY_MAGIC, "a reply's magic number");
        Ok((word(4), u64::from_be_bytes(reply[8..].try_into().expect("eight bytes"))))
    }

    /// Sends a request and waits for its reply. Returns the error number.
    ///
    /// # Errors
    /// Errors of the connection.
    pub fn call(&mut self, command: Command, offset: u64, length: u32, data: &[u8]) -> Result<u32> {
        self.send(command, offset ^ 0x5eed, offset, length, data)?;
        let (error, cookie) = self.reply()?;
        assert_eq!(cookie, offset ^ 0x5eed, "a reply's cookie");
        Ok(error)
    }

    /// Reads these bytes.
    ///
    /// # Errors
    /// Errors of the connection.
    ///
    /// # Panics
    /// If the server answers with an error.
    pub fn read(&mut self, offset: u64, length: u32) -> Result<Vec<u8>> {
        let error = self.call(Command::Read, offset, length, &[])?;
        assert_eq!(error, 0, "read of {length} bytes at {offset}");
        let mut bytes = vec![0; length as usize];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Whether the server closes the connection, after any output.
    pub fn is_closed_by_server(&mut self) -> bool {
        let mut sink = [0; 4096];
        loop {
            match self.stream.read(&mut sink) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    return matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe);
                }
            }
        }
    }

    fn receive<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

/// Header of an option that announces `length` bytes.
pub fn option(number: u32, length: u32) -> Vec<u8> {
    [OPTION_MAGIC.as_slice(), &number.to_be_bytes(), &length.to_be_bytes()].concat()
}

/// Header of a request.
pub fn request(command: Command, cookie: u64, offset: u64, length: u32) -> [u8; 28] {
    let mut bytes = [0; 28];
    bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
    bytes[6..8].copy_from_slice(&(command as u16).to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    bytes[16..24].copy_from_slice(&offset.to_be_bytes());
    bytes[24..].copy_from_slice(&length.to_be_bytes());
    bytes
}
