//! Control of a mounted file system by its administrator, through virtual extended attributes: the commands
//! of `siltstone fs` get and set them on the mount point or on a file.

use super::actions::os;
use crate::check::scrub::Scrubbed;
use crate::core::Core;
use crate::data::defrag;
use crate::file_system::FileSystem;
use crate::metadata::inode::{InodeNumber, ROOT};
use block::{Data, Error, Result};
use serde_json::{Value, json};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Prefix of the names of these attributes.
const PREFIX: &[u8] = b"siltstone.";

/// Controls, each an attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Control {
    /// Get: returns the status of the file system.
    Status,
    /// Set: starts a scrub in the background. Get: returns its progress, or its result.
    Scrub,
    /// Set: defragments a file. Get: returns its number of fragments.
    Defrag,
}

impl Control {
    /// Returns the control of this name; `None` for the name of an ordinary attribute.
    ///
    /// # Errors
    /// ENODATA for an unknown control.
    pub fn of(name: &[u8]) -> Result<Option<Self>> {
        let Some(rest) = name.strip_prefix(PREFIX) else { return Ok(None) };
        match rest {
            b"status" => Ok(Some(Control::Status)),
            b"scrub" => Ok(Some(Control::Scrub)),
            b"defrag" => Ok(Some(Control::Defrag)),
            _ => Err(os(
                libc::ENODATA,
                format!(
                    "attribute \"{}\" is unknown; expected siltstone.status, siltstone.scrub or siltstone.defrag",
                    crate::metadata::directory::show(name)
                ),
            )),
        }
    }
}

/// State of the last scrub.
#[derive(Debug, Clone, Default)]
struct Scrub {
    is_running: bool,
    /// Number of blocks read so far, of `blocks` in use when the scrub began.
    progress: Arc<AtomicU64>,
    blocks: u64,
    ended: Option<Result<Scrubbed>>,
}

/// Executes the controls of a mounted file system.
#[derive(Debug, Clone)]
pub(super) struct Controls {
    files: FileSystem,
    scrub: Arc<Mutex<Scrub>>,
}

fn check_root(node: InodeNumber, control: Control) -> Result<()> {
    match node == ROOT {
        true => Ok(()),
        false => {
            Err(os(libc::EINVAL, format!("control {control:?} of inode {node}; expected the mount point")))
        }
    }
}

impl Controls {
    pub fn new(files: FileSystem) -> Self {
        Controls { files, scrub: Arc::default() }
    }

    fn scrub(&self) -> MutexGuard<'_, Scrub> {
        self.scrub.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the value of a control as JSON.
    pub async fn get(&self, node: InodeNumber, control: Control) -> Result<Data> {
        let answer = match control {
            Control::Status => {
                check_root(node, control)?;
                let mut status = self.files.status().await?;
                status.insert("process".into(), json!(std::process::id()));
                Value::Object(status)
            }
            Control::Scrub => {
                check_root(node, control)?;
                self.scrub_status()
            }
            Control::Defrag => {
                let count = move |core: Rc<Core>| async move { defrag::fragments(&core, node) };
                json!({ "fragments": self.files.shards().of(node).with(count).await? })
            }
        };
        Ok(Data::copy_of(answer.to_string().as_bytes()))
    }

    fn scrub_status(&self) -> Value {
        let scrub = self.scrub();
        let read = scrub.progress.load(Ordering::Relaxed);
        let mut status = json!({ "running": scrub.is_running, "read_blocks": read, "blocks": scrub.blocks });
        match &scrub.ended {
            Some(Ok(found)) => {
                status["pages"] = json!(found.pages);
                status["damaged"] = json!(found.damaged);
                status["damage"] = json!(found.damage);
            }
            Some(Err(error)) => status["error"] = json!(error.to_string()),
            None => {}
        }
        status
    }

    /// Carries out a control.
    pub async fn set(&self, node: InodeNumber, control: Control) -> Result<()> {
        match control {
            Control::Status => {
                Err(os(libc::EPERM, "attribute \"siltstone.status\" can't be set; expected a get"))
            }
            Control::Scrub => {
                check_root(node, control)?;
                self.begin_scrub().await
            }
            Control::Defrag => {
                let defragment = move |core: Rc<Core>| async move {
                    let node = core.open(node)?;
                    let outcome = defrag::defragment(&core, &node).await;
                    core.close(&node);
                    outcome.map(drop)
                };
                self.files.shards().of(node).with(defragment).await
            }
        }
    }

    async fn begin_scrub(&self) -> Result<()> {
        let found = self.files.statistics().await?;
        let progress = Arc::new(AtomicU64::new(0));
        {
            let mut scrub = self.scrub();
            if scrub.is_running {
                return Err(Error::busy("a scrub is running; wait until it has ended"));
            }
            let blocks = found.blocks - found.free;
            *scrub = Scrub { is_running: true, progress: progress.clone(), blocks, ended: None };
        }
        let controls = self.clone();
        runtime::spawn(async move {
            let ended = controls.files.scrub(&progress).await;
            let mut scrub = controls.scrub();
            (scrub.is_running, scrub.ended) = (false, Some(ended));
        })
        .detach();
        Ok(())
    }
}
