//! Every opcode in every state, against a table of permitted results.

use crate::common::{Drive, small, small_chip};
use spinor::{CHIPS, Chip, Refusal, State};

/// States of the columns below, each with the write enable latch set where that is possible.
const STATES: [&str; 9] = [
    "standby",
    "write-enabled",
    "busy",
    "program-suspended",
    "erase-suspended",
    "dpd",
    "off",
    "powering up",
    "recovering",
];

fn chip_in(state: &str) -> Chip {
    let mut chip = small_chip("W25Q128JV");
    enter(&mut chip, state);
    chip
}

fn enter(chip: &mut Chip, state: &str) {
    match state {
        "write-enabled" => chip.send(&[0x06]),
        "busy" => {
            chip.send(&[0x06]);
            chip.send(&Chip::at(0x20, 0x30000, &[]));
        }
        "program-suspended" | "erase-suspended" => {
            chip.send(&[0x06]);
            chip.send(&if state == "erase-suspended" {
                Chip::at(0x20, 0x30000, &[])
            } else {
                Chip::at(0x02, 0x30000, &[0; 256])
            });
            chip.send(&[0x75]);
            chip.advance(20_000);
            chip.send(&[0x06]);
        }
        "dpd" => {
            chip.send(&[0xB9]);
            chip.advance(3_000);
        }
        "off" => chip.power_off(),
        "powering up" => {
            chip.power_off();
            chip.power_on();
        }
        "recovering" => {
            chip.send(&[0x66]);
            chip.send(&[0x99]);
        }
        _ => {}
    }
}

/// Letters: a accepted, w not write-enabled, b busy, s suspended, n nothing to suspend or resume, d deep
/// power-down, o out of sequence, u unknown opcode, - no power. From the W25Q128JV datasheet, sections 8.1
/// and 8.2.
const TABLE: &[(&[u8], &str)] = &[
    (
        &[0x06, 0x50, 0x04, 0x90, 0x9F, 0x4B, 0x03, 0x0B, 0x3B, 0xBB, 0x6B, 0xEB, 0x77, 0x5A, 0x48, 0x3D],
        "aabaad--b",
    ),
    (&[0xAB], "aabaaa--b"),
    (&[0x02, 0x32], "wabsad--b"),
    (&[0x20, 0x52, 0xD8, 0xC7, 0x60, 0x44, 0x42, 0x01, 0x31, 0x11], "wabssd--b"),
    (&[0x36, 0x39, 0x7E, 0x98], "wabaad--b"),
    (&[0x05, 0x35, 0x15, 0x66], "aaaaad--b"),
    (&[0x75], "nnannd--b"),
    (&[0x7A], "nnbaad--b"),
    (&[0xB9], "aabssd--b"),
    (&[0x99], "oooood--b"),
];

fn letter(refusal: Option<Refusal>) -> char {
    match refusal {
        None => 'a',
        Some(Refusal::NotWriteEnabled) => 'w',
        Some(Refusal::Busy) => 'b',
        Some(Refusal::Suspended) => 's',
        Some(Refusal::NotSuspended) => 'n',
        Some(Refusal::DeepPowerDown) => 'd',
        Some(Refusal::OutOfSequence) => 'o',
        Some(Refusal::UnknownOpcode) => 'u',
        Some(Refusal::NoPower) => '-',
        Some(_) => '?',
    }
}

/// Bytes after the opcode that complete the transaction.
fn rest(opcode: u8) -> &'static [u8] {
    match opcode {
        // 77h: six dummy clocks, and two on four lines for the data byte.
        0x01 | 0x11 | 0x31 | 0x77 => &[0],
        0x20 | 0x52 | 0xD8 | 0x36 | 0x39 => &[0, 0, 0],
        0x44 => &[0, 0x10, 0],
        0x42 => &[0, 0x10, 0, 0],
        0x02 | 0x32 => &[0, 0, 0, 0],
        0x06 | 0x50 | 0x04 | 0xC7 | 0x60 | 0x7E | 0x98 | 0x66 | 0x99 | 0x75 | 0x7A | 0xB9 => &[],
        _ => &[0, 0, 0, 0, 0, 0, 0, 0],
    }
}

#[test]
fn each_opcode_in_each_state_does_what_the_table_says() {
    for opcode in 0..=255u8 {
        let row = TABLE.iter().find(|(opcodes, _)| opcodes.contains(&opcode)).map(|(_, row)| *row);
        for (column, state) in STATES.iter().enumerate() {
            let mut chip = chip_in(state);
            let before = (chip.memory().to_vec(), chip.state(), chip.counters().operations);
            let mut bytes = vec![opcode];
            bytes.extend(rest(opcode));
            chip.send(&bytes);
            let shown = letter(chip.last_refusal());
            let expected = match row {
                Some(row) => row.as_bytes()[column] as char,
                None if matches!(*state, "off" | "powering up") => '-',
                None => 'u',
            };
            assert_eq!(shown, expected, "opcode {opcode:02X}h in state {state}");
            if shown != 'a' {
                let after = (chip.memory().to_vec(), chip.state(), chip.counters().operations);
                assert!(before == after, "refused opcode {opcode:02X}h changed the chip in state {state}");
            }
        }
    }
}

