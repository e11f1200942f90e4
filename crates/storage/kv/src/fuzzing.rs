//! Entry point for a fuzz target and property tests: blocks of untrusted bytes, with their invariants.

use crate::cursor::Cursor;
use crate::key_version::{KeyVersion, Sequence, Value, order};
use crate::table::{Block, BlockHandle, BlockSource, Builder, Options, Reader, Summary, key_hash};
use block::Result;
use crc_fast::{CrcAlgorithm, checksum};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// A table whose data block, at offset 0, has arbitrary contents.
struct Hostile {
    table: Vec<u8>,
    block: Arc<Block>,
}

impl BlockSource for &Hostile {
    async fn read(&self, handle: BlockHandle) -> Result<Arc<Block>> {
        match handle.offset {
            0 => Ok(Arc::clone(&self.block)),
            offset => {
                Block::decode(&self.table[offset as usize..handle.end() as usize], handle).map(Arc::new)
            }
        }
    }
}

/// Reads arbitrary bytes as a block of a sorted table, with a valid checksum. Invariants: no panic, bounded
/// memory, and walks that end and are in order.
///
/// # Panics
/// If an invariant is violated.
pub fn table_block(code: u8, contents: &[u8], key: &[u8], sequence: Sequence) {
    // With a salt and an offset of 0 the checksum depends only on the bytes.
    let mut stored = [contents, &[code]].concat();
    let checksum = checksum(CrcAlgorithm::Crc32Iscsi, &stored) as u32;
    stored.extend_from_slice(&checksum.to_le_bytes());
    let handle = BlockHandle { offset: 0, length: stored.len() as u32, salt: 0 };
    let Ok(block) = Block::decode(&stored, handle) else { return };
    assert!(block.memory_bytes() <= 1024 + 255 * stored.len());

    let mut builder = Builder::new(Options { filter_bits: 0, ..Options::default() });
    let value = Value::Put { bytes: b"value", expires: None };
    let added = builder.add(KeyVersion { key: b"key", sequence: 1, value });
    let Ok((table, summary)) = added.and_then(|()| builder.finish()) else {
        panic!("one entry makes a table")
    };
    let hostile = Hostile { table, block: Arc::new(block) };
    let walk = pin!(walk(&hostile, &summary, key, sequence));
    assert!(matches!(walk.poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(_)));
}

/// Calls everything that reads the block; errors are permitted.
async fn walk(hostile: &Hostile, summary: &Summary, key: &[u8], sequence: Sequence) -> Result<()> {
    let reader = Reader::new(hostile, summary);
    drop(reader.get(key, key_hash(key), sequence).await.map(|found| found.map(|found| found.sequence())));
    let mut cursor = reader.cursor();
    if cursor.seek(key, sequence).await.is_ok() && cursor.entry().is_some() {
        drop(cursor.previous().await);
    }
    drop(cursor.seek_before(key, sequence).await);
    drop(cursor.seek_last().await);
    while cursor.entry().is_some() && cursor.previous().await.is_ok() {}
    cursor.seek_first().await?;
    let mut last: Option<(Vec<u8>, Sequence)> = None;
    while let Some(entry) = cursor.entry() {
        if let Some((key, sequence)) = &last {
            assert!(order((key, *sequence), (entry.key, entry.sequence)).is_lt());
        }
        last = Some((entry.key.to_vec(), entry.sequence));
        cursor.next().await?;
    }
    Ok(())
}
