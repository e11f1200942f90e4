//! Tests of the key store.

use super::*;
use crate::table::{Piece, State};
use disks::ram::RamPart;

const VOLUME: [u8; 16] = [7; 16];

fn device(block: u64) -> Arc<dyn DevicePart> {
    Arc::new(RamPart::new(1 << 20, block::BlockSize::new(block).unwrap()).unwrap())
}

async fn bytes(part: &Arc<dyn DevicePart>) -> Vec<u8> {
    let (outcome, buffer) = part.open().await.unwrap().read(BlockIndex(0), Buffer::new(1 << 20)).await;
    outcome.unwrap();
    buffer.filled().to_vec()
}

/// Renews a secret in a block that was read.
async fn renew(store: &KeyStore, zone: u32, generation: u64) -> Result<()> {
    store.renew(zone, generation, &|_| None).await
}

fn world<Fut: Future<Output = ()> + 'static>(test: impl FnOnce() -> Fut + 'static) {
    runtime::simulate(runtime::Simulation::new(5), test).unwrap();
}

#[test]
fn a_renewed_secret_is_nowhere_on_the_device() {
    for block in [512, 4096, 16384] {
        world(move || async move {
            let part = device(block);
            let store = KeyStore::create(&part, VOLUME, 500).await.unwrap();
            let all: Vec<_> = (0..500).map(|zone| *store.secret(zone, 1).unwrap()).collect();
            assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 500);
            let holds =
                async |secret: &[u8; KEY]| bytes(&part).await.windows(KEY).any(|bytes| bytes == secret);
            assert!(holds(&all[77]).await && holds(&all[78]).await);
            runtime::join_all([renew(&store, 77, 2), renew(&store, 300, 2), renew(&store, 76, 2)]).await;
            assert!(!holds(&all[77]).await && holds(&all[78]).await);
            assert!(matches!(store.secret(77, 1), Err(Error::Invalid(_))));
            let again = KeyStore::open(&part).await.unwrap();
            for zone in 0..500 {
                let generation = if [76, 77, 300].contains(&zone) { 2 } else { 1 };
                assert_eq!(
                    *again.secret(zone, generation).unwrap(),
                    *store.secret(zone, generation).unwrap()
                );
            }
            KeyStore::create(&part, [8; 16], 500).await.unwrap();
            assert!(!holds(&all[78]).await, "formatting destroys all");
        });
    }
}

/// Nothing of an earlier key store is left, whatever zones and blocks it had.
#[test]
fn formatting_destroys_the_secrets_of_more_zones_and_of_other_blocks() {
    for (before, zones, after) in
        [(512, 8, 512), (512, 500, 16384), (16384, 500, 512), (16384, 8, 4096), (65536, 8, 512)]
    {
        world(move || async move {
            let old = device(before);
            let store = KeyStore::create(&old, VOLUME, 500).await.unwrap();
            let secrets: Vec<_> = (0..500).map(|zone| *store.secret(zone, 1).unwrap()).collect();
            let new = device(after);
            let copy = Buffer::copy_of(&bytes(&old).await);
            let handle = new.open().await.unwrap();
            handle.write(BlockIndex(0), copy.into(), Durability::Visible).await.unwrap();
            KeyStore::create(&new, [8; 16], zones).await.unwrap();
            let left: BTreeSet<Vec<u8>> =
                bytes(&new).await.windows(KEY).step_by(8).map(<[u8]>::to_vec).collect();
            assert!(secrets.iter().all(|secret| !left.contains(&secret[..])), "{before} to {after}");
            KeyStore::open(&new)
                .await
                .unwrap()
                .check_volume(&[8; 16], &Table::new(zones, 512).unwrap())
                .unwrap();
        });
    }
}

fn faulty(part: &Arc<dyn DevicePart>, rule: &str) -> Arc<dyn DevicePart> {
    let rules = layers::fault::parse_rules(&[rule.to_owned()], stack::Contract::Device).unwrap();
    Arc::new(layers::fault::FaultDevicePart::new(part.clone(), rules, 1).unwrap())
}

/// The rule for reads of the sector of zones 80 to 87; by `times` only the first ones fail.
fn unreadable(times: &str) -> String {
    let at = START + 80 * SLOT as u64;
    format!("read error=EIO range={at}..{}{times}", at + 512)
}

/// A table of 500 zones, of which these have data of their first generation.
fn table_with(data: &[usize]) -> Table {
    let mut table = Table::new(500, 1 << 20).unwrap();
    for zone in data {
        let piece = Piece { offset: 0, length: 512, compressed: 0, epoch: 1, serial: 1 };
        table.zones[*zone] = Entry { generation: 1, state: State::Full, pieces: vec![piece] };
    }
    table
}

/// Zones without data in a table.
fn empty_in(table: &Table) -> impl Fn(u32) -> Option<u64> {
    let zones: Vec<Option<u64>> =
        table.zones.iter().map(|entry| entry.pieces.is_empty().then_some(entry.generation)).collect();
    move |zone| zones[zone as usize]
}

