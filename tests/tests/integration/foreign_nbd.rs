//! The NBD door with libnbd's tools, qemu's tools, nbdkit and fio.

use serde_json::Value;
use siltstone_tests::foreign::{PATTERN_CHUNK, Server, random_file, run, run_shell};
use siltstone_tests::need;
use std::path::Path;
use tempfile::{TempDir, tempdir};

/// Two devices behind one door, on two shards.
const TWO_EXPORTS: &str = r#"
[stack]
shards = 2
[device.memory]
kind = "ram"
size = "8MiB"
[device.disk]
kind = "file"
path = "disk.img"
size = "16MiB"
block_size = "4KiB"
[door.nbd]
kind = "nbd"
exports = ["memory", "disk"]
socket = "nbd.sock"
"#;

fn folder() -> TempDir {
    tempdir().expect("a folder")
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

/// Path of a file in a folder, as an argument.
fn path(folder: &TempDir, name: &str) -> String {
    folder.path().join(name).display().to_string()
}

fn read(folder: &TempDir, name: &str) -> Vec<u8> {
    std::fs::read(folder.path().join(name)).expect("a file that was just written")
}

/// Compares bytes; a failure shows the offset of the first difference instead of all bytes.
#[track_caller]
fn assert_same(left: &[u8], right: &[u8]) {
    let differs = left.iter().zip(right).position(|(one, other)| one != other);
    assert_eq!((differs, left.len()), (None, right.len()), "first difference, and the lengths");
}

#[test]
fn nbdinfo_describes_an_export() {
    need!("nbdinfo");
    let folder = folder();
    let server = Server::start(folder.path(), "ram(64MiB, block_size=4KiB)");
    let info = json(&run("nbdinfo", &["--json", server.uri()]).ok());
    assert_eq!(info["protocol"], "newstyle-fixed");
    assert_eq!(info["structured"], true);
    let export = &info["exports"][0];
    assert_eq!(export["export-size"], 64 << 20);
    assert_eq!(export["contexts"], serde_json::json!(["base:allocation"]));
    assert_eq!(export["block_size_preferred"], 4096);
    let sizes = ["block_size_minimum", "block_size_maximum"].map(|key| export[key].as_u64().expect("a size"));
    assert!(sizes[0] <= 4096 && sizes[1] >= 1 << 20, "block sizes {sizes:?}");
    for can in ["can_flush", "can_fua", "can_trim", "can_zero", "can_multi_conn", "can_df"] {
        assert_eq!(export[can], true, "{can}");
    }
    assert_eq!(export["is_read_only"], false);
    server.stop();
}

#[test]
fn nbdinfo_lists_all_exports_and_refuses_others() {
    need!("nbdinfo");
    let folder = folder();
    let server = Server::start_toml(folder.path(), TWO_EXPORTS);
    assert_eq!(server.addresses.len(), 2, "{:?}", server.addresses);
    let info = json(&run("nbdinfo", &["--json", "--list", server.uri()]).ok());
    let exports = info["exports"].as_array().expect("a list");
    let name_and_size = |export: &Value| (export["export-name"].clone(), export["export-size"].clone());
    let found: Vec<_> = exports.iter().map(name_and_size).collect();
    assert_eq!(found, [("memory".into(), (8 << 20).into()), ("disk".into(), (16 << 20).into())]);
    let default = format!("nbd+unix:///?socket={}", server.socket.display());
    assert_eq!(run("nbdinfo", &["--size", &default]).ok().trim(), "8388608");
    let absent = format!("nbd+unix:///absent?socket={}", server.socket.display());
    let said = run("nbdinfo", &["--size", &absent]).refused();
    assert!(said.contains("absent"), "{said}");
    server.stop();
}

#[test]
fn nbdinfo_maps_the_holes_of_a_file() {
    need!("nbdinfo");
    let folder = folder();
    let image = path(&folder, "disk.img");
    run_shell(&format!(
        "truncate -s 8M {image}
         head -c 1M /dev/urandom | dd of={image} bs=64K seek=32 conv=notrunc iflag=fullblock status=none"
    ))
    .ok();
    let server = Server::start(folder.path(), &format!("file({image})"));
    let map = json(&run("nbdinfo", &["--map", "--json", server.uri()]).ok());
    let extents = map.as_array().expect("a list");
    let numbers =
        |extent: &Value| ["offset", "length", "type"].map(|key| extent[key].as_u64().expect("a number"));
    let found: Vec<_> = extents.iter().map(numbers).collect();
    const HOLE: u64 = 3;
    assert_eq!(found, [[0, 2 << 20, HOLE], [2 << 20, 1 << 20, 0], [3 << 20, 5 << 20, HOLE]]);
    server.stop();
}

#[test]
fn nbdcopy_there_and_back() {
    need!("nbdcopy");
    for stack in ["ram(24MiB)", "file(disk.img, size=24MiB)", "file(disk.img, size=24MiB, block_size=4KiB)"] {
        let folder = folder();
        let stack = stack.replace("disk.img", &path(&folder, "disk.img"));
        let server = Server::start(folder.path(), &stack);
        let contents = random_file(&folder.path().join("source"), 24 << 20 >> PATTERN_CHUNK.ilog2(), 1);
        run("nbdcopy", &["--flush", &path(&folder, "source"), server.uri()]).ok();
        run("nbdcopy", &[server.uri(), &path(&folder, "back")]).ok();
        assert_same(&read(&folder, "back"), &contents);
        server.stop();
        if stack.starts_with("file") {
            assert_same(&read(&folder, "disk.img"), &contents);
        }
    }
}

#[test]
fn nbdcopy_over_several_connections_and_shards() {
    need!("nbdcopy");
    let folder = folder();
    let toml = TWO_EXPORTS.replace("8MiB", "48MiB").replace("16MiB", "48MiB");
    let server = Server::start_toml(folder.path(), &toml);
    let contents = random_file(&folder.path().join("source"), 48 << 20 >> PATTERN_CHUNK.ilog2(), 2);
    const FOUR: [&str; 5] =
        ["--connections=4", "--threads=4", "--requests=32", "--request-size=65536", "--flush"];
    let copy = |from: &str, to: &str| run("nbdcopy", &[FOUR.as_slice(), &[from, to]].concat()).ok();
    for address in &server.addresses {
        copy(&path(&folder, "source"), address);
        copy(address, &path(&folder, "back"));
        assert_same(&read(&folder, "back"), &contents);
    }
    // From one export to the other: the client has two connections to the same server.
    run("nbdcopy", &["--allocated", &path(&folder, "source"), &server.addresses[0]]).ok();
    copy(&server.addresses[0], &server.addresses[1]);
    server.stop();
    assert_same(&read(&folder, "disk.img"), &contents);
}

#[test]
fn nbdcopy_over_tcp() {
    need!("nbdcopy", "nbdinfo");
    let folder = folder();
    let server =
        Server::start_with(&["serve", "ram(8MiB)", "--nbd", "127.0.0.1:0"], folder.path().join("none"));
    assert!(server.uri().starts_with("nbd://127.0.0.1:"), "{}", server.uri());
    let contents = random_file(&folder.path().join("source"), 128, 3);
    run("nbdcopy", &[&path(&folder, "source"), server.uri()]).ok();
    run("nbdcopy", &[server.uri(), &path(&folder, "back")]).ok();
    assert_same(&read(&folder, "back"), &contents);
    server.stop();
}

#[test]
fn nbdkit_passes_an_export_on() {
    need!("nbdkit", "nbdcopy");
    let folder = folder();
    let server = Server::start(folder.path(), "ram(8MiB)");
    let contents = random_file(&folder.path().join("source"), 128, 4);
    let (source, back) = (path(&folder, "source"), path(&folder, "back"));
    let script = format!("nbdcopy --flush {source} \"$uri\" && nbdcopy \"$uri\" {back}");
    let upstream = format!("uri={}", server.uri());
    run("nbdkit", &["--exit-with-parent", "-U", "-", "nbd", &upstream, "--run", &script]).ok();
    assert_same(&read(&folder, "back"), &contents);
    server.stop();
}

/// Runs commands of qemu-io one after the other.
#[track_caller]
fn qemu_io(uri: &str, commands: &[&str]) -> String {
    let mut arguments = vec!["-f", "raw"];
    commands.iter().for_each(|command| arguments.extend(["-c", command]));
    arguments.push(uri);
    let said = run("qemu-io", &arguments).ok();
    let is_bad = |line: &str| line.contains("fail") || line.contains("rror");
    assert!(!said.lines().any(is_bad), "qemu-io {commands:?}: {said}");
    said
}

#[test]
fn qemu_io_writes_patterns_and_verifies_them() {
    need!("qemu-io");
    for stack in ["ram(16MiB)", "file(disk.img, size=16MiB, block_size=4KiB)"] {
        let folder = folder();
        let stack = stack.replace("disk.img", &path(&folder, "disk.img"));
        let server = Server::start(folder.path(), &stack);
        // Written in one session and verified in another, at sizes from a sector to more than the buffer of a
        // socket.
        let write = [
            "write -P 0x11 0 512",
            "write -P 0x22 512 4096",
            "aio_write -P 0x33 1M 1M",
            "aio_write -P 0x44 2M 2M",
            "aio_flush",
            "write -f -P 0x55 5M 64k",
            "write -z 2560K 512k",
            "write -P 0x66 6M 1M",
            "discard 6400K 256k",
            "write -z -u 7M 1M",
            "writev -P 0x77 8M 4k 8k 512",
            "flush",
        ];
        qemu_io(server.uri(), &write);
        let verify = [
            "read -P 0x11 0 512",
            "read -P 0x22 512 4096",
            "read -P 0 4608 512",
            "read -P 0x33 1M 1M",
            "read -P 0x44 2M 512k",
            "read -P 0 2560K 512k",
            "read -P 0x44 3M 1M",
            "read -P 0x55 5M 64k",
            "read -P 0x66 6M 256k",
            "read -P 0 6400K 256k",
            "read -P 0x66 6656K 512k",
            "read -P 0 7M 1M",
            "read -P 0x77 8M 12800",
        ];
        qemu_io(server.uri(), &verify);
        server.stop();
    }
}

#[test]
fn qemu_img_converts_and_compares() {
    need!("qemu-img");
    let folder = folder();
    let server = Server::start(folder.path(), &format!("file({}, size=24MiB)", path(&folder, "disk.img")));
    let (source, qcow) = (path(&folder, "source"), path(&folder, "copy.qcow2"));
    let contents = random_file(Path::new(&source), 24 << 20 >> PATTERN_CHUNK.ilog2(), 5);
    let info = json(&run("qemu-img", &["info", "--output=json", server.uri()]).ok());
    assert_eq!(info["virtual-size"], 24 << 20);
    run("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", &source, server.uri()]).ok();
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", &source, server.uri()]).ok();
    run("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", "-W", "-m", "16", server.uri(), &qcow]).ok();
    run("qemu-img", &["compare", "-f", "qcow2", "-F", "raw", &qcow, server.uri()]).ok();
    qemu_io(server.uri(), &["write -P 0x99 8M 512"]);
    let said = run("qemu-img", &["compare", "-f", "qcow2", "-F", "raw", &qcow, server.uri()]).refused();
    assert!(said.contains("mismatch"), "{said}");
    server.stop();
    let disk = read(&folder, "disk.img");
    assert_same(&disk[..8 << 20], &contents[..8 << 20]);
    assert!(disk[8 << 20..][..512].iter().all(|&byte| byte == 0x99), "qemu-io's data is not in the file");
}

