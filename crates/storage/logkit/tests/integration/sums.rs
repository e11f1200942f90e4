//! Checksums of data blocks: those reported to an owner when a record is written equal those read from the
//! medium.

use crate::bare::{Bare, Item, KIND, MOVED, run, zones_on};
use block::{
    BlockIndex, BlockSize, Buffer, Device, DevicePart, Durability, Error, Result, ZoneIndex, ZoneReport,
    Zones,
};
use disks::ram::RamPart;
use logkit::recovery::{self, Goal, Opening};
use logkit::scan::Found;
use logkit::{Mover, Owner, ZoneSums, sums};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

const ZONE: u64 = 64 << 10;

struct Written {
    disk: Rc<dyn Device>,
    zones: Rc<dyn Zones>,
    owner: Rc<Bare>,
}

/// Several full zones, and some open ones.
async fn written() -> Result<Written> {
    let part: Arc<dyn DevicePart> = Arc::new(RamPart::new(40 * ZONE, BlockSize::default())?);
    let disk = part.open().await?;
    let zones = zones_on(part, ZONE, 0).await?.open().await?;
    let owner = Bare::format(zones.clone(), false).await?;
    logkit::lane::start(&owner);
    for number in 0..40 {
        owner.append(Item::new(number, u32::from(number % 4), 10)).await;
    }
    let mut mover = Mover::new(2);
    mover.append(&owner, MOVED, (100..130).map(|number| Item::new(number, 1, 10))).await?;
    Ok(Written { disk, zones, owner })
}

impl Written {
    async fn report(&self, zone: u32) -> Result<ZoneReport> {
        Ok(self.zones.report(ZoneIndex(zone), 1).await?[0])
    }

    async fn read(&self, zone: u32) -> Result<ZoneSums> {
        let kit = self.owner.kit();
        sums::read(&*self.zones, &kit.layout, &kit.identity, &self.report(zone).await?).await
    }

    /// Checksums reported to the owner, by zone and block.
    fn told(&self) -> BTreeMap<u32, BTreeMap<u32, u32>> {
        let mut told: BTreeMap<u32, BTreeMap<u32, u32>> = BTreeMap::new();
        for (zone, position, sums) in &self.owner.seen.borrow().sums {
            let own = told.entry(*zone).or_default();
            (*position..).zip(sums).for_each(|(position, sum)| assert_eq!(own.insert(position, *sum), None));
        }
        told
    }

    /// Last block of the disk with these bytes.
    async fn find(&self, wanted: &[u8]) -> Result<u64> {
        for block in (0..self.disk.geometry().blocks.0).rev() {
            let (outcome, buffer) = self.disk.read(BlockIndex(block), Buffer::new(4096)).await;
            outcome?;
            if buffer.filled() == wanted {
                return Ok(block);
            }
        }
        Err(Error::invalid("no such block"))
    }

    /// Changes the byte at `at` in a block of a zone.
    async fn damage(&self, zone: u32, position: u32, at: usize) -> Result<()> {
        let address = self.owner.kit().layout.address(zone, position);
        let (outcome, mut buffer) = self.zones.read(address, Buffer::new(4096)).await;
        outcome?;
        let block = self.find(buffer.filled()).await?;
        buffer.filled_mut()[at] ^= 1;
        self.disk.write(BlockIndex(block), buffer.into(), Durability::Visible).await
    }

    /// A full zone with data, and its last block.
    async fn full_zone(&self) -> Result<(u32, u32)> {
        for zone in self.told().into_keys() {
            let report = self.report(zone).await?;
            if report.state == block::ZoneState::Full {
                return Ok((zone, (report.write_pointer / 4096) as u32 - 1));
            }
        }
        Err(Error::invalid("no zone is full"))
    }
}

#[test]
fn an_owner_is_told_of_every_block_before_it_commits() {
    run(|| async {
        let written = written().await?;
        let told = written.told();
        for (zone, position, sums) in &written.owner.seen.borrow().committed {
            for (position, sum) in (*position..).zip(sums) {
                assert_eq!(told.get(zone).and_then(|zone| zone.get(&position)), Some(sum), "zone {zone}");
            }
        }
        let blocks: usize = told.values().map(BTreeMap::len).sum();
        assert_eq!(blocks, 10 * (1 + 2 + 3) + 30, "each once");
        Ok(())
    });
}

#[test]
fn checksums_of_full_and_open_zones_are_those_that_were_told() {
    run(|| async {
        let written = written().await?;
        let (mut full, mut open) = (0, 0);
        for (zone, told) in written.told() {
            match written.report(zone).await?.state {
                block::ZoneState::Full => full += 1,
                _ => open += 1,
            }
            let read: BTreeMap<u32, u32> = written.read(zone).await?.iter().collect();
            assert_eq!(read, told, "zone {zone}");
        }
        assert!(full > 3 && open > 0, "{full} full zones, {open} open ones");
        let free = written.owner.kit().layout.zones - 1;
        assert!(written.read(free).await?.is_empty());
        Ok(())
    });
}

#[test]
fn without_its_summary_a_full_zone_is_read_header_by_header() {
    run(|| async {
        let written = written().await?;
        let (zone, last) = written.full_zone().await?;
        written.damage(zone, last, 20).await?;
        let read: BTreeMap<u32, u32> = written.read(zone).await?.iter().collect();
        assert_eq!(Some(&read), written.told().get(&zone));
        // With a damaged header as well, its blocks have no checksum, and all others do.
        let first = *read.keys().next().expect("it has data");
        written.damage(zone, first - 1, 40).await?;
        let sums = written.read(zone).await?;
        let error = sums.of(first).expect_err("its header is damaged");
        let place = format!("zone {zone}, block {first}");
        assert!(matches!(error, Error::Corrupt(_)) && error.detail().contains(&place), "{error}");
        assert!(!sums.is_empty() && sums.iter().all(|(position, sum)| read.get(&position) == Some(&sum)));
        Ok(())
    });
}

#[test]
fn a_zone_that_cannot_be_read_is_named() {
    run(|| async {
        let written = written().await?;
        let (zone, _) = written.full_zone().await?;
        let report = ZoneReport { write_pointer: ZONE * 4, ..written.report(zone).await? };
        let kit = written.owner.kit();
        let error = sums::read(&*written.zones, &kit.layout, &kit.identity, &report).await;
        let error = error.expect_err("it reaches beyond the zone");
        assert!(error.to_string().contains(&format!("zone {zone}")), "{error}");
        Ok(())
    });
}

/// The zones that a recovery at this point can't account for are the open ones, whatever their contents.
#[test]
fn a_recovery_names_the_zones_without_a_summary() {
    run(|| async {
        let written = written().await?;
        // Seals the zones of the lanes; that of the moves stays open.
        written.owner.close().await;
        let used: Vec<u32> = written.told().into_keys().collect();
        let mut open = Vec::new();
        for zone in used {
            let report = written.report(zone).await?;
            if report.state != block::ZoneState::Full {
                open.push((zone, report.generation));
            }
        }
        let opening: Opening<Found> = recovery::open(&*written.zones, KIND, Goal::Serve).await?;
        let (mut unlisted, pool) = (opening.unlisted, &written.owner.kit().pool);
        // The zone of the checkpoint is also open.
        unlisted.retain(|(zone, _)| pool.get(*zone).class != logkit::pool::CHECKPOINT_CLASS);
        assert!(!open.is_empty() && unlisted == open, "{unlisted:?}; expected {open:?}");
        Ok(())
    });
}
