//! Views of a drive for operators: status, zones, wear, and raw cells.

use crate::drive::Drive;
use crate::machine::State;
use crate::part::Zns;
use crate::reliability::{CODEWORD, CORRECTABLE, Stress};
use block::{Buffer, Error, Result, Status, ZoneIndex};
use runtime::file::{File, OpenOptions};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::atomic::Ordering;

/// Most bytes that one read of raw cells returns.
pub const MAX_RAW: u64 = 64 << 20;

impl Zns {
    /// Opens the drive in the file at this path, without changing it.
    ///
    /// # Errors
    /// Errors of the file, and of [`look_at`](Self::look_at).
    pub async fn look_at_path(path: &Path) -> Result<Zns> {
        let file = File::open(path, OpenOptions::default()).await?;
        Self::look_at(&file, crate::part::Settings::default()).await
    }

    /// Status: sizes, zones by state, counters.
    pub fn status_now(&self) -> Status {
        let drive = &self.drive;
        let superblock = self.superblock();
        let mut status = Status::new();
        let mut put = |key: &str, value: Value| drop(status.insert(key.into(), value));
        put("uuid", superblock.uuid.to_string().into());
        put("profile", superblock.profile.clone().into());
        put("title", drive.profile.title.clone().into());
        put("power", if drive.is_off() { "off" } else { "on" }.into());
        put("zones", drive.geometry.zones.into());
        put("zone_size", drive.geometry.zone_size.into());
        put("zone_capacity", drive.geometry.zone_capacity.into());
        put("erase", drive.geometry.erase.to_string().into());
        put("dies", drive.profile.dies().into());
        put("blocks_per_zone", drive.layout.lanes.into());
        put("pages_per_block", drive.layout.pages().into());
        put("age_hours", (drive.clock() / 3600).into());
        for (name, state) in [
            ("empty", State::Empty),
            ("implicitly_open", State::ImplicitlyOpened),
            ("explicitly_open", State::ExplicitlyOpened),
            ("closed", State::Closed),
            ("full", State::Full),
            ("read_only", State::ReadOnly),
            ("offline", State::Offline),
        ] {
            let count = drive.slots.iter().filter(|slot| {
                let zone = slot.lock();
                zone.machine.state == state && !zone.interrupted
            });
            put(name, count.count().into());
        }
        let interrupted = drive.slots.iter().filter(|slot| slot.lock().interrupted).count();
        put("interrupted", interrupted.into());
        put("stale", drive.slots.iter().filter(|slot| slot.lock().stale).count().into());
        let erases = drive
            .slots
            .iter()
            .map(|slot| slot.lock().blocks.iter().map(|block| block.erases).max().unwrap_or(0));
        put("most_erases", erases.max().unwrap_or(0).into());
        put("endurance", superblock.endurance.into());
        let counters = &drive.counters;
        for (name, counter) in [
            ("appends", &counters.appends),
            ("appended_bytes", &counters.appended_bytes),
            ("reads", &counters.reads),
            ("resets", &counters.resets),
            ("programs", &counters.programs),
            ("block_erases", &counters.erases),
            ("corrected_bits", &counters.corrected_bits),
            ("uncorrectable_reads", &counters.uncorrectable),
            ("power_cuts", &counters.power_cuts),
        ] {
            put(name, counter.load(Ordering::Relaxed).into());
        }
        status
    }

    /// Zones, one object each.
    pub fn zones_now(&self) -> Value {
        let zones = self.drive.slots.iter().enumerate().map(|(index, slot)| {
            let zone = slot.lock();
            let erases = zone.blocks.iter().map(|block| block.erases).max().unwrap_or(0);
            let mut value = json!({
                "zone": index,
                "state": format!("{:?}", zone.state()),
                "write_pointer": zone.machine.write_pointer,
                "generation": zone.generation,
                "stale": zone.stale,
                "erases": erases,
                "key": if zone.key == [0; 32] { "none" } else { "present" },
            });
            if let (Some(why), Some(object)) = (&zone.trouble, value.as_object_mut()) {
                object.insert("trouble".into(), why.clone().into());
            }
            value
        });
        Value::Array(zones.collect())
    }

