//! Command line of `scripts/test`, and the variables of the environment that it reads.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

/// Selection of the tests that run, and limits.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Arguments {
    /// Packages whose tests run; all if empty.
    pub packages: Vec<String>,
    /// Texts of which a test's name contains at least one; all tests if empty.
    pub texts: Vec<String>,
    /// Whether seeds and power cuts have no limit of time, and long tests run.
    pub is_long: bool,
    /// Number of tests that run at the same time.
    pub jobs: Option<NonZeroUsize>,
    /// File for the times of all tests.
    pub times: Option<PathBuf>,
}

const EXPECTED: &str =
    "expected -p PACKAGE, --jobs NUMBER, --times FILE or --long; see the head of scripts/test";

impl Arguments {
    pub fn parse(words: impl IntoIterator<Item = String>) -> Result<Self, String> {
        let mut arguments = Arguments::default();
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            let mut value = |what: &str| words.next().ok_or(format!("{word} needs {what}"));
            match word.as_str() {
                "-p" | "--package" => arguments.packages.push(value("the name of a package")?),
                "--jobs" => {
                    let text = value("a number")?;
                    let jobs = text.parse().map_err(|_| format!("--jobs {text}: expected 1 or more"))?;
                    arguments.jobs = Some(jobs);
                }
                "--times" => arguments.times = Some(value("the name of a file")?.into()),
                "--long" => arguments.is_long = true,
                option if option.starts_with('-') => {
                    return Err(format!("unknown option: {option}; {EXPECTED}"));
                }
                _ => arguments.texts.push(word),
            }
        }
        Ok(arguments)
    }

    /// Whether every test runs.
    pub fn is_whole(&self) -> bool {
        self.packages.is_empty() && self.texts.is_empty()
    }

    /// Time limit of one test; `asked` is the value of `SILTSTONE_TEST_MINUTES`.
    pub fn limit(&self, asked: Option<&str>) -> Result<Duration, String> {
        let Some(text) = asked else {
            return Ok(Duration::from_secs(60 * if self.is_long { 120 } else { 15 }));
        };
        let minutes: f64 = text.trim().parse().unwrap_or(f64::NAN);
        let limit = Duration::try_from_secs_f64(minutes * 60.0).ok().filter(|limit| !limit.is_zero());
        limit.ok_or(format!("SILTSTONE_TEST_MINUTES={text}: expected a number of minutes above 0"))
    }

    /// Number of tests that run at the same time, and of further ones that mostly wait: half as many again as
    /// there are processors and two, unless a number is given.
    pub fn jobs(&self, processors: usize) -> (usize, usize) {
        self.jobs.map_or(((processors * 3).div_ceil(2), 2), |jobs| (jobs.get(), 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[&str]) -> Result<Arguments, String> {
        Arguments::parse(words.iter().map(|word| (*word).to_owned()))
    }

    #[test]
    fn options_and_texts_are_separated() {
        let arguments =
            parsed(&["-p", "siltstone-log", "crash_log", "--package", "siltstone", "worlds"]).unwrap();
        assert_eq!(arguments.packages, ["siltstone-log", "siltstone"]);
        assert_eq!(arguments.texts, ["crash_log", "worlds"]);
        assert!(!arguments.is_whole() && !arguments.is_long);
        let arguments = parsed(&["--long", "--jobs", "5", "--times", "times"]).unwrap();
        assert!(arguments.is_whole() && arguments.is_long);
        assert_eq!(arguments.times, Some("times".into()));
        assert_eq!(
            (arguments.jobs(2), Arguments::default().jobs(2), Arguments::default().jobs(1)),
            ((5, 0), (3, 2), (2, 2))
        );
    }

    #[test]
    fn wrong_options_are_refused_with_what_is_expected() {
        assert_eq!(parsed(&["-p"]), Err("-p needs the name of a package".to_owned()));
        assert_eq!(parsed(&["--jobs", "0"]), Err("--jobs 0: expected 1 or more".to_owned()));
        assert_eq!(parsed(&["a", "--fast"]), Err(format!("unknown option: --fast; {EXPECTED}")));
    }

    #[test]
    fn a_test_has_minutes() {
        let (short, long) = (Arguments::default(), Arguments { is_long: true, ..Arguments::default() });
        assert_eq!(short.limit(None), Ok(Duration::from_secs(900)));
        assert_eq!(long.limit(None), Ok(Duration::from_secs(7200)));
        assert_eq!(long.limit(Some("0.5")), Ok(Duration::from_secs(30)));
        for wrong in ["", "0", "-1", "soon", "inf", "nan"] {
            assert!(
                short.limit(Some(wrong)).unwrap_err().contains("expected a number of minutes"),
                "{wrong}"
            );
        }
    }
}
