//! Lines, QPI, continuous read, wrap, 3- and 4-byte addresses, pins.

use crate::common::{Drive, small_chip};
use spinor::{Chip, Pin, Refusal, State, chip};

/// Carries out one transaction with a number of lines per part, and dummy clocks before the data.
fn run(flash: &mut Chip, parts: &[(&[u8], u8)], dummy: u32, read: usize, lines: u8) -> Vec<u8> {
    let mut bytes = vec![0; read];
    flash.select();
    for (part, lines) in parts {
        flash.write(part, *lines);
    }
    for _ in 0..dummy {
        flash.clock(0xF);
    }
    flash.read(&mut bytes, lines);
    flash.deselect();
    bytes
}

fn numbered(name: &str) -> Chip {
    let mut flash = small_chip(name);
    for (n, byte) in flash.memory_mut().iter_mut().enumerate() {
        *byte = (n ^ n >> 8) as u8;
    }
    flash
}

#[test]
fn reads_on_two_and_four_lines() {
    let mut flash = numbered("W25Q128JV");
    let expected = flash.memory()[0x1234..0x1244].to_vec();
    let at: &[u8] = &[0x00, 0x12, 0x34];
    assert_eq!(run(&mut flash, &[(&[0x3B], 1), (at, 1)], 8, 16, 2), expected);
    assert_eq!(run(&mut flash, &[(&[0x6B], 1), (at, 1)], 8, 16, 4), expected);
    assert_eq!(run(&mut flash, &[(&[0xBB], 1), (at, 2), (&[0xFF], 2)], 0, 16, 2), expected);
    assert_eq!(run(&mut flash, &[(&[0xEB], 1), (at, 4), (&[0xFF], 4)], 4, 16, 4), expected);
}

#[test]
fn a_host_on_the_wrong_lines_sees_what_the_wires_show() {
    let mut flash = numbered("W25Q128JV");
    // A dual output read, sampled on one line: IO1 carries the odd bits.
    let on_one = run(&mut flash, &[(&[0x3B, 0, 0x12, 0x34], 1)], 8, 1, 1);
    let pair = [flash.memory()[0x1234], flash.memory()[0x1235]];
    let odd = |byte: u8| (0..4).fold(0, |v, n| v | (byte >> (2 * n + 1) & 1) << n);
    assert_eq!(on_one, [odd(pair[0]) << 4 | odd(pair[1])]);
    // One dummy clock too few shifts the data by one bit.
    let early = run(&mut flash, &[(&[0x0B, 0, 0x12, 0x34], 1)], 7, 2, 1);
    let value = u16::from_be_bytes(pair);
    assert_eq!(
        u16::from_be_bytes([early[0], early[1]]),
        value >> 1 | 0x8000,
        "the undriven line is pulled up"
    );
}

#[test]
fn quad_commands_need_the_quad_enable_bit() {
    let mut flash = numbered("MX25L6436E");
    run(&mut flash, &[(&[0x6B, 0, 0, 0], 1)], 8, 1, 4);
    assert_eq!(flash.last_refusal(), Some(Refusal::NotQuadEnabled));
    flash.finish(&[0x01, 0x40]);
    assert_eq!(run(&mut flash, &[(&[0x6B, 0, 0, 5], 1)], 8, 1, 4), [5]);
    flash.send(&[0x06]);
    flash.memory_mut()[..16].fill(0xFF);
    run(&mut flash, &[(&[0x38], 1), (&[0, 0, 1, 0xAB, 0xCD], 4)], 0, 0, 4);
    flash.wait();
    assert_eq!(flash.read_at(0, 4), [0xFF, 0xAB, 0xCD, 0xFF]);
}

