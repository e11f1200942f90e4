//! The parts of a log that can't be read, of one that is salvaged.

/// Most parts that are described; others are counted.
const MOST_LINES: usize = 1000;

/// The parts that couldn't be read. Memory is bounded, whatever is on the medium.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LostParts {
    /// The first of them, in words.
    pub lines: Vec<String>,
    /// Number of all.
    pub count: u64,
}

impl LostParts {
    /// Adds a part. Returns whether it is one of those that are described.
    pub fn note(&mut self, line: String) -> bool {
        self.count += 1;
        let is_described = self.lines.len() < MOST_LINES;
        if is_described {
            self.lines.push(line);
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
        lost.extend((0..MOST_LINES).map(|number| number.to_string()));
        let mut more = LostParts::default();
        more.extend((0..MOST_LINES + 5).map(|number| number.to_string()));
        assert!(!more.note("another".to_owned()));
        lost.append(more);
        assert_eq!((lost.lines.len(), lost.count), (MOST_LINES, 2 * MOST_LINES as u64 + 6));
    }
}
