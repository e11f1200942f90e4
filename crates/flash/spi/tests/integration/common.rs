//! A served chip in this process, and a programmer that speaks serprog.

use block::{Buffer, Data};
use runtime::net::{Address, Stream};
use spi::image::ImageFile;
use spi::rules::Rules;
use spi::{Board, ServedChip, Server, Time};
use spinor::{Chip, Description};
use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

/// Runs a test on one shard.
pub fn run<F, T>(test: F)
where
    F: FnOnce() -> T + Send,
    T: Future<Output = ()> + 'static,
{
    runtime::run(runtime::Config::default(), test).unwrap();
}

pub fn description(name: &str) -> Arc<Description> {
    spinor::chip(name).unwrap().unwrap()
}

/// Address with a free port of this machine.
pub fn any_port() -> Address {
    "127.0.0.1:0".parse().unwrap()
}

/// Serves a chip in memory at a free port.
pub async fn served_chip(name: &str, time: Time, rules: &str) -> ServedChip {
    let chip = Chip::erased(description(name), 1);
    let board = Board::new(chip, time, Rules::parse("rules.toml", rules).unwrap(), 100_000);
    let board = Rc::new(RefCell::new(board));
    let server = Server::start(board.clone(), &[any_port()], true).await.unwrap();
    ServedChip::new(board, None, server)
}

/// Serves a chip with an image at a free port.
pub async fn served_chip_on(path: &Path, name: &str) -> block::Result<ServedChip> {
    let (image, chip) = ImageFile::open(path, description(name), 1, true).await?;
    let board = Rc::new(RefCell::new(Board::new(chip, Time::Fast(0), Rules::default(), 0)));
    let server = Server::start(board.clone(), &[any_port()], false).await.unwrap();
    Ok(ServedChip::new(board, Some(image), server))
}

/// Closes a served chip, without errors. Returns the violations of its rules.
pub async fn close(served_chip: ServedChip) -> Vec<String> {
    let closed = served_chip.close().await;
    assert!(closed.errors.is_empty(), "{:?}", closed.errors);
    closed.violations
}

/// A programmer.
pub struct Programmer(pub Stream);

impl Programmer {
    pub async fn connect(served_chip: &ServedChip) -> Programmer {
        Programmer(Stream::connect(&served_chip.server().addresses()[0]).await.unwrap())
    }

    pub async fn send(&self, bytes: &[u8]) {
        self.0.send(Data::copy_of(bytes).into()).await.0.unwrap();
    }

    pub async fn receive(&self, count: usize) -> Vec<u8> {
        let (result, buffer) = self.0.receive_exact(Buffer::new(count)).await;
        result.unwrap();
        buffer.filled().to_vec()
    }

    /// Executes an SPI operation.
    pub async fn spi(&self, sent: &[u8], read: usize) -> Vec<u8> {
        self.send(&operation(sent, read)).await;
        let answer = self.receive(1 + read).await;
        assert_eq!(answer[0], 0x06);
        answer[1..].to_vec()
    }
}

/// Encodes the request of an SPI operation.
pub fn operation(sent: &[u8], read: usize) -> Vec<u8> {
    let mut bytes = vec![0x13];
    bytes.extend(&(sent.len() as u32).to_le_bytes()[..3]);
    bytes.extend(&(read as u32).to_le_bytes()[..3]);
    bytes.extend(sent);
    bytes
}
