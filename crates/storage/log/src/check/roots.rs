//! The two root zones: every root in them, and whether a root is missing that may have been newer than the
//! newest readable one.

use super::{Check, Finding, Window};
use block::{Error, Result, ZoneBlock, ZoneReport, ZoneState};
use logkit::layout::ROOT_ZONES;
use logkit::record::{Identity, Kind, Parsed};
use logkit::root::{FoundRoot, Root};

/// A copy of a root in a root zone.
pub(crate) struct RootCopy {
    /// Block of the root zone.
    pub(crate) position: u32,
    /// Number of the root.
    pub(crate) number: u64,
    /// Contents of the root.
    pub(crate) root: Root,
}

/// Reads the root in a block of a root zone.
pub(crate) fn read(
    bytes: &[u8],
    identity: &Identity,
    report: &ZoneReport,
    position: u32,
) -> Result<RootCopy> {
    let parsed = Parsed::decode(bytes, identity)?;
    parsed.check_place(report.zone.0, report.generation, position)?;
    if parsed.header.kind != Kind::Root {
        return Err(Error::corrupt(format!("block {position} of zone {}: not a root", report.zone.0)));
    }
    let root = Root::decode(parsed.meta)?;
    Ok(RootCopy { position, number: parsed.header.sequence, root })
}

pub(super) async fn check(check: &mut Check<'_>, found: &FoundRoot) -> Result<()> {
    for report in check.reports.iter().filter(|report| report.zone.0 < ROOT_ZONES) {
        match report.state {
            ZoneState::Empty => {}
            ZoneState::Offline => {
                let what = "the zone is offline, and holds roots: a newer one may have been there";
                check.findings.damage(Finding::at(
                    Some(ZoneBlock { zone: report.zone, block: 0 }),
                    0,
                    what.to_owned(),
                ));
            }
            _ => check_zone(check, found, report).await,
        }
    }
    Ok(())
}

async fn check_zone(check: &mut Check<'_>, found: &FoundRoot, report: &ZoneReport) {
    let layout = check.layout;
    let end = (report.write_pointer >> layout.block_size.shift()) as u32;
    let mut window = Window::new(check.zones, &layout, report.zone, end);
    let mut good: Vec<(u32, u64)> = Vec::new();
    let mut bad: Vec<(u32, Error)> = Vec::new();
    for position in 0..end {
        match read(window.blocks(position, 1).await, &check.root.identity, report, position) {
            Ok(place) => good.push((position, place.number)),
            Err(error) => {
                let error = window.unreadable.remove(&position).unwrap_or(error);
                bad.push((position, error));
            }
        }
    }
    check.checked.roots += good.len() as u64;
    let last = good.last().map(|(position, _)| *position);
    // Bytes after the last root of a zone that a power cut left open are no damage.
    let is_exact = end < layout.zone_blocks;
    let counts =
        bad.into_iter().filter(|(position, _)| is_exact || last.is_some_and(|last| *position < last));
    for (position, error) in counts {
        // Roots are numbered consecutively.
        let nearest = good.iter().min_by_key(|(other, _)| other.abs_diff(position));
        let number = nearest.map(|(other, number)| {
            number.saturating_add(u64::from(position)).saturating_sub(u64::from(*other))
        });
        let newest = good.last().map_or(0, |(_, number)| *number);
        let reason = error.detail();
        let place = Some(ZoneBlock { zone: report.zone, block: position });
        match number {
            Some(number) if number < found.number && newest <= found.number => {
                let what = format!("root {number} can't be read, and isn't needed any more: {reason}");
                check.findings.note(Finding::at(place, 1, what));
            }
            Some(number) => {
                let what = format!(
                    "root {number} can't be read: {reason}; the log is opened by root {} instead, as it was then{}",
                    found.number,
                    if newest > found.number {
                        format!(", although root {newest} is there")
                    } else {
                        String::new()
                    }
                );
                check.findings.damage(Finding::at(place, 1, what));
            }
            None => {
                let what = format!(
                    "a root can't be read: {reason}; it may have been newer than root {}, by which the log is opened",
                    found.number
                );
                check.findings.damage(Finding::at(place, 1, what));
            }
        }
    }
}
