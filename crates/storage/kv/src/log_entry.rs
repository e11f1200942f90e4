//! Entries that a shard appends to its log.
//!
//! The stream of users has the writes of clients: the write-ahead log. The stream of the cleaner has pieces
//! of tables, also those that the cleaner moves, and edits of the manifest. Short writes and edits are in the
//! meta of their record, others in its data.

use crate::tree::manifest::{Edit, TableId};
use crate::tree::tables::TableFile;
use block::{Buffer, Data, Error, Payload, Result, ZoneBlock};
use logkit::leb128::{Numbers, put, put_string};
use logkit::scan::Found;
use logkit::{Entry, StreamId};
use runtime::RequestKey;
use smallvec::SmallVec;
use std::cell::Cell;
use std::rc::Rc;
use zones::bytes::Reader;

/// Maximum bytes of writes or of an edit in the meta of a record.
const MAX_INLINE: usize = 3 << 10;

/// Writes for one shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part<'a> {
    /// Number of the shard.
    pub shard: u16,
    /// [Encoded writes](crate::batch::Write).
    pub bytes: &'a [u8],
}

/// Encodes the writes of several shards.
pub fn encode_parts<'a>(parts: impl Iterator<Item = Part<'a>>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in parts {
        put(&mut bytes, part.shard.into());
        put_string(&mut bytes, part.bytes);
    }
    bytes
}

/// Visits the writes of each shard.
///
/// # Errors
/// [`Error::Corrupt`] for bytes that no version of this program writes; errors of `visit`.
pub fn decode_parts<'a>(bytes: &'a [u8], mut visit: impl FnMut(Part<'a>) -> Result<()>) -> Result<()> {
    let mut numbers = Numbers::new(bytes, "a record of the write-ahead log");
    while !numbers.rest().is_empty() {
        let shard = numbers.take()?;
        let shard = u16::try_from(shard).map_err(|_| numbers.strange(&format!("names shard {shard}")))?;
        visit(Part { shard, bytes: numbers.string()? })?;
    }
    Ok(())
}

/// Content of an entry, and the requests that wait for it.
#[derive(Debug)]
pub enum EntryContent {
    /// Writes for this shard and `others`.
    Writes {
        /// Streams of the other shards.
        others: SmallVec<[StreamId; 1]>,
        /// Requests to complete.
        requests: SmallVec<[RequestKey; 8]>,
        /// Whether the writes are in the memtable already, because they were acknowledged before they were
        /// written.
        is_applied: bool,
    },
    /// This shard's part of writes that another shard appended.
    Shared,
    /// A part of writes before the last one; it has no effect.
    WritesPart {
        /// Whether the writes were acknowledged before they were written.
        is_applied: bool,
    },
    /// A piece of a table.
    Piece {
        /// Table that the piece belongs to.
        table: Rc<TableFile>,
        /// Number of the piece's first block in the table.
        first: u32,
        /// Place from which the piece is moved; `None` for a new piece.
        from: Option<ZoneBlock>,
    },
    /// An edit of the manifest, with the tables that it adds.
    Edit(Box<(Edit, Vec<Rc<TableFile>>)>),
    /// A part of an edit before the last one; it has no effect.
    EditPart,
}

/// Encoded bytes that may be divided among several records.
#[derive(Debug, Default)]
pub struct Body {
    /// Encoded writes or edit.
    pub bytes: Vec<u8>,
    /// Whether a part was refused; if so, the entry has no effect.
    pub is_refused: Cell<bool>,
}

impl Body {
    fn new(bytes: Vec<u8>) -> Rc<Self> {
        Rc::new(Body { bytes, is_refused: Cell::new(false) })
    }
}

/// Entry that a shard appends to its log.
#[derive(Debug)]
pub struct KvEntry {
    /// Content of the entry.
    pub content: EntryContent,
    /// Encoded writes or the encoded edit; empty for pieces of tables. Parts of one entry share the body.
    pub body: Rc<Body>,
    /// Offset of this part in the body, in bytes.
    pub offset: u32,
    /// Data of a piece, or of a body that isn't inline.
    pub data: Payload,
    block: u32,
    /// Whether all writes of the entry are deletes.
    frees: bool,
}

/// Pads bytes with zeros to whole blocks.
fn padded(bytes: &[u8], block: usize) -> Data {
    let mut buffer = Buffer::new(bytes.len().next_multiple_of(block));
    buffer.append(bytes);
    buffer.append_zeroes(buffer.missing());
    buffer.freeze()
}

impl KvEntry {
    fn with_body(content: EntryContent, body: Vec<u8>, block: usize) -> Self {
        let data = match body.len() <= MAX_INLINE {
            true => Payload::default(),
            false => padded(&body, block).into(),
        };
        KvEntry { content, body: Body::new(body), offset: 0, data, block: block as u32, frees: false }
    }

