//! Serial Flash Discoverable Parameters: read, derived from a description, and turned into a generic chip
//! file.
//!
//! Source: JEDEC JESD216B, section 6.4 "JEDEC Basic Flash Parameter Table", words 1 to 16. Words are numbered
//! from 1 as there.

use crate::action::Action;
use crate::description::{AddressWidth, Command, Description, Meaning, Protocol};
use std::fmt::Write as _;

/// Contents of a basic flash parameter table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameters {
    /// Size of the array in bytes.
    pub size: u64,
    /// Page size in bytes.
    pub page: u32,
    /// Erase types: size in bytes, opcode, typical time in nanoseconds.
    pub erases: Vec<(u32, u8, u64)>,
    /// Read commands.
    pub reads: Vec<FastRead>,
    /// Number of words in the table.
    pub words: usize,
    raw: Vec<u32>,
}

/// A read command of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FastRead {
    /// Opcode.
    pub opcode: u8,
    /// Lines of opcode, address and data.
    pub lines: [u8; 3],
    /// Clocks of the mode phase.
    pub mode_clocks: u8,
    /// Dummy clocks after the mode phase.
    pub dummy: u8,
}

/// Units of the typical erase times in word 10, in nanoseconds.
const ERASE_UNITS: [u64; 4] = [1_000_000, 16_000_000, 128_000_000, 1_000_000_000];
/// Units of the chip erase time in word 11, in nanoseconds.
const CHIP_ERASE_UNITS: [u64; 4] = [16_000_000, 256_000_000, 4_000_000_000, 64_000_000_000];
/// Units of suspend latency and power-down delay in words 12 and 14, in nanoseconds.
const DELAY_UNITS: [u64; 4] = [128, 1_000, 8_000, 64_000];

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

/// Reads the headers and the basic flash parameter table of an SFDP area.
///
/// # Errors
/// The problem of the area, for any bytes.
pub fn parse(bytes: &[u8]) -> Result<Parameters, String> {
    if bytes.get(..4) != Some(b"SFDP") {
        return Err("sfdp: no signature; expected 53 46 44 50 at address 0".to_owned());
    }
    let headers = usize::from(bytes.get(6).copied().unwrap_or(0)) + 1;
    // The last table of this ID is the newest revision that the chip has.
    let header = (0..headers)
        .filter_map(|n| bytes.get(8 + 8 * n..16 + 8 * n))
        .rfind(|header| header[0] == 0x00 && header[7] == 0xFF)
        .ok_or("sfdp: no basic flash parameter table; expected a header with ID FF00h")?;
    let words = usize::from(header[3]);
    let at = usize::from(header[4]) | usize::from(header[5]) << 8 | usize::from(header[6]) << 16;
    let raw: Vec<u32> = (0..words).map_while(|n| word(bytes, at + 4 * n)).collect();
    if words < 9 || raw.len() < words {
        return Err(format!(
            "sfdp: table of {} of {words} words at {at:#x}; expected at least 9, all of them",
            raw.len()
        ));
    }
    let density = raw[1];
    let size = match density >> 31 {
        0 => (u64::from(density) + 1) / 8,
        _ if density & 0x7FFF_FFFF < 63 => (1u64 << (density & 0x7FFF_FFFF)) / 8,
        _ => return Err(format!("sfdp: density out of range: 2^{}", density & 0x7FFF_FFFF)),
    };
    let half = |index: usize, high: bool, lines| {
        let value = if high { raw[index] >> 16 } else { raw[index] };
        FastRead {
            opcode: (value >> 8) as u8,
            lines,
            mode_clocks: (value >> 5 & 7) as u8,
            dummy: (value & 31) as u8,
        }
    };
    let mut reads = Vec::new();
    for (bit, read) in [
        (16, half(3, false, [1, 1, 2])),
        (20, half(3, true, [1, 2, 2])),
        (22, half(2, true, [1, 1, 4])),
        (21, half(2, false, [1, 4, 4])),
    ] {
        if raw[0] >> bit & 1 == 1 {
            reads.push(read);
        }
    }
    let mut erases = Vec::new();
    for n in 0..4 {
        let value = raw[7 + n / 2] >> (16 * (n % 2));
        let (exponent, opcode) = (value & 0xFF, (value >> 8) as u8);
        if (4..31).contains(&exponent) {
            let typical = raw.get(9).map_or(0, |times| {
                let value = times >> (4 + 7 * n);
                u64::from((value & 31) + 1) * ERASE_UNITS[(value >> 5 & 3) as usize]
            });
            erases.push((1 << exponent, opcode, typical));
        }
    }
    let page = raw.get(10).map_or(256, |value| 1 << (value >> 4 & 15));
    Ok(Parameters { size, page, erases, reads, words, raw })
}

