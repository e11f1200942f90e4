//! Appends of the cleaner's moves: records of the cleaner's own stream in zones of its own, so that users'
//! writes never wait for one; and their waits for checkpoints, for owners that exclude the two.

use crate::entry::{Batch, Entry, Frozen};
use crate::kit::Kit;
use crate::lane::write_record;
use crate::mover::Mover;
use crate::owner::Owner;
use crate::record::{Header, LINK};
use crate::seals;
use crate::zone_writer::ZoneWriter;
use block::{Error, Result};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

/// Whether moves have to wait for a checkpoint that is being written. Its end wakes the cleaner.
pub(crate) fn moves_wait<O: Owner>(owner: &O) -> bool {
    owner.kit().turns.is_checkpointing() && owner.moves_exclude_checkpoints()
}

/// Waits until no record of moves is in flight, if the owner excludes moves during checkpoints. Further moves
/// wait for the end of the checkpoint.
pub async fn wait_for_moves<O: Owner>(owner: &O) {
    let turns = &owner.kit().turns;
    while turns.is_moving() && moves_wait(owner) {
        turns.changed().await;
    }
}

/// Waits until no checkpoint that excludes moves is being written.
async fn wait_for_checkpoint<O: Owner>(owner: &O) {
    while moves_wait(owner) {
        owner.kit().turns.changed().await;
    }
}

/// Takes the entries of the next record, as many as the zone takes; the last one may be cut. Returns them
/// with their number of blocks.
fn next_batch<O: Owner>(
    owner: &Rc<O>,
    zone: &ZoneWriter,
    rest: &mut VecDeque<O::Entry>,
) -> (Batch<O::Entry>, u32) {
    let layout = &owner.kit().layout;
    let mut batch = Batch::default();
    // The record follows a record of users.
    let (mut blocks, mut meta) = (0, LINK);
    while let Some(entry) = rest.front_mut() {
        let (wanted, words) = (entry.blocks(), entry.meta_length());
        let fits = zone.most_blocks(layout, blocks + wanted, |_| meta + words);
        let taken = fits.saturating_sub(blocks);
        // An entry without data takes space in the header only.
        let takes = if wanted == 0 { zone.takes(layout, blocks, meta + words) } else { taken > 0 };
        if !takes {
            break;
        }
        blocks += taken;
        meta += words;
        match taken == wanted {
            true => batch.entries.extend(rest.pop_front()),
            false => batch.entries.push(owner.cut(entry, taken)),
        }
    }
    (batch, blocks)
}

impl Mover {
    /// Appends entries in this order, in as few records as possible. Returns once all records are written.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if no zone takes them, or a mark of the stream was dropped for lack of space;
    /// [`Error::Invalid`] for an entry whose meta doesn't fit a header with the link of a move; the failure
    /// of the log. Entries before the one that failed are written.
    pub async fn append<O: Owner>(
        &mut self,
        owner: &Rc<O>,
        class: u8,
        entries: impl IntoIterator<Item = O::Entry>,
    ) -> Result<()> {
        let kit = owner.kit();
        let mut rest: VecDeque<O::Entry> = entries.into_iter().collect();
        while !rest.is_empty() {
            let zone = match self.zones[usize::from(class)].take() {
                Some(zone) => zone,
                None => open_zone(owner, class, &mut self.zones).await?,
            };
            if kit.streams.has_ended(kit.settings.cleaner_stream) {
                self.zones[usize::from(class)] = Some(zone);
                return Err(ended());
            }
            if moves_wait(&**owner) {
                self.zones[usize::from(class)] = Some(zone);
                seals::park(kit, &mut self.zones, wait_for_checkpoint(&**owner)).await;
                continue;
            }
            let (batch, blocks) = next_batch(owner, &zone, &mut rest);
            if batch.entries.is_empty() && zone.is_empty() {
                // No other zone would fit it either.
                self.zones[usize::from(class)] = Some(zone);
                return Err(too_large(kit, rest.front().map_or(0, Entry::meta_length)));
            }
            if batch.entries.is_empty() {
                kit.seal(zone).await;
                continue;
            }
            let moving = kit.turns.begin_moves();
            kit.pace.moved(blocks);
            let written = write_record(
                owner,
                kit.settings.cleaner_stream,
                batch,
                zone,
                &mut self.frozen,
                &mut self.zones,
            )
            .await;
            self.zones[usize::from(class)] = written.zone;
            drop(moving);
            if let Some(error) = written.refused {
                return Err(error.in_context("appending moves of the cleaner"));
            }
            if let Some(error) = kit.failure() {
                return Err(error);
            }
            runtime::yield_now().await;
        }
        Ok(())
    }

