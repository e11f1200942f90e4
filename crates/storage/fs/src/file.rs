//! An open file: reads, writes and attributes, from any shard.
//!
//! In other modules: opening by a path or a name (`file_system`), and the operations on the shard that has
//! the file (`operations`, `data`).

use crate::classes::Class;
use crate::classes::fair_queue::{ClassNumber, DEFAULT};
use crate::core::{Core, Times};
use crate::data::clones::{self, Cloned, Copied};
use crate::data::defrag::{self, Fragments};
use crate::data::node::Node;
use crate::metadata::change::Attributes;
use crate::metadata::inode::{Inode, InodeNumber};
use block::{Error, Payload, Result};
use runtime::{Home, ShardIndex};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
/// An open file. It is closed when the last clone is dropped.
#[derive(Clone)]
pub struct File {
    home: Home<Core>,
    inode: InodeNumber,
    class: ClassNumber,
    /// Closes the file when the last clone is dropped.
    _open: Arc<Open>,
}

/// An open reference to a file; dropping it closes the file.
struct Open {
    home: Home<Core>,
    inode: InodeNumber,
}

impl Drop for Open {
    fn drop(&mut self) {
        let inode = self.inode;
        let close = move |core: Rc<Core>| {
            if let Some(node) = core.nodes.find(inode) {
                core.close(&node);
            }
        };
        // A shard that has ended has closed its files. Outside of a shard, the runtime has ended.
        if !runtime::is_on_shard() {
            return;
        }
        if let Ok(core) = self.home.get() {
            return close(core);
        }
        let home = self.home.clone();
        let closing = async move {
            let close = move |core| async move {
                close(core);
                Ok(())
            };
            home.with(close).await.ok()
        };
        runtime::spawn(closing).detach();
    }
}

impl std::fmt::Debug for File {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "File({})", self.inode)
    }
}

impl File {
    /// Returns a file that has been opened on its shard.
    pub(crate) fn opened(home: Home<Core>, inode: InodeNumber) -> Self {
        File { _open: Arc::new(Open { home: home.clone(), inode }), home, inode, class: DEFAULT }
    }

    /// Inode number of the file.
    pub fn inode(&self) -> InodeNumber {
        self.inode
    }

    /// Returns the same open file with its reads, writes, appends and syncs in a class of its file system.
    /// Clones of the result inherit the class; other handles of the file don't.
    pub fn in_class(self, class: &Class) -> Self {
        File { class: class.number, ..self }
    }

    /// Shard of the runtime that has the file. Calls from this shard need no messages.
    pub fn shard(&self) -> ShardIndex {
        self.home.shard()
    }

    async fn with<R, Fut>(&self, work: impl FnOnce(Rc<Core>, Rc<Node>) -> Fut + Send + 'static) -> Result<R>
    where
        R: Send + 'static,
        Fut: Future<Output = Result<R>> + 'static,
    {
        let inode = self.inode;
        self.home
            .with(move |core| async move {
                let node = core.node(inode);
                work(core, node).await
            })
            .await
    }

    /// Reads `length` bytes, or fewer at the end of the file.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for data with a wrong checksum; errors of reading.
    pub async fn read_at(&self, offset: u64, length: usize) -> Result<Payload> {
        let class = self.class;
        self.with(
            move |core, node| async move { core.read_in(class, None, node.inode, offset, length).await },
        )
        .await
    }

    /// Writes data. Reads see the data when this returns; it survives a power cut after the next
    /// [`sync`](Self::sync).
    ///
    /// # Errors
    /// [`Error::NoSpace`], EFBIG; the failure of the log.
    pub async fn write_at(&self, offset: u64, data: impl Into<Payload>) -> Result<()> {
        let (class, data) = (self.class, data.into());
        self.with(move |core, node| async move { core.write(class, &node, offset, data).await }).await
    }

    /// Appends data at the end of the file. Returns its offset.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    pub async fn append(&self, data: impl Into<Payload>) -> Result<u64> {
        let (class, data) = (self.class, data.into());
        self.with(move |core, node| async move { core.append_to(class, &node, data).await }).await
    }

    /// Sets the size: removes the data after it, or adds zeros.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    pub async fn truncate(&self, size: u64) -> Result<()> {
        self.with(move |core, node| async move { core.truncate(&node, size).await }).await
    }

    /// Reserves space for a range, also beyond the end, without changing the size.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    pub async fn preallocate(&self, range: Range<u64>) -> Result<()> {
        self.with(
            move |core, node| async move { core.preallocate(&node, range, false, Times::Present).await },
        )
        .await
    }

    /// Reserves space for a range, and raises the size to its end if it is smaller, as fallocate(2) does with
    /// mode 0.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    pub async fn allocate(&self, range: Range<u64>) -> Result<()> {
        self.with(move |core, node| async move { core.preallocate(&node, range, true, Times::Present).await })
            .await
    }

    /// Copies a range of another file of this file system, or of this file, to an offset; ends where the
    /// source file ends. Blocks are shared instead of copied where that is possible
    /// ([`clones`]); a change of either file later leaves the other one unchanged.
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at) and [`write_at`](Self::write_at); after some bytes were copied, their
    /// number is returned instead. [`Error::Invalid`] for overlapping ranges of one file; EXDEV for a file of
    /// another file system.
    pub async fn clone_range(
        &self,
        from: &File,
        from_offset: u64,
        length: u64,
        to_offset: u64,
    ) -> Result<Cloned> {
        let (from, source) = (from.inode, from.home.clone());
        let copied = Copied { class: self.class, from, from_offset, to_offset, length };
        self.with(move |core, node| async move {
            if !core.shards().of(from).is_same(&source) {
                return Err(Error::from_errno(libc::EXDEV, "a file of another file system is to be cloned"));
            }
            clones::copy_range(&core, &node, copied, u64::MAX, Times::Present).await
        })
        .await
    }

    /// Frees the blocks of a range, which then reads as zeros.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    pub async fn punch(&self, range: Range<u64>) -> Result<()> {
        self.with(move |core, node| async move { core.punch(&node, range, Times::Present).await }).await
    }

    /// Makes all changes of the file durable, including its name.
    ///
    /// # Errors
    /// The failure of the log, which is permanent; [`Error::NoSpace`] while a record waits for space of the
    /// device below.
    pub async fn sync(&self) -> Result<()> {
        let class = self.class;
        self.with(move |core, node| async move { core.sync_in(class, node.ticket.get()).await }).await
    }

    /// Rewrites fragmented parts of the file contiguously.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at) and [`read_at`](Self::read_at).
    pub async fn defragment(&self) -> Result<Fragments> {
        self.with(|core, node| async move { defrag::defragment(&core, &node).await }).await
    }

    /// Attributes of the file.
    ///
    /// # Errors
    /// ESTALE.
    pub async fn attributes(&self) -> Result<Inode> {
        self.with(|core, node| async move { core.inode(node.inode) }).await
    }

    /// Sets attributes other than the size.
    ///
    /// # Errors
    /// The failure of the log.
    pub async fn set_attributes(&self, attributes: Attributes) -> Result<Inode> {
        self.with(move |core, node| async move { core.set_attributes(node.inode, attributes).await }).await
    }
}
