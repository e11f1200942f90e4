//! State of all zones: the state machine of the contract, in memory.
//!
//! The cache has two tables. The *local* table is the state that its users see. The *cut* table is the state
//! that is durable at the origin; the pending operations, applied in order, bring it to the local one.

use crate::format::{Action, Entry, Zone};
use block::{Error, Result, ZoneAddress, ZoneGeometry, ZoneIndex, ZoneReport, ZoneState};
use zones::errors;

/// State of all zones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZoneTable {
    zones: Vec<Zone>,
    capacity: u64,
    max_open: u32,
    max_active: u32,
    open: u32,
    active: u32,
}

impl ZoneTable {
    /// Creates the table of these zones; the geometry has the limits.
    pub fn new(zones: Vec<Zone>, geometry: &ZoneGeometry) -> Self {
        let mut table = ZoneTable {
            zones: Vec::with_capacity(zones.len()),
            capacity: geometry.zone_capacity,
            max_open: geometry.max_open,
            max_active: geometry.max_active,
            open: 0,
            active: 0,
        };
        for zone in zones {
            table.count(ZoneState::Empty, zone.state);
            table.zones.push(zone);
        }
        table
    }

    /// Creates the table from the reports of all zones.
    pub fn from_reports(reports: &[ZoneReport], geometry: &ZoneGeometry) -> Self {
        let zone = |report: &ZoneReport| Zone {
            state: if report.state.is_open() { ZoneState::Closed } else { report.state },
            write_pointer: report.write_pointer,
            generation: report.generation,
        };
        Self::new(reports.iter().map(zone).collect(), geometry)
    }

    /// Number of zones.
    pub fn len(&self) -> u32 {
        self.zones.len() as u32
    }

    /// State of a zone. The caller has checked that it exists.
    pub fn zone(&self, zone: ZoneIndex) -> Zone {
        self.zones[zone.0 as usize]
    }

    /// All zones, in order.
    pub fn zones(&self) -> &[Zone] {
        &self.zones
    }

    /// Report of a zone.
    pub fn report(&self, zone: ZoneIndex) -> ZoneReport {
        let Zone { state, write_pointer, generation } = self.zone(zone);
        ZoneReport { zone, state, write_pointer, generation }
    }

    fn count(&mut self, from: ZoneState, to: ZoneState) {
        self.open = self.open + u32::from(to.is_open()) - u32::from(from.is_open());
        self.active = self.active + u32::from(to.is_active()) - u32::from(from.is_active());
    }

    fn set(&mut self, index: ZoneIndex, zone: Zone) {
        let before = std::mem::replace(&mut self.zones[index.0 as usize], zone);
        self.count(before.state, zone.state);
    }

    /// Opens a zone that is empty, closed or open.
    fn open_as(&mut self, index: ZoneIndex, to: ZoneState) -> Result<()> {
        let zone = self.zone(index);
        if !zone.state.is_open() {
            if self.max_open != 0 && self.open >= self.max_open {
                return Err(Error::busy(format!(
                    "opening zone {index}: {} zones are open, the limit max_open: close, finish or reset one",
                    self.open
                )));
            }
            if self.max_active != 0 && !zone.state.is_active() && self.active >= self.max_active {
                return Err(Error::busy(format!(
                    "opening zone {index}: {} zones are active, the limit max_active: finish or reset one",
                    self.active
                )));
            }
        }
        self.set(index, Zone { state: to, ..zone });
        Ok(())
    }

    /// Checks that an append to this zone may be possible.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a zone that accepts no appends.
    pub fn check_append(&self, index: ZoneIndex) -> Result<()> {
        match self.zone(index).state {
            ZoneState::Empty | ZoneState::Closed => Ok(()),
            state if state.is_open() => Ok(()),
            state => Err(errors::wrong_state(index, state)),
        }
    }

    /// Reserves `length` bytes at the write pointer, which is `wanted` if that is given, and opens the zone.
    /// Returns the offset.
    ///
    /// # Errors
    /// Errors of [`block::Zones::append_at`].
    pub fn append(&mut self, index: ZoneIndex, wanted: Option<u64>, length: u64) -> Result<u64> {
        self.check_append(index)?;
        let zone = self.zone(index);
        if let Some(wanted) = wanted.filter(|wanted| *wanted != zone.write_pointer) {
            return Err(errors::misplaced(index, wanted, zone.write_pointer));
        }
        if !zone.state.is_open() {
            self.open_as(index, ZoneState::ImplicitlyOpen)?;
        }
        let left = self.capacity - zone.write_pointer.min(self.capacity);
        if length > left {
            return Err(errors::exceeds_zone(index, length, left));
        }
        self.zones[index.0 as usize].write_pointer += length;
        Ok(zone.write_pointer)
    }