#[test]
fn continuous_read_skips_the_opcode_until_the_mode_bits_end_it() {
    let mut flash = numbered("W25Q128FV");
    flash.finish(&[0x31, 0x02]);
    let first = run(&mut flash, &[(&[0xEB], 1), (&[0, 0x12, 0x34, 0x20], 4)], 4, 2, 4);
    assert_eq!((first, flash.state()), (flash.memory()[0x1234..0x1236].to_vec(), State::ContinuousRead));
    let next = run(&mut flash, &[(&[0, 0x22, 0x22, 0xA0], 4)], 4, 1, 4);
    assert_eq!((next, flash.state()), (vec![flash.memory()[0x2222]], State::ContinuousRead));
    let last = run(&mut flash, &[(&[0, 0x33, 0x33, 0xFF], 4)], 4, 1, 4);
    assert_eq!((last, flash.state()), (vec![flash.memory()[0x3333]], State::Standby));
    // FFh on one line is 32 clocks with IO0 high: an address and a mode byte that ends the mode.
    run(&mut flash, &[(&[0xEB], 1), (&[0, 0, 0, 0x20], 4)], 4, 1, 4);
    assert_ne!(flash.ask(&[0x9F], 1), [0xEF], "no opcodes in the mode");
    assert_eq!(flash.state(), State::Standby);
    assert_eq!(flash.ask(&[0x9F], 1), [0xEF]);
}

#[test]
fn macronix_mode_bits_toggle() {
    let mut flash = numbered("MX25L6436E");
    flash.finish(&[0x01, 0x40]);
    for (mode, state) in
        [(0xA5, State::ContinuousRead), (0x0F, State::ContinuousRead), (0xAA, State::Standby)]
    {
        let opcode: &[u8] = if mode == 0xA5 { &[0xEB] } else { &[] };
        assert_eq!(run(&mut flash, &[(opcode, 1), (&[0, 0, 7, mode], 4)], 4, 1, 4), [7]);
        assert_eq!(flash.state(), state, "{mode:02X}h");
    }
}

#[test]
fn qpi_carries_every_phase_on_four_lines() {
    let mut flash = numbered("W25Q128FV");
    flash.send(&[0x38]);
    assert_eq!((flash.last_refusal(), flash.is_qpi()), (Some(Refusal::NotQuadEnabled), false));
    flash.finish(&[0x31, 0x02]);
    flash.send(&[0x38]);
    assert!(flash.is_qpi());
    assert_eq!(run(&mut flash, &[(&[0x9F], 4)], 0, 3, 4), [0xEF, 0x40, 0x18]);
    assert_eq!(
        run(&mut flash, &[(&[0x0B, 0, 0x12, 0x34], 4)], 2, 2, 4),
        flash.memory()[0x1234..0x1236].to_vec()
    );
    run(&mut flash, &[(&[0xC0, 0x20], 4)], 0, 0, 4);
    assert_eq!(run(&mut flash, &[(&[0x0B, 0, 0x12, 0x34], 4)], 6, 1, 4), [flash.memory()[0x1234]]);
    assert_eq!(run(&mut flash, &[(&[0xEB, 0, 0x12, 0x34, 0xFF], 4)], 4, 1, 4), [flash.memory()[0x1234]]);
    // Burst read with wrap: 8 bytes by default.
    let burst = run(&mut flash, &[(&[0x0C, 0, 0x12, 0x06], 4)], 6, 10, 4);
    let memory = flash.memory()[0x1200..0x1208].to_vec();
    assert_eq!(burst, (6..16).map(|n| memory[n % 8]).collect::<Vec<u8>>());
    run(&mut flash, &[(&[0x06], 4)], 0, 0, 4);
    run(&mut flash, &[(&[0x20, 0, 0, 0], 4)], 0, 0, 4);
    flash.wait();
    run(&mut flash, &[(&[0xFF], 4)], 0, 0, 4);
    assert_eq!((flash.is_qpi(), flash.read_at(0, 1)), (false, vec![0xFF]));
}

