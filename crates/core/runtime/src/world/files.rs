//! Simulated files: the contents that programs see, the contents of the medium, and the changes between them.
//!
//! Errors of write-back are reported as Linux reports them (`errseq_t`, lib/errseq.c; "Error reporting during
//! writeback" in Documentation/filesystems/vfs.rst). Modelled:
//! - Failed write-back marks the file's dirty pages clean: a drawn part of each change is on the medium, the
//!   rest is lost, and later syncs don't write it. Programs still read the new data from the cache.
//! - It advances the file's error sequence. Each open file description reports an error once: its next fsync,
//!   fdatasync or RWF_DSYNC write fails with EIO, the one after it doesn't.
//! - A description that is opened later reports the error only if no other one has reported it yet.
//! - `/proc/self/fd/N` opens the file again as a description of its own; a shared descriptor
//!   ([`Files::share`]) has the same one.
//!
//! Not modelled: write-back in the background (it happens, and fails, at a sync or an RWF_DSYNC write),
//! write-back of a range (a failure affects all dirty pages of the file), eviction of clean pages (so the end
//! of a program without a power cut loses nothing), errors of directories, and errors of a write that
//! bypasses the cache, which only its caller gets (`SimulatedFaults::write_error`).

use super::{SimulatedFaults, put};
use crate::metadata::Metadata;
use crate::random::Random;
use block::{Buffer, Error, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Unit in which a write may be torn, in bytes.
const SECTOR: usize = 512;

/// Change that programs see and that a power cut may lose.
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

    /// Applies a drawn part of the sectors, or none, or all.
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

/// Number of bytes from `offset` to the end of its sector.
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
    /// Contents at the last sync, and durable writes up to the first write that wasn't durable.
    durable: Vec<u8>,
    /// Later changes, in order, and whether each is durable. A durable one doesn't make earlier ones durable,
    /// but they can't overwrite its bytes.
    after: Vec<(Change, bool)>,
    errors: ErrorSequence,
}

/// Write-back errors of a file, as in lib/errseq.c.
#[derive(Default)]
struct ErrorSequence {
    /// Number of errors; errors before the first report count as one.
    errors: u64,
    /// Whether a description has reported the last error.
    reported: bool,
}

impl ErrorSequence {
    /// Records an error: `errseq_set`.
    fn set(&mut self) {
        if self.errors == 0 || self.reported {
            self.errors += 1;
            self.reported = false;
        }
    }

    /// `errseq_sample`: start position of a new description, which reports an error only if no other one has
    /// reported it.
    fn sample(&self) -> u64 {
        if self.reported { self.errors } else { 0 }
    }

    /// `errseq_check_and_advance`: returns whether there is an error since `since`, and marks it as reported.
    fn check_and_advance(&mut self, since: &mut u64) -> bool {
        if self.errors == *since {
            return false;
        }
        *since = self.errors;
        self.reported = true;
        true
    }
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

    /// Writes dirty pages back.
    fn sync(&mut self) {
        for (change, _) in self.after.drain(..) {
            change.apply(&mut self.durable);
        }
    }

    /// Returns the contents of the medium if a drawn part of the dirty pages has reached it.
    fn written_in_part(&self, random: &mut Random) -> Vec<u8> {
        let mut contents = self.durable.clone();
        for (change, durable) in &self.after {
            match durable {
                // A durable write applies only its own change, not the earlier ones: RWF_DSYNC promises no
                // more.
                true => change.apply(&mut contents),
                false => change.apply_in_part(&mut contents, random),
            }
        }
        contents
    }

    /// Makes write-back fail: the dirty pages that it didn't write are lost.
    fn fail_write_back(&mut self, random: &mut Random) {
        self.durable = self.written_in_part(random);
        self.after.clear();
        self.errors.set();
    }
}

/// Object of an open file description: a file or a directory.
#[derive(Clone)]
enum Target {
    File(usize),
    Directory(PathBuf),
}

/// An open file description.
struct Open {
    target: Target,
    /// Position in the file's error sequence up to which this description has reported errors.
    reported: u64,
    /// Number of descriptors.
    descriptors: usize,
}

pub(super) struct Files {
    inodes: Vec<Inode>,
    names: BTreeMap<PathBuf, usize>,
    durable_names: BTreeMap<PathBuf, usize>,
    open: BTreeMap<u64, Open>,
}

/// Descriptor that a path of the form `/proc/self/fd/N` names.
fn descriptor_of(path: &Path) -> Option<u64> {
    path.strip_prefix("/proc/self/fd").ok()?.to_str()?.parse().ok()
}

fn path_of(path: &CStr) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(path.to_bytes()))
}

