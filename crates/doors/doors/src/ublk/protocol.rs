//! Structures and requests of the driver (include/uapi/linux/ublk_cmd.h), sans-io. The byte order is the
//! machine's.

use crate::served::work::{ByteRange, Operation};
use block::{DeviceGeometry, Durability, ZeroMode};
use runtime::ublk_driver::RequestDescriptor;

/// Numbers of control commands.
#[allow(missing_docs)]
pub mod command {
    pub const GET_DEV_INFO: u8 = 0x02;
    pub const ADD_DEV: u8 = 0x04;
    pub const DEL_DEV: u8 = 0x05;
    pub const START_DEV: u8 = 0x06;
    pub const STOP_DEV: u8 = 0x07;
    pub const SET_PARAMS: u8 = 0x08;
    pub const GET_PARAMS: u8 = 0x09;
    pub const START_USER_RECOVERY: u8 = 0x10;
    pub const END_USER_RECOVERY: u8 = 0x11;
    pub const GET_FEATURES: u8 = 0x13;
    pub const DEL_DEV_ASYNC: u8 = 0x14;
}

/// Features of driver and device.
#[allow(missing_docs)]
pub mod feature {
    pub const USER_RECOVERY: u64 = 1 << 3;
    pub const USER_RECOVERY_REISSUE: u64 = 1 << 4;
    pub const CMD_IOCTL_ENCODE: u64 = 1 << 6;
    pub const USER_COPY: u64 = 1 << 7;
    pub const ZONED: u64 = 1 << 8;
}

/// Features of every device of this door. The next server repeats requests that a killed one didn't complete.
pub const FEATURES: u64 =
    feature::USER_RECOVERY | feature::USER_RECOVERY_REISSUE | feature::CMD_IOCTL_ENCODE | feature::USER_COPY;

/// Unit of addresses and lengths, in bytes.
pub const SECTOR: u64 = 512;
/// Number of requests that a queue has in flight.
pub const DEPTH: u16 = 64;
/// Largest number of bytes that a request reads or writes.
pub const MAX_REQUEST_BYTES: u32 = 512 << 10;
/// Largest discard or write of zeroes, in sectors.
pub const MAX_RANGE_SECTORS: u32 = 1 << 22;
/// Largest logical block of every kernel, in bytes.
const MAX_LOGICAL_BLOCK: u64 = 4096;
/// Length of [`DeviceInfo`], in bytes.
pub const INFO_BYTES: usize = 64;
/// Length of [`Parameters`], in bytes.
pub const PARAMETERS_BYTES: usize = 112;

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(std::array::from_fn(|byte| bytes[at + byte]))
}

/// State of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Added and not started, or stopped.
    Dead,
    /// Started.
    Live,
    /// Started, and its server has ended.
    Quiesced,
    /// Any other.
    Other(u16),
}

/// Description of a device (struct ublksrv_ctrl_dev_info).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Number of queues.
    pub queues: u16,
    /// Number of requests that a queue has in flight.
    pub depth: u16,
    /// State; given by the kernel.
    pub state: State,
    /// Largest number of bytes that a request reads or writes.
    pub max_request_bytes: u32,
    /// Number of the device; `u32::MAX` to let the kernel choose.
    pub id: u32,
    /// Process of the server; given by the kernel.
    pub server: i32,
    /// Features.
    pub features: u64,
}

impl DeviceInfo {
    /// Encodes the fields that describe a new device.
    pub fn encode(&self) -> [u8; INFO_BYTES] {
        let mut bytes = [0; INFO_BYTES];
        bytes[..2].copy_from_slice(&self.queues.to_ne_bytes());
        bytes[2..4].copy_from_slice(&self.depth.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.max_request_bytes.to_ne_bytes());
        bytes[12..16].copy_from_slice(&self.id.to_ne_bytes());
        bytes[24..32].copy_from_slice(&self.features.to_ne_bytes());
        bytes
    }

    /// Decodes the kernel's description.
    pub fn decode(bytes: &[u8; INFO_BYTES]) -> DeviceInfo {
        DeviceInfo {
            queues: u16_at(bytes, 0),
            depth: u16_at(bytes, 2),
            state: match u16_at(bytes, 4) {
                0 => State::Dead,
                1 => State::Live,
                2 => State::Quiesced,
                other => State::Other(other),
            },
            max_request_bytes: u32_at(bytes, 8),
            id: u32_at(bytes, 12),
            server: u32_at(bytes, 16) as i32,
            features: u64_at(bytes, 24),
        }
    }
}

