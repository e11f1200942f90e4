//! What a file system has on the medium beside records and pages: its properties, in every root, and its state at a checkpoint, in
//! the directory.

use crate::inode::InodeNumber;
use crate::tree::{Place, Stored};
use block::{Error, Result};
use zones::bytes::{Reader, Writer};

/// Kind of the owner in a root: a log of another one isn't opened.
pub const OWNER: [u8; 8] = *b"fs      ";
/// Version of the format that this code writes and reads.
const VERSION: u32 = 1;
/// Size of the blocks of the log.
pub const BLOCK: u64 = 4096;
/// Largest block of files.
pub const LARGEST_BLOCK: u64 = 64 << 10;

/// What is fixed when a file system is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Properties {
    /// Size in bytes of the blocks that files consist of: smaller writes rewrite a block.
    pub block_size: u64,
}

impl Default for Properties {
    fn default() -> Self {
        Properties { block_size: BLOCK }
    }
}

impl Properties {
    /// Refuses a block size that files can't have.
    ///
    /// # Errors
    /// [`Error::Invalid`] with what is expected.
    pub fn check(&self) -> Result<()> {
        match self.block_size.is_power_of_two() && (BLOCK..=LARGEST_BLOCK).contains(&self.block_size) {
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
        writer.0
    }

    /// Decodes properties.
    ///
    /// # Errors
    /// [`Error::Protocol`] for those of another version; [`Error::Corrupt`] for bytes that none has.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(bytes, "the properties of a file system");
        let version = reader.u32()?;
        if version != VERSION {
            return Err(Error::protocol(format!(
                "a file system of version {version} of the format; expected version {VERSION}: open it with the program that \
                 wrote it"
            )));
        }
        let properties = Properties { block_size: reader.u64()? };
        reader.end()?;
        properties.check().map_err(|error| Error::corrupt(error.detail().to_owned()))?;
        Ok(properties)
    }
}

/// State of a file system at a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// The tree.
    pub tree: Stored,
    /// The number that the next inode gets.
    pub next_inode: InodeNumber,
    /// Number of inodes.
    pub inodes: u64,
    /// Epoch of the checkpoint.
    pub epoch: u64,
    /// Number of changes of that epoch which the tree shows, and whose records follow the checkpoint. They took effect when they
    /// were submitted, and are the first such ones in the records.
    pub shown: u64,
}

impl State {
    /// Encodes the state.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        let root = self.tree.root.unwrap_or(Place { zone: 0, position: 0 });
        writer.u32(root.zone);
        writer.u32(root.position);
        writer.u8(self.tree.level);
        writer.u64(self.tree.items);
        writer.u64(self.next_inode);
        writer.u64(self.inodes);
        writer.u64(self.epoch);
        writer.u64(self.shown);
        writer.0
    }

    /// Decodes a state.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for bytes that no state has.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(bytes, "the state of a file system");
        let place = Place { zone: reader.u32()?, position: reader.u32()? };
        // Zone 0 has roots of the log.
        let root = (place.zone != 0).then_some(place);
        let tree = Stored { root, level: reader.u8()?, items: reader.u64()? };
        let (next_inode, inodes) = (reader.u64()?, reader.u64()?);
        let state = State { tree, next_inode, inodes, epoch: reader.u64()?, shown: reader.u64()? };
        reader.end()?;
        Ok(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_of_another_version_are_refused_by_name() {
        let properties = Properties { block_size: 8192 };
        let mut bytes = properties.encode();
        assert_eq!(Properties::decode(&bytes), Ok(properties));
        bytes[0] += 1;
        let refused = Properties::decode(&bytes).unwrap_err();
        assert!(matches!(refused, Error::Protocol(_)) && refused.detail().contains("version 2"), "{refused}");
        assert!(matches!(Properties::decode(&bytes[..3]), Err(Error::Corrupt(_))));
        let strange = Properties { block_size: 5000 }.encode();
        assert!(matches!(Properties::decode(&strange), Err(Error::Corrupt(_))));
    }

    #[test]
    fn a_state_is_read_as_it_was_encoded() {
        let root = Some(Place { zone: 3, position: 7 });
        let tree = Stored { root, level: 2, items: 9 };
        let state = State { tree, next_inode: 11, inodes: 5, epoch: 4, shown: 6 };
        let bytes = state.encode();
        assert_eq!(State::decode(&bytes), Ok(state));
        for length in 0..bytes.len() {
            assert!(State::decode(&bytes[..length]).is_err(), "{length} bytes");
        }
    }
}