impl Files {
    pub(super) fn new(files: &[(PathBuf, Vec<u8>)]) -> Files {
        let inodes = files.iter().map(|(_, contents)| Inode {
            seen: contents.clone(),
            durable: contents.clone(),
            ..Inode::default()
        });
        let names: BTreeMap<PathBuf, usize> =
            files.iter().enumerate().map(|(index, (path, _))| (path.clone(), index)).collect();
        Files { inodes: inodes.collect(), durable_names: names.clone(), names, open: BTreeMap::new() }
    }

    fn inode(&mut self, handle: u64) -> Result<&mut Inode, i32> {
        self.opened(handle).map(|(inode, _)| inode)
    }

    /// Returns the file of a descriptor, and the description's position in its error sequence.
    fn opened(&mut self, handle: u64) -> Result<(&mut Inode, &mut u64), i32> {
        match self.open.get_mut(&handle) {
            Some(Open { target: Target::File(index), reported, .. }) => {
                Ok((&mut self.inodes[*index], reported))
            }
            Some(_) => Err(-libc::EISDIR),
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
        let (inode, reported) = match self.opened(handle) {
            Ok(opened) => opened,
            Err(errno) => return errno,
        };
        let failed = random.chance(faults.write_error);
        let count = match failed {
            true => torn(offset as usize, bytes.len(), random),
            false => cut(bytes.len(), random, faults),
        };
        let change = Change::Write { offset: offset as usize, bytes: bytes[..count].to_vec() };
        if failed || !durable {
            inode.change(change, false);
            return if failed { -libc::EIO } else { count as i32 };
        }
        if random.chance(faults.sync_error) {
            inode.change(change, false);
            inode.fail_write_back(random);
        } else {
            inode.change(change, true);
        }
        if inode.errors.check_and_advance(reported) { -libc::EIO } else { count as i32 }
    }

    pub(super) fn sync(&mut self, handle: u64, random: &mut Random, faults: &SimulatedFaults) -> i32 {
        let failed = random.chance(faults.sync_error);
        if let Some(Open { target: Target::Directory(directory), .. }) = self.open.get(&handle) {
            let directory = directory.clone();
            if failed {
                return -libc::EIO;
            }
            self.sync_names(&directory);
            return 0;
        }
        let (inode, reported) = match self.opened(handle) {
            Ok(opened) => opened,
            Err(errno) => return errno,
        };
        match failed {
            true => inode.fail_write_back(random),
            false => inode.sync(),
        }
        if inode.errors.check_and_advance(reported) { -libc::EIO } else { 0 }
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
        const CREATE_NEW: i32 = libc::O_CREAT | libc::O_EXCL;
        let path = path_of(path);
        if let Some(other) = descriptor_of(&path) {
            let Some(target) = self.open.get(&other).map(|open| open.target.clone()) else {
                return -libc::ENOENT;
            };
            return self.describe(handle, target);
        }
        let found = self.names.get(&path).copied();
        let index = match found {
            Some(_) if flags & CREATE_NEW == CREATE_NEW => return -libc::EEXIST,
            Some(index) => index,
            None if flags & libc::O_CREAT != 0 => {
                self.inodes.push(Inode::default());
                self.names.insert(path, self.inodes.len() - 1);
                self.inodes.len() - 1
            }
            None if self.is_directory(&path) => return self.describe(handle, Target::Directory(path)),
            None => return -libc::ENOENT,
        };
        if flags & libc::O_TRUNC != 0 {
            self.inodes[index].change(Change::Length(0), false);
        }
        self.describe(handle, Target::File(index))
    }

    /// Creates an open file description.
    fn describe(&mut self, handle: u64, target: Target) -> i32 {
        let reported = match &target {
            Target::File(index) => self.inodes[*index].errors.sample(),
            Target::Directory(_) => 0,
        };
        self.open.insert(handle, Open { target, reported, descriptors: 1 });
        handle as i32
    }

    /// Adds a descriptor to the same open file description; returns whether there is such a file.
    pub(super) fn share(&mut self, handle: u64) -> bool {
        let found = self.open.get_mut(&handle);
        found.map(|open| open.descriptors += 1).is_some()
    }

    fn is_directory(&self, path: &Path) -> bool {
        self.names.keys().any(|name| name.parent() == Some(path))
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

    pub(super) fn close(&mut self, handle: u64) {
        let Some(open) = self.open.get_mut(&handle) else { return };
        open.descriptors -= 1;
        if open.descriptors == 0 {
            self.open.remove(&handle);
        }
    }

    pub(super) fn length(&self, handle: u64) -> Result<u64> {
        match self.open.get(&handle) {
            Some(Open { target: Target::File(index), .. }) => Ok(self.inodes[*index].seen.len() as u64),
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
        Ok(Metadata::simulated(length, is_directory))
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
        names.into_iter().map(|(path, index)| (path, self.inodes[index].written_in_part(random))).collect()
    }
}

/// Number of bytes of a failing write that were written: up to a sector's end, or all.
fn torn(offset: usize, length: usize, random: &mut Random) -> usize {
    let sectors = (offset % SECTOR + length).div_ceil(SECTOR);
    match random.below(sectors as u64 + 1) as usize {
        0 => 0,
        arrived => (to_sector_end(offset) + (arrived - 1) * SECTOR).min(length),
    }
}

/// Length of a transfer, which the kernel may cut short at any sector.
fn cut(length: usize, random: &mut Random, faults: &SimulatedFaults) -> usize {
    if length > SECTOR && random.chance(faults.short) {
        return SECTOR * (1 + random.below((length / SECTOR) as u64) as usize).min(length / SECTOR);
    }
    length
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAILS: SimulatedFaults =
        SimulatedFaults { read_error: 0.0, write_error: 0.0, sync_error: 1.0, slow: 0.0, short: 0.0 };
    const WORKS: SimulatedFaults = SimulatedFaults { sync_error: 0.0, ..FAILS };
    const ERROR: i32 = -libc::EIO;

    struct World(Files, Random);

    impl World {
        fn new() -> World {
            World(Files::new(&[(PathBuf::from("data"), vec![7; 4096])]), Random::new(1))
        }

        fn open(&mut self, path: &CStr, handle: u64) {
            assert_eq!(self.0.open(path, libc::O_RDWR, handle), handle as i32);
        }

        fn sync(&mut self, handle: u64, faults: SimulatedFaults) -> i32 {
            self.0.sync(handle, &mut self.1, &faults)
        }

        fn write(&mut self, handle: u64, durable: bool, faults: SimulatedFaults) -> i32 {
            self.0.write(handle, 0, &[8; 512], durable, &mut self.1, &faults)
        }
    }

    #[test]
    fn each_description_reports_an_error_once() {
        let mut world = World::new();
        for handle in 1..=3 {
            world.open(c"data", handle);
        }
        world.open(c"/proc/self/fd/1", 4);
        assert!(world.0.share(1));
        assert_eq!(world.write(1, false, WORKS), 512);
        assert_eq!(world.sync(1, FAILS), ERROR, "the sync that failed");
        assert_eq!(world.sync(1, WORKS), 0, "reported already, and the data is given up");
        assert_eq!(world.write(2, true, WORKS), ERROR, "a durable write reports what was lost before it");
        assert_eq!(world.sync(2, WORKS), 0, "and consumed it");
        assert_eq!(world.sync(3, WORKS), ERROR);
        assert_eq!(world.sync(4, WORKS), ERROR, "the same file opened again is a description of its own");
        world.0.close(1);
        assert_eq!(world.sync(1, WORKS), 0, "still open by its second descriptor");
        world.0.close(1);
        assert_eq!(world.sync(1, WORKS), -libc::EBADF);
    }

    #[test]
    fn a_later_description_reports_only_what_nobody_has_reported() {
        let mut world = World::new();
        world.open(c"data", 1);
        assert_eq!(world.write(1, true, FAILS), ERROR);
        world.open(c"data", 2);
        assert_eq!(world.sync(2, WORKS), 0, "reported before it was opened");
        // This error is unreported: the description on which it occurred is closed.
        world.0.inodes[0].errors.set();
        world.0.close(1);
        world.open(c"data", 3);
        world.open(c"data", 4);
        assert_eq!([world.sync(3, WORKS), world.sync(4, WORKS), world.sync(2, WORKS)], [ERROR; 3]);
        world.open(c"data", 5);
        assert_eq!([2, 3, 4, 5].map(|handle| world.sync(handle, WORKS)), [0; 4]);
    }

    #[test]
    fn what_failed_write_back_lost_is_not_written_by_a_later_sync() {
        let mut lost = 0;
        for seed in 0..20 {
            let mut world = World::new();
            world.1 = Random::new(seed);
            world.open(c"data", 1);
            assert_eq!(world.write(1, false, WORKS), 512);
            assert_eq!(world.sync(1, FAILS), ERROR);
            assert_eq!(world.sync(1, WORKS), 0);
            assert_eq!(world.0.contents()[0].1[..512], [8; 512], "the cache shows the write");
            let medium = world.0.after_power_cut(&mut world.1).remove(0).1;
            lost += u32::from(medium[..512] == [7; 512]);
        }
        assert!((5..20).contains(&lost), "{lost} of 20 seeds lost the write");
    }
}
