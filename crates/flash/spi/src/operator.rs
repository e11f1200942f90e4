//! Requests of operators to a served chip, as text; the answers are JSON.
//!
//! | request | what it does |
//! |---|---|
//! | `power off`, `power on`, `power MILLIVOLTS` | removes, applies or sets the supply |
//! | `pin wp low`, `pin wp high`, `pin hold low`, … | drives WP#, or HOLD#/RESET# |
//! | `dump OFFSET LENGTH` | returns stored bytes of the array in hexadecimal, at most [`MAX_DUMPED`] |
//! | `trace text`, `trace json`, `trace vcd` | returns the oldest transactions, about [`TRACE_PIECE`] bytes |
//! | `trace FORM NEXT END` | returns the transactions after those of an answer with this `next` and `end` |
//! | `wear` | returns the erase counts, and bits that are stuck or unstable |
//! | `sync` | writes what changed to the image, durably |
//! | `age YEARS CELSIUS RATE` | lets programmed cells lose charge |
//! | `rules` | returns the violations |
//!
//! A status or a `sync` is answered after the image is durable.

use crate::board::Board;
use crate::image::{ImageFile, WRITE_INTERVAL, next_interval};
use crate::server::Server;
use block::{Error, Result};
use runtime::TaskGroup;
use runtime::sync::StopSource;
use serde_json::{Value, json};
use spinor::{Aging, Pin, Waveform, hex};
use std::cell::RefCell;
use std::rc::Rc;

/// Most bytes that one `dump` returns.
pub const MAX_DUMPED: u32 = 1 << 20;
/// Bytes of text after which an answer to `trace` ends. Its last transaction may exceed them.
pub const TRACE_PIECE: usize = 1 << 20;
/// Clock period of the waveform in nanoseconds.
const VCD_PERIOD: u64 = 50;

/// A served chip: board, image and server together.
pub struct ServedChip {
    board: Rc<RefCell<Board>>,
    image: Option<Rc<ImageFile>>,
    server: Server,
    stop: StopSource,
    writer: TaskGroup,
}

impl ServedChip {
    /// Starts serving a chip, whose image is then written in the background.
    pub fn new(board: Rc<RefCell<Board>>, image: Option<ImageFile>, server: Server) -> ServedChip {
        let image = image.map(Rc::new);
        let (stop, writer) = (StopSource::new(), TaskGroup::default());
        if let Some(image) = image.clone() {
            let (board, token) = (board.clone(), stop.token());
            writer
                .spawn(async move {
                    let mut interval = WRITE_INTERVAL;
                    while token.unless_stopped(runtime::sleep(interval)).await.is_some() {
                        // The image keeps the error; a status and the close report it.
                        let synced = image.sync(&board).await;
                        interval = next_interval(interval, synced.is_err());
                    }
                })
                .detach();
        }
        ServedChip { board, image, server, stop, writer }
    }

    /// Returns the server.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Returns the board.
    pub fn board(&self) -> &Rc<RefCell<Board>> {
        &self.board
    }

    /// Returns the status. All changes are durable in the image.
    pub async fn status(&self) -> Value {
        let image = match &self.image {
            Some(image) => {
                let synced = image.sync(&self.board).await;
                json!({ "path": image.path().display().to_string(), "error": synced.err().map(|error| error.to_string()) })
            }
            None => Value::Null,
        };
        let mut status = self.board.borrow_mut().status();
        let (connected, all) = self.server.programmers();
        let mut addresses: Vec<String> = self.server.addresses().iter().map(ToString::to_string).collect();
        addresses.extend(self.server.pty().map(|path| path.display().to_string()));
        status["image"] = image;
        status["serprog"] = json!({ "addresses": addresses, "programmers": connected, "connections": all });
        status
    }

