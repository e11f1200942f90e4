//! Parser of a server's replies, which applies them to the requests in flight. Never waits.
//!
//! Accepts simple and structured replies, in any order, and chunks of a read in any order. A read succeeds
//! only if its chunks cover it without gap or overlap. A chunk with at least [`DIRECT_BYTES`] missing bytes
//! can be received directly into the caller's buffer. Bytes that violate the protocol are an
//! [`Error::Protocol`], after which the stream can't be used any more.

use super::table::{Pending, Table};
use crate::nbd::protocol::{
    CHUNK_BYTES, ErrorNumber, MAX_STRING, REPLY_FLAG_DONE, Reader, SIMPLE_REPLY_BYTES, SIMPLE_REPLY_MAGIC,
    STRUCTURED_REPLY_MAGIC, chunk_type, command,
};
use block::{Buffer, Error, Result};

/// Missing bytes of a chunk at and above which it is received directly into its buffer.
const DIRECT_BYTES: usize = 64 << 10;
/// Longest block status that is parsed, in bytes; further extents are asked for again.
const MAX_STATUS_BYTES: usize = 4 + 8 * 4096;

/// Meaning of the next bytes.
enum Body {
    /// Data of a chunk, at offset `at` of its request's read.
    Data { cookie: u64, at: usize, rest: usize, last: bool },
    /// Bytes to skip, in the middle of this request's chunk.
    Skip { cookie: u64, rest: usize, last: bool },
}

/// Data of a chunk that is received into the caller's buffer.
struct Direct {
    cookie: u64,
    last: bool,
    /// Rest of the buffer after the chunk.
    tail: Buffer,
    /// `None` while a receive owns it.
    piece: Option<Buffer>,
}

/// State between two pieces of the stream.
pub(super) struct ReplyStream {
    structured: bool,
    body: Option<Body>,
    direct: Option<Direct>,
}

fn protocol(words: impl Into<String>) -> Error {
    Error::protocol(format!("the NBD server {}", words.into()))
}

impl ReplyStream {
    pub(super) fn new(structured: bool) -> Self {
        ReplyStream { structured, body: None, direct: None }
    }

    /// Consumes as many bytes as possible and returns their number.
    pub(super) fn feed(&mut self, bytes: &[u8], table: &mut Table) -> Result<usize> {
        let mut used = 0;
        loop {
            let rest = &bytes[used..];
            let taken = match self.body {
                Some(_) => self.feed_body(rest, table)?,
                None => self.feed_head(rest, table)?,
            };
            match taken {
                0 => return Ok(used),
                taken => used += taken,
            }
        }
    }

    fn feed_body(&mut self, bytes: &[u8], table: &mut Table) -> Result<usize> {
        let (cookie, taken, rest, last) = match &mut self.body {
            Some(Body::Data { cookie, at, rest, last }) => {
                let taken = bytes.len().min(*rest);
                place(table.pending(*cookie)?, *at, Fill::Bytes(&bytes[..taken]));
                (*at, *rest) = (*at + taken, *rest - taken);
                (*cookie, taken, *rest, *last)
            }
            Some(Body::Skip { cookie, rest, last }) => {
                let taken = bytes.len().min(*rest);
                *rest -= taken;
                (*cookie, taken, *rest, *last)
            }
            None => return Ok(0),
        };
        if rest == 0 {
            self.body = None;
            if last {
                complete(cookie, table)?;
            }
        }
        Ok(taken)
    }

    fn feed_head(&mut self, bytes: &[u8], table: &mut Table) -> Result<usize> {
        match Reader(bytes).u32() {
            None => Ok(0),
            Some(SIMPLE_REPLY_MAGIC) => self.feed_simple(bytes, table),
            Some(STRUCTURED_REPLY_MAGIC) if self.structured => self.feed_chunk(bytes, table),
            Some(other) => Err(protocol(format!("sends a reply that begins with {other:#010x}"))),
        }
    }

