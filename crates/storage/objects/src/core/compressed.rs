//! Reads of compressed pieces: the index at the start of an object says where its chunks are.
//!
//! # Promises
//! - A piece that is read from its start on needs no further request, and neither does one whose object is
//!   short: the index is read with the first bytes. Of others it is read by a request of its own, once while
//!   it is among those in memory (`indexes`).
//!
//! Left to others: retries, checksums and other lengths (`read`).

use super::Core;
use super::read::Object;
use crate::compression::{Index, head_length, reach};
use crate::format::{CHUNK, open_index};
use crate::indexes::{Loading, Lookup};
use block::{Buffer, Result};
use std::ops::Range;
use std::rc::Rc;

/// Bytes before the wanted ones that are read with the index in place of a request more: what a connection
/// transfers in the latency of one, about.
const NEAR: u64 = 512 << 10;

impl Core {
    /// Reads bytes of a compressed piece.
    pub(super) async fn read_compressed(
        &self,
        object: &Object<'_>,
        wanted: Range<u64>,
        buffer: &mut Buffer,
    ) -> Result<()> {
        let is_near = wanted.start < NEAR;
        let index = loop {
            let loading = match self.manifests.indexes.find(object.name) {
                Lookup::Known(index) => break index,
                Lookup::Unknown(loading) => Some(loading),
                Lookup::Loading(loading) if !is_near => {
                    loading.notified().await;
                    continue;
                }
                Lookup::Loading(_) => None,
            };
            if is_near {
                return self.read_from_start(object, loading, wanted, buffer).await;
            }
            let bytes = head_length(object.size.length, object.zone_key.is_some());
            let _memory = self.reads.acquire(bytes).await;
            let mut head = self.fetch(object, 0, bytes).await?;
            break self.index(object, loading, head.filled_mut())?;
        };
        self.read_range(object, Some(&index), &index.range(wanted), buffer).await
    }

    /// Reads bytes near the start of a piece together with its index.
    async fn read_from_start(
        &self,
        object: &Object<'_>,
        loading: Option<Loading>,
        wanted: Range<u64>,
        buffer: &mut Buffer,
    ) -> Result<()> {
        let bytes = reach(object.size, wanted.end, object.zone_key.is_some());
        let _memory = self.reads.acquire(bytes).await;
        let mut start = self.fetch(object, 0, bytes).await?;
        let index = self.index(object, loading, start.filled_mut())?;
        let range = index.range(wanted);
        let from = range.at as usize;
        let part = start.filled_mut().get_mut(from..from + range.bytes).unwrap_or_default();
        self.verify(object, Some(&index), &range, part, buffer)
    }

    /// Index in the first bytes of an object.
    fn index(&self, object: &Object<'_>, loading: Option<Loading>, start: &mut [u8]) -> Result<Rc<Index>> {
        let volume = &self.log.identity().volume;
        let opened = open_index(volume, object.name, object.size, object.zone_key, start);
        let index = Rc::new(opened.map_err(|error| error.in_context(format!("object {}", object.key)))?);
        // That of one chunk is read with it.
        if let Some(loading) = loading.filter(|_| object.size.length > CHUNK as u64) {
            loading.keep(index.clone());
        }
        Ok(index)
    }
}
