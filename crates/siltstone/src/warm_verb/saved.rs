//! File of a cache's saved heat: text, the hottest ranges first.
//!
//! ```text
//! siltstone-warm 1
//! origin_bytes 4294967296
//! block_size 65536
//! main/3/4 1048576+262144
//! small/0/15 0+65536
//! end 2
//! ```
//!
//! The first line has the version, `end` the number of ranges, which detects truncation. A range is its heat
//! (queue, visits since its turn came, and the number of requests since the last one, as a power of two),
//! offset and length in bytes. Lines are sorted by heat, the hottest first. Lines that begin with `#` are
//! comments.
//!
//! For any bytes the parser never panics, keeps at most one line in memory, and returns an error that names
//! the line. The whole file is checked before any of it is used.

use crate::failure::Failure;
use crate::input;
use block::Error;
use cache::Heat;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// First line.
const FIRST: &str = "siltstone-warm 1";
/// Longest line, in bytes, including its newline.
const MAX_LINE: usize = 200;

/// Header of a file, and sums over its ranges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Size of the origin, in bytes.
    pub origin_bytes: u64,
    /// Block size of the cache that was saved, in bytes.
    pub block_size: u64,
    /// Number of ranges.
    pub ranges: u64,
    /// Sum of their lengths in bytes; overlapping bytes count once per range.
    pub bytes: u64,
}

/// Heat, and a range in bytes.
pub type HotRange = (Heat, Range<u64>);

/// Writes a file. It replaces an existing file when it is complete.
///
/// # Errors
/// Errors of the file system.
pub fn write(path: &Path, origin_bytes: u64, block_size: u64, ranges: &[HotRange]) -> Result<(), Failure> {
    let written = runtime::file::replace(path, None, |file| {
        write!(file, "{FIRST}\norigin_bytes {origin_bytes}\nblock_size {block_size}\n")?;
        for (heat, range) in ranges {
            writeln!(file, "{heat} {}+{}", range.start, range.end - range.start)?;
        }
        writeln!(file, "end {}", ranges.len())
    });
    written.map_err(|error| Failure::World(error.to_string()))
}

/// Checks a whole file.
///
/// # Errors
/// [`Failure::Usage`] with the invalid line, and what was expected.
pub fn check(path: &Path) -> Result<Facts, Failure> {
    let mut reader = Reader::open(path)?;
    let mut bytes: u64 = 0;
    while let Some((_, range)) = reader.next_range()? {
        bytes = bytes.saturating_add(range.end - range.start);
    }
    let Reader { origin_bytes, block_size, ranges, .. } = reader;
    Ok(Facts { origin_bytes, block_size, ranges, bytes })
}

/// Reads a file's ranges one by one.
pub struct Reader {
    path: PathBuf,
    lines: BufReader<File>,
    line: Vec<u8>,
    number: u64,
    origin_bytes: u64,
    block_size: u64,
    ranges: u64,
    level: u8,
    is_at_end: bool,
}

impl Reader {
    /// Opens a file, and reads its header.
    ///
    /// # Errors
    /// [`Failure::Usage`] for an unreadable file, and one of another format.
    pub fn open(path: &Path) -> Result<Reader, Failure> {
        let failed =
            |error: std::io::Error| input::unreadable("list", path, &error, "a file of siltstone warm save");
        // Opening a pipe would block until it has a writer.
        if !std::fs::metadata(path).map_err(failed)?.is_file() {
            return Err(Failure::Usage(format!(
                "{}: expected a file of \"siltstone warm save\"; it is read twice",
                path.display()
            )));
        }
        let file = File::open(path).map_err(failed)?;
        let mut reader = Reader {
            path: path.to_owned(),
            lines: BufReader::new(file),
            line: Vec::new(),
            number: 0,
            origin_bytes: 0,
            block_size: 0,
            ranges: 0,
            level: u8::MAX,
            is_at_end: false,
        };
        let first = reader.next_line()?;
        if first != FIRST {
            return Err(match first.strip_prefix("siltstone-warm ") {
                Some(version) => {
                    let text = format!("version \"{version}\" of the format: this program knows 1 only");
                    reader.wrong(&text)
                }
                None => reader.wrong(
                    "expected a file of \"siltstone warm save\", which begins with \"siltstone-warm 1\"",
                ),
            });
        }
        reader.origin_bytes = reader.header("origin_bytes")?;
        reader.block_size = reader.header("block_size")?;
        Ok(reader)
    }

