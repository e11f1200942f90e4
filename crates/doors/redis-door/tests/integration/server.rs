//! The server with clients on sockets.

use super::client::{Served, Socket, command, served};
use block::Buffer;
use kv::MAX_VALUE_BYTES;
use redis_door::server::{STOP_LIMIT, Server, ServerConfig};
use runtime::net::{Address, Shutdown};
use std::path::Path;
use std::time::Duration;

/// Runs a test with a server at a unix socket in a temporary folder and at a free TCP port.
fn run<F: Future<Output = ()> + 'static>(test: impl FnOnce(Served) -> F + Send + 'static) {
    run_limited(redis_door::server::MAX_CONNECTIONS, test);
}

/// As [`run`], with a limit of connections.
fn run_limited<F: Future<Output = ()> + 'static>(
    max_connections: usize,
    test: impl FnOnce(Served) -> F + Send + 'static,
) {
    let folder = tempfile::tempdir().unwrap();
    let addresses = vec![socket_in(folder.path()), "127.0.0.1:0".parse().unwrap()];
    let config = ServerConfig { max_connections, addresses, ..ServerConfig::new(socket_in(folder.path())) };
    runtime::run(runtime::Config::default(), move || async move { test(served(config).await).await })
        .unwrap();
    assert!(!folder.path().join("kv.sock").exists());
}

fn socket_in(folder: &Path) -> Address {
    Address::Unix(folder.join("kv.sock"))
}

#[test]
fn clients_on_both_kinds_of_sockets_share_the_store() {
    run(|served| async move {
        let server = &served.server;
        let [unix, tcp] = &server.addresses()[..] else { panic!("two addresses") };
        let (one, two) = (Socket::connect(unix).await, Socket::connect(tcp).await);
        one.send(&command(&[b"SET", b"key", b"value"])).await;
        one.expect(b"+OK\r\n").await;
        two.send(b"GET key\r\n").await;
        two.expect(b"$5\r\nvalue\r\n").await;
        assert_eq!(server.status()["connections"], 2);
        two.send(b"QUIT\r\nGET key\r\n").await;
        assert_eq!(two.rest().await, b"+OK\r\n");
        served.stop().await;
        assert_eq!(one.rest().await, b"");
    });
}

#[test]
fn a_server_may_be_started_again_and_not_twice() {
    run(|Served { server, store, .. }| async move {
        for _ in 0..2 {
            assert!(matches!(server.start(&store).await, Err(block::Error::Busy(_))));
            let client = Socket::connect(&server.addresses()[0]).await;
            client.send(b"PING\r\n").await;
            client.expect(b"+PONG\r\n").await;
            server.stop().await.unwrap();
            server.start(&store).await.unwrap();
        }
        server.stop().await.unwrap();
        store.close().await.unwrap();
        let remote = ServerConfig::new("0.0.0.0:0".parse().unwrap());
        assert!(Server::new(remote).is_err_and(|error| error.to_string().contains("allow_remote")));
    });
}

#[test]
fn there_are_no_more_connections_than_configured() {
    run_limited(2, |served| async move {
        let server = &served.server;
        let address = &server.addresses()[0];
        let (one, two) = (Socket::connect(address).await, Socket::connect(address).await);
        for client in [&one, &two] {
            client.send(b"PING\r\n").await;
            client.expect(b"+PONG\r\n").await;
        }
        assert_eq!(Socket::connect(address).await.rest().await, b"-ERR max number of clients reached\r\n");
        drop(one);
        loop {
            let three = Socket::connect(address).await;
            let (sent, _) = three.0.send(block::Data::copy_of(b"PING\r\n").into()).await;
            if sent.is_ok() && three.0.receive_exact(Buffer::new(7)).await.1.filled() == b"+PONG\r\n" {
                break;
            }
        }
        served.stop().await;
    });
}

#[test]
fn the_largest_value_passes_and_its_memory_is_given_back() {
    run(|served| async move {
        let server = &served.server;
        let value: Vec<u8> = (0..MAX_VALUE_BYTES).map(|index| (index * 7 / 5) as u8).collect();
        for address in &server.addresses() {
            let client = Socket::connect(address).await;
            // With pipelined commands before and after it.
            let set = command(&[b"SET", b"large", &value]);
            client
                .send(&[b"PING\r\n", set.as_slice(), b"STRLEN large\r\nGET large\r\nPING\r\n"].concat())
                .await;
            client
                .expect(format!("+PONG\r\n+OK\r\n:{MAX_VALUE_BYTES}\r\n${MAX_VALUE_BYTES}\r\n").as_bytes())
                .await;
            let (result, buffer) = client.0.receive_exact(Buffer::new(MAX_VALUE_BYTES)).await;
            assert!(result.is_ok() && buffer.filled() == value);
            client.expect(b"\r\n+PONG\r\n").await;
            assert_eq!(server.status()["buffer_bytes"], 0);
        }
        served.stop().await;
    });
}

