//! Writing checkpoints: records of pages and of a directory in zones of their own, and the roots that make
//! them authoritative.
//!
//! A checkpoint is fuzzy: an owner writes pages while entries commit, so the pages are not a consistent
//! snapshot until replay. The root names the records that had committed when the checkpoint began; all later
//! ones are replayed over it. Every record whose effect a page may include must be durable before the root:
//! the owner flushes in between.
//!
//! Left to the owner: the dirty pages, their contents and their locations.

use crate::directory::ZoneEntry;
use crate::kit::{Kit, count};
use crate::owner::Owner;
use crate::pool::CHECKPOINT_CLASS;
use crate::record::StreamId;
use crate::record::{Header, Kind, sum_of};
use crate::reset::reset_dead;
use crate::root::{Boundary, Extent, MAX_EXTENTS, Root, RootWriter};
use crate::stream::Sequences;
use crate::zone_writer::ZoneWriter;
use block::{Buffer, Error, Payload, Result};
use std::rc::Rc;

/// Space for a record of checkpoint data.
#[derive(Debug)]
pub struct Space {
    writer: ZoneWriter,
    /// Largest number of data blocks of the record, at least one.
    pub blocks: u32,
}

impl Space {
    /// The zone.
    pub fn zone(&self) -> u32 {
        self.writer.zone()
    }

    /// Block of the record's first data block in the zone.
    pub fn position(&self) -> u32 {
        self.writer.position() + 1
    }
}

/// Durably writes a root. If that fails, it is unknown which root is authoritative, and the log fails.
///
/// # Errors
/// [`Error::NoSpace`] before anything is written: the previous root stays authoritative. All others are
/// failures of the log.
pub async fn write_root<O: Owner>(owner: &O, root: Root) -> Result<()> {
    let kit = owner.kit();
    let checkpoints = &kit.checkpoints;
    let mut writer = checkpoints.writer.replace(RootWriter::first());
    let prepared = writer.prepare(&*kit.zones, &kit.layout).await;
    if let Err(error @ Error::NoSpace(_)) = prepared {
        checkpoints.writer.replace(writer);
        return Err(error);
    }
    let written = match prepared {
        Ok(()) if !writer.opens_zone(&kit.layout) => writer.write(&*kit.zones, &kit.layout, &root).await,
        Ok(()) => {
            kit.until_opened(&mut [], async || writer.write(&*kit.zones, &kit.layout, &root).await).await
        }
        failed => failed,
    };
    checkpoints.writer.replace(writer);
    count(&kit.counters.overhead_blocks, 1);
    match written {
        Ok(()) => {
            checkpoints.note(&kit.streams, root);
            Ok(())
        }
        Err(error) => {
            owner.fail(&error.in_context("the root can't be written"));
            Err(error)
        }
    }
}

/// Finds space for a record of checkpoint data with up to `wanted` blocks, whose metadata takes
/// `meta(blocks)` bytes.
///
/// # Errors
/// [`Error::NoSpace`] if no zone is free; errors of resets.
pub async fn space<O: Owner>(owner: &Rc<O>, wanted: u64, meta: impl Fn(u32) -> usize) -> Result<Space> {
    let kit = owner.kit();
    let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
    loop {
        let writer = zone(owner).await?;
        match writer.most_blocks(&kit.layout, wanted, &meta) {
            0 => kit.seal_now(writer).await,
            blocks => return Ok(Space { writer, blocks }),
        }
    }
}

/// Returns unused space.
pub fn give_back<O: Owner>(owner: &O, space: Space) {
    *owner.kit().checkpoints.zone.borrow_mut() = Some(space.writer);
}

/// Takes the open zone of checkpoints, or opens one.
async fn zone<O: Owner>(owner: &Rc<O>) -> Result<ZoneWriter> {
    let kit = owner.kit();
    // A request may have come while the zone was in use.
    seal_for_drive(kit).await;
    let open = kit.checkpoints.zone.borrow_mut().take();
    if let Some(zone) = open {
        return Ok(zone);
    }
    if let Some(zone) = kit.open_zone(CHECKPOINT_CLASS, 0).await {
        return Ok(zone);
    }
    // Dead zones may not have been reset yet: the cleaner may be late or have ended.
    Box::pin(reset_dead(owner)).await?;
    while kit.pool.free() == 0 && kit.back_reserve().await {}
    kit.open_zone(CHECKPOINT_CLASS, 0)
        .await
        .ok_or_else(|| Error::no_space("no zone is free for a checkpoint"))
}

