//! Reads: from memory what isn't uploaded, and ranges of pieces otherwise.
//!
//! # Promises
//! - Bytes are returned only if their checksum or seal fits them and their place.
//! - A range of a piece is read within [`LIMIT`], whatever the store does, again after failures that may pass
//!   and after damaged bytes. The responses of all reads at the same time have a limit of memory.
//! - Pieces that were merged during a read are looked for again.
//! - An object is reported as damaged only if it is missing or has another length, or its bytes are wrong.
//!
//! Left to others: compressed pieces (`compressed`), checksums (`format`).

use super::{Core, closed};
use crate::compression::{Index, Size};
use crate::format::{ChunkRange, chunk_range, verify};
use crate::names::{Name, PieceName};
use crate::retry::Pause;
use crate::seal::Sealer;
use block::{Buffer, Data, Error, ReadOutcome, Result, ZoneAddress, ZoneIndex};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;
use zones::errors::exceeds_write_pointer;

/// Most bytes of a piece that are read with one request, a multiple of a chunk.
pub(crate) const MAX_READ: u64 = 1 << 20;
/// Attempts to read bytes whose checksum differs: the network may have damaged them.
const ATTEMPTS: u32 = 3;
/// Time limit of a read from a store that fails. The client ends earlier when other requests have used up its
/// retry budget.
const LIMIT: Duration = Duration::from_secs(120);

/// Place of bytes.
enum Source {
    Memory(Vec<Data>),
    /// Bytes of a stored piece.
    Stored {
        name: PieceName,
        size: Size,
        wanted: Range<u64>,
    },
}

/// Object of a stored piece.
pub(super) struct Object<'o> {
    pub name: &'o PieceName,
    pub size: Size,
    pub zone_key: Option<&'o Sealer>,
    pub key: String,
}

impl Core {
    /// Fills the buffer with bytes of a zone.
    pub async fn read(self: Rc<Self>, at: ZoneAddress, mut buffer: Buffer) -> ReadOutcome {
        let mut attempts = 0;
        loop {
            let changes = self.merging.changes.get();
            let sources = match self.sources(at, buffer.len() as u64) {
                Ok(sources) => sources,
                Err(error) => return (Err(error), buffer),
            };
            let read = |source, buffer| self.read_source(source, buffer);
            let (outcome, filled) = runtime::read_pieces(buffer, sources, read).await;
            attempts += 1;
            // Pieces that were merged since are deleted a grace later, and a read may take longer.
            let is_again = matches!(outcome, Err(Error::Corrupt(_)))
                && self.merging.changes.get() != changes
                && attempts < ATTEMPTS;
            if !is_again {
                return (outcome, filled);
            }
            buffer = filled;
        }
    }

    /// Places of bytes of a zone, each with its number of bytes.
    fn sources(&self, at: ZoneAddress, length: u64) -> Result<Vec<(usize, Source)>> {
        if self.is_closed.get() {
            return Err(closed());
        }
        self.geometry.check_read(at, length as usize)?;
        let zones = self.zones.borrow();
        let zone = &zones[at.zone.0 as usize];
        let (start, end) = (at.offset.0, at.offset.0 + length);
        if end > zone.write_pointer {
            return Err(exceeds_write_pointer(at, length as usize, zone.write_pointer));
        }
        let mut sources = Vec::new();
        let mut add = |offset: u64, bytes: u64, source: &mut dyn FnMut(Range<u64>) -> Source, unit: u64| {
            let (mut from, to) = (start.max(offset), end.min(offset + bytes));
            while from < to {
                let next = (offset + ((from - offset) / unit + 1) * unit).min(to);
                sources.push(((next - from) as usize, source(from - offset..next - offset)));
                from = next;
            }
        };
        let durable = self.log.with_table(|table| {
            let entry = &table.zones[at.zone.0 as usize];
            let first = entry.pieces.partition_point(|piece| piece.offset + u64::from(piece.length) <= start);
            for piece in entry.pieces[first..].iter().take_while(|piece| piece.offset < end) {
                let (size, offset) = (piece.size(), piece.offset);
                let name = PieceName {
                    zone: at.zone.0,
                    generation: entry.generation,
                    epoch: piece.epoch,
                    offset,
                    serial: piece.serial,
                };
                add(offset, size.length, &mut |wanted| Source::Stored { name, size, wanted }, MAX_READ);
            }
            entry.end()
        });
        for piece in zone.pending.iter().filter(|piece| piece.offset >= durable) {
            let (offset, size, length) = (piece.offset, piece.size(), piece.length);
            let name = self.name(zone, at.zone, offset, piece.serial);
            match &piece.ended {
                Some(ended) => {
                    let mut memory = |wanted: Range<u64>| {
                        Source::Memory(ended.slices(wanted.start, wanted.end - wanted.start))
                    };
                    add(offset, length, &mut memory, length);
                }
                None => add(offset, length, &mut |wanted| Source::Stored { name, size, wanted }, MAX_READ),
            }
        }
        if let Some(piece) = &zone.open_piece {
            let mut memory =
                |wanted: Range<u64>| Source::Memory(piece.slices(wanted.start, wanted.end - wanted.start));
            add(piece.offset, piece.length(), &mut memory, piece.length());
        }
        match sources.iter().map(|(bytes, _)| *bytes as u64).sum::<u64>() == length {
            true => Ok(sources),
            false => Err(Error::invalid(format!(
                "read of {length} bytes at {at}: the zone is being reset from generation {}; expected reads of zones with data: read it \
                 after the next appends",
                zone.generation
            ))),
        }
    }

