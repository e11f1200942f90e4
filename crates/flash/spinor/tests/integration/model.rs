//! The chip against a plain array.

use crate::common::{Drive, SMALL, small};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use spinor::{BusyTime, Chip};

#[derive(Debug, Clone)]
enum Step {
    Program { address: u32, data: Vec<u8>, enabled: bool },
    Erase { which: usize, address: u32, enabled: bool },
    EraseAll { enabled: bool },
    Read { address: u32, count: usize, opcode: usize },
    PowerCycle,
    Reset,
}

const ERASES: [(u8, u32); 3] = [(0x20, 4096), (0x52, 32768), (0xD8, 65536)];

fn steps() -> impl Strategy<Value = Step> {
    // Addresses are close to page and sector edges, so that steps overlap.
    let address = || (0u32..8, 0u32..600).prop_map(|(n, offset)| (n * 32768 + 4096 - 300 + offset) % SMALL);
    prop_oneof![
        6 => (address(), prop::collection::vec(any::<u8>(), 1..400), prop::bool::weighted(0.9))
            .prop_map(|(address, data, enabled)| Step::Program { address, data, enabled }),
        3 => (0usize..3, address(), prop::bool::weighted(0.9))
            .prop_map(|(which, address, enabled)| Step::Erase { which, address, enabled }),
        1 => any::<bool>().prop_map(|enabled| Step::EraseAll { enabled }),
        6 => (0u32..SMALL * 2, 0usize..700, 0usize..4)
            .prop_map(|(address, count, opcode)| Step::Read { address, count, opcode }),
        1 => Just(Step::PowerCycle),
        1 => Just(Step::Reset),
    ]
}

fn wait(chip: &mut Chip) {
    for _ in 0..100 {
        if chip.ask(&[0x05], 1)[0] & 1 == 0 {
            return;
        }
        chip.advance(chip.busy_for().unwrap_or(0));
    }
    panic!("still busy");
}