    /// Returns the entry, marked as consisting only of deletes if `frees`.
    #[must_use]
    pub fn freeing(self, frees: bool) -> Self {
        KvEntry { frees, ..self }
    }

    /// Returns an entry of clients' writes, encoded by [`encode_parts`].
    pub fn writes(
        body: Vec<u8>,
        others: SmallVec<[StreamId; 1]>,
        requests: SmallVec<[RequestKey; 8]>,
        is_applied: bool,
        block: usize,
    ) -> Self {
        KvEntry::with_body(EntryContent::Writes { others, requests, is_applied }, body, block)
    }

    /// Returns an entry of this shard's part of writes that another shard appended.
    pub fn shared(body: Vec<u8>) -> Self {
        KvEntry {
            content: EntryContent::Shared,
            body: Body::new(body),
            offset: 0,
            data: Payload::default(),
            block: 0,
            frees: false,
        }
    }

    /// Returns an entry of a piece of a table, in whole blocks.
    pub fn piece(
        table: Rc<TableFile>,
        first: u32,
        from: Option<ZoneBlock>,
        data: Payload,
        block: usize,
    ) -> Self {
        let content = EntryContent::Piece { table, first, from };
        KvEntry { content, body: Rc::default(), offset: 0, data, block: block as u32, frees: false }
    }

    /// Returns an entry of an edit of the manifest.
    pub fn edit(edit: Edit, added: Vec<Rc<TableFile>>, block: usize) -> Self {
        let body = edit.encode();
        KvEntry::with_body(EntryContent::Edit(Box::new((edit, added))), body, block)
    }

    /// Whether this is the last part of its body.
    pub fn is_last_part(&self) -> bool {
        self.data.is_empty() || self.offset as usize + self.data.len() >= self.body.bytes.len()
    }

    /// Whether this is a part of writes that are in several records.
    pub fn is_part(&self) -> bool {
        matches!(
            self.content,
            EntryContent::Writes { .. } | EntryContent::WritesPart { .. } | EntryContent::Shared
        ) && (self.offset > 0 || !self.is_last_part())
    }

    /// Splits off the first `blocks` blocks.
    pub fn cut(&mut self, blocks: u32) -> KvEntry {
        let at = (blocks * self.block) as usize;
        let first = self.data.slice(0..at);
        self.data = self.data.slice(at..self.data.len());
        let content = match &mut self.content {
            EntryContent::Piece { table, first, from } => {
                let cut = EntryContent::Piece { table: table.clone(), first: *first, from: *from };
                *first += blocks;
                *from = from.map(|place| place.after(blocks));
                cut
            }
            // Parts before the last one have no effect.
            EntryContent::Edit(_) | EntryContent::EditPart => EntryContent::EditPart,
            EntryContent::Writes { is_applied, .. } | EntryContent::WritesPart { is_applied } => {
                EntryContent::WritesPart { is_applied: *is_applied }
            }
            EntryContent::Shared => EntryContent::Shared,
        };
        let (body, offset) = (self.body.clone(), self.offset);
        let part = KvEntry { content, body, offset, data: first, block: self.block, frees: self.frees };
        self.offset += at as u32;
        part
    }

    fn kind(&self) -> u8 {
        match self.content {
            EntryContent::Writes { .. } | EntryContent::WritesPart { .. } | EntryContent::Shared => WRITES,
            EntryContent::Piece { .. } => PIECE,
            EntryContent::Edit(_) | EntryContent::EditPart => EDIT,
        }
    }
}

/// Tags of entries on the medium.
const WRITES: u8 = 1;
const PIECE: u8 = 2;
const EDIT: u8 = 3;

/// Previous place of new pieces on the medium. Zones 0 and 1 hold roots, so no piece is there.
const NOWHERE: ZoneBlock = ZoneBlock::new(0, 0);

/// Length of a piece's meta: kind, table, first block, number of blocks, previous place.
const PIECE_META: usize = 1 + 8 + 4 + 4 + 8;
/// Length of the meta of a body, without the body: kind, whether it is inline, length, offset of the part.
const BODY_META: usize = 1 + 1 + 4 + 4;
/// Maximum length of the meta of an entry with one block of data.
pub const MAX_META: usize = PIECE_META;

impl Entry for KvEntry {
    fn blocks(&self) -> u32 {
        (self.data.len() / self.block.max(1) as usize) as u32
    }

    fn payload(&self) -> &Payload {
        &self.data
    }

    fn meta_length(&self) -> usize {
        match self.content {
            EntryContent::Piece { .. } => PIECE_META,
            _ if self.data.is_empty() => BODY_META + self.body.bytes.len(),
            _ => BODY_META + 4,
        }
    }

