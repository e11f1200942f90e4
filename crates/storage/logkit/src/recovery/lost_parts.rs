//! List of the unreadable parts of a log that is salvaged.

/// Most parts that are described; the others are only counted.
const MAX_LINES: usize = 1000;

/// Unreadable parts, in bounded memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LostParts {
    /// Descriptions of the first parts.
    pub lines: Vec<String>,
    /// Number of all parts.
    pub count: u64,
}

impl LostParts {
    /// Adds a part. Returns whether its description is kept.
    pub fn note(&mut self, line: String) -> bool {
        self.note_with(|| line)
    }

    /// As [`note`](Self::note), with a description that is made only if it is kept.
    pub fn note_with(&mut self, line: impl FnOnce() -> String) -> bool {
        self.count += 1;
        let is_described = self.lines.len() < MAX_LINES;
        if is_described {
            self.lines.push(line());
        }
        is_described
    }

    /// Adds other parts.
    pub fn append(&mut self, others: LostParts) {
        let described = others.lines.len() as u64;
        self.extend(others.lines);
        self.count += others.count - described;
    }
}

impl Extend<String> for LostParts {
    fn extend<T: IntoIterator<Item = String>>(&mut self, lines: T) {
        for line in lines {
            self.note(line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_parts_are_described_and_all_are_counted() {
        let mut lost = LostParts::default();
        lost.extend((0..MAX_LINES).map(|number| number.to_string()));
        let mut more = LostParts::default();
        more.extend((0..MAX_LINES + 5).map(|number| number.to_string()));
        assert!(!more.note_with(|| panic!("it isn't kept")));
        lost.append(more);
        assert_eq!((lost.lines.len(), lost.count), (MAX_LINES, 2 * MAX_LINES as u64 + 6));
    }
}
