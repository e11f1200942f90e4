//! Entries: the changes that an owner appends, several to a record; and a record whose entries and numbers
//! are fixed.

use crate::record::StreamId;
use crate::record::{Header, Identity, LINK, Links, sum_of};
use crate::zone_writer::ZoneWriter;
use block::Payload;

/// One change of an owner's state, with its data. A record is a sequence of entries.
pub trait Entry: 'static {
    /// Number of data blocks.
    fn blocks(&self) -> u32;

    /// The data: `blocks()` whole blocks.
    fn payload(&self) -> &Payload;

    /// Number of bytes of meta that [`encode_meta`](Self::encode_meta) appends.
    fn meta_length(&self) -> usize;

    /// Appends the entry's part of the record's meta.
    fn encode_meta(&self, meta: &mut Vec<u8>);

    /// Number of steps of the commit, those for the data excluded. A record takes effect in one turn of the
    /// shard, so [`Settings::most_steps`](crate::kit::Settings::most_steps) bounds the sum over its entries.
    fn steps(&self) -> u64 {
        0
    }

    /// Whether the entry has no data and only makes blocks die: it is written even if there is no space for
    /// data.
    fn only_frees(&self) -> bool {
        false
    }

    /// Whether the entry makes more blocks die than it takes. In a full log it may use zones that are
    /// reserved against other entries ([`Owner::freeing_zones`](crate::Owner::freeing_zones)).
    fn frees_space(&self) -> bool {
        self.only_frees()
    }

    /// Whether the entry is never divided among records. It then has to fit an empty zone.
    fn is_atomic(&self) -> bool {
        !self.joins().is_empty()
    }

    /// Whether the cleaner appends the entry: its data was live in another zone.
    fn is_moved(&self) -> bool {
        false
    }

    /// Streams of other shards of which the entry's record is also a member; at most
    /// [`MAX_LINKS`](crate::record::MAX_LINKS). The entry takes effect on all these shards or, after a
    /// crash, on none. It is atomic and a record of its own, which [`Owner::share`](crate::Owner::share)
    /// passes on. An entry that was acknowledged before it is written has no joins.
    fn joins(&self) -> &[StreamId] {
        &[]
    }

    /// Whether the entry was acknowledged before it was written, and therefore can't be refused.
    fn is_acknowledged(&self) -> bool {
        false
    }
}

/// Entries of one record, with the location of the record's data once it is written.
#[derive(Debug)]
pub struct Batch<E> {
    /// In the order of the record.
    pub entries: Vec<E>,
    /// Zone of the record.
    pub zone: u32,
    /// First data block in the zone.
    pub position: u32,
    /// Whether the record may commit in another order than that of its zone, because it was written to the
    /// filler ([`space`](crate::space)) or by another shard.
    pub is_unordered: bool,
}

impl<E> Default for Batch<E> {
    fn default() -> Self {
        Batch { entries: Vec::new(), zone: 0, position: 0, is_unordered: false }
    }
}

/// A numbered record that is fixed except for its location, so that an attempt in another zone writes the
/// same record. Its memory is reused for the next record.
#[derive(Debug, Default)]
pub struct Frozen {
    header: Option<Header>,
    links: Links,
    sums: Vec<u32>,
    meta: Vec<u8>,
    encoded: Vec<u8>,
}

impl Frozen {
    /// Computes checksums and meta of these entries. `header` has all fields except the location and the
    /// number of blocks.
    pub fn freeze<E: Entry>(&mut self, header: Header, links: Links, entries: &[E], block: usize) {
        self.links = links;
        self.sums.clear();
        self.meta.clear();
        for entry in entries {
            entry.encode_meta(&mut self.meta);
            let payload = entry.payload();
            if let [slice] = payload.slices()
                && slice.len() == block
            {
                self.sums.push(sum_of(slice));
                continue;
            }
            let is_whole = payload.slices().iter().all(|slice| slice.len().is_multiple_of(block));
            if is_whole {
                for slice in payload.slices() {
                    self.sums.extend(slice.chunks_exact(block).map(sum_of));
                }
            } else {
                self.sums.extend(payload.to_data().chunks_exact(block).map(sum_of));
            }
        }
        self.header = Some(Header { blocks: self.sums.len() as u32, ..header });
    }

    /// Computes checksums and meta again for fewer entries under the same number, after entries with data
    /// were refused.
    ///
    /// # Panics
    /// If nothing was [frozen](Self::freeze).
    pub fn refreeze<E: Entry>(&mut self, entries: &[E], block: usize) {
        let header = self.header.expect("a record was frozen");
        let links = std::mem::take(&mut self.links);
        self.freeze(header, links, entries, block);
    }

    /// Checksums of the data blocks, in order.
    pub fn sums(&self) -> &[u32] {
        &self.sums
    }

    /// Number of data blocks.
    pub fn blocks(&self) -> u32 {
        self.sums.len() as u32
    }

    /// Length of the links and the meta in bytes.
    pub fn meta_length(&self) -> usize {
        self.links.len() * LINK + self.meta.len()
    }

    /// The most recently encoded header, without padding.
    pub fn encoded(&self) -> &[u8] {
        &self.encoded
    }

    /// Encodes the header for the zone's write pointer, and returns the append: a block with the header, and
    /// the data, which isn't copied.
    ///
    /// # Panics
    /// If nothing was [frozen](Self::freeze).
    pub fn encode<E: Entry>(
        &mut self,
        identity: &Identity,
        zone: &ZoneWriter,
        entries: &[E],
        block: usize,
    ) -> Payload {
        let header = self.header.expect("a record was frozen");
        let header = Header {
            class: zone.class(),
            zone: zone.zone(),
            generation: zone.generation(),
            position: zone.position(),
            ..header
        };
        let buffer = header.encode_block(identity, &self.links, &self.sums, &self.meta, block);
        let length = Header::length(self.sums.len(), self.meta_length());
        self.encoded.clear();
        self.encoded.extend_from_slice(&buffer.filled()[..length]);
        let slices = entries.iter().map(|entry| entry.payload().slices().len()).sum::<usize>();
        let mut payload = Payload::with_capacity(1 + slices);
        payload.push(buffer.freeze());
        for slice in entries.iter().flat_map(|entry| entry.payload().slices()) {
            payload.push(slice.clone());
        }
        payload
    }
}
