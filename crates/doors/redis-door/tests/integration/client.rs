//! Clients on sockets, and a server of a store on zones in memory.

use block::{Buffer, Data};
use kv::{Settings, Store};
use redis_door::server::{Server, ServerConfig};
use runtime::net::{Address, Stream};
use std::sync::Arc;
use zns::{Shape, Zns};

/// A server with its store and drive.
pub struct Served {
    pub server: Server,
    pub store: Store,
    pub drive: Arc<Zns>,
}

/// Serves a new store.
pub async fn served(config: ServerConfig) -> Served {
    served_by(config, 1, false).await
}

/// Serves a new store of `shards` shards; with `timed`, the drive simulates latencies.
pub async fn served_by(config: ServerConfig, shards: u16, timed: bool) -> Served {
    let (zone_size, seed) = (4 << 20, Some(5));
    let shape = Shape { zones: 256, zone_size, zone_capacity: zone_size, seed, ..Shape::default() };
    let drive = zns::Settings { timed, ..zns::Settings::default() };
    let drive = Arc::new(Zns::in_memory(&shape, drive).unwrap());
    let settings = Settings { shards: Some(shards), buffer_bytes: 8 << 20, ..Settings::default() };
    let store = Store::format(drive.clone(), &settings).await.unwrap();
    let server = Server::new(config).unwrap();
    server.start(&store).await.unwrap();
    Served { server, store, drive }
}

impl Served {
    /// Connects a new client to the first address.
    pub async fn client(&self) -> Socket {
        Socket::connect(&self.server.addresses()[0]).await
    }

    /// Stops the server, and closes the store.
    pub async fn stop(&self) {
        self.server.stop().await.unwrap();
        self.store.close().await.unwrap();
    }
}

/// Encodes a command as an array of bulk strings.
pub fn command(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend(*word);
        bytes.extend(b"\r\n");
    }
    bytes
}

/// A command that is sent last, and its reply.
pub const LAST: (&[u8], &[u8]) = (b"ECHO \"the last of these\"\r\n", b"$17\r\nthe last of these\r\n");

/// A client on a socket.
pub struct Socket(pub Stream);

impl Socket {
    pub async fn connect(address: &Address) -> Socket {
        Socket(Stream::connect(address).await.unwrap())
    }

    pub async fn send(&self, bytes: &[u8]) {
        self.0.send(Data::copy_of(bytes).into()).await.0.unwrap();
    }

    /// Sends these bytes, and returns all replies up to the end of the connection, or to the reply to the
    /// last command.
    pub async fn ask(&self, bytes: &[u8]) -> Vec<u8> {
        self.send(&[bytes, LAST.0].concat()).await;
        let mut replies = Vec::new();
        while !replies.ends_with(LAST.1) {
            let (result, buffer) = self.0.receive(Buffer::new(64 << 10)).await;
            replies.extend(buffer.filled());
            if !matches!(result, Ok(1..)) {
                return replies;
            }
        }
        replies.truncate(replies.len() - LAST.1.len());
        replies
    }

    /// Sends an inline command, and returns the reply with `\r\n` as `|`.
    pub async fn line(&self, line: &str) -> String {
        shown(&self.ask(format!("{line}\r\n").as_bytes()).await)
    }

    /// Receives exactly these bytes.
    #[track_caller]
    pub fn expect<'a>(&'a self, expected: &'a [u8]) -> impl Future<Output = ()> + 'a {
        let caller = std::panic::Location::caller();
        async move {
            let (result, buffer) = self.0.receive_exact(Buffer::new(expected.len())).await;
            let (received, expected) =
                (String::from_utf8_lossy(buffer.filled()), String::from_utf8_lossy(expected));
            assert!(
                result.is_ok() && received == expected,
                "{caller}: {result:?}: {received} for {expected}"
            );
        }
    }

    /// Receives all bytes until the end of the connection.
    pub async fn rest(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        loop {
            let (result, buffer) = self.0.receive(Buffer::new(64 << 10)).await;
            bytes.extend(buffer.filled());
            if !matches!(result, Ok(1..)) {
                return bytes;
            }
        }
    }
}

/// Replies with `\r\n` as `|`.
pub fn shown(replies: &[u8]) -> String {
    String::from_utf8_lossy(replies).replace("\r\n", "|")
}
