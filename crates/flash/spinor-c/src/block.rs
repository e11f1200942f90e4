//! Block functions with the signatures of littlefs's `lfs_config` callbacks: a block is the chip's smallest
//! erase.
//!
//! They drive the chip over its bus as a driver does: write enable, command, polls of the status until the
//! chip is ready, in the chip's own time. The callbacks of a `struct lfs_config` pass their arguments on,
//! with the chip as `context`.

use crate::{
    SPINOR_ERR_INVALID, SPINOR_ERR_IO, SPINOR_ERR_UNSUPPORTED, SPINOR_OK, input, output, spinor_chip, with,
};
use embedded_storage::nor_flash::{NorFlash, ReadNorFlash};
use spinor::{Chip, Nor, NorError};

/// Sizes for `struct lfs_config`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct spinor_geometry {
    /// Smallest read in bytes.
    pub read_size: u32,
    /// Smallest program in bytes.
    pub prog_size: u32,
    /// Block size in bytes.
    pub block_size: u32,
    /// Number of blocks.
    pub block_count: u32,
    /// Erases of a block that the datasheet guarantees.
    pub endurance: u32,
}

const BLOCK: u32 = 4096;

/// Writes the sizes to `geometry`. Returns an error for chips without an erase of 4 KiB.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinor_get_geometry(chip: *mut spinor_chip, geometry: *mut spinor_geometry) -> i32 {
    if geometry.is_null() {
        return SPINOR_ERR_INVALID;
    }
    let found = with(chip, Err(SPINOR_ERR_INVALID), |chip| {
        if chip.description().sector() != BLOCK {
            return Err(SPINOR_ERR_UNSUPPORTED);
        }
        Ok(spinor_geometry {
            read_size: 1,
            prog_size: 1,
            block_size: BLOCK,
            block_count: chip.description().size / BLOCK,
            endurance: u32::try_from(chip.description().endurance).unwrap_or(u32::MAX),
        })
    });
    match found {
        Ok(found) => {
            // SAFETY: by the contract it points to memory for a geometry; it isn't NULL.
            unsafe { geometry.write(found) };
            SPINOR_OK
        }
        Err(error) => error,
    }
}

/// Calls a function with a driver and the address of an offset in a block.
fn at(
    chip: *mut spinor_chip,
    block: u32,
    offset: u32,
    length: usize,
    call: impl FnOnce(&mut Nor<'_, { BLOCK as usize }>, u32) -> Result<(), NorError>,
) -> i32 {
    let fits = u64::from(offset) + length as u64 <= u64::from(BLOCK);
    let Some(address) = block.checked_mul(BLOCK).filter(|_| fits).and_then(|start| start.checked_add(offset))
    else {
        return SPINOR_ERR_INVALID;
    };
    with(chip, SPINOR_ERR_INVALID, |chip: &mut Chip| {
        let Some(mut nor) = Nor::new(chip) else { return SPINOR_ERR_UNSUPPORTED };
        match call(&mut nor, address) {
            Ok(()) => SPINOR_OK,
            Err(NorError::OutOfBounds | NorError::NotAligned) => SPINOR_ERR_INVALID,
            Err(_) => SPINOR_ERR_IO,
        }
    })
}

/// Reads from a block: the callback `read`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinor_block_read(
    chip: *mut spinor_chip,
    block: u32,
    offset: u32,
    buffer: *mut u8,
    size: u32,
) -> i32 {
    // SAFETY: the contract of this crate's functions.
    let Some(bytes) = (unsafe { output(buffer, size as usize) }) else { return SPINOR_ERR_INVALID };
    at(chip, block, offset, bytes.len(), |nor, address| nor.read(address, bytes))
}

/// Programs a part of a block: the callback `prog`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinor_block_prog(
    chip: *mut spinor_chip,
    block: u32,
    offset: u32,
    buffer: *const u8,
    size: u32,
) -> i32 {
    // SAFETY: the contract of this crate's functions.
    let Some(bytes) = (unsafe { input(buffer, size as usize) }) else { return SPINOR_ERR_INVALID };
    at(chip, block, offset, bytes.len(), |nor, address| nor.write(address, bytes))
}

/// Erases a block: the callback `erase`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinor_block_erase(chip: *mut spinor_chip, block: u32) -> i32 {
    at(chip, block, 0, 0, |nor, address| match address.checked_add(BLOCK) {
        Some(end) => nor.erase(address, end),
        None => Err(NorError::OutOfBounds),
    })
}

/// Does nothing, since the chip has no cache: the callback `sync`. Fails for NULL and for a chip without
/// power.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinor_block_sync(chip: *mut spinor_chip) -> i32 {
    with(chip, SPINOR_ERR_INVALID, |chip| match chip.state() {
        spinor::State::PowerDown => SPINOR_ERR_IO,
        _ => SPINOR_OK,
    })
}