/// Seals the open zone of checkpoints, if a drive that opens no zone needs it.
pub(crate) async fn seal_for_drive(kit: &Kit) {
    let requests = kit.budget().requests();
    let zone = kit.checkpoints.zone.borrow_mut().take_if(|zone| zone.is_asked_for_drive(requests));
    if let Some(zone) = zone {
        kit.seal_now(zone).await;
    }
}

/// Seals the open zone of checkpoints, if there is one.
pub async fn seal(kit: &Kit) {
    let zone = kit.checkpoints.zone.borrow_mut().take();
    if let Some(zone) = zone {
        kit.seal_now(zone).await;
    }
}

/// Appends a record of checkpoint data. The buffer begins with an empty block for the header; `sums` has the
/// checksums of the other blocks.
///
/// # Errors
/// Errors of the append.
pub async fn append<O: Owner>(
    owner: &Rc<O>,
    space: Space,
    mut data: Buffer,
    sums: &[u32],
    meta: &[u8],
) -> Result<()> {
    let kit = owner.kit();
    let mut zone = space.writer;
    let checkpoints = &kit.checkpoints;
    // A number whose record isn't written leaves no gap that recovery notices: roots name the records of a
    // checkpoint.
    checkpoints.sequence.set(checkpoints.sequence.get() + 1);
    let header = Header {
        kind: Kind::Checkpoint,
        stream: StreamId(0),
        class: CHECKPOINT_CLASS,
        epoch: kit.epoch,
        sequence: checkpoints.sequence.get(),
        durable: checkpoints.root().checkpoint,
        clock: kit.clock(),
        zone: zone.zone(),
        generation: zone.generation(),
        position: zone.position(),
        blocks: sums.len() as u32,
    };
    let length = header.encode(&kit.identity, &[], sums, meta, data.filled_mut());
    let header = data.filled()[..length].to_vec();
    let blocks = sums.len() as u64 + 1;
    owner.before_append(zone.zone(), zone.generation(), &[]);
    kit.pool.note_append(zone.zone(), &[], blocks as u32 - 1, 0);
    let outcome = kit.append_opening(&mut zone, &header, Payload::from(data), &mut []).await;
    kit.flusher.appended(zone.zone());
    if let Err(error) = outcome {
        kit.abandon_after(&error, &zone).await;
        drop(zone);
        return Err(error.in_context("a record of a checkpoint"));
    }
    count(&kit.counters.overhead_blocks, blocks);
    count(&kit.counters.checkpoint_blocks, blocks);
    *kit.checkpoints.zone.borrow_mut() = Some(zone);
    Ok(())
}

/// Writes a directory: the zones and the owner's part. Adds the extents that were written to `extents`, also
/// after a failure. Returns the directory's length in bytes.
///
/// # Errors
/// [`Error::NoSpace`] if no zone is free, or the directory takes too many extents; errors of appends.
async fn write_directory<O: Owner>(owner: &Rc<O>, bytes: &[u8], extents: &mut Vec<Extent>) -> Result<u64> {
    let kit = owner.kit();
    let block = kit.layout.block_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let space = space(owner, (bytes.len() - at).div_ceil(block) as u64, |_| 0).await?;
        let blocks = space.blocks as usize;
        let part = &bytes[at..(at + blocks * block).min(bytes.len())];
        at += part.len();
        let mut data = Buffer::new((1 + blocks) * block);
        data.append_zeroes(block);
        data.append(part);
        data.append_zeroes(data.missing());
        let sums: Vec<u32> = data.filled()[block..].chunks_exact(block).map(sum_of).collect();
        let sum = sum_of(&data.filled()[block..]);
        let extent = Extent { zone: space.zone(), position: space.position(), blocks: space.blocks, sum };
        append(owner, space, data, &sums, &[]).await?;
        kit.pool.add_live(extent.zone, extent.blocks);
        extents.push(extent);
    }
    match extents.len() > MAX_EXTENTS {
        true => Err(Error::no_space(format!(
            "the directory takes {} extents; expected up to {MAX_EXTENTS}: format the log with larger zones",
            extents.len()
        ))),
        false => Ok(bytes.len() as u64),
    }
}