    fn encode_meta(&self, meta: &mut Vec<u8>) {
        meta.push(self.kind());
        if let EntryContent::Piece { table, first, from } = &self.content {
            meta.extend_from_slice(&table.id.to_le_bytes());
            let from = from.unwrap_or(NOWHERE);
            for number in [*first, self.blocks(), from.zone.0, from.block] {
                meta.extend_from_slice(&number.to_le_bytes());
            }
            return;
        }
        meta.push(self.data.is_empty().into());
        meta.extend_from_slice(&(self.body.bytes.len() as u32).to_le_bytes());
        meta.extend_from_slice(&self.offset.to_le_bytes());
        match self.data.is_empty() {
            true => meta.extend_from_slice(&self.body.bytes),
            false => meta.extend_from_slice(&self.blocks().to_le_bytes()),
        }
    }

    fn only_frees(&self) -> bool {
        self.data.is_empty() && matches!(self.content, EntryContent::Edit(_))
    }

    fn frees_space(&self) -> bool {
        self.frees || matches!(self.content, EntryContent::Edit(_) | EntryContent::EditPart)
    }

    fn is_moved(&self) -> bool {
        matches!(self.content, EntryContent::Piece { from: Some(_), .. })
    }

    fn is_atomic(&self) -> bool {
        !self.joins().is_empty()
    }

    fn joins(&self) -> &[StreamId] {
        match &self.content {
            EntryContent::Writes { others, .. } => others,
            _ => &[],
        }
    }

    fn is_acknowledged(&self) -> bool {
        matches!(
            self.content,
            EntryContent::Writes { is_applied: true, .. } | EntryContent::WritesPart { is_applied: true }
        )
    }
}

/// An entry of a record as it is on the medium.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recorded {
    /// A part of writes or of an edit: the bytes at `offset` of a body of `length` bytes.
    Body {
        /// Whether the body is an edit; otherwise it has writes.
        is_edit: bool,
        /// Length of the whole body in bytes.
        length: u32,
        /// Offset of the part in the body, in bytes.
        offset: u32,
        /// The body if it is in the meta; `None` if it is in data blocks.
        inline: Option<Vec<u8>>,
        /// Number of data blocks of the part.
        blocks: u32,
    },
    /// A piece of a table.
    Piece {
        /// Number of the table.
        table: TableId,
        /// Number of the piece's first block in the table.
        first: u32,
        /// Number of blocks.
        blocks: u32,
        /// Place from which the piece was moved; `None` for a new piece.
        from: Option<ZoneBlock>,
    },
}

impl Recorded {
    /// Number of data blocks of the entry.
    pub fn blocks(&self) -> u32 {
        match self {
            Recorded::Body { blocks, .. } | Recorded::Piece { blocks, .. } => *blocks,
        }
    }

    /// Decodes the entries of a record.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for meta that no version of this program writes.
    pub fn decode_all(record: &Found) -> Result<Vec<Recorded>> {
        let mut reader = Reader::new(&record.meta, "the meta of a record");
        let mut entries = Vec::new();
        let mut left = record.header.blocks;
        while reader.remaining() > 0 {
            let entry = Recorded::decode(&mut reader)?;
            left = left
                .checked_sub(entry.blocks())
                .ok_or_else(|| reader.strange("names more blocks than the record has"))?;
            entries.push(entry);
        }
        match left {
            0 => Ok(entries),
            left => Err(Error::corrupt(format!("a record has {left} data blocks that no entry names"))),
        }
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self> {
        let kind = reader.u8()?;
        match kind {
            PIECE => {
                let table = reader.u64()?;
                let [first, blocks, zone, block] =
                    [reader.u32()?, reader.u32()?, reader.u32()?, reader.u32()?];
                let from = Some(ZoneBlock::new(zone, block)).filter(|from| *from != NOWHERE);
                Ok(Recorded::Piece { table, first, blocks, from })
            }
            WRITES | EDIT => {
                let is_inline = reader.u8()?;
                let (length, offset) = (reader.u32()?, reader.u32()?);
                let (inline, blocks) = match is_inline {
                    0 => (None, reader.u32()?),
                    1 if offset == 0 => (Some(reader.bytes(length as usize)?.to_vec()), 0),
                    _ => {
                        return Err(
                            reader.strange("has an entry that is neither in the meta nor in the data")
                        );
                    }
                };
                Ok(Recorded::Body { is_edit: kind == EDIT, length, offset, inline, blocks })
            }
            kind => Err(reader.strange(&format!("has an entry of unknown kind {kind}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_pieces_of_writes_that_are_cut_are_parts() {
        let body = encode_parts([Part { shard: 0, bytes: &[7; 20_000] }].into_iter());
        let mut rest = KvEntry::writes(body, SmallVec::new(), SmallVec::new(), false, 4096);
        assert!(!rest.is_part() && rest.is_last_part(), "a whole entry");
        for _ in 0..2 {
            let piece = rest.cut(2);
            assert!(piece.is_part() && !piece.is_last_part());
        }
        assert!(rest.is_part() && rest.is_last_part());
    }
}
