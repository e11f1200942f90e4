//! `siltstone check` and `siltstone dump`, as operators run them. They write nothing.

use crate::common::{Ran, command, run, signal, wait_for};
use block::{BlockIndex, Buffer, DevicePart, Durability, Part};
use disks::file::FilePart;
use doors::nbd::client::{ClientConfig, NbdClient, USUAL_TIMEOUT};
use serde_json::Value;
use std::path::PathBuf;
use std::sync::Arc;

const STACK: &str = r#"
[device.disk]
kind = "file"
path = "disk.img"
size = "16MiB"
[device.vol]
kind = "log"
on = "disk"
zone_size = "256KiB"
[door.vol]
kind = "nbd"
device = "vol"
socket = "vol.sock"
"#;

/// Creates a folder with a stack whose log holds blocks 10, 11 and 12, each filled with its number.
fn made(closes: bool) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("s.toml"), STACK).unwrap();
    let path = folder.path().join("disk.img");
    runtime::run(runtime::Config::default(), move || async move {
        let disk = Arc::new(FilePart::open_path(&path, Some(16 << 20)).await.unwrap());
        let options =
            log::kind::Options { format: true, zone_size: Some(256 << 10), ..log::kind::Options::default() };
        let part = log::kind::open(disk.clone(), &options).await.unwrap();
        let device = part.open().await.unwrap();
        for block in 10..13 {
            let mut buffer = Buffer::new(4096);
            buffer.append(&[block as u8; 4096]);
            device.write(BlockIndex(block), buffer.into(), Durability::Visible).await.unwrap();
        }
        device.flush().await.unwrap();
        drop(device);
        if closes {
            part.close().await.unwrap();
            disk.close().await.unwrap();
        }
    })
    .unwrap();
    folder
}

fn disk(folder: &tempfile::TempDir) -> PathBuf {
    folder.path().join("disk.img")
}

/// Runs a verb, which must leave the disk unchanged.
fn looks(folder: &tempfile::TempDir, arguments: &[&str]) -> Ran {
    let (before, changed) =
        (std::fs::read(disk(folder)).unwrap(), disk(folder).metadata().unwrap().modified());
    let ran = run(folder.path(), arguments);
    assert!(std::fs::read(disk(folder)).unwrap() == before, "{arguments:?} has written to the disk");
    assert_eq!(disk(folder).metadata().unwrap().modified().unwrap(), changed.unwrap(), "{arguments:?}");
    ran
}

fn json(ran: &Ran) -> Value {
    serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}"))
}

#[test]
fn healthy_logs_have_no_damage() {
    for closes in [true, false] {
        let folder = made(closes);
        let ran = looks(&folder, &["check", "s.toml"]);
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
        let ended = if closes { "closed cleanly" } else { "not closed cleanly" };
        let compared = "compared 3 mapped blocks of the volume with them";
        let words = [ended, "opened once", compared, "no damage"];
        assert!(words.iter().all(|words| ran.stdout.contains(words)), "{}", ran.stdout);
        assert!(!ran.stdout.contains("notes"), "{}", ran.stdout);
        let report = json(&looks(&folder, &["check", "s.toml", "--json", "--part", "vol"]));
        assert_eq!((&report["damage"], &report["clean"]), (&Value::Array(vec![]), &closes.into()));
        let line = looks(&folder, &["check", "log(file(disk.img))"]);
        assert_eq!(line.code, Some(0), "{line:?}");
    }
}

