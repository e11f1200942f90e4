//! Reads of data that only the origin has, through the read cache.
//!
//! Steps of a read:
//! 1. It is divided into pieces: chunks of the cache, fetches in flight, missing chunks, and bytes that the
//!    cache doesn't admit.
//! 2. Missing chunks are fetched together. A sequential read also fetches chunks ahead of it.
//! 3. A chunk of the cache is verified. If its bytes are wrong, or can't be read, the origin is read.
//! 4. The fetched bytes complete the reads that wait for them, and are written to the fast device. A chunk
//!    enters the index after that, if its zone still has the same generation.
//!
//! A failure of the fast device costs a read of the origin, and nothing else. `read_cache` decides; this
//! module does the I/O.

use crate::core::Core;
use crate::format::Zone;
use crate::read_cache::{Ahead, Fetch, Part, Source, Sums, ZoneEnd};
use block::{Buffer, Data, Durability, Error, Payload, ReadOutcome, Result, ZoneAddress, ZoneIndex};
use std::rc::Rc;
use zones::record::keyed_sum;

impl Core {
    /// Reads data that isn't in the log, from the read cache or from the origin.
    pub async fn read_through_cache(self: &Rc<Self>, at: ZoneAddress, buffer: Buffer) -> ReadOutcome {
        if self.read_cache.region().is_none() || self.health.is_closing() {
            return self.read_origin(at, buffer).await;
        }
        let zone = self.zone_end(at.zone);
        let plan = self.read_cache.plan(zone, at.offset.0, buffer.len() as u64);
        plan.fetches.into_iter().for_each(|fetch| self.start_fetch(fetch));
        if let Some(ahead) = plan.ahead {
            self.read_ahead(zone, ahead);
        }
        let mut pieces = plan.pieces;
        if pieces.len() == 1
            && let Some((_, source)) = pieces.pop()
        {
            return self.read_piece(at, source, buffer).await;
        }
        let mut offset = at.offset.0;
        let pieces = pieces.into_iter().map(|(bytes, source)| {
            let place = ZoneAddress::new(at.zone.0, offset);
            offset += bytes as u64;
            (bytes, (place, source))
        });
        runtime::read_pieces(buffer, pieces, |(place, source), buffer| self.read_piece(place, source, buffer))
            .await
    }

    /// State of a zone: bytes below its end in the cut are durable at the origin.
    fn zone_end(&self, index: ZoneIndex) -> ZoneEnd {
        let Zone { generation, .. } = self.local.borrow().zone(index);
        let cut = self.cut.borrow().zone(index);
        let durable = if cut.generation == generation { cut.write_pointer } else { 0 };
        ZoneEnd { zone: index, generation, durable }
    }

    async fn read_piece(self: &Rc<Self>, at: ZoneAddress, source: Source, mut buffer: Buffer) -> ReadOutcome {
        match source {
            Source::Origin => self.read_origin(at, buffer).await,
            Source::Slot(part) => self.read_slot(at, part, buffer).await,
            Source::Fetch(fetch, skipped) => match fetch.outcome().await {
                Ok(data) => {
                    buffer.append(&data[skipped..skipped + buffer.len()]);
                    (Ok(()), buffer)
                }
                // A repetition wouldn't reach the origin either.
                Err(error @ Error::Closed(_)) => (Err(error), buffer),
                Err(error) if is_unreachable(&error) && !fetch.is_ahead => (Err(error), buffer),
                // The error may concern bytes of the fetch outside of this read.
                Err(_) => self.read_origin(at, buffer).await,
            },
        }
    }

    /// Reads a part of a cached chunk; from the origin if the fast device fails or has other bytes.
    async fn read_slot(self: &Rc<Self>, at: ZoneAddress, part: Part, buffer: Buffer) -> ReadOutcome {
        let mut reading = Reading { core: self, part, is_good: true };
        let (outcome, mut buffer) = self.read_units(&reading.part, buffer).await;
        reading.is_good = outcome.is_ok();
        drop(reading);
        match outcome {
            Ok(()) => (Ok(()), buffer),
            Err(error) => {
                tracing::warn!(
                    "the read cache of a write cache of zones: {error}; the origin is read instead"
                );
                buffer.clear();
                self.read_origin(at, buffer).await
            }
        }
    }

    /// Reads the units that have a part of a chunk, and verifies them.
    async fn read_units(&self, part: &Part, mut buffer: Buffer) -> ReadOutcome {
        let Some(region) = self.read_cache.region() else {
            return (Err(Error::invalid("no read cache")), buffer);
        };
        let from = part.bytes.start / region.unit * region.unit;
        let to = part.bytes.end.next_multiple_of(region.unit).min(part.length);
        let (place, whole) = (region.block(part.slot, from), region.whole_blocks(to - from));
        let is_direct = (from, to) == (part.bytes.start, part.bytes.end) && whole == to - from;
        let (outcome, read) = match is_direct {
            true => self.fast.read(place, buffer).await,
            false => {
                let (outcome, read) = self.fast.read(place, Buffer::new(whole as usize)).await;
                if outcome.is_ok() {
                    let (first, last) = (part.bytes.start - from, part.bytes.end - from);
                    buffer.append(&read.filled()[first as usize..last as usize]);
                }
                let verified = outcome.and_then(|()| self.verify(part, from, to, read.filled()));
                return (verified, buffer);
            }
        };
        let verified = outcome.and_then(|()| self.verify(part, from, to, read.filled()));
        (verified, read)
    }

