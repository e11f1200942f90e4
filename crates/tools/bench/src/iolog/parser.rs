//! Incremental parser of logs.
//!
//! Keeps at most a part of a line ([`MAX_LINE`]) and the names of files. Doesn't panic for any input.
//! Each invalid line is one problem, and later lines are still parsed, unless the first line shows that the
//! file isn't a log.

use super::{Action, Entry, Settings};
use stack::{Problem, did_you_mean};

/// Longest line, in bytes: fio's limit.
pub const MAX_LINE: usize = 4096;

/// Longest read or write, in bytes: buffers must fit into memory.
pub const MAX_REQUEST: u64 = 256 << 20;

/// Limit of the files of a log.
const MAX_FILES: usize = 10_000;

/// First bytes of a little-endian recording of blktrace; the byte before them is a version.
const BLKTRACE: &[u8] = b"tae";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    Two,
    Three,
}

struct NamedFile {
    name: Vec<u8>,
    is_open: bool,
}

/// Parser of one log.
pub struct Parser {
    /// Name of the log for messages.
    name: String,
    settings: Settings,
    version: Option<Version>,
    /// Number of the current line, from 1.
    line: u64,
    /// Bytes of the current line so far.
    begun: Vec<u8>,
    /// Whether the rest of the line is skipped because it is too long.
    skips: bool,
    /// Whether the file isn't a log.
    is_foreign: bool,
    files: Vec<NamedFile>,
    /// File of the previous line.
    current: usize,
    first_time: Option<u64>,
    /// Time until which later requests wait, in microseconds.
    waits_until: u64,
}

/// Field with a problem, and its description.
type Wrong<'a> = (&'a [u8], String);

impl Parser {
    /// Creates a parser at the start of a log.
    pub fn new(name: &str, settings: &Settings) -> Parser {
        Parser {
            name: name.to_owned(),
            settings: settings.clone(),
            version: None,
            line: 1,
            begun: Vec::new(),
            skips: false,
            is_foreign: false,
            files: Vec::new(),
            current: 0,
            first_time: None,
            waits_until: 0,
        }
    }

