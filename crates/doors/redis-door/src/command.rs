//! Parsing of commands: arguments to requests, with redis's errors for invalid ones.

use crate::pattern::Pattern;
use crate::table::{self, Command};
use kv::{MAX_KEY_BYTES, Scan, Timestamp};
use resp::{Arguments, integer};
use std::borrow::Cow;

/// Maximum bytes of an unknown command's name, and of its arguments, in an error.
const SHOWN_BYTES: usize = 128;

/// An error reply: a code, such as `ERR`, and a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure(pub Cow<'static, [u8]>);

impl Failure {
    /// A failure with this text.
    pub fn new(text: impl Into<String>) -> Failure {
        Failure(Cow::Owned(text.into().into_bytes()))
    }

    /// A failure with a fixed text.
    pub const fn fixed(text: &'static str) -> Failure {
        Failure(Cow::Borrowed(text.as_bytes()))
    }
}

pub(super) const SYNTAX: Failure = Failure::fixed("ERR syntax error");
pub(super) const NO_INTEGER: Failure = Failure::fixed("ERR value is not an integer or out of range");
pub(super) const OVERFLOW: Failure = Failure::fixed("ERR increment or decrement would overflow");
pub(super) const LONG_STRING: Failure =
    Failure::fixed("ERR string exceeds maximum allowed size (proto-max-bulk-len)");

/// Condition of `SET`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// Unconditional.
    Always,
    /// The key doesn't exist.
    IfAbsent,
    /// The key exists.
    IfPresent,
}

/// Change of a key's expiry by a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expiry {
    /// The key doesn't expire.
    Never,
    /// The key keeps its expiry.
    Keep,
    /// Milliseconds since 1970; a past time deletes the key.
    At(i64),
}

/// Reply to a request that sets a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetReply {
    /// `OK`, or null if the condition isn't met.
    Ok,
    /// The previous value, or null.
    Before,
    /// 1, or 0 if the condition isn't met.
    Number,
}

/// Conditions of `EXPIRE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExpireConditions {
    /// The key has no expiry.
    pub if_none: bool,
    /// The key has an expiry.
    pub if_any: bool,
    /// The new expiry is later; no expiry is the latest.
    pub if_later: bool,
    /// The new expiry is earlier.
    pub if_earlier: bool,
}

/// A request.
#[derive(Debug, Clone)]
#[allow(missing_docs)] // The fields are the arguments of redis's commands.
pub enum Request<'a> {
    Get {
        key: &'a [u8],
    },
    Set {
        key: &'a [u8],
        value: &'a [u8],
        expiry: Expiry,
        condition: Condition,
        reply: SetReply,
    },
    GetAndDelete {
        key: &'a [u8],
    },
    /// `GETEX`; an invalid time is an error only if the key exists.
    GetAndExpire {
        key: &'a [u8],
        expiry: Result<Expiry, Failure>,
    },
    Delete {
        keys: Arguments<'a>,
    },
    Exists {
        keys: Arguments<'a>,
    },
    /// `EXPIRE` and its variants; `at` is in milliseconds since 1970.
    Expire {
        key: &'a [u8],
        at: i64,
        conditions: ExpireConditions,
    },
    /// `TTL` and its variants.
    ReadExpiry {
        key: &'a [u8],
        in_seconds: bool,
        is_absolute: bool,
    },
    Persist {
        key: &'a [u8],
    },
    Length {
        key: &'a [u8],
    },
    Append {
        key: &'a [u8],
        value: &'a [u8],
    },
    Add {
        key: &'a [u8],
        amount: i64,
    },
    GetMany {
        keys: Arguments<'a>,
    },
    SetMany {
        pairs: Arguments<'a>,
    },
    SetManyIfAbsent {
        pairs: Arguments<'a>,
    },
    /// `is_other_type`: the type that is asked for is one that no key has.
    Scan {
        cursor: u64,
        pattern: Option<Pattern>,
        count: usize,
        is_other_type: bool,
    },
    Keys {
        pattern: Pattern,
    },
    /// `KV.SCAN`, an extension of this store.
    Range {
        range: Scan,
        only_keys: bool,
    },
    /// `KV.SNAPSHOT`.
    Snapshot,
    /// `KV.RELEASE`.
    Release,
    /// `KV.COMPACT`.
    Compact,
    Type {
        key: &'a [u8],
    },
    Count,
    Clear,
    Ping {
        text: Option<&'a [u8]>,
    },
    Echo {
        text: &'a [u8],
    },
    Select,
    Wait,
    Quit,
    Reset,
    /// `AUTH`, `CLIENT`, `COMMAND`, `CONFIG`, `HELLO` or `INFO`; its arguments are parsed during execution.
    Server {
        command: &'static Command,
        arguments: Arguments<'a>,
    },
}