    /// Erase blocks, one object each: place, erases, reads, worst page's bit error rate, and the rate of
    /// every page of the worst block.
    pub fn wear_now(&self) -> Value {
        let drive = &self.drive;
        let mut blocks = Vec::new();
        let mut worst: Option<(f64, u32, u32)> = None;
        let pages = drive.layout.pages();
        let factors = (0..pages).map(|page| drive.reliability.page_factor(page, pages));
        let worst_page = factors.fold(0.0, f64::max);
        for index in 0..drive.geometry.zones {
            for lane in 0..drive.layout.lanes {
                let (block, place) = drive.block(index, lane);
                let rate = drive.block_rate(index, lane) * worst_page;
                if worst.is_none_or(|(most, ..)| rate > most) {
                    worst = Some((rate, index, lane));
                }
                blocks.push(json!({
                    "zone": index, "die": place.die, "block": place.block,
                    "erases": block.erases, "reads": block.reads, "failed": block.failed, "bit_error_rate": rate,
                }));
            }
        }
        let pages = worst.map(|(_, zone, lane)| {
            let place = drive.block(zone, lane).1;
            json!({"zone": zone, "die": place.die, "block": place.block, "bit_error_rates": drive.rates(zone, lane)})
        });
        json!({
            "endurance": self.superblock().endurance,
            "correctable_rate": f64::from(CORRECTABLE) / (CODEWORD as f64 * 8.0),
            "blocks": blocks,
            "worst_block": pages,
        })
    }

    /// Bit error rates of the pages of a zone, by block and page.
    pub fn page_rates(&self, zone: ZoneIndex) -> Result<Vec<Vec<f64>>> {
        self.drive.geometry.check_zone(zone)?;
        Ok((0..self.drive.layout.lanes).map(|lane| self.drive.rates(zone.0, lane)).collect())
    }

    /// Raw bytes of the cells of a zone: also above the write pointer, of earlier generations, and as
    /// ciphertext. With `errors`, they have the bit errors of a read of the raw cells.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a range outside the zone's capacity or above 64 MiB; errors of the file.
    pub async fn raw(&self, zone: ZoneIndex, offset: u64, length: u64, errors: bool) -> Result<Vec<u8>> {
        let drive = &self.drive;
        drive.geometry.check_zone(zone)?;
        let capacity = drive.geometry.zone_capacity;
        if length > MAX_RAW || offset.checked_add(length).is_none_or(|end| end > capacity) {
            return Err(Error::invalid(format!(
                "{length} bytes at {offset} of zone {zone}: expected at most {MAX_RAW} bytes inside its {capacity}"
            )));
        }
        let mut bytes = match &drive.file {
            None => {
                let guard = drive.slot(zone).lock();
                let there = guard.cells.get(offset as usize..).unwrap_or_default();
                let mut bytes = there[..there.len().min(length as usize)].to_vec();
                bytes.resize(length as usize, 0xFF);
                bytes
            }
            Some(file) => {
                let at = drive.cells_at(zone) + offset;
                let (read, buffer) = file.here()?.read_exact_at(at, Buffer::new(length as usize)).await;
                read?;
                let mut bytes = buffer.filled().to_vec();
                drive.show_erased(zone, offset, &mut bytes);
                bytes
            }
        };
        if errors {
            for (number, codeword) in bytes.chunks_mut(CODEWORD).enumerate() {
                let at = offset + (number * CODEWORD) as u64;
                let (page, stress) = drive.page(zone, at);
                let rate = drive.reliability.rate(page, stress);
                let within = (at % drive.layout.page) as u32 / CODEWORD as u32;
                drive.reliability.disturb(page, stress, rate, within, codeword);
            }
        }
        Ok(bytes)
    }
}

impl Drive {
    fn block(&self, zone: u32, lane: u32) -> (crate::format::Block, crate::flash::Place) {
        let block = self.slot(ZoneIndex(zone)).lock().blocks[lane as usize];
        (block, self.layout.place(zone, u64::from(lane) * self.layout.unit))
    }

    /// Mean bit error rate of the pages of a block.
    fn block_rate(&self, zone: u32, lane: u32) -> f64 {
        let (block, place) = self.block(zone, lane);
        let begun = self.slot(ZoneIndex(zone)).lock().begun;
        let hours = self.clock().saturating_sub(begun) as f64 / 3600.0;
        let stress = Stress { cycles: block.erases, hours, reads: block.reads };
        self.reliability.block_rate(place.die, place.block, self.layout.pages(), stress)
    }

    fn rates(&self, zone: u32, lane: u32) -> Vec<f64> {
        let (rate, pages) = (self.block_rate(zone, lane), self.layout.pages());
        (0..pages).map(|page| (rate * self.reliability.page_factor(page, pages)).clamp(0.0, 0.5)).collect()
    }

    /// Replaces each 4 KiB of zeros above the write pointer, a hole of the file, by erased cells.
    fn show_erased(&self, zone: ZoneIndex, offset: u64, bytes: &mut [u8]) {
        let written = self.slot(zone).lock().machine.write_pointer;
        let mut at = offset;
        let (head, rest) =
            bytes.split_at_mut(bytes.len().min((offset.next_multiple_of(4096) - offset) as usize));
        for chunk in std::iter::once(head).chain(rest.chunks_mut(4096)) {
            if at >= written && chunk.iter().all(|byte| *byte == 0) {
                chunk.fill(0xFF);
            }
            at += chunk.len() as u64;
        }
    }
}
