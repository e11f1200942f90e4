//! What is around the chip: its clock, pins and supply, the rules over its transactions.
//!
//! Every transaction of every programmer goes through here, one after the other. The chip's time is the machine's (`real`), or
//! passes only with the clocks of the bus and delays that programmers ask for (`fast`).

use crate::rules::Rules;
use runtime::Instant;
use serde_json::{Value, json};
use spinor::{BusyTime, Chip, Pin, Refusal, State};
use std::time::Duration;

/// Bus clock in hertz until a programmer sets one.
pub const DEFAULT_CLOCK: u32 = 20_000_000;

/// How the chip's time passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Time {
    /// With the machine's clock; operations take their typical time.
    Real,
    /// With the machine's clock; operations take their maximum time.
    RealMaximum,
    /// With the clocks of the bus; operations end after so many status polls.
    Fast(u32),
}

impl std::str::FromStr for Time {
    type Err = String;

    fn from_str(text: &str) -> Result<Time, String> {
        match text.split_once(':') {
            None if text == "real" => Ok(Time::Real),
            None if text == "fast" => Ok(Time::Fast(0)),
            Some(("real", "typical")) => Ok(Time::Real),
            Some(("real", "maximum")) => Ok(Time::RealMaximum),
            Some(("fast", polls)) => polls.parse().map(Time::Fast).map_err(|_| {
                format!("\"{text}\": expected a number of status polls after fast:, such as fast:3")
            }),
            _ => Err(format!("\"{text}\": expected real, real:maximum, fast or fast:POLLS")),
        }
    }
}

impl std::fmt::Display for Time {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Time::Real => f.write_str("real"),
            Time::RealMaximum => f.write_str("real:maximum"),
            Time::Fast(polls) => write!(f, "fast:{polls}"),
        }
    }
}

/// A chip and what is around it.
pub struct Board {
    chip: Chip,
    time: Time,
    /// The machine's time at which the chip's time was `begun_at`.
    begun: Instant,
    begun_at: u64,
    rules: Rules,
    transactions: u64,
    is_powered: bool,
}

impl Board {
    /// Puts a chip on the board. Keeps `traced` transactions for the trace; rules need at least one.
    pub fn new(mut chip: Chip, time: Time, rules: Rules, traced: usize) -> Board {
        chip.set_busy_time(match time {
            Time::Real => BusyTime::Typical,
            Time::RealMaximum => BusyTime::Maximum,
            Time::Fast(polls) => BusyTime::Polls(polls),
        });
        chip.set_trace(if rules.is_empty() { traced } else { traced.max(1) });
        chip.set_clock(Some(DEFAULT_CLOCK), matches!(time, Time::Fast(_)));
        let is_powered = chip.state() != State::PowerDown;
        let (begun, begun_at) = (runtime::now(), chip.now());
        Board { chip, time, begun, begun_at, rules, transactions: 0, is_powered }
    }

    /// Returns the chip, with its time up to date.
    pub fn chip(&mut self) -> &mut Chip {
        self.tick();
        &mut self.chip
    }

    /// Returns the rules and their violations.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Lets the chip's time catch up with the machine's.
    #[inline]
    fn tick(&mut self) {
        if !matches!(self.time, Time::Fast(_)) {
            let now = self.begun_at.saturating_add(self.begun.elapsed().as_nanos() as u64);
            self.chip.advance(now.saturating_sub(self.chip.now()));
        }
    }

    /// Lowers CS#. A transaction that is open ends first.
    pub fn select(&mut self) {
        self.deselect();
        self.chip.select();
    }

    /// Exchanges bytes: sends `sent` and then reads, or does both at the same time.
    pub fn exchange(&mut self, sent: &[u8], read: &mut [u8], full_duplex: bool) {
        if !full_duplex {
            self.chip.write(sent, 1);
            return self.chip.read(read, 1);
        }
        for n in 0..sent.len().max(read.len()) {
            let reply = self.chip.transfer(sent.get(n).copied().unwrap_or(0xFF), 1);
            if let Some(slot) = read.get_mut(n) {
                *slot = reply;
            }
        }
    }

    /// Raises CS#, and checks the transaction against the rules.
    pub fn deselect(&mut self) {
        // A command takes effect now, not when its first byte arrived.
        self.tick();
        let too_fast = self.chip.counters().too_fast;
        self.chip.deselect();
        let counters = self.chip.counters();
        let is_new = counters.transactions != self.transactions;
        self.transactions = counters.transactions;
        if self.rules.is_empty() {
            return;
        }
        let too_fast = counters.too_fast > too_fast;
        if is_new && let Some(record) = self.chip.trace().last() {
            self.rules.check(&self.chip, record, too_fast);
        }
        if self.is_powered && self.chip.state() == State::PowerDown {
            self.is_powered = false;
            self.rules.power_lost(self.chip.now());
        }
    }

