//! The root of a log: its identity, the newest checkpoint, and where earlier lives of the log ended.
//!
//! Roots are records of the stream [`ROOT`] with nothing but meta, numbered, in zones 0 and 1 in turn. The valid one
//! with the highest number counts.

use crate::format::{REPLAYED, ROOT};
use crate::layout::Layout;
use crate::map::Physical;
use block::{BlockSize, Buffer, Error, Result, ZoneAddress, ZoneIndex, ZoneReport, ZoneState, Zones};
use zerocopy::little_endian::U64;
use zones::bytes::{Reader, Writer};
use zones::on_device::format::Uuid;
use logkit::record::{Header, Identity, Parsed};

/// The version of the log's format that this code writes and reads.
pub const VERSION: u32 = 1;
/// The version of a log whose map is at a home of its own: what doesn't know of homes doesn't read it.
pub const VERSION_AT_HOME: u32 = 2;
const MAGIC: &[u8; 8] = b"SILTLOG1";
/// The most epochs that a root remembers: a log that ended uncleanly so often without a checkpoint in between takes one
/// when it is opened.
pub const MOST_EPOCHS: usize = 32;
/// The most pieces that a directory is written in.
pub const MOST_PIECES: usize = 96;

/// Where an earlier life of the log ended: its records above these numbers don't count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Boundary {
    /// The life.
    pub epoch: u64,
    /// The last record of each stream that counts.
    pub last: [u64; REPLAYED],
}

/// A piece of the directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Its first block.
    pub physical: Physical,
    /// How many blocks it has.
    pub blocks: u32,
    /// CRC32C of the blocks.
    pub sum: u32,
}

/// What a root says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root {
    /// The log.
    pub identity: Identity,
    /// The shape that it was made with.
    pub block_size: BlockSize,
    /// See `block_size`.
    pub zone_blocks: u32,
    /// See `block_size`.
    pub zones: u32,
    /// How often the log has been opened.
    pub epoch: u64,
    /// Whether it was closed cleanly: the checkpoint is all there is.
    pub clean: bool,
    /// The checkpoint has everything up to these records.
    pub covered: [u64; REPLAYED],
    /// The last number in the stream of checkpoints.
    pub checkpoint: u64,
    /// The clock at the checkpoint.
    pub clock: u64,
    /// Earlier lives since the checkpoint, oldest first.
    pub boundaries: Vec<Boundary>,
    /// How long the directory is, in bytes.
    pub directory_length: u64,
    /// Where it is.
    pub directory: Vec<Piece>,
    /// The map is at a home of its own: the oldest transaction of it that the log can be opened with. Then there is no
    /// directory, and what is covered is said there.
    pub home: Option<u64>,
}

