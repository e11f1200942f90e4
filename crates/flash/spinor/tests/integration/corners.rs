//! Programs, erases, suspension, power-down, reset, security registers: details of the datasheets.

use crate::common::{Drive, small_chip};
use spinor::{BusyTime, Chip, Refusal, State, chip};

#[test]
fn a_page_program_wraps_and_keeps_the_last_256_bytes() {
    let mut flash = small_chip("W25Q128JV");
    flash.finish(&Chip::at(0x02, 0x10FE, &[1, 2, 3, 4]));
    assert_eq!(flash.read_at(0x10FE, 2), [1, 2]);
    assert_eq!(flash.read_at(0x1000, 3), [3, 4, 0xFF]);
    assert_eq!(flash.read_at(0x1100, 1), [0xFF]);
    let long: Vec<u8> = (0..300u32).map(|n| n as u8).collect();
    flash.finish(&Chip::at(0x02, 0x2000, &long));
    assert_eq!(flash.read_at(0x2000, 256)[..44], long[256..]);
    assert_eq!(flash.read_at(0x2000, 256)[44..], long[44..256]);
}

#[test]
fn a_program_clears_bits_only_and_counts_overwrites() {
    let mut flash = small_chip("W25Q128JV");
    flash.finish(&Chip::at(0x02, 0, &[0xF0, 0xFF]));
    flash.finish(&Chip::at(0x02, 0, &[0x3C, 0x01]));
    assert_eq!(flash.read_at(0, 2), [0x30, 0x01]);
    assert_eq!(flash.counters().overwrites, 1);
}

#[test]
fn a_read_wraps_at_the_end_of_the_array() {
    let mut flash = small_chip("W25Q128JV");
    flash.memory_mut()[0] = 0xAA;
    flash.memory_mut()[0x3_FFFF] = 0xBB;
    assert_eq!(flash.read_at(0x3_FFFF, 2), [0xBB, 0xAA]);
    assert_eq!(flash.read_at(0xFC_0000, 1), [0xAA], "address bits beyond the array have no effect");
}

#[test]
fn busy_lasts_as_long_as_the_datasheet_says() {
    for (busy, page, sector, register) in [
        (BusyTime::Typical, 700_000, 45_000_000, 10_000_000),
        (BusyTime::Maximum, 3_000_000, 400_000_000, 15_000_000),
    ] {
        let mut flash = small_chip("W25Q128JV");
        flash.set_busy_time(busy);
        // One byte takes tBP1, 30 us typically.
        flash.send(&[0x06]);
        flash.send(&Chip::at(0x02, 0, &[0]));
        assert_eq!(flash.busy_for(), Some(page * 30 / 700));
        flash.wait();
        for (command, time) in [
            (Chip::at(0x02, 0, &[0; 256]), page),
            (Chip::at(0x20, 0, &[]), sector),
            (vec![0x01, 0x00], register),
        ] {
            flash.send(&[0x06]);
            flash.send(&command);
            assert_eq!(flash.ask(&[0x05], 1), [0x03]);
            flash.advance(time - 1);
            assert_eq!(flash.ask(&[0x05], 2), [0x03, 0x03], "{command:02X?}");
            flash.advance(1);
            assert_eq!(flash.ask(&[0x05], 2), [0x00, 0x00], "{command:02X?}: WEL falls with WIP");
        }
    }
}

#[test]
fn in_fast_mode_the_chip_is_busy_for_so_many_polls() {
    let mut flash = small_chip("W25Q128JV");
    flash.set_busy_time(BusyTime::Polls(3));
    flash.send(&[0x06]);
    flash.send(&Chip::at(0x20, 0, &[]));
    assert_eq!(flash.ask(&[0x05], 5), [3, 3, 3, 0, 0]);
    assert_eq!(flash.counters().busy_polls, 3);
}

