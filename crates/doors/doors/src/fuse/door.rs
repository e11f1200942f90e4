//! The FUSE door as a part of a stack.
//!
//! # Promises
//! - The mount point is a regular file. One that doesn't exist is created, and removed at the stop.
//! - A mount that a killed server left is replaced; any other mount at the path remains and is an error.
//! - [`FuseDoor::stop`] unmounts, unless another process [holds](FuseDoor::held) the mount. While the file is
//!   in use it retries for [`STOP_LIMIT`]. Then the users get I/O errors, the mount is removed lazily, and
//!   the stop returns an error that says so.

use super::file::{DeviceFile, FilePart};
use crate::served::metrics::REQUEST_METRICS;
use block::{Call, DevicePart, Error, Part, Result, Status};
use fuse::session::REQUESTS;
use fuse::{Mount, MountOptions, Negotiated, Session};
use serde_json::json;
use stack::{Arguments, Built, Contract, Door, Key, Kind, Metric, Shape, ValueKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Time limit for the users of the file to close it when the door stops.
pub const STOP_LIMIT: Duration = Duration::from_secs(10);
/// Name of the mount in the first column of `/proc/mounts`.
const SOURCE: &str = "siltstone";

/// Configuration of a door.
pub struct FuseConfig {
    /// Device to serve.
    pub device: Arc<dyn DevicePart>,
    /// Mount point.
    pub path: PathBuf,
    /// Whether writes are refused even if the device accepts them.
    pub read_only: bool,
    /// Whether users other than the server's may open the file, as its permissions allow.
    pub allow_other: bool,
    /// Time limit for the users of the file to close it at the stop.
    pub stop_limit: Duration,
}

/// Door that serves a device as a file.
pub struct FuseDoor {
    config: FuseConfig,
    /// Whether another process keeps the mount when the door stops.
    is_held: bool,
    /// Connection of an earlier server, adopted at the start.
    left: Mutex<Option<LeftConnection>>,
    running: Mutex<Option<Running>>,
}

/// A connection whose server has ended, kept by the process that holds the mount.
pub struct LeftConnection {
    /// All [devices](Session::descriptors) of the session.
    pub devices: Vec<OwnedFd>,
    /// Result of the session's negotiation.
    pub negotiated: Negotiated,
}

#[derive(Clone)]
struct Running {
    session: Arc<Session>,
    file: Arc<DeviceFile>,
    /// Whether the mount point is removed at the stop.
    created: bool,
}

impl FuseDoor {
    /// Returns a door that isn't open yet.
    pub fn new(config: FuseConfig) -> FuseDoor {
        FuseDoor { config, is_held: false, left: Mutex::new(None), running: Mutex::new(None) }
    }

    /// Returns a door whose mount another process holds: it remains mounted at the stop. With `left`, it is
    /// mounted already, and the requests that its server didn't answer are carried out again.
    pub fn held(config: FuseConfig, left: Option<LeftConnection>) -> FuseDoor {
        FuseDoor { is_held: true, left: Mutex::new(left), ..FuseDoor::new(config) }
    }

    /// Session of an open door.
    pub fn session(&self) -> Option<Arc<Session>> {
        self.running().as_ref().map(|running| running.session.clone())
    }

    fn running(&self) -> MutexGuard<'_, Option<Running>> {
        // Nothing panics while the lock is held.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn mount(&self) -> Result<()> {
        let config = &self.config;
        if self.running().is_some() {
            return Err(Error::busy(format!("{}: the door is open already", config.path.display())));
        }
        let file = Arc::new(DeviceFile::new(&config.device, config.read_only, runtime::shard_count()));
        let left = self.left.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(LeftConnection { devices, negotiated }) = left {
            let mount = Mount::existing(config.path.clone());
            let session =
                Session::adopt(Arc::new(FilePart(file.clone())), devices, negotiated, mount).await?;
            *self.running() = Some(Running { session: Arc::new(session), file, created: false });
            return Ok(());
        }
        let path = config.path.clone();
        let created = runtime::blocking(move || prepare(&path)).await?;
        let options = MountOptions {
            path: config.path.clone(),
            source: SOURCE.to_owned(),
            read_only: file.is_read_only(),
            allow_other: config.allow_other,
            adoptable: self.is_held,
            ..MountOptions::default()
        };
        match Session::mount(Arc::new(FilePart(file.clone())), options).await {
            Ok(session) => {
                *self.running() = Some(Running { session: Arc::new(session), file, created });
                Ok(())
            }
            Err(error) => {
                remove_mount_point(&config.path, created).await;
                Err(error)
            }
        }
    }

    async fn unmount(&self) -> Result<()> {
        let Some(running) = self.running().clone() else { return Ok(()) };
        let stopped = if self.is_held {
            running.session.leave().await;
            Ok(())
        } else {
            let stopped = running.session.stop(self.config.stop_limit).await;
            remove_mount_point(&self.config.path, running.created).await;
            stopped
        };
        self.running().take();
        stopped
    }

    /// Removes the mount, unless another process holds it.
    async fn abort_mount(&self) -> Result<()> {
        let Some(running) = self.running().clone().filter(|_| !self.is_held) else { return Ok(()) };
        let aborted = running.session.abort().await;
        remove_mount_point(&self.config.path, running.created).await;
        aborted
    }
}

