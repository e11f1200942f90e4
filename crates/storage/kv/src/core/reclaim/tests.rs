use super::*;
use crate::batch::{Batch, Write};
use crate::policy::Job;
use crate::settings::{Acknowledge, DeletePersistence, Settings};
use block::ZonesPart;
use std::sync::Arc;
use std::time::Duration;
use zns::{Shape, Zns};

const PERSISTENCE: Duration = Duration::from_secs(3600);
/// Number of further keys of a table: enough that a purge for one hidden entry isn't worthwhile.
const OTHERS: u32 = 40;

/// Writes a key and keys with the prefix `others`, and flushes them to a table of level 0.
async fn table_of(core: &Rc<Core>, key: Write<'_>, others: &str) -> u64 {
    let mut batch = Batch::new();
    batch.push(key);
    (0..OTHERS).for_each(|number| batch.put(format!("{others} {number:02}").as_bytes(), b"value"));
    core.write(batch, Acknowledge::Flushed).await.unwrap();
    core.flush_buffers().await.unwrap();
    core.tables.levels().0[0][0].meta.id
}

async fn compact(core: &Rc<Core>, table: u64, target: usize) {
    let job = Job { level: 0, inputs: vec![table], target, overlapped: Vec::new(), is_trivial_move: false };
    core.compact(&job).await.unwrap();
}

#[test]
fn a_purge_stamps_expired_values_by_the_deadline_clock() {
    let main = || async {
        let shape = Shape { zones: 40, zone_size: 1 << 20, zone_capacity: 1 << 20, ..Shape::default() };
        let zones: Arc<dyn ZonesPart> = Arc::new(Zns::in_memory(&shape, zns::Settings::default()).unwrap());
        let settings = Settings {
            delete_persistence: Some(DeletePersistence::Time(PERSISTENCE)),
            compaction: "fade".to_owned(),
            ..Settings::default()
        };
        let homes = crate::recovery::format(&zones, &settings).await.unwrap();
        let test = |core: Rc<Core>| async move {
            let permit = core.compactions.permit().await;
            let put = |expires| Write::Put { key: b"key", value: b"value", expires };
            let older = table_of(&core, put(None), "live").await;
            compact(&core, older, 2).await;
            let expires = crate::key_version::now() + 1000;
            let table = table_of(&core, put(Some(expires)), "overwritten").await;
            compact(&core, table, 1).await;
            let unrelated = Write::Put { key: b"key of its own", value: b"value", expires: None };
            table_of(&core, unrelated, "overwritten").await;

            runtime::step_simulated_wall_clock(-1800);
            runtime::sleep(Duration::from_secs(1802)).await;
            let lead = core.erasure.clock().ahead();
            assert_eq!(lead, 1_800_000);
            assert!(core.purge_tables().await.unwrap());
            let levels = core.tables.levels().clone();
            let [purged] = &levels.0[1][..] else { panic!("{levels:?}") };
            assert_eq!(purged.meta.summary.entries, 1, "only the tombstone of the expired value");
            assert_eq!(purged.meta.summary.oldest_tombstone, Some(expires + lead));
            drop(permit);
            Ok(())
        };
        homes[0].with(test).await.unwrap();
    };
    runtime::simulate(runtime::Simulation::new(7), main).unwrap();
}
