//! The device's side of a split virtqueue (VIRTIO 1.2, section 2.7).
//!
//! The driver isn't trusted and may write to its tables and rings at any time. Each field is read once and
//! then checked. A chain has at most as many descriptors as its table, so that a loop is an error. Any
//! violation is [`Error::Protocol`], after which the queue can't be used.

use super::memory::{GuestMemory, Place, Segment};
use super::protocol::QueueAddresses;
use block::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// Largest size of a queue.
pub const MAX_ENTRIES: u32 = 1024;
/// Largest number of descriptors in an indirect table.
const MAX_INDIRECT: u32 = 1024;
const DESCRIPTOR_BYTES: usize = 16;
/// Longest chain, in bytes (VIRTIO 1.2, section 2.7.5).
const MAX_CHAIN_BYTES: u64 = 1 << 32;

/// Flags of a descriptor.
mod flag {
    pub(super) const NEXT: u16 = 1;
    pub(super) const WRITE: u16 = 2;
    pub(super) const INDIRECT: u16 = 4;
}

/// Flag of the available ring: the driver wants no notifications.
const NO_INTERRUPT: u16 = 1;
/// Flag of the used ring: the device wants no notifications.
const NO_NOTIFY: u16 = 1;

/// Buffers of a chain.
#[derive(Debug, Default)]
pub struct Chain {
    /// Buffers that the device reads.
    pub readable: Vec<Segment>,
    /// Buffers that the device writes.
    pub writable: Vec<Segment>,
}

impl Chain {
    /// Removes the buffers; keeps the capacity.
    pub fn clear(&mut self) {
        self.readable.clear();
        self.writable.clear();
    }
}

/// Number of bytes of segments.
pub fn bytes_of(segments: &[Segment]) -> usize {
    segments.iter().map(|segment| segment.length).sum()
}

struct Descriptor {
    address: u64,
    length: u32,
    flags: u16,
    next: u16,
}

/// A split virtqueue.
pub struct SplitRing {
    memory: Arc<GuestMemory>,
    size: u16,
    descriptors: Place,
    available: Place,
    used: Place,
    event_index: bool,
    next_available: u16,
    next_used: u16,
    /// Index of the used ring that was last published; `None` before the first time.
    published: Option<u16>,
}

impl SplitRing {
    /// Returns the queue of `size` entries at these addresses; `next_available` is its next index of the
    /// available ring.
    ///
    /// # Errors
    /// [`Error::Protocol`] for a size that isn't a power of two, or addresses that aren't in guest memory.
    pub fn new(
        memory: Arc<GuestMemory>,
        size: u32,
        addresses: QueueAddresses,
        event_index: bool,
        next_available: u16,
    ) -> Result<SplitRing> {
        if !size.is_power_of_two() || size > MAX_ENTRIES {
            return Err(Error::protocol(format!(
                "queue of {size} entries: expected a power of two up to {MAX_ENTRIES}"
            )));
        }
        let entries = u64::from(size);
        let mut ring = SplitRing {
            descriptors: memory.place(addresses.descriptors, entries * 16, 16)?,
            available: memory.place(addresses.available, 6 + entries * 2, 2)?,
            used: memory.place(addresses.used, 6 + entries * 8, 4)?,
            memory,
            size: size as u16,
            event_index,
            next_available,
            next_used: 0,
            published: None,
        };
        ring.next_used = ring.load(ring.used, 2, Ordering::Acquire);
        Ok(ring)
    }

    /// Memory of the guest.
    pub fn memory(&self) -> &GuestMemory {
        &self.memory
    }

    /// Number of entries.
    pub fn size(&self) -> u16 {
        self.size
    }

    /// Next index of the available ring.
    pub fn next_available(&self) -> u16 {
        self.next_available
    }

    /// Sets the next index of the available ring.
    pub fn set_next_available(&mut self, index: u16) {
        self.next_available = index;
    }

    /// Index of the used ring.
    pub fn next_used(&self) -> u16 {
        self.next_used
    }

    #[inline]
    fn load(&self, place: Place, at: usize, ordering: Ordering) -> u16 {
        let (memory, offset) = self.memory.at(place);
        u16::from_le(memory.u16(offset + at).load(ordering))
    }

    #[inline]
    fn store(&self, place: Place, at: usize, value: u16, ordering: Ordering) {
        let (memory, offset) = self.memory.at(place);
        memory.u16(offset + at).store(value.to_le(), ordering);
    }

