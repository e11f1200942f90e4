//! Stock flashrom on the chips, compared with flashrom's own emulation of the chips that both support.

use crate::common::{close, run, served_chip};
use runtime::net::Address;
use spi::{ServedChip, Time};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Lines that name the programmer, the version or the test state of a chip.
const NOISE: &[&str] = &[
    "flashrom ",
    "serprog:",
    "Using clock",
    "Calibrating",
    "Thanks",
    "Please",
    "please",
    "work correctly",
    "file for all",
    "mention",
    "which mainboard",
    "this flash part",
    "This flash part",
    "===",
    "No operations",
    "The test status",
    "Delay loop",
    "version of flashrom",
];

/// Returns the path of flashrom; without it, prints that the test is skipped.
fn flashrom() -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    let folders = path.split(':').chain(["/usr/sbin", "/usr/local/sbin"]);
    let found = folders.map(|folder| Path::new(folder).join("flashrom")).find(|path| path.is_file());
    if found.is_none() {
        let thread = std::thread::current();
        println!("SKIPPED: {}: flashrom is not installed", thread.name().unwrap_or("a test"));
    }
    found
}

struct Ran {
    success: bool,
    /// Output, without noise and the programmer's name.
    said: String,
}

/// A folder with files for flashrom, and the chip's address.
struct Bench {
    flashrom: PathBuf,
    folder: tempfile::TempDir,
    programmer: String,
}

impl Bench {
    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn on(flashrom: PathBuf, programmer: String) -> Bench {
        Bench { flashrom, folder: tempfile::tempdir().unwrap(), programmer }
    }

    fn at(flashrom: PathBuf, served_chip: &ServedChip) -> Bench {
        let Address::Tcp(address) = &served_chip.server().addresses()[0] else { panic!("a port") };
        Bench::on(flashrom, format!("serprog:ip={address}"))
    }

    /// Runs flashrom, on a thread of its own.
    async fn run(&self, arguments: &[&str]) -> Ran {
        let mut command = Command::new("timeout");
        command.arg("120").arg(&self.flashrom).args(["-p", &self.programmer]).args(arguments);
        command.current_dir(self.folder.path());
        let output = runtime::blocking(move || command.output()).await.unwrap();
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        let lines = text.lines().filter(|line| {
            !line.is_empty() && !NOISE.iter().any(|noise| line.starts_with(noise)) && !line.contains("ummy")
                || line.starts_with("Found ")
        });
        let said: Vec<String> =
            lines.map(|line| line.replace(" on serprog", "").replace(" on dummy", "")).collect();
        Ran { success: output.status.success(), said: said.join("\n") }
    }

    #[track_caller]
    fn assert_ok(ran: &Ran) {
        assert!(ran.success, "{}", ran.said);
    }
}

/// Uses every chip on a shard of its own, at the same time, since flashrom mostly waits: a second after each
/// connection. On one shard, the files that are written for a chip delay the answers of the others, and
/// flashrom gives up if an answer takes half a second.
fn at_the_same_time<T, F, U>(chips: impl IntoIterator<Item = T>, use_chip: F)
where
    T: Send,
    F: Fn(T) -> U + Sync,
    U: Future<Output = ()> + 'static,
{
    let use_chip = &use_chip;
    std::thread::scope(|scope| {
        for chip in chips {
            scope.spawn(move || run(move || use_chip(chip)));
        }
    });
}

/// Pseudo-random bytes, determined by the seed.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut random = runtime::Random::new(seed);
    let mut bytes = vec![0; length];
    random.fill(&mut bytes);
    bytes
}

#[test]
fn flashrom_identifies_erases_writes_verifies_and_reads() {
    let Some(flashrom) = flashrom() else { return };
    let chips = [
        ("W25Q64JV", "W25Q64JV-.Q"),
        ("MX25L25645G", "MX25L25635F/MX25L25645G"),
        ("GD25Q128C", "GD25Q127C/GD25Q128C"),
    ];
    at_the_same_time(chips, |(chip, name)| use_chip(flashrom.clone(), chip, name));
}

async fn use_chip(flashrom: PathBuf, chip: &'static str, name: &'static str) {
    let served_chip = served_chip(chip, Time::Fast(1), "").await;
    let bench = Bench::at(flashrom, &served_chip);
    let found = bench.run(&[]).await;
    assert!(found.said.contains("Found"), "{chip}: {}", found.said);
    let size = served_chip.board().borrow_mut().chip().description().size as usize;
    // Mostly erased, which is quick: only some pages have data.
    let mut image = vec![0xFF; size];
    for (n, at) in (0..size).step_by(size / 64).enumerate() {
        image[at..at + 5000].copy_from_slice(&noise(n as u64, 5000));
    }
    std::fs::write(bench.path("image"), &image).unwrap();
    let name = found.said.split('"').find(|word| *word == name).unwrap_or(name).to_owned();
    let ran = bench.run(&["-c", &name, "-w", "image"]).await;
    Bench::assert_ok(&ran);
    assert!(ran.said.contains("VERIFIED"), "{}", ran.said);
    assert!(served_chip.board().borrow_mut().chip().memory() == image, "{chip}");
    Bench::assert_ok(&bench.run(&["-c", &name, "-r", "out"]).await);
    assert!(std::fs::read(bench.path("out")).unwrap() == image);
    Bench::assert_ok(&bench.run(&["-c", &name, "-E"]).await);
    assert!(served_chip.board().borrow_mut().chip().memory().iter().all(|byte| *byte == 0xFF));
    let overwrites = served_chip.board().borrow_mut().chip().counters().overwrites;
    assert_eq!(overwrites, 0, "flashrom erases before it writes");
    close(served_chip).await;
}

