//! Runs a seeded sequence of writes, flushes, FUA writes, discards, zeroes and reads on a stack, and prints
//! the result of every read: equal lines from two stacks mean equal answers, block by block.
//!
//! `siltstone-guest-sequence STACK SEED FIRST BEHIND-LAST BYTES [WORD...]` runs the operations with these
//! numbers within the first BYTES of the only device on top of a one-line stack, and reads all of those at
//! the end. WORDs:
//!
//! - `format`: the stack is formatted before
//! - `rewrite`: discarded blocks are written at once, before they can be read: for devices that promise
//!   nothing about them
//! - `discard-on=PATH`: discards go to this block device by ioctl (util-linux's `blkdiscard`), and not
//!   through the stack, whose `file` asks for zeros instead
//! - `message=TEXT`: this message is sent to the top device at the end
//! - `until=KEY=VALUE`: waits afterwards until its status has this value
//!
//! Several operations are in flight at a time, and none of them overlap: the result of each read follows from
//! the seed alone, and a correct device answers as memory does.

use block::{
    BlockIndex, BlockRange, BlockSize, Buffer, Device, DevicePart, Durability, Error, Payload, Result,
    ZeroMode,
};
use runtime::{JoinHandle, Random};
use siltstone_tests::oracle::stamp::{describe, stamped};
use stack::{Registry, Stack};
use std::collections::VecDeque;
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Operations in flight.
const DEPTH: usize = 6;
/// Length of most operations, at most, in bytes; a few are longer, up to `LONG`.
const SHORT: u64 = 48 << 10;
const LONG: u64 = 320 << 10;
/// Bytes that one line about the final contents covers.
const LINE: u64 = 256 << 10;
/// Time between two checks of a status.
const LOOK: Duration = Duration::from_millis(20);

/// Kinds of parts that a sequence can use.
fn registry() -> Registry {
    Registry::new(vec![
        &disks::file::KIND,
        &disks::ram::KIND,
        &layers::fault::KIND,
        &layers::linear::KIND,
        &writecache::KIND,
        &cache::KIND,
        &mirror::KIND,
    ])
}

/// Parsed arguments.
#[derive(Debug, Clone, Default)]
struct Arguments {
    seed: u64,
    numbers: std::ops::Range<u64>,
    bytes: u64,
    format: bool,
    rewrite: bool,
    discard_on: Option<String>,
    message: Option<String>,
    until: Option<(String, String)>,
}

impl Arguments {
    fn new(words: &[String]) -> Result<Arguments> {
        let number = |text: &String| {
            text.parse::<u64>().map_err(|error| Error::invalid(format!("\"{text}\": {error}")))
        };
        let [seed, first, behind_last, bytes, more @ ..] = words else {
            return Err(Error::invalid("expected STACK SEED FIRST BEHIND-LAST BYTES [WORD...]"));
        };
        let mut arguments = Arguments {
            seed: number(seed)?,
            numbers: number(first)?..number(behind_last)?,
            bytes: number(bytes)?,
            ..Arguments::default()
        };
        for word in more {
            match word.split_once('=') {
                None if word == "format" => arguments.format = true,
                None if word == "rewrite" => arguments.rewrite = true,
                Some(("discard-on", path)) => arguments.discard_on = Some(path.to_owned()),
                Some(("message", text)) => arguments.message = Some(text.to_owned()),
                Some(("until", said)) => {
                    let (key, value) =
                        said.split_once("=").ok_or_else(|| Error::invalid("until: expected KEY=VALUE"))?;
                    arguments.until = Some((key.to_owned(), value.to_owned()));
                }
                _ => {
                    return Err(Error::invalid(format!(
                        "no word is \"{word}\": see the head of this program"
                    )));
                }
            }
        }
        Ok(arguments)
    }
}

/// An operation in flight, and the line that it prints.
struct InFlight {
    range: BlockRange,
    says: JoinHandle<Result<Option<String>>>,
}