    /// Compares the bytes `from` to `to` of a chunk with their checksums.
    fn verify(&self, part: &Part, from: u64, to: u64, bytes: &[u8]) -> Result<()> {
        let unit = self.read_cache.region().map_or(1, |region| region.unit);
        let sums = sums(self.superblock.get().identity.key, unit, &bytes[..(to - from) as usize]);
        let first = (from / unit) as usize;
        let units = (to - from).div_ceil(unit) as usize;
        match sums[..units] == part.sums[first..first + units] {
            true => Ok(()),
            false => {
                Err(Error::corrupt(format!("bytes {from} to {to} of slot {}: wrong checksum", part.slot)))
            }
        }
    }

    /// Fetches chunks ahead of a sequential read that neither the cache nor the log has.
    fn read_ahead(self: &Rc<Self>, zone: ZoneEnd, ahead: Ahead) {
        let is_held =
            |at, length| self.index.borrow().pieces(at, length).iter().all(|piece| piece.address.is_some());
        let fetches = self.read_cache.begin_ahead(zone, ahead, is_held);
        fetches.into_iter().for_each(|fetch| self.start_fetch(fetch));
    }

    fn start_fetch(self: &Rc<Self>, fetch: Rc<Fetch>) {
        self.tasks.spawn(self.clone().fetch(fetch)).detach();
    }

    /// Carries out a fetch.
    async fn fetch(self: Rc<Self>, fetch: Rc<Fetch>) {
        let (outcome, buffer) = self.read_origin(fetch.at, Buffer::new(fetch.length as usize)).await;
        let outcome = outcome.and_then(|()| match self.is_current(&fetch) {
            true => Ok(buffer.freeze()),
            false => Err(Error::invalid(format!("zone {} was reset while it was read", fetch.at.zone))),
        });
        fetch.finish(outcome.clone());
        self.fill(&fetch, outcome.ok()).await;
        self.read_cache.end_fetch(&fetch);
    }

    /// Whether the zone of a fetch still has its generation; as long as it has, so has the origin.
    fn is_current(&self, fetch: &Fetch) -> bool {
        self.local.borrow().zone(fetch.at.zone).generation == fetch.generation
    }

    /// Writes the chunks of a fetch to the fast device.
    async fn fill(&self, fetch: &Fetch, data: Option<Data>) {
        let Some(region) = self.read_cache.region() else { return };
        let (mut at, end) = (0, fetch.length);
        while at < end {
            let length = region.chunk.min(end - at);
            let start = fetch.at.offset.0 + at;
            let bytes = data.as_ref().map(|data| data.slice(at as usize..(at + length) as usize));
            let is_admitted = match bytes {
                Some(bytes) => self.fill_chunk(fetch, start, bytes).await,
                None => false,
            };
            if !is_admitted {
                self.read_cache.drop_chunk(fetch, start, length);
            }
            at += length;
        }
    }

    /// Writes a chunk to a slot, and enters it into the index. Returns whether it was admitted.
    async fn fill_chunk(&self, fetch: &Fetch, start: u64, bytes: Data) -> bool {
        let is_possible =
            !self.health.is_closing() && self.health.check_device().is_ok() && self.is_current(fetch);
        let Some(region) = self.read_cache.region().filter(|_| is_possible) else { return false };
        let Some(slot) = self.read_cache.take_slot() else { return false };
        let length = bytes.len() as u64;
        let sums = sums(self.superblock.get().identity.key, region.unit, &bytes);
        let mut payload = Payload::from(bytes);
        let missing = region.whole_blocks(length) - length;
        if missing > 0 {
            payload.push(Buffer::zeroed(missing as usize).freeze());
        }
        let written = self.fast.write(region.block(slot, 0), payload, Durability::Visible).await;
        match written {
            Err(error) => {
                tracing::warn!(
                    "the read cache of a write cache of zones, slot {slot}: {error}; it isn't used until the next open"
                );
                self.read_cache.retire_slot();
                false
            }
            Ok(()) if self.is_current(fetch) => {
                self.read_cache.admit(fetch, start, length, slot, sums);
                true
            }
            Ok(()) => {
                self.read_cache.release_slot(slot);
                false
            }
        }
    }
}

/// Whether this is an error of an origin that doesn't answer.
fn is_unreachable(error: &Error) -> bool {
    matches!(error, Error::Disconnected(_) | Error::TimedOut(_))
}

/// Checksums of consecutive units of a chunk.
fn sums(key: u64, unit: u64, bytes: &[u8]) -> Sums {
    let mut sums = Sums::default();
    for (sum, unit) in sums.iter_mut().zip(bytes.chunks(unit as usize)) {
        *sum = keyed_sum(key, &[unit]);
    }
    sums
}

/// A read of a chunk in flight.
struct Reading<'a> {
    core: &'a Core,
    part: Part,
    is_good: bool,
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.core.read_cache.end_read(&self.part, self.is_good);
    }
}
