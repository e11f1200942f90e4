//! Roots: the identity of a log, its newest checkpoint, and the ends of earlier epochs.
//!
//! A root is a numbered record with only meta. Roots are written to zones 0 and 1 in turn. The valid root
//! with the highest number is authoritative.

use crate::layout::{Layout, ROOT_ZONES};
use crate::record::StreamId;
use crate::record::{Header, Identity, Kind, Parsed};
use crate::scan::refuse_offline;
use crate::stream::Sequences;
use block::{BlockSize, Buffer, Error, Result, ZoneAddress, ZoneIndex, ZoneReport, ZoneState, Zones};
use std::collections::BTreeMap;
use std::collections::btree_map::OccupiedEntry;
use zones::bytes::{Reader, Writer};
use zones::on_device::format::Uuid;

/// Version of the format of roots that this code writes and reads.
pub const VERSION: u32 = 2;
const MAGIC: &[u8; 8] = b"SILTROOT";
/// Magic number of roots of version 1, which contained the whole directory.
const MAGIC_1: &[u8; 8] = b"SILTLOG1";
/// Largest number of epochs for which a root has boundaries. After that many unclean stops without a
/// checkpoint, the log takes one when it is opened.
pub const MAX_EPOCHS: usize = 32;
/// Largest number of extents of a directory.
pub const MAX_EXTENTS: usize = 96;
/// Bytes of a root for streams: their last records, and those at the ends of epochs.
const STREAM_BYTES: usize = 8 * 4 + MAX_EPOCHS * (8 + 8 * 4);
/// Largest number of streams in a root.
const MAX_STREAMS: usize = 64;

/// End of an earlier epoch: its records above these numbers are not part of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Boundary {
    /// The epoch.
    pub epoch: u64,
    /// Last record of each stream.
    pub last: Sequences,
}

/// A part of a directory on the medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// The zone.
    pub zone: u32,
    /// First block in the zone.
    pub position: u32,
    /// Number of blocks.
    pub blocks: u32,
    /// CRC-32C of the blocks.
    pub sum: u32,
}

/// Contents of a root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root {
    /// Kind of the owner, so that a log of one engine isn't opened by another.
    pub owner: [u8; 8],
    /// Identity of the log.
    pub identity: Identity,
    /// Block size.
    pub block_size: BlockSize,
    /// Blocks of a zone.
    pub zone_blocks: u32,
    /// Number of zones.
    pub zones: u32,
    /// Number of times that the log has been opened.
    pub epoch: u64,
    /// Number of times that the log has been opened.
    pub clean: bool,
    /// Last record of each stream that the checkpoint covers.
    pub covered: Sequences,
    /// Number of the last record of checkpoints.
    pub checkpoint: u64,
    /// Clock of the checkpoint.
    pub clock: u64,
    /// Ends of earlier epochs since the checkpoint, oldest first.
    pub boundaries: Vec<Boundary>,
    /// Length of the directory in bytes.
    pub directory_length: u64,
    /// Location of the directory.
    pub directory: Vec<Extent>,
    /// The owner's part.
    pub own: Vec<u8>,
}

impl Root {
    /// Most boundaries of earlier epochs that a root with `streams` streams has space for.
    pub fn most_epochs(streams: usize) -> usize {
        (STREAM_BYTES.saturating_sub(8 * streams) / (8 + 8 * streams)).min(MAX_EPOCHS)
    }

