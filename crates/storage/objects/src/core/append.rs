//! Appends, and the write pointer that a rewind moves back.
//!
//! # Promises
//! - An append is copied, has its address at once, and can be read from then on. It waits only for memory,
//!   and for a finish, a reset or a rewind of its zone.
//! - Bytes that are appended again after a rewind aren't stored again.
//!
//! Left to others: uploads and memory (`upload`), durability (`commit`).

use super::Core;
use super::zone::Zone;
use crate::table::{Change, State};
use block::{Error, Payload, Result, ZoneAddress, ZoneIndex, ZoneState};
use runtime::sync::Permit;
use std::rc::Rc;
use zones::errors;

impl Core {
    /// Appends, at byte `wanted` if that is given.
    pub async fn append(
        self: Rc<Self>,
        index: ZoneIndex,
        wanted: Option<u64>,
        payload: Payload,
    ) -> Result<ZoneAddress> {
        let begun = self.begin_append(index).await?;
        let memory = self.take_memory(payload.len()).await?;
        self.check()?;
        let appended = self.append_to_zone(
            &mut self.zones.borrow_mut()[index.0 as usize],
            index,
            wanted,
            &payload,
            memory,
        );
        drop(begun);
        appended.map(|offset| ZoneAddress::new(index.0, offset))
    }

    /// Copies an append to a zone, and uploads pieces that are full.
    fn append_to_zone(
        self: &Rc<Self>,
        zone: &mut Zone,
        index: ZoneIndex,
        wanted: Option<u64>,
        payload: &Payload,
        memory: Permit,
    ) -> Result<u64> {
        if !(zone.state.is_open() || matches!(zone.state, ZoneState::Empty | ZoneState::Closed)) {
            return Err(errors::wrong_state(index, zone.state));
        }
        if let Some(wanted) = wanted.filter(|wanted| *wanted != zone.write_pointer) {
            return Err(errors::misplaced(index, wanted, zone.write_pointer));
        }
        let left = self.geometry.zone_capacity - zone.write_pointer;
        if !zone.state.is_open() {
            self.open_zone_as(zone, index, ZoneState::ImplicitlyOpen)?;
        }
        if payload.len() as u64 > left {
            return Err(errors::exceeds_zone(index, payload.len() as u64, left));
        }
        // An append that is in several pieces needs its memory until all of them are stored.
        let (at, memory, mut is_kept) = (zone.write_pointer, Rc::new(memory), false);
        // Those that a rewind repeats are there already.
        let mut repeated = zone.end - at;
        for slice in payload.slices() {
            let known = repeated.min(slice.len() as u64);
            (repeated, zone.write_pointer) = (repeated - known, zone.write_pointer + known);
            let mut bytes = &slice[known as usize..];
            while !bytes.is_empty() {
                let pointer = zone.write_pointer;
                if zone.open_piece.is_none() {
                    let key = self.zone_key(index, zone.generation)?;
                    let sealer = self.sealer(self.name(zone, index, pointer, 0), key.as_ref());
                    zone.open_piece = Some(Box::new(self.new_piece(pointer, sealer)));
                }
                let Some(piece) = &mut zone.open_piece else { break };
                let before = piece.length();
                let taken = piece.push(bytes, self.settings.piece_size);
                self.open_pieces.borrow_mut().changed(index.0, before, piece.length());
                (bytes, zone.write_pointer) = (&bytes[taken..], pointer + taken as u64);
                zone.end = zone.write_pointer;
                if !is_kept {
                    piece.keep(memory.clone());
                }
                is_kept = piece.length() < self.settings.piece_size;
                if !is_kept {
                    self.upload(zone, index);
                }
            }
        }
        Ok(at)
    }

    /// Moves the write pointer of a begun zone back, and closes the zone. Its bytes after that are kept.
    pub async fn rewind(self: Rc<Self>, at: ZoneAddress) -> Result<()> {
        let rewind = |zone: &mut Zone| {
            let before = zone.state;
            if !before.is_active() {
                return Err(errors::wrong_state(at.zone, before));
            }
            if at.offset.0 > zone.write_pointer {
                return Err(Error::invalid(format!(
                    "rewind to {at}: expected at most the write pointer, byte {}",
                    zone.write_pointer
                )));
            }
            if before == ZoneState::Interrupted {
                // Before the pieces of later flushes, in the order of the log.
                zone.batch = self.log.push([Change::State { zone: at.zone.0, state: State::Begun }]);
            }
            (zone.state, zone.write_pointer) = (ZoneState::Closed, at.offset.0);
            Ok(())
        };
        // Appends that have begun land before.
        self.lock_zone(at.zone, None).await?;
        let mut rewound = Ok(());
        self.unlock_zone(at.zone, |zone| rewound = rewind(zone));
        rewound
    }
}
