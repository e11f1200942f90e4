use super::*;
use crate::machine::Cgroup;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

const POLICY: Policy = Policy { capacity: 8 * GIB, reserve: GIB, pressure_limit: 10.0 };

fn machine(available: u64, some_avg10: f64) -> Measurement {
    Measurement { total: 16 * GIB, available, some_avg10: Some(some_avg10), cgroup: None }
}

#[test]
fn a_machine_with_enough_memory_lends_above_the_margin() {
    let decided = decide(&POLICY, &machine(4 * GIB, 0.0), GIB, &Decision::default());
    assert_eq!(decided, Decision { may_lend: 4 * GIB - GIB - 128 * MIB, ..Decision::default() });
    let decided = decide(&POLICY, &machine(15 * GIB, 0.0), GIB, &Decision::default());
    assert_eq!(decided.may_lend, 7 * GIB, "the capacity");
}

#[test]
fn between_reserve_and_margin_nothing_is_lent_and_nothing_wanted() {
    let decided = decide(&POLICY, &machine(GIB + 64 * MIB, 0.0), 2 * GIB, &Decision::default());
    assert_eq!(decided, Decision::default());
}

#[test]
fn below_the_reserve_memory_is_wanted_until_the_margin_is_there_again() {
    let short = decide(&POLICY, &machine(GIB - 72 * MIB, 0.0), 2 * GIB, &Decision::default());
    assert_eq!((short.may_lend, short.wants_back, short.is_short), (0, 200 * MIB, true));
    let better = decide(&POLICY, &machine(GIB + 28 * MIB, 0.0), 2 * GIB - 100 * MIB, &short);
    assert_eq!((better.may_lend, better.wants_back, better.is_short), (0, 100 * MIB, true));
    let enough = decide(&POLICY, &machine(GIB + 128 * MIB, 0.0), 2 * GIB - 200 * MIB, &better);
    assert_eq!(enough, Decision::default());
}

#[test]
fn no_more_is_wanted_than_is_lent() {
    let decided = decide(&POLICY, &machine(0, 0.0), 5 * MIB, &Decision::default());
    assert_eq!(decided.wants_back, 5 * MIB);
}

#[test]
fn under_pressure_an_eighth_is_wanted_until_it_has_halved() {
    let pressed = decide(&POLICY, &machine(12 * GIB, 10.5), GIB, &Decision::default());
    assert_eq!((pressed.may_lend, pressed.wants_back, pressed.is_pressed), (0, 128 * MIB, true));
    assert!(decide(&POLICY, &machine(12 * GIB, 6.0), GIB, &pressed).is_pressed);
    assert!(!decide(&POLICY, &machine(12 * GIB, 6.0), GIB, &Decision::default()).is_pressed);
    assert_eq!(decide(&POLICY, &machine(12 * GIB, 5.0), GIB, &pressed).wants_back, 0);
    let unknown = Measurement { some_avg10: None, ..machine(12 * GIB, 0.0) };
    assert!(!decide(&POLICY, &unknown, GIB, &Decision::default()).is_pressed, "a kernel without PSI");
}

#[test]
fn a_control_group_counts_where_it_leaves_less() {
    let cgroup = Some(Cgroup { limit: 3 * GIB, used: GIB / 2 });
    let measured = Measurement { cgroup, ..machine(12 * GIB, 0.0) };
    assert_eq!(decide(&POLICY, &measured, 0, &Decision::default()).may_lend, 3 * GIB / 2 - 128 * MIB);
    let full = Measurement { cgroup: Some(Cgroup { limit: GIB, used: 2 * GIB }), ..machine(12 * GIB, 0.0) };
    assert_eq!(full.available(), 0);
}

#[test]
fn shares_are_in_proportion_and_suffice() {
    assert_eq!(shares(100, &[300, 100, 0]), [75, 25, 0]);
    assert_eq!(shares(1, &[3, 3]), [1, 1], "rounded up");
    assert_eq!(shares(0, &[3, 3]), [0, 0]);
    assert!(shares(10, &[]).is_empty());
    assert_eq!(shares(u64::MAX, &[u64::MAX, 1]), [u64::MAX, 1]);
}

proptest! {
    #[test]
    fn the_reserve_is_never_lent(available: u64, lent: u64, capacity: u64, reserve: u64, pressure in 0.0..200.0_f64, is_short: bool, is_pressed: bool) {
        let policy = Policy { capacity, reserve, pressure_limit: 10.0 };
        let before = Decision { is_short, is_pressed, ..Decision::default() };
        let decided = decide(&policy, &machine(available, pressure), lent, &before);
        prop_assert!(decided.may_lend == 0 || available - decided.may_lend >= reserve);
        prop_assert!(decided.may_lend <= capacity.saturating_sub(lent));
        prop_assert!(decided.wants_back <= lent);
        prop_assert!(decided.may_lend == 0 || decided.wants_back == 0, "both at once");
        prop_assert!(!decided.is_short || decided.wants_back > 0 || lent == 0);
    }

    #[test]
    fn shares_suffice(lent in prop::collection::vec(0..1_u64 << 40, 0..20), wanted in 0..1_u64 << 44) {
        let total: u64 = lent.iter().sum();
        let shares = shares(wanted.min(total), &lent);
        prop_assert!(shares.iter().zip(&lent).all(|(share, bytes)| share <= bytes));
        prop_assert!(shares.iter().sum::<u64>() >= wanted.min(total));
        prop_assert!(shares.iter().sum::<u64>() <= wanted.min(total) + lent.len() as u64);
    }

    /// Borrowers that return what is wanted end the want, whatever the others use, and lending doesn't begin a new one.
    #[test]
    fn what_is_wanted_ends_when_it_is_returned(lent in 0..8 * GIB, others in 0..16 * GIB) {
        let (mut lent, mut before) = (lent, Decision::default());
        let mut wants = Vec::new();
        for _ in 0..20 {
            let available = (16 * GIB).saturating_sub(others + lent);
            before = decide(&POLICY, &machine(available, 0.0), lent, &before);
            lent = lent - before.wants_back + before.may_lend;
            wants.push(before.wants_back);
        }
        let rounds = wants.iter().take_while(|wanted| **wanted > 0).count();
        prop_assert!(rounds < 10 && wants[rounds..].iter().all(|wanted| *wanted == 0), "{:?}", wants);
    }
}
