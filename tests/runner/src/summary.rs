//! Counts over all tests: passed, failed, skipped, and the shares of the budget of seeds and power cuts.
//!
//! A skipped test is one that passed and printed a line that begins with `SKIPPED: `. An `#[ignore]`d test is
//! skipped as well.

use crate::attempt::{Finished, Outcome};
use std::time::Duration;

/// Sum of all lines `BUDGET: 3 of 220 shares: NAME: tried 5 of 40 in 1.2 s (1.1 s)`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Shares {
    taken: u64,
    of: u64,
    tried: u64,
    offered: u64,
}

/// Numbers of tests by their outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub passed: u64,
    pub failed: u64,
    pub skipped: u64,
}

impl Counts {
    pub fn all(self) -> u64 {
        self.passed + self.failed + self.skipped
    }
}

impl std::ops::Add for Counts {
    type Output = Counts;

    fn add(self, other: Counts) -> Counts {
        Counts {
            passed: self.passed + other.passed,
            failed: self.failed + other.failed,
            skipped: self.skipped + other.skipped,
        }
    }
}

impl std::fmt::Display for Counts {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Counts { passed, failed, skipped } = self;
        write!(formatter, "{passed} passed, {failed} failed, {skipped} skipped")
    }
}

/// Text at the end of a run.
#[derive(Debug, Default)]
pub struct Summary {
    pub counts: Counts,
    lines: Vec<String>,
    shares: Shares,
}

/// Number of tests that are listed as the slowest, and as those with the most processor time.
const LISTED: usize = 10;
/// Least time of a listed test.
const LEAST: Duration = Duration::from_secs(1);

/// Lines for the tests with the largest times of a kind, the largest first.
fn largest(results: &[Finished], time: fn(&Finished) -> Duration, kind: &str) -> Vec<String> {
    let mut tests: Vec<&Finished> = results.iter().filter(|test| time(test) >= LEAST).collect();
    tests.sort_by_key(|test| std::cmp::Reverse(time(test)));
    let line = |test: &&Finished| {
        let (took, processor) = (test.took.as_secs_f64(), test.processor.as_secs_f64());
        format!("{kind}: {took:.0} s, processors {processor:.0} s: {}", test.title)
    };
    tests.iter().take(LISTED).map(line).collect()
}

/// Line of a test in the file of times: its processor time and wall time in seconds, its name.
pub fn line_of_times(test: &Finished) -> String {
    let (processor, took) = (test.processor.as_secs_f64(), test.took.as_secs_f64());
    format!("{processor:.2} {took:.2} {}\n", test.title)
}

impl Summary {
    pub fn of(results: &[Finished]) -> Self {
        let mut summary = Summary::default();
        for test in results {
            let skipped = test.output.lines().find(|line| line.starts_with("SKIPPED: "));
            match (&test.outcome, skipped) {
                (Outcome::Failed(reason), _) => {
                    summary.counts.failed += 1;
                    summary.lines.push(format!(
                        "FAILED: {}: {}",
                        test.title,
                        reason.as_deref().unwrap_or("see above")
                    ));
                }
                (Outcome::Ignored, _) => summary.counts.skipped += 1,
                (Outcome::Passed, Some(line)) => {
                    summary.counts.skipped += 1;
                    summary.lines.push(line.to_owned());
                }
                (Outcome::Passed, None) => summary.counts.passed += 1,
            }
            test.output.lines().for_each(|line| summary.shares.add(line));
        }
        // Failures last, next to the counts.
        summary.lines.sort_by_key(|line| line.starts_with("FAILED: "));
        let costs =
            [largest(results, |test| test.processor, "COSTLY"), largest(results, |test| test.took, "SLOW")];
        summary.lines.splice(0..0, costs.concat());
        summary
    }

    pub fn print(&self) {
        self.lines.iter().for_each(|line| println!("{line}"));
        let Shares { taken, of, tried, offered } = self.shares;
        println!(
            "tried {tried} of {offered} seeds and power cuts, in {taken} of {of} shares; --long tries all"
        );
    }