impl Root {
    /// As the meta of a record.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.put(MAGIC);
        writer.u32(if self.home.is_some() { VERSION_AT_HOME } else { VERSION });
        writer.u32(self.block_size.bytes() as u32);
        writer.put(self.identity.uuid.as_bytes());
        writer.u64(self.identity.key);
        writer.u32(self.zone_blocks);
        writer.u32(self.zones);
        writer.u64(self.epoch);
        writer.u32(self.clean.into());
        writer.put(&self.covered.map(U64::new));
        writer.u64(self.checkpoint);
        writer.u64(self.clock);
        writer.u32(self.boundaries.len() as u32);
        for boundary in &self.boundaries {
            writer.u64(boundary.epoch);
            writer.put(&boundary.last.map(U64::new));
        }
        writer.u64(self.directory_length);
        writer.u32(self.directory.len() as u32);
        for piece in &self.directory {
            writer.u32(piece.physical.0);
            writer.u32(piece.blocks);
            writer.u32(piece.sum);
        }
        self.home.iter().for_each(|sequence| writer.u64(*sequence));
        writer.0
    }

    /// From the meta of a record, which may be anything.
    ///
    /// # Errors
    /// [`Error::Protocol`] for another version, [`Error::Corrupt`] for what no version of this program writes.
    pub fn decode(meta: &[u8]) -> Result<Root> {
        let mut reader = Reader::new(meta, "the root of a log");
        if reader.bytes(8)? != MAGIC {
            return Err(Error::protocol("no root of a log"));
        }
        let version = reader.u32()?;
        if version != VERSION && version != VERSION_AT_HOME {
            return Err(Error::protocol(format!(
                "a log of version {version} of the format; this program reads versions {VERSION} and {VERSION_AT_HOME}: use \
                 the program that wrote it, or make the log anew, which loses what is there"
            )));
        }
        let block_size = BlockSize::new(u64::from(reader.u32()?))?;
        let identity = Identity { uuid: Uuid::from_bytes(*reader.take()?), key: reader.u64()? };
        let (zone_blocks, zones) = (reader.u32()?, reader.u32()?);
        let (epoch, clean) = (reader.u64()?, reader.u32()? != 0);
        let covered = reader.u64s()?;
        let (checkpoint, clock) = (reader.u64()?, reader.u64()?);
        let mut boundaries = Vec::new();
        for _ in 0..reader.count(8 + 8 * REPLAYED)? {
            boundaries.push(Boundary { epoch: reader.u64()?, last: reader.u64s()? });
        }
        let directory_length = reader.u64()?;
        let mut directory = Vec::new();
        for _ in 0..reader.count(12)? {
            let (physical, blocks, sum) = (Physical(reader.u32()?), reader.u32()?, reader.u32()?);
            directory.push(Piece { physical, blocks, sum });
        }
        let home = if version == VERSION_AT_HOME { Some(reader.u64()?) } else { None };
        Ok(Root {
            identity,
            block_size,
            zone_blocks,
            zones,
            epoch,
            clean,
            covered,
            checkpoint,
            clock,
            boundaries,
            directory_length,
            directory,
            home,
        })
    }

    /// Whether a record may count: it is of this life, or was within an earlier one.
    pub fn admits(&self, header: &Header) -> bool {
        let stream = usize::from(header.stream.0);
        if header.epoch == self.epoch {
            return self.boundaries.last().is_none_or(|before| header.sequence > before.last[stream]);
        }
        let Some(number) = self.boundaries.iter().position(|boundary| boundary.epoch == header.epoch) else {
            return false;
        };
        let above = number.checked_sub(1).map_or(0, |before| self.boundaries[before].last[stream]);
        header.sequence > above && header.sequence <= self.boundaries[number].last[stream]
    }
}

/// The newest root, and where the next one goes.
#[derive(Debug, Clone)]
pub struct FoundRoot {
    /// What it says.
    pub root: Root,
    /// Its number.
    pub number: u64,
    /// The zone that it stands in; the next one goes to the other.
    pub zone: u32,
}

/// Reads the roots of a log.
///
/// # Errors
/// [`Error::Protocol`] where there is no log, or one of another version; [`Error::Corrupt`] where both root zones are
/// damaged; what reading says.
pub async fn find(zones: &dyn Zones) -> Result<FoundRoot> {
    let reports = zones.report(ZoneIndex(0), crate::layout::ROOT_ZONES).await?;
    let mut newest: Option<FoundRoot> = None;
    let mut reasons = Vec::new();
    for report in reports {
        if report.state == ZoneState::Offline {
            // The newest root may be there, and the next one would have to go there.
            crate::scan::refuse_offline(zones, report.zone).await?;
        }
        match find_in(zones, &report).await {
            Ok(found) if newest.as_ref().is_none_or(|newest| newest.number < found.number) => {
                newest = Some(found);
            }
            Ok(_) => {}
            // The root there may be the newest: an older one must not take its place because of this.
            Err(error @ Error::Io(_)) => return Err(error),
            Err(error) => reasons.push(error),
        }
    }
    if let Some(newest) = newest {
        return Ok(newest);
    }
    // A reason that says something, before one that only says that nothing is there.
    let telling = reasons.iter().find(|error| !is_nothing(error)).cloned();
    Err(telling.unwrap_or_else(|| {
        Error::protocol("the zones hold no log: if what is there may go, make one with --format")
    }))
}

fn is_nothing(error: &Error) -> bool {
    matches!(error, Error::NotFound(_))
}

