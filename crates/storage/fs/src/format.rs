//! Structures on the medium other than records and pages: the properties of a file system, in every root, and
//! its state at a checkpoint, in the directory of the log.

use crate::metadata::Inodes;
use crate::metadata::forest::InodeGroup;
pub use crate::metadata::inode::BLOCK;
use crate::metadata::inode::Time;
use crate::metadata::versions::{MAX_NUMBER, SnapshotInfo, SnapshotNumber, check_name};
use crate::tree::Stored;
use block::{Error, Result, ZoneBlock};
use zones::bytes::{Reader, Writer};

/// Kind of the owner in a root; a log of another owner is refused.
pub const OWNER: [u8; 8] = *b"fs      ";
/// Version of the format that this code writes.
const VERSION: u32 = 5;
/// Oldest version that this code reads.
const OLDEST_VERSION: u32 = 4;
/// Largest block size of files, in bytes.
pub const MAX_BLOCK: u64 = 64 << 10;
/// Default number of inode groups of a new file system.
pub const DEFAULT_INODE_GROUPS: u32 = 64;
/// Most inode groups of a file system.
pub const MAX_INODE_GROUPS: u32 = 256;
/// Most shards among which the inode groups of an open file system are divided: each has two streams of the
/// log.
pub const MAX_SHARDS: u32 = 16;

/// Properties that are fixed when a file system is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Properties {
    /// Preferred size of requests in bytes, as reported to programs (`st_blksize`). It has no other effect:
    /// data is written and verified in blocks of [`BLOCK`] bytes, and extents are runs of these.
    pub block_size: u64,
    /// Number of inode groups among which inodes are divided.
    pub inode_groups: u32,
}

impl Default for Properties {
    fn default() -> Self {
        Properties { block_size: BLOCK, inode_groups: DEFAULT_INODE_GROUPS }
    }
}

impl Properties {
    /// Checks the block size and the number of inode groups.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a value out of range.
    pub fn check(&self) -> Result<()> {
        if !(1..=MAX_INODE_GROUPS).contains(&self.inode_groups) {
            return Err(Error::invalid(format!(
                "{} inode groups: expected 1 to {MAX_INODE_GROUPS}",
                self.inode_groups
            )));
        }
        match self.block_size.is_power_of_two() && (BLOCK..=MAX_BLOCK).contains(&self.block_size) {
            true => Ok(()),
            false => Err(Error::invalid(format!(
                "block size {}: expected a power of two from 4096 to 65536",
                self.block_size
            ))),
        }
    }

    /// Encodes the properties.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.u32(VERSION);
        writer.u64(self.block_size);
        writer.u32(self.inode_groups);
        writer.0
    }

    /// Decodes properties.
    ///
    /// # Errors
    /// [`Error::Protocol`] for another version; [`Error::Corrupt`] for bytes that aren't properties.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(bytes, "the properties of a file system");
        let version = reader.u32()?;
        if !(OLDEST_VERSION..=VERSION).contains(&version) {
            return Err(Error::protocol(format!(
                "the file system has version {version} of the format; expected {OLDEST_VERSION} to {VERSION}; open it with the program that \
                 wrote it"
            )));
        }
        let properties = Properties { block_size: reader.u64()?, inode_groups: reader.u32()? };
        reader.end()?;
        properties.check().map_err(|error| Error::corrupt(error.detail().to_owned()))?;
        Ok(properties)
    }
}

/// State of an inode group at a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InodeGroupState {
    /// Tree of the inode group.
    pub tree: Stored,
    /// Inodes of the inode group.
    pub(crate) inodes: Inodes,
}

/// A snapshot as it is stored in checkpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotState {
    /// Name, number and time of the snapshot.
    pub info: SnapshotInfo,
    /// Tree of each inode group.
    pub trees: Vec<Stored>,
}

/// State of a file system at a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// Epoch of the checkpoint.
    pub epoch: u64,
    /// For each shard after the checkpoint, the number of changes of its epoch that the trees include and
    /// whose records follow the checkpoint in the stream of the shard. These changes took effect on
    /// submission, and are the first submitted changes in the records.
    pub shown: Vec<u64>,
    /// Bytes of memory for the trees, those of snapshots included.
    pub memory: u64,
    /// Inode groups by number.
    pub groups: Vec<InodeGroupState>,
    /// Snapshots, oldest first.
    pub snapshots: Vec<SnapshotState>,
    /// Number of the next snapshot, larger than all earlier ones.
    pub next_snapshot: SnapshotNumber,
}

fn put_tree(writer: &mut Writer, tree: &Stored) {
    let root = tree.root.unwrap_or(ZoneBlock::new(0, 0));
    writer.u32(root.zone.0);
    writer.u32(root.block);
    writer.u8(tree.level);
    writer.u64(tree.items);
}

fn take_tree(reader: &mut Reader<'_>) -> Result<Stored> {
    let place = ZoneBlock::new(reader.u32()?, reader.u32()?);
    // Zone 0 holds roots of the log, so no page is there.
    let root = (place.zone.0 != 0).then_some(place);
    Ok(Stored { root, level: reader.u8()?, items: reader.u64()? })
}

