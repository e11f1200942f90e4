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
    /// The kernel's NBD client: `/dev/nbdN`.
    Nbd,
    /// A loop device over a file of a FUSE server: `/dev/loopN`.
    Fuse,
}

impl Driver {
    /// The driver as a word.
    pub fn word(self) -> &'static str {
        match self {
            Driver::Ublk => "ublk",
            Driver::Nbd => "nbd",
            Driver::Fuse => "fuse",
        }
    }
}

/// What a machine has.
#[derive(Debug, Clone)]
pub struct Machine {
    /// The effective user is root.
    pub is_root: bool,
    /// `/dev/ublk-control`.
    pub has_ublk: bool,
    /// Whether the kernel has an NBD client; the reason if it has none that can be used. `None` where that wasn't asked.
    pub nbd: Option<Result<()>>,
    /// `/dev/fuse`.
    pub has_fuse: bool,
    /// `/dev/loop-control`.
    pub has_loop: bool,
}

impl Machine {
    /// This machine, as far as it matters for the driver that was asked for. Looking for the NBD client may load its module, so nobody else causes
    /// that.
    pub fn this(asked: Option<Driver>) -> Machine {
        let exists = |path: &str| Path::new(path).exists();
        let is_root = rustix::process::geteuid().is_root();
        let has_ublk = exists("/dev/ublk-control");
        let may_be_nbd = asked == Some(Driver::Nbd) || asked.is_none() && !has_ublk;
        Machine {
            is_root,
            has_ublk,
            nbd: (is_root && may_be_nbd).then(doors::nbd::kernel::check),
            has_fuse: exists("/dev/fuse"),
            has_loop: exists("/dev/loop-control"),
        }
    }

    /// Chooses the driver of a node, and says why.
    ///
    /// # Errors
    /// [`Error::PermissionDenied`] without root; [`Error::Unsupported`] without the driver that was asked for, or any.
    pub fn choose(&self, asked: Option<Driver>) -> Result<(Driver, String)> {
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
        const NO_UBLK: &str = "there is no /dev/ublk-control";
        let asked_for = || "asked for".to_owned();
        let why = match (asked, self.has_ublk, &self.nbd) {
            (None, true, _) => return Ok((Driver::Ublk, "the kernel has it".to_owned())),
            (Some(Driver::Ublk), true, _) => return Ok((Driver::Ublk, asked_for())),
            (Some(Driver::Ublk), false, _) => return lacks("/dev/ublk-control", "ublk_drv"),
            (Some(Driver::Nbd), _, Some(Err(error))) => {
                return Err(Error::unsupported(format!("--via nbd: {}; {INSTEAD}", error.detail())));
            }
            (Some(Driver::Nbd), ..) => return Ok((Driver::Nbd, asked_for())),
            (None, false, Some(Ok(()))) => return Ok((Driver::Nbd, NO_UBLK.to_owned())),
            (None, false, Some(Err(error))) => format!("{NO_UBLK}; {}", error.detail()),
            (None, false, None) => NO_UBLK.to_owned(),
            (Some(Driver::Fuse), ..) => asked_for(),
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
    fn ublk_comes_first_then_nbd_and_what_is_missing_is_named() {
        let all =
            Machine { is_root: true, has_ublk: true, nbd: Some(Ok(())), has_fuse: true, has_loop: true };
        let chosen = |machine: &Machine, asked| machine.choose(asked).map(|(driver, _)| driver);
        assert_eq!(chosen(&all, None), Ok(Driver::Ublk));
        assert_eq!(chosen(&all, Some(Driver::Fuse)), Ok(Driver::Fuse));
        assert_eq!(chosen(&all, Some(Driver::Nbd)), Ok(Driver::Nbd));
        let with_nbd = Machine { has_ublk: false, ..all.clone() };
        assert_eq!(with_nbd.choose(None), Ok((Driver::Nbd, "there is no /dev/ublk-control".to_owned())));
        let without = Machine { nbd: Some(Err(Error::unsupported("modprobe nbd"))), ..with_nbd };
        let why = "there is no /dev/ublk-control; modprobe nbd".to_owned();
        assert_eq!(without.choose(None), Ok((Driver::Fuse, why)));
        let cases = [
            (Machine { is_root: false, ..all }, None, "sudo"),
            (without.clone(), Some(Driver::Ublk), "modprobe ublk_drv"),
            (without.clone(), Some(Driver::Nbd), "modprobe nbd"),
            (Machine { has_fuse: false, ..without.clone() }, None, "modprobe fuse"),
            (Machine { has_loop: false, ..without }, None, "modprobe loop"),
        ];
        for (machine, asked, expected) in cases {
            let text = machine.choose(asked).unwrap_err().to_string();
            assert!(text.contains(expected) && text.contains("--nbd"), "{machine:?}: {text}");
        }
    }
}
