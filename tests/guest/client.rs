//! The client that tests run in the guest, against a server in the guest: numbered writes, and how many of
//! them are left.
//!
//! `siltstone-guest-client SOCKET write SEED FIRST BEHIND-LAST FLUSH-EVERY` prints `flushed N` after each
//! flush; `siltstone-guest-client SOCKET read FILE` copies the export; `siltstone-guest-client count SEED
//! FILE` prints the number of writes whose result that is.
//!
//! `siltstone-guest-client hold FILE ID new|left` serves a file by a ublk door until its standard input ends,
//! and leaves the device in the kernel. `siltstone-guest-client delete ID` deletes that device.

use doors::ublk::backing::Backing;
use doors::ublk::control;
use doors::ublk::door::{UblkConfig, UblkDoor};
use siltstone_tests::guest::numbered;
use stack::{Door, Registry, Stack};
use std::io::{Error, Read, Result, Write};
use std::path::Path;
use std::time::Duration;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let number = |text: &str| text.parse::<u64>().map_err(|error| Error::other(format!("{text}: {error}")));
    match words[..] {
        [socket, "write", seed, first, behind_last, flush_every] => {
            let numbers = number(first)?..number(behind_last)?;
            numbered::write(Path::new(socket), number(seed)?, numbers, number(flush_every)?, |number| {
                println!("flushed {number}");
                // The reader may be about to cut the power.
                std::io::stdout().flush().expect("the output is read");
            })
        }
        [socket, "read", file] => std::fs::write(file, numbered::read(Path::new(socket))?),
        ["count", seed, file] => {
            let count = numbered::count(number(seed)?, &std::fs::read(file)?).map_err(Error::other)?;
            println!("{count}");
            Ok(())
        }
        ["hold", file, id, how] => {
            let (line, id, left) = (format!("file({file})"), number(id)? as u32, how == "left");
            let config = runtime::Config { shards: 2, ..runtime::Config::default() };
            let held = runtime::run(config, move || hold(line, id, left)).and_then(|held| held);
            held.map_err(Error::other)
        }
        ["delete", id] => control::delete(number(id)? as u32).map_err(Error::other),
        _ => Err(Error::other(
            "expected hold FILE ID new|left, delete ID, SOCKET write SEED FIRST BEHIND-LAST FLUSH-EVERY, SOCKET read FILE, or count SEED FILE",
        )),
    }
}

async fn hold(line: String, id: u32, left: bool) -> block::Result<()> {
    let invalid = |problems: stack::Problems| block::Error::invalid(problems.to_string());
    let registry = Registry::new(vec![&disks::file::KIND]);
    let built = Stack::from_line("the stack", &line, &registry).map_err(invalid)?.check(false);
    let built = built.map_err(invalid)?.build().await?;
    let config = UblkConfig {
        name: "held".to_owned(),
        backing: Backing::Device(built.top()?),
        id: Some(id),
        read_only: false,
        stop_limit: Duration::ZERO,
    };
    let door = UblkDoor::held(config, left.then_some(id));
    door.start().await?;
    println!("{}", door.node().expect("it has started").display());
    let _ = runtime::blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await;
    door.stop().await?;
    drop(door);
    built.close().await
}
