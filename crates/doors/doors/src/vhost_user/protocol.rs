//! Messages of the vhost-user protocol: numbers, parsing, replies. Sans-io.
//!
//! For any bytes, [`parse`] returns a message or an error without panicking. It checks a message by itself:
//! its length, its number of descriptors, values that are invalid in every state. The connection checks the
//! rest. All numbers are little-endian, which is the front-end's order on every machine that this program
//! runs on.

use block::{Error, Result};

/// Length of a message's header, in bytes.
pub const HEADER_BYTES: usize = 12;
/// Largest payload that is received, in bytes. The largest message, SET_MEM_TABLE, has 264.
pub const MAX_PAYLOAD: usize = 1024;
/// Largest number of regions of guest memory.
pub const MAX_REGIONS: usize = 8;
/// Largest configuration space that can be read, in bytes.
pub const MAX_CONFIG: u32 = 256;

/// Flags of a header.
pub mod flag {
    /// Version of the protocol.
    pub const VERSION: u32 = 1;
    /// Bits of the version.
    pub const VERSION_MASK: u32 = 3;
    /// The message is a reply.
    pub const REPLY: u32 = 4;
    /// The front-end wants a reply to a message that has no reply of its own.
    pub const NEED_REPLY: u32 = 8;
}

/// Protocol features.
pub mod feature {
    /// Several queues.
    pub const MQ: u64 = 1 << 0;
    /// Replies to messages with [`NEED_REPLY`](super::flag::NEED_REPLY).
    pub const REPLY_ACK: u64 = 1 << 3;
    /// A channel for messages of the back-end.
    pub const BACKEND_REQ: u64 = 1 << 5;
    /// Messages for the configuration space.
    pub const CONFIG: u64 = 1 << 9;
    /// Shared memory with the requests in flight.
    pub const INFLIGHT_SHMFD: u64 = 1 << 12;
}

/// Numbers of messages of the front-end.
#[allow(missing_docs)]
pub mod number {
    pub const GET_FEATURES: u32 = 1;
    pub const SET_FEATURES: u32 = 2;
    pub const SET_OWNER: u32 = 3;
    pub const RESET_OWNER: u32 = 4;
    pub const SET_MEM_TABLE: u32 = 5;
    pub const SET_VRING_NUM: u32 = 8;
    pub const SET_VRING_ADDR: u32 = 9;
    pub const SET_VRING_BASE: u32 = 10;
    pub const GET_VRING_BASE: u32 = 11;
    pub const SET_VRING_KICK: u32 = 12;
    pub const SET_VRING_CALL: u32 = 13;
    pub const SET_VRING_ERR: u32 = 14;
    pub const GET_PROTOCOL_FEATURES: u32 = 15;
    pub const SET_PROTOCOL_FEATURES: u32 = 16;
    pub const GET_QUEUE_NUM: u32 = 17;
    pub const SET_VRING_ENABLE: u32 = 18;
    pub const SET_BACKEND_REQ_FD: u32 = 21;
    pub const GET_CONFIG: u32 = 24;
    pub const SET_CONFIG: u32 = 25;
    pub const GET_INFLIGHT_FD: u32 = 31;
    pub const SET_INFLIGHT_FD: u32 = 32;
}

/// Number of the back-end's message that announces a change of the configuration space.
pub const CONFIG_CHANGE: u32 = 2;

/// Header of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Number of the message.
    pub number: u32,
    /// Whether the front-end wants a reply to a message that has no reply of its own.
    pub needs_reply: bool,
    /// Length of the payload, in bytes.
    pub payload: usize,
}

impl Header {
    /// Parses a header.
    ///
    /// # Errors
    /// [`Error::Protocol`] for another version, a reply, or too large a payload.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Header> {
        let mut reader = Reader(bytes);
        let (number, flags, size) = (reader.u32()?, reader.u32()?, reader.u32()?);
        let refused = |what: String| Err(Error::protocol(format!("message {number}: {what}")));
        if flags & flag::VERSION_MASK != flag::VERSION {
            return refused(format!("flags {flags:#x}; expected version 1"));
        }
        if flags & flag::REPLY != 0 {
            return refused("a reply; expected a request".into());
        }
        if size as usize > MAX_PAYLOAD {
            return refused(format!("payload of {size} bytes; expected at most {MAX_PAYLOAD}"));
        }
        Ok(Header { number, needs_reply: flags & flag::NEED_REPLY != 0, payload: size as usize })
    }
}

