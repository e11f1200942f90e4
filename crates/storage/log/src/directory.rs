//! The log device's part of a checkpoint's directory: all versions, and the locations of their map pages.
//!
//! The directory is written completely with each checkpoint ([`logkit::directory`]). The pages themselves are
//! written only if they changed: for 1 TiB the directory takes about 2 MiB and all pages 1 GiB. A page's
//! checksum is stored with its location, so that a stale page is detected.

use crate::format::{MAX_NAME, VersionId};
use crate::layout::Layout;
use crate::map::{PAGE_BLOCKS, Physical};
use block::Result;
use logkit::directory::bytes_at_most;
use std::rc::Rc;
use zones::bytes::{Reader, Writer};

/// Number of pages that share one chunk of a page table.
pub const CHUNK: usize = 512;
const MAGIC: &[u8; 8] = b"SILTVER2";
const DAMAGED: &[u8; 8] = b"SILTBAD1";
const NO_CHUNK: u32 = u32::MAX;

/// Location of a map page's newest copy, and its checksum. All zeros if the page maps nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PagePlace {
    /// Block that holds the page.
    pub physical: Physical,
    /// CRC32C of the page.
    pub sum: u32,
}

/// Locations of all pages of a version's map. Tables share equal chunks.
#[derive(Debug, Clone, Default)]
pub struct PageTable {
    chunks: Vec<Option<Rc<[PagePlace; CHUNK]>>>,
}

impl PageTable {
    /// Returns the location of a page.
    pub fn get(&self, page: u64) -> PagePlace {
        let (chunk, entry) = (page as usize / CHUNK, page as usize % CHUNK);
        self.chunks.get(chunk).and_then(Option::as_ref).map_or(PagePlace::default(), |chunk| chunk[entry])
    }

    /// Sets the location of a page; returns its previous location.
    pub fn set(&mut self, page: u64, place: PagePlace) -> PagePlace {
        let (number, entry) = (page as usize / CHUNK, page as usize % CHUNK);
        if self.chunks.len() <= number {
            self.chunks.resize(number + 1, None);
        }
        let chunk = self.chunks[number].get_or_insert_with(|| Rc::new([PagePlace::default(); CHUNK]));
        std::mem::replace(&mut Rc::make_mut(chunk)[entry], place)
    }

    /// Returns a chunk if any of its pages has a location.
    fn chunk(&self, number: usize) -> Option<&Rc<[PagePlace; CHUNK]>> {
        let chunk = self.chunks.get(number)?.as_ref()?;
        chunk.iter().any(|place| place.physical.is_mapped()).then_some(chunk)
    }

    /// Returns all pages that have a location, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, PagePlace)> + '_ {
        let chunks = self.chunks.iter().enumerate();
        chunks.filter_map(|(number, chunk)| Some((number, chunk.as_ref()?))).flat_map(|(number, chunk)| {
            let places = chunk.iter().enumerate().filter(|(_, place)| place.physical.is_mapped());
            places.map(move |(entry, place)| ((number * CHUNK + entry) as u64, *place))
        })
    }
}

/// Returns the number of distinct pages that these tables reference together, and the number of distinct
/// chunks.
pub fn count_distinct(tables: &[&PageTable]) -> (u64, u64) {
    let (mut pages, mut parts) = (0, 0);
    let mut chunks: Vec<&Rc<[PagePlace; CHUNK]>> = Vec::new();
    let mut places: Vec<Physical> = Vec::new();
    for number in 0..tables.iter().map(|table| table.chunks.len()).max().unwrap_or(0) {
        chunks.clear();
        for chunk in tables.iter().filter_map(|table| table.chunk(number)) {
            if !chunks.iter().any(|other| Rc::ptr_eq(other, chunk)) && chunks.last() != Some(&chunk) {
                chunks.push(chunk);
            }
        }
        parts += chunks.len() as u64;
        for entry in 0..CHUNK {
            places.clear();
            places.extend(chunks.iter().map(|chunk| chunk[entry].physical).filter(|place| place.is_mapped()));
            places.sort_unstable();
            places.dedup();
            pages += places.len() as u64;
        }
    }
    (pages, parts)
}

