//! Small chips and short forms of transactions.

use spinor::{CHIPS, Chip, Description};
use std::sync::Arc;

/// Size of small chips.
pub const SMALL: u32 = 256 << 10;

/// Returns the text of a chip file of the crate.
pub fn text(name: &str) -> String {
    CHIPS.iter().find(|(known, _)| *known == name).unwrap().1.to_owned()
}

/// Returns the text with a derived SFDP area and another size.
pub fn resized(name: &str, size: u32) -> String {
    let mut text = text(name);
    if let Some(start) = text.find("sfdp = \"\"\"") {
        let end = start + 10 + text[start + 10..].find("\"\"\"").unwrap() + 3;
        text.replace_range(start..end, "sfdp = \"derived\"");
    }
    let start = text.find("\nsize = ").unwrap() + 1;
    let end = start + text[start..].find('\n').unwrap();
    text.replace_range(start..end, &format!("size = {size}"));
    text
}

/// Returns a chip's description with an array of 256 KiB, so that a test can make many.
pub fn small(name: &str) -> Arc<Description> {
    Description::parse(name, &resized(name, SMALL)).unwrap_or_else(|error| panic!("{error}"))
}

/// Returns an erased small chip.
pub fn small_chip(name: &str) -> Chip {
    Chip::erased(small(name), 7)
}

/// Short forms of transactions on one line.
pub trait Drive {
    fn send(&mut self, bytes: &[u8]);
    fn ask(&mut self, bytes: &[u8], count: usize) -> Vec<u8>;
    /// Sends a command with the write enable latch set, and waits for its end.
    fn finish(&mut self, bytes: &[u8]);
    fn wait(&mut self);
    fn read_at(&mut self, address: u32, count: usize) -> Vec<u8>;
    fn at(opcode: u8, address: u32, data: &[u8]) -> Vec<u8>;
}

impl Drive for Chip {
    fn send(&mut self, bytes: &[u8]) {
        self.transact(bytes, &mut []);
    }

    fn ask(&mut self, bytes: &[u8], count: usize) -> Vec<u8> {
        let mut read = vec![0; count];
        self.transact(bytes, &mut read);
        read
    }

    fn finish(&mut self, bytes: &[u8]) {
        self.send(&[0x06]);
        self.send(bytes);
        self.wait();
    }

    fn wait(&mut self) {
        while let Some(time) = self.busy_for() {
            self.advance(time.max(1));
        }
    }

    fn read_at(&mut self, address: u32, count: usize) -> Vec<u8> {
        self.ask(&Chip::at(0x03, address, &[]), count)
    }

    fn at(opcode: u8, address: u32, data: &[u8]) -> Vec<u8> {
        let mut bytes = vec![opcode, (address >> 16) as u8, (address >> 8) as u8, address as u8];
        bytes.extend(data);
        bytes
    }
}
