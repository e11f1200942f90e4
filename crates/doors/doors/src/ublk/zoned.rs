//! Zones in the form of the kernel's zoned block layer, sans-io: their layout, requests to them, and reports
//! (include/uapi/linux/blkzoned.h).
//!
//! # Layout
//! The kernel's zones are a power of two apart. Zones of another size begin at the next power of two; the
//! bytes between a zone's capacity and the next zone can't be written, as on a drive whose zone capacity is
//! below its zone size.
//!
//! # States
//! A zone that is written up to its capacity is reported as full. So is an interrupted zone: like a full one,
//! it accepts no writes until it is reset, and the end of its data is unknown.

use super::protocol::{Action, MAX_REQUEST_BYTES, Parameters, SECTOR, ZonedParameters, durability};
use block::{
    Durability, Durable, Error, Result, ZoneAddress, ZoneGeometry, ZoneIndex, ZoneReport, ZoneState,
};
use runtime::ublk_driver::RequestDescriptor;

/// Length of a zone's description (struct blk_zone), in bytes.
pub const DESCRIPTION_BYTES: usize = 64;
/// Largest number of zones that one request reports.
pub const MAX_REPORTED: u32 = MAX_REQUEST_BYTES / DESCRIPTION_BYTES as u32;
/// Largest logical block of every kernel, in bytes.
const MAX_LOGICAL_BLOCK: u64 = 4096;
/// Smallest limit of a request's length that the kernel accepts: a page, in bytes.
const PAGE: u64 = 4096;
/// Largest distance of two zones, in bytes: the kernel counts the sectors of a zone in 32 bits.
const MAX_ZONE_BYTES: u64 = 1 << 40;

/// Layout of zones on a zoned block device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Number of zones.
    pub zones: u32,
    /// Binary logarithm of the distance of two zones, in bytes.
    pub zone_shift: u32,
    /// Writable bytes of a zone.
    pub capacity: u64,
    /// Logical block size, in bytes.
    pub block: u32,
    /// Largest read, write or append, in bytes.
    pub most_bytes: u32,
    /// Limit of open zones; 0 is no limit.
    pub max_open: u32,
    /// Limit of active zones; 0 is no limit.
    pub max_active: u32,
    /// Whether appends are durable only once they are flushed.
    pub volatile_cache: bool,
}

impl Layout {
    /// Returns the layout of zones with this geometry.
    ///
    /// # Errors
    /// [`Error::Invalid`] for zones that the kernel doesn't support.
    pub fn of(geometry: &ZoneGeometry) -> Result<Layout> {
        let units = [geometry.append_granularity, geometry.read_granularity].map(u64::from);
        let block = units[0].max(units[1]).max(SECTOR);
        if !units.iter().all(|unit| unit.is_power_of_two()) || block > MAX_LOGICAL_BLOCK {
            return Err(Error::invalid(format!(
                "appends in units of {} bytes and reads of {}: expected powers of two up to {MAX_LOGICAL_BLOCK}, the largest logical \
                 block of a block device",
                units[0], units[1]
            )));
        }
        let capacity = geometry.zone_capacity & !(block - 1);
        let zone_bytes = geometry.zone_size.max(capacity).max(PAGE).checked_next_power_of_two();
        let Some(zone_bytes) = zone_bytes.filter(|bytes| *bytes <= MAX_ZONE_BYTES && capacity > 0) else {
            return Err(Error::invalid(format!(
                "zones of {} bytes with a capacity of {}: expected a capacity from {block} bytes to {MAX_ZONE_BYTES}",
                geometry.zone_size, geometry.zone_capacity
            )));
        };
        if u128::from(geometry.zones) * u128::from(zone_bytes) >= 1 << 63 {
            return Err(Error::invalid(format!(
                "{} zones of {zone_bytes} bytes: expected less than 8 EiB on a block device",
                geometry.zones
            )));
        }
        let most_bytes = geometry.max_append.min(u64::from(MAX_REQUEST_BYTES)) & !(PAGE - 1);
        if most_bytes == 0 {
            return Err(Error::invalid(format!(
                "max_append of {} bytes: expected at least {PAGE} for a block device",
                geometry.max_append
            )));
        }
        if geometry.durable == Durable::OnFinish {
            return Err(Error::invalid(
                "zones that are durable only once they are finished can't be served as a block device: its flushes would finish zones \
                 that are still to be written; expected zones that are durable on append or flush",
            ));
        }
        Ok(Layout {
            zones: geometry.zones,
            zone_shift: zone_bytes.trailing_zeros(),
            capacity,
            block: block as u32,
            most_bytes: most_bytes as u32,
            max_open: geometry.max_open,
            max_active: geometry.max_active,
            volatile_cache: geometry.durable == Durable::OnFlush,
        })
    }