/// Sends a transaction on four lines.
fn send_on_four(chip: &mut Chip, bytes: &[u8]) {
    chip.select();
    chip.write(bytes, 4);
    chip.deselect();
}

/// States of the columns below: standby, write-enabled, busy, erase-suspended, deep power-down.
const QPI_STATES: [&str; 5] = ["standby", "write-enabled", "busy", "erase-suspended", "dpd"];

/// Opcodes in QPI, as above. From the W25Q128FV datasheet, "Instruction Set Table 3 (QPI Instructions)".
const QPI_TABLE: &[(&[u8], &str)] = &[
    (&[0x06, 0x50, 0x04, 0x90, 0x9F, 0x0B, 0x0C, 0xEB, 0xC0, 0x3D], "aabad"),
    (&[0xAB], "aabaa"),
    (&[0x02], "wabad"),
    (&[0x20, 0x52, 0xD8, 0xC7, 0x60, 0x01, 0x31, 0x11], "wabsd"),
    (&[0x36, 0x39, 0x7E, 0x98], "wabad"),
    (&[0x05, 0x35, 0x15, 0x66], "aaaad"),
    (&[0x75], "nnand"),
    (&[0x7A], "nnbad"),
    (&[0xB9, 0xFF], "aabsd"),
    (&[0x99], "ooood"),
];

#[test]
fn each_opcode_in_qpi_does_what_the_table_says() {
    for opcode in 0..=255u8 {
        let row = QPI_TABLE.iter().find(|(opcodes, _)| opcodes.contains(&opcode)).map(|(_, row)| *row);
        for (column, state) in QPI_STATES.iter().enumerate() {
            let mut chip = small_chip("W25Q128FV");
            chip.finish(&[0x31, 0x02]);
            chip.send(&[0x38]);
            let begin: &[&[u8]] = match *state {
                "write-enabled" => &[&[0x06]],
                "busy" => &[&[0x06], &[0x20, 3, 0, 0]],
                "erase-suspended" => &[&[0x06], &[0x20, 3, 0, 0], &[0x75]],
                "dpd" => &[&[0xB9]],
                _ => &[],
            };
            begin.iter().for_each(|bytes| send_on_four(&mut chip, bytes));
            if *state != "busy" {
                chip.advance(20_000);
            }
            if *state == "erase-suspended" {
                send_on_four(&mut chip, &[0x06]);
            }
            assert!(chip.is_qpi(), "{state}");
            let before = (chip.memory().to_vec(), chip.state(), chip.counters().operations);
            let rest: &[u8] = match opcode {
                0xC0 => &[0],
                0xFF => &[],
                // Two bytes of four lines are four clocks; ABh has six dummy clocks, EBh a mode byte.
                0xAB => &[0, 0, 0, 0],
                _ => rest(opcode),
            };
            send_on_four(&mut chip, &[&[opcode], rest].concat());
            let shown = letter(chip.last_refusal());
            let expected = row.map_or('u', |row| row.as_bytes()[column] as char);
            assert_eq!(shown, expected, "opcode {opcode:02X}h in QPI, {state}");
            if shown != 'a' {
                let after = (chip.memory().to_vec(), chip.state(), chip.counters().operations);
                assert!(before == after && chip.is_qpi(), "refused {opcode:02X}h changed the chip: {state}");
            }
        }
    }
}

#[test]
fn no_byte_is_an_opcode_in_continuous_read() {
    for byte in 0..=255u8 {
        let mut chip = small_chip("W25Q128FV");
        chip.finish(&[0x31, 0x02]);
        chip.select();
        chip.write(&[0xEB], 1);
        chip.write(&[0, 0, 0, 0x20, 0, 0, 0], 4);
        chip.deselect();
        assert_eq!(chip.state(), State::ContinuousRead);
        let operations = chip.counters().operations;
        let before = chip.memory().to_vec();
        chip.send(&[byte]);
        // Eight clocks are an address and a mode byte. IO1 to IO3 are pulled up: the mode byte has bit 5 set,
        // and bit 4 is the second last bit on IO0.
        let state = if byte & 2 == 0 { State::ContinuousRead } else { State::Standby };
        assert_eq!(chip.state(), state, "{byte:02X}h");
        assert!(!chip.is_qpi() && chip.counters().operations == operations, "{byte:02X}h");
        assert!(chip.memory() == &before[..], "{byte:02X}h");
    }
}

#[test]
fn no_chip_changes_by_an_unknown_opcode() {
    for (name, _) in CHIPS {
        let description = small(name);
        let mut chip = Chip::erased(description.clone(), 1);
        let before = chip.memory().to_vec();
        for opcode in (0..=255u8).filter(|opcode| description.command(*opcode, false).is_none()) {
            chip.send(&[0x06]);
            chip.send(&[opcode, 0, 0, 0, 0]);
            assert_eq!(chip.last_refusal(), Some(Refusal::UnknownOpcode), "{name} {opcode:02X}h");
            assert!(matches!(chip.state(), State::WriteEnabled), "{name} {opcode:02X}h: {:?}", chip.state());
        }
        assert!(chip.memory() == &before[..], "{name}");
    }
}