#[test]
fn long_commands_of_all_clients_have_a_limit() {
    run(|served| async move {
        let server = &served.server;
        let address = &server.addresses()[0];
        // Half of a long value from each client: the server's buffers exceed these bytes, until their limit
        // is reached.
        let half = [b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$60000000\r\n", vec![b'v'; 40 << 20].as_slice()].concat();
        let mut clients = Vec::new();
        loop {
            let client = Socket::connect(address).await;
            let sent = client.0.send(block::Data::copy_of(&half).into()).await.0;
            // All of it has arrived, or the server has refused it.
            while sent.is_ok() && server.status()["connections"] == clients.len() + 1 {
                let held = server.status()["buffer_bytes"].as_u64().unwrap();
                if held >= (clients.len() as u64 + 1) * (60 << 20) {
                    break;
                }
                runtime::sleep(Duration::from_millis(1)).await;
            }
            if server.status()["connections"] == clients.len() {
                let refusal = client.rest().await;
                let text = String::from_utf8_lossy(&refusal).into_owned();
                assert!(refusal.is_empty() || text.contains("too many long commands"), "{text}");
                break;
            }
            clients.push(client);
        }
        assert!((4..=8).contains(&clients.len()), "{}", clients.len());
        let small = Socket::connect(address).await;
        small.send(b"SET k v\r\n").await;
        small.expect(b"+OK\r\n").await;
        drop(clients);
        while server.status()["buffer_bytes"] != 0 {
            runtime::sleep(Duration::from_millis(1)).await;
        }
        served.stop().await;
    });
}

#[test]
fn a_client_that_reads_nothing_is_not_read_from() {
    run(|served| async move {
        let server = &served.server;
        let address = &server.addresses()[0];
        let lazy = Socket::connect(address).await;
        lazy.send(&command(&[b"SET", b"k", &vec![b'v'; 1 << 20]])).await;
        lazy.expect(b"+OK\r\n").await;
        lazy.send(&b"GET k\r\n".repeat(1000)).await;
        let other = Socket::connect(address).await;
        let mut before = 0;
        loop {
            other.send(b"PING\r\n").await;
            other.expect(b"+PONG\r\n").await;
            runtime::sleep(Duration::from_millis(20)).await;
            let now = server.status()["commands"].as_u64().unwrap();
            if now == before + 1 {
                break;
            }
            before = now;
        }
        assert!(before < 100, "{before} commands were carried out for a client that reads nothing");
        let reply = [b"$1048576\r\n", vec![b'v'; 1 << 20].as_slice(), b"\r\n"].concat();
        for _ in 0..1000 {
            let (result, buffer) = lazy.0.receive_exact(Buffer::new(reply.len())).await;
            assert!(result.is_ok() && buffer.filled() == reply);
        }
        served.stop().await;
    });
}

#[test]
fn a_stop_ends_all_connections_in_time() {
    run(|served| async move {
        let server = &served.server;
        let address = &server.addresses()[0];
        let (idle, halfway, busy, lazy) = (
            Socket::connect(address).await,
            Socket::connect(address).await,
            Socket::connect(address).await,
            Socket::connect(address).await,
        );
        halfway.send(b"*2\r\n$3\r\nGET\r\n$100\r\nk").await;
        lazy.send(&command(&[b"SET", b"k", &vec![b'v'; 1 << 20]])).await;
        lazy.send(&b"GET k\r\n".repeat(100)).await;
        busy.send(&b"INCR n\r\n".repeat(20_000)).await;
        busy.expect(b":1\r\n").await;
        let begin = runtime::now();
        server.stop().await.unwrap();
        // The server waits only for the client that doesn't read.
        assert!(begin.elapsed() < STOP_LIMIT + Duration::from_secs(5), "{:?}", begin.elapsed());
        assert_eq!((idle.rest().await, halfway.rest().await), (Vec::new(), Vec::new()));
        // Executed commands were answered.
        let replies = busy.rest().await;
        let counted = 1 + replies.iter().filter(|byte| **byte == b'\n').count();
        let last = served.store.get(b"n").await.unwrap().unwrap();
        assert_eq!(last.value, counted.to_string().into_bytes());
        served.store.close().await.unwrap();
    });
}

#[test]
fn replies_come_before_the_end_of_a_client_that_ends_its_stream() {
    run(|served| async move {
        let server = &served.server;
        let client = Socket::connect(&server.addresses()[0]).await;
        client.send(b"SET a 1\r\nGET a\r\n*1\r\n$4\r\nPI").await;
        client.0.shutdown(Shutdown::Write).await.unwrap();
        assert_eq!(client.rest().await, b"+OK\r\n$1\r\n1\r\n");
        let client = Socket::connect(&server.addresses()[0]).await;
        client.send(b"GET a\r\n*x\r\nGET a\r\n").await;
        assert_eq!(client.rest().await, b"$1\r\n1\r\n-ERR Protocol error: invalid multibulk length\r\n");
        served.stop().await;
    });
}

#[test]
fn simulated_clients_get_their_replies() {
    for seed in 0..20 {
        let mut simulation = runtime::Simulation::new(seed);
        simulation.faults.short = 0.3;
        let test = || async {
            let address: Address = "127.0.0.1:6379".parse().unwrap();
            let served = served(ServerConfig::new(address.clone())).await;
            let clients = (0..5).map(|_| {
                let address = address.clone();
                runtime::spawn(async move {
                    let client = Socket::connect(&address).await;
                    let value = vec![b'v'; 100_000];
                    for _ in 0..5 {
                        client
                            .send(
                                &[command(&[b"SET", b"k", &value]).as_slice(), b"GET k\r\nINCR n\r\n"]
                                    .concat(),
                            )
                            .await;
                        client.expect(b"+OK\r\n$100000\r\n").await;
                        client.expect(&value).await;
                        client.expect(b"\r\n:").await;
                        while client.0.receive_exact(Buffer::new(1)).await.1.filled() != b"\n" {}
                    }
                })
            });
            runtime::join_all(clients.collect::<Vec<_>>()).await;
            let client = Socket::connect(&address).await;
            client.send(b"GET n\r\n").await;
            client.expect(b"$2\r\n25\r\n").await;
            served.stop().await;
        };
        runtime::simulate(simulation, test).unwrap();
    }
}
