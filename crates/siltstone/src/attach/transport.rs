//! Transports: by which driver of the kernel a stack becomes a node.

use block::{Error, Result};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Driver of the kernel between node and server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// A block driver in user space (ublk): `/dev/ublkbN`.
    Ublk,
    /// A loop device over a file of a FUSE server: `/dev/loopN`.
    Fuse,
}

impl Transport {
    /// The transport as a word.
    pub fn word(self) -> &'static str {
        match self {
            Transport::Ublk => "ublk",
            Transport::Fuse => "fuse",
        }
    }
}

/// What this machine has.
#[derive(Debug, Clone, Copy)]
pub struct Machine {
    /// Effective user 0.
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
}

/// Chooses a transport, and says why.
///
/// # Errors
/// [`Error::PermissionDenied`] without root, [`Error::Unsupported`] for a machine that lacks the transport that was asked for, or any.
pub fn choose(machine: &Machine, asked: Option<Transport>) -> Result<(Transport, &'static str)> {
    const INSTEAD: &str = "siltstone serve --nbd needs neither root nor drivers";
    if !machine.is_root {
        return Err(Error::permission_denied(format!(
            "attach needs root, to make a block device: run it with sudo; {INSTEAD}"
        )));
    }
    let lacks = |what: &str, module: &str| {
        Err(Error::unsupported(format!(
            "attach needs {what}: load the module with modprobe {module}; {INSTEAD}"
        )))
    };
    let why = match (asked, machine.has_ublk) {
        (None, true) => return Ok((Transport::Ublk, "the kernel has ublk")),
        (Some(Transport::Ublk), true) => return Ok((Transport::Ublk, "asked for")),
        (Some(Transport::Ublk), false) => return lacks("/dev/ublk-control", "ublk_drv"),
        (Some(Transport::Fuse), _) => "asked for",
        (None, false) => "there is no /dev/ublk-control",
    };
    match (machine.has_fuse, machine.has_loop) {
        (false, _) => lacks("/dev/fuse", "fuse"),
        (true, false) => lacks("/dev/loop-control", "loop"),
        (true, true) => Ok((Transport::Fuse, why)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ublk_comes_first_and_what_is_missing_is_named() {
        let all = Machine { is_root: true, has_ublk: true, has_fuse: true, has_loop: true };
        let chosen = |machine: &Machine, asked| choose(machine, asked).map(|(transport, _)| transport);
        assert_eq!(chosen(&all, None), Ok(Transport::Ublk));
        assert_eq!(chosen(&all, Some(Transport::Fuse)), Ok(Transport::Fuse));
        let without = Machine { has_ublk: false, ..all };
        assert_eq!(choose(&without, None), Ok((Transport::Fuse, "there is no /dev/ublk-control")));
        let cases = [
            (Machine { is_root: false, ..all }, None, "sudo"),
            (without, Some(Transport::Ublk), "modprobe ublk_drv"),
            (Machine { has_fuse: false, ..without }, None, "modprobe fuse"),
            (Machine { has_loop: false, ..without }, None, "modprobe loop"),
        ];
        for (machine, asked, expected) in cases {
            let text = choose(&machine, asked).unwrap_err().to_string();
            assert!(text.contains(expected) && text.contains("--nbd"), "{machine:?}: {text}");
        }
    }
}