    async fn read_source(&self, source: Source, mut buffer: Buffer) -> ReadOutcome {
        let outcome = match source {
            Source::Memory(slices) => {
                slices.iter().for_each(|slice| buffer.append(slice));
                Ok(())
            }
            Source::Stored { name, size, wanted } => {
                match self.zone_key(ZoneIndex(name.zone), name.generation) {
                    Ok(key) => self.read_stored(&name, key.as_deref(), size, wanted, &mut buffer).await,
                    Err(error) => Err(error),
                }
            }
        };
        (outcome, buffer)
    }

    /// Reads bytes of a stored piece with the key of its zone, again after failures that may pass.
    pub(crate) async fn read_stored(
        &self,
        name: &PieceName,
        zone_key: Option<&Sealer>,
        size: Size,
        wanted: Range<u64>,
        buffer: &mut Buffer,
    ) -> Result<()> {
        let object = Object { name, size, zone_key, key: self.manifests.names.key(Name::Piece(*name)) };
        let key = &object.key;
        let (end, mut damaged, mut pause) = (runtime::now() + LIMIT, 0, Pause::new());
        loop {
            buffer.clear();
            let read = async {
                if size.is_compressed() {
                    return self.read_compressed(&object, wanted.clone(), buffer).await;
                }
                let range = chunk_range(size.length, wanted.clone(), zone_key.is_some());
                self.read_range(&object, None, &range, buffer).await
            };
            let error = match runtime::timeout(end - runtime::now(), read).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) => error,
                Err(_) => Error::timed_out(format!("object {key}: not read within {LIMIT:?}")),
            };
            let is_again = match &error {
                Error::Corrupt(_) => {
                    damaged += 1;
                    damaged < ATTEMPTS
                }
                error
                    if may_pass(error) && !self.is_closed.get() && runtime::now() + pause.length() < end =>
                {
                    pause.wait().await;
                    true
                }
                _ => false,
            };
            if !is_again {
                buffer.clear();
                return Err(error);
            }
        }
    }

    /// Reads chunks of a stored piece, which is compressed if there is an index.
    ///
    /// # Errors
    /// As [`fetch`](Self::fetch).
    pub(super) async fn read_range(
        &self,
        object: &Object<'_>,
        index: Option<&Index>,
        range: &ChunkRange,
        buffer: &mut Buffer,
    ) -> Result<()> {
        let _memory = self.reads.acquire(range.bytes).await;
        let mut data = self.fetch(object, range.at, range.bytes).await?;
        self.verify(object, index, range, data.filled_mut(), buffer)
    }

    /// Appends the wanted bytes of a range to the buffer, if they are those that were written.
    pub(super) fn verify(
        &self,
        object: &Object<'_>,
        index: Option<&Index>,
        range: &ChunkRange,
        bytes: &mut [u8],
        buffer: &mut Buffer,
    ) -> Result<()> {
        let (volume, keys) = (&self.log.identity().volume, (index, object.zone_key));
        let verified = verify(volume, object.name, range, keys, bytes, |bytes| buffer.append(bytes));
        verified.map_err(|error| error.in_context(format!("object {}", object.key)))
    }

    /// Reads bytes of an object.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the object has another length, or is missing; errors of the store.
    pub(super) async fn fetch(&self, object: &Object<'_>, at: u64, bytes: usize) -> Result<Buffer> {
        let (key, expected) = (&object.key, object.size.object(object.zone_key.is_some()));
        let found = match self.manifests.store.get_range(key, at, bytes).await {
            Err(error @ (Error::NotFound(_) | Error::Invalid(_))) => {
                return Err(self.refused(key, expected, error).await);
            }
            other => other?,
        };
        match found.length == expected {
            true => Ok(found.data),
            false => Err(other_length(key, found.length, expected)),
        }
    }

    /// Error of a read that the store has refused. The object is damaged only if it is missing, or has
    /// another length: stores refuse expired credentials and other requests with the same statuses.
    async fn refused(&self, key: &str, expected: u64, refusal: Error) -> Error {
        let detail = refusal.detail().to_owned();
        if detail.contains("NoSuchBucket") {
            return refusal;
        }
        match self.manifests.store.head(key).await {
            Err(error) => error,
            Ok(None) if self.is_reader.get() => Error::not_found(format!(
                "{detail}: its writer has deleted it since the manifest that is read here, or the store has lost it; a newer \
                 manifest tells"
            )),
            // A writer that was fenced has no claim to it.
            Ok(None) => self
                .log
                .check()
                .err()
                .unwrap_or_else(|| Error::corrupt(format!("{detail}: the object store has lost it"))),
            Ok(Some(found)) if found.length != expected => other_length(key, found.length, expected),
            Ok(Some(_)) => Error::io(format!("{detail}: the object is there")),
        }
    }
}

fn other_length(key: &str, found: u64, expected: u64) -> Error {
    Error::corrupt(format!("object {key}: it has {found} bytes; expected {expected}"))
}

/// Whether a later attempt may succeed.
fn may_pass(error: &Error) -> bool {
    matches!(error, Error::Io(_) | Error::TimedOut(_) | Error::Disconnected(_) | Error::Os(..))
}
