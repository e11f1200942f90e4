//! Messages of generic netlink (include/uapi/linux/netlink.h, genetlink.h), sans-io: requests are encoded,
//! answers are parsed.
//!
//! A request asks for an acknowledgement. The kernel's answer is any number of replies and then the
//! acknowledgement or an error, in one datagram or several. Answers aren't trusted: lengths are checked, and
//! messages for other requests are skipped. The caller owns the socket.

use block::{Error, Result};
use std::collections::BTreeMap;

/// Type of messages to and from the controller of families (GENL_ID_CTRL).
pub(super) const CONTROLLER: u16 = 16;
/// Length of the headers: struct nlmsghdr and struct genlmsghdr.
const HEADER: usize = MESSAGE_HEADER + 4;
const MESSAGE_HEADER: usize = 16;
const ATTRIBUTE_HEADER: usize = 4;
/// NLM_F_REQUEST and NLM_F_ACK.
const REQUEST_FLAGS: u16 = 1 | 4;
/// Types of messages that every family has.
const NOOP: u16 = 1;
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// Bits of an attribute's type that aren't the type (NLA_F_NESTED, NLA_F_NET_BYTEORDER).
const TYPE_FLAGS: u16 = NESTED | 0x4000;
const NESTED: u16 = 0x8000;

/// Rounds a length up to that of the padded message or attribute.
const fn padded(length: usize) -> usize {
    (length + 3) & !3
}

/// A request under construction.
pub(super) struct Request(Vec<u8>);

impl Request {
    /// Begins a request without attributes.
    pub(super) fn new(family: u16, command: u8, sequence: u32) -> Request {
        let mut bytes = vec![0; 4];
        bytes.extend_from_slice(&family.to_ne_bytes());
        bytes.extend_from_slice(&REQUEST_FLAGS.to_ne_bytes());
        bytes.extend_from_slice(&sequence.to_ne_bytes());
        // The kernel fills in the port. The version is 1 in the controller and in NBD's family.
        bytes.extend_from_slice(&[0, 0, 0, 0, command, 1, 0, 0]);
        Request(bytes)
    }