/// A version's entry in a directory.
#[derive(Debug, Clone)]
pub struct VersionEntry {
    /// Number of the version.
    pub id: VersionId,
    /// Version that this one was copied from, if that still exists.
    pub parent: Option<VersionId>,
    /// Whether the version takes writes.
    pub writable: bool,
    /// Creation time, in seconds since 1970.
    pub created: u64,
    /// Size in blocks.
    pub blocks: u64,
    /// Name; empty for the volume itself.
    pub name: String,
    /// Locations of the map's pages.
    pub table: PageTable,
}

impl VersionEntry {
    /// Returns the entry of a new volume of this number of blocks.
    pub fn head(blocks: u64, created: u64) -> Self {
        let (name, table) = (String::new(), PageTable::default());
        VersionEntry { id: VersionId::HEAD, parent: None, writable: true, created, blocks, name, table }
    }

    /// Encodes the entry without its page table.
    pub fn encode(&self, writer: &mut Writer) {
        writer.u32(self.id.0);
        writer.u32(self.parent.map_or(0, |parent| parent.0));
        writer.u8(self.writable.into());
        writer.u64(self.created);
        writer.u64(self.blocks);
        writer.u8(self.name.len() as u8);
        writer.put(self.name.as_bytes());
    }

    /// Decodes an entry without its page table.
    ///
    /// # Errors
    /// [`Error::Corrupt`](block::Error::Corrupt) for bytes that no version of this program writes.
    pub fn decode(reader: &mut Reader<'_>) -> Result<Self> {
        let id = VersionId(reader.u32()?);
        let parent = Some(VersionId(reader.u32()?)).filter(|parent| parent.0 != 0);
        let (writable, created, blocks) = (reader.u8()? != 0, reader.u64()?, reader.u64()?);
        let length = usize::from(reader.u8()?);
        debug_assert!(length <= MAX_NAME);
        let name = std::str::from_utf8(reader.bytes(length)?)
            .map_err(|_| reader.strange("has a name that is not UTF-8"))?
            .to_owned();
        let table = PageTable::default();
        Ok(VersionEntry { id, parent, writable, created, blocks, name, table })
    }
}

/// Checks that these entries can be all versions of a log: parents precede their children, numbers are below
/// `next`, and the volume itself is present.
///
/// # Errors
/// [`Error::Corrupt`](block::Error::Corrupt), for the bytes of `reader`, otherwise.
pub fn check_versions<'a>(
    versions: impl Iterator<Item = &'a VersionEntry>,
    next: u32,
    reader: &Reader<'_>,
) -> Result<()> {
    let mut known: Vec<VersionId> = Vec::new();
    for version in versions {
        let is_orphan = version.parent.is_some_and(|parent| !known.contains(&parent));
        if is_orphan || known.contains(&version.id) || version.id.0 == 0 || version.id.0 >= next {
            return Err(reader.strange("has versions with numbers or parents out of range"));
        }
        known.push(version.id);
    }
    match known.contains(&VersionId::HEAD) {
        true => Ok(()),
        false => Err(reader.strange("lacks the volume's head")),
    }
}

/// The complete directory.
#[derive(Debug, Clone, Default)]
pub struct Directory {
    /// Versions; parents precede their children.
    pub versions: Vec<VersionEntry>,
    /// Number of the next version.
    pub next_version: u32,
    /// Damaged blocks, with the generations of their zones.
    pub damaged: Vec<(Physical, u64)>,
}

const VERSION_BYTES: usize = 4 + 4 + 1 + 8 + 8 + 1;