/// Region of guest memory, as described by the front-end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionDescription {
    /// Address in the guest.
    pub guest_address: u64,
    /// Length, in bytes.
    pub length: u64,
    /// Address in the front-end.
    pub user_address: u64,
    /// Offset in the descriptor's file.
    pub offset: u64,
}

/// Addresses of a queue's parts, in the front-end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueAddresses {
    /// Descriptor table.
    pub descriptors: u64,
    /// Used ring.
    pub used: u64,
    /// Available ring.
    pub available: u64,
}

/// Description of the shared memory for requests in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InflightDescription {
    /// Length, in bytes.
    pub length: u64,
    /// Offset in the descriptor's file.
    pub offset: u64,
    /// Number of queues.
    pub queues: u16,
    /// Size of each queue.
    pub queue_size: u16,
}

/// A message of the front-end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// Ask for the features of device and transport.
    GetFeatures,
    /// Accept features.
    SetFeatures(u64),
    /// Begin a session.
    SetOwner,
    /// Formerly: end a session. Does nothing.
    ResetOwner,
    /// Replace the guest's memory; has a descriptor per region.
    SetMemory(Vec<RegionDescription>),
    /// Set the size of a queue.
    SetSize(usize, u32),
    /// Set the addresses of a queue.
    SetAddresses(usize, QueueAddresses),
    /// Set the next index of the available ring.
    SetBase(usize, u32),
    /// Stop a queue and ask for its next index of the available ring.
    GetBase(usize),
    /// Start a queue; has the descriptor that the guest signals.
    SetKick(usize),
    /// Set the descriptor that the guest waits for, or none.
    SetCall(usize),
    /// Set the descriptor for errors, or none.
    SetError(usize),
    /// Ask for the features of the protocol.
    GetProtocolFeatures,
    /// Accept features of the protocol.
    SetProtocolFeatures(u64),
    /// Ask for the largest number of queues.
    GetQueueCount,
    /// Enable or disable a queue.
    SetEnabled(usize, bool),
    /// Read the configuration space.
    GetConfig {
        /// Offset, in bytes.
        offset: u32,
        /// Length, in bytes.
        length: u32,
    },
    /// Write the configuration space.
    SetConfig,
    /// Use this channel for messages of the back-end; has its descriptor.
    SetBackendChannel,
    /// Create memory for the requests in flight.
    GetInflight(InflightDescription),
    /// Use this memory for the requests in flight; has its descriptor.
    SetInflight(InflightDescription),
}

/// Reader of consecutive fields. Reading past the end is an error.
struct Reader<'b>(&'b [u8]);

impl Reader<'_> {
    fn take<const COUNT: usize>(&mut self) -> Result<[u8; COUNT]> {
        let (bytes, rest) =
            self.0.split_first_chunk().ok_or_else(|| Error::protocol("message: payload too short"))?;
        self.0 = rest;
        Ok(*bytes)
    }

    fn u16(&mut self) -> Result<u16> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn inflight(&mut self) -> Result<InflightDescription> {
        Ok(InflightDescription {
            length: self.u64()?,
            offset: self.u64()?,
            queues: self.u16()?,
            queue_size: self.u16()?,
        })
    }
}

/// Bit of SET_VRING_KICK, CALL or ERR: the message has no descriptor.
const NO_DESCRIPTOR: u64 = 1 << 8;

