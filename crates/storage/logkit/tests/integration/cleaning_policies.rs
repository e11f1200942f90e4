//! Contracts of the cleaning policies, the pacer and the reading plan, one test each.

use block::ZoneIndex;
use logkit::cleaning::{
    self, Arrival, Candidate, Limit, Marks, Pacer, Parameters, Policy, Pressure, ReadCost, read_plan,
};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::ops::Range;

const URGENT: Pressure = Pressure { free: 1, total: 100, low: 4, high: 6 };
const ASKED: Pressure = Pressure { free: 5, ..URGENT };
const AMPLE: Pressure = Pressure { free: 50, ..URGENT };

fn zone(number: u32, live: u64, opened: u64) -> Candidate {
    Candidate { zone: ZoneIndex(number), live, written: 100, class: 0, opened, changed: opened }
}

fn choose(policy: &mut dyn Policy, candidates: &[Candidate], pressure: Pressure, now: u64) -> Option<u32> {
    policy.choose(&mut candidates.iter().copied(), pressure, now).map(|zone| zone.0)
}

fn make(name: &str) -> Box<dyn Policy> {
    cleaning::make(name, Parameters::for_zones(256)).unwrap()
}

#[test]
fn names() {
    for name in cleaning::NAMES {
        assert_eq!(make(name).name(), name);
    }
    assert!(cleaning::NAMES.contains(&cleaning::DEFAULT));
    let wrong = cleaning::make("greed", Parameters::for_zones(256)).unwrap_err().to_string();
    assert!(
        wrong.contains("\"greed\"") && wrong.contains("greedy, cost-benefit, threshold, lifetime"),
        "{wrong}"
    );
    for parameters in [
        Parameters { live_share: 1.1, ..Parameters::for_zones(256) },
        Parameters { live_share: f64::NAN, ..Parameters::for_zones(256) },
    ] {
        assert!(cleaning::make("threshold", parameters).is_err());
        assert!(cleaning::make("greedy", parameters).is_ok(), "it doesn't concern greedy");
    }
    for generations in [0, 9] {
        let parameters = Parameters { generations, ..Parameters::for_zones(256) };
        assert!(cleaning::make("lifetime", parameters).unwrap_err().to_string().contains("expected 1 to 8"));
    }
}

#[test]
fn greedy_takes_the_emptiest_and_of_equals_the_oldest() {
    let zones = [zone(0, 50, 7), zone(1, 20, 9), zone(2, 20, 3), zone(3, 100, 0)];
    assert_eq!(choose(&mut *make("greedy"), &zones, ASKED, 10), Some(2));
    assert_eq!(choose(&mut *make("greedy"), &zones, AMPLE, 10), None);
    assert_eq!(choose(&mut *make("greedy"), &zones[3..], URGENT, 10), None, "nothing to gain");
}

#[test]
fn cost_benefit_weighs_age() {
    // (1 - u) · age / (1 + u): 0.5 · 100 / 1.5 = 33 against 0.2 · 310 / 1.8 = 34 and 0.8 · 40 / 1.2 = 27.
    let zones = [zone(0, 50, 900), zone(1, 80, 690), zone(2, 20, 960)];
    assert_eq!(choose(&mut *make("cost-benefit"), &zones, ASKED, 1000), Some(1));
    // (1 - u) · age / u: 100, 78 and 160.
    assert_eq!(choose(&mut *make("lifetime"), &zones, ASKED, 1000), Some(2));
    // A zone without live data costs nothing.
    let dead = [zone(0, 1, 0), zone(1, 0, 999)];
    assert_eq!(choose(&mut *make("lifetime"), &dead, ASKED, 1000), Some(1));
}

