//! Power cuts, wear, aging, read disturb, stuck busy, bus errors: by seed and rule.

use crate::common::{Drive, small, small_chip};
use spinor::{Aging, Chip, Cut, Faults, Refusal, State};

fn boot(flash: &mut Chip) {
    flash.power_on();
    flash.advance(10_000_000);
}

/// Cuts the power in the second operation, a program or an erase of a sector that holds 5Ah.
fn cut_at(fraction: f64, seed: u64, command: &[u8]) -> Chip {
    let mut flash = Chip::erased(small("W25Q128JV"), seed);
    flash.memory_mut().fill(0x5A);
    flash.set_faults(Faults { cuts: vec![Cut::Operation { after: 1, fraction }], ..Faults::default() });
    flash.finish(&Chip::at(0x02, 0x2_0000, &[0]));
    flash.finish(command);
    assert_eq!(flash.state(), State::PowerDown);
    assert_eq!(flash.ask(&[0x9F], 1), [0xFF]);
    boot(&mut flash);
    flash
}

#[test]
fn a_cut_program_only_clears_bits_that_it_was_to_clear_and_only_in_its_page() {
    let program = Chip::at(0x02, 0x1000, &[0x0F; 256]);
    let mut partly = 0;
    for step in 0..=20 {
        let flash = cut_at(f64::from(step) / 20.0, 3, &program);
        let memory = flash.memory();
        let page = &memory[0x1000..0x1100];
        assert!(page.iter().all(|cell| cell & !0x5A == 0 && 0x5A & 0x0F & !cell == 0), "step {step}");
        assert!(memory[..0x1000].iter().chain(&memory[0x1100..0x2_0000]).all(|cell| *cell == 0x5A));
        let done = page.iter().filter(|cell| **cell == 0x0A).count();
        let untouched = page.iter().filter(|cell| **cell == 0x5A).count();
        partly += usize::from(done > 0 && untouched > 0);
        match step {
            0 => assert_eq!(untouched, 256),
            20 => assert_eq!(done, 256),
            _ => {}
        }
    }
    assert!(partly > 10, "{partly}");
}

#[test]
fn a_cut_erase_stays_in_its_block() {
    for step in 0..=20 {
        let flash = cut_at(f64::from(step) / 20.0, 4, &Chip::at(0x20, 0x1000, &[]));
        let memory = flash.memory();
        assert!(memory[..0x1000].iter().chain(&memory[0x2000..0x2_0000]).all(|cell| *cell == 0x5A));
        let block = &memory[0x1000..0x2000];
        let ones: u32 = block.iter().map(|cell| cell.count_ones()).sum();
        match step {
            0 => assert!(block.iter().all(|cell| *cell == 0x5A)),
            5 => assert!(ones < 4096 * 4, "preprogram: {ones}"),
            20 => assert_eq!(ones, 4096 * 8),
            _ => {}
        }
    }
}

#[test]
fn marginal_bits_read_differently_until_they_are_erased_or_programmed() {
    let mut flash = cut_at(0.6, 5, &Chip::at(0x20, 0x1000, &[]));
    let unstable = flash.non_volatile().marginal.len();
    assert!(unstable > 0 && unstable < 400, "{unstable}");
    let reads: Vec<Vec<u8>> = (0..20).map(|_| flash.read_at(0x1000, 4096)).collect();
    assert!(reads.iter().any(|read| read != &reads[0]));
    let (address, marginal) = flash.non_volatile().marginal.iter().map(|(a, m)| (*a, *m)).next().unwrap();
    let differ = reads.iter().all(|read| {
        read.iter()
            .zip(&reads[0])
            .enumerate()
            .all(|(n, (a, b))| a == b || flash.non_volatile().marginal.contains_key(&(0x1000 + n as u32)))
    });
    assert!(differ, "only those bytes");
    flash.finish(&Chip::at(0x02, address, &[!marginal.mask]));
    assert!(!flash.non_volatile().marginal.contains_key(&address), "a programmed bit is stable");
    flash.finish(&Chip::at(0x20, 0x1000, &[]));
    assert!(flash.non_volatile().marginal.is_empty());
    assert_eq!(flash.read_at(0x1000, 4096), [0xFF; 4096]);
}

#[test]
fn the_same_seed_gives_the_same_damage() {
    for command in [Chip::at(0x20, 0x1000, &[]), Chip::at(0x02, 0x1000, &[0; 256])] {
        let (mut a, mut b) = (cut_at(0.55, 6, &command), cut_at(0.55, 6, &command));
        assert!(a.memory() == b.memory() && a.non_volatile() == b.non_volatile());
        assert_eq!(a.read_at(0x1000, 4096), b.read_at(0x1000, 4096));
        assert!(a.memory() != cut_at(0.55, 7, &command).memory());
    }
}