#[test]
fn macronix_enters_qpi_without_quad_enable() {
    let mut flash = Chip::erased(chip("MX25L25645G").unwrap().unwrap(), 1);
    flash.memory_mut()[7] = 0x42;
    flash.send(&[0x35]);
    assert!(flash.is_qpi());
    assert_eq!(run(&mut flash, &[(&[0xAF], 4)], 0, 3, 4), [0xC2, 0x20, 0x19]);
    assert_eq!(run(&mut flash, &[(&[0xEB, 0, 0, 7, 0xFF], 4)], 4, 1, 4), [0x42]);
    run(&mut flash, &[(&[0xF5], 4)], 0, 0, 4);
    assert_eq!(flash.read_at(7, 1), [0x42]);
}

#[test]
fn quad_reads_wrap_as_set() {
    let mut flash = numbered("W25Q128JV");
    run(&mut flash, &[(&[0x77], 1), (&[0, 0, 0, 0x20], 4)], 0, 0, 4);
    assert_eq!(flash.last_refusal(), None);
    let wrapped = run(&mut flash, &[(&[0xEB], 1), (&[0, 0x10, 0x0E, 0xFF], 4)], 4, 4, 4);
    let memory = flash.memory();
    assert_eq!(wrapped, [memory[0x100E], memory[0x100F], memory[0x1000], memory[0x1001]]);
    run(&mut flash, &[(&[0x77], 1), (&[0, 0, 0, 0x10], 4)], 0, 0, 4);
    let plain = run(&mut flash, &[(&[0xEB], 1), (&[0, 0x10, 0x0E, 0xFF], 4)], 4, 4, 4);
    assert_eq!(plain, flash.memory()[0x100E..0x1012].to_vec());
}

#[test]
fn three_and_four_byte_addresses_of_the_mx25l25645g() {
    let mut flash = Chip::erased(chip("MX25L25645G").unwrap().unwrap(), 1);
    flash.memory_mut()[0x10] = 1;
    flash.memory_mut()[0x100_0010] = 2;
    assert_eq!(flash.ask(&[0x03, 0, 0, 0x10], 1), [1]);
    flash.finish(&[0xC5, 1]);
    assert_eq!(
        (flash.ask(&[0xC8], 1), flash.ask(&[0x03, 0, 0, 0x10], 1)),
        (vec![1], vec![2]),
        "extended address"
    );
    assert_eq!(flash.ask(&[0x13, 0, 0, 0, 0x10], 1), [1], "4-byte opcodes need no mode");
    flash.send(&[0xB7]);
    assert!(flash.is_four_byte() && flash.register("CR").unwrap() & 0x20 != 0);
    assert_eq!(flash.ask(&[0x03, 1, 0, 0, 0x10], 1), [2]);
    assert_eq!(flash.ask(&[0x03, 0, 0, 0, 0x10], 1), [1]);
    flash.finish(&[0x20, 1, 0, 0, 0]);
    assert_eq!(flash.ask(&[0x03, 1, 0, 0, 0x10], 1), [0xFF]);
    flash.send(&[0xE9]);
    assert_eq!(flash.ask(&[0x03, 0, 0, 0x10], 1), [0xFF], "the extended address register applies again");
    flash.send(&[0x66]);
    flash.send(&[0x99]);
    flash.advance(1_000_000);
    assert_eq!(flash.ask(&[0x03, 0, 0, 0x10], 1), [1]);
}

#[test]
fn the_s25fl128l_can_power_up_with_four_byte_addresses() {
    let mut flash = numbered("S25FL128L");
    flash.finish(&[0x01, 0, 0, 0x62, 0x78]);
    assert_eq!(flash.last_refusal(), None);
    flash.power_off();
    flash.power_on();
    flash.advance(1_000_000);
    assert!(flash.is_four_byte());
    assert_eq!(flash.ask(&[0x03, 0, 0, 0, 9], 1), [9]);
}

