//! The file system in a program of plain threads, without an executor.
//!
//! ```text
//! cargo run -p siltstone-fs --example fs-threads [IMAGE]
//! ```
//!
//! Without IMAGE it is in a temporary folder.

use siltstone_fs::embedded::{FileSystem, Options, Result};
use std::path::{Path, PathBuf};

pub(crate) fn fill(path: &Path) -> Result<()> {
    // Two threads of the file system; any number of threads call it.
    let options = Options { size: 1 << 30, shards: 2, ..Options::default() };
    let files = FileSystem::open(path, options).blocking()?;
    files.create_dir_all("/data").blocking()?;
    let file = files.create_file("/data/table").blocking()?;
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4_u64)
            .map(|writer| {
                let file = &file;
                scope.spawn(move || file.write_at(writer << 16, vec![writer as u8; 1 << 16]).blocking())
            })
            .collect();
        writers.into_iter().try_for_each(|writer| writer.join().expect("the writers don't panic"))
    })?;
    file.sync_all().blocking()?;
    files.rename("/data/table", "/data/table.1").blocking()?;
    println!("{} bytes", files.metadata("/data/table.1").blocking()?.len());
    println!("byte 70000 is {}", file.read_at(70_000, 1).blocking()?[0]);
    files.close().blocking()
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let path = std::env::args_os().nth(1).map_or_else(|| folder.path().join("disk.img"), PathBuf::from);
    Ok(fill(&path)?)
}