#[test]
fn threshold_cleans_in_rounds() {
    // The paper's example: k = 0.1 and M one zone.
    let mut policy = cleaning::make(
        "threshold",
        Parameters { live_share: 0.1, read_at_once: 100, ..Parameters::for_zones(256) },
    )
    .unwrap();
    let mut zones: Vec<Candidate> = (0..8).map(|number| zone(number, 9, 0)).collect();
    zones.push(zone(20, 10, 0));
    assert_eq!(
        choose(&mut *policy, &zones, AMPLE, 1),
        None,
        "(8 + 1) · 0.1 < 1; and 10 of 100 isn't below k"
    );
    assert_eq!(choose(&mut *policy, &zones, ASKED, 1), None, "asked is not urgent");
    assert_eq!(choose(&mut *policy, &zones, URGENT, 1), Some(0), "urgent: the emptiest");
    zones.push(zone(8, 3, 0));
    // (9 + 1) · 0.1 = 1: a round of nine, in any order but each once; another zone that falls below k isn't
    // part of it.
    let mut cleaned = Vec::new();
    while let Some(number) = choose(&mut *policy, &zones, AMPLE, 2) {
        cleaned.push(number);
        zones.retain(|candidate| candidate.zone.0 != number);
        if cleaned.len() == 1 {
            zones.push(zone(30, 0, 0));
        }
    }
    assert_eq!(cleaned[0], 8, "the emptiest first");
    cleaned.sort_unstable();
    assert_eq!(cleaned, (0..9).collect::<Vec<u32>>());
}

#[test]
fn threshold_with_nothing_allowed_takes_what_is_dead() {
    let parameters = Parameters { live_share: 0.0, read_at_once: 0, ..Parameters::for_zones(256) };
    let mut policy = cleaning::make("threshold", parameters).unwrap();
    assert_eq!(choose(&mut *policy, &[zone(0, 1, 0)], AMPLE, 1), None);
    assert_eq!(choose(&mut *policy, &[zone(0, 1, 0), zone(1, 0, 0)], AMPLE, 1), Some(1));
}

#[test]
fn limits_of_threshold_that_move() {
    let first = |limit, live, free| {
        let parameters = Parameters { live_share: 0.3, read_at_once: 1, limit, ..Parameters::for_zones(256) };
        let mut policy = cleaning::make("threshold", parameters).unwrap();
        choose(&mut *policy, &[zone(0, live, 0)], Pressure { free, ..AMPLE }, 1).is_some()
    };
    // Free share: k = 0.1 and 0.3 (its cap) with 10 and 90 of 100 free.
    assert!(first(Limit::Free, 9, 10) && !first(Limit::Free, 11, 10));
    assert!(first(Limit::Free, 29, 90) && !first(Limit::Free, 31, 90));
    // Used share: the reverse.
    assert!(first(Limit::Used, 29, 10) && !first(Limit::Used, 31, 10));
    assert!(first(Limit::Used, 9, 90) && !first(Limit::Used, 11, 90));
    assert!(first(Limit::Fixed, 29, 10) && first(Limit::Fixed, 29, 90) && !first(Limit::Fixed, 30, 50));
}

#[test]
fn lifetime_sorts_by_what_lived_how_long() {
    let mut policy = make("lifetime");
    assert_eq!((policy.classes(), policy.is_users(1), policy.is_users(2)), (5, true, false));
    let overwrite = |age| Arrival::Overwrite { age, class: 1 };
    let moved = |class| Arrival::Moved { age: 0, class };
    assert_eq!(policy.place(Arrival::New), 1);
    assert_eq!(policy.place(overwrite(1 << 40)), 0, "nothing is known yet");
    // Zones of class 0 live for 100 on average; other classes are ignored.
    policy.cleaned(zone(0, 5, 900), 950);
    policy.cleaned(zone(1, 5, 850), 1000);
    policy.cleaned(Candidate { class: 1, ..zone(1, 5, 0) }, 1000);
    assert_eq!((policy.place(overwrite(99)), policy.place(overwrite(100))), (0, 1));
    // The last 16 zones are averaged.
    (0..16).for_each(|_| policy.cleaned(zone(0, 5, 1000), 1010));
    assert_eq!((policy.place(overwrite(9)), policy.place(overwrite(10))), (0, 1));
    // Each move advances a block by one class, and from class 1 directly to the second one.
    assert_eq!([0, 1, 2, 3, 4].map(|class| policy.place(moved(class))), [2, 3, 3, 4, 4]);
    let parameters = Parameters { generations: 1, ..Parameters::for_zones(256) };
    let single = cleaning::make("lifetime", parameters).unwrap();
    assert_eq!([0, 1, 2].map(|class| single.place(moved(class))), [2, 2, 2]);
}