#[test]
fn power_off_in_virtual_time_leaves_as_much_as_had_passed() {
    let mut flash = small_chip("W25Q128JV");
    flash.memory_mut().fill(0);
    flash.send(&[0x06]);
    flash.send(&Chip::at(0x20, 0, &[]));
    flash.advance(44_000_000);
    flash.power_off();
    boot(&mut flash);
    assert!(
        flash.memory()[..4096].iter().all(|cell| *cell == 0xFF),
        "in the recovery of over-erased cells all read 1"
    );
    assert_eq!(flash.erase_counts()[..2], [1, 0]);
    flash.send(&[0x06]);
    flash.send(&Chip::at(0x20, 0x1000, &[]));
    flash.advance(20_000_000);
    flash.send(&[0x75]);
    flash.advance(20_000);
    flash.power_off();
    let ones: u32 = flash.memory()[0x1000..0x2000].iter().map(|cell| cell.count_ones()).sum();
    assert!(ones > 0 && ones < 32768, "a suspended erase is half-done too: {ones}");
}

#[test]
fn power_cuts_at_every_bus_byte_leave_old_or_new() {
    let work: [Vec<u8>; 6] = [
        vec![0x06],
        Chip::at(0x20, 0x1000, &[]),
        vec![0x06],
        Chip::at(0x02, 0x1000, b"new data"),
        vec![0x05, 0],
        Chip::at(0x03, 0x1000, &[0; 8]),
    ];
    let total: usize = work.iter().map(Vec::len).sum();
    for cut in 0..=total as u64 {
        let mut flash = Chip::erased(small("W25Q128JV"), cut);
        flash.memory_mut()[0x1000..0x1008].copy_from_slice(b"old data");
        flash.set_faults(Faults { cuts: vec![Cut::BusByte(cut)], ..Faults::default() });
        for bytes in &work {
            flash.send(bytes);
            flash.wait();
        }
        assert_eq!(flash.state() == State::PowerDown, cut < total as u64, "cut {cut}");
        flash.set_faults(Faults::default());
        boot(&mut flash);
        let read = flash.read_at(0x1000, 8);
        let expected: &[u8] = match cut {
            0..5 => b"old data",
            5..18 => &[0xFF; 8],
            _ => b"new data",
        };
        // A command takes effect when CS# rises; the cut strikes at the next byte.
        assert_eq!(read, expected, "cut {cut}");
    }
}

#[test]
fn a_brown_out_inhibits_writes() {
    let mut flash = small_chip("W25Q128JV");
    flash.send(&[0x06]);
    flash.set_supply(2500);
    assert_eq!(flash.state(), State::WriteEnabled);
    flash.set_supply(1500);
    assert_eq!(flash.state(), State::PowerDown);
    flash.set_supply(2500);
    assert_eq!(flash.state(), State::PowerDown);
    flash.set_supply(3300);
    assert_eq!(flash.state(), State::PowerUp);
    flash.advance(20_000);
    assert_eq!((flash.state(), flash.ask(&[0x9F], 1)), (State::Standby, vec![0xEF]));
    flash.finish(&Chip::at(0x02, 0, &[0]));
    assert_eq!(
        (flash.last_refusal(), flash.read_at(0, 1)),
        (Some(Refusal::NoPower), vec![0xFF]),
        "before tPUW"
    );
    flash.advance(5_000_000);
    flash.finish(&Chip::at(0x02, 0, &[0]));
    assert_eq!(flash.read_at(0, 1), [0]);
}

#[test]
fn a_chip_stuck_busy_recovers_by_reset() {
    let mut flash = small_chip("W25Q128JV");
    flash.set_faults(Faults { stuck_busy: Some(1), ..Faults::default() });
    flash.finish(&Chip::at(0x02, 0, &[0]));
    assert_eq!(flash.ask(&[0x05], 1), [0]);
    flash.finish(&Chip::at(0x02, 1, &[0]));
    flash.advance(u64::MAX / 2);
    assert_eq!(flash.ask(&[0x05], 1), [3]);
    flash.send(&[0x66]);
    flash.send(&[0x99]);
    flash.advance(30_000);
    assert_eq!(flash.ask(&[0x05], 1), [0]);
}

