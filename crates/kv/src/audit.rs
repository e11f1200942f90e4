//! Audit: whether the cells of a drive still hold given keys, by looking at all that they show, and not at what the store knows.
//!
//! Cells show data of zones that were reset and not erased, of appends that failed, and of former formats. In all of it the audit looks for
//! - records of logs, by their magic, and in these for writes, edits of the manifest, and pieces of tables;
//! - the blocks of tables, by their checksums (`table::carve`): their keys are compressed;
//! - the bytes of the keys themselves, anywhere, for keys of 8 bytes and more.
//!
//! Parts of compressed blocks whose other part is gone can't be decoded; their length is reported.

use crate::batch::Write;
use crate::item::{Recorded, decode_parts};
use crate::manifest::{Edit, shard_of};
use crate::table::carve;
use block::Result;
use logkit::record::{Kind, Parsed};
use logkit::scan::{Found, Kept};
use std::collections::BTreeMap;

/// Unit in which records begin, in bytes.
const BLOCK: usize = 4096;
/// Shortest key whose bytes are looked for everywhere.
const SHORTEST_LITERAL: usize = 8;
/// Most places that are reported of a key.
const MOST_PLACES: usize = 16;

/// Where a key was found.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct FoundKey {
    /// Index of the key.
    pub key: usize,
    /// Zone.
    pub zone: u32,
    /// Byte of the zone: of the block or record that has it.
    pub offset: u64,
    /// What has it.
    pub what: &'static str,
}

/// What an audit has found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Findings {
    /// Places of the keys, at most 16 of each.
    pub found: Vec<FoundKey>,
    /// Records that were looked at.
    pub records: u64,
    /// Blocks of tables that were looked at.
    pub blocks: u64,
    /// Bytes of tables that are in no whole block.
    pub undecodable: u64,
}

/// A piece of a table in the cells.
#[derive(Debug)]
struct Piece {
    zone: u32,
    offset: usize,
    first: u32,
    blocks: u32,
}

/// Pieces of tables by shard and table.
type Tables = BTreeMap<(u16, u64), Vec<Piece>>;

struct Audit<'a> {
    keys: &'a [Vec<u8>],
    findings: Findings,
}

