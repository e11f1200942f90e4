//! Checks of all parsers on arbitrary bytes, for fuzzing: what a store answers in place of manifests, pieces
//! and keys. The same check runs with seeded bytes in every `cargo test`.
//!
//! Left to others: the parsers (`format`, `table`, `names`, `compression`).

use crate::compression::{Index, Size, decompress, head_length, reach};
use crate::format::{
    CHUNK, Manifest, PIECE_HEADER, chunk_range, object_length, open_index, verify, with_checksum,
};
use crate::names::{Name, Names, PieceName};
use crate::table::{Table, decode_changes};
use std::ops::Range;

/// Volume, and name of a piece of it.
const VOLUME: [u8; 16] = [1; 16];
const PIECE: PieceName = PieceName { zone: 3, generation: 5, epoch: 2, offset: 1 << 20, serial: 8 };

/// Checks the parsers of manifests, zone tables, changes, keys and pieces: no panic, what is valid has one
/// encoding, and memory is bounded by the bytes and the number of zones.
///
/// # Panics
/// If a check fails.
pub fn check_any_bytes(bytes: &[u8]) {
    check_manifest(bytes);
    // Nearly no bytes have the right checksum.
    check_manifest(&with_checksum(bytes));
    check_table(bytes);
    check_changes(bytes);
    check_key(&String::from_utf8_lossy(bytes));
    check_piece(bytes);
}

fn check_manifest(bytes: &[u8]) {
    // Any epoch and number, as most bytes have others than those of their key.
    let field = |from: usize, length: usize| {
        let mut field = [0; 8];
        field[..length].copy_from_slice(bytes.get(from..from + length).unwrap_or(&[0; 8][..length]));
        u64::from_le_bytes(field)
    };
    let (epoch, number) = (field(48, 4) as u32, field(56, 8));
    let Ok(manifest) = Manifest::decode(bytes, epoch, number, None) else { return };
    assert!(manifest.body.len() + manifest.writer.name.len() <= bytes.len() * 3);
    let again = Manifest::decode(&manifest.encode(None), epoch, number, None);
    // A name that isn't UTF-8 has other bytes afterwards.
    if manifest.writer.name.len() <= 255 {
        assert_eq!(again.as_ref(), Ok(&manifest));
    }
    check_table(&manifest.body);
    check_changes(&manifest.body);
}

fn check_table(bytes: &[u8]) {
    let Ok(table) = Table::decode(bytes) else { return };
    let encoded = table.encode();
    assert_eq!(Table::decode(&encoded).as_ref(), Ok(&table));
    assert!(encoded.len() <= table.longest_encoding());
    // A zone in its first state may be listed, and isn't encoded.
    assert!(encoded.len() <= bytes.len());
}

fn check_changes(bytes: &[u8]) {
    let Ok(changes) = decode_changes(bytes) else { return };
    assert!(changes.len() <= bytes.len());
    let Ok(mut table) = Table::new(8, 1 << 20) else { return };
    for change in &changes {
        let before = table.clone();
        match table.apply(change, 7) {
            Err(_) => assert_eq!(table, before, "a refused change changes nothing"),
            Ok(()) => assert!(table.zones[change.zone() as usize].end() <= table.zone_size),
        }
    }
}

fn check_key(text: &str) {
    for prefix in ["", "db1/"] {
        let Ok(names) = Names::new(prefix) else { continue };
        if let Some(name) = names.parse(text) {
            assert_eq!(names.key(name), text);
        }
    }
    if let Ok(names) = Names::new(text) {
        let key = names.key(Name::Piece(PIECE));
        assert_eq!(names.parse(&key), Some(Name::Piece(PIECE)));
    }
}

/// The bytes as an answer to the read of a range of a piece, whose length and range they choose.
fn check_piece(bytes: &[u8]) {
    let [first, second, third, rest @ ..] = bytes else { return };
    let length = 1 + u64::from(*first) * 1024;
    let start = u64::from(*second) * length / 256;
    let end = (start + 1 + u64::from(*third) * 512).min(length);
    let range = chunk_range(length, start..end, false);
    assert!(range.at + range.bytes as u64 <= object_length(length, false));
    assert!(range.bytes <= (end - start) as usize + 2 * CHUNK + 4 * (2 + (end - start) as usize / CHUNK));
    let mut taken = 0;
    let keys = (None, None);
    if verify(&VOLUME, &PIECE, &range, keys, &mut rest.to_vec(), |bytes| taken += bytes.len()).is_ok() {
        assert_eq!(taken as u64, end - start);
    }
    check_compressed(length, start..end, rest);
}

