//! Files with passwords: a password in the first line, or a list of users.

use block::{Error, Result};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Longest file with passwords, in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Reads a file with passwords.
///
/// # Errors
/// Errors of opening and reading; [`Error::Invalid`] for more than 1 MiB, or a text that isn't UTF-8.
pub fn read(path: &Path) -> Result<String> {
    let doing = format!("reading \"{}\"", path.display());
    let mut text = String::new();
    let length = File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_string(&mut text));
    match length {
        Ok(length) if length as u64 <= MAX_BYTES => Ok(text),
        Ok(_) => Err(Error::invalid(format!("{doing}: it is too long; expected at most {MAX_BYTES} bytes"))),
        Err(error) => {
            let error = Error::from_io(&error, &doing);
            Err(error
                .with_detail(format!("{}; expected a text file that this user may read", error.detail())))
        }
    }
}

/// Returns the password in the first line of a file.
///
/// # Errors
/// As [`read`]; [`Error::Invalid`] for an empty line.
pub fn password_in(path: &Path) -> Result<String> {
    match read(path)?.lines().next() {
        Some(password) if !password.is_empty() => Ok(password.to_owned()),
        _ => Err(Error::invalid(format!(
            "password file \"{}\": expected a password in its first line",
            path.display()
        ))),
    }
}

/// Logs a warning if users besides the owner and the group of a file with passwords may read or change it.
pub fn warn_of_access(path: &Path) {
    let mode =
        std::fs::metadata(path).map_or(0, |found| if found.is_file() { found.mode() & 0o777 } else { 0 });
    if mode & 0o007 != 0 {
        tracing::warn!(
            "\"{}\" has passwords, and all users may access it: mode {mode:o}; expected 600 or 640; run chmod o= on it",
            path.display()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_is_the_password() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("password");
        std::fs::write(&path, "hunter2\nsecond\n").unwrap();
        assert_eq!(password_in(&path).unwrap(), "hunter2");
        let long = "x".repeat(MAX_BYTES as usize + 1);
        for (contents, expected) in [
            (&b""[..], "expected a password in its first line"),
            (b"\nsecond", "expected a password in its first line"),
            (b"\xff", "expected a text file"),
            (long.as_bytes(), "at most 1048576 bytes"),
        ] {
            std::fs::write(&path, contents).unwrap();
            let error = password_in(&path).unwrap_err().to_string();
            assert!(error.contains(expected) && error.contains(path.to_str().unwrap()), "{error}");
        }
        assert!(matches!(password_in(&folder.path().join("none")), Err(Error::NotFound(_))));
    }
}
