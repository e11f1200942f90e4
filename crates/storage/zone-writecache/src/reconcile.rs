//! Comparison of the origin with the state that the fast device expects.
//!
//! The origin is at the cut, or some steps after it: a step may have become durable there before the tail on
//! the fast device. Steps leave evidence: a finished zone, a raised generation. Appends beyond the cut leave
//! none, because an interrupted zone's write pointer is only an upper bound; they are repeated. Any other
//! difference means another origin, an origin that lost data, or another writer: nothing may be written.

use crate::format::{Action, Zone};
use crate::pending::Pending;
use crate::table::{ZoneTable, end_of};
use block::{Error, Result, ZoneAddress, ZoneReport, ZoneState};

/// Result of a comparison.
#[derive(Debug, PartialEq, Eq)]
pub struct Reconciled {
    /// Number of pending operations that are durable at the origin.
    pub done: usize,
    /// Zones whose appends have to be repeated, and the first byte to repeat.
    pub rewinds: Vec<ZoneAddress>,
}

/// Compares the reports of all zones with the cut and the pending operations.
///
/// # Errors
/// [`Error::Protocol`] if the origin can't have come from the cut by these operations.
pub fn reconcile<'a>(
    cut: &ZoneTable,
    pending: impl Iterator<Item = &'a Pending> + Clone,
    reports: &[ZoneReport],
) -> Result<Reconciled> {
    if reports.len() as u32 != cut.len() {
        return Err(refusal(format!("it has {} zones; expected {}", reports.len(), cut.len())));
    }
    let mut done = 0;
    for (number, Pending { entry, .. }) in pending.clone().enumerate() {
        let report = &reports[entry.zone.0 as usize];
        let is_done = match entry.action {
            Action::Reset => report.generation > entry.generation,
            Action::Finish => report.generation == entry.generation && report.state == ZoneState::Full,
            _ => false,
        };
        if is_done {
            done = number + 1;
        }
    }
    let mut expected = cut.clone();
    for Pending { entry, .. } in pending.clone().take(done) {
        expected.apply(entry)?;
    }
    // End of the pending appends of each zone's present generation.
    let mut ends: Vec<Option<u64>> = vec![None; reports.len()];
    // A finish of an interrupted zone would keep the upper bound as its end.
    let mut finishes = vec![false; reports.len()];
    for Pending { entry, .. } in pending.skip(done) {
        let index = entry.zone.0 as usize;
        if entry.generation == expected.zone(entry.zone).generation {
            match entry.action {
                Action::Append => ends[index] = Some(entry.end()),
                Action::Finish => finishes[index] = true,
                _ => {}
            }
        }
    }
    let mut rewinds = Vec::new();
    for (report, (end, finishes)) in reports.iter().zip(ends.into_iter().zip(finishes)) {
        let zone = expected.zone(report.zone);
        check(report, &zone, end)?;
        // Of a zone that the cut has as interrupted only an upper bound of its end is known.
        let is_interrupted =
            report.state == ZoneState::Interrupted && (end.is_some() || zone.state != ZoneState::Interrupted);
        let is_elsewhere = is_interrupted || report.write_pointer != zone.write_pointer;
        if (end.is_some() || finishes) && is_elsewhere && !has_failed(report) {
            rewinds.push(end_of(report.zone, &zone));
        }
    }
    Ok(Reconciled { done, rewinds })
}

/// Checks that no change is pending of a zone whose medium failed: it would be repeated without end.
///
/// # Errors
/// [`Error::Corrupt`] with the first such zone.
pub fn check_media<'a>(mut pending: impl Iterator<Item = &'a Pending>, reports: &[ZoneReport]) -> Result<()> {
    let needs = |action| matches!(action, Action::Append | Action::Finish | Action::Reset);
    let failed = pending.find_map(|Pending { entry, .. }| {
        let report = reports.get(entry.zone.0 as usize)?;
        (needs(entry.action) && has_failed(report)).then_some(report)
    });
    match failed {
        None => Ok(()),
        Some(ZoneReport { zone, state, .. }) => Err(Error::corrupt(format!(
            "zone {zone} of the origin is {state:?}, and pending changes of it can't be applied: uploads have ended; expected a \
             zone that can be written; pending data can still be read: copy it, and repair the origin's medium"
        ))),
    }
}

