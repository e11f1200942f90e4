//! Starting and stopping, and other files at the socket's path.

use crate::support::{Raw, SlowDisk, client, export, ram, run, server, socket};
use block::{BlockIndex, Buffer, DevicePart, Part};
use doors::nbd::protocol::command;
use doors::nbd::server::{Server, ServerConfig};
use runtime::net::{Address, Listener};
use std::sync::atomic::Ordering;

#[test]
fn requests_in_flight_are_answered_before_the_server_stops() {
    let (_folder, address) = socket();
    run(2, move || async move {
        let disk = SlowDisk::new(64, 4096);
        let controls = disk.controls.clone();
        let server = server(&address, vec![export("disk", disk)]);
        server.start().await.expect("it starts");
        let idle = Raw::open(&address, "disk", true).await;
        let busy = Raw::open(&address, "disk", true).await;
        controls.paused.store(true, Ordering::SeqCst);
        busy.request(command::WRITE, 0, 0, 4096, &[5; 4096]).await;
        while controls.begun.load(Ordering::SeqCst) == 0 {
            runtime::yield_now().await;
        }
        let stopping = runtime::spawn({
            let server = server.clone();
            async move { server.stop().await }
        });
        assert!(idle.is_closed().await);
        assert!(!stopping.is_finished());
        controls.paused.store(false, Ordering::SeqCst);
        assert_eq!(busy.reply(command::WRITE, 0).await, Ok(vec![]));
        assert!(busy.is_closed().await);
        stopping.await.expect("it stops");
        let Address::Unix(path) = &address else { unreachable!("a unix socket") };
        assert!(!path.exists(), "the socket's file remains");
        server.stop().await.expect("a second time changes nothing");
        // A second start serves the written data.
        server.start().await.expect("it starts again");
        let raw = Raw::open(&address, "disk", true).await;
        assert_eq!(raw.call(command::READ, 0, 0, 2, &[]).await, Ok(vec![5; 2]));
        server.stop().await.expect("it stops");
    });
}

/// Another server's socket at the path remains, at the start and at the stop.
#[test]
fn only_the_own_socket_is_removed() {
    let (folder, address) = socket();
    let path = folder.path().join("nbd.sock");
    run(1, move || async move {
        let server = server(&address, vec![export("disk", ram(1 << 20, 512))]);
        let made = std::process::Command::new("mkfifo").arg(&path).status().expect("mkfifo runs");
        assert!(made.success());
        let error = server.start().await.expect_err("a FIFO is there");
        assert_eq!(error.errno(), libc::EEXIST, "{error}");
        for expected in ["nbd.sock", "a FIFO", "remove it"] {
            assert!(error.to_string().contains(expected), "{error}");
        }
        assert!(path.exists(), "the FIFO is still there");
        std::fs::remove_file(&path).expect("removed");

        server.start().await.expect("it starts");
        std::fs::remove_file(&path).expect("removed");
        let other = std::os::unix::net::UnixListener::bind(&path).expect("bound");
        server.stop().await.expect("it stops");
        assert!(path.exists(), "another server's socket is still there");
        drop(other);
    });
}

/// Devices below are closed after the server, so it must have no open handles: neither of a client that is
/// still connected, nor of one that has just disconnected.
#[test]
fn no_handle_is_open_once_the_server_has_stopped() {
    for leaves_first in [false, true] {
        let (_folder, address) = socket();
        run(2, move || async move {
            let disk = SlowDisk::new(64, 4096);
            let handles = || disk.controls.handles.load(Ordering::SeqCst);
            let server = server(&address, vec![export("disk", disk.clone())]);
            server.start().await.expect("it starts");
            // One on each shard.
            let clients = [Raw::open(&address, "disk", true).await, Raw::open(&address, "disk", true).await];
            for client in &clients {
                client.call(command::WRITE, 0, 0, 4096, &[5; 4096]).await.expect("written");
                if leaves_first {
                    client.request(command::DISC, 0, 0, 0, &[]).await;
                    assert!(client.is_closed().await);
                }
            }
            assert!(handles() >= 2, "each shard has one");
            server.stop().await.expect("it stops");
            assert_eq!(handles(), 0, "handles that are still open");
        });
    }
}

#[test]
fn a_disconnect_waits_for_what_is_in_flight() {
    let (_folder, address) = socket();
    run(1, move || async move {
        let disk = SlowDisk::new(64, 4096);
        let server = server(&address, vec![export("disk", disk.clone())]);
        server.start().await.expect("it starts");
        let raw = Raw::open(&address, "disk", false).await;
        disk.controls.paused.store(true, Ordering::SeqCst);
        raw.request(command::WRITE, 0, 0, 4096, &[5; 4096]).await;
        raw.request(command::DISC, 0, 0, 0, &[]).await;
        while disk.controls.begun.load(Ordering::SeqCst) == 0 {
            runtime::yield_now().await;
        }
        disk.controls.paused.store(false, Ordering::SeqCst);
        assert_eq!(raw.reply(command::WRITE, 0).await, Ok(vec![]));
        assert!(raw.is_closed().await);
        server.stop().await.expect("it stops");
    });
}

