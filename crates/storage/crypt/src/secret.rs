//! Secrets in memory, and the files that they come from.
//!
//! A secret is on locked pages from the moment on at which it is read, and wiped when it is dropped. Its file
//! must be accessible to its owner only, who is the user of this program or root. Errors name the file and
//! never its contents.

use crate::xts::Xts;
use block::{Call, Error, Result};
use runtime::locked_memory::LockedBox;
use rustix::fs::OFlags;
use stack::LockedFile;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use zeroize::Zeroize;

/// Longest passphrase, in bytes; also cryptsetup's.
pub const MAX_PASSPHRASE: usize = 512;

/// A key or a passphrase, on pages of its own.
pub type Secret = LockedBox<Bytes>;

/// Bytes of a secret; wiped when they are dropped.
pub struct Bytes {
    /// One byte more than the longest secret, so that a longer one is noticed.
    bytes: [u8; MAX_PASSPHRASE + 1],
    length: usize,
}

impl Bytes {
    /// The secret.
    pub fn get(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// The secret, to be changed in place.
    pub fn get_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.length]
    }

    fn fill_from(&mut self, mut file: impl Read) -> std::io::Result<()> {
        self.length = 0;
        while self.length < self.bytes.len() {
            match file.read(&mut self.bytes[self.length..])? {
                0 => break,
                count => self.length += count,
            }
        }
        Ok(())
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        self.bytes.zeroize();
    }
}

fn locked<T>(value: T) -> Result<LockedBox<T>> {
    LockedBox::new(value).map_err(|error| {
        let remedy = "expected a sufficient limit of locked memory (ulimit -l), or CAP_IPC_LOCK";
        Error::from_io(&error, "locking the memory of a key").in_context(remedy)
    })
}

/// Returns a secret of `length` zeros, to be filled in place.
///
/// # Errors
/// Errors of locking memory.
pub fn zeroed(length: usize) -> Result<Secret> {
    locked(Bytes { bytes: [0; MAX_PASSPHRASE + 1], length })
}

/// Returns a secret with a copy of these bytes.
///
/// # Errors
/// [`Error::Invalid`] if there are more than 512; errors of locking memory.
pub fn copy_of(bytes: &[u8]) -> Result<Secret> {
    if bytes.len() > MAX_PASSPHRASE {
        return Err(Error::invalid(format!("a secret: expected at most {MAX_PASSPHRASE} bytes")));
    }
    let mut secret = zeroed(bytes.len())?;
    secret.get_mut().copy_from_slice(bytes);
    Ok(secret)
}

/// Expands a key on locked pages.
///
/// # Errors
/// As [`Xts::new`]; errors of locking memory.
pub fn expand(key: &[u8]) -> Result<LockedBox<Xts>> {
    let expanded = locked(Xts::new(key)?);
    wipe_stack();
    expanded
}

/// Overwrites the part of the stack that an expansion of a key has used.
#[inline(never)]
fn wipe_stack() {
    [0_u8; 16 << 10].zeroize();
}

/// Reads a file for [`stack::Arguments::claim`]: a key of 32 or 64 bytes, and nothing else.
pub fn lock_key(path: PathBuf, _alone: bool) -> Call<'static, Result<Option<LockedFile>>> {
    Call::ready(read("key_file", &path).and_then(|key| match key.length {
        32 | 64 => Ok(Some(Box::new(key) as LockedFile)),
        _ => Err(Error::invalid(format!(
            "key_file \"{}\": its length isn't that of a key; expected 32 bytes (AES-128-XTS) or 64 (AES-256-XTS), not as text; \
             (umask 077; head -c 64 /dev/urandom >FILE) makes one",
            path.display()
        ))),
    }))
}

/// Reads a file for [`stack::Arguments::claim`]: a key of 32 bytes, and nothing else.
pub fn lock_key_of_256_bits(path: PathBuf, _alone: bool) -> Call<'static, Result<Option<LockedFile>>> {
    Call::ready(read_key_of_256_bits(&path).map(|key| Some(Box::new(key) as LockedFile)))
}

/// Reads a file with a key of 32 bytes, and nothing else.
///
/// # Errors
/// [`Error::Invalid`] for another length; errors of the file.
pub fn read_key_of_256_bits(path: &Path) -> Result<Secret> {
    let key = read("key_file", path)?;
    match key.length {
        32 => Ok(key),
        _ => Err(Error::invalid(format!(
            "key_file \"{}\": its length isn't that of a key; expected 32 bytes, not as text; \
             (umask 077; head -c 32 /dev/urandom >FILE) makes one",
            path.display()
        ))),
    }
}

/// Reads a file for [`stack::Arguments::claim`]: a passphrase in its first line, without the end of the line.
pub fn lock_passphrase(path: PathBuf, _alone: bool) -> Call<'static, Result<Option<LockedFile>>> {
    Call::ready(read("passphrase_file", &path).and_then(|mut passphrase| {
        let end = passphrase.get().iter().position(|byte| *byte == b'\n').unwrap_or(passphrase.length);
        passphrase.length = end;
        match end {
            1..=MAX_PASSPHRASE => Ok(Some(Box::new(passphrase) as LockedFile)),
            _ => Err(Error::invalid(format!(
                "passphrase_file \"{}\": expected a passphrase of 1 to {MAX_PASSPHRASE} bytes in its first line",
                path.display()
            ))),
        }
    }))
}

