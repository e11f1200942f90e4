//! `siltstone spi`: a chip is served, shown, disturbed and restarted, as users do.

use crate::common::{Ran, isolated, signal, wait_for};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Child;

/// User with a folder for files and one for sockets.
struct User {
    folder: tempfile::TempDir,
}

impl User {
    fn new() -> User {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("run")).unwrap();
        User { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        let mut command = isolated(self.folder.path(), arguments);
        let output = command.env("XDG_RUNTIME_DIR", self.path("run")).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Ran { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    #[track_caller]
    fn ok(&self, arguments: &[&str]) -> String {
        let ran = self.run(arguments);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        ran.stdout
    }

    fn json(&self, arguments: &[&str]) -> serde_json::Value {
        serde_json::from_str(&self.ok(&[arguments, &["--json"]].concat())).unwrap()
    }

    fn serve(&self, arguments: &[&str]) -> Served {
        let arguments = [&["spi", "serve", "--serprog", "127.0.0.1:0", "--json"], arguments].concat();
        let mut command = isolated(self.folder.path(), &arguments);
        let mut child = command.env("XDG_RUNTIME_DIR", self.path("run")).spawn().unwrap();
        let line = wait_for(child.stdout.take().unwrap(), "addresses");
        let said: serde_json::Value = serde_json::from_str(&line).unwrap();
        Served { child, address: said["addresses"][0].as_str().unwrap().to_owned() }
    }
}

/// Served chip, killed when dropped.
struct Served {
    child: Child,
    address: String,
}

impl Served {
    /// Runs SPI operations, each as bytes to send and a number of bytes to read.
    fn spi(&self, operations: &[(&[u8], usize)]) -> Vec<Vec<u8>> {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let exchange = |(sent, read): &(&[u8], usize)| {
            let mut bytes = vec![0x13];
            bytes.extend(&(sent.len() as u32).to_le_bytes()[..3]);
            bytes.extend(&(*read as u32).to_le_bytes()[..3]);
            bytes.extend(*sent);
            stream.write_all(&bytes).unwrap();
            let mut answer = vec![0; 1 + read];
            stream.read_exact(&mut answer).unwrap();
            assert_eq!(answer.remove(0), 0x06);
            answer
        };
        operations.iter().map(exchange).collect()
    }

    /// Requests the server to stop; returns its exit code and standard error.
    fn stop(mut self) -> (Option<i32>, String) {
        signal(&self.child, "TERM");
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (self.child.wait().unwrap().code(), said)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // An error means that the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_chip_is_served_looked_at_and_started_again() {
    let user = User::new();
    let arguments = ["--chip", "W25Q64JV", "--image", "flash.bin", "--create", "--time", "fast"];
    let served = user.serve(&arguments);
    served.spi(&[(&[0x06], 0), (&[0x20, 0, 0, 0], 0), (&[0x06], 0), (&[0x02, 0, 0, 4, b'h', b'i'], 0)]);
    let status = user.json(&["spi", "status"]);
    assert_eq!((&status["chip"]["state"], &status["counters"]["operations"]), (&"Standby".into(), &2.into()));
    assert_eq!(std::fs::read(user.path("flash.bin")).unwrap()[4..7], *b"hi\xFF", "durable after a status");
    assert!(user.ok(&["spi", "status"]).contains("W25Q64JV"));
    assert!(user.ok(&["spi", "dump", "--length", "32"]).contains("|....hi.........."));
    assert!(user.ok(&["spi", "trace"]).contains("02h Page Program @000004h write 2 [68 69]"));
    assert!(user.ok(&["spi", "trace", "--form", "vcd"]).starts_with("$timescale"));
    // A waveform of several pieces.
    let reads: Vec<[u8; 4]> = (0..2000u32).map(|n| [3, 1, (n >> 8) as u8, n as u8]).collect();
    served.spi(&reads.iter().map(|read| (read.as_slice(), 16)).collect::<Vec<_>>());
    user.ok(&["spi", "trace", "--form", "vcd", "--out", "bus.vcd"]);
    let waveform = std::fs::read_to_string(user.path("bus.vcd")).unwrap();
    assert!(waveform.len() > 4 << 20 && waveform.matches("$timescale").count() == 1, "{}", waveform.len());
    assert_eq!(waveform.lines().filter(|line| *line == "0!").count(), 2004, "transactions");
    assert!(user.ok(&["spi", "wear"]).contains("1 erased at least once"));
    assert_eq!(user.json(&["spi", "wear"])["erase_counts"][0], 1);
    user.ok(&["spi", "dump", "--raw", "--out", "cells.bin"]);
    assert!(std::fs::read(user.path("cells.bin")).unwrap() == std::fs::read(user.path("flash.bin")).unwrap());
    assert_eq!(user.ok(&["spi", "power", "off"]).trim(), "PowerDown");
    assert_eq!(served.spi(&[(&[0x9F], 3)])[0], [0xFF; 3]);
    assert_eq!(user.ok(&["spi", "power", "on"]).trim(), "Standby");
    assert_eq!(user.ok(&["spi", "pin", "wp", "low"]).trim(), "Standby");
    assert_eq!(user.ok(&["spi", "age", "0"]).trim(), "0 bits lost their charge");
    user.ok(&["spi", "sync"]);
    let wrong = user.run(&["spi", "pin", "cs", "low"]);
    assert!(wrong.code == Some(2) && wrong.stderr.contains("expected wp, hold or reset"), "{wrong:?}");
    let second = user.run(&["spi", "serve", "--chip", "W25Q64JV", "--image", "flash.bin", "--pty"]);
    assert!(second.code == Some(1) && second.stderr.contains("is in use by another process"), "{second:?}");
    let taken = user.run(&["spi", "serve", "--chip", "W25Q64JV", "--serprog", &served.address]);
    assert!(taken.code == Some(1) && taken.stderr.contains("choose another address"), "{taken:?}");
    assert_eq!(served.stop().0, Some(0));
    let served = user.serve(&arguments);
    assert_eq!(served.spi(&[(&[0x03, 0, 0, 4], 2)])[0], *b"hi");
    assert_eq!(user.json(&["spi", "wear"])["erase_counts"][0], 1, "the wear is kept");
    assert_eq!(served.stop().0, Some(0));
    let gone = user.run(&["spi", "status"]);
    assert!(gone.code == Some(1) && gone.stderr.contains("no chip is served here"), "{gone:?}");
}

#[test]
fn a_violated_rule_makes_it_fail() {
    let user = User::new();
    std::fs::write(user.path("rules.toml"), "[[rule]]\nnever = \"program-unerased\"\n").unwrap();
    let arguments = ["--chip", "W25Q64JV", "--time", "fast", "--assert", "rules.toml"];
    let program = |value| [(vec![0x06], 0), (vec![0x02, 0, 0, 0, value], 0)];
    for (values, code) in [(&[0x0F, 0x0E][..], 0), (&[0x0F, 0x10], 1)] {
        let served = user.serve(&arguments);
        for (sent, read) in values.iter().flat_map(|value| program(*value)) {
            served.spi(&[(&sent, read)]);
        }
        let (found, said) = served.stop();
        assert_eq!(found, Some(code), "{said}");
        assert_eq!(said.contains("rule \"never program-unerased\" violated"), code == 1, "{said}");
    }
}

#[test]
fn several_chips_are_told_apart() {
    let user = User::new();
    let one = user.serve(&["--chip", "W25Q64JV", "--image", "one.bin", "--create"]);
    let two = user.serve(&["--chip", "W25Q128JV", "--image", "two.bin", "--create"]);
    let which = user.run(&["spi", "status"]);
    assert!(which.code == Some(2) && which.stderr.contains("two.bin"), "{which:?}");
    let name = |image| user.json(&["spi", "status", "--image", image])["chip"]["name"].clone();
    assert_eq!((name("one.bin"), name("two.bin")), ("W25Q64JV".into(), "W25Q128JV".into()));
    assert_eq!((one.stop().0, two.stop().0), (Some(0), Some(0)));
}

#[test]
fn chips_are_listed_shown_and_drawn() {
    let user = User::new();
    let list = user.json(&["spi", "list"]);
    for chip in list.as_array().unwrap() {
        let name = chip["name"].as_str().unwrap();
        assert!(user.ok(&["spi", "list"]).contains(name));
        assert!(user.ok(&["spi", "show", name]).contains("Commands"));
        assert_eq!(user.json(&["spi", "show", name])["bytes"], chip["bytes"]);
        user.ok(&["spi", "show", name, "--svg", "states.svg"]);
        let drawing = std::fs::read_to_string(user.path("states.svg")).unwrap();
        assert!(drawing.starts_with("<svg") && drawing.contains(">Standby</text>"));
        assert_eq!(drawing.contains(">Erasing</text>"), name != "MB85RS2MT", "{name}");
        std::fs::write(user.path("own.toml"), user.ok(&["spi", "show", name, "--toml"])).unwrap();
        assert!(user.ok(&["spi", "show", "./own.toml"]).contains(name));
    }
    std::fs::write(user.path("own.toml"), "name = \"X\"\nsize = \"big\"\n").unwrap();
    let wrong = user.run(&["spi", "show", "./own.toml"]);
    assert!(wrong.code == Some(2) && wrong.stderr.contains("own.toml:2:"), "{wrong:?}");
    let near = user.run(&["spi", "show", "W25Q128JW"]);
    assert!(near.code == Some(2) && near.stderr.contains("W25Q128JV"), "{near:?}");
}

#[test]
fn what_cannot_be_served_or_done_is_refused_clearly() {
    use std::os::unix::ffi::OsStrExt;
    let user = User::new();
    let serve = |more: &[&str]| {
        user.run(&[&["spi", "serve", "--chip", "W25Q64JV", "--serprog", "127.0.0.1:0"], more].concat())
    };
    let twice = serve(&["--fault", "wear", "--fault", "flip-in=0", "--fault", "flip-in=0.5"]);
    assert!(twice.code == Some(2) && twice.stderr.contains("flip-in is given several times"), "{twice:?}");
    let mut foreign = isolated(user.folder.path(), &["spi", "serve", "--chip", "W25Q64JV", "--unix"]);
    let foreign = foreign.arg(std::ffi::OsStr::from_bytes(b"s\xFF.sock")).output().unwrap();
    let said = String::from_utf8_lossy(&foreign.stderr);
    assert!(foreign.status.code() == Some(2) && said.contains("not UTF-8"), "{said}");
    let served = user.serve(&[
        "--time",
        "fast",
        "--chip",
        "W25Q64JV",
        "--fault",
        "cut-operation=0:0.5",
        "--fault",
        "cut-operation=1:1",
    ]);
    let none = user.run(&["spi", "sync"]);
    assert!(none.code == Some(2) && none.stderr.contains("sync: the chip is in memory only"), "{none:?}");
    for _ in 0..2 {
        served.spi(&[(&[0x06], 0), (&[0x02, 0, 0, 0, 0], 0)]);
        assert_eq!(user.json(&["spi", "status"])["chip"]["state"], "PowerDown");
        user.ok(&["spi", "power", "on"]);
    }
    served.spi(&[(&[0x06], 0), (&[0x02, 0, 0, 0, 0], 0)]);
    assert_eq!(user.json(&["spi", "status"])["chip"]["state"], "Standby");
    assert_eq!(served.stop().0, Some(0));
}

#[test]
fn a_message_to_another_recipient_is_refused() {
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixStream;
    let user = User::new();
    let served = user.serve(&["--chip", "W25Q64JV", "--control", "control.sock"]);
    let stream = UnixStream::connect(user.path("control.sock")).unwrap();
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    for (recipient, is_right) in
        [("\"part\":\"chip\"", true), ("\"part\":\"log\"", false), ("\"kind\":\"mirror\"", false)]
    {
        writeln!(&stream, "{{\"verb\":\"message\",{recipient},\"text\":\"power off\"}}").unwrap();
        let answer = lines.next().unwrap().unwrap();
        assert_eq!(answer.contains("PowerDown"), is_right, "{answer}");
        assert_eq!(answer.contains("unknown to a server of a flash chip; expected"), !is_right, "{answer}");
    }
    assert_eq!(served.stop().0, Some(0));
}

#[test]
fn the_end_reports_violations_and_errors() {
    let user = User::new();
    std::fs::write(user.path("rules.toml"), "[[rule]]\nnever = \"erase\"\n").unwrap();
    let served = user.serve(&[
        "--chip",
        "W25Q64JV",
        "--image",
        "flash.bin",
        "--create",
        "--time",
        "fast",
        "--assert",
        "rules.toml",
    ]);
    std::fs::remove_file(user.path("flash.bin")).unwrap();
    served.spi(&[(&[0x06], 0), (&[0x20, 0, 0, 0], 0)]);
    let (code, said) = served.stop();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("rule \"never erase\" violated"), "{said}");
    assert!(said.contains("flash.bin\": replaced or removed since it was opened"), "{said}");
}
