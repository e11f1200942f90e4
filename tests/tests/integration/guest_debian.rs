//! The package on a fresh Debian with systemd as its first process, as a new user meets it: installation, the
//! three commands of the book, all units, two reboots, servers killed, an upgrade under writes, the removal.
//!
//! `guest/debian` makes and boots the machine, `guest/debian-steps` has the steps. A finding that isn't so
//! begins with `FAULT`.

use siltstone_tests::foreign::{binary, run, run_within, skip};
use siltstone_tests::{need, need_guest};

/// Time in seconds after which the script is killed: that of all boots that it permits.
const DEADLINE: u32 = 6 * 900;
/// Exit status of the script without the machine.
const NO_MACHINE: i32 = 125;

#[test]
fn a_new_user_keeps_everything_over_reboots_and_an_upgrade() {
    if conformance::budget::is_left_out() {
        return;
    }
    need!("mmdebstrap", "mkfs.ext4", "dpkg-deb", "qemu-img", "strip");
    let _guest = need_guest!();
    if !rustix::process::geteuid().is_root() {
        return skip("only root can make the root of another system");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    run("strip", &["-o", &at("siltstone"), &binary().display().to_string()]).ok();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/guest/debian");
    let finished = run_within(DEADLINE, script, &[&at("siltstone"), &at("run")]);
    print!("{}{}", finished.out, finished.err);
    assert_ne!(finished.code, Some(NO_MACHINE), "the machine couldn't be made: {}", finished.err);
    let faults: Vec<_> = finished.out.lines().filter(|line| line.starts_with("FAULT")).collect();
    assert_eq!(faults, Vec::<&str>::new());
    assert_eq!(finished.code, Some(0), "{}", finished.err);
    for boot in 1..=3 {
        let line = format!("ok boot {boot}: the shutdown took ");
        assert!(finished.out.contains(&line), "no {line:?}");
    }
}
