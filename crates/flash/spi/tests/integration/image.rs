//! The image and the state file: contents after a restart, and refusals.

use crate::common::{Programmer, close, description, run, served_chip_on};
use block::Error;
use spi::image::ImageFile;
use spi::rules::Rules;
use spi::{Board, ServedChip, Server, Time};
use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

async fn write(programmer: &Programmer, bytes: &[u8]) {
    programmer.spi(&[0x06], 0).await;
    programmer.spi(bytes, 0).await;
}

#[test]
fn a_restart_shows_the_same_chip() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("flash.bin");
    run({
        let path = path.clone();
        || async move {
            let served_chip = served_chip_on(&path, "W25Q64JV").await.unwrap();
            let programmer = Programmer::connect(&served_chip).await;
            let id = programmer.spi(&[0x4B, 0, 0, 0, 0], 8).await;
            write(&programmer, &[0x20, 0, 0x10, 0]).await;
            write(&programmer, &[0x02, 0, 0x10, 0, 1, 2, 3]).await;
            write(&programmer, &[0x42, 0, 0x10, 0, 0x77]).await;
            write(&programmer, &[0x01, 0x04]).await;
            // A status makes the write durable.
            assert!(served_chip.status().await["image"]["error"].is_null());
            assert_eq!(std::fs::read(&path).unwrap()[0x1000..0x1004], [1, 2, 3, 0xFF]);
            write(&programmer, &[0x02, 0x7F, 0, 0, 9]).await;
            assert_eq!(programmer.spi(&[0x03, 0x7F, 0, 0], 1).await, [0xFF], "BP0 protects the top");
            programmer.spi(&[0x04], 0).await;
            close(served_chip).await;
            let served_chip = served_chip_on(&path, "W25Q64JV").await.unwrap();
            let programmer = Programmer::connect(&served_chip).await;
            assert_eq!(programmer.spi(&[0x4B, 0, 0, 0, 0], 8).await, id);
            assert_eq!(programmer.spi(&[0x03, 0, 0x10, 0], 4).await, [1, 2, 3, 0xFF]);
            assert_eq!(programmer.spi(&[0x48, 0, 0x10, 0, 0], 1).await, [0x77]);
            assert_eq!(programmer.spi(&[0x05], 1).await, [0x04]);
            assert_eq!(served_chip.answer("wear").await.unwrap()["erase_counts"][1], 1);
            close(served_chip).await;
        }
    });
}

#[test]
fn changes_reach_the_file_without_being_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("flash.bin");
    run(|| async move {
        let served_chip = served_chip_on(&path, "W25Q64JV").await.unwrap();
        let programmer = Programmer::connect(&served_chip).await;
        write(&programmer, &[0x02, 0x7F, 0xFF, 0xFF, 0x55]).await;
        while std::fs::read(&path).unwrap().last() != Some(&0x55) {
            runtime::sleep(std::time::Duration::from_millis(20)).await;
        }
        close(served_chip).await;
    });
}

async fn refused(path: &Path, name: &str, create: bool) -> Error {
    ImageFile::open(path, description(name), 1, create).await.err().unwrap()
}

#[test]
fn what_does_not_fit_is_refused_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("flash.bin");
    run(|| async move {
        let error = refused(&path, "W25Q64JV", false).await;
        assert!(matches!(error, Error::NotFound(_)) && error.to_string().contains("--create"), "{error}");
        std::fs::write(&path, [0; 1000]).unwrap();
        let error = refused(&path, "W25Q64JV", true).await.to_string();
        assert!(
            error.contains("wrong size: 1000 bytes; expected 8388608 bytes for chip \"W25Q64JV\""),
            "{error}"
        );
        std::fs::remove_file(&path).unwrap();
        let served_chip = served_chip_on(&path, "W25Q64JV").await.unwrap();
        let error = refused(&path, "W25Q64JV", false).await;
        assert!(matches!(error, Error::Busy(_)), "{error}");
        let programmer = Programmer::connect(&served_chip).await;
        write(&programmer, &[0x01, 0x04]).await;
        drop(programmer);
        close(served_chip).await;
        let state = folder.path().join("flash.bin.state");
        let good = std::fs::read_to_string(&state).unwrap();
        for (bad, expected) in [
            (good.replace("W25Q64JV", "W25Q99"), "of another chip: W25Q99"),
            (good.replace("\"version\":1", "\"version\":2"), "version 2"),
            (good.replace("\"registers\":[", "\"registers\":[1,"), "made for another chip"),
            (good[..good.len() / 2].to_owned(), "flash.bin.state"),
            ("[]".to_owned(), "flash.bin.state"),
        ] {
            std::fs::write(&state, bad).unwrap();
            let error = refused(&path, "W25Q64JV", false).await.to_string();
            assert!(error.contains(expected) && error.contains("move it away"), "{error}");
        }
        std::fs::write(&state, good).unwrap();
        assert!(ImageFile::open(&path, description("W25Q64JV"), 1, false).await.is_ok());
        assert!(refused(folder.path(), "W25Q64JV", false).await.to_string().contains("image \""));
    });
}

