//! The language of the rules; each text is one rule:
//!
//! ```text
//! [OPERATION...] [WHERE] [WHEN...] EFFECT...
//! OPERATION   read write flush discard write_zeroes | append finish reset | any (where none is named)
//! WHERE       range=A..B (bytes of a device)   zones=A..B (of zones)
//! WHEN        probability=P   every=N   after=N   times=N
//! EFFECT      error=ERRNO   dead (= error=EIO)   delay=TIME or TIME..TIME
//!             torn [at=BYTES]   corrupt [bits=N]   misdirect [by=N blocks|zones|bytes]   drop   lie
//! ```
//! Words may be in any order. A bare number after `by=` counts blocks, or zones; `by=32KiB` and `by=512
//! bytes` are bytes. An effect with `error` is carried out, and the call fails after it; `error` alone fails
//! the call without carrying it out.

use super::rule::{Action, Distance, ERRORS, OPERATION_WORDS, Operations, Rule};
use block::{Error, Result};
use stack::{Contract, did_you_mean, parse_duration, parse_size};
use std::ops::Range;
use std::time::Duration;

const WORDS: &[&str] = &[
    "read",
    "write",
    "flush",
    "discard",
    "write_zeroes",
    "append",
    "finish",
    "reset",
    "any",
    "range",
    "zones",
    "probability",
    "every",
    "after",
    "times",
    "error",
    "dead",
    "delay",
    "torn",
    "at",
    "corrupt",
    "bits",
    "misdirect",
    "by",
    "drop",
    "lie",
];

/// Parses all rules of a layer.
///
/// # Errors
/// [`Error::Invalid`] with the rule's number, its text, the column of the wrong word, the expected words and
/// the nearest known one.
pub fn parse_rules(texts: &[String], contract: Contract) -> Result<Vec<Rule>> {
    let parse = |(index, text): (usize, &String)| {
        parse_rule(text, contract).map_err(|(column, problem)| {
            Error::invalid(format!("rule {} \"{text}\", column {}: {problem}", index + 1, column + 1))
        })
    };
    texts.iter().enumerate().map(parse).collect()
}

/// Column in the rule, in characters from 0, and the problem there.
type Wrong = (usize, String);

struct Word<'a> {
    column: usize,
    text: &'a str,
}

fn words(text: &str) -> Vec<Word<'_>> {
    let mut words = Vec::new();
    let mut start = None;
    for (at, letter) in text.char_indices().chain([(text.len(), ' ')]) {
        match (letter.is_whitespace(), start) {
            (false, None) => start = Some(at),
            (true, Some(from)) => {
                words.push(Word { column: text[..from].chars().count(), text: &text[from..at] });
                start = None;
            }
            _ => {}
        }
    }
    words
}

/// Words of a rule that have been parsed; `None` for missing ones.
#[derive(Default)]
struct Draft {
    operations: Option<Operations>,
    operations_column: usize,
    range: Option<Range<u64>>,
    zones: Option<Range<u64>>,
    probability: Option<f64>,
    every: Option<u64>,
    after: Option<u64>,
    times: Option<u64>,
    error: Option<usize>,
    delay: Option<(Duration, Duration)>,
    action: Option<(usize, &'static str)>,
    at: Option<(usize, u64)>,
    bits: Option<(usize, u64)>,
    by: Option<(usize, Distance)>,
}

fn parse_rule(text: &str, contract: Contract) -> Result<Rule, Wrong> {
    let mut draft = Draft::default();
    let words = words(text);
    let mut rest = words.iter().peekable();
    while let Some(word) = rest.next() {
        let (name, value) = match word.text.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word.text, None),
        };
        let mut unit = None;
        if name == "by" {
            unit = rest.next_if(|word| ["blocks", "block", "zones", "zone", "bytes"].contains(&word.text));
        }
        read_word(&mut draft, word.column, name, value, unit.map(|word| word.text), contract)?;
    }
    finish(draft, text, contract)
}