/// Returns the most blocks that the directory of a log without snapshots takes, its records' headers
/// included.
pub fn blocks_at_most(layout: &Layout, pages: u64) -> u64 {
    let blocks = pages * PAGE_BLOCKS;
    self::blocks(layout, chunks_of(blocks), entry_bytes(blocks, 0))
}

/// Returns the most chunks that the page table of a version of this number of blocks has.
pub fn chunks_of(blocks: u64) -> u64 {
    blocks.div_ceil(PAGE_BLOCKS).div_ceil(CHUNK as u64)
}

/// Returns the most bytes that a version of this number of blocks takes in a directory, without its chunks.
pub fn entry_bytes(blocks: u64, name: usize) -> u64 {
    (VERSION_BYTES + name) as u64 + 4 + 4 * chunks_of(blocks)
}

/// Returns the number of blocks of a directory with these numbers of chunks and of bytes of versions, its
/// records' headers included.
pub fn blocks(layout: &Layout, chunks: u64, versions: u64) -> u64 {
    let bytes =
        64 + versions + chunks * 8 * CHUNK as u64 + bytes_at_most(layout.zones, layout.stripes.streams());
    let blocks = bytes.div_ceil(layout.block_size.bytes());
    blocks + blocks.div_ceil(u64::from(layout.max_append - 1))
}

