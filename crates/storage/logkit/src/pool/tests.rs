use super::*;
use crate::stream::Sequences;

#[test]
fn records_of_the_filler_leave_open_which_records_before_them_have_committed() {
    let pool = ZonePool::new(4);
    pool.set_free(3, 7);
    let taken = pool.take(0, 0, false, 11).expect("a free zone");
    assert_eq!(taken, Taken { zone: 3, generation: 7, limit: None, is_open: false });
    pool.note_committed(3, 5, false);
    assert_eq!((pool.get(3).end, pool.get(3).committed), (5, 0));
    pool.note_committed(3, 9, true);
    assert_eq!((pool.get(3).end, pool.get(3).committed), (9, 9));
}

#[test]
fn clock_and_class_of_a_zone_are_those_of_its_last_opening() {
    let pool = ZonePool::new(4);
    pool.restore(1, |zone| (zone.opened, zone.class) = (9, CHECKPOINT_CLASS));
    pool.set_free(2, 7);
    pool.recount();
    assert_eq!(pool.opened(1), (9, CHECKPOINT_CLASS));
    let taken = pool.take(5, 0, false, 1 << 40).expect("a free zone");
    assert_eq!((taken.zone, pool.opened(2)), (2, (1 << 40, 5)));
}

#[test]
fn prepared_zones_stay_free_and_go_to_lanes_first() {
    let pool = ZonePool::new(6);
    (1..6).for_each(|zone| pool.set_free(zone, 7));
    assert_eq!((pool.begin_preparing(5, 9), pool.begin_preparing(4, 0)), (None, None));
    let zone = pool.begin_preparing(4, 1).expect("a free zone");
    assert_eq!((zone, pool.free(), pool.preparing(), pool.free_soon()), (1, 4, 1, 5));
    assert_eq!(pool.begin_preparing(0, 1), None, "one is enough");
    pool.end_preparing(zone, true);
    assert_eq!((pool.free(), pool.prepared(), pool.preparing()), (5, 1, 0));
    let take = |prepared_first| pool.take(0, 0, prepared_first, 0).map(|taken| taken.zone);
    assert_eq!((take(false), take(true), pool.prepared()), (Some(2), Some(1), 0));
    // Returned without a record, the zone is still open on the medium.
    pool.put_back(1);
    assert_eq!((pool.prepared(), take(true)), (1, Some(1)));
    pool.note_append(1, &[], 1, 0);
    pool.put_back(1);
    assert_eq!(pool.prepared(), 0, "it holds a record");
    // No other zone is free, so the cleaner takes a prepared one.
    assert_eq!([take(false), take(false), take(false)], [Some(1), Some(3), Some(4)]);
    pool.put_back(4);
    let zone = pool.begin_preparing(0, 1).expect("a free zone");
    pool.end_preparing(zone, true);
    assert_eq!([take(false), take(false), take(false)], [Some(5), Some(4), None]);
}

#[test]
fn prepared_zones_that_are_not_needed_are_reset() {
    let pool = ZonePool::new(4);
    (2..4).for_each(|zone| pool.set_free(zone, 7));
    assert_eq!(pool.begin_discarding(), None);
    let zone = pool.begin_preparing(0, 2).expect("a free zone");
    pool.end_preparing(zone, true);
    assert_eq!((pool.begin_discarding(), pool.free(), pool.free_soon()), (Some(2), 1, 2));
    pool.end_discarding(2, 8);
    assert_eq!((pool.free(), pool.prepared(), pool.get(2).generation), (2, 0, 8));
}

#[test]
fn a_zone_that_could_not_be_opened_ahead_is_as_it_was_or_not_free() {
    let pool = ZonePool::new(4);
    pool.set_free(3, 7);
    let zone = pool.begin_preparing(0, 2).expect("a free zone");
    pool.end_preparing(zone, false);
    assert_eq!((pool.free(), pool.prepared(), pool.preparing()), (1, 0, 0));
    let zone = pool.begin_preparing(0, 2).expect("a free zone");
    pool.fail_preparing(zone);
    assert_eq!((pool.free(), pool.preparing(), pool.get(3).usage), (0, 0, Usage::Open));
    assert!(pool.set_full(3), "it waits to be reset");
    assert_eq!(pool.dead(), 1);
}

