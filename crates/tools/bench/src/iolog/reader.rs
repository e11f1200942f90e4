//! Requests of a log during a run, read one piece ahead, so that a replay seldom waits for the file.
//!
//! The log was checked before the run ([`survey`](super::survey)); a line that is invalid now ends the
//! replay.

use super::parser::Parser;
use super::{Entry, Log, Settings};
use block::{Buffer, Error, Result};
use runtime::JoinHandle;
use runtime::file::{File, OpenOptions};
use std::collections::VecDeque;

/// Bytes of one read of the file, whose lines are parsed between two requests.
const PIECE: usize = 32 << 10;

/// Log that is being replayed.
pub struct Reader {
    file: File,
    parser: Parser,
    /// Offset of the piece after the next one.
    offset: u64,
    ahead: Option<JoinHandle<(Result<usize>, Buffer)>>,
    requests: VecDeque<Entry>,
}

impl Reader {
    /// Opens the log on this shard.
    ///
    /// # Errors
    /// Errors of opening the file.
    pub async fn open(log: &Log, settings: &Settings) -> Result<Reader> {
        let file = File::open(&log.path, OpenOptions::default()).await?;
        let mut reader = Reader {
            file,
            parser: Parser::new(&log.name, settings),
            offset: 0,
            ahead: None,
            requests: VecDeque::new(),
        };
        reader.read_ahead(Buffer::new(PIECE));
        Ok(reader)
    }

    fn read_ahead(&mut self, buffer: Buffer) {
        let (file, offset) = (self.file.clone(), self.offset);
        self.ahead = Some(runtime::spawn(async move { file.read_at(offset, buffer).await }));
    }

    /// Removes the next request of those that were read.
    #[inline]
    pub fn take(&mut self) -> Option<Entry> {
        self.requests.pop_front()
    }

    /// Reads until there are requests. Returns false at the end of the log.
    ///
    /// # Errors
    /// Errors of reading, and [`Error::Invalid`] for an invalid line.
    pub async fn read_on(&mut self) -> Result<bool> {
        while self.requests.is_empty() {
            let Some(ahead) = self.ahead.take() else { return Ok(false) };
            let (result, buffer) = ahead.await;
            let count = result?;
            let (requests, mut problem) = (&mut self.requests, None);
            let mut take = |found| match found {
                Ok(entry) => requests.push_back(entry),
                Err(found) => problem = problem.take().or(Some(found)),
            };
            match count {
                0 => self.parser.end(&mut take),
                count => self.parser.feed(&buffer.filled()[..count], &mut take),
            }
            if let Some(problem) = problem {
                return Err(Error::invalid(problem.to_string()));
            }
            self.offset += count as u64;
            if count > 0 {
                self.read_ahead(Buffer::new(PIECE));
            }
        }
        Ok(true)
    }
}
