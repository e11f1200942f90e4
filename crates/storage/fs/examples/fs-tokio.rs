//! The file system in a program on tokio: tasks append to journals in one image.
//!
//! ```text
//! cargo run -p siltstone-fs --example fs-tokio [IMAGE]
//! ```
//!
//! Without IMAGE it is in a temporary folder.

use siltstone_fs::embedded::{FileSystem, Options, Result};
use std::path::PathBuf;

pub(crate) async fn write_journals(path: PathBuf) -> Result<()> {
    let files = FileSystem::open(path, Options { size: 1 << 30, ..Options::default() }).await?;
    files.create_dir_all("/var/journals").await?;
    let tasks: Vec<_> = (0..10)
        .map(|task| {
            let files = files.clone();
            tokio::spawn(async move {
                let journal = files.create_file(format!("/var/journals/{task}")).await?;
                for line in 0..100 {
                    journal.append(format!("line {line}\n")).await?;
                }
                journal.sync_all().await
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("the tasks don't panic")?;
    }
    for entry in files.read_dir("/var/journals").await? {
        let path = format!("/var/journals/{}", entry.file_name().display());
        println!("{path}: {} bytes", files.metadata(path.as_str()).await?.len());
    }
    files.close().await
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let path = std::env::args_os().nth(1).map_or_else(|| folder.path().join("disk.img"), PathBuf::from);
    let executor = tokio::runtime::Builder::new_multi_thread().build()?;
    Ok(executor.block_on(write_journals(path))?)
}
