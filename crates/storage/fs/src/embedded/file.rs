//! An open file.

use super::open::Opened;
use super::{Metadata, Pending};
use crate::file;
use block::Result;
use runtime::embedded::Embedded;
use std::sync::Arc;

/// An open file. Clones refer to the same one; it is closed when the last clone is dropped.
#[derive(Debug, Clone)]
pub struct File {
    open: Arc<Open>,
}

/// The library's file, which is closed on its shard.
#[derive(Debug)]
struct Open {
    /// `None` only while it is dropped.
    file: Option<file::File>,
    embedded: Embedded<Opened>,
}

impl Open {
    fn file(&self) -> &file::File {
        self.file.as_ref().expect("a file is taken by its drop only")
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            self.embedded.send(file.shard(), move || drop(file));
        }
    }
}

/// Reads `length` bytes, or fewer at the end of the file.
///
/// # Errors
/// Errors of [`file::File::read_at`].
pub(super) async fn read(file: &file::File, offset: u64, length: usize) -> Result<Vec<u8>> {
    let payload = file.read_at(offset, length).await?;
    let mut bytes = vec![0; payload.len()];
    payload.copy_to(&mut bytes)?;
    Ok(bytes)
}

impl File {
    pub(super) fn new(file: file::File, embedded: Embedded<Opened>) -> Self {
        File { open: Arc::new(Open { file: Some(file), embedded }) }
    }

    /// Returns a call on the file's shard.
    fn call<T, Fut>(&self, work: impl FnOnce(Arc<Open>) -> Fut + Send + 'static) -> Pending<T>
    where
        T: Send + 'static,
        Fut: Future<Output = Result<T>> + 'static,
    {
        let open = self.open.clone();
        self.open.embedded.call(self.open.file().shard(), move |_| work(open))
    }

    /// Reads `length` bytes at an offset, or fewer at the end of the file.
    ///
    /// # Errors
    /// [`Error::Corrupt`](block::Error::Corrupt) for data with a wrong checksum; errors of reading.
    pub fn read_at(&self, offset: u64, length: usize) -> Pending<Vec<u8>> {
        self.call(move |open| async move { read(open.file(), offset, length).await })
    }

    /// Writes all of `data` at an offset. It survives a crash after the next [`sync_all`](Self::sync_all).
    ///
    /// # Errors
    /// [`Error::NoSpace`](block::Error::NoSpace), EFBIG; the failure of the log, which is permanent.
    pub fn write_at(&self, offset: u64, data: impl AsRef<[u8]>) -> Pending<()> {
        let data = block::Data::copy_of(data.as_ref());
        self.call(move |open| async move { open.file().write_at(offset, data).await })
    }

    /// Appends data at the end of the file. Returns its offset.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    pub fn append(&self, data: impl AsRef<[u8]>) -> Pending<u64> {
        let data = block::Data::copy_of(data.as_ref());
        self.call(move |open| async move { open.file().append(data).await })
    }

    /// Sets the size: removes the data after it, or adds zeros.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    pub fn set_len(&self, size: u64) -> Pending<()> {
        self.call(move |open| async move { open.file().truncate(size).await })
    }

    /// Makes all changes of the file durable, including its name.
    ///
    /// # Errors
    /// The failure of the log, which is permanent; [`Error::NoSpace`](block::Error::NoSpace) while the disk
    /// of the image is full.
    pub fn sync_all(&self) -> Pending<()> {
        self.call(|open| async move { open.file().sync().await })
    }

    /// Attributes of the file.
    ///
    /// # Errors
    /// ESTALE.
    pub fn metadata(&self) -> Pending<Metadata> {
        self.call(|open| async move { Ok(Metadata(open.file().attributes().await?)) })
    }
}
