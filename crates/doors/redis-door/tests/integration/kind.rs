//! Kind `kv` in stacks: refusals before anything is opened, and a store that is built, reopened and checked.

use block::{
    BlockIndex, BlockSize, Call, DevicePart, Durability, Durable, EraseGuarantee, Error, ZoneGeometry,
};
use runtime::Config;
use stack::{Built, Contract, Kind, Registry, Shape, Stack};
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// Zones without a guarantee of resets; used in plans only.
static FORGETFUL: Kind = Kind {
    name: "forgetful",
    contract: Contract::Zones,
    summary: "zones without an erase guarantee",
    keys: &[],
    messages: &[],
    metrics: &[],
    shareable: false,
    example: "forgetful",
    plan: |_| {
        Ok(Shape::of_zones(ZoneGeometry {
            zones: 64,
            zone_size: 1 << 20,
            zone_capacity: 1 << 20,
            append_granularity: 4096,
            read_granularity: 4096,
            max_append: 256 << 10,
            max_open: 14,
            max_active: 14,
            durable: Durable::OnFlush,
            erase: EraseGuarantee::None,
        }))
    },
    build: |_| Call::ready(Err(Error::unsupported("zones that are planned only"))),
};

/// Size of the device of [`LATE`] in bytes.
const LATE_BYTES: u64 = 16 << 20;

/// The device of [`LATE`].
fn late() -> Arc<dyn DevicePart> {
    static PART: OnceLock<Arc<disks::ram::RamPart>> = OnceLock::new();
    let make = || Arc::new(disks::ram::RamPart::new(LATE_BYTES, BlockSize::default()).unwrap());
    PART.get_or_init(make).clone()
}

/// A device whose size is unknown until it is open.
static LATE: Kind = Kind {
    name: "late",
    contract: Contract::Device,
    summary: "a device whose size isn't planned",
    keys: &[],
    messages: &[],
    metrics: &[],
    shareable: false,
    example: "late",
    plan: |_| Ok(Shape::default()),
    build: |_| Call::ready(Ok(Built::Device(late()))),
};

fn registry() -> Registry {
    Registry::new(vec![
        &disks::ram::KIND,
        &disks::file::KIND,
        &zns::KIND,
        &FORGETFUL,
        &LATE,
        &redis_door::KIND,
    ])
}

/// Problems of a stack that is to be formatted; empty if there are none.
fn problems(line: &str) -> String {
    let stack = match Stack::from_line("line", line, &registry()) {
        Ok(stack) => stack,
        Err(problems) => return problems.to_string(),
    };
    match stack.with_base_directory(Path::new("/srv")).check(true) {
        Ok(_) => String::new(),
        Err(problems) => problems.to_string(),
    }
}

const ZNS: &str = "zns-emulator(zones=32, zone_size=4MiB)";

