//! Reads: from memory what isn't uploaded, and ranges of pieces otherwise.

use super::Core;
use crate::format::{chunk_range, object_length, verify};
use crate::names::{Name, PieceName};
use block::{Buffer, Data, Error, ReadOutcome, Result, ZoneAddress};
use std::ops::Range;
use std::rc::Rc;

/// Most bytes of a piece that are read with one request, a multiple of a chunk.
const MAX_READ: u64 = 1 << 20;
/// Attempts to read bytes whose checksum differs: they may have been damaged on the way.
const ATTEMPTS: u32 = 3;

/// Place of bytes.
enum Source {
    Memory(Vec<Data>),
    /// Bytes of a stored piece of `length` bytes.
    Stored {
        name: PieceName,
        length: u64,
        wanted: Range<u64>,
    },
}

impl Core {
    /// Fills the buffer with bytes of a zone.
    pub async fn read(self: Rc<Self>, at: ZoneAddress, buffer: Buffer) -> ReadOutcome {
        let sources = match self.sources(at, buffer.len() as u64) {
            Ok(sources) => sources,
            Err(error) => return (Err(error), buffer),
        };
        runtime::read_pieces(buffer, sources, |source, buffer| self.read_source(source, buffer)).await
    }

    /// Places of bytes of a zone, each with its number of bytes.
    fn sources(&self, at: ZoneAddress, length: u64) -> Result<Vec<(usize, Source)>> {
        if self.is_closed.get() {
            return Err(Error::closed("the zones are closed: open them again"));
        }
        self.geometry.check_read(at, length as usize)?;
        let zones = self.zones.borrow();
        let zone = &zones[at.zone.0 as usize];
        let (start, end) = (at.offset.0, at.offset.0 + length);
        if end > zone.write_pointer {
            return Err(Error::invalid(format!(
                "read of {length} bytes at {at}: no data was appended from byte {} on",
                zone.write_pointer
            )));
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
                let (length, offset) = (piece.length.into(), piece.offset);
                let name = PieceName {
                    zone: at.zone.0,
                    generation: entry.generation,
                    epoch: piece.epoch,
                    offset,
                    serial: piece.serial,
                };
                add(offset, length, &mut |wanted| Source::Stored { name, length, wanted }, MAX_READ);
            }
            entry.end()
        });
        for piece in zone.pending.iter().filter(|piece| piece.offset >= durable) {
            let (offset, length) = (piece.offset, piece.length);
            let name = self.name(zone, at.zone, offset, piece.serial);
            match &piece.sealed {
                Some(sealed) => {
                    let mut memory = |wanted: Range<u64>| {
                        Source::Memory(sealed.slices(wanted.start, wanted.end - wanted.start))
                    };
                    add(offset, length, &mut memory, length);
                }
                None => add(offset, length, &mut |wanted| Source::Stored { name, length, wanted }, MAX_READ),
            }
        }
        if let Some(gather) = &zone.gather {
            let mut memory =
                |wanted: Range<u64>| Source::Memory(gather.slices(wanted.start, wanted.end - wanted.start));
            add(gather.offset, gather.length(), &mut memory, gather.length());
        }
        match sources.iter().map(|(bytes, _)| *bytes as u64).sum::<u64>() == length {
            true => Ok(sources),
            false => Err(Error::invalid(format!("read of {length} bytes at {at}: the zone is being reset"))),
        }
    }

    async fn read_source(&self, source: Source, mut buffer: Buffer) -> ReadOutcome {
        let outcome = match source {
            Source::Memory(slices) => {
                slices.iter().for_each(|slice| buffer.append(slice));
                Ok(())
            }
            Source::Stored { name, length, wanted } => {
                self.read_stored(&name, length, wanted, &mut buffer).await
            }
        };
        (outcome, buffer)
    }

    async fn read_stored(
        &self,
        name: &PieceName,
        length: u64,
        wanted: Range<u64>,
        buffer: &mut Buffer,
    ) -> Result<()> {
        let range = chunk_range(length, wanted);
        let key = self.manifests.names.key(Name::Piece(*name));
        let mut attempt = 0;
        loop {
            attempt += 1;
            let object = self.manifests.store.get_range(&key, range.at, range.bytes).await;
            let object = match object {
                Err(Error::NotFound(text)) => {
                    let lost = "the object store has lost it";
                    return Err(self
                        .log
                        .check()
                        .err()
                        .unwrap_or_else(|| Error::corrupt(format!("{text}: {lost}"))));
                }
                // It has other bytes than its manifest says.
                Err(Error::Invalid(text)) => return Err(Error::corrupt(text)),
                other => other?,
            };
            buffer.clear();
            let expected = object_length(length);
            let verified = match object.length == expected {
                true => verify(&self.log.identity().volume, name, &range, object.data.filled(), |bytes| {
                    buffer.append(bytes);
                }),
                false => Err(Error::corrupt(format!("it has {} bytes; expected {expected}", object.length))),
            };
            match verified {
                Err(_) if attempt < ATTEMPTS => {}
                Err(error) => {
                    buffer.clear();
                    return Err(error.in_context(format!("object {key}")));
                }
                Ok(()) => return Ok(()),
            }
        }
    }
}
