//! Requests to the kernel that have no safe form: NVMe passthrough (linux/nvme_ioctl.h) and zones
//! (linux/blkzoned.h).
#![allow(unsafe_code)] // ioctl takes a pointer, and a passthrough command an address.

use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl, opcode};
use std::ffi::c_void;
use std::fs::File;
use std::io::Result;

/// Length of `struct nvme_passthru_cmd64`.
const PASSTHROUGH: usize = 80;
/// Length of `struct blk_zone_report` without zones, and of `struct blk_zone_range`.
const RANGE: usize = 16;
/// Length of `struct blk_zone`.
pub const ZONE: usize = 64;
/// Time limit of a passthrough command, in milliseconds: the guest is slow.
const TIME_LIMIT: u32 = 60_000;

/// A request whose argument is in these bytes.
struct Request<'a> {
    opcode: Opcode,
    argument: &'a mut [u64],
}

// SAFETY: the pointer is that of the argument, which is borrowed for the request. The callers below make its
// length that of the structure that the opcode names (for a report, with as many zones as it says). All of it
// is plain integers.
unsafe impl Ioctl for Request<'_> {
    type Output = i32;

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        self.opcode
    }

    fn as_ptr(&mut self) -> *mut c_void {
        self.argument.as_mut_ptr().cast()
    }

    unsafe fn output_from_ptr(output: IoctlOutput, _: *mut c_void) -> rustix::io::Result<i32> {
        Ok(output)
    }
}

/// `_IO('N', 0x40)`: returns the namespace identifier.
pub fn namespace(device: &File) -> Result<u32> {
    let request = Request { opcode: opcode::none(b'N', 0x40), argument: &mut [] };
    // SAFETY: this request has no argument.
    let identifier = unsafe { ioctl(device, request) }?;
    Ok(identifier as u32)
}

/// A passthrough command to an I/O queue.
#[derive(Debug, Clone, Copy, Default)]
pub struct Passthrough {
    /// Opcode.
    pub opcode: u8,
    /// Namespace identifier.
    pub namespace: u32,
    /// Starting LBA, in command dwords 10 and 11.
    pub lba: u64,
    /// Command dword 12.
    pub dword12: u32,
    /// Command dword 13.
    pub dword13: u32,
}

/// `NVME_IOCTL_IO64_CMD`: returns status code type and status code, and the result in dwords 0 and 1.
///
/// # Errors
/// Errors of the kernel, after which the device has not carried out the command.
pub fn pass_through(device: &File, command: Passthrough, data: &mut [u8]) -> Result<(u16, u64)> {
    let mut words = [0_u64; PASSTHROUGH / 8];
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    words[0] = pair(command.opcode.into(), command.namespace);
    words[3] = if data.is_empty() { 0 } else { data.as_mut_ptr().expose_provenance() as u64 };
    words[4] = pair(0, data.len() as u32);
    words[5] = command.lba;
    words[6] = pair(command.dword12, command.dword13);
    words[8] = pair(TIME_LIMIT, 0);
    let opcode = opcode::from_components(rustix::ioctl::Direction::ReadWrite, b'N', 0x48, PASSTHROUGH);
    // SAFETY: the argument has the length of the structure; the address and the length in it are those of
    // `data`, which is borrowed mutably until the command is complete.
    let status = unsafe { ioctl(device, Request { opcode, argument: &mut words }) }?;
    Ok((status as u16 & 0x7FF, words[9]))
}

/// `BLKREPORTZONE`: returns up to `most` zones, the first of which contains this sector.
///
/// # Errors
/// Errors of the kernel.
pub fn report_zones(device: &File, sector: u64, most: u32) -> Result<Vec<[u64; ZONE / 8]>> {
    let mut words = vec![0_u64; (RANGE + most as usize * ZONE) / 8];
    (words[0], words[1]) = (sector, most.into());
    let opcode = opcode::from_components(rustix::ioctl::Direction::ReadWrite, 0x12, 130, RANGE);
    // SAFETY: the kernel writes at most as many zones as the second word says, which is as many as there is
    // space for.
    unsafe { ioctl(device, Request { opcode, argument: &mut words }) }?;
    let count = (words[1] as u32).min(most) as usize;
    let zones = words[RANGE / 8..].as_chunks::<{ ZONE / 8 }>().0;
    Ok(zones[..count].to_vec())
}

/// Management of a zone.
#[derive(Debug, Clone, Copy)]
#[repr(u8)]
pub enum Manage {
    /// `BLKRESETZONE`
    Reset = 131,
    /// `BLKOPENZONE`
    Open = 134,
    /// `BLKCLOSEZONE`
    Close = 135,
    /// `BLKFINISHZONE`
    Finish = 136,
}

/// Manages the zone of this range of sectors.
///
/// # Errors
/// Errors of the kernel.
pub fn manage_zone(device: &File, manage: Manage, sector: u64, sectors: u64) -> Result<()> {
    let opcode = opcode::from_components(rustix::ioctl::Direction::Write, 0x12, manage as u8, RANGE);
    // SAFETY: the argument has the length of the structure, which the kernel reads.
    unsafe { ioctl(device, Request { opcode, argument: &mut [sector, sectors] }) }?;
    Ok(())
}