    /// Takes those of the open zones that a task asked for, to be sealed; this mover keeps the others.
    #[must_use]
    pub fn take_asked<O: Owner>(&mut self, owner: &O) -> Mover {
        let is_asked = |zone: &mut ZoneWriter| seals::time_left(owner.kit(), zone, false).is_some();
        let zones = self.zones.iter_mut().map(|zone| zone.take_if(is_asked)).collect();
        Mover { zones, frozen: Frozen::default() }
    }

    /// Seals an open zone, if it is one of this mover's: nothing more is appended to it.
    pub async fn seal<O: Owner>(&mut self, owner: &O, zone: u32) {
        let found = self.zones.iter_mut().find(|open| open.as_ref().is_some_and(|open| open.zone() == zone));
        if let Some(zone) = found.and_then(Option::take) {
            owner.kit().seal_now(zone).await;
        }
    }

    /// Seals the open zones, if a task asked for it: no move follows at once.
    pub async fn answer<O: Owner>(&mut self, owner: &O) {
        seals::answer_idle(owner.kit(), &mut self.zones).await;
    }

    /// Seals the open zones, if a task asked for it. While moves follow, a zone is kept for a quantum.
    /// Returns the time until the next one has to be sealed.
    pub(crate) async fn answer_between<O: Owner>(&mut self, owner: &O, has_moves: bool) -> Option<Duration> {
        seals::answer(owner.kit(), &mut self.zones, |_| has_moves).await
    }

    /// Waits for work that another shard does, and seals the open zones as soon as a task asks for it: the
    /// work may need them sealed.
    pub async fn meanwhile<O: Owner, T>(&mut self, owner: &O, work: impl Future<Output = T>) -> T {
        seals::park(owner.kit(), &mut self.zones, work).await
    }

    /// Seals the open zones.
    pub async fn close<O: Owner>(&mut self, owner: &O) {
        owner.kit().seal_all(&mut self.zones).await;
    }
}

#[cold]
fn too_large(kit: &Kit, meta: usize) -> Error {
    Error::invalid(format!(
        "log: an entry can't be moved: a record of its first block has {} bytes of header; expected up to {}; encode less meta",
        Header::length(1, LINK + meta),
        kit.layout.block_bytes()
    ))
}

/// Error for moves on a shard that is being closed, where a mark of the cleaner found no space: no record may
/// follow it.
#[cold]
fn ended() -> Error {
    Error::no_space("the device below the log has no space for moves, and the log is being closed")
}

/// Opens a zone for moves; zones that users leave to the cleaner may be used for it. The mover holds other
/// zones.
async fn open_zone<O: Owner>(
    owner: &Rc<O>,
    class: u8,
    held: &mut [Option<ZoneWriter>],
) -> Result<ZoneWriter> {
    let kit = owner.kit();
    if let Some(zone) = kit.open_zone_beside(class, owner.zones_left_by_cleaner(), held).await {
        return Ok(zone);
    }
    seals::park(kit, held, owner.free_dead()).await?;
    kit.open_zone_beside(class, owner.zones_left_by_cleaner(), held)
        .await
        .ok_or_else(|| Error::no_space("no zone is free for moves of the cleaner"))
}