/// Parses a command; `now` is called only for a relative time.
///
/// # Errors
/// The error reply for an unknown command or invalid arguments.
pub fn parse(arguments: Arguments<'_>, now: impl FnOnce() -> Timestamp) -> Result<Request<'_>, Failure> {
    let Some(command) = table::find(arguments.at(0)) else { return Err(unknown(arguments)) };
    if !command.takes(arguments.len()) {
        return Err(wrong_arity(command.name));
    }
    check_keys(command, arguments)?;
    let (key, second) = (arguments.at(1), arguments.at(2));
    let rest = arguments.from(1);
    let now = || i64::try_from(now()).unwrap_or(i64::MAX);
    Ok(match command.name {
        "get" => Request::Get { key },
        "set" => parse_set(arguments, now)?,
        "setex" | "psetex" => {
            let unit =
                if command.name == "setex" { Unit::SECONDS_FROM_NOW } else { Unit::MILLISECONDS_FROM_NOW };
            let expiry = Expiry::At(unit.parse(second, command.name, now)?);
            let value = arguments.at(3);
            Request::Set { key, value, expiry, condition: Condition::Always, reply: SetReply::Ok }
        }
        "setnx" => Request::Set {
            key,
            value: second,
            expiry: Expiry::Never,
            condition: Condition::IfAbsent,
            reply: SetReply::Number,
        },
        "getdel" => Request::GetAndDelete { key },
        "getex" => parse_getex(arguments, now)?,
        "del" | "unlink" => Request::Delete { keys: rest },
        "exists" => Request::Exists { keys: rest },
        "expire" => parse_expire(arguments, Unit::SECONDS_FROM_NOW, command.name, now)?,
        "pexpire" => parse_expire(arguments, Unit::MILLISECONDS_FROM_NOW, command.name, now)?,
        "expireat" => parse_expire(arguments, Unit::SECONDS, command.name, now)?,
        "pexpireat" => parse_expire(arguments, Unit::MILLISECONDS, command.name, now)?,
        "ttl" => Request::ReadExpiry { key, in_seconds: true, is_absolute: false },
        "pttl" => Request::ReadExpiry { key, in_seconds: false, is_absolute: false },
        "expiretime" => Request::ReadExpiry { key, in_seconds: true, is_absolute: true },
        "pexpiretime" => Request::ReadExpiry { key, in_seconds: false, is_absolute: true },
        "persist" => Request::Persist { key },
        "strlen" => Request::Length { key },
        "append" => Request::Append { key, value: second },
        "incr" => Request::Add { key, amount: 1 },
        "decr" => Request::Add { key, amount: -1 },
        "incrby" => Request::Add { key, amount: number(second)? },
        "decrby" => {
            let amount = number(second)?.checked_neg();
            Request::Add { key, amount: amount.ok_or(Failure::fixed("ERR decrement would overflow"))? }
        }
        "mget" => Request::GetMany { keys: rest },
        "mset" | "msetnx" => {
            if !rest.len().is_multiple_of(2) {
                return Err(wrong_arity(command.name));
            }
            match command.name {
                "mset" => Request::SetMany { pairs: rest },
                _ => Request::SetManyIfAbsent { pairs: rest },
            }
        }
        "scan" => parse_scan(arguments)?,
        "kv.scan" => parse_range(arguments)?,
        "kv.snapshot" => Request::Snapshot,
        "kv.release" => Request::Release,
        "kv.compact" => Request::Compact,
        "keys" => Request::Keys { pattern: Pattern::parse(key)? },
        "type" => Request::Type { key },
        "dbsize" => Request::Count,
        "flushall" | "flushdb" => match rest.get(0) {
            None => Request::Clear,
            Some(mode) if rest.len() == 1 && (is(mode, "async") || is(mode, "sync")) => Request::Clear,
            Some(_) => return Err(SYNTAX),
        },
        "ping" if rest.len() > 1 => return Err(wrong_arity(command.name)),
        "ping" => Request::Ping { text: rest.get(0) },
        "echo" => Request::Echo { text: key },
        "select" => match number(key)? {
            0 => Request::Select,
            _ => return Err(Failure::fixed("ERR DB index is out of range")),
        },
        "wait" => {
            number(key)?;
            let timeout =
                integer(second).ok_or(Failure::fixed("ERR timeout is not an integer or out of range"))?;
            if timeout < 0 {
                return Err(Failure::fixed("ERR timeout is negative"));
            }
            Request::Wait
        }
        "quit" => Request::Quit,
        "reset" => Request::Reset,
        _ => Request::Server { command, arguments },
    })
}

/// Whether an argument equals this word, ignoring case.
pub(super) fn is(argument: &[u8], word: &str) -> bool {
    argument.eq_ignore_ascii_case(word.as_bytes())
}

fn number(text: &[u8]) -> Result<i64, Failure> {
    integer(text).ok_or(NO_INTEGER)
}

/// Error of a wrong number of arguments; the name of a subcommand is `command|subcommand`.
pub(super) fn wrong_arity(name: &str) -> Failure {
    Failure::new(format!("ERR wrong number of arguments for '{name}' command"))
}

/// Error of an unknown command, with the start of its arguments.
fn unknown(arguments: Arguments<'_>) -> Failure {
    let shown = |bytes: &[u8], most: usize| bytes[..bytes.len().min(most)].to_vec();
    let mut list = Vec::new();
    for argument in arguments.from(1).iter() {
        if list.len() >= SHOWN_BYTES {
            break;
        }
        let argument = shown(argument, SHOWN_BYTES - list.len());
        list.extend([b"'", argument.as_slice(), b"' "].concat());
    }
    let name = shown(arguments.at(0), SHOWN_BYTES);
    let text = [b"ERR unknown command '", name.as_slice(), b"', with args beginning with: ", &list].concat();
    Failure(Cow::Owned(text))
}

/// Checks the lengths of the keys.
fn check_keys(command: &Command, arguments: Arguments<'_>) -> Result<(), Failure> {
    if command.keys.first == 0 {
        return Ok(());
    }
    let step = command.keys.step as usize;
    let last = if command.keys.last < 0 { arguments.len() - 1 } else { command.keys.last as usize };
    match (1..=last)
        .step_by(step)
        .map(|index| arguments.at(index).len())
        .find(|length| *length > MAX_KEY_BYTES)
    {
        None => Ok(()),
        Some(length) => {
            Err(Failure::new(format!("ERR key of {length} bytes; expected at most {MAX_KEY_BYTES} bytes")))
        }
    }
}

/// Unit of a number that is a time.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Unit {
    milliseconds: i64,
    is_absolute: bool,
}

