//! A program that uses much memory, and checks it: it fills pages, then reads and changes them at random, and
//! checks every word that it reads.
//!
//! Usage: siltstone-guest-pages MIB FILE
//!
//! It needs nothing but `runtime`, for the guest; page-check of `remote` measures for a fixed time. Half of
//! each page can't be compressed. It ends once FILE exists, with a check of all pages: 0 if every page has
//! the bytes that were written, and otherwise 1.
//!
//! An emulated machine is slow, and this program isn't optimised: pages are made and compared by functions of
//! `runtime` and of the standard library, which are.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program for tests")]

use runtime::Random;
use std::path::Path;
use std::process::ExitCode;

/// Bytes of a page.
const PAGE: usize = 4096;
/// Bytes of a page that can't be compressed.
const NOISE: usize = PAGE / 2;
/// Operations between two checks for the file.
const OPERATIONS_PER_LOOK: u64 = 64;
/// Share of operations that change a page, in percent.
const WRITES: u64 = 25;

/// Fills a page: noise by its number and version, then its number.
fn fill(page: &mut [u8], number: usize, version: u32) {
    let (noise, rest) = page.split_at_mut(NOISE);
    Random::new((number as u64) << 20 ^ u64::from(version)).fill(noise);
    rest.fill(number as u8);
}

fn is_filled(page: &[u8], number: usize, version: u32) -> bool {
    let mut expected = [0; PAGE];
    fill(&mut expected, number, version);
    page == expected
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let mib = arguments.next().and_then(|text| text.parse::<usize>().ok());
    let (Some(mib), Some(file)) = (mib, arguments.next()) else {
        eprintln!("siltstone-guest-pages MIB FILE");
        return ExitCode::from(2);
    };
    let mut memory = vec![0_u8; mib << 20];
    let mut versions = vec![0_u32; mib << 8];
    for (number, page) in memory.chunks_exact_mut(PAGE).enumerate() {
        fill(page, number, 0);
    }
    println!("filled");
    let mut random = Random::new(7);
    let (mut operations, mut wrong) = (0_u64, 0_u64);
    while !operations.is_multiple_of(OPERATIONS_PER_LOOK) || !Path::new(&file).exists() {
        let number = random.next_u64() as usize % versions.len();
        let page = &mut memory[number * PAGE..][..PAGE];
        wrong += u64::from(!is_filled(page, number, versions[number]));
        if random.next_u64() % 100 < WRITES {
            versions[number] += 1;
            fill(page, number, versions[number]);
        }
        operations += 1;
    }
    let pages = memory.chunks_exact(PAGE).zip(&versions).enumerate();
    wrong += pages.filter(|(number, (page, version))| !is_filled(page, *number, **version)).count() as u64;
    println!("{operations} operations, {wrong} wrong pages");
    if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