    /// Returns the next range; `None` at the end.
    ///
    /// # Errors
    /// [`Failure::Usage`] with the invalid line.
    pub fn next_range(&mut self) -> Result<Option<HotRange>, Failure> {
        if self.is_at_end {
            return Ok(None);
        }
        let line = self.next_line()?;
        if let Some(count) = line.strip_prefix("end ") {
            return match number(count) == Some(self.ranges) {
                true => self.end().map(|()| None),
                false => Err(self
                    .wrong(&format!("\"{line}\" where there are {} ranges: some are missing", self.ranges))),
            };
        }
        let parsed = line.split_once(' ').and_then(|(heat, range)| {
            let (from, length) = range.split_once('+')?;
            let (heat, from, length) = (Heat::parse(heat)?, number(from)?, number(length)?);
            (length > 0).then_some((heat, from..from.checked_add(length)?))
        });
        let Some((heat, range)) = parsed else {
            let text = format!(
                "\"{line}\": expected HEAT OFFSET+LENGTH, such as \"main/3/4 1048576+65536\", or \"end N\""
            );
            return Err(self.wrong(&text));
        };
        if range.end > self.origin_bytes {
            let text = format!("\"{line}\" ends after the origin's {} bytes", self.origin_bytes);
            return Err(self.wrong(&text));
        }
        if heat.level() > self.level {
            return Err(
                self.wrong(&format!("\"{line}\" is hotter than the line above: expected the hottest first"))
            );
        }
        self.level = heat.level();
        self.ranges += 1;
        Ok(Some((heat, range)))
    }

    fn header(&mut self, name: &str) -> Result<u64, Failure> {
        let line = self.next_line()?;
        let value = line.strip_prefix(name).and_then(|rest| rest.strip_prefix(' ')).and_then(number);
        value
            .filter(|value| *value > 0)
            .ok_or_else(|| self.wrong(&format!("\"{line}\": expected \"{name} BYTES\"")))
    }

    fn end(&mut self) -> Result<(), Failure> {
        self.is_at_end = true;
        match self.read_line()? {
            0 => Ok(()),
            _ => Err(self.wrong("there are lines after the end")),
        }
    }

    /// Reads a line without its newline.
    fn next_line(&mut self) -> Result<String, Failure> {
        loop {
            let length = self.read_line()?;
            if length == 0 {
                return Err(self.wrong("it ends before its line \"end N\": the file isn't whole"));
            }
            if self.line.last() != Some(&b'\n') {
                return Err(match length == MAX_LINE {
                    true => self.wrong(&format!("expected lines of less than {MAX_LINE} bytes")),
                    false => self.wrong("the line has no end: the file isn't whole"),
                });
            }
            self.line.pop();
            let is_plain = self.line.iter().all(|byte| (b' '..=b'~').contains(byte));
            if self.line.first() == Some(&b'#') {
                continue;
            }
            let text = std::str::from_utf8(&self.line).ok().filter(|_| is_plain);
            return match text {
                Some(text) => Ok(text.to_owned()),
                None => Err(self.wrong("expected plain letters and digits")),
            };
        }
    }

    fn read_line(&mut self) -> Result<usize, Failure> {
        self.line.clear();
        self.number += 1;
        let read = self.lines.by_ref().take(MAX_LINE as u64).read_until(b'\n', &mut self.line);
        read.map_err(|error| {
            Failure::World(Error::from_io(&error, &format!("reading {}", self.path.display())).to_string())
        })
    }

    fn wrong(&self, what: &str) -> Failure {
        Failure::Usage(format!("{}:{}: {what}", self.path.display(), self.number))
    }
}

