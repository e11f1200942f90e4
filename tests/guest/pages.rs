//! A program that uses much memory, and checks it: it fills pages, then reads and changes them at random, and
//! checks every word that it reads.
//!
//! Usage: siltstone-guest-pages MIB FILE
//!
//! It needs nothing but `runtime`, for the guest; page-check of `remote` measures for a fixed time. Half of
//! each page can't be compressed. It ends once FILE exists, with a check of all pages: 0 if every page has
//! the bytes that were written, and otherwise 1.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program for tests")]

use runtime::Random;
use std::path::Path;
use std::process::ExitCode;

/// Words of a page.
const WORDS: usize = 512;
/// Words of a page that can't be compressed.
const NOISE: usize = WORDS / 2;
/// Operations between two checks for the file.
const OPERATIONS_PER_LOOK: u64 = 64;
/// Share of operations that change a page, in percent.
const WRITES: u64 = 25;

/// The words of a page: noise by its number and version, then its number.
fn words(number: usize, version: u32) -> impl Iterator<Item = u64> {
    let mut random = Random::new((number as u64) << 20 ^ u64::from(version));
    (0..WORDS).map(move |word| if word < NOISE { random.next_u64() } else { number as u64 })
}

fn fill(page: &mut [u64], number: usize, version: u32) {
    page.iter_mut().zip(words(number, version)).for_each(|(word, value)| *word = value);
}

fn is_filled(page: &[u64], number: usize, version: u32) -> bool {
    page.iter().copied().eq(words(number, version))
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let mib = arguments.next().and_then(|text| text.parse::<usize>().ok());
    let (Some(mib), Some(file)) = (mib, arguments.next()) else {
        eprintln!("siltstone-guest-pages MIB FILE");
        return ExitCode::from(2);
    };
    let mut memory = vec![0_u64; mib << 17];
    let mut versions = vec![0_u32; mib << 8];
    for (number, page) in memory.chunks_exact_mut(WORDS).enumerate() {
        fill(page, number, 0);
    }
    println!("filled");
    let mut random = Random::new(7);
    let (mut operations, mut wrong) = (0_u64, 0_u64);
    while !operations.is_multiple_of(OPERATIONS_PER_LOOK) || !Path::new(&file).exists() {
        let number = random.next_u64() as usize % versions.len();
        let page = &mut memory[number * WORDS..][..WORDS];
        wrong += u64::from(!is_filled(page, number, versions[number]));
        if random.next_u64() % 100 < WRITES {
            versions[number] += 1;
            fill(page, number, versions[number]);
        }
        operations += 1;
    }
    let pages = memory.chunks_exact(WORDS).zip(&versions).enumerate();
    wrong += pages.filter(|(number, (page, version))| !is_filled(page, *number, **version)).count() as u64;
    println!("{operations} operations, {wrong} wrong pages");
    if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
