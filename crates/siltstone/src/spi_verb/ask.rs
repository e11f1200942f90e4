//! Requests to a served chip, through its control socket.

use crate::arguments::{ServerChoice, TraceForm};
use crate::control::client::Client;
use crate::control::place::{self, Identity};
use crate::control::protocol::{Recipient, Request};
use crate::failure::Failure;
use crate::output::{print, print_json, print_line};
use crate::table;
use serde_json::Value;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

/// Bytes per request of a dump.
const PIECE: u64 = spi::operator::MAX_DUMPED as u64;
/// Limit of the sectors in a table of wear.
const MAX_WORN: usize = 20;

/// Recipient of messages to the chip.
pub(super) const CHIP: &str = "chip";

/// Finds the server of a chip.
fn find(chip: &ServerChoice) -> Result<Client, Failure> {
    let found = match (&chip.control, &chip.image) {
        (Some(path), _) => return Client::at(path),
        (None, Some(image)) => place::servers(&Identity::of_chip(Some(image))?)?,
        (None, None) => place::chip_servers()?,
    };
    let mut clients = Vec::new();
    for (path, stream) in found {
        clients.extend(Client::new(path, stream)?);
    }
    if clients.len() > 1 {
        let mut list = String::new();
        for client in &mut clients {
            let image = match client.ask(&Request::Status)? {
                Ok(status) => status["image"]["path"].as_str().map(str::to_owned),
                Err(_) => None,
            };
            let _ = match image {
                Some(image) => write!(list, "\n  --image {image}"),
                None => write!(list, "\n  --control {}", client.path().display()),
            };
        }
        return Err(Failure::Usage(format!("{} chips are served; choose one:{list}", clients.len())));
    }
    clients.pop().ok_or_else(|| {
        Failure::World(
            "no chip is served here; expected a running siltstone spi serve without --no-control; start one, or give --control PATH"
                .into(),
        )
    })
}

fn ask(client: &mut Client, request: &Request) -> Result<Value, Failure> {
    client.ask(request)?.map_err(|refusal| match refusal.wrongly_asked {
        true => Failure::Usage(refusal.error.detail().to_owned()),
        false => refusal.error.into(),
    })
}

fn tell(client: &mut Client, text: String) -> Result<Value, Failure> {
    ask(client, &Request::Message { to: Recipient::Part(CHIP.to_owned()), text })
}

/// Shows the status.
///
/// # Errors
/// No served chip, or several.
pub fn status(chip: &ServerChoice, as_json: bool) -> Result<(), Failure> {
    let status = ask(&mut find(chip)?, &Request::Status)?;
    if as_json {
        return print_json(&status);
    }
    let mut text = String::new();
    for (heading, value) in status.as_object().into_iter().flatten() {
        if let Some(object) = value.as_object().filter(|object| !object.is_empty()) {
            table::section(&mut text, heading, object);
        }
    }
    print(&text)
}

/// Sends a request that changes a supply or pin, and prints the chip's state after it.
///
/// # Errors
/// No served chip, or several; an unknown pin, level or supply.
pub fn state(chip: &ServerChoice, text: String) -> Result<(), Failure> {
    let answer = tell(&mut find(chip)?, text)?;
    print_line(answer["state"].as_str().unwrap_or("?"))
}

/// Opens the output file, or standard output.
fn output(out: Option<&Path>) -> Result<Box<dyn std::io::Write>, Failure> {
    Ok(match out {
        Some(path) => {
            let file = std::fs::File::create(path)
                .map_err(|error| Failure::World(format!("creating {}: {error}", path.display())))?;
            Box::new(std::io::BufWriter::new(file))
        }
        None => Box::new(std::io::stdout().lock()),
    })
}

/// Converts an error of writing to a failure; returns false for a closed reader, such as `head`.
fn written(result: std::io::Result<()>) -> Result<bool, Failure> {
    match result {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::World(format!("writing: {error}"))),
    }
}

/// Prints or writes the array.
///
/// # Errors
/// No served chip, or several; a range outside the array.
pub fn dump(
    chip: &ServerChoice,
    offset: u64,
    length: Option<u64>,
    raw: bool,
    out: Option<&Path>,
) -> Result<(), Failure> {
    let mut client = find(chip)?;
    let status = ask(&mut client, &Request::Status)?;
    let size = status["chip"]["bytes"].as_u64().unwrap_or(0);
    let end = length.map_or(size, |length| offset.saturating_add(length));
    if offset > end || end > size {
        return Err(Failure::Usage(format!("dump: bytes {offset}..{end} out of range 0..{size}")));
    }
    let mut output = output(out)?;
    let mut last: Option<[u8; 16]> = None;
    let mut starred = false;
    let mut at = offset;
    while at < end {
        let count = PIECE.min(end - at);
        let answer = tell(&mut client, format!("dump {at} {count}"))?;
        let bytes = spinor::hex::bytes(answer["hex"].as_str().unwrap_or("")).unwrap_or_default();
        if bytes.len() as u64 != count {
            return Err(Failure::World(
                "the server's answer to dump has another length than asked for".into(),
            ));
        }
        if raw {
            if !written(output.write_all(&bytes))? {
                return Ok(());
            }
        } else {
            let mut text = String::new();
            for (n, line) in bytes.chunks(16).enumerate() {
                let whole: Option<[u8; 16]> = line.try_into().ok();
                if whole.is_some() && whole == last {
                    if !std::mem::replace(&mut starred, true) {
                        text.push_str("*\n");
                    }
                    continue;
                }
                (starred, last) = (false, whole);
                line_of(&mut text, at + n as u64 * 16, line);
            }
            if !written(output.write_all(text.as_bytes()))? {
                return Ok(());
            }
        }
        at += count;
    }
    if !raw {
        written(writeln!(output, "{end:08x}"))?;
    }
    written(output.flush()).map(drop)
}

