//! The client's side of the handshake.
//!
//! Received data is bounded; a peer that is no NBD server is an [`Error::Protocol`] with the first bytes that
//! it sent. Servers without INFO and GO (older than 2016) are not supported.

use super::ClientConfig;
use crate::nbd::protocol::{
    ALLOCATION_CONTEXT, GREETING_BYTES, INITIAL_MAGIC, MAXIMUM_PAYLOAD, OPTION_MAGIC,
    OPTION_REPLY_HEADER_BYTES, OPTION_REPLY_MAGIC, Reader, handshake_flag, info, option, option_reply,
    put_option, transmission_flag,
};
use block::{Buffer, Data, Error, Result};
use runtime::net::{self, Address};
use std::time::Duration;
use tls::Stream;

/// Time limit of connecting and the handshake.
const LIMIT: Duration = Duration::from_secs(10);
/// Longest reply to an option, in bytes.
const MAX_REPLY: u32 = 64 << 10;
/// Limit of the replies to an option.
const MAX_REPLIES: usize = 64;

/// Properties of an export, and the result of the negotiation.
#[derive(Debug, Clone, Copy)]
pub(super) struct RemoteExport {
    pub(super) size: u64,
    pub(super) flags: u16,
    pub(super) minimum_block: u32,
    pub(super) preferred_block: u32,
    /// Largest request with data, in bytes.
    pub(super) maximum_payload: u32,
    pub(super) structured: bool,
    /// Id of `base:allocation`, if the server has it.
    pub(super) allocation: Option<u32>,
}

impl RemoteExport {
    pub(super) fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.has(transmission_flag::READ_ONLY)
    }

    pub(super) fn can_flush(&self) -> bool {
        self.has(transmission_flag::SEND_FLUSH)
    }

    /// Whether several connections may be used.
    pub(super) fn can_share(&self) -> bool {
        self.has(transmission_flag::CAN_MULTI_CONN) || self.is_read_only()
    }
}

/// Reads the properties of an export and disconnects.
pub(super) async fn examine(config: &ClientConfig) -> Result<RemoteExport> {
    let handshake = async {
        let mut handshake = Handshake::begin(config).await?;
        let remote = handshake.describe(option::INFO).await?;
        let mut goodbye = Vec::new();
        put_option(&mut goodbye, option::ABORT, &[]);
        // The server may close without reading it.
        let _ = handshake.send(&goodbye).await;
        handshake.stream.say_goodbye().await;
        Ok(remote)
    };
    limited(&config.address, config.timeout, handshake).await
}

/// Connects for transmission.
pub(super) async fn connect(config: &ClientConfig) -> Result<(Stream, RemoteExport)> {
    let handshake = async {
        let mut handshake = Handshake::begin(config).await?;
        let remote = handshake.describe(option::GO).await?;
        Ok((handshake.stream, remote))
    };
    limited(&config.address, config.timeout, handshake).await
}

/// Connects for transmission with simple replies.
pub(super) async fn connect_simple(address: &Address, export: &str) -> Result<(net::Stream, RemoteExport)> {
    let handshake = async {
        let mut handshake = Handshake::greeted(address, export).await?;
        let remote = handshake.describe(option::GO).await?;
        match handshake.stream {
            Stream::Plain(socket) => Ok((socket, remote)),
            Stream::Tls(_) => Err(Error::unsupported("TLS with the kernel's NBD client")),
        }
    };
    limited(address, LIMIT, handshake).await
}

async fn limited<T>(
    address: &Address,
    limit: Duration,
    handshake: impl Future<Output = Result<T>>,
) -> Result<T> {
    let outcome =
        runtime::timeout(limit.min(LIMIT), handshake).await.unwrap_or_else(|elapsed| Err(elapsed.into()));
    let address = address.to_string();
    outcome.map_err(|error| match error.detail().contains(&address) {
        // Errors of connecting already have the address.
        true => error.in_context("NBD server"),
        false => error.in_context(format_args!("NBD server {address}")),
    })
}

