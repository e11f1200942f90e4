//! Errors of the contract [`Zones`](block::Zones) that several implementations return.

use block::{Error, ZoneAddress, ZoneIndex, ZoneState};

/// Returns the error of an append at byte `wanted` of a zone whose write pointer is elsewhere.
#[cold]
pub fn misplaced(zone: ZoneIndex, wanted: u64, write_pointer: u64) -> Error {
    Error::misplaced(format!(
        "append at byte {wanted} of zone {zone}: expected its write pointer, byte {write_pointer}"
    ))
}

/// Returns the error of an append of `length` bytes to a zone with `left` bytes after its write pointer.
#[cold]
pub fn exceeds_zone(zone: ZoneIndex, length: u64, left: u64) -> Error {
    Error::no_space(format!(
        "append of {length} bytes to zone {zone}: expected at most {left}, the rest of the zone; finish it and use another"
    ))
}

/// Returns the error of a read that ends after the write pointer of its zone.
#[cold]
pub fn exceeds_write_pointer(at: ZoneAddress, length: usize, write_pointer: u64) -> Error {
    Error::invalid(format!(
        "read of {length} bytes at {at}: no data was appended from byte {write_pointer} on"
    ))
}

/// Returns the error of a call that is invalid for a zone in this state.
#[cold]
pub fn wrong_state(zone: ZoneIndex, state: ZoneState) -> Error {
    let remedy = match state {
        ZoneState::Empty => "it is open from its first append on",
        ZoneState::Full => "reset it, or use another",
        ZoneState::Offline | ZoneState::ReadOnly => "use another",
        _ => "finish or reset it, and use another",
    };
    Error::invalid(format!("zone {zone} is {state:?}: {remedy}"))
}
