//! Programs, erases and register writes that the chip refuses.

use super::Chip;
use crate::description::{Description, Locks, Meaning};
use std::ops::Range;

/// Returns the number of individual locks of a chip.
pub(super) fn lock_count(description: &Description) -> usize {
    let Some(locks) = &description.locks else { return 0 };
    lock_index(locks, description.size, description.size - 1) + 1
}

/// Returns the index of the lock that covers an address. Indexes rise with addresses.
fn lock_index(locks: &Locks, size: u32, address: u32) -> usize {
    let Locks { block, edge, .. } = *locks;
    let edges = block / edge;
    let (number, last) = (address / block, size / block - 1);
    let index = match number {
        0 => address / edge,
        n if n < last => edges + n - 1,
        _ => edges + last - 1 + address % block / edge,
    };
    index as usize
}

impl Chip {
    /// Returns the area that the BP bits protect.
    ///
    /// The rule is that of the W25Q128JV datasheet, section "Status Register Memory Protection", which the
    /// other chips share with other units: the area doubles with each step of BP, from the top or with TB = 1
    /// from the bottom; all bits set protect everything; SEC = 1 counts in sectors and ends at half a block;
    /// CMP = 1 protects the rest instead.
    pub fn protected_area(&self) -> Range<u32> {
        let (protection, size) = (&self.description.protection, self.description.size);
        let value = (0..protection.bits).fold(0u32, |v, n| v | u32::from(self.is_set(Meaning::Bp(n))) << n);
        let length = match value {
            0 => 0,
            v if v == (1 << protection.bits) - 1 => size,
            v if self.is_set(Meaning::Sec) => doubled(protection.sector_unit, v).min(protection.sector_limit),
            v => doubled(protection.unit, v).min(size),
        };
        match (self.is_set(Meaning::Tb), self.is_set(Meaning::Cmp)) {
            (false, false) => size - length..size,
            (true, false) => 0..length,
            (false, true) => 0..size - length,
            (true, true) => length..size,
        }
    }

    /// Returns whether the individual locks are in force.
    fn uses_locks(&self) -> bool {
        self.description.locks.as_ref().is_some_and(|locks| !locks.by_wps || self.is_set(Meaning::Wps))
    }

    /// Returns whether any byte of `range` is protected.
    pub fn is_protected(&self, range: Range<u32>) -> bool {
        if range.is_empty() {
            return false;
        }
        if let Some(locks) = &self.description.locks
            && self.uses_locks()
        {
            let size = self.description.size;
            let first = lock_index(locks, size, range.start);
            let last = lock_index(locks, size, range.end - 1);
            if self.locks[first..=last].iter().any(|lock| lock & 1 == 1) {
                return true;
            }
            if locks.by_wps {
                return false;
            }
        }
        let area = self.protected_area();
        area.start < range.end && range.start < area.end
    }

    /// Returns whether a write of this register is refused: by SRL, or by SRP and the WP# pin.
    ///
    /// WP# has no function while QE = 1 (W25Q128JV datasheet, section "Status Register Protect").
    pub(super) fn is_register_locked(&self, register: usize) -> bool {
        let table = &self.description.registers[register];
        let protects = |m: &Meaning| matches!(m, Meaning::Bp(_) | Meaning::Srp | Meaning::Srl | Meaning::Wps);
        if table.non_volatile == 0 && !table.meanings.iter().any(protects) {
            return false;
        }
        let pin_counts = !self.is_set(Meaning::Qe) && !self.modes.qpi;
        self.is_set(Meaning::Srl) || (self.is_set(Meaning::Srp) && !self.write_protect && pin_counts)
    }

    /// Returns the lock register of the block at an address.
    pub(super) fn lock_at(&self, address: u32) -> u8 {
        match &self.description.locks {
            Some(locks) => self.locks[lock_index(locks, self.description.size, address)],
            None => 0,
        }
    }

    /// Writes the lock register of the block at an address. A lock-down, bit 1, keeps it until the next power
    /// cycle.
    pub(super) fn set_lock(&mut self, address: u32, value: u8) -> bool {
        let Some(locks) = &self.description.locks else { return false };
        let slot = &mut self.locks[lock_index(locks, self.description.size, address)];
        let open = *slot & 2 == 0;
        if open {
            *slot = value & 3;
        }
        open
    }

    pub(super) fn set_all_locks(&mut self, value: u8) {
        for lock in self.locks.iter_mut().filter(|lock| **lock & 2 == 0) {
            *lock = value;
        }
    }

    /// Returns whether the security register with this number is locked.
    pub(super) fn is_security_locked(&self, register: u32) -> bool {
        let control = self.description.security.as_ref().is_some_and(|security| {
            security.control_byte && self.cells.security.last().is_some_and(|byte| byte & 1 == 0)
        });
        // The lock bits belong to the registers in the order of their numbers, which begin at 0 or at 1.
        let mut bits =
            (0..8).map(Meaning::SecurityLock).filter(|meaning| self.description.bit(*meaning).is_some());
        control
            || self.is_set(Meaning::OtpLocked)
            || bits.nth(register as usize).is_some_and(|meaning| self.is_set(meaning))
    }
}

/// Returns `unit` doubled `value - 1` times, without overflow.
fn doubled(unit: u32, value: u32) -> u32 {
    u64::from(unit).checked_shl(value - 1).unwrap_or(u64::MAX).min(u64::from(u32::MAX)) as u32
}