/// Returns the largest count and its unit for a time, as the tables encode it: (count + 1) · unit.
fn encode(time: u64, units: &[u64], bits: u32) -> u32 {
    let limit = 1u64 << bits;
    for (index, unit) in units.iter().enumerate() {
        let count = time.div_ceil(*unit).max(1);
        if count <= limit {
            return (count as u32 - 1) | (index as u32) << bits;
        }
    }
    (limit as u32 - 1) | (units.len() as u32 - 1) << bits
}

/// Returns the multiplier from typical to maximum: maximum = 2 · (n + 1) · typical.
fn multiplier(typical: u64, maximum: u64) -> u32 {
    (maximum.div_ceil(2 * typical.max(1)).clamp(1, 16) - 1) as u32
}

/// Returns an SFDP area of revision 1.6 with the values of a description.
pub(crate) fn derive(chip: &Description) -> Vec<u8> {
    let spi = |lines: [u8; 3]| {
        chip.commands.iter().find(|c| {
            c.action == Action::Read
                && c.protocol != Protocol::Qpi
                && c.lines == lines
                && c.address != AddressWidth::Bytes(4)
                && (c.dummy > 0 || c.mode)
        })
    };
    let half = |command: Option<&Command>| {
        command.map_or(0, |c| {
            let mode = if c.mode { 8 / u32::from(c.lines[1]) } else { 0 };
            u32::from(c.opcode) << 8 | mode << 5 | u32::from(c.dummy) & 31
        })
    };
    let find = |action: Action| chip.commands.iter().find(|c| c.action == action);
    let opcode = |action: Action| find(action).map_or(0xFF, |c| u32::from(c.opcode));
    let erase = |size: u32| {
        chip.commands
            .iter()
            .find(|c| c.action == Action::Erase && c.size == size && c.address != AddressWidth::Bytes(4))
    };
    let mut words = [0u32; 16];
    let small = erase(4096);
    words[0] = 0xFF80_00E4 | if small.is_some() { 1 } else { 3 };
    words[0] |= small.map_or(0xFF, |c| u32::from(c.opcode)) << 8;
    for (bit, lines) in [(16, [1, 1, 2]), (20, [1, 2, 2]), (21, [1, 4, 4]), (22, [1, 1, 4])] {
        words[0] |= u32::from(spi(lines).is_some()) << bit;
    }
    if find(Action::EnterFourByte).is_some() {
        words[0] |= 1 << 17;
    }
    words[1] = (u64::from(chip.size) * 8 - 1) as u32;
    words[2] = half(spi([1, 4, 4])) | half(spi([1, 1, 4])) << 16;
    words[3] = half(spi([1, 1, 2])) | half(spi([1, 2, 2])) << 16;
    let qpi = find(Action::EnterQpi).is_some();
    words[4] = 0xFFFF_FFEE | u32::from(qpi) << 4;
    words[5] = 0x0000_FFFF;
    words[6] = if qpi { half(spi([1, 4, 4])) << 16 | 0xFFFF } else { 0x0000_FFFF };
    let mut sizes: Vec<(u32, &Command)> =
        chip.times.erases.iter().filter_map(|(size, _)| Some((*size, erase(*size)?))).collect();
    sizes.sort_by_key(|(size, _)| *size);
    for (n, (size, command)) in sizes.iter().take(4).enumerate() {
        let time = chip.erase_time(*size);
        words[7 + n / 2] |= (size.trailing_zeros() | u32::from(command.opcode) << 8) << (16 * (n % 2));
        words[9] |= encode(time.typical, &ERASE_UNITS, 5) << (4 + 7 * n);
        words[9] = words[9] & !15 | (words[9] & 15).max(multiplier(time.typical, time.maximum));
    }
    let program = chip.times.page_program;
    words[10] = multiplier(program.typical, program.maximum) | chip.page.trailing_zeros().min(15) << 4;
    words[10] |= encode(program.typical, &[8_000, 64_000], 5) << 8;
    let (first, next) = chip.times.byte_program.unwrap_or((program.typical, program.typical));
    words[10] |= encode(first, &[1_000, 8_000], 4) << 14 | encode(next, &[1_000, 8_000], 4) << 19;
    words[10] |= encode(chip.times.chip_erase.typical, &CHIP_ERASE_UNITS, 5) << 24;
    if find(Action::Suspend).is_some() {
        let latency = encode(chip.times.suspend, &DELAY_UNITS, 5);
        words[11] = latency << 13 | latency << 24;
        let (suspend, resume) = (opcode(Action::Suspend), opcode(Action::Resume));
        words[12] = resume | suspend << 8 | resume << 16 | suspend << 24;
    } else {
        words[11] = 1 << 31;
        words[12] = u32::MAX;
    }
    words[13] = match find(Action::DeepPowerDown) {
        Some(enter) => {
            let delay = encode(chip.times.release, &DELAY_UNITS, 5);
            0xF4 | delay << 8 | opcode(Action::ReleasePowerDown) << 15 | u32::from(enter.opcode) << 23
        }
        None => 0x8000_00F4,
    };
    // Quad enable requirement: 000b no bit, 010b bit 6 of register 1, 101b bit 1 of register 2.
    let quad_enable = match chip.bit(Meaning::Qe) {
        Some((_, 6)) => 0b010,
        Some(_) => 0b101,
        None => 0,
    };
    words[14] = 0xFF00_0000 | quad_enable << 20;
    let resets = find(Action::Reset).is_some();
    words[15] = 0x80 | u32::from(resets) << 12;
    let four_byte = find(Action::EnterFourByte).is_some();
    words[15] |= u32::from(four_byte) << 24 | u32::from(four_byte) << 14;
    let mut bytes = b"SFDP\x06\x01\x00\xFF\x00\x06\x01\x10\x30\x00\x00\xFF".to_vec();
    bytes.resize(0x30, 0xFF);
    bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    bytes
}

