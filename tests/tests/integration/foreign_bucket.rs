//! The verbs of a bucket on a real store (VersityGW): status, check, garbage, fence, the planned end of a
//! server, and a reader beside the writer.

use crate::foreign_objects::servers::{self, Program};
use rustix::process::Signal;
use serde_json::Value;
use siltstone_tests::foreign::{Command, Finished, RawClient, Server, binary, run};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const BLOCK: u32 = 4096;
const PRICES: &str = "put=5,get=0.4,storage=20,currency=EUR";

/// A store, and a folder for a machine that uses it.
struct Bucket {
    store: servers::Server,
    folder: TempDir,
}

impl Bucket {
    /// Starts a store; `None` if the test is skipped.
    fn start() -> Option<Bucket> {
        let store = servers::Server::start(Program::VersityGw)?;
        let folder = tempfile::tempdir().unwrap();
        let credentials = "[default]\naws_access_key_id = key\naws_secret_access_key = hidden\n";
        std::fs::write(folder.path().join("credentials"), credentials).unwrap();
        Some(Bucket { store, folder })
    }

    /// The volume as zones, in one line.
    fn zones(&self, keys: &str) -> String {
        format!(
            "objects(\"http://127.0.0.1:{}\", bucket=vol, prefix=\"db1/\", credentials_file={}{keys})",
            self.store.port,
            self.folder.path().join("credentials").display()
        )
    }

    /// A log on a new or an existing volume.
    fn log(&self) -> String {
        let zones = self.zones(", zone_size=256KiB, zones=32, piece_size=64KiB, grace=300ms");
        format!("log({zones}, size=2MiB)")
    }

    /// Folder of another machine.
    fn machine(&self, name: &str) -> PathBuf {
        let folder = self.folder.path().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    /// Serves a stack on the machine of this name.
    fn serve(&self, machine: &str, stack: &str) -> Server {
        Server::restart(&self.machine(machine), stack)
    }

    /// Objects of the store whose keys begin with this.
    fn objects(&self, prefix: &str) -> Vec<PathBuf> {
        let mut folders = vec![self.store.folder.path().join("vol").join(prefix)];
        let mut found = Vec::new();
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).into_iter().flatten() {
                let path = entry.unwrap().path();
                if path.is_dir() { folders.push(path) } else { found.push(path) }
            }
        }
        found.sort();
        found
    }
}

fn siltstone(arguments: &[&str]) -> Finished {
    run(&binary().display().to_string(), arguments)
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&siltstone(arguments).ok()).unwrap()
}

/// Writes a block of one value to each of these places, and flushes.
fn write(server: &Server, blocks: std::ops::Range<u64>, value: u8) {
    let mut client = RawClient::open(&server.socket).unwrap();
    for block in blocks {
        let data = vec![value; BLOCK as usize];
        let error = client.call(Command::Write, block * u64::from(BLOCK), BLOCK, &data).unwrap();
        assert_eq!(error, 0, "block {block}");
    }
    assert_eq!(client.call(Command::Flush, 0, 0, &[]).unwrap(), 0);
}

/// Reads a block: the value of all its bytes, or the error.
fn value_of(client: &mut RawClient, block: u64) -> Result<u8, u32> {
    use std::io::Read;
    let error = client.call(Command::Read, block * u64::from(BLOCK), BLOCK, &[]).unwrap();
    if error != 0 {
        return Err(error);
    }
    let mut bytes = vec![0; BLOCK as usize];
    client.stream.read_exact(&mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "block {block} is torn");
    Ok(bytes[0])
}

