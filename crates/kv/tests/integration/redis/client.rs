//! Clients: one that executes commands without a socket, and one on a socket.

use super::memory::Memory;
use block::{Buffer, Data, Result};
use kv::redis::execute::{Executor, Flow, Sink};
use kv::redis::facts::Facts;
use kv::redis::reply::Replies;
use kv::redis::resp::{Parser, Step};
use kv::redis::server::{Server, ServerConfig};
use runtime::net::{Address, Stream};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// Keeps replies.
#[derive(Clone, Default)]
pub struct Kept(Rc<RefCell<Vec<u8>>>);

impl Sink for Kept {
    async fn send(&mut self, replies: &mut Replies) -> Result<()> {
        self.0.borrow_mut().extend(&*replies.take().to_data());
        Ok(())
    }
}

/// A client without a socket.
pub struct Direct {
    executor: Executor<Memory, Kept>,
    replies: Kept,
    parser: Parser,
}

/// Facts of a server that doesn't listen.
pub fn facts() -> Arc<Facts> {
    Arc::new(Facts::new(vec!["unix:/run/kv.sock".into()], 0, 10))
}

impl Direct {
    pub fn new(store: &Memory, facts: &Arc<Facts>) -> Direct {
        let replies = Kept::default();
        let executor = Executor::new(Rc::new(store.clone()), facts.clone(), replies.clone(), Rc::default());
        Direct { executor, replies, parser: Parser::default() }
    }

    /// Carries out all commands of these bytes, and returns the replies.
    pub async fn send(&mut self, mut bytes: &[u8]) -> Vec<u8> {
        loop {
            match self.parser.next(bytes) {
                Ok(Step::Incomplete) => break,
                Ok(Step::Empty(count)) => bytes = &bytes[count..],
                Ok(Step::Command(count)) => {
                    let flow = self.executor.execute(self.parser.arguments(bytes)).await.unwrap();
                    bytes = &bytes[count..];
                    if flow == Flow::Close {
                        break;
                    }
                }
                Err(error) => {
                    self.executor.refuse(&error.text()).await;
                    break;
                }
            }
        }
        self.executor.finish().await.unwrap();
        std::mem::take(&mut *self.replies.0.borrow_mut())
    }

    /// Sends an inline command, and returns the reply with `\r\n` as `|`.
    pub async fn line(&mut self, line: &str) -> String {
        let replies = self.send(format!("{line}\r\n").as_bytes()).await;
        String::from_utf8_lossy(&replies).replace("\r\n", "|")
    }
}

/// A command as an array of bulk strings.
pub fn command(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend(*word);
        bytes.extend(b"\r\n");
    }
    bytes
}

/// A client on a socket.
pub struct Socket(pub Stream);

impl Socket {
    pub async fn connect(address: &Address) -> Socket {
        Socket(Stream::connect(address).await.unwrap())
    }

    pub async fn send(&self, bytes: &[u8]) {
        self.0.send(Data::copy_of(bytes).into()).await.0.unwrap();
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

    /// Receives what comes until the end of the connection.
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

/// Serves a store at an address, on one shard.
pub async fn served(store: &Memory, config: ServerConfig) -> Rc<Server<Memory>> {
    // The store isn't `Send`; there is one shard.
    thread_local!(static STORE: RefCell<Option<Memory>> = const { RefCell::new(None) });
    STORE.set(Some(store.clone()));
    let server = Server::new(config).unwrap();
    server.start(|| async { Ok(STORE.with_borrow(|store| store.clone().unwrap())) }).await.unwrap();
    STORE.set(None);
    Rc::new(server)
}