#[test]
fn flashrom_finds_that_a_chip_is_broken() {
    let Some(flashrom) = flashrom() else { return };
    run(move || async move {
        let served_chip = served_chip("W25Q64JV", Time::Fast(0), "").await;
        let bench = Bench::at(flashrom, &served_chip);
        let faults = spinor::Faults { flip_in: 0.001, ..spinor::Faults::default() };
        served_chip.board().borrow_mut().chip().set_faults(faults);
        std::fs::write(bench.path("image"), noise(1, 8 << 20)).unwrap();
        std::fs::write(bench.path("layout"), "000000:00ffff part\n").unwrap();
        let ran = bench.run(&["-c", "W25Q64JV-.Q", "-l", "layout", "-i", "part", "-w", "image"]).await;
        assert!(!ran.success, "{}", ran.said);
        close(served_chip).await;
    });
}

#[test]
fn write_protection_holds_against_flashrom() {
    let Some(flashrom) = flashrom() else { return };
    run(move || async move {
        let served_chip = served_chip("W25Q128FV", Time::Fast(0), "").await;
        let bench = Bench::at(flashrom, &served_chip);
        let wp = async |arguments: &[&str]| bench.run(&[&["-c", "W25Q128.V"], arguments].concat()).await;
        served_chip.board().borrow_mut().chip().memory_mut()[..2].copy_from_slice(&[0x12, 0x34]);
        Bench::assert_ok(&wp(&["--wp-range", "0,0x100000", "--wp-enable"]).await);
        let status = wp(&["--wp-status"]).await.said;
        assert!(status.contains("start=0x00000000 length=0x00100000"), "{status}");
        assert!(status.contains("Protection mode: hardware"), "{status}");
        assert_eq!(served_chip.board().borrow_mut().chip().protected_area(), 0..0x10_0000);
        // With WP# high, flashrom removes the protection itself to erase; with WP# low it can't.
        served_chip.answer("pin wp low").await.unwrap();
        assert!(!wp(&["-E"]).await.success);
        assert_eq!(served_chip.board().borrow_mut().chip().memory()[..2], [0x12, 0x34]);
        assert!(!wp(&["--wp-disable"]).await.success);
        served_chip.answer("pin wp high").await.unwrap();
        Bench::assert_ok(&wp(&["--wp-disable"]).await);
        Bench::assert_ok(&wp(&["--wp-range", "0,0"]).await);
        Bench::assert_ok(&wp(&["-E"]).await);
        assert_eq!(served_chip.board().borrow_mut().chip().memory()[..2], [0xFF; 2]);
        close(served_chip).await;
    });
}

/// flashrom's output and results are the same on these chips and on its own emulation of them.
#[test]
fn the_dummy_programmer_answers_the_same() {
    let Some(flashrom) = flashrom() else { return };
    const MX: &str = "MX25L6436E/MX25L6445E/MX25L6465E/MX25L6473E/MX25L6473F";
    let chips = [
        ("W25Q128FV", "W25Q128FV", "W25Q128.V"),
        ("SST25VF032B", "SST25VF032B", "SST25VF032B"),
        ("MX25L6436E", "MX25L6436", MX),
        ("S25FL128L", "S25FL128L", "S25FL128L"),
    ];
    at_the_same_time(chips, |names| compare(flashrom.clone(), names));
}

async fn compare(flashrom: PathBuf, (chip, dummy, name): (&'static str, &'static str, &'static str)) {
    let served_chip = served_chip(chip, Time::Fast(0), "").await;
    let ours = Bench::at(flashrom.clone(), &served_chip);
    let theirs = Bench::on(flashrom, format!("dummy:emulate={dummy},image=chip"));
    let size = served_chip.board().borrow_mut().chip().memory().len();
    std::fs::write(theirs.path("chip"), vec![0xFF; size]).unwrap();
    for bench in [&ours, &theirs] {
        std::fs::write(bench.path("image"), noise(2, size)).unwrap();
        std::fs::write(bench.path("layout"), "000000:001fff boot\n010000:012fff data\n").unwrap();
    }
    for arguments in [
        &[][..],
        &["-c", name, "-l", "layout", "-i", "boot", "-w", "image"],
        &["-c", name, "-l", "layout", "-i", "data", "-w", "image"],
        &["-c", name, "-l", "layout", "-i", "boot", "-E"],
        &["-c", name, "-v", "image"],
        &["-c", name, "--wp-status"],
        &["-c", name, "--wp-list"],
        &["-c", name, "--flash-size"],
        &["-c", name, "-r", "out"],
        &["-c", name, "-E"],
    ] {
        let (a, b) = (ours.run(arguments).await, theirs.run(arguments).await);
        assert_eq!((a.success, &a.said), (b.success, &b.said), "{chip} {arguments:?}");
        if arguments.contains(&"-r") {
            let read = |bench: &Bench| std::fs::read(bench.path("out")).unwrap();
            assert!(read(&ours) == read(&theirs), "{chip}");
        }
        let image = std::fs::read(theirs.path("chip")).unwrap();
        assert!(served_chip.board().borrow_mut().chip().memory() == image, "{chip} {arguments:?}");
    }
    close(served_chip).await;
}