#[test]
fn damage_is_named_and_ends_with_exit_code_1() {
    let folder = made(true);
    let mut bytes = std::fs::read(disk(&folder)).unwrap();
    let at = bytes.chunks(4096).position(|block| block == [11; 4096]).unwrap() * 4096;
    bytes[at + 5] ^= 1;
    std::fs::write(disk(&folder), &bytes).unwrap();
    let ran = looks(&folder, &["check", "s.toml"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let lines = ["damage: 1\n", "\n    the volume: block 11\n", "\nDAMAGED: 1 blocks are lost, or may be\n"];
    assert!(lines.iter().all(|line| ran.stdout.contains(line)), "{}", ran.stdout);
    let ran = looks(&folder, &["check", "s.toml", "--json"]);
    let report = json(&ran);
    let hit = &report["damage"][0]["hits"][0];
    assert_eq!((ran.code, &hit["block"], &hit["count"]), (Some(1), &11.into(), &1.into()));
}

#[test]
fn a_dump_shows_roots_versions_zones_and_records() {
    let folder = made(true);
    let value = json(&looks(&folder, &["dump", "s.toml", "--json"]));
    assert_eq!(
        (&value["clean"], &value["versions"][0]["mapped_blocks"]),
        (&true.into(), &3.into()),
        "{value}"
    );
    assert!(value["roots"].as_array().unwrap().len() == 2 && value.get("records").is_none(), "{value}");
    let zones = value["zone_list"].as_array().unwrap();
    let data = zones.iter().find(|zone| zone["use"] == "data").unwrap();
    assert_eq!((&data["live"], &data["state"]), (&3.into(), &"full".into()));
    let zone = data["zone"].to_string();
    let ran = looks(&folder, &["dump", "s.toml", "--zone", &zone]);
    let words = ["\nroots\n", "\nversions\n", "\nzones\n", "\nrecords\n", "write 10"];
    assert!(ran.code == Some(0) && words.iter().all(|word| ran.stdout.contains(word)), "{ran:?}");
    let ran = looks(&folder, &["dump", "s.toml", "--zone", "5000"]);
    assert!(ran.code == Some(1) && ran.stderr.contains("zone 5000"), "{ran:?}");
}

#[test]
fn a_stack_that_is_served_is_refused() {
    let folder = made(true);
    let sockets = folder.path().join("run");
    std::fs::create_dir(&sockets).unwrap();
    let with = |arguments: &[&str]| {
        let mut command = command(folder.path(), arguments);
        command.env("XDG_RUNTIME_DIR", &sockets);
        command
    };
    let mut server = with(&["serve", "s.toml", "--json"]).spawn().unwrap();
    let said = wait_for(server.stdout.take().unwrap(), "addresses");
    let control = serde_json::from_str::<Value>(&said).unwrap()["control"].as_str().unwrap().to_owned();
    for verb in ["check", "dump"] {
        let output = with(&[verb, "s.toml"]).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && stderr.contains(&control), "{stderr}");
    }
    signal(&server, "TERM");
    assert!(server.wait().unwrap().success());
    assert_eq!(with(&["check", "s.toml"]).output().unwrap().status.code(), Some(0));
}

/// A damaged log is refused with advice. With the key `salvage` its readable blocks are served read-only.
#[test]
fn a_damaged_log_is_salvaged_over_nbd() {
    let folder = made(true);
    let mut bytes = std::fs::read(disk(&folder)).unwrap();
    // The page of the map with blocks 10 to 12 has their positions.
    let is_page = |block: &[u8]| {
        let place = |at: usize| u32::from_le_bytes(block[4 * at..4 * at + 4].try_into().unwrap());
        block.len() == 4096 && (0..1024).all(|number| (place(number) > 0) == (10..13).contains(&number))
    };
    let at = bytes.chunks(4096).position(is_page).unwrap() * 4096;
    bytes[at + 5] ^= 1;
    std::fs::write(disk(&folder), &bytes).unwrap();
    let refused = run(folder.path(), &["serve", "s.toml"]);
    assert!(refused.code == Some(1) && refused.stderr.contains("salvage = true"), "{refused:?}");
    let bytes = std::fs::read(disk(&folder)).unwrap();

    let salvage = STACK.replace("zone_size = \"256KiB\"", "salvage = true");
    std::fs::write(folder.path().join("s.toml"), salvage).unwrap();
    let mut server = command(folder.path(), &["serve", "s.toml", "--json"]).spawn().unwrap();
    wait_for(server.stdout.take().unwrap(), "addresses");
    let address = format!("unix:{}", folder.path().join("vol.sock").display()).parse().unwrap();
    runtime::run(runtime::Config::default(), move || async move {
        let client = NbdClient::connect(ClientConfig {
            address,
            export: "vol".to_owned(),
            connections: 1,
            block_size: None,
            timeout: USUAL_TIMEOUT,
            tls: None,
        })
        .await
        .unwrap();
        assert!(client.geometry().read_only);
        let device = client.open().await.unwrap();
        let size = device.geometry().block_size.bytes();
        let read = async |block: u64| device.read(BlockIndex(block * 4096 / size), Buffer::new(4096)).await;
        for block in 10..13 {
            assert!(read(block).await.0.is_err(), "block {block}");
        }
        let (outcome, buffer) = read(2000).await;
        outcome.unwrap();
        assert!(buffer.filled().iter().all(|byte| *byte == 0));
        drop(device);
        client.close().await.unwrap();
    })
    .unwrap();
    signal(&server, "TERM");
    assert!(server.wait().unwrap().success());
    assert!(std::fs::read(disk(&folder)).unwrap() == bytes, "salvaging has written something");
}

#[test]
fn nothing_is_made_or_begun_anew() {
    let folder = tempfile::tempdir().unwrap();
    let in_folder = |arguments: &[&str]| run(folder.path(), arguments);
    let ran = in_folder(&["check", "log(file(none.img, size=16MiB))"]);
    assert!(ran.code == Some(1) && ran.stderr.contains("none.img"), "{ran:?}");
    assert!(!folder.path().join("none.img").exists());

    let folder = made(true);
    let timeline = folder.path().join("run.timeline");
    std::fs::write(&timeline, "an older one").unwrap();
    let line = "log(record(file(disk.img), timeline=run.timeline, overwrite=true))";
    let ran = looks(&folder, &["check", line]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let deeper = "log(stats(record(file(disk.img), timeline=run.timeline, overwrite=true)))";
    let ran = looks(&folder, &["check", deeper]);
    assert!(ran.code == Some(2) && ran.stderr.contains("timeline"), "{ran:?}");
    assert_eq!(std::fs::read(&timeline).unwrap(), b"an older one");
}

#[test]
fn what_is_asked_wrongly() {
    let folder = made(true);
    let other = r#"
[device.other]
kind = "file"
path = "other.img"
size = "16MiB"
[device.second]
kind = "log"
on = "other"
[door.second]
kind = "nbd"
device = "second"
socket = "second.sock"
"#;
    std::fs::write(folder.path().join("two.toml"), format!("{STACK}{other}")).unwrap();
    for (arguments, code, expected) in [
        (
            &["check", "two.toml"][..],
            2,
            "2 parts are of kind \"log\": expected --part with one of \"vol\", \"second\"",
        ),
        (&["check", "two.toml", "--part", "disk"], 2, "--part disk: expected a part of kind \"log\""),
        (&["check", "file(disk.img)"], 2, "this stack has no part of kind \"log\""),
        (&["dump", "log(ram(16MiB))"], 1, "the device holds nothing but zeros; expected zones"),
    ] {
        let ran = looks(&folder, arguments);
        assert!(ran.code == Some(code) && ran.stderr.contains(expected), "{arguments:?}: {ran:?}");
    }
    let ran = looks(&folder, &["check", "two.toml", "--part", "vol"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(!folder.path().join("other.img").exists());
}