    /// Encodes the root as the metadata of a record.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.put(MAGIC);
        writer.u32(VERSION);
        writer.u32(self.block_size.bytes() as u32);
        writer.put(&self.owner);
        writer.put(self.identity.uuid.as_bytes());
        writer.u64(self.identity.key);
        writer.u32(self.zone_blocks);
        writer.u32(self.zones);
        writer.u64(self.epoch);
        writer.u64(self.checkpoint);
        writer.u64(self.clock);
        writer.u64(self.directory_length);
        writer.u32(self.clean.into());
        let streams = self.covered.numbers().len();
        writer.u32(streams as u32);
        let put = |writer: &mut Writer, numbers: &Sequences| {
            (0..streams as u16).for_each(|stream| writer.u64(numbers.of(StreamId(stream))));
        };
        put(&mut writer, &self.covered);
        writer.u32(self.boundaries.len() as u32);
        for boundary in &self.boundaries {
            writer.u64(boundary.epoch);
            put(&mut writer, &boundary.last);
        }
        writer.u32(self.directory.len() as u32);
        for extent in &self.directory {
            [extent.zone, extent.position, extent.blocks, extent.sum].iter().for_each(|it| writer.u32(*it));
        }
        writer.u32(self.own.len() as u32);
        writer.put(&self.own[..]);
        writer.0
    }

    /// Whether these bytes begin with a root of any version.
    fn begins(meta: &[u8]) -> bool {
        meta.starts_with(MAGIC) || meta.starts_with(MAGIC_1)
    }

    /// Decodes a root from the metadata of a record; the bytes are untrusted.
    ///
    /// # Errors
    /// [`Error::Protocol`] for another version, [`Error::Corrupt`] for bytes that no version of this program
    /// writes.
    pub fn decode(meta: &[u8]) -> Result<Root> {
        let mut reader = Reader::new(meta, "the root of a log");
        let magic = reader.bytes(8)?;
        if !Root::begins(magic) {
            return Err(Error::protocol("not a root of a log"));
        }
        let version = reader.u32()?;
        if magic != MAGIC || version != VERSION {
            return Err(crate::record::other_version("log", version));
        }
        let block_size = BlockSize::new(u64::from(reader.u32()?))?;
        let owner = *reader.take()?;
        let identity = Identity { uuid: Uuid::from_bytes(*reader.take()?), key: reader.u64()? };
        let (zone_blocks, zones) = (reader.u32()?, reader.u32()?);
        let (epoch, checkpoint) = (reader.u64()?, reader.u64()?);
        let (clock, directory_length) = (reader.u64()?, reader.u64()?);
        let clean = reader.u32()? != 0;
        let streams = reader.count(8)?;
        if streams > MAX_STREAMS {
            return Err(reader.strange(&format!("has {streams} streams; expected up to {MAX_STREAMS}")));
        }
        let numbers = |reader: &mut Reader<'_>| -> Result<Sequences> {
            let numbers = (0..streams).map(|_| reader.u64()).collect::<Result<Vec<_>>>()?;
            Ok(Sequences::new(&numbers))
        };
        let covered = numbers(&mut reader)?;
        let mut boundaries = Vec::new();
        for _ in 0..reader.count(8 + 8 * streams)? {
            boundaries.push(Boundary { epoch: reader.u64()?, last: numbers(&mut reader)? });
        }
        let mut directory = Vec::new();
        for _ in 0..reader.count(16)? {
            let (zone, position) = (reader.u32()?, reader.u32()?);
            let (blocks, sum) = (reader.u32()?, reader.u32()?);
            if zone >= zones || position.checked_add(blocks).is_none_or(|end| end > zone_blocks) {
                return Err(reader.strange(&format!(
                    "has an extent out of range: blocks {position}+{blocks} of zone {zone}; expected zones 0..{zones} of \
                     {zone_blocks} blocks"
                )));
            }
            directory.push(Extent { zone, position, blocks, sum });
        }
        let own = reader.count(1)?;
        let own = reader.bytes(own)?.to_vec();
        Ok(Root {
            owner,
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
            own,
        })
    }

    /// Whether a record may be part of the log: it is of this epoch, or within the boundaries of an earlier
    /// one.
    pub fn admits(&self, header: &Header) -> bool {
        let Header { stream, sequence, .. } = *header;
        if header.epoch == self.epoch {
            return self.boundaries.last().is_none_or(|before| sequence > before.last.of(stream));
        }
        let Some(number) = self.boundaries.iter().position(|boundary| boundary.epoch == header.epoch) else {
            return false;
        };
        let above = number.checked_sub(1).map_or(0, |before| self.boundaries[before].last.of(stream));
        sequence > above && sequence <= self.boundaries[number].last.of(stream)
    }
}

/// The newest root.
#[derive(Debug, Clone)]
pub struct FoundRoot {
    /// Contents.
    pub root: Root,
    /// Number.
    pub number: u64,
    /// Zone of the root; when it is full, the next root goes to the other one.
    pub zone: u32,
}

impl FoundRoot {
    /// Whether the other root is of the same log and names the same directory.
    fn has_checkpoint_of(&self, other: &FoundRoot) -> bool {
        let (here, there) = (&self.root, &other.root);
        here.identity == there.identity && here.directory == there.directory
    }
}

