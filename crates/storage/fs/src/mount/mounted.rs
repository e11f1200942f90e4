//! A mount, from start to end: checks of the mount point, the session, regular commits, the unmount.

use super::actions;
use super::control::Controls;
use super::owner;
use super::refused_reads::RefusedReads;
use super::serve::{FilesPart, SharedNotifier};
use crate::core::Core;
use crate::file_system::{FileSystem, Mounting};
use block::{Error, Result};
use fuse::{Ended, MountOptions, Session};
use runtime::sync::{StopSource, StopToken};
use stack::FullnessWarning;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Interval of syncs: a change becomes durable within about this time without an fsync(2). The kernel sends
/// neither sync(2) nor syncfs(2) to a FUSE server.
const COMMIT_INTERVAL: Duration = Duration::from_secs(5);
/// Default time limit for unmounting while users have files open.
pub const STOP_LIMIT: Duration = Duration::from_secs(10);

/// Options of a mount.
#[derive(Debug, Clone, Default)]
pub struct MountConfig {
    /// Mount point: an existing directory.
    pub path: PathBuf,
    /// Name in the first column of `/proc/mounts`: for an image its absolute path, by which the mount of a
    /// lost server is recognized.
    pub source: String,
    /// Let users other than the mounting one use the file system, as its permissions allow.
    pub allow_other: bool,
    /// Refuse writes of users. The file system itself is open for writing: it cleans, and replays its log.
    pub read_only: bool,
    /// Refuse to execute programs.
    pub no_exec: bool,
    /// Show the mount as one that doesn't update access times. Reads never change them.
    pub no_access_times: bool,
    /// User that all files belong to in this mount, instead of their owners.
    pub uid: Option<u32>,
    /// Group that all files belong to in this mount, instead of theirs.
    pub gid: Option<u32>,
    /// Warning whose level the status of the mount shows.
    pub warning: Option<Arc<FullnessWarning>>,
}

/// A mounted file system. [`unmount`](Self::unmount) unmounts it. Dropping it doesn't: the file system is
/// served, and can't be mounted again, until another program has unmounted it.
pub struct Mounted {
    session: Arc<Session>,
    files: FileSystem,
    notifier: SharedNotifier,
    stop: StopSource,
    /// `None` after [`unmount`](Self::unmount).
    mounting: Mutex<Option<Arc<Mounting>>>,
}

impl std::fmt::Debug for Mounted {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Mounted({})", self.session.path().display())
    }
}

impl Mounted {
    /// Mounts an open file system, and serves it on all shards.
    ///
    /// # Errors
    /// [`Error::NotFound`] without the directory or `/dev/fuse`, [`Error::Invalid`] for a mount point that
    /// isn't a directory, [`Error::Busy`] for a file system that is mounted, [`Error::PermissionDenied`];
    /// those of the kernel.
    pub async fn mount(file_system: &FileSystem, config: MountConfig) -> Result<Mounted> {
        let shown = config.path.display().to_string();
        let mounting = file_system
            .begin_mount()
            .map_err(|error| error.in_context(format!("mount point \"{shown}\"")))?;
        Self::mount_first(file_system, config, Arc::new(mounting)).await
    }

    /// Mounts a file system that isn't mounted.
    async fn mount_first(
        file_system: &FileSystem,
        config: MountConfig,
        mounting: Arc<Mounting>,
    ) -> Result<Mounted> {
        let (path, source) = (config.path.clone(), config.source.clone());
        let checked = source.clone();
        let check = move || {
            fuse::connection::remove_lost(&path, &checked)?;
            check_directory(&path)
        };
        runtime::blocking(check).await?;
        let options = MountOptions {
            path: config.path,
            source: config.source,
            read_only: config.read_only || file_system.is_salvaged().await?,
            no_exec: config.no_exec,
            no_access_times: config.no_access_times,
            allow_other: config.allow_other,
            adoptable: false,
        };
        let files = file_system.clone();
        // References and open files left by a mount that was dropped without an unmount.
        files.each(end).await?;
        let notifier = SharedNotifier::default();
        let part = FilesPart {
            shards: files.shards().clone(),
            controls: Controls::new(files.clone(), config.warning),
            notifier: notifier.clone(),
            slots: Arc::default(),
            refused_reads: RefusedReads::default(),
            _mounting: mounting.clone(),
        };
        let session = Session::mount(owner::shown(part, config.uid, config.gid), options).await?;
        *notifier.lock().unwrap_or_else(PoisonError::into_inner) = session.notifier().ok();
        let stop = StopSource::new();
        runtime::spawn(commit_regularly(files.clone(), stop.token())).detach();
        let (session, mounting) = (Arc::new(session), Mutex::new(Some(mounting)));
        Ok(Mounted { session, files, notifier, stop, mounting })
    }

