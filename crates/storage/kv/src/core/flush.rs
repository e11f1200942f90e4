//! Flushes: full buffers are written as tables of level 0. A failed flush is retried.

use super::{Core, add};
use crate::cursor::merge::Merge;
use crate::memory::buffer::WriteBuffer;
use crate::tree::level_cursor::AnyCursor;
use crate::tree::manifest::Edit;
use block::{Error, Result};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

/// Delay of the retry of a failed job.
const RETRY: Duration = Duration::from_millis(100);
/// Number of attempts of a flush without free space before writers get its error.
const FLUSH_ATTEMPTS: u32 = 4;

impl Core {
    /// Flushes frozen buffers until the store is closed.
    pub(crate) async fn run_flushes(self: Rc<Self>) {
        let mut attempts = 0;
        loop {
            let changed = self.events.changed.notified();
            let first = self.buffers.frozen().first().cloned();
            let outcome = match first {
                Some(buffer) => self.flush_buffer(&buffer).await,
                None if self.kit.is_closing() || self.kit.failure().is_some() => return,
                None => {
                    changed.await;
                    continue;
                }
            };
            // Retried quietly: a compaction without space frees the tables that it has written.
            attempts = if matches!(outcome, Err(Error::NoSpace(_))) { attempts + 1 } else { 0 };
            if (1..FLUSH_ATTEMPTS).contains(&attempts) {
                runtime::sleep(RETRY).await;
                continue;
            }
            if !self.note_outcome(&self.buffers.error, outcome).await {
                return;
            }
        }
    }

    /// Sets the error of the last job. Returns false if no further job may begin.
    pub(super) async fn note_outcome(&self, last: &RefCell<Option<Error>>, outcome: Result<()>) -> bool {
        last.replace(outcome.err());
        self.events.changed.notify_all();
        match &*last.borrow() {
            Some(error) => tracing::warn!("shard {}: {error}", self.peers.shard),
            None => return true,
        }
        if self.kit.failure().is_some() || self.kit.is_closing() {
            return false;
        }
        runtime::sleep(RETRY).await;
        true
    }

    /// Writes a frozen buffer as a table of level 0, and removes the buffer.
    pub(crate) async fn flush_buffer(self: &Rc<Self>, buffer: &Rc<WriteBuffer>) -> Result<()> {
        let class = self.class_of(0, buffer.memtable.oldest_tombstone());
        let cursor = Merge::new(vec![AnyCursor::Memtable(buffer.memtable.cursor())]);
        let has_tables = self.tables.levels().all().next().is_some() || self.buffers.frozen().len() > 1;
        // Newer entries are also in the next buffer.
        let newest = buffer.last().sequence;
        let tombstones = buffer.memtable.range_tombstones();
        let tombstones = tombstones.iter().filter(|range| range.sequence <= newest).cloned().collect();
        let output = self.rewrite((cursor, newest), tombstones, 0, class, |_| !has_tables).await?;
        add(&self.work.flushed_bytes, output.1);
        let has_ranges = output.0.has_ranges();
        let edit = Edit { flushed: Some(buffer.last()), ..Edit::default() };
        self.append_edit(edit, output.0, 0, class).await?;
        if has_ranges {
            self.compactions.has_new_ranges.set(true);
        }
        Ok(())
    }

    /// Freezes the active buffer, and waits until all buffers are in tables.
    pub(crate) async fn flush_buffers(self: &Rc<Self>) -> Result<()> {
        if self.tables.lost().is_some() {
            // In a salvaged store, replayed writes stay in memory.
            return Ok(());
        }
        self.freeze();
        while !self.buffers.frozen().is_empty() {
            if let Some(error) = self.kit.failure() {
                return Err(error);
            }
            let changed = self.events.changed.notified();
            if let Some(error) = &*self.buffers.error.borrow() {
                return Err(error.clone());
            }
            changed.await;
        }
        Ok(())
    }
}