impl State {
    /// Encodes the state.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.u64(self.epoch);
        writer.u32(self.shown.len() as u32);
        self.shown.iter().for_each(|shown| writer.u64(*shown));
        writer.u64(self.memory);
        writer.u32(self.groups.len() as u32);
        for InodeGroupState { tree, inodes } in &self.groups {
            put_tree(&mut writer, tree);
            writer.u64(inodes.next);
            writer.u64(inodes.count);
        }
        writer.u32(self.snapshots.len() as u32);
        for SnapshotState { info, trees } in &self.snapshots {
            writer.u32(info.number);
            writer.u64(info.created as u64);
            writer.u8(info.name.len() as u8);
            writer.0.extend_from_slice(info.name.as_bytes());
            trees.iter().for_each(|tree| put_tree(&mut writer, tree));
        }
        writer.u32(self.next_snapshot);
        writer.0
    }

    /// Decodes a state.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for bytes that aren't a state.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(bytes, "the state of a file system");
        let epoch = reader.u64()?;
        let shards = reader.count(8)?;
        if !(1..=MAX_SHARDS as usize).contains(&shards) {
            return Err(reader.strange(&format!("has {shards} shards; expected 1 to {MAX_SHARDS}")));
        }
        let shown = (0..shards).map(|_| reader.u64()).collect::<Result<Vec<_>>>()?;
        let memory = reader.u64()?;
        let mut groups = Vec::new();
        for _ in 0..reader.count(33)? {
            let tree = take_tree(&mut reader)?;
            groups
                .push(InodeGroupState { tree, inodes: Inodes { next: reader.u64()?, count: reader.u64()? } });
        }
        let mut snapshots: Vec<SnapshotState> = Vec::new();
        for _ in 0..reader.count(13)? {
            let number = reader.u32()?;
            let number = Some(number).filter(|it| (1..=MAX_NUMBER).contains(it));
            let created = reader.u64()? as Time;
            let length = reader.u8()?;
            let name = String::from_utf8(reader.bytes(length.into())?.to_vec()).unwrap_or_default();
            let is_known = snapshots.iter().any(|it| Some(it.info.number) == number || it.info.name == name);
            let (Some(number), Ok(()), false) = (number, check_name(&name), is_known) else {
                return Err(reader.strange("has a snapshot with an invalid or a duplicate number or name"));
            };
            let trees = (0..groups.len()).map(|_| take_tree(&mut reader)).collect::<Result<_>>()?;
            snapshots.push(SnapshotState { info: SnapshotInfo { number, name, created }, trees });
        }
        let after_all = snapshots.iter().map(|it| it.info.number + 1).max().unwrap_or(1);
        // Version 4 has no further fields.
        let next_snapshot = if reader.remaining() == 0 { after_all } else { reader.u32()? };
        if next_snapshot < after_all {
            return Err(reader.strange(&format!(
                "has {next_snapshot} as the number of the next snapshot; expected at least {after_all}"
            )));
        }
        reader.end()?;
        Ok(State { epoch, shown, memory, groups, snapshots, next_snapshot })
    }

    /// Shard that has an inode group after the checkpoint.
    pub fn shard_of(&self, group: InodeGroup) -> u32 {
        group % self.shown.len() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_of_another_version_are_refused_by_name() {
        let properties = Properties { block_size: 8192, ..Properties::default() };
        let mut bytes = properties.encode();
        assert_eq!(Properties::decode(&bytes), Ok(properties));
        bytes[0] += 1;
        let refused = Properties::decode(&bytes).unwrap_err();
        assert!(matches!(refused, Error::Protocol(_)) && refused.detail().contains("version 6"), "{refused}");
        assert!(matches!(Properties::decode(&bytes[..3]), Err(Error::Corrupt(_))));
        let strange = Properties { block_size: 5000, ..Properties::default() }.encode();
        assert!(matches!(Properties::decode(&strange), Err(Error::Corrupt(_))));
    }

    #[test]
    fn a_state_is_read_as_it_was_encoded() {
        let root = Some(ZoneBlock::new(3, 7));
        let some = InodeGroupState {
            tree: Stored { root, level: 2, items: 9 },
            inodes: Inodes { next: 11, count: 5 },
        };
        let none =
            InodeGroupState { tree: Stored { root: None, level: 0, items: 0 }, inodes: Inodes::none(1, 2) };
        let info = SnapshotInfo { number: 9, name: "before".to_owned(), created: 77 };
        let snapshot = SnapshotState { info, trees: vec![none.tree, some.tree] };
        let (groups, snapshots) = (vec![some, none], vec![snapshot]);
        let state =
            State { epoch: 4, shown: vec![6, 0, 1], memory: 8192, groups, snapshots, next_snapshot: 12 };
        let bytes = state.encode();
        assert_eq!(State::decode(&bytes), Ok(state.clone()));
        // Version 4 lacks the number of the next snapshot.
        let old = bytes.len() - 4;
        assert_eq!(State::decode(&bytes[..old]), Ok(State { next_snapshot: 10, ..state }));
        for length in (0..bytes.len()).filter(|length| *length != old) {
            assert!(State::decode(&bytes[..length]).is_err(), "{length} bytes");
        }
        let mut strange = bytes;
        strange[old..].copy_from_slice(&9_u32.to_le_bytes());
        assert!(State::decode(&strange).is_err(), "the next number is that of a snapshot");
    }
}
