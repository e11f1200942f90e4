//! Surroundings of the chip: its clock, pins and supply, and the rules over its transactions.
//!
//! Every transaction of every programmer passes through the board, one after the other. A programmer that
//! holds CS# low over several operations owns the bus: operations of others are refused until it raises CS#,
//! or has made no operation for [`HOLD_LIMIT`]. The chip's time is the machine's (`real`), or passes only
//! with the clocks of the bus and delays that programmers request (`fast`).

use crate::rules::Rules;
use runtime::Instant;
use serde_json::{Value, json};
use spinor::{BusyTime, Chip, Pin, Refusal, State, hex};
use std::time::Duration;

/// Bus clock in hertz until a programmer sets one.
pub const DEFAULT_CLOCK: u32 = 20_000_000;

/// Time without an operation after which a programmer that holds CS# low loses it to the next operation of
/// another one.
pub const HOLD_LIMIT: Duration = Duration::from_secs(1);

/// A programmer on the bus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Programmer(pub u64);

/// Another programmer owns the bus and holds CS# low, or the caller's transaction was ended for another
/// programmer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BusTaken;

/// A programmer that holds CS# low.
struct Holder {
    programmer: Programmer,
    last_operation: Instant,
}

/// Source of the chip's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Time {
    /// The machine's clock; operations take their typical time.
    Real,
    /// The machine's clock; operations take their maximum time.
    RealMaximum,
    /// The clocks of the bus; operations end after this number of status polls.
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

/// A chip and its surroundings.
pub struct Board {
    chip: Chip,
    time: Time,
    /// The machine's time at which the chip's time was `begun_at`.
    begun: Instant,
    begun_at: u64,
    rules: Rules,
    transactions: u64,
    is_powered: bool,
    holder: Option<Holder>,
}

impl Board {
    /// Puts a chip on the board. The trace keeps the last `traced` transactions; rules need at least one.
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
        Board { chip, time, begun, begun_at, rules, transactions: 0, is_powered, holder: None }
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

    /// Advances the chip's time to the machine's.
    #[inline]
    fn tick(&mut self) {
        if !matches!(self.time, Time::Fast(_)) {
            let now = self.begun_at.saturating_add(self.begun.elapsed().as_nanos() as u64);
            self.chip.advance(now.saturating_sub(self.chip.now()));
        }
    }

    /// Executes a whole transaction: CS# falls, bytes are exchanged, CS# rises.
    ///
    /// # Errors
    /// Another programmer holds CS# low: nothing was done.
    pub fn transact(
        &mut self,
        programmer: Programmer,
        sent: &[u8],
        read: &mut [u8],
        full_duplex: bool,
    ) -> Result<(), BusTaken> {
        self.take_bus(programmer)?;
        self.tick();
        self.chip.select();
        self.exchange(sent, read, full_duplex);
        self.end_transaction();
        Ok(())
    }

    /// Lowers CS# until [`Board::release`]; CS# remains low if the programmer already holds it.
    ///
    /// # Errors
    /// Another programmer holds CS# low: nothing was done.
    pub fn hold(&mut self, programmer: Programmer) -> Result<(), BusTaken> {
        if let Some(holder) = &mut self.holder
            && holder.programmer == programmer
        {
            holder.last_operation = runtime::now();
            return Ok(());
        }
        self.take_bus(programmer)?;
        self.tick();
        self.chip.select();
        self.holder = Some(Holder { programmer, last_operation: runtime::now() });
        Ok(())
    }

    /// Exchanges bytes within the transaction of a programmer that holds CS# low.
    ///
    /// # Errors
    /// The programmer has lost CS# to another one: nothing was done.
    pub fn continue_transaction(
        &mut self,
        programmer: Programmer,
        sent: &[u8],
        read: &mut [u8],
        full_duplex: bool,
    ) -> Result<(), BusTaken> {
        match &mut self.holder {
            Some(holder) if holder.programmer == programmer => holder.last_operation = runtime::now(),
            _ => return Err(BusTaken),
        }
        self.exchange(sent, read, full_duplex);
        Ok(())
    }

    /// Raises CS# if this programmer holds it low.
    pub fn release(&mut self, programmer: Programmer) {
        if self.holder.as_ref().is_some_and(|holder| holder.programmer == programmer) {
            self.end_transaction();
        }
    }

    /// Ensures that CS# is high for a transaction of this programmer.
    fn take_bus(&mut self, programmer: Programmer) -> Result<(), BusTaken> {
        match &self.holder {
            None => Ok(()),
            Some(holder)
                if holder.programmer != programmer && holder.last_operation.elapsed() < HOLD_LIMIT =>
            {
                Err(BusTaken)
            }
            Some(_) => {
                self.end_transaction();
                Ok(())
            }
        }
    }

    /// Exchanges bytes: sends `sent` and then reads, or does both at the same time.
    fn exchange(&mut self, sent: &[u8], read: &mut [u8], full_duplex: bool) {
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
    fn end_transaction(&mut self) {
        self.holder = None;
        // A command takes effect at this time, not when its first byte arrived.
        self.tick();
        let too_fast = self.chip.counters().too_fast;
        self.chip.deselect();
        let counters = self.chip.counters();
        let is_new = counters.transactions != self.transactions;
        self.transactions = counters.transactions;
        let loses_power = self.is_powered && self.chip.state() == State::PowerDown;
        self.is_powered &= !loses_power;
        if self.rules.is_empty() {
            return;
        }
        let too_fast = counters.too_fast > too_fast;
        if is_new && let Some(record) = self.chip.trace().last() {
            self.rules.check(&self.chip, record, too_fast);
        }
        if loses_power {
            self.rules.power_lost(self.chip.now());
        }
    }

    /// Sets the bus clock in hertz.
    pub fn set_clock(&mut self, hertz: u32) {
        self.chip.set_clock(Some(hertz), matches!(self.time, Time::Fast(_)));
    }

    /// Begins a delay that a programmer requested. Returns the time to wait: zero in the mode without real
    /// time.
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

    /// Completes running and suspended operations and removes the supply properly, as before a clean stop.
    pub fn shut_down(&mut self) {
        self.end_transaction();
        self.chip.finish_operations();
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
        let refused: serde_json::Map<String, Value> = Refusal::ALL
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
                "unique_id": hex::text(&chip.non_volatile().unique_id, ""),
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