fn number(text: &str) -> Option<u64> {
    let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::Random;

    fn heat(text: &str) -> Heat {
        Heat::parse(text).unwrap()
    }

    fn checked(bytes: &[u8]) -> Result<Facts, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        check(file.path()).map_err(|failure| {
            assert!(matches!(failure, Failure::Usage(_)), "{failure}");
            failure.to_string()
        })
    }

    const FINE: &str = "siltstone-warm 1\norigin_bytes 1000\nblock_size 100\n# some\nmain/3/4 100+100\nsmall/0/0 0+50\nend 2\n";

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.warm");
        let ranges = vec![(heat("main/3/1"), 4096..8192), (heat("small/0/32"), 0..512)];
        write(&path, 1 << 20, 65536, &ranges).unwrap();
        let facts = check(&path).unwrap();
        assert_eq!(facts, Facts { origin_bytes: 1 << 20, block_size: 65536, ranges: 2, bytes: 4096 + 512 });
        let mut reader = Reader::open(&path).unwrap();
        for range in ranges {
            assert_eq!(reader.next_range().unwrap(), Some(range));
        }
        assert_eq!((reader.next_range().unwrap(), reader.next_range().unwrap()), (None, None));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
        let none = folder.path().join("none/a.warm");
        assert!(write(&none, 1, 1, &[]).unwrap_err().to_string().contains("none/a.warm"));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        assert_eq!(checked(FINE.as_bytes()).unwrap().bytes, 150);
        let long = "9".repeat(300);
        for (from, to, expected) in [
            ("siltstone-warm 1", "siltstone-warm 2", ":1: version \"2\" of the format"),
            ("siltstone-warm 1", "#!/bin/sh", "expected a file of \"siltstone warm save\""),
            (
                "origin_bytes 1000",
                "origin_bytes 0",
                ":2: \"origin_bytes 0\": expected \"origin_bytes BYTES\"",
            ),
            ("block_size 100", "block_size +1", ":3: \"block_size +1\""),
            ("main/3/4", "main/4/4", ":5: \"main/4/4 100+100\": expected HEAT OFFSET+LENGTH"),
            ("100+100", "100+0", ":5: \"main/3/4 100+0\": expected HEAT"),
            ("100+100", "18446744073709551615+2", ":5:"),
            ("100+100", "950+100", ":5: \"main/3/4 950+100\" ends after the origin's 1000 bytes"),
            ("small/0/0", "main/1/1", "fine"),
            ("main/3/4", "small/0/1", "fine"),
            (
                "main/3/4 100+100\nsmall/0/0 0+50",
                "small/0/0 0+50\nmain/3/4 100+100",
                ":6: \"main/3/4 100+100\" is hotter",
            ),
            ("end 2", "end 3", ":7: \"end 3\" where there are 2 ranges"),
            ("end 2\n", "", ":7: it ends before its line \"end N\""),
            ("end 2\n", "end 2", ":7: the line has no end"),
            ("end 2\n", "end 2\n\n", ":8: there are lines after the end"),
            ("small/0/0", "small\u{1b}[2J", ":6: expected plain letters"),
            ("small/0/0", &long, ":6: expected lines of less than 200 bytes"),
        ] {
            let outcome = checked(FINE.replacen(from, to, 1).as_bytes());
            match expected {
                "fine" => assert!(outcome.is_ok(), "{to}: {outcome:?}"),
                _ => {
                    let error = outcome.unwrap_err();
                    assert!(error.contains(expected) && error.len() < 500, "{expected}: {error}");
                }
            }
        }
        for path in ["/dev/zero", "/", "/none.warm"] {
            assert!(matches!(check(Path::new(path)), Err(Failure::Usage(_))), "{path}");
        }
    }

    /// Any bytes, and any changed bytes of a valid file, give a result or an error, and no range out of
    /// bounds.
    #[test]
    fn hostile_files() {
        let seed = 9;
        let mut random = Random::new(seed);
        for round in 0..500 {
            let mut bytes = FINE.as_bytes().to_vec();
            for _ in 0..1 + random.below(4) {
                let at = random.below(bytes.len() as u64) as usize;
                match random.below(4) {
                    0 => bytes[at] = random.next_u64() as u8,
                    1 => bytes.truncate(at + 1),
                    2 => bytes.insert(at, b"0123456789+/ \n"[random.below(14) as usize]),
                    _ => drop(bytes.remove(at)),
                }
                if bytes.is_empty() {
                    break;
                }
            }
            if let Ok(facts) = checked(&bytes) {
                assert!(facts.ranges <= 3, "seed {seed}, round {round}");
            }
            let mut noise = vec![0; random.below(2000) as usize];
            random.fill(&mut noise);
            assert!(checked(&noise).is_err(), "seed {seed}, round {round}");
        }
    }
}