/// Reads the roots of a log.
///
/// # Errors
/// [`Error::Protocol`] if there is no log, or one of another version; [`Error::Corrupt`] if both root zones
/// are damaged; errors of reading.
pub async fn find(zones: &dyn Zones) -> Result<FoundRoot> {
    let reports = zones.report(ZoneIndex(0), ROOT_ZONES).await?;
    let mut newest: Option<FoundRoot> = None;
    let mut refusal = None;
    for report in reports {
        if report.state == ZoneState::Offline {
            // The zone may hold the newest root, and the next one may have to be written there.
            refuse_offline(zones, report.zone, "the newest root of the log").await?;
        }
        match find_in(zones, &report).await {
            Ok(found) => newest = newest.into_iter().chain(found).max_by_key(|found| found.number),
            // The unreadable root may be the newest, and an older one must not be used instead.
            Err(error @ Error::Io(_)) => return Err(error),
            Err(error) => refusal = refusal.or(Some(error)),
        }
    }
    newest.ok_or_else(|| {
        refusal.unwrap_or_else(|| {
            Error::protocol("no log on the zones; to create one and lose their contents: --format")
        })
    })
}

/// Most roots of one zone, of different checkpoints, that [`newest_of`] keeps: the checkpoints of older ones
/// were overwritten long ago.
const MAX_OLD: usize = 64;

/// Reads the newest root of each of the newest checkpoints, the newest first, of the root zones that can be
/// read, to salvage a log whose newest root or checkpoint is damaged. Roots of a log that was there before
/// are left out.
///
/// # Errors
/// Errors of [`Zones::report`].
pub async fn newest_of(zones: &dyn Zones) -> Result<Vec<FoundRoot>> {
    let mut found = Vec::new();
    for report in zones.report(ZoneIndex(0), ROOT_ZONES).await? {
        let unit = zones.geometry().read_granularity.max(4096) as usize;
        let mut newest: BTreeMap<u64, FoundRoot> = BTreeMap::new();
        for at in (0..report.write_pointer).step_by(unit) {
            if at + unit as u64 > report.write_pointer {
                break;
            }
            let address = ZoneAddress { zone: report.zone, offset: block::ByteOffset(at) };
            let (outcome, buffer) = zones.read(address, Buffer::new(unit)).await;
            if let (Ok(()), Ok(Some(root))) = (outcome, decode_at(buffer.filled(), &report, at)) {
                // An epoch without a checkpoint begins with a root that names the directory of the root
                // before.
                let before = newest.last_entry().filter(|before| before.get().has_checkpoint_of(&root));
                before.map(OccupiedEntry::remove);
                newest.insert(root.number, root);
                if newest.len() > MAX_OLD {
                    newest.pop_first();
                }
            }
        }
        found.extend(newest.into_values());
    }
    found.sort_by_key(|found| std::cmp::Reverse(found.number));
    let identity = found.first().map(|newest| newest.root.identity);
    found.retain(|it| Some(it.root.identity) == identity);
    found.dedup_by(|older, newer| older.has_checkpoint_of(newer));
    Ok(found)
}

/// Returns the last valid root of one zone; `None` if the zone doesn't begin with a root.
///
/// # Errors
/// [`Error::Protocol`] if the zone begins with a root of another version, [`Error::Corrupt`] with a damaged
/// one; errors of reading.
async fn find_in(zones: &dyn Zones, report: &ZoneReport) -> Result<Option<FoundRoot>> {
    let unit = zones.geometry().read_granularity.max(4096) as usize;
    let mut found: Option<FoundRoot> = None;
    let mut at = 0;
    // The first root contains the log's block size.
    let mut block = unit;
    while report.state != ZoneState::Empty && at + block as u64 <= report.write_pointer {
        let address = ZoneAddress { zone: report.zone, offset: block::ByteOffset(at) };
        let (outcome, buffer) = zones.read(address, Buffer::new(block)).await;
        outcome.map_err(|error| error.in_context("reading the roots of the log"))?;
        let next = match decode_at(buffer.filled(), report, at) {
            // After the last root there may be any data.
            Err(_) if found.is_some() => break,
            decoded => decoded?,
        };
        let is_of_this_log =
            |next: &FoundRoot| found.as_ref().is_none_or(|found| found.root.identity == next.root.identity);
        let Some(next) = next.filter(is_of_this_log) else { break };
        block = next.root.block_size.bytes() as usize;
        found = Some(next);
        at += block as u64;
    }
    Ok(found)
}

