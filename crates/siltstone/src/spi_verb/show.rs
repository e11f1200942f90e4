//! `siltstone spi list` and `siltstone spi show`: chips as tables, JSON, TOML and a drawing.

use super::{ChipText, drawing};
use crate::failure::Failure;
use crate::output::{print, print_json, print_line};
use serde_json::{Value, json};
use spinor::{AddressWidth, CHIPS, Command, Description, Protocol, Span};
use std::fmt::Write;
use std::path::Path;

/// Lists the chips.
///
/// # Errors
/// An invalid chip file; errors of printing.
pub fn list(as_json: bool) -> Result<(), Failure> {
    let mut chips = Vec::new();
    for (name, text) in CHIPS {
        let chip = ChipText { file: format!("{name}.toml"), text: (*text).to_owned() };
        chips.push(chip.description()?);
    }
    if as_json {
        let entry = |chip: &Description| {
            json!({ "name": chip.name, "maker": chip.maker, "bytes": chip.size, "jedec_id": hex(&chip.jedec_id),
                "datasheet": chip.datasheet, "sfdp": chip.sfdp_source })
        };
        return print_json(&chips.iter().map(|chip| entry(chip)).collect());
    }
    let mut text = String::new();
    for chip in &chips {
        let size = chip.size >> 10;
        let id = hex(&chip.jedec_id[..chip.jedec_id.len().min(4)]);
        let (name, maker, datasheet, sfdp) = (&chip.name, &chip.maker, &chip.datasheet, &chip.sfdp_source);
        let _ = writeln!(text, "{name:14} {maker:10} {size:6} KiB  {id:14} {datasheet}; SFDP: {sfdp}");
    }
    text.push_str(
        "\nsiltstone spi show CHIP explains one of them. A further chip is a file: --chip ./my.toml.\n",
    );
    print(&text)
}

/// Creates the chip file of a generic chip from an SFDP dump.
///
/// # Errors
/// An unreadable file, or one that isn't an SFDP area.
pub fn generic(path: &Path, name: &str) -> Result<ChipText, Failure> {
    let wrong =
        |error: &dyn std::fmt::Display| Failure::Usage(format!("SFDP dump {}: {error}", path.display()));
    let bytes = std::fs::read(path).map_err(|error| wrong(&error))?;
    // The area lacks the JEDEC ID.
    let text = spinor::sfdp::generic_chip(name, &[0xFF; 3], &bytes).map_err(|error| wrong(&error))?;
    Ok(ChipText { file: format!("{name}.toml"), text })
}

/// Shows a chip.
///
/// # Errors
/// An invalid chip file; errors of writing.
pub fn show(text: &ChipText, svg: Option<&Path>, as_toml: bool, as_json: bool) -> Result<(), Failure> {
    let chip = text.description()?;
    if let Some(path) = svg {
        std::fs::write(path, drawing::svg(&chip))
            .map_err(|error| Failure::World(format!("writing {}: {error}", path.display())))?;
        return print_line(&path.display().to_string());
    }
    if as_toml {
        return print(&text.text);
    }
    if as_json {
        return print_json(&to_json(&chip));
    }
    print(&page(&chip))
}

fn hex(bytes: &[u8]) -> String {
    spinor::hex::text(bytes, " ").to_uppercase()
}

fn time(nanoseconds: u64) -> String {
    match nanoseconds as f64 {
        t if t >= 1e9 => format!("{} s", t / 1e9),
        t if t >= 1e6 => format!("{} ms", t / 1e6),
        t if t >= 1e3 => format!("{} us", t / 1e3),
        t => format!("{t} ns"),
    }
}

fn span(span: Span) -> String {
    format!("{} typical, {} maximum", time(span.typical), time(span.maximum))
}

