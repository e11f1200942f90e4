//! Power cuts: contents of a drive after them.
//!
//! A protected buffer is programmed with the energy that the drive stores. Otherwise the bytes whose program
//! hadn't begun are lost, a page that was being programmed is half-done, and so is a block that was being
//! erased. Calls in flight fail.

use crate::drive::{Drive, lock};
use crate::machine::{self, State};
use crate::zone::{Loss, Zone, half_erase, half_program};
use block::{Buffer, Durability, Error, Result, ZoneIndex};
use runtime::Random;
use runtime::file::File;
use std::sync::atomic::Ordering;

/// Bytes of a file that are changed in one step.
const STEP: u64 = 1 << 20;

/// Change of cells by a power cut.
#[derive(Debug, Clone, Copy)]
enum Damage {
    Program(Loss),
    Erase { to: u64, part: f64 },
}

impl Drive {
    /// Whether the drive has no power.
    pub(crate) fn is_off(&self) -> bool {
        self.epoch.load(Ordering::Acquire) % 2 == 1
    }

    /// Cuts the power. All calls in flight fail, and open handles become unusable.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the power is off; errors of the file.
    pub(crate) async fn cut(&self, file: Option<&File>) -> Result<()> {
        let epoch = self.epoch.load(Ordering::Acquire);
        let next = self.epoch.compare_exchange(epoch & !1, epoch | 1, Ordering::AcqRel, Ordering::Acquire);
        if next.is_err() {
            return Err(Error::invalid("power-off: the drive is off already"));
        }
        let now = self.now();
        self.counters.power_cuts.fetch_add(1, Ordering::Relaxed);
        // A call that passed its check of the epoch under a zone's lock has now begun its request.
        for slot in &self.slots {
            drop(slot.lock());
            slot.gate.open();
        }
        self.idle.wait_until(|| self.requests.load(Ordering::Acquire) == 0).await;
        if self.stopped.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut random = Random::new(lock(&self.timing).random.next_u64());
        for index in (0..self.geometry.zones).map(ZoneIndex) {
            let damages = self.cut_zone(&mut self.slot(index).lock(), now, &mut random, file.is_none());
            let Some(file) = file else { continue };
            for damage in &damages {
                self.damage_file(file, index, *damage, &mut random).await?;
            }
            let area = {
                let zone = self.slot(index).lock();
                let uuid = lock(&self.superblock).uuid;
                crate::format::encode_zone(uuid, index.0, &zone.header(), &zone.blocks)
            };
            let at = crate::format::Superblock::zone_area(index.0);
            file.write_at(at, area.into(), Durability::Durable).await?;
        }
        lock(&self.timing).schedule.cut();
        Ok(())
    }

    /// Switches the power on.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the power is on.
    pub(crate) fn power_on(&self) -> Result<()> {
        let epoch = self.epoch.load(Ordering::Acquire);
        if epoch.is_multiple_of(2) {
            return Err(Error::invalid("power-on: the drive is on already"));
        }
        self.epoch.store(epoch + 1, Ordering::Release);
        self.slots.iter().for_each(|slot| slot.gate.open());
        Ok(())
    }

    /// Applies the cut to a zone, and to its cells if they are in memory. Returns the damage.
    fn cut_zone(&self, zone: &mut Zone, now: u64, random: &mut Random, in_memory: bool) -> Vec<Damage> {
        (zone.owned, zone.in_flight) = (false, 0);
        let mut damages = Vec::new();
        let erasing = zone.erasing.take();
        if let Some((begin, end)) = erasing {
            let part = now.saturating_sub(begin) as f64 / (end - begin).max(1) as f64;
            let to = if in_memory { zone.cells.len() as u64 } else { self.geometry.zone_capacity };
            damages.push(Damage::Erase { to, part: part.clamp(0.0, 1.0) });
            zone.stale |= zone.machine.write_pointer == 0;
        }
        if !self.profile.protected && erasing.is_none() && !zone.interrupted && !zone.sealed {
            damages.extend(zone.losses(now).into_iter().map(Damage::Program));
        }
        if in_memory {
            for damage in &damages {
                match *damage {
                    Damage::Program(Loss { from, to, part }) => {
                        let end = (to as usize).min(zone.cells.len());
                        let bytes = zone.cells.get_mut(from as usize..end).unwrap_or_default();
                        half_program(bytes, part, random);
                    }
                    Damage::Erase { part, .. } => half_erase(&mut zone.cells, part, random),
                }
            }
        }
        let lost = !damages.is_empty();
        let state = zone.machine.state;
        let mut resources = lock(&self.resources);
        if state.is_active() && zone.machine.write_pointer == 0 && !zone.interrupted {
            resources.moved(state, State::Empty);
            zone.machine = machine::Zone::empty();
        } else if state.is_active() || (state == State::Full && lost) {
            zone.machine.fail(State::Closed, &mut resources);
            zone.interrupted = true;
            zone.sealed = false;
        }
        zone.programs.clear();
        zone.programmed = zone.machine.write_pointer;
        zone.durable = zone.machine.write_pointer;
        damages
    }

    async fn damage_file(
        &self,
        file: &File,
        index: ZoneIndex,
        damage: Damage,
        random: &mut Random,
    ) -> Result<()> {
        let start = self.cells_at(index);
        let (mut from, to) = match damage {
            Damage::Program(loss) => (loss.from, loss.to),
            Damage::Erase { to, .. } => (0, to),
        };
        while from < to {
            let length = STEP.min(to - from);
            let (read, mut bytes) = file.read_exact_at(start + from, Buffer::new(length as usize)).await;
            read?;
            match damage {
                // A program covers one unit, which is far below a step.
                Damage::Program(loss) => half_program(bytes.filled_mut(), loss.part, random),
                Damage::Erase { part, .. } => half_erase(bytes.filled_mut(), part, random),
            }
            file.write_at(start + from, bytes.freeze().into(), Durability::Visible).await?;
            from += length;
        }
        file.sync_data().await
    }
}