    /// Sets the bus clock in hertz.
    pub fn set_clock(&mut self, hertz: u32) {
        self.chip.set_clock(Some(hertz), matches!(self.time, Time::Fast(_)));
    }

    /// Begins a delay that a programmer asked for. Returns how long it has to wait: no time in the mode without real time.
    pub fn delay(&mut self, delay: Duration) -> Duration {
        match self.time {
            Time::Fast(_) => {
                self.chip.advance(u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX));
                Duration::ZERO
            }
            _ => delay,
        }
    }

    /// Cuts the power.
    pub fn power_off(&mut self) {
        self.tick();
        self.chip.power_off();
        if std::mem::take(&mut self.is_powered) {
            self.rules.power_lost(self.chip.now());
        }
    }

    /// Applies the power. Without real time the start-up times pass at once.
    pub fn power_on(&mut self) {
        self.tick();
        self.chip.power_on();
        self.after_power();
    }

    /// Sets the supply voltage in millivolts.
    pub fn set_supply(&mut self, millivolts: u32) {
        self.tick();
        self.chip.set_supply(millivolts);
        self.after_power();
    }

    fn after_power(&mut self) {
        let state = self.chip.state();
        if self.is_powered && state == State::PowerDown {
            self.rules.power_lost(self.chip.now());
        }
        if matches!(self.time, Time::Fast(_)) && !self.is_powered && state != State::PowerDown {
            let times = &self.chip.description().times;
            let start_up = times.power_up_read.max(times.power_up_write);
            self.chip.advance(start_up);
        }
        self.is_powered = state != State::PowerDown;
    }

    /// Drives a pin.
    pub fn set_pin(&mut self, pin: Pin, high: bool) {
        self.tick();
        self.chip.set_pin(pin, high);
    }

    /// Ends what runs and removes the supply in good order, as before a clean stop.
    pub fn shut_down(&mut self) {
        self.deselect();
        self.chip.finish_operation();
        self.chip.power_off();
    }

    /// Returns the chip's state, registers and counters as JSON.
    pub fn status(&mut self) -> Value {
        self.tick();
        let chip = &self.chip;
        let description = chip.description();
        let registers: serde_json::Map<String, Value> = description
            .registers
            .iter()
            .map(|register| {
                let value = chip.register(&register.name).unwrap_or(0);
                let set = register.bits.iter().enumerate().filter(|(bit, _)| value >> bit & 1 == 1);
                let names: Vec<&str> =
                    set.map(|(_, name)| name.as_str()).filter(|name| *name != "-").collect();
                (register.name.clone(), json!({ "value": format!("{value:02X}h"), "set": names.join(" ") }))
            })
            .collect();
        let counters = chip.counters();
        let refused: serde_json::Map<String, Value> = REFUSALS
            .iter()
            .filter(|reason| counters.refused(**reason) > 0)
            .map(|reason| (reason.words().to_owned(), counters.refused(*reason).into()))
            .collect();
        let area = chip.protected_area();
        let erases = chip.erase_counts();
        json!({
            "chip": {
                "name": description.name,
                "maker": description.maker,
                "bytes": description.size,
                "state": format!("{:?}", chip.state()),
                "busy_for_us": chip.busy_for().map(|time| time / 1000),
                "time": self.time.to_string(),
                "chip_time_us": chip.now() / 1000,
                "qpi": chip.is_qpi(),
                "addresses": if chip.is_four_byte() { "4-byte" } else { "3-byte" },
                "protected": if area.is_empty() { "none".to_owned() } else { format!("{:06X}h-{:06X}h", area.start, area.end - 1) },
                "unique_id": hex(&chip.non_volatile().unique_id),
            },
            "registers": registers,
            "counters": {
                "transactions": counters.transactions,
                "bus_bytes": counters.bus_bytes,
                "bytes_read": counters.bytes_read,
                "operations": counters.operations,
                "busy_polls": counters.busy_polls,
                "overwrites": counters.overwrites,
                "too_fast": counters.too_fast,
                "flipped_bits": counters.flipped_bits,
                "refused": counters.all_refused(),
            },
            "refused": refused,
            "wear": {
                "erases": erases.iter().map(|count| u64::from(*count)).sum::<u64>(),
                "most_of_a_sector": erases.iter().max(),
                "endurance": description.endurance,
                "stuck_cells": chip.non_volatile().stuck.len(),
                "unstable_cells": chip.non_volatile().marginal.len(),
            },
            "rules": { "rules": self.rules.len(), "violations": self.rules.violations() },
        })
    }
}

/// All reasons, in the order of the type.
const REFUSALS: [Refusal; 11] = [
    Refusal::NoPower,
    Refusal::UnknownOpcode,
    Refusal::Busy,
    Refusal::Suspended,
    Refusal::NotSuspended,
    Refusal::DeepPowerDown,
    Refusal::NotWriteEnabled,
    Refusal::NotQuadEnabled,
    Refusal::Protected,
    Refusal::Incomplete,
    Refusal::OutOfSequence,
];

pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // A String takes any text.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