/// Parses a message; `descriptors` came with it.
///
/// # Errors
/// [`Error::Protocol`] for an unknown message, or one that is invalid by itself.
pub fn parse(number: u32, payload: &[u8], descriptors: usize) -> Result<Message> {
    let in_message = |error: Error| error.in_context(format_args!("message {number}"));
    let message = parse_fields(number, &mut Reader(payload), descriptors).map_err(in_message)?;
    let expected = match &message {
        Message::SetMemory(regions) => regions.len(),
        Message::SetKick(_) | Message::SetInflight(_) | Message::SetBackendChannel => 1,
        // Checked together with the bit for no descriptor.
        Message::SetCall(_) | Message::SetError(_) => descriptors,
        _ => 0,
    };
    if descriptors != expected {
        return Err(Error::protocol(format!(
            "message {number}: {descriptors} descriptors; expected {expected}"
        )));
    }
    Ok(message)
}

fn parse_fields(number: u32, reader: &mut Reader<'_>, descriptors: usize) -> Result<Message> {
    // Queue number of a message with an optional descriptor.
    let with_descriptor = |reader: &mut Reader<'_>| {
        let value = reader.u64()?;
        let has_none = value & NO_DESCRIPTOR != 0;
        if value > NO_DESCRIPTOR | 0xFF || descriptors != usize::from(!has_none) {
            let text =
                format!("value {value:#x} with {descriptors} descriptors; expected a queue and one of them");
            return Err(Error::protocol(text));
        }
        Ok((value & 0xFF) as usize)
    };
    Ok(match number {
        number::GET_FEATURES => Message::GetFeatures,
        number::SET_FEATURES => Message::SetFeatures(reader.u64()?),
        number::SET_OWNER => Message::SetOwner,
        number::RESET_OWNER => Message::ResetOwner,
        number::SET_MEM_TABLE => {
            let (count, _padding) = (reader.u32()? as usize, reader.u32()?);
            if count > MAX_REGIONS {
                return Err(Error::protocol(format!("{count} regions; expected at most {MAX_REGIONS}")));
            }
            let regions = (0..count).map(|_| {
                Ok(RegionDescription {
                    guest_address: reader.u64()?,
                    length: reader.u64()?,
                    user_address: reader.u64()?,
                    offset: reader.u64()?,
                })
            });
            Message::SetMemory(regions.collect::<Result<_>>()?)
        }
        number::SET_VRING_NUM => Message::SetSize(reader.u32()? as usize, reader.u32()?),
        number::SET_VRING_ADDR => {
            let (queue, _flags) = (reader.u32()? as usize, reader.u32()?);
            let (descriptors, used, available) = (reader.u64()?, reader.u64()?, reader.u64()?);
            Message::SetAddresses(queue, QueueAddresses { descriptors, used, available })
        }
        number::SET_VRING_BASE => Message::SetBase(reader.u32()? as usize, reader.u32()?),
        number::GET_VRING_BASE => Message::GetBase(reader.u32()? as usize),
        number::SET_VRING_KICK => {
            let queue = with_descriptor(reader)?;
            if descriptors == 0 {
                return Err(Error::protocol(
                    "a queue without a kick descriptor; expected one: polling isn't offered",
                ));
            }
            Message::SetKick(queue)
        }
        number::SET_VRING_CALL => Message::SetCall(with_descriptor(reader)?),
        number::SET_VRING_ERR => Message::SetError(with_descriptor(reader)?),
        number::GET_PROTOCOL_FEATURES => Message::GetProtocolFeatures,
        number::SET_PROTOCOL_FEATURES => Message::SetProtocolFeatures(reader.u64()?),
        number::GET_QUEUE_NUM => Message::GetQueueCount,
        number::SET_VRING_ENABLE => {
            let (queue, enabled) = (reader.u32()? as usize, reader.u32()?);
            Message::SetEnabled(queue, enabled != 0)
        }
        number::GET_CONFIG => {
            let (offset, length) = (reader.u32()?, reader.u32()?);
            if length > MAX_CONFIG || offset > MAX_CONFIG - length {
                return Err(Error::protocol(format!(
                    "{length} bytes of configuration at {offset}; expected them inside of {MAX_CONFIG}"
                )));
            }
            Message::GetConfig { offset, length }
        }
        number::SET_CONFIG => Message::SetConfig,
        number::SET_BACKEND_REQ_FD => Message::SetBackendChannel,
        number::GET_INFLIGHT_FD => Message::GetInflight(reader.inflight()?),
        number::SET_INFLIGHT_FD => Message::SetInflight(reader.inflight()?),
        _ => return Err(Error::protocol("not offered")),
    })
}