    fn feed_simple(&mut self, bytes: &[u8], table: &mut Table) -> Result<usize> {
        if bytes.len() < SIMPLE_REPLY_BYTES {
            return Ok(0);
        }
        let mut reader = Reader(&bytes[4..]);
        let (error, cookie) = (reader.u32().unwrap_or_default(), reader.u64().unwrap_or_default());
        let request = table.pending(cookie)?.request;
        if request.command == command::READ && self.structured {
            return Err(protocol("answers a read with a simple reply though structured ones were agreed on"));
        }
        if error != 0 {
            table.finish(cookie, Err(ErrorNumber::to_error(error, failed(&request, ""))));
        } else if request.command == command::READ {
            let rest = request.length as usize;
            cover(table.pending(cookie)?, 0, rest as u64)?;
            self.body = Some(Body::Data { cookie, at: 0, rest, last: true });
        } else {
            table.finish(cookie, Ok(()));
        }
        Ok(SIMPLE_REPLY_BYTES)
    }

    fn feed_chunk(&mut self, bytes: &[u8], table: &mut Table) -> Result<usize> {
        if bytes.len() < CHUNK_BYTES {
            return Ok(0);
        }
        let mut reader = Reader(&bytes[4..]);
        let (flags, kind) = (reader.u16().unwrap_or_default(), reader.u16().unwrap_or_default());
        let (cookie, length) = (reader.u64().unwrap_or_default(), reader.u32().unwrap_or_default() as usize);
        let last = flags & REPLY_FLAG_DONE != 0;
        let payload = reader.0;
        let pending = table.pending(cookie)?;
        let reads = pending.request.command == command::READ;
        let taken = match kind {
            chunk_type::NONE if length == 0 => Some(0),
            chunk_type::OFFSET_DATA if reads && length > 8 => {
                let Some(offset) = Reader(payload).u64() else { return Ok(0) };
                let rest = length - 8;
                let at = cover(pending, offset.wrapping_sub(pending.request.offset), rest as u64)?;
                self.body = Some(Body::Data { cookie, at, rest, last });
                return Ok(CHUNK_BYTES + 8);
            }
            chunk_type::OFFSET_HOLE if reads && length == 12 => {
                let mut reader = Reader(payload);
                let (Some(offset), Some(size)) = (reader.u64(), reader.u32()) else { return Ok(0) };
                let at = cover(pending, offset.wrapping_sub(pending.request.offset), u64::from(size))?;
                place(pending, at, Fill::Zeroes(size as usize));
                Some(length)
            }
            chunk_type::BLOCK_STATUS if pending.request.command == command::BLOCK_STATUS => {
                let looked_at = length.min(MAX_STATUS_BYTES);
                if payload.len() < looked_at {
                    return Ok(0);
                }
                take_extents(pending, &payload[..looked_at], length)?;
                if looked_at < length {
                    self.body = Some(Body::Skip { cookie, rest: length - looked_at, last });
                    return Ok(CHUNK_BYTES + looked_at);
                }
                Some(length)
            }
            kind if kind & chunk_type::ERROR_BIT != 0 => take_error(pending, payload, length)?,
            _ => return Err(protocol(format!("sends a chunk of type {kind} with {length} bytes"))),
        };
        let Some(taken) = taken else { return Ok(0) };
        if last {
            complete(cookie, table)?;
        }
        Ok(CHUNK_BYTES + taken)
    }

    /// Returns a piece of a caller's buffer to receive into, if it is large enough. Must be called only when
    /// all received bytes are used.
    pub(super) fn take_direct(&mut self, table: &mut Table) -> Option<Buffer> {
        if let Some(direct) = &mut self.direct {
            return direct.piece.take();
        }
        let Some(Body::Data { cookie, at, rest, last }) = self.body else { return None };
        let buffer = table.pending(cookie).ok()?.buffer.as_mut()?;
        if rest < DIRECT_BYTES || buffer.filled().len() != at {
            return None;
        }
        let mut piece = buffer.split_off(at);
        let tail = piece.split_off(rest);
        self.body = None;
        self.direct = Some(Direct { cookie, last, tail, piece: None });
        Some(piece)
    }

    /// Takes the piece back after a receive; `broken` if the connection has ended.
    pub(super) fn give_back(&mut self, mut piece: Buffer, table: &mut Table, broken: bool) -> Result<()> {
        let Some(mut direct) = self.direct.take() else { return Ok(()) };
        if piece.missing() > 0 && !broken {
            table.pending(direct.cookie)?;
            direct.piece = Some(piece);
            self.direct = Some(direct);
            return Ok(());
        }
        let whole = piece.missing() == 0;
        piece.join(direct.tail);
        if let Some(buffer) = &mut table.pending(direct.cookie)?.buffer {
            buffer.join(piece);
        }
        match whole && direct.last {
            true => complete(direct.cookie, table),
            false => Ok(()),
        }
    }
}