/// Parameters of a block device (struct ublk_params with the types BASIC, and DISCARD or ZONED).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parameters {
    /// Capacity, in sectors.
    pub sectors: u64,
    /// Binary logarithm of the logical block size.
    pub logical_shift: u8,
    /// Binary logarithm of the physical block size.
    pub physical_shift: u8,
    /// Largest read or write, in sectors.
    pub most_sectors: u32,
    /// Whether the device is read-only.
    pub read_only: bool,
    /// Whether writes are durable only once they are flushed.
    pub volatile_cache: bool,
    /// Zones of a zoned device.
    pub zoned: Option<ZonedParameters>,
}

/// Parameters of a zoned device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZonedParameters {
    /// Distance of two zones, in sectors: a power of two.
    pub zone_sectors: u32,
    /// Limit of open zones; 0 is no limit.
    pub max_open: u32,
    /// Limit of active zones; 0 is no limit.
    pub max_active: u32,
    /// Largest zone append, in sectors.
    pub append_sectors: u32,
}

impl Parameters {
    const BASIC: u32 = 1 << 0;
    const DISCARD: u32 = 1 << 1;
    const ZONED: u32 = 1 << 3;
    const READ_ONLY: u32 = 1 << 0;
    const VOLATILE_CACHE: u32 = 1 << 2;
    const FUA: u32 = 1 << 3;

    /// Returns the parameters of a device with this geometry.
    pub fn of(geometry: &DeviceGeometry, read_only: bool) -> Parameters {
        let block = geometry.block_size.bytes();
        Parameters {
            sectors: geometry.bytes() / SECTOR,
            logical_shift: block.min(MAX_LOGICAL_BLOCK).trailing_zeros() as u8,
            physical_shift: block.trailing_zeros() as u8,
            most_sectors: MAX_REQUEST_BYTES / SECTOR as u32,
            read_only,
            volatile_cache: true,
            zoned: None,
        }
    }

    /// Features of a device with these parameters.
    pub fn features(&self) -> u64 {
        FEATURES | if self.zoned.is_some() { feature::ZONED } else { 0 }
    }

    /// Encodes the parameters.
    pub fn encode(&self) -> [u8; PARAMETERS_BYTES] {
        let mut bytes = [0; PARAMETERS_BYTES];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        let has_discards = !self.read_only && self.zoned.is_none();
        let discards = if has_discards { Self::DISCARD } else { 0 };
        let zoned = if self.zoned.is_some() { Self::ZONED } else { 0 };
        let read_only = if self.read_only { Self::READ_ONLY } else { 0 };
        let cache = if self.volatile_cache { Self::VOLATILE_CACHE | Self::FUA } else { 0 };
        put(0, &(PARAMETERS_BYTES as u32).to_ne_bytes());
        put(4, &(Self::BASIC | discards | zoned).to_ne_bytes());
        put(8, &(read_only | cache).to_ne_bytes());
        // Best and smallest I/O: a block.
        put(12, &[self.logical_shift, self.physical_shift, self.physical_shift, self.physical_shift]);
        put(16, &self.most_sectors.to_ne_bytes());
        put(24, &self.sectors.to_ne_bytes());
        if has_discards {
            put(44, &(1_u32 << self.physical_shift).to_ne_bytes());
            put(48, &MAX_RANGE_SECTORS.to_ne_bytes());
            put(52, &MAX_RANGE_SECTORS.to_ne_bytes());
            put(56, &1_u16.to_ne_bytes());
        }
        if let Some(zoned) = self.zoned {
            put(20, &zoned.zone_sectors.to_ne_bytes());
            put(76, &zoned.max_open.to_ne_bytes());
            put(80, &zoned.max_active.to_ne_bytes());
            put(84, &zoned.append_sectors.to_ne_bytes());
        }
        bytes
    }

    /// Decodes the parameters of an existing device.
    pub fn decode(bytes: &[u8; PARAMETERS_BYTES]) -> Parameters {
        let zoned = ZonedParameters {
            zone_sectors: u32_at(bytes, 20),
            max_open: u32_at(bytes, 76),
            max_active: u32_at(bytes, 80),
            append_sectors: u32_at(bytes, 84),
        };
        Parameters {
            sectors: u64_at(bytes, 24),
            logical_shift: bytes[12],
            physical_shift: bytes[13],
            most_sectors: u32_at(bytes, 16),
            read_only: u32_at(bytes, 8) & Self::READ_ONLY != 0,
            volatile_cache: u32_at(bytes, 8) & Self::VOLATILE_CACHE != 0,
            zoned: (u32_at(bytes, 4) & Self::ZONED != 0).then_some(zoned),
        }
    }

