//! A log on zones of its stack, with layers between: created, shown and operated from the command line.

use crate::common::{Ran, run};
use serde_json::{Value, json};
use std::path::PathBuf;

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn works(&self, arguments: &[&str]) -> Ran {
        let ran = run(self.0.path(), arguments);
        assert_eq!(ran.code, Some(0), "{arguments:?}: {ran:?}");
        ran
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let ran = self.works(&[arguments, &["--json"]].concat());
        serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}"))
    }

    /// Runs a verb that must leave the disk unchanged.
    fn looks(&self, arguments: &[&str]) -> Value {
        let before = std::fs::read(self.path("disk.img")).unwrap();
        let value = self.json(arguments);
        assert!(std::fs::read(self.path("disk.img")).unwrap() == before, "{arguments:?} has written");
        value
    }
}

#[test]
fn every_verb_works() {
    for (open, close) in [("", ""), ("zone-stats(zone-fault(", ", seed=1))")] {
        let folder = Folder::new();
        // An existing log needs no sizes.
        let line = format!("log({open}zones(file(disk.img)){close})");
        let made =
            format!("log({open}zones(file(disk.img, size=16MiB), zone_size=256KiB){close}, size=4MiB)");
        folder.works(&["format", &made]);
        let status = folder.json(&["status", &made]);
        let zones = &status["devices"]["top"]["zones"];
        // 64 blocks of data; the headers are elsewhere.
        assert_eq!((&status["devices"]["top"]["kind"], &zones["size"]), (&json!("log"), &json!(64 * 4096)));
        assert_eq!(status["zones"]["zones1"]["kind"], "zones", "{status}");
        assert_eq!(status["zones"].get("zone-stats1").is_some(), !open.is_empty(), "{status}");

        folder.works(&["snapshot", "create", &line, "monday"]);
        folder.works(&["resize", &line, "6MiB"]);
        assert_eq!(folder.json(&["snapshot", "list", &line])["snapshots"][0]["name"], "monday");
        let refused = run(folder.0.path(), &["status", &made]);
        assert!(
            refused.code == Some(1)
                && refused.stderr.contains("expected 6MiB, the size of the existing volume"),
            "{refused:?}"
        );

        let report = folder.looks(&["check", &line]);
        assert_eq!((&report["damage"], &report["clean"]), (&json!([]), &json!(true)), "{report}");
        let dump = folder.looks(&["dump", &line]);
        assert_eq!((&dump["zone_blocks"], &dump["clean"]), (&json!(64), &json!(true)), "{dump}");
        assert_eq!(dump["versions"].as_array().unwrap().len(), 2, "{dump}");

        // A snapshot as a device below a layer.
        let snapshot = format!("stats(snapshot({line}, monday))");
        assert_eq!(folder.json(&["status", &snapshot])["devices"]["snapshot1"]["kind"], "snapshot");
        folder.works(&["snapshot", "delete", &line, "monday"]);
        assert_eq!(folder.json(&["snapshot", "list", &line])["snapshots"], json!([]));
        assert_eq!(folder.looks(&["check", &line])["damage"], json!([]));
    }
}

/// The format is the same, whether the log or a part below it divides the device into zones.
#[test]
fn it_opens_on_the_device_and_on_zones() {
    let folder = Folder::new();
    let on_zones = "log(zones(file(disk.img, size=16MiB)))";
    let on_device = "log(file(disk.img, size=16MiB))";
    folder.works(&["format", "log(zones(file(disk.img, size=16MiB), zone_size=256KiB))"]);
    folder.works(&["snapshot", "create", on_device, "monday"]);
    folder.works(&["snapshot", "create", on_zones, "tuesday"]);
    let listed = folder.json(&["snapshot", "list", on_device]);
    let names = listed["snapshots"].as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap());
    assert_eq!(names.collect::<Vec<_>>(), ["monday", "tuesday"]);
    for line in [on_zones, on_device] {
        assert_eq!(folder.looks(&["check", line])["damage"], json!([]), "{line}");
    }
}

/// Verbs that read a log overwrite no timeline: a recorder directly above the zones is skipped, one below is
/// refused.
#[test]
fn timelines_are_left_alone() {
    let folder = Folder::new();
    folder.works(&["format", "log(zones(file(disk.img, size=16MiB), zone_size=256KiB))"]);
    std::fs::write(folder.path("run.timeline"), "an older one").unwrap();
    let recorded = "log(zone-record(zones(file(disk.img)), timeline=run.timeline, overwrite=true))";
    assert_eq!(folder.looks(&["check", recorded])["damage"], json!([]));
    for line in [
        "log(zone-stats(zone-record(zones(file(disk.img)), timeline=run.timeline, overwrite=true)))",
        "log(zones(record(file(disk.img), timeline=run.timeline, overwrite=true)))",
    ] {
        let ran = run(folder.0.path(), &["dump", line]);
        assert!(ran.code == Some(2) && ran.stderr.contains("would restart its timeline"), "{ran:?}");
    }
    assert_eq!(std::fs::read(folder.path("run.timeline")).unwrap(), b"an older one");
    // Opening the log itself records a timeline.
    std::fs::remove_file(folder.path("run.timeline")).unwrap();
    folder.works(&["status", recorded]);
    assert!(folder.path("run.timeline").metadata().unwrap().len() > 0);
}
