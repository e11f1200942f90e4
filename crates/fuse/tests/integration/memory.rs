//! A small file system in memory that implements every operation.

use block::{Buffer, Call, Data, Error, Payload, Result};
use fuse::protocol::init_flag;
use fuse::{
    Attributes, CachedAttributes, Context, CopyRange, DirectoryEntries, DirectoryEntriesPlus, Entry,
    FileSystem, FileSystemPart, Opened, Read, Release, SetAttributes, SetTime, Statistics, Timestamp, Write,
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

    fn create(
        &mut self,
        context: Context,
        parent: u64,
        name: &[u8],
        mode: u32,
        content: Content,
    ) -> Result<Entry> {
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
    fn lookup<'a>(&'a self, _: Context, parent: u64, name: &'a [u8]) -> Call<'a, Result<Entry>> {
        let mut state = self.state();
        Call::ready(state.find(parent, name).and_then(|node| state.entry(node)))
    }

    fn forget(&self, _: u64, lookups: u64) {
        self.controls.forgotten.fetch_add(lookups, Ordering::SeqCst);
    }

    fn attributes(&self, _: Context, node: u64, _: Option<u64>) -> Call<'_, Result<CachedAttributes>> {
        Call::ready(self.state().attributes(node).map(|attributes| (attributes, TIME)))
    }

    fn set_attributes(
        &self,
        _: Context,
        node: u64,
        set: SetAttributes,
    ) -> Call<'_, Result<CachedAttributes>> {
        Call::ready(self.state().set(node, &set))
    }

    fn read_link(&self, _: Context, node: u64) -> Call<'_, Result<Data>> {
        Call::ready(match self.state().node(node).map(|node| node.content.clone()) {
            Ok(Content::Link(target)) => Ok(Data::copy_of(&target)),
            Ok(_) => errno(libc::EINVAL),
            Err(error) => Err(error),
        })
    }

    fn symbolic_link<'a>(
        &'a self,
        context: Context,
        parent: u64,
        name: &'a [u8],
        target: &'a [u8],
    ) -> Call<'a, Result<Entry>> {
        let content = Content::Link(target.to_vec());
        Call::ready(self.state().create(context, parent, name, libc::S_IFLNK | 0o777, content))
    }

    fn make_node<'a>(
        &'a self,
        context: Context,
        parent: u64,
        name: &'a [u8],
        mode: u32,
        _: u32,
        _: u32,
    ) -> Call<'a, Result<Entry>> {
        let content = match mode & libc::S_IFMT {
            libc::S_IFREG => Content::File(Vec::new()),
            _ => Content::Other,
        };
        Call::ready(self.state().create(context, parent, name, mode, content))
    }

    fn make_directory<'a>(
        &'a self,
        context: Context,
        parent: u64,
        name: &'a [u8],
        mode: u32,
        _: u32,
    ) -> Call<'a, Result<Entry>> {
        let content = Content::Directory(BTreeMap::new());
        Call::ready(self.state().create(context, parent, name, libc::S_IFDIR | mode, content))
    }

    fn unlink<'a>(&'a self, _: Context, parent: u64, name: &'a [u8]) -> Call<'a, Result<()>> {
        Call::ready(self.state().remove(parent, name))
    }

    fn remove_directory<'a>(&'a self, _: Context, parent: u64, name: &'a [u8]) -> Call<'a, Result<()>> {
        let mut state = self.state();
        let node = state.find(parent, name);
        Call::ready(
            node.and_then(|node| state.is_empty_directory(node)).and_then(|()| state.remove(parent, name)),
        )
    }

    fn rename<'a>(
        &'a self,
        _: Context,
        parent: u64,
        name: &'a [u8],
        new_parent: u64,
        new_name: &'a [u8],
        flags: u32,
    ) -> Call<'a, Result<()>> {
        let mut state = self.state();
        let node = match state.find(parent, name) {
            Ok(node) => node,
            Err(error) => return Call::ready(Err(error)),
        };
        let there = state.find(new_parent, new_name);
        if there.is_ok() && flags & libc::RENAME_NOREPLACE != 0 {
            return Call::ready(errno(libc::EEXIST));
        }
        let moved = state.entries(new_parent).map(|entries| entries.insert(new_name.to_vec(), node));
        Call::ready(moved.and_then(|_| state.entries(parent).map(|entries| entries.remove(name))).map(drop))
    }

    fn link<'a>(
        &'a self,
        _: Context,
        node: u64,
        new_parent: u64,
        new_name: &'a [u8],
    ) -> Call<'a, Result<Entry>> {
        let mut state = self.state();
        let linked = state.entries(new_parent).map(|entries| entries.insert(new_name.to_vec(), node));
        Call::ready(linked.and_then(|_| {
            state.node(node)?.attributes.links += 1;
            state.entry(node)
        }))
    }

    fn open(&self, _: Context, _: u64, _: i32) -> Call<'_, Result<Opened>> {
        Call::ready(Ok(opened()))
    }

    fn create<'a>(
        &'a self,
        context: Context,
        parent: u64,
        name: &'a [u8],
        mode: u32,
        _: u32,
        _: i32,
    ) -> Call<'a, Result<(Entry, Opened)>> {
        let created = self.state().create(context, parent, name, mode, Content::File(Vec::new()));
        Call::ready(created.map(|entry| (entry, opened())))
    }

    fn read(&self, context: Context, node: u64, read: Read) -> Call<'_, Result<Payload>> {
        Call::new(async move {
            self.controls.reads_begun.fetch_add(1, Ordering::SeqCst);
            self.controls.resent.fetch_add(u64::from(context.is_resent()), Ordering::SeqCst);
            while self.controls.paused.load(Ordering::SeqCst) {
                runtime::sleep(Duration::from_millis(1)).await;
            }
            let mut state = self.state();
            let bytes = state.bytes(node)?;
            let begin = (read.offset as usize).min(bytes.len());
            let end = begin.saturating_add(read.size as usize).min(bytes.len());
            Ok(Data::copy_of(&bytes[begin..end]).into())
        })
    }

    fn write(&self, _: Context, node: u64, write: Write, data: Buffer) -> Call<'_, Result<u32>> {
        let length = data.filled().len();
        self.controls.largest_write.fetch_max(length as u64, Ordering::SeqCst);
        let aligned = (data.filled().as_ptr() as usize).is_multiple_of(block::buffer::ALIGNMENT);
        self.controls.unaligned_writes.fetch_add(u64::from(!aligned), Ordering::SeqCst);
        Call::ready(self.state().bytes(node).and_then(|bytes| {
            let Some(end) = (write.offset as usize).checked_add(length).filter(|end| *end <= 64 << 20) else {
                return errno(libc::EFBIG);
            };
            bytes.resize(bytes.len().max(end), 0);
            bytes[end - length..end].copy_from_slice(data.filled());
            Ok(length as u32)
        }))
    }

    fn statistics(&self, _: Context, _: u64) -> Call<'_, Result<Statistics>> {
        let nodes = self.state().nodes.len() as u64;
        Call::ready(Ok(Statistics {
            block_size: 4096,
            blocks: 1000,
            free: 500,
            available: 400,
            nodes,
            free_nodes: 7,
            name_bytes: 255,
        }))
    }

    fn release(&self, _: Context, _: u64, _: Release) -> Call<'_, Result<()>> {
        Call::ready(Ok(()))
    }

    fn sync(&self, _: Context, _: u64, _: u64, _: bool) -> Call<'_, Result<()>> {
        Call::ready(Ok(()))
    }

    fn set_extended<'a>(
        &'a self,
        _: Context,
        node: u64,
        name: &'a [u8],
        value: &'a [u8],
        _: i32,
    ) -> Call<'a, Result<()>> {
        let mut state = self.state();
        Call::ready(
            state.node(node).map(|node| node.extended.insert(name.to_vec(), value.to_vec())).map(drop),
        )
    }

    fn extended<'a>(&'a self, _: Context, node: u64, name: &'a [u8]) -> Call<'a, Result<Data>> {
        let mut state = self.state();
        let found = state.node(node).map(|node| node.extended.get(name).map(|value| Data::copy_of(value)));
        Call::ready(found.and_then(|value| value.map_or_else(|| errno(libc::ENODATA), Ok)))
    }

    fn list_extended(&self, _: Context, node: u64) -> Call<'_, Result<Data>> {
        let names = |node: &mut Node| {
            node.extended.keys().flat_map(|name| [name, &[0][..]].concat()).collect::<Vec<_>>()
        };
        Call::ready(self.state().node(node).map(|node| Data::copy_of(&names(node))))
    }

    fn remove_extended<'a>(&'a self, _: Context, node: u64, name: &'a [u8]) -> Call<'a, Result<()>> {
        Call::ready(self.state().node(node).map(|node| node.extended.remove(name)).map(drop))
    }

    fn open_directory(&self, _: Context, _: u64, _: i32) -> Call<'_, Result<Opened>> {
        Call::ready(Ok(Opened::default()))
    }

    fn read_directory(
        &self,
        _: Context,
        node: u64,
        _: u64,
        offset: u64,
        mut entries: DirectoryEntries,
    ) -> Call<'_, Result<DirectoryEntries>> {
        Call::ready(self.state().entries(node).map(|found| {
            for (number, (name, node)) in found.iter().enumerate().skip(offset as usize) {
                if !entries.add(*node, number as u64 + 1, libc::DT_UNKNOWN, name) {
                    break;
                }
            }
            entries
        }))
    }

    fn read_directory_plus(
        &self,
        _: Context,
        node: u64,
        _: u64,
        offset: u64,
        mut entries: DirectoryEntriesPlus,
    ) -> Call<'_, Result<DirectoryEntriesPlus>> {
        let mut state = self.state();
        let found = match state.entries(node) {
            Ok(found) => found.clone(),
            Err(error) => return Call::ready(Err(error)),
        };
        for (number, (name, node)) in found.iter().enumerate().skip(offset as usize) {
            let Ok(entry) = state.entry(*node) else { continue };
            if !entries.add(&entry, number as u64 + 1, name) {
                break;
            }
        }
        Call::ready(Ok(entries))
    }

    fn release_directory(&self, _: Context, _: u64, _: Release) -> Call<'_, Result<()>> {
        Call::ready(Ok(()))
    }

    fn copy_range(&self, _: Context, node: u64, copy: CopyRange) -> Call<'_, Result<u64>> {
        let mut state = self.state();
        Call::ready(state.bytes(node).map(|bytes| bytes.clone()).and_then(|from| {
            let begin = (copy.from_offset as usize).min(from.len());
            let end = begin.saturating_add(copy.length as usize).min(from.len());
            let to = state.bytes(copy.to_node)?;
            let at = copy.to_offset as usize;
            if at > 64 << 20 {
                return errno(libc::EFBIG);
            }
            to.resize(to.len().max(at + end - begin), 0);
            to[at..at + end - begin].copy_from_slice(&from[begin..end]);
            Ok((end - begin) as u64)
        }))
    }

    fn interrupt(&self, _: u64) {
        self.controls.interrupted.fetch_add(1, Ordering::SeqCst);
    }
}
