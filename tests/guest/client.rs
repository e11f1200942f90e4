//! The client that tests run in the guest, against a server in the guest: numbered writes, and what was left of them.
//!
//! `siltstone-guest-client SOCKET write SEED FIRST BEHIND-LAST FLUSH-EVERY` says `flushed N` after each flush;
//! `siltstone-guest-client SOCKET read FILE` copies what is there; `siltstone-guest-client count SEED FILE` says of how many
//! writes that is what they leave.

use siltstone_tests::guest::numbered;
use std::io::{Error, Result, Write};
use std::path::Path;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let number = |text: &str| text.parse::<u64>().map_err(|error| Error::other(format!("{text}: {error}")));
    match words[..] {
        [socket, "write", seed, first, behind_last, flush_every] => {
            let numbers = number(first)?..number(behind_last)?;
            numbered::write(Path::new(socket), number(seed)?, numbers, number(flush_every)?, |number| {
                println!("flushed {number}");
                // Whoever reads it may be about to cut the power.
                std::io::stdout().flush().expect("whoever started this listens");
            })
        }
        [socket, "read", file] => std::fs::write(file, numbered::read(Path::new(socket))?),
        ["count", seed, file] => {
            let count = numbered::count(number(seed)?, &std::fs::read(file)?).map_err(Error::other)?;
            println!("{count}");
            Ok(())
        }
        _ => Err(Error::other(
            "expected SOCKET write SEED FIRST BEHIND-LAST FLUSH-EVERY, SOCKET read FILE, or count SEED FILE",
        )),
    }
}