fn line_of(text: &mut String, at: u64, bytes: &[u8]) {
    let _ = write!(text, "{at:08x} ");
    for n in 0..16 {
        let _ = match bytes.get(n) {
            Some(byte) => write!(text, " {byte:02x}"),
            None => write!(text, "   "),
        };
    }
    let shown = bytes
        .iter()
        .map(|byte| if byte.is_ascii_graphic() || *byte == b' ' { char::from(*byte) } else { '.' });
    let _ = writeln!(text, "  |{}|", shown.collect::<String>());
}

/// Prints or writes the trace up to the newest transaction at the time of the call, in pieces.
///
/// # Errors
/// No served chip, or several; errors of writing.
pub fn trace(chip: &ServerChoice, form: TraceForm, out: Option<&Path>) -> Result<(), Failure> {
    let mut client = find(chip)?;
    let mut output = output(out)?;
    let (mut next, mut end, mut newest, mut missing) = (0, 0, None, 0);
    loop {
        let answer = tell(&mut client, format!("trace {} {next} {end}", form.word()))?;
        let number = |key: &str| {
            let wrong = || {
                Failure::World(format!("the server's answer to trace has no number \"{key}\"; restart it"))
            };
            answer[key].as_u64().ok_or_else(wrong)
        };
        if !written(output.write_all(answer["text"].as_str().unwrap_or("").as_bytes()))? {
            return Ok(());
        }
        // Transactions that were dropped for newer ones before they were fetched.
        missing += number("first")?.saturating_sub(next);
        let newest = *newest.get_or_insert(number("newest")?);
        let after = number("next")?;
        if after >= newest || after <= next {
            break;
        }
        (next, end) = (after, number("end")?);
    }
    written(output.flush())?;
    if missing > 0 {
        crate::output::say(&format!(
            "{missing} transactions are not in the trace, because newer ones took their place (see spi serve --trace)"
        ));
    }
    Ok(())
}

/// Shows the wear.
///
/// # Errors
/// No served chip, or several.
pub fn wear(chip: &ServerChoice, as_json: bool) -> Result<(), Failure> {
    let wear = tell(&mut find(chip)?, "wear".to_owned())?;
    if as_json {
        return print_json(&wear);
    }
    let counts: Vec<u64> =
        wear["erase_counts"].as_array().into_iter().flatten().filter_map(Value::as_u64).collect();
    let sector = wear["sector"].as_u64().unwrap_or(0);
    let mut sorted: Vec<(usize, u64)> =
        counts.iter().copied().enumerate().filter(|(_, count)| *count > 0).collect();
    sorted.sort_by_key(|(n, count)| (std::cmp::Reverse(*count), *n));
    let mut text = format!(
        "{} sectors of {sector} bytes, {} erased at least once, {} erases in all, endurance {}\n",
        counts.len(),
        sorted.len(),
        counts.iter().sum::<u64>(),
        wear["endurance"]
    );
    for (n, count) in sorted.iter().take(MAX_WORN) {
        let _ = writeln!(text, "  {:08x}h  {count}", *n as u64 * sector);
    }
    if sorted.len() > MAX_WORN {
        let _ = writeln!(text, "  and {} more; --json has all", sorted.len() - MAX_WORN);
    }
    for (key, what) in
        [("stuck", "bytes with bits that no longer erase"), ("unstable", "bytes with unstable bits")]
    {
        let _ = writeln!(text, "{what}: {}", wear[key].as_array().map_or(0, Vec::len));
    }
    print(&text)
}

/// Ages the cells.
///
/// # Errors
/// No served chip, or several; numbers out of range.
pub fn age(chip: &ServerChoice, years: f64, celsius: f64, rate: f64) -> Result<(), Failure> {
    let answer = tell(&mut find(chip)?, format!("age {years} {celsius} {rate}"))?;
    print_line(&format!("{} bits lost their charge", answer["flipped_bits"]))
}

/// Makes the image durable.
///
/// # Errors
/// No served chip, or several; errors of writing the image.
pub fn sync(chip: &ServerChoice) -> Result<(), Failure> {
    tell(&mut find(chip)?, "sync".to_owned()).map(drop)
}
