//! Simulated files: what programs see, what is on the medium, and what lies between.

use super::SimulatedFaults;
use super::world::put;
use crate::file::Metadata;
use crate::random::Random;
use block::{Buffer, Error, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The unit in which a write may be torn, in bytes.
const SECTOR: usize = 512;

/// A change that programs see and that a power cut may lose.
enum Change {
    Write { offset: usize, bytes: Vec<u8> },
    Length(usize),
}

impl Change {
    fn apply(&self, contents: &mut Vec<u8>) {
        match self {
            Change::Write { offset, bytes } => overwrite(contents, *offset, bytes),
            Change::Length(length) => contents.resize(*length, 0),
        }
    }

    /// Applies a drawn part of the sectors, or nothing, or all.
    fn apply_in_part(&self, contents: &mut Vec<u8>, random: &mut Random) {
        match (self, random.below(3)) {
            (_, 0) => {}
            (Change::Write { offset, bytes }, 1) => {
                let mut at = 0;
                while at < bytes.len() {
                    let end = (at + to_sector_end(offset + at)).min(bytes.len());
                    if random.chance(0.5) {
                        overwrite(contents, offset + at, &bytes[at..end]);
                    }
                    at = end;
                }
            }
            _ => self.apply(contents),
        }
    }
}

/// How many bytes it is to the end of the sector that this one is in.
fn to_sector_end(offset: usize) -> usize {
    SECTOR - offset % SECTOR
}

fn overwrite(contents: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    let end = offset + bytes.len();
    if contents.len() < end {
        contents.resize(end, 0);
    }
    contents[offset..end].copy_from_slice(bytes);
}

#[derive(Default)]
struct Inode {
    seen: Vec<u8>,
    /// As of the last sync; and durable writes up to the first one that wasn't.
    durable: Vec<u8>,
    /// What came after, in order, and whether it is durable: what is doesn't make earlier ones so, but what it took the place
    /// of never comes back.
    after: Vec<(Change, bool)>,
}

impl Inode {
    fn change(&mut self, change: Change, durable: bool) {
        change.apply(&mut self.seen);
        if durable && self.after.is_empty() {
            change.apply(&mut self.durable);
        } else {
            self.after.push((change, durable));
        }
    }

    fn sync(&mut self) {
        self.after.clear();
        self.durable.clone_from(&self.seen);
    }
}

#[derive(Clone)]
enum Open {
    File(usize),
    Directory(PathBuf),
}

pub(super) struct Files {
    inodes: Vec<Inode>,
    names: BTreeMap<PathBuf, usize>,
    durable_names: BTreeMap<PathBuf, usize>,
    directories: BTreeSet<PathBuf>,
    open: BTreeMap<u64, Open>,
}

fn path_of(path: &CStr) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(path.to_bytes()))
}

impl Files {
    pub(super) fn new(files: &[(PathBuf, Vec<u8>)]) -> Files {
        let inodes = files.iter().map(|(_, contents)| Inode {
            seen: contents.clone(),
            durable: contents.clone(),
            after: Vec::new(),
        });
        let names: BTreeMap<PathBuf, usize> =
            files.iter().enumerate().map(|(index, (path, _))| (path.clone(), index)).collect();
        Files {
            inodes: inodes.collect(),
            durable_names: names.clone(),
            names,
            directories: BTreeSet::new(),
            open: BTreeMap::new(),
        }
    }

    fn inode(&mut self, handle: u64) -> Result<&mut Inode, i32> {
        match self.open.get(&handle) {
            Some(Open::File(index)) => Ok(&mut self.inodes[*index]),
            Some(Open::Directory(_)) => Err(-libc::EISDIR),
            None => Err(-libc::EBADF),
        }
    }

    pub(super) fn read(
        &mut self,
        handle: u64,
        offset: u64,
        buffer: &mut Buffer,
        random: &mut Random,
        faults: &SimulatedFaults,
    ) -> i32 {
        let inode = match self.inode(handle) {
            Ok(inode) => inode,
            Err(errno) => return errno,
        };
        if random.chance(faults.read_error) {
            return -libc::EIO;
        }
        let begin = (offset as usize).min(inode.seen.len());
        let available = inode.seen.len() - begin;
        let count = cut(available.min(buffer.missing()), random, faults);
        put(buffer, &inode.seen[begin..begin + count]);
        count as i32
    }

    pub(super) fn write(
        &mut self,
        handle: u64,
        offset: u64,
        bytes: &[u8],
        durable: bool,
        random: &mut Random,
        faults: &SimulatedFaults,
    ) -> i32 {
        let inode = match self.inode(handle) {
            Ok(inode) => inode,
            Err(errno) => return errno,
        };
        let failed = random.chance(faults.write_error);
        let count = match failed {
            true => torn(offset as usize, bytes.len(), random),
            false => cut(bytes.len(), random, faults),
        };
        let change = Change::Write { offset: offset as usize, bytes: bytes[..count].to_vec() };
        inode.change(change, durable && !failed);
        if failed { -libc::EIO } else { count as i32 }
    }

    pub(super) fn sync(&mut self, handle: u64, random: &mut Random, faults: &SimulatedFaults) -> i32 {
        if random.chance(faults.sync_error) {
            return -libc::EIO;
        }
        match self.open.get(&handle).cloned() {
            Some(Open::File(index)) => self.inodes[index].sync(),
            Some(Open::Directory(directory)) => self.sync_names(&directory),
            None => return -libc::EBADF,
        }
        0
    }

    fn sync_names(&mut self, directory: &Path) {
        let inside = |path: &PathBuf| path.parent() == Some(directory);
        self.durable_names.retain(|path, _| !inside(path));
        let now = self.names.iter().filter(|(path, _)| inside(path));
        self.durable_names.extend(now.map(|(path, index)| (path.clone(), *index)));
    }

