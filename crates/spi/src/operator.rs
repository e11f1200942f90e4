//! Requests of operators to a served chip, as words; the answers are JSON.
//!
//! | request | what it does |
//! |---|---|
//! | `power off`, `power on`, `power MILLIVOLTS` | removes, applies or sets the supply |
//! | `pin wp low`, `pin wp high`, `pin hold low`, … | drives WP#, or HOLD#/RESET# |
//! | `dump OFFSET LENGTH` | returns bytes of the array as stored, in hexadecimal, at most [`MOST_DUMPED`] |
//! | `trace text`, `trace json`, `trace vcd` | returns the traced transactions |
//! | `wear` | returns the erase counts, and bits that are stuck or unstable |
//! | `sync` | writes what changed to the image, durably |
//! | `age YEARS CELSIUS RATE` | lets programmed cells lose charge |
//! | `rules` | returns the violations |
//!
//! A status and a `sync` end after the image is durable.

use crate::board::{Board, hex};
use crate::image::{ImageFile, WRITE_INTERVAL};
use crate::server::Server;
use block::{Error, Result};
use runtime::TaskGroup;
use runtime::sync::StopSource;
use serde_json::{Value, json};
use spinor::{Aging, Pin};
use std::cell::RefCell;
use std::rc::Rc;

/// Largest number of bytes that one `dump` returns.
pub const MOST_DUMPED: u32 = 1 << 20;
/// Largest answer to `trace`, in bytes.
const LONGEST_TRACE: usize = 8 << 20;
/// Clock period of the waveform in nanoseconds.
const VCD_PERIOD: u64 = 50;

/// A served chip: board, image and server together.
pub struct Station {
    board: Rc<RefCell<Board>>,
    image: Option<Rc<ImageFile>>,
    server: Server,
    stop: StopSource,
    writer: TaskGroup,
}

impl Station {
    /// Brings a chip into service: its image is written in the background from now on.
    pub fn new(board: Rc<RefCell<Board>>, image: Option<ImageFile>, server: Server) -> Station {
        let image = image.map(Rc::new);
        let (stop, writer) = (StopSource::new(), TaskGroup::default());
        if let Some(image) = image.clone() {
            let (board, token) = (board.clone(), stop.token());
            writer
                .spawn(async move {
                    while token.unless_stopped(runtime::sleep(WRITE_INTERVAL)).await.is_some() {
                        // The error is kept in the image, and told by a status and at the end.
                        let _ = image.sync(&board).await;
                    }
                })
                .detach();
        }
        Station { board, image, server, stop, writer }
    }

    /// Returns the server.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Returns the board.
    pub fn board(&self) -> &Rc<RefCell<Board>> {
        &self.board
    }

    /// Returns the status. What changed is in the image, durably.
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

    /// Carries out a request.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an unknown request or a wrong value; those of writing the image.
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
            ["trace", form] => return trace(&mut board, form),
            ["wear"] => return Ok(wear(&mut board)),
            ["rules"] => {
                let rules = board.rules();
                return Ok(json!({ "violations": rules.violations(), "told": rules.told() }));
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
                if let Some(image) = &self.image {
                    image.sync(&self.board).await?;
                }
                return Ok(json!({}));
            }
            _ => return Err(wrong("request", text, "power, pin, dump, trace, wear, rules, age or sync")),
        }
        let state = format!("{:?}", board.chip().state());
        Ok(json!({ "state": state }))
    }

    /// Disconnects all programmers, lets a running operation end, switches the chip off and makes the image durable. Returns the
    /// violations of the rules.
    ///
    /// # Errors
    /// Those of writing the image and of removing the files of sockets.
    pub async fn close(self) -> Result<Vec<String>> {
        let stopped = self.server.stop().await;
        self.stop.stop();
        self.writer.ended().await;
        self.board.borrow_mut().shut_down();
        if let Some(image) = &self.image {
            image.sync(&self.board).await?;
        }
        stopped?;
        let board = self.board.borrow();
        let mut told = board.rules().told().to_vec();
        let more = board.rules().violations() - told.len() as u64;
        if more > 0 {
            told.push(format!("{more} further violations"));
        }
        Ok(told)
    }
}

fn wrong(what: &str, value: &str, expected: &str) -> Error {
    let value: String = value.chars().take(80).collect();
    Error::invalid(format!("{what} \"{value}\": unknown; expected {expected}"))
}

fn number(text: &str, what: &str, expected: &str) -> Result<u32> {
    let parsed = match text.strip_prefix("0x").or(text.strip_prefix("0X")) {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| wrong(what, text, expected))
}

fn dump(board: &mut Board, offset: &str, length: &str) -> Result<Value> {
    let (from, length) =
        (number(offset, "offset", "a number of bytes")?, number(length, "length", "a number of bytes")?);
    let memory = board.chip().memory();
    let end = u64::from(from) + u64::from(length);
    if end > memory.len() as u64 || length > MOST_DUMPED {
        return Err(Error::invalid(format!(
            "dump: bytes {from}..{end} out of range 0..{}, or more than {MOST_DUMPED}",
            memory.len()
        )));
    }
    Ok(json!({ "offset": from, "hex": hex(&memory[from as usize..end as usize]) }))
}

/// Text with a bound: what is longer is refused by an error of `fmt`.
struct Bounded(String);

impl std::fmt::Write for Bounded {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        if self.0.len() + text.len() > LONGEST_TRACE {
            return Err(std::fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

fn trace(board: &mut Board, form: &str) -> Result<Value> {
    let chip = board.chip();
    let (trace, description) = (chip.trace(), chip.description());
    let mut text = Bounded(String::new());
    let written = match form {
        "text" => trace.write_text(description, &mut text),
        "json" => trace.write_json(description, &mut text),
        "vcd" => trace.write_vcd(description, VCD_PERIOD, &mut text),
        _ => return Err(wrong("form", form, "text, json or vcd")),
    };
    if written.is_err() {
        return Err(Error::overflow(format!(
            "trace: longer than {LONGEST_TRACE} bytes as {form}; expected less; serve with a smaller --trace"
        )));
    }
    Ok(json!({ "text": text.0, "dropped": trace.dropped() }))
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
