//! Functions that run the program as users do.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

/// Outcome of a run.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

const PROGRAM: &str = env!("CARGO_BIN_EXE_siltstone");

pub fn command(folder: &Path, arguments: &[&str]) -> Command {
    with_pipes(Command::new(PROGRAM), folder, arguments)
}

/// Returns the program as [`command`] does, in a `/run` of its own ([`in_own_run`]).
pub fn isolated(folder: &Path, arguments: &[&str]) -> Command {
    with_pipes(in_own_run(PROGRAM), folder, arguments)
}

/// Returns the command of a program whose `/run` is empty, so that it finds no servers besides those of its
/// test. Root alone may do that; for others it is the program itself.
pub fn in_own_run(program: &str) -> Command {
    static IS_PERMITTED: OnceLock<bool> = OnceLock::new();
    let unshare = |program: &str| {
        let script = "mount -t tmpfs none /run && exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script, "sh", program]);
        command
    };
    let is_permitted = || unshare("true").output().is_ok_and(|output| output.status.success());
    match IS_PERMITTED.get_or_init(is_permitted) {
        true => unshare(program),
        false => Command::new(program),
    }
}

fn with_pipes(mut command: Command, folder: &Path, arguments: &[&str]) -> Command {
    command.args(arguments).current_dir(folder).stdin(Stdio::null()).env("COLUMNS", "120");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub fn run(folder: &Path, arguments: &[&str]) -> Ran {
    let output = command(folder, arguments).output().unwrap();
    Ran {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Reads lines until one contains `text`, and returns that line.
pub fn wait_for(stream: impl std::io::Read, text: &str) -> String {
    let mut lines = BufReader::new(stream).lines();
    lines
        .find_map(|line| line.ok().filter(|line| line.contains(text)))
        .unwrap_or_else(|| panic!("no line with {text}"))
}

pub fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args([&format!("-{name}"), &child.id().to_string()]).status().unwrap();
    assert!(sent.success(), "the process lives");
}

/// Returns the root of the repository.
pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().parent().unwrap()
}

/// Returns the files with this ending in a folder of the repository.
pub fn files(folder: &str, ending: &str) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(repository().join(folder)).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|found| found == ending));
    files.sort();
    assert!(!files.is_empty(), "{folder} has files that end in {ending}");
    files
}

/// Whether a TOML file is a stack rather than a plan.
pub fn is_stack(path: &Path) -> bool {
    let text = std::fs::read_to_string(path).unwrap();
    ["\n[device.", "\n[zones."].iter().any(|section| text.contains(section))
}