/// Decodes the root at byte `at` of a zone; `None` if no root begins there, or one that was written to
/// another location.
fn decode_at(bytes: &[u8], report: &ZoneReport, at: u64) -> Result<Option<FoundRoot>> {
    let identity = |meta: &[u8]| match Root::begins(meta) {
        true => Root::decode(meta).map(|root| Some(root.identity)),
        false => Ok(None),
    };
    let Some((parsed, _)) = Parsed::decode_with(bytes, identity)? else { return Ok(None) };
    let root = Root::decode(parsed.meta)?;
    let position = (at / root.block_size.bytes()) as u32;
    let is_placed = parsed.check_place(report.zone.0, report.generation, position).is_ok();
    let is_root = is_placed && parsed.header.kind == Kind::Root;
    Ok(is_root.then_some(FoundRoot { root, number: parsed.header.sequence, zone: report.zone.0 }))
}

/// Number of roots for which space is reserved in advance, for media that allocate space at the first write.
pub const ROOTS_AHEAD: u32 = 16;

/// Writes roots.
#[derive(Debug)]
pub struct RootWriter {
    /// Zone of the newest durable root. The writer never resets it.
    newest: u32,
    /// Rest of a zone that this writer has reset, for the next roots.
    open: Option<Open>,
    number: u64,
}

#[derive(Debug, Clone, Copy)]
struct Open {
    zone: u32,
    generation: u64,
    position: u32,
    /// Block up to which the medium has space for roots.
    reserved: u32,
}

impl Open {
    /// Reserves space for the next roots.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if there is none for the next one.
    async fn reserve(&mut self, zones: &dyn Zones, layout: &Layout) -> Result<()> {
        let left = self.reserved.saturating_sub(self.position);
        if left < ROOTS_AHEAD / 2 && self.reserved < layout.zone_blocks {
            let bytes = u64::from(ROOTS_AHEAD) << layout.block_size.shift();
            match zones.reserve(ZoneIndex(self.zone), bytes).await {
                Ok(()) => self.reserved = self.position + ROOTS_AHEAD,
                Err(error @ Error::NoSpace(_)) if self.position >= self.reserved => return Err(error),
                // The next root has space.
                Err(_) => {}
            }
        }
        Ok(())
    }
}

impl RootWriter {
    /// Creates a writer after the newest root. The other zone is reset before the next root is written.
    pub fn behind(found: &FoundRoot) -> Self {
        RootWriter { newest: found.zone, open: None, number: found.number }
    }

    /// Creates the writer of a new log, before the first root.
    pub fn first() -> Self {
        RootWriter { newest: 1, open: None, number: 0 }
    }

    /// Ensures that there is space for the next root. If the zone of the newest one has no more, the next
    /// root goes to the other zone, which has had space for its first roots since the log was created.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if there is none; no root was written, and the newest one stays authoritative.
    pub async fn prepare(&mut self, zones: &dyn Zones, layout: &Layout) -> Result<()> {
        let mut open = match self.open {
            Some(open) if open.position < layout.zone_blocks => open,
            _ => self.reset_other(zones).await?,
        };
        let mut reserved = open.reserve(zones, layout).await;
        if reserved.is_err() && open.position > 0 {
            open = self.reset_other(zones).await?;
            reserved = open.reserve(zones, layout).await;
        }
        self.open = Some(open);
        reserved.map_err(|error| error.in_context("reserving space for the next root of the log"))
    }

    /// Whether the next root begins a zone, which the drive may refuse to open.
    pub fn opens_zone(&self, layout: &Layout) -> bool {
        self.open.is_none_or(|open| open.position == 0 || open.position >= layout.zone_blocks)
    }

