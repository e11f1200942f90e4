//! Replies of the protocols RESP 2 and 3, as bytes ready to be sent.
//!
//! Short values share buffers; a long one has its own buffer. The connection bounds the bytes: it sends at
//! [`ENOUGH`] bytes.

use block::{Buffer, Data, Payload};

/// Number of bytes at which replies are sent, even in the middle of a command.
pub const ENOUGH: usize = 64 << 10;
/// Size of the buffers for replies, in bytes.
const PIECE: usize = 16 << 10;
/// Length in bytes at which a value gets its own buffer.
const LONG: usize = 8 << 10;

/// Version of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Protocol {
    /// RESP 2.
    #[default]
    Resp2,
    /// RESP 3.
    Resp3,
}

/// Replies that aren't sent yet.
#[derive(Debug, Default)]
pub struct Replies {
    /// Version of the protocol that replies are written in.
    pub protocol: Protocol,
    /// Bytes before those in `tail`.
    sealed: Payload,
    tail: Option<Buffer>,
}

impl Replies {
    /// Returns an empty list of replies, with protocol RESP 2.
    pub fn new() -> Self {
        Replies::default()
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.sealed.len() + self.tail().len()
    }

    /// Whether there are no bytes to send.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether there are at least [`ENOUGH`] bytes, so that they must be sent.
    pub fn is_enough(&self) -> bool {
        self.len() >= ENOUGH
    }

    fn tail(&self) -> &[u8] {
        self.tail.as_ref().map_or(&[], Buffer::filled)
    }

    /// Returns all bytes if they are contiguous, as for a few replies.
    pub fn in_one_piece(&self) -> Option<&[u8]> {
        self.sealed.is_empty().then(|| self.tail())
    }

    /// Drops the first `count` contiguous bytes, which were sent.
    pub fn drop_first(&mut self, count: usize) {
        let Some(tail) = &mut self.tail else { return };
        let rest = tail.filled().len() - count;
        tail.filled_mut().copy_within(count.., 0);
        tail.truncate_filled(rest);
    }

    /// Takes all bytes.
    pub fn take(&mut self) -> Payload {
        self.seal();
        std::mem::take(&mut self.sealed)
    }

    /// Frees the buffer if there are no replies.
    pub fn release(&mut self) {
        if self.is_empty() {
            self.tail = None;
        }
    }

    fn seal(&mut self) {
        if let Some(tail) = self.tail.take() {
            self.sealed.push(tail.freeze());
        }
    }

