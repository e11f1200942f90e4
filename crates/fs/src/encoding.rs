//! Numbers of one to ten bytes (LEB128), as items of the tree and records hold them.

use block::{Error, Result};

/// Appends a number: seven bits in each byte, the lowest first.
pub fn put(target: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        target.push(number as u8 | 0x80);
        number >>= 7;
    }
    target.push(number as u8);
}

/// Number of bytes that [`put`] appends.
pub const fn length(number: u64) -> usize {
    (64 - (number | 1).leading_zeros() as usize).div_ceil(7)
}

/// Encodes a signed number as an unsigned one: the sign is the lowest bit.
pub const fn from_signed(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)) as u64
}

/// Inverse of [`from_signed`].
pub const fn to_signed(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

/// Reader of numbers from bytes that aren't trusted.
#[derive(Debug, Clone)]
pub struct Numbers<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Numbers<'a> {
    /// Returns a reader of these bytes; `what` names them in errors.
    pub fn new(rest: &'a [u8], what: &'static str) -> Self {
        Numbers { rest, what }
    }

    /// Returns [`Error::Corrupt`] with the name of the bytes, followed by `how`.
    #[cold]
    pub fn strange(&self, how: &str) -> Error {
        Error::corrupt(format!("{} {how}", self.what))
    }

    /// Takes a number.
    ///
    /// # Errors
    /// [`Error::Corrupt`] where the bytes end, or the number has more than 64 bits.
    #[inline]
    pub fn take(&mut self) -> Result<u64> {
        let mut number = 0_u64;
        for (at, byte) in self.rest.iter().enumerate().take(10) {
            let bits = u64::from(byte & 0x7F);
            if at == 9 && bits > 1 {
                break;
            }
            number |= bits << (7 * at);
            if byte & 0x80 == 0 {
                self.rest = &self.rest[at + 1..];
                return Ok(number);
            }
        }
        Err(self.strange("ends within a number, or has a number of more than 64 bits"))
    }

    /// Takes a number of at most 32 bits.
    ///
    /// # Errors
    /// [`Error::Corrupt`] where the bytes end, or the number is larger.
    #[inline]
    pub fn take_u32(&mut self) -> Result<u32> {
        let number = self.take()?;
        u32::try_from(number)
            .map_err(|_| self.strange(&format!("has the number {number}; expected at most 32 bits")))
    }

    /// Takes `count` bytes.
    ///
    /// # Errors
    /// [`Error::Corrupt`] where fewer follow.
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8]> {
        let Some((bytes, rest)) = self.rest.split_at_checked(count) else {
            return Err(self
                .strange(&format!("ends too early: {} bytes are left; expected {count}", self.rest.len())));
        };
        self.rest = rest;
        Ok(bytes)
    }

    /// Takes one byte.
    ///
    /// # Errors
    /// [`Error::Corrupt`] where none follows.
    pub fn byte(&mut self) -> Result<u8> {
        self.bytes(1).map(|bytes| bytes[0])
    }

    /// The bytes that follow.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Refuses bytes that follow.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if there are any.
    pub fn end(&self) -> Result<()> {
        match self.rest.len() {
            0 => Ok(()),
            more => Err(self.strange(&format!("has {more} bytes after its end; expected none"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_they_were_put() {
        let numbers = [0, 1, 127, 128, 300, u64::from(u32::MAX), 1 << 63, u64::MAX];
        let signed = [0, -1, 1, 64, -65, i64::MAX, i64::MIN];
        let mut bytes = Vec::new();
        for number in numbers {
            let before = bytes.len();
            put(&mut bytes, number);
            assert_eq!(bytes.len() - before, length(number), "{number}");
        }
        let mut read = Numbers::new(&bytes, "a test");
        numbers.iter().for_each(|number| assert_eq!(read.take(), Ok(*number)));
        assert_eq!(read.end(), Ok(()));
        signed.iter().for_each(|number| assert_eq!(to_signed(from_signed(*number)), *number));
        assert_eq!([0, -1, 1, -2].map(from_signed), [0, 1, 2, 3]);
    }

    #[test]
    fn other_bytes_are_refused() {
        for bytes in [
            &[][..],
            &[0x80],
            &[0xFF; 9],
            &[0xFF; 10],
            &[0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 2],
        ] {
            assert!(Numbers::new(bytes, "a test").take().is_err(), "{bytes:?}");
        }
        assert!(Numbers::new(&[0xFF, 0xFF, 0xFF, 0xFF, 0x1F], "a test").take_u32().is_err());
    }
}