#[test]
fn what_lies_at_the_sockets_path() {
    let (folder, address) = socket();
    let path = folder.path().join("nbd.sock");
    run(1, move || async move {
        let first = server(&address, vec![export("disk", ram(1 << 20, 512))]);
        // A stale socket: its file remains when the listener is dropped.
        drop(Listener::bind(&address).expect("bound"));
        assert!(path.exists());
        first.start().await.expect("a stale socket is replaced");
        let second = server(&address, vec![export("disk", ram(1 << 20, 512))]);
        let error = second.start().await.expect_err("it is in use");
        assert_eq!(error.errno(), libc::EBUSY, "{error}");
        assert!(error.to_string().contains("nbd.sock"), "{error}");
        let part = client(&address, "disk", None).await;
        let device = part.open().await.expect("the first one is not disturbed");
        device.read(BlockIndex(0), Buffer::new(4096)).await.0.expect("read");
        first.stop().await.expect("it stops");
        std::fs::write(&path, "precious").expect("written");
        let error = second.start().await.expect_err("a regular file is there");
        assert_eq!(error.errno(), libc::EEXIST, "{error}");
        assert_eq!(std::fs::read(&path).expect("still there"), b"precious");
    });
}

#[test]
fn there_are_never_more_connections_than_allowed() {
    let (_folder, address) = socket();
    run(2, move || async move {
        let exports = vec![export("disk", ram(1 << 20, 512))];
        let config = ServerConfig {
            address: address.clone(),
            access: Default::default(),
            exports,
            max_connections: 3,
            allow_remote: false,
            tls: None,
        };
        let server = Server::new(config).expect("valid");
        server.start().await.expect("it starts");
        let mut clients = Vec::new();
        for _ in 0..3 {
            clients.push(Raw::open(&address, "disk", true).await);
        }
        assert!(Raw::connect(&address).await.is_closed().await, "the fourth one is refused");
        clients.pop();
        while server.connections() == 3 {
            runtime::yield_now().await;
        }
        let raw = Raw::open(&address, "disk", true).await;
        assert_eq!(raw.call(command::READ, 0, 0, 1, &[]).await, Ok(vec![0]));
        server.stop().await.expect("it stops");
    });
}

#[test]
fn configurations_that_cant_be_are_refused() {
    let address: Address = "127.0.0.1:0".parse().expect("an address");
    let with = |exports| {
        Server::new(ServerConfig {
            address: address.clone(),
            access: Default::default(),
            exports,
            max_connections: 1,
            allow_remote: false,
            tls: None,
        })
    };
    let remote = ServerConfig {
        address: "192.0.2.1:10809".parse().expect("an address"),
        access: Default::default(),
        exports: vec![export("a", ram(4096, 512))],
        max_connections: 1,
        allow_remote: false,
        tls: None,
    };
    let refused = Server::new(remote).err().expect("strangers reach it").to_string();
    assert!(refused.contains("192.0.2.1:10809") && refused.contains("allow_remote"), "{refused}");
    assert!(with(vec![]).is_err());
    assert!(with(vec![export("a", ram(4096, 512)), export("a", ram(4096, 512))]).is_err());
    assert!(with(vec![export("a\0", ram(4096, 512))]).is_err());
    assert!(with(vec![export(&"a".repeat(5000), ram(4096, 512))]).is_err());
}

/// An earlier process may have been killed with unflushed writes on the server.
#[test]
fn a_client_that_wrote_nothing_flushes_when_it_is_closed() {
    let (_folder, address) = socket();
    run(1, move || async move {
        let disk = SlowDisk::new(64, 4096);
        let controls = disk.controls.clone();
        let server = server(&address, vec![export("disk", disk)]);
        server.start().await.expect("it starts");
        let raw = Raw::open(&address, "disk", true).await;
        assert_eq!(raw.call(command::WRITE, 0, 0, 4096, &[5; 4096]).await, Ok(vec![]));
        drop(raw);
        let next = client(&address, "disk", None).await;
        let before = controls.flushes.load(Ordering::SeqCst);
        next.close().await.expect("it closes");
        assert_eq!(controls.flushes.load(Ordering::SeqCst), before + 1);
        next.close().await.expect("it closes");
        assert_eq!(controls.flushes.load(Ordering::SeqCst), before + 1, "nothing is unflushed");
        server.stop().await.expect("it stops");
    });
}

/// A server may execute a request of a killed process after requests of its successor.
#[test]
fn a_client_does_not_keep_what_was_acknowledged() {
    let (_folder, address) = socket();
    run(1, move || async move {
        let server = server(&address, vec![export("disk", ram(1 << 20, 4096))]);
        server.start().await.expect("it starts");
        assert!(!client(&address, "disk", None).await.keeps_acknowledged());
        server.stop().await.expect("it stops");
    });
}