    /// Appends raw bytes.
    fn put(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let tail = self.tail.get_or_insert_with(|| Buffer::new(PIECE));
            let (here, after) = bytes.split_at(bytes.len().min(tail.missing()));
            tail.append(here);
            bytes = after;
            if tail.missing() == 0 {
                self.seal();
            }
        }
    }

    /// Appends a type, a number and CRLF.
    fn put_number(&mut self, kind: u8, number: i64) {
        let mut line = [0; 23];
        let mut begin = line.len() - 2;
        line[begin..].copy_from_slice(b"\r\n");
        let mut rest = number.unsigned_abs();
        loop {
            begin -= 1;
            line[begin] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        if number < 0 {
            begin -= 1;
            line[begin] = b'-';
        }
        self.put(&[kind]);
        self.put(&line[begin..]);
    }

    /// Appends a simple string without line ends, such as `OK`.
    pub fn simple(&mut self, text: &str) {
        self.put(b"+");
        self.put(text.as_bytes());
        self.put(b"\r\n");
    }

    /// Appends `OK`.
    pub fn ok(&mut self) {
        self.put(b"+OK\r\n");
    }

    /// Appends an error: a code, such as `ERR`, and a text. Line ends are replaced by spaces.
    pub fn error(&mut self, text: &[u8]) {
        self.put(b"-");
        let is_line_end = |byte: &u8| matches!(byte, b'\r' | b'\n');
        for (index, part) in text.split(is_line_end).enumerate() {
            self.put(if index > 0 { b" " } else { b"" });
            self.put(part);
        }
        self.put(b"\r\n");
    }

    /// Appends an integer.
    pub fn integer(&mut self, number: i64) {
        self.put_number(b':', number);
    }

    /// Appends a count as an integer.
    pub fn count(&mut self, count: usize) {
        self.integer(count as i64);
    }

    /// Appends a bulk string.
    pub fn bulk(&mut self, bytes: &[u8]) {
        self.put_number(b'$', bytes.len() as i64);
        self.put(bytes);
        self.put(b"\r\n");
    }

    /// Appends a bulk string; a long one gets its own buffer.
    pub fn value(&mut self, value: &[u8]) {
        if value.len() < LONG {
            return self.bulk(value);
        }
        self.put_number(b'$', value.len() as i64);
        self.seal();
        self.sealed.push(Data::copy_of(value));
        self.put(b"\r\n");
    }

    /// Appends a value, or null.
    pub fn optional_value(&mut self, value: Option<&[u8]>) {
        match value {
            Some(value) => self.value(value),
            None => self.null(),
        }
    }

    /// Appends null.
    pub fn null(&mut self) {
        self.put(match self.protocol {
            Protocol::Resp2 => b"$-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        });
    }

    /// Begins an array of `length` replies.
    pub fn array(&mut self, length: usize) {
        self.put_number(b'*', length as i64);
    }

    /// Begins a set of `length` replies; an array in RESP 2.
    pub fn set(&mut self, length: usize) {
        let kind = if self.protocol == Protocol::Resp3 { b'~' } else { b'*' };
        self.put_number(kind, length as i64);
    }

    /// Begins a map of `pairs` pairs; an array in RESP 2.
    pub fn map(&mut self, pairs: usize) {
        match self.protocol {
            Protocol::Resp2 => self.array(2 * pairs),
            Protocol::Resp3 => self.put_number(b'%', pairs as i64),
        }
    }

    /// Appends text for operators: a verbatim string; a bulk string in RESP 2.
    pub fn text(&mut self, text: &str) {
        if self.protocol == Protocol::Resp2 {
            return self.bulk(text.as_bytes());
        }
        self.put_number(b'=', text.len() as i64 + 4);
        self.put(b"txt:");
        self.put(text.as_bytes());
        self.put(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(protocol: Protocol, write: impl FnOnce(&mut Replies)) -> String {
        let mut replies = Replies { protocol, ..Replies::new() };
        write(&mut replies);
        String::from_utf8_lossy(&replies.take().to_data()).into_owned()
    }

    #[test]
    fn replies_are_the_bytes_of_the_protocol() {
        let all = |replies: &mut Replies| {
            replies.ok();
            replies.simple("PONG");
            replies.error(b"ERR a\r\nb");
            [0, 7, -1, 10, i64::MAX, i64::MIN].iter().for_each(|number| replies.integer(*number));
            replies.bulk(b"");
            replies.bulk(b"a\r\nb");
            replies.null();
            replies.array(2);
            replies.set(3);
            replies.map(4);
            replies.text("x");
        };
        let both = "+OK\r\n+PONG\r\n-ERR a  b\r\n:0\r\n:7\r\n:-1\r\n:10\r\n:9223372036854775807\r\n:-9223372036854775808\r\n\
                    $0\r\n\r\n$4\r\na\r\nb\r\n";
        let two = "$-1\r\n*2\r\n*3\r\n*8\r\n$1\r\nx\r\n";
        let three = "_\r\n*2\r\n~3\r\n%4\r\n=5\r\ntxt:x\r\n";
        assert_eq!(written(Protocol::Resp2, all), format!("{both}{two}"));
        assert_eq!(written(Protocol::Resp3, all), format!("{both}{three}"));
    }

    #[test]
    fn long_values_are_in_one_piece_and_long_replies_go_over_pieces() {
        let mut replies = Replies::new();
        let value = vec![7; LONG];
        replies.ok();
        replies.value(&value);
        replies.bulk(&vec![8; 3 * PIECE]);
        replies.value(b"short");
        assert!(replies.in_one_piece().is_none());
        let length = replies.len();
        let payload = replies.take();
        assert_eq!(payload.len(), length);
        assert!(payload.slices().iter().any(|slice| **slice == *value));
        let bytes = payload.to_data();
        let expected = [
            &b"+OK\r\n$8192\r\n"[..],
            &value,
            b"\r\n$49152\r\n",
            &vec![8; 3 * PIECE],
            b"\r\n$5\r\nshort\r\n",
        ];
        assert_eq!(*bytes, *expected.concat());
        assert!(replies.is_empty());
    }

    #[test]
    fn what_was_sent_is_dropped() {
        let mut replies = Replies::new();
        replies.simple("PONG");
        replies.drop_first(3);
        assert_eq!(replies.in_one_piece(), Some(&b"NG\r\n"[..]));
        replies.drop_first(4);
        assert!(replies.is_empty());
    }
}
