//! Replies that are ready for the next send: heads in one buffer, data in the device's buffers.
//!
//! All of them are sent in one vectored send, and no byte of data is copied. The connection bounds their
//! number, to at most [`SLOTS`].

use super::protocol::{
    CHUNK_BYTES, ErrorNumber, REPLY_FLAG_DONE, Request, chunk, chunk_type, data_chunk, simple_reply,
};
use crate::served::in_flight::SLOTS;
use block::{Buffer, Data, Payload};

/// Most bytes of an error's text that are sent.
const MAX_WORDS: usize = 256;
/// Capacity for the longest head of every waiting reply.
const HEADS: usize = (SLOTS * (CHUNK_BYTES + 8 + MAX_WORDS)).next_power_of_two();

/// Replies to be sent.
pub(super) struct Replies {
    structured: bool,
    heads: Option<Buffer>,
    /// End of the heads before the data, and the data.
    pieces: Vec<(usize, Data)>,
    /// Number of answered requests.
    pub(super) requests: usize,
    /// Bytes that these requests count for in the connection's budget.
    pub(super) bytes: u64,
}

impl Replies {
    pub(super) fn new(structured: bool) -> Self {
        Replies { structured, heads: None, pieces: Vec::with_capacity(SLOTS), requests: 0, bytes: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests == 0
    }

    fn put(&mut self, head: &[u8]) {
        self.heads.get_or_insert_with(|| Buffer::new(HEADS)).append(head);
    }

    fn put_data(&mut self, data: Data) {
        let end = self.heads.as_ref().map_or(0, |heads| heads.filled().len());
        self.pieces.push((end, data));
    }

    /// Adds a success without data.
    #[inline]
    pub(super) fn done(&mut self, request: &Request) {
        self.requests += 1;
        match self.structured {
            true => self.put(&chunk(REPLY_FLAG_DONE, chunk_type::NONE, request.cookie, 0)),
            false => self.put(&simple_reply(request.cookie, 0)),
        }
    }

    /// Adds the data of a read; not empty.
    #[inline]
    pub(super) fn data(&mut self, request: &Request, data: Data) {
        self.requests += 1;
        match self.structured {
            true => self.put(&data_chunk(request.cookie, request.offset, data.len() as u32)),
            false => self.put(&simple_reply(request.cookie, 0)),
        }
        self.put_data(data);
    }

    /// Adds the payload of a block status, which only exists with structured replies.
    pub(super) fn block_status(&mut self, request: &Request, payload: Data) {
        self.requests += 1;
        self.put(&chunk(REPLY_FLAG_DONE, chunk_type::BLOCK_STATUS, request.cookie, payload.len() as u32));
        self.put_data(payload);
    }

    /// Adds a failure, with a text if the client supports it.
    #[cold]
    pub(super) fn error(&mut self, request: &Request, number: ErrorNumber, words: &str) {
        self.requests += 1;
        if !self.structured {
            return self.put(&simple_reply(request.cookie, number as u32));
        }
        let end = (0..=words.len().min(MAX_WORDS)).rev().find(|end| words.is_char_boundary(*end));
        let words = &words[..end.unwrap_or(0)];
        let length = 6 + words.len() as u32;
        self.put(&chunk(REPLY_FLAG_DONE, chunk_type::ERROR, request.cookie, length));
        self.put(&(number as u32).to_be_bytes());
        self.put(&(words.len() as u16).to_be_bytes());
        self.put(words.as_bytes());
    }

    /// Moves all replies into a payload, and returns the number of their requests and the bytes of these.
    pub(super) fn take(&mut self, payload: &mut Payload) -> (usize, u64) {
        payload.clear();
        if let Some(heads) = self.heads.take() {
            let heads = heads.freeze();
            let mut begin = 0;
            for (end, data) in self.pieces.drain(..) {
                payload.push(heads.slice(begin..end));
                payload.push(data);
                begin = end;
            }
            payload.push(heads.slice(begin..heads.len()));
        }
        (std::mem::take(&mut self.requests), std::mem::take(&mut self.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(cookie: u64) -> Request {
        Request { flags: 0, command: 0, cookie, offset: 512, length: 3 }
    }

    #[test]
    fn replies_leave_in_order_with_their_data_uncopied() {
        for structured in [false, true] {
            let mut replies = Replies::new(structured);
            let data = Data::copy_of(b"abc");
            replies.done(&request(1));
            replies.data(&request(2), data.clone());
            replies.error(&request(3), ErrorNumber::Io, "broken");
            replies.done(&request(4));
            let mut payload = Payload::new();
            assert_eq!(replies.take(&mut payload), (4, 0));
            assert_eq!(payload.slices().len(), 3, "heads, data, heads");
            assert_eq!(payload.slices()[1].as_ptr(), data.as_ptr());
            let expected = if structured { 20 + 28 + 3 + 20 + 6 + 6 + 20 } else { 16 * 4 + 3 };
            assert_eq!(payload.len(), expected);
            assert_eq!(replies.take(&mut payload), (0, 0));
            assert!(payload.is_empty());
        }
    }

    #[test]
    fn the_longest_replies_fit_and_words_are_cut_at_a_letter() {
        let mut replies = Replies::new(true);
        let words = "é".repeat(5000);
        for cookie in 0..SLOTS as u64 {
            replies.error(&request(cookie), ErrorNumber::Io, &words);
        }
        let mut payload = Payload::new();
        replies.take(&mut payload);
        assert_eq!(payload.len(), SLOTS * (20 + 6 + 256));
    }
}
