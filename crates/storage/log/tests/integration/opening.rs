//! State after opening a log that crashed: many pages at a time, and changes after the checkpoint.

use crate::life::{Volume, disk, run, small};
use log::kind::Options;
use runtime::Random;

const PAGE: u64 = log::map::PAGE_BLOCKS;
const PAGES: u64 = 700;

/// Blocks that are read: some of each page.
fn looked_at() -> impl Iterator<Item = u64> {
    (0..PAGES).flat_map(|page| [0, 1, 512, 1022].map(|offset| page * PAGE + offset))
}

async fn all(volume: &Volume) -> Vec<u64> {
    let mut found = Vec::new();
    for block in looked_at() {
        found.extend(volume.versions(block, 2).await);
    }
    found
}

async fn scribble(volume: &Volume, random: &mut Random, from: u64, count: u64) {
    for version in from..from + count {
        let block = random.below(PAGES) * PAGE + [0, 1, 512, 1022, 1023][random.below(5) as usize];
        let block = block.min(PAGES * PAGE - 2);
        match version % 7 {
            0 => volume.discard(block, 2).await,
            _ => volume.write(block, 1 + random.below(2), version).await,
        }
    }
}

/// A thin volume with a block in each of enough pages that threads load them: pages of the checkpoint, pages
/// that later records change, and pages that only records have.
#[test]
fn pages_that_threads_take_over_are_as_they_were() {
    let disk = disk(192);
    let options = Options { size: Some(PAGES * PAGE * 4096), checkpoint_after: 1 << 40, ..small() };
    let (disk_1, options_1) = (disk.clone(), options.clone());
    let before = run(move || async move {
        let volume = Volume::make(&disk_1, &options_1).await;
        // Pages of the second half only; later, only records have the first half.
        for page in PAGES / 2..PAGES {
            volume.write(page * PAGE + 512, 1, 1 + page).await;
        }
        // The close writes a checkpoint of all of it.
        volume.close().await;
        let volume = Volume::open(&disk_1, &options_1).await;
        scribble(&volume, &mut Random::new(1), 10_000, 3000).await;
        all(&volume).await
        // The process dies.
    });
    let mut before = before;
    for life in 0..3 {
        let (disk, options) = (disk.clone(), options.clone());
        before = run(move || async move {
            let mut volume = Volume::open(&disk, &options).await;
            let recovered = volume.part.recovered().clone();
            assert!(recovered.pages >= PAGES / 2 && recovered.replayed >= 2500, "{recovered:?}");
            assert!(all(&volume).await == before, "epoch {life}");
            if life == 1 {
                // From here on all pages are part of the checkpoint.
                volume.close().await;
                volume = Volume::open(&disk, &options).await;
            }
            scribble(&volume, &mut Random::new(2 + life), 20_000 * (life + 1), 3000).await;
            all(&volume).await
        });
    }
    run(move || async move {
        let report = log::check::check_device(disk, &|_, _| {}).await.expect("it can be looked at");
        assert!(report.damage.is_empty() && report.notes.is_empty(), "{report:?}");
    });
}
