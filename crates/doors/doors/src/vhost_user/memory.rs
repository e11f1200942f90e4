//! Memory of a guest: regions that the front-end shares, and the translation of addresses.
//!
//! Every address from outside is translated and checked once, here. Later accesses use the [`Place`] or the
//! [`Segment`]s.

use super::protocol::RegionDescription;
use block::{Buffer, Error, Result};
use runtime::shared_memory::SharedMemory;
use std::os::fd::OwnedFd;

struct Region {
    guest_address: u64,
    user_address: u64,
    length: u64,
    memory: SharedMemory,
}

/// Memory of a guest.
pub struct GuestMemory {
    regions: Vec<Region>,
}

/// Bytes of a region that have been checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    region: usize,
    offset: usize,
    /// Number of bytes.
    pub length: usize,
}

/// Structure in a region that has been checked, such as a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    region: usize,
    offset: usize,
}

impl GuestMemory {
    /// Maps the regions.
    ///
    /// # Errors
    /// [`Error::Protocol`] for regions that overlap or exceed the address space; errors of
    /// [`SharedMemory::map`].
    pub fn map(descriptions: &[RegionDescription], descriptors: &[OwnedFd]) -> Result<GuestMemory> {
        let mut regions: Vec<Region> = Vec::new();
        for (description, descriptor) in descriptions.iter().zip(descriptors) {
            let RegionDescription { guest_address, length, user_address, offset } = *description;
            let ends = [guest_address, user_address].map(|address| address.checked_add(length));
            let overlaps = |other: &Region| {
                guest_address < other.guest_address + other.length
                    && other.guest_address < guest_address + length
            };
            if ends.contains(&None) || regions.iter().any(overlaps) {
                return Err(Error::protocol(format!(
                    "memory region of {length} bytes at guest address {guest_address:#x}: expected a region of its own in 64 bits"
                )));
            }
            let memory = SharedMemory::map(descriptor, offset, length)?;
            regions.push(Region { guest_address, user_address, length, memory });
        }
        Ok(GuestMemory { regions })
    }

    /// Appends the segments of a range of guest addresses.
    ///
    /// # Errors
    /// [`Error::Protocol`] for addresses outside of the memory.
    #[inline]
    pub fn locate(&self, address: u64, length: u32, segments: &mut Vec<Segment>) -> Result<()> {
        let (mut at, mut left) = (address, u64::from(length));
        while left > 0 {
            let found = self.regions.iter().enumerate().find_map(|(index, region)| {
                let offset = at.checked_sub(region.guest_address)?;
                (offset < region.length).then_some((index, offset))
            });
            let Some((region, offset)) = found else { return Err(not_memory(address, u64::from(length))) };
            let here = left.min(self.regions[region].length - offset);
            segments.push(Segment { region, offset: offset as usize, length: here as usize });
            left -= here;
            if left > 0 {
                at = at.checked_add(here).ok_or_else(|| not_memory(address, u64::from(length)))?;
            }
        }
        Ok(())
    }

    /// Returns the place of a structure at an address of the front-end.
    ///
    /// # Errors
    /// [`Error::Protocol`] if it isn't inside of one region, or not aligned.
    pub fn place(&self, user_address: u64, length: u64, alignment: u64) -> Result<Place> {
        let found = self.regions.iter().enumerate().find_map(|(region, described)| {
            let offset = user_address.checked_sub(described.user_address)?;
            let end = offset.checked_add(length)?;
            (end <= described.length).then_some(Place { region, offset: offset as usize })
        });
        let place = found.ok_or_else(|| not_memory(user_address, length))?;
        if !self.regions[place.region].memory.is_aligned(place.offset, alignment as usize) {
            return Err(Error::protocol(format!(
                "address {user_address:#x} of a ring: expected a multiple of {alignment}"
            )));
        }
        Ok(place)
    }

    /// Returns the memory of a place, and the place's offset in it.
    #[inline]
    pub fn at(&self, place: Place) -> (&SharedMemory, usize) {
        (&self.regions[place.region].memory, place.offset)
    }

    /// Appends the bytes of a segment to a buffer, which has space for them.
    #[inline]
    pub fn append_to(&self, segment: Segment, buffer: &mut Buffer) {
        self.regions[segment.region].memory.append_to(segment.offset, segment.length, buffer);
    }

