//! A model of a file system with the rules of POSIX, and the observable state of a file system.

use block::{Error, Result};
use fs::core::Core;
use fs::metadata::attributes::Setting;
use fs::metadata::directory::Entry;
use fs::metadata::inode::{FileType, Inode, InodeNumber};
use fs::names::namespace::Renaming;
use fs::{FileSystem, OpenOptions, SnapshotView};
use runtime::Random;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Data; its debug output is only its length.
#[derive(Clone)]
pub struct Bytes(Vec<u8>);

impl std::fmt::Debug for Bytes {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} bytes", self.0.len())
    }
}

impl Bytes {
    /// Returns data that is determined by a number.
    pub fn draw(length: usize, number: u64) -> Self {
        let mut data = vec![0; length];
        Random::new(number).fill(&mut data);
        Bytes(data)
    }
}

/// An operation on one or two paths.
#[derive(Debug, Clone)]
pub enum Operation {
    Create(String),
    Write(String, u64, Bytes),
    Append(String, Bytes),
    Truncate(String, u64),
    Punch(String, u64, u64),
    Preallocate(String, u64, u64),
    /// As fallocate(2) with mode 0: the file includes the range afterwards.
    Allocate(String, u64, u64),
    /// As fallocate(2) with FALLOC_FL_ZERO_RANGE.
    ZeroRange(String, u64, u64),
    /// Path, first byte and number of bytes of the source, path and first byte of the copy.
    Clone(String, u64, u64, String, u64),
    Unlink(String),
    MakeDirectory(String),
    RemoveDirectory(String),
    Rename(String, String, Renaming),
    Link(String, String),
    SymbolicLink(String, String),
    /// Path, name and value of an extended attribute.
    SetAttribute(String, String, Bytes),
}

impl Operation {
    /// Returns the operation with all paths below a directory.
    fn within(&self, top: &str) -> Self {
        let at = |path: &String| format!("{top}{path}");
        match self.clone() {
            Operation::Create(path) => Operation::Create(at(&path)),
            Operation::Write(path, offset, data) => Operation::Write(at(&path), offset, data),
            Operation::Append(path, data) => Operation::Append(at(&path), data),
            Operation::Truncate(path, size) => Operation::Truncate(at(&path), size),
            Operation::Punch(path, from, to) => Operation::Punch(at(&path), from, to),
            Operation::Preallocate(path, from, to) => Operation::Preallocate(at(&path), from, to),
            Operation::Allocate(path, from, to) => Operation::Allocate(at(&path), from, to),
            Operation::ZeroRange(path, from, to) => Operation::ZeroRange(at(&path), from, to),
            Operation::Clone(from, offset, length, to, to_offset) => {
                Operation::Clone(at(&from), offset, length, at(&to), to_offset)
            }
            Operation::Unlink(path) => Operation::Unlink(at(&path)),
            Operation::MakeDirectory(path) => Operation::MakeDirectory(at(&path)),
            Operation::RemoveDirectory(path) => Operation::RemoveDirectory(at(&path)),
            Operation::Rename(from, to, renaming) => Operation::Rename(at(&from), at(&to), renaming),
            Operation::Link(from, to) => Operation::Link(at(&from), at(&to)),
            Operation::SymbolicLink(target, path) => Operation::SymbolicLink(target, at(&path)),
            Operation::SetAttribute(path, name, value) => Operation::SetAttribute(at(&path), name, value),
        }
    }

    /// Returns this operation if it is one on names or sizes, else the removal of its file.
    pub fn of_names(self) -> Self {
        match self {
            Operation::Write(path, ..) | Operation::Append(path, _) => Operation::Unlink(path),
            other => other,
        }
    }