    /// Size of the block device, in bytes.
    pub fn bytes(&self) -> u64 {
        u64::from(self.zones) << self.zone_shift
    }

    /// Parameters of the block device.
    pub fn parameters(&self, read_only: bool) -> Parameters {
        // The kernel refuses a limit of open zones above that of active ones.
        let max_open = if self.max_active == 0 { self.max_open } else { self.max_open.min(self.max_active) };
        // A limit that can't be reached is reported to the kernel as no limit.
        let limit = |limit: u32| if limit > self.zones { 0 } else { limit };
        Parameters {
            sectors: self.bytes() / SECTOR,
            logical_shift: self.block.trailing_zeros() as u8,
            physical_shift: self.block.trailing_zeros() as u8,
            most_sectors: self.most_bytes / SECTOR as u32,
            read_only,
            volatile_cache: self.volatile_cache,
            zoned: Some(ZonedParameters {
                zone_sectors: ((1_u64 << self.zone_shift) / SECTOR) as u32,
                max_open: limit(max_open),
                max_active: limit(self.max_active),
                append_sectors: self.most_bytes / SECTOR as u32,
            }),
        }
    }

    /// Sector of an address.
    pub fn sector(&self, at: ZoneAddress) -> u64 {
        ((u64::from(at.zone.0) << self.zone_shift) + at.offset.0) / SECTOR
    }

    /// State of a zone as it is reported to the kernel.
    fn condition(&self, report: &ZoneReport) -> Condition {
        match report.state {
            ZoneState::Empty => Condition::Empty,
            ZoneState::Full | ZoneState::Interrupted => Condition::Full,
            ZoneState::ReadOnly => Condition::ReadOnly,
            ZoneState::Offline => Condition::Offline,
            _ if report.write_pointer >= self.capacity => Condition::Full,
            ZoneState::ImplicitlyOpen => Condition::ImplicitlyOpen,
            ZoneState::ExplicitlyOpen => Condition::ExplicitlyOpen,
            ZoneState::Closed => Condition::Closed,
        }
    }

    /// Encodes the description of a zone.
    pub fn describe(&self, report: &ZoneReport) -> [u8; DESCRIPTION_BYTES] {
        const SEQUENTIAL_WRITE_REQUIRED: u8 = 2;
        let condition = self.condition(report);
        let sectors = (1_u64 << self.zone_shift) / SECTOR;
        let start = u64::from(report.zone.0) * sectors;
        let pointer = match condition {
            Condition::Full => start + sectors,
            _ => start + report.write_pointer.min(self.capacity) / SECTOR,
        };
        let mut bytes = [0; DESCRIPTION_BYTES];
        bytes[..8].copy_from_slice(&start.to_ne_bytes());
        bytes[8..16].copy_from_slice(&sectors.to_ne_bytes());
        bytes[16..24].copy_from_slice(&pointer.to_ne_bytes());
        bytes[24] = SEQUENTIAL_WRITE_REQUIRED;
        bytes[25] = condition as u8;
        bytes[32..40].copy_from_slice(&(self.capacity / SECTOR).to_ne_bytes());
        bytes
    }
}

/// Zone conditions (enum blk_zone_cond).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Condition {
    Empty = 0x1,
    ImplicitlyOpen = 0x2,
    ExplicitlyOpen = 0x3,
    Closed = 0x4,
    ReadOnly = 0xD,
    Full = 0xE,
    Offline = 0xF,
}