#[test]
fn fio_verifies_what_it_wrote() {
    need!("fio");
    if !run("fio", &["--enghelp"]).ok().contains("nbd") {
        siltstone_tests::foreign::skip("this fio has no nbd engine");
        return;
    }
    for (stack, block) in [
        ("ram(16MiB)", "4k-4k"),
        ("file(disk.img, size=16MiB)", "4k-4k"),
        ("file(disk.img, size=16MiB, block_size=4KiB)", "512-64k"),
        ("ram(16MiB, block_size=512) shards=2", "512-128k"),
    ] {
        let folder = folder();
        let stack = stack.replace("disk.img", &path(&folder, "disk.img"));
        let server = Server::start(folder.path(), &stack);
        let uri = format!("--uri={}", server.uri());
        let sizes = format!("--bsrange={block}");
        let common = ["--name=verify", "--ioengine=nbd", "--size=16m", "--iodepth=32", "--rw=randwrite"];
        let verify =
            ["--verify=crc32c", "--verify_fatal=1", "--randseed=7", "--fsync=64", "--verify_state_save=0"];
        run("fio", &[common.as_slice(), &verify, &[&uri, &sizes]].concat()).ok();
        server.stop();
    }
}

/// A log whose space is used again many times, with the cleaner running: 512 MiB onto 64 MiB, or
/// `SILTSTONE_FIO_MIB` MiB onto a sixteenth of that, at most 1 GiB (20480 is the long run).
#[test]
fn fio_verifies_what_it_wrote_to_a_log() {
    need!("fio");
    if !run("fio", &["--enghelp"]).ok().contains("nbd") {
        siltstone_tests::foreign::skip("this fio has no nbd engine");
        return;
    }
    let asked = std::env::var("SILTSTONE_FIO_MIB").ok();
    let written: u64 =
        asked.map_or(512, |text| text.trim().parse().expect("SILTSTONE_FIO_MIB is a whole number"));
    let size = (written / 8).min(1024);
    for (distribution, ack) in [("random", "log"), ("zipf:1.1", "buffer")] {
        let folder = folder();
        // The volume takes most of the capacity of the log.
        let disk = size + size / 4 + 16;
        let stack = format!(
            "log(file({}, size={disk}MiB), size={size}MiB, checkpoint_after=8MiB, ack={ack}) shards=2",
            path(&folder, "disk.img")
        );
        run(&siltstone_tests::foreign::binary().display().to_string(), &["format", &stack]).ok();
        let server = Server::start(folder.path(), &stack);
        let (uri, size) = (format!("--uri={}", server.uri()), format!("--size={size}m"));
        let job = ["--name=verify", "--ioengine=nbd", "--iodepth=32", "--bsrange=4k-64k", "--randseed=7"];
        let how = [format!("--random_distribution={distribution}"), format!("--io_size={written}m")];
        // Many random writes, and then the whole volume once more, which is read back.
        let churn = ["--rw=randwrite", "--fsync=256", &how[0], &how[1]];
        run("fio", &[job.as_slice(), &[&uri, &size], &churn].concat()).ok();
        let verify = ["--rw=randwrite", "--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0"];
        run("fio", &[job.as_slice(), &[&uri, &size], &verify].concat()).ok();
        server.stop();
    }
}