/// A sector that can't be read has secrets that aren't known, and those of the others are served.
#[test]
fn sectors_that_cannot_be_read_have_unknown_secrets_and_others_are_served() {
    world(|| async {
        let part = device(512);
        let store = KeyStore::create(&part, VOLUME, 500).await.unwrap();
        let again = KeyStore::open(&faulty(&part, &unreadable(""))).await.unwrap();
        for zone in 0..500 {
            match (80..88).contains(&zone) {
                true => {
                    let error = again.secret(zone, 1).unwrap_err();
                    let text = error.to_string();
                    assert!(matches!(error, Error::Corrupt(_)), "{error}");
                    assert!(text.contains(&format!("zone {zone}: its key is unknown")), "{text}");
                    assert!(text.contains(&(START + 80 * SLOT as u64).to_string()), "{text}");
                }
                false => assert_eq!(again.secret(zone, 1), store.secret(zone, 1), "{zone}"),
            }
        }
    });
}

/// While another zone with data has its secret in a sector that can't be read, nothing is written there: not
/// by an opening, and not by a reset. What is there is found by the next opening that can read it.
#[test]
fn what_could_not_be_read_is_never_overwritten() {
    world(|| async {
        let part = device(512);
        let store = KeyStore::create(&part, VOLUME, 500).await.unwrap();
        let mut table = table_with(&[80, 82, 300]);
        // An interrupted reset, whose secret a healthy opening would draw.
        table.zones[81].generation = 2;
        let again = KeyStore::open(&faulty(&part, &unreadable(""))).await.unwrap();
        again.complete(&table).await.unwrap();
        assert_eq!((again.lost(), again.unread()), (2, 1));
        for zone in [80, 81] {
            for error in [
                again.check_renewable(zone, &empty_in(&table)).await.unwrap_err(),
                again.renew(zone, 9, &empty_in(&table)).await.unwrap_err(),
            ] {
                let text = error.to_string();
                assert!(matches!(error, Error::Io(_)), "{text}");
                assert!(text.contains(&format!("zone {zone}: ")) && text.contains("open again"), "{text}");
            }
        }
        // Neighbours in the next sectors.
        for zone in [79, 88, 300] {
            again.check_renewable(zone, &empty_in(&table)).await.unwrap();
            again.renew(zone, 2, &empty_in(&table)).await.unwrap();
        }
        let last = KeyStore::open(&part).await.unwrap();
        for zone in 0..500 {
            let generation = if [79, 88, 300].contains(&zone) { 2 } else { 1 };
            let known = if generation == 2 { &again } else { &store };
            assert_eq!(last.secret(zone, generation), known.secret(zone, generation), "{zone}");
        }
    });
}

/// Reads that fail for a while: the next reset reads again, and the secrets of other zones are there.
#[test]
fn a_sector_that_can_be_read_again_is_written_with_what_it_has() {
    world(|| async {
        let part = device(512);
        let store = KeyStore::create(&part, VOLUME, 500).await.unwrap();
        let table = table_with(&[80, 82]);
        // The read of all slots, and that of the sector alone.
        let again = KeyStore::open(&faulty(&part, &unreadable(" times=2"))).await.unwrap();
        again.complete(&table).await.unwrap();
        assert_eq!((again.lost(), again.unread()), (2, 1));
        again.check_renewable(81, &empty_in(&table)).await.unwrap();
        assert_eq!((again.lost(), again.unread()), (0, 0));
        again.renew(81, 2, &empty_in(&table)).await.unwrap();
        let last = KeyStore::open(&part).await.unwrap();
        for zone in (80..88).filter(|zone| *zone != 81) {
            assert_eq!(again.secret(zone, 1), store.secret(zone, 1), "{zone}");
            assert_eq!(last.secret(zone, 1), store.secret(zone, 1), "{zone}");
        }
        assert_eq!(last.secret(81, 2), again.secret(81, 2));
        assert!(matches!(last.secret(81, 1), Err(Error::Invalid(_))));
    });
}

/// A sector whose zones have no data, or whose last one with data is reset, is written with new secrets.
/// No zone uses them before they are durable.
#[test]
fn a_sector_that_no_data_needs_gets_new_secrets() {
    world(|| async {
        let part = device(512);
        KeyStore::create(&part, VOLUME, 500).await.unwrap();
        let table = table_with(&[300]);
        let again = KeyStore::open(&faulty(&part, &unreadable(""))).await.unwrap();
        again.complete(&table).await.unwrap();
        assert_eq!((again.lost(), again.unread()), (0, 0));
        let last = KeyStore::open(&part).await.unwrap();
        (80..88).for_each(|zone| assert_eq!(last.secret(zone, 1), again.secret(zone, 1), "{zone}"));

        let table = table_with(&[82]);
        let faults = faulty(&part, &unreadable(""));
        let slow = faulty(&faults, "write delay=30s");
        let again = Rc::new(KeyStore::open(&slow).await.unwrap());
        again.complete(&table).await.unwrap();
        again.check_renewable(82, &empty_in(&table)).await.unwrap();
        assert_eq!((again.lost(), again.unread()), (1, 1), "nothing is changed before the reset is durable");
        let mut reset = table_with(&[]);
        reset.zones[82].generation = 2;
        let own = again.clone();
        let renewing = runtime::spawn(async move { own.renew(82, 2, &empty_in(&reset)).await });
        runtime::sleep(Duration::from_secs(10)).await;
        assert!(matches!(again.secret(83, 1), Err(Error::Corrupt(_))), "it isn't durable yet");
        renewing.await.unwrap();
        assert_eq!((again.lost(), again.unread()), (0, 0));
        let last = KeyStore::open(&part).await.unwrap();
        for zone in 80..88 {
            let generation = if zone == 82 { 2 } else { 1 };
            assert_eq!(last.secret(zone, generation), again.secret(zone, generation), "{zone}");
        }
    });
}