    /// Durably writes a root.
    ///
    /// # Errors
    /// Errors of appending, flushing and resetting. After an error the newest durable root is this one or the
    /// previous one.
    pub async fn write(&mut self, zones: &dyn Zones, layout: &Layout, root: &Root) -> Result<()> {
        // After a failure the zone is reset before it is used again.
        let open = match self.open.take() {
            Some(open) if open.position < layout.zone_blocks => open,
            _ => self.reset_other(zones).await?,
        };
        let header = Header {
            kind: Kind::Root,
            stream: StreamId(0),
            class: 0,
            epoch: root.epoch,
            sequence: self.number + 1,
            durable: self.number,
            clock: root.clock,
            zone: open.zone,
            generation: open.generation,
            position: open.position,
            blocks: 0,
        };
        let meta = root.encode();
        let (length, most) = (Header::length(0, meta.len()), layout.block_bytes());
        if length > most {
            return Err(Error::no_space(format!(
                "root of the log: {length} bytes; expected up to {most}, a block: the log has too many streams or epochs"
            )));
        }
        let mut block = Buffer::zeroed(layout.block_bytes());
        header.encode(&root.identity, &[], &[], &meta, block.filled_mut());
        let zone = ZoneIndex(open.zone);
        let landed = zones.append(zone, block.into()).await?;
        if landed != layout.address(open.zone, open.position) {
            return Err(Error::io(format!(
                "root of the log: it was written at {landed}; expected block {} of zone {zone}; another program writes to it",
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

    /// Number of the newest root.
    pub fn number(&self) -> u64 {
        self.number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(numbers: [u64; 2]) -> Sequences {
        Sequences::new(&numbers)
    }

    fn root() -> Root {
        Root {
            owner: *b"a test..",
            identity: Identity { uuid: Uuid::from_bytes([3; 16]), key: 4 },
            block_size: BlockSize::default(),
            zone_blocks: 15,
            zones: 20,
            epoch: 5,
            clean: true,
            covered: numbers([10, 20]),
            checkpoint: 30,
            clock: 40,
            boundaries: vec![
                Boundary { epoch: 3, last: numbers([12, 22]) },
                Boundary { epoch: 4, last: numbers([15, 22]) },
            ],
            directory_length: 100,
            directory: vec![Extent { zone: 7, position: 2, blocks: 1, sum: 9 }],
            own: vec![77; 8],
        }
    }

    #[test]
    fn what_was_written_is_read() {
        let bytes = root().encode();
        assert_eq!(Root::decode(&bytes), Ok(root()));
        (0..bytes.len()).for_each(|length| assert!(Root::decode(&bytes[..length]).is_err()));
    }

    #[test]
    fn a_directory_outside_the_zones_is_refused() {
        for (zone, position, blocks) in [(20, 0, 1), (7, 15, 1), (7, 14, 2), (7, u32::MAX, 2)] {
            let directory = vec![Extent { zone, position, blocks, sum: 9 }];
            let error = Root::decode(&Root { directory, ..root() }.encode()).expect_err("outside");
            assert!(matches!(error, Error::Corrupt(_)), "{error}");
        }
    }

    #[test]
    fn version_1_is_refused_with_its_number() {
        let mut bytes = root().encode();
        bytes[..8].copy_from_slice(MAGIC_1);
        bytes[8] = 1;
        let error = Root::decode(&bytes).expect_err("another version");
        assert!(matches!(&error, Error::Protocol(text) if text.contains("version 1")), "{error}");
    }

    /// Finds the root on zones of which the first holds only this record, after `change` and `spoil`.
    fn found(
        change: impl Fn(&mut Header, &mut Vec<u8>) + 'static,
        spoil: impl Fn(&mut [u8]) + 'static,
    ) -> Result<FoundRoot> {
        let main = || async move {
            let part = zones::ram::RamZones::new(Default::default()).expect("zones");
            let zones = block::ZonesPart::open(&part).await.expect("zones open");
            let report = zones.report(ZoneIndex(0), 1).await.expect("a report")[0];
            let mut header = Header {
                kind: Kind::Root,
                stream: StreamId(0),
                class: 0,
                epoch: 5,
                sequence: 7,
                durable: 6,
                clock: 40,
                zone: 0,
                generation: report.generation,
                position: 0,
                blocks: 0,
            };
            let mut meta = root().encode();
            change(&mut header, &mut meta);
            let mut block = Buffer::zeroed(4096);
            header.encode(&root().identity, &[], &[], &meta, block.filled_mut());
            spoil(block.filled_mut());
            zones.append(ZoneIndex(0), block.into()).await.expect("appended");
            find(&*zones).await
        };
        runtime::simulate(runtime::Simulation::new(1), main).expect("it ends").value
    }

    #[test]
    fn a_damaged_root_and_one_of_another_version_are_named_and_other_contents_are_not() {
        assert_eq!(found(|_, _| (), |_| ()).map(|found| (found.root, found.number)), Ok((root(), 7)));
        let other_version = [
            found(|_, _| (), |block| block[12] = 9),
            found(|_, meta| meta[8] = 9, |_| ()),
            found(|_, meta| meta[..8].copy_from_slice(MAGIC_1), |_| ()),
        ];
        for refused in other_version {
            let error = refused.expect_err("it is refused");
            assert!(matches!(error, Error::Protocol(_)) && error.detail().contains("of version"), "{error}");
        }
        let damaged = found(|_, _| (), |block| block[200] ^= 1).expect_err("it is refused");
        assert!(matches!(damaged, Error::Corrupt(_)), "{damaged}");
        let nothing = [
            found(|_, _| (), |block| block.fill(0)),
            found(|_, _| (), |block| block[0] ^= 1),
            found(|header, _| header.generation += 1, |_| ()),
            found(|header, _| header.position = 1, |_| ()),
            found(|header, _| header.kind = Kind::Entries, |_| ()),
            found(|_, meta| meta.fill(0), |_| ()),
        ];
        for refused in nothing {
            let error = refused.expect_err("there is no root");
            assert!(error.detail().contains("no log on the zones"), "{error}");
        }
    }

    /// Writes roots to a new log, `epochs` of each checkpoint, and returns those that a salvage reads: number
    /// and checkpoint.
    fn salvageable(epochs: u64) -> Vec<(u64, u64)> {
        let main = move || async move {
            let disk = disks::ram::RamPart::new(8 << 20, BlockSize::default()).expect("a disk");
            let options =
                zones::on_device::Options { format: true, zone_size: Some(1 << 20), ..Default::default() };
            let part = zones::OnDevice::open(std::sync::Arc::new(disk), options).await.expect("zones");
            let zones = block::ZonesPart::open(&part).await.expect("zones open");
            let layout = Layout::new(zones.geometry(), BlockSize::default()).expect("zones for a log");
            let mut writer = RootWriter::first();
            // The second root zone has a few roots.
            let written = u64::from(layout.zone_blocks) + 3;
            for number in 0..written {
                let mut root = root();
                root.directory[0].sum = (number / epochs) as u32;
                let outcome = writer.write(&*zones, &layout, &root).await;
                outcome.unwrap_or_else(|error| panic!("root {number} of {written}: {error}"));
            }
            let found = newest_of(&*zones).await.expect("read");
            found.iter().map(|root| (root.number, u64::from(root.root.directory[0].sum))).collect()
        };
        runtime::run(runtime::Config::default(), main).expect("the runtime starts")
    }

    #[test]
    fn only_the_newest_root_of_each_of_the_newest_checkpoints_is_kept_to_salvage_a_log() {
        let found = salvageable(1);
        let written = found[0].0;
        let most = MAX_OLD as u64 + 3;
        let expected = (written - most + 1..=written).rev().map(|number| (number, number - 1));
        assert!(found.iter().copied().eq(expected), "{found:?}");
        // More epochs than roots are kept, without a checkpoint in between.
        let epochs = MAX_OLD as u64 + 1;
        let found = salvageable(epochs);
        let checkpoints: Vec<u64> = found.iter().map(|(_, checkpoint)| *checkpoint).collect();
        let newest = (written - 1) / epochs;
        assert!(newest >= 2 && checkpoints.iter().copied().eq((0..=newest).rev()), "{found:?}");
        for (number, checkpoint) in found {
            assert_eq!(
                number,
                ((checkpoint + 1) * epochs).min(written),
                "the newest of checkpoint {checkpoint}"
            );
        }
    }

    #[test]
    fn the_largest_roots_fit_a_block() {
        for (streams, epochs) in [(1, 32), (4, 32), (8, 17), (32, 4), (MAX_STREAMS, 1)] {
            assert_eq!(Root::most_epochs(streams), epochs, "{streams} streams");
            let numbers = Sequences::new(&vec![1; streams]);
            let mut root = root();
            root.covered = numbers.clone();
            root.boundaries = vec![Boundary { epoch: 3, last: numbers }; epochs];
            root.directory = vec![root.directory[0]; MAX_EXTENTS];
            root.own = vec![0; 256];
            assert!(Header::length(0, root.encode().len()) <= 4096, "{streams} streams");
        }
    }

    #[test]
    fn records_are_part_of_the_log_up_to_the_end_of_their_epoch() {
        let root = root();
        let admits = |epoch, sequence| {
            let header = Header {
                kind: Kind::Entries,
                stream: StreamId(0),
                class: 0,
                epoch,
                sequence,
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
                .map(|(epoch, sequence)| admits(epoch, sequence))
                .into();
        assert_eq!(found, [false, true, false, false, true, true, false, false, true, false]);
    }
}
