//! Stacks as pictures and as JSON.

use crate::fixtures::registry;
use serde_json::json;
use stack::Stack;

#[test]
fn a_tree_with_sizes() {
    let line = "nbd(writecache(fast=ram(1MiB), origin=log(mirror(file(a, 4GiB), file(b, 4GiB)), map=btree)), \
                socket=\"a\\nb\") shards=2";
    let plan = Stack::from_line("stack", line, &registry()).unwrap().check(false).unwrap();
    assert_eq!(
        plan.draw(),
        "2 shards\n\
         nbd \"top\"  socket=a?b\n\
         └─ writecache \"top\"  4095MiB in blocks of 4KiB\n   \
            ├─ fast: ram \"ram1\"  1MiB in blocks of 512\n   \
            └─ origin: log \"log1\"  4095MiB in blocks of 4KiB  map=btree\n      \
               └─ mirror \"mirror1\"  4GiB in blocks of 4KiB\n         \
                  ├─ file \"file1\"  4GiB in blocks of 4KiB  path=a\n         \
                  └─ file \"file2\"  4GiB in blocks of 4KiB  path=b\n"
    );
}

#[test]
fn what_is_shared_is_drawn_once() {
    let text = "[device.a]\nkind = \"log\"\non = \"n\"\n[device.n]\nkind = \"null\"\n\
                [device.b]\nkind = \"log\"\non = \"n\"\n[device.m]\nkind = \"mirror\"\ndevices = [\"a\", \"b\"]\n\
                [door.x]\nkind = \"nbd\"\ndevice = \"m\"\n[door.y]\nkind = \"nbd\"\ndevice = \"m\"\n";
    let stack = Stack::from_toml("stack.toml", text, &registry()).unwrap();
    assert_eq!(
        stack.draw(),
        "nbd \"x\"\n\
         └─ mirror \"m\"\n   \
            ├─ log \"a\"\n   \
            │  └─ null \"n\"\n   \
            └─ log \"b\"\n      \
               └─ null \"n\"\n\
         nbd \"y\"\n\
         └─ mirror \"m\"  (see above)\n"
    );
    assert_eq!(stack.to_json()["line"], json!(null));
}

#[test]
fn json() {
    let plan = Stack::from_line("stack", "log(file(a, size=4GiB, latency=1ms, tags=[x]))", &registry())
        .unwrap()
        .check(false)
        .unwrap();
    assert_eq!(
        plan.to_json(),
        json!({
            "shards": 1,
            "line": "log(file(a, 4GiB, latency=1ms, tags=[x]))",
            "parts": [
                {
                    "name": "file1",
                    "contract": "device",
                    "kind": "file",
                    "keys": {"path": "a", "size": 4_u64 << 30, "latency": "1ms", "tags": ["x"]},
                    "stands_on": [],
                    "bytes": 4_u64 << 30,
                    "block_size": 4096,
                },
                {
                    "name": "top",
                    "contract": "device",
                    "kind": "log",
                    "keys": {"on": "file1"},
                    "stands_on": ["file1"],
                    "bytes": (4_u64 << 30) - (1 << 20),
                    "block_size": 4096,
                },
            ],
        })
    );
}