#[test]
fn settings_that_do_not_fit_are_refused_before_anything_is_opened() {
    for (keys, expected) in [
        ("listen=\"unix:kv.sock\"", ""),
        ("listen=\"127.0.0.1:6379\", acknowledge=flushed, compression=none", ""),
        ("listen=\"0.0.0.0:6379\", allow_remote=true", ""),
        (
            "listen=\"0.0.0.0:6379\"",
            "without TLS and certificates or passwords; expected a unix socket or a loopback address",
        ),
        ("listen=\"somewhere\"", "expected unix:PATH or IP:PORT"),
        ("allow_remote=true", "allow_remote without listen; expected both"),
        ("password_file=secret", "password_file without listen; expected both"),
        ("listen=\"unix:kv.sock\", password_file=secret", "reading \"/srv/secret\""),
        ("listen=\"unix:kv.sock\", users_file=users", "reading \"/srv/users\""),
        ("listen=\"unix:kv.sock\", tls=pki", "TLS: file \"/srv/pki/ca-cert.pem\""),
        ("listen=\"unix:kv.sock\", tls_verify_client=false", "tls_verify_client without tls; expected tls"),
        ("zone_size=4MiB", "the store is on zones, which have a size; expected no zone_size"),
        ("shards=3", ""),
        ("shards=4", "32 zones are too few for a store of 4 shards; expected at least 34"),
        ("shards=0", "expected a whole number from 1 to 16"),
        ("acknowledge=sometimes", "It takes buffered, written, flushed"),
        ("acknowlege=flushed", "acknowledge"),
        ("compaction=tiered", "It takes saturation, fade, zap"),
        ("placement=anywhere", "It takes lifetime, zap"),
        ("buffer=4KiB", "buffer 4KiB: expected at least 64KiB, 64KiB for each of 1 shards"),
        ("table_size=4KiB", "table_size 4KiB: expected 16KiB to 1GiB"),
        ("table_size=2MiB, level_size=1MiB", "level_size 1MiB: expected at least table_size, 2MiB"),
        ("multiplier=1", "expected a whole number from 2 to 100"),
        ("delete_persistence=\"10m\"", ""),
        ("delete_persistence=\"10m\", erase=erased", ""),
        (
            "delete_persistence=\"10m\", erase=key",
            "erase \"key\": a reset of these zones gives at most \"erased\"",
        ),
        ("delete_persistence=\"10m\", compaction=fade", ""),
        (
            "delete_persistence=\"10m\", compaction=saturation",
            "compaction \"saturation\" knows no deadline; expected fade or zap",
        ),
        ("delete_persistence=\"1ms\"", "expected at least 10 ms"),
        ("delete_persistence=1000000", ""),
        ("delete_persistence=9999", "delete_persistence is 9999 operations; expected at least 10000"),
        ("delete_persistence=0", "expected a duration such as"),
        ("erase=erased", "erase without delete_persistence has no effect; expected both"),
    ] {
        let found = problems(&format!("kv({ZNS}, {keys})"));
        assert!(found.contains(expected) && found.is_empty() == expected.is_empty(), "{keys}: {found}");
    }
    let found = problems("kv(forgetful, delete_persistence=\"10m\")");
    assert!(found.contains("a reset of these zones gives no guarantee that data is erased"), "{found}");
    assert_eq!(problems("kv(forgetful, delete_persistence=\"10m\", erase=none)"), "");
    assert_eq!(
        problems(
            "kv(zns-emulator(zones=32, zone_size=4MiB, encrypted=true), delete_persistence=\"10m\", erase=key)"
        ),
        ""
    );
    for (line, expected) in [
        ("kv(ram(size=64MiB), zone_size=1MiB)", ""),
        ("kv(ram(size=64MiB))", ""),
        (
            "kv(ram(size=16MiB), zone_size=1MiB)",
            "15 zones are too few for a store of 1 shards; expected at least 16",
        ),
        (
            "kv(ram(size=32MiB), zone_size=1MiB, shards=4)",
            "31 zones are too few for a store of 4 shards; expected at least 34",
        ),
        ("kv(ram(size=1MiB))", "zones are too few for a store of 1 shards; expected at least 16"),
        ("kv(ram(size=4MiB), zone_size=16KiB)", "expected zones of at least 7 blocks of 4096 bytes"),
        (
            "kv(ram(size=64MiB), table_size=2MiB, level_size=1MiB)",
            "level_size 1MiB: expected at least table_size",
        ),
        (
            "kv(ram(size=64MiB), delete_persistence=\"10m\", erase=key)",
            "erase \"key\": a reset of these zones gives at most",
        ),
    ] {
        let found = problems(line);
        assert!(found.contains(expected) && found.is_empty() == expected.is_empty(), "{line}: {found}");
    }
}

#[test]
fn a_device_whose_size_is_known_late_and_too_small_keeps_its_contents() {
    let main = || async {
        let device = late().open().await.unwrap();
        let before = block::Buffer::copy_of(&vec![b'x'; LATE_BYTES as usize]);
        device.write(BlockIndex(0), before.into(), Durability::Durable).await.unwrap();
        let stack = Stack::from_line("line", "kv(late, zone_size=1MiB)", &registry());
        let stack = stack.unwrap_or_else(|wrong| panic!("{wrong}")).with_base_directory(Path::new("/srv"));
        let plan = stack.check(true).unwrap_or_else(|wrong| panic!("{wrong}"));
        let refused = plan.build().await.map(drop).unwrap_err().to_string();
        assert!(refused.contains("15 zones are too few for a store of 1 shards"), "{refused}");
        let (outcome, found) = device.read(BlockIndex(0), block::Buffer::new(LATE_BYTES as usize)).await;
        outcome.unwrap();
        assert!(found.filled().iter().all(|byte| *byte == b'x'), "the device was written to");
    };
    runtime::run(Config::default(), main).unwrap();
}

