//! Assertions over the transactions of a chip, as a list in TOML.
//!
//! ```toml
//! [[rule]]
//! never = "program-unerased"      # a program that asks for a 1 in a cell that is 0
//!
//! [[rule]]
//! name = "the boot loader stays"
//! never = "write"                 # programs and erases
//! from = 0x000000
//! to = 0x00FFFF                   # inclusive
//!
//! [[rule]]
//! most_erases = 100               # of each sector over the chip's life, with those of earlier runs
//!
//! [[rule]]
//! never_opcode = [0xC7, 0x60]     # chip erase
//! ```
//!
//! `never` is one of: `program-unerased`, `program`, `erase`, `write`, `refused` (for any reason), `busy`,
//! `not-write-enabled`, `protected`, `unknown-opcode` (refused for this reason), `too-fast`, `power-loss`.

use serde::Deserialize;
use spinor::{Action, Chip, Record, Refusal, State};
use stack::Source;
use std::fmt::Write as _;

/// Number of violations whose text is kept; further ones are counted.
pub const MAX_REPORTED: usize = 100;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    rule: Vec<Entry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: Option<String>,
    never: Option<Event>,
    never_opcode: Option<Vec<u8>>,
    most_erases: Option<u32>,
    #[serde(default)]
    from: u32,
    #[serde(default = "highest")]
    to: u32,
}