/// State of a run.
struct Sequence {
    device: Rc<dyn Device>,
    arguments: Arguments,
    random: Random,
    block_size: BlockSize,
    blocks: u64,
    in_flight: VecDeque<InFlight>,
}

impl Sequence {
    async fn run(part: &Arc<dyn DevicePart>, arguments: Arguments) -> Result<()> {
        let device = part.open().await?;
        let block_size = device.geometry().block_size;
        let (blocks, has) = (arguments.bytes / block_size.bytes(), device.geometry().blocks.0);
        if arguments.bytes < LONG || blocks > has {
            return Err(Error::invalid(format!(
                "{} bytes of a device of {has} blocks of {block_size}: expected at least {LONG}, and at most what it has",
                arguments.bytes
            )));
        }
        let random = Random::new(arguments.seed ^ arguments.numbers.start << 32);
        let mut sequence =
            Sequence { device, arguments, random, block_size, blocks, in_flight: VecDeque::new() };
        for number in sequence.arguments.numbers.clone() {
            sequence.begin(number).await?;
        }
        sequence.wait_for(|_| true).await?;
        sequence.device.flush().await?;
        sequence.say_the_end().await
    }

    /// Submits one operation, once those that it overlaps have ended.
    async fn begin(&mut self, number: u64) -> Result<()> {
        let in_blocks = |bytes: u64| bytes / self.block_size.bytes();
        let longest = if self.random.chance(0.06) { LONG } else { SHORT };
        let count = 1 + self.random.below(in_blocks(longest));
        // Most operations go to a part of the device, so that blocks are written again while they are cached.
        let within =
            if self.random.chance(0.6) { (self.blocks / 8).max(in_blocks(LONG)) } else { self.blocks };
        let range = BlockRange::new(self.random.below(within - count + 1), count);
        let durability = if self.random.chance(0.15) { Durability::Durable } else { Durability::Visible };
        let kind = self.random.below(100);
        if self.in_flight.len() == DEPTH {
            self.wait_for_oldest().await?;
        }
        self.wait_for(|other| other.overlaps(&range)).await?;
        let (device, size) = (self.device.clone(), self.block_size);
        let says = match kind {
            0..48 => runtime::spawn(async move {
                let payload = Payload::from(stamped(range, number, size));
                device.write(range.start, payload, durability).await?;
                Ok(None)
            }),
            48..76 => runtime::spawn(async move {
                let bytes = read(&device, range).await?;
                let found = found(bytes.filled(), range, size);
                Ok(Some(format!("{number}: {}+{} has {found}", range.start.0, range.count.0)))
            }),
            76..84 => runtime::spawn(async move { device.flush().await.map(|()| None) }),
            84..93 => {
                let mode = match number % 2 {
                    0 => ZeroMode::MayDeallocate,
                    _ => ZeroMode::KeepAllocated,
                };
                runtime::spawn(
                    async move { device.write_zeroes(range, mode, durability).await.map(|()| None) },
                )
            }
            _ => {
                if self.arguments.discard_on.is_some() {
                    // `blkdiscard` bypasses the stack; only this orders it with the operations in flight.
                    self.wait_for(|_| true).await?;
                }
                let arguments = self.arguments.clone();
                runtime::spawn(async move {
                    match &arguments.discard_on {
                        Some(path) => discard_by_ioctl(path, range, size).await?,
                        None => device.discard(range).await?,
                    }
                    if arguments.rewrite {
                        let data = stamped(range, number, size);
                        device.write(range.start, data.into(), durability).await?;
                    }
                    Ok(None)
                })
            }
        };
        self.in_flight.push_back(InFlight { range, says });
        Ok(())
    }

    /// Waits for the oldest operation, and prints its line, so that lines come in the order of the numbers.
    async fn wait_for_oldest(&mut self) -> Result<()> {
        if let Some(oldest) = self.in_flight.pop_front()
            && let Some(line) = oldest.says.await?
        {
            println!("{line}");
        }
        Ok(())
    }

