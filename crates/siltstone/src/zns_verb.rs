//! `siltstone zns`: shows emulated ZNS drives by reading their files.

mod picture;

use crate::arguments::{ZnsDrive, ZnsVerb};
use crate::failure::Failure;
use crate::kinds::registry;
use crate::load;
use crate::output::{print, print_json, print_line};
use crate::table;
use serde_json::{Map, Value, json};
use stack::Value as Setting;
use std::path::{Path, PathBuf};
use zns::Zns;

/// Bytes per line of a hexadecimal dump.
const LINE: usize = 16;

/// Runs the verb.
///
/// # Errors
/// A wrong stack, part, zone or range; a file without a drive.
pub fn zns(verb: ZnsVerb) -> Result<(), Failure> {
    match verb {
        ZnsVerb::Status { drive } => {
            let value = look(&drive, async |zns| Ok(Value::Object(zns.status_now())))?;
            show(&drive, "drive", value)
        }
        ZnsVerb::Zones { drive } => {
            let value = look(&drive, async |zns| Ok(zns.zones_now()))?;
            if drive.json { print_json(&value) } else { show(&drive, "", json!({ "zones": value })) }
        }
        ZnsVerb::Wear { drive, svg, errors, zone } => {
            let value = look(&drive, async |zns| Ok(zns.wear_now()))?;
            if let Some(path) = svg {
                let drawing = if errors {
                    let rates = look(&drive, async move |zns| zns.page_rates(block::ZoneIndex(zone)))?;
                    let limit = value["correctable_rate"].as_f64().unwrap_or(0.0);
                    picture::errors(zone, &rates, limit)
                } else {
                    picture::erases(&value)
                };
                return write(&path, drawing.as_bytes());
            }
            let mut value = value;
            if !drive.json
                && let Some(object) = value.as_object_mut()
            {
                object.remove("worst_block");
            }
            show(&drive, "wear", value)
        }
        ZnsVerb::Raw { drive, zone, offset, length, with_errors, out } => {
            let size = |key: &str, text: &str| {
                stack::parse_size(text).map_err(|error| Failure::Usage(format!("{key}: {}", error.detail())))
            };
            let offset = size("--offset", &offset)?;
            let length = length.as_deref().map(|text| size("--length", text)).transpose()?;
            let bytes = look(&drive, async move |zns| {
                let rest = block::ZonesPart::geometry(&zns).zone_capacity.saturating_sub(offset);
                let length = length.unwrap_or(rest.min(zns::MAX_RAW));
                zns.raw(block::ZoneIndex(zone), offset, length, with_errors).await
            })?;
            match out {
                Some(path) => write(&path, &bytes),
                None if drive.json => {
                    print_json(&json!({"zone": zone, "offset": offset, "hex": hex(&bytes)}))
                }
                None => print(&dump(offset, &bytes)),
            }
        }
    }
}

/// Opens the drive's file read-only, and runs `work` on the drive.
pub fn look<T: Send + 'static>(
    drive: &ZnsDrive,
    work: impl AsyncFnOnce(Zns) -> block::Result<T> + Send + 'static,
) -> Result<T, Failure> {
    let path = path_of(drive)?;
    let outcome = runtime::run(runtime::Config::default().with_shards(1), move || async move {
        work(Zns::look_at_path(&path).await?).await
    })?;
    Ok(outcome?)
}

/// Returns the file of the drive: the argument, or the file of a part of the stack.
fn path_of(drive: &ZnsDrive) -> Result<PathBuf, Failure> {
    let path = Path::new(&drive.drive);
    let is_stack = path.extension().is_some_and(|it| it == "toml") || drive.drive.contains('(');
    if !is_stack && path.is_file() {
        return Ok(path.to_owned());
    }
    let stack = load::stack(&drive.drive, &registry())?;
    let drives: Vec<_> = stack.parts().filter(|part| part.kind().name == zns::KIND.name).collect();
    let named = |part: &&&stack::Part| drive.part.as_deref().is_none_or(|name| part.name() == name);
    let chosen = match drives.iter().filter(named).collect::<Vec<_>>().as_slice() {
        [one] => *one,
        several => {
            let names = drives.iter().map(|part| part.name()).collect::<Vec<_>>().join(", ");
            let (count, kind) = (several.len(), zns::KIND.name);
            let expected = match drives.len() {
                0 => "expected one".to_owned(),
                _ => format!("expected one; give its name with --part: {names}"),
            };
            return Err(Failure::Usage(format!(
                "{}: {count} parts of kind \"{kind}\"; {expected}",
                drive.drive
            )));
        }
    };
    match chosen.value("path") {
        Some(Setting::Path(path)) => Ok(stack.absolute(Path::new(path))?),
        _ => Err(Failure::Usage(format!(
            "{}: \"{}\" is in memory: expected a drive on a file; serve the stack, and send it messages",
            drive.drive,
            chosen.name()
        ))),
    }
}

fn show(drive: &ZnsDrive, heading: &str, value: Value) -> Result<(), Failure> {
    if drive.json {
        return print_json(&value);
    }
    let mut out = String::new();
    let empty = Map::new();
    let object = value.as_object().unwrap_or(&empty);
    match heading {
        "" => table::object(&mut out, 0, object),
        heading => table::section(&mut out, heading, object),
    }
    print(&out)
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    std::fs::write(path, bytes)
        .map_err(|error| Failure::World(format!("writing {}: {error}", path.display())))?;
    print_line(&format!("{}: {} bytes", path.display(), bytes.len()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Formats bytes as `hexdump -C` does. Repeated lines are shown as one `*`.
fn dump(offset: u64, bytes: &[u8]) -> String {
    let mut out = String::new();
    let mut last: Option<&[u8]> = None;
    let mut passed = false;
    for (number, line) in bytes.chunks(LINE).enumerate() {
        if last == Some(line) {
            if !passed {
                out.push_str("*\n");
            }
            passed = true;
            continue;
        }
        (last, passed) = (Some(line), false);
        let words = line.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ");
        let printable = |byte: &u8| if (0x20..0x7F).contains(byte) { char::from(*byte) } else { '.' };
        let text: String = line.iter().map(printable).collect();
        out.push_str(&format!("{:08x}  {words:<47}  |{text}|\n", offset + (number * LINE) as u64));
    }
    out.push_str(&format!("{:08x}\n", offset + bytes.len() as u64));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_lines_are_shown_once() {
        let mut bytes = vec![0xFF; 64];
        bytes.extend_from_slice(b"siltstone");
        let text = dump(4096, &bytes);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(lines[0].starts_with("00001000  ff ff") && lines[1] == "*", "{text}");
        assert!(lines[2].ends_with("|siltstone|") && lines[3] == "00001049", "{text}");
    }
}