#[test]
fn hold_pauses_the_bus() {
    let mut flash = numbered("W25Q128FV");
    flash.select();
    flash.write(&[0x03, 0, 0], 1);
    flash.set_pin(Pin::HoldReset, false);
    assert_eq!(flash.transfer(0xAA, 1), 0xFF);
    flash.set_pin(Pin::HoldReset, true);
    flash.write(&[0x05], 1);
    let mut read = [0];
    flash.read(&mut read, 1);
    flash.deselect();
    assert_eq!(read, [5]);
}

#[test]
fn the_reset_pin_aborts_and_has_no_function_with_quad_enable() {
    let mut flash = numbered("W25Q128FV");
    flash.finish(&[0x11, 0xE0]);
    flash.send(&[0x06]);
    flash.set_pin(Pin::HoldReset, false);
    assert_eq!(flash.state(), State::Recovering);
    flash.advance(1_000_000);
    assert_eq!(flash.ask(&[0x9F], 1), [0xFF], "held in reset");
    flash.set_pin(Pin::HoldReset, true);
    assert_eq!(flash.ask(&[0x05], 1), [0]);
    flash.finish(&[0x31, 0x02]);
    flash.send(&[0x06]);
    flash.set_pin(Pin::HoldReset, false);
    assert_eq!(flash.state(), State::WriteEnabled);
}

#[test]
fn registers_select_dummy_clocks() {
    let mut flash = numbered("MT25QL128ABA");
    assert_eq!(run(&mut flash, &[(&[0xEB], 1), (&[0, 0, 9], 4)], 10, 1, 4), [9]);
    flash.finish(&[0x81, 0x4B]);
    assert_eq!(run(&mut flash, &[(&[0xEB], 1), (&[0, 0, 9], 4)], 4, 1, 4), [9]);
    let mut flash = numbered("S25FL128L");
    assert_eq!(run(&mut flash, &[(&[0x0B, 0, 0, 9], 1)], 8, 1, 1), [9]);
    flash.finish(&[0x01, 0, 0, 0x60, 0x73]);
    assert_eq!(run(&mut flash, &[(&[0x0B, 0, 0, 9], 1)], 3, 1, 1), [9]);
    let mut flash = Chip::erased(chip("MX25L25645G").unwrap().unwrap(), 1);
    flash.memory_mut()[9] = 9;
    flash.finish(&[0x01, 0x40, 0x87]);
    assert_eq!(run(&mut flash, &[(&[0xEB], 1), (&[0, 0, 9, 0xFF], 4)], 6, 1, 4), [9]);
}

/// 65h and 71h of S25FL-L: each register has one address for the value in force and one for the non-volatile
/// value. A write of the non-volatile one changes both, and takes the time of a register write.
#[test]
fn any_register_is_read_and_written_at_its_addresses() {
    let mut flash = numbered("S25FL128L");
    assert_eq!(flash.ask(&[0x65, 0x80, 0, 3, 0], 2), [0x60, 0x60]);
    assert_eq!(flash.ask(&[0x65, 0, 0, 4, 0], 1), [0x78]);
    assert_eq!(flash.ask(&[0x65, 0x80, 0, 9, 0], 1), [0xFF], "no register");
    // The value in force only: at once, and lost by a power cycle.
    flash.send(&[0x71, 0x80, 0, 2, 0x02]);
    assert_eq!(flash.ask(&[0x35], 1), [0x00], "not write-enabled");
    flash.send(&[0x06]);
    flash.send(&[0x71, 0x80, 0, 2, 0x02]);
    assert_eq!(flash.busy_for(), None);
    assert_eq!(flash.ask(&[0x65, 0x80, 0, 2, 0], 1), [0x02]);
    assert_eq!(flash.ask(&[0x65, 0, 0, 2, 0], 1), [0x00]);
    assert_eq!(flash.ask(&[0x05], 1), [0x00], "WEL is cleared");
    // The non-volatile address: both values, after the time of a register write, during which 65h reads the
    // status.
    flash.send(&[0x06]);
    flash.send(&[0x71, 0, 0, 4, 0x73]);
    assert!(flash.busy_for().is_some());
    assert_eq!(flash.ask(&[0x65, 0x80, 0, 0, 0], 1)[0] & 1, 1, "WIP");
    flash.wait();
    // CR3 selects three dummy clocks for 65h as for reads.
    assert_eq!(run(&mut flash, &[(&[0x65, 0, 0, 4], 1)], 3, 1, 1), [0x73]);
    flash.power_off();
    flash.power_on();
    flash.advance(1_000_000_000);
    assert_eq!(run(&mut flash, &[(&[0x65, 0x80, 0, 4], 1)], 3, 1, 1), [0x73]);
    assert_eq!(run(&mut flash, &[(&[0x65, 0x80, 0, 2], 1)], 3, 1, 1), [0x00]);
}