#[test]
fn a_command_that_does_not_end_on_a_byte_is_ignored() {
    let mut flash = small_chip("W25Q128JV");
    flash.select();
    for bit in 0..9 {
        flash.clock(0xE | (0x06u8 >> (7 - bit.min(7)) & 1));
    }
    flash.deselect();
    assert_eq!((flash.state(), flash.last_refusal()), (State::Standby, Some(Refusal::Incomplete)));
    flash.send(&[0x06]);
    flash.send(&Chip::at(0x20, 0, &[])[..3]);
    assert_eq!((flash.state(), flash.last_refusal()), (State::WriteEnabled, Some(Refusal::Incomplete)));
}

#[test]
fn a_suspended_erase_lets_other_blocks_be_programmed_and_read() {
    let mut flash = small_chip("W25Q128JV");
    flash.finish(&Chip::at(0x02, 0x1_0000, &[0]));
    flash.send(&[0x06]);
    flash.send(&Chip::at(0xD8, 0x1_0000, &[]));
    flash.advance(50_000_000);
    flash.send(&[0x75]);
    assert_eq!((flash.ask(&[0x05], 1)[0] & 1, flash.state()), (1, State::Erasing), "busy until tSUS");
    flash.advance(20_000);
    assert_eq!((flash.ask(&[0x05], 1)[0] & 1, flash.ask(&[0x35], 1)[0] & 0x80), (0, 0x80));
    flash.finish(&Chip::at(0x02, 0x1_FFFF, &[0]));
    assert_eq!(flash.last_refusal(), Some(Refusal::Suspended));
    flash.send(&[0x06]);
    flash.send(&Chip::at(0x02, 0x2_0000, &[0x42]));
    assert_eq!(flash.state(), State::Programming);
    flash.send(&[0x75]);
    assert_eq!(flash.last_refusal(), Some(Refusal::NotSuspended), "one operation can be suspended");
    flash.wait();
    assert_eq!((flash.read_at(0x2_0000, 1), flash.state()), (vec![0x42], State::EraseSuspended));
    flash.send(&[0x7A]);
    assert_eq!(flash.busy_for(), Some(100_000_000), "the rest of 150 ms");
    flash.wait();
    assert_eq!((flash.read_at(0x1_0000, 1), flash.state()), (vec![0xFF], State::Standby));
    assert_eq!(flash.ask(&[0x35], 1)[0] & 0x80, 0);
}

#[test]
fn a_suspended_program_lets_the_array_be_read() {
    let mut flash = small_chip("W25Q128JV");
    flash.send(&[0x06]);
    flash.send(&Chip::at(0x02, 0, &[0x12; 256]));
    flash.advance(100_000);
    flash.send(&[0x75]);
    assert_eq!(flash.state(), State::Programming);
    flash.advance(20_000);
    assert_eq!((flash.state(), flash.read_at(0x1000, 1)), (State::ProgramSuspended, vec![0xFF]));
    flash.send(&[0x06]);
    flash.send(&Chip::at(0x20, 0x1000, &[]));
    assert_eq!(flash.last_refusal(), Some(Refusal::Suspended));
    flash.send(&[0x7A]);
    flash.wait();
    assert_eq!(flash.read_at(0, 2), [0x12, 0x12]);
}

#[test]
fn a_chip_erase_cannot_be_suspended() {
    let mut flash = small_chip("W25Q128JV");
    flash.send(&[0x06]);
    flash.send(&[0xC7]);
    flash.send(&[0x75]);
    assert_eq!((flash.state(), flash.last_refusal()), (State::Erasing, Some(Refusal::NotSuspended)));
}

#[test]
fn deep_power_down_answers_nothing_but_its_release() {
    let mut flash = small_chip("W25Q128JV");
    flash.send(&[0xB9]);
    assert_eq!(flash.ask(&[0x9F], 3), [0xFF; 3]);
    flash.advance(3_000);
    assert_eq!((flash.state(), flash.ask(&[0x9F], 3)), (State::DeepPowerDown, vec![0xFF; 3]));
    assert_eq!(flash.ask(&[0xAB, 0, 0, 0], 2), [0x17, 0x17]);
    assert_eq!((flash.state(), flash.ask(&[0x9F], 1)), (State::Recovering, vec![0xFF]), "within tRES1");
    flash.advance(3_000);
    assert_eq!(flash.ask(&[0x9F], 3), [0xEF, 0x40, 0x18]);
    flash.send(&[0xB9]);
    flash.advance(3_000);
    flash.send(&[0xAB]);
    flash.advance(3_000);
    assert_eq!(flash.state(), State::Standby, "without reading the ID");
}

