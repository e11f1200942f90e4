//! Examples in the documentation: built and run by rustdoc, beside the other tests.

use crate::attempt::{Limits, run_command};
use crate::say;
use crate::summary::Counts;
use std::process::{Command, ExitStatus};

/// Runs all documentation tests, together within the limits of one test, and returns the counts. Prints the
/// output of a failed run.
pub fn run(limits: Limits) -> std::io::Result<Counts> {
    let mut command = Command::new("cargo");
    command.args(["test", "--workspace", "--doc", "--no-fail-fast"]);
    let ended = run_command(&mut command, limits)?;
    let (counts, problem) = judge(counts(&ended.output), &ended.status);
    if let Some(problem) = problem {
        println!("{}", ended.output);
        say(&problem);
    }
    Ok(counts)
}

/// Adds up the lines `test result: ok. 3 passed; 0 failed; 2 ignored; …` of rustdoc. An ignored example isn't
/// meant to be built and doesn't count.
fn counts(output: &str) -> Counts {
    let mut counts = Counts::default();
    for line in output.lines().filter(|line| line.starts_with("test result: ")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        for pair in words.windows(2) {
            let number = pair[0].parse::<u64>().unwrap_or(0);
            match pair[1] {
                "passed;" => counts.passed += number,
                "failed;" => counts.failed += number,
                _ => {}
            }
        }
    }
    counts
}

/// Counts of a run by what its output has, and what is wrong with it. An example that isn't built is in no
/// count.
fn judge(counts: Counts, status: &Result<ExitStatus, String>) -> (Counts, Option<String>) {
    let problem = match status {
        Err(reason) => format!("documentation tests: {reason}"),
        Ok(_) if counts.all() == 0 => "no documentation test ran".to_owned(),
        Ok(status) if !status.success() => "documentation tests failed".to_owned(),
        Ok(_) => return (counts, None),
    };
    (Counts { failed: counts.failed.max(1), ..counts }, Some(problem))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn results_of_all_crates_are_added_up() {
        let output = "   Doc-tests block\n\nrunning 4 tests\ntest a ... ok\n\n\
            test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.20s\n\
            test result: FAILED. 2 passed; 4 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.20s\n";
        assert_eq!(counts(output), Counts { passed: 5, failed: 4, skipped: 0 });
        assert_eq!(counts("test result: nothing\nerror: could not compile"), Counts::default());
    }

    #[test]
    fn a_run_without_tests_or_with_a_failed_build_fails() {
        let (success, failure) = (Ok(ExitStatus::from_raw(0)), Ok(ExitStatus::from_raw(101 << 8)));
        let some = Counts { passed: 5, failed: 0, skipped: 0 };
        assert_eq!(judge(some, &success), (some, None));
        assert_eq!(judge(some, &failure).0.failed, 1);
        let (none, problem) = judge(Counts::default(), &success);
        assert_eq!((none.failed, problem.as_deref()), (1, Some("no documentation test ran")));
        assert_eq!(judge(Counts { failed: 3, ..some }, &failure).0.failed, 3);
    }

    #[test]
    fn a_run_that_was_ended_at_a_limit_fails_with_the_limit() {
        let some = Counts { passed: 5, failed: 0, skipped: 0 };
        let (counts, problem) = judge(some, &Err("not done after 900 s, the limit of a test".to_owned()));
        assert_eq!(counts.failed, 1);
        assert!(problem.is_some_and(|problem| problem.contains("900 s")));
    }
}