#[test]
fn while_space_is_short_no_zone_is_opened_ahead_and_only_backed_ones_are_taken() {
    let pool = ZonePool::new(6);
    (2..6).for_each(|zone| pool.set_free(zone, 7));
    let zone = pool.begin_preparing(0, 2).expect("a free zone");
    pool.end_preparing(zone, true);
    // A prepared zone is reserved only if there is no other.
    let reserved = pool.begin_reserving().expect("a free zone");
    pool.end_reserving(reserved, 1);
    assert_eq!((zone, reserved, pool.free_backed()), (2, 5, 1));
    let others = [pool.begin_reserving(), pool.begin_reserving(), pool.begin_reserving()];
    assert_eq!((others, pool.begin_reserving()), ([Some(4), Some(3), Some(2)], None));
    [4, 3, 2].into_iter().for_each(|zone| pool.end_reserving(zone, 0));
    assert_eq!((pool.free_backed(), pool.prepared()), (1, 1));
    pool.set_only_backed(true);
    assert_eq!((pool.free(), pool.begin_preparing(0, 2)), (1, None));
    assert_eq!(pool.take(0, 0, true, 0).map(|taken| taken.zone), Some(5));
    assert_eq!(pool.take(0, 0, true, 0), None);
}

#[test]
fn what_zones_had_before_they_ended_early_counts_while_space_is_short() {
    let pool = ZonePool::new(8);
    pool.set_backed_blocks(28);
    (2..8).for_each(|zone| pool.set_free(zone, 7));
    // Ends of zones: 2 was sealed early, 3 had a failed append, 5 is full.
    for (zone, end) in [(2, 17), (3, 13), (4, 20), (5, 31)] {
        assert_eq!(pool.take(0, 0, false, 0).map(|taken| (taken.zone, taken.limit)), Some((zone, None)));
        pool.note_end(zone, end, zone == 3);
        pool.set_full(zone);
        assert_eq!(pool.take_dead(), [zone]);
        pool.set_reset(zone, 8);
    }
    assert_eq!((pool.free(), pool.free_backed(), pool.free_known()), (6, 1, 2), "17 + 20 + 28 of 28");
    pool.set_only_backed(true);
    let take = |keep, is_users| pool.take(0, keep, is_users, 0).map(|taken| (taken.zone, taken.limit));
    assert_eq!((pool.free(), take(2, true)), (2, None));
    assert_eq!(
        (take(0, false), take(0, true), take(0, true)),
        (Some((2, Some(17))), Some((5, Some(31))), None)
    );
    // The free zones have less than a zone's space in total; with the returned zone there is one.
    pool.note_end(5, 9, false);
    pool.set_full(5);
    assert_eq!(pool.take_dead(), [5]);
    pool.set_reset(5, 9);
    assert_eq!((pool.free(), pool.get(5).space), (1, 31));
    // Reserved space is counted, also that of a part of a zone.
    assert_eq!(pool.begin_reserving(), Some(4));
    pool.end_reserving(4, 28);
    assert_eq!((pool.free_known(), pool.free_backed(), pool.begin_reserving()), (2, 2, Some(3)));
    pool.end_reserving(3, 14);
    assert_eq!((pool.free_known(), pool.begin_reserving()), (2, Some(7)));
    pool.end_reserving(7, 14);
    assert_eq!((pool.free_known(), pool.free_backed()), (3, 2));
}

#[test]
fn a_full_zone_is_dead_once_its_last_block_is() {
    let pool = ZonePool::new(4);
    pool.set_free(2, 1);
    pool.take(0, 0, false, 0).expect("a free zone");
    pool.add_live(2, 3);
    assert!(!pool.set_full(2));
    pool.remove_live(2, 2, 5);
    assert_eq!((pool.dead(), pool.live_data()), (0, 1));
    pool.remove_live(2, 1, 6);
    assert_eq!(
        (pool.dead(), pool.live_data(), pool.get(2).usage, pool.get(2).changed),
        (1, 0, Usage::Dead, 6)
    );
    // While the zone is being reset it is neither free nor dead, and is counted as free soon.
    assert_eq!((pool.take_dead(), pool.dead(), pool.free_soon()), (vec![2], 0, 1));
    pool.set_reset(2, 2);
    pool.end_resetting(1);
    pool.return_dead(Vec::new());
    assert_eq!(pool.resetting(), 0);
    assert_eq!((pool.free(), pool.get(2).generation), (1, 2));
}