    pub(super) fn allocate(&mut self, handle: u64, mode: i32, offset: u64, length: u64) -> i32 {
        let inode = match self.inode(handle) {
            Ok(inode) => inode,
            Err(errno) => return errno,
        };
        let (begin, end) = (offset as usize, (offset + length) as usize);
        if mode & (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE) == 0 {
            if inode.seen.len() < end {
                inode.change(Change::Length(end), false);
            }
            return 0;
        }
        let end = end.min(inode.seen.len());
        if begin < end {
            inode.change(Change::Write { offset: begin, bytes: vec![0; end - begin] }, false);
        }
        0
    }

    pub(super) fn truncate(&mut self, handle: u64, length: u64) -> i32 {
        match self.inode(handle) {
            Ok(inode) => inode.change(Change::Length(length as usize), false),
            Err(errno) => return errno,
        }
        0
    }

    pub(super) fn open(&mut self, path: &CStr, flags: i32, handle: u64) -> i32 {
        let path = path_of(path);
        let found = self.names.get(&path).copied();
        let index = match found {
            Some(_) if flags & libc::O_EXCL != 0 => return -libc::EEXIST,
            Some(index) => index,
            None if flags & libc::O_CREAT != 0 => {
                self.inodes.push(Inode::default());
                self.names.insert(path, self.inodes.len() - 1);
                self.inodes.len() - 1
            }
            None if self.is_directory(&path) => {
                self.open.insert(handle, Open::Directory(path));
                return handle as i32;
            }
            None => return -libc::ENOENT,
        };
        if flags & libc::O_TRUNC != 0 {
            self.inodes[index].change(Change::Length(0), false);
        }
        self.open.insert(handle, Open::File(index));
        handle as i32
    }

    fn is_directory(&self, path: &Path) -> bool {
        self.directories.contains(path) || self.names.keys().any(|name| name.parent() == Some(path))
    }

    pub(super) fn rename(&mut self, from: &CStr, to: &CStr) -> i32 {
        match self.names.remove(&path_of(from)) {
            Some(index) => self.names.insert(path_of(to), index),
            None => return -libc::ENOENT,
        };
        0
    }

    pub(super) fn unlink(&mut self, path: &CStr) -> i32 {
        if self.names.remove(&path_of(path)).is_some() { 0 } else { -libc::ENOENT }
    }

    pub(super) fn create_directory(&mut self, path: &CStr) -> i32 {
        if self.directories.insert(path_of(path)) { 0 } else { -libc::EEXIST }
    }

    pub(super) fn close(&mut self, handle: u64) {
        self.open.remove(&handle);
    }

    pub(super) fn length(&self, handle: u64) -> Result<u64> {
        match self.open.get(&handle) {
            Some(Open::File(index)) => Ok(self.inodes[*index].seen.len() as u64),
            _ => Err(Error::closed("a simulated file that isn't open")),
        }
    }

    pub(super) fn metadata(&self, path: &Path) -> Result<Metadata> {
        let found = self.names.get(path).map(|index| self.inodes[*index].seen.len() as u64);
        let is_directory = self.is_directory(path);
        if found.is_none() && !is_directory {
            return Err(Error::not_found(path.display().to_string()));
        }
        let length = found.unwrap_or(0);
        Ok(Metadata {
            length,
            is_file: found.is_some(),
            is_directory,
            is_block_device: false,
            allocated: length,
        })
    }

    pub(super) fn list(&self, path: &Path) -> Result<Vec<PathBuf>> {
        let inside = self.names.keys().filter(|name| name.parent() == Some(path));
        Ok(inside.filter_map(|name| name.file_name()).map(PathBuf::from).collect())
    }

    pub(super) fn contents(&self) -> Vec<(PathBuf, Vec<u8>)> {
        self.names.iter().map(|(path, index)| (path.clone(), self.inodes[*index].seen.clone())).collect()
    }

    pub(super) fn after_power_cut(&self, random: &mut Random) -> Vec<(PathBuf, Vec<u8>)> {
        let mut names = BTreeMap::new();
        let all: BTreeSet<&PathBuf> = self.names.keys().chain(self.durable_names.keys()).collect();
        for path in all {
            let (now, durable) = (self.names.get(path), self.durable_names.get(path));
            let survives = if now == durable || random.chance(0.5) { durable } else { now };
            names.extend(survives.map(|index| (path.clone(), *index)));
        }
        let left = |index: usize, random: &mut Random| {
            let mut contents = self.inodes[index].durable.clone();
            for (change, durable) in &self.inodes[index].after {
                match durable {
                    // Only this change, not the earlier ones: that is all that RWF_DSYNC promises.
                    true => change.apply(&mut contents),
                    false => change.apply_in_part(&mut contents, random),
                }
            }
            contents
        };
        names.into_iter().map(|(path, index)| (path, left(index, random))).collect()
    }
}

/// How many bytes of a write that fails have arrived: it ends with a whole sector, or where it was to end.
fn torn(offset: usize, length: usize, random: &mut Random) -> usize {
    let sectors = (offset % SECTOR + length).div_ceil(SECTOR);
    match random.below(sectors as u64 + 1) as usize {
        0 => 0,
        arrived => (to_sector_end(offset) + (arrived - 1) * SECTOR).min(length),
    }
}

/// The length of a transfer, which the kernel may cut short at any sector.
fn cut(length: usize, random: &mut Random, faults: &SimulatedFaults) -> usize {
    if length > SECTOR && random.chance(faults.short) {
        return SECTOR * (1 + random.below((length / SECTOR) as u64) as usize).min(length / SECTOR);
    }
    length
}