#[test]
fn a_store_is_made_found_again_with_its_shards_and_checked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_owned();
    let main = move || async move {
        let plan = |keys: &str, format: bool| {
            let line = format!("kv(file(disk.img, size=64MiB){keys})");
            let stack =
                Stack::from_line("line", &line, &registry()).unwrap_or_else(|wrong| panic!("{wrong}"));
            stack.with_base_directory(&path).check(format).unwrap_or_else(|wrong| panic!("{wrong}"))
        };
        // A door without an address opens, and accepts no clients.
        let built = plan(", shards=2", true).build().await.unwrap();
        built.start().await.unwrap();
        let (name, door) = built.doors().next().unwrap();
        assert!(door.addresses().is_empty());
        let status = built.status().await;
        assert_eq!(status["doors"][name]["shards"], 2);
        built.close().await.unwrap();
        drop(built);

        let wrong = plan(", shards=3", false).build().await.unwrap_err().to_string();
        assert!(wrong.contains("shards 3: the existing store has 2; leave the key out"), "{wrong}");
        let plan = plan("", false);
        let (below, arguments) = plan.build_below_door("top").await.unwrap();
        let store = redis_door::storage::open(&arguments).await.unwrap();
        store.put(b"key", b"value").await.unwrap();
        let (found, _) = store.scan(None, kv::Scan::from(Vec::new(), 10)).await.unwrap();
        assert_eq!(found.len(), 1);
        store.close().await.unwrap();
        assert!(
            redis_door::storage::contents(&arguments)
                .await
                .unwrap()
                .unwrap()
                .contains("zones that aren't empty")
        );
        let zones = redis_door::storage::zones_to_read(&arguments).await.unwrap().open().await.unwrap();
        let report = kv::check::check(&*zones, 10, &|_, _| {}).await.unwrap();
        assert!(report.is_sound() && report.is_clean, "{report:?}");
        assert_eq!((report.shards, report.tables, report.entries), (2, 1, 1));
        drop((zones, arguments));
        below.close().await.unwrap();
    };
    runtime::run(Config::default().with_shards(2), main).unwrap();
}

#[test]
fn storage_without_a_store_is_refused_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_owned();
    let main = move || async move {
        let open = async |line: &str| {
            let stack = Stack::from_line("line", line, &registry()).unwrap_or_else(|wrong| panic!("{wrong}"));
            let plan =
                stack.with_base_directory(&path).check(false).unwrap_or_else(|wrong| panic!("{wrong}"));
            let (below, arguments) = plan.build_below_door("top").await.unwrap();
            let empty = redis_door::storage::contents(&arguments).await.unwrap();
            let error = redis_door::storage::open(&arguments).await.unwrap_err();
            drop(arguments);
            below.close().await.unwrap();
            (empty, error)
        };
        std::fs::write(path.join("disk.img"), vec![0; 64 << 20]).unwrap();
        for line in ["kv(file(disk.img))", "kv(zns-emulator(zones=32, zone_size=4MiB))"] {
            let (empty, error) = open(line).await;
            assert_eq!(empty, None);
            assert!(
                matches!(&error, Error::Protocol(text) if text.contains("siltstone kv serve STACK --format")),
                "{error}"
            );
        }
        // Opening doesn't create missing storage.
        for line in
            ["kv(file(other.img, size=64MiB))", "kv(zns-emulator(drive.zns, zones=32, zone_size=4MiB))"]
        {
            let stack = Stack::from_line("line", line, &registry()).unwrap_or_else(|wrong| panic!("{wrong}"));
            let plan =
                stack.with_base_directory(&path).check(false).unwrap_or_else(|wrong| panic!("{wrong}"));
            let missing = plan.build_below_door("top").await.map(drop).unwrap_err();
            assert!(matches!(missing, Error::NotFound(_)), "{missing}");
        }
        assert!(!path.join("other.img").exists() && !path.join("drive.zns").exists());
        std::fs::write(path.join("disk.img"), vec![b'x'; 64 << 20]).unwrap();
        assert!(open("kv(file(disk.img))").await.0.is_some(), "the disk isn't empty");
    };
    runtime::run(Config::default(), main).unwrap();
}