#[test]
fn the_verbs_of_a_bucket_look_fence_and_collect() {
    let Some(bucket) = Bucket::start() else { return };
    let stack = bucket.log();
    siltstone(&["objects", "status", &stack]).refused();
    siltstone(&["format", &stack]).ok();
    let mut server = bucket.serve("a", &stack);
    write(&server, 0..200, 1);
    let status = json(&["objects", "status", &stack, "--json", "--garbage", "--prices", PRICES]);
    assert_eq!(status["state"], "in use, or not closed", "{status:#}");
    assert!(status["server"]["requests"]["put"].as_u64().unwrap() > 2, "{status:#}");
    let estimate = &status["estimate"];
    assert!(estimate["storage_per_month"].as_f64().unwrap() > 20.0 * 200.0 * 4096.0 / 1e9, "{estimate:#}");
    assert!(estimate["requests_so_far"].as_f64().unwrap() > 0.0, "{estimate:#}");
    let page = siltstone(&["objects", "status", &stack, "--prices", PRICES]).ok();
    assert!(page.contains("storage_per_month  0.0") && page.contains(" EUR\n"), "{page}");
    let checked = siltstone(&["objects", "check", &stack, "--data"]).ok();
    assert!(checked.ends_with("\nno damage\n") && checked.contains("read and verified"), "{checked}");
    assert!(siltstone(&["objects", "gc", &stack]).ok().contains("objects will be deleted"));
    // The writer wasn't disturbed by all that.
    write(&server, 0..10, 2);
    let refused = siltstone(&["objects", "fence", &stack]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.err.contains("epoch 2, writer \"") && refused.err.contains("--yes"), "{}", refused.err);
    write(&server, 0..10, 3);
    assert!(siltstone(&["objects", "fence", &stack, "--yes"]).ok().starts_with("fenced: epoch 2, writer \""));
    let mut client = RawClient::open(&server.socket).unwrap();
    let written = client.call(Command::Write, 0, BLOCK, &[9; BLOCK as usize]);
    let flushed = written.and_then(|_| client.call(Command::Flush, 0, 0, &[]));
    assert!(!matches!(flushed, Ok(0)), "a flush after the fence");
    server.process.signal(Signal::KILL);
    let _ = server.process.wait();
    let status = json(&["objects", "status", &stack, "--json"]);
    assert_eq!((&status["state"], &status["server"]), (&"fenced".into(), &Value::Null), "{status:#}");
    let found = json(&["objects", "gc", &stack, "--json", "--dry-run"]);
    let deleted = json(&["objects", "gc", &stack, "--json"]);
    assert_eq!(found["garbage"], deleted["garbage"]);
    assert_eq!(deleted["garbage"]["objects"], deleted["deleted_objects"]);
    assert!(found["garbage"]["objects"].as_u64().unwrap() > 0, "{found:#}");
    assert_eq!(json(&["objects", "gc", &stack, "--json", "--dry-run"])["garbage"]["objects"], 0);
    let server = bucket.serve("a", &stack);
    let mut client = RawClient::open(&server.socket).unwrap();
    for block in 0..200 {
        assert_eq!(value_of(&mut client, block), Ok(if block < 10 { 3 } else { 1 }), "block {block}");
    }
    drop(client);
    server.stop();
    siltstone(&["objects", "check", &stack, "--data"]).ok();
}