#[test]
fn a_software_reset_needs_both_commands_in_order_and_aborts() {
    let mut flash = small_chip("W25Q128JV");
    flash.send(&[0x06]);
    flash.send(&[0x66]);
    flash.send(&[0x05]);
    flash.send(&[0x99]);
    assert_eq!((flash.last_refusal(), flash.state()), (Some(Refusal::OutOfSequence), State::WriteEnabled));
    flash.send(&Chip::at(0x20, 0, &[]));
    flash.send(&[0x66]);
    flash.send(&[0x99]);
    assert_eq!(flash.state(), State::Recovering);
    flash.advance(30_000);
    assert_eq!((flash.state(), flash.ask(&[0x05], 1)), (State::Standby, vec![0]));
}

#[test]
fn identities() {
    let mut flash = small_chip("W25Q128JV");
    assert_eq!(flash.ask(&[0x90, 0, 0, 0], 3), [0xEF, 0x17, 0xEF]);
    assert_eq!(flash.ask(&[0x90, 0, 0, 1], 2), [0x17, 0xEF]);
    assert_eq!(flash.ask(&[0x9F], 6), [0xEF, 0x40, 0x18, 0xEF, 0x40, 0x18]);
    let unique = flash.ask(&[0x4B, 0, 0, 0, 0], 8);
    assert_eq!(unique, small_chip("W25Q128JV").ask(&[0x4B, 0, 0, 0, 0], 8), "the same seed");
    let mut other = Chip::erased(flash.description().clone(), 8);
    assert_ne!(unique, other.ask(&[0x4B, 0, 0, 0, 0], 8));
}

#[test]
fn security_registers_lock_for_ever() {
    let mut flash = small_chip("W25Q128JV");
    flash.finish(&Chip::at(0x42, 0x2010, b"key"));
    assert_eq!(flash.ask(&Chip::at(0x48, 0x2010, &[0]), 4), b"key\xFF");
    assert_eq!(flash.ask(&Chip::at(0x48, 0x20FF, &[0]), 18)[17], b'k', "reads wrap within the register");
    assert_eq!(flash.ask(&Chip::at(0x48, 0x1010, &[0]), 1), [0xFF]);
    flash.finish(&Chip::at(0x44, 0x2000, &[]));
    assert_eq!(flash.ask(&Chip::at(0x48, 0x2010, &[0]), 1), [0xFF]);
    flash.finish(&Chip::at(0x42, 0x2010, b"key"));
    flash.finish(&[0x31, 0x12]); // QE, LB2.
    flash.finish(&Chip::at(0x44, 0x2000, &[]));
    assert_eq!(flash.last_refusal(), Some(Refusal::Protected));
    flash.finish(&[0x31, 0x02]);
    assert_eq!(flash.register("SR2"), Some(0x12), "LB bits are one-time programmable");
    flash.send(&[0x50]);
    flash.send(&[0x31, 0x0A]);
    assert_eq!(flash.register("SR2"), Some(0x12), "and cannot be set in the volatile copy");
    flash.finish(&Chip::at(0x44, 0x1000, &[]));
    assert_eq!(flash.last_refusal(), None, "the others stay open");
}

#[test]
fn the_macronix_security_area_is_mapped_over_the_array() {
    let mut flash = small_chip("MX25L6436E");
    flash.memory_mut()[0] = 0x77;
    flash.send(&[0xB1]);
    flash.finish(&Chip::at(0x02, 0x10, b"otp"));
    assert_eq!((flash.read_at(0x10, 3), flash.read_at(0x210, 3)), (b"otp".to_vec(), b"otp".to_vec()));
    flash.send(&[0xC1]);
    assert_eq!((flash.read_at(0, 1), flash.read_at(0x10, 1)), (vec![0x77], vec![0xFF]));
    flash.finish(&[0x2F]);
    assert_eq!(flash.ask(&[0x2B], 1), [0x02]);
    flash.send(&[0xB1]);
    flash.finish(&Chip::at(0x02, 0x20, b"no"));
    assert_eq!((flash.last_refusal(), flash.register("SCUR")), (Some(Refusal::Protected), Some(0x22)));
}

