//! The server, with clients on sockets.

use super::client::{Socket, command, served};
use super::memory::Memory;
use kv::redis::server::ServerConfig;
use runtime::net::Address;
use std::path::Path;

fn run<F: Future<Output = ()> + 'static>(test: impl FnOnce() -> F + Send + 'static) {
    runtime::run(runtime::Config::default(), test).unwrap();
}

/// A unix socket in a folder, and a free TCP port.
fn addresses(folder: &Path) -> ServerConfig {
    let unix = Address::Unix(folder.join("kv.sock"));
    let mut config = ServerConfig::new(unix);
    config.addresses.push("127.0.0.1:0".parse().unwrap());
    config
}

#[test]
fn clients_on_both_kinds_of_sockets_share_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let config = addresses(folder.path());
    run(move || async move {
        let server = served(&Memory::default(), config).await;
        let [unix, tcp] = &server.addresses()[..] else { panic!("two addresses") };
        let (one, two) = (Socket::connect(unix).await, Socket::connect(tcp).await);
        one.send(&command(&[b"SET", b"key", b"value"])).await;
        one.expect(b"+OK\r\n").await;
        two.send(b"GET key\r\n").await;
        two.expect(b"$5\r\nvalue\r\n").await;
        two.send(b"QUIT\r\nGET key\r\n").await;
        assert_eq!(two.rest().await, b"+OK\r\n");
        server.stop().await.unwrap();
        assert_eq!(one.rest().await, b"");
        assert!(!folder.path().join("kv.sock").exists());
    });
}
