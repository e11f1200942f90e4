//! Requests of clients: an incremental parser, and functions that append a command. Without I/O.
//!
//! A request is an array of bulk strings, or an inline command, a line of words
//! (<https://redis.io/docs/latest/develop/reference/protocol-spec/>). Replies are in [`replies`](crate::replies).
//!
//! # Promises
//! - Each byte is parsed once, except those of an incomplete line. The result doesn't depend on how the bytes
//!   arrive.
//! - Memory grows with bytes that have arrived, never with lengths that a client announces.
//! - A command has at most [`MAX_ARGUMENTS`] arguments and [`MAX_COMMAND_BYTES`]. Longer ones, and invalid
//!   bytes, are a [`ProtocolError`]: the connection can't continue.

use std::fmt;

/// Maximum number of arguments of a command, including its name.
pub const MAX_ARGUMENTS: usize = 1 << 20;
/// Maximum size of a command, in bytes as received.
pub const MAX_COMMAND_BYTES: usize = 128 << 20;
/// Maximum size of a line in bytes: a length, or an inline command.
pub const MAX_LINE_BYTES: usize = 64 << 10;
/// Number of arguments for which a parser keeps memory.
const KEPT_ARGUMENTS: usize = 1024;

/// Result of parsing the received bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// More bytes are needed.
    Incomplete,
    /// An empty request of this many bytes; it has no reply.
    Empty(usize),
    /// A command of this many bytes; [`Parser::arguments`] returns its arguments.
    Command(usize),
}

/// Violation of the protocol. `Display` prints the text of redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProtocolError {
    /// The number of arguments is not a number, or is too large.
    ArrayLength,
    /// The length of an argument is not a number, or is too large for an argument or for the command.
    BulkLength,
    /// An argument begins with this byte instead of `$`.
    NoBulk(u8),
    /// An argument isn't followed by CRLF.
    NoLineEnd,
    /// The line with the number of arguments is too long.
    LongArrayLine,
    /// The line with the length of an argument is too long.
    LongBulkLine,
    /// An inline command is too long.
    LongInline,
    /// A quote in an inline command isn't closed, or is closed in the middle of a word.
    Quotes,
}

impl ProtocolError {
    /// Returns the text of the error reply, without `ERR`. Non-ASCII bytes are included unchanged.
    pub fn text(self) -> Vec<u8> {
        let fixed: &[u8] = match self {
            ProtocolError::ArrayLength => b"Protocol error: invalid multibulk length",
            ProtocolError::BulkLength => b"Protocol error: invalid bulk length",
            ProtocolError::NoBulk(found) => {
                return [b"Protocol error: expected '$', got '", &[found][..], b"'"].concat();
            }
            ProtocolError::NoLineEnd => b"Protocol error: expected CRLF after a bulk string",
            ProtocolError::LongArrayLine => b"Protocol error: too big mbulk count string",
            ProtocolError::LongBulkLine => b"Protocol error: too big bulk count string",
            ProtocolError::LongInline => b"Protocol error: too big inline request",
            ProtocolError::Quotes => b"Protocol error: unbalanced quotes in request",
        };
        fixed.to_vec()
    }
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&String::from_utf8_lossy(&self.text()))
    }
}

/// Start and end of an argument, as offsets.
type Span = (u32, u32);

const _: () = assert!(MAX_COMMAND_BYTES < u32::MAX as usize, "positions fit");

/// Arguments of a command, beginning with its name.
#[derive(Debug, Clone, Copy)]
pub struct Arguments<'a> {
    bytes: &'a [u8],
    spans: &'a [Span],
}

impl<'a> Arguments<'a> {
    /// Number of arguments.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether there are no arguments.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Returns an argument; empty beyond the last one.
    pub fn at(&self, index: usize) -> &'a [u8] {
        self.get(index).unwrap_or_default()
    }

    /// Returns an argument; `None` beyond the last one.
    pub fn get(&self, index: usize) -> Option<&'a [u8]> {
        self.spans.get(index).map(|(begin, end)| &self.bytes[*begin as usize..*end as usize])
    }

    /// Returns the arguments at and after `index`.
    pub fn from(&self, index: usize) -> Arguments<'a> {
        Arguments { bytes: self.bytes, spans: self.spans.get(index..).unwrap_or_default() }
    }

    /// Iterates over the arguments.
    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let Arguments { bytes, spans } = *self;
        spans.iter().map(move |(begin, end)| &bytes[*begin as usize..*end as usize])
    }
}