    /// Parses the next bytes, and passes the requests and problems of the lines that end in them to `found`.
    pub fn feed(&mut self, mut bytes: &[u8], found: &mut impl FnMut(Result<Entry, Problem>)) {
        while !bytes.is_empty() && !self.is_foreign {
            let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
                return self.begin(bytes, found);
            };
            let (line, rest) = (&bytes[..end], &bytes[end + 1..]);
            if self.begun.is_empty() && !self.skips && line.len() <= MAX_LINE {
                self.line(line, found);
            } else {
                self.begin(line, found);
                self.end_line(found);
            }
            self.line += 1;
            bytes = rest;
        }
    }

    /// Ends the log: a last line needs no newline.
    pub fn end(&mut self, found: &mut impl FnMut(Result<Entry, Problem>)) {
        if self.is_foreign {
            return;
        }
        if !self.begun.is_empty() || self.skips {
            self.end_line(found);
        }
        if self.version.is_none() && !self.is_foreign {
            found(Err(self.problem(1, foreign(b""))));
        }
    }

    /// Names of the files of the log, in the order in which they were added.
    pub fn file_names(&self) -> impl Iterator<Item = String> {
        self.files.iter().map(|file| String::from_utf8_lossy(&file.name).into_owned())
    }

    /// Keeps a part of a line.
    fn begin(&mut self, part: &[u8], found: &mut impl FnMut(Result<Entry, Problem>)) {
        if self.skips {
            return;
        }
        if self.begun.len() + part.len() <= MAX_LINE {
            return self.begun.extend_from_slice(part);
        }
        self.skips = true;
        let message = if self.version.is_none() {
            self.is_foreign = true;
            foreign(if self.begun.is_empty() { part } else { &self.begun })
        } else {
            format!("a line of more than {MAX_LINE} bytes: expected one request a line")
        };
        found(Err(self.problem(1, message)));
    }

    fn end_line(&mut self, found: &mut impl FnMut(Result<Entry, Problem>)) {
        let mut line = std::mem::take(&mut self.begun);
        if !std::mem::take(&mut self.skips) {
            self.line(&line, found);
        }
        line.clear();
        self.begun = line;
    }

    fn problem(&self, column: usize, message: String) -> Problem {
        Problem::at(&self.name, usize::try_from(self.line).unwrap_or(usize::MAX), column, message)
    }

    #[inline]
    fn line(&mut self, line: &[u8], found: &mut impl FnMut(Result<Entry, Problem>)) {
        match self.parse(line) {
            Ok(None) => {}
            Ok(Some(entry)) => found(Ok(entry)),
            Err((field, message)) => {
                // The field is a part of the line, or an empty text.
                let before = (field.as_ptr() as usize).checked_sub(line.as_ptr() as usize);
                let column = before.filter(|before| *before <= line.len()).map_or(1, |before| before + 1);
                found(Err(self.problem(column, message)));
            }
        }
    }

    fn parse<'a>(&mut self, line: &'a [u8]) -> Result<Option<Entry>, Wrong<'a>> {
        let Some(version) = self.version else { return self.header(line).map(|()| None) };
        let mut fields = [&b""[..]; 6];
        let mut count = 0;
        for field in line.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty()) {
            if count == fields.len() {
                return Err((field, shape(version)));
            }
            fields[count] = field;
            count += 1;
        }
        let (time, fields) = match version {
            _ if count == 0 => return Ok(None),
            Version::Two => (None, &fields[..count]),
            Version::Three => {
                let time = number(fields[0]).ok_or_else(|| {
                    let expected = "expected the time of the request in microseconds";
                    (fields[0], format!("{}: {expected}", text(fields[0])))
                });
                // A second log after the first gets a message of its own, not one about a number.
                if fields[0] == b"fio" { (None, &fields[..count]) } else { (Some(time?), &fields[1..count]) }
            }
        };
        if let Some(time) = time {
            let first = *self.first_time.get_or_insert(time);
            self.waits_until = time.saturating_sub(first);
        }
        match fields {
            [b"fio", b"version", ..] => {
                let message =
                    "another log begins here, as where fio wrote to a log that was there: keep one of them";
                Err((fields[0], message.into()))
            }
            [file, action] => self.file_line(file, action).map(|()| None),
            [file, action, offset, length] => self.request(version, file, action, (offset, length)),
            _ => Err((line, shape(version))),
        }
    }

    fn header<'a>(&mut self, line: &'a [u8]) -> Result<(), Wrong<'a>> {
        self.version = match line {
            _ if line.starts_with(b"fio version 2 iolog") => Some(Version::Two),
            _ if line.starts_with(b"fio version 3 iolog") => Some(Version::Three),
            _ => {
                self.is_foreign = true;
                return Err((line, foreign(line)));
            }
        };
        Ok(())
    }

    /// Parses a line about a file.
    fn file_line<'a>(&mut self, name: &'a [u8], action: &'a [u8]) -> Result<(), Wrong<'a>> {
        let known = self.files.iter().position(|file| file.name == name);
        match (action, known) {
            (b"add", None) => {
                if let (Some(first), None) = (self.files.first(), &self.settings.redirect) {
                    let message = format!(
                        "{}: a second file beside {}, and a job has one device: replay_redirect=NAME replays \
                         all files of the log on it",
                        text(name),
                        text(&first.name)
                    );
                    // The file is added, so that its requests aren't reported as well.
                    self.files.push(NamedFile { name: name.into(), is_open: true });
                    return Err((name, message));
                }
                if self.files.len() == MAX_FILES {
                    return Err((
                        name,
                        format!("more than {MAX_FILES} files: expected a log of block devices"),
                    ));
                }
                self.files.push(NamedFile { name: name.into(), is_open: false });
                Ok(())
            }
            (b"add", Some(_)) => Ok(()),
            (b"open" | b"close", Some(index)) => {
                self.files[index].is_open = action == b"open";
                Ok(())
            }
            (b"open" | b"close", None) => Err((name, not_added(name))),
            _ if Action::NAMES.iter().any(|(known, _)| known.as_bytes() == action) || action == b"wait" => {
                let action_text = text(action);
                Err((
                    action,
                    format!("{action_text} without its place: expected {action_text} OFFSET LENGTH"),
                ))
            }
            _ => Err((action, unknown(action))),
        }
    }

    #[inline]
    fn request<'a>(
        &mut self,
        version: Version,
        name: &'a [u8],
        action: &'a [u8],
        (offset_field, length_field): (&'a [u8], &'a [u8]),
    ) -> Result<Option<Entry>, Wrong<'a>> {
        if self.files.get(self.current).is_none_or(|file| file.name != name) {
            let found = self.files.iter().position(|file| file.name == name);
            self.current = found.ok_or_else(|| (name, not_added(name)))?;
        }
        let bytes = |field: &'a [u8]| {
            number(field).ok_or_else(|| (field, format!("{}: expected a number of bytes", text(field))))
        };
        let (offset, length) = (bytes(offset_field)?, bytes(length_field)?);
        let known = Action::NAMES.iter().find(|(known, _)| known.as_bytes() == action);
        let action = match known {
            Some((_, known)) => *known,
            None if action == b"wait" && version == Version::Two => {
                self.waits_until = self.waits_until.max(offset.saturating_mul(1000));
                return Ok(None);
            }
            None if action == b"wait" => {
                return Err((action, "wait in a log of version 3: expected times instead".into()));
            }
            None => return Err((action, unknown(action))),
        };
        if !self.files[self.current].is_open {
            let name_text = text(name);
            return Err((
                name,
                format!("{name_text} is not open: expected \"{name_text} open\" before this line"),
            ));
        }
        let entry = Entry { time: self.waits_until, action, offset: 0, length: 0, line: self.line };
        if action.is_flush() {
            return Ok(Some(entry));
        }
        if length == 0 {
            return Err((
                length_field,
                format!("{} of no bytes: expected at least one block", action.name()),
            ));
        }
        if action != Action::Trim && length > MAX_REQUEST {
            let message = format!("{} of {length} bytes: expected at most {MAX_REQUEST}", action.name());
            return Err((length_field, message));
        }
        let mut place = offset / self.settings.scale.max(1);
        place &= !(self.settings.align.max(1) - 1);
        match place.checked_add(length) {
            Some(end) if end <= i64::MAX as u64 => Ok(Some(Entry { offset: place, length, ..entry })),
            _ => {
                Err((offset_field, format!("{offset}: larger than any device; expected an offset in bytes")))
            }
        }
    }
}