#[test]
fn zones_with_blocks_that_are_dying_are_not_cleaned_and_stay() {
    let pool = ZonePool::new(4);
    pool.set_free(2, 1);
    pool.take(0, 0, false, 0).expect("a free zone");
    pool.add_live(2, 5);
    pool.set_full(2);
    let live = || {
        let mut live = Vec::new();
        pool.choose((100, 100), &Sequences::default(), |candidates| {
            live.extend(candidates.map(|it| it.live));
            None
        });
        live
    };
    pool.accounts().begin_dying(2, 2);
    assert_eq!((live(), pool.live(2), pool.get(2).dying), (vec![], 5, 2), "moving the others frees nothing");
    pool.accounts().remove_dying(2, 2, 1);
    assert_eq!(live(), [3]);
    pool.accounts().begin_dying(2, 2);
    pool.remove_live(2, 1, 1);
    assert_eq!((live(), pool.get(2).usage), (vec![], Usage::Full), "nothing is left to move");
    pool.accounts().remove_dying(2, 2, 2);
    assert_eq!((pool.get(2).usage, pool.get(2).dying, pool.live_data()), (Usage::Dead, 0, 0));
}

/// Another shard frees the last block of a zone while the cleaner chooses it.
#[test]
fn a_victim_whose_last_blocks_die_is_dead_once_when_the_cleaner_ends_it() {
    let pool = ZonePool::new(4);
    pool.set_free(2, 1);
    pool.take(0, 0, false, 0).expect("a free zone");
    pool.add_live(2, 1);
    pool.set_full(2);
    let (victim, _) = pool.choose((100, 100), &Sequences::default(), |candidates| {
        candidates.next().map(|candidate| candidate.zone)
    });
    assert_eq!((victim.map(|victim| victim.zone.0), pool.get(2).usage), (Some(2), Usage::Cleaning));
    pool.remove_live(2, 1, 1);
    assert_eq!((pool.get(2).usage, pool.dead()), (Usage::Cleaning, 0));
    assert_eq!((pool.end_cleaning(2), pool.dead()), (0, 1));
    assert_eq!(pool.take_dead(), [2]);
    pool.set_reset(2, 2);
    assert_eq!((pool.free(), pool.dead()), (1, 0));
}

#[test]
fn headers_of_the_cleaners_own_records_are_no_garbage() {
    let pool = ZonePool::new(8);
    (2..8).for_each(|zone| pool.set_free(zone, 7));
    // Of the 16 blocks of each zone 14 can be data. The zones hold users' records, the cleaner's, both, and
    // the cleaner's in a zone that was sealed early.
    let fill = |records: &[(u32, bool)], end| {
        let zone = pool.take(0, 0, false, 0).expect("a free zone").zone;
        for (blocks, is_moved) in records {
            pool.note_append(zone, &[], *blocks, if *is_moved { *blocks } else { 0 });
            pool.add_live(zone, *blocks);
        }
        pool.note_committed(zone, end, true);
        pool.set_full(zone);
        zone
    };
    let users = fill(&[(6, false), (5, false)], 15);
    let cleaners = fill(&[(6, true), (5, true)], 15);
    let both = fill(&[(6, true), (5, false)], 15);
    let early = fill(&[(5, true)], 7);
    let candidates = || {
        let mut all = Vec::new();
        pool.choose((14, 16), &Sequences::new(&[]), |candidates| {
            all = candidates.map(|candidate| (candidate.zone.0, candidate.live, candidate.written)).collect();
            None
        });
        all
    };
    assert_eq!(candidates(), [(users, 11, 14), (both, 11, 14), (early, 5, 14)]);
    pool.remove_live(cleaners, 1, 3);
    assert_eq!(candidates(), [(users, 11, 14), (cleaners, 10, 11), (both, 11, 14), (early, 5, 14)]);
}

