//! The format of a chip file, and its checks.

use super::units::{duration, place};
use super::*;
use crate::action::CONDITIONS;
use serde::Deserialize;
use std::ops::Range;
use toml::Spanned;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: Spanned<String>,
    maker: String,
    datasheet: String,
    size: Spanned<u32>,
    page: Spanned<u32>,
    jedec_id: Spanned<Vec<u8>>,
    #[serde(default)]
    legacy_id: Vec<u8>,
    unique_id: Option<Spanned<u32>>,
    sfdp: Option<Spanned<String>>,
    /// Name of the chip from whose dump the area is derived.
    sfdp_of: Option<String>,
    #[serde(default)]
    writes_in_place: bool,
    #[serde(default)]
    four_byte_at_power_up: bool,
    hold_pin: Option<Spanned<String>>,
    continuous: Option<Spanned<String>>,
    endurance: u64,
    time: Time,
    supply: Option<SupplyTable>,
    #[serde(default)]
    register: Vec<RegisterTable>,
    protection: Option<ProtectionTable>,
    locks: Option<LocksTable>,
    security: Option<SecurityTable>,
    command: Spanned<Vec<CommandTable>>,
}

type Text = Spanned<String>;
type Pair = Spanned<Vec<Text>>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Time {
    page_program: Option<Pair>,
    byte_program: Option<Pair>,
    write_register: Option<Pair>,
    #[serde(default)]
    erase: Vec<EraseTable>,
    chip_erase: Option<Pair>,
    suspend: Option<Text>,
    deep_power_down: Option<Text>,
    release: Option<Text>,
    reset: Option<Text>,
    power_up_read: Option<Text>,
    power_up_write: Option<Text>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EraseTable {
    size: Spanned<u32>,
    time: Pair,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SupplyTable {
    minimum_mv: u32,
    write_inhibit_mv: Spanned<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RegisterTable {
    name: Spanned<String>,
    bits: Spanned<Vec<Text>>,
    #[serde(default)]
    writable: u8,
    non_volatile: Option<Spanned<u8>>,
    one_time: Option<Spanned<u8>>,
    #[serde(default)]
    factory: u8,
    address: Option<Spanned<u32>>,
    kept_address: Option<Spanned<u32>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProtectionTable {
    #[serde(default)]
    unit: u32,
    #[serde(default)]
    sector_unit: u32,
    sector_limit: Option<Spanned<u32>>,
    #[serde(default)]
    lock_for_ever: bool,
    #[serde(default)]
    refusal_clears_wel: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LocksTable {
    block: Spanned<u32>,
    edge: Option<Spanned<u32>>,
    #[serde(default)]
    locked_at_power_up: bool,
    #[serde(default)]
    by_wps: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SecurityTable {
    registers: Spanned<u32>,
    size: Spanned<u32>,
    #[serde(default)]
    first: u32,
    #[serde(default)]
    step: u32,
    #[serde(default)]
    control_byte: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CommandTable {
    opcode: Spanned<u8>,
    name: String,
    action: Text,
    protocol: Option<Text>,
    address: Option<Text>,
    lines: Option<Text>,
    #[serde(default)]
    mode: bool,
    #[serde(default)]
    dummy: u8,
    qpi_dummy: Option<Spanned<u8>>,
    latency: Option<LatencyTable>,
    max_mhz: Option<Spanned<f64>>,
    write_enable: Option<bool>,
    quad_enable: Option<bool>,
    #[serde(default)]
    wraps: bool,
    accepted: Option<Vec<Text>>,
    size: Option<Spanned<u32>>,
    registers: Option<Spanned<Vec<Text>>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LatencyTable {
    register: Text,
    shift: u8,
    clocks: Spanned<Vec<u8>>,
}

/// Position in the text and description of a problem.
type Fault = (Range<usize>, String);

/// Reads a chip file.
pub(super) fn parse(file: &str, text: &str) -> Result<Description, DescriptionError> {
    let error = |span: Range<usize>, message: String| {
        let (line, column) = place(text, span.start);
        DescriptionError { file: file.to_owned(), line, column, message }
    };
    let raw: File = toml::from_str(text)
        .map_err(|e| error(e.span().unwrap_or(0..0), e.message().trim().replace('\n', "; ")))?;
    check(raw).map_err(|(span, message)| error(span, message))
}

fn check(raw: File) -> Result<Description, Fault> {
    let (name, size, unique_id) = check_identity(&raw)?;
    let times = check_times(&name, size, raw.time)?;
    let registers = check_registers(raw.register)?;
    let protection = check_protection(&name, size, raw.protection, &registers)?;
    let locks = raw.locks.map(|locks| check_locks(&name, size, locks)).transpose()?;
    let security = raw.security.map(|security| check_security(&name, security)).transpose()?;
    let whole = raw.command.span();
    let has_wps = registers.iter().any(|register| register.meanings.contains(&Meaning::Wps));
    if locks.as_ref().is_some_and(|locks| locks.by_wps) && !has_wps {
        let message = format!("chip \"{name}\": by_wps without a bit WPS; expected a register with it");
        return Err((whole, message));
    }
    let supply = raw.supply.map_or(Ok(Supply { minimum: 2700, write_inhibit: 1000 }), check_supply)?;
    let continuous = raw.continuous.map_or(Ok(Continuous::None), check_continuous)?;
    let hold_pin = raw.hold_pin.map_or(Ok(HoldPin::Hold), check_hold_pin)?;
    let mut commands = Commands::default();
    for table in raw.command.into_inner() {
        let span = table.opcode.span();
        let command = check_command(table, &times, &registers, security.is_some(), locks.is_some())?;
        commands.add(command, raw.writes_in_place).map_err(|message| (span, message))?;
    }
    if commands.list.is_empty() {
        return Err((whole, format!("chip \"{name}\": no commands; expected at least one")));
    }
    let mut description = Description {
        name,
        maker: raw.maker,
        datasheet: raw.datasheet,
        size,
        page: raw.page.into_inner(),
        jedec_id: raw.jedec_id.into_inner(),
        legacy_id: raw.legacy_id,
        unique_id,
        sfdp: Vec::new(),
        sfdp_source: match (&raw.sfdp, &raw.sfdp_of) {
            (None, _) => "none".to_owned(),
            (Some(text), _) if text.get_ref() == "derived" => "derived".to_owned(),
            (Some(_), Some(other)) => format!("dump of {other}, adapted"),
            (Some(_), None) => "dump".to_owned(),
        },
        writes_in_place: raw.writes_in_place,
        four_byte_at_power_up: raw.four_byte_at_power_up,
        hold_pin,
        continuous,
        endurance: raw.endurance.max(1),
        times,
        supply,
        registers,
        protection,
        locks,
        security,
        commands: commands.list,
        by_opcode: commands.by_opcode,
    };
    if let Some(text) = raw.sfdp {
        description.sfdp = check_sfdp(&description, text)?;
    }
    Ok(description)
}

/// Checks a chip's name, sizes and IDs. Returns its name, its size and the length of its unique ID.
fn check_identity(raw: &File) -> Result<(String, u32, u32), Fault> {
    let name = raw.name.get_ref().clone();
    if name.is_empty() || name.chars().any(char::is_whitespace) {
        return Err((raw.name.span(), format!("chip \"{name}\": bad name; expected one word")));
    }
    let size = *raw.size.get_ref();
    if !size.is_power_of_two() || !(256..=1 << 30).contains(&size) {
        let message = format!(
            "chip \"{name}\": size out of range: {size}; expected a power of two from 256 to 1073741824 bytes"
        );
        return Err((raw.size.span(), message));
    }
    let page = *raw.page.get_ref();
    if !page.is_power_of_two() || page > size || (page > MAX_PAGE && !raw.writes_in_place) {
        let message = format!(
            "chip \"{name}\": page out of range: {page}; expected a power of two up to {MAX_PAGE} and the chip's size"
        );
        return Err((raw.page.span(), message));
    }
    if !(1..=32).contains(&raw.jedec_id.get_ref().len()) {
        let message =
            format!("chip \"{name}\": JEDEC ID of {} bytes; expected 1 to 32", raw.jedec_id.get_ref().len());
        return Err((raw.jedec_id.span(), message));
    }
    let unique_id = raw.unique_id.as_ref().map_or(0, |length| *length.get_ref());
    match &raw.unique_id {
        Some(length) if unique_id > 64 => {
            let message = format!("chip \"{name}\": unique ID of {unique_id} bytes; expected at most 64");
            Err((length.span(), message))
        }
        _ => Ok((name, size, unique_id)),
    }
}

fn check_supply(table: SupplyTable) -> Result<Supply, Fault> {
    let (inhibit, minimum) = (*table.write_inhibit_mv.get_ref(), table.minimum_mv);
    if inhibit > minimum {
        let message = format!(
            "supply: write inhibit voltage out of range: {inhibit} mV; expected at most minimum_mv, {minimum} mV"
        );
        return Err((table.write_inhibit_mv.span(), message));
    }
    Ok(Supply { minimum, write_inhibit: inhibit })
}

fn check_continuous(text: Text) -> Result<Continuous, Fault> {
    match text.get_ref().as_str() {
        "bits-5-4" => Ok(Continuous::Bits54),
        "toggle" => Ok(Continuous::Toggle),
        "nibble-a" => Ok(Continuous::NibbleA),
        other => Err((
            text.span(),
            format!("continuous: unknown rule: \"{other}\"; expected bits-5-4, toggle or nibble-a"),
        )),
    }
}

fn check_hold_pin(text: Text) -> Result<HoldPin, Fault> {
    match text.get_ref().as_str() {
        "hold" => Ok(HoldPin::Hold),
        "reset" => Ok(HoldPin::Reset),
        other => {
            Err((text.span(), format!("hold_pin: unknown function: \"{other}\"; expected hold or reset")))
        }
    }
}

/// Commands of a chip, each opcode at most once for each protocol.
struct Commands {
    list: Vec<Command>,
    by_opcode: Box<[[u16; 256]; 2]>,
}

impl Default for Commands {
    fn default() -> Self {
        Commands { list: Vec::new(), by_opcode: Box::new([[u16::MAX; 256]; 2]) }
    }
}

impl Commands {
    fn add(&mut self, command: Command, writes_in_place: bool) -> Result<(), String> {
        if writes_in_place && matches!(command.action, Action::Program | Action::AaiProgram) {
            return Err(format!(
                "command \"{}\": {} in a chip that writes in place; expected write-memory",
                command.name,
                command.action.name()
            ));
        }
        let protocols: &[usize] = match command.protocol {
            Protocol::Spi => &[0],
            Protocol::Qpi => &[1],
            Protocol::Both => &[0, 1],
        };
        for &protocol in protocols {
            let slot = &mut self.by_opcode[protocol][usize::from(command.opcode)];
            if *slot != u16::MAX {
                return Err(format!(
                    "command \"{}\": opcode {:02X}h is taken by \"{}\"; expected each opcode once per protocol",
                    command.name,
                    command.opcode,
                    self.list.get(usize::from(*slot)).map_or("", |other| &other.name)
                ));
            }
            *slot = self.list.len() as u16;
        }
        self.list.push(command);
        Ok(())
    }
}

fn check_sfdp(description: &Description, text: Text) -> Result<Vec<u8>, Fault> {
    if text.get_ref() == "derived" {
        return Ok(crate::sfdp::derive(description));
    }
    let Some(bytes) = crate::hex::bytes(text.get_ref()) else {
        return Err((
            text.span(),
            "sfdp: not hexadecimal; expected pairs of digits, or \"derived\"".to_owned(),
        ));
    };
    let parsed = crate::sfdp::parse(&bytes).map_err(|message| (text.span(), message))?;
    if parsed.size != u64::from(description.size) {
        let message = format!(
            "sfdp: its density is {} bytes; expected the chip's size, {}",
            parsed.size, description.size
        );
        return Err((text.span(), message));
    }
    Ok(bytes)
}

fn one_time_span(text: &Text, key: &str) -> Result<u64, Fault> {
    duration(text.get_ref()).ok_or_else(|| {
        let message = format!(
            "time \"{key}\": bad duration: \"{}\"; expected a number and ns, us, ms or s",
            text.get_ref()
        );
        (text.span(), message)
    })
}

/// Returns two durations in the order of the file.
fn two(value: Option<&Pair>, key: &str) -> Result<Option<(u64, u64)>, Fault> {
    let Some(value) = value else { return Ok(None) };
    let [first, second] = value.get_ref().as_slice() else {
        let message = format!("time \"{key}\": {} values; expected two", value.get_ref().len());
        return Err((value.span(), message));
    };
    Ok(Some((one_time_span(first, key)?, one_time_span(second, key)?)))
}

/// Returns a typical and a maximum duration; zeros where the file has none.
fn pair(value: Option<&Pair>, key: &str) -> Result<Span, Fault> {
    let Some((typical, maximum)) = two(value, key)? else { return Ok(Span::default()) };
    if typical > maximum {
        let message = format!(
            "time \"{key}\": typical exceeds maximum: {typical} ns; expected at most {maximum} ns, the second value"
        );
        return Err((value.map_or(0..0, Spanned::span), message));
    }
    Ok(Span { typical, maximum })
}

fn check_times(name: &str, size: u32, raw: Time) -> Result<Times, Fault> {
    let single = |value: &Option<Text>, key| value.as_ref().map_or(Ok(0), |text| one_time_span(text, key));
    let mut erases: Vec<(u32, Span)> = Vec::new();
    for erase in &raw.erase {
        let bytes = *erase.size.get_ref();
        if !bytes.is_power_of_two()
            || bytes > size
            || bytes < 16
            || erases.iter().any(|(known, _)| *known == bytes)
        {
            let message = format!(
                "erase of chip \"{name}\": size out of range: {bytes}; expected a power of two from 16 to {size}, each once"
            );
            return Err((erase.size.span(), message));
        }
        erases.push((bytes, pair(Some(&erase.time), "erase")?));
    }
    Ok(Times {
        page_program: pair(raw.page_program.as_ref(), "page_program")?,
        byte_program: two(raw.byte_program.as_ref(), "byte_program")?,
        write_register: pair(raw.write_register.as_ref(), "write_register")?,
        erases,
        chip_erase: pair(raw.chip_erase.as_ref(), "chip_erase")?,
        suspend: single(&raw.suspend, "suspend")?,
        deep_power_down: single(&raw.deep_power_down, "deep_power_down")?,
        release: single(&raw.release, "release")?,
        reset: single(&raw.reset, "reset")?,
        power_up_read: single(&raw.power_up_read, "power_up_read")?,
        power_up_write: single(&raw.power_up_write, "power_up_write")?,
    })
}

fn meaning(bit: &str) -> Option<Meaning> {
    let numbered = |prefix: &str| bit.strip_prefix(prefix)?.parse::<u8>().ok();
    Some(match bit {
        "-" | "DRV0" | "DRV1" | "ODS0" | "ODS1" | "ODS2" | "DC0" | "DC1" | "LC0" | "LC1" | "PLAIN" => {
            Meaning::Plain
        }
        "WIP" | "BUSY" => Meaning::Wip,
        "READY" => Meaning::Ready,
        "WEL" => Meaning::Wel,
        "TB" => Meaning::Tb,
        "SEC" => Meaning::Sec,
        "CMP" => Meaning::Cmp,
        "SRP" | "SRP0" | "SRWD" | "BPL" | "WPEN" => Meaning::Srp,
        "SRL" | "SRP1" => Meaning::Srl,
        "QE" => Meaning::Qe,
        "SUS" => Meaning::Suspended,
        "PSUS" => Meaning::ProgramSuspended,
        "ESUS" => Meaning::EraseSuspended,
        "WPS" => Meaning::Wps,
        "ADS" => Meaning::Ads,
        "ADP" => Meaning::Adp,
        "HOLD_RST" => Meaning::HoldReset,
        "P_FAIL" => Meaning::ProgramFail,
        "E_FAIL" => Meaning::EraseFail,
        "PROT_FAIL" => Meaning::ProtectFail,
        "AAI" => Meaning::Aai,
        "QPI" => Meaning::Qpi,
        "LDSO" => Meaning::OtpLocked,
        _ => match (numbered("BP"), numbered("LB"), numbered("A")) {
            (Some(n), ..) if n < 5 => Meaning::Bp(n),
            (_, Some(n), _) if n < 8 => Meaning::SecurityLock(n),
            (.., Some(n)) if (24..32).contains(&n) => Meaning::ExtendedAddress(n - 24),
            _ => return None,
        },
    })
}

fn check_registers(tables: Vec<RegisterTable>) -> Result<Vec<Register>, Fault> {
    let mut registers: Vec<Register> = Vec::new();
    for table in tables {
        let name = table.name.get_ref().clone();
        if registers.iter().any(|r| r.name == name) || registers.len() == 16 {
            let message = format!("register \"{name}\": defined twice, or more than 16 registers; remove it");
            return Err((table.name.span(), message));
        }
        if table.bits.get_ref().len() != 8 {
            let message = format!(
                "register \"{name}\": {} bits; expected the names of 8, bit 0 first, \"-\" for reserved",
                table.bits.get_ref().len()
            );
            return Err((table.bits.span(), message));
        }
        let mut meanings = [Meaning::Plain; 8];
        for (slot, bit) in meanings.iter_mut().zip(table.bits.get_ref()) {
            let Some(known) = meaning(bit.get_ref()) else {
                let message = format!(
                    "register \"{name}\": unknown bit: \"{}\"; expected a name of the interpreter's, PLAIN for one without effect",
                    bit.get_ref()
                );
                return Err((bit.span(), message));
            };
            let twice = known != Meaning::Plain
                && registers.iter().any(|r| r.meanings.contains(&known))
                && !matches!(known, Meaning::Wip | Meaning::Wel | Meaning::ProgramFail | Meaning::EraseFail);
            if twice {
                let message = format!(
                    "register \"{name}\": bit \"{}\" is in another register; remove one",
                    bit.get_ref()
                );
                return Err((bit.span(), message));
            }
            *slot = known;
        }
        let subset = |value: Option<Spanned<u8>>, key: &str, default: u8| match value {
            Some(v) if *v.get_ref() & !table.writable != 0 => {
                let message = format!(
                    "register \"{name}\": {key} has bits that are not writable: {:#04X}; expected a subset of {:#04X}",
                    v.get_ref(),
                    table.writable
                );
                Err((v.span(), message))
            }
            Some(v) => Ok(v.into_inner()),
            None => Ok(default),
        };
        for address in [&table.address, &table.kept_address].into_iter().flatten() {
            let taken = |r: &Register| [r.address, r.kept_address].contains(&Some(*address.get_ref()));
            if registers.iter().any(taken) {
                let message = format!(
                    "register \"{name}\": address {:#X} is another register's; expected one of its own",
                    address.get_ref()
                );
                return Err((address.span(), message));
            }
        }
        let non_volatile = subset(table.non_volatile, "non_volatile", table.writable)?;
        let one_time = subset(table.one_time, "one_time", 0)?;
        registers.push(Register {
            name,
            bits: table.bits.into_inner().into_iter().map(Spanned::into_inner).collect(),
            meanings,
            writable: table.writable,
            non_volatile,
            one_time,
            factory: table.factory,
            address: table.address.map(Spanned::into_inner),
            kept_address: table.kept_address.map(Spanned::into_inner),
        });
    }
    Ok(registers)
}

fn check_protection(
    name: &str,
    size: u32,
    table: Option<ProtectionTable>,
    registers: &[Register],
) -> Result<Protection, Fault> {
    let bits =
        (0..5).filter(|n| registers.iter().any(|r| r.meanings.contains(&Meaning::Bp(*n)))).count() as u8;
    let Some(table) = table else { return Ok(Protection { bits, unit: size, ..Protection::default() }) };
    let sector_limit = match table.sector_limit {
        Some(limit) if *limit.get_ref() > size => {
            let message = format!(
                "protection of chip \"{name}\": sector_limit out of range: {}; expected at most the chip's size, {size}",
                limit.get_ref()
            );
            return Err((limit.span(), message));
        }
        Some(limit) => limit.into_inner(),
        None => 0,
    };
    Ok(Protection {
        bits,
        unit: if table.unit == 0 { size } else { table.unit },
        sector_unit: table.sector_unit,
        sector_limit,
        lock_for_ever: table.lock_for_ever,
        refusal_clears_wel: table.refusal_clears_wel,
    })
}

fn check_locks(name: &str, size: u32, table: LocksTable) -> Result<Locks, Fault> {
    let block = *table.block.get_ref();
    if !block.is_power_of_two() || block > size || block < 256 {
        let message = format!(
            "locks of chip \"{name}\": block out of range: {block}; expected a power of two up to {size}"
        );
        return Err((table.block.span(), message));
    }
    let edge = match table.edge {
        Some(edge)
            if !edge.get_ref().is_power_of_two() || *edge.get_ref() > block || *edge.get_ref() < 256 =>
        {
            let message = format!(
                "locks of chip \"{name}\": edge out of range: {}; expected a power of two from 256 to {block}",
                edge.get_ref()
            );
            return Err((edge.span(), message));
        }
        Some(edge) => edge.into_inner(),
        None => block,
    };
    Ok(Locks { block, edge, locked_at_power_up: table.locked_at_power_up, by_wps: table.by_wps })
}

fn check_security(name: &str, table: SecurityTable) -> Result<Security, Fault> {
    let (registers, size) = (*table.registers.get_ref(), *table.size.get_ref());
    if !(1..=8).contains(&registers) {
        let message = format!("security of chip \"{name}\": {registers} registers; expected 1 to 8");
        return Err((table.registers.span(), message));
    }
    if !(1..=65536).contains(&size) {
        let message =
            format!("security of chip \"{name}\": size out of range: {size}; expected 1 to 65536 bytes");
        return Err((table.size.span(), message));
    }
    Ok(Security {
        registers,
        size,
        first: table.first,
        step: table.step.max(size),
        control_byte: table.control_byte,
    })
}

/// Widths of addresses in a file.
const ADDRESSES: [(&str, AddressWidth); 4] = [
    ("\"2\"", AddressWidth::Bytes(2)),
    ("\"3\"", AddressWidth::Bytes(3)),
    ("\"4\"", AddressWidth::Bytes(4)),
    ("\"mode\"", AddressWidth::Mode),
];
/// Lines of the opcode, the address and the data in a file.
const LINES: [(&str, [u8; 3]); 5] = [
    ("1-1-1", [1, 1, 1]),
    ("1-1-2", [1, 1, 2]),
    ("1-2-2", [1, 2, 2]),
    ("1-1-4", [1, 1, 4]),
    ("1-4-4", [1, 4, 4]),
];
const PROTOCOLS: [(&str, Protocol); 3] =
    [("spi", Protocol::Spi), ("qpi", Protocol::Qpi), ("both", Protocol::Both)];

/// Value of a word of a command among the known ones; `usual` for a command without the word. `wrong` begins
/// the message for other words.
fn chosen<T: Copy>(
    name: &str,
    wrong: &str,
    text: Option<&Text>,
    usual: T,
    known: &[(&str, T)],
) -> Result<T, Fault> {
    let Some(text) = text else { return Ok(usual) };
    let word = text.get_ref();
    if let Some((_, value)) = known.iter().find(|(known, _)| known.trim_matches('"') == word) {
        return Ok(*value);
    }
    let words: Vec<&str> = known.iter().map(|(known, _)| *known).collect();
    let expected = match words.split_last() {
        Some((last, before)) => format!("{} or {last}", before.join(", ")),
        None => String::new(),
    };
    Err((text.span(), format!("command \"{name}\": {wrong}: \"{word}\"; expected {expected}")))
}

fn check_command(
    table: CommandTable,
    times: &Times,
    registers: &[Register],
    security: bool,
    locks: bool,
) -> Result<Command, Fault> {
    use Action::*;
    let name = table.name;
    let Some(action) = Action::from_name(table.action.get_ref()) else {
        let message = format!(
            "command \"{name}\": unknown action: \"{}\"; expected one of {}",
            table.action.get_ref(),
            Action::names()
        );
        return Err((table.action.span(), message));
    };
    let missing = match action {
        ReadSecurity | ProgramSecurity | EraseSecurity | EnterOtp | ExitOtp if !security => "[security]",
        LockBlock | UnlockBlock | ReadBlockLock | WriteBlockLock | LockAll | UnlockAll if !locks => "[locks]",
        Erase if table.size.is_none() => "size",
        ReadRegisters | WriteRegisters if table.registers.is_none() => "registers",
        action if action.needs_address() && table.address.is_none() => "address",
        _ => "",
    };
    if !missing.is_empty() {
        let message = format!("command \"{name}\": {} without {missing}; add it", action.name());
        return Err((table.action.span(), message));
    }
    let address = chosen(&name, "bad address", table.address.as_ref(), AddressWidth::None, &ADDRESSES)?;
    let lines = chosen(&name, "bad lines", table.lines.as_ref(), [1, 1, 1], &LINES)?;
    let protocol = chosen(&name, "unknown protocol", table.protocol.as_ref(), Protocol::Spi, &PROTOCOLS)?;
    let max_clock = match &table.max_mhz {
        Some(mhz) if !(0.001..=1000.0).contains(mhz.get_ref()) => {
            let message = format!(
                "command \"{name}\": clock out of range: {} MHz; expected 0.001 to 1000",
                mhz.get_ref()
            );
            return Err((mhz.span(), message));
        }
        Some(mhz) => (mhz.get_ref() * 1e6) as u32,
        None => 0,
    };
    let size = match &table.size {
        Some(size) if action == Erase && !times.erases.iter().any(|(known, _)| known == size.get_ref()) => {
            let message = format!(
                "command \"{name}\": erase size without a time: {}; add it to time.erase",
                size.get_ref()
            );
            return Err((size.span(), message));
        }
        Some(size) => *size.get_ref(),
        None => 0,
    };
    let find = |register: &Text| {
        registers.iter().position(|r| &r.name == register.get_ref()).map(|index| index as u8).ok_or_else(
            || {
                let message = format!(
                    "command \"{name}\": unknown register: \"{}\"; expected one of this file",
                    register.get_ref()
                );
                (register.span(), message)
            },
        )
    };
    let indexes: Vec<u8> =
        table.registers.map_or(Vec::new(), Spanned::into_inner).iter().map(find).collect::<Result<_, _>>()?;
    let latency = match table.latency {
        Some(table) => Some(check_latency(&name, find(&table.register)?, table)?),
        None => None,
    };
    let conditions = match table.accepted {
        Some(names) => check_conditions(&name, &names)?,
        None => action.conditions(),
    };
    Ok(Command {
        opcode: table.opcode.into_inner(),
        name,
        action,
        protocol,
        address,
        lines,
        mode: table.mode,
        dummy: table.dummy,
        qpi_dummy: table.qpi_dummy.map(Spanned::into_inner),
        latency,
        max_clock,
        write_enable: table.write_enable.unwrap_or(action.needs_write_enable()),
        quad_enable: table.quad_enable.unwrap_or(lines.contains(&4) && action != SetBurstWrap),
        wraps: table.wraps,
        conditions,
        size,
        registers: indexes,
    })
}

fn check_latency(name: &str, register: u8, table: LatencyTable) -> Result<Latency, Fault> {
    let count = table.clocks.get_ref().len();
    if !count.is_power_of_two() || table.shift > 7 || count > 256 >> table.shift {
        let message = format!(
            "command \"{name}\": latency of {count} values from bit {}; expected a value for each setting of the bits",
            table.shift
        );
        return Err((table.clocks.span(), message));
    }
    Ok(Latency { register, shift: table.shift, clocks: table.clocks.into_inner() })
}

fn check_conditions(name: &str, accepted: &[Text]) -> Result<Conditions, Fault> {
    let mut conditions = Conditions::default();
    for text in accepted {
        let Some((_, condition)) = CONDITIONS.iter().find(|(known, _)| known == text.get_ref()) else {
            let known: Vec<&str> = CONDITIONS.iter().map(|(known, _)| *known).collect();
            let message = format!(
                "command \"{name}\": unknown condition: \"{}\"; expected {}",
                text.get_ref(),
                known.join(", ")
            );
            return Err((text.span(), message));
        };
        conditions = conditions.with(*condition);
    }
    Ok(conditions)
}