fn apply(chip: &mut Chip, model: &mut [u8], step: &Step) {
    match step {
        Step::Program { address, data, enabled } => {
            if *enabled {
                chip.send(&[0x06]);
                let base = (address & !255) as usize;
                let mut page = [0xFF; 256];
                for (n, byte) in data.iter().enumerate() {
                    page[(*address as usize + n) % 256] = *byte;
                }
                for (cell, byte) in model[base..base + 256].iter_mut().zip(page) {
                    *cell &= byte;
                }
            }
            chip.send(&Chip::at(0x02, *address, data));
            wait(chip);
        }
        Step::Erase { which, address, enabled } => {
            let (opcode, size) = ERASES[*which];
            if *enabled {
                chip.send(&[0x06]);
                let start = (address & !(size - 1)) as usize;
                model[start..start + size as usize].fill(0xFF);
            }
            chip.send(&Chip::at(opcode, *address, &[]));
            wait(chip);
        }
        Step::EraseAll { enabled } => {
            if *enabled {
                chip.send(&[0x06]);
                model.fill(0xFF);
            }
            chip.send(&[0xC7]);
            wait(chip);
        }
        Step::Read { address, count, opcode } => {
            let expected: Vec<u8> =
                (0..*count).map(|n| model[(*address as usize + n) % SMALL as usize]).collect();
            let mut read = vec![0; *count];
            let (opcode, dummies, lines) = [(0x03, 0, 1), (0x0B, 1, 1), (0x3B, 1, 2), (0x6B, 1, 4)][*opcode];
            chip.select();
            chip.write(&Chip::at(opcode, *address, &[]), 1);
            chip.write(&vec![0; dummies], 1);
            chip.read(&mut read, lines);
            chip.deselect();
            assert_eq!(read, expected);
        }
        Step::PowerCycle => {
            chip.power_off();
            chip.power_on();
            chip.advance(5_000_000);
        }
        Step::Reset => {
            chip.send(&[0x66]);
            chip.send(&[0x99]);
            chip.advance(1_000_000);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, rng_seed: RngSeed::Fixed(5), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_chip_is_an_array_that_programs_and_erases(
        steps in prop::collection::vec(steps(), 1..25),
        busy in prop_oneof![Just(BusyTime::Typical), Just(BusyTime::Maximum), (0u32..4).prop_map(BusyTime::Polls)],
        fill in any::<u8>(),
    ) {
        let mut model = vec![fill; SMALL as usize];
        let mut chip = Chip::new(small("W25Q128JV"), model.clone(), 3).unwrap();
        chip.set_busy_time(busy);
        for step in &steps {
            apply(&mut chip, &mut model, step);
        }
        prop_assert!(chip.memory() == &model[..]);
    }
}

/// One transaction: bytes with their lines, then a read.
type Transaction = (Vec<(u8, u8)>, usize, u8);

fn transactions() -> impl Strategy<Value = Vec<Transaction>> {
    let lines = || prop::sample::select(vec![1u8, 1, 1, 2, 4]);
    let opcode = prop::sample::select(vec![
        0x03, 0x0B, 0x3B, 0x6B, 0xBB, 0xEB, 0x06, 0x06, 0x02, 0x32, 0x20, 0x05, 0x35, 0x9F, 0x5A, 0x77, 0x38,
        0xFF, 0x75, 0x7A, 0x48, 0xB9, 0xAB, 0x4B,
    ]);
    let transaction =
        (opcode, lines(), prop::collection::vec((any::<u8>(), lines()), 0..14), 0usize..20, lines())
            .prop_map(|(opcode, first, mut bytes, read, lines)| {
                bytes.insert(0, (opcode, first));
                (bytes, read, lines)
            });
    prop::collection::vec(transaction, 1..40)
}

/// Exchanges a byte clock by clock, as a bit-banging host does.
fn bit_bang(chip: &mut Chip, out: u8, lines: u8) -> u8 {
    (0..8 / lines).fold(0, |reply, step| {
        let bits = out >> (8 - lines * (step + 1)) & ((1 << lines) - 1);
        let undriven = 0xF & !((1 << lines) - 1);
        let seen = chip.clock(undriven | bits);
        let sampled = if lines == 1 { seen >> 1 & 1 } else { seen & ((1 << lines) - 1) };
        reply << lines | sampled
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 80, rng_seed: RngSeed::Fixed(6), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn bytes_and_runs_of_bytes_are_what_their_clocks_are(transactions in transactions()) {
        let image: Vec<u8> = (0..SMALL).map(|n| ((n * 31) >> 3) as u8 | 0x81).collect();
        let description = small("W25Q128FV");
        let mut chips: Vec<Chip> =
            (0..2).map(|_| Chip::new(description.clone(), image.clone(), 3).unwrap()).collect();
        for chip in &mut chips {
            chip.finish(&[0x31, 0x02]);
        }
        for (bytes, read, lines) in &transactions {
            let mut replies: Vec<Vec<u8>> = Vec::new();
            for (slow, chip) in chips.iter_mut().enumerate() {
                chip.select();
                let mut seen = Vec::new();
                for (byte, lines) in bytes {
                    seen.push(if slow == 1 { bit_bang(chip, *byte, *lines) } else { chip.transfer(*byte, *lines) });
                }
                let mut run = vec![0; *read];
                if slow == 1 {
                    run.iter_mut().for_each(|byte| *byte = bit_bang(chip, 0xFF, *lines));
                } else {
                    chip.read(&mut run, *lines);
                }
                chip.deselect();
                chip.advance(200_000);
                seen.extend(run);
                replies.push(seen);
            }
            prop_assert_eq!(&replies[0], &replies[1]);
            prop_assert_eq!(chips[0].state(), chips[1].state());
            prop_assert_eq!(chips[0].last_refusal(), chips[1].last_refusal());
        }
        prop_assert!(chips[0].memory() == chips[1].memory());
    }
}
