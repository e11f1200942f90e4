//! A small file system in memory that implements every operation.

use block::{Call, Data, Error, Result};
use fuse::protocol::init_flag;
use fuse::{
    Attributes, CachedAttributes, Context, CopyRange, DirectoryEntries, Entry, FileSystem, FileSystemPart,
    Opened, Operation, Read, ReadDirectory, Reply, SetAttributes, SetTime, Statistics, Timestamp, Write,
};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

#[derive(Clone)]
enum Content {
    File(Vec<u8>),
    Directory(BTreeMap<Vec<u8>, u64>),
    Link(Vec<u8>),
    Other,
}

#[derive(Clone)]
struct Node {
    attributes: Attributes,
    content: Content,
    extended: BTreeMap<Vec<u8>, Vec<u8>>,
}

struct State {
    nodes: BTreeMap<u64, Node>,
    next: u64,
}

/// Controls and counters for tests.
#[derive(Default)]
pub struct Controls {
    /// Reads wait until this is false.
    pub paused: AtomicBool,
    pub reads_begun: AtomicU64,
    pub resent: AtomicU64,
    pub forgotten: AtomicU64,
    pub interrupted: AtomicU64,
    pub largest_write: AtomicU64,
    pub unaligned_writes: AtomicU64,
}

#[derive(Clone)]
pub struct Memory {
    state: Arc<Mutex<State>>,
    pub controls: Arc<Controls>,
}

const TIME: Duration = Duration::from_secs(1);

fn errno<T>(number: i32) -> Result<T> {
    Err(Error::Os(number, "refused".into()))
}

impl Memory {
    pub fn new() -> Memory {
        let root = Node {
            attributes: Attributes {
                node: 1,
                mode: libc::S_IFDIR | 0o755,
                links: 2,
                ..Attributes::default()
            },
            content: Content::Directory(BTreeMap::new()),
            extended: BTreeMap::new(),
        };
        let state = State { nodes: BTreeMap::from([(1, root)]), next: 2 };
        Memory { state: Arc::new(Mutex::new(state)), controls: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("not poisoned")
    }
}

impl State {
    fn node(&mut self, node: u64) -> Result<&mut Node> {
        self.nodes.get_mut(&node).map_or_else(|| errno(libc::ENOENT), Ok)
    }

    fn entries(&mut self, node: u64) -> Result<&mut BTreeMap<Vec<u8>, u64>> {
        match &mut self.node(node)?.content {
            Content::Directory(entries) => Ok(entries),
            _ => errno(libc::ENOTDIR),
        }
    }

    fn bytes(&mut self, node: u64) -> Result<&mut Vec<u8>> {
        match &mut self.node(node)?.content {
            Content::File(bytes) => Ok(bytes),
            _ => errno(libc::EISDIR),
        }
    }

    fn attributes(&mut self, node: u64) -> Result<Attributes> {
        let node = self.node(node)?;
        if let Content::File(bytes) | Content::Link(bytes) = &node.content {
            node.attributes.size = bytes.len() as u64;
            node.attributes.blocks = (bytes.len() as u64).div_ceil(512);
        }
        Ok(node.attributes)
    }

    fn entry(&mut self, node: u64) -> Result<Entry> {
        let attributes = self.attributes(node)?;
        Ok(Entry { attributes, generation: 0, name_time: TIME, attributes_time: TIME })
    }

    fn find(&mut self, parent: u64, name: &[u8]) -> Result<u64> {
        self.entries(parent)?.get(name).copied().map_or_else(|| errno(libc::ENOENT), Ok)
    }

    fn create(&mut self, context: Context, name: &[u8], mode: u32, content: Content) -> Result<Entry> {
        let parent = context.node;
        if self.entries(parent)?.contains_key(name) {
            return errno(libc::EEXIST);
        }
        let node = self.next;
        self.next += 1;
        self.entries(parent)?.insert(name.to_vec(), node);
        let attributes = Attributes {
            node,
            mode,
            links: 1,
            uid: context.uid,
            gid: context.gid,
            block_size: 4096,
            ..Attributes::default()
        };
        self.nodes.insert(node, Node { attributes, content, extended: BTreeMap::new() });
        self.entry(node)
    }

    fn remove(&mut self, parent: u64, name: &[u8]) -> Result<()> {
        let node = self.find(parent, name)?;
        self.entries(parent)?.remove(name);
        let node = self.node(node)?;
        node.attributes.links = node.attributes.links.saturating_sub(1);
        Ok(())
    }