/// Opens the image and closes it again, to create it.
async fn create(path: &Path) -> block::Result<()> {
    ImageFile::open(path, description("W25Q64JV"), 1, true).await.map(drop)
}

#[test]
fn a_new_image_does_not_take_the_state_of_an_older_one() {
    let folder = tempfile::tempdir().unwrap();
    let (path, state) = (folder.path().join("flash.bin"), folder.path().join("flash.bin.state"));
    run(|| async move {
        for is_there in [false, true] {
            std::fs::write(&state, "precious").unwrap();
            if is_there {
                std::fs::write(&path, "").unwrap();
            }
            let error = create(&path).await.unwrap_err();
            assert!(matches!(error, Error::AlreadyExists(_)), "{error}");
            assert!(error.to_string().contains("flash.bin.state\": left of an older image"), "{error}");
            assert_eq!(std::fs::read_to_string(&state).unwrap(), "precious");
            assert_eq!(path.exists(), is_there, "nothing is left behind, and nothing of the user's removed");
        }
        std::fs::remove_file(&state).unwrap();
        create(&path).await.unwrap();
    });
}

#[test]
fn an_image_has_its_name_when_it_is_whole() {
    use std::os::unix::fs::OpenOptionsExt;
    let folder = tempfile::tempdir().unwrap();
    let flags = rustix::fs::OFlags::TMPFILE.bits() as i32;
    if std::fs::OpenOptions::new().write(true).custom_flags(flags).open(folder.path()).is_err() {
        println!("SKIPPED: an_image_has_its_name_when_it_is_whole: the file system has no unnamed files");
        return;
    }
    let path = folder.path().join("flash.bin");
    let size = u64::from(description("W25Q64JV").size);
    // A concurrent observer sees what a killed process would leave.
    let is_over = AtomicBool::new(false);
    let seen = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            while !is_over.load(Relaxed) {
                if let Ok(found) = std::fs::metadata(&path) {
                    return found.len();
                }
            }
            std::fs::metadata(&path).unwrap().len()
        });
        let path = path.clone();
        run(|| async move { create(&path).await.unwrap() });
        is_over.store(true, Relaxed);
        watcher.join().unwrap()
    });
    assert_eq!(seen, size);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
}

#[test]
fn a_change_by_another_program_is_noticed_and_a_kill_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("flash.bin");
    let state = folder.path().join("flash.bin.state");
    run(|| async move {
        let is_changed = async || {
            let (image, _) = ImageFile::open(&path, description("W25Q64JV"), 1, false).await.unwrap();
            image.is_changed()
        };
        let has_checksum = || std::fs::read_to_string(&state).unwrap().contains("image_crc32c");
        let served_chip = served_chip_on(&path, "W25Q64JV").await.unwrap();
        close(served_chip).await;
        assert!(has_checksum() && !is_changed().await);
        // A kill leaves the image with a part of the changes, and the state file as it was before the first
        // of them.
        let served_chip = served_chip_on(&path, "W25Q64JV").await.unwrap();
        let programmer = Programmer::connect(&served_chip).await;
        write(&programmer, &[0x01, 0x00]).await;
        served_chip.answer("sync").await.unwrap();
        assert!(has_checksum(), "the image hasn't changed");
        write(&programmer, &[0x02, 0, 0, 0, 7]).await;
        served_chip.answer("sync").await.unwrap();
        assert!(!has_checksum());
        close(served_chip).await;
        assert!(has_checksum() && !is_changed().await);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[0x1000] = 0;
        std::fs::write(&path, bytes).unwrap();
        assert!(is_changed().await);
        // The comparison is with the last orderly end.
        close(served_chip_on(&path, "W25Q64JV").await.unwrap()).await;
        assert!(!is_changed().await);
    });
}