fn read_word(
    draft: &mut Draft,
    column: usize,
    name: &str,
    value: Option<&str>,
    unit: Option<&str>,
    contract: Contract,
) -> Result<(), Wrong> {
    // The column of a value is the one after the `=`.
    let value_column = column + name.chars().count() + 1;
    let value_of =
        || value.ok_or_else(|| (column, format!("\"{name}\" needs a value, as in {}", example(name))));
    let wrong = |error: Error| (value_column, error.detail().to_owned());
    match name {
        "range" => {
            no_zones(contract, column)?;
            set(&mut draft.range, range(value_of()?, parse_size).map_err(wrong)?, column, name)
        }
        "zones" => {
            if contract == Contract::Device {
                return Err((
                    column,
                    "\"zones\": only rules on zones have it; on devices use range=A..B".into(),
                ));
            }
            set(&mut draft.zones, range(value_of()?, number).map_err(wrong)?, column, name)
        }
        "probability" => set(&mut draft.probability, probability(value_of()?).map_err(wrong)?, column, name),
        "every" => set(&mut draft.every, positive(value_of()?).map_err(wrong)?, column, name),
        "after" => set(&mut draft.after, number(value_of()?).map_err(wrong)?, column, name),
        "times" => set(&mut draft.times, positive(value_of()?).map_err(wrong)?, column, name),
        "error" => set(&mut draft.error, errno(value.unwrap_or("EIO")).map_err(wrong)?, column, name),
        "delay" => set(&mut draft.delay, delay(value_of()?).map_err(wrong)?, column, name),
        "at" => set(&mut draft.at, (column, parse_size(value_of()?).map_err(wrong)?), column, name),
        "bits" => set(&mut draft.bits, (column, positive(value_of()?).map_err(wrong)?), column, name),
        "by" => {
            let by = distance(value_of()?, unit, contract).map_err(wrong)?;
            set(&mut draft.by, (column, by), column, name)
        }
        _ if value.is_some() && WORDS.contains(&name) => Err((column, format!("\"{name}\" takes no value"))),
        "dead" => set(&mut draft.error, 0, column, name),
        "torn" | "corrupt" | "misdirect" | "drop" | "lie" => {
            let word = WORDS.iter().find(|word| **word == name).expect("every effect is a known word");
            if let Some((_, other)) = draft.action {
                return Err((
                    column,
                    format!(
                        "\"{name}\": the rule already has \"{other}\"; expected one of torn, corrupt, misdirect, drop and lie"
                    ),
                ));
            }
            draft.action = Some((column, word));
            Ok(())
        }
        _ => {
            let Some((_, operations)) = OPERATION_WORDS.iter().find(|(word, _)| *word == name) else {
                let hint = did_you_mean(name, WORDS.iter().copied());
                return Err((column, format!("unknown word \"{name}\"{hint} (known: {})", WORDS.join(", "))));
            };
            let of_contract = possible(contract);
            if operations.and(of_contract).is_empty() {
                return Err((
                    column,
                    format!(
                        "\"{name}\" isn't an operation of {}; expected {}",
                        contract.noun(),
                        list(of_contract)
                    ),
                ));
            }
            if draft.operations.is_none() {
                draft.operations_column = column;
            }
            let before = draft.operations.unwrap_or(Operations(0));
            draft.operations = Some(before.or(operations.and(of_contract)));
            Ok(())
        }
    }
}

fn finish(draft: Draft, text: &str, contract: Contract) -> Result<Rule, Wrong> {
    let end = text.trim_end().chars().count();
    if draft.action.is_none() && draft.error.is_none() && draft.delay.is_none() {
        let expected =
            "expected an effect: error=ERRNO, dead, delay=TIME, torn, corrupt, misdirect, drop or lie";
        return Err((end, format!("the rule has no effect; {expected}")));
    }
    let name = draft.action.map(|(_, word)| word);
    for (given, parameter, of) in [
        (draft.at.map(|(column, _)| column), "at", "torn"),
        (draft.bits.map(|(column, _)| column), "bits", "corrupt"),
        (draft.by.map(|(column, _)| column), "by", "misdirect"),
    ] {
        if let Some(column) = given.filter(|_| name != Some(of)) {
            return Err((column, format!("\"{parameter}\" needs \"{of}\", which this rule doesn't have")));
        }
    }
    let action = name.map(|word| match word {
        "torn" => Action::Torn { at: draft.at.map(|(_, at)| at) },
        "corrupt" => Action::Corrupt { bits: draft.bits.map_or(1, |(_, bits)| bits) },
        "misdirect" => Action::Misdirect { by: draft.by.map_or(Distance::Units(1), |(_, by)| by) },
        "drop" => Action::Drop,
        _ => Action::Lie,
    });
    let mut operations = draft.operations.unwrap_or(possible(contract));
    if let (Some(action), Some((column, _))) = (action, draft.action) {
        let able = action.applies_to().and(possible(contract));
        let asked_for_all = operations == possible(contract);
        if !asked_for_all && operations.and(able) != operations || able.is_empty() {
            return Err((
                column,
                format!(
                    "\"{}\" doesn't apply to all operations of this rule; expected only {}",
                    action.word(),
                    list(able)
                ),
            ));
        }
        operations = operations.and(able);
    }
    if draft.range.is_some() && operations == Operations(super::rule::Operation::Flush as u16) {
        return Err((draft.operations_column, "a flush has no range".into()));
    }
    Ok(Rule {
        text: text.trim().to_owned(),
        operations,
        bytes: draft.range,
        zones: draft.zones,
        probability: draft.probability,
        every: draft.every,
        after: draft.after.unwrap_or(0),
        times: draft.times,
        delay: draft.delay,
        action,
        error: draft.error,
    })
}