impl Directory {
    /// Encodes the directory.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.put(MAGIC);
        writer.u32(self.next_version);
        let mut chunks: Vec<&Rc<[PagePlace; CHUNK]>> = Vec::new();
        let mut tables = Vec::new();
        for version in &self.versions {
            let mut table = Vec::new();
            for number in 0..version.table.chunks.len() {
                let Some(chunk) = version.table.chunk(number) else {
                    table.push(NO_CHUNK);
                    continue;
                };
                // A shared chunk has the same index in an earlier version.
                let before = self.versions[..tables.len()].iter().zip(&tables);
                let shared = before.rev().find_map(|(other, table): (_, &Vec<u32>)| {
                    let theirs = other.table.chunks.get(number)?.as_ref()?;
                    // Tables whose pages were set one by one may have equal chunks without sharing them.
                    (Rc::ptr_eq(theirs, chunk) || theirs == chunk).then(|| table[number])
                });
                table.push(shared.unwrap_or_else(|| {
                    chunks.push(chunk);
                    chunks.len() as u32 - 1
                }));
            }
            tables.push(table);
        }
        writer.u32(chunks.len() as u32);
        for place in chunks.iter().flat_map(|chunk| chunk.iter()) {
            writer.u32(place.physical.0);
            writer.u32(place.sum);
        }
        writer.u32(self.versions.len() as u32);
        for (version, table) in self.versions.iter().zip(&tables) {
            version.encode(&mut writer);
            writer.u32(table.len() as u32);
            table.iter().for_each(|chunk| writer.u32(*chunk));
        }
        // Written only if there are any, so that earlier programs can read all other directories.
        if !self.damaged.is_empty() {
            writer.put(DAMAGED);
            writer.u32(self.damaged.len() as u32);
            for (physical, generation) in &self.damaged {
                writer.u32(physical.0);
                writer.u64(*generation);
            }
        }
        writer.0
    }

    /// Decodes a directory from untrusted bytes.
    ///
    /// # Errors
    /// [`block::Error::Corrupt`] for bytes that no version of this program writes.
    pub fn decode(bytes: &[u8]) -> Result<Directory> {
        let mut reader = Reader::new(bytes, "the list of versions of a checkpoint");
        if reader.bytes(8)? != MAGIC {
            return Err(reader.strange("has no magic number"));
        }
        let next_version = reader.u32()?;
        let mut chunks = Vec::new();
        for _ in 0..reader.count(8 * CHUNK)? {
            let mut chunk = [PagePlace::default(); CHUNK];
            for place in &mut chunk {
                *place = PagePlace { physical: Physical(reader.u32()?), sum: reader.u32()? };
            }
            chunks.push(Rc::new(chunk));
        }
        let mut versions: Vec<VersionEntry> = Vec::new();
        for _ in 0..reader.count(VERSION_BYTES)? {
            versions.push(Self::decode_version(&mut reader, &chunks)?);
        }
        check_versions(versions.iter(), next_version, &reader)?;
        let mut damaged = Vec::new();
        if reader.remaining() > 0 {
            if reader.bytes(8)? != DAMAGED {
                return Err(
                    reader.strange("has bytes after its versions that aren't a list of damaged blocks")
                );
            }
            for _ in 0..reader.count(12)? {
                damaged.push((Physical(reader.u32()?), reader.u64()?));
            }
        }
        Ok(Directory { versions, next_version, damaged })
    }

    fn decode_version(reader: &mut Reader<'_>, chunks: &[Rc<[PagePlace; CHUNK]>]) -> Result<VersionEntry> {
        let mut version = VersionEntry::decode(reader)?;
        let table = &mut version.table;
        let most = version.blocks.div_ceil(PAGE_BLOCKS).div_ceil(CHUNK as u64);
        for _ in 0..reader.count(4)? {
            table.chunks.push(match reader.u32()? {
                NO_CHUNK => None,
                number => Some(
                    chunks
                        .get(number as usize)
                        .ok_or_else(|| reader.strange("refers to a chunk out of range"))?
                        .clone(),
                ),
            });
        }
        if table.chunks.len() as u64 > most {
            return Err(reader.strange("has pages past the end of a version"));
        }
        Ok(version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory() -> Directory {
        let mut table = PageTable::default();
        for page in [0, 3, 511, 512, 2000] {
            table.set(page, PagePlace { physical: Physical(page as u32 + 1), sum: 7 });
        }
        let mut changed = table.clone();
        changed.set(3, PagePlace { physical: Physical(99), sum: 8 });
        let version = |id, parent, name: &str, table| VersionEntry {
            id: VersionId(id),
            parent,
            writable: id == 1,
            created: 5,
            blocks: 4 << 20,
            name: name.to_owned(),
            table,
        };
        Directory {
            versions: vec![version(2, None, "before", table), version(1, Some(VersionId(2)), "", changed)],
            next_version: 3,
            damaged: Vec::new(),
        }
    }

    #[test]
    fn what_was_written_is_read_and_what_is_shared_is_written_once() {
        let directory = directory();
        let bytes = directory.encode();
        assert_eq!(
            (bytes.len(), logkit::record::sum_of(&bytes)),
            (16_502, 4_168_049_737),
            "the bytes of version 2"
        );
        let decoded = Directory::decode(&bytes).expect("it was encoded");
        for (ours, theirs) in directory.versions.iter().zip(&decoded.versions) {
            assert!(ours.table.iter().eq(theirs.table.iter()));
            assert_eq!((ours.id, ours.parent, &ours.name), (theirs.id, theirs.parent, &theirs.name));
        }
        let damaged = vec![(Physical(7), 3), (Physical(9), 1 << 40)];
        let with_damage = Directory { damaged: damaged.clone(), ..directory };
        assert_eq!(Directory::decode(&with_damage.encode()).expect("it was encoded").damaged, damaged);
        // Chunks 0, 1 and 3 of the first version, and one that differs.
        assert!(bytes.len() < 5 * 8 * CHUNK, "{}", bytes.len());
    }

    #[test]
    fn damaged_bytes_never_panic() {
        let bytes = directory().encode();
        let mut random = runtime::Random::new(1);
        for _ in 0..2000 {
            let mut damaged = bytes.clone();
            let at = random.below(damaged.len() as u64) as usize;
            damaged[at] ^= 1 << random.below(8);
            damaged.truncate(random.below(bytes.len() as u64 + 1) as usize);
            let _ = Directory::decode(&damaged);
        }
    }
}