fn phases(chip: &Description, command: &Command) -> String {
    let [opcode, address, data] = command.lines;
    let mut text = format!("{opcode}");
    match command.address {
        AddressWidth::None => {}
        AddressWidth::Bytes(bytes) => {
            let _ = write!(text, ", address {bytes} bytes on {address}");
        }
        AddressWidth::Mode => {
            let _ = write!(text, ", address 3 or 4 bytes on {address}");
        }
    }
    if command.mode {
        text.push_str(", mode");
    }
    if command.dummy > 0 {
        let _ = write!(text, ", {} dummy", command.dummy);
    }
    if command.action.reads() || command.action.takes_data() {
        let _ = write!(text, ", data on {data}");
    }
    let registers: Vec<&str> =
        command.registers.iter().map(|n| chip.registers[usize::from(*n)].name.as_str()).collect();
    if !registers.is_empty() {
        let _ = write!(text, " ({})", registers.join(", "));
    }
    text
}

fn page(chip: &Description) -> String {
    let mut text =
        format!("{} {}, {}\nSFDP: {}\n\n", chip.maker, chip.name, chip.datasheet, chip.sfdp_source);
    let times = &chip.times;
    let mut line = |key: &str, value: String| {
        let _ = writeln!(text, "  {key:18} {value}");
    };
    line("size", format!("{} bytes, pages of {}", chip.size, chip.page));
    line("JEDEC ID", hex(&chip.jedec_id));
    line("endurance", format!("{} erases", chip.endurance));
    line("page program", span(times.page_program));
    for (size, time) in &times.erases {
        line(&format!("erase {} KiB", size >> 10), span(*time));
    }
    line("chip erase", span(times.chip_erase));
    line("register write", span(times.write_register));
    line(
        "supply",
        format!("{} mV, writes inhibited below {} mV", chip.supply.minimum, chip.supply.write_inhibit),
    );
    if let Some(security) = &chip.security {
        line("security", format!("{} registers of {} bytes", security.registers, security.size));
    }
    if let Some(locks) = &chip.locks {
        line("block locks", format!("{} KiB, {} KiB at the edges", locks.block >> 10, locks.edge >> 10));
    }
    text.push_str("\nRegisters, bit 7 first:\n");
    for register in &chip.registers {
        let bits: Vec<&str> = register.bits.iter().rev().map(String::as_str).collect();
        let _ = writeln!(text, "  {:8} {}", register.name, bits.join(" "));
    }
    text.push_str("\nCommands (opcode, lines, phases):\n");
    for command in &chip.commands {
        let protocol = match command.protocol {
            Protocol::Spi => "",
            Protocol::Qpi => " [QPI]",
            Protocol::Both => " [SPI and QPI]",
        };
        let _ = writeln!(
            text,
            "  {:02X}h {:44} {}{protocol}",
            command.opcode,
            command.name,
            phases(chip, command)
        );
    }
    text
}

fn to_json(chip: &Description) -> Value {
    let span = |span: Span| json!({ "typical_ns": span.typical, "maximum_ns": span.maximum });
    let commands = chip.commands.iter().map(|command| {
        json!({ "opcode": command.opcode, "name": command.name, "action": command.action.name(),
            "phases": phases(chip, command) })
    });
    json!({
        "name": chip.name,
        "maker": chip.maker,
        "datasheet": chip.datasheet,
        "sfdp": chip.sfdp_source,
        "bytes": chip.size,
        "page": chip.page,
        "sector": chip.sector(),
        "jedec_id": hex(&chip.jedec_id),
        "endurance": chip.endurance,
        "page_program": span(chip.times.page_program),
        "chip_erase": span(chip.times.chip_erase),
        "erases": chip.times.erases.iter().map(|(size, time)| json!({ "bytes": size, "time": span(*time) })).collect::<Vec<_>>(),
        "registers": chip.registers.iter().map(|r| json!({ "name": r.name, "bits": r.bits })).collect::<Vec<_>>(),
        "commands": commands.collect::<Vec<_>>(),
    })
}