    /// Returns the parameters that an existing device must have for a server with these parameters to recover
    /// it. The device below may have grown since, but the node keeps its size; its limits of open and active
    /// zones also remain.
    pub fn as_left(self, left: &Parameters) -> Parameters {
        let limits = |zoned: ZonedParameters| match left.zoned {
            Some(left) => ZonedParameters { max_open: left.max_open, max_active: left.max_active, ..zoned },
            None => zoned,
        };
        let sectors = if self.zoned.is_some() { self.sectors } else { self.sectors.min(left.sectors) };
        Parameters { sectors, zoned: self.zoned.map(limits), ..self }
    }
}

/// Treatment of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action<O> {
    /// Complete it with this result.
    Answer(i32),
    /// Execute it.
    Carry(O),
}

/// Durability that a request asks for.
#[inline]
pub fn durability(request: &RequestDescriptor) -> Durability {
    const FUA: u32 = 1 << 13;
    if request.operation & FUA != 0 { Durability::Durable } else { Durability::Visible }
}

/// Parses a request to a device of `bytes` bytes.
#[inline]
pub fn parse(request: &RequestDescriptor, bytes: u64, read_only: bool) -> Action<(Operation, ByteRange)> {
    const NO_UNMAP: u32 = 1 << 15;
    let has = |flag| request.operation & flag != 0;
    let durability = durability(request);
    let mode = if has(NO_UNMAP) { ZeroMode::KeepAllocated } else { ZeroMode::MayDeallocate };
    let (operation, most) = match request.operation & 0xFF {
        0 => (Operation::Read, MAX_REQUEST_BYTES / SECTOR as u32),
        1 => (Operation::Write(durability), MAX_REQUEST_BYTES / SECTOR as u32),
        2 => return Action::Carry((Operation::Flush, ByteRange { offset: 0, length: 0 })),
        3 => (Operation::Trim(durability), MAX_RANGE_SECTORS),
        5 => (Operation::WriteZeroes(mode, durability), MAX_RANGE_SECTORS),
        _ => return Action::Answer(-libc::EOPNOTSUPP),
    };
    if read_only && operation.changes() {
        return Action::Answer(-libc::EROFS);
    }
    let length = u64::from(request.sectors) * SECTOR;
    let offset = request.start.checked_mul(SECTOR);
    match offset.filter(|offset| *offset <= bytes && length <= bytes - *offset && request.sectors <= most) {
        Some(_) if length == 0 => Action::Answer(0),
        Some(offset) => Action::Carry((operation, ByteRange { offset, length })),
        None => Action::Answer(-libc::EINVAL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::{BlockCount, BlockSize};
    use proptest::prelude::*;

    fn geometry(block: u64) -> DeviceGeometry {
        DeviceGeometry {
            block_size: BlockSize::new(block).expect("a block size"),
            blocks: BlockCount((8 << 20) / block),
            atomic_write: 512,
            volatile_cache: true,
            read_only: false,
        }
    }

    #[test]
    fn a_device_is_described_as_the_header_has_it() {
        let mut info = DeviceInfo {
            queues: 3,
            depth: 64,
            state: State::Dead,
            max_request_bytes: 512 << 10,
            id: 7,
            server: 0,
            features: FEATURES,
        };
        let mut bytes = info.encode();
        let mut expected = [0_u8; INFO_BYTES];
        expected[0] = 3;
        expected[2] = 64;
        expected[10] = 8;
        expected[12] = 7;
        expected[24] = 0b1101_1000;
        assert_eq!(bytes, expected);
        (bytes[4], bytes[16], bytes[17]) = (2, 0x34, 0x12);
        (info.state, info.server) = (State::Quiesced, 0x1234);
        assert_eq!(DeviceInfo::decode(&bytes), info);
    }

    #[test]
    fn parameters_are_where_the_header_has_them() {
        for (block, logical, physical) in [(512, 9, 9), (4096, 12, 12), (65536, 12, 16)] {
            for read_only in [false, true] {
                let parameters = Parameters::of(&geometry(block), read_only);
                let bytes = parameters.encode();
                assert_eq!((u32_at(&bytes, 0), u32_at(&bytes, 4)), (112, if read_only { 1 } else { 3 }));
                assert_eq!(u32_at(&bytes, 8), if read_only { 13 } else { 12 }, "attributes");
                assert_eq!(bytes[12..16], [logical, physical, physical, physical]);
                assert_eq!((u32_at(&bytes, 16), u64_at(&bytes, 24)), (1024, 16384), "sectors");
                let discard = if read_only { [0; 4] } else { [block as u32, 1 << 22, 1 << 22, 1] };
                assert_eq!([44, 48, 52, 56].map(|at| u32_at(&bytes, at)), discard);
                assert_eq!(Parameters::decode(&bytes), parameters);
            }
        }
    }

    #[test]
    fn zones_are_where_the_header_has_them() {
        let zoned = ZonedParameters { zone_sectors: 8192, max_open: 5, max_active: 7, append_sectors: 512 };
        let parameters = Parameters {
            most_sectors: 512,
            volatile_cache: false,
            zoned: Some(zoned),
            ..Parameters::of(&geometry(4096), false)
        };
        let bytes = parameters.encode();
        assert_eq!((u32_at(&bytes, 4), u32_at(&bytes, 8)), (0b1001, 0), "no discards, no cache");
        assert_eq!([16, 20, 76, 80, 84].map(|at| u32_at(&bytes, at)), [512, 8192, 5, 7, 512]);
        assert_eq!([40, 44, 48, 52, 56, 88, 108].map(|at| u32_at(&bytes, at)), [0; 7]);
        assert_eq!(Parameters::decode(&bytes), parameters);
        assert_eq!(parameters.features(), 0b1_1101_1000);
    }

    #[test]
    fn a_device_is_recovered_with_its_own_size_and_limits() {
        let left = Parameters::of(&geometry(4096), false);
        let grown = Parameters { sectors: left.sectors + 8, ..left };
        assert_eq!(grown.as_left(&left), left);
        assert_ne!(left.as_left(&grown), grown);
        let zoned = |max_open, zone_sectors| Parameters {
            zoned: Some(ZonedParameters { zone_sectors, max_open, max_active: max_open, append_sectors: 8 }),
            ..left
        };
        assert_eq!(zoned(3, 64).as_left(&zoned(5, 64)), zoned(5, 64));
        assert_ne!(zoned(5, 128).as_left(&zoned(5, 64)), zoned(5, 64));
        assert_ne!(zoned(5, 64).as_left(&left), left);
    }

    fn parsed(operation: u32, start: u64, sectors: u32) -> Action<(Operation, ByteRange)> {
        parse(&RequestDescriptor { operation, sectors, start }, 1 << 20, false)
    }

    #[test]
    fn requests_become_operations() {
        use Operation::*;
        let range = ByteRange { offset: 1024, length: 4096 };
        for (code, operation) in [
            (0, Read),
            (1, Write(Durability::Visible)),
            (1 | 1 << 13, Write(Durability::Durable)),
            (3, Trim(Durability::Visible)),
            (5, WriteZeroes(ZeroMode::MayDeallocate, Durability::Visible)),
            (5 | 1 << 15 | 1 << 13, WriteZeroes(ZeroMode::KeepAllocated, Durability::Durable)),
        ] {
            // FAILFAST and META don't concern a device.
            assert_eq!(parsed(code | 1 << 8 | 1 << 11, 2, 8), Action::Carry((operation, range)));
        }
        assert_eq!(parsed(2, u64::MAX, 0), Action::Carry((Flush, ByteRange { offset: 0, length: 0 })));
        assert_eq!(parsed(0, 2047, 1), Action::Carry((Read, ByteRange { offset: 2047 * 512, length: 512 })));
    }

    #[test]
    fn requests_that_cant_be_are_refused() {
        for (operation, start, sectors) in [(0, 2048, 1), (1, 2047, 2), (0, u64::MAX, 1), (3, 1 << 60, 8)] {
            assert_eq!(parsed(operation, start, sectors), Action::Answer(-libc::EINVAL));
        }
        assert_eq!(parsed(0, 2048, 0), Action::Answer(0));
        for operation in [4, 6, 10, 13, 18, 255] {
            assert_eq!(parsed(operation, 0, 8), Action::Answer(-libc::EOPNOTSUPP));
        }
        let write = RequestDescriptor { operation: 1, sectors: 8, start: 0 };
        assert_eq!(parse(&write, 1 << 20, true), Action::Answer(-libc::EROFS));
    }

    proptest! {
        /// No descriptor leads out of the device, or to more memory than a request may use.
        #[test]
        fn every_descriptor_is_answered_or_inside(operation: u32, sectors: u32, start: u64, small: bool, bytes in 0_u64..1 << 40) {
            let (operation, start) = if small { (operation & 7, start >> 30) } else { (operation, start) };
            let bytes = bytes & !511;
            match parse(&RequestDescriptor { operation, sectors, start }, bytes, false) {
                Action::Answer(result) => prop_assert!(result <= 0),
                Action::Carry((operation, range)) => {
                    prop_assert!(range.offset <= bytes && range.length <= bytes - range.offset);
                    if matches!(operation, Operation::Read | Operation::Write(_)) {
                        prop_assert!(range.length <= u64::from(MAX_REQUEST_BYTES));
                    }
                }
            }
        }
    }
}
