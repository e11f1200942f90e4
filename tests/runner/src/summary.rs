//! Counts over all tests: passed, failed, skipped, and the shares of the budget of seeds and power cuts.
//!
//! A skipped test is one that passed and printed a line that begins with `SKIPPED: `. An `#[ignore]`d test is
//! skipped as well.

use crate::attempt::{Finished, Outcome};

/// Sum of all lines `BUDGET: 3 of 220 shares: NAME: tried 5 of 40 in 1.2 s (1.1 s)`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Shares {
    taken: u64,
    of: u64,
    tried: u64,
    offered: u64,
}

/// Text at the end of a run.
#[derive(Debug, Default)]
pub struct Summary {
    pub passed: u64,
    pub failed: u64,
    pub skipped: u64,
    lines: Vec<String>,
    shares: Shares,
}

/// Number of tests that are listed as the slowest.
const SLOWEST: usize = 8;

impl Summary {
    pub fn of(results: &[Finished]) -> Self {
        let mut summary = Summary::default();
        for test in results {
            let skipped = test.output.lines().find(|line| line.starts_with("SKIPPED: "));
            match (&test.outcome, skipped) {
                (Outcome::Failed(reason), _) => {
                    summary.failed += 1;
                    summary.lines.push(format!(
                        "FAILED: {}: {}",
                        test.title,
                        reason.as_deref().unwrap_or("see above")
                    ));
                }
                (Outcome::Ignored, _) => summary.skipped += 1,
                (Outcome::Passed, Some(line)) => {
                    summary.skipped += 1;
                    summary.lines.push(line.to_owned());
                }
                (Outcome::Passed, None) => summary.passed += 1,
            }
            test.output.lines().for_each(|line| summary.shares.add(line));
        }
        // Failures last, next to the counts.
        summary.lines.sort_by_key(|line| line.starts_with("FAILED: "));
        let mut slowest: Vec<&Finished> = results.iter().collect();
        slowest.sort_by_key(|test| std::cmp::Reverse(test.took));
        let slowest = slowest.iter().take(SLOWEST);
        let slowest: Vec<String> =
            slowest.map(|test| format!("SLOW: {:.0} s: {}", test.took.as_secs_f64(), test.title)).collect();
        summary.lines.splice(0..0, slowest);
        summary
    }

    pub fn print(&self) {
        self.lines.iter().for_each(|line| println!("{line}"));
        let Shares { taken, of, tried, offered } = self.shares;
        println!(
            "tried {tried} of {offered} seeds and power cuts, in {taken} of {of} shares; --long tries all"
        );
    }

    /// Whether the shares of all tests add up to `SHARES`; reports it if not.
    pub fn took_all_shares(&self) -> bool {
        let Shares { taken, of, .. } = self.shares;
        if taken != of {
            println!(
                "the tests took {taken} shares and the budget has {of}: correct SHARES in crates/conformance/src/budget.rs"
            );
        }
        taken == of
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
    use std::time::Duration;

    fn finished(outcome: Outcome, output: &str) -> Finished {
        Finished {
            title: "package test".to_owned(),
            outcome,
            output: output.to_owned(),
            took: Duration::ZERO,
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
        assert_eq!((summary.passed, summary.failed, summary.skipped), (1, 1, 2));
        assert_eq!(summary.shares, Shares { taken: 5, of: 5, tried: 3, offered: 44 });
        assert!(summary.took_all_shares());
        assert!(summary.lines.last().is_some_and(|line| line.starts_with("FAILED: package test")));
    }
}
