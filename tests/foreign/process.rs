//! Programs that run to their end, within a deadline.

use std::path::Path;
use std::process::{Command, Stdio};

/// Time in seconds after which a program is usually killed and the test fails.
const DEADLINE: u32 = 120;
/// Unit of [`random_file`], in bytes.
pub const PATTERN_CHUNK: usize = 64 << 10;

/// Result of a program that has ended.
#[derive(Debug)]
pub struct Finished {
    /// Program and arguments, for the texts of failures.
    pub line: String,
    /// Exit status: 0 is success; `None` after a signal.
    pub code: Option<i32>,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Finished {
    /// Returns the standard output of a program that succeeded.
    ///
    /// # Panics
    /// If it failed.
    #[track_caller]
    pub fn ok(self) -> String {
        assert!(self.code == Some(0), "expected success of {self:#?}");
        self.out
    }

    /// Returns the output of a program that failed by itself and in time.
    ///
    /// # Panics
    /// If it succeeded, was killed or took too long.
    #[track_caller]
    pub fn refused(self) -> String {
        let in_time = self.code.is_some_and(|code| code != 0 && code < 124);
        assert!(in_time, "expected an orderly failure of {self:#?}");
        self.out + &self.err
    }
}

/// Whether a program is installed.
pub fn is_installed(program: &str) -> bool {
    // The administrator's programs (mkfs, debugfs) aren't in every user's path.
    search_path().split(':').any(|folder| Path::new(folder).join(program).is_file())
}

/// Whether the tests run as root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Path in which programs are searched. The system's own folders come first: a Python that a user installed
/// lacks the system's modules.
fn search_path() -> String {
    let usual = std::env::var("PATH").unwrap_or_default();
    format!("/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:{usual}")
}

/// Runs a program to its end, with empty input.
///
/// # Panics
/// If it can't be started, or takes longer than the deadline.
#[track_caller]
pub fn run<A: AsRef<str>>(program: &str, arguments: &[A]) -> Finished {
    run_within(DEADLINE, program, arguments)
}

/// Runs a program to its end, with empty input and a deadline in seconds.
///
/// # Panics
/// As [`run`].
#[track_caller]
pub fn run_within<A: AsRef<str>>(deadline: u32, program: &str, arguments: &[A]) -> Finished {
    // `timeout` makes a process group of its own and ends all of it, so that no process outlives a test by
    // long.
    let mut command = Command::new("timeout");
    command.arg("--kill-after=5").arg(deadline.to_string()).arg(program).env("PATH", search_path());
    let arguments = arguments.iter().map(AsRef::as_ref).collect::<Vec<_>>();
    command.args(&arguments).stdin(Stdio::null());
    let output = command.output().expect("`timeout` of coreutils is there");
    let finished = Finished {
        line: format!("{program} {}", arguments.join(" ")),
        code: output.status.code(),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    };
    assert!(!matches!(finished.code, Some(124 | 137)), "took longer than {deadline} s: {finished:#?}");
    assert!(finished.code != Some(127), "not found: {finished:#?}");
    finished
}

/// Runs lines of shell, which end at the first failure.
///
/// # Panics
/// As [`run`].
#[track_caller]
pub fn run_shell(script: &str) -> Finished {
    run("sh", &["-euc", script])
}

/// Writes a file of seeded bytes with zeros in every third chunk. Returns its contents.
///
/// # Panics
/// If the file can't be written.
pub fn random_file(path: &Path, chunks: usize, seed: u64) -> Vec<u8> {
    let mut random = runtime::Random::new(seed);
    let mut bytes = vec![0; chunks * PATTERN_CHUNK];
    for (index, chunk) in bytes.chunks_exact_mut(PATTERN_CHUNK).enumerate() {
        if index % 3 != 2 {
            chunk.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&random.next_u64().to_le_bytes()));
        }
    }
    std::fs::write(path, &bytes).expect("the test's folder can be written");
    bytes
}
