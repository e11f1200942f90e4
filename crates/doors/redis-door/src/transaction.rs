//! `MULTI`, which the store doesn't support: the commands of a transaction are refused, so that it has no
//! effect.
//!
//! Clients send the commands after `MULTI` without waiting for its reply. So all commands up to `EXEC` or
//! `DISCARD` are refused, and `EXEC` replies as redis does after a command that couldn't be queued.

use crate::command::{Failure, is, wrong_arity};
use resp::Arguments;

const NOT_SUPPORTED: Failure = Failure::fixed(
    "ERR MULTI: transactions aren't supported; commands are refused until EXEC or DISCARD; use MSET, MSETNX, or commands without MULTI",
);
const REFUSED: Failure = Failure::fixed("ERR refused after MULTI: transactions aren't supported");
const NESTED: Failure = Failure::fixed("ERR MULTI calls can not be nested");
const ABORTED: Failure = Failure::fixed("EXECABORT Transaction discarded because of previous errors.");

/// State of a connection: whether it is between `MULTI` and `EXEC`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Transaction {
    is_open: bool,
}

impl Transaction {
    /// Returns the reply to a command that begins, ends or belongs to a transaction: `Ok` is the reply `OK`.
    /// `None` for a command that must be executed.
    pub fn answer(&mut self, arguments: Arguments<'_>) -> Option<Result<(), Failure>> {
        let name = arguments.at(0);
        let known = ["multi", "exec", "discard"].into_iter().find(|known| is(name, known));
        // QUIT and RESET also end the transaction.
        let passes = !self.is_open || ["quit", "reset"].iter().any(|ends| is(name, ends));
        let Some(known) = known else { return if passes { None } else { Some(Err(REFUSED)) } };
        if arguments.len() != 1 {
            return Some(Err(wrong_arity(known)));
        }
        let was_open = std::mem::replace(&mut self.is_open, known == "multi");
        Some(match (known, was_open) {
            ("multi", false) => Err(NOT_SUPPORTED),
            ("multi", true) => Err(NESTED),
            ("exec", false) => Err(Failure::fixed("ERR EXEC without MULTI")),
            ("exec", true) => Err(ABORTED),
            (_, false) => Err(Failure::fixed("ERR DISCARD without MULTI")),
            (_, true) => Ok(()),
        })
    }
}

/// Whether a command is part of an HTTP request: the first line of a `POST`, or the header `Host:`. Redis
/// closes such a connection: otherwise a web page could send commands in the body of a request.
pub fn is_http(name: &[u8]) -> bool {
    is(name, "post") || is(name, "host:")
}

/// Length of the inline commands at the start of `input`, up to the first command that is an array; `None` if
/// one of them [is HTTP](is_http). The last line may be incomplete.
pub fn inline_bytes(input: &[u8]) -> Option<usize> {
    let mut length = 0;
    for line in input.split_inclusive(|byte| *byte == b'\n') {
        if line.first() == Some(&b'*') {
            break;
        }
        let word = line.trim_ascii_start();
        let end = word.iter().position(u8::is_ascii_whitespace).unwrap_or(word.len());
        if is_http(&word[..end]) {
            return None;
        }
        length += line.len();
    }
    Some(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_http_are_found_among_inline_commands_only() {
        for attack in [
            "POST / HTTP/1.1\r\n",
            "post",
            " Host: x",
            "FLUSHALL\r\nHOST: localhost\r\n\r\n",
            "a\nb\npost\tx\n",
        ] {
            assert_eq!(inline_bytes(attack.as_bytes()), None, "{attack:?}");
        }
        let array = "*2\r\n$4\r\nECHO\r\n$6\r\nHost: \r\nPOST\r\n";
        for (innocent, length) in [
            ("", 0),
            ("GET host:\r\n", 11),
            ("POSTS x\r\nhost\r\n\r\n", 17),
            (array, 0),
            ("PING\r\n*1\r\nPOST\r\n", 6),
        ] {
            assert_eq!(inline_bytes(innocent.as_bytes()), Some(length), "{innocent:?}");
        }
    }
}
