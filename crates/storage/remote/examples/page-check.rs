//! Fills more memory than its limit allows, then reads and changes pages at random, and checks every word
//! that it reads.
//!
//! Usage: page-check MIB SECONDS [--noise=BYTES] [--zipf] [--writes=PERCENT] [--pause]
//!
//! Each page has `noise` bytes that can't be compressed (default: 2048); the rest is one number. With
//! `--pause` it prints "filled" after it has filled the memory, and waits for a line there and after the
//! results. A warm-up of a quarter of SECONDS precedes the measurement. Prints latencies of the first word
//! that is read of a page as fio's JSON, with the time to fill the memory and the number of wrong pages. Then
//! it checks all pages, and exits with 1 if any page has other bytes.

use bench::peer::output::Output;
use runtime::Random;
use runtime::histogram::Histogram;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Words of a page.
const WORDS: usize = 512;

/// Fills a page by its number and version.
fn fill(page: &mut [u64], number: u64, version: u64, noise: usize) {
    let mut random = Random::new(number << 20 ^ version);
    page.fill(number);
    page[..noise].iter_mut().for_each(|word| *word = random.next_u64());
    (page[WORDS - 2], page[WORDS - 1]) = (version, number);
}

/// Whether a page has the contents that [`fill`] wrote.
fn is_filled(page: &[u64], number: u64, version: u64, noise: usize) -> bool {
    let mut random = Random::new(number << 20 ^ version);
    let is_noise = page[..noise].iter().all(|word| *word == random.next_u64());
    let is_number = page[noise..WORDS - 2].iter().all(|word| *word == number);
    is_noise && is_number && page[WORDS - 2..] == [version, number]
}

struct Arguments {
    mib: usize,
    seconds: u64,
    noise: usize,
    is_zipf: bool,
    writes: u64,
    /// Waits for a line after the memory was filled.
    pauses: bool,
}

fn arguments() -> Option<Arguments> {
    let mut given = std::env::args().skip(1);
    let mut arguments = Arguments {
        mib: given.next()?.parse().ok()?,
        seconds: given.next()?.parse().ok()?,
        noise: 2048 / 8,
        is_zipf: false,
        writes: 25,
        pauses: false,
    };
    for argument in given {
        match argument.split_once('=') {
            Some(("--noise", bytes)) => arguments.noise = bytes.parse::<usize>().ok()? / 8,
            Some(("--writes", percent)) => arguments.writes = percent.parse().ok()?,
            None if argument == "--zipf" => arguments.is_zipf = true,
            None if argument == "--pause" => arguments.pauses = true,
            _ => return None,
        }
    }
    (arguments.noise <= WORDS - 2).then_some(arguments)
}

#[expect(clippy::disallowed_methods, reason = "this program measures real time")]
fn now() -> Instant {
    Instant::now()
}

/// Draws a page number below `pages`. With Zipf's law (exponent 1) popular pages are spread over all pages.
fn choose(random: &mut Random, pages: u64, is_zipf: bool) -> u64 {
    let share = random.next_u64() as f64 / u64::MAX as f64;
    match is_zipf {
        true => ((pages as f64).powf(share) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) % pages,
        false => random.next_u64() % pages,
    }
}

fn main() -> ExitCode {
    let Some(Arguments { mib, seconds, noise, is_zipf, writes, pauses }) = arguments() else {
        eprintln!(
            "page-check MIB SECONDS [--noise=BYTES] [--zipf] [--writes=PERCENT] [--pause]; BYTES up to 4080"
        );
        return ExitCode::from(2);
    };
    let pages = (mib << 8) as u64;
    let mut memory = vec![0_u64; mib << 17];
    let mut versions = vec![0_u32; pages as usize];
    let begin = now();
    for (number, page) in memory.chunks_exact_mut(WORDS).enumerate() {
        fill(page, number as u64, 0, noise);
    }
    let filled = begin.elapsed();
    let pause = || {
        if pauses {
            // The end of the input counts as a line.
            let _line = std::io::stdin().read_line(&mut String::new());
        }
    };
    if pauses {
        println!("filled");
    }
    pause();
    let mut random = Random::new(7);
    let mut latencies: Histogram<7> = Histogram::new();
    let (mut begin, mut wrong) = (now(), 0_u64);
    let (warm_up, mut cpu) = (Duration::from_secs(seconds) / 4, Duration::ZERO);
    let mut is_warm = false;
    while !is_warm || begin.elapsed() < Duration::from_secs(seconds) {
        if !is_warm && begin.elapsed() >= warm_up {
            (is_warm, begin, cpu) = (true, now(), runtime::process_cpu_time());
            latencies = Histogram::new();
        }
        let number = choose(&mut random, pages, is_zipf);
        let is_write = random.next_u64() % 100 < writes;
        let page = &mut memory[number as usize * WORDS..][..WORDS];
        let version = &mut versions[number as usize];
        let operation = now();
        let is_right = page[WORDS - 1] == number;
        latencies.record(operation.elapsed().as_nanos() as u64);
        if !is_right || !is_filled(page, number, (*version).into(), noise) {
            eprintln!("page {number}, version {version}: other bytes");
            wrong += 1;
        }
        if is_write {
            *version += 1;
            fill(page, number, (*version).into(), noise);
        }
    }
    let (time, measured_cpu) = (begin.elapsed(), runtime::process_cpu_time() - cpu);
    let output = Output {
        name: "page-check",
        writes: false,
        latencies: &latencies,
        bytes: latencies.count() * WORDS as u64 * 8,
        time,
        cpu: measured_cpu,
        wall: time,
        failed: wrong > 0,
    };
    let mut job = output.job();
    (job["fill_seconds"], job["wrong_pages"]) = (filled.as_secs_f64().into(), wrong.into());
    println!("{}", serde_json::json!({ "jobs": [job] }));
    pause();
    for (number, page) in memory.chunks_exact(WORDS).enumerate() {
        if !is_filled(page, number as u64, versions[number].into(), noise) {
            eprintln!("page {number}, version {}: other bytes in the last check", versions[number]);
            wrong += 1;
        }
    }
    if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