    /// Opens a zone explicitly. Returns whether that changes its state.
    ///
    /// # Errors
    /// Errors of [`block::Zones::open`].
    pub fn open(&mut self, index: ZoneIndex) -> Result<bool> {
        self.check_append(index)?;
        if self.zone(index).state == ZoneState::ExplicitlyOpen {
            return Ok(false);
        }
        self.open_as(index, ZoneState::ExplicitlyOpen).map(|()| true)
    }

    /// Closes a zone. Returns whether that changes its state.
    ///
    /// # Errors
    /// Errors of [`block::Zones::close`].
    pub fn close(&mut self, index: ZoneIndex) -> Result<bool> {
        let zone = self.zone(index);
        match zone.state {
            ZoneState::Closed => Ok(false),
            state if state.is_open() => {
                self.set(index, Zone { state: ZoneState::Closed, ..zone });
                Ok(true)
            }
            state => Err(errors::wrong_state(index, state)),
        }
    }

    /// Finishes a zone. Returns whether that changes its state.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a zone that is offline.
    pub fn finish(&mut self, index: ZoneIndex) -> Result<bool> {
        let zone = self.zone(index);
        match zone.state {
            ZoneState::Full => Ok(false),
            state @ (ZoneState::Offline | ZoneState::ReadOnly) => Err(errors::wrong_state(index, state)),
            _ => {
                self.set(index, Zone { state: ZoneState::Full, ..zone });
                Ok(true)
            }
        }
    }

    /// Resets a zone. Returns its new generation.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a zone that is offline.
    pub fn reset(&mut self, index: ZoneIndex) -> Result<u64> {
        let zone = self.zone(index);
        if let state @ (ZoneState::Offline | ZoneState::ReadOnly) = zone.state {
            return Err(errors::wrong_state(index, state));
        }
        let generation = zone.generation + 1;
        self.set(index, Zone { state: ZoneState::Empty, write_pointer: 0, generation });
        Ok(generation)
    }

    /// Interrupts all active zones, after an unclean stop.
    pub fn interrupt(&mut self) {
        self.stop_as(ZoneState::Interrupted);
    }

    /// Closes all open zones, after a clean stop.
    pub fn close_all(&mut self) {
        self.stop_as(ZoneState::Closed);
    }

    fn stop_as(&mut self, to: ZoneState) {
        for index in (0..self.len()).map(ZoneIndex) {
            let zone = self.zone(index);
            let stops = zone.state.is_open() || to == ZoneState::Interrupted && zone.state.is_active();
            if stops {
                self.set(index, Zone { state: to, ..zone });
            }
        }
    }

    /// Applies an operation of the log.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for an operation that doesn't follow from the zone's state.
    pub fn apply(&mut self, entry: &Entry) -> Result<()> {
        let index = entry.zone;
        match entry.action {
            Action::Unclean => {
                self.interrupt();
                return Ok(());
            }
            Action::Clean => {
                self.close_all();
                return Ok(());
            }
            _ => {}
        }
        if index.0 >= self.len() {
            return Err(Error::corrupt(format!("{entry:?}: zone out of range 0..{}", self.len())));
        }
        let zone = self.zone(index);
        let fits = match entry.action {
            Action::Append => {
                entry.offset == zone.write_pointer
                    && entry.length() <= self.capacity - entry.offset.min(self.capacity)
            }
            _ => true,
        };
        if entry.generation != zone.generation || !fits {
            return Err(Error::corrupt(format!("{entry:?} doesn't follow the state of its zone, {zone:?}")));
        }
        let Zone { write_pointer, generation, .. } = zone;
        self.set(
            index,
            match entry.action {
                Action::Append if zone.state.is_open() => Zone { write_pointer: entry.end(), ..zone },
                Action::Append => {
                    Zone { state: ZoneState::ImplicitlyOpen, write_pointer: entry.end(), generation }
                }
                Action::Open => Zone { state: ZoneState::ExplicitlyOpen, ..zone },
                Action::Close => Zone { state: ZoneState::Closed, ..zone },
                Action::Finish => Zone { state: ZoneState::Full, ..zone },
                Action::Reset => {
                    Zone { state: ZoneState::Empty, write_pointer: 0, generation: generation + 1 }
                }
                Action::Unclean | Action::Clean => Zone { write_pointer, ..zone },
            },
        );
        Ok(())
    }
}

/// Address of a zone's write pointer.
pub fn end_of(zone: ZoneIndex, state: &Zone) -> ZoneAddress {
    ZoneAddress::new(zone.0, state.write_pointer)
}
