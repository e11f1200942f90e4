//! What this machine needs for a node.

use block::{Error, Result};
use std::path::Path;

/// What a machine has.
#[derive(Debug, Clone, Copy)]
pub struct Machine {
    /// The effective user is root.
    pub is_root: bool,
    /// `/dev/fuse`.
    pub has_fuse: bool,
    /// `/dev/loop-control`.
    pub has_loop: bool,
}

impl Machine {
    /// This machine.
    pub fn this() -> Machine {
        let exists = |path: &str| Path::new(path).exists();
        Machine {
            is_root: rustix::process::geteuid().is_root(),
            has_fuse: exists("/dev/fuse"),
            has_loop: exists("/dev/loop-control"),
        }
    }

    /// Checks that a node can be made.
    ///
    /// # Errors
    /// [`Error::PermissionDenied`] without root, [`Error::Unsupported`] without a driver.
    pub fn check(&self) -> Result<()> {
        const INSTEAD: &str = "siltstone serve --nbd needs neither root nor drivers";
        if !self.is_root {
            return Err(Error::permission_denied(format!(
                "attach needs root, to make a block device: run it with sudo; {INSTEAD}"
            )));
        }
        for (is_there, path, module) in
            [(self.has_fuse, "/dev/fuse", "fuse"), (self.has_loop, "/dev/loop-control", "loop")]
        {
            if !is_there {
                return Err(Error::unsupported(format!(
                    "attach needs {path}: load the module with modprobe {module}; {INSTEAD}"
                )));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named() {
        let all = Machine { is_root: true, has_fuse: true, has_loop: true };
        assert_eq!(all.check(), Ok(()));
        let cases = [
            (Machine { is_root: false, ..all }, "sudo"),
            (Machine { has_fuse: false, ..all }, "modprobe fuse"),
            (Machine { has_loop: false, ..all }, "modprobe loop"),
        ];
        for (machine, expected) in cases {
            let text = machine.check().unwrap_err().to_string();
            assert!(text.contains(expected) && text.contains("--nbd"), "{machine:?}: {text}");
        }
    }
}