    fn is_empty_directory(&mut self, node: u64) -> Result<()> {
        match self.entries(node)?.is_empty() {
            true => Ok(()),
            false => errno(libc::ENOTEMPTY),
        }
    }

    fn set(&mut self, node: u64, set: &SetAttributes) -> Result<CachedAttributes> {
        if let Some(size) = set.size {
            self.bytes(node)?.resize(usize::try_from(size).expect("a small size"), 0);
        }
        let attributes = &mut self.node(node)?.attributes;
        attributes.mode =
            set.mode.map_or(attributes.mode, |mode| attributes.mode & libc::S_IFMT | mode & 0o7777);
        attributes.uid = set.uid.unwrap_or(attributes.uid);
        attributes.gid = set.gid.unwrap_or(attributes.gid);
        if let Some(SetTime::At(time)) = set.modified {
            attributes.modified = time;
        }
        if let Some(SetTime::Now) = set.modified {
            attributes.modified = Timestamp { seconds: 1, nanoseconds: 0 };
        }
        Ok((self.attributes(node)?, TIME))
    }
}

impl FileSystemPart for Memory {
    fn capabilities(&self) -> u64 {
        init_flag::DO_READDIRPLUS | init_flag::READDIRPLUS_AUTO
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn FileSystem>>> {
        Call::ready(Ok(Rc::new(self.clone()) as Rc<dyn FileSystem>))
    }
}

fn opened() -> Opened {
    Opened { handle: 0, flags: fuse::protocol::open_flag::DIRECT_IO }
}

impl FileSystem for Memory {
    fn serve<'a>(&'a self, context: Context, operation: Operation<'a>) -> Call<'a, Result<Reply>> {
        match operation {
            Operation::Read(read) => Call::new(self.read(context, read)),
            Operation::Write(write) => Call::ready(self.write(context.node, &write)),
            operation => Call::ready(self.state().serve(context, operation)),
        }
    }

    fn forget(&self, _: u64, lookups: u64) {
        self.controls.forgotten.fetch_add(lookups, Ordering::SeqCst);
    }

    fn interrupt(&self, _: u64) {
        self.controls.interrupted.fetch_add(1, Ordering::SeqCst);
    }
}

impl Memory {
    async fn read(&self, context: Context, read: Read) -> Result<Reply> {
        self.controls.reads_begun.fetch_add(1, Ordering::SeqCst);
        self.controls.resent.fetch_add(u64::from(context.is_resent()), Ordering::SeqCst);
        while self.controls.paused.load(Ordering::SeqCst) {
            runtime::sleep(Duration::from_millis(1)).await;
        }
        let mut state = self.state();
        let bytes = state.bytes(context.node)?;
        let begin = (read.offset as usize).min(bytes.len());
        let end = begin.saturating_add(read.size as usize).min(bytes.len());
        Ok(Reply::Bytes(Data::copy_of(&bytes[begin..end]).into()))
    }

    fn write(&self, node: u64, write: &Write) -> Result<Reply> {
        let data = write.data.filled();
        self.controls.largest_write.fetch_max(data.len() as u64, Ordering::SeqCst);
        let aligned = (data.as_ptr() as usize).is_multiple_of(block::buffer::ALIGNMENT);
        self.controls.unaligned_writes.fetch_add(u64::from(!aligned), Ordering::SeqCst);
        self.state().write(node, write.offset, data)
    }
}

impl State {
    fn serve(&mut self, context: Context, operation: Operation<'_>) -> Result<Reply> {
        let node = context.node;
        Ok(match operation {
            Operation::Lookup { name } => {
                let found = self.find(node, name)?;
                self.entry(found)?.into()
            }
            Operation::GetAttributes { .. } => (self.attributes(node)?, TIME).into(),
            Operation::SetAttributes(set) => self.set(node, &set)?.into(),
            Operation::ReadLink => self.target(node)?,
            Operation::SymbolicLink { name, target } => {
                let content = Content::Link(target.to_vec());
                self.create(context, name, libc::S_IFLNK | 0o777, content)?.into()
            }
            Operation::MakeNode { name, mode, .. } => {
                let is_file = mode & libc::S_IFMT == libc::S_IFREG;
                let content = if is_file { Content::File(Vec::new()) } else { Content::Other };
                self.create(context, name, mode, content)?.into()
            }
            Operation::MakeDirectory { name, mode, .. } => {
                self.create(context, name, libc::S_IFDIR | mode, Content::Directory(BTreeMap::new()))?.into()
            }
            Operation::Unlink { name } => self.remove(node, name)?.into(),
            Operation::RemoveDirectory { name } => self.remove_directory(node, name)?.into(),
            Operation::Rename { name, new_parent, new_name, flags } => {
                self.rename(node, name, (new_parent, new_name), flags)?.into()
            }
            Operation::Link { linked, name } => self.link(linked, node, name)?.into(),
            Operation::Open { .. } => opened().into(),
            Operation::OpenDirectory { .. } => Opened::default().into(),
            Operation::Create { name, mode, .. } => {
                let entry = self.create(context, name, mode, Content::File(Vec::new()))?;
                (entry, opened()).into()
            }
            Operation::Statistics => self.statistics().into(),
            Operation::Release { .. } | Operation::ReleaseDirectory { .. } | Operation::Sync { .. } => {
                Reply::Done
            }
            Operation::SetExtended { name, value, .. } => {
                self.node(node)?.extended.insert(name.to_vec(), value.to_vec());
                Reply::Done
            }
            Operation::GetExtended { name, .. } => match self.node(node)?.extended.get(name) {
                Some(value) => Data::copy_of(value).into(),
                None => return errno(libc::ENODATA),
            },
            Operation::ListExtended { .. } => {
                let names = self.node(node)?.extended.keys();
                let names: Vec<_> = names.flat_map(|name| [name, &[0][..]].concat()).collect();
                Data::copy_of(&names).into()
            }
            Operation::RemoveExtended { name } => {
                self.node(node)?.extended.remove(name);
                Reply::Done
            }
            Operation::ReadDirectory(read) => self.read_directory(node, &read)?.into(),
            Operation::CopyRange(copy) => self.copy_range(node, &copy)?,
            _ => return Err(fuse::not_implemented()),
        })
    }