fn possible(contract: Contract) -> Operations {
    if contract == Contract::Zones { Operations::ZONES } else { Operations::DEVICE }
}

fn list(operations: Operations) -> String {
    let named = OPERATION_WORDS.iter().filter(|(word, of)| *word != "any" && !of.and(operations).is_empty());
    named.map(|(word, _)| *word).collect::<Vec<_>>().join(", ")
}

fn no_zones(contract: Contract, column: usize) -> Result<(), Wrong> {
    if contract == Contract::Zones {
        return Err((column, "\"range\": only rules on devices have it; on zones use zones=A..B".into()));
    }
    Ok(())
}

fn set<T>(field: &mut Option<T>, value: T, column: usize, name: &str) -> Result<(), Wrong> {
    if field.is_some() {
        return Err((column, format!("\"{name}\" is given twice")));
    }
    *field = Some(value);
    Ok(())
}

fn example(name: &str) -> &'static str {
    match name {
        "range" => "range=1GiB..2GiB",
        "zones" => "zones=0..4",
        "probability" => "probability=0.01",
        "delay" => "delay=5ms",
        "at" => "at=512",
        "bits" => "bits=1",
        "by" => "by=8 blocks",
        "every" => "every=100",
        "after" => "after=100",
        _ => "times=3",
    }
}

fn number(text: &str) -> Result<u64> {
    text.parse().map_err(|_| Error::invalid(format!("\"{text}\": expected a whole number")))
}

fn positive(text: &str) -> Result<u64> {
    match number(text)? {
        0 => Err(Error::invalid("0: expected a whole number above 0")),
        other => Ok(other),
    }
}

fn probability(text: &str) -> Result<f64> {
    match text.parse::<f64>() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err(Error::invalid(format!("\"{text}\": expected a probability from 0 to 1"))),
    }
}

fn errno(text: &str) -> Result<usize> {
    if let Some(index) = ERRORS.iter().position(|(name, _)| *name == text) {
        return Ok(index);
    }
    let names = ERRORS.iter().map(|(name, _)| *name);
    let hint = did_you_mean(text, names.clone());
    let known = names.collect::<Vec<_>>().join(", ");
    Err(Error::invalid(format!("unknown error \"{text}\"{hint} (known: {known})")))
}

fn range(text: &str, parse: impl Fn(&str) -> Result<u64>) -> Result<Range<u64>> {
    let (start, end) = text
        .split_once("..")
        .ok_or_else(|| Error::invalid(format!("\"{text}\": expected a range A..B, B not included")))?;
    let range = parse(start)?..parse(end)?;
    if range.is_empty() {
        return Err(Error::invalid(format!(
            "\"{text}\": the range is empty; expected an end above the start"
        )));
    }
    Ok(range)
}

fn delay(text: &str) -> Result<(Duration, Duration)> {
    let (least, most) = text.split_once("..").unwrap_or((text, text));
    let (least, most) = (parse_duration(least)?, parse_duration(most)?);
    if most < least {
        return Err(Error::invalid(format!(
            "\"{text}\": expected the shortest delay first, then the longest"
        )));
    }
    Ok((least, most))
}