impl Unit {
    const SECONDS: Unit = Unit { milliseconds: 1000, is_absolute: true };
    const MILLISECONDS: Unit = Unit { milliseconds: 1, is_absolute: true };
    const SECONDS_FROM_NOW: Unit = Unit { milliseconds: 1000, is_absolute: false };
    const MILLISECONDS_FROM_NOW: Unit = Unit { milliseconds: 1, is_absolute: false };

    /// Unit of an option of `SET`; `None` for other options.
    fn of(option: &[u8]) -> Option<Unit> {
        let all = [
            ("ex", Unit::SECONDS_FROM_NOW),
            ("px", Unit::MILLISECONDS_FROM_NOW),
            ("exat", Unit::SECONDS),
            ("pxat", Unit::MILLISECONDS),
        ];
        all.into_iter().find(|(name, _)| is(option, name)).map(|(_, unit)| unit)
    }

    /// Converts to milliseconds since 1970.
    fn time(self, number: i64, command: &str, now: impl FnOnce() -> i64) -> Result<i64, Failure> {
        let since = if self.is_absolute { 0 } else { now() };
        let time = number.checked_mul(self.milliseconds).and_then(|time| time.checked_add(since));
        time.ok_or_else(|| invalid_time(command))
    }

    /// Parses a positive time, absolute or relative.
    fn parse(self, text: &[u8], command: &str, now: impl FnOnce() -> i64) -> Result<i64, Failure> {
        match number(text)? {
            number @ 1.. => self.time(number, command, now),
            _ => Err(invalid_time(command)),
        }
    }
}

fn invalid_time(command: &str) -> Failure {
    Failure::new(format!("ERR invalid expire time in '{command}' command"))
}