#[test]
fn sepbit_sorts_moved_blocks_by_age() {
    let mut policy = make("sepbit");
    policy.cleaned(zone(0, 5, 0), 10);
    let moved = |age| policy.place(Arrival::Moved { age, class: 1 });
    assert_eq!([0, 39, 40, 159, 160].map(moved), [3, 3, 4, 4, 5]);
    assert_eq!(policy.place(Arrival::Moved { age: 1000, class: 0 }), 2);
}

#[test]
fn the_pacer_keeps_room_between_its_marks() {
    let mut pacer = Pacer::new(100);
    let marks = Marks::for_classes(100, 2, 0);
    assert_eq!(marks, Marks { stop: 300, low: 400, high: 600 });
    assert_eq!(Marks::for_classes(100, 2, 3).low, 700);
    // Victims that are three quarters live: three moves gain one block.
    (0..200).for_each(|_| pacer.begin(&zone(0, 75, 0)));
    let pace = |pacer: &Pacer, room| pacer.pace(room, &marks);
    assert_eq!(pace(&pacer, 600).must, 0.0);
    assert!((pace(&pacer, 600).may - 3.0).abs() < 0.01, "unasked: what it gains pays for it");
    assert!((pace(&pacer, 500).must - 3.0).abs() < 0.01, "in balance in the middle");
    assert!((pace(&pacer, 400).must - 6.0).abs() < 0.01);
    assert_eq!(pace(&pacer, 300).must, f64::INFINITY);
    assert!(
        (0..700).all(|room| pace(&pacer, room).must >= pace(&pacer, room + 1).must),
        "less room, more moves"
    );
    assert!((0..700).all(|room| pace(&pacer, room).may >= pace(&pacer, room).must));
    // Even if all victims were dead, the next one may not be.
    (0..2000).for_each(|_| pacer.begin(&zone(0, 0, 0)));
    assert!(pace(&pacer, 500).must > 0.0);
    // The pressure in whole zones agrees with the watermarks.
    for room in 0..1000 {
        let pressure = marks.pressure(100, room, 50);
        assert_eq!(pressure.is_urgent(), room < marks.low, "{room}");
        assert_eq!(pressure.is_asked(), room < marks.high, "{room}");
    }
}

#[test]
fn reading_all_or_fragments() {
    let cost = ReadCost { request: 5, largest_gap: 8, largest_request: 64 };
    let plan = |runs: &[Range<u64>], cost| read_plan(runs.iter().cloned(), cost);
    assert_eq!(plan(&[], cost), []);
    // Nearly full: one request; nearly empty: fragments; dead data at the ends isn't read.
    assert_eq!(plan(&[2..20, 21..40, 42..60], cost), vec![2..60; 1]);
    assert_eq!(plan(&[2..3, 30..31, 60..61], cost), [2..3, 30..31, 60..61]);
    assert_eq!(plan(&[0..4, 9..12, 18..20], cost), [0..12, 18..20], "gaps of 5 and of 6");
    // Gaps that are longer than permitted, and no gaps at all.
    assert_eq!(plan(&[0..4, 6..8], ReadCost { largest_gap: 1, ..cost }), [0..4, 6..8]);
    assert_eq!(plan(&[0..4, 4..8, 9..10], ReadCost { largest_gap: 0, ..cost }), [0..8, 9..10]);
    // Requests have at most the largest length, and no gap is read at their ends.
    assert_eq!(plan(&[0..64, 66..130], cost), [0..64, 66..130]);
    assert_eq!(plan(&[0..60, 62..150], cost), [0..64, 64..128, 128..150]);
}

/// Runs of live blocks from lengths of gaps and runs.
fn runs(lengths: &[(u64, u64)]) -> Vec<Range<u64>> {
    let mut at = 0;
    lengths
        .iter()
        .map(|(gap, length)| {
            let start = at + gap;
            at = start + length;
            start..at
        })
        .collect()
}

/// Total cost of these requests.
fn price(plan: &[Range<u64>], cost: ReadCost) -> u64 {
    plan.iter().map(|range| cost.request + (range.end - range.start)).sum()
}