/// The bytes as the object of a compressed piece of `length` bytes, and as a chunk of it.
fn check_compressed(length: u64, wanted: Range<u64>, bytes: &[u8]) {
    let mut chunk = vec![0; CHUNK];
    let _any = decompress(bytes, &mut chunk);
    let size = Size { length, compressed: bytes.len() as u32 };
    let head = head_length(length, false);
    // Nearly no bytes have the right checksum.
    let Some(index) = bytes.get(PIECE_HEADER..head - 4) else { return };
    let Ok(index) = Index::decode(index, size, false) else { return };
    let range = index.range(wanted.clone());
    let end = range.at as usize + range.bytes;
    assert!(end <= bytes.len() && end <= reach(size, wanted.end, false));
    let (mut taken, mut part) = (0, bytes[range.at as usize..end].to_vec());
    let keys = (Some(&index), None);
    if verify(&VOLUME, &PIECE, &range, keys, &mut part, |bytes| taken += bytes.len()).is_ok() {
        assert_eq!(taken as u64, wanted.end - wanted.start);
    }
    if let Ok(opened) = open_index(&VOLUME, &PIECE, size, None, &mut bytes.to_vec()) {
        assert_eq!(opened, index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compression::Compressor;
    use crate::format::{Kind, Writer};
    use crate::open_piece::OpenPiece;
    use crate::table::Change;

    /// The arguments of [`check_piece`] for a compressed piece of 128 KiB and a byte, and its object.
    fn compressed_piece() -> Vec<u8> {
        let (length, compressor) = ((128 << 10) + 1, std::rc::Rc::new(Compressor::new()));
        let mut piece = OpenPiece::new(PIECE.offset, Some(compressor), None);
        while piece.push(&[7; 1024], length) > 0 {}
        let ended = piece.end();
        let parts = (ended.index.as_ref(), &ended.chunks[..]);
        let object = crate::format::piece_object(&VOLUME, &PIECE, length, parts, false).to_data();
        assert_eq!(object.len(), ended.compressed as usize);
        let bytes = [&[128, 0, 255], &object[..]].concat();
        check_any_bytes(&bytes);
        bytes
    }

    /// Valid bytes of each kind, with a few bytes that seeds have changed, and arbitrary ones.
    #[test]
    fn seeded_bytes_are_parsed_or_refused() {
        let mut table = Table::new(3, 1 << 20).unwrap();
        let piece = Change::Piece { zone: 1, offset: 0, length: 4096, compressed: 0, serial: 9 };
        table.apply(&piece, 5).unwrap();
        let follows = Change::Piece { zone: 1, offset: 4096, length: 512, compressed: 700, serial: 10 };
        let merge = Change::Merge { zone: 1, offset: 0, length: 4608, compressed: 800, serial: 11 };
        let manifest = Manifest {
            volume: VOLUME,
            writer: Writer { id: [9; 16], name: "host".to_owned() },
            epoch: 3,
            number: 17,
            kind: Kind::Base,
            is_clean: true,
            is_compressed: true,
            link: 17,
            time: 1,
            body: table.encode(),
        };
        let key = Names::new("db1/").unwrap().key(Name::Piece(PIECE)).into_bytes();
        let valid = [
            manifest.encode(None),
            table.encode(),
            crate::table::encode_changes(&[piece, follows, merge, Change::Reset { zone: 1, generation: 2 }]),
            key,
            vec![0; 600],
            compressed_piece(),
        ];
        let mut random = runtime::Random::new(1);
        for round in 0..4000_usize {
            let mut bytes = valid[round % valid.len()].clone();
            for _ in 0..1 + random.below(4) {
                let at = random.below(bytes.len() as u64) as usize;
                match random.below(4) {
                    0 => bytes[at] = random.below(256) as u8,
                    1 => bytes.truncate(at + 1),
                    2 => bytes.insert(at, random.below(256) as u8),
                    _ => bytes[at] = [0, 1, 0x7f, 0xff][random.below(4) as usize],
                }
            }
            check_any_bytes(&bytes);
        }
    }
}
