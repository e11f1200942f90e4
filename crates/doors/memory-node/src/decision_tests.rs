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
fn between_the_watermarks_nothing_is_lent_and_nothing_reclaimed() {
    let decided = decide(&POLICY, &machine(GIB + 64 * MIB, 0.0), 2 * GIB, &Decision::default());
    assert_eq!(decided, Decision::default());
}

#[test]
fn below_the_reserve_memory_is_reclaimed_up_to_the_upper_watermark() {
    let short = decide(&POLICY, &machine(GIB - 72 * MIB, 0.0), 2 * GIB, &Decision::default());
    assert_eq!((short.may_lend, short.reclaim, short.is_below_reserve), (0, 200 * MIB, true));
    let better = decide(&POLICY, &machine(GIB + 28 * MIB, 0.0), 2 * GIB - 100 * MIB, &short);
    assert_eq!((better.may_lend, better.reclaim, better.is_below_reserve), (0, 100 * MIB, true));
    let enough = decide(&POLICY, &machine(GIB + 128 * MIB, 0.0), 2 * GIB - 200 * MIB, &better);
    assert_eq!(enough, Decision::default());
}

#[test]
fn no_more_is_reclaimed_than_is_lent() {
    let decided = decide(&POLICY, &machine(0, 0.0), 5 * MIB, &Decision::default());
    assert_eq!(decided.reclaim, 5 * MIB);
}

#[test]
fn under_pressure_an_eighth_is_reclaimed_until_it_has_halved() {
    let pressed = decide(&POLICY, &machine(12 * GIB, 10.5), GIB, &Decision::default());
    assert_eq!((pressed.may_lend, pressed.reclaim, pressed.is_under_pressure), (0, 128 * MIB, true));
    assert!(decide(&POLICY, &machine(12 * GIB, 6.0), GIB, &pressed).is_under_pressure);
    assert!(!decide(&POLICY, &machine(12 * GIB, 6.0), GIB, &Decision::default()).is_under_pressure);
    assert_eq!(decide(&POLICY, &machine(12 * GIB, 5.0), GIB, &pressed).reclaim, 0);
    let unknown = Measurement { some_avg10: None, ..machine(12 * GIB, 0.0) };
    assert!(!decide(&POLICY, &unknown, GIB, &Decision::default()).is_under_pressure, "a kernel without PSI");
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
    fn the_reserve_is_never_lent(available: u64, lent: u64, capacity: u64, reserve: u64, pressure in 0.0..200.0_f64, is_below_reserve: bool, is_under_pressure: bool) {
        let policy = Policy { capacity, reserve, pressure_limit: 10.0 };
        let before = Decision { is_below_reserve, is_under_pressure, ..Decision::default() };
        let decided = decide(&policy, &machine(available, pressure), lent, &before);
        prop_assert!(decided.may_lend == 0 || available - decided.may_lend >= reserve);
        prop_assert!(decided.may_lend <= capacity.saturating_sub(lent));
        prop_assert!(decided.reclaim <= lent);
        prop_assert!(decided.may_lend == 0 || decided.reclaim == 0, "both at once");
        prop_assert!(!decided.is_below_reserve || decided.reclaim > 0 || lent == 0);
    }

    #[test]
    fn shares_suffice(lent in prop::collection::vec(0..1_u64 << 40, 0..20), reclaim in 0..1_u64 << 44) {
        let total: u64 = lent.iter().sum();
        let shares = shares(reclaim.min(total), &lent);
        prop_assert!(shares.iter().zip(&lent).all(|(share, bytes)| share <= bytes));
        prop_assert!(shares.iter().sum::<u64>() >= reclaim.min(total));
        prop_assert!(shares.iter().sum::<u64>() <= reclaim.min(total) + lent.len() as u64);
    }

    /// Reclaim ends once borrowers discard the bytes, for any memory use of other programs, and lending
    /// doesn't start it again.
    #[test]
    fn reclaim_converges(lent in 0..8 * GIB, others in 0..16 * GIB) {
        let (mut lent, mut before) = (lent, Decision::default());
        let mut reclaimed = Vec::new();
        for _ in 0..20 {
            let available = (16 * GIB).saturating_sub(others + lent);
            before = decide(&POLICY, &machine(available, 0.0), lent, &before);
            lent = lent - before.reclaim + before.may_lend;
            reclaimed.push(before.reclaim);
        }
        let rounds = reclaimed.iter().take_while(|bytes| **bytes > 0).count();
        prop_assert!(rounds < 10 && reclaimed[rounds..].iter().all(|bytes| *bytes == 0), "{:?}", reclaimed);
    }
}
