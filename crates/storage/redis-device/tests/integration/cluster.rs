//! A real cluster whose slots are moved during reads and writes.

use crate::servers::{Cluster, ask};
use crate::support::{BLOCK, MIB, connect, content, discard, number, open, read, write};
use block::{Device, Part};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

const STRINGS: u64 = 32;
const TASKS: u64 = 4;
const BLOCKS: u64 = MIB / BLOCK;

/// Writes, reads and discards blocks of the strings of one task; every read returns the latest version.
async fn work(device: Rc<dyn Device>, task: u64, is_over: Rc<Cell<bool>>) -> u64 {
    let mut random = runtime::Random::new(task);
    let mut versions = vec![0; (STRINGS * BLOCKS) as usize];
    let mut done = 0;
    while !is_over.get() {
        let string = random.below(STRINGS / TASKS) * TASKS + task;
        let block = string * BLOCKS + random.below(8) * (BLOCKS / 8);
        match random.below(20) {
            0 => {
                discard(&*device, string * BLOCKS, BLOCKS).await.unwrap();
                versions[(string * BLOCKS) as usize..][..BLOCKS as usize].fill(0);
            }
            1 => {
                discard(&*device, block, 1).await.unwrap();
                versions[block as usize] = 0;
            }
            2..10 => {
                done += 1;
                versions[block as usize] = done;
                write(&*device, block, content(block, done)).await.unwrap();
            }
            _ => {
                let found = read(&*device, block, 1).await.unwrap();
                let right = match versions[block as usize] {
                    0 => found.iter().all(|byte| *byte == 0),
                    version => found == content(block, version)[..],
                };
                assert!(right, "block {block} isn't version {}", versions[block as usize]);
            }
        }
    }
    done
}

#[test]
fn slots_move_while_they_are_read_and_written() {
    let folder = tempfile::tempdir().unwrap();
    let Some(cluster) = Cluster::start(folder.path(), 3, false, "15000") else { return };
    let test = move || async move {
        let part = connect(&cluster.addresses()[..1], "disk", STRINGS * MIB).await.unwrap();
        let is_over = Rc::new(Cell::new(false));
        let mut tasks = Vec::new();
        for task in 0..TASKS {
            let device = open(&part).await;
            tasks.push(runtime::spawn(work(device, task, is_over.clone())));
        }
        let ports: Vec<u16> = cluster.servers.iter().map(|server| server.port).collect();
        for string in 0..10 {
            let (ports, ids) = (ports.clone(), cluster.ids.clone());
            let step = async |work: Box<dyn FnOnce() + Send>| {
                runtime::blocking(work).await;
                runtime::sleep(Duration::from_millis(40)).await;
            };
            let key = format!("disk:{string}");
            let slot = cluster.servers[0].ask(&["CLUSTER", "KEYSLOT", &key]);
            let slot: usize = slot.strip_prefix(':').unwrap().parse().unwrap();
            let from = slot * 3 / 16384;
            let to = (from + 1) % 3;
            let text = slot.to_string();
            let (own_ports, own_ids, own_text) = (ports.clone(), ids.clone(), text.clone());
            step(Box::new(move || {
                let set = |server: usize, state: &str, other: usize| {
                    let words = ["CLUSTER", "SETSLOT", &own_text, state, &own_ids[other]];
                    assert_eq!(ask(own_ports[server], &words), "+OK");
                };
                set(to, "IMPORTING", from);
                set(from, "MIGRATING", to);
            }))
            .await;
            let (from_port, to_port) = (ports[from], ports[to].to_string());
            step(Box::new(move || {
                let moved = ask(from_port, &["MIGRATE", "127.0.0.1", &to_port, &key, "0", "5000"]);
                assert!(["+OK", "+NOKEY"].contains(&&*moved), "{moved}");
            }))
            .await;
            step(Box::new(move || {
                for server in [to, from, 3 - to - from] {
                    assert_eq!(ask(ports[server], &["CLUSTER", "SETSLOT", &text, "NODE", &ids[to]]), "+OK");
                }
            }))
            .await;
        }
        is_over.set(true);
        for task in tasks {
            let done = task.await;
            assert!(done > 100, "{done} writes");
        }
        let status = part.status().await;
        println!("{status:?}");
        assert!(number(&status, "ask_replies") > 0 && number(&status, "moved_replies") > 0, "{status:?}");
    };
    runtime::run(runtime::Config::default(), test).unwrap();
}