/// Creates the mount point if it doesn't exist and returns whether it did.
fn prepare(path: &Path) -> Result<bool> {
    let shown = path.display();
    let creating = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    match creating {
        Ok(_) => return Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(Error::from_io(&error, &format!("creating mount point {shown}"))),
    }
    let metadata = match std::fs::metadata(path) {
        // A killed server's mount; mounting replaces it.
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => return Ok(false),
        other => other.map_err(|error| Error::from_io(&error, &format!("mount point {shown}")))?,
    };
    if !metadata.is_file() {
        return Err(Error::invalid(format!(
            "mount point {shown}: not a regular file; expected one, or none at all"
        )));
    }
    let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let folder = real.parent().and_then(|folder| std::fs::metadata(folder).ok());
    if folder.is_some_and(|folder| folder.dev() != metadata.dev()) {
        return Err(Error::busy(format!(
            "mount point {shown}: a file is mounted there already; expected none; stop its server or run: umount {shown}"
        )));
    }
    Ok(false)
}

async fn remove_mount_point(path: &Path, created: bool) {
    if created {
        let path = path.to_owned();
        let removed = runtime::blocking(move || match std::fs::metadata(&path) {
            // Not a file that the door created, or another program has written to it: it remains.
            Ok(metadata) if !metadata.is_file() || metadata.len() > 0 => Ok(()),
            _ => std::fs::remove_file(&path),
        });
        if let Err(error) = removed.await {
            tracing::warn!("removing the mount point: {error}");
        }
    }
}

impl Part for FuseDoor {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    fn status(&self) -> Call<'_, Status> {
        let mut status = Status::new();
        status.insert("path".into(), json!(self.config.path));
        let running = self.running().clone();
        let state = match &running {
            None => "closed".to_owned(),
            Some(running) => running.session.outcome().map_or("mounted".to_owned(), ToString::to_string),
        };
        status.insert("state".into(), json!(state));
        if let Some(running) = running {
            status.insert("read_only".into(), json!(running.file.is_read_only()));
            status.insert("rings".into(), json!(running.session.uses_rings()));
            let mut counters = running.file.counters();
            for of_other_doors in ["connections", "trims", "trimmed_bytes", "block_statuses"] {
                counters.remove(of_other_doors);
            }
            status.extend(counters);
        }
        status.insert("max_requests_per_shard".into(), json!(REQUESTS));
        Call::ready(status)
    }
}

impl Door for FuseDoor {
    fn start(&self) -> Call<'_, Result<()>> {
        Call::new(self.mount())
    }

    fn stop(&self) -> Call<'_, Result<()>> {
        Call::new(self.unmount())
    }

    fn addresses(&self) -> Vec<String> {
        vec![self.config.path.display().to_string()]
    }

    fn serves_kernel(&self) -> bool {
        true
    }

    fn abort(&self) -> Call<'_, Result<()>> {
        Call::new(self.abort_mount())
    }

    fn ended(&self) -> Call<'_, Result<()>> {
        let session = self.session();
        Call::new(async move {
            let Some(session) = session else { return Ok(()) };
            session.ended().await;
            match session.outcome() {
                Some(fuse::Ended::Aborted) => Err(Error::closed("the connection of the mount was aborted")),
                Some(fuse::Ended::Failed(error)) => Err(error.clone()),
                _ => Ok(()),
            }
        })
    }
}

/// Declaration of the kind.
pub const KIND: Kind = Kind {
    name: "fuse",
    contract: Contract::Door,
    summary: "serves a device as a file, through FUSE; with losetup as a block device",
    keys: &[
        Key::required("device", ValueKind::Device, "device to serve").positional(),
        Key::required("path", ValueKind::Path, "path of the file").positional(),
        Key::optional("read_only", ValueKind::Bool, "refuse writes").or("false"),
        Key::optional("allow_other", ValueKind::Bool, "let other users open the file, as its mode allows")
            .or("false"),
    ],
    messages: &[],
    metrics: &[METRICS, REQUEST_METRICS],
    shareable: false,
    example: "fuse(ram(size=64MiB), vol.img)",
    plan: |_| Ok(Shape::default()),
    build: |arguments| Call::new(async move { build(&arguments) }),
};

/// Numbers of the status for monitoring systems.
const METRICS: &[Metric] =
    &[Metric::gauge("state", "door_up", "1 while the door is in service").if_word("mounted")];

fn build(arguments: &Arguments) -> Result<Built> {
    let config = FuseConfig {
        device: arguments.device("device")?,
        path: arguments.path("path")?,
        read_only: arguments.boolean("read_only")?,
        allow_other: arguments.boolean("allow_other")?,
        stop_limit: STOP_LIMIT,
    };
    Ok(Built::Door(Arc::new(FuseDoor::new(config))))
}
