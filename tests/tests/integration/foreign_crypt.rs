//! `crypt` and the real cryptsetup, each with the volumes of the other. Without a device mapper cryptsetup
//! opens key slots, and encrypts and decrypts whole volumes; that dm-crypt reads and writes them is tested in
//! `guest_crypt.rs`.

use siltstone_tests::foreign::{Server, binary, random_file, run};
use siltstone_tests::need;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tempfile::{TempDir, tempdir};

const MIB: usize = 1 << 20;
/// Chunks of 64 KiB of the data.
const CHUNKS: usize = 64;

/// A folder with a passphrase, which no line ends, and with data.
fn folder() -> (TempDir, Vec<u8>) {
    let folder = tempdir().expect("a folder");
    write_secret(&folder.path().join("passphrase"), b"correct horse");
    let data = random_file(&folder.path().join("data"), CHUNKS, 5);
    (folder, data)
}

fn write_secret(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).expect("a file");
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)).expect("its owner");
}

/// Path in a folder, as an argument.
fn at(folder: &TempDir, name: &str) -> String {
    folder.path().join(name).display().to_string()
}

fn cryptsetup(folder: &TempDir, arguments: &[&str]) -> String {
    let key = at(folder, "passphrase");
    run("cryptsetup", &[&["--batch-mode", "--key-file", &key], arguments].concat()).ok()
}

/// Stack over the volume `disk`.
fn stack(folder: &TempDir) -> String {
    format!(
        "crypt(file(\"{}\"), passphrase_file=\"{}\", pbkdf_memory=1MiB)",
        at(folder, "disk"),
        at(folder, "passphrase")
    )
}

/// Copies the file `data` to the device of a stack that is formatted.
fn copy_in(folder: &TempDir) {
    let created = stack(folder).replace("disk\")", "disk\", size=24MiB)");
    run(&binary().display().to_string(), &["format", &created]).ok();
    let server = Server::start(folder.path(), &stack(folder));
    let convert = ["convert", "-n", "-f", "raw", "-O", "raw", &at(folder, "data"), server.uri()];
    run("qemu-img", &convert).ok();
    server.stop();
}

/// First bytes of the device of a stack.
fn copied_out(folder: &TempDir, stack: &str, bytes: usize) -> Vec<u8> {
    let server = Server::start(folder.path(), stack);
    run("nbdcopy", &["--", server.uri(), &at(folder, "copy")]).ok();
    server.stop();
    let mut copy = std::fs::read(folder.path().join("copy")).expect("a copy");
    copy.truncate(bytes);
    copy
}

#[test]
fn cryptsetup_opens_and_decrypts_volumes_of_crypt() {
    need!("cryptsetup", "qemu-img");
    let (folder, data) = folder();
    copy_in(&folder);
    let disk = at(&folder, "disk");
    let dump = cryptsetup(&folder, &["luksDump", &disk]);
    for line in
        ["Version:\t2", "cipher: aes-xts-plain64", "sector: 4096 [bytes]", "argon2id", "Memory:     1024"]
    {
        let has = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(has(&dump).contains(&has(line)), "{line} in {dump}");
    }
    cryptsetup(&folder, &["open", "--test-passphrase", &disk]);
    write_secret(&folder.path().join("wrong"), b"correct horsf");
    let wrong = ["--batch-mode", "--key-file", &at(&folder, "wrong"), "open", "--test-passphrase", &disk];
    run("cryptsetup", &wrong).refused();
    // A volume that cryptsetup has changed: another passphrase, by PBKDF2, and a label.
    write_secret(&folder.path().join("second"), b"battery staple");
    let second = at(&folder, "second");
    cryptsetup(
        &folder,
        &["luksAddKey", "--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000", &disk, &second],
    );
    cryptsetup(&folder, &["config", "--label", "vault", &disk]);
    let by_second = stack(&folder).replace(&at(&folder, "passphrase"), &second);
    assert!(copied_out(&folder, &by_second, data.len()) == data);
    // cryptsetup decrypts all of it in place, and moves it to the beginning.
    let header = at(&folder, "header");
    cryptsetup(&folder, &["reencrypt", "--decrypt", "--force-offline-reencrypt", "--header", &header, &disk]);
    let plain = std::fs::read(folder.path().join("disk")).expect("the disk");
    assert!(plain[..data.len()] == data, "cryptsetup decrypts what crypt has encrypted");
}

#[test]
fn crypt_opens_volumes_of_cryptsetup() {
    need!("cryptsetup", "nbdcopy");
    for sector_size in ["512", "4096"] {
        let (folder, data) = folder();
        let disk = at(&folder, "disk");
        std::fs::copy(folder.path().join("data"), &disk).expect("a copy");
        let file = std::fs::File::options().write(true).open(&disk).expect("the disk");
        file.set_len((data.len() + 32 * MIB) as u64).expect("a longer file");
        let encrypt = ["reencrypt", "--encrypt", "--type", "luks2", "--reduce-device-size", "32M"];
        let pbkdf =
            ["--pbkdf-memory", "1024", "--pbkdf-force-iterations", "4", "--sector-size", sector_size, &disk];
        cryptsetup(&folder, &[&encrypt[..], &pbkdf].concat());
        assert!(copied_out(&folder, &stack(&folder), data.len()) == data, "sectors of {sector_size}");
        // A change of the header by cryptsetup, and the loss of one copy of it.
        cryptsetup(&folder, &["config", "--label", "vault", &disk]);
        let damage =
            ["if=/dev/zero", &format!("of={disk}"), "bs=4096", "count=1", "conv=notrunc", "status=none"];
        run("dd", &damage).ok();
        assert!(copied_out(&folder, &stack(&folder), data.len()) == data, "by the second copy");
    }
}

#[test]
fn volumes_that_crypt_cant_open_are_named() {
    need!("cryptsetup");
    let (folder, _) = folder();
    let disk = at(&folder, "disk");
    let pbkdf = ["--pbkdf-force-iterations", "1000", "--pbkdf", "pbkdf2"];
    for (format, expected) in [
        (&["--type", "luks1"][..], "LUKS version 1"),
        (
            &["--type", "luks2", "--cipher", "aes-cbc-essiv:sha256"],
            "expected one encrypted with aes-xts-plain64",
        ),
    ] {
        std::fs::File::create(&disk).and_then(|file| file.set_len(24 << 20)).expect("a file");
        cryptsetup(&folder, &[&["luksFormat"], format, &pbkdf, &[&disk]].concat());
        let said =
            run(&binary().display().to_string(), &["serve", &stack(&folder), "--nbd", "unix:x"]).refused();
        assert!(said.contains(expected), "{said}");
        assert!(!said.contains("correct horse"), "{said}");
        // Only --force overwrites the key slots of a volume.
        let said = run(&binary().display().to_string(), &["format", &stack(&folder)]).refused();
        assert!(said.contains("holds a LUKS volume"), "{said}");
    }
}