    fn attribute(mut self, kind: u16, value: &[u8]) -> Request {
        let length = (ATTRIBUTE_HEADER + value.len()) as u16;
        self.0.extend_from_slice(&length.to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(padded(self.0.len()), 0);
        self
    }

    /// Appends a number of 32 bits.
    pub(super) fn u32(self, kind: u16, value: u32) -> Request {
        self.attribute(kind, &value.to_ne_bytes())
    }

    /// Appends a number of 64 bits.
    pub(super) fn u64(self, kind: u16, value: u64) -> Request {
        self.attribute(kind, &value.to_ne_bytes())
    }

    /// Appends a text, with the zero at its end.
    pub(super) fn text(self, kind: u16, value: &str) -> Request {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.attribute(kind, &bytes)
    }

    /// Appends an attribute that consists of others, up to 64 KiB in all.
    pub(super) fn nested(mut self, kind: u16, inner: impl FnOnce(Request) -> Request) -> Request {
        let start = self.0.len();
        self = inner(self.attribute(kind | NESTED, &[]));
        let length = (self.0.len() - start) as u16;
        self.0[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self
    }

    /// The finished message.
    pub(super) fn encode(mut self) -> Vec<u8> {
        let length = self.0.len() as u32;
        self.0[..4].copy_from_slice(&length.to_ne_bytes());
        self.0
    }
}

/// Attributes of a reply by type; of several with one type, the last.
pub(super) type Attributes = BTreeMap<u16, Vec<u8>>;

/// The received part of the answer to a request.
pub(super) struct Answer {
    family: u16,
    sequence: u32,
    /// Attributes of all replies.
    pub(super) attributes: Attributes,
}

impl Answer {
    /// Begins to wait for the answer to a request.
    pub(super) fn to(family: u16, sequence: u32) -> Answer {
        Answer { family, sequence, attributes: Attributes::new() }
    }

    /// Takes a datagram. Returns whether the answer is complete, and the kernel's error number if it refused
    /// the request.
    ///
    /// # Errors
    /// [`Error::Protocol`] for a malformed datagram.
    pub(super) fn take(&mut self, datagram: &[u8]) -> Result<Option<Result<(), i32>>> {
        let mut rest = datagram;
        while !rest.is_empty() {
            let malformed = || Error::protocol(format!("netlink: malformed message of {} bytes", rest.len()));
            let length = u32_at(rest, 0).ok_or_else(malformed)? as usize;
            let message = rest.get(..length).filter(|_| length >= MESSAGE_HEADER).ok_or_else(malformed)?;
            let next = rest.get(padded(length)..).unwrap_or_default();
            let (kind, sequence) = (u16_at(message, 4), u32_at(message, 8));
            match kind {
                _ if sequence != Some(self.sequence) => {}
                Some(NOOP) => {}
                Some(DONE) => return Ok(Some(Ok(()))),
                Some(ERROR) => {
                    let number = u32_at(message, MESSAGE_HEADER).ok_or_else(malformed)? as i32;
                    return Ok(Some(if number == 0 { Ok(()) } else { Err(number.saturating_neg()) }));
                }
                Some(kind) if kind == self.family => {
                    let attributes = message.get(HEADER..).and_then(attributes).ok_or_else(malformed)?;
                    self.attributes.extend(attributes);
                }
                _ => {}
            }
            rest = next;
        }
        Ok(None)
    }

    /// A number of 16 bits.
    pub(super) fn u16(&self, kind: u16) -> Option<u16> {
        Some(u16::from_ne_bytes(self.attributes.get(&kind)?.as_slice().try_into().ok()?))
    }

    /// A number of 32 bits.
    pub(super) fn u32(&self, kind: u16) -> Option<u32> {
        Some(u32::from_ne_bytes(self.attributes.get(&kind)?.as_slice().try_into().ok()?))
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Parses attributes; `None` if they are malformed.
fn attributes(mut rest: &[u8]) -> Option<Attributes> {
    let mut found = Attributes::new();
    while !rest.is_empty() {
        let (length, kind) = (usize::from(u16_at(rest, 0)?), u16_at(rest, 2)?);
        let value = rest.get(ATTRIBUTE_HEADER..length)?;
        found.insert(kind & !TYPE_FLAGS, value.to_vec());
        rest = rest.get(padded(length)..).unwrap_or_default();
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FAMILY: u16 = 0x21;
    const SEQUENCE: u32 = 7;

    /// A message from the kernel.
    fn message(kind: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
        let mut bytes = ((MESSAGE_HEADER + body.len()) as u32).to_ne_bytes().to_vec();
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(&[0, 0]);
        bytes.extend_from_slice(&sequence.to_ne_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(body);
        bytes.resize(padded(bytes.len()), 0);
        bytes
    }

    fn error(number: i32) -> Vec<u8> {
        message(ERROR, SEQUENCE, &[number.to_ne_bytes(), [0; 4]].concat())
    }

    fn reply(attributes: Request) -> Vec<u8> {
        message(FAMILY, SEQUENCE, &attributes.encode()[MESSAGE_HEADER..])
    }

    fn empty() -> Request {
        Request::new(FAMILY, 1, SEQUENCE)
    }

    /// The bytes as `genl` of iproute2 sends them, on a machine of this byte order.
    #[cfg(target_endian = "little")]
    #[test]
    fn requests_are_encoded_as_the_kernel_defines() {
        let bytes = Request::new(CONTROLLER, 3, 1).text(2, "nbd").encode();
        let expected = [
            [28, 0, 0, 0, 16, 0, 5, 0],
            [1, 0, 0, 0, 0, 0, 0, 0],
            [3, 1, 0, 0, 8, 0, 2, 0],
            [b'n', b'b', b'd', 0, 0, 0, 0, 0],
        ];
        assert_eq!(bytes, expected.concat()[..28]);
        // SOCKETS { SOCK_ITEM { FD 5 }, SOCK_ITEM { FD 6 } }.
        let item = |fd| move |request: Request| request.u32(1, fd);
        let bytes = empty().nested(7, |sockets| sockets.nested(1, item(5)).nested(1, item(6))).encode();
        let expected = [
            [28, 0, 7, 0x80],
            [12, 0, 1, 0x80],
            [8, 0, 1, 0],
            [5, 0, 0, 0],
            [12, 0, 1, 0x80],
            [8, 0, 1, 0],
            [6, 0, 0, 0],
        ];
        assert_eq!(bytes[HEADER..], expected.concat());
        assert_eq!(u32_at(&bytes, 0), Some(bytes.len() as u32));
    }

    #[test]
    fn an_answer_is_replies_and_an_acknowledgement() {
        let mut answer = Answer::to(FAMILY, SEQUENCE);
        // An answer to an earlier request, and one of another family.
        assert_eq!(answer.take(&message(ERROR, SEQUENCE - 1, &[9; 8])), Ok(None));
        assert_eq!(answer.take(&message(FAMILY + 1, SEQUENCE, &[9; 5])), Ok(None));
        assert_eq!(answer.take(&reply(empty().u32(1, 3).text(2, "abc"))), Ok(None));
        let both = [reply(empty().u64(3, 4)), error(0)].concat();
        assert_eq!(answer.take(&both), Ok(Some(Ok(()))));
        assert_eq!(
            (answer.u32(1), answer.u32(2), answer.u32(3)),
            (Some(3), Some(u32_at(b"abc\0", 0).unwrap()), None)
        );
        assert_eq!((answer.u16(1), answer.u32(9)), (None, None));
        for (number, expected) in [(-libc::EINVAL, libc::EINVAL), (i32::MIN, i32::MAX)] {
            assert_eq!(Answer::to(FAMILY, SEQUENCE).take(&error(number)), Ok(Some(Err(expected))));
        }
    }

    #[test]
    fn malformed_answers_are_errors() {
        let mut long_attribute = reply(empty().u32(1, 3));
        long_attribute[HEADER] = 9;
        let mut short_attribute = reply(empty().u32(1, 3));
        short_attribute[HEADER] = 3;
        let mut long_message = error(0);
        long_message[0] += 1;
        let mut short_message = error(0);
        short_message[0] = 15;
        let without_number = message(ERROR, SEQUENCE, &[]);
        let without_command = message(FAMILY, SEQUENCE, &[]);
        let cases =
            [long_attribute, short_attribute, long_message, short_message, without_number, without_command];
        for bytes in cases {
            let taken = Answer::to(FAMILY, SEQUENCE).take(&bytes);
            assert!(matches!(taken, Err(Error::Protocol(_))), "{bytes:?}: {taken:?}");
        }
    }

    proptest! {
        #[test]
        fn no_answer_panics(bytes in proptest::collection::vec(any::<u8>(), 0..64), at in 0_usize..60, byte: u8) {
            let _any = Answer::to(FAMILY, SEQUENCE).take(&bytes);
            let mut almost = [reply(empty().u32(1, 3).text(2, "abc")), error(0)].concat();
            almost[at] = byte;
            let _any = Answer::to(FAMILY, SEQUENCE).take(&almost);
        }
    }
}