    /// Number of entries of the available ring that haven't been taken.
    #[inline]
    fn waiting(&self) -> Result<u16> {
        let index = self.load(self.available, 2, Ordering::Acquire);
        let waiting = index.wrapping_sub(self.next_available);
        if waiting > self.size {
            return Err(self.beyond(index));
        }
        Ok(waiting)
    }

    #[cold]
    fn beyond(&self, index: u16) -> Error {
        Error::protocol(format!(
            "available ring: index {index} after {}; expected at most {} more",
            self.next_available, self.size
        ))
    }

    /// Takes the next head of a chain from the available ring.
    ///
    /// # Errors
    /// [`Error::Protocol`] for an index or a head out of range.
    #[inline]
    pub fn pop(&mut self) -> Result<Option<u16>> {
        if self.waiting()? == 0 {
            return Ok(None);
        }
        let slot = usize::from(self.next_available & (self.size - 1));
        let head = self.load(self.available, 4 + 2 * slot, Ordering::Relaxed);
        self.next_available = self.next_available.wrapping_add(1);
        self.check_index(head)?;
        Ok(Some(head))
    }

    #[inline]
    fn check_index(&self, index: u16) -> Result<()> {
        match index < self.size {
            true => Ok(()),
            false => Err(Error::protocol(format!("descriptor {index} out of range 0..{}", self.size))),
        }
    }

    #[inline]
    fn descriptor(&self, index: u16) -> Descriptor {
        let (memory, offset) = self.memory.at(self.descriptors);
        let mut bytes = [0; DESCRIPTOR_BYTES];
        memory.read(offset + usize::from(index) * DESCRIPTOR_BYTES, &mut bytes);
        Descriptor::parse(&bytes)
    }

    /// Appends the buffers of a chain to `chain`, which is empty.
    ///
    /// # Errors
    /// [`Error::Protocol`] for a chain with a loop, with bytes outside of the memory, with a buffer to read
    /// after one to write, or of more than 2^32 bytes.
    pub fn read_chain(&self, head: u16, chain: &mut Chain) -> Result<()> {
        self.read_descriptors(head, chain)?;
        let bytes = bytes_of(&chain.readable) as u64 + bytes_of(&chain.writable) as u64;
        match bytes <= MAX_CHAIN_BYTES {
            true => Ok(()),
            false => Err(Error::protocol(format!(
                "chain {head}: {bytes} bytes; expected at most {MAX_CHAIN_BYTES}"
            ))),
        }
    }

    fn read_descriptors(&self, head: u16, chain: &mut Chain) -> Result<()> {
        self.check_index(head)?;
        let mut index = head;
        for _ in 0..self.size {
            let descriptor = self.descriptor(index);
            if descriptor.flags & flag::INDIRECT != 0 {
                if descriptor.flags & (flag::NEXT | flag::WRITE) != 0 {
                    return Err(Error::protocol(format!(
                        "descriptor {index}: flags {:#x}; expected an indirect one to be the last, and read-only",
                        descriptor.flags
                    )));
                }
                return self.read_indirect(&descriptor, chain);
            }
            self.add(&descriptor, chain)?;
            if descriptor.flags & flag::NEXT == 0 {
                return Ok(());
            }
            index = descriptor.next;
            self.check_index(index)?;
        }
        Err(Error::protocol(format!(
            "chain {head}: more descriptors than the queue's {}; expected no loop",
            self.size
        )))
    }

    fn read_indirect(&self, table: &Descriptor, chain: &mut Chain) -> Result<()> {
        let count = table.length / DESCRIPTOR_BYTES as u32;
        if !table.length.is_multiple_of(DESCRIPTOR_BYTES as u32) || !(1..=MAX_INDIRECT).contains(&count) {
            return Err(Error::protocol(format!(
                "indirect table of {} bytes: expected 1 to {MAX_INDIRECT} descriptors of 16",
                table.length
            )));
        }
        let mut index = 0_u32;
        for _ in 0..count {
            let address = table.address.checked_add(u64::from(index) * DESCRIPTOR_BYTES as u64);
            let address = address.ok_or_else(|| Error::protocol("indirect table: its address overflows"))?;
            let descriptor = self.indirect_descriptor(address, &mut chain.readable)?;
            if descriptor.flags & flag::INDIRECT != 0 {
                return Err(Error::protocol("indirect table with an indirect descriptor: expected buffers"));
            }
            self.add(&descriptor, chain)?;
            if descriptor.flags & flag::NEXT == 0 {
                return Ok(());
            }
            index = u32::from(descriptor.next);
            if index >= count {
                return Err(Error::protocol(format!("indirect descriptor {index} out of range 0..{count}")));
            }
        }
        Err(Error::protocol(format!("indirect table: more descriptors than its {count}; expected no loop")))
    }

