//! Problems of a text: file, line, column, the found and the expected text, the nearest known word, and the
//! line itself with a mark below.

use crate::secrets::{MASKED, secrets};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// Most problems in a report; further ones are only counted.
pub const MAX_PROBLEMS: usize = 50;
/// Most characters of a source line that are shown.
const SHOWN: usize = 100;
/// Longest word that is compared with known ones, in characters.
const MAX_COMPARED: usize = 64;

/// A text and its origin. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Source {
    name: Arc<str>,
    text: Arc<str>,
    /// Ranges of secrets in the text, found for the first problem.
    secrets: Arc<OnceLock<Vec<Range<usize>>>>,
}

impl Source {
    /// Creates a source. The name precedes line and column: the path of the text's file, or another name that
    /// identifies the text to the user.
    pub fn new(name: &str, text: &str) -> Self {
        Source { name: name.into(), text: text.into(), secrets: Arc::default() }
    }

    /// Name of the text.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Nearest start of a character at or before this byte.
    fn boundary(&self, byte: usize) -> usize {
        let byte = byte.min(self.text.len());
        (0..=byte).rev().find(|byte| self.text.is_char_boundary(*byte)).unwrap_or(0)
    }

    /// Start of the line of this byte, the number of that line from 1, and the byte's column in characters
    /// from 1.
    fn position(&self, start: usize) -> (usize, usize, usize) {
        let before = &self.text[..start];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let column = before[line_start..].chars().count() + 1;
        (line_start, before.matches('\n').count() + 1, column)
    }

    /// `NAME:LINE:COLUMN` of a byte of the text.
    pub fn place(&self, byte: usize) -> String {
        let (_, line, column) = self.position(self.boundary(byte));
        format!("{}:{line}:{column}", self.name)
    }

    /// Problem with these bytes of the text. Ends outside the text, or inside a character, are moved.
    pub fn problem(&self, span: Range<usize>, message: impl Into<String>) -> Problem {
        let start = self.boundary(span.start);
        let (line_start, line, column) = self.position(start);
        let line_end = self.text[start..].find('\n').map_or(self.text.len(), |length| start + length);
        let end = self.boundary(span.end).clamp(start, line_end);
        let (text, [start, end]) = self.without_secrets(line_start..line_end, [start, end]);
        let before = text[..start].chars().count();
        let first = before.saturating_sub(SHOWN / 2);
        let offset = before - first;
        let shown = |letter: char| if letter.is_control() { ' ' } else { letter };
        let marks = text[start..end].chars().count().clamp(1, SHOWN - offset);
        let text = text.trim_end_matches('\r').chars().skip(first).take(SHOWN).map(shown).collect();
        let mut problem = Problem::at(&self.name, line, column, message);
        problem.excerpt = Some(Box::new(Excerpt { text, offset, marks }));
        problem
    }

    /// Returns a line with its secrets masked, since logs keep problems, and the positions in it of the bytes
    /// `of` the text.
    fn without_secrets(&self, line: Range<usize>, of: [usize; 2]) -> (String, [usize; 2]) {
        let (mut shown, mut copied, mut moved) =
            (String::new(), line.start, of.map(|byte| byte - line.start));
        let inside = |range: &Range<usize>| range.end > line.start && range.start < line.end;
        let all = self.secrets.get_or_init(|| secrets(&self.text));
        for range in all.iter().filter(|range| inside(range)) {
            let (start, end) = (range.start.max(line.start), range.end.min(line.end));
            shown.push_str(&self.text[copied..start]);
            let before = shown.len();
            shown.push_str(MASKED);
            copied = end;
            for (byte, moved) in of.into_iter().zip(&mut moved).filter(|(byte, _)| *byte > start) {
                *moved = if byte < end { before } else { shown.len() + byte - end };
            }
        }
        shown.push_str(&self.text[copied..line.end]);
        (shown, moved)
    }
}

/// One problem of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Name of the text.
    pub source: String,
    /// Line, from 1; 0 for the text as a whole.
    pub line: usize,
    /// Column in characters, from 1; 0 for the text as a whole.
    pub column: usize,
    /// Found and expected text.
    pub message: String,
    /// Nearest known word, which is also in the message.
    pub nearest: Option<String>,
    excerpt: Option<Box<Excerpt>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Excerpt {
    text: String,
    offset: usize,
    marks: usize,
}

impl Problem {
    /// Problem of a text as a whole, such as a file that can't be read.
    pub fn without_place(source: &str, message: impl Into<String>) -> Self {
        Problem::at(source, 0, 0, message)
    }

    /// Problem at a position of a text that isn't in memory.
    pub fn at(source: &str, line: usize, column: usize, message: impl Into<String>) -> Self {
        let (source, message) = (source.to_owned(), message.into());
        Problem { source, line, column, message, nearest: None, excerpt: None }
    }

    /// Sets the word that was probably meant.
    #[must_use]
    pub fn with_nearest(mut self, nearest: Option<&str>) -> Self {
        self.nearest = nearest.map(str::to_owned);
        self
    }

    /// Returns the problem as JSON: `source`, `line`, `column`, `message`, `nearest`.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::json!({
            "source": self.source,
            "line": self.line,
            "column": self.column,
            "message": self.message,
            "nearest": self.nearest,
        })
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line == 0 {
            return write!(formatter, "{}: {}", self.source, self.message);
        }
        write!(formatter, "{}:{}:{}: {}", self.source, self.line, self.column, self.message)?;
        let Some(excerpt) = &self.excerpt else { return Ok(()) };
        let number = self.line.to_string();
        write!(formatter, "\n {number} | {}\n", excerpt.text)?;
        let (margin, offset) = (number.len() + 1, excerpt.offset);
        write!(formatter, "{:margin$} | {:offset$}{}", "", "", "^".repeat(excerpt.marks))
    }
}