fn distance(text: &str, unit: Option<&str>, contract: Contract) -> Result<Distance> {
    let unit = unit.map(|unit| unit.trim_end_matches('s'));
    let own = if contract == Contract::Zones { "zone" } else { "block" };
    let distance = match unit {
        Some("byte") if contract == Contract::Device => Distance::Bytes(positive(text)?),
        None | Some("block" | "zone") if unit.unwrap_or(own) == own && number(text).is_ok() => {
            Distance::Units(positive(text)?)
        }
        None if contract == Contract::Device => Distance::Bytes(parse_size(text)?),
        _ => {
            return Err(Error::invalid(format!(
                "\"{text}\": expected a number of {own}s, as for {}",
                contract.noun()
            )));
        }
    };
    Ok(distance)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::rule::Operation;
    use proptest::prelude::*;

    fn one(text: &str) -> Rule {
        parse_rules(&[text.to_owned()], Contract::Device).expect(text).remove(0)
    }

    fn refused(text: &str, contract: Contract) -> String {
        parse_rules(&[text.to_owned()], contract).expect_err(text).detail().to_owned()
    }

    #[test]
    fn the_examples_mean_what_they_say() {
        let rule = one("read error=EIO probability=0.01");
        assert_eq!(rule.operations, Operations(Operation::Read as u16));
        assert_eq!((rule.error, rule.probability), (Some(0), Some(0.01)));
        let rule = one("write torn at=512 every=100");
        assert_eq!((rule.action, rule.every), (Some(Action::Torn { at: Some(512) }), Some(100)));
        let rule = one("write corrupt bits=1 range=0..1MiB");
        assert_eq!((rule.action, rule.bytes), (Some(Action::Corrupt { bits: 1 }), Some(0..1 << 20)));
        let rule = one("any delay=5ms");
        assert_eq!(rule.delay, Some((Duration::from_millis(5), Duration::from_millis(5))));
        assert_eq!(rule.operations, Operations::DEVICE);
        assert_eq!(
            one("write misdirect by=8 blocks").action,
            Some(Action::Misdirect { by: Distance::Units(8) })
        );
        assert_eq!(one("misdirect by=32KiB").action, Some(Action::Misdirect { by: Distance::Bytes(32768) }));
        assert_eq!(one("flush lie").action, Some(Action::Lie));
        let rule = one("range=1GiB..2GiB dead");
        assert_eq!((rule.error, rule.operations), (Some(0), Operations::DEVICE));
        assert_eq!(one("delay=1ms..3ms read write").operations, Operations(3));
        assert_eq!(one("any torn").operations, Operations(Operation::Write as u16));
    }

    #[test]
    fn errors_point_at_the_word_and_name_the_nearest() {
        let text = refused("read eror=EIO", Contract::Device);
        assert!(text.contains("rule 1") && text.contains("column 6") && text.contains("\"error\""), "{text}");
        let text = refused("read error=EI0", Contract::Device);
        assert!(text.contains("column 12") && text.contains("EIO"), "{text}");
        for (rule, expected) in [
            ("read", "has no effect"),
            ("", "has no effect"),
            ("flush torn", "torn"),
            ("write drop lie", "one of torn"),
            ("write torn bits=3", "needs \"corrupt\""),
            ("write drop every=0", "above 0"),
            ("write drop probability=1.5", "from 0 to 1"),
            ("write drop range=4096..4096", "empty"),
            ("write drop range=4096", "A..B"),
            ("write drop=1", "takes no value"),
            ("append drop", "isn't an operation of a device"),
            ("write drop zones=1..2", "only rules on zones"),
            ("write drop every=1 every=2", "twice"),
            ("delay", "needs a value"),
            ("any delay=5", "ms"),
            ("write misdirect by=2 zones", "expected a number of blocks"),
        ] {
            let text = refused(rule, Contract::Device);
            assert!(text.contains(expected), "{rule}: {text}");
        }
        assert!(refused("write drop", Contract::Zones).contains("isn't an operation of zones"));
        assert!(refused("append drop range=0..1MiB", Contract::Zones).contains("zones=A..B"));
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text in "\\PC{0,40}", words in prop::collection::vec(
            prop::sample::select(vec!["read", "write", "torn", "at=", "=", "by=3", "blocks", "range=1..", "delay=1ms..", "µ"]), 0..6)) {
            let _ = parse_rules(&[text, words.join(" ")], Contract::Device);
            let _ = parse_rules(&[words.join(" ")], Contract::Zones);
        }
    }
}
