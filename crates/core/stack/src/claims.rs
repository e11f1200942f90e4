//! Files that the parts of a stack open: no two parts may open the same one, unless both only read it.
//!
//! A file is identified for every spelling of its path, through links, and before it exists; a block device
//! by any of its nodes. No file is opened before a stack is built. Then every existing file is locked before
//! the first part is built.
//!
//! The kind implements the lock itself ([`LockFile`]), which also excludes other programs.

use block::{Call, Result};
use std::any::Any;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Open and locked file, in the form of its kind, until this is dropped.
pub type LockedFile = Box<dyn Any + Send>;

/// Opens a file and locks it, alone or together with others that only read it, without changing it; `None` if
/// it doesn't exist.
pub type LockFile = fn(PathBuf, bool) -> Call<'static, Result<Option<LockedFile>>>;

/// Most links that are followed from one name, as in the kernel.
const MAX_LINKS: usize = 40;

/// Claim of a part on a file.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    /// Key that names the file.
    pub key: &'static str,
    pub path: PathBuf,
    /// Whether the claim excludes all other parts; otherwise other readers are permitted.
    pub alone: bool,
    pub lock: LockFile,
    file: Identity,
}

/// Identity of the file at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Identity {
    /// Device and inode.
    There(u64, u64),
    /// Number of the block device, for all of its nodes.
    BlockDevice(u64),
    /// Path of a file that doesn't exist yet.
    NotThere(PathBuf),
}

impl Claim {
    pub fn new(key: &'static str, path: &Path, alone: bool, lock: LockFile) -> Self {
        Claim { key, path: path.to_owned(), alone, lock, file: identity(path) }
    }

    /// Whether the two claims exclude each other.
    pub fn excludes(&self, other: &Claim) -> bool {
        (self.alone || other.alone) && self.file == other.file
    }
}

fn identity(path: &Path) -> Identity {
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        if let Ok(found) = std::fs::metadata(&path) {
            return match found.file_type().is_block_device() {
                true => Identity::BlockDevice(found.rdev()),
                false => Identity::There(found.dev(), found.ino()),
            };
        }
        // A link to a missing file: opening creates that file.
        let Ok(target) = std::fs::read_link(&path) else { break };
        path = path.parent().unwrap_or(Path::new("")).join(target);
    }
    let folder = path.parent().and_then(|folder| folder.canonicalize().ok());
    match (folder, path.file_name()) {
        (Some(folder), Some(name)) => Identity::NotThere(folder.join(name)),
        _ => Identity::NotThere(path),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_file_is_known_by_all_its_names() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir(at("sub")).unwrap();
        std::fs::write(at("a"), "").unwrap();
        std::fs::write(at("other"), "").unwrap();
        std::fs::hard_link(at("a"), at("hard")).unwrap();
        symlink("a", at("soft")).unwrap();
        symlink(at("sub"), at("folder")).unwrap();
        symlink("../later", at("sub/to-later")).unwrap();
        symlink("round", at("round")).unwrap();
        let claim = |name: &str, alone| Claim::new("path", &at(name), alone, |_, _| Call::ready(Ok(None)));
        let same = [
            ["a", "sub/../a"],
            ["a", "./a"],
            ["a", "hard"],
            ["a", "soft"],
            ["sub/new", "folder/new"],
            ["later", "sub/to-later"],
            ["later", "folder/to-later"],
            ["nowhere/new", "nowhere/new"],
            ["round", "round"],
        ];
        for [one, other] in same {
            assert!(claim(one, true).excludes(&claim(other, true)), "{one} {other}");
            assert!(claim(one, false).excludes(&claim(other, true)), "{one} {other}");
            assert!(!claim(one, false).excludes(&claim(other, false)), "both only read {one}");
        }
        for [one, other] in [["a", "other"], ["new", "sub/new"], ["new", "newer"], ["sub/to-later", "later2"]]
        {
            assert!(!claim(one, true).excludes(&claim(other, true)), "{one} {other}");
        }
    }

    #[test]
    fn a_block_device_is_known_by_all_its_nodes() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        // Numbers without a driver suffice, since nodes aren't opened.
        let node = |name: &str, minor: &str| {
            let made = std::process::Command::new("mknod").arg(at(name)).args(["b", "7", minor]).output();
            made.is_ok_and(|output| output.status.success())
        };
        if !node("a", "240") {
            return println!("SKIPPED: a_block_device_is_known_by_all_its_nodes: mknod needs root");
        }
        assert!(node("twin", "240") && node("other", "241"));
        symlink("twin", at("soft")).unwrap();
        let claim = |name: &str| Claim::new("path", &at(name), true, |_, _| Call::ready(Ok(None)));
        assert!(claim("a").excludes(&claim("twin")) && claim("a").excludes(&claim("soft")));
        assert!(!claim("a").excludes(&claim("other")));
    }
}