    fn target(&mut self, node: u64) -> Result<Reply> {
        match &self.node(node)?.content {
            Content::Link(target) => Ok(Reply::Bytes(Data::copy_of(target).into())),
            _ => errno(libc::EINVAL),
        }
    }

    fn remove_directory(&mut self, parent: u64, name: &[u8]) -> Result<()> {
        let node = self.find(parent, name)?;
        self.is_empty_directory(node)?;
        self.remove(parent, name)
    }

    fn rename(
        &mut self,
        parent: u64,
        name: &[u8],
        (new_parent, new_name): (u64, &[u8]),
        flags: u32,
    ) -> Result<()> {
        let node = self.find(parent, name)?;
        if flags & libc::RENAME_NOREPLACE != 0 && self.find(new_parent, new_name).is_ok() {
            return errno(libc::EEXIST);
        }
        self.entries(new_parent)?.insert(new_name.to_vec(), node);
        self.entries(parent)?.remove(name);
        Ok(())
    }

    fn link(&mut self, node: u64, parent: u64, name: &[u8]) -> Result<Entry> {
        self.entries(parent)?.insert(name.to_vec(), node);
        self.node(node)?.attributes.links += 1;
        self.entry(node)
    }

    fn write(&mut self, node: u64, offset: u64, data: &[u8]) -> Result<Reply> {
        let bytes = self.bytes(node)?;
        let Some(end) = (offset as usize).checked_add(data.len()).filter(|end| *end <= 64 << 20) else {
            return errno(libc::EFBIG);
        };
        bytes.resize(bytes.len().max(end), 0);
        bytes[end - data.len()..end].copy_from_slice(data);
        Ok(Reply::Written(data.len() as u64))
    }

    fn statistics(&self) -> Statistics {
        Statistics {
            block_size: 4096,
            blocks: 1000,
            free: 500,
            available: 400,
            nodes: self.nodes.len() as u64,
            free_nodes: 7,
            name_bytes: 255,
        }
    }

    fn read_directory(&mut self, node: u64, read: &ReadDirectory) -> Result<DirectoryEntries> {
        let (mut entries, found) = (read.entries(), self.entries(node)?.clone());
        for (number, (name, node)) in found.iter().enumerate().skip(read.offset as usize) {
            let next = number as u64 + 1;
            let fits = match entries.with_attributes() {
                true => {
                    let Ok(entry) = self.entry(*node) else { continue };
                    entries.add_found(&entry, next, name)
                }
                false => entries.add(*node, next, libc::DT_UNKNOWN, name),
            };
            if !fits {
                break;
            }
        }
        Ok(entries)
    }

    fn copy_range(&mut self, node: u64, copy: &CopyRange) -> Result<Reply> {
        let from = self.bytes(node)?;
        let begin = (copy.from_offset as usize).min(from.len());
        let end = begin.saturating_add(copy.length as usize).min(from.len());
        let copied = from[begin..end].to_vec();
        self.write(copy.to_node, copy.to_offset, &copied)
    }
}
