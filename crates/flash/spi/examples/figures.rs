//! Measures the tables of `bench/plans/spinor.toml`: reads and status polls in process, and busy times in
//! real time.
//!
//! `cargo run --release -p siltstone-spi --example figures -- reads|busy`; prints JSON with columns and rows.

use embedded_hal::spi::{Operation, SpiDevice};
use serde_json::{Value, json};
use spi::rules::Rules;
use spi::{Board, Programmer, Time};
use spinor::{Bus, Chip, Description};
use std::sync::Arc;

fn main() {
    let what = std::env::args().nth(1).unwrap_or_default();
    let printed = runtime::run(runtime::Config::default(), move || async move {
        let description = spinor::chip("W25Q128JV").expect("a chip of the crate").expect("no error in it");
        let table = if what == "busy" { busy(description) } else { reads(description) };
        println!("{table}");
    });
    printed.expect("io_uring works");
}

/// Reads and polls through embedded-hal.
fn reads(description: Arc<Description>) -> Value {
    let mut flash = Chip::erased(description, 1);
    let mut buffer = vec![0; 4096];
    let mut bus = Bus::new(&mut flash);
    let begun = runtime::now();
    for n in 0..200_000u32 {
        let [_, a, b, c] = ((n * 4096) & 0xFF_FFFF).to_be_bytes();
        let _ = bus.transaction(&mut [Operation::Write(&[0x03, a, b, c]), Operation::Read(&mut buffer)]);
    }
    let megabytes = 200_000.0 * 4096.0 / 1e6 / begun.elapsed().as_secs_f64();
    let (begun, mut status) = (runtime::now(), [0]);
    for _ in 0..5_000_000 {
        let _ = bus.transaction(&mut [Operation::Write(&[0x05]), Operation::Read(&mut status)]);
    }
    let polls = 5.0 / begun.elapsed().as_secs_f64();
    json!({
        "columns": [
            { "name": "figure", "title": "through embedded-hal" },
            { "name": "measured", "title": "measured" },
            { "name": "reach", "title": "to reach" },
        ],
        "rows": [
            { "figure": "reads of 4 KiB, MB/s", "measured": megabytes, "reach": 300 },
            { "figure": "status polls, million/s", "measured": polls, "reach": 5 },
        ],
    })
}

/// Busy times as a poller sees them, against the chip's table.
fn busy(description: Arc<Description>) -> Value {
    let mut rows = Vec::new();
    for time in [Time::Real, Time::RealMaximum] {
        let times = description.times.clone();
        let chip = Chip::erased(description.clone(), 1);
        let mut board = Board::new(chip, time, Rules::default(), 0);
        let page: Vec<u8> = [0x02, 0, 0, 0].into_iter().chain([0x55; 256]).collect();
        let erase = |size: u32| times.erases.iter().find(|(known, _)| *known == size).map(|(_, span)| *span);
        let mut cases = vec![
            ("page program", page, Some(times.page_program)),
            ("erase of 4 KiB", vec![0x20, 0, 0, 0], erase(4096)),
            ("erase of 32 KiB", vec![0x52, 0, 0, 0], erase(32768)),
            ("erase of 64 KiB", vec![0xD8, 0, 0, 0], erase(65536)),
            ("register write", vec![0x01, 0x04], Some(times.write_register)),
        ];
        if time == Time::RealMaximum {
            cases.retain(|(name, ..)| !name.starts_with("erase of 32") && !name.starts_with("erase of 64"));
        }
        for (name, command, span) in cases {
            let Some(span) = span else { continue };
            let table = if time == Time::Real { span.typical } else { span.maximum };
            let mut worst = 0f64;
            for _ in 0..5 {
                let mut transact = |sent: &[u8], read: &mut [u8]| {
                    board.transact(Programmer(0), sent, read, false).expect("the bus is free");
                };
                transact(&[0x06], &mut []);
                transact(&command, &mut []);
                let begun = runtime::now();
                let mut status = [1];
                while status[0] & 1 == 1 {
                    transact(&[0x05], &mut status);
                }
                let seen = begun.elapsed().as_nanos() as f64;
                if (seen - table as f64).abs() > worst.abs() {
                    worst = seen - table as f64;
                }
            }
            rows.push(json!({
                "operation": name,
                "time": time.to_string(),
                "table_us": table as f64 / 1e3,
                "deviation_us": worst / 1e3,
                "percent": 100.0 * worst / table as f64,
            }));
        }
    }
    json!({
        "columns": [
            { "name": "operation", "title": "operation" },
            { "name": "time", "title": "time" },
            { "name": "table_us", "title": "chip file, µs" },
            { "name": "deviation_us", "title": "worst of 5, µs" },
            { "name": "percent", "title": "%" },
        ],
        "rows": rows,
    })
}