fn parse_set(arguments: Arguments<'_>, now: impl FnOnce() -> i64) -> Result<Request<'_>, Failure> {
    let (mut condition, mut reply, mut keep) = (Condition::Always, SetReply::Ok, false);
    let mut time: Option<(Unit, &[u8])> = None;
    let mut index = 3;
    while let Some(option) = arguments.get(index) {
        index += 1;
        let unit = Unit::of(option);
        if is(option, "nx") && condition != Condition::IfPresent {
            condition = Condition::IfAbsent;
        } else if is(option, "xx") && condition != Condition::IfAbsent {
            condition = Condition::IfPresent;
        } else if is(option, "get") {
            reply = SetReply::Before;
        } else if is(option, "keepttl") && time.is_none() {
            keep = true;
        } else if let (Some(unit), Some(number)) = (unit, arguments.get(index))
            && !keep
            && time.is_none_or(|(before, _)| before == unit)
        {
            time = Some((unit, number));
            index += 1;
        } else {
            return Err(SYNTAX);
        }
    }
    let expiry = match time {
        Some((unit, number)) => Expiry::At(unit.parse(number, "set", now)?),
        None if keep => Expiry::Keep,
        None => Expiry::Never,
    };
    Ok(Request::Set { key: arguments.at(1), value: arguments.at(2), expiry, condition, reply })
}

fn parse_getex(arguments: Arguments<'_>, now: impl FnOnce() -> i64) -> Result<Request<'_>, Failure> {
    let mut persist = false;
    let mut time: Option<(Unit, &[u8])> = None;
    let mut index = 2;
    while let Some(option) = arguments.get(index) {
        index += 1;
        if is(option, "persist") && time.is_none() {
            persist = true;
        } else if let (Some(unit), Some(number)) = (Unit::of(option), arguments.get(index))
            && !persist
            && time.is_none_or(|(before, _)| before == unit)
        {
            time = Some((unit, number));
            index += 1;
        } else {
            return Err(SYNTAX);
        }
    }
    let expiry = match time {
        Some((unit, number)) => unit.parse(number, "getex", now).map(Expiry::At),
        None if persist => Ok(Expiry::Never),
        None => Ok(Expiry::Keep),
    };
    Ok(Request::GetAndExpire { key: arguments.at(1), expiry })
}

fn parse_expire<'a>(
    arguments: Arguments<'a>,
    unit: Unit,
    command: &str,
    now: impl FnOnce() -> i64,
) -> Result<Request<'a>, Failure> {
    let mut conditions = ExpireConditions::default();
    for option in arguments.from(3).iter() {
        let all = [
            ("nx", &mut conditions.if_none),
            ("xx", &mut conditions.if_any),
            ("gt", &mut conditions.if_later),
            ("lt", &mut conditions.if_earlier),
        ];
        match all.into_iter().find(|(name, _)| is(option, name)) {
            Some((_, condition)) => *condition = true,
            None => return Err(Failure(Cow::Owned([b"ERR Unsupported option ", option].concat()))),
        }
    }
    let ExpireConditions { if_none, if_any, if_later, if_earlier } = conditions;
    if if_none && (if_any || if_later || if_earlier) {
        let text = "ERR NX and XX, GT or LT options at the same time are not compatible";
        return Err(Failure::fixed(text));
    }
    if if_later && if_earlier {
        return Err(Failure::fixed("ERR GT and LT options at the same time are not compatible"));
    }
    let at = unit.time(number(arguments.at(2))?, command, now)?;
    Ok(Request::Expire { key: arguments.at(1), at, conditions })
}

fn parse_scan(arguments: Arguments<'_>) -> Result<Request<'_>, Failure> {
    let cursor = std::str::from_utf8(arguments.at(1))
        .ok()
        .filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let cursor = cursor.and_then(|text| text.parse().ok()).ok_or(Failure::fixed("ERR invalid cursor"))?;
    let (mut pattern, mut count, mut is_other_type) = (None, 10, false);
    let mut index = 2;
    while let Some(option) = arguments.get(index) {
        let Some(value) = arguments.get(index + 1) else { return Err(SYNTAX) };
        index += 2;
        if is(option, "count") {
            count = match number(value)? {
                count @ 1.. => count as usize,
                _ => return Err(SYNTAX),
            };
        } else if is(option, "match") {
            pattern = Some(Pattern::parse(value)?).filter(|pattern| !pattern.is_any());
        } else if is(option, "type") {
            is_other_type = !is(value, "string");
        } else {
            return Err(SYNTAX);
        }
    }
    Ok(Request::Scan { cursor, pattern, count, is_other_type })
}

/// Maximum number of keys that `KV.SCAN` returns.
const MAX_RANGE_KEYS: usize = 1000;

/// Parses `KV.SCAN [FROM key] [TO key] [LIMIT count] [REVERSE] [KEYS]`.
fn parse_range(arguments: Arguments<'_>) -> Result<Request<'_>, Failure> {
    let (mut range, mut only_keys) = (Scan::from(Vec::new(), MAX_RANGE_KEYS), false);
    let mut index = 1;
    while let Some(option) = arguments.get(index) {
        index += 1;
        if is(option, "reverse") {
            range.is_backward = true;
        } else if is(option, "keys") {
            only_keys = true;
        } else {
            let Some(value) = arguments.get(index) else { return Err(SYNTAX) };
            index += 1;
            if is(option, "from") {
                range.from = value.to_vec();
            } else if is(option, "to") {
                range.to = Some(value.to_vec());
            } else if is(option, "limit") {
                range.most = match number(value)? {
                    count @ 1.. => usize::try_from(count).unwrap_or(MAX_RANGE_KEYS).min(MAX_RANGE_KEYS),
                    _ => return Err(SYNTAX),
                };
            } else {
                return Err(SYNTAX);
            }
        }
    }
    Ok(Request::Range { range, only_keys })
}