/// Notes that a directory is no longer part of the durable checkpoint, or never was.
fn forget(kit: &Kit, extents: &[Extent]) {
    extents.iter().for_each(|extent| kit.pool.remove_live(extent.zone, extent.blocks, kit.clock()));
}

/// Takes a checkpoint that `write` writes: one at a time, and none once the log has failed. `write` ends with
/// [`commit`]. It is called again if the underlying device turned out to have no space, because backed zones
/// may have space.
///
/// # Errors
/// Errors of `write`.
pub async fn take<O: Owner>(owner: &Rc<O>, write: impl AsyncFn() -> Result<()>) -> Result<()> {
    let kit = owner.kit();
    let _alone = kit.checkpointing.acquire(1).await;
    if let Some(error) = kit.failure() {
        return Err(error);
    }
    let since = kit.begin_checkpoint();
    let committed = kit.streams.all_committed();
    kit.turns.begin_checkpoint();
    let knew_of_no_space = kit.space.is_short();
    let mut outcome = write().await;
    if matches!(outcome, Err(Error::NoSpace(_))) && !knew_of_no_space && kit.space.is_short() {
        outcome = write().await;
    }
    kit.turns.end_checkpoint();
    seal_for_drive(kit).await;
    match &outcome {
        Ok(()) => *kit.checkpoints.committed.borrow_mut() = Some(committed),
        Err(error) => {
            kit.note_appended(since);
            tracing::warn!("a checkpoint failed: {error}");
        }
    }
    kit.events.cleaner.notify_all();
    outcome
}

/// Records and clock at the beginning of a checkpoint, for its root.
#[derive(Debug, Clone)]
pub struct Cut {
    /// Last committed record of each stream.
    pub covered: Sequences,
    /// Clock.
    pub clock: u64,
}

impl Cut {
    /// Returns the present state.
    pub fn now(kit: &Kit) -> Self {
        Cut { covered: kit.streams.all_committed(), clock: kit.clock() }
    }
}

/// Ends a checkpoint whose pages are durable: writes a directory with the owner's part `own`, and the root
/// that names it. The checkpoint is durable when this returns.
///
/// # Errors
/// Errors of writing. The previous checkpoint stays authoritative, unless the log has failed.
pub async fn commit<O: Owner>(owner: &Rc<O>, cut: Cut, own: &[u8], clean: bool) -> Result<()> {
    let kit = owner.kit();
    let bytes = crate::directory::encode(&ZoneEntry::all_of(&kit.pool), own);
    let mut extents = Vec::new();
    let written = match write_directory(owner, &bytes, &mut extents).await {
        Ok(length) => {
            match clean {
                true => seal(kit).await,
                false => seal_for_drive(kit).await,
            }
            owner.flush_all().await.map(|()| length)
        }
        failed => failed,
    };
    let length = match written {
        Ok(length) => length,
        Err(error) => {
            forget(kit, &extents);
            return Err(error);
        }
    };
    let old = kit.checkpoints.root().clone();
    // Uncovered records of earlier epochs stay valid.
    let is_uncovered = |boundary: &&Boundary| {
        let (last, covered) = (boundary.last.numbers(), cut.covered.numbers());
        last.iter().enumerate().any(|(stream, last)| *last > covered.get(stream).copied().unwrap_or(0))
    };
    let boundaries = old.boundaries.iter().filter(is_uncovered).cloned().collect();
    let root = Root {
        clean,
        covered: cut.covered,
        checkpoint: kit.checkpoints.sequence.get(),
        clock: cut.clock,
        boundaries,
        directory_length: length,
        directory: extents.clone(),
        epoch: kit.epoch,
        ..old.clone()
    };
    if let Err(error) = write_root(&**owner, root).await {
        // If the log has failed, it is unknown which root is authoritative, so both directories stay.
        if kit.failure().is_none() {
            forget(kit, &extents);
        }
        return Err(error);
    }
    forget(kit, &old.directory);
    count(&kit.counters.checkpoints, 1);
    Ok(())
}