impl Audit<'_> {
    fn note(&mut self, key: usize, zone: u32, offset: usize, what: &'static str) {
        let found = FoundKey { key, zone, offset: offset as u64, what };
        let known = self.findings.found.iter().filter(|it| it.key == key).count();
        if known < MOST_PLACES && !self.findings.found.contains(&found) {
            self.findings.found.push(found);
        }
    }

    fn compare(&mut self, bytes: &[u8], zone: u32, offset: usize, what: &'static str) {
        for key in 0..self.keys.len() {
            if self.keys[key] == bytes {
                self.note(key, zone, offset, what);
            }
        }
    }

    /// Looks for the bytes of keys anywhere in a zone.
    fn literals(&mut self, zone: u32, cells: &[u8]) {
        for number in 0..self.keys.len() {
            let key = &self.keys[number];
            if key.len() < SHORTEST_LITERAL {
                continue;
            }
            let mut from = 0;
            while let Some(at) = find(&cells[from..], key) {
                self.note(number, zone, from + at, "bytes");
                from += at + 1;
                if self.findings.found.len() >= MOST_PLACES * self.keys.len() {
                    break;
                }
            }
        }
    }

    /// Looks at the records of a zone, and notes the pieces of tables.
    fn records(&mut self, zone: u32, cells: &[u8], tables: &mut Tables) {
        for offset in (0..cells.len()).step_by(BLOCK) {
            let Ok(Some(parsed)) = Parsed::decode_any(&cells[offset..]) else { continue };
            if parsed.header.kind != Kind::Entries {
                continue;
            }
            self.findings.records += 1;
            let found = Found::new(&parsed);
            // A header that isn't whole says nothing that the bytes don't.
            let Ok(items) = Recorded::decode_all(&found) else { continue };
            let mut at = offset + BLOCK;
            for item in items {
                let length = item.blocks() as usize * BLOCK;
                match item {
                    Recorded::Piece { table, first, blocks, .. } => {
                        let piece = Piece { zone, offset: at, first, blocks };
                        tables.entry((shard_of(found.header.stream), table)).or_default().push(piece);
                    }
                    Recorded::Body { is_edit, inline, length: whole, offset: 0, .. } => {
                        let data = cells.get(at..at + length).unwrap_or_default();
                        let body = inline.as_deref().unwrap_or(data);
                        if let Some(body) = body.get(..whole as usize) {
                            self.body(is_edit, body, zone, offset);
                        }
                    }
                    // The rest of a body is looked at as bytes.
                    Recorded::Body { .. } => {}
                }
                at += length;
            }
        }
    }

    fn body(&mut self, is_edit: bool, body: &[u8], zone: u32, offset: usize) {
        if is_edit {
            let Ok(edit) = Edit::decode(body) else { return };
            for table in &edit.added {
                self.compare(&table.summary.smallest, zone, offset, "an edit of the manifest");
                self.compare(&table.summary.largest, zone, offset, "an edit of the manifest");
            }
            return;
        }
        let mut keys: Vec<Vec<u8>> = Vec::new();
        // What can't be decoded is looked at as bytes.
        let _decoded = decode_parts(body, |part| {
            Write::decode_all(part.bytes, |write| match write {
                Write::Put { key, .. } | Write::Delete { key, .. } => keys.push(key.to_vec()),
                Write::DeleteRange { from, to, .. } => keys.extend([from.to_vec(), to.to_vec()]),
            })
        });
        keys.iter().for_each(|key| self.compare(key, zone, offset, "a write in the log"));
    }

    /// Looks at a run of bytes of a table.
    fn table(&mut self, (shard, table): (u16, u64), run: &[(Piece, Vec<u8>)]) {
        let Some((first, _)) = run.first() else { return };
        let bytes: Vec<u8> = run.iter().flat_map(|(_, bytes)| bytes.iter().copied()).collect();
        let (zone, offset) = (first.zone, first.offset);
        let salt = crate::core::salt_of(table, shard);
        let mut keys: Vec<Vec<u8>> = Vec::new();
        let mut blocks = 0;
        let unknown = carve::blocks(&bytes, u64::from(first.first) * BLOCK as u64, salt, |block| {
            blocks += 1;
            if let Ok(block) = block {
                // A block that contradicts itself has the keys before that.
                let _walked = block.for_each_key(|key| {
                    if self.keys.iter().any(|wanted| wanted == key) {
                        keys.push(key.to_vec());
                    }
                });
            }
        });
        self.findings.blocks += blocks;
        // The end of a table is filled with zeros.
        let padding = bytes.iter().rev().take_while(|byte| **byte == 0).count();
        self.findings.undecodable += unknown.saturating_sub(padding) as u64;
        keys.iter().for_each(|key| self.compare(key, zone, offset, "a block of a table"));
    }
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    let first = *wanted.first()?;
    let mut from = 0;
    while let Some(at) = bytes[from..].iter().position(|byte| *byte == first) {
        if bytes[from + at..].starts_with(wanted) {
            return Some(from + at);
        }
        from += at + 1;
    }
    None
}

/// Looks for keys in the cells of so many zones. `cells` returns what the cells of a zone show, from its beginning on, erased cells too.
///
/// # Errors
/// What `cells` returns.
pub async fn audit(
    zones: u32,
    mut cells: impl AsyncFnMut(u32) -> Result<Vec<u8>>,
    keys: &[Vec<u8>],
) -> Result<Findings> {
    let mut audit = Audit { keys, findings: Findings::default() };
    let mut tables = Tables::new();
    for zone in 0..zones {
        let shown = cells(zone).await?;
        audit.literals(zone, &shown);
        audit.records(zone, &shown, &mut tables);
    }
    for (table, mut pieces) in tables {
        pieces.sort_by_key(|piece| (piece.first, piece.zone, piece.offset));
        // Pieces that follow each other are one run; copies of a piece are runs of their own.
        while !pieces.is_empty() {
            let mut run: Vec<(Piece, Vec<u8>)> = Vec::new();
            let mut next = None;
            let mut left = Vec::new();
            for piece in pieces {
                if next.is_none_or(|next| next == piece.first) {
                    next = Some(piece.first + piece.blocks);
                    let shown = cells(piece.zone).await?;
                    let end = (piece.offset + piece.blocks as usize * BLOCK).min(shown.len());
                    let bytes = shown[piece.offset.min(end)..end].to_vec();
                    run.push((piece, bytes));
                } else {
                    left.push(piece);
                }
            }
            audit.table(table, &run);
            pieces = left;
        }
    }
    audit.findings.found.sort();
    Ok(audit.findings)
}
