//! Passwords of users: kept as SHA-256, compared in constant time.

use ring::digest::{SHA256, digest};
use std::fmt;

/// SHA-256 of a password. `Debug` doesn't show it.
#[derive(Clone, PartialEq, Eq)]
pub struct PasswordHash([u8; 32]);

impl fmt::Debug for PasswordHash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("PasswordHash")
    }
}

impl PasswordHash {
    /// Hashes a password.
    pub fn of(password: &[u8]) -> PasswordHash {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest(&SHA256, password).as_ref());
        PasswordHash(bytes)
    }

    /// Reads the hash in the form of 64 hexadecimal digits; `None` for other texts.
    pub fn from_hex(text: &str) -> Option<PasswordHash> {
        let is_hash = text.len() == 64 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
        let mut bytes = [0; 32];
        for (index, byte) in bytes.iter_mut().enumerate().filter(|_| is_hash) {
            *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).ok()?;
        }
        is_hash.then_some(PasswordHash(bytes))
    }

    /// Whether both are of the same password, in a time that doesn't depend on their hashes.
    pub fn is_same(&self, other: &PasswordHash) -> bool {
        let differences = self.0.iter().zip(&other.0).fold(0, |sum, (left, right)| sum | (left ^ right));
        std::hint::black_box(differences) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_and_their_hashes() {
        let hash = PasswordHash::of(b"password");
        assert!(hash.is_same(&PasswordHash::of(b"password")));
        for other in [&b""[..], b"passwor", b"password ", b"Password"] {
            assert!(!hash.is_same(&PasswordHash::of(other)));
        }
        // From the documentation of redis's ACL.
        let known = "5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8";
        assert_eq!(PasswordHash::from_hex(known), Some(hash));
        for text in ["", &known[1..], &known.replace('5', "g"), &format!("{known}0")] {
            assert_eq!(PasswordHash::from_hex(text), None, "{text}");
        }
    }
}