/// The last valid root of one zone.
async fn find_in(zones: &dyn Zones, report: &ZoneReport) -> Result<FoundRoot> {
    let unit = zones.geometry().read_granularity.max(4096) as usize;
    let mut found = None;
    let mut reason = Error::not_found("no root");
    let mut at = 0;
    // The block size of the log is known once the first root was read.
    let mut block = unit;
    while report.state != ZoneState::Empty && at + block as u64 <= report.write_pointer {
        let address = ZoneAddress { zone: report.zone, offset: block::ByteOffset(at) };
        let (outcome, buffer) = zones.read(address, Buffer::new(block)).await;
        outcome.map_err(|error| error.in_context("reading the roots of the log"))?;
        let parsed =
            Parsed::decode_with(buffer.filled(), |meta| Root::decode(meta).map(|root| root.identity));
        let root = parsed.and_then(|(parsed, _)| {
            let root = Root::decode(parsed.meta)?;
            let position = (at / root.block_size.bytes()) as u32;
            parsed.check_place(report.zone.0, report.generation, position)?;
            let is_of_the_same_log = |found: &FoundRoot| found.root.identity == root.identity;
            match parsed.header.stream == ROOT && found.as_ref().is_none_or(is_of_the_same_log) {
                true => Ok((root, parsed.header.sequence)),
                false => Err(Error::protocol("no root of this log")),
            }
        });
        match root {
            Ok((root, number)) => {
                block = root.block_size.bytes() as usize;
                found = Some(FoundRoot { root, number, zone: report.zone.0 });
            }
            Err(error) => {
                if !matches!(&error, Error::Protocol(detail) if !detail.contains("version")) {
                    reason = error;
                }
                break;
            }
        }
        at += block as u64;
    }
    found.ok_or(reason)
}

/// Number of roots for which a zone has space ahead, where the medium below takes space when it is first written.
pub const ROOTS_AHEAD: u32 = 16;

/// Writes roots.
#[derive(Debug)]
pub struct RootWriter {
    /// The zone of the newest root that is durable. It is never reset here.
    newest: u32,
    /// Where the next root goes: the rest of a zone that this writer has reset.
    open: Option<Open>,
    number: u64,
}

#[derive(Debug, Clone, Copy)]
struct Open {
    zone: u32,
    generation: u64,
    position: u32,
    /// Before this block the medium has space for roots.
    reserved: u32,
}

impl RootWriter {
    /// Behind the newest root. The other zone is reset before the next root is written.
    pub fn behind(found: &FoundRoot) -> Self {
        RootWriter { newest: found.zone, open: None, number: found.number }
    }

    /// For a log that is being made: before the first root.
    pub fn first() -> Self {
        RootWriter { newest: 1, open: None, number: 0 }
    }

    /// Makes sure that there is space for the next root.
    ///
    /// # Errors
    /// [`Error::NoSpace`] where there is none; no root was written then, and the newest one is authoritative.
    pub async fn prepare(&mut self, zones: &dyn Zones, layout: &Layout) -> Result<()> {
        let mut open = match self.open {
            Some(open) if open.position < layout.zone_blocks => open,
            _ => self.reset_other(zones).await?,
        };
        let left = open.reserved.saturating_sub(open.position);
        if left < ROOTS_AHEAD / 2 && open.reserved < layout.zone_blocks {
            let bytes = u64::from(ROOTS_AHEAD) << layout.block_size.shift();
            match zones.reserve(ZoneIndex(open.zone), bytes).await {
                Ok(()) => open.reserved = open.position + ROOTS_AHEAD,
                Err(error @ Error::NoSpace(_)) if open.position >= open.reserved => {
                    self.open = Some(open);
                    return Err(error.in_context("the next root of the log"));
                }
                // There is space for this one.
                Err(_) => {}
            }
        }
        self.open = Some(open);
        Ok(())
    }