    /// Counts of the run. If all shares of the budget must have been taken, one failure is added if they
    /// weren't and nothing else failed.
    pub fn judge(&self, must_take_all: bool) -> Counts {
        let Shares { taken, of, .. } = self.shares;
        if !must_take_all || taken == of {
            return self.counts;
        }
        println!(
            "the tests took {taken} shares and the budget has {of}: correct SHARES in crates/core/conformance/src/budget.rs"
        );
        Counts { failed: self.counts.failed.max(1), ..self.counts }
    }
}

impl Shares {
    fn add(&mut self, line: &str) {
        let Some(rest) = line.strip_prefix("BUDGET: ") else { return };
        let words: Vec<&str> = rest.split_whitespace().collect();
        let number = |place: usize| words.get(place).and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
        self.taken += number(0);
        self.of = number(2);
        if let Some(tried) = words.iter().position(|word| *word == "tried") {
            self.tried += number(tried + 1);
            self.offered += number(tried + 3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finished(outcome: Outcome, output: &str) -> Finished {
        Finished {
            title: "package test".to_owned(),
            outcome,
            output: output.to_owned(),
            took: Duration::ZERO,
            processor: Duration::ZERO,
        }
    }

    #[test]
    fn each_test_is_counted_once() {
        let results = [
            finished(Outcome::Passed, "BUDGET: 3 of 5 shares: a: tried 2 of 40 in 1.2 s (1.1 s)\n"),
            finished(Outcome::Passed, "SKIPPED: one: no FUSE\nSKIPPED: one: no root\n"),
            finished(
                Outcome::Failed(None),
                "SKIPPED: no\nBUDGET: 2 of 5 shares: b: tried 1 of 4 in 1 s (no limit)\n",
            ),
            finished(Outcome::Ignored, ""),
        ];
        let summary = Summary::of(&results);
        assert_eq!(summary.counts, Counts { passed: 1, failed: 1, skipped: 2 });
        assert_eq!(summary.counts.to_string(), "1 passed, 1 failed, 2 skipped");
        assert_eq!(summary.shares, Shares { taken: 5, of: 5, tried: 3, offered: 44 });
        assert_eq!(summary.judge(true), summary.counts);
        assert!(summary.lines.last().is_some_and(|line| line.starts_with("FAILED: package test")));
    }

    #[test]
    fn the_tests_with_the_most_processor_time_and_the_slowest_are_listed() {
        let test = |number: u64| Finished {
            title: format!("test {number}"),
            took: Duration::from_secs(100 - number),
            processor: Duration::from_secs(number),
            ..finished(Outcome::Passed, "")
        };
        let results: Vec<Finished> = (0..30).map(test).collect();
        let lines = Summary::of(&results).lines;
        assert_eq!(lines.len(), 2 * LISTED);
        assert_eq!(lines[0], "COSTLY: 71 s, processors 29 s: test 29");
        assert_eq!(lines[LISTED], "SLOW: 100 s, processors 0 s: test 0");
        // One with neither a second of the clock nor of processors isn't listed.
        let quick = finished(Outcome::Passed, "");
        assert!(Summary::of(&[quick]).lines.is_empty());
    }

    #[test]
    fn a_line_of_times_has_both_times_and_the_name() {
        let test = Finished {
            title: "package a::test".to_owned(),
            took: Duration::from_millis(1500),
            processor: Duration::from_millis(2250),
            ..finished(Outcome::Passed, "")
        };
        assert_eq!(line_of_times(&test), "2.25 1.50 package a::test\n");
    }

    #[test]
    fn shares_that_no_test_took_are_a_failure() {
        let output = "BUDGET: 3 of 5 shares: a: tried 2 of 40 in 1.2 s (1.1 s)\n";
        let summary = Summary::of(&[finished(Outcome::Passed, output)]);
        assert_eq!(summary.judge(true), Counts { passed: 1, failed: 1, skipped: 0 });
        assert_eq!(summary.judge(false), summary.counts);
    }
}
