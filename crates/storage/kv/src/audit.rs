//! Audit: searches all readable cells of a drive for given keys, without relying on the state of the store.
//!
//! Cells also show data of zones that were reset and not erased, of failed appends, and of former formats.
//! The audit searches for
//! - records of logs, by their magic, and in them for writes, edits of the manifest, and pieces of tables;
//! - blocks of tables, by their checksums (`table::carve`): their keys are compressed;
//! - the bytes of the keys anywhere, for keys of at least 8 bytes.
//!
//! A compressed block of which a part was overwritten can't be decoded; the length of such parts is reported.

use crate::batch::Write;
use crate::log_entry::{Recorded, decode_parts};
use crate::table::carve;
use crate::tree::manifest::{Edit, shard_of};
use block::Result;
use logkit::record::{Kind, Parsed};
use logkit::scan::{Found, Kept};
use std::collections::BTreeMap;

/// Alignment of records, in bytes.
const BLOCK: usize = 4096;
/// Minimum length in bytes of keys that are searched for as plain bytes.
const MIN_LITERAL: usize = 8;
/// Maximum number of reported places of a key.
const MAX_PLACES: usize = 16;

/// A place at which a key was found.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct FoundKey {
    /// Index of the key.
    pub key: usize,
    /// Number of the zone.
    pub zone: u32,
    /// Offset in the zone, in bytes, of the block or record that contains the key.
    pub offset: u64,
    /// Kind of data that contains the key.
    pub what: &'static str,
}

/// Result of an audit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Findings {
    /// Places of the keys, at most 16 of each key.
    pub found: Vec<FoundKey>,
    /// Number of records that were searched.
    pub records: u64,
    /// Number of blocks of tables that were searched.
    pub blocks: u64,
    /// Bytes of tables outside complete blocks.
    pub undecodable: u64,
}

/// A piece of a table that was found in the cells.
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
        if known < MAX_PLACES && !self.findings.found.contains(&found) {
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

    /// Searches a zone for the plain bytes of keys.
    fn literals(&mut self, zone: u32, cells: &[u8]) {
        for number in 0..self.keys.len() {
            let key = &self.keys[number];
            if key.len() < MIN_LITERAL {
                continue;
            }
            let mut from = 0;
            while let Some(at) = find(&cells[from..], key) {
                self.note(number, zone, from + at, "bytes");
                from += at + 1;
                if self.findings.found.len() >= MAX_PLACES * self.keys.len() {
                    break;
                }
            }
        }
    }

    /// Searches the records of a zone, and collects the pieces of tables.
    fn records(&mut self, zone: u32, cells: &[u8], tables: &mut Tables) {
        for offset in (0..cells.len()).step_by(BLOCK) {
            let Ok(Some(parsed)) = Parsed::decode_any(&cells[offset..]) else { continue };
            if parsed.header.kind != Kind::Entries {
                continue;
            }
            self.findings.records += 1;
            let found = Found::new(&parsed);
            // The plain bytes of a damaged header are searched anyway.
            let Ok(entries) = Recorded::decode_all(&found) else { continue };
            let mut at = offset + BLOCK;
            for entry in entries {
                let length = entry.blocks() as usize * BLOCK;
                match entry {
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
                    // Other parts of a body are searched as plain bytes.
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
        // Undecodable parts are searched as plain bytes.
        let _decoded = decode_parts(body, |part| {
            Write::decode_all(part.bytes, |write| match write {
                Write::Put { key, .. } | Write::Delete { key, .. } => keys.push(key.to_vec()),
                Write::DeleteRange { from, to, .. } => keys.extend([from.to_vec(), to.to_vec()]),
            })
        });
        keys.iter().for_each(|key| self.compare(key, zone, offset, "a write in the log"));
    }

    /// Searches consecutive bytes of a table.
    fn table(&mut self, (shard, table): (u16, u64), run: &[(Piece, Vec<u8>)]) {
        let Some((first, _)) = run.first() else { return };
        let bytes: Vec<u8> = run.iter().flat_map(|(_, bytes)| bytes.iter().copied()).collect();
        let (zone, offset) = (first.zone, first.offset);
        let salt = crate::tree::tables::salt_of(table, shard);
        let mut keys: Vec<Vec<u8>> = Vec::new();
        let mut blocks = 0;
        let unknown = carve::blocks(&bytes, u64::from(first.first) * BLOCK as u64, salt, |block| {
            blocks += 1;
            if let Ok(block) = block {
                // A damaged block yields the keys before the damage.
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

/// Searches the cells of `zones` zones for keys. `cells` returns all cells of a zone from its start, erased
/// ones included.
///
/// # Errors
/// Errors of `cells`.
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
        // Consecutive pieces form one run; each copy of a piece begins a run of its own.
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