/// Operation of a request to zones. Offsets and lengths are in bytes, and lengths at most
/// [`Layout::most_bytes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ZoneOperation {
    /// Read bytes of one zone, up to the start of the next one.
    Read(ZoneAddress, u32),
    /// Append at this address.
    Write(ZoneAddress, u32, Durability),
    /// Append at the write pointer.
    Append(ZoneIndex, u32, Durability),
    /// Make all completed appends durable.
    Flush,
    /// Open a zone explicitly.
    Open(ZoneIndex),
    /// Close a zone.
    Close(ZoneIndex),
    /// Finish a zone.
    Finish(ZoneIndex),
    /// Reset a zone.
    Reset(ZoneIndex),
    /// Reset all zones that hold data.
    ResetAll,
    /// Describe at most this many zones, starting with this one.
    Report(ZoneIndex, u32),
}

impl ZoneOperation {
    /// Whether the operation changes zones.
    pub fn changes(self) -> bool {
        !matches!(self, ZoneOperation::Read(..) | ZoneOperation::Flush | ZoneOperation::Report(..))
    }

    /// Length of the data that comes with the request, in bytes; `None` for a request without data.
    pub fn payload(self) -> Option<usize> {
        match self {
            ZoneOperation::Write(_, length, _) | ZoneOperation::Append(_, length, _) => Some(length as usize),
            _ => None,
        }
    }
}