#[test]
fn cells_wear_out_beyond_the_endurance() {
    let text = crate::common::resized("MX25L6436E", 1 << 17).replace("endurance = 100000", "endurance = 100");
    let mut flash = Chip::erased(spinor::Description::parse("worn.toml", &text).unwrap(), 2);
    flash.set_faults(Faults { wear: true, ..Faults::default() });
    flash.set_busy_time(spinor::BusyTime::Polls(0));
    let mut first = None;
    for cycle in 1..=2000u32 {
        flash.finish(&Chip::at(0x20, 0x1000, &[]));
        if flash.register("SCUR").unwrap() & 0x40 != 0 && first.is_none() {
            first = Some(cycle);
        }
    }
    let first = first.expect("a failure");
    assert!(first > 100, "{first}: the guaranteed cycles hold");
    assert_eq!((flash.erase_counts()[1], flash.erase_counts()[0]), (2000, 0));
    let bad: u32 = flash.memory()[0x1000..0x2000].iter().map(|cell| cell.count_zeros()).sum();
    assert!(bad >= 1, "bits stick at 0");
    assert!(flash.memory()[..0x1000].iter().all(|cell| *cell == 0xFF));
    let saved = serde_json_round_trip(flash.non_volatile());
    flash.restore(saved).unwrap();
}

fn serde_json_round_trip(saved: &spinor::NonVolatile) -> spinor::NonVolatile {
    let text = serde_json::to_string(saved).unwrap();
    let loaded: spinor::NonVolatile = serde_json::from_str(&text).unwrap();
    assert_eq!(&loaded, saved);
    loaded
}

#[test]
fn aging_loses_charge_faster_when_it_is_hot() {
    let lost = |celsius| {
        let mut flash = small_chip("W25Q128JV");
        flash.memory_mut()[..0x2_0000].fill(0);
        let lost = flash.age(Aging { years: 10.0, celsius, rate: 1e-5 });
        let ones: u64 = flash.memory()[..0x2_0000].iter().map(|cell| u64::from(cell.count_ones())).sum();
        assert_eq!((ones, flash.counters().flipped_bits), (lost, lost));
        lost
    };
    let (cool, warm) = (lost(25.0), lost(55.0));
    // 2^20 programmed bits, 1e-5 of them a year for 10 years.
    assert!((90..=120).contains(&warm), "{warm}");
    assert!(cool < warm / 10, "{cool}");
}

#[test]
fn reads_disturb_cells_of_their_sector() {
    let mut flash = small_chip("W25Q128JV");
    flash.set_faults(Faults { read_disturb: 1000, ..Faults::default() });
    for _ in 0..10 {
        flash.read_at(0x1000, 4096);
    }
    let zeros: u32 = flash.memory()[0x1000..0x2000].iter().map(|cell| cell.count_zeros()).sum();
    assert!((20..70).contains(&zeros), "{zeros}");
    assert!(flash.memory()[0x2000..].iter().all(|cell| *cell == 0xFF));
}

#[test]
fn bus_errors_flip_single_bits() {
    let mut flash = small_chip("W25Q128JV");
    flash.set_faults(Faults { flip_out: 0.1, ..Faults::default() });
    let read = flash.read_at(0, 4096);
    let wrong = read.iter().filter(|byte| **byte != 0xFF).count();
    assert!((300..520).contains(&wrong), "{wrong}");
    assert!(read.iter().all(|byte| byte.count_zeros() <= 1));
    assert!(flash.memory().iter().all(|cell| *cell == 0xFF));
}

#[test]
fn several_cuts_strike_each_at_its_time() {
    let mut flash = small_chip("W25Q128JV");
    let operation = |after, fraction| Cut::Operation { after, fraction };
    let cuts = vec![operation(0, 0.5), operation(2, 0.5), Cut::BusByte(40)];
    flash.set_faults(Faults { cuts, ..Faults::default() });
    let program = Chip::at(0x02, 0, &[0]);
    let mut off = Vec::new();
    for n in 0..12 {
        flash.finish(&program);
        if flash.state() == State::PowerDown {
            off.push(n);
            boot(&mut flash);
        }
    }
    // Each program has six bytes; the third operation is that of round 2; byte 40 is the fifth of round 6.
    assert_eq!((off, flash.faults().cuts.len()), (vec![0, 2, 6], 0));
}

#[test]
fn operations_are_finished_with_the_suspended_one() {
    let mut flash = small_chip("W25Q128JV");
    flash.memory_mut().fill(0x5A);
    flash.send(&[0x06]);
    flash.send(&Chip::at(0x20, 0x1000, &[]));
    flash.advance(1_000_000);
    flash.send(&[0x75]);
    flash.advance(100_000);
    flash.send(&[0x06]);
    flash.send(&Chip::at(0x02, 0x3000, &[0]));
    assert_eq!(flash.state(), State::Programming);
    flash.finish_operations();
    assert_eq!(flash.state(), State::Standby);
    assert!(flash.memory()[0x1000..0x2000].iter().all(|cell| *cell == 0xFF));
    assert_eq!(flash.memory()[0x3000], 0);
    assert!(flash.non_volatile().marginal.is_empty());
}