/// The store loses one object and alters another: `check` finds both with their places, reads of what was in
/// them are errors, and the rest is served.
#[test]
fn lost_and_altered_objects_are_found_and_the_rest_is_served() {
    let Some(bucket) = Bucket::start() else { return };
    let stack = bucket.log();
    siltstone(&["format", &stack]).ok();
    let server = bucket.serve("a", &stack);
    write(&server, 0..400, 1);
    server.stop();
    // Pieces in the middle of the data: neither roots nor checkpoints.
    let pieces: Vec<PathBuf> = bucket
        .objects("db1/zones")
        .into_iter()
        .filter(|path| std::fs::metadata(path).unwrap().len() > 60 << 10)
        .collect();
    assert!(pieces.len() >= 6, "{pieces:?}");
    let (lost, altered) = (&pieces[2], &pieces[4]);
    let kept = std::fs::read(lost).unwrap();
    assert!(kept.windows(4096).any(|bytes| bytes == [1; 4096]), "no data in it");
    std::fs::remove_file(lost).unwrap();
    let mut bytes = std::fs::read(altered).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 0x40;
    alter(altered, at as u64, bytes[at]);
    let ran = siltstone(&["objects", "check", &stack, "--data"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let name = |path: &Path| {
        let folder = path.parent().unwrap().file_name().unwrap().to_str().unwrap().to_owned();
        format!("db1/zones/{folder}/{}", path.file_name().unwrap().to_str().unwrap())
    };
    for path in [lost, altered] {
        assert!(ran.out.contains(&name(path)), "{}: {}", name(path), ran.out);
    }
    assert!(ran.out.contains("it is missing") && ran.out.contains("\nDAMAGED: "), "{}", ran.out);
    let quick: Value = serde_json::from_str(&siltstone(&["objects", "check", &stack, "--json"]).out).unwrap();
    assert_eq!(quick["damaged_objects"], 1, "without --data only the lost one: {quick:#}");
    let server = bucket.serve("a", &stack);
    let mut client = RawClient::open(&server.socket).unwrap();
    let values: Vec<Result<u8, u32>> = (0..400).map(|block| value_of(&mut client, block)).collect();
    let errors = values.iter().filter(|value| value.is_err()).count();
    assert!((8..=40).contains(&errors), "{errors} blocks can't be read");
    assert!(values.iter().all(|value| value.is_err() || *value == Ok(1)));
    // What is written again is there again.
    write(&server, 0..400, 2);
    for block in 0..400 {
        assert_eq!(value_of(&mut client, block), Ok(2), "block {block}");
    }
    drop(client);
    server.stop();
}

/// Changes a byte of a file in place.
fn alter(path: &Path, at: u64, byte: u8) {
    use std::os::unix::fs::FileExt;
    std::fs::OpenOptions::new().write(true).open(path).unwrap().write_all_at(&[byte], at).unwrap();
}

/// After a drain the bucket alone has everything, and another machine continues.
#[test]
fn a_drained_volume_moves_to_another_machine() {
    let Some(bucket) = Bucket::start() else { return };
    let cached = |machine: &str| {
        let fast = bucket.machine(machine).join("fast.img");
        let zones = bucket.zones(", zone_size=256KiB, zones=32, piece_size=64KiB");
        format!(
            "log(zone-writecache(file({}, size=64MiB), {zones}, max_lag=\"16MiB or 5s\"), size=2MiB)",
            fast.display()
        )
    };
    let stack = cached("a");
    let refused = siltstone(&["objects", "drain", &stack]).refused();
    assert!(refused.contains("no volume") || refused.contains("not served"), "{refused}");
    siltstone(&["format", &stack]).ok();
    let closed = siltstone(&["objects", "drain", &stack]).refused();
    assert!(closed.contains("not served"), "{closed}");
    let mut server = bucket.serve("a", &stack);
    write(&server, 0..300, 5);
    let drained = json(&["objects", "drain", &stack, "--json"]);
    println!("{} s without writes, {} rounds", drained["pause_seconds"], drained["upload_rounds"]);
    assert!(server.process.wait().success(), "{}", server.process.err());
    assert_eq!(json(&["objects", "status", &stack, "--json"])["state"], "closed");
    // Without the fast device of the first machine.
    let other = format!("log({}, size=2MiB)", bucket.zones(""));
    let server = bucket.serve("b", &other);
    let mut client = RawClient::open(&server.socket).unwrap();
    for block in 0..300 {
        assert_eq!(value_of(&mut client, block), Ok(5), "block {block}");
    }
    drop(client);
    write(&server, 0..300, 6);
    server.stop();
}

/// With a key store: the check of data and a reader read it beside the server that writes it; the other verbs
/// need the key alone, as on another machine.
#[test]
fn a_key_store_is_read_beside_its_server() {
    use std::os::unix::fs::PermissionsExt;
    let Some(bucket) = Bucket::start() else { return };
    let folder = bucket.folder.path().display().to_string();
    let key = format!("{folder}/vol.key");
    std::fs::write(&key, [7; 32]).unwrap();
    std::fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).unwrap();
    let keys = |store: &str| format!(", key_file={key}, key_store=file({folder}/vol.keys{store})");
    let new = ", zone_size=256KiB, zones=32, piece_size=64KiB, grace=300ms";
    let stack = format!("log({}, size=2MiB)", bucket.zones(&format!("{}{new}", keys(", size=8KiB"))));
    siltstone(&["format", &stack]).ok();
    let server = bucket.serve("a", &stack);
    write(&server, 0..200, 1);
    let checked = json(&["objects", "check", &stack, "--data", "--json"]);
    assert_eq!(checked["is_damaged"], false, "{checked:#}");
    assert!(checked["verified_bytes"].as_u64().unwrap() > 200 * 4096, "{checked:#}");
    let kept = std::fs::read(format!("{folder}/vol.keys")).unwrap();
    // As on another machine, without the key store.
    let elsewhere = bucket.zones(&format!(", key_file={key}"));
    assert_eq!(json(&["objects", "status", &elsewhere, "--json"])["state"], "in use, or not closed");
    siltstone(&["objects", "check", &elsewhere]).ok();
    let refused = siltstone(&["objects", "check", &elsewhere, "--data"]).refused();
    assert!(refused.contains("expected key_store: its device, or for a reader a copy of it"), "{refused}");
    let refused = siltstone(&["objects", "fence", &bucket.zones("")]).refused();
    assert!(refused.contains("the volume is encrypted; expected key_file"), "{refused}");
    let shared = keys(", read_only=true, lock=false");
    let log = format!("log({})", bucket.zones(&format!("{shared}, open=reader, follow=200ms")));
    let mut reader = bucket.serve("b", &log);
    let mut client = RawClient::open(&reader.socket).unwrap();
    assert_eq!(value_of(&mut client, 50), Ok(1));
    assert_eq!(std::fs::read(format!("{folder}/vol.keys")).unwrap(), kept, "nobody has written to it");
    // Enough for the cleaner, whose resets destroy keys.
    for value in 2..30 {
        write(&server, 0..200, value);
    }
    assert_ne!(std::fs::read(format!("{folder}/vol.keys")).unwrap(), kept, "nothing was erased");
    reader.process.wait_until("it has the newest state", |_| value_of(&mut client, 50) == Ok(29));
    drop(client);
    reader.stop();
    let drained = json(&["objects", "drain", &stack, "--json"]);
    assert_eq!(drained["drained"], true, "{drained:#}");
    drop(server);
    let again = json(&["objects", "drain", &stack, "--json"]);
    assert_eq!((&again["drained"], &again["upload_rounds"]), (&true.into(), &0.into()), "{again:#}");
    let closed = siltstone(&["objects", "fence", &stack]);
    assert!(closed.code == Some(2) && closed.err.contains("loses nothing by it"), "{closed:?}");
    siltstone(&["objects", "check", &stack, "--data"]).ok();
}

/// A reader serves the volume and a snapshot of it, while the writer writes.
#[test]
fn a_reader_follows_the_writer() {
    let Some(bucket) = Bucket::start() else { return };
    let stack = bucket.log();
    siltstone(&["format", &stack]).ok();
    let server = bucket.serve("a", &stack);
    write(&server, 0..100, 1);
    siltstone(&["snapshot", "create", &stack, "monday"]).ok();
    write(&server, 0..100, 2);
    let log = format!("log({})", bucket.zones(", open=reader, follow=200ms"));
    let mut volume = bucket.serve("b", &log);
    let mut snapshot = bucket.serve("c", &format!("snapshot({log}, monday)"));
    let mut of_volume = RawClient::open(&volume.socket).unwrap();
    let mut of_snapshot = RawClient::open(&snapshot.socket).unwrap();
    assert_eq!(value_of(&mut of_volume, 50), Ok(2));
    assert_eq!(value_of(&mut of_snapshot, 50), Ok(1));
    let refused = of_volume.call(Command::Write, 0, BLOCK, &[7; BLOCK as usize]).unwrap();
    assert_ne!(refused, 0, "a write to a reader");
    // Enough for the cleaner, which moves the snapshot's blocks, and for deletions after the grace.
    for value in 3..30 {
        write(&server, 0..100, value);
    }
    volume.process.wait_until("it has the newest state", |_| value_of(&mut of_volume, 50) == Ok(29));
    snapshot.process.wait_until("the snapshot is read", |_| value_of(&mut of_snapshot, 99) == Ok(1));
    let status = json(&["status", &log, "--json"]);
    assert!(
        status["zones"].as_object().unwrap().values().any(|part| part["state"] == "reading"),
        "{status:#}"
    );
    // The writer isn't fenced.
    write(&server, 0..100, 30);
    let formatted = siltstone(&["format", &log]);
    assert_eq!(formatted.code, Some(2), "{formatted:?}");
    drop((of_volume, of_snapshot));
    for server in [volume, snapshot, server] {
        server.stop();
    }
}