/// The prepared zones that aren't taken are those that a scan of all free zones finds.
#[test]
fn free_prepared_zones_are_those_that_a_scan_finds() {
    let scanned = |pool: &ZonePool| {
        let state = pool.lock();
        state.free.iter().filter(|zone| state.prepared.contains(zone)).count() as u32
    };
    for seed in 0..50 {
        let mut random = runtime::Random::new(seed);
        let pool = ZonePool::new(12);
        (2..12).for_each(|zone| pool.set_free(zone, 0));
        let (mut preparing, mut taken, mut most) = (Vec::new(), Vec::new(), 0);
        for step in 0..400 {
            let is_first = random.below(2) == 0;
            match random.below(9) {
                0 | 1 => preparing.extend(pool.begin_preparing(0, 4)),
                2 | 3 => preparing.pop().into_iter().for_each(|zone| pool.end_preparing(zone, is_first)),
                4 | 5 => taken.extend(pool.take(0, 0, is_first, step).map(|taken| taken.zone)),
                6 => taken.pop().into_iter().for_each(|zone| pool.put_back(zone)),
                7 => {
                    if let Some(zone) = taken.pop() {
                        pool.note_append(zone, &[], 1, 0);
                        pool.set_reset(zone, step);
                    }
                }
                _ => {
                    if let Some(zone) = pool.begin_discarding() {
                        pool.end_discarding(zone, step);
                    }
                }
            }
            assert_eq!(pool.prepared(), scanned(&pool), "seed {seed}, step {step}");
            most = most.max(pool.prepared());
        }
        assert!(most > 1, "seed {seed}: some were prepared");
    }
}

#[test]
fn selected_zones_are_those_of_the_list() {
    let pool = ZonePool::new(40);
    (2..40).for_each(|zone| pool.set_free(zone, zone.into()));
    (0..20).for_each(|class| assert!(pool.take(class, 0, false, 3).is_some()));
    let is_even = |zone: &Zone| zone.generation.is_multiple_of(2);
    let listed = pool.list().into_iter().filter(|(_, zone)| is_even(zone));
    let selected = pool.select(|number, zone| is_even(zone).then(|| (number, zone.clone())));
    assert_eq!(selected, listed.collect::<Vec<_>>());
    assert_eq!((pool.zones(), pool.list().len()), (40, 40));
}

/// Cost of what looks at all zones, with a million of them, full and half of their blocks live:
///
///     cargo test --release -p siltstone-logkit --lib pool::tests::a_million -- --ignored --nocapture
///
/// The figures of the book (Growth) are of a debug build, without `--release`.
#[test]
#[ignore = "it measures"]
fn a_million_zones() {
    use crate::cleaning::{self, Parameters, Pressure};
    use crate::directory::ZoneEntry;
    const ZONES: u32 = 1_000_000;
    let measure = |name: &str, work: &mut dyn FnMut()| {
        let begun = runtime::now();
        (0..10).for_each(|_| work());
        println!("{name}: {:?}", begun.elapsed() / 10);
    };
    let pool = ZonePool::new(ZONES);
    (0..ZONES).for_each(|zone| pool.set_free(zone, 0));
    let free = pool.take(0, 0, true, 0).expect("a free zone").zone;
    pool.note_opened(free);
    measure("take and put back, with another zone prepared", &mut || {
        let zone = pool.take(0, 0, true, 0).expect("a free zone").zone;
        pool.put_back(zone);
    });
    measure("prepared", &mut || assert_eq!(pool.prepared(), 0));
    measure("directory of free zones", &mut || assert_eq!(ZoneEntry::all_of(&pool).len(), 1));
    for zone in (0..ZONES).filter(|zone| *zone != free) {
        pool.restore(zone, |entry| (entry.usage, entry.live, entry.written) = (Usage::Full, 128, 256));
    }
    measure("directory of full zones", &mut || drop(ZoneEntry::all_of(&pool)));
    measure("list", &mut || drop(pool.list()));
    measure("count", &mut || assert_eq!(pool.count(|zone| zone.class == CHECKPOINT_CLASS), 0));
    let pressure = Pressure { free: 1, total: ZONES, low: 2, high: 4 };
    for name in cleaning::NAMES {
        let mut policy = cleaning::make(name, Parameters::for_zones(ZONES)).unwrap();
        measure(&format!("victim by {name}"), &mut || {
            let chosen = pool.choose((250, 256), &Sequences::default(), |candidates| {
                policy.choose(candidates, pressure, 1 << 30)
            });
            pool.set_full(chosen.0.expect("a victim").zone.0);
        });
    }
}