fn highest() -> u32 {
    u32::MAX
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Event {
    ProgramUnerased,
    Program,
    Erase,
    Write,
    Refused,
    Busy,
    NotWriteEnabled,
    Protected,
    UnknownOpcode,
    TooFast,
    PowerLoss,
}

impl Event {
    /// Returns the event's word in a list of rules.
    fn word(self) -> String {
        let mut word = String::new();
        for letter in format!("{self:?}").chars() {
            if letter.is_ascii_uppercase() && !word.is_empty() {
                word.push('-');
            }
            word.push(letter.to_ascii_lowercase());
        }
        word
    }
}

#[derive(Debug)]
enum Check {
    Never(Event),
    NeverOpcode(Vec<u8>),
    MostErases(u32),
}

#[derive(Debug)]
struct Rule {
    name: String,
    check: Check,
    from: u32,
    to: u32,
}

/// Rules, and their violations.
#[derive(Debug, Default)]
pub struct Rules {
    rules: Vec<Rule>,
    reported: Vec<String>,
    violations: u64,
}

impl Rules {
    /// Parses a list of rules. `file` is its name for errors.
    ///
    /// # Errors
    /// Description of the problem, with line and column.
    pub fn parse(file: &str, text: &str) -> Result<Rules, String> {
        let parsed: File = toml::from_str(text).map_err(|error| {
            Source::new(file, text).problem(error.span().unwrap_or(0..0), error.message()).to_string()
        })?;
        let rules = parsed.rule.into_iter().enumerate().map(|(n, entry)| {
            let wrong = |what: &str| format!("{file}: rule {}: {what}", n + 1);
            let (check, means) = match (entry.never, entry.never_opcode, entry.most_erases) {
                (Some(event), None, None) => (Check::Never(event), format!("never {}", event.word())),
                (None, Some(opcodes), None) => {
                    let list: Vec<String> = opcodes.iter().map(|opcode| format!("{opcode:02X}h")).collect();
                    (Check::NeverOpcode(opcodes), format!("never opcode {}", list.join(", ")))
                }
                (None, None, Some(most)) => {
                    (Check::MostErases(most), format!("at most {most} erases of a sector over its life"))
                }
                _ => return Err(wrong("expected exactly one of never, never_opcode, most_erases")),
            };
            if entry.from > entry.to {
                return Err(wrong(&format!(
                    "empty range: from = {:#X}, to = {:#X}; expected from <= to",
                    entry.from, entry.to
                )));
            }
            Ok(Rule { name: entry.name.unwrap_or(means), check, from: entry.from, to: entry.to })
        });
        Ok(Rules { rules: rules.collect::<Result<_, _>>()?, ..Rules::default() })
    }

    /// Returns whether there is no rule.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Returns the number of rules.
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// Returns the number of violations.
    pub fn violations(&self) -> u64 {
        self.violations
    }

    /// Returns the texts of the first [`MAX_REPORTED`] violations.
    pub fn reported(&self) -> &[String] {
        &self.reported
    }

    /// Checks the last transaction of a chip. `too_fast` is whether its clock was too fast.
    pub(crate) fn check(&mut self, chip: &Chip, record: &Record, too_fast: bool) {
        for n in 0..self.rules.len() {
            let rule = &self.rules[n];
            if rule.is_violated(chip, record, too_fast) {
                let mut text = format!("rule \"{}\" violated: ", rule.name);
                // Writing to a String doesn't fail.
                let _ = record.write_text(chip.description(), &mut text);
                self.violated(text);
            }
        }
    }

    /// Checks for a loss of power at this time.
    pub(crate) fn power_lost(&mut self, time: u64) {
        for n in 0..self.rules.len() {
            if matches!(self.rules[n].check, Check::Never(Event::PowerLoss)) {
                let mut text = format!("rule \"{}\" violated: power lost", self.rules[n].name);
                let _ = write!(text, " at {:.3} us", time as f64 / 1e3);
                self.violated(text);
            }
        }
    }

    fn violated(&mut self, text: String) {
        let text = text.trim_end().to_owned();
        self.violations += 1;
        if self.reported.len() < MAX_REPORTED {
            tracing::error!("{text}");
            self.reported.push(text);
        }
    }
}

impl Rule {
    fn is_violated(&self, chip: &Chip, record: &Record, too_fast: bool) -> bool {
        let command = chip.description().command(record.opcode, record.qpi);
        let action = command.map(|command| command.action);
        let done = record.refusal.is_none();
        let programs =
            done && matches!(action, Some(Action::Program | Action::AaiProgram | Action::WriteMemory));
        let erases = done && matches!(action, Some(Action::Erase | Action::ChipErase));
        let inside = self.concerns(chip, record, action, command.map_or(0, |command| command.size));
        inside
            && match &self.check {
                Check::NeverOpcode(opcodes) => opcodes.contains(&record.opcode),
                Check::MostErases(most) => erases && self.most_erased(chip, record) > *most,
                Check::Never(event) => match event {
                    Event::ProgramUnerased => record.overwrites > 0,
                    Event::Program => programs,
                    Event::Erase => erases,
                    Event::Write => programs || erases,
                    Event::Refused => !done,
                    Event::Busy => record.refusal == Some(Refusal::Busy),
                    Event::NotWriteEnabled => record.refusal == Some(Refusal::NotWriteEnabled),
                    Event::Protected => record.refusal == Some(Refusal::Protected),
                    Event::UnknownOpcode => record.refusal == Some(Refusal::UnknownOpcode),
                    Event::TooFast => too_fast,
                    Event::PowerLoss => false,
                },
            }
    }

    /// Returns whether the transaction touches the rule's range. One without an address concerns the whole
    /// array.
    fn concerns(&self, chip: &Chip, record: &Record, action: Option<Action>, size: u32) -> bool {
        let Some(address) = record.address else { return true };
        let page = u64::from(chip.description().page);
        let (start, length) = match action {
            Some(Action::Erase) => (address & !(size - 1), u64::from(size)),
            // A program wraps around in its page.
            Some(Action::Program) if u64::from(address) % page + record.received > page => {
                (address - (u64::from(address) % page) as u32, page)
            }
            _ => (address, (record.received + record.sent).max(1)),
        };
        start <= self.to && u64::from(start) + length > u64::from(self.from)
    }

    /// Returns the highest erase count of the rule's sectors, with the erase that the transaction began.
    fn most_erased(&self, chip: &Chip, record: &Record) -> u32 {
        let sector = chip.description().sector().max(1);
        let size = chip.description().command(record.opcode, record.qpi).map_or(0, |command| command.size);
        let erased = match record.address {
            Some(address) if size > 0 => address & !(size - 1)..(address & !(size - 1)).saturating_add(size),
            _ => 0..chip.description().size,
        };
        let range = erased.start.max(self.from)..erased.end.min(self.to.saturating_add(1));
        let counts = chip.erase_counts();
        let first = (range.start / sector) as usize;
        let last = (range.end.div_ceil(sector) as usize).min(counts.len());
        let most = counts.get(first..last).into_iter().flatten().max().copied().unwrap_or(0);
        // The chip counts a running erase only at its end.
        most + u32::from(chip.state() == State::Erasing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_lists_name_the_place() {
        let error = |text| Rules::parse("r.toml", text).unwrap_err();
        assert!(
            error("[[rule]]\nnever = \"forget\"").starts_with("r.toml:2:9: "),
            "{}",
            error("[[rule]]\nnever = \"forget\"")
        );
        assert!(error("[[rule]]\nneve = \"write\"").contains("r.toml:2:1: "));
        assert!(error("[[rule]]\nname = \"x\"").contains("rule 1: expected exactly one"));
        assert!(
            error("[[rule]]\nnever = \"write\"\nmost_erases = 3").contains("rule 1: expected exactly one")
        );
        assert!(error("[[rule]]\nnever = \"write\"\nfrom = 9\nto = 8").contains("empty range"));
        assert!(Rules::parse("r.toml", "").unwrap().is_empty());
    }
}