    /// Reads a descriptor at a guest address; `spare` is used for it and restored.
    fn indirect_descriptor(&self, address: u64, spare: &mut Vec<Segment>) -> Result<Descriptor> {
        let before = spare.len();
        let located = self.memory.locate(address, DESCRIPTOR_BYTES as u32, spare);
        let mut bytes = [0; DESCRIPTOR_BYTES];
        let mut filled = 0;
        for segment in spare.drain(before..) {
            self.memory.read(segment, &mut bytes[filled..filled + segment.length]);
            filled += segment.length;
        }
        located?;
        Ok(Descriptor::parse(&bytes))
    }

    #[inline]
    fn add(&self, descriptor: &Descriptor, chain: &mut Chain) -> Result<()> {
        let segments = match descriptor.flags & flag::WRITE {
            0 if chain.writable.is_empty() => &mut chain.readable,
            0 => return Err(Error::protocol("chain: a buffer to read after one to write")),
            _ => &mut chain.writable,
        };
        self.memory.locate(descriptor.address, descriptor.length, segments)
    }

    /// Adds a chain to the used ring, into which the device has written `written` bytes. The driver sees it
    /// after [`publish`](Self::publish).
    #[inline]
    pub fn push(&mut self, head: u16, written: u32) {
        let (memory, offset) = self.memory.at(self.used);
        let slot = usize::from(self.next_used & (self.size - 1));
        let mut entry = [0; 8];
        entry[..4].copy_from_slice(&u32::from(head).to_le_bytes());
        entry[4..].copy_from_slice(&written.to_le_bytes());
        memory.write(offset + 4 + 8 * slot, &entry);
        self.next_used = self.next_used.wrapping_add(1);
    }

    /// Publishes the used chains to the driver. Returns whether it wants a notification.
    #[inline]
    pub fn publish(&mut self) -> bool {
        self.store(self.used, 2, self.next_used, Ordering::Release);
        // The driver asks for notifications and then reads the index; the device stores the index and then
        // reads that request.
        fence(Ordering::SeqCst);
        let before = self.published.replace(self.next_used);
        if !self.event_index {
            return self.load(self.available, 0, Ordering::Relaxed) & NO_INTERRUPT == 0;
        }
        let event = self.load(self.available, 4 + 2 * usize::from(self.size), Ordering::Relaxed);
        before.is_none_or(|before| {
            let since_event = self.next_used.wrapping_sub(event).wrapping_sub(1);
            since_event < self.next_used.wrapping_sub(before)
        })
    }

    /// Asks the driver for a notification of the next chain. Returns whether chains are already available.
    ///
    /// # Errors
    /// [`Error::Protocol`] for an index out of range.
    pub fn ask_for_notification(&mut self) -> Result<bool> {
        match self.event_index {
            true => {
                let at = 4 + 8 * usize::from(self.size);
                self.store(self.used, at, self.next_available, Ordering::Release);
            }
            false => self.store(self.used, 0, 0, Ordering::Release),
        }
        // As in `publish`, with the roles exchanged.
        fence(Ordering::SeqCst);
        Ok(self.waiting()? > 0)
    }

    /// Declines notifications. The driver may still send some.
    pub fn decline_notifications(&mut self) {
        // With the event index, the driver sends none until the requested index is passed again.
        if !self.event_index {
            self.store(self.used, 0, NO_NOTIFY, Ordering::Relaxed);
        }
    }
}

impl Descriptor {
    #[inline]
    fn parse(bytes: &[u8; DESCRIPTOR_BYTES]) -> Descriptor {
        let word = u128::from_le_bytes(*bytes);
        Descriptor {
            address: word as u64,
            length: (word >> 64) as u32,
            flags: (word >> 96) as u16,
            next: (word >> 112) as u16,
        }
    }
}
