//! Effects of changes on versions and on zones; commits and recovery share them.

use super::Versions;
use crate::format::{Change, VersionId};
use crate::map::Physical;
use block::{Error, Result, ZoneIndex};

/// Effect of a change on zones.
#[derive(Debug, Clone, Copy)]
pub enum Effect {
    /// This number of blocks of the zone became live.
    Live(ZoneIndex, u64),
    /// These blocks became dead.
    Dead(Physical, u64),
}

/// Applies a change to the maps; its data is at `physical`, in zone `zone`.
///
/// # Errors
/// [`Error::NotFound`] if there is no such version, [`Error::Invalid`] for blocks after its end.
pub fn apply(
    versions: &mut Versions,
    change: &Change,
    zone: ZoneIndex,
    physical: Physical,
    effect: &mut impl FnMut(Effect),
) -> Result<()> {
    match change {
        Change::Write { version, block, count } => {
            let position = position(versions, *version, *block, *count)?;
            effect(Effect::Live(zone, u64::from(*count)));
            versions.insert(position, *block, u64::from(*count), physical, &mut |gone, blocks| {
                effect(Effect::Dead(gone, blocks));
            });
        }
        Change::Unmap { version, block, count } => {
            let position = position(versions, *version, *block, *count)?;
            versions.insert(position, *block, u64::from(*count), Physical::NONE, &mut |gone, blocks| {
                effect(Effect::Dead(gone, blocks));
            });
        }
        Change::Move { block, count, from, .. } => {
            // Run by run: blocks that have been overwritten since the cleaner chose them stay at their
            // current location.
            let moved = versions.relocate(*block, u64::from(*count), *from, physical);
            if moved > 0 {
                effect(Effect::Live(zone, moved));
                effect(Effect::Dead(*from, moved));
            }
        }
        Change::Create { version, parent, writable, created, name } => {
            versions.create(*version, *parent, *writable, *created, name)?;
        }
        Change::Delete { version } => versions.delete(*version)?,
        Change::Grow { version, blocks } => versions.grow(*version, *blocks)?,
    }
    Ok(())
}

fn position(versions: &Versions, id: VersionId, block: u64, count: u32) -> Result<usize> {
    let position = versions
        .position(id)
        .ok_or_else(|| Error::not_found(format!("version {} of the volume doesn't exist", id.0)))?;
    let blocks = versions.list[position].blocks;
    match block.checked_add(u64::from(count)).is_some_and(|end| end <= blocks) {
        true => Ok(position),
        false => Err(Error::invalid(format!(
            "{count} blocks from block {block} on: out of range 0..{blocks} of version {}",
            id.0
        ))),
    }
}
