//! What this machine needs for a node, and by which driver of the kernel a stack becomes one.

use block::{Error, Result};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Driver of the kernel between node and server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Driver {
    /// A block driver in user space: `/dev/ublkbN`.
    Ublk,
    /// A loop device over a file of a FUSE server: `/dev/loopN`.
    Fuse,
}

impl Driver {
    /// The driver as a word.
    pub fn word(self) -> &'static str {
        match self {
            Driver::Ublk => "ublk",
            Driver::Fuse => "fuse",
        }
    }
}

/// What a machine has.
#[derive(Debug, Clone, Copy)]
pub struct Machine {
    /// The effective user is root.
    pub is_root: bool,
    /// `/dev/ublk-control`.
    pub has_ublk: bool,
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
            has_ublk: exists("/dev/ublk-control"),
            has_fuse: exists("/dev/fuse"),
            has_loop: exists("/dev/loop-control"),
        }
    }

    /// Chooses the driver of a node, and says why.
    ///
    /// # Errors
    /// [`Error::PermissionDenied`] without root; [`Error::Unsupported`] without the driver that was asked for, or any.
    pub fn choose(&self, asked: Option<Driver>) -> Result<(Driver, &'static str)> {
        const INSTEAD: &str = "siltstone serve --nbd needs neither root nor drivers";
        if !self.is_root {
            return Err(Error::permission_denied(format!(
                "attach needs root, to make a block device: run it with sudo; {INSTEAD}"
            )));
        }
        let lacks = |path: &str, module: &str| {
            Err(Error::unsupported(format!(
                "attach needs {path}: load the module with modprobe {module}; {INSTEAD}"
            )))
        };
        let why = match (asked, self.has_ublk) {
            (None, true) => return Ok((Driver::Ublk, "the kernel has it")),
            (Some(Driver::Ublk), true) => return Ok((Driver::Ublk, "asked for")),
            (Some(Driver::Ublk), false) => return lacks("/dev/ublk-control", "ublk_drv"),
            (Some(Driver::Fuse), _) => "asked for",
            (None, false) => "there is no /dev/ublk-control",
        };
        match (self.has_fuse, self.has_loop) {
            (false, _) => lacks("/dev/fuse", "fuse"),
            (true, false) => lacks("/dev/loop-control", "loop"),
            (true, true) => Ok((Driver::Fuse, why)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ublk_comes_first_and_what_is_missing_is_named() {
        let all = Machine { is_root: true, has_ublk: true, has_fuse: true, has_loop: true };
        let chosen = |machine: &Machine, asked| machine.choose(asked).map(|(driver, _)| driver);
        assert_eq!(chosen(&all, None), Ok(Driver::Ublk));
        assert_eq!(chosen(&all, Some(Driver::Fuse)), Ok(Driver::Fuse));
        let without = Machine { has_ublk: false, ..all };
        assert_eq!(without.choose(None), Ok((Driver::Fuse, "there is no /dev/ublk-control")));
        let cases = [
            (Machine { is_root: false, ..all }, None, "sudo"),
            (without, Some(Driver::Ublk), "modprobe ublk_drv"),
            (Machine { has_fuse: false, ..without }, None, "modprobe fuse"),
            (Machine { has_loop: false, ..without }, None, "modprobe loop"),
        ];
        for (machine, asked, expected) in cases {
            let text = machine.choose(asked).unwrap_err().to_string();
            assert!(text.contains(expected) && text.contains("--nbd"), "{machine:?}: {text}");
        }
    }
}