/// Parser of the requests of a connection.
#[derive(Debug)]
pub struct Parser {
    /// Maximum size of an argument, in bytes.
    max_argument: usize,
    spans: Vec<Span>,
    /// Words of an inline command, without their quotes.
    words: Vec<u8>,
    is_inline: bool,
    /// Number of arguments of the present command that haven't arrived; 0 between commands.
    missing: usize,
    /// Length of the arriving argument; `None` before it is known.
    length: Option<usize>,
    /// Number of parsed bytes of the present command.
    parsed: usize,
    /// Number of bytes after these that were searched and contain no line end.
    searched: usize,
}

impl Parser {
    /// Creates a parser of commands whose arguments have at most `max_argument` bytes each. Only
    /// [`MAX_LINE_BYTES`] limits the words of inline commands.
    pub fn new(max_argument: usize) -> Self {
        Parser {
            max_argument,
            spans: Vec::new(),
            words: Vec::new(),
            is_inline: false,
            missing: 0,
            length: None,
            parsed: 0,
            searched: 0,
        }
    }

    /// Returns the arguments of the command that [`next`](Self::next) returned for this input.
    pub fn arguments<'a>(&'a self, input: &'a [u8]) -> Arguments<'a> {
        let bytes = if self.is_inline { &self.words } else { input };
        Arguments { bytes, spans: &self.spans }
    }

    /// Continues parsing. `input` begins with the first byte of the present request: after
    /// [`Step::Incomplete`] it has the same bytes and more, otherwise the bytes after the returned request.
    ///
    /// # Errors
    /// [`ProtocolError`] for invalid input; the parser can't be used afterwards.
    pub fn next(&mut self, input: &[u8]) -> Result<Step, ProtocolError> {
        if self.missing == 0 {
            self.spans.clear();
            self.spans.shrink_to(KEPT_ARGUMENTS);
            match input.first() {
                None => return Ok(Step::Incomplete),
                Some(b'*') => {}
                Some(_) => return self.inline(input),
            }
            self.is_inline = false;
            let Some((begin, end)) =
                self.line(input, ProtocolError::LongArrayLine, ProtocolError::ArrayLength)?
            else {
                return Ok(Step::Incomplete);
            };
            let count = integer(&input[begin + 1..end]).ok_or(ProtocolError::ArrayLength)?;
            if count > MAX_ARGUMENTS as i64 {
                return Err(ProtocolError::ArrayLength);
            }
            if count <= 0 {
                return Ok(Step::Empty(self.finish()));
            }
            self.missing = count as usize;
        }
        while self.missing > 0 {
            let length = match self.length {
                Some(length) => length,
                None => {
                    let Some((begin, end)) =
                        self.line(input, ProtocolError::LongBulkLine, ProtocolError::BulkLength)?
                    else {
                        return Ok(Step::Incomplete);
                    };
                    let length = self.bulk_length(&input[begin..end])?;
                    self.length = Some(length);
                    length
                }
            };
            let end = self.parsed + length;
            match input.get(end..end + 2) {
                None => return Ok(Step::Incomplete),
                Some(b"\r\n") => {}
                Some(_) => return Err(ProtocolError::NoLineEnd),
            }
            self.spans.push((self.parsed as u32, end as u32));
            (self.parsed, self.length) = (end + 2, None);
            self.missing -= 1;
        }
        Ok(Step::Command(self.finish()))
    }

    /// Parses the line before an argument.
    fn bulk_length(&self, line: &[u8]) -> Result<usize, ProtocolError> {
        let digits = match line.split_first() {
            Some((b'$', digits)) => digits,
            other => return Err(ProtocolError::NoBulk(other.map_or(b'\r', |(first, _)| *first))),
        };
        let length = integer(digits).and_then(|length| usize::try_from(length).ok());
        let allowed = self.max_argument.min(MAX_COMMAND_BYTES - self.parsed.min(MAX_COMMAND_BYTES));
        length.filter(|length| *length <= allowed).ok_or(ProtocolError::BulkLength)
    }

    /// Returns the number of bytes of the parsed request, and begins the next one.
    fn finish(&mut self) -> usize {
        self.searched = 0;
        std::mem::take(&mut self.parsed)
    }