/// Possible reason for a wrong passphrase of `length` bytes, which is the first line of a file.
pub fn hint(path: &Path, length: u64, is_crlf: bool) -> &'static str {
    let is_longer = || std::fs::metadata(path).is_ok_and(|found| found.len() > length);
    match is_crlf {
        true => {
            "; the first line of the file ends with CRLF, and the CR is taken as a part of the passphrase; remove it, as with dos2unix"
        }
        false if is_longer() => {
            "; the passphrase is the first line without its end; with cryptsetup --key-file it is the whole file"
        }
        false => "",
    }
}

/// Reads at most 513 bytes of a file that only its owner can access.
fn read(key: &str, path: &Path) -> Result<Secret> {
    let name = format!("{key} \"{}\"", path.display());
    let wrong = |error: std::io::Error| Error::from_io(&error, &name);
    // What is checked is what was opened: the name may get another file at any time. Without NONBLOCK opening
    // a pipe waits for its writer.
    let flags = (OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY).bits() as i32;
    let file = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(wrong)?;
    let metadata = file.metadata().map_err(wrong)?;
    if !metadata.is_file() {
        return Err(Error::invalid(format!("{name}: expected a regular file")));
    }
    let user = rustix::process::geteuid().as_raw();
    check_access(metadata.mode(), metadata.uid(), user)
        .map_err(|problem| Error::invalid(format!("{name}: {problem}")))?;
    let mut secret = zeroed(0)?;
    secret.fill_from(file).map_err(wrong)?;
    Ok(secret)
}

/// Checks the mode and the owner of a file that this user is to trust.
fn check_access(mode: u32, owner: u32, user: u32) -> std::result::Result<(), String> {
    if owner != 0 && owner != user {
        return Err(format!(
            "its owner is user {owner}; expected user {user}, which runs this program, or root; chown it"
        ));
    }
    let mode = mode & 0o777;
    match mode & 0o077 {
        0 => Ok(()),
        _ => Err(format!(
            "others may access it: mode {mode:o}; expected a file for its owner only; chmod 600 it"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn outcome(
        read: fn(PathBuf, bool) -> Call<'static, Result<Option<LockedFile>>>,
        path: &Path,
    ) -> Result<Vec<u8>> {
        let mut call = read(path.to_owned(), false);
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let std::task::Poll::Ready(read) = std::pin::Pin::new(&mut call).poll(&mut context) else {
            panic!("it waits")
        };
        let secret = read?.expect("it exists").downcast::<Secret>().expect("a secret");
        Ok(secret.get().to_vec())
    }

    #[test]
    fn files_of_others_and_wrong_lengths_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        let write = |bytes: &[u8], mode| {
            std::fs::write(&path, bytes).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        };
        assert!(matches!(outcome(lock_key, &path), Err(Error::NotFound(_))));
        for mode in [0o644, 0o640, 0o604, 0o620, 0o601] {
            write(&[7; 64], mode);
            let error = outcome(lock_key, &path).unwrap_err().to_string();
            assert!(error.contains("secret\"") && error.contains(&format!("mode {mode:o}")), "{error}");
        }
        for length in [0, 16, 31, 33, 63, 65, 100_000] {
            write(&vec![7; length], 0o600);
            let error = outcome(lock_key, &path).unwrap_err().to_string();
            assert!(error.contains("expected 32 bytes") && error.contains("(umask 077; head"), "{error}");
        }
        write(&[10; 32], 0o400);
        assert_eq!(outcome(lock_key, &path).unwrap(), [10; 32]);
        for (text, expected) in [
            ("secret", Some("secret")),
            ("two words \nsecond line", Some("two words ")),
            ("", None),
            ("\nsecond", None),
            (&"x".repeat(512), Some(&*"x".repeat(512))),
            (&"x".repeat(513), None),
        ] {
            write(text.as_bytes(), 0o600);
            let passphrase = outcome(lock_passphrase, &path).ok();
            assert_eq!(passphrase.as_deref(), expected.map(str::as_bytes), "{text}");
        }
        assert!(matches!(outcome(lock_key, folder.path()), Err(Error::Invalid(_))));
    }
    #[test]
    fn what_is_no_file_is_refused_without_waiting() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        let mode = rustix::fs::Mode::RUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        for path in [&*path, folder.path(), Path::new("/dev/zero")] {
            let error = outcome(lock_passphrase, path).unwrap_err().to_string();
            assert!(error.contains("expected a regular file"), "{error}");
        }
    }

    #[test]
    fn files_that_another_user_may_change_are_refused() {
        assert_eq!(check_access(0o100_600, 1000, 1000), Ok(()));
        assert_eq!(check_access(0o100_400, 0, 1000), Ok(()));
        for (owner, user) in [(1001, 1000), (1000, 0)] {
            let problem = check_access(0o100_600, owner, user).unwrap_err();
            assert!(problem.contains(&format!("its owner is user {owner}")), "{problem}");
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        std::fs::write(&path, [7; 64]).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        // Only root can give a file away.
        if std::os::unix::fs::chown(&path, Some(1234), None).is_ok() {
            let error = outcome(lock_key, &path).unwrap_err().to_string();
            assert!(error.contains("its owner is user 1234"), "{error}");
        }
    }
}