#[test]
fn the_otp_area_of_the_mt25q_locks_by_its_control_byte() {
    let mut flash = small_chip("MT25QL128ABA");
    flash.finish(&Chip::at(0x42, 0, &[0xA5; 64]));
    assert_eq!(flash.ask(&Chip::at(0x4B, 0, &[0]), 65), [&[0xA5; 64][..], &[0xFF]].concat());
    flash.finish(&Chip::at(0x42, 64, &[0xFE]));
    flash.finish(&Chip::at(0x42, 0, &[0]));
    assert_eq!(
        (flash.last_refusal(), flash.ask(&Chip::at(0x4B, 0, &[0]), 1)),
        (Some(Refusal::Protected), vec![0xA5])
    );
}

#[test]
fn sst_programs_words_with_auto_increment() {
    let mut flash = Chip::erased(chip("SST25VF032B").unwrap().unwrap(), 1);
    assert_eq!(flash.ask(&[0x05], 1), [0x3C], "all blocks are protected at power-up");
    flash.send(&[0x50]);
    flash.send(&[0x01, 0]);
    flash.send(&[0x06]);
    flash.send(&Chip::at(0xAD, 0x100, b"ab"));
    assert_eq!(flash.ask(&[0x05], 1), [0x43], "BUSY, WEL, AAI");
    flash.advance(10_000);
    flash.send(&[0x03, 0, 1, 0]);
    assert_eq!(flash.last_refusal(), Some(Refusal::OutOfSequence));
    flash.send(&[0xAD, b'c', b'd']);
    flash.advance(10_000);
    flash.send(&[0x04]);
    assert_eq!(flash.ask(&[0x05], 1), [0]);
    assert_eq!(flash.read_at(0x100, 5), b"abcd\xFF");
    flash.finish(&Chip::at(0x02, 0x200, &[0x55]));
    assert_eq!(flash.read_at(0x200, 2), [0x55, 0xFF]);
    flash.send(&[0x06]);
    flash.send(&Chip::at(0xAD, 0x3F_FFFE, b"yz"));
    flash.advance(10_000);
    assert_eq!(flash.ask(&[0x05], 1), [0], "the mode ends at the last address");
}

#[test]
fn fram_writes_in_place_and_is_never_busy() {
    let mut flash = Chip::erased(chip("MB85RS2MT").unwrap().unwrap(), 1);
    flash.send(&Chip::at(0x02, 0, b"no"));
    flash.send(&[0x06]);
    flash.send(&Chip::at(0x02, 0x3_FFFE, b"wrap"));
    assert_eq!((flash.busy_for(), flash.ask(&[0x05], 1)), (None, vec![0]));
    assert_eq!(flash.read_at(0x3_FFFE, 4), b"wrap");
    flash.send(&[0x06]);
    flash.send(&Chip::at(0x02, 0x3_FFFE, &[0xFF, 0]));
    assert_eq!(flash.read_at(0x3_FFFE, 2), [0xFF, 0], "a bit goes back to 1");
    flash.send(&[0x06]);
    flash.send(&[0x01, 0x04]);
    flash.send(&[0x06]);
    flash.send(&Chip::at(0x02, 0x3_0000, &[1]));
    assert_eq!((flash.last_refusal(), flash.read_at(0x3_0000, 1)), (Some(Refusal::Protected), vec![0]));
}

#[test]
fn clocks_above_a_commands_limit_are_counted() {
    let mut flash = small_chip("W25Q128JV");
    flash.set_clock(Some(80_000_000), true);
    flash.read_at(0, 1);
    flash.ask(&[0x0B, 0, 0, 0, 0], 6);
    assert_eq!(flash.counters().too_fast, 1, "03h ends at 50 MHz, 0Bh at 133 MHz");
    assert_eq!(flash.now(), 5_000_000 + 500 + 1_100, "the clocks of both pass time");
}
