//! Examples in the documentation: built and run by rustdoc, beside the other tests.

use crate::attempt::unnamed_file;
use crate::say;
use crate::summary::Counts;
use std::fs::File;
use std::io::{Read, Seek};
use std::process::{Child, Command, Stdio};

/// Documentation tests that are running.
pub struct Running {
    child: Child,
    output: File,
}

impl Running {
    pub fn start() -> std::io::Result<Running> {
        let output = unnamed_file()?;
        let mut command = Command::new("cargo");
        command.args(["test", "--workspace", "--doc", "--no-fail-fast"]).stdin(Stdio::null());
        let child = command.stdout(output.try_clone()?).stderr(output.try_clone()?).spawn()?;
        Ok(Running { child, output })
    }

    /// Waits for the end and returns the counts; prints the output of a failed run.
    pub fn finish(mut self) -> std::io::Result<Counts> {
        let succeeded = self.child.wait()?.success();
        let mut bytes = Vec::new();
        self.output.rewind()?;
        self.output.read_to_end(&mut bytes)?;
        let text = String::from_utf8_lossy(&bytes);
        let counts = counts(&text);
        let (counts, problem) = judge(counts, succeeded);
        if let Some(problem) = problem {
            println!("{text}");
            say(problem);
        }
        Ok(counts)
    }
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
fn judge(counts: Counts, succeeded: bool) -> (Counts, Option<&'static str>) {
    let failed = Counts { failed: counts.failed.max(1), ..counts };
    match (succeeded, counts.all()) {
        (_, 0) => (failed, Some("no documentation test ran")),
        (false, _) => (failed, Some("documentation tests failed")),
        (true, _) => (counts, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let some = Counts { passed: 5, failed: 0, skipped: 0 };
        assert_eq!(judge(some, true), (some, None));
        assert_eq!(judge(some, false).0.failed, 1);
        let (none, problem) = judge(Counts::default(), true);
        assert_eq!((none.failed, problem), (1, Some("no documentation test ran")));
        assert_eq!(judge(Counts { failed: 3, ..some }, false).0.failed, 3);
    }
}
