//! The image and the state file: what a restart shows, and what is refused.

use crate::common::{Programmer, description, run, station_on};
use block::Error;
use spi::image::ImageFile;
use std::path::Path;

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
            let station = station_on(&path, "W25Q64JV").await.unwrap();
            let programmer = Programmer::connect(&station).await;
            let id = programmer.spi(&[0x4B, 0, 0, 0, 0], 8).await;
            write(&programmer, &[0x20, 0, 0x10, 0]).await;
            write(&programmer, &[0x02, 0, 0x10, 0, 1, 2, 3]).await;
            write(&programmer, &[0x42, 0, 0x10, 0, 0x77]).await;
            write(&programmer, &[0x01, 0x04]).await;
            // A status makes it durable.
            assert!(station.status().await["image"]["error"].is_null());
            assert_eq!(std::fs::read(&path).unwrap()[0x1000..0x1004], [1, 2, 3, 0xFF]);
            write(&programmer, &[0x02, 0x7F, 0, 0, 9]).await;
            assert_eq!(programmer.spi(&[0x03, 0x7F, 0, 0], 1).await, [0xFF], "BP0 protects the top");
            programmer.spi(&[0x04], 0).await;
            station.close().await.unwrap();
            let station = station_on(&path, "W25Q64JV").await.unwrap();
            let programmer = Programmer::connect(&station).await;
            assert_eq!(programmer.spi(&[0x4B, 0, 0, 0, 0], 8).await, id);
            assert_eq!(programmer.spi(&[0x03, 0, 0x10, 0], 4).await, [1, 2, 3, 0xFF]);
            assert_eq!(programmer.spi(&[0x48, 0, 0x10, 0, 0], 1).await, [0x77]);
            assert_eq!(programmer.spi(&[0x05], 1).await, [0x04]);
            assert_eq!(station.answer("wear").await.unwrap()["erase_counts"][1], 1);
            station.close().await.unwrap();
        }
    });
}

#[test]
fn changes_reach_the_file_without_being_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("flash.bin");
    run(|| async move {
        let station = station_on(&path, "W25Q64JV").await.unwrap();
        let programmer = Programmer::connect(&station).await;
        write(&programmer, &[0x02, 0x7F, 0xFF, 0xFF, 0x55]).await;
        while std::fs::read(&path).unwrap().last() != Some(&0x55) {
            runtime::sleep(std::time::Duration::from_millis(20)).await;
        }
        station.close().await.unwrap();
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
        let station = station_on(&path, "W25Q64JV").await.unwrap();
        let error = refused(&path, "W25Q64JV", false).await;
        assert!(matches!(error, Error::Busy(_)), "{error}");
        let programmer = Programmer::connect(&station).await;
        write(&programmer, &[0x01, 0x04]).await;
        drop(programmer);
        station.close().await.unwrap();
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
