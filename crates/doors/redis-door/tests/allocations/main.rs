//! Allocations of the redis door for a command, and for a client that doesn't read.
//!
//! The counts are of the whole process, so this binary has a single test.
#![allow(clippy::unwrap_used)]

use block::{Buffer, Data};
use conformance::allocations::{Counting, everywhere};
use redis_door::server::ServerConfig;
use runtime::net::Stream;

#[path = "../integration/client.rs"]
#[allow(dead_code)] // Shared with the integration tests.
mod client;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Number of commands per send.
const PIPELINE: usize = 16;
/// Number of measured sends.
const COUNTED: u64 = 500;

/// Sends a pipeline of commands repeatedly, and returns the allocations per pipeline.
async fn allocations(stream: &Stream, command: &[u8], reply: usize) -> u64 {
    let commands = Data::copy_of(&command.repeat(PIPELINE));
    let mut before = 0;
    for round in 0..2 * COUNTED {
        if round == COUNTED {
            before = everywhere();
        }
        stream.send(commands.clone().into()).await.0.unwrap();
        stream.receive_exact(Buffer::new(PIPELINE * reply)).await.0.unwrap();
    }
    (everywhere() - before) / COUNTED
}

#[test]
fn a_command_allocates_only_what_the_store_does() {
    let test = || async {
        let served = client::served(ServerConfig::new("127.0.0.1:0".parse().unwrap())).await;
        let client::Socket(stream) = served.client().await;
        let set = client::command(&[b"SET", b"key:000000000001", &[b'v'; 100]]);
        let sets = allocations(&stream, &set, 5).await;
        let gets = allocations(&stream, &client::command(&[b"GET", b"key:000000000001"]), 108).await;
        let pings = allocations(&stream, b"PING\r\n", 7).await;
        let before = everywhere();
        // A reply of 110 MiB to a client that doesn't read, while another client is served.
        let client::Socket(lazy) = served.client().await;
        let names = b"$3\r\nget\r\n".repeat((1 << 20) - 2);
        let docs = [b"*1048576\r\n$7\r\nCOMMAND\r\n$4\r\nDOCS\r\n", names.as_slice()].concat();
        lazy.send(Data::copy_of(&docs).into()).await.0.unwrap();
        for _ in 0..20 {
            stream.send(Data::copy_of(b"PING\r\n").into()).await.0.unwrap();
            stream.receive_exact(Buffer::new(7)).await.0.unwrap();
            runtime::sleep(std::time::Duration::from_millis(10)).await;
        }
        let unread = everywhere() - before;
        drop((stream, lazy));
        served.stop().await;
        (sets, gets, pings, unread)
    };
    let (sets, gets, pings, unread) = runtime::run(runtime::Config::default(), test).unwrap();
    println!("allocations for {PIPELINE} commands: SET {sets}, GET {gets}, PING {pings}");
    assert_eq!(pings, 0);
    // The whole reply would be 7000 pieces of 16 KiB; sockets take 10 MiB.
    assert!(unread < 2000, "{unread} allocations for a client that reads nothing");
    // One allocation for the value that the store returns.
    assert!(gets <= PIPELINE as u64, "{gets} allocations for {PIPELINE} GETs");
    // Allocations of the store for the writes of a pipeline, and of the growing list of writes.
    assert!(sets <= 2 * PIPELINE as u64, "{sets} allocations for {PIPELINE} SETs");
}
