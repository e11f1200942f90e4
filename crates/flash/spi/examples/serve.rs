//! Serves a W25Q128FV in memory to flashrom, as part of another program.
//!
//! `cargo run --release -p siltstone-spi --example serve 127.0.0.1:4025`, then `flashrom -p
//! serprog:ip=127.0.0.1:4025`.

use block::Result;
use spi::rules::Rules;
use spi::{Board, Server, Time};
use spinor::Chip;
use std::cell::RefCell;
use std::rc::Rc;

fn main() -> Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:4025".to_owned()).parse()?;
    runtime::run(runtime::Config::default(), move || async move {
        let signals = runtime::StopSignals::catch_first()?;
        let description = spinor::chip("W25Q128FV").expect("a chip of the crate").expect("no error in it");
        let board = Board::new(Chip::erased(description, 1), Time::Fast(0), Rules::default(), 1000);
        let board = Rc::new(RefCell::new(board));
        let server = Server::start(board.clone(), &[address], false).await?;
        println!("{}", server.addresses()[0]);
        signals.next().await?;
        let counters = board.borrow_mut().chip().counters().clone();
        println!("{} transactions, {} programs and erases", counters.transactions, counters.operations);
        server.stop().await.into_iter().next().map_or(Ok(()), Err)
    })?
}