/// Lowest cost of all ways of joining neighbouring runs.
fn cheapest(runs: &[Range<u64>], cost: ReadCost) -> u64 {
    (0..1_u32 << (runs.len() - 1))
        .map(|joins| {
            let mut plan = vec![runs[0].clone()];
            for (number, run) in runs.iter().enumerate().skip(1) {
                match joins & (1 << (number - 1)) {
                    0 => plan.push(run.clone()),
                    _ => plan.last_mut().unwrap().end = run.end,
                }
            }
            price(&plan, cost)
        })
        .min()
        .unwrap()
}

fn arrivals() -> impl Strategy<Value = Arrival> {
    prop_oneof![
        Just(Arrival::New),
        (any::<u32>(), 0..3_u8).prop_map(|(age, class)| Arrival::Overwrite { age: u64::from(age), class }),
        (any::<u32>(), 0..3_u8).prop_map(|(age, class)| Arrival::Moved { age: u64::from(age), class }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, rng_seed: RngSeed::Fixed(16), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn plans_read_what_is_live(
        lengths in prop::collection::vec((0..20_u64, 0..20_u64), 0..40),
        request in 0..15_u64, largest_gap in 0..15_u64, largest_request in 1..50_u64,
    ) {
        let cost = ReadCost { request, largest_gap, largest_request };
        let runs = runs(&lengths);
        let plan = read_plan(runs.iter().cloned(), cost);
        prop_assert!(plan.is_sorted_by(|a, b| a.end <= b.start));
        let live = |at: u64| runs.iter().any(|run| run.contains(&at));
        for range in &plan {
            prop_assert!(!range.is_empty() && range.end - range.start <= largest_request, "{range:?}");
            prop_assert!(live(range.start) && live(range.end - 1), "{range:?} begins and ends with live blocks");
        }
        for at in runs.iter().cloned().flatten() {
            prop_assert!(plan.iter().any(|range| range.contains(&at)), "{at} isn't read");
        }
    }

    #[test]
    fn plans_are_the_cheapest(
        lengths in prop::collection::vec((1..12_u64, 1..12_u64), 1..9), request in 0..15_u64,
    ) {
        let cost = ReadCost { request, largest_gap: u64::MAX, largest_request: u64::MAX >> 1 };
        let runs = runs(&lengths);
        prop_assert_eq!(price(&read_plan(runs.iter().cloned(), cost), cost), cheapest(&runs, cost));
    }

    /// Whatever the candidates are: while cleaning is urgent, a policy chooses a zone that gains space if
    /// there is one.
    #[test]
    fn urgent_is_heard(
        zones in prop::collection::vec((0..=100_u64, 0..5_u8, 0..1000_u64, 0..1000_u64), 0..20),
        free in 0..100_u32,
    ) {
        let zones: Vec<Candidate> = (0..).zip(&zones)
            .map(|(number, (live, class, opened, changed))| Candidate {
                class: *class, changed: *changed, ..zone(number, *live, *opened)
            })
            .collect();
        let pressure = Pressure { free, ..URGENT };
        for name in cleaning::NAMES {
            let chosen = choose(&mut *make(name), &zones, pressure, 1000);
            if let Some(number) = chosen {
                prop_assert!(zones[number as usize].gains(), "{name}");
                prop_assert!(pressure.is_asked() || name == "threshold", "{name} wasn't asked");
            } else if pressure.is_urgent() {
                prop_assert!(!zones.iter().any(Candidate::gains), "{name} names none");
            }
        }
    }

    #[test]
    fn users_and_cleaner_keep_apart(arrival in arrivals()) {
        for name in cleaning::NAMES {
            let mut policy = make(name);
            for lifespan in [None, Some(1), Some(1 << 20)] {
                if let Some(lifespan) = lifespan {
                    policy.cleaned(zone(0, 5, 0), lifespan);
                }
                let class = policy.place(arrival);
                prop_assert!(class < policy.classes());
                prop_assert_eq!(policy.is_users(class), !matches!(arrival, Arrival::Moved { .. }), "{}", name);
            }
        }
    }
}