    /// Copies the first bytes of a segment; `target` isn't longer.
    #[inline]
    pub fn read(&self, segment: Segment, target: &mut [u8]) {
        debug_assert!(target.len() <= segment.length);
        self.regions[segment.region].memory.read(segment.offset, target);
    }

    /// Writes the first bytes of a segment; `bytes` isn't longer.
    #[inline]
    pub fn write(&self, segment: Segment, bytes: &[u8]) {
        debug_assert!(bytes.len() <= segment.length);
        self.regions[segment.region].memory.write(segment.offset, bytes);
    }

    /// Checks that the front-end hasn't truncated its memory file: copied bytes may then be zeros.
    ///
    /// # Errors
    /// [`Error::Protocol`] if it has.
    #[inline]
    pub fn check_intact(&self) -> Result<()> {
        match self.regions.iter().all(|region| region.memory.is_intact()) {
            true => Ok(()),
            false => Err(shortened()),
        }
    }
}

impl Segment {
    /// Splits off the first `count` bytes, or all if there are fewer.
    #[inline]
    pub fn split(self, count: usize) -> (Segment, Segment) {
        let count = count.min(self.length);
        let first = Segment { length: count, ..self };
        (first, Segment { offset: self.offset + count, length: self.length - count, ..self })
    }
}

#[cold]
fn shortened() -> Error {
    Error::protocol(
        "guest memory: the front-end has made its file shorter; expected it to stay as long as it is shared",
    )
}

#[cold]
fn not_memory(address: u64, length: u64) -> Error {
    Error::protocol(format!(
        "{length} bytes at address {address:#x}: not in guest memory; expected them inside of a region"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_regions() -> GuestMemory {
        let (_, first) = SharedMemory::create("first", 8192).expect("memory");
        let (_, second) = SharedMemory::create("second", 8192).expect("memory");
        let descriptions = [
            RegionDescription { guest_address: 0, length: 8192, user_address: 0x10000, offset: 0 },
            RegionDescription { guest_address: 8192, length: 4096, user_address: 0x70000, offset: 4096 },
        ];
        GuestMemory::map(&descriptions, &[first, second]).expect("regions")
    }

    #[test]
    fn addresses_are_translated_and_checked_without_overflow() {
        let memory = two_regions();
        let located = |address, length| {
            let mut segments = Vec::new();
            memory.locate(address, length, &mut segments).map(|()| {
                segments
                    .iter()
                    .map(|segment| (segment.region, segment.offset, segment.length))
                    .collect::<Vec<_>>()
            })
        };
        assert_eq!(located(100, 20), Ok(vec![(0, 100, 20)]));
        assert_eq!(located(8000, 300), Ok(vec![(0, 8000, 192), (1, 0, 108)]));
        assert_eq!(located(12287, 1), Ok(vec![(1, 4095, 1)]));
        assert_eq!(located(50_000, 0), Ok(vec![]));
        for (address, length) in
            [(12287, 2), (u64::MAX, 1), (u64::MAX, u32::MAX), (0, u32::MAX), (1 << 40, 1)]
        {
            assert!(located(address, length).is_err(), "{address} {length}");
        }
        assert_eq!(memory.place(0x10010, 16, 16), Ok(Place { region: 0, offset: 16 }));
        for (address, length, alignment) in [
            (0x10001, 16, 2),
            (0x11ff0, 17, 16),
            (0x70000, 4097, 2),
            (u64::MAX, 2, 1),
            (0x10000, u64::MAX, 1),
            (0, 1, 1),
        ] {
            assert!(memory.place(address, length, alignment).is_err(), "{address:#x} {length}");
        }
    }

    #[test]
    fn regions_that_overlap_or_overflow_are_refused() {
        let describe = |guest_address, length, user_address| RegionDescription {
            guest_address,
            length,
            user_address,
            offset: 0,
        };
        for regions in [
            [describe(0, 4096, 0), describe(4095, 4096, 1 << 20)],
            [describe(0, 4096, 0), describe(u64::MAX - 100, 4096, 1 << 20)],
            [describe(0, 4096, u64::MAX), describe(1 << 20, 4096, 0)],
            [describe(0, 4096, 0), describe(1 << 20, 1 << 40, 0)],
        ] {
            let descriptors: Vec<OwnedFd> =
                (0..2).map(|_| SharedMemory::create("region", 8192).expect("memory").1).collect();
            assert!(GuestMemory::map(&regions, &descriptors).is_err(), "{regions:?}");
        }
    }
}
