//! `siltstone zns` on drives that stacks have created.

use crate::common::{Ran, run};
use serde_json::Value;
use std::path::Path;

const LINE: &str = "log(zns-emulator(drive.zns, zones=24, zone_size=2MiB, time=none, seed=7))";

fn done(folder: &Path, arguments: &[&str]) -> Ran {
    let ran = run(folder, arguments);
    assert_eq!(ran.code, Some(0), "{arguments:?}: {}", ran.stderr);
    ran
}

fn json(folder: &Path, arguments: &[&str]) -> Value {
    serde_json::from_str(&done(folder, arguments).stdout).unwrap()
}

#[test]
fn a_drive_is_made_looked_at_and_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    done(folder, &["format", LINE]);
    let before = std::fs::read(folder.join("drive.zns")).unwrap();

    let status = json(folder, &["zns", "status", "drive.zns", "--json"]);
    assert_eq!((&status["zones"], &status["profile"]), (&24.into(), &"zn540".into()));
    assert_eq!(status, json(folder, &["zns", "status", LINE, "--json"]), "a stack names its file");
    let zones = json(folder, &["zns", "zones", "drive.zns", "--json"]);
    let zones = zones.as_array().unwrap();
    let written: Vec<u64> = zones.iter().map(|zone| zone["write_pointer"].as_u64().unwrap()).collect();
    assert!(written.len() == 24 && written[0] > 0, "{written:?}");
    let wear = json(folder, &["zns", "wear", "drive.zns", "--json"]);
    assert_eq!(wear["blocks"].as_array().unwrap().len(), 24 * 32);

    // A log has its root in zone 0; a zone that was never written is erased.
    let raw = json(folder, &["zns", "raw", "drive.zns", "--zone", "0", "--length", "4KiB", "--json"]);
    let magic: String = b"SILT".iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(raw["hex"].as_str().unwrap().starts_with(&magic), "{raw}");
    done(folder, &["zns", "raw", "drive.zns", "--zone", "23", "--out", "cells.bin"]);
    let cells = std::fs::read(folder.join("cells.bin")).unwrap();
    assert!(cells.len() == 2 << 20 && cells.iter().all(|byte| *byte == 0xFF));

    done(folder, &["zns", "wear", "drive.zns", "--svg", "wear.svg"]);
    done(folder, &["zns", "wear", "drive.zns", "--errors", "--zone", "1", "--svg", "errors.svg"]);
    let drawn = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap().matches("<title>").count();
    assert_eq!(drawn("wear.svg"), 24 * 32);
    // 2 MiB are 22 units of 96 KiB on 32 dies: one row of units, of three pages.
    assert_eq!(drawn("errors.svg"), 32 * 3);
    assert!(done(folder, &["zns", "zones", "drive.zns"]).stdout.contains("write_pointer"));

    assert_eq!(std::fs::read(folder.join("drive.zns")).unwrap(), before, "looking changes nothing");
}

#[test]
fn what_is_no_drive_or_no_zone_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::write(folder.join("other"), [1; 10_000]).unwrap();
    for (arguments, said) in [
        (&["zns", "status", "other"][..], "no superblock of an emulated ZNS drive here"),
        (&["zns", "status", "zns-emulator(zones=4)"], "is in memory"),
        (&["zns", "status", "ram(1MiB)"], "0 parts of kind \"zns-emulator\""),
    ] {
        let ran = run(folder, arguments);
        assert!(ran.code != Some(0) && ran.stderr.contains(said), "{arguments:?}: {}", ran.stderr);
    }
    done(folder, &["format", LINE]);
    let ran = run(folder, &["zns", "raw", "drive.zns", "--zone", "24"]);
    assert!(ran.code != Some(0) && ran.stderr.contains("zone 24 out of range 0..24"), "{}", ran.stderr);
    for (key, said) in
        [("zones=25", "zones 25: the drive was made with 24"), ("profile=zn541", "did you mean \"zn540\"")]
    {
        let line = format!("log(zns-emulator(drive.zns, {key}))");
        let ran = run(folder, &["status", &line]);
        assert!(ran.stderr.contains(said), "{line}: {}", ran.stderr);
    }
}
