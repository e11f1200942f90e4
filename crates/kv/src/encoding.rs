//! Numbers and byte strings of variable length, little-endian base 128 (LEB128).

use block::{Error, Result};

/// Appends a number: seven bits a byte, the lowest first.
pub fn put_number(target: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        target.push(value as u8 | 0x80);
        value >>= 7;
    }
    target.push(value as u8);
}

/// Appends a byte string after its length.
pub fn put_bytes(target: &mut Vec<u8>, bytes: &[u8]) {
    put_number(target, bytes.len() as u64);
    target.extend_from_slice(bytes);
}

/// Bytes that are decoded from their beginning.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Source<'a> {
    /// Begins at the first byte; `what` names the bytes in errors.
    pub fn new(bytes: &'a [u8], what: &'static str) -> Self {
        Source { rest: bytes, what }
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Error for bytes that no version of this program writes.
    pub fn corrupt(&self, what: &str) -> Error {
        Error::corrupt(format!("{}: {what}, {} bytes before its end", self.what, self.rest.len()))
    }

    /// Takes this number of bytes.
    ///
    /// # Errors
    /// [`Error::Corrupt`] where fewer are left.
    #[inline]
    pub fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let Some((taken, rest)) = self.rest.split_at_checked(count) else {
            return Err(self.missing(count));
        };
        self.rest = rest;
        Ok(taken)
    }

    #[cold]
    fn missing(&self, count: usize) -> Error {
        self.corrupt(&format!("{count} bytes are expected"))
    }

    /// Takes one byte.
    ///
    /// # Errors
    /// [`Error::Corrupt`] at the end.
    #[inline]
    pub fn byte(&mut self) -> Result<u8> {
        Ok(self.take(1)?[0])
    }

    /// Takes a number.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for one that is cut or above 64 bits.
    #[inline]
    pub fn number(&mut self) -> Result<u64> {
        match self.rest.split_first() {
            Some((&byte, rest)) if byte < 0x80 => {
                self.rest = rest;
                Ok(u64::from(byte))
            }
            _ => self.long_number(),
        }
    }

    fn long_number(&mut self) -> Result<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7F);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(self.corrupt("a number above 64 bits"))
    }

    /// Takes a byte string with its length, of at most `most` bytes.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for one that is cut or longer.
    #[inline]
    pub fn bytes(&mut self, most: usize) -> Result<&'a [u8]> {
        match self.number()? {
            length if length <= most as u64 => self.take(length as usize),
            length => Err(self.corrupt(&format!("a string of {length} bytes; expected up to {most}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_they_were_written() {
        let numbers = [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX];
        let mut bytes = Vec::new();
        numbers.iter().for_each(|number| put_number(&mut bytes, *number));
        let mut source = Source::new(&bytes, "a test");
        for number in numbers {
            assert_eq!(source.number(), Ok(number));
        }
        assert!(source.is_empty() && source.number().is_err());
        assert!(Source::new(&[0xFF; 10], "a test").number().is_err(), "above 64 bits");
        let mut string = Vec::new();
        put_bytes(&mut string, b"key");
        assert_eq!(Source::new(&string, "a test").bytes(3), Ok(&b"key"[..]));
        assert!(Source::new(&string, "a test").bytes(2).is_err());
        assert!(Source::new(&string[..3], "a test").bytes(3).is_err());
    }
}