struct Handshake<'a> {
    stream: Stream,
    export: &'a str,
    structured: bool,
    allocation: Option<u32>,
}

/// A reply to an option, except the last one.
struct Reply {
    kind: u32,
    data: Buffer,
}

impl<'a> Handshake<'a> {
    /// Connects and sends the client flags.
    async fn greeted(address: &Address, export: &'a str) -> Result<Self> {
        let stream = net::Stream::connect(address).await?.into();
        let mut handshake = Handshake { stream, export, structured: false, allocation: None };
        handshake.greet().await?;
        Ok(handshake)
    }

    /// Connects, sends the client flags, and asks for structured replies and the context `base:allocation`.
    ///
    /// If the configuration has TLS, everything after the flags is in TLS. A refusal of TLS, by
    /// the server or by an attacker on the path, is an error.
    async fn begin(config: &'a ClientConfig) -> Result<Self> {
        let export = &config.export;
        let mut handshake = Self::greeted(&config.address, export).await?;
        if let Some(tls) = &config.tls {
            handshake.start_tls(tls).await?;
        }
        handshake.structured =
            handshake.ask(option::STRUCTURED_REPLY, &[]).await.map(|_| true).or_else(refused)?;
        if handshake.structured {
            let mut query = with_length(export.as_bytes());
            query.extend_from_slice(&1_u32.to_be_bytes());
            query.extend_from_slice(&with_length(ALLOCATION_CONTEXT.as_bytes()));
            let replies = handshake.ask(option::SET_META_CONTEXT, &query).await.or_else(refused)?;
            handshake.allocation = replies.iter().find_map(|reply| {
                let mut reader = Reader(reply.data.filled());
                let id = reader.u32()?;
                let found =
                    reply.kind == option_reply::META_CONTEXT && reader.0 == ALLOCATION_CONTEXT.as_bytes();
                found.then_some(id)
            });
        }
        Ok(handshake)
    }

    async fn greet(&mut self) -> Result<()> {
        let greeting = self.receive(GREETING_BYTES).await?;
        let mut reader = Reader(greeting.filled());
        let magic = (reader.u64(), reader.u64());
        if magic != (Some(INITIAL_MAGIC), Some(OPTION_MAGIC)) {
            let begin = &greeting.filled()[..8];
            return Err(Error::protocol(format!("it says {begin:02x?}: expected a newstyle NBD server")));
        }
        let flags = reader.u16().unwrap_or_default();
        if flags & handshake_flag::FIXED_NEWSTYLE == 0 {
            return Err(Error::protocol("it doesn't know the fixed newstyle handshake"));
        }
        let ours = flags & (handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES);
        self.send(&u32::from(ours).to_be_bytes()).await
    }

    async fn send(&self, bytes: &[u8]) -> Result<()> {
        self.stream.send(Data::copy_of(bytes).into()).await.0
    }

    async fn receive(&self, count: usize) -> Result<Buffer> {
        let (result, buffer) = self.stream.receive_exact(Buffer::new(count)).await;
        result.map(|()| buffer)
    }

    /// Sends an option and returns its replies up to the ACK.
    async fn ask(&self, option: u32, data: &[u8]) -> Result<Vec<Reply>> {
        let mut message = Vec::new();
        put_option(&mut message, option, data);
        self.send(&message).await?;
        let mut replies = Vec::new();
        while replies.len() < MAX_REPLIES {
            let head = self.receive(OPTION_REPLY_HEADER_BYTES).await?;
            let mut reader = Reader(head.filled());
            let (magic, to, kind, length) = (reader.u64(), reader.u32(), reader.u32(), reader.u32());
            let (kind, length) = (kind.unwrap_or_default(), length.unwrap_or_default());
            if magic != Some(OPTION_REPLY_MAGIC) || to != Some(option) || length > MAX_REPLY {
                return Err(Error::protocol(format!(
                    "it answers option {option} with {:02x?}",
                    head.filled()
                )));
            }
            let data = if length > 0 { self.receive(length as usize).await? } else { Buffer::new(0) };
            if kind & option_reply::ERROR_BIT != 0 {
                return Err(self.refusal(option, kind, data.filled()));
            }
            if kind == option_reply::ACK {
                return Ok(replies);
            }
            replies.push(Reply { kind, data });
        }
        Err(Error::protocol(format!("it answers option {option} with more than {MAX_REPLIES} replies")))
    }