/// 65h, 71h and 5Ah of S25FL-L take an address of the length that the address mode sets.
#[test]
fn registers_and_sfdp_are_addressed_in_four_bytes_too() {
    let mut flash = numbered("S25FL128L");
    assert_eq!(flash.ask(&[0x5A, 0, 0, 0, 0], 4), b"SFDP");
    flash.send(&[0xB7]);
    assert_eq!(flash.ask(&[0x5A, 0, 0, 0, 0, 0], 4), b"SFDP");
    flash.send(&[0x06]);
    flash.send(&[0x71, 0, 0x80, 0, 2, 0x02]);
    assert_eq!(flash.ask(&[0x65, 0, 0x80, 0, 2, 0], 1), [0x02]);
}

/// Dummy clocks of 5Ah and 48h of S25FL-L are those that CR3 selects, and its four security regions follow
/// one another, in QPI as in SPI.
#[test]
fn sfdp_and_security_regions_of_the_s25fl128l() {
    let mut flash = numbered("S25FL128L");
    flash.send(&[0x06]);
    flash.finish(&[0x42, 0, 0x01, 0x05, 7]);
    assert_eq!(flash.ask(&[0x48, 0, 0x01, 0x05, 0], 1), [7], "the second region");
    assert_eq!(flash.ask(&[0x48, 0, 0, 0x05, 0], 1), [0xFF], "the first one");
    flash.finish(&[0x01, 0, 0, 0x60, 0x73]);
    assert_eq!(run(&mut flash, &[(&[0x5A, 0, 0, 0], 1)], 3, 4, 1), b"SFDP");
    assert_eq!(run(&mut flash, &[(&[0x48, 0, 0x01, 0x05], 1)], 3, 1, 1), [7]);
    flash.send(&[0x38]);
    assert_eq!(run(&mut flash, &[(&[0x48, 0, 0x01, 0x05], 4)], 3, 1, 4), [7]);
    assert_eq!(run(&mut flash, &[(&[0x5A, 0, 0, 0], 4)], 3, 4, 4), b"SFDP");
}

/// Micron's answer to 9Fh is 20 bytes, and flashrom uses the commands with 4-byte addresses.
#[test]
fn microns_extended_id_and_its_4_byte_commands() {
    let mut flash = Chip::erased(chip("MT25QL128ABA").unwrap().unwrap(), 1);
    let id = flash.ask(&[0x9F], 20);
    assert_eq!(id[..6], [0x20, 0xBA, 0x18, 0x10, 0x44, 0x00]);
    assert_eq!(id[3] as usize, id.len() - 4, "the number of bytes that follow");
    flash.send(&[0x06]);
    flash.finish(&[0x12, 0, 0x01, 0x20, 0x05, 7, 8]);
    assert_eq!(flash.ask(&[0x13, 0, 0x01, 0x20, 0x05], 3), [7, 8, 0xFF]);
    assert_eq!(flash.ask(&[0x0C, 0, 0x01, 0x20, 0x05, 0], 2), [7, 8]);
    flash.send(&[0x06]);
    flash.finish(&[0xDC, 0, 0x01, 0x20, 0x05]);
    assert_eq!(flash.ask(&[0x13, 0, 0x01, 0x20, 0x05], 2), [0xFF, 0xFF]);
}
