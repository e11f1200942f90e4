//! Files that the parts of a stack open for themselves: no two parts may take the same one, unless both only read it.
//!
//! Promises: a file is known again by another spelling, through links, and also where it isn't there yet. Nothing is opened.
//!
//! Left to others: the lock that opening takes, which also keeps other programs out.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The most links that are followed from one name, as the kernel does.
const MOST_LINKS: usize = 40;

/// That a part opens a file.
#[derive(Debug)]
pub(crate) struct Claim {
    /// The key that names it.
    pub key: &'static str,
    pub path: PathBuf,
    /// Nobody else may have it open; else others that only read may.
    pub alone: bool,
    file: Identity,
}

/// Which file a path leads to.
#[derive(Debug, PartialEq, Eq)]
enum Identity {
    /// Device and inode.
    There(u64, u64),
    /// Where it would be made.
    NotThere(PathBuf),
}

impl Claim {
    pub fn new(key: &'static str, path: &Path, alone: bool) -> Self {
        Claim { key, path: path.to_owned(), alone, file: identity(path) }
    }

    /// Whether the two can't both be open.
    pub fn excludes(&self, other: &Claim) -> bool {
        (self.alone || other.alone) && self.file == other.file
    }
}

fn identity(path: &Path) -> Identity {
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        if let Ok(found) = std::fs::metadata(&path) {
            return Identity::There(found.dev(), found.ino());
        }
        // A link to a file that isn't there: opening makes that file.
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
        let claim = |name: &str, alone| Claim::new("path", &at(name), alone);
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
}