/// A write that takes long is awaited, so that it never lands over a later one.
#[test]
fn slow_writes_are_awaited() {
    world(|| async {
        let part = device(512);
        KeyStore::create(&part, VOLUME, 8).await.unwrap();
        let store = KeyStore::open(&faulty(&part, "write delay=500s times=1")).await.unwrap();
        let begun = runtime::now();
        renew(&store, 3, 2).await.unwrap();
        assert!(begun.elapsed() >= Duration::from_secs(500));
        let again = KeyStore::open(&part).await.unwrap();
        assert_eq!(again.secret(3, 2), store.secret(3, 2));
    });
}

/// A superblock that was altered is refused before memory is taken for its zones.
#[test]
fn key_stores_of_too_many_zones_are_refused() {
    world(|| async {
        let part = device(512);
        KeyStore::create(&part, VOLUME, 8).await.unwrap();
        for zones in [0, MAX_ZONES + 1, u32::MAX] {
            let mut sector = bytes(&part).await[..sector::SECTOR].to_vec();
            sector[12..16].copy_from_slice(&zones.to_le_bytes());
            sector::seal(&mut sector);
            let handle = part.open().await.unwrap();
            let sector = Buffer::copy_of(&sector).into();
            handle.write(BlockIndex(0), sector, Durability::Visible).await.unwrap();
            let error = KeyStore::open(&part).await.map(drop).unwrap_err();
            let is_named = error.to_string().contains(&format!("{zones} zones"));
            assert!(matches!(error, Error::Corrupt(_)) && is_named, "{error}");
        }
    });
}

#[test]
fn other_key_stores_and_older_buckets_are_refused() {
    world(|| async {
        let part = device(512);
        assert!(matches!(KeyStore::open(&part).await, Err(Error::NotFound(_))));
        assert!(matches!(KeyStore::create(&part, VOLUME, 1 << 20).await, Err(Error::Invalid(_))));
        let store = KeyStore::create(&part, VOLUME, 8).await.unwrap();
        let mut table = Table::new(8, 1 << 20).unwrap();
        store.check_volume(&VOLUME, &table).unwrap();
        store.check_age(&table).unwrap();
        assert!(matches!(store.check_volume(&[8; 16], &table), Err(Error::Invalid(_))));
        let larger = Table::new(9, 1 << 20).unwrap();
        assert!(matches!(store.check_volume(&VOLUME, &larger), Err(Error::Invalid(_))));
        renew(&store, 3, 2).await.unwrap();
        let error = store.check_age(&table).unwrap_err();
        assert!(matches!(error, Error::Corrupt(_)) && error.to_string().contains("zone 3"), "{error}");
        // An interrupted reset, and a copy of the key store that is older than the data.
        let piece = Piece { offset: 0, length: 512, compressed: 0, epoch: 1, serial: 1 };
        table.zones[3].generation = 2;
        table.zones[4].generation = 7;
        table.zones[5] = Entry { generation: 2, state: State::Full, pieces: vec![piece] };
        store.check_age(&table).unwrap();
        store.complete(&table).await.unwrap();
        assert_eq!(store.lost(), 1);
        let again = KeyStore::open(&part).await.unwrap();
        assert_eq!(*again.secret(4, 7).unwrap(), *store.secret(4, 7).unwrap());
        let error = again.secret(5, 2).unwrap_err();
        assert!(matches!(error, Error::Corrupt(_)) && error.to_string().contains("zone 5"), "{error}");
        again.complete(&table).await.unwrap();
        assert_eq!(again.lost(), 1);
    });
}

/// Damage of any byte is noticed, or is in bytes without a use.
#[test]
fn damaged_slots_have_no_secret() {
    world(|| async {
        let part = device(512);
        let store = KeyStore::create(&part, VOLUME, 8).await.unwrap();
        for at in 0..SLOT {
            store.slots.borrow_mut()[SLOT + at] ^= 1;
            assert!(matches!(store.secret(1, 1), Err(Error::Corrupt(_))), "byte {at}");
            store.slots.borrow_mut()[SLOT + at] ^= 1;
        }
        // A slot elsewhere.
        let slot = store.slots.borrow()[..SLOT].to_vec();
        store.slots.borrow_mut()[SLOT..2 * SLOT].copy_from_slice(&slot);
        assert!(matches!(store.secret(1, 1), Err(Error::Corrupt(_))));
        assert_eq!(store.secret(0, 1).map(drop), Ok(()));
    });
}
