//! The store in a program of plain threads, without an executor.
//!
//! ```text
//! cargo run -p siltstone-kv --example kv-threads [FILE]
//! ```
//!
//! Without FILE the store is in a temporary folder.

use siltstone_kv::embedded::{Batch, Options, Result, Store};
use std::path::{Path, PathBuf};

pub(crate) fn fill(path: &Path) -> Result<()> {
    // Two threads of the store; any number of threads call it.
    let store = Store::open(path, Options { size: 1 << 30, shards: 2, ..Options::default() }).blocking()?;
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4)
            .map(|writer| {
                let store = &store;
                scope.spawn(move || {
                    (0..1000).try_for_each(|number| {
                        let mut batch = Batch::new();
                        batch.insert(format!("user:{writer}:{number:04}"), "active");
                        batch.insert(format!("log:{writer}:{number:04}"), "created");
                        store.write(batch).blocking()
                    })
                })
            })
            .collect();
        writers.into_iter().try_for_each(|writer| writer.join().expect("the writers don't panic"))
    })?;
    let snapshot = store.snapshot().blocking()?;
    store.remove("user:2:0000").blocking()?;
    println!("user 2 has {} keys", store.prefix("user:2:").blocking().count());
    println!("user 2 had {} keys", snapshot.prefix("user:2:").blocking().count());
    for pair in store.range("user:3:0998"..).rev().blocking().take(2) {
        let (key, value) = pair?;
        println!("{} = {}", key.escape_ascii(), value.escape_ascii());
    }
    store.flush().blocking()
    // The last handle closes the store; `close` also returns the error of that.
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let path = std::env::args_os().nth(1).map_or_else(|| folder.path().join("users.kv"), PathBuf::from);
    Ok(fill(&path)?)
}
