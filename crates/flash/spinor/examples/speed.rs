//! Measures reads, status polls and page programs of a chip, directly and through embedded-hal.
//!
//! `cargo run --release -p siltstone-spinor --example speed`; about two seconds. Goals: 300 MB/s and 5
//! million polls/s.
#![allow(clippy::disallowed_methods)] // A measurement needs the machine's clock; the chip itself has none.

use embedded_hal::spi::{Operation, SpiDevice};
use spinor::{Bus, BusyTime, Chip, DescriptionError, chip};
use std::time::Instant;

fn main() -> Result<(), DescriptionError> {
    let description = chip("W25Q128JV").expect("a chip of this crate")?;
    let mut flash = Chip::erased(description, 1);
    let mut buffer = vec![0; 4096];
    let begin = Instant::now();
    for n in 0..100_000u32 {
        let [_, a, b, c] = ((n * 4096) & 0xFF_FFFF).to_be_bytes();
        flash.transact(&[0x03, a, b, c], &mut buffer);
    }
    println!("reads of 4 KiB: {:.0} MB/s", 409.6 / begin.elapsed().as_secs_f64());
    let begin = Instant::now();
    let mut status = [0];
    for _ in 0..5_000_000 {
        flash.transact(&[0x05], &mut status);
    }
    println!("status polls: {:.1} million/s", 5.0 / begin.elapsed().as_secs_f64());
    flash.set_busy_time(BusyTime::Polls(0));
    let begin = Instant::now();
    for n in 0..65_536u32 {
        let [_, a, b, _] = (n * 256).to_be_bytes();
        let mut program = [0x5A; 260];
        program[..4].copy_from_slice(&[0x02, a, b, 0]);
        flash.transact(&[0x06], &mut []);
        flash.transact(&program, &mut []);
    }
    println!("page programs: {:.0} MB/s", 16.8 / begin.elapsed().as_secs_f64());
    let mut bus = Bus::new(&mut flash);
    let begin = Instant::now();
    for n in 0..100_000u32 {
        let [_, a, b, c] = ((n * 4096) & 0xFF_FFFF).to_be_bytes();
        let _ = bus.transaction(&mut [Operation::Write(&[0x03, a, b, c]), Operation::Read(&mut buffer)]);
    }
    println!("embedded-hal, reads of 4 KiB: {:.0} MB/s", 409.6 / begin.elapsed().as_secs_f64());
    let begin = Instant::now();
    for _ in 0..5_000_000 {
        let _ = bus.transaction(&mut [Operation::Write(&[0x05]), Operation::Read(&mut status)]);
    }
    println!("embedded-hal, status polls: {:.1} million/s", 5.0 / begin.elapsed().as_secs_f64());
    Ok(())
}
