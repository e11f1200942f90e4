//! Fits a write buffer to a device's write bandwidth over time: fio's `write_bw_log` of [`JOB`].
//!
//! A buffer of `size` bytes that drains `drain` bytes per second accepts writes at full speed until it is
//! full. From then on `size + drain * t` bytes have been written by time t, independent of the earlier speed.
//! So both are the parameters of a straight line fitted to the bytes written in the slow phase (least
//! squares), and don't depend on the exact end of the fast phase. That end is where a single step fits the
//! speeds best (least squares again). A device that slows down in several steps is fitted to the largest one.

use super::profile::WriteBuffer;
use block::{Error, Result};

/// Job file for fio.
pub const JOB: &str = include_str!("fill.fio");

/// Direction of writes in fio's log.
const WRITES: u64 = 1;
/// Least number of lines before and after the step.
const FEWEST: usize = 3;
/// Largest ratio of the speeds after and before a step.
const STEP: f64 = 0.75;

/// Result of a fit.
#[derive(Debug, Clone, PartialEq)]
pub struct Filled {
    /// Bytes per second until the buffer was full.
    pub fast: f64,
    /// Bytes written until then: more than the buffer's size, because it drains meanwhile.
    pub written: f64,
    /// The buffer.
    pub buffer: WriteBuffer,
}

/// A line of the log.
#[derive(Debug, Clone, Copy)]
struct Line {
    /// End of the interval, in seconds since the beginning.
    at: f64,
    /// Length of the interval in seconds.
    lasted: f64,
    /// Bytes per second.
    speed: f64,
    /// Bytes written from the beginning to the end of the interval.
    written: f64,
}

/// Finds the write buffer of a device in fio's bandwidth log. Returns `None` if the speed didn't drop.
///
/// # Errors
/// [`Error::Invalid`] with the line if the text isn't the log of one job, or is too short.
pub fn fit(log: &str) -> Result<Option<Filled>> {
    let lines = read(log)?;
    if lines.len() < 2 * FEWEST {
        return Err(Error::invalid(format!(
            "bandwidth log: {} lines of writes; expected at least {}; write for longer, with log_avg_msec=250",
            lines.len(),
            2 * FEWEST
        )));
    }
    let Some(step) = step(&lines) else { return Ok(None) };
    let (before, after) = lines.split_at(step);
    let (fast, slow) = (mean(before), mean(after));
    if slow > STEP * fast {
        return Ok(None);
    }
    let (size, drain) = straight(after);
    if size < 1.0 || drain < 1.0 {
        return Err(Error::invalid(format!(
            "bandwidth log: no write buffer fits {fast:.0} bytes/s for {:.1} s and then {slow:.0} bytes/s; write for longer",
            before.last().map_or(0.0, |line| line.at)
        )));
    }
    let written = before.last().map_or(0.0, |line| line.written);
    Ok(Some(Filled { fast, written, buffer: WriteBuffer { size: size as u64, drain: drain as u64 } }))
}

/// Parses fio's lines: milliseconds, KiB per second, direction, and further fields that are ignored.
fn read(log: &str) -> Result<Vec<Line>> {
    let mut lines: Vec<Line> = Vec::new();
    for (number, text) in (1..).zip(log.lines()).filter(|(_, text)| !text.trim().is_empty()) {
        let wrong = |what: &str| {
            Error::invalid(format!(
                "line {number}, \"{text}\": {what}; expected fio's write_bw_log of what `siltstone model job --fill` prints"
            ))
        };
        let mut fields = text.split(',').map(|field| field.trim().parse::<u64>().ok());
        let mut field = || fields.next().flatten().ok_or_else(|| wrong("not a line of fio's logs"));
        let (milliseconds, speed, direction) = (field()?, field()?, field()?);
        if direction != WRITES {
            continue;
        }
        let (at, speed) = (milliseconds as f64 / 1e3, speed as f64 * 1024.0);
        let (since, before) = lines.last().map_or((0.0, 0.0), |last| (last.at, last.written));
        let lasted = at - since;
        if lasted <= 0.0 {
            return Err(wrong("the time doesn't increase, as in a log of several jobs"));
        }
        lines.push(Line { at, lasted, speed, written: before + speed * lasted });
    }
    Ok(lines)
}

fn mean(lines: &[Line]) -> f64 {
    let bytes: f64 = lines.iter().map(|line| line.speed * line.lasted).sum();
    bytes / lines.iter().map(|line| line.lasted).sum::<f64>().max(f64::MIN_POSITIVE)
}

/// Returns the line before which a single drop of the speed fits all speeds best.
fn step(lines: &[Line]) -> Option<usize> {
    // The sum of squared residuals of two means is least where the explained sum of squares is greatest.
    let all = lines.last()?;
    let explained = |at: usize| {
        let Line { at: time, written, .. } = lines[at - 1];
        let (rest_time, rest) = (all.at - time, all.written - written);
        (written / time > rest / rest_time).then_some(written * written / time + rest * rest / rest_time)
    };
    let steps = (FEWEST..=lines.len() - FEWEST).filter_map(|at| Some((explained(at)?, at)));
    steps.max_by(|left, right| left.0.total_cmp(&right.0)).map(|(_, at)| at)
}

