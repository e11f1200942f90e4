//! What is wrong with a file that somebody wrote, and where: all of it at once, before anything runs.

use std::fmt;

/// A place in a text; lines and columns count from 1, columns in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
}

impl Place {
    /// The place of a byte of this text; its end for anything behind it.
    pub fn of_byte(text: &str, byte: usize) -> Place {
        let mut end = byte.min(text.len());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let before = &text[..end];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Place { line: before.matches('\n').count() + 1, column: before[line_start..].chars().count() + 1 }
    }
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where.
    pub place: Place,
    /// What: the thing, the value, what was expected and what to do.
    pub message: String,
}

/// Everything that is wrong with one file. `Display` gives a line `file:line:column: message` for each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problems {
    /// The file, as the user named it.
    pub file: String,
    /// In the order of their places.
    pub list: Vec<Problem>,
}

impl Problems {
    /// The value if nothing is wrong, otherwise everything that is, in the order of the text.
    pub(crate) fn or<T>(file: &str, mut list: Vec<Problem>, value: T) -> Result<T, Problems> {
        if list.is_empty() {
            return Ok(value);
        }
        list.sort_by_key(|problem| problem.place);
        list.dedup();
        Err(Problems { file: file.into(), list })
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Problem { place, message }) in self.list.iter().enumerate() {
            let newline = if index > 0 { "\n" } else { "" };
            write!(formatter, "{newline}{}:{}:{}: {message}", self.file, place.line, place.column)?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

impl From<Problems> for block::Error {
    fn from(problems: Problems) -> Self {
        block::Error::invalid(problems.to_string())
    }
}

/// The known word that is nearest to this one, if any is near enough to be meant.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_ascii_lowercase();
    let near = known.into_iter().map(|candidate| (likeness(&word, candidate), candidate));
    let best = near.max_by(|a, b| a.0.total_cmp(&b.0))?;
    (best.0 > 0.75).then_some(best.1)
}

/// From 0 to 1. In short words one slip changes much: two letters that changed places still count as near.
fn likeness(word: &str, candidate: &str) -> f64 {
    let slips = strsim::damerau_levenshtein(word, candidate);
    let by_slips = if slips <= 1 && word.len() > 2 { 0.9 } else { 0.0 };
    strsim::jaro_winkler(word, candidate).max(by_slips)
}

/// `; did you mean "x"?` where a known word is near, otherwise nothing.
pub(crate) fn did_you_mean<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, known).map_or_else(String::new, |near| format!("; did you mean \"{near}\"?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_count_characters() {
        let text = "a\nä=b\n";
        assert_eq!(Place::of_byte(text, 0), Place { line: 1, column: 1 });
        assert_eq!(Place::of_byte(text, text.find('=').unwrap()), Place { line: 2, column: 2 });
        assert_eq!(Place::of_byte(text, 3), Place { line: 2, column: 1 }, "inside a character");
        assert_eq!(Place::of_byte(text, 99), Place { line: 3, column: 1 });
    }

    #[test]
    fn nearest_word() {
        assert_eq!(nearest("iodpeth", ["iodepth", "offset"]), Some("iodepth"));
        assert_eq!(nearest("foi", ["file", "fio", "x"]), Some("fio"));
        assert_eq!(nearest("y", ["x"]), None);
        assert_eq!(nearest("colour", ["iodepth", "offset"]), None);
    }
}