fn has_failed(report: &ZoneReport) -> bool {
    matches!(report.state, ZoneState::Offline | ZoneState::ReadOnly)
}

/// Checks one zone, whose pending appends end at `end`.
fn check(report: &ZoneReport, zone: &Zone, end: Option<u64>) -> Result<()> {
    let ZoneReport { zone: index, state, write_pointer, generation } = *report;
    // A zone whose medium failed since the cut is an error of its own.
    if has_failed(report) {
        return Ok(());
    }
    let differs = |what: &str| {
        Err(refusal(format!(
            "{what}: zone {index} is {state:?} with {write_pointer} bytes in generation {generation}; expected {:?} with {} \
             to {} bytes in generation {}",
            zone.state,
            zone.write_pointer,
            end.unwrap_or(zone.write_pointer),
            zone.generation
        )))
    };
    let is_full = |state| state == ZoneState::Full;
    if generation > zone.generation {
        return differs("it was written without the fast device");
    }
    if generation < zone.generation || is_full(zone.state) && !is_full(state) {
        return differs("it is older than the fast device");
    }
    if is_full(state) && !is_full(zone.state) {
        return differs("it was written without the fast device");
    }
    if write_pointer < zone.write_pointer {
        return differs("it is older than the fast device");
    }
    // The write pointer of an interrupted zone is only an upper bound, also once the zone is finished.
    let is_exact = state.is_open() || state == ZoneState::Closed || state == ZoneState::Empty;
    if is_exact && write_pointer > end.unwrap_or(zone.write_pointer) {
        return differs("it was written without the fast device");
    }
    Ok(())
}

