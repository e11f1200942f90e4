//! A part whose state belongs to one shard has the same status on other shards as at home.

use block::Status;
use runtime::{Config, ShardIndex};
use stack::{BuiltStack, Registry, Stack};
use std::collections::BTreeSet;
use std::sync::Arc;

/// All parts with a home shard: log, cache, write cache, mirror.
const STACK: &str = "mirror(cache(log(ram(size=64MiB), zone_size=1MiB, size=16MiB), ram(size=8MiB)), \
                     writecache(ram(size=16MiB), ram(size=8MiB)))";

fn registry() -> Registry {
    Registry::new(vec![
        &disks::ram::KIND,
        &cache::KIND,
        &writecache::KIND,
        &mirror::KIND,
        &zones::on_device::KIND,
        &log::KIND,
    ])
}

/// Collects the keys of a status and of all objects in it, each with its path.
fn keys(path: &str, status: &Status, all: &mut BTreeSet<String>) {
    for (key, value) in status {
        let path = format!("{path}/{key}");
        if let Some(inner) = value.as_object() {
            keys(&path, inner, all);
        }
        all.insert(path);
    }
}

/// Keys of the status of all parts.
async fn told(built: &BuiltStack) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    keys("", built.status().await.as_object().expect("an object"), &mut all);
    all
}

#[test]
fn every_shard_tells_the_same() {
    // Under simulation all shards share a thread, and with it the thread-locals.
    let main = || async {
        let stack = Stack::from_line("line", STACK, &registry()).unwrap_or_else(|wrong| panic!("{wrong}"));
        let built = stack.check(true).unwrap_or_else(|wrong| panic!("{wrong}")).build().await.unwrap();
        let built = Arc::new(built);
        let at_home = told(&built).await;
        for key in ["log1/zones/free", "cache1/used_blocks", "writecache1/free_blocks", "top/legs"] {
            assert!(at_home.contains(&format!("/devices/{key}")), "{key}: {at_home:?}");
        }
        let asking = built.clone();
        let told = runtime::spawn_on(ShardIndex(1), move || async move { told(&asking).await });
        assert_eq!(told.await.unwrap(), at_home);
        built.close().await.unwrap();
        // Status of a closed part.
        let status = runtime::spawn_on(ShardIndex(1), move || async move { built.status().await });
        assert_eq!(status.await.unwrap()["devices"]["log1"]["error"], "it is closed (closed)");
    };
    runtime::run(Config::default().with_shards(2), main).unwrap();
}
