//! `siltstone report`: contents of the file, and secrets that it must not contain.

use crate::common::{Ran, command, run, wait_for};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;

const SECRETS: [&str; 5] = [
    "content-of-the-password-file",
    "content-of-the-key-file",
    "hunter2-inline",
    "planted-user-data",
    "pass-in-address",
];

/// Returns the files of a report.
fn contents(path: &Path) -> BTreeMap<String, String> {
    let mut archive = tar::Archive::new(std::fs::File::open(path).unwrap());
    let files = archive.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().display().to_string();
        let mut text = String::new();
        std::io::Read::read_to_string(&mut entry, &mut text).unwrap();
        (name.strip_prefix("siltstone-report/").unwrap().to_owned(), text)
    });
    files.collect()
}

fn assert_without_secrets(path: &Path) {
    let bytes = std::fs::read(path).unwrap();
    for secret in SECRETS {
        let found = bytes.windows(secret.len()).any(|window| window == secret.as_bytes());
        assert!(!found, "the report has {secret}");
    }
}

/// Writes a stack on a file with data, files with secrets, and a log.
fn plant(folder: &Path) {
    let data = "planted-user-data ".repeat(1 << 16);
    std::fs::write(folder.join("disk.img"), &data[..1 << 20]).unwrap();
    std::fs::write(folder.join("password"), "content-of-the-password-file\n").unwrap();
    std::fs::create_dir(folder.join("keys")).unwrap();
    for name in ["server-key.pem", "server-cert.pem", "ca-cert.pem"] {
        std::fs::write(folder.join("keys").join(name), "content-of-the-key-file\n").unwrap();
    }
    let text = "# password = \"hunter2-inline\"\n[device.disk]\nkind = \"file\"\npath = \"disk.img\"\n\
                [device.far]\nkind = \"redis\"\naddresses = [\"unix:far.sock\"]\nname = \"far\"\nsize = \"1MiB\"\n\
                password_file = \"password\"\n[door.vol]\nkind = \"nbd\"\ndevice = \"disk\"\nsocket = \"vol.sock\"\n\
                tls = \"keys\"\n[door.far]\nkind = \"nbd\"\ndevice = \"far\"\nsocket = \"other.sock\"\n";
    std::fs::write(folder.join("s.toml"), text).unwrap();
    let log = "WARN password=hunter2-inline refused\nWARN redis://user:pass-in-address@host:1\nWARN a hunter2-inline again\n";
    std::fs::write(folder.join("vol.log"), log).unwrap();
}

#[test]
fn a_report_has_facts_and_no_data() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    plant(folder);
    let ran = run(folder, &["report", "s.toml", "-o", "r.tar", "--server-log", "vol.log"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stdout.contains("r.tar: ") && ran.stdout.contains("tar -xOf r.tar | less"), "{}", ran.stdout);
    let path = folder.join("r.tar");
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_without_secrets(&path);
    let files = contents(&path);
    let names: Vec<&str> = files.keys().map(String::as_str).collect();
    assert_eq!(names[..3], ["README.txt", "drawing.txt", "files.txt"], "{names:?}");
    for (name, expected) in [
        ("README.txt", "status: not served"),
        ("README.txt", "password and key files"),
        ("machine.txt", env!("CARGO_PKG_VERSION")),
        ("machine.txt", "Max locked memory"),
        ("stack.txt", "# password = (masked)\n"),
        ("stack.txt", "password_file = \"password\""),
        ("drawing.txt", "disk"),
        ("files.txt", "1 MiB (1048576 bytes)"),
        ("files.txt", "begins with data that Siltstone doesn't know"),
        ("log.txt", "WARN password=(masked) refused\nWARN redis://(masked)@host:1\nWARN a (masked) again\n"),
    ] {
        assert!(files[name].contains(expected), "{name}: {expected}: {}", files[name]);
    }
    let password = files["files.txt"].split("password_file").nth(1).unwrap();
    assert!(!password.contains("bytes"), "the size of a password is a secret: {password}");
    for name in names {
        assert!(files["README.txt"].contains(name) || name == "README.txt", "{name} is listed");
    }

    let again = run(folder, &["report", "s.toml", "-o", "r.tar"]);
    assert_eq!(again.code, Some(1), "{again:?}");
    assert!(again.stderr.contains("report r.tar: the file exists; expected a new name"), "{again:?}");
    assert_eq!(contents(&path), files);
}