    async fn start_tls(&mut self, config: &tls::ClientConfig) -> Result<()> {
        self.ask(option::STARTTLS, &[]).await.map_err(|error| error.in_context("it offers no TLS"))?;
        let Stream::Plain(socket) = &self.stream else { return Ok(()) };
        self.stream = Stream::connect(socket.clone(), Some(config), LIMIT).await?;
        Ok(())
    }

    fn refusal(&self, option: u32, kind: u32, words: &[u8]) -> Error {
        let words = String::from_utf8_lossy(words);
        let number = kind & !option_reply::ERROR_BIT;
        match kind {
            option_reply::ERR_UNKNOWN => {
                Error::not_found(format!("it has no export \"{}\": {words}", self.export))
            }
            option_reply::ERR_UNSUP => {
                Error::unsupported(format!("it doesn't know option {option}: {words}"))
            }
            option_reply::ERR_TLS_REQD => {
                Error::permission_denied("it requires TLS; expected tls = \"FOLDER\" with certificates")
            }
            option_reply::ERR_POLICY => {
                Error::permission_denied(format!("it refuses option {option}: {words}"))
            }
            _ => Error::invalid(format!("it refuses option {option} with error {number}: {words}")),
        }
    }

    /// Asks for the export with INFO or GO.
    async fn describe(&mut self, option: u32) -> Result<RemoteExport> {
        let mut message = with_length(self.export.as_bytes());
        message.extend_from_slice(&1_u16.to_be_bytes());
        message.extend_from_slice(&info::BLOCK_SIZE.to_be_bytes());
        let replies = self.ask(option, &message).await?;
        let mut remote = RemoteExport {
            size: 0,
            flags: 0,
            minimum_block: 1,
            preferred_block: 4096,
            maximum_payload: MAXIMUM_PAYLOAD,
            structured: self.structured,
            allocation: self.allocation,
        };
        for reply in replies.iter().filter(|reply| reply.kind == option_reply::INFO) {
            let malformed = || Error::protocol("it describes the export in a malformed way");
            let mut reader = Reader(reply.data.filled());
            match reader.u16() {
                Some(info::EXPORT) => {
                    remote.size = reader.u64().ok_or_else(malformed)?;
                    remote.flags = reader.u16().ok_or_else(malformed)?;
                }
                Some(info::BLOCK_SIZE) => {
                    remote.minimum_block = reader.u32().ok_or_else(malformed)?.max(1);
                    remote.preferred_block = reader.u32().ok_or_else(malformed)?.max(1);
                    remote.maximum_payload = reader.u32().ok_or_else(malformed)?.min(MAXIMUM_PAYLOAD);
                }
                _ => {}
            }
        }
        match remote.has(transmission_flag::HAS_FLAGS) {
            true => Ok(remote),
            false => Err(Error::protocol("it doesn't describe the export")),
        }
    }
}

/// Returns the default value if the server refuses an option, and any other error.
fn refused<T: Default>(error: Error) -> Result<T> {
    match error {
        Error::Unsupported(_) | Error::Invalid(_) | Error::PermissionDenied(_) => Ok(T::default()),
        other => Err(other),
    }
}

fn with_length(bytes: &[u8]) -> Vec<u8> {
    let mut message = (bytes.len() as u32).to_be_bytes().to_vec();
    message.extend_from_slice(bytes);
    message
}