    /// Returns start and end of the line after the parsed bytes, without its CRLF; `None` if it isn't
    /// complete.
    fn line(
        &mut self,
        input: &[u8],
        too_long: ProtocolError,
        invalid: ProtocolError,
    ) -> Result<Option<(usize, usize)>, ProtocolError> {
        let begin = self.parsed;
        let searched = begin + self.searched;
        let found =
            input[searched..].iter().position(|byte| *byte == b'\r').map(|position| searched + position);
        let end = found.unwrap_or(input.len());
        if end - begin > MAX_LINE_BYTES {
            return Err(too_long);
        }
        self.searched = end - begin;
        match found.and_then(|end| input.get(end + 1)) {
            None => Ok(None),
            Some(b'\n') => {
                (self.parsed, self.searched) = (end + 2, 0);
                Ok(Some((begin, end)))
            }
            Some(_) => Err(invalid),
        }
    }

    fn inline(&mut self, input: &[u8]) -> Result<Step, ProtocolError> {
        let found = input[self.searched..]
            .iter()
            .position(|byte| *byte == b'\n')
            .map(|position| self.searched + position);
        let end = found.unwrap_or(input.len());
        if end > MAX_LINE_BYTES {
            return Err(ProtocolError::LongInline);
        }
        self.searched = end;
        if found.is_none() {
            return Ok(Step::Incomplete);
        }
        self.is_inline = true;
        self.words.clear();
        split_words(
            input[..end].strip_suffix(b"\r").unwrap_or(&input[..end]),
            &mut self.words,
            &mut self.spans,
        )?;
        self.parsed = end + 1;
        let bytes = self.finish();
        Ok(if self.spans.is_empty() { Step::Empty(bytes) } else { Step::Command(bytes) })
    }
}

/// Splits an inline command into words. A word may be in double quotes, with escapes as in C, or in single
/// quotes.
fn split_words(line: &[u8], words: &mut Vec<u8>, spans: &mut Vec<Span>) -> Result<(), ProtocolError> {
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0B | 0x0C);
    let mut rest = line;
    loop {
        let spaces = rest.iter().take_while(|byte| is_space(byte)).count();
        rest = &rest[spaces..];
        if rest.is_empty() {
            return Ok(());
        }
        let begin = words.len() as u32;
        let mut quote = None;
        loop {
            rest = match (quote, rest) {
                (None, []) => break,
                (Some(_), []) => return Err(ProtocolError::Quotes),
                (None, [space, ..]) if is_space(space) => break,
                (None, [mark @ (b'"' | b'\''), rest @ ..]) => {
                    quote = Some(*mark);
                    rest
                }
                (Some(b'"'), [b'\\', b'x', high, low, rest @ ..]) if hexadecimal(*high, *low).is_some() => {
                    words.extend(hexadecimal(*high, *low));
                    rest
                }
                (Some(b'"'), [b'\\', escaped, rest @ ..]) => {
                    words.push(match escaped {
                        b'n' => b'\n',
                        b'r' => b'\r',
                        b't' => b'\t',
                        b'b' => 0x08,
                        b'a' => 0x07,
                        other => *other,
                    });
                    rest
                }
                (Some(b'\''), [b'\\', b'\'', rest @ ..]) => {
                    words.push(b'\'');
                    rest
                }
                (Some(mark), [first, rest @ ..]) if mark == *first => {
                    if rest.first().is_some_and(|next| !is_space(next)) {
                        return Err(ProtocolError::Quotes);
                    }
                    quote = None;
                    rest
                }
                (_, [byte, rest @ ..]) => {
                    words.push(*byte);
                    rest
                }
            };
        }
        spans.push((begin, words.len() as u32));
    }
}

fn hexadecimal(high: u8, low: u8) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    Some((digit(high)? << 4 | digit(low)?) as u8)
}

/// Parses an integer as redis does: decimal digits with an optional minus, without leading zeros, spaces or a
/// plus.
pub fn integer(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let is_canonical = match digits {
        [b'0'] => text.len() == 1,
        [b'1'..=b'9', rest @ ..] => rest.len() < 19 && rest.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    is_canonical.then(|| std::str::from_utf8(text).ok()?.parse().ok())?
}

/// Appends a command, an array of bulk strings.
pub fn put_command(bytes: &mut Vec<u8>, words: &[&[u8]]) {
    put_words(bytes, words.len(), words);
}

/// Appends the beginning of a command of `count` words, with the first words.
pub fn put_words(bytes: &mut Vec<u8>, count: usize, words: &[&[u8]]) {
    put_length(bytes, b'*', count);
    for word in words {
        put_length(bytes, b'$', word.len());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
}

/// Appends the line with the number of words of a command (`*`), or of bytes of a word (`$`).
pub fn put_length(bytes: &mut Vec<u8>, kind: u8, length: usize) {
    bytes.push(kind);
    bytes.extend_from_slice(length.to_string().as_bytes());
    bytes.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests;