#[test]
fn links_to_an_image_are_followed_and_its_state_is_beside_it() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let folder = tempfile::tempdir().unwrap();
    let (path, link) = (folder.path().join("flash.bin"), folder.path().join("link.bin"));
    let (nowhere, victim) = (folder.path().join("nowhere.bin"), folder.path().join("victim"));
    run(|| async move {
        symlink(&path, &link).unwrap();
        let error = create(&link).await.unwrap_err().to_string();
        assert!(error.contains("a link to a missing file"), "{error}");
        create(&path).await.unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        std::fs::write(&victim, "precious").unwrap();
        symlink(&victim, folder.path().join("flash.bin.state.new")).unwrap();
        let served_chip = served_chip_on(&link, "W25Q64JV").await.unwrap();
        let programmer = Programmer::connect(&served_chip).await;
        write(&programmer, &[0x20, 0, 0, 0]).await;
        close(served_chip).await;
        assert!(!folder.path().join("link.bin.state").exists());
        let state = std::fs::metadata(folder.path().join("flash.bin.state")).unwrap();
        assert_eq!(state.permissions().mode() & 0o777, 0o640);
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
        symlink(folder.path().join("gone"), &nowhere).unwrap();
        assert!(matches!(refused(&nowhere, "W25Q64JV", false).await, Error::NotFound(_)));
    });
}

#[test]
fn a_file_that_was_replaced_is_noticed_and_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let (path, other) = (folder.path().join("flash.bin"), folder.path().join("other.bin"));
    run(|| async move {
        let served_chip = served_chip_on(&path, "W25Q64JV").await.unwrap();
        let programmer = Programmer::connect(&served_chip).await;
        assert!(served_chip.status().await["image"]["error"].is_null());
        let state = || std::fs::read(folder.path().join("flash.bin.state")).unwrap();
        let before = state();
        std::fs::rename(&path, &other).unwrap();
        std::fs::write(&path, "another file").unwrap();
        write(&programmer, &[0x20, 0, 0, 0]).await;
        write(&programmer, &[0x02, 0, 0, 0, 7]).await;
        let status = served_chip.status().await;
        let error = status["image"]["error"].as_str().unwrap();
        assert!(error.contains("flash.bin\": replaced or removed since it was opened"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "another file");
        assert!(state() == before, "the erase count would be one of the other file");
        // With the file back in its place, everything is written.
        std::fs::rename(&other, &path).unwrap();
        served_chip.answer("sync").await.unwrap();
        assert_eq!(std::fs::read(&path).unwrap()[0], 7);
        assert!(state() != before);
        std::fs::remove_file(&path).unwrap();
        write(&programmer, &[0x02, 0, 0, 1, 8]).await;
        let closed = served_chip.close().await;
        assert_eq!(closed.errors.len(), 1, "{closed:?}");
    });
}

#[test]
fn closing_reports_violations_and_every_error() {
    let folder = tempfile::tempdir().unwrap();
    let (path, socket) = (folder.path().join("flash.bin"), folder.path().join("run/s.sock"));
    run(|| async move {
        std::fs::create_dir(folder.path().join("run")).unwrap();
        let (image, chip) = ImageFile::open(&path, description("W25Q64JV"), 1, true).await.unwrap();
        let rules = Rules::parse("rules.toml", "[[rule]]\nnever = \"erase\"").unwrap();
        let board = Rc::new(RefCell::new(Board::new(chip, Time::Fast(0), rules, 0)));
        let address = format!("unix:{}", socket.display()).parse().unwrap();
        let server = Server::start(board.clone(), &[address], false).await.unwrap();
        let served = ServedChip::new(board, Some(image), server);
        let programmer = Programmer::connect(&served).await;
        std::fs::remove_file(&path).unwrap();
        write(&programmer, &[0x20, 0, 0, 0]).await;
        let closed = served.close().await;
        assert_eq!((closed.violations.len(), closed.errors.len()), (1, 1), "{closed:?}");
        assert!(closed.errors[0].to_string().contains("flash.bin"), "{closed:?}");
    });
}
