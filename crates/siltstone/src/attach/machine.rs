//! Choice of the driver that gives a stack a node on this machine.

pub use super::driver::Driver;
use block::{Error, Result};

/// Advice for a device on a machine without a driver.
pub const INSTEAD: &str = "siltstone serve --nbd needs neither root nor drivers";
/// Advice for zones on a machine without a driver.
pub const INSTEAD_OF_ZONES: &str = "a log on the zones, log(…), is a device that needs no zoned driver";

/// Chooses the driver of a node: the requested one, else the first in [order of
/// preference](Driver::PREFERENCE) whose `check` succeeds. Drivers after it aren't checked, since a check may
/// load a kernel module. Errors end with `instead`.
///
/// # Errors
/// [`Error::PermissionDenied`] without root; [`Error::Unsupported`] if the requested driver, or every driver,
/// is unavailable.
pub fn choose(
    asked: Option<Driver>,
    is_root: bool,
    instead: &str,
    check: impl Fn(Driver) -> Result<()>,
) -> Result<(Driver, String)> {
    if !is_root {
        return Err(Error::permission_denied(format!(
            "attach needs root, to make a block device: run it with sudo; {instead}"
        )));
    }
    if let Some(driver) = asked {
        return match check(driver) {
            Ok(()) => Ok((driver, "asked for".to_owned())),
            Err(error) => {
                Err(Error::unsupported(format!("--via {}: {}; {instead}", driver.word(), error.detail())))
            }
        };
    }
    let mut reasons: Vec<String> = Vec::new();
    for driver in Driver::PREFERENCE {
        match check(driver) {
            Ok(()) if reasons.is_empty() => return Ok((driver, "the kernel has it".to_owned())),
            Ok(()) => return Ok((driver, reasons.join("; "))),
            Err(error) => reasons.push(error.detail().to_owned()),
        }
    }
    Err(Error::unsupported(format!("attach needs a driver of the kernel: {}; {instead}", reasons.join("; "))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// Drivers of a machine, each with the reason if it is unavailable.
    struct Drivers {
        ublk: Option<&'static str>,
        nbd: Option<&'static str>,
        fuse: Option<&'static str>,
        /// Drivers that were checked.
        checked: RefCell<Vec<Driver>>,
    }

    impl Drivers {
        fn new(ublk: Option<&'static str>, nbd: Option<&'static str>, fuse: Option<&'static str>) -> Drivers {
            Drivers { ublk, nbd, fuse, checked: RefCell::default() }
        }

        fn choose(&self, asked: Option<Driver>) -> Result<(Driver, String)> {
            choose(asked, true, INSTEAD, |driver| {
                self.checked.borrow_mut().push(driver);
                let reason = match driver {
                    Driver::Ublk => self.ublk,
                    Driver::Nbd => self.nbd,
                    Driver::Fuse => self.fuse,
                };
                reason.map_or(Ok(()), |reason| Err(Error::unsupported(reason)))
            })
        }
    }

    #[test]
    fn the_first_driver_that_can_be_used_is_chosen_and_the_reasons_against_others_are_told() {
        let all = Drivers::new(None, None, None);
        assert_eq!(all.choose(None), Ok((Driver::Ublk, "the kernel has it".to_owned())));
        let without_ublk = Drivers::new(Some("modprobe ublk_drv"), None, None);
        assert_eq!(without_ublk.choose(None), Ok((Driver::Nbd, "modprobe ublk_drv".to_owned())));
        let fuse_alone = Drivers::new(Some("modprobe ublk_drv"), Some("modprobe nbd"), None);
        let why = "modprobe ublk_drv; modprobe nbd".to_owned();
        assert_eq!(fuse_alone.choose(None), Ok((Driver::Fuse, why)));
    }

    #[test]
    fn the_driver_that_was_asked_for_is_chosen() {
        let all = Drivers::new(None, None, None);
        for driver in Driver::PREFERENCE {
            assert_eq!(all.choose(Some(driver)), Ok((driver, "asked for".to_owned())));
        }
        assert_eq!(*all.checked.borrow(), Driver::PREFERENCE);
    }

    #[test]
    fn drivers_after_the_chosen_one_are_not_checked() {
        let without_ublk = Drivers::new(Some("modprobe ublk_drv"), None, None);
        without_ublk.choose(None).unwrap();
        assert_eq!(*without_ublk.checked.borrow(), [Driver::Ublk, Driver::Nbd]);
    }

    #[test]
    fn what_is_missing_is_named() {
        let none = Drivers::new(Some("modprobe ublk_drv"), Some("modprobe nbd"), Some("modprobe fuse"));
        let cases = [
            (None, &["modprobe ublk_drv", "modprobe nbd", "modprobe fuse"][..]),
            (Some(Driver::Ublk), &["--via ublk", "modprobe ublk_drv"]),
            (Some(Driver::Nbd), &["--via nbd", "modprobe nbd"]),
            (Some(Driver::Fuse), &["--via fuse", "modprobe fuse"]),
        ];
        for (asked, expected) in cases {
            let text = none.choose(asked).unwrap_err().to_string();
            assert!(expected.iter().all(|part| text.contains(part)), "{asked:?}: {text}");
            assert!(text.contains("siltstone serve --nbd needs neither root nor drivers"), "{text}");
        }
        let text = choose(None, false, INSTEAD, |_| Ok(())).unwrap_err().to_string();
        assert!(text.contains("sudo") && text.contains("--nbd"), "{text}");
    }
}