    /// Writes a root, durably.
    ///
    /// # Errors
    /// What appending, flushing and resetting say. The newest root that is durable then is this one or the one before.
    pub async fn write(&mut self, zones: &dyn Zones, layout: &Layout, root: &Root) -> Result<()> {
        // After a failure the place isn't used again, and the zone is reset before it is.
        let open = match self.open.take() {
            Some(open) if open.position < layout.zone_blocks => open,
            _ => self.reset_other(zones).await?,
        };
        let header = Header {
            stream: ROOT,
            class: 0,
            epoch: root.epoch,
            sequence: self.number + 1,
            after: 0,
            durable: self.number,
            clock: root.clock,
            zone: open.zone,
            generation: open.generation,
            position: open.position,
            blocks: 0,
        };
        let meta = root.encode();
        let mut block = Buffer::zeroed(layout.block_bytes());
        header.encode(&root.identity, &[], &meta, block.filled_mut());
        let zone = ZoneIndex(open.zone);
        let landed = zones.append(zone, block.into()).await?;
        if landed != layout.address(open.zone, open.position) {
            return Err(Error::io(format!(
                "a root landed at {landed}, expected block {} of zone {zone}",
                open.position
            )));
        }
        zones.flush(&[zone]).await?;
        self.number += 1;
        self.newest = open.zone;
        self.open = Some(Open { position: open.position + 1, ..open });
        Ok(())
    }

    async fn reset_other(&self, zones: &dyn Zones) -> Result<Open> {
        let zone = 1 - self.newest;
        let report = zones.report(ZoneIndex(zone), 1).await?.first().copied();
        let generation = match report {
            Some(report) if report.state == ZoneState::Empty => report.generation,
            _ => zones.reset(ZoneIndex(zone), block::EraseGuarantee::None).await?,
        };
        Ok(Open { zone, generation, position: 0, reserved: 0 })
    }

    /// The number of the newest root.
    pub fn number(&self) -> u64 {
        self.number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> Root {
        Root {
            identity: Identity { uuid: Uuid::from_bytes([3; 16]), key: 4 },
            block_size: BlockSize::default(),
            zone_blocks: 15,
            zones: 20,
            epoch: 5,
            clean: true,
            covered: [10, 20],
            checkpoint: 30,
            clock: 40,
            boundaries: vec![Boundary { epoch: 3, last: [12, 22] }, Boundary { epoch: 4, last: [15, 22] }],
            directory_length: 100,
            directory: vec![Piece { physical: Physical(7), blocks: 1, sum: 9 }],
            home: None,
        }
    }

    #[test]
    fn what_was_written_is_read() {
        assert_eq!(Root::decode(&root().encode()), Ok(root()));
        let bytes = root().encode();
        assert_eq!(logkit::record::sum_of(&bytes), 2_840_149_555, "the bytes of version {VERSION}");
        (0..bytes.len()).for_each(|length| assert!(Root::decode(&bytes[..length]).is_err()));
        let at_home = Root { home: Some(77), ..root() };
        assert_eq!(Root::decode(&at_home.encode()), Ok(at_home.clone()));
        let bytes = at_home.encode();
        (0..bytes.len()).for_each(|length| assert!(Root::decode(&bytes[..length]).is_err()));
    }

    #[test]
    fn the_largest_root_fits_a_block() {
        let mut root = root();
        root.boundaries = vec![root.boundaries[0]; MOST_EPOCHS];
        root.directory = vec![root.directory[0]; MOST_PIECES];
        assert!(Header::length(0, root.encode().len()) <= 4096);
    }

    #[test]
    fn records_count_up_to_the_end_of_their_life() {
        let root = root();
        let counts = |epoch, sequence| {
            let header = Header {
                stream: crate::format::USER,
                class: 0,
                epoch,
                sequence,
                after: 0,
                durable: 0,
                clock: 0,
                zone: 0,
                generation: 0,
                position: 0,
                blocks: 0,
            };
            root.admits(&header)
        };
        let found: Vec<bool> =
            [(2, 11), (3, 12), (3, 13), (4, 12), (4, 13), (4, 15), (4, 16), (5, 15), (5, 16), (6, 17)]
                .map(|(epoch, sequence)| counts(epoch, sequence))
                .into();
        assert_eq!(found, [false, true, false, false, true, true, false, false, true, false]);
    }
}