fn text(field: &[u8]) -> String {
    const LONGEST: usize = 60;
    let text = String::from_utf8_lossy(field);
    let mut shown: String =
        text.chars().take(LONGEST).map(|it| if it.is_control() { '·' } else { it }).collect();
    if text.chars().count() > LONGEST {
        shown.push('…');
    }
    shown
}

#[inline]
fn number(field: &[u8]) -> Option<u64> {
    if field.is_empty() {
        return None;
    }
    field.iter().try_fold(0_u64, |value, digit| {
        let digit = digit.wrapping_sub(b'0');
        if digit > 9 { None } else { value.checked_mul(10)?.checked_add(u64::from(digit)) }
    })
}

fn shape(version: Version) -> String {
    let time = if version == Version::Three { "TIME " } else { "" };
    let wait = if version == Version::Three { "" } else { "|wait" };
    format!(
        "expected \"{time}FILE add|open|close\" or \"{time}FILE read|write|trim|sync|datasync{wait} OFFSET LENGTH\" \
         (a file's name has no spaces)"
    )
}

fn not_added(name: &[u8]) -> String {
    let name = text(name);
    format!("{name} is not known: expected \"{name} add\" and \"{name} open\" before this line")
}

fn unknown(action: &[u8]) -> String {
    let action = text(action);
    let known = ["add", "open", "close", "read", "write", "trim", "sync", "datasync", "wait"];
    format!("action \"{action}\" is not known{} (known: {})", did_you_mean(&action, known), known.join(", "))
}

fn foreign(line: &[u8]) -> String {
    if line.get(1..4) == Some(BLKTRACE) {
        return "a recording of blktrace: make a log of it, as the book's page on traces shows".into();
    }
    let found = if line.is_empty() { "nothing".into() } else { format!("\"{}\"", text(line)) };
    format!("expected \"fio version 2 iolog\" or \"fio version 3 iolog\" in the first line, found {found}")
}

#[cfg(test)]
#[path = "parser_tests.rs"]
mod tests;
