//! The store in a program on tokio: a hundred tasks count words in one store.
//!
//! ```text
//! cargo run -p siltstone-kv --example kv-tokio [FILE]
//! ```
//!
//! Without FILE the store is in a temporary folder.

use siltstone_kv::embedded::{Options, Result, Store};
use std::path::PathBuf;

pub(crate) async fn count_words(path: PathBuf) -> Result<()> {
    let store = Store::open(path, Options { size: 1 << 30, ..Options::default() }).await?;
    let tasks: Vec<_> = (0..100)
        .map(|task| {
            let store = store.clone();
            tokio::spawn(async move {
                let word = ["sand", "silt", "clay"][task % 3];
                // Atomic: no other task's update of the word is in between.
                store.fetch_update(word, |count| Some(vec![count.map_or(0, |count| count[0]) + 1])).await
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("the tasks don't panic")?;
    }
    let mut words = store.iter();
    while let Some((word, count)) = words.next().await? {
        println!("{}: {}", word.escape_ascii(), count[0]);
    }
    store.close().await
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let path = std::env::args_os().nth(1).map_or_else(|| folder.path().join("words.kv"), PathBuf::from);
    // The multi-threaded executor; a current-thread one does as well.
    let executor = tokio::runtime::Builder::new_multi_thread().build()?;
    Ok(executor.block_on(count_words(path))?)
}
