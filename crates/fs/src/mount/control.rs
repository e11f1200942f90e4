//! Control of a mounted file system by its administrator, through extended attributes that no file has: the verbs of `siltstone fs`
//! get and set them on the mount point or on a file.

use super::actions::os;
use super::kind::status;
use crate::core::Core;
use crate::file_system::FileSystem;
use crate::inode::{InodeNumber, ROOT};
use crate::scrub::Scrubbed;
use block::{Error, Result};
use serde_json::{Value, json};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How the names of these attributes begin.
const PREFIX: &[u8] = b"siltstone.";

/// What can be asked and told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Control {
    /// Get: the status of the file system.
    Status,
    /// Set: reads everything, in the background. Get: how far it is, or what it has found.
    Scrub,
    /// Set: defragments a file. Get: its number of fragments.
    Defrag,
}

impl Control {
    /// What an attribute with this name stands for; `None` for one that files have.
    ///
    /// # Errors
    /// ENODATA for an unknown one.
    pub fn of(name: &[u8]) -> Result<Option<Self>> {
        let Some(rest) = name.strip_prefix(PREFIX) else { return Ok(None) };
        match rest {
            b"status" => Ok(Some(Control::Status)),
            b"scrub" => Ok(Some(Control::Scrub)),
            b"defrag" => Ok(Some(Control::Defrag)),
            _ => Err(os(
                libc::ENODATA,
                format!(
                    "attribute \"{}\"; expected siltstone.status, siltstone.scrub or siltstone.defrag",
                    crate::directory::show(name)
                ),
            )),
        }
    }
}

/// The last scrub.
#[derive(Debug, Clone, Default)]
struct Scrub {
    is_running: bool,
    /// Blocks that it has read, and those that there were when it began.
    progress: Arc<AtomicU64>,
    blocks: u64,
    ended: Option<Result<Scrubbed>>,
}

/// The file system of a mount, and what was asked of it.
#[derive(Debug, Clone)]
pub(super) struct Controlled {
    files: FileSystem,
    scrub: Arc<Mutex<Scrub>>,
}

fn check_root(node: InodeNumber, control: Control) -> Result<()> {
    match node == ROOT {
        true => Ok(()),
        false => Err(os(libc::EINVAL, format!("{control:?} of inode {node}; expected the mount point"))),
    }
}

impl Controlled {
    pub fn new(files: FileSystem) -> Self {
        Controlled { files, scrub: Arc::default() }
    }

    fn scrub(&self) -> MutexGuard<'_, Scrub> {
        self.scrub.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers, as JSON.
    pub async fn get(&self, node: InodeNumber, control: Control) -> Result<Vec<u8>> {
        let answer = match control {
            Control::Status => {
                check_root(node, control)?;
                Value::Object(status(&self.files).await?)
            }
            Control::Scrub => {
                check_root(node, control)?;
                self.scrub_status()
            }
            Control::Defrag => {
                let count = move |core: Rc<Core>| async move { core.fragments(node) };
                json!({ "fragments": self.files.cores().of(node).with(count).await? })
            }
        };
        Ok(answer.to_string().into_bytes())
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

    /// Carries out what an administrator has told.
    pub async fn set(&self, node: InodeNumber, control: Control) -> Result<()> {
        match control {
            Control::Status => Err(os(libc::EPERM, "the status can't be set")),
            Control::Scrub => {
                check_root(node, control)?;
                self.begin_scrub().await
            }
            Control::Defrag => {
                let defragment = move |core: Rc<Core>| async move {
                    let node = core.open(node)?;
                    let outcome = core.defragment(&node).await;
                    core.close(&node);
                    outcome.map(drop)
                };
                self.files.cores().of(node).with(defragment).await
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
        let controlled = self.clone();
        runtime::spawn(async move {
            let ended = controlled.files.scrub(&progress).await;
            let mut scrub = controlled.scrub();
            (scrub.is_running, scrub.ended) = (false, Some(ended));
        })
        .detach();
        Ok(())
    }
}
