//! Requests and replies in the entries of a ring, where header, structure of the operation, and names or data
//! are apart. Sans-io: the functions take the memory of an entry between two commands.

use crate::dispatch::Request;
use crate::protocol::{InHeader, OutHeader, RingEntryInOut};
use crate::reply;
use crate::request::Malformed;
use block::Payload;
use runtime::fuse_ring::HEADER_BYTES;
use zerocopy::{FromBytes, IntoBytes};

/// Positions in the headers: of the operation's structure, and of the [`RingEntryInOut`].
const STRUCTURE: usize = 128;
const ENTRY: usize = 256;

/// Returns the request in an entry, and its commit ID. The data of a WRITE is copied: the reply takes its
/// place.
///
/// # Errors
/// The violation of the protocol.
#[inline]
pub fn request(headers: &[u8; HEADER_BYTES], payload: &[u8]) -> Result<(Request, u64), Malformed> {
    let malformed = |length| Malformed::Length(length, 0);
    let stated = InHeader::read_from_prefix(headers).map_err(|_| malformed(0))?.0.len as usize;
    let entry = RingEntryInOut::read_from_bytes(&headers[ENTRY..]).map_err(|_| malformed(0))?;
    let rest = payload.get(..entry.payload_sz as usize).ok_or(malformed(entry.payload_sz as usize))?;
    let structure = stated
        .checked_sub(size_of::<InHeader>() + rest.len())
        .and_then(|length| headers[STRUCTURE..ENTRY].get(..length))
        .ok_or(malformed(stated))?;
    let request = Request::of_parts(&headers[..size_of::<InHeader>()], structure, rest)?;
    Ok((request, entry.commit_id))
}

/// Writes a reply to an entry. One that is longer than the payload becomes EIO.
#[inline]
pub fn put_reply(reply: &Payload, commit_id: u64, headers: &mut [u8; HEADER_BYTES], payload: &mut [u8]) {
    let length = reply.len().checked_sub(size_of::<OutHeader>()).filter(|length| *length <= payload.len());
    let Some(length) = length else {
        return put_reply(&reply::error(commit_id, libc::EIO), commit_id, headers, payload);
    };
    let (mut head, mut rest) = (&mut headers[..size_of::<OutHeader>()], payload);
    for slice in reply.slices() {
        let (first, second) = slice.split_at(slice.len().min(head.len()));
        head = append(head, first);
        rest = append(rest, second);
    }
    let entry = RingEntryInOut { commit_id, payload_sz: length as u32, ..RingEntryInOut::default() };
    headers[ENTRY..].copy_from_slice(entry.as_bytes());
}

/// Copies bytes to the beginning of others, and returns what follows.
fn append<'a>(target: &'a mut [u8], bytes: &[u8]) -> &'a mut [u8] {
    let (filled, rest) = target.split_at_mut(bytes.len());
    filled.copy_from_slice(bytes);
    rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// An entry with a request, as the kernel writes it.
    fn entry(opcode: u32, structure: &[u8], payload: &[u8]) -> [u8; HEADER_BYTES] {
        let len = (size_of::<InHeader>() + structure.len() + payload.len()) as u32;
        let header = InHeader { len, opcode, unique: 6, nodeid: 1, ..InHeader::default() };
        let entry =
            RingEntryInOut { commit_id: 6, payload_sz: payload.len() as u32, ..RingEntryInOut::default() };
        let mut headers = [0; HEADER_BYTES];
        headers[..size_of::<InHeader>()].copy_from_slice(header.as_bytes());
        headers[STRUCTURE..STRUCTURE + structure.len()].copy_from_slice(structure);
        headers[ENTRY..].copy_from_slice(entry.as_bytes());
        headers
    }

    #[test]
    fn a_reply_is_divided_between_headers_and_payload() {
        let data: Payload = block::Data::copy_of(b"some data").into();
        for (reply, expected, length) in [
            (reply::data(6, &data), &b"some data"[..], 25),
            (reply::with(6, &[1_u8, 2, 3]), &[1, 2, 3], 19),
            (reply::done(6), &[], 16),
        ] {
            let (mut headers, mut payload) = ([9; HEADER_BYTES], [0; 10]);
            put_reply(&reply, 6, &mut headers, &mut payload);
            let out = OutHeader::read_from_bytes(&headers[..16]).expect("a header");
            assert_eq!((out.len, out.error, out.unique), (length, 0, 6));
            let entry = RingEntryInOut::read_from_bytes(&headers[ENTRY..]).expect("a structure");
            assert_eq!((entry.commit_id, entry.payload_sz as usize, entry.flags), (6, expected.len(), 0));
            assert_eq!(&payload[..expected.len()], expected);
        }
        let (mut headers, mut payload) = ([0; HEADER_BYTES], [0; 8]);
        put_reply(&reply::data(6, &data), 6, &mut headers, &mut payload);
        let out = OutHeader::read_from_bytes(&headers[..16]).expect("a header");
        assert_eq!((out.error, out.unique), (-libc::EIO, 6), "longer than the payload");
    }

    #[test]
    fn lengths_that_contradict_each_other_are_refused() {
        let sound = entry(crate::protocol::opcode::LOOKUP, b"", b"name\0");
        assert_eq!(request(&sound, b"name\0....").expect("sound").1, 6);
        assert!(request(&sound, b"nam").is_err(), "more payload than there is memory");
        for stated in [0_u32, 39, 44, 40 + 129 + 5, u32::MAX] {
            let mut headers = sound;
            headers[..4].copy_from_slice(stated.as_bytes());
            assert!(request(&headers, b"name\0").is_err(), "{stated}");
        }
    }

    proptest! {
        #[test]
        fn any_headers_are_a_request_or_malformed(
            mut bytes in proptest::collection::vec(any::<u8>(), HEADER_BYTES),
            opcode in 0..60_u32,
            lengths in (0..200_u32, 0..64_u32),
        ) {
            bytes[..4].copy_from_slice(lengths.0.as_bytes());
            bytes[4..8].copy_from_slice(opcode.as_bytes());
            bytes[ENTRY + 16..ENTRY + 20].copy_from_slice(lengths.1.as_bytes());
            let mut headers = [0; HEADER_BYTES];
            headers.copy_from_slice(&bytes);
            let _ = request(&headers, &[0; 32]);
        }
    }
}
