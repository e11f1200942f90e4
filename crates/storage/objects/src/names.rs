//! Keys of the objects of a volume.
//!
//! # Promises
//! - Numbers are in hexadecimal digits of fixed width, so listings are in their order.
//! - No key is written twice: a piece has the generation of its zone, the epoch of its writer and a serial
//!   number of the attempt; a manifest is created only if it is absent.
//! - Only keys that this module returns are parsed: others are those of other programs.
//!
//! Left to others: serial numbers (`core::upload`), the creation of manifests (`manifests`).

use block::{Error, Result};

/// Longest prefix, in bytes: a key has 1024 bytes, of which a name below the prefix needs about 80.
const MAX_PREFIX: usize = 512;

/// End of the key of a base that isn't the first one of its epoch.
const BASE: &str = ".base";

/// Identity of a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PieceName {
    pub zone: u32,
    pub generation: u64,
    /// Epoch of its writer.
    pub epoch: u32,
    /// Offset of its first byte in the zone.
    pub offset: u64,
    /// Number of the attempt to upload a piece in this epoch.
    pub serial: u64,
}

/// Identity of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Name {
    Piece(PieceName),
    Manifest {
        epoch: u32,
        number: u64,
    },
    /// Base after the manifest of this number.
    Base {
        epoch: u32,
        number: u64,
    },
}

/// Keys below a prefix.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    prefix: String,
}

impl Name {
    /// Name of a base: that of the first manifest of an epoch is in the sequence of the others.
    pub fn base(epoch: u32, number: u64) -> Name {
        match number {
            1 => Name::Manifest { epoch, number },
            _ => Name::Base { epoch, number },
        }
    }
}

impl Names {
    /// Keys below `prefix`, which ends in a slash or gets one; an empty one is the whole bucket.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a prefix that can't be part of a key.
    pub fn new(prefix: &str) -> Result<Names> {
        let is_permitted = |byte: u8| byte.is_ascii_alphanumeric() || b"/-_.!'()*".contains(&byte);
        let parts = prefix.strip_suffix('/').unwrap_or(prefix);
        let has_parts = prefix.is_empty() || parts.split('/').all(|part| !matches!(part, "" | "." | ".."));
        if prefix.len() > MAX_PREFIX || !prefix.bytes().all(is_permitted) || !has_parts {
            return Err(Error::invalid(format!(
                "prefix \"{}\": expected at most {MAX_PREFIX} letters, digits and /-_.!'()* without empty parts, \".\" and \"..\"",
                prefix.escape_debug()
            )));
        }
        let slash = if prefix.is_empty() || prefix.ends_with('/') { "" } else { "/" };
        Ok(Names { prefix: format!("{prefix}{slash}") })
    }

    /// The prefix, empty or with a slash at its end.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Prefix of all pieces.
    pub fn pieces(&self) -> String {
        format!("{}zones/", self.prefix)
    }

    /// Prefix of all manifests.
    pub fn manifests(&self) -> String {
        format!("{}manifest/", self.prefix)
    }

    /// Prefix of the manifests of an epoch.
    pub fn manifests_of(&self, epoch: u32) -> String {
        format!("{}{epoch:08x}/", self.manifests())
    }

    /// Key of an object.
    pub fn key(&self, name: Name) -> String {
        match name {
            Name::Manifest { epoch, number } => format!("{}{number:016x}", self.manifests_of(epoch)),
            Name::Base { epoch, number } => {
                format!("{}{number:016x}{BASE}", self.manifests_of(epoch))
            }
            Name::Piece(PieceName { zone, generation, epoch, offset, serial }) => format!(
                "{}{zone:08x}.{generation:016x}.{epoch:08x}/{offset:012x}.{serial:016x}",
                self.pieces()
            ),
        }
    }

    /// Identity of the object with this key; `None` for a key of another form.
    pub fn parse(&self, key: &str) -> Option<Name> {
        let (kind, rest) = key.strip_prefix(&self.prefix)?.split_once('/')?;
        let (folder, file) = rest.split_once('/')?;
        let name = match kind {
            "manifest" => {
                let epoch = u32::from_str_radix(folder, 16).ok()?;
                match file.strip_suffix(BASE) {
                    Some(number) => Name::Base { epoch, number: u64::from_str_radix(number, 16).ok()? },
                    None => Name::Manifest { epoch, number: u64::from_str_radix(file, 16).ok()? },
                }
            }
            "zones" => {
                let mut parts = folder.split('.');
                let zone = u32::from_str_radix(parts.next()?, 16).ok()?;
                let generation = u64::from_str_radix(parts.next()?, 16).ok()?;
                let epoch = u32::from_str_radix(parts.next()?, 16).ok()?;
                let (offset, serial) = file.split_once('.')?;
                let (offset, serial) =
                    (u64::from_str_radix(offset, 16).ok()?, u64::from_str_radix(serial, 16).ok()?);
                Name::Piece(PieceName { zone, generation, epoch, offset, serial })
            }
            _ => return None,
        };
        // A key with the same numbers in another form is that of another program.
        (self.key(name) == key).then_some(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_lead_back_to_their_names_and_sort_by_number() {
        let names = Names::new("db1").unwrap();
        let piece = PieceName { zone: 9, generation: 2, epoch: 3, offset: 8 << 20, serial: 77 };
        let key = names.key(Name::Piece(piece));
        assert_eq!(key, "db1/zones/00000009.0000000000000002.00000003/000000800000.000000000000004d");
        assert_eq!(names.parse(&key), Some(Name::Piece(piece)));
        let manifests = [(1, 0), (1, 9), (1, 16), (2, 0), (u32::MAX, u64::MAX)]
            .map(|(epoch, number)| Name::Manifest { epoch, number });
        let keys = manifests.map(|name| names.key(name));
        assert!(keys.is_sorted());
        for (key, name) in keys.iter().zip(manifests) {
            assert_eq!(names.parse(key), Some(name));
        }
        let base = Name::Base { epoch: 1, number: 9 };
        assert_eq!(names.key(base), "db1/manifest/00000001/0000000000000009.base");
        assert_eq!(names.parse(&names.key(base)), Some(base));
        for other in ["db1/manifest/1/0", "db1/zones/a", "db/manifest/00000001/0000000000000000", "db1/x/y/z"]
        {
            assert_eq!(names.parse(other), None, "{other}");
        }
    }

    #[test]
    fn prefixes_are_parts_of_keys() {
        assert_eq!(Names::new("").unwrap().pieces(), "zones/");
        assert_eq!(Names::new("a/b/").unwrap().pieces(), "a/b/zones/");
        for refused in ["/", "a//b", "../a", "a b", "ä", &"x".repeat(600)] {
            let error = Names::new(refused).unwrap_err();
            assert!(error.to_string().contains("prefix"), "{error}");
        }
    }
}