#[test]
fn a_served_stack_is_asked() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let arguments = [
        "--log-to",
        "vol.log",
        "serve",
        "ram(1MiB)",
        "--nbd",
        "unix:vol.sock",
        "--control",
        "c.sock",
        "--json",
    ];
    let mut server = command(folder, &arguments).spawn().unwrap();
    wait_for(server.stdout.take().unwrap(), "addresses");
    let ran = run(folder, &["report", "ram(1MiB)", "--control", "c.sock", "-o", "r.tar"]);
    let _ = server.kill();
    server.wait().unwrap();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let files = contents(&folder.join("r.tar"));
    let status: serde_json::Value = serde_json::from_str(&files["status.json"]).unwrap();
    assert_eq!(status["devices"]["top"]["kind"], "ram");
    let observed: serde_json::Value = serde_json::from_str(&files["observe.json"]).unwrap();
    assert_eq!(observed["parts"][0]["part"], "top");
    assert!(files["server.txt"].contains("serve ram(1MiB)"), "{}", files["server.txt"]);
    assert!(files.contains_key("log.txt"));
}

#[test]
fn what_is_broken_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let report = |arguments: &[&str]| -> (Ran, BTreeMap<String, String>) {
        let path = folder.join("r.tar");
        let ran = run(folder, &[&["report", "-o", "r.tar"], arguments].concat());
        let files = if path.exists() { contents(&path) } else { BTreeMap::new() };
        let _ = std::fs::remove_file(path);
        (ran, files)
    };
    // A stack with an error, whose message quotes the secret.
    std::fs::write(folder.join("bad.toml"), "[device.d]\nkind = \"ram\"\npassword = \"hunter2-inline\"\n")
        .unwrap();
    let (ran, files) = report(&["bad.toml"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(files["problems.txt"].contains("password"), "{}", files["problems.txt"]);
    assert!(files.values().all(|text| !text.contains("hunter2")), "{files:?}");
    // A server that doesn't answer.
    let _listener = UnixListener::bind(folder.join("c.sock")).unwrap();
    let (ran, files) = report(&["ram(1MiB)", "--control", "c.sock"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(files["README.txt"].contains("has not answered in 10 s"), "{}", files["README.txt"]);
    // A file that isn't a stack is no part of a report.
    std::fs::write(folder.join("password"), "content-of-the-password-file").unwrap();
    let (ran, files) = report(&["password"]);
    assert!(ran.code == Some(2) && files.is_empty(), "{ran:?}");
    assert!(!ran.stderr.contains("content-of"), "{ran:?}");
    // Without a stack it has the facts of the machine.
    let (ran, files) = report(&[]);
    assert_eq!((ran.code, files.len()), (Some(0), 2), "{ran:?}");
    let (ran, files) = report(&["ram(1MiB)", "--control", "none.sock"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(files["README.txt"].contains("no server listens there"), "{}", files["README.txt"]);
    assert!(ran.stdout.contains("Not available: status: control socket none.sock: no server"), "{ran:?}");
}

/// Reports that are made at the same time have names of their own.
#[test]
fn a_report_has_a_name_once_it_is_complete() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let names = || {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        entries.map(|name| name.into_string().unwrap()).collect::<Vec<_>>()
    };
    // The server that is asked doesn't answer for 10 s.
    let listener = UnixListener::bind(folder.join("c.sock")).unwrap();
    let mut waiting = command(folder, &["report", "--control", "c.sock", "-o", "r.tar"]).spawn().unwrap();
    let (_stream, _) = listener.accept().unwrap();
    assert_eq!(names(), ["c.sock"]);
    waiting.kill().unwrap();
    waiting.wait().unwrap();
    assert_eq!(names(), ["c.sock"]);

    let reports: Vec<_> = (0..4).map(|_| command(folder, &["report"]).spawn().unwrap()).collect();
    for report in reports {
        let ran = report.wait_with_output().unwrap();
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    }
    let reports = names().into_iter().filter(|name| name.starts_with("siltstone-report-")).count();
    assert_eq!(reports, 4, "{:?}", names());
}