    /// Executes a request.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an unknown request or an invalid value; errors of writing the image.
    pub async fn answer(&self, text: &str) -> Result<Value> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let mut board = self.board.borrow_mut();
        match words.as_slice() {
            ["power", "off"] => board.power_off(),
            ["power", "on"] => board.power_on(),
            ["power", millivolts] => {
                let millivolts = number(millivolts, "supply", "off, on or millivolts such as 2500")?;
                board.set_supply(millivolts);
            }
            ["pin", pin, level] => {
                let pin = match *pin {
                    "wp" => Pin::WriteProtect,
                    "hold" | "reset" => Pin::HoldReset,
                    _ => return Err(wrong("pin", pin, "wp, hold or reset")),
                };
                let high = match *level {
                    "high" => true,
                    "low" => false,
                    _ => return Err(wrong("level", level, "high or low")),
                };
                board.set_pin(pin, high);
            }
            ["dump", offset, length] => return dump(&mut board, offset, length),
            ["trace", form] => return trace(&mut board, form, "0", "0"),
            ["trace", form, from, end] => return trace(&mut board, form, from, end),
            ["wear"] => return Ok(wear(&mut board)),
            ["rules"] => {
                let rules = board.rules();
                return Ok(json!({ "violations": rules.violations(), "reported": rules.reported() }));
            }
            ["age", years, celsius, rate] => {
                let real = |text: &str, what| {
                    let value = text.parse::<f64>().ok().filter(|value| value.is_finite());
                    value.ok_or_else(|| wrong(what, text, "a number"))
                };
                let (years, celsius, rate) =
                    (real(years, "years")?, real(celsius, "temperature")?, real(rate, "rate")?);
                if years < 0.0 || rate < 0.0 {
                    return Err(wrong("years and rate", text, "numbers from 0 on"));
                }
                let flipped = board.chip().age(Aging { years, celsius, rate });
                return Ok(json!({ "flipped_bits": flipped }));
            }
            ["sync"] => {
                drop(board);
                let Some(image) = &self.image else {
                    return Err(Error::invalid(
                        "sync: the chip is in memory only; expected one with an image; serve it with --image FILE",
                    ));
                };
                image.sync(&self.board).await?;
                return Ok(json!({}));
            }
            _ => return Err(wrong("request", text, "power, pin, dump, trace, wear, rules, age or sync")),
        }
        let state = format!("{:?}", board.chip().state());
        Ok(json!({ "state": state }))
    }

    /// Disconnects all programmers, completes running and suspended operations, switches the chip off and
    /// makes the image durable.
    pub async fn close(self) -> Closed {
        let stopped = self.server.stop().await;
        self.stop.stop();
        self.writer.ended().await;
        self.board.borrow_mut().shut_down();
        let synced = match &self.image {
            Some(image) => image.close(&self.board).await,
            None => Ok(()),
        };
        let board = self.board.borrow();
        let mut violations = board.rules().reported().to_vec();
        let more = board.rules().violations() - violations.len() as u64;
        if more > 0 {
            violations.push(format!("{more} further violations"));
        }
        Closed { violations, errors: synced.err().into_iter().chain(stopped).collect() }
    }
}

/// Outcome of closing a served chip.
#[derive(Debug)]
#[must_use]
pub struct Closed {
    /// Violations of the rules.
    pub violations: Vec<String>,
    /// Errors of writing the image, followed by errors of removing the files of sockets.
    pub errors: Vec<Error>,
}

fn wrong(what: &str, value: &str, expected: &str) -> Error {
    let value: String = value.chars().take(80).collect();
    Error::invalid(format!("{what} \"{value}\": unknown; expected {expected}"))
}

/// Parses a number, decimal or as `0x…`.
pub fn parse_number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x").or(text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

fn number<T: TryFrom<u64>>(text: &str, what: &str, expected: &str) -> Result<T> {
    let parsed = parse_number(text).and_then(|number| T::try_from(number).ok());
    parsed.ok_or_else(|| wrong(what, text, expected))
}

fn dump(board: &mut Board, offset: &str, length: &str) -> Result<Value> {
    let (from, length): (u32, u32) =
        (number(offset, "offset", "a number of bytes")?, number(length, "length", "a number of bytes")?);
    let memory = board.chip().memory();
    let end = u64::from(from) + u64::from(length);
    if end > memory.len() as u64 || length > MAX_DUMPED {
        return Err(Error::invalid(format!(
            "dump: bytes {from}..{end} out of range 0..{}, or more than {MAX_DUMPED}",
            memory.len()
        )));
    }
    Ok(json!({ "offset": from, "hex": hex::text(&memory[from as usize..end as usize], "") }))
}

/// Returns a part of the trace: records with numbers of at least `from`, at least one record, up to
/// [`TRACE_PIECE`] bytes.
///
/// `end` is the end time of the previous part of a waveform.
fn trace(board: &mut Board, form: &str, from: &str, end: &str) -> Result<Value> {
    let expected = "a number of an answer to trace";
    let (from, end): (u64, u64) = (number(from, "record", expected)?, number(end, "time", expected)?);
    let chip = board.chip();
    let (trace, description) = (chip.trace(), chip.description());
    let numbers = trace.numbers();
    let first = from.max(numbers.start);
    let (mut text, mut next) = (String::new(), first);
    let mut waveform = Waveform::resume(VCD_PERIOD, end);
    let mut written = match (form, from) {
        ("vcd", 0) => waveform.write_header(description, &mut text),
        ("text" | "json" | "vcd", _) => Ok(()),
        _ => return Err(wrong("form", form, "text, json or vcd")),
    };
    for record in trace.records_from(first) {
        written = written.and_then(|()| match form {
            "text" => record.write_text(description, &mut text),
            "json" => record.write_json(description, &mut text),
            _ => waveform.write(record, description, &mut text),
        });
        next += 1;
        if text.len() >= TRACE_PIECE {
            break;
        }
    }
    written.map_err(|error| Error::io(format!("trace as {form}: {error}")))?;
    Ok(json!({ "text": text, "first": first, "next": next, "newest": numbers.end, "end": waveform.end() }))
}

fn wear(board: &mut Board) -> Value {
    let chip = board.chip();
    let cells = chip.non_volatile();
    let stuck: Vec<Value> =
        cells.stuck.iter().map(|(address, mask)| json!({ "address": address, "mask": mask })).collect();
    let marginal: Vec<Value> = cells
        .marginal
        .iter()
        .map(|(address, bits)| json!({ "address": address, "mask": bits.mask, "ones": bits.ones }))
        .collect();
    json!({
        "sector": chip.description().sector(),
        "endurance": chip.description().endurance,
        "erase_counts": cells.erase_counts,
        "stuck": stuck,
        "unstable": marginal,
    })
}
