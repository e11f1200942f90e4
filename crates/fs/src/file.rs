//! An open file: reads, writes and attributes, from any shard.
//!
//! Left to others: opening by a path or a name (`file_system`), and the work itself, on the core that has the file (`operations`, `data`).

use crate::change::Attributes;
use crate::classes::Class;
use crate::classes::fair_queue::{ClassNumber, DEFAULT};
use crate::clones::{Cloned, Copied};
use crate::core::{Core, Times};
use crate::defrag::Fragments;
use crate::inode::{Inode, InodeNumber};
use crate::node::Node;
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
    /// Closes the file with its last clone.
    _open: Arc<Open>,
}

/// Closes a file when it is dropped.
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
        // A shard that has ended has closed everything; so has the runtime where this isn't a shard.
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
    /// A file that has been opened on its core.
    pub(crate) fn opened(home: Home<Core>, inode: InodeNumber) -> Self {
        File { _open: Arc::new(Open { home: home.clone(), inode }), home, inode, class: DEFAULT }
    }

    /// Number of its inode.
    pub fn inode(&self) -> InodeNumber {
        self.inode
    }

    /// The same open file, whose reads, writes, appends and syncs are those of a class of its file system. Clones of it are, too; other
    /// handles of the file aren't.
    pub fn in_class(self, class: &Class) -> Self {
        File { class: class.number, ..self }
    }

    /// The shard of the runtime that has the file: calls from there need no messages.
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

    /// Reads at most `length` bytes: fewer only at the end.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for data that isn't what was written; what reading returns.
    pub async fn read_at(&self, offset: u64, length: usize) -> Result<Payload> {
        let class = self.class;
        self.with(
            move |core, node| async move { core.read_in(class, None, node.inode, offset, length).await },
        )
        .await
    }

    /// Writes data. Reads see it when this returns; it survives a power cut after the next [`sync`](Self::sync).
    ///
    /// # Errors
    /// [`Error::NoSpace`], EFBIG; the failure of the log.
    pub async fn write_at(&self, offset: u64, data: impl Into<Payload>) -> Result<()> {
        let (class, data) = (self.class, data.into());
        self.with(move |core, node| async move { core.write(class, &node, offset, data).await }).await
    }

    /// Writes data at the end. Returns its offset.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    pub async fn append(&self, data: impl Into<Payload>) -> Result<u64> {
        let (class, data) = (self.class, data.into());
        self.with(move |core, node| async move { core.append_to(class, &node, data).await }).await
    }

    /// Sets the size: cuts off what is behind it, or adds zeros.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    pub async fn truncate(&self, size: u64) -> Result<()> {
        self.with(move |core, node| async move { core.truncate(&node, size).await }).await
    }

    /// Reserves space for a range, beyond the end too, where the size stays.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    pub async fn preallocate(&self, range: Range<u64>) -> Result<()> {
        self.with(move |core, node| async move { core.preallocate(&node, range, false).await }).await
    }

    /// Reserves space for a range, and raises the size to its end at least, as fallocate(2) does with mode 0.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    pub async fn allocate(&self, range: Range<u64>) -> Result<()> {
        self.with(move |core, node| async move { core.preallocate(&node, range, true).await }).await
    }

    /// Copies a range of another file of this file system, or of this file, to an offset; ends where the other file ends. Blocks are shared
    /// instead of copied where that is possible ([`clones`](crate::clones)), and are copied when one of the files is changed.
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at) and [`write_at`](Self::write_at), before anything was copied; else the result has fewer bytes.
    /// [`Error::Invalid`] for ranges of one file that overlap; EXDEV for a file of another file system.
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
            if !core.cores().of(from).is_same(&source) {
                return Err(Error::from_errno(libc::EXDEV, "a file of another file system is to be cloned"));
            }
            core.copy_range(&node, copied, u64::MAX, Times::Present).await
        })
        .await
    }

    /// Frees the blocks of a range, which reads as zeros then.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    pub async fn punch(&self, range: Range<u64>) -> Result<()> {
        self.with(move |core, node| async move { core.punch(&node, range).await }).await
    }

    /// Makes durable what was done to the file, its name included.
    ///
    /// # Errors
    /// The failure of the log, which stays; [`Error::NoSpace`] while a record waits for space of the device below.
    pub async fn sync(&self) -> Result<()> {
        let class = self.class;
        self.with(move |core, node| async move { core.sync_in(class, node.ticket.get()).await }).await
    }

    /// Writes parts of it again that lie in several places.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at) and [`read_at`](Self::read_at).
    pub async fn defragment(&self) -> Result<Fragments> {
        self.with(|core, node| async move { core.defragment(&node).await }).await
    }

    /// Attributes of the file.
    ///
    /// # Errors
    /// ESTALE.
    pub async fn attributes(&self) -> Result<Inode> {
        self.with(|core, node| async move { core.inode(node.inode) }).await
    }

    /// Sets attributes but the size.
    ///
    /// # Errors
    /// The failure of the log.
    pub async fn set_attributes(&self, attributes: Attributes) -> Result<Inode> {
        self.with(move |core, node| async move { core.set_attributes(node.inode, attributes).await }).await
    }
}