/// Returns the text of a chip file for a generic chip with this SFDP area and JEDEC ID.
///
/// Values that the tables lack are common ones: status register 05h/01h with WIP and WEL, page program 02h,
/// chip erase C7h/60h, register write 10 ms, endurance 100000.
///
/// # Errors
/// The problem of the area.
pub fn generic_chip(name: &str, jedec_id: &[u8], sfdp: &[u8]) -> Result<String, String> {
    let table = parse(sfdp)?;
    let raw = |n: usize| table.raw.get(n).copied();
    let hex: String = sfdp.chunks(16).fold(String::new(), |mut text, row| {
        for byte in row {
            let _ = write!(text, "{byte:02x} ");
        }
        text.push('\n');
        text
    });
    let max = |typical: u64, factor: u32| typical * 2 * (u64::from(factor) + 1);
    let mut text = format!(
        "# Made from an SFDP dump.\nname = \"{name}\"\nmaker = \"generic\"\ndatasheet = \"SFDP\"\nsize = {}\npage = {}\njedec_id = {jedec_id:?}\nendurance = 100000\ncontinuous = \"bits-5-4\"\nsfdp = \"\"\"\n{hex}\"\"\"\n\n",
        table.size, table.page
    );
    let times = raw(10).unwrap_or(0);
    let (program, chip) = if raw(10).is_some() {
        let program = u64::from((times >> 8 & 31) + 1) * if times >> 13 & 1 == 1 { 64_000 } else { 8_000 };
        (program, u64::from((times >> 24 & 31) + 1) * CHIP_ERASE_UNITS[(times >> 29 & 3) as usize])
    } else {
        (700_000, 40_000_000_000)
    };
    let erase_factor = raw(9).unwrap_or(4) & 15;
    let _ = write!(
        text,
        "[time]\npage_program = [\"{program} ns\", \"{} ns\"]\nwrite_register = [\"10 ms\", \"15 ms\"]\nchip_erase = [\"{chip} ns\", \"{} ns\"]\nsuspend = \"20 us\"\nrelease = \"30 us\"\nreset = \"30 us\"\nerase = [\n",
        max(program, times & 15),
        max(chip, erase_factor)
    );
    let mut known = Vec::new();
    for (size, _, typical) in &table.erases {
        if !known.contains(size) {
            known.push(*size);
            let typical = if *typical == 0 { 100_000_000 } else { *typical };
            let _ = writeln!(
                text,
                "    {{ size = {size}, time = [\"{typical} ns\", \"{} ns\"] }},",
                max(typical, erase_factor)
            );
        }
    }
    text.push_str("]\n\n[[register]]\nname = \"SR1\"\n");
    // Quad enable requirement of word 15: 010b is bit 6 of the status register, 000b none; the others are bit
    // 1 of register 2.
    let requirement = raw(14).map_or(0, |value| value >> 20 & 7);
    let six = if requirement == 0b010 { "QE" } else { "PLAIN" };
    let _ = writeln!(
        text,
        "bits = [\"WIP\", \"WEL\", \"BP0\", \"BP1\", \"BP2\", \"PLAIN\", \"{six}\", \"SRP\"]\nwritable = 0xFC\n"
    );
    let second = matches!(requirement, 1 | 4 | 5 | 6);
    if second {
        text.push_str("[[register]]\nname = \"SR2\"\nbits = [\"-\", \"QE\", \"-\", \"-\", \"-\", \"-\", \"-\", \"SUS\"]\nwritable = 0x02\n\n");
    }
    let _ = write!(text, "[protection]\nunit = {}\n\ncommand = [\n", (table.size / 64).max(256));
    // `command` is a key of the root table; TOML wants those before the first table.
    let at = text.find("[time]").unwrap_or(0);
    let mut commands = String::from("command = [\n");
    text.truncate(text.len() - "command = [\n".len());
    let mut used = Vec::new();
    let mut add = |opcode: u8, name: &str, rest: &str| {
        if !used.contains(&opcode) {
            used.push(opcode);
            let _ = writeln!(commands, "    {{ opcode = {opcode:#04X}, name = \"{name}\", {rest} }},");
        }
    };
    let address = if table.size > 1 << 24 { "mode" } else { "3" };
    add(0x06, "Write Enable", "action = \"write-enable\"");
    add(0x04, "Write Disable", "action = \"write-disable\"");
    add(0x05, "Read Status Register", "action = \"read-registers\", registers = [\"SR1\"]");
    let written = if second { "[\"SR1\", \"SR2\"]" } else { "[\"SR1\"]" };
    add(0x01, "Write Status Register", &format!("action = \"write-registers\", registers = {written}"));
    if second {
        add(0x35, "Read Status Register 2", "action = \"read-registers\", registers = [\"SR2\"]");
    }
    add(0x9F, "Read JEDEC ID", "action = \"read-jedec-id\"");
    add(0x5A, "Read SFDP", "action = \"read-sfdp\", address = \"3\", dummy = 8");
    add(0x03, "Read", &format!("action = \"read\", address = \"{address}\""));
    add(0x0B, "Fast Read", &format!("action = \"read\", address = \"{address}\", dummy = 8"));
    for read in &table.reads {
        let [a, b, c] = read.lines;
        // The mode phase is one byte where its clocks make one; else they are dummy clocks.
        let mode = read.mode_clocks > 0 && read.mode_clocks * b == 8;
        let dummy = if mode { read.dummy } else { read.dummy + read.mode_clocks };
        let rest = format!(
            "action = \"read\", address = \"{address}\", lines = \"{a}-{b}-{c}\", mode = {mode}, dummy = {dummy}"
        );
        add(read.opcode, &format!("Fast Read {a}-{b}-{c}"), &rest);
    }
    add(0x02, "Page Program", &format!("action = \"program\", address = \"{address}\""));
    for (size, opcode, _) in &table.erases {
        add(
            *opcode,
            &format!("Erase {size}"),
            &format!("action = \"erase\", address = \"{address}\", size = {size}"),
        );
    }
    add(0xC7, "Chip Erase", "action = \"chip-erase\"");
    add(0x60, "Chip Erase", "action = \"chip-erase\"");
    if let (Some(limits), Some(opcodes)) = (raw(11), raw(12))
        && limits >> 31 == 0
    {
        add((opcodes >> 24) as u8, "Suspend", "action = \"suspend\"");
        add((opcodes >> 16) as u8, "Resume", "action = \"resume\"");
    }
    if let Some(power) = raw(13)
        && power >> 31 == 0
    {
        add((power >> 23) as u8, "Deep Power-down", "action = \"deep-power-down\"");
        add((power >> 15) as u8, "Release Power-down", "action = \"release-power-down\", dummy = 24");
    }
    if raw(15).is_some_and(|value| value >> 12 & 1 == 1) {
        add(0x66, "Reset Enable", "action = \"reset-enable\"");
        add(0x99, "Reset", "action = \"reset\"");
    }
    if address == "mode" {
        add(0xB7, "Enter 4-Byte Address Mode", "action = \"enter-4-byte\"");
        add(0xE9, "Exit 4-Byte Address Mode", "action = \"exit-4-byte\"");
    }
    commands.push_str("]\n\n");
    text.insert_str(at, &commands);
    Ok(text)
}
