//! In steady state serprog allocates nothing, neither in the server nor in the board nor in the chip.
//!
//! The counts are of the whole process, so this binary has a single test.
#![allow(clippy::unwrap_used)]

use block::{Buffer, Data};
use conformance::allocations::{Counting, everywhere};
use runtime::net::{Address, Stream};
use spi::rules::Rules;
use spi::{Board, Server, Time};
use spinor::Chip;
use std::cell::RefCell;
use std::rc::Rc;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Round trips of the warm-up, and round trips whose allocations are counted.
const WARM_UP: u32 = 3000;
const COUNTED: u32 = 3000;

/// Makes round trips: each polls the status, reads a page and writes a byte, as three operations of one send.
async fn exchange(stream: &Stream, round_trips: u32) {
    let operation = |sent: &[u8], read: u8| {
        let mut bytes = vec![0x13, sent.len() as u8, 0, 0, read, 0, 0];
        bytes.extend(sent);
        bytes
    };
    // Without write enable the program is refused: an executed one would allocate its page.
    let requests =
        [operation(&[0x05], 1), operation(&[0x03, 0, 1, 0], 200), operation(&[0x02, 0, 0, 0, 1], 0)];
    let requests = Data::copy_of(&requests.concat());
    for _ in 0..round_trips {
        stream.send(requests.clone().into()).await.0.unwrap();
        let (result, _) = stream.receive_exact(Buffer::new(204)).await;
        result.unwrap();
    }
}

#[test]
fn round_trips_allocate_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let addresses =
        [Address::Unix(folder.path().join("serprog.sock")), "127.0.0.1:0".parse::<Address>().unwrap()];
    let allocations = runtime::run(runtime::Config::default(), move || async move {
        let chip = Chip::erased(spinor::chip("W25Q128JV").unwrap().unwrap(), 1);
        let rules = Rules::parse("rules.toml", "[[rule]]\nnever = \"erase\"").unwrap();
        // The trace is full after the warm-up.
        let board = Rc::new(RefCell::new(Board::new(chip, Time::Fast(0), rules, 1000)));
        let server = Server::start(board, &addresses, false).await.unwrap();
        let mut allocations = Vec::new();
        for address in server.addresses() {
            let stream = Stream::connect(address).await.unwrap();
            exchange(&stream, WARM_UP).await;
            let before = everywhere();
            exchange(&stream, 0).await;
            let setting_up = everywhere() - before;
            let before = everywhere();
            exchange(&stream, COUNTED).await;
            allocations.push(everywhere() - before - setting_up);
        }
        assert!(server.stop().await.is_empty());
        allocations
    });
    let allocations = allocations.unwrap();
    println!("{allocations:?} allocations for {COUNTED} round trips each over a unix socket and TCP");
    // Lists may still grow once or twice with more concurrency than during the warm-up.
    assert!(allocations.iter().all(|count| *count < 40), "{allocations:?} for {COUNTED} round trips");
}
