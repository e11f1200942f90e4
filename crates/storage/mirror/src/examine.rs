//! Superblocks of legs, as they are found.

use crate::assembly::Found;
use crate::format::Superblock;
use crate::layout::Layout;
use crate::leg::LegDevice;
use block::{BlockSize, Error};
use zones::sector;

/// Reads the superblocks of legs, one leg after the other.
pub async fn examine_all(devices: &[LegDevice], block_size: BlockSize) -> Vec<Found> {
    let mut found = Vec::with_capacity(devices.len());
    for device in devices {
        found.push(examine(device, block_size).await);
    }
    found
}

/// Reads the superblocks of a leg.
pub async fn examine(device: &LegDevice, block_size: BlockSize) -> Found {
    let page = Layout::page(block_size);
    let mut begin = Vec::new();
    let (mut copies, mut unreadable) = (Vec::with_capacity(2), None);
    for copy in 0..2 {
        match device.read_own(Layout::superblock(block_size, copy), page).await {
            Ok(buffer) => {
                begin.extend_from_slice(buffer.filled());
                copies.push(Superblock::decode(buffer.filled()));
            }
            Err(error) => unreadable = Some(error),
        }
    }
    match (sector::newest(copies, |superblock| superblock.events), unreadable) {
        (Ok(superblock), _) => Found::Member(Box::new(superblock)),
        (_, Some(error)) => Found::Unreadable(error),
        (Err(Error::NotFound(_)), _) => Found::Other(sector::describe(&begin).to_owned()),
        (Err(error), _) => Found::Other(format!("an unusable superblock of a mirror ({})", error.detail())),
    }
}
