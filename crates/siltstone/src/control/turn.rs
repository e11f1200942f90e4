//! Order of programs that open the same stack at the same time: a verb waits for a starting server, which
//! would otherwise find the stack in use, and a server waits for a verb.
//!
//! The others are found in `/proc`: programs of the same user and the same executable, started within the
//! last [`YOUNG`], with the same stack on their command lines. No other program is waited for, and none for
//! longer than [`WAIT_LIMIT`].

use crate::output::say;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest wait for another program.
pub const WAIT_LIMIT: Duration = Duration::from_secs(60);
/// Interval between checks.
pub const PAUSE: Duration = Duration::from_millis(50);
/// Age above which a program isn't waited for: it isn't a short request.
const YOUNG: Duration = Duration::from_secs(60);

/// Verbs that have a stack open for a short time.
const VERBS: [&str; 7] = ["status", "metrics", "message", "snapshot", "resize", "check", "format"];

/// Kind of program to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// A server that listens for operators at the address that is derived from the stack.
    Server,
    /// A program that opens the stack for one request.
    Verb,
}

/// Another program.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Other {
    folder: PathBuf,
    arguments: Vec<String>,
}

/// Whether a command line is that of a wanted program for the stack `stack`, relative to `folder`.
fn is_wanted(other: &Other, wanted: Wanted, stack: &str, folder: &Path) -> bool {
    let real = |folder: &Path, text: &str| std::fs::canonicalize(folder.join(text)).ok();
    let own = real(folder, stack);
    let is_same = |text: &String| match &own {
        Some(own) => real(&other.folder, text).as_ref() == Some(own),
        None => text == stack && other.folder == folder,
    };
    let words: Vec<&str> = other.arguments.iter().map(String::as_str).collect();
    let serves = words.contains(&"serve");
    let listens_elsewhere = words
        .iter()
        .any(|word| word.starts_with("--control") || *word == "--no-control" || *word == "--holder");
    let is_kind = match wanted {
        Wanted::Server => serves && !listens_elsewhere,
        Wanted::Verb => words.iter().any(|word| VERBS.contains(word)) && !serves,
    };
    is_kind && other.arguments.iter().skip(1).any(is_same)
}

/// Returns the process number of a wanted program; `stack` is relative to the working directory.
pub fn other(wanted: Wanted, stack: &str) -> Option<u32> {
    let folder = std::env::current_dir().ok()?;
    let own = std::process::id();
    let entries = std::fs::read_dir("/proc").ok()?.flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    numbers
        .filter(|number| *number != own)
        .find(|number| young(*number).is_some_and(|other| is_wanted(&other, wanted, stack, &folder)))
}

/// Returns a young program of this user and this executable; `None` for any other.
fn young(process: u32) -> Option<Other> {
    let path = PathBuf::from(format!("/proc/{process}"));
    let found = std::fs::metadata(&path).ok()?;
    if found.uid() != rustix::process::geteuid().as_raw() {
        return None;
    }
    let program = |path: &Path| std::fs::metadata(path.join("exe")).ok().map(|it| (it.dev(), it.ino()));
    if age(&path)? > YOUNG || program(&path)? != program(Path::new("/proc/self"))? {
        return None;
    }
    let text = std::fs::read(path.join("cmdline")).ok()?;
    let words = text.split(|byte| *byte == 0).map(|word| word.to_vec());
    let arguments =
        words.map(|word| std::ffi::OsString::from_vec(word).to_string_lossy().into_owned()).collect();
    Some(Other { folder: std::fs::read_link(path.join("cwd")).ok()?, arguments })
}

/// Time since the start of a process (proc(5)).
fn age(process: &Path) -> Option<Duration> {
    let stat = std::fs::read_to_string(process.join("stat")).ok()?;
    // The name in parentheses may contain blanks. The 22nd word is the start time, in clock ticks since boot.
    let ticks: f64 = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
    let uptime: f64 = std::fs::read_to_string("/proc/uptime").ok()?.split(' ').next()?.parse().ok()?;
    let started = ticks / rustix::param::clock_ticks_per_second() as f64;
    Duration::try_from_secs_f64((uptime - started).max(0.0)).ok()
}

/// Prints once what this program waits for.
pub fn tell(waiting: &mut bool, what: &str, process: u32) {
    if !std::mem::replace(waiting, true) {
        say(&format!("waiting for {what} (process {process}), for at most {} s", WAIT_LIMIT.as_secs()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_with_the_same_stack_are_told_from_others() {
        let folder = tempfile::tempdir().unwrap();
        let root = std::fs::canonicalize(folder.path()).unwrap();
        std::fs::create_dir(root.join("sub")).unwrap();
        std::fs::write(root.join("sub/log.toml"), "").unwrap();
        let other = |at: &str, line: &str| Other {
            folder: root.join(at),
            arguments: line.split(' ').map(str::to_owned).collect(),
        };
        let server = |it: &Other, stack: &str| is_wanted(it, Wanted::Server, stack, &root);
        let verb = |it: &Other, stack: &str| is_wanted(it, Wanted::Verb, stack, &root);
        let serving = other("sub", "siltstone serve log.toml --format");
        assert!(server(&serving, "sub/log.toml") && !verb(&serving, "sub/log.toml"));
        assert!(!server(&serving, "log.toml") && !server(&serving, "ram(1MiB)"));
        assert!(!server(&other("sub", "siltstone serve log.toml --no-control"), "sub/log.toml"));
        assert!(!server(&other("sub", "siltstone serve log.toml --control a"), "sub/log.toml"));
        let line = other("", "siltstone serve ram(1MiB)");
        assert!(server(&line, "ram(1MiB)"));
        assert!(!server(&other("sub", "siltstone serve ram(1MiB)"), "ram(1MiB)"));
        let asking = other("", "siltstone snapshot create sub/log.toml before");
        assert!(verb(&asking, "sub/log.toml") && !server(&asking, "sub/log.toml"));
    }

    #[test]
    fn this_program_is_young() {
        let own = young(std::process::id()).expect("it has just been started");
        assert_eq!(own.folder, std::env::current_dir().unwrap());
        assert_eq!(young(1), None);
    }
}