/// Fits a straight line to the bytes written at the ends of these lines. Returns its value at time 0, and its
/// slope per second.
fn straight(lines: &[Line]) -> (f64, f64) {
    let count = lines.len() as f64;
    let (mean_at, mean_written) = (
        lines.iter().map(|line| line.at).sum::<f64>() / count,
        lines.iter().map(|line| line.written).sum::<f64>() / count,
    );
    let (mut along, mut across) = (0.0, 0.0);
    for line in lines {
        along += (line.at - mean_at) * (line.at - mean_at);
        across += (line.at - mean_at) * (line.written - mean_written);
    }
    let drain = across / along.max(f64::MIN_POSITIVE);
    (mean_written - drain * mean_at, drain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::profile::{Profile, SolidState, known};
    use crate::model::solid::SolidServer;
    use runtime::{Instant, Random};

    const MIB: u64 = 1 << 20;

    /// Returns the log that fio would write for 1 MiB writes at depth 32: a line per `every` ms, for
    /// `seconds` s.
    fn log(profile: &SolidState, every: u64, seconds: u64) -> String {
        let mut server = SolidServer::new(profile.clone(), 5);
        let mut flying: Vec<u64> =
            (0..32).map(|_| server.write(Instant::from_nanoseconds(0), MIB).nanoseconds()).collect();
        let (mut text, mut bytes, mut next) = (String::new(), 0, every);
        while next <= seconds * 1000 {
            let first = flying.iter_mut().min().expect("32 of them");
            while *first > next * 1_000_000 && next <= seconds * 1000 {
                text += &format!("{next}, {}, 1, 0, 0\n", bytes * 1000 / 1024 / every);
                (bytes, next) = (0, next + every);
            }
            bytes += MIB;
            *first = server.write(Instant::from_nanoseconds(*first), MIB).nanoseconds();
        }
        text
    }

    fn profile(size: u64, drain: u64) -> SolidState {
        let Some(Profile::SolidState(profile)) = known().expect("they are right").remove("qlc") else {
            panic!("it has no arm")
        };
        SolidState { write_buffer: Some(WriteBuffer { size, drain }), ..profile }
    }

    #[track_caller]
    fn near(found: f64, expected: f64, what: &str) {
        let share = found / expected;
        assert!((0.97..1.03).contains(&share), "{what}: {found}, expected {expected}");
    }

    #[test]
    fn what_was_modelled_is_found_again() {
        for (size, drain, every, seconds) in [
            (24 << 10, 150, 250, 60),
            (6 << 10, 400, 250, 12),
            (1 << 10, 1200, 100, 6),
            (64 << 10, 80, 1000, 120),
        ] {
            let filled =
                fit(&log(&profile(size * MIB, drain * MIB), every, seconds)).expect("a log").expect("a drop");
            println!("{size} MiB, {drain} MiB/s: {filled:?}");
            near(filled.buffer.size as f64, (size * MIB) as f64, "size");
            near(filled.buffer.drain as f64, (drain * MIB) as f64, "drain");
            near(filled.fast, (1800 * MIB) as f64, "the speed before");
            assert!(filled.written > (size * MIB) as f64, "it empties meanwhile");
        }
    }

    #[test]
    fn speeds_that_vary_are_no_matter() {
        let text = log(&profile((6 << 10) * MIB, 300 * MIB), 250, 20);
        let mut random = Random::new(3);
        let noisy = |line: &str| {
            let fields: Vec<u64> = line.split(", ").map(|field| field.parse().expect("a number")).collect();
            format!("{}, {}, 1, 0, 0\n", fields[0], fields[1] * (85 + random.below(31)) / 100)
        };
        let filled = fit(&text.lines().map(noisy).collect::<String>()).expect("a log").expect("a drop");
        let share = filled.buffer.size as f64 / ((6 << 10) * MIB) as f64;
        assert!((0.9..1.1).contains(&share), "{filled:?}");
    }

    #[test]
    fn a_speed_that_stays_has_no_buffer() {
        let without = SolidState { write_buffer: None, ..profile(1, 1) };
        assert_eq!(fit(&log(&without, 250, 20)).expect("a log"), None);
        // A device that becomes faster has no write buffer.
        let faster: String = (1..20).map(|at| format!("{}, {}, 1, 0, 0\n", at * 250, at * 1000)).collect();
        assert_eq!(fit(&faster).expect("a log"), None);
    }

    #[test]
    fn other_texts_are_refused_with_the_line() {
        let refused = |text: &str| fit(text).expect_err(text).to_string();
        assert!(refused("").contains("0 lines of writes; expected at least 6"));
        assert!(refused("250, 1000, 0, 0, 0\n500, 1000, 0, 0, 0").contains("0 lines of writes"));
        let several = refused("250, 1000, 1, 0, 0\n250, 1000, 1, 0, 0");
        assert!(
            several.contains("line 2, \"250, 1000, 1, 0, 0\"") && several.contains("several jobs"),
            "{several}"
        );
        assert!(refused("{ \"jobs\": [] }").contains("model job --fill"));
        let steep: String =
            (1..9).map(|at| format!("{}, {}, 1, 0, 0\n", at * 250, if at < 4 { 9000 } else { 0 })).collect();
        assert!(refused(&steep).contains("no write buffer fits"));
    }
}