    /// Whether the operation must succeed on a full file system.
    pub fn needs_no_space(&self) -> bool {
        match self {
            Operation::Unlink(_) | Operation::RemoveDirectory(_) => true,
            Operation::Rename(from, to, _) => {
                let length = |path: &String| path.rsplit('/').next().map_or(0, str::len);
                length(to) <= length(from)
            }
            _ => false,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Node {
    File(Rc<Vec<u8>>),
    Directory(BTreeMap<String, u64>),
    Link(String),
}

/// Extended attributes: names and values.
pub type Attributes = BTreeMap<String, Vec<u8>>;

/// Observable state of the file at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shown {
    File { contents: Rc<Vec<u8>>, links: u32, attributes: Attributes },
    Directory { links: u32 },
    Link(String),
}

/// State of all paths.
pub type View = BTreeMap<String, Shown>;

/// The model. Cloning is cheap.
#[derive(Debug, Clone)]
pub struct Model {
    nodes: BTreeMap<u64, Node>,
    attributes: BTreeMap<u64, Attributes>,
    next: u64,
}

type Outcome<T> = std::result::Result<T, i32>;

impl Default for Model {
    fn default() -> Self {
        let nodes = BTreeMap::from([(1, Node::Directory(BTreeMap::new()))]);
        Model { nodes, attributes: BTreeMap::new(), next: 2 }
    }
}

impl Model {
    fn parent(&self, path: &str) -> Outcome<(u64, String)> {
        let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
        let mut at = 1;
        for part in directory.split('/').filter(|part| !part.is_empty()) {
            at = *self.names(at)?.get(part).ok_or(libc::ENOENT)?;
        }
        self.names(at)?;
        Ok((at, name.to_owned()))
    }

    fn names(&self, node: u64) -> Outcome<&BTreeMap<String, u64>> {
        match &self.nodes[&node] {
            Node::Directory(names) => Ok(names),
            Node::File(_) => Err(libc::ENOTDIR),
            // Links are dangling.
            Node::Link(_) => Err(libc::ENOENT),
        }
    }

    fn names_mut(&mut self, node: u64) -> &mut BTreeMap<String, u64> {
        match self.nodes.get_mut(&node) {
            Some(Node::Directory(names)) => names,
            other => panic!("{other:?}"),
        }
    }

    fn find(&self, path: &str) -> Outcome<u64> {
        let (directory, name) = self.parent(path)?;
        self.names(directory)?.get(&name).copied().ok_or(libc::ENOENT)
    }

    fn file(&mut self, path: &str) -> Outcome<&mut Vec<u8>> {
        let node = self.find(path)?;
        match self.nodes.get_mut(&node) {
            Some(Node::File(contents)) => Ok(Rc::make_mut(contents)),
            Some(Node::Directory(_)) => Err(libc::EISDIR),
            _ => Err(libc::ENOENT),
        }
    }

    fn make(&mut self, path: &str, node: Node) -> Outcome<()> {
        let (directory, name) = self.parent(path)?;
        if self.names(directory)?.contains_key(&name) {
            return Err(libc::EEXIST);
        }
        let number = self.next;
        self.next += 1;
        self.nodes.insert(number, node);
        self.names_mut(directory).insert(name, number);
        Ok(())
    }

    fn is_directory(&self, node: u64) -> bool {
        matches!(self.nodes[&node], Node::Directory(_))
    }

    fn is_below(&self, node: u64, top: u64) -> bool {
        node == top
            || match &self.nodes[&top] {
                Node::Directory(names) => names.values().any(|child| self.is_below(node, *child)),
                _ => false,
            }
    }

    fn rename(&mut self, from: &str, to: &str, renaming: Renaming) -> Outcome<()> {
        let ((old_directory, old_name), (new_directory, new_name)) = (self.parent(from)?, self.parent(to)?);
        let moved = *self.names(old_directory)?.get(&old_name).ok_or(libc::ENOENT)?;
        let there = self.names(new_directory)?.get(&new_name).copied();
        match (renaming, there) {
            (Renaming::NoReplace, Some(_)) => return Err(libc::EEXIST),
            (Renaming::Exchange, None) => return Err(libc::ENOENT),
            (_, Some(there)) if there == moved => return Ok(()),
            _ => {}
        }
        if self.is_below(new_directory, moved) {
            return Err(libc::EINVAL);
        }
        if renaming == Renaming::Exchange {
            let there = there.unwrap();
            if self.is_below(old_directory, there) {
                return Err(libc::EINVAL);
            }
            self.names_mut(old_directory).insert(old_name, there);
            self.names_mut(new_directory).insert(new_name, moved);
            return Ok(());
        }
        if let Some(there) = there {
            match (self.is_directory(moved), self.is_directory(there)) {
                (true, false) => return Err(libc::ENOTDIR),
                (false, true) => return Err(libc::EISDIR),
                (true, true) if !self.names(there)?.is_empty() => return Err(libc::ENOTEMPTY),
                _ => {}
            }
        }
        self.names_mut(old_directory).remove(&old_name);
        self.names_mut(new_directory).insert(new_name, moved);
        Ok(())
    }

    /// Carries out an operation; a failed operation changes nothing.
    pub fn apply(&mut self, operation: &Operation) -> Outcome<()> {
        match operation {
            Operation::Create(path) => self.make(path, Node::File(Rc::default())),
            Operation::Write(path, offset, data) => {
                let contents = self.file(path)?;
                let data = &data.0;
                let end = *offset as usize + data.len();
                contents.resize(contents.len().max(end), 0);
                contents[*offset as usize..end].copy_from_slice(data);
                Ok(())
            }
            Operation::Append(path, data) => {
                self.file(path)?.extend_from_slice(&data.0);
                Ok(())
            }
            Operation::Truncate(path, size) => {
                self.file(path)?.resize(*size as usize, 0);
                Ok(())
            }
            Operation::Punch(path, from, to) => {
                let contents = self.file(path)?;
                let size = contents.len();
                contents[(*from as usize).min(size)..(*to as usize).min(size)].fill(0);
                Ok(())
            }
            Operation::Preallocate(path, ..) => self.file(path).map(drop),
            Operation::Allocate(path, _, to) => {
                let contents = self.file(path)?;
                contents.resize(contents.len().max(*to as usize), 0);
                Ok(())
            }
            Operation::ZeroRange(path, from, to) => {
                self.apply(&Operation::Punch(path.clone(), *from, *to))?;
                self.apply(&Operation::Allocate(path.clone(), *from, *to))
            }
            Operation::Clone(from, offset, length, to, to_offset) => {
                let (source, offset, to_offset) = (self.file(from)?, *offset as usize, *to_offset as usize);
                let end = source.len().min(offset.saturating_add(*length as usize));
                let data = source.get(offset..end).unwrap_or_default().to_vec();
                let is_apart = offset + data.len() <= to_offset || to_offset + data.len() <= offset;
                let is_same = self.find(from) == self.find(to);
                let contents = self.file(to)?;
                if is_same && !is_apart {
                    return Err(libc::EINVAL);
                }
                if !data.is_empty() {
                    contents.resize(contents.len().max(to_offset + data.len()), 0);
                    contents[to_offset..to_offset + data.len()].copy_from_slice(&data);
                }
                Ok(())
            }
            Operation::Unlink(path) => {
                let node = self.find(path)?;
                if self.is_directory(node) {
                    return Err(libc::EISDIR);
                }
                let (directory, name) = self.parent(path)?;
                self.names_mut(directory).remove(&name);
                Ok(())
            }
            Operation::MakeDirectory(path) => self.make(path, Node::Directory(BTreeMap::new())),
            Operation::RemoveDirectory(path) => {
                let node = self.find(path)?;
                if !self.is_directory(node) {
                    return Err(libc::ENOTDIR);
                }
                if !self.names(node)?.is_empty() {
                    return Err(libc::ENOTEMPTY);
                }
                let (directory, name) = self.parent(path)?;
                self.names_mut(directory).remove(&name);
                Ok(())
            }
            Operation::Rename(from, to, renaming) => self.rename(from, to, *renaming),
            Operation::Link(from, to) => {
                let node = self.find(from)?;
                let (directory, name) = self.parent(to)?;
                if self.is_directory(node) {
                    return Err(libc::EPERM);
                }
                if self.names(directory)?.contains_key(&name) {
                    return Err(libc::EEXIST);
                }
                self.names_mut(directory).insert(name, node);
                Ok(())
            }
            Operation::SymbolicLink(target, path) => self.make(path, Node::Link(target.clone())),
            Operation::SetAttribute(path, name, value) => {
                self.file(path)?;
                let node = self.find(path)?;
                self.attributes.entry(node).or_default().insert(name.clone(), value.0.clone());
                Ok(())
            }
        }
    }

    /// Whether a clone is one step: shared blocks, a copied part of a block, or one write of data that isn't
    /// shared.
    fn is_cloned_at_once(&self, operation: &Operation) -> bool {
        const BLOCK: u64 = 4096;
        let Operation::Clone(from, offset, length, to, to_offset) = operation else { return true };
        let size = |path| self.clone().file(path).map_or(0, |contents| contents.len() as u64);
        let length = size(from).saturating_sub(*offset).min(*length);
        let end = to_offset + length;
        match (offset % BLOCK == to_offset % BLOCK, to_offset % BLOCK) {
            (true, 0) => {
                let ends_both = offset + length == size(from) && end >= size(to);
                end.is_multiple_of(BLOCK) || ends_both || length < BLOCK
            }
            (true, within) => within + length <= BLOCK,
            (false, _) => end.div_ceil(BLOCK) * BLOCK - to_offset / BLOCK * BLOCK <= 64 << 10,
        }
    }

    /// Whether an operation is atomic. A write of more than 64 KiB, rounded to blocks, may be divided, and a
    /// clone may have several steps.
    pub fn is_atomic(&self, operation: &Operation) -> bool {
        const BLOCK: u64 = 4096;
        let (offset, length) = match operation {
            Operation::Write(_, offset, data) => (*offset, data.0.len() as u64),
            Operation::Append(path, data) => {
                let size = self.clone().file(path).map_or(0, |contents| contents.len());
                (size as u64, data.0.len() as u64)
            }
            Operation::Clone(..) => return self.is_cloned_at_once(operation),
            Operation::ZeroRange(..) => return false,
            _ => return true,
        };
        (offset + length).div_ceil(BLOCK) * BLOCK - offset / BLOCK * BLOCK <= 64 << 10
    }

    /// Returns the view of a file system in this state.
    pub fn view(&self) -> View {
        let mut links: BTreeMap<u64, u32> = BTreeMap::new();
        for node in self.nodes.values() {
            if let Node::Directory(names) = node {
                names.values().for_each(|child| *links.entry(*child).or_default() += 1);
            }
        }
        let mut view = View::new();
        self.show(1, "", &links, &mut view);
        view
    }

    fn show(&self, node: u64, path: &str, links: &BTreeMap<u64, u32>, view: &mut View) {
        let shown = match &self.nodes[&node] {
            Node::File(contents) => Shown::File {
                contents: contents.clone(),
                links: links[&node],
                attributes: self.attributes.get(&node).cloned().unwrap_or_default(),
            },
            Node::Link(target) => Shown::Link(target.clone()),
            Node::Directory(names) => {
                for (name, child) in names {
                    self.show(*child, &format!("{path}/{name}"), links, view);
                }
                let directories = names.values().filter(|child| self.is_directory(**child)).count();
                Shown::Directory { links: 2 + directories as u32 }
            }
        };
        view.insert(path.to_owned(), shown);
    }
}

async fn attributes_of_inode(files: &FileSystem, inode: InodeNumber) -> Result<Attributes> {
    let read = move |core: Rc<Core>| async move {
        let mut attributes = Attributes::new();
        for name in core.attribute_names(inode)? {
            let value = core.attribute(inode, &name)?;
            attributes.insert(String::from_utf8_lossy(&name).into_owned(), value);
        }
        Ok(attributes)
    };
    files.shards().of(inode).with(read).await
}

/// A file system, or a snapshot of one.
pub trait Reads {
    async fn inode(&self, path: &str) -> Result<Inode>;
    async fn names(&self, path: &str) -> Result<Vec<Entry>>;
    async fn target(&self, path: &str) -> Result<Vec<u8>>;
    /// Reads a file, requesting a few bytes more than its size.
    async fn contents(&self, path: &str) -> Result<(Inode, Vec<u8>)>;
    /// Extended attributes of a file.
    async fn attributes_of(&self, path: &str) -> Result<Attributes>;
}

impl Reads for FileSystem {
    async fn inode(&self, path: &str) -> Result<Inode> {
        self.attributes(path).await
    }

    async fn names(&self, path: &str) -> Result<Vec<Entry>> {
        self.read_directory(path).await
    }

    async fn target(&self, path: &str) -> Result<Vec<u8>> {
        self.read_link(path).await
    }

    async fn contents(&self, path: &str) -> Result<(Inode, Vec<u8>)> {
        let file = self.open_file(path, OpenOptions::default()).await?;
        let inode = file.attributes().await?;
        Ok((inode, file.read_at(0, inode.size as usize + 10).await?.to_data().to_vec()))
    }

    async fn attributes_of(&self, path: &str) -> Result<Attributes> {
        attributes_of_inode(self, self.open_file(path, OpenOptions::default()).await?.inode()).await
    }
}

impl Reads for SnapshotView {
    async fn inode(&self, path: &str) -> Result<Inode> {
        self.attributes(path).await
    }

    async fn names(&self, path: &str) -> Result<Vec<Entry>> {
        self.read_directory(path).await
    }

    async fn target(&self, path: &str) -> Result<Vec<u8>> {
        self.read_link(path).await
    }

    async fn contents(&self, path: &str) -> Result<(Inode, Vec<u8>)> {
        let file = self.open_file(path).await?;
        let inode = file.attributes().await?;
        Ok((inode, file.read_at(0, inode.size as usize + 10).await?.to_data().to_vec()))
    }

    async fn attributes_of(&self, path: &str) -> Result<Attributes> {
        let all = self.open_file(path).await?.extended_attributes().await?;
        Ok(all
            .into_iter()
            .map(|(name, value)| (String::from_utf8_lossy(&name).into_owned(), value))
            .collect())
    }
}

/// Returns the view of a directory of a file system, with paths relative to it.
pub async fn view_of(files: &impl Reads, top: &str) -> Result<View> {
    let mut view = View::new();
    let mut rest = vec![String::new()];
    while let Some(path) = rest.pop() {
        let inode = files.inode(&format!("{top}{path}/")).await?;
        view.insert(path.clone(), Shown::Directory { links: inode.links });
        for entry in files.names(&format!("{top}{path}")).await? {
            let child = format!("{path}/{}", String::from_utf8_lossy(&entry.name));
            match u32::from(entry.code) << 12 {
                libc::S_IFDIR => rest.push(child),
                libc::S_IFLNK => {
                    let target = files.target(&format!("{top}{child}")).await?;
                    view.insert(child, Shown::Link(String::from_utf8_lossy(&target).into_owned()));
                }
                _ => {
                    let (inode, contents) = files.contents(&format!("{top}{child}")).await?;
                    assert_eq!(inode.file_type(), FileType::Regular, "{child}");
                    assert_eq!(contents.len() as u64, inode.size, "{child}");
                    let contents = Rc::new(contents);
                    let attributes = files.attributes_of(&format!("{top}{child}")).await?;
                    view.insert(child, Shown::File { contents, links: inode.links, attributes });
                }
            }
        }
    }
    Ok(view)
}

/// Carries out an operation in a directory of a file system.
pub async fn apply(files: &FileSystem, top: &str, operation: &Operation) -> Result<()> {
    let there = OpenOptions::default();
    match &operation.within(top) {
        Operation::Create(path) => {
            files.open_file(path, OpenOptions { create_new: true, ..there }).await.map(drop)
        }
        Operation::Write(path, offset, data) => {
            let data = block::Data::copy_of(&data.0);
            files.open_file(path, there).await?.write_at(*offset, data).await
        }
        Operation::Append(path, data) => {
            let data = block::Data::copy_of(&data.0);
            files.open_file(path, there).await?.append(data).await.map(drop)
        }
        Operation::Truncate(path, size) => files.open_file(path, there).await?.truncate(*size).await,
        Operation::Punch(path, from, to) => files.open_file(path, there).await?.punch(*from..*to).await,
        Operation::Preallocate(path, from, to) => {
            files.open_file(path, there).await?.preallocate(*from..*to).await
        }
        Operation::Allocate(path, from, to) => files.open_file(path, there).await?.allocate(*from..*to).await,
        Operation::ZeroRange(path, from, to) => {
            let file = files.open_file(path, there).await?;
            file.punch(*from..*to).await?;
            file.allocate(*from..*to).await
        }
        Operation::Clone(from, offset, length, to, to_offset) => {
            let source = files.open_file(from, there).await?;
            let target = files.open_file(to, there).await?;
            target.clone_range(&source, *offset, *length, *to_offset).await.map(drop)
        }
        Operation::Unlink(path) => files.unlink(path).await,
        Operation::MakeDirectory(path) => files.make_directory(path).await,
        Operation::RemoveDirectory(path) => files.remove_directory(path).await,
        Operation::Rename(from, to, renaming) => files.rename(from, to, *renaming).await,
        Operation::Link(from, to) => files.link(from, to).await,
        Operation::SymbolicLink(target, path) => files.symbolic_link(target, path).await,
        Operation::SetAttribute(path, name, value) => {
            let inode = files.open_file(path, there).await?.inode();
            let (name, value) = (name.clone().into_bytes(), value.0.clone());
            let set = move |core: Rc<Core>| async move {
                core.set_attribute(inode, &name, &value, Setting::default()).await
            };
            files.home().with(set).await
        }
    }
}

/// Whether both succeeded, or both failed with the same error.
pub fn is_alike(model: &Outcome<()>, found: &Result<()>) -> bool {
    match (model, found) {
        (Ok(()), Ok(())) => true,
        (Err(errno), Err(error)) => *errno == error.errno(),
        _ => false,
    }
}

/// Whether an error is caused by the medium, not by the operation.
pub fn is_of_medium(error: &Error) -> bool {
    matches!(error, Error::Io(_) | Error::ReadOnly(_) | Error::Corrupt(_) | Error::Closed(_))
}

fn path(random: &mut Random) -> String {
    let names = ["a", "b", "c", "long-name-of-a-file-that-takes-a-few-bytes"];
    let mut path = String::new();
    for _ in 0..random.below(3) {
        path += &format!("/d{}", random.below(3));
    }
    match random.chance(0.2) {
        true => path + &format!("/d{}", random.below(3)),
        false => path + "/" + names[random.below(4) as usize],
    }
}

/// Draws an operation. Files have at most about `blocks` blocks.
pub fn draw(random: &mut Random, number: u64, blocks: u64) -> Operation {
    let place = path(random);
    let large = if blocks > 8 { 60_000 } else { 8192 };
    let data = Bytes::draw([1, 100, 4096, large, 5000, 20_000][random.below(6) as usize], number);
    let offset = match random.chance(0.5) {
        true => random.below(blocks) * 4096,
        false => random.below(blocks * 4000),
    };
    let choice = random.below(20);
    let mut clones = Random::new(number ^ 0xC10E);
    if clones.chance(0.12) {
        return draw_clone(&mut clones, place, blocks);
    }
    match choice {
        0..3 => Operation::Create(place),
        3..8 => Operation::Write(place, offset, data),
        8..10 => Operation::Append(place, data),
        10 => Operation::Truncate(place, offset),
        11 => Operation::Punch(place, offset, offset + 1 + random.below(20_000)),
        12 => {
            let end = offset + 1 + random.below(20_000);
            match clones.below(3) {
                0 => Operation::Preallocate(place, offset, end),
                1 => Operation::Allocate(place, offset, end),
                _ => Operation::ZeroRange(place, offset, end),
            }
        }
        13 => Operation::Unlink(place),
        14 | 15 => Operation::MakeDirectory(
            place.rsplit_once('/').unwrap().0.to_owned() + &format!("/d{}", random.below(3)),
        ),
        16 => Operation::RemoveDirectory(place),
        17 => {
            let renaming = [Renaming::Replace, Renaming::Replace, Renaming::NoReplace, Renaming::Exchange];
            Operation::Rename(place, path(random), renaming[random.below(4) as usize])
        }
        18 => Operation::Link(place, path(random)),
        _ => Operation::SymbolicLink("/nowhere".to_owned() + &path(random), place),
    }
}

/// Draws a clone, usually of whole blocks.
fn draw_clone(random: &mut Random, from: String, blocks: u64) -> Operation {
    let unit = if random.chance(0.8) { 4096 } else { 1000 };
    let mut offset = || match random.chance(0.5) {
        true => 0,
        false => random.below(blocks) * unit,
    };
    let (from_offset, to_offset) = (offset(), offset());
    let length = match random.chance(0.5) {
        true => u64::MAX,
        false => (1 + random.below(blocks)) * unit,
    };
    Operation::Clone(from, from_offset, length, path(random), to_offset)
}