    /// Mount point, without symbolic links.
    pub fn path(&self) -> &Path {
        self.session.path()
    }

    /// State of the session: `mounted`, or the reason for its end.
    pub fn state(&self) -> String {
        self.session.outcome().map_or_else(|| "mounted".to_owned(), ToString::to_string)
    }

    /// Whether requests come by rings of the kernel, instead of `/dev/fuse`.
    pub fn uses_rings(&self) -> bool {
        self.session.uses_rings()
    }

    /// Waits until the mount has ended, by an unmount or by a failure of its connection.
    ///
    /// # Errors
    /// The failure of the connection.
    pub async fn ended(&self) -> Result<()> {
        self.session.ended().await;
        match self.session.outcome() {
            Some(Ended::Failed(error)) => Err(error.clone()),
            Some(Ended::Aborted) => Err(Error::closed("the connection of the mount was aborted")),
            _ => Ok(()),
        }
    }

    /// Aborts the connection if the mount still exists: requests of its users fail, and the mount point is
    /// removed. For a server that ends without waiting for its storage.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub async fn abort(&self) -> Result<()> {
        self.session.abort().await
    }

    /// Unmounts, unless that was done before, and ends the session. While files are open, retries for at most
    /// `limit`.
    ///
    /// # Errors
    /// As [`Session::stop`]. The session has ended in any case.
    pub async fn unmount(&self, limit: Duration) -> Result<()> {
        let stopped = self.session.stop(limit).await;
        // The notifier would keep the connection open.
        self.notifier.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.stop.stop();
        let mounting = self.mounting.lock().unwrap_or_else(PoisonError::into_inner).take();
        if mounting.is_none() {
            return stopped;
        }
        let ended = self.files.each(end).await;
        drop(mounting);
        match ended {
            // The file system was closed before.
            Ok(()) | Err(Error::Closed(_)) => stopped,
            Err(error) => stopped.and(Err(error)),
        }
    }
}

/// Ends a mount on a shard.
async fn end(core: Rc<Core>) -> Result<()> {
    actions::end_mount(&core);
    Ok(())
}

/// Makes changes durable every [`COMMIT_INTERVAL`], until the mount ends or a sync fails.
async fn commit_regularly(files: FileSystem, stop: StopToken) {
    let mut stopped = pin!(stop.stopped());
    while runtime::timeout(COMMIT_INTERVAL, stopped.as_mut()).await.is_err() {
        match files.sync().await {
            Ok(()) => {}
            // Space may become available later.
            Err(error @ Error::NoSpace(_)) => tracing::warn!("changes aren't durable yet: {error}"),
            Err(error) => {
                // Users get the error with their next requests.
                tracing::error!("the file system can't make changes durable: {error}");
                return;
            }
        }
    }
}

fn check_directory(path: &Path) -> Result<()> {
    let shown = path.display();
    match std::fs::metadata(path) {
        // The mount of a killed server; mounting replaces it.
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => Ok(()),
        Err(error) => Err(Error::from_io(&error, &format!("mount point {shown}"))),
        Ok(metadata) if !metadata.is_dir() => Err(Error::invalid(format!(
            "mount point {shown}: not a directory; expected a directory; create one, or name another"
        ))),
        Ok(_) => Ok(()),
    }
}