/// All problems of a text, in the order of the text; never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problems {
    list: Vec<Problem>,
    /// Number of problems that are not in the list.
    more: usize,
}

impl Problems {
    /// Problems in the order of the text.
    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.list.iter()
    }

    /// Number of problems, including those not in the list.
    pub fn count(&self) -> usize {
        self.list.len() + self.more
    }
}

impl From<Problem> for Problems {
    fn from(problem: Problem) -> Self {
        Problems { list: vec![problem], more: 0 }
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, problem) in self.list.iter().enumerate() {
            let between = if number == 0 { "" } else { "\n\n" };
            write!(formatter, "{between}{problem}")?;
        }
        match self.more {
            0 => Ok(()),
            more => write!(formatter, "\n\n... and {more} more"),
        }
    }
}

impl std::error::Error for Problems {}

impl From<Problems> for block::Error {
    fn from(problems: Problems) -> Self {
        block::Error::invalid(problems.to_string())
    }
}

/// Collects problems during the parsing of a text: stacks, plans, job files, logs of requests.
#[derive(Debug, Default)]
pub struct Collector {
    list: Vec<Problem>,
    more: usize,
}

impl Collector {
    /// Adds a problem unless an equal one was added. After [`MAX_PROBLEMS`], problems are only counted, and
    /// the closure, which may compare many words, isn't called: hostile texts have many.
    pub fn add(&mut self, make: impl FnOnce() -> Problem) {
        if self.list.len() == MAX_PROBLEMS {
            self.more += 1;
            return;
        }
        let problem = make();
        if !self.list.contains(&problem) {
            self.list.push(problem);
        }
    }

    /// Number of problems so far.
    pub fn count(&self) -> usize {
        self.list.len() + self.more
    }

    /// Returns the value if there is no problem.
    pub fn finish<T>(mut self, value: T) -> Result<T, Problems> {
        if self.list.is_empty() {
            return Ok(value);
        }
        self.list.sort_by_key(|problem| (problem.line, problem.column));
        Err(Problems { list: self.list, more: self.more })
    }
}

/// Returns the candidate that is nearest to an unknown word, if one is near enough to be meant.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > MAX_COMPARED {
        return None;
    }
    let word = word.to_lowercase();
    let allowed = (word.chars().count() / 3).max(1);
    let distance = |candidate: &str| {
        let lower = candidate.to_lowercase();
        if word.len() >= 3 && (lower.starts_with(&word) || word.starts_with(&lower) && lower.len() >= 3) {
            return 1;
        }
        strsim::damerau_levenshtein(&word, &lower)
    };
    candidates
        .into_iter()
        .filter(|candidate| candidate.len() <= MAX_COMPARED)
        .map(|candidate| (distance(candidate), candidate))
        .filter(|(distance, candidate)| *distance <= allowed && *distance < candidate.chars().count())
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Returns `: did you mean "size"?`, or an empty text.
pub(crate) fn meant(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |word| format!(": did you mean \"{word}\"?"))
}

/// Returns `: did you mean "size"?` with the nearest of these words, or an empty text if none is near.
pub fn did_you_mean<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    meant(nearest(word, candidates))
}

/// Returns text from outside for a message, shortened and with control characters escaped.
pub(crate) fn shown(text: &str) -> String {
    const LONGEST: usize = 60;
    let mut shown = text.chars().take(LONGEST).collect::<String>().escape_debug().to_string();
    if text.chars().nth(LONGEST).is_some() {
        shown.push_str("...");
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines_columns_and_marks() {
        let source = Source::new("a.toml", "one\n\tzwei drei\r\nvier");
        let problem = source.problem(10..14, "bad");
        assert_eq!(problem.to_string(), "a.toml:2:7: bad\n 2 |  zwei drei\n   |       ^^^^");
        let problem = source.problem(20..20, "worse");
        assert_eq!(problem.to_string(), "a.toml:3:5: worse\n 3 | vier\n   |     ^");
        assert_eq!(Problem::without_place("a.toml", "gone").to_string(), "a.toml: gone");
    }

    #[test]
    fn a_long_line_is_shown_around_the_mark() {
        let source = Source::new("x", &format!("{}here{}", "ä".repeat(1000), "z".repeat(1000)));
        let problem = source.problem(2000..2004, "bad");
        assert_eq!(problem.column, 1001);
        let text = problem.to_string();
        let lines = text.lines().collect::<Vec<_>>();
        assert_eq!(lines[1], format!(" 1 | {}here{}", "ä".repeat(50), "z".repeat(46)));
        assert_eq!(lines[2], format!("   | {}^^^^", " ".repeat(50)));
    }

    #[test]
    fn nearest_words() {
        let known = ["size", "path", "block_size", "direct"];
        assert_eq!(nearest("sise", known), Some("size"));
        assert_eq!(nearest("SIZE", known), Some("size"));
        assert_eq!(nearest("block", known), Some("block_size"));
        assert_eq!(nearest("driect", known), Some("direct"));
        assert_eq!(nearest("colour", known), None);
        assert_eq!(nearest("", known), None);
        assert_eq!(nearest("b", ["a", "c"]), None);
    }

    proptest! {
        #[test]
        fn any_span_of_any_text(text in "(.|\n){0,80}", start in 0_usize..100, length in 0_usize..100) {
            let problem = Source::new("x", &text).problem(start..start + length, "bad").to_string();
            prop_assert!(problem.starts_with("x:"));
        }
    }
}