    /// Waits until no operation in flight matches.
    async fn wait_for(&mut self, which: impl Fn(&BlockRange) -> bool) -> Result<()> {
        while self.in_flight.iter().any(|operation| which(&operation.range)) {
            self.wait_for_oldest().await?;
        }
        Ok(())
    }

    /// Prints a checksum for each piece of the device.
    async fn say_the_end(&self) -> Result<()> {
        let line = LINE / self.block_size.bytes();
        for start in (0..self.blocks).step_by(line as usize) {
            let range = BlockRange::new(start, line.min(self.blocks - start));
            let bytes = read(&self.device, range).await?;
            let sum = layers::record::format::crc(bytes.filled());
            println!("end: {start}+{} has {sum:08x}", range.count.0);
        }
        Ok(())
    }
}

async fn read(device: &Rc<dyn Device>, range: BlockRange) -> Result<Buffer> {
    let length = device.geometry().block_size.bytes_of(range.count) as usize;
    let (result, buffer) = device.read(BlockIndex(range.start.0), Buffer::new(length)).await;
    result.map(|()| buffer)
}

/// Describes the contents that a read has found, with equal neighbours combined: `write 3 (5 blocks), zeros
/// (2 blocks)`.
fn found(bytes: &[u8], range: BlockRange, size: BlockSize) -> String {
    let own = |(index, bytes)| describe(bytes).replace(&format!(" to block {}", range.start.0 + index), "");
    let blocks: Vec<String> = (0..).zip(bytes.chunks(size.bytes() as usize)).map(own).collect();
    let runs = blocks.chunk_by(|one, next| one == next);
    runs.map(|run| format!("{} ({} blocks)", run[0], run.len())).collect::<Vec<_>>().join(", ")
}

async fn discard_by_ioctl(path: &str, range: BlockRange, size: BlockSize) -> Result<()> {
    let (offset, length) = (size.offset_of(range.start).0, size.bytes_of(range.count));
    let (path, arguments) =
        // -f: without O_EXCL, which the stack under test holds.
        (path.to_owned(), ["-f".to_owned(), "-o".into(), offset.to_string(), "-l".into(), length.to_string()]);
    runtime::blocking(move || {
        let failed = |why: String| Error::io(format!("blkdiscard {} {path}: {why}", arguments.join(" ")));
        let output = Command::new("blkdiscard").args(&arguments).arg(&path).output();
        let output = output.map_err(|error| failed(error.to_string()))?;
        match output.status.success() {
            true => Ok(()),
            false => Err(failed(String::from_utf8_lossy(&output.stderr).into_owned())),
        }
    })
    .await
}

async fn run(line: String, arguments: Arguments) -> Result<()> {
    let invalid = |problems: stack::Problems| Error::invalid(problems.to_string());
    let stack = Stack::from_line("the stack", &line, &registry()).map_err(invalid)?;
    let built = stack.check(arguments.format).map_err(invalid)?.build().await?;
    let top = built.top()?;
    let (message, until) = (arguments.message.clone(), arguments.until.clone());
    let mut outcome = Sequence::run(&top, arguments).await;
    if let Some(message) = message
        && outcome.is_ok()
    {
        outcome = top.message(&message).await.map(|answer| eprintln!("{message}: {answer}"));
    }
    if let Some((key, value)) = until
        && outcome.is_ok()
    {
        // The caller has a time limit.
        while top.status().await.get(&key).and_then(|said| said.as_str()) != Some(&value) {
            runtime::sleep(LOOK).await;
        }
    }
    if outcome.is_ok() {
        eprintln!("{}", built.status().await);
    }
    let closed = built.close().await;
    outcome.and(closed)
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [line, more @ ..] = words.as_slice() else {
        return Err(Error::invalid("expected a stack: see the head of this program"));
    };
    let (line, arguments) = (line.clone(), Arguments::new(more)?);
    runtime::run(runtime::Config::default(), move || run(line, arguments))?
}