/// Parses a request to zones of this layout.
pub fn parse(request: &RequestDescriptor, layout: &Layout, read_only: bool) -> Action<ZoneOperation> {
    let (operation, durability) = (request.operation & 0xFF, durability(request));
    let reads_or_writes = matches!(operation, 0 | 1 | 13);
    if reads_or_writes && request.sectors == 0 {
        return Action::Answer(0);
    }
    let place = || {
        let byte = request.start.checked_mul(SECTOR).filter(|byte| *byte < layout.bytes())?;
        let zone = (byte >> layout.zone_shift) as u32;
        Some(ZoneAddress::new(zone, byte & ((1 << layout.zone_shift) - 1)))
    };
    let bytes = || {
        let (at, length) = (place()?, u64::from(request.sectors) * SECTOR);
        let is_whole = (at.offset.0 | length) & (u64::from(layout.block) - 1) == 0;
        let is_inside = length <= (1 << layout.zone_shift) - at.offset.0;
        (is_whole && is_inside && length <= u64::from(layout.most_bytes)).then_some((at, length as u32))
    };
    let zone = || place().filter(|at| at.offset.0 == 0).map(|at| at.zone);
    let parsed = match operation {
        0 => bytes().map(|(at, length)| ZoneOperation::Read(at, length)),
        1 => bytes().map(|(at, length)| ZoneOperation::Write(at, length, durability)),
        2 => Some(ZoneOperation::Flush),
        10 => zone().map(ZoneOperation::Open),
        11 => zone().map(ZoneOperation::Close),
        12 => zone().map(ZoneOperation::Finish),
        13 => bytes()
            .filter(|(at, _)| at.offset.0 == 0)
            .map(|(at, length)| ZoneOperation::Append(at.zone, length, durability)),
        14 => Some(ZoneOperation::ResetAll),
        15 => zone().map(ZoneOperation::Reset),
        18 => zone()
            .filter(|_| (1..=MAX_REPORTED).contains(&request.sectors))
            .map(|first| ZoneOperation::Report(first, request.sectors)),
        _ => return Action::Answer(-libc::EOPNOTSUPP),
    };
    match parsed {
        None => Action::Answer(-libc::EINVAL),
        Some(operation) if read_only && operation.changes() => Action::Answer(-libc::EROFS),
        Some(operation) => Action::Carry(operation),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::EraseGuarantee;
    use proptest::prelude::*;

    fn geometry() -> ZoneGeometry {
        ZoneGeometry {
            zones: 10,
            zone_size: 3 << 20,
            zone_capacity: 2 << 20,
            append_granularity: 4096,
            read_granularity: 512,
            max_append: 100_000,
            max_open: 5,
            max_active: 7,
            durable: Durable::OnFlush,
            erase: EraseGuarantee::None,
        }
    }

    fn layout() -> Layout {
        Layout::of(&geometry()).expect("a layout")
    }

    #[test]
    fn zones_lie_at_the_next_power_of_two() {
        let layout = layout();
        assert_eq!((layout.zone_shift, layout.capacity, layout.block), (22, 2 << 20, 4096));
        assert_eq!((layout.bytes(), layout.most_bytes), (40 << 20, 98_304));
        assert_eq!(layout.sector(ZoneAddress::new(3, 8192)), 3 * 8192 + 16);
        let exact = ZoneGeometry { zone_size: 1 << 20, zone_capacity: 1 << 20, ..geometry() };
        let exact = Layout::of(&exact).expect("a layout");
        assert_eq!((exact.zone_shift, exact.capacity), (20, 1 << 20));
    }

    #[test]
    fn zones_that_no_kernel_takes_are_refused() {
        let refused = [
            (ZoneGeometry { append_granularity: 8192, ..geometry() }, "units of 8192 bytes"),
            (ZoneGeometry { read_granularity: 1536, ..geometry() }, "powers of two"),
            (ZoneGeometry { zone_capacity: 512, ..geometry() }, "capacity of 512"),
            (ZoneGeometry { zone_size: 1 << 41, ..geometry() }, "capacity from"),
            (ZoneGeometry { zone_size: 1 << 40, zones: 1 << 24, ..geometry() }, "less than 8 EiB"),
            (ZoneGeometry { max_append: 512, ..geometry() }, "max_append of 512"),
            (ZoneGeometry { durable: Durable::OnFinish, ..geometry() }, "on append or flush"),
        ];
        for (geometry, expected) in refused {
            let error = Layout::of(&geometry).expect_err(expected);
            assert!(error.to_string().contains(expected), "{error}");
        }
    }

    #[test]
    fn the_kernel_gets_limits_that_it_can_keep() {
        let limits = |max_open, max_active| {
            let layout = Layout { max_open, max_active, ..layout() };
            let zoned = layout.parameters(false).zoned.expect("zones");
            (zoned.max_open, zoned.max_active)
        };
        assert_eq!(limits(5, 7), (5, 7));
        assert_eq!(limits(9, 0), (9, 0));
        assert_eq!(limits(0, 8), (0, 8));
        assert_eq!(limits(9, 8), (8, 8));
        assert_eq!(limits(11, 12), (0, 0), "there are ten zones");
        let parameters = layout().parameters(true);
        assert_eq!((parameters.sectors, parameters.most_sectors), (10 * 8192, 192));
        assert!(parameters.read_only && parameters.volatile_cache);
        let durable = ZoneGeometry { durable: Durable::OnAppend, ..geometry() };
        assert!(!Layout::of(&durable).expect("a layout").parameters(false).volatile_cache);
    }

    #[test]
    fn zones_are_described_as_the_header_has_them() {
        let described = |state, write_pointer| {
            let report = ZoneReport { zone: ZoneIndex(2), state, write_pointer, generation: 1 };
            let bytes = layout().describe(&report);
            let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
            assert_eq!((word(0), word(8), word(32)), (16384, 8192, 4096), "start, length, capacity");
            assert_eq!(bytes[24], 2, "writes must be sequential");
            assert!(bytes[26..32].iter().chain(&bytes[40..]).all(|byte| *byte == 0));
            (bytes[25], word(16) - word(0))
        };
        use ZoneState::*;
        for (state, write_pointer, expected) in [
            (Empty, 0, (0x1, 0)),
            (ImplicitlyOpen, 4096, (0x2, 8)),
            (ExplicitlyOpen, 0, (0x3, 0)),
            (Closed, 8192, (0x4, 16)),
            (Interrupted, 8192, (0xE, 8192)),
            (ReadOnly, 4096, (0xD, 8)),
            (Full, 4096, (0xE, 8192)),
            (ImplicitlyOpen, 2 << 20, (0xE, 8192)),
            (Closed, 2 << 20, (0xE, 8192)),
            (Offline, 4096, (0xF, 8)),
        ] {
            assert_eq!(described(state, write_pointer), expected, "{state:?} at {write_pointer}");
        }
    }

    fn parsed(operation: u32, start: u64, sectors: u32) -> Action<ZoneOperation> {
        parse(&RequestDescriptor { operation, sectors, start }, &layout(), false)
    }

    #[test]
    fn requests_become_operations() {
        use Durability::*;
        use ZoneOperation::*;
        const FUA: u32 = 1 << 13;
        let (zone, at) = (ZoneIndex(1), ZoneAddress::new(1, 4096));
        for (code, start, sectors, operation) in [
            (0, 8200, 8, Read(at, 4096)),
            (1, 8200, 16, Write(at, 8192, Visible)),
            (1 | FUA, 8200, 16, Write(at, 8192, Durable)),
            (2, u64::MAX, 0, Flush),
            (10, 8192, 0, Open(zone)),
            (11, 8192, 0, Close(zone)),
            (12, 8192, 0, Finish(zone)),
            (13, 8192, 8, Append(zone, 4096, Visible)),
            (13 | FUA, 8192, 8, Append(zone, 4096, Durable)),
            (14, 0, 0, ResetAll),
            (15, 8192, 0, Reset(zone)),
            (18, 8192, 100, Report(zone, 100)),
        ] {
            // FAILFAST and META don't concern zones.
            assert_eq!(parsed(code | 1 << 8 | 1 << 11, start, sectors), Action::Carry(operation));
        }
        assert_eq!((parsed(0, 0, 0), parsed(1, 0, 0), parsed(13, 0, 0)), {
            (Action::Answer(0), Action::Answer(0), Action::Answer(0))
        });
    }

    #[test]
    fn requests_that_cant_be_are_refused() {
        for (operation, start, sectors) in [
            (0, 81920, 8),
            (0, 8192 - 8, 16),
            (1, 4, 8),
            (1, 8, 4),
            (1, 0, 200),
            (1, 1 << 55, 8),
            (10, 8, 0),
            (13, 8, 8),
            (15, 81920, 0),
            (18, 0, 0),
            (18, 0, 8193),
            (18, 8, 1),
        ] {
            let refused = Action::Answer(-libc::EINVAL);
            assert_eq!(parsed(operation, start, sectors), refused, "{operation} {start} {sectors}");
        }
        for operation in [3, 4, 5, 6, 16, 17, 19, 255] {
            assert_eq!(parsed(operation, 0, 8), Action::Answer(-libc::EOPNOTSUPP));
        }
        for operation in [1, 10, 11, 12, 13, 14, 15] {
            let request = RequestDescriptor { operation, sectors: 8, start: 0 };
            assert_eq!(parse(&request, &layout(), true), Action::Answer(-libc::EROFS));
        }
    }

    proptest! {
        /// No descriptor leads out of its zone, or to more memory than a request may use.
        #[test]
        fn every_descriptor_is_answered_or_inside(operation in 0_u32..20, flags: u32, sectors: u32, start: u64, small: bool) {
            let (sectors, start) = if small { (sectors >> 20, start >> 46) } else { (sectors, start) };
            let request = RequestDescriptor { operation: operation | flags & !0xFF, sectors, start };
            let layout = layout();
            let zone = match parse(&request, &layout, false) {
                Action::Answer(result) => { prop_assert!(result <= 0); return Ok(()) }
                Action::Carry(ZoneOperation::Read(at, length) | ZoneOperation::Write(at, length, _)) => {
                    prop_assert!(at.offset.0 + u64::from(length) <= 1 << layout.zone_shift);
                    prop_assert!(length <= layout.most_bytes);
                    at.zone
                }
                Action::Carry(ZoneOperation::Append(zone, length, _)) => {
                    prop_assert!(length <= layout.most_bytes);
                    zone
                }
                Action::Carry(ZoneOperation::Report(first, count)) => {
                    prop_assert!(count <= MAX_REPORTED);
                    first
                }
                Action::Carry(ZoneOperation::Open(zone) | ZoneOperation::Close(zone) | ZoneOperation::Finish(zone)
                    | ZoneOperation::Reset(zone)) => zone,
                Action::Carry(ZoneOperation::Flush | ZoneOperation::ResetAll) => ZoneIndex(0),
            };
            prop_assert!(zone.0 < layout.zones);
        }
    }
}