/// Invalid requests of a client, through libnbd with its own checks switched off.
const UNALIGNED: &str = r#"
h.set_strict_mode(0)
model = bytearray(h.get_size())
def write(data, offset, flags=0):
    h.pwrite(data, offset, flags)
    model[offset:offset + len(data)] = data
write(bytes([1]) * 512, 1000)
write(bytes([2]) * 512, 4096 - 256)
write(bytes([3]) * 1, 8191, nbd.CMD_FLAG_FUA)
write(bytes([4]) * 70000, 12345)
h.zero(5000, 20001)
model[20001:25001] = bytes(5000)
h.trim(4096 * 3 + 1, 40961)
cut = h.pread(4096 * 3 + 1, 40961)
assert all(got in (0, old) for got, old in zip(cut, model[40961:]))
model[40961:40961 + len(cut)] = cut
h.flush()
assert h.pread(h.get_size(), 0) == model
for offset, length in ((1, 1), (999, 514), (4095, 2), (12344, 70002)):
    assert h.pread(length, offset) == model[offset:offset + length], (offset, length)
for call in (lambda: h.pread(2, h.get_size() - 1), lambda: h.pwrite(b"xx", h.get_size() - 1)):
    try:
        call()
        raise SystemExit("a request beyond the end was carried out")
    except nbd.Error as error:
        assert error.errno in ("EINVAL", "ENOSPC"), error
seen = []
h.block_status(h.get_size(), 0, lambda *extents: seen.append(extents))
assert seen, "no block status"
print("ok")
"#;

#[test]
fn nbdsh_sends_unaligned_requests() {
    need!("nbdsh");
    for stack in ["ram(1MiB, block_size=4KiB) shards=2", "file(disk.img, size=1MiB, block_size=4KiB)"] {
        let folder = folder();
        let stack = stack.replace("disk.img", &path(&folder, "disk.img"));
        let server = Server::start(folder.path(), &stack);
        let script = "h.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)";
        let said = run("nbdsh", &["-c", script, "-u", server.uri(), "-c", UNALIGNED]).ok();
        assert_eq!(said.trim(), "ok");
        server.stop();
    }
}
