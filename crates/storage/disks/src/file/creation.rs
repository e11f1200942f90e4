//! Creation of a file with contents: it appears at its path once the contents are complete and durable.
//!
//! 1. A file of the path with `.new` appended is created, and locked as every part of a file is. One that a
//!    killed process left is removed first.
//! 2. The caller writes the contents.
//! 3. The file is renamed to the path, while it is still locked, and the folder is synced.
//!
//! A process that is killed at any step leaves no file at the path, or a complete one.

use super::{FilePart, existing, lock};
use block::{DevicePart, Error, Part, Result};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Whether there is no file at a path, or an empty one.
///
/// # Errors
/// Errors of stat(2) other than [`Error::NotFound`].
pub fn is_absent(path: &Path) -> Result<bool> {
    Ok(existing(path)?.is_none_or(|found| found.is_file && found.length == 0))
}

/// Path of the file while it is created.
fn new_path(path: &Path) -> PathBuf {
    let mut new = OsString::from(path);
    new.push(".new");
    new.into()
}

/// Creates a sparse file of `size` bytes with the contents that `fill` writes. If another program creates the
/// file meanwhile, its file stays.
///
/// # Errors
/// [`Error::Busy`] while another program creates the file; errors of `fill` and of the file.
pub async fn create(
    path: &Path,
    size: u64,
    fill: impl AsyncFnOnce(Arc<dyn DevicePart>) -> Result<()>,
) -> Result<()> {
    let new = new_path(path);
    if let Some(left) = lock(&new, true).await? {
        // Locked, so no process is writing it.
        runtime::file::unlink(&new).await?;
        drop(left);
    }
    let part = Arc::new(FilePart::open_path(&new, Some(size)).await?);
    let filled = async {
        fill(part.clone()).await?;
        part.close().await?;
        match is_absent(path)? {
            true => runtime::file::rename(&new, path).await,
            false => Err(Error::already_exists(format!(
                "{}: created by another program meanwhile",
                path.display()
            ))),
        }
    };
    if let Err(error) = filled.await {
        // The first error is returned.
        let _ = runtime::file::unlink(&new).await;
        return match error {
            Error::AlreadyExists(_) => Ok(()),
            other => Err(other),
        };
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    runtime::file::sync_directory(folder.unwrap_or(Path::new("."))).await
}