/// Records that a chunk covers `length` bytes at `at` of the read. Refuses bytes that were received already
/// or are outside of the read.
fn cover(pending: &mut Pending, at: u64, length: u64) -> Result<usize> {
    let whole = u64::from(pending.request.length);
    let end = at.checked_add(length).filter(|end| *end <= whole && length > 0);
    let Some(end) = end else { return Err(protocol("sends data outside of the read that it belongs to")) };
    let (at, end) = (at as u32, end as u32);
    if pending.covered.iter().any(|(from, to)| *from < end && at < *to) {
        return Err(protocol("sends a part of a read twice"));
    }
    match pending.covered.last_mut() {
        Some(before) if before.1 == at => before.1 = end,
        _ => pending.covered.push((at, end)),
    }
    Ok(at as usize)
}

enum Fill<'a> {
    Bytes(&'a [u8]),
    Zeroes(usize),
}

/// Puts bytes at their offset of a read's buffer, whether or not the bytes before them have arrived.
fn place(pending: &mut Pending, at: usize, fill: Fill<'_>) {
    let Some(buffer) = &mut pending.buffer else { return };
    let length = match fill {
        Fill::Bytes(bytes) => bytes.len(),
        Fill::Zeroes(count) => count,
    };
    let filled = buffer.filled().len();
    match fill {
        Fill::Bytes(bytes) if at == filled => return buffer.append(bytes),
        Fill::Zeroes(count) if at == filled => return buffer.append_zeroes(count),
        _ => {}
    }
    if at + length > filled {
        buffer.append_zeroes(at + length - filled);
    }
    let target = &mut buffer.filled_mut()[at..at + length];
    match fill {
        Fill::Bytes(bytes) => target.copy_from_slice(bytes),
        Fill::Zeroes(_) => target.fill(0),
    }
}

fn take_extents(pending: &mut Pending, payload: &[u8], length: usize) -> Result<()> {
    if length < 12 || !(length - 4).is_multiple_of(8) || !pending.extents.is_empty() {
        return Err(protocol(format!("sends a block status of {length} bytes")));
    }
    let mut reader = Reader(&payload[4..]);
    while let (Some(length), Some(flags)) = (reader.u32(), reader.u32()) {
        pending.extents.push((length, flags));
    }
    Ok(())
}

/// Records a request's failure. `None` if the chunk isn't complete.
fn take_error(pending: &mut Pending, payload: &[u8], length: usize) -> Result<Option<usize>> {
    if !(6..=MAX_STRING + 64).contains(&length) {
        return Err(protocol(format!("sends an error of {length} bytes")));
    }
    let Some(payload) = payload.get(..length) else { return Ok(None) };
    let mut reader = Reader(payload);
    let (number, words) = (reader.u32().unwrap_or_default(), reader.u16().unwrap_or_default());
    let Some(words) = reader.take(usize::from(words)) else {
        return Err(protocol("sends an error whose text is longer than the chunk"));
    };
    let words = String::from_utf8_lossy(words);
    let error = ErrorNumber::to_error(number, failed(&pending.request, &words));
    pending.failure.get_or_insert(error);
    Ok(Some(length))
}

#[cold]
fn failed(request: &crate::nbd::protocol::Request, words: &str) -> String {
    let colon = if words.is_empty() { "" } else { ": " };
    let (command, offset, length) = (request.command, request.offset, request.length);
    format!("NBD command {command}, {length} bytes at {offset}{colon}{words}")
}

/// Completes a request whose last chunk has arrived.
fn complete(cookie: u64, table: &mut Table) -> Result<()> {
    let pending = table.pending(cookie)?;
    let request = pending.request;
    let covered: u64 = pending.covered.iter().map(|(from, to)| u64::from(to - from)).sum();
    let missing = match request.command {
        command::READ => covered < u64::from(request.length),
        command::BLOCK_STATUS => pending.extents.is_empty(),
        _ => false,
    };
    if missing && pending.failure.is_none() {
        let error = protocol(format!("ends command {} without all of its data", request.command));
        table.finish(cookie, Err(error));
    } else {
        table.finish(cookie, Ok(()));
    }
    Ok(())
}

#[cfg(test)]
#[path = "reply_stream_tests.rs"]
mod tests;