/// Returns the bytes of a reply.
pub fn reply(number: u32, payload: &[u8]) -> Vec<u8> {
    message(number, flag::VERSION | flag::REPLY, payload)
}

/// Returns the bytes of a message.
pub fn message(number: u32, flags: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + payload.len());
    for field in [number, flags, payload.len() as u32] {
        bytes.extend_from_slice(&field.to_le_bytes());
    }
    bytes.extend_from_slice(payload);
    bytes
}

impl InflightDescription {
    /// Returns the bytes of the description.
    pub fn to_bytes(self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&self.length.to_le_bytes());
        bytes.extend_from_slice(&self.offset.to_le_bytes());
        bytes.extend_from_slice(&self.queues.to_le_bytes());
        bytes.extend_from_slice(&self.queue_size.to_le_bytes());
        // Padding up to the alignment of the front-end's structure.
        bytes.extend_from_slice(&[0; 4]);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn messages_are_read_field_by_field() {
        let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        let parsed = |number, payload: &[u32], descriptors| parse(number, &words(payload), descriptors);
        assert_eq!(parsed(18, &[3, 1], 0), Ok(Message::SetEnabled(3, true)));
        assert_eq!(parsed(12, &[2, 0], 1), Ok(Message::SetKick(2)));
        assert_eq!(parsed(13, &[0x101, 0], 0), Ok(Message::SetCall(1)));
        assert_eq!(parsed(24, &[0, 96, 0], 0), Ok(Message::GetConfig { offset: 0, length: 96 }));
        let region = RegionDescription { guest_address: 1, length: 2, user_address: 3, offset: 4 };
        assert_eq!(parsed(5, &[1, 0, 1, 0, 2, 0, 3, 0, 4, 0], 1), Ok(Message::SetMemory(vec![region])));
        for (number, payload, descriptors, expected) in [
            (12, &[0x100, 0][..], 0, "polling"),
            (12, &[0, 0], 2, "2 descriptors"),
            (13, &[1, 0], 0, "0 descriptors"),
            (13, &[0x1001, 0], 1, "0x1001"),
            (5, &[9, 0], 9, "9 regions"),
            (5, &[1, 0, 1], 1, "too short"),
            (24, &[200, 96, 0], 0, "96 bytes"),
            (24, &[u32::MAX, 2, 0], 0, "2 bytes"),
            (6, &[0, 0], 1, "not offered"),
            (1, &[], 1, "1 descriptors"),
            (21, &[], 0, "0 descriptors"),
        ] {
            let error = parsed(number, payload, descriptors).expect_err(expected);
            assert!(matches!(error, Error::Protocol(_)) && error.detail().contains(expected), "{error}");
        }
    }

    #[test]
    fn headers_of_other_protocols_are_refused() {
        let header = |words: [u32; 3]| {
            let mut bytes = [0; HEADER_BYTES];
            words
                .iter()
                .enumerate()
                .for_each(|(at, word)| bytes[at * 4..][..4].copy_from_slice(&word.to_le_bytes()));
            Header::parse(&bytes)
        };
        assert_eq!(header([5, 9, 40]), Ok(Header { number: 5, needs_reply: true, payload: 40 }));
        for words in [[1, 0, 0], [1, 2, 0], [1, 5, 0], [1, 1, 1025], [u32::MAX; 3]] {
            assert!(header(words).is_err(), "{words:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_an_error(
            number in 0..40_u32,
            payload in prop::collection::vec(any::<u8>(), 0..300),
            descriptors in 0..10_usize,
        ) {
            let _ = parse(number, &payload, descriptors);
        }
    }
}