fn refusal(detail: impl std::fmt::Display) -> Error {
    Error::protocol(format!(
        "the origin doesn't belong to this fast device: {detail}; nothing was written; use the fast device and the origin \
         that were last used together, or an empty fast device with the key new_fast=true, which keeps the origin's state"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{Entry, Position};
    use block::{Durable, EraseGuarantee, ZoneGeometry, ZoneIndex};

    fn table(zones: &[(ZoneState, u64, u64)]) -> ZoneTable {
        let geometry = ZoneGeometry {
            zones: zones.len() as u32,
            zone_size: 4096,
            zone_capacity: 4096,
            append_granularity: 1,
            read_granularity: 1,
            max_append: 4096,
            max_open: 0,
            max_active: 0,
            durable: Durable::OnFlush,
            erase: EraseGuarantee::None,
        };
        let zone = |(state, write_pointer, generation): &(ZoneState, u64, u64)| Zone {
            state: *state,
            write_pointer: *write_pointer,
            generation: *generation,
        };
        ZoneTable::new(zones.iter().map(zone).collect(), &geometry)
    }

    fn reports(zones: &[(ZoneState, u64, u64)]) -> Vec<ZoneReport> {
        let table = table(zones);
        (0..table.len()).map(|zone| table.report(ZoneIndex(zone))).collect()
    }

    fn pending(operations: &[(Action, u32, u64, u64, u64)]) -> Vec<Pending> {
        let main = || async { runtime::now() };
        let since = runtime::simulate(runtime::Simulation::new(1), main).expect("it ends").value;
        let one = |(action, zone, generation, offset, length): &(Action, u32, u64, u64, u64)| Pending {
            entry: Entry {
                offset: *offset,
                length: *length as u32,
                ..Entry::of(*action, ZoneIndex(*zone), *generation)
            },
            data: 0,
            record: 1,
            end: Position::default(),
            flush_epoch: 0,
            written: 0,
            since,
        };
        operations.iter().map(one).collect()
    }

    #[test]
    fn a_zone_is_rewound_before_a_pending_finish() {
        use ZoneState::{Closed, Interrupted};
        let steps = pending(&[(Action::Finish, 0, 1, 0, 0)]);
        let rewinds = |cut, report| {
            reconcile(&table(&[cut]), steps.iter(), &reports(&[report])).expect("it fits").rewinds
        };
        let (at, none) = (ZoneAddress::new(0, 100), Vec::<ZoneAddress>::new());
        assert_eq!(rewinds((Closed, 100, 1), (Interrupted, 4096, 1)), [at]);
        assert_eq!(rewinds((Closed, 100, 1), (Interrupted, 100, 1)), [at]);
        assert_eq!(rewinds((Closed, 100, 1), (Closed, 100, 1)), none);
        assert_eq!(rewinds((Interrupted, 100, 1), (Interrupted, 4096, 1)), [at]);
        assert_eq!(rewinds((Interrupted, 4096, 1), (Interrupted, 4096, 1)), none, "only a bound is known");
    }

    #[test]
    fn changes_of_a_zone_that_failed_end_the_uploads() {
        use ZoneState::{Closed, Offline, ReadOnly};
        for state in [Offline, ReadOnly] {
            let reports = reports(&[(Closed, 0, 1), (state, 0, 1)]);
            for action in [Action::Append, Action::Finish, Action::Reset] {
                let error = check_media(pending(&[(action, 1, 1, 0, 1)]).iter(), &reports);
                let error = error.expect_err("it can't be applied");
                assert!(error.detail().contains("zone 1 of the origin is"), "{error}");
                assert_eq!(check_media(pending(&[(action, 0, 1, 0, 1)]).iter(), &reports), Ok(()));
            }
            assert_eq!(check_media(pending(&[(Action::Close, 1, 1, 0, 0)]).iter(), &reports), Ok(()));
            let cut = table(&[(Closed, 0, 1), (Closed, 0, 1)]);
            let found = reconcile(&cut, pending(&[(Action::Append, 1, 1, 0, 1)]).iter(), &reports);
            assert!(found.expect("it can be opened").rewinds.is_empty());
        }
    }

    #[test]
    fn steps_that_are_durable_at_the_origin_are_found_and_others_repeated() {
        use Action::{Append, Finish, Reset};
        use ZoneState::{Closed, Empty, Full, Interrupted};
        let cut = table(&[(Closed, 100, 1), (Empty, 0, 1)]);
        let steps = pending(&[
            (Append, 0, 1, 100, 50),
            (Append, 1, 1, 0, 10),
            (Finish, 0, 1, 0, 0),
            (Reset, 0, 1, 0, 0),
            (Append, 0, 2, 0, 7),
        ]);
        let of = |zones: &[_]| reconcile(&cut, steps.iter(), &reports(zones));
        let address = ZoneAddress::new;
        let found = |done, rewinds: &[ZoneAddress]| Ok(Reconciled { done, rewinds: rewinds.to_vec() });
        assert_eq!(of(&[(Closed, 100, 1), (Empty, 0, 1)]), found(0, &[]));
        assert_eq!(
            of(&[(Closed, 120, 1), (Interrupted, 4096, 1)]),
            found(0, &[address(0, 100), address(1, 0)])
        );
        assert_eq!(of(&[(Full, 150, 1), (Interrupted, 4096, 1)]), found(3, &[]));
        assert_eq!(of(&[(Empty, 0, 2), (Closed, 10, 1)]), found(4, &[]));
        assert_eq!(of(&[(Interrupted, 4096, 2), (Closed, 10, 1)]), found(4, &[address(0, 0)]));
        for (strange, what) in [
            ([(Closed, 99, 1), (Empty, 0, 1)], "older"),
            ([(Closed, 151, 1), (Empty, 0, 1)], "written without"),
            ([(Closed, 100, 0), (Empty, 0, 1)], "older"),
            ([(Empty, 0, 3), (Closed, 10, 1)], "written without"),
            ([(Closed, 100, 1), (Full, 10, 1)], "written without"),
            ([(Closed, 100, 1), (Closed, 11, 1)], "written without"),
            ([(Full, 150, 1), (Empty, 0, 1)], "older"),
            ([(Full, 149, 1), (Closed, 10, 1)], "older"),
        ] {
            let error = of(&strange).expect_err("it must be refused");
            assert!(error.detail().contains(what), "{strange:?}: {error}");
        }
        assert!(
            reconcile(&cut, steps.iter(), &reports(&[(Closed, 100, 1)])).is_err(),
            "another number of zones"
        );
    }
}
